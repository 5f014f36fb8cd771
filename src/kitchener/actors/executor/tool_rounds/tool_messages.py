"""Turns outcomes of tool calls into the messages that a model reads, including those of a loop that waited for a person.

Text of an untrusted source stands between delimiters that it cannot contain, below a line that names the source. The line that
says which part of a result is shown stands outside the delimiters, so that no untrusted text can imitate it. Explained in
`docs/approval.md`.
"""

from kitchener.actors.executor.packs import fence
from kitchener.actors.executor.tool_rounds.call_gate import WaitingCalls
from kitchener.actors.executor.tool_rounds.result_pages import NOT_TRUSTED
from kitchener.actors.executor.tool_rounds.tool_calls import ToolCalls
from kitchener.actors.tools.results import ToolOutcome
from kitchener.records.prompt import Message, ToolUse
from kitchener.records.tools.deferred_loop import HeardOutcome, Resumption, ToolRound


def tool_message(calls: ToolCalls, use: ToolUse, outcome: ToolOutcome, call: int, wo_id: str | None = None) -> Message:
    """The message with the outcome of a call.

    Args:
        calls: the calls of the work order
        use: the call that the model asked for
        outcome: the call's outcome
        call: number of the call within its work order, from 1
        wo_id: the work order of the call; None: the present one
    """
    shown = calls.shown(call, use.tool_id, outcome, wo_id)
    text = shown.text
    if outcome.untrusted_source is not None:
        text = f"From {NOT_TRUSTED.format(source=outcome.untrusted_source)}.\n{fence(calls.turn_id, text)}"
    return Message("tool", shown.around(text), tool_use_id=use.use_id, tool_id=use.tool_id)


async def resumed_messages(calls: ToolCalls, resumption: Resumption) -> list[Message] | WaitingCalls:
    """Makes or refuses the calls of a deferred tool loop that waited, and returns the loop's messages.

    Returns the calls that have to wait for a person again instead, if there are any.
    """
    *earlier, last = resumption.rounds
    messages = list[Message]()
    for each in earlier:
        messages += [Message("assistant", each.text, tool_uses=each.uses), *_heard(calls, each).values()]
    shown = _heard(calls, last)  # before the waiting calls are made, which may read on in a long result
    uses = [last.uses[each.place] for each in resumption.pending]
    answers = {at: each.answer for at, each in enumerate(resumption.pending) if each.answer is not None}
    outcomes = await calls.run(uses, answers)
    if isinstance(outcomes, WaitingCalls):
        return outcomes
    for call, (each_pending, use, outcome) in enumerate(zip(resumption.pending, uses, outcomes, strict=True), 1):
        shown[each_pending.place] = tool_message(calls, use, outcome, call)
    return [*messages, Message("assistant", last.text, tool_uses=last.uses), *[shown[place] for place in sorted(shown)]]


def _heard(calls: ToolCalls, one: ToolRound) -> dict[int, Message]:
    """The messages with the recorded outcomes of a round, by the positions of the calls."""
    found = dict[int, Message]()
    for place, (use, heard) in enumerate(zip(one.uses, one.outcomes, strict=True)):
        if heard is not None:
            found[place] = tool_message(calls, use, _again(heard), heard.call, heard.wo_id)
    return found


def _again(heard: HeardOutcome) -> ToolOutcome:
    return ToolOutcome(result=heard.result, error=heard.error, untrusted_source=heard.untrusted_source)
