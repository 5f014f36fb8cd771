"""Turns the settings of an agent class into the ruleset of its Context Authority.

A replay follows the rules of the version on record, so absent settings get the defaults of that version. `context/ruleset.py`
says what each rule means.
"""

from collections.abc import Mapping
from typing import Final

from kitchener.choices import RecallScope
from kitchener.config import HO2Config
from kitchener.context import Ruleset
from kitchener.records import events

_BEFORE_3: Final = {"recall_scope": "intent", "recalled_turns": 50, "ranking_postings": 1_024}
"""The defaults of settings before version 3 of the policy."""
BEFORE_6: Final[Mapping[str, int]] = {"context_budget": 2_400, "recent_turns": 6}
"""The defaults of settings before version 6 of the policy."""


def recall_scope_of(config: HO2Config) -> RecallScope:
    """Returns the scope from which the turns of an agent class may recall evidence."""
    return config.recall_scope or ("subject" if config.ho3_enabled else "intent")


def _recent_turns_of(config: HO2Config, policy_version: int) -> int | None:
    if policy_version < 2:
        return 0
    is_chat = config.prompt_layout == "chat" and config.excerpt_tokens > 0
    return config.recent_turns if is_chat and policy_version > 12 else config.gathered_turns


def ruleset_of(config: HO2Config, ruleset_hash: str = "", policy_version: int = events.POLICY_VERSION) -> Ruleset:
    """Returns the context policy of an agent class.

    Args:
        config: the settings of the agent class
        ruleset_hash: identity of the whole policy; "" if nothing is recorded
        policy_version: version of the rules that turns follow
    """
    if policy_version < 6:
        defaults = {**BEFORE_6, **(_BEFORE_3 if policy_version < 3 else {})}
        earlier = {key: value for key, value in defaults.items() if key not in config.model_fields_set}
        config = config.model_copy(update=earlier)
    return Ruleset(
        intent_mode=config.intent_mode,
        intent_conflict_policy=config.intent_conflict_policy,
        unclear_policy=config.unclear_policy,
        shared_intent_policy=config.shared_intent_policy,
        intent_min_confidence=config.intent_min_confidence,
        intent_max_failures=config.intent_max_failures,
        repeated_failure_policy=config.repeated_failure_policy,
        invalid_lifecycle_policy=config.invalid_lifecycle_policy,
        recall_scope=recall_scope_of(config),
        admission=config.admission,
        newest_turns=config.newest_turns,
        continue_after_close=config.continue_after_close,
        recent_turns=_recent_turns_of(config, policy_version),
        recent_parts=config.recent_parts,
        ranking_postings=config.ranking_postings,
        recalled_turns=config.recalled_turns,
        max_stubs=config.max_stubs,
        max_failed_items=config.max_failed_items,
        reply_reserve=config.reply_reserve,
        token_estimator=config.token_estimator,
        excerpt_tokens=config.excerpt_tokens if policy_version > 2 else 0,
        prompt_layout=config.prompt_layout if policy_version > 3 else "block",
        evict_to=config.evict_to,
        speaker_weight=config.speaker_weight,
        context_budget=config.context_budget,
        standing_rules=config.standing_rules,
        ruleset_hash=ruleset_hash,
        policy_version=policy_version,
    )
