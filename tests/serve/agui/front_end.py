"""A front end that speaks AG-UI: it keeps the conversation as the protocol's official client does, and checks every stream.

Each stream goes through the protocol's models and through its validator.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ag_ui.core import Event
from ag_ui_validate.pytest_plugin import validate_agui
from pydantic import TypeAdapter

from tests.serve.shared.requests import Asked, Client

PATH = "/v1/agui/ADMIN"
_EVENT: TypeAdapter[Any] = TypeAdapter(Event)


def checked(events: Sequence[Any]) -> list[Any]:
    """The events of a stream. Fails unless they are a valid run."""
    for each in events:
        read = _EVENT.validate_python(each)
        assert read.model_extra == {}, f"the protocol has no such field: {each}"
    report = validate_agui(list(events))
    assert report.internal_errors == []
    # Calls of an earlier run have their message there, which the validator cannot see.
    assert [each for each in report.diagnostics if each.severity != "info"] == []
    return list(events)


def kinds(events: Sequence[Any]) -> list[str]:
    """The types of events, equal ones after each other once."""
    found = [each["type"] for each in events]
    return [each for number, each in enumerate(found) if not number or found[number - 1] != each]


def of_kind(events: Sequence[Any], kind: str) -> list[Any]:
    """The events of a type."""
    return [each for each in events if each["type"] == kind]


@dataclass
class FrontEnd:
    """One thread in a front end.

    Args:
        client: the server
        thread: the id of the thread
    """

    client: Client
    thread: str = "thread-1"
    path: str = PATH
    messages: list[dict[str, Any]] = field(default_factory=list)
    last: Asked = field(default_factory=Asked)
    """The answer to the last request."""
    runs: int = 0
    interrupts: list[dict[str, Any]] = field(default_factory=list)

    async def say(self, text: str | list[Any], **more: Any) -> list[Any]:
        """Adds a message of the user, and runs the agent."""
        self.messages.append({"id": f"user-{len(self.messages)}", "role": "user", "content": text})
        return await self.run(**more)

    async def resume(self, *answers: dict[str, Any], **more: Any) -> list[Any]:
        """Answers interrupts."""
        return await self.run(resume=list(answers), **more)

    async def run(self, **more: Any) -> list[Any]:
        """Runs the agent. Returns the events; []: the request was refused."""
        self.runs += 1
        body = {"threadId": self.thread, "runId": f"{self.thread}-run-{self.runs}", "messages": self.messages, **more}
        self.last = await self.client.ask("POST", self.path, body)
        if self.last.status != 200:
            return []
        assert self.last.headers["content-type"].startswith("text/event-stream")
        events = checked(self.last.events)
        self.take(events)
        return events

    @property
    def session(self) -> str:
        """The session of the last answer."""
        return self.last.headers["x-kitchener-session"]

    @property
    def said(self) -> list[str]:
        """The texts of all messages that show any, oldest first."""
        return [each["content"] for each in self.messages if each["role"] in ("user", "assistant") and each.get("content")]

    @property
    def results(self) -> dict[str, str]:
        """The results of tool calls, by call."""
        return {each["toolCallId"]: each["content"] for each in self.messages if each["role"] == "tool"}

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments of tool calls, by call."""
        calls = [call for each in self.messages for call in each.get("toolCalls", ())]
        assert len({call["id"] for call in calls}) == len(calls)
        return {call["id"]: call["function"]["arguments"] for call in calls}

    def take(self, events: Sequence[Any]) -> None:
        """Applies events to the conversation."""
        for each in events:
            kind, by_id = each["type"], {message["id"]: message for message in self.messages}
            if kind == "TEXT_MESSAGE_START" and each["messageId"] not in by_id:
                self.messages.append({"id": each["messageId"], "role": "assistant", "content": ""})
            elif kind == "TEXT_MESSAGE_CONTENT":
                by_id[each["messageId"]]["content"] += each["delta"]
            elif kind == "TOOL_CALL_START" and self._call(each["toolCallId"]) is None:
                call = {
                    "id": each["toolCallId"],
                    "type": "function",
                    "function": {"name": each["toolCallName"], "arguments": ""},
                }
                self.messages.append({"id": each["toolCallId"], "role": "assistant", "toolCalls": [call]})
            elif kind == "TOOL_CALL_ARGS":
                found = self._call(each["toolCallId"])
                assert found is not None
                found["function"]["arguments"] += each["delta"]
            elif kind == "TOOL_CALL_RESULT":
                answer = {"toolCallId": each["toolCallId"], "role": "tool", "content": each["content"]}
                self.messages.append({"id": each["messageId"], **answer})
            elif kind == "MESSAGES_SNAPSHOT":
                self._replace(each["messages"])
            elif kind == "RUN_FINISHED":
                self.interrupts = each["outcome"].get("interrupts", [])
        assert len({each["id"] for each in self.messages}) == len(self.messages)

    def _call(self, call_id: str) -> dict[str, Any] | None:
        calls: list[dict[str, Any]] = [call for each in self.messages for call in each.get("toolCalls", ())]
        return next((call for call in calls if call["id"] == call_id), None)

    def _replace(self, messages: Sequence[dict[str, Any]]) -> None:
        new = {each["id"]: each for each in messages}
        assert len(new) == len(messages)
        kept = [new.pop(each["id"]) for each in self.messages if each["id"] in new]
        self.messages = [*kept, *new.values()]
