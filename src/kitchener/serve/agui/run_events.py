"""Turns the updates of turns into the events of one AG-UI run, in an order that the protocol allows.

Whatever the updates are, the events are those of a valid run: what was opened is closed, and ids are not used twice. It knows
no connection, clock or ledger. Explained in `docs/server.md`.
"""

import json
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from kitchener.ids import approval_id
from kitchener.records.turn import (
    TextDelta,
    TextRetracted,
    ToolProgress,
    ToolRan,
    ToolStarted,
    TurnCompleted,
    TurnResult,
    TurnUpdate,
    WorkOrderFinished,
    WorkOrderPlanned,
)
from kitchener.serve.agui.run_input import AskedRun, message_id
from kitchener.serve.event_stream import event
from kitchener.serve.problems import Problem

PROTOCOL: Final = "1.0"
"""The version of the protocol that this server speaks."""
PROGRESS: Final = "kitchener.tool_progress"
"""The type of an activity that says how far a tool is."""
_NO_OUTCOME: Final = "the call has no outcome on record"


class RequestedCall(NamedTuple):
    """A tool call that waits for a person."""

    call_id: str
    """The request for approval."""
    tool_id: str
    arguments: Mapping[str, object]
    interrupt: Mapping[str, Any]
    """What the client is told of it."""


class _Text(NamedTuple):
    """A text message of the present turn."""

    message_id: str
    wo_id: str
    pieces: list[str]


class RunEvents:
    """The events of one run.

    Args:
        asked: the run that the client asks for
        answered: the requests for approval that it brings answers to, in the order in which they were made, and their tools
    """

    def __init__(self, asked: AskedRun, answered: Sequence[tuple[str, str]] = ()) -> None:
        self._asked, self._body = asked, asked.body
        self._is_resumed = bool(answered)
        self._made: list[dict[str, Any]] = []
        """The messages of this run, without the one that is open."""
        self._number, self._open, self._content = 0, None, b""
        self._texts: list[_Text] = []
        self._steps: dict[str, str] = {}
        self._calls: dict[tuple[str, int], str] = {}
        self._announced: dict[str, bool] = {}
        """The tool calls of this run, and whether each has a result."""
        self._unsure: list[str] = []
        """Results of null. A tool that asks a person something has one, too; its request follows."""
        self._answered: dict[str, deque[str]] = {}
        for call_id, tool_id in answered:
            self._answered.setdefault(tool_id, deque()).append(call_id)
        self._usage: list[dict[str, int]] = []

    _open: _Text | None
    _content: bytes

    def start(self, now_ms: int, messages: Sequence[Mapping[str, Any]] | None = None) -> bytes:
        """The run begins.

        Args:
            now_ms: milliseconds since 1970
            messages: all messages of the thread, for a client that has none; None: it has them
        """
        began: dict[str, Any] = {**self._ids("RUN_STARTED", now_ms), "protocolVersion": PROTOCOL}
        if self._body.parent_run_id is not None:
            began["parentRunId"] = self._body.parent_run_id
        if messages is not None:
            return event(began) + event({"type": "MESSAGES_SNAPSHOT", "messages": messages})
        return event(began) + (self._snapshot() if self._asked.is_tried_again else b"")

    def add(self, update: TurnUpdate) -> bytes:
        """The events of an update; b"": there are none."""
        if isinstance(update, TextDelta):
            return self._flushed() + self._add_text(update.wo_id, update.text)
        if isinstance(update, TextRetracted):
            return self._flushed() + self._withdraw([each for each in self._texts if each.wo_id == update.wo_id])
        if isinstance(update, WorkOrderPlanned):
            return self._flushed() + self._begin_step(update)
        if isinstance(update, WorkOrderFinished):
            return self._end_step(update.wo_id)
        if isinstance(update, ToolStarted):
            return self._flushed() + self._announce(self._call_id(update), update.tool_id, update.arguments)
        if isinstance(update, ToolProgress):
            return self._progress(update)
        if isinstance(update, ToolRan):
            return self._ran(update)
        return self._complete(update)

    def finish(self, now_ms: int, waiting: Sequence[RequestedCall] = (), result: Mapping[str, Any] | None = None) -> bytes:
        """The run ends.

        Args:
            now_ms: milliseconds since 1970
            waiting: the tool calls of the thread that wait for a person
            result: what this server tells of the turn; None: nothing
        """
        asked_again = {each.call_id for each in waiting}
        told = self._close_all(asked_again)
        for each in waiting:
            if each.call_id not in self._asked.calls:
                told += self._announce(each.call_id, each.tool_id, each.arguments)
        interrupts = [each.interrupt for each in waiting]
        outcome = {"type": "interrupt", "interrupts": interrupts} if interrupts else {"type": "success"}
        ended: dict[str, Any] = {**self._ids("RUN_FINISHED", now_ms), "outcome": outcome}
        if result is not None:
            ended["result"] = result
        if self._usage:
            ended["usage"] = self._usage
        return told + event(ended)

    def cancel(self, now_ms: int) -> bytes:
        """The run ends because somebody stopped its turn."""
        return self._close_all(()) + event({**self._ids("RUN_FINISHED", now_ms), "outcome": {"type": "cancelled"}})

    def fail(self, problem: Problem) -> bytes:
        """The run ends without a reply."""
        return event({"type": "RUN_ERROR", "message": problem.message, "code": problem.code})

    def _ids(self, kind: str, now_ms: int) -> dict[str, Any]:
        return {"type": kind, "threadId": self._body.thread_id, "runId": self._body.run_id, "timestamp": now_ms}

    def _add_text(self, wo_id: str, text: str) -> bytes:
        if not text:
            return b""
        told = b""
        if self._open is None or self._open.wo_id != wo_id:
            told = self._close_text()
            self._number += 1
            self._open = _Text(message_id(self._body.run_id, self._number, is_resumed=self._is_resumed), wo_id, [])
            self._texts.append(self._open)
            named = _json(self._open.message_id)
            # A delta is the most frequent event by far: its fixed part is written once.
            self._content = b'data: {"type":"TEXT_MESSAGE_CONTENT","messageId":' + named + b',"delta":'
            told += event({"type": "TEXT_MESSAGE_START", "messageId": self._open.message_id, "role": "assistant"})
        self._open.pieces.append(text)
        return told + self._content + _json(text) + b"}\n\n"

    def _close_text(self) -> bytes:
        if self._open is None:
            return b""
        closed, self._open = self._open, None
        self._made.append({"id": closed.message_id, "role": "assistant", "content": _plain("".join(closed.pieces))})
        return event({"type": "TEXT_MESSAGE_END", "messageId": closed.message_id})

    def _withdraw(self, texts: Collection[_Text]) -> bytes:
        """Takes messages back. What the client sent and the rest of this run are told again, because nothing else can do it."""
        if not texts:
            return b""
        gone = {each.message_id for each in texts}
        told = self._close_text() if self._open is not None and self._open.message_id in gone else b""
        self._texts = [each for each in self._texts if each.message_id not in gone]
        self._made = [each for each in self._made if each["id"] not in gone]
        return told + self._snapshot()

    def _snapshot(self) -> bytes:
        # Activities and reasoning are the client's own: a snapshot without any leaves them as they are.
        shown = [each for each in self._asked.shown if each.get("role") not in ("activity", "reasoning")]
        told: dict[str, Any] = {"type": "MESSAGES_SNAPSHOT", "messages": [*shown, *self._made, *self._unfinished()]}
        try:
            return event(told)
        except TypeError:  # more can be read than written: what is nested too deeply cannot be told again
            told["messages"] = [each for each in told["messages"] if _can_be_sent(each)]
            return event(told)

    def _unfinished(self) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        return [{"id": self._open.message_id, "role": "assistant", "content": _plain("".join(self._open.pieces))}]

    def _begin_step(self, planned: WorkOrderPlanned) -> bytes:
        if planned.wo_id in self._steps:
            return b""
        name: str = planned.wo_type
        if name in self._steps.values():
            name = f"{name} {planned.wo_id}"
        self._steps[planned.wo_id] = name
        return event({"type": "STEP_STARTED", "stepName": name})

    def _end_step(self, wo_id: str) -> bytes:
        name = self._steps.pop(wo_id, None)
        return event({"type": "STEP_FINISHED", "stepName": name}) if name is not None else b""

    def _call_id(self, update: ToolStarted | ToolProgress | ToolRan) -> str:
        """The id of a call: that of the request, if a person was asked about it in an earlier run."""
        key = (update.wo_id, update.call)
        if key not in self._calls:
            waited = self._answered.get(update.tool_id)
            self._calls[key] = waited.popleft() if waited else approval_id(*key)
        return self._calls[key]

    def _announce(self, call_id: str, tool_id: str, arguments: Mapping[str, object]) -> bytes:
        if call_id in self._announced:
            return b""
        self._announced[call_id] = False
        told = event({"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": _plain(tool_id)})
        if call_id not in self._asked.calls:  # else the client has the arguments, and would append these to them
            text = _json(arguments).decode()
            told += event({"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": text})
            function = {"name": _plain(tool_id), "arguments": text}
            call = {"id": call_id, "type": "function", "function": function}
            self._made.append({"id": call_id, "role": "assistant", "toolCalls": [call]})
        return told + event({"type": "TOOL_CALL_END", "toolCallId": call_id})

    def _progress(self, update: ToolProgress) -> bytes:
        call_id = self._call_id(update)
        content: dict[str, Any] = {"toolCallId": call_id, "value": update.value, "total": update.total}
        content["message"] = _plain(update.message) if update.message is not None else None
        return event(
            {"type": "ACTIVITY_SNAPSHOT", "messageId": f"{call_id}:progress", "activityType": PROGRESS, "content": content}
        )

    def _ran(self, update: ToolRan) -> bytes:
        call_id = self._call_id(update)
        told = self._announce(call_id, update.tool_id, update.arguments)
        if self._announced[call_id] or call_id in self._unsure:
            return told
        if update.error is not None:
            return told + self._answer(call_id, _plain(update.error), is_error=True)
        if update.result is None:
            self._unsure.append(call_id)
            return told
        is_text = isinstance(update.result, str)
        return told + self._answer(call_id, _plain(update.result) if is_text else _json(update.result).decode())

    def _answer(self, call_id: str, content: str, *, is_error: bool = False) -> bytes:
        """The result of a call."""
        self._announced[call_id] = True
        message = {"id": f"{call_id}:result", "role": "tool", "toolCallId": call_id, "content": content}
        told: dict[str, Any] = {"type": "TOOL_CALL_RESULT", "messageId": message["id"], "toolCallId": call_id}
        told |= {"content": content, "role": "tool"}
        if is_error:
            told["metadata"] = {"kitchener.is_error": True}
        self._made.append(message)
        return event(told)

    def _flushed(self, asks: Collection[str] = ()) -> bytes:
        """The results that were held back, without those of calls that ask."""
        if not self._unsure:
            return b""
        held, self._unsure = self._unsure, []
        return b"".join(self._answer(each, "null") for each in held if each not in asks)

    def _complete(self, completed: TurnCompleted) -> bytes:
        """The rest of the reply, or all of it if what was told is not its beginning."""
        result = completed.result
        self._usage.append(_usage(result))
        told, reply = self._flushed(result.pending_approval), result.response
        sent = "".join(piece for each in self._texts for piece in each.pieces)
        if not reply.startswith(sent):
            told, sent = told + self._withdraw(self._texts), ""
        told += self._add_text(self._open.wo_id if self._open is not None else "", reply[len(sent) :])
        told += self._close_text()
        self._texts = []
        return told

    def _close_all(self, waiting: Collection[str]) -> bytes:
        told = self._flushed(waiting) + self._close_text()
        told += b"".join(map(self._end_step, list(self._steps)))
        for call_id, has_result in list(self._announced.items()):
            if not has_result and call_id not in waiting:
                told += self._answer(call_id, _NO_OUTCOME, is_error=True)
        return told


def _usage(result: TurnResult) -> dict[str, int]:
    """Tokens as the protocol counts them."""
    cost = result.cost_summary
    read, written = cost.get("input_tokens", 0), cost.get("output_tokens", 0)
    found = {"inputTokens": read, "outputTokens": written, "totalTokens": read + written}
    if cached := sum(each["cost"].get("cached_tokens", 0) for each in result.wo_chain_summary):
        found["cachedInputTokens"] = cached
    return found


def _json(value: object) -> bytes:
    """A value as JSON. What a model writes may hold numbers or characters that the fast way refuses."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode() if not isinstance(value, str) else orjson.dumps(_plain(value))


def _can_be_sent(message: Mapping[str, Any]) -> bool:
    try:
        orjson.dumps(message)
    except TypeError:
        return False
    return True


def _plain(text: str) -> str:
    """A text that can be sent: halves of characters are replaced."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
