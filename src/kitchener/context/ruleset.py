"""Holds all policy settings of the Context Authority in one frozen value, with the hash that identifies the policy.

Two decisions over the same ledger with the same `ruleset_hash` are equal to the byte. This module does not know where the
values come from (a file, arguments of a command).
"""

import math
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

from kitchener.canonical import canonical_digest, digest
from kitchener.errors import ConfigError

IntentMode = Literal["bridge", "classified"]
ConflictPolicy = Literal["block", "most_recent_wins"]
UnclearPolicy = Literal["continue_and_flag", "continue", "declare", "ask"]
InvalidLifecyclePolicy = Literal["ignore_event", "block"]
RecallScope = Literal["intent", "session", "subject"]
Admission = Literal["lexical", "newest_first"]

_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "intent_mode": get_args(IntentMode),
    "intent_conflict_policy": get_args(ConflictPolicy),
    "unclear_policy": get_args(UnclearPolicy),
    "invalid_lifecycle_policy": get_args(InvalidLifecyclePolicy),
    "recall_scope": get_args(RecallScope),
    "admission": get_args(Admission),
}
_LEAST: Final[dict[str, int]] = {
    "intent_max_failures": 1,
    "max_stubs": 0,
    "max_failed_items": 0,
    "newest_turns": 0,
    "ranking_postings": 1,
    "recalled_turns": 0,
    "reply_reserve": 0,
    "context_budget": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruleset:
    """What the Context Authority decides by.

    Raises:
        ConfigError: a value is impossible; names the knob, the value and what would have been right
    """

    intent_mode: IntentMode = "bridge"
    """`bridge`: one intent per session, relations of messages are ignored. `classified`: the transition table decides."""
    intent_conflict_policy: ConflictPolicy = "block"
    """Several intents are live: show nothing until somebody chose, or take the one declared last."""
    unclear_policy: UnclearPolicy = "continue_and_flag"
    """What to do with a message whose relation to the active intent is unclear."""
    intent_min_confidence: float = 0.6
    """A relation that is less certain than this counts as unclear, 0 to 1."""
    intent_max_failures: int = 3
    """Failed turns in a row, of one intent, from which on each is flagged."""
    invalid_lifecycle_policy: InvalidLifecyclePolicy = "ignore_event"
    """An impossible event: leave it out and flag it, or show nothing until it is voided."""
    recall_scope: RecallScope = "intent"
    """Where recalled evidence may come from beyond the intent: nowhere, the session, the subject's other sessions."""
    admission: Admission = "lexical"
    """Which turns are admitted: those that rank best against the message, or the newest."""
    newest_turns: int = 3
    """Newest turns that `lexical` admits before the ranked ones, and that a turn without an intent recalls."""
    ranking_postings: int = 1_024
    """Postings (positions of words) that `lexical` reads in one ranking; the newest positions of a frequent word."""
    recalled_turns: int = 50
    """Turns that are recalled at most, those that rank best."""
    max_stubs: int = 20
    """Stubs shown at most; admission also ends after so many turns that did not fit."""
    max_failed_items: int = 5
    """Failed work orders shown in full; the others are counted in one stub."""
    reply_reserve: int = 800
    """Tokens of the turn that are kept for the reply before any context is shown."""
    token_estimator: str = "utf8/3"
    """How tokens are estimated; the name of a plugged-in tokenizer where one is used."""
    context_budget: int = 2_400
    """Tokens that the shown context may take."""
    standing_rules: tuple[str, ...] = ()
    """Rules that hold in every turn, in order; rule n is called `INV-n`."""
    ruleset_hash: str = ""
    """The identity of the whole policy, as it stands on record. Empty, for a ruleset that stands alone: `sha256:` over the
    knobs above."""

    def __post_init__(self) -> None:
        for key, allowed in _CHOICES.items():
            if getattr(self, key) not in allowed:
                raise ConfigError("ruleset", key, repr(getattr(self, key)), f"expected one of {', '.join(allowed)}")
        for key, least in _LEAST.items():
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError("ruleset", key, repr(value), f"expected a whole number of at least {least}")
        confidence = self.intent_min_confidence
        if not isinstance(confidence, int | float) or not math.isfinite(confidence) or not 0 <= confidence <= 1:
            raise ConfigError("ruleset", "intent_min_confidence", repr(confidence), "expected a number from 0 to 1")
        if not self.ruleset_hash:
            object.__setattr__(self, "ruleset_hash", canonical_digest(self._knobs(), at="ruleset"))

    def _knobs(self) -> dict[str, Any]:
        knobs: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "ruleset_hash"}
        # A rule is named by the hash of its text wherever it is referred to, so also here.
        knobs["standing_rules"] = [digest(rule.encode()) for rule in self.standing_rules]
        return knobs
