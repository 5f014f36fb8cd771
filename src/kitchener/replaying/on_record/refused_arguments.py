"""Reads from a turn's entries what a tool's own check said of the arguments of a call, for a replay that lacks the tool.

It knows no tools. Bounds on the number of calls are no matter of the arguments; the executor counts again. Pure.
"""

from collections.abc import Mapping, Sequence

from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.entries import ModelCallPayload, ToolCallPayload, ToolStartedPayload, opened, payload_as


def argument_problem(
    entries: Sequence[StoredEntry], entry: StoredEntry, tool_id: str, arguments: Mapping[str, object]
) -> str | None:
    """The problem that a tool's own check found in the arguments of a call; None: it accepted them.

    Arguments with which a call of the work order started were accepted: if an equal call is refused, its number is the reason.

    Args:
        entries: the executor's entries of the turn, oldest first
        entry: the next one of them
        tool_id: the tool
        arguments: of the call, which belongs to the round before `entry`
    """
    own = [each for each in entries if each.entity_id == entry.entity_id]
    answers = [each for each in own if each.entry_type == events.LLM_CALL]
    answered = [each for each in answers if each.seq < entry.seq]
    end = next((each.seq for each in answers if each.seq >= entry.seq), None)
    round_ends = [each for each in own if end is None or each.seq < end]
    starts = [payload_as(ToolStartedPayload, each.payload) for each in round_ends if each.entry_type == events.TOOL_STARTED]
    if any(each["tool_id"] == tool_id and opened(each["arguments"]) == arguments for each in starts):
        return None
    calls = [each for each in round_ends if each.entry_type == events.TOOL_CALL]
    if not answered:  # no model asked for the call in this turn
        return _error(entry) if entry.entry_type == events.TOOL_CALL else None
    answer = opened(payload_as(ModelCallPayload, answered[-1].payload)["response"])
    made = [each for each in calls if each.seq > answered[-1].seq]
    for use, call in zip(answer["tool_uses"] if answer is not None else (), made, strict=False):
        if (use["tool_id"], use["arguments"]) == (tool_id, arguments):
            return _error(call)
    return None


def _error(call: StoredEntry) -> str | None:
    error = opened(payload_as(ToolCallPayload, call.payload).get("error"))
    return str(error) if error is not None else None


__all__ = ["argument_problem"]
