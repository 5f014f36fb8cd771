"""Makes and records the tool calls of one work order, within its bounds, and turns their outcomes into messages for the model.

`executor.py` decides when calls are made, and ends the tool rounds when the bounds are reached; `call_gate.py` decides which
calls wait for a person. Text of an untrusted source stands between delimiters that it cannot contain, below a line that names
the source. The line that says which part of a result is shown stands outside the delimiters, so that no untrusted text can
imitate it. `docs/work-orders.md` lists the recorded entries, `docs/approval.md` explains the delimiters.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from kitchener.actors.executor.execution import Execution
from kitchener.actors.executor.packs import fence
from kitchener.actors.executor.shown_results import ShownResult
from kitchener.actors.executor.tool_rounds.call_gate import (
    CallGate,
    WaitingCalls,
    question_mapping,
    questions_in,
    requests_for,
)
from kitchener.actors.executor.tool_rounds.result_pages import NOT_TRUSTED, ResultPages
from kitchener.actors.sessions.item_tool import ITEM_TOOL
from kitchener.actors.tools.concurrent_calls import ToolRequested, concurrent_groups, run_all
from kitchener.actors.tools.progress_queue import ProgressQueue
from kitchener.actors.tools.results import ToolOutcome, storable
from kitchener.actors.work.plan import nested_mapping
from kitchener.canonical import canonical_bytes
from kitchener.errors import EntryRefused, EntryTooLarge
from kitchener.ids import tool_idempotency_key
from kitchener.records import events
from kitchener.records.entries import ToolCallPayload, ToolStartedPayload
from kitchener.records.prompt import Message, ToolUse
from kitchener.records.tools.deferred_loop import ApprovalAnswer, HeardOutcome, Resumption, ToolRound
from kitchener.records.tools.tool_context import Report, ToolContext
from kitchener.records.work_order import Constraints

NO_TOOL: Final = "(none)"
"""Recorded in place of a tool name that is not among the allowed tools."""


class CallBudget:
    """Counts the calls of one work order, and refuses those beyond the bounds with an error that says what the model can do.

    Args:
        limits: the bounds
    """

    __slots__ = ("_calls", "_equal", "_is_told", "_limits", "is_over")

    is_over: bool
    """Whether the model must reply without further tools."""

    def __init__(self, limits: Constraints) -> None:
        self._limits, self._calls, self._is_told, self.is_over = limits, 0, False, False
        self._equal: dict[tuple[str, bytes], int] = {}

    def refusal(self) -> str | None:
        """Counts a call, even if it cannot run. Returns why it must not run, or None."""
        most = self._limits.max_tool_calls
        self._calls += 1
        if most is None or self._calls <= most:
            return None
        self.is_over = True
        return f"this reply has made all of its {most} tool calls; answer with what you have, and say what is missing"

    def equal_refusal(self, tool_id: str, arguments: bytes) -> str | None:
        """Counts a call that can run. Returns why it must not run again, or None.

        Args:
            tool_id: the tool
            arguments: as canonical JSON
        """
        most, call = self._limits.max_equal_calls, (tool_id, arguments)
        self._equal[call] = times = self._equal.get(call, 0) + 1
        if most is None or times <= most:
            return None
        self.is_over, self._is_told = self._is_told, True
        return (
            f"tool {tool_id!r} was called {most} times with these arguments in this reply, and is not run again;"
            " use the results that you have, try other arguments, or answer without it"
        )


class ToolCalls:
    """Makes the tool calls of one work order, in order.

    Args:
        run: the execution of the work order
        pages: the long results that the model was already shown; None: there are none
    """

    __slots__ = ("_answers", "_gate", "_refused", "_run", "budget", "count", "pages")

    budget: CallBudget
    """Decides whether the model may call further tools."""
    pages: ResultPages
    """The results that were cut: the model was shown only their beginning."""
    count: int
    """Number of tool calls so far, including refused ones."""

    def __init__(self, run: Execution, pages: ResultPages | None = None) -> None:
        self._run, self.count, self.budget = run, 0, CallBudget(run.limits)
        self.pages = pages or ResultPages(run.work_order.wo_id, run.limits.result_page_tokens)
        resumption = run.work_order.resumption
        self._gate = CallGate(run.limits, has_read_untrusted=resumption is not None and resumption.has_read_untrusted)
        self._answers: Mapping[int, ApprovalAnswer] = {}
        self._refused: Mapping[int, str] = {}
        """The answers of a person or client, and the reasons to refuse a call, by the numbers of this round's calls."""

    @property
    def turn_id(self) -> str:
        """The turn's id, from which delimiters of data are derived."""
        return self._run.work_order.turn_id

    async def run(
        self, asked: Sequence[ToolUse], answers: Mapping[int, ApprovalAnswer] | None = None, said: str = ""
    ) -> list[ToolOutcome] | WaitingCalls:
        """Makes and records tool calls and returns their outcomes in the same order.

        If calls have to wait for a person or a client, it returns those instead. The calls before the first of them have run.

        Consecutive read-only calls run in parallel, at most `parallel_tools` at a time. First their starts and then their
        outcomes are recorded, in the order of the calls. A failure of a tool is part of its outcome, never an exception.

        Args:
            asked: the calls that the model asked for
            answers: the answers of a person or a client to some of the calls, by position; None: nobody was asked
            said: what the model wrote beside them
        """
        first, answers, outcomes = self.count + 1, answers or {}, list[ToolOutcome]()
        uses = [(use.tool_id, use.arguments) for use in asked]
        unreadable = {place: use.problem for place, use in enumerate(asked) if use.problem is not None}
        waiting, refused = self._gate.judge(uses, {*answers, *unreadable} if unreadable else answers, self._problem)
        refused |= unreadable
        refused |= {place: each.problem for place, each in answers.items() if each.problem is not None}
        self._answers = {first + place: each for place, each in answers.items()}
        self._refused = {first + place: reason for place, reason in refused.items()}
        runs = uses[: min(waiting)] if waiting else uses
        for group in concurrent_groups(runs, self._run.limits.parallel_tools, self._run.tools.is_read_only):
            progress = ProgressQueue(self._run.reply.tool_progress) if self._run.reply is not None else None
            begun = [await self._begin(tool_id, arguments, progress) for tool_id, arguments in group]
            for call, outcome in zip(begun, await run_all([each.run for each in begun], progress), strict=True):
                outcomes.append(await self._end(call, outcome))
            if questions_in(outcomes):
                break
        if waiting or questions_in(outcomes):
            of_client = self._run.limits.client_tools
            return WaitingCalls(tuple(requests_for(uses, first, waiting, questions_in(outcomes), of_client)), said)
        return outcomes

    async def _begin(self, tool_id: str, arguments: Mapping[str, object], progress: ProgressQueue | None) -> "_BegunCall":
        """Records the start of a tool call, durably if the tool has effects. A call that is refused has no start."""
        self.count += 1
        call, tools = self.count, self._run.tools
        answer = self._answers.get(call)
        if answer is not None and answer.arguments is not None:
            arguments = answer.arguments
        checked = self._judged(call, tool_id, arguments)
        if not isinstance(checked, str):
            wo, read_only = self._run.work_order, tools.is_read_only(tool_id)
            hashed = partial(self._run.ledger.content_digest, wo.subject_id)
            key = tool_idempotency_key(wo.turn_id, wo.wo_id, call, tool_id, checked.plain, hashed)
            started: ToolStartedPayload = {
                "call": call,
                "tool_id": tool_id,
                "arguments": dict(arguments),
                "idempotency_key": key,
                "read_only": read_only,
            }
            if answer is not None:
                started["approval_id"] = answer.approval_id
            try:
                await self._run.record(events.TOOL_STARTED, started)
            except EntryTooLarge as error:
                checked = f"its arguments are too large to be recorded: {error}"
        if isinstance(checked, str):
            return _BegunCall(call, tool_id, arguments, partial(_refused, checked))
        if not read_only:
            # After a crash, only this entry shows that the tool may have had its effect.
            await self._run.commit()
        self._run.tally.add_tool(tool_id)
        if self._run.reply is not None and tool_id not in tools.of_client:
            await self._run.reply.tool_started(tool_id, call, arguments)
        report = partial(progress.add, self._run.work_order.wo_id, tool_id, call) if progress is not None else None
        context = self._context(key, report, answer)
        run = partial(tools.run, tool_id, arguments, context, bound=checked.bound)
        return _BegunCall(call, tool_id, arguments, run)

    async def _end(self, begun: "_BegunCall", outcome: ToolOutcome) -> ToolOutcome:
        """Records the outcome of a tool call and returns it, or an error if the outcome is too large to be recorded."""
        # A name that is not allowed is text by the model. It is recorded only in the error, which may be sealed.
        named = begun.tool_id if self._may_use(begun.tool_id) else NO_TOOL
        source = self.pages.untrusted_source(begun.arguments) if named == ITEM_TOOL else self._run.tools.untrusted_source(named)
        outcome = self._gate.checked(outcome, source, may_ask=self._run.makes_reply)
        try:
            ref = await self._run.record(events.TOOL_CALL, _tool_call_fields(begun.call, named, outcome))
        except EntryTooLarge as error:
            outcome = replace(outcome, error=f"the tool has run, but its result is too large to be stored: {error}")
            ref = await self._run.record(events.TOOL_CALL, _tool_call_fields(begun.call, named, outcome))
        self._run.keep(ref)
        if outcome.nested_cost is not None:
            self._run.tally.add_nested(outcome.nested_cost)
        is_told = begun.call in self._answers and begun.tool_id in self._run.tools.of_client  # the client ran it
        if self._run.reply is not None and not is_told:
            await self._run.reply.tool_ran(begun.tool_id, begun.call, begun.arguments, outcome)
        return outcome

    def shown(self, call: int, tool_id: str, outcome: ToolOutcome, wo_id: str | None = None) -> ShownResult:
        """Returns what the model is shown of a tool call's outcome: all of it, or its first page, within `results_budget`."""
        pages = self.pages
        shown = pages.read_on(outcome) if tool_id == ITEM_TOOL else pages.first(call, outcome, wo_id)
        return self._run.tally.within_budget(shown)

    def _judged(self, call: int, tool_id: str, arguments: Mapping[str, object]) -> "_CheckedArguments | str":
        """Counts a call. Returns its arguments, or why it must not run."""
        too_many = self.budget.refusal()  # each call counts, even if it is refused for another reason
        problem = self._refused.get(call) or too_many
        if problem is not None:
            return problem
        checked = self._checked((tool_id, arguments))
        if isinstance(checked, str):
            return checked
        return self.budget.equal_refusal(tool_id, checked.plain) or checked

    def _problem(self, use: ToolRequested) -> str | None:
        """Returns why a tool cannot be called with these arguments, or None."""
        checked = self._checked(use)
        return checked if isinstance(checked, str) else None

    def _checked(self, use: ToolRequested) -> "_CheckedArguments | str":
        """Returns the arguments of a call, or why the tool cannot be called with them."""
        tool_id, arguments = use
        if not self._may_use(tool_id):
            return f"tool {tool_id!r} is not allowed here; allowed are {sorted(self._run.limits.allowed_tools)}"
        try:
            plain = canonical_bytes(arguments, at="arguments")  # before validation, because this limits their depth
        except EntryRefused as error:
            return str(error)
        bound = self._run.tools.validate(tool_id, arguments)
        return bound if isinstance(bound, str) else _CheckedArguments(plain, bound)

    def _may_use(self, tool_id: str) -> bool:
        return tool_id in self._run.limits.allowed_tools or (tool_id == ITEM_TOOL and self.pages.has_more)

    def _context(self, key: str, report: Report | None, answer: ApprovalAnswer | None) -> ToolContext:
        wo = self._run.work_order
        return ToolContext(
            idempotency_key=key,
            session_id=wo.session_id,
            subject_id=wo.subject_id,
            turn_id=wo.turn_id,
            wo_id=wo.wo_id,
            deadline=self._run.tool_deadline(),
            has_read_untrusted=self._gate.has_read_untrusted,
            report=report,
            answer=answer.given if answer is not None else None,
            read_page=self.pages.read,
            note_source=self.pages.note_source,
        )


class _CheckedArguments(NamedTuple):
    """Arguments with which a tool can be called."""

    plain: bytes
    """As the model gave them, as canonical JSON."""
    bound: Mapping[str, object]
    """A copy for the tool, converted and completed."""


class _BegunCall(NamedTuple):
    """A tool call whose start is recorded, or that is refused."""

    call: int
    """Number of the tool call within the work order, from 1."""
    tool_id: str
    arguments: Mapping[str, object]
    run: Callable[[], Awaitable[ToolOutcome]]
    """Runs the tool, or returns why it is refused."""


async def _refused(problem: str) -> ToolOutcome:
    return ToolOutcome(error=storable(problem))


def _tool_call_fields(call: int, tool_id: str, outcome: ToolOutcome) -> ToolCallPayload:
    fields: ToolCallPayload = {"call": call, "tool_id": tool_id}
    if outcome.error is not None:
        fields["error"] = outcome.error
    elif outcome.question is not None:
        fields["question"] = question_mapping(outcome.question)
    else:
        fields["result"] = outcome.result
    if outcome.untrusted_source is not None:
        fields["source"] = outcome.untrusted_source
        fields["untrusted"] = True
    if outcome.nested_cost is not None:
        fields["nested_cost"] = nested_mapping(outcome.nested_cost)
    if outcome.nested_turns:
        fields["nested_turns"] = [*outcome.nested_turns]
    return fields


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
        messages += [Message("assistant", each.text, tool_uses=each.uses), *_outcome_messages(calls, each).values()]
    shown = _outcome_messages(calls, last)  # before the waiting calls are made, which may read on in a long result
    uses = [last.uses[each.place] for each in resumption.pending]
    answers = {at: each.answer for at, each in enumerate(resumption.pending) if each.answer is not None}
    outcomes = await calls.run(uses, answers)
    if isinstance(outcomes, WaitingCalls):
        return outcomes
    for call, (each_pending, use, outcome) in enumerate(zip(resumption.pending, uses, outcomes, strict=True), 1):
        shown[each_pending.place] = tool_message(calls, use, outcome, call)
    return [*messages, Message("assistant", last.text, tool_uses=last.uses), *[shown[place] for place in sorted(shown)]]


def _outcome_messages(calls: ToolCalls, one: ToolRound) -> dict[int, Message]:
    """The messages with the recorded outcomes of a round, by the positions of the calls."""
    found = dict[int, Message]()
    for place, (use, heard) in enumerate(zip(one.uses, one.outcomes, strict=True)):
        if heard is not None:
            found[place] = tool_message(calls, use, _again(heard), heard.call, heard.wo_id)
    return found


def _again(heard: HeardOutcome) -> ToolOutcome:
    return ToolOutcome(result=heard.result, error=heard.error, untrusted_source=heard.untrusted_source)
