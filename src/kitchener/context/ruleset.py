"""Holds all policy settings of the Context Authority in one frozen value, with the hash that identifies the policy.

Two decisions over the same ledger with the same `ruleset_hash` are equal to the byte. This module does not know where the
values come from (a file, arguments of a command).
"""

import math
from dataclasses import dataclass, fields
from typing import Final, get_args

from kitchener.canonical import canonical_digest, digest
from kitchener.choices import (
    AdmissionOrder,
    ConflictPolicy,
    ContinueAfterClose,
    IntentMode,
    InvalidLifecyclePolicy,
    PromptLayout,
    RecallScope,
    RepeatedFailurePolicy,
    SharedIntentPolicy,
    UnclearPolicy,
)
from kitchener.errors import ConfigError
from kitchener.records.entries import Json
from kitchener.records.events import POLICY_VERSION

_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "intent_mode": get_args(IntentMode),
    "intent_conflict_policy": get_args(ConflictPolicy),
    "shared_intent_policy": get_args(SharedIntentPolicy),
    "unclear_policy": get_args(UnclearPolicy),
    "invalid_lifecycle_policy": get_args(InvalidLifecyclePolicy),
    "repeated_failure_policy": get_args(RepeatedFailurePolicy),
    "continue_after_close": get_args(ContinueAfterClose),
    "recall_scope": get_args(RecallScope),
    "admission": get_args(AdmissionOrder),
    "prompt_layout": get_args(PromptLayout),
}
_LEAST: Final[dict[str, int]] = {
    "intent_max_failures": 1,
    "max_stubs": 0,
    "max_failed_items": 0,
    "newest_turns": 0,
    "recent_turns": 0,
    "recent_parts": 0,
    "ranking_postings": 1,
    "recalled_turns": 0,
    "reply_reserve": 0,
    "context_budget": 0,
    "excerpt_tokens": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruleset:
    """The policy settings of the Context Authority.

    Raises:
        ConfigError: a value is not allowed; names the setting, the value and the allowed values
    """

    intent_mode: IntentMode = "bridge"
    """`bridge`: one intent per session; the relations of messages are ignored. `classified`: the transition table decides."""
    intent_conflict_policy: ConflictPolicy = "block"
    """If several intents are live: `block` shows nothing until the user chooses; `most_recent_wins` takes the newest."""
    unclear_policy: UnclearPolicy = "continue_and_flag"
    """What happens if the relation of a message to the active intent is unclear: the message continues the intent (with or
    without a flag), declares a new one, or the user is asked."""
    shared_intent_policy: SharedIntentPolicy = "parent"
    """What a shared intent may be in the session that declared it: only a `parent`, or also `active` while no SESSION intent of
    the session is live."""
    intent_min_confidence: float = 0.6
    """Least confidence of a relation, 0 to 1; below it, the relation counts as unclear."""
    intent_max_failures: int = 3
    """`repeated_failure_policy` applies after so many failed turns of one intent in a row."""
    repeated_failure_policy: RepeatedFailurePolicy = "flag"
    """What follows repeated failures: `flag` flags them; `defer` also defers the intent, in `classified` mode."""
    continue_after_close: ContinueAfterClose = "declare"
    """What a continuing message does if classification closed the last intent: `declare` a new one, or `reopen` that one."""
    invalid_lifecycle_policy: InvalidLifecyclePolicy = "ignore_event"
    """If an event contradicts earlier ones: `ignore_event` ignores and flags it; `block` shows nothing until it is voided."""
    recall_scope: RecallScope = "intent"
    """Where evidence may be recalled from: only the intent, the session, or all sessions of the subject."""
    admission: AdmissionOrder = "lexical"
    """Which turns are admitted: those that match the message best, or the newest."""
    newest_turns: int = 3
    """Number of newest turns that `lexical` admits before ranked ones, and that a turn without an intent recalls."""
    recent_turns: int | None = 0
    """Number of newest turns of the session that are shown whatever their intent, if they fit; None: all that have room among
    the chat messages."""
    recent_parts: int = 4
    """Number of newest images and files of the intent's turns that are shown with their turns, if they fit."""
    ranking_postings: int = 1_024
    """Most postings (positions of words) that `lexical` reads in one ranking; of a frequent word, the newest."""
    recalled_turns: int = 50
    """Most turns that are recalled; the best match first."""
    max_stubs: int = 20
    """Most stubs shown; admission also ends after this many turns that did not fit."""
    max_failed_items: int = 5
    """Most failed work orders shown in full; one stub counts the others."""
    reply_reserve: int = 800
    """Tokens of the turn's budget that are reserved for the reply."""
    token_estimator: str = "utf8/3"
    """Name of the token estimator, or of a plugged-in tokenizer."""
    context_budget: int = 2_400
    """Most tokens of shown context."""
    excerpt_tokens: int = 0
    """Most tokens of a message or a reply that is shown whole; a longer one is shown as an excerpt, and turns stand under the
    dates of their days. 0: a turn is one item, without a date, as before version 3 of the policy."""
    prompt_layout: PromptLayout = "block"
    """`chat`: the session's past is shown as chat messages, in a window that moves in steps. `block`: as one text, as before
    version 4 of the policy."""
    evict_to: float = 0.4
    """Share of the history's room to which the window shrinks when it is full, 0.1 to 0.95."""
    speaker_weight: float = 1.0
    """Factor for the scores of turns whose speaker the message names. 1: no effect, as before turns had speakers."""
    standing_rules: tuple[str, ...] = ()
    """Rules for every turn, in order; rule n has the id `INV-n`."""
    policy_version: int = POLICY_VERSION
    """Version of the rules that turns follow, see `kitchener.records.events.POLICY_VERSION`."""
    ruleset_hash: str = ""
    """The identity of the whole policy, as recorded. "" is replaced by `sha256:` over the settings above, for a ruleset used
    alone."""

    def __post_init__(self) -> None:
        for key, allowed in _CHOICES.items():
            if getattr(self, key) not in allowed:
                raise ConfigError("ruleset", key, repr(getattr(self, key)), f"expected one of {', '.join(allowed)}")
        for key, least in _LEAST.items():
            value = getattr(self, key)
            if key == "recent_turns" and value is None and self.is_chat:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError("ruleset", key, repr(value), f"expected a whole number of at least {least}")
        confidence = self.intent_min_confidence
        if not isinstance(confidence, int | float) or not math.isfinite(confidence) or not 0 <= confidence <= 1:
            raise ConfigError("ruleset", "intent_min_confidence", repr(confidence), "expected a number from 0 to 1")
        weight = self.speaker_weight
        if not isinstance(weight, int | float) or not math.isfinite(weight) or weight < 1:
            raise ConfigError("ruleset", "speaker_weight", repr(weight), "expected a number of at least 1")
        share = self.evict_to
        if not isinstance(share, int | float) or not math.isfinite(share) or not 0.1 <= share <= 0.95:
            raise ConfigError("ruleset", "evict_to", repr(share), "expected a number from 0.1 to 0.95")
        if not self.ruleset_hash:
            object.__setattr__(self, "ruleset_hash", canonical_digest(self._settings(), at="ruleset"))

    @property
    def is_split(self) -> bool:
        """Whether a turn's message and reply are two items, under the dates of their days."""
        return self.excerpt_tokens > 0

    @property
    def is_terse(self) -> bool:
        """Whether repetitions are left out of the shown text, and names before messages count as speakers."""
        return self.policy_version > 3

    @property
    def is_chat(self) -> bool:
        """Whether the session's past is shown as chat messages."""
        return self.prompt_layout == "chat" and self.is_split

    @property
    def is_steady(self) -> bool:
        """Whether matches never take the room of the chat messages, so that a cache can serve these."""
        return self.policy_version > 5

    @property
    def hides_resumed(self) -> bool:
        """Whether the deferred work order that a turn continues is hidden from the list of waiting ones."""
        return self.policy_version > 6

    @property
    def keeps_oldest(self) -> bool:
        """Whether a long newest message or reply takes no room of older chat messages, so that a cache can serve these."""
        return self.policy_version > 9

    @property
    def is_plain(self) -> bool:
        """Whether a deferred intent is called that, and one failed work order is not called the last of several."""
        return self.policy_version > 9

    @property
    def leaves_out_weak(self) -> bool:
        """Whether recalled turns that do not match well enough to be shown are left out of a projection."""
        return self.policy_version > 13

    def _settings(self) -> dict[str, Json]:
        settings: dict[str, Json] = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name != "ruleset_hash"
        }
        # Records name a rule by the hash of its text, so the identity does too.
        settings["standing_rules"] = [digest(rule.encode()) for rule in self.standing_rules]
        return settings
