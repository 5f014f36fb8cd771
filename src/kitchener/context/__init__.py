"""The Context Authority: decides by explicit events and a token budget which past items a model sees. Pure."""

from kitchener.context.flags import Flag
from kitchener.context.fold.context_events import SourceEvent, make_event, read_event
from kitchener.context.fold.items import Item, bias_item, estimator, evidence_item, recalled
from kitchener.context.fold.state import ContextState, fold
from kitchener.context.fold.tool_results import ToolResult, result_id, result_item
from kitchener.context.intents.active import Resolution, resolve_active
from kitchener.context.intents.reachability import eligible, reach_from, recall_last_closed
from kitchener.context.intents.transitions import (
    IntentEvent,
    SessionIntents,
    TransitionDecision,
    are_shared,
    bridge_declaration,
    choose_thread,
    describe_conflict,
    keep_intent,
    resolve_after_turn,
    resolve_intent_transition,
    with_scopes,
)
from kitchener.context.projection.explanation import Explanation, ProjectionDiff, diff_projections, explain
from kitchener.context.projection.packer import PlacedItem
from kitchener.context.projection.projection import Projection, Projector
from kitchener.context.projection.record import (
    BaseProjection,
    ProjectionLists,
    base_of,
    base_of_lists,
    base_ref,
    conflict_flag_payload,
    lists_of,
    projection_payload,
    read_base,
    read_chain,
    read_lists,
)
from kitchener.context.projection.rendering import Rendering, render
from kitchener.context.ruleset import Ruleset

__all__ = [
    "BaseProjection",
    "ContextState",
    "Explanation",
    "Flag",
    "IntentEvent",
    "Item",
    "PlacedItem",
    "Projection",
    "ProjectionDiff",
    "ProjectionLists",
    "Projector",
    "Rendering",
    "Resolution",
    "Ruleset",
    "SessionIntents",
    "SourceEvent",
    "ToolResult",
    "TransitionDecision",
    "are_shared",
    "base_of",
    "base_of_lists",
    "base_ref",
    "bias_item",
    "bridge_declaration",
    "choose_thread",
    "conflict_flag_payload",
    "describe_conflict",
    "diff_projections",
    "eligible",
    "estimator",
    "evidence_item",
    "explain",
    "fold",
    "keep_intent",
    "lists_of",
    "make_event",
    "projection_payload",
    "reach_from",
    "read_base",
    "read_chain",
    "read_event",
    "read_lists",
    "recall_last_closed",
    "recalled",
    "render",
    "resolve_active",
    "resolve_after_turn",
    "resolve_intent_transition",
    "result_id",
    "result_item",
    "with_scopes",
]
