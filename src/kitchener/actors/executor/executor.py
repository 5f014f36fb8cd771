"""HO1: turns a dispatched work order into a completed or failed one, and records every step in HO1's ledger.

It renders the prompt, calls the model, runs tools, and checks the output. It asks the model once to repair an invalid output.
It plans nothing, keeps no session and decides no policy. The supervisor sees only `HO1ExecutorProtocol`. `execution.py` makes
and records each step; prompts come from `contracts.py`. Explained in `docs/work-orders.md`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from kitchener.actors.executor.answers import OUTPUT_KEY, REPLY_KEY, UnreadableAnswer, read_answer, read_object, read_text
from kitchener.actors.executor.contracts import CompiledContract
from kitchener.actors.executor.execution import Execution, ExecutionServices, WorkOrderFailed
from kitchener.actors.executor.packs import REQUIREMENTS, fence
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.executor.reply_stream import ReplyStream
from kitchener.actors.executor.tool_rounds.call_gate import WaitingCalls
from kitchener.actors.executor.tool_rounds.result_pages import ResultPages
from kitchener.actors.executor.tool_rounds.tool_calls import ToolCalls, resumed_messages, tool_message
from kitchener.actors.sessions.item_tool import ITEM_TOOL
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.toolsets import NO_TOOLS, Toolset
from kitchener.actors.work.plan import cost_mapping
from kitchener.canonical import canonical_bytes
from kitchener.clock import Clock, TimestampText
from kitchener.config import HO2Config, LimitsConfig
from kitchener.errors import EntryRefused, PromptError
from kitchener.lanes.askers import take_from_asker
from kitchener.ledger import LedgerGroup
from kitchener.media.content_store import ContentStore
from kitchener.records import events
from kitchener.records.entries import ExecutingPayload, ExecutionDeferredPayload, ExecutionFailedPayload, WorkOrderErrorMapping
from kitchener.records.prompt import NO_TOOL_CHOICE, Message, PromptGateway, PromptResponse, ToolUse
from kitchener.records.tools.deferred_loop import ApprovalRequest
from kitchener.records.turn import UpdateListener
from kitchener.records.work_order import WorkOrder, WorkOrderError
from kitchener.schemas.compiled_schemas import CHECK_TIME

_Output = tuple[dict[str, object], bytes]
"""An output and its canonical JSON bytes."""

_REPAIR: Final = (
    "Your last answer cannot be used. What is wrong with it stands in the data block:\n{problem}\n\n"
    "Answer again, with one JSON object that fits this JSON schema and nothing else:\n{schema}"
)
# The first prompt contains the schema. A small model that reads it twice copies its descriptions as values.
_ASKED_REPAIR: Final = (
    "Your last answer cannot be used. What is wrong with it stands in the data block:\n{problem}\n\n"
    "Answer again, with the JSON object that {asked} and nothing else. Its values come from the conversation, not from the"
    " schema."
)


class HO1Executor:
    """Runs any number of work orders at a time and keeps no state between them.

    Args:
        ledgers: records go to HO1's ledger; a commit is awaited before a tool with effects runs
        gateway: calls the models
        prompts: the prompt contracts
        tools: all tools; each work order names the tools that it may use
        clock: time of day, for `completed_at` and `elapsed_ms`
        config: `turn_deadline_s` limits a work order without its own `timeout_ms`, `reply_reserve_s` its tools
        limits: `abort_grace_s` limits how long a cut-off call may take to record its end; None: the defaults
        listeners: listeners for streamed updates by `wo_id`, read when a work order starts; None: no listeners
        content: stores images and files; None: no model is called, as in a replay
        policy_version: version of the rules that turns follow
    """

    def __init__(  # noqa: PLR0913  assembled in one place by the runtime, by hand in tests; all by keyword
        self,
        *,
        ledgers: LedgerGroup,
        gateway: PromptGateway,
        prompts: PromptLibrary,
        tools: ToolRegistry,
        clock: Clock,
        config: HO2Config,
        limits: LimitsConfig | None = None,
        listeners: Mapping[str, UpdateListener] | None = None,
        content: ContentStore | None = None,
        policy_version: int = events.POLICY_VERSION,
    ) -> None:
        grace_s = (limits or LimitsConfig()).abort_grace_s
        self._services = ExecutionServices(
            ledgers, gateway, tools, clock, config.turn_deadline_s, grace_s, content, reply_reserve_s=config.reply_reserve_s
        )
        self._prompts, self._clock, self._policy_version = prompts, clock, policy_version
        self._listeners = listeners if listeners is not None else {}
        self._timestamps = TimestampText()

    async def execute(self, work_order: WorkOrder) -> WorkOrder:
        """Returns the work order, completed, failed or deferred. Every step is in HO1's ledger, but not yet durable.

        Failures of models, tools and outputs are results. Cancellation passes through and keeps the entries written so far.

        Raises:
            InvalidTransition: the work order is not dispatched
            PromptError: its contract does not exist, or the pack uses a variable that the input lacks
        """
        take_from_asker(CHECK_TIME)
        work_order = work_order.executing()
        wo_id, wo_type = work_order.wo_id, work_order.wo_type
        listener = self._listeners.get(wo_id)
        reply = ReplyStream(wo_id, listener) if listener is not None else None
        run = Execution(self._services, work_order, reply)
        # HO2m records the life cycle of a turn's work order. A consolidation is recovered from HO1m, so HO1m records it, too.
        records_life_cycle = self._policy_version < 7 or not work_order.turn_id
        if records_life_cycle:
            await run.record(events.WO_EXECUTING, ExecutingPayload(wo_type=wo_type))
        try:
            if wo_type == "tool_call":
                output = await self._run_tool(run, work_order)
            else:
                output = await self._ask_model(run, work_order)
        except WorkOrderFailed as failure:
            if reply is not None:
                await reply.void()
            return await self._failed(run, work_order, failure.error)
        if isinstance(output, WaitingCalls):
            if reply is not None:
                await (reply.finish(output.said) if output.waits_for_client else reply.void())
            return await self._deferred(run, work_order, output.requests)
        value, output_bytes = output
        if reply is not None and run.makes_reply:
            text = value.get(REPLY_KEY)
            # A contract may allow other types; the quality gate does not.
            await reply.finish(text if isinstance(text, str) else "")
        now_us = self._clock.time_us()
        cost = run.tally.cost(now_us)
        output_hash = run.output_hash(output_bytes)
        if records_life_cycle:
            await run.record_completed(output_hash, cost)
        return work_order.completed(value, cost, self._timestamps.render(now_us), output_hash, is_cut=run.tally.is_cut)

    async def _run_tool(self, run: Execution, wo: WorkOrder) -> _Output | WaitingCalls:
        """Runs the tool that HO2 chose and returns its output."""
        tool_id, arguments = wo.input_context.get("tool_id"), wo.input_context.get("arguments", {})
        if not isinstance(tool_id, str) or not isinstance(arguments, dict):
            raise WorkOrderFailed(
                "EXECUTOR", f"a tool_call needs tool_id (text) and arguments (an object), found {sorted(wo.input_context)}"
            )
        outcomes = await ToolCalls(run).run([ToolUse("", tool_id, arguments)])
        if isinstance(outcomes, WaitingCalls):
            return outcomes
        (outcome,) = outcomes
        if outcome.error is not None:
            raise WorkOrderFailed("TOOL", outcome.error)
        output = {"tool_id": tool_id, "result": outcome.result}
        return output, canonical_bytes(output, at="output")

    async def _ask_model(self, run: Execution, wo: WorkOrder) -> _Output | WaitingCalls:
        """Returns a model's output that fits the work order's contract, after one repair if necessary."""
        contract_id = wo.constraints.prompt_contract_id
        if contract_id is None:
            raise PromptError(f"work order {wo.wo_id} of type {wo.wo_type!r} names no prompt_contract_id")
        contract = self._prompts.contract(contract_id).asking(wo.output_schema, self._policy_version)
        limits = wo.constraints
        may_call = run.makes_reply and limits.turn_limit > 0 and limits.tool_choice != NO_TOOL_CHOICE
        has_rounds = may_call and bool(run.tools.toolset(limits.allowed_tools).specs)
        variables: Mapping[str, object] = wo.input_context
        pages = ResultPages(wo.wo_id, wo.constraints.result_page_tokens, escapes_text=self._policy_version < 8)
        if run.makes_reply:
            prior: list[Mapping[str, object]] = [*wo.prior_results]
            if prior and "tool_id" in prior[-1]:  # the classification precedes them
                prior = pages.of_earlier_steps(prior, can_read_on=has_rounds)
            variables = {**variables, "prior_results": prior}
        declared = variables
        if REQUIREMENTS in variables:  # which no contract declares
            declared = {name: value for name, value in variables.items() if name != REQUIREMENTS}
        if (problem := contract.input_problem(declared)) is not None:
            raise WorkOrderFailed("EXECUTOR", f"the input breaks the input_schema of {contract.contract_id}: {problem}")
        messages: list[Message] = list(contract.render(variables, wo.turn_id, wo.session_id))
        if wo.parts:
            messages[-1] = await run.with_parts(messages[-1])
        if has_rounds or wo.resumption is not None:
            rounds = limits.turn_limit if has_rounds else 0
            answer = await self._converse(run, contract, variables, messages, ToolCalls(run, pages), rounds)
            if isinstance(answer, WaitingCalls):
                return answer
            response = answer
        else:
            response = await self._last_answer(run, contract, variables, messages, pages)
        output = _checked(run, contract, response, self._policy_version)
        if isinstance(output, str):
            repair = _repair(contract, fence(wo.turn_id, output), self._policy_version)
            messages += [Message("assistant", _as_text(response)), Message("user", repair)]
            return await self._repaired(run, contract, variables, messages, pages)
        return output

    async def _repaired(
        self,
        run: Execution,
        contract: CompiledContract,
        variables: Mapping[str, object],
        messages: Sequence[Message],
        pages: ResultPages,
    ) -> _Output:
        """Returns the output of one more model call. Its last message says why the first answer was invalid."""
        response = await self._last_answer(run, contract, variables, messages, pages)
        output = _checked(run, contract, response, self._policy_version)
        if not isinstance(output, str):
            return output
        if contract.is_asked and self._policy_version > 10:
            raise WorkOrderFailed(
                "OUTPUT_SCHEMA", f"neither the reply nor its repair fits the schema that its caller asks for: {output}"
            )
        raise WorkOrderFailed("OUTPUT_SCHEMA", f"the output breaks the output_schema of {contract.contract_id} twice: {output}")

    async def _converse(
        self,
        run: Execution,
        contract: CompiledContract,
        variables: Mapping[str, object],
        messages: list[Message],
        calls: ToolCalls,
        rounds: int,
    ) -> PromptResponse | WaitingCalls:
        """Returns the model's last answer, after running the tools that it asked for, or the calls that have to wait.

        Appends each answer and each tool result to `messages`, except the last answer. After `rounds` answers with tool
        calls, or when the budgets leave no room for another, the model is called once more and may call no tool.
        """
        choice, resumption = run.limits.tool_choice, run.work_order.resumption
        if resumption is not None:
            resumed = await resumed_messages(calls, resumption)
            if isinstance(resumed, WaitingCalls):
                return resumed
            messages += resumed
            rounds = rounds if run.tally.has_room else 0
        for _ in range(rounds):
            response = await run.call_model(contract, variables, messages, _offered(run, calls.pages), choice)
            if not response.tool_uses:
                return response
            choice = None
            messages.append(Message("assistant", response.text, tool_uses=response.tool_uses))
            before = calls.count
            outcomes = await calls.run(response.tool_uses, said=response.text)
            if isinstance(outcomes, WaitingCalls):
                return outcomes
            for call, (use, outcome) in enumerate(zip(response.tool_uses, outcomes, strict=True), before + 1):
                messages.append(tool_message(calls, use, outcome, call))
            if calls.budget.is_over or not run.tally.has_room:
                break
        return await self._last_answer(run, contract, variables, messages, calls.pages)

    async def _last_answer(
        self,
        run: Execution,
        contract: CompiledContract,
        variables: Mapping[str, object],
        messages: Sequence[Message],
        pages: ResultPages,
    ) -> PromptResponse:
        """Returns the answer of a model that may call no tool.

        It is shown its tools all the same: a provider's cache cannot serve a prompt that begins without them, and some
        providers refuse calls and results of tools that the request does not describe. If it calls one although it must not,
        it is asked again without them. Up to version 11 of the policy, it is shown none.
        """
        tools = _offered(run, pages) if run.makes_reply and self._policy_version > 11 else NO_TOOLS
        if not tools.specs:
            return await run.call_model(contract, variables, messages, NO_TOOLS)
        response = await run.call_model(contract, variables, messages, tools, NO_TOOL_CHOICE)
        if response.tool_uses and not response.text.strip():
            return await run.call_model(contract, variables, messages, NO_TOOLS)
        return response

    async def _deferred(self, run: Execution, wo: WorkOrder, requests: tuple[ApprovalRequest, ...]) -> WorkOrder:
        cost = run.tally.cost(self._clock.time_us())
        waiting = [each.call for each in requests]
        await run.record(events.WO_DEFERRED, ExecutionDeferredPayload(waiting=waiting, cost=cost_mapping(cost)))
        return wo.deferred(cost, requests)

    async def _failed(self, run: Execution, wo: WorkOrder, error: WorkOrderError) -> WorkOrder:
        now_us = self._clock.time_us()
        told: WorkOrderErrorMapping = {"reason": error.reason, "detail": error.detail}
        if error.provider_reason is not None:
            told["provider_reason"] = error.provider_reason
        await run.record(events.WO_FAILED, ExecutionFailedPayload(error=told))
        return wo.failed(error, run.tally.cost(now_us), self._timestamps.render(now_us))


def _offered(run: Execution, pages: ResultPages) -> Toolset:
    """The tools of the next call: those that the work order may use, and one for the rest of long results."""
    allowed = run.limits.allowed_tools
    return run.tools.toolset((*allowed, ITEM_TOOL) if pages.has_more and ITEM_TOOL not in allowed else allowed)


def _checked(run: Execution, contract: CompiledContract, response: PromptResponse, policy_version: int) -> _Output | str:
    """Returns the output in an answer, or a description of what is wrong with the answer."""
    in_prose = policy_version > 13 and (contract.is_asked or run.work_order.wo_type == "classify")
    output: dict[str, object] | UnreadableAnswer
    if contract.output_schema is None:
        output = read_text(response)
    else:
        output = (
            read_object(response, in_prose=in_prose)
            if contract.is_asked
            else read_answer(response, plain_text=run.makes_reply, in_prose=in_prose)
        )
    if isinstance(output, UnreadableAnswer):
        return output.problem
    try:
        data = canonical_bytes(output, at="output")  # before validation, because this limits its depth
    except EntryRefused as error:
        return str(error)
    problem = contract.output_problem(output[OUTPUT_KEY] if contract.is_asked else output)
    return problem if problem is not None else (output, data)


def _repair(contract: CompiledContract, problem: str, policy_version: int) -> str:
    """The message that asks for another answer.

    Args:
        contract: says which object the answer must be
        problem: what is wrong with the last answer, fenced
        policy_version: version of the rules that the turn follows. Up to version 11, the instructions hold the schema
    """
    if contract.is_asked:
        asked = "was asked for" if policy_version > 11 else "the instructions ask for"
        return _ASKED_REPAIR.format(problem=problem, asked=asked)
    return _REPAIR.format(problem=problem, schema=json.dumps(contract.output_schema, ensure_ascii=False))


def _as_text(response: PromptResponse) -> str:
    """The model's answer as text for a repair request."""
    if response.text or response.structured is None:
        return response.text
    return json.dumps(response.structured, ensure_ascii=False)
