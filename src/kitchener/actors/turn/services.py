"""Holds what all turns of an agent class share: its components, and the constant parts of its work orders.

The supervisor (`supervisor.py`) builds it once. Turns, their work-order chains and consolidation read it.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from kitchener.actors.admission.content import ContentIntake
from kitchener.actors.attention.retriever import AttentionRetriever
from kitchener.actors.authority.authority import ContextAuthority
from kitchener.actors.sessions.item_tool import ITEM_TOOL
from kitchener.actors.sources import RequestSources, Source
from kitchener.actors.tools.approval_policy import ApprovalPolicy, policy_of
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.turn_memory import TurnMemory
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.actors.work.plan import ChainPlan, constraints_for, constraints_mapping, plan_acceptance
from kitchener.actors.work.quality import QualityGate
from kitchener.actors.work.turn_signals import vocabulary_of
from kitchener.canonical import exact_list
from kitchener.clock import Clock, TimestampText, loop_clock
from kitchener.config import HO2Config
from kitchener.ledger import LedgerGroup
from kitchener.records.entries import ConstraintsMapping, WorkOrderType
from kitchener.records.tools.client_tools import ClientToolset
from kitchener.records.turn import UpdateListener
from kitchener.records.work_order import TYPE_TAGS, Constraints, DirectCall, HO1ExecutorProtocol, WorkOrder


class DegradedCall(Protocol):
    """Answers a message when HO1 itself is broken. Each use is recorded as a governance violation."""

    async def __call__(self, message: str, *, session_id: str, deadline: float) -> str:
        """Answers the message.

        Args:
            message: the user's message
            session_id: the session of the message
            deadline: on the event loop's clock, seconds
        """
        ...


class StepConstraints:
    """The constraints of an agent class's work orders, for each step of a turn.

    Args:
        config: the settings of the agent class
        approval: which tools are offered, and which of them wait for approval
        policy_version: version of the rules that turns follow
    """

    def __init__(self, config: HO2Config, approval: ApprovalPolicy, policy_version: int) -> None:
        self._approval, self._max_client_calls = approval, config.max_client_calls
        limits = partial(constraints_for, config, token_budget=config.turn_budget, policy_version=policy_version)
        offered = approval.offered
        self.classify = limits("classify", contract_id=config.classify_contract_id)
        self.synthesize = limits("synthesize", contract_id=config.synthesize_contract_id)
        self.tool_call = limits("tool_call", contract_id=None).replaced(allowed_tools=offered)
        self.verify = limits("verify", contract_id=config.verify_contract_id)
        rounds = _with_rounds(self.synthesize, config, policy_version)
        asking = rounds.replaced(
            ask_tools=tuple(approval.asks),
            ask_after_untrusted=approval.asks_later,
            deny_after_untrusted=approval.refused_later,
            most_requests=config.approval.max_pending,
        )
        self._with_tools = asking.replaced(allowed_tools=offered)
        self._with_items = rounds.replaced(allowed_tools=(ITEM_TOOL,))
        self._with_both = asking.replaced(allowed_tools=(*offered, ITEM_TOOL))
        replies = (self.synthesize, self._with_tools, self._with_items, self._with_both)
        known = (self.classify, self.tool_call, self.verify, *replies)
        self._mappings = {id(each): constraints_mapping(each) for each in known}

    def synthesis(self, plan: ChainPlan, *, offers_items: bool) -> Constraints:
        """The constraints of a synthesize work order.

        Args:
            plan: says whether the model may or must call tools
            offers_items: whether it may read stubs of its context
        """
        if offers_items:
            found = self._with_both if plan.offers_tools else self._with_items
        else:
            found = self._with_tools if plan.offers_tools else self.synthesize
        if plan.tool_choice is None or not (plan.offers_tools or offers_items):
            return found
        return found.replaced(tool_choice=plan.tool_choice)

    def with_client_tools(self, constraints: Constraints, names: tuple[str, ...]) -> Constraints:
        """The constraints of a reply, with the tools that the caller of the turn runs.

        Args:
            constraints: those of the agent class, under which tools are offered
            names: the tools
        """
        refused = names if self._approval.after_untrusted == "deny" else ()
        return constraints.replaced(
            allowed_tools=(*[each for each in constraints.allowed_tools if each not in names], *names),
            deny_after_untrusted=(*constraints.deny_after_untrusted, *refused),
            client_tools=names,
            most_client_calls=self._max_client_calls,
        )

    def mapping_of(self, constraints: Constraints) -> ConstraintsMapping:
        """The constraints that differ from their defaults, as JSON types."""
        return self._mappings.get(id(constraints)) or constraints_mapping(constraints)


def _with_rounds(reply: Constraints, config: HO2Config, policy_version: int) -> Constraints:
    """The constraints of a reply, with limits for tool calls and for the tool results that the model is shown."""
    results_budget = config.results_budget if policy_version > 1 else None
    rounds = reply.replaced(
        turn_limit=config.tool_turn_limit, parallel_tools=config.parallel_tools, results_budget=results_budget
    )
    if policy_version < 6:
        return rounds
    return rounds.replaced(
        max_tool_calls=config.max_tool_calls,
        max_equal_calls=config.max_equal_calls,
        result_page_tokens=config.result_page_tokens,
    )


class TurnConstants:
    """The parts of an agent class's turns that are the same in every turn, computed once."""

    def __init__(
        self, config: HO2Config, tools: ToolRegistry, sources: RequestSources, ruleset_hash: str, policy_version: int
    ) -> None:
        self.tools, self.tools_generation = tools.present(), tools.generation
        """The tools of turns that begin with these constants, and the registry's generation at that time."""
        self.config_hash, self.ruleset_hash = sources.config_hash, ruleset_hash
        self.policy_version = policy_version
        identities = [own for each in tools.tool_ids if (own := tools.identity(each)) is not None]
        self.approval = policy_of(config.approval, identities)
        self.allowed_tools = self.approval.offered
        # Depends on the class, not on the turn, so that the system message stays equal from turn to turn.
        can_be_told = policy_version > 3 and sources.shows_history
        self.told_of_client_tools = {"has_tools": True} if can_be_told else {}
        self.told_of_tools = self.told_of_client_tools if self.allowed_tools else {}
        self.read_only_tools = frozenset(each.tool_id for each in tools.listed if each.is_read_only)
        self.tool_views = [
            {"tool_id": spec.tool_id, "description": spec.description, "parameters": dict(spec.parameters)}
            for spec in tools.toolset(self.allowed_tools).specs
        ]
        self.classify_tools = exact_list(self.tool_views) if config.classify == "model" else []
        self.acceptance = plan_acceptance(config.acceptance, sources.acceptance)
        self.tool_acceptance = {each.tool_id: each.acceptance for each in tools.listed if each.acceptance}
        self.vocabulary = {kind: list(labels) for kind, labels in config.labels_vocabulary.items()}
        self.labels = vocabulary_of(config.labels_vocabulary)
        rules = "\n".join(f"- {rule}" for rule in config.standing_rules)
        self.instructions = "\n\n".join(part for part in (config.instructions, rules and f"Standing rules:\n{rules}") if part)
        self.closing_tools = frozenset(each.tool_id for each in tools.listed if policy_version > 1 and each.closes_intent)
        self._trusts_clients = config.client_tools_trusted
        self.steps = StepConstraints(config, self.approval, policy_version)
        self._blanks = {
            wo_type: WorkOrder.create(session_id="", number=0, turn_id="", wo_type=wo_type, created_at="")
            for wo_type in TYPE_TAGS
        }

    def blank(self, wo_type: WorkOrderType) -> WorkOrder:
        """A work order of a type with empty fields. Each work order of a turn is a changed copy of it.

        The values of the changes were checked where they came from, and a copy does not validate or copy them again.
        """
        return self._blanks[wo_type]

    def hold_client_tools(self, turn_id: str, tools: ClientToolset) -> None:
        """Gives a turn the caller's tools in addition to the class's. The runner takes them back."""
        own = tools.runnable(is_trusted=self._trusts_clients, policy_version=self.policy_version)
        self.tools.hold(turn_id, self.tools.with_client_tools(own))

    def with_criteria_of(self, called: Iterable[str], acceptance: tuple[str, ...]) -> tuple[str, ...]:
        """The acceptance criteria of a reply, including the criteria of the tools that the model called for it."""
        if self.tool_acceptance and self.policy_version > 2:
            for tool_id in called:
                acceptance = plan_acceptance(acceptance, self.tool_acceptance.get(tool_id, ()))
        return acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnServices:
    """The components that all turns of an agent class share."""

    config: HO2Config
    ledgers: LedgerGroup
    executor: HO1ExecutorProtocol
    budgeter: TokenBudgeter
    attention: AttentionRetriever
    quality: QualityGate
    clock: Clock
    degraded_call: DegradedCall | None
    """The program's own answer when HO1 is broken; None: `direct_call`."""
    direct_call: DirectCall | None
    """Asks the gateway when HO1 is broken; None: the turn replies with an apology."""
    listeners: dict[str, UpdateListener]
    """Listeners for streamed text, by work order id; shared with the executor."""
    constants: TurnConstants
    content: ContentIntake
    """Stores images and files of messages."""
    record_source: Callable[[Source], Awaitable[None]]
    """Records a caller's source of a request once: the schema of an object, or definitions of tools."""
    authority: ContextAuthority | None = None
    """The Context Authority; None if it is off, and then none of its code runs."""
    memory: TurnMemory | None = None
    """Long-term memory; None if it is not used, and then none of its code runs."""
    timestamps: TimestampText = field(default_factory=TimestampText)
    loop_time: Callable[[], float] = field(default_factory=loop_clock)
    """The event loop's clock, seconds."""

    def now(self) -> str:
        """The time of day, formatted as in a ledger."""
        return self.timestamps.render(self.clock.time_us())
