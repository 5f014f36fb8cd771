"""Turns waiting tool calls and their answers into text for people. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kitchener.canonical import canonical_bytes
from kitchener.records.entries import ApprovalRequestedPayload, opened
from kitchener.records.tools.deferred_loop import ApprovalAnswer, ApprovalRequest

_SHOWN_CHARS: Final = 500
"""Most characters of arguments, or of a tool's own words, that are shown."""
_DECIDED: Final[Mapping[str, str]] = {
    "approved": "Approved",
    "denied": "Not allowed",
    "cancelled": "Void, because the tool has changed",
    "expired": "Not answered in time",
    "returned": "Done by the client",
    "failed": "Failed at the client",
}


def shown_call(tool_id: str, arguments: Mapping[str, object]) -> str:
    """A tool call on one line."""
    return f"{tool_id} {shortened(canonical_bytes(arguments, at='arguments').decode())}"


def shortened(text: str) -> str:
    """A text, cut to its first 500 characters."""
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}… ({len(text):,} characters)"


def waiting_reply(requests: Sequence[tuple[str, ApprovalRequest]], untrusted: Mapping[str, str]) -> str:
    """The reply of a turn whose tool calls wait for a person.

    Args:
        requests: each with its id
        untrusted: the tools whose words are not trusted, each with its source
    """
    noun, verb = ("answer", "Answer") if all(each.message for _, each in requests) else ("approval", "Approve")
    lines = [f"Before I go on, I need your {noun}{'s' if len(requests) > 1 else ''}:"]
    for approval_id, each in requests:
        lines.append(f"- {approval_id}: {shown_call(each.tool_id, each.arguments)}")
        if each.message:
            source = untrusted.get(each.tool_id)
            asks = "The tool asks" if source is None else f"The tool asks ({source}, not trusted)"
            lines.append(f"  {asks}: {shortened(' '.join(each.message.split()))}")  # one line, which no text leaves
    lines.append(
        f"It has not been done yet. {verb} or deny it by its id; you can go on talking meanwhile."
        if len(requests) == 1
        else f"None of it has been done yet. {verb} or deny each by its id; you can go on talking meanwhile."
    )
    return "\n".join(lines)


def resumed_message(asked_for: str, answered: Iterable[tuple[ApprovalRequestedPayload, ApprovalAnswer]]) -> str:
    """The message of the turn that continues after the answers.

    Args:
        asked_for: the message that the deferred turn answers
        answered: all requests of the deferred work order with their answers
    """
    lines = []
    for request, answer in answered:
        arguments = answer.arguments if answer.arguments is not None else opened(request["arguments"]) or {}
        line = f"{_DECIDED[answer.decision]}: {shown_call(request['tool'], arguments)}"
        if request["reason"] == "client_tool":  # the client's text is data, and is in the tool's result
            lines.append(line)
            continue
        if answer.given is not None:
            line += f" Answer: {shortened(canonical_bytes(answer.given.answer, at='answer').decode())}"
        lines.append(f"{line} – {shortened(answer.message)}" if answer.message else line)
    return "\n".join([*lines, f"It was asked for: {asked_for}"])
