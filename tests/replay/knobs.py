"""Every setting there is: which of them decide something in a recorded turn, and why the others do not.

A new setting without a line here fails `test_mutated_settings.py`. For each that decides, another value under which some
recorded session of `corpus.py` comes out otherwise, and where that is seen first.
"""

from typing import Any, Final, NamedTuple


class Policy(NamedTuple):
    """A setting that decides."""

    agent_class: str
    """Whose sessions show it."""
    value: Any
    """Another value than in `corpus.toml`."""
    entry_type: str
    """The first entry that differs."""
    field: str
    """The first field that does."""


_WAITING: Final = "how long something waits, or how many do, decides when a turn runs, never what it decides"
_WHERE: Final = "where something is kept"
_DURABLE: Final = "when an entry is durable, not what it says"
_FAILING: Final = "retries and limits of a provider: what came of its attempts is on record and taken as given"
_OUTSIDE: Final = "decides about messages that begin no turn"
_LEARNING_LATER: Final = "when a consolidation begins is taken as given"

KNOBS: Final[dict[str, Policy | str]] = {
    "plane_root": _WHERE,
    "ledger.durability": _DURABLE,
    "ledger.batch_turns": _DURABLE,
    "ledger.linger_ms": _DURABLE,
    "ledger.max_pending_entries": _DURABLE,
    "ledger.max_entry_bytes": Policy("RESIDENT:declare", 2_048, "WO_QUALITY_GATE", "decision"),
    "ledger.max_clock_jump_s": "refuses to write at all",
    "ledger.accept_clock_jump": "refuses to write at all",
    "ledger.verify_on_open": "how much is verified when a ledger is opened; a replay verifies all",
    "ledger.segment_bytes": _WHERE,
    "ledger.keyring": _WHERE,
    "ledger.signing_key": "who signs what was decided",
    "limits.max_running_turns": _WAITING,
    "limits.max_waiting_turns": _WAITING,
    "limits.max_active_sessions": "a passivated session comes back from the ledger as it was",
    "limits.max_active_chars": "a passivated session comes back from the ledger as it was",
    "limits.executor_concurrency": _WAITING,
    "limits.executor_queue": _WAITING,
    "limits.background_concurrency": _WAITING,
    "limits.background_queue": _WAITING,
    "limits.gateway_queue": _WAITING,
    "limits.max_nesting": _OUTSIDE,
    "limits.max_agent_classes": _OUTSIDE,
    "limits.max_restarts": "when a runtime stops",
    "limits.abort_grace_s": _WAITING,
    "limits.shutdown_grace_s": _WAITING,
    "limits.max_message_chars": _OUTSIDE,
    "limits.stream_buffer": _WAITING,
    "memory.enabled": "opens the memory for the program; what turns do with it is `ho3_enabled`",
    "memory.memory_dir": _WHERE,
    "memory.gate_count_threshold": Policy("ADMIN", 3, "TURN_COMPLETED", "consolidation_candidates"),
    "memory.gate_session_threshold": Policy("ADMIN", 1, "TURN_COMPLETED", "consolidation_candidates"),
    "memory.gate_window_hours": Policy("ADMIN", 24, "TURN_COMPLETED", "consolidation_candidates"),
    "memory.decay_half_life_hours": Policy("ADMIN", 2.0, "PROJECTION_COMPUTED", "visible"),
    "memory.salience_floor": Policy("ADMIN", 0.9, "PROJECTION_COMPUTED", "visible"),
    "memory.gate_exclude": Policy("ADMIN", (), "TURN_COMPLETED", "consolidation_candidates"),
    "memory.gate_overrides.*.count": Policy("ADMIN", 4, "TURN_COMPLETED", "consolidation_candidates"),
    "memory.gate_overrides.*.sessions": Policy("ADMIN", 1, "TURN_COMPLETED", "consolidation_candidates"),
    "memory.custom_kinds": "which signals a program may log of its own accord; no turn gives one",
    "memory.supersede_on_renewal": Policy("ADMIN", False, "HO3_OVERLAY_DEACTIVATED", "entry"),
    "memory.max_line_chars": Policy("ADMIN", 20, "WO_COMPLETED", "entry"),
    "memory.resident_events": "an evicted subject comes back from the ledgers as it was",
    "router.default_provider": Policy("ADMIN", "spare", "ATTEMPT_STARTED", "route"),
    "router.default_model": Policy("ADMIN", "scripted-2", "ATTEMPT_STARTED", "route"),
    "router.providers.*.kind": "how a provider is reached, not which one is",
    "router.providers.*.model": Policy("ADMIN", "spare-9", "ATTEMPT_STARTED", "route"),
    "router.providers.*.base_url": _WHERE,
    "router.providers.*.api_key": "by which key, not which provider",
    "router.providers.*.max_concurrency": _WAITING,
    "router.providers.*.requests_per_minute": _WAITING,
    "router.providers.*.tokens_per_minute": _WAITING,
    "router.providers.*.timeout_s": _FAILING,
    "router.providers.*.max_response_bytes": _FAILING,
    "router.providers.*.max_retries": _FAILING,
    "router.providers.*.backoff_initial_s": _FAILING,
    "router.providers.*.backoff_max_s": _FAILING,
    "router.providers.*.breaker_failures": _FAILING,
    "router.providers.*.breaker_reset_s": _FAILING,
    "router.domain_tag_routes.*.provider_id": Policy("ADMIN", "scripted", "ATTEMPT_STARTED", "route"),
    "router.domain_tag_routes.*.model_id": Policy("ADMIN", "spare-9", "ATTEMPT_STARTED", "route"),
    "router.fallbacks": Policy("ADMIN", {}, "ATTEMPT_STARTED", "route"),
    "router.prices.*.input_per_million": "what `kitchener gateway what-if` sums up; no turn looks at it",
    "router.prices.*.output_per_million": "the same",
    "router.prices.*.cached_per_million": "the same",
    "router.allow_model_calls": "refuses calls; a replay makes none",
    "agents.*.agent_class": "whose settings these are",
    "agents.*.instructions": Policy("ADMIN", "Be kind.", "WO_PLANNED", "input_hash"),
    "agents.*.standing_rules": Policy("ADMIN", ("Be brief.",), "PROJECTION_COMPUTED", "visible"),
    "agents.*.tools": Policy("ADMIN", ("tests.replay.tools:list_packages",), "WO_PLANNED", "input_hash"),
    "agents.*.prompt_dir": "where prompt packs are; another text in one of them is caught, see test_mutated_packs.py",
    "agents.*.attention_templates": "where templates are; another bound in one of them is caught, see test_mutated_packs.py",
    "agents.*.ho2m_path": _WHERE,
    "agents.*.ho1m_path": _WHERE,
    "agents.*.budget_ceiling": Policy("RESIDENT:declare", 300, "WO_DISPATCHED", "entry"),
    "agents.*.turn_budget": Policy("ADMIN", 8_000, "WO_PLANNED", "constraints.token_budget"),
    "agents.*.max_wo_chain_length": Policy("RESIDENT:declare", 2, "WO_PLANNED", "entry"),
    "agents.*.max_retries": Policy("ADMIN", 0, "WO_PLANNED", "entry"),
    "agents.*.tool_turn_limit": Policy("ADMIN", 2, "WO_PLANNED", "constraints.turn_limit"),
    "agents.*.tool_timeout_s": "what came of a tool's run is on record and taken as given",
    "agents.*.tool_result_max_bytes": "a tool's result is recorded as it was kept, and taken as given",
    "agents.*.classify_contract_id": Policy("ADMIN", "PRC-VERIFY-001", "WO_PLANNED", "constraints.prompt_contract_id"),
    "agents.*.synthesize_contract_id": Policy("ADMIN", "PRC-VERIFY-001", "WO_PLANNED", "constraints.prompt_contract_id"),
    "agents.*.verify_contract_id": Policy("RESIDENT:ask", "PRC-CLASSIFY-001", "WO_PLANNED", "constraints.prompt_contract_id"),
    "agents.*.consolidation_contract_id": Policy("ADMIN", "PRC-VERIFY-001", "WO_PLANNED", "constraints.prompt_contract_id"),
    "agents.*.verify_with_model": Policy("RESIDENT:ask", False, "WO_PLANNED", "entry"),
    "agents.*.labels_vocabulary": Policy("ADMIN", {"domain": ("garden",)}, "WO_PLANNED", "input_hash"),
    "agents.*.attention_budget_tokens": Policy("RESIDENT:off", 30, "WO_PLANNED", "attention.cut_by"),
    "agents.*.attention_budget_queries": Policy("RESIDENT:off", 1, "WO_PLANNED", "attention.cut_by"),
    "agents.*.attention_timeout_ms": "how long gathering took, and that it was cut, is taken as given",
    "agents.*.attention_window_turns": Policy("RESIDENT:off", 3, "WO_PLANNED", "attention.cut_by"),
    "agents.*.attention_matches": Policy("RESIDENT:off", 0, "WO_PLANNED", "attention.cut_by"),
    "agents.*.recent_turns": Policy("RESIDENT:off", 1, "WO_PLANNED", "attention.fragment_refs"),
    "agents.*.classify_recent_turns": Policy("RESIDENT:off", 2, "WO_PLANNED", "input_hash"),
    "agents.*.reply_reserve": Policy("RESIDENT:declare", 2_400, "PROJECTION_COMPUTED", "token_budget"),
    "agents.*.token_estimator": Policy("RESIDENT:off", "utf8/3", "WO_PLANNED", "input_hash"),
    "agents.*.overlap_policy": _OUTSIDE,
    "agents.*.session_queue": _WAITING,
    "agents.*.turn_deadline_s": _WAITING,
    "agents.*.admission_deadline_s": _WAITING,
    "agents.*.idle_passivate_s": "a passivated session comes back from the ledger as it was",
    "agents.*.session_id_digits": "what a session is called",
    "agents.*.ho3_enabled": Policy("ADMIN", False, "TURN_COMPLETED", "gate_ts"),
    "agents.*.ho3_memory_dir": _WHERE,
    "agents.*.ho3_gate_count_threshold": Policy("RESIDENT:off", 2, "TURN_COMPLETED", "consolidation_candidates"),
    "agents.*.ho3_gate_session_threshold": Policy("RESIDENT:off", 2, "TURN_COMPLETED", "consolidation_candidates"),
    "agents.*.ho3_gate_window_hours": Policy("ADMIN", 24, "TURN_COMPLETED", "consolidation_candidates"),
    "agents.*.ho3_bias_budget": Policy("ADMIN", 13, "PROJECTION_COMPUTED", "visible"),
    "agents.*.consolidation": _LEARNING_LATER,
    "agents.*.consolidation_budget": Policy("ADMIN", 3_000, "WO_PLANNED", "constraints.token_budget"),
    "agents.*.consolidation_deadline_s": _LEARNING_LATER,
    "agents.*.consolidation_backoff_s": _LEARNING_LATER,
    "agents.*.context_mode": Policy("ADMIN", "shadow", "WO_PLANNED", "input_hash"),
    "agents.*.context_budget": Policy("ADMIN", 250, "PROJECTION_COMPUTED", "token_budget"),
    "agents.*.intent_mode": Policy("RESIDENT:bridge", "classified", "WO_PLANNED", "input_hash"),
    "agents.*.intent_conflict_policy": Policy("RESIDENT:declare", "block", "CONFLICT_FLAG", "intent_id"),
    "agents.*.unclear_policy": Policy("RESIDENT:declare", "continue", "PROJECTION_COMPUTED", "intent_id"),
    "agents.*.intent_min_confidence": Policy("RESIDENT:ask", 0.5, "PROJECTION_COMPUTED", "entry"),
    "agents.*.intent_max_failures": Policy("ADMIN", 3, "CONFLICT_FLAG", "entry"),
    "agents.*.invalid_lifecycle_policy": Policy("RESIDENT:ask", "ignore_event", "CONFLICT_FLAG", "intent_id"),
    "agents.*.recall_scope": Policy("ADMIN", "intent", "PROJECTION_COMPUTED", "visible"),
    "agents.*.ranking_postings": Policy("ADMIN", 1, "PROJECTION_COMPUTED", "visible"),
    "agents.*.recalled_turns": Policy("ADMIN", 1, "PROJECTION_COMPUTED", "visible"),
    "agents.*.admission": Policy("ADMIN", "newest_first", "PROJECTION_COMPUTED", "visible"),
    "agents.*.max_stubs": Policy("ADMIN", 1, "PROJECTION_COMPUTED", "suppressed"),
    "agents.*.max_failed_items": Policy("ADMIN", 0, "PROJECTION_COMPUTED", "visible"),
    "agents.*.newest_turns": Policy("ADMIN", 0, "PROJECTION_COMPUTED", "visible"),
}
