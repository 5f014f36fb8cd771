"""What every turn of an agent class works with, made once: the parts it uses, and what of its work orders no turn changes.

The supervisor puts it together (`supervisor.py`); turns, their chains of work orders and consolidation read it.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio

from kitchener.actors.attention.retriever import AttentionRetriever
from kitchener.actors.authority.authority import ContextAuthority
from kitchener.actors.sessions.item_tool import ITEM_TOOL
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.turn_memory import Crossed, TurnMemory
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.actors.work.plan import vocabulary_of
from kitchener.actors.work.quality import QualityGate
from kitchener.clock import Clock, TimestampText, loop_clock, scope_class
from kitchener.config import HO2Config
from kitchener.ledger import Ledgers
from kitchener.records.turn import UpdateListener
from kitchener.records.work_order import Constraints, HO1ExecutorProtocol


class DegradedCall(Protocol):
    """What answers when HO1 itself is broken: injected, governed, recorded as a violation."""

    async def __call__(self, message: str, *, session_id: str, deadline: float) -> str:
        """A reply to the message.

        Args:
            message: what the user said
            session_id: in which session
            deadline: on the event loop's clock, seconds
        """
        ...


class Prepared:
    """Everything about an agent class's work orders that no turn changes, worked out once."""

    def __init__(self, config: HO2Config, tools: ToolRegistry, config_hash: str, ruleset_hash: str) -> None:
        self.config_hash = config_hash
        self.ruleset_hash = ruleset_hash
        self.allowed_tools = tools.tool_ids
        self.read_only_tools = frozenset(tool_id for tool_id in tools.tool_ids if tools.is_read_only(tool_id))
        self.tool_views = [
            {"tool_id": spec.tool_id, "description": spec.description, "parameters": dict(spec.parameters)}
            for spec in tools.specs(self.allowed_tools)
        ]
        self.vocabulary = {kind: list(labels) for kind, labels in config.labels_vocabulary.items()}
        self.labels = vocabulary_of(config.labels_vocabulary)
        rules = "\n".join(f"- {rule}" for rule in config.standing_rules)
        self.instructions = "\n\n".join(part for part in (config.instructions, rules and f"Standing rules:\n{rules}") if part)
        self.classify = Constraints(prompt_contract_id=config.classify_contract_id, token_budget=config.turn_budget)
        self.synthesize = Constraints(prompt_contract_id=config.synthesize_contract_id, token_budget=config.turn_budget)
        self.with_tools = self.synthesize.model_copy(
            update={"turn_limit": config.tool_turn_limit, "allowed_tools": self.allowed_tools}
        )
        fetching = {"turn_limit": config.tool_turn_limit, "allowed_tools": (ITEM_TOOL,)}
        self.with_items = self.synthesize.model_copy(update=fetching)
        self.with_both = self.with_tools.model_copy(update={"allowed_tools": (*self.allowed_tools, ITEM_TOOL)})
        self.tool_call = Constraints(allowed_tools=self.allowed_tools, token_budget=config.turn_budget)
        self.verify = Constraints(prompt_contract_id=config.verify_contract_id, token_budget=config.turn_budget)
        known = (
            self.classify,
            self.synthesize,
            self.with_tools,
            self.with_items,
            self.with_both,
            self.tool_call,
            self.verify,
        )
        self._mappings = {id(each): _mapping_of(each) for each in known}

    def synthesis(self, *, offers_tools: bool, offers_items: bool) -> Constraints:
        """The constraints of a reply."""
        if offers_items:
            return self.with_both if offers_tools else self.with_items
        return self.with_tools if offers_tools else self.synthesize

    def mapping_of(self, constraints: Constraints) -> dict[str, Any]:
        """What of the constraints differs from the defaults, as JSON types."""
        return self._mappings.get(id(constraints)) or _mapping_of(constraints)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnParts:
    """What every turn of an agent class works with; made once."""

    config: HO2Config
    ledgers: Ledgers
    executor: HO1ExecutorProtocol
    budgeter: TokenBudgeter
    attention: AttentionRetriever
    quality: QualityGate
    clock: Clock
    degraded_call: DegradedCall | None
    listeners: dict[str, UpdateListener]
    """Who reads the text of a work order while it is being made; shared with the executor."""
    prepared: Prepared
    authority: ContextAuthority | None = None
    """The Context Authority; None where it is off, and then none of its code runs."""
    memory: TurnMemory | None = None
    """Long-term memory; None where it is not used, and then none of its code runs."""
    timestamps: TimestampText = field(default_factory=TimestampText)
    loop_time: Callable[[], float] = field(default_factory=loop_clock)
    """The event loop's clock, seconds."""
    scope: type[anyio.CancelScope] = field(default_factory=scope_class)
    """What a turn runs inside, with its deadline."""

    crossed: OrderedDict[str, Crossed] = field(default_factory=OrderedDict)
    """What turns found ripe to be learned, until their replies are delivered."""

    def now(self) -> str:
        """The time of day as it stands in a ledger."""
        return self.timestamps.render(self.clock.time_us())

    def note_crossed(self, turn_id: str, crossed: Crossed) -> None:
        """Remembers what a turn found ripe; a reply that never arrives is forgotten, its gates are found open again."""
        self.crossed[turn_id] = crossed
        if len(self.crossed) > _MAX_CROSSED:
            self.crossed.popitem(last=False)

    def take_crossed(self, turn_id: str) -> Crossed | None:
        """What a turn found ripe, once."""
        return self.crossed.pop(turn_id, None)


_MAX_CROSSED = 10_000


def _mapping_of(constraints: Constraints) -> dict[str, Any]:
    return constraints.model_dump(mode="json", exclude_defaults=True)
