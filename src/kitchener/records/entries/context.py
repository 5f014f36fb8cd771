"""Payloads of the context ledger: what the Context Authority decided."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict, final

from kitchener.records.entries.common import CommonPayload, Sealed
from kitchener.records.ref import ListedRefMapping, RefGroup, RefMapping

ProjectionMode = Literal["enforce", "shadow"]
TransitionAction = Literal["DECLARE", "CONTINUE", "SUPERSEDE", "REOPEN", "CLOSE", "NOOP", "ASK", "KEEP", "DEFER"]
TransitionStep = Literal["before", "after"]
FlagKind = Literal[
    "COMPETING_INTENTS",
    "CONSTRAINT_CONFLICT",
    "UNCLEAR_INTENT",
    "REPEATED_FAILURE",
    "INVALID_LIFECYCLE",
    "UNSUPPRESSIBLE_OVER_BUDGET",
]
EligibilityReason = Literal[
    "DEFINES_INTENT",
    "OPEN_WO",
    "FAILED_WO",
    "GLOBAL_INVARIANT",
    "REACHABLE_FROM_INTENT",
    "HO3_BIAS",
    "TOOL_RESULT",
    "RECALLED",
    "RECENT",
]
"""Why an item was eligible, or was recalled."""
SuppressReason = Literal["DEFERRED", "BUDGET_EVICTION", "LOW_URGENCY", "ERASED", "UNSUPPORTED"]
"""Why an eligible item was not shown in full."""
EmbeddingProblem = Literal["DEADLINE", "FAILED", "PAUSED"]
"""Why texts have no vectors: the wait ended, the provider failed, or no provider was asked so soon after a failure."""
Runs = list[list[int]]
"""Positions in a list, as `[first, end)` pairs."""


class FlagMapping(TypedDict):
    """A flag that a projection raised."""

    kind: FlagKind
    details_ref: RefMapping | None


class AuthorityMapping(TypedDict):
    """Who decided, and the signature; `sig` is None where nothing is signed."""

    tier: Literal["HO2"]
    signer: str | None
    sig: str | None


@final
class SuppressedRef(TypedDict):
    """An item that is eligible and was not shown."""

    ref: RefMapping
    reason: SuppressReason | None


@final
class SuppressedGroup(TypedDict):
    """A group of references (`RefGroup`) to recalled items that were not shown, all for the same reason."""

    ledger_id: str
    entries: list[list[str]]
    reason: SuppressReason


class AddedRefs(TypedDict):
    """References that an earlier projection did not have; recalled ones in groups."""

    add: list[ListedRefMapping] | list[RefGroup]


class EligibleEdits(TypedDict):
    """The eligible list as a change of an earlier projection's."""

    base: NotRequired[RefMapping]
    """The earlier projection; absent: all references are new."""
    edits: list[list[int] | AddedRefs]
    """In order: a run `[first, end)` of the base's positions that is kept, or references that are new."""


class RecalledEdits(TypedDict):
    """The visible recalled items as a change of all that the base of the eligible list showed, sorted."""

    edits: list[list[int] | AddedRefs]


class VisiblePositions(TypedDict):
    """The visible list by positions in the eligible list."""

    eligible: Runs
    recalled: NotRequired[RecalledEdits | list[RefGroup] | list[ListedRefMapping]]
    """Absent: none, as in `SuppressedPositions`."""
    recent: NotRequired[Runs]
    """The positions among the recalled ones of those whose only reason is `RECENT`; absent: none, as before version 5."""


class SuppressedPositions(TypedDict):
    """The suppressed list by positions in the eligible list, one field for each reason."""

    rest: SuppressReason
    """The reason of all items that no other field names."""
    recalled: NotRequired[list[SuppressedGroup] | list[SuppressedRef]]
    DEFERRED: NotRequired[Runs]
    BUDGET_EVICTION: NotRequired[Runs]
    ERASED: NotRequired[Runs]
    UNSUPPORTED: NotRequired[Runs]


class SimilarityMapping(TypedDict):
    """The scores that a ranking took from embeddings."""

    model: str
    """The model of the vectors."""
    weight: float
    """What a score of 1,000 adds, as a share of the best score by words."""
    scores: Mapping[str, int]
    """By entry id of a message or a reply: thousandths, rounded; entries that are not named gained nothing."""
    without: int
    """Texts that had no vector."""
    problem: NotRequired[EmbeddingProblem]


class HistoryMapping(TypedDict):
    """The part of a projection that is shown as chat messages: the visible turns from `first` on."""

    first: RefMapping | None
    """The entry of the oldest shown message or reply; None: nothing is shown."""
    items: int
    """The shown messages and replies."""
    cut_by: NotRequired[int]
    """Tokens that were missing for all of the history, because other items took them; absent: 0."""


class ProjectionPayload(CommonPayload):
    """`PROJECTION_COMPUTED`: which entries a model may see, and why.

    Lists are a change of an earlier projection. Before version 5, recalled entries were groups of references; before version 4,
    a list of them; before version 3, lists of at most 16 eligible entries were written out.
    """

    overlay_type: Literal["PROJECTION_COMPUTED"]
    timestamp: str
    intent_id: str | None
    mode: ProjectionMode
    token_budget: int
    tokens_used: int
    stable_prefix_tokens: int
    stable_prefix_hash: str
    ruleset_hash: str
    flags: list[FlagMapping]
    authority: NotRequired[AuthorityMapping]
    """Left out of what a signature covers."""
    eligible_refs: list[ListedRefMapping] | EligibleEdits
    visible_refs: list[ListedRefMapping] | VisiblePositions
    suppressed_refs: list[SuppressedRef] | SuppressedPositions
    eligibility_reasons: Mapping[str, Sequence[EligibilityReason]]
    """By `{ledger_id}/{entry_id}`; of those that are not named, `*` stands for the eligible and `recalled` for the recalled."""
    proof_refs: list[ListedRefMapping]
    history: NotRequired[HistoryMapping]
    """Left out where all turns are shown in one text, as before version 4 of the policy."""
    similarity: NotRequired[SimilarityMapping]
    """Left out where no embeddings are configured, or nothing was there to compare."""


class ConflictFlagPayload(CommonPayload):
    """`CONFLICT_FLAG`: the Context Authority raised a flag, for example because two active intents compete."""

    overlay_type: Literal["CONFLICT_FLAG"]
    timestamp: str
    kind: FlagKind
    detail: str
    intent_id: str | None
    involved_refs: list[ListedRefMapping]
    proof_refs: list[ListedRefMapping]
    ruleset_hash: str


class ShadowEvent(TypedDict):
    """An entry that would have been written if the Context Authority were enforced."""

    entry_type: str
    entity_id: str
    payload: Mapping[str, object]


class ShadowDecisionPayload(CommonPayload):
    """`INTENT_SHADOW_DECISION`: what `enforce` would have done with the intents, decided in `shadow`."""

    step: TransitionStep
    decided_after: str
    """Entry id in HO2m of the session's last entry at that moment."""
    action: TransitionAction
    reason: str
    intent_id: str | None
    events: list[ShadowEvent] | Sealed
    ruleset_hash: str
