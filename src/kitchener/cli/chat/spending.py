"""Adds up what a chat has used, from the ledgers: cancelled turns count too."""

from dataclasses import dataclass, field

from kitchener.cli.options import LedgerPaths
from kitchener.cli.terminal.output import amount_of_money, counted, one_line
from kitchener.config import RouterConfig
from kitchener.records import events
from kitchener.records.entries import CostSummary, ModelCallPayload, payload_as
from kitchener.records.prompt import RULES_MODEL
from kitchener.tuning import OWN_MODELS
from kitchener.tuning.routes import Tokens, cost_of

_WIDTH = 40


@dataclass(slots=True)
class Spending:
    """What model and tool calls have used."""

    input_tokens: int = 0
    output_tokens: int = 0
    llm_calls: int = 0
    tool_calls: int = 0
    money: float = 0.0
    """In the currency of the configured prices."""
    unpriced: set[str] = field(default_factory=set)
    """Models without a price."""

    def add(self, call: ModelCallPayload, router: RouterConfig) -> None:
        """Adds a model call."""
        usage, model = call["usage"], call["model_id"]
        tokens = Tokens(usage["input_tokens"], usage["output_tokens"], usage.get("cached_tokens") or 0)
        self.llm_calls += model != RULES_MODEL
        self.input_tokens += tokens.input_tokens
        self.output_tokens += tokens.output_tokens
        if (price := router.prices.get(model)) is not None:
            self.money += cost_of(tokens, price)
        elif model not in OWN_MODELS.values():
            self.unpriced.add(model)

    def text(self) -> str:
        """All of it, on one line."""
        used = used_text(
            {
                "input_tokens": self.input_tokens,
                "output_tokens": self.output_tokens,
                "llm_calls": self.llm_calls,
                "tool_calls": self.tool_calls,
            }
        )
        if not self.unpriced:
            return f"{used}; cost {amount_of_money(self.money)}"
        first = one_line(min(self.unpriced), _WIDTH)
        return f'{used}; cost {amount_of_money(self.money)} and an unknown sum: set [router.prices."{first}"]'


async def read_spending(paths: LedgerPaths, agent_class: str, session_id: str, since: str) -> Spending:
    """What a session has used since a moment, ISO time as ledgers write it."""
    spending = Spending()
    async with paths.reader(agent_class, "ho1m") as ho1m:
        if ho1m is not None:
            async for entry in ho1m.read(session_id=session_id, entry_type=(events.LLM_CALL, events.TOOL_CALL)):
                if entry.timestamp < since:
                    continue
                if entry.entry_type == events.TOOL_CALL:
                    spending.tool_calls += 1
                else:
                    spending.add(payload_as(ModelCallPayload, entry.payload), paths.config.router)
    return spending


def used_text(cost: CostSummary) -> str:
    """Tokens and calls, for a reader."""
    tools = f", {counted(cost['tool_calls'], 'tool call')}" if cost["tool_calls"] else ""
    calls = counted(cost["llm_calls"], "model call")
    return f"{cost['input_tokens']:,} tokens in, {cost['output_tokens']:,} out, {calls}{tools}"
