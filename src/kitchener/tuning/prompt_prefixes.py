"""Tells why a turn's prompt begins differently from the turn's before, so that a provider's cache cannot serve it. Pure.

`recorded_prefixes.py` reads the beginnings of prompts from the ledgers. No turn runs this code.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

BreakCause = Literal[
    "provider",
    "model",
    "tools",
    "prompt_pack",
    "instructions",
    "output",
    "settings",
    "layout",
    "intent",
    "learned_lines",
    "goals",
    "left",
    "evicted",
    "crowded_out",
    "readmitted",
    "history",
]
"""Why a prompt begins differently, in the order of the parts of a prompt."""

CAUSES: Final[Mapping[BreakCause, str]] = {
    "provider": "another provider",
    "model": "another model",
    "tools": "other tools were offered",
    "prompt_pack": "the contract or the prompt pack changed",
    "instructions": "the instructions, standing rules or criteria changed",
    "output": "the caller asked for an object of another form, or for text",
    "settings": "the settings changed, and cannot be read",
    "layout": "the layout of prompts changed",
    "intent": "another intent became active",
    "learned_lines": "other learned lines were shown",
    "goals": "the goals or rules that are shown changed",
    "left": "old messages left, because they are neither of the active intent nor among the newest",
    "evicted": "old messages were evicted, because the history was full",
    "crowded_out": "old messages were evicted, because other items took their room",
    "readmitted": "old messages were shown again",
    "history": "the messages that are shown changed",
}


class PromptPrefix(NamedTuple):
    """The beginning of the first request for a turn's reply."""

    provider_id: str
    model_id: str
    tools: tuple[str, ...] = ()
    """The offered tools, with the hashes of their definitions where they are known."""
    prompt_pack: str = ""
    """Id and hash of the prompt pack, and the hash of the contract where it is known."""
    instructions: str = ""
    """Instructions, standing rules and criteria of the reply."""
    output: str = ""
    """Hash of the JSON schema of the object that the caller wants; "": the caller wants text."""
    unread_settings: str = ""
    """The hash of a configuration that cannot be read; "": it can be read."""
    intent_id: str | None = None
    learned_lines: tuple[str, ...] = ()
    """The entries of the learned lines that are shown."""
    stable_hash: str = ""
    """Hash of the goals, rules and learned lines that are shown."""
    history: tuple[str, ...] | None = None
    """The entries of the messages and replies that are shown as chat messages, oldest first; None: no chat messages."""
    eligible: frozenset[str] | None = frozenset()
    """The entries that would be shown if there were room: of the active intent, or among the newest. None: all."""
    is_cut: bool = False
    """Whether the history is shorter than it could be, because other items took its room."""


class TurnPrefix(NamedTuple):
    """The beginning of a turn's prompt, and what the provider's cache served of it."""

    turn_id: str
    prefix: PromptPrefix
    input_tokens: int = 0
    cached_tokens: int | None = None
    """None: the provider did not say."""


def break_causes(before: PromptPrefix, now: PromptPrefix) -> tuple[BreakCause, ...]:
    """Why a prompt does not begin with all that the one before it had up to its changing part; (): it does.

    A change of an early part invalidates all that follows, so the first cause is the one that counts.
    """
    has_other_layout = (now.history is None) != (before.history is None)
    differs: dict[BreakCause, bool] = {
        "provider": now.provider_id != before.provider_id,
        "model": now.provider_id == before.provider_id and now.model_id != before.model_id,
        "tools": now.tools != before.tools,
        "prompt_pack": now.prompt_pack != before.prompt_pack,
        "instructions": now.instructions != before.instructions,
        "output": now.output != before.output,
        "settings": now.unread_settings != before.unread_settings,
        "layout": has_other_layout,
    }
    found = [cause for cause, is_so in differs.items() if is_so]
    goes_on = has_other_layout or _goes_on(before.history or (), now.history or ())
    if now.stable_hash != before.stable_hash or not goes_on:
        found += _causes_of_context(before, now, goes_on=goes_on)
    return tuple(found)


def _causes_of_context(before: PromptPrefix, now: PromptPrefix, *, goes_on: bool) -> list[BreakCause]:
    found: list[BreakCause] = []
    if now.intent_id != before.intent_id and (now.eligible is not None or goes_on):
        found.append("intent")
    if now.learned_lines != before.learned_lines:
        found.append("learned_lines")
    if now.stable_hash != before.stable_hash and not found:
        found.append("goals")
    if not goes_on and "intent" not in found:
        found.append(_cause_of_history(before, now))
    return found


def _cause_of_history(before: PromptPrefix, now: PromptPrefix) -> BreakCause:
    then, shown = before.history or (), now.history or ()
    gone = then.index(shown[0]) if shown and shown[0] in then else len(then)
    if not shown or (gone < len(then) and _goes_on(then[gone:], shown)):
        if now.is_cut:
            return "crowded_out"
        had_room = now.eligible is not None and now.eligible.isdisjoint(then[:gone])
        return "left" if had_room else "evicted"
    if then and then[0] in shown and _goes_on(then, shown[shown.index(then[0]) :]):
        return "readmitted"
    return "history"


def _goes_on(before: Sequence[str], now: Sequence[str]) -> bool:
    """Whether the messages shown now begin with those that were shown before."""
    return tuple(now[: len(before)]) == tuple(before)


def session_breaks(turns: Iterable[TurnPrefix]) -> dict[str, tuple[BreakCause, ...]]:
    """The causes of each turn's break, by turn id, in the order of the turns; (): the prompt continued as before.

    The first turn is left out, because no prompt came before it.
    """
    return {now.turn_id: break_causes(before.prefix, now.prefix) for before, now in pairwise(turns)}


def causes_text(causes: Sequence[BreakCause]) -> str:
    """The causes of a break, for a reader; "": there was none."""
    return "; ".join(CAUSES[each] for each in causes)
