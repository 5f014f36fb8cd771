"""Finds limits of an agent class that cannot fit each other: what one of them allows, another one never covers.

Sizes are estimates for plain text, a token for three bytes. They leave out prompts and descriptions of tools, so what does not
fit here fits nowhere. `kitchener config check` prints them as warnings.
"""

from collections.abc import Iterator, Mapping

from kitchener.config import HO2Config, RuntimeConfig, dotted_key
from kitchener.records.tokens import tokens_of_bytes


def unfitting_limits(config: RuntimeConfig) -> Iterator[tuple[str, str]]:
    """The key of each limit that cannot fit another one, and what does not fit; without classes, of the settings of all."""
    agents: Mapping[str, HO2Config] = config.classes or {"default": HO2Config()}
    for name, agent in agents.items():
        for key, problem in _of_agent(agent, config.limits.max_message_chars):
            yield dotted_key(("agents", name, key)), problem


def _of_agent(agent: HO2Config, max_message_chars: int) -> Iterator[tuple[str, str]]:
    reserve, budget = agent.reply_reserve, agent.turn_budget
    shown = agent.context_budget if agent.context_mode == "enforce" else agent.attention_budget_tokens
    message, result = tokens_of_bytes(max_message_chars), tokens_of_bytes(agent.tool_result_max_bytes)
    if (needed := 2 * (message + reserve) + shown) > budget:
        yield (
            "turn_budget",
            f"{budget:,} tokens do not cover a message of limits.max_message_chars = {max_message_chars:,}, which is read by"
            f" classification and by the reply, with its context: about {needed:,}",
        )
    if agent.tools != () and (needed := 2 * (shown + reserve) + result) > budget:
        yield (
            "turn_budget",
            f"{budget:,} tokens do not cover a tool's result of tool_result_max_bytes = {agent.tool_result_max_bytes:,} with"
            f" its context: about {needed:,}",
        )
    if agent.tools != () and result > agent.results_budget:
        yield (
            "results_budget",
            f"{agent.results_budget:,} tokens do not cover one result of tool_result_max_bytes ="
            f" {agent.tool_result_max_bytes:,}: about {result:,}",
        )
    if agent.budget_ceiling is not None and agent.budget_ceiling < budget:
        yield "budget_ceiling", f"{agent.budget_ceiling:,} tokens of a session do not cover one turn_budget of {budget:,}"
