"""Adds up what model and tool calls used, in tokens and in money, from the executor's ledger: cancelled turns count too."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from kitchener.config import ModelPrice
from kitchener.config.router import price_of
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.shown_text import amount_of_money, one_line
from kitchener.plain_names import counted
from kitchener.records import events
from kitchener.records.attempt_record import BilledAnswer, billed_answer
from kitchener.records.entries import CostSummary, NestedTurn, ToolCallPayload, payload_as
from kitchener.records.prompt import RULES_MODEL
from kitchener.tuning import OWN_MODELS

_WIDTH = 40
_MOST_NAMED = 3
"""Models without a price that are named."""


@dataclass(slots=True)
class Spending:
    """What model and tool calls have used."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens that providers' caches served."""
    cache_write_tokens: int = 0
    """Input tokens that providers wrote to their caches."""
    llm_calls: int = 0
    tool_calls: int = 0
    unusable_answers: int = 0
    """Answers that could not be used, such as those without a text. Their tokens count."""
    known_cost: float = 0.0
    """The cost of the answers with a known price, in the currency of the configured prices."""
    unpriced: set[str] = field(default_factory=set)
    """Models without a price."""
    nested_turns: list[NestedTurn] = field(default_factory=list)
    """Turns that tools ran in other sessions. What they used is in those sessions."""

    @property
    def cost(self) -> float | None:
        """The cost of all answers; None: the price of one of them is unknown."""
        return None if self.unpriced else self.known_cost

    @property
    def has_answers(self) -> bool:
        """Whether a model answered, usably or not."""
        return bool(self.llm_calls or self.unusable_answers)

    def add(self, answer: BilledAnswer, prices: dict[str, ModelPrice]) -> None:
        """Adds an answer."""
        usage, model = answer.usage, answer.model_id
        cached, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
        self.llm_calls += answer.is_usable and model != RULES_MODEL
        self.unusable_answers += not answer.is_usable
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.cached_tokens += cached
        self.cache_write_tokens += written
        if (price := price_of(prices, answer.provider_id, model)) is not None:
            self.known_cost += price.cost(usage.input_tokens, usage.output_tokens, cached, written)
        elif model not in OWN_MODELS.values():
            self.unpriced.add(model)

    def include(self, other: "Spending") -> None:
        """Adds all of another sum."""
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cached_tokens += other.cached_tokens
        self.cache_write_tokens += other.cache_write_tokens
        self.llm_calls += other.llm_calls
        self.tool_calls += other.tool_calls
        self.unusable_answers += other.unusable_answers
        self.known_cost += other.known_cost
        self.unpriced |= other.unpriced
        self.nested_turns += other.nested_turns

    def as_json(self) -> dict[str, object]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "llm_calls": self.llm_calls,
            "tool_calls": self.tool_calls,
            "unusable_answers": self.unusable_answers,
            "cost": self.cost,
            "unpriced_models": sorted(self.unpriced),
        }

    def text(self) -> str:
        """Tokens, calls and cost on one line, for a reader."""
        used: CostSummary = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "llm_calls": self.llm_calls,
            "tool_calls": self.tool_calls,
        }
        unusable = f", {counted(self.unusable_answers, 'unusable answer')}" if self.unusable_answers else ""
        return f"{used_text(used)}{unusable}; {self.cost_text()}"

    def nested_lines(self) -> list[str]:
        """The turns that tools ran in other sessions, for a reader."""
        return [f"a tool ran {each['turn_id']} in {each['session_id']} of {each['agent_class']}" for each in self.nested_turns]

    def cost_text(self) -> str:
        if not self.unpriced:
            return f"cost {amount_of_money(self.known_cost)}"
        known = f"{amount_of_money(self.known_cost)} and an unknown sum" if self.known_cost else "unknown"
        names = sorted(self.unpriced)
        missing = " and ".join(f'[router.prices."{one_line(each, _WIDTH)}"]' for each in names[:_MOST_NAMED])
        others = f" and those of {counted(len(names) - _MOST_NAMED, 'more model')}" if len(names) > _MOST_NAMED else ""
        return f"cost {known}: set {missing}{others}"


async def read_spending(paths: LedgerPaths, agent_class: str, session_id: str, since: str = "") -> dict[str, Spending]:
    """What a session has used, by turn.

    Args:
        paths: where the ledgers are
        agent_class: the session's
        session_id: the session
        since: ISO time as ledgers write it; only calls from then on count
    """
    found = defaultdict[str, Spending](Spending)
    async with paths.reader(agent_class, "ho1m") as ho1m:
        if ho1m is not None:
            async for entry in ho1m.read(session_id=session_id, entry_type=(*events.WITH_USAGE, events.TOOL_CALL)):
                if entry.timestamp < since:
                    continue
                spending = found[events.read_common(entry).get("turn_id", "")]
                if entry.entry_type == events.TOOL_CALL:
                    spending.tool_calls += 1
                    spending.nested_turns += payload_as(ToolCallPayload, entry.payload).get("nested_turns", ())
                elif (answer := billed_answer(entry.entry_type, entry.payload)) is not None:
                    spending.add(answer, paths.config.router.prices)
    return dict(found)


def in_all(parts: Iterable[Spending]) -> Spending:
    """The sum of all parts."""
    found = Spending()
    for each in parts:
        found.include(each)
    return found


def used_text(cost: CostSummary) -> str:
    """Tokens and calls, for a reader."""
    served = cost.get("cached_tokens", 0)
    cached = f" ({served:,} of them from a cache)" if served else ""
    tools = f", {counted(cost['tool_calls'], 'tool call')}" if cost["tool_calls"] else ""
    calls = counted(cost["llm_calls"], "model call")
    return f"{cost['input_tokens']:,} tokens in{cached}, {cost['output_tokens']:,} out, {calls}{tools}"
