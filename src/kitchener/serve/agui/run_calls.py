"""The tool calls of one AG-UI run: each is begun once, and has one result at most. Explained in `docs/server.md`."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from kitchener.ids import approval_id
from kitchener.plain_names import without_halves
from kitchener.records.turn import ToolProgress, ToolRan, ToolStarted
from kitchener.serve.agui.run_input import result_message_id
from kitchener.serve.event_stream import event
from kitchener.serve.sendable import as_json

PROGRESS: Final = "kitchener:tool_progress"
"""The type of an activity that shows the progress of a tool."""
_NO_OUTCOME: Final = "the call has no outcome on record"


class RequestedCall(NamedTuple):
    """A tool call that waits for a person, or for the front end that runs the tool."""

    call_id: str
    """The request for approval, or the call."""
    tool_id: str
    arguments: Mapping[str, object]
    interrupt: Mapping[str, object] | None
    """The interrupt that the client gets; None: the call waits for the front end."""


class RunCalls:
    """The tool calls of one run.

    Args:
        shown: the ids of the tool calls that the client shows
        made: the messages of this run that are closed; shared with its texts
        answered: the requests for approval that the run brings answers to, oldest first, with their tools
    """

    def __init__(self, shown: Collection[str], made: list[dict[str, object]], answered: Sequence[tuple[str, str]]) -> None:
        self._shown, self._made = shown, made
        self._ids: dict[tuple[str, int], str] = {}
        self._begun: dict[str, bool] = {}
        """Whether each call has a result."""
        self._unsure: list[str] = []
        """Calls with the result null. A tool that asks a person something has this result, too; its request follows."""
        self._answered: dict[str, deque[str]] = {}
        for call_id, tool_id in answered:
            self._answered.setdefault(tool_id, deque()).append(call_id)

    def started(self, update: ToolStarted) -> bytes:
        """A tool runs."""
        return self.begin(self._id(update), update.tool_id, update.arguments)

    def begin(self, call_id: str, tool_id: str, arguments: Mapping[str, object]) -> bytes:
        """The model has asked for a call."""
        if call_id in self._begun:
            return b""
        self._begun[call_id] = False
        name = without_halves(tool_id)
        told = event({"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": name})
        if call_id not in self._shown:  # else the client has the arguments, and would append these to them
            text = as_json(arguments).decode()
            told += event({"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": text})
            call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
            self._made.append({"id": call_id, "role": "assistant", "toolCalls": [call]})
        return told + event({"type": "TOOL_CALL_END", "toolCallId": call_id})

    def progress(self, update: ToolProgress) -> bytes:
        """A tool reports its progress."""
        call_id = self._id(update)
        content: dict[str, object] = {"toolCallId": call_id, "value": update.value, "total": update.total}
        content["message"] = without_halves(update.message) if update.message is not None else None
        name = f"{call_id}:progress"
        return event({"type": "ACTIVITY_SNAPSHOT", "messageId": name, "activityType": PROGRESS, "content": content})

    def ran(self, update: ToolRan) -> bytes:
        """A call has ended, or was refused."""
        call_id = self._id(update)
        told = self.begin(call_id, update.tool_id, update.arguments)
        if self._begun[call_id] or call_id in self._unsure:
            return told
        if update.error is not None:
            return told + self._answer(call_id, without_halves(update.error), is_error=True)
        if update.result is None:
            self._unsure.append(call_id)
            return told
        is_text = isinstance(update.result, str)
        return told + self._answer(call_id, without_halves(update.result) if is_text else as_json(update.result).decode())

    def flush(self, waiting: Collection[str] = ()) -> bytes:
        """The results that were held back, except results of calls that wait for a person."""
        if not self._unsure:
            return b""
        held, self._unsure = self._unsure, []
        return b"".join(self._answer(each, "null") for each in held if each not in waiting)

    def close(self, waiting: Sequence[RequestedCall]) -> bytes:
        """The run ends: every call has a result or waits, and the client gets those that wait."""
        asks = {each.call_id for each in waiting}
        told = self.flush(asks)
        for call_id, has_result in list(self._begun.items()):
            if not has_result and call_id not in asks:
                told += self._answer(call_id, _NO_OUTCOME, is_error=True)
        for each in waiting:
            if each.call_id not in self._shown:
                told += self.begin(each.call_id, each.tool_id, each.arguments)
        return told

    def _id(self, update: ToolStarted | ToolProgress | ToolRan) -> str:
        """The id of a call: the request's id, if a person was asked about the call in an earlier run."""
        key = (update.wo_id, update.call)
        if key not in self._ids:
            waited = self._answered.get(update.tool_id)
            self._ids[key] = waited.popleft() if waited else approval_id(*key)
        return self._ids[key]

    def _answer(self, call_id: str, content: str, *, is_error: bool = False) -> bytes:
        self._begun[call_id] = True
        name = result_message_id(call_id)
        message: dict[str, object] = {"id": name, "role": "tool", "toolCallId": call_id, "content": content}
        told: dict[str, object] = {"type": "TOOL_CALL_RESULT", "messageId": name, "toolCallId": call_id}
        told |= {"content": content, "role": "tool"}
        if is_error:
            told["metadata"] = {"kitchener": {"is_error": True}}
        self._made.append(message)
        return event(told)
