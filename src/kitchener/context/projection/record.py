"""Turns projections and conflicts into the payloads of `PROJECTION_COMPUTED` and `CONFLICT_FLAG`, and reads projections back.

The eligible references are written as a difference from an earlier projection of the session, its *base*: runs of kept
positions, and new references. Without a base, all are new. Visible and suppressed items are given by their positions in the
eligible list; visible recalled ones, such as the newest turns of other intents, as a difference from all that the base showed.
The size of an entry therefore grows neither with the length of the session nor with that of the shown history. Older versions
wrote short lists and recalled items out.
"""

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, MutableMapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, Literal, NamedTuple, cast, get_args

import orjson

from kitchener.canonical import digest
from kitchener.context.flags import Flag
from kitchener.context.fold.items import IN_INTENT, RECALLED, RECENT, Item, Reasons, place_of
from kitchener.context.projection.packer import PlacedItem
from kitchener.context.projection.projection import NOT_ADMITTED, Projection
from kitchener.context.projection.ref_lists import (
    apply_edits,
    edit_script,
    positions_of,
    read_refs,
    runs_of,
    written_edits,
)
from kitchener.context.projection.rendering import Rendering
from kitchener.records import events
from kitchener.records.entries import (
    AddedRefs,
    AuthorityMapping,
    CommonPayload,
    ConflictFlagPayload,
    EligibilityReason,
    EligibleEdits,
    HistoryMapping,
    ProjectionPayload,
    RecalledEdits,
    SuppressedGroup,
    SuppressedPositions,
    SuppressedRef,
    SuppressReason,
    VisiblePositions,
    payload_as,
)
from kitchener.records.ref import ListedRefMapping, Ref, RefGroup, refs_of

UNSIGNED: Final[AuthorityMapping] = {"tier": "HO2", "signer": None, "sig": None}
_SUPPRESS_REASONS: Final[Mapping[str, SuppressReason]] = {each: each for each in get_args(SuppressReason)}
_ALL: Final = "*"
_OF_RECALLED: Final = "recalled"
"""Stands for the recalled items that `eligibility_reasons` does not name."""
_VERSION: Final = events.VERSIONS[events.PROJECTION_COMPUTED]
_FLAG_VERSION: Final = events.VERSIONS[events.CONFLICT_FLAG]


class BaseProjection(NamedTuple):
    """A recorded projection to which a later one may refer: the last one of the same intent, or the session's last one."""

    ref: Ref
    """The projection's `PROJECTION_COMPUTED` entry."""
    head: tuple[Ref, ...]
    turns: Sequence[Item] = ()
    turn_count: int = 0
    shown: tuple[Ref, ...] = ()
    """All that it showed in full, eligible or recalled, as `as_shown` gives it."""

    @property
    def size(self) -> int:
        """Number of eligible references."""
        return len(self.head) + self.turn_count


class ProjectionLists(NamedTuple):
    """The lists of a recorded projection, written out."""

    eligible: tuple[Ref, ...] = ()
    """By tier and age."""
    visible: tuple[Ref, ...] = ()
    """Eligible items in the order of `eligible`, then recalled evidence."""
    suppressed: tuple[tuple[Ref, SuppressReason], ...] = ()
    """References with reasons, in the order of `visible`."""
    reasons: Mapping[str, Reasons] = {}
    """Why an item was eligible or recalled, by `{ledger_id}/{entry_id}`."""

    def why(self, ref: Ref) -> Reasons:
        """Why an item was eligible or recalled; empty: the projection does not name it."""
        return self.reasons.get(_key(ref), ())


def as_shown(visible: Iterable[Ref]) -> tuple[Ref, ...]:
    """What a projection showed in full, in the order in which a later one refers to it: entries of one ledger by age."""
    return tuple(sorted({*visible}))


def base_of(projection: Projection, ref: Ref) -> BaseProjection:
    """A projection that was just written, as the base of a later one."""
    head = tuple([each.item.ref for each in projection.head])
    shown = as_shown([each.item.ref for each in (*projection.head, *projection.placed) if each.form == "FULL"])
    return BaseProjection(ref, head, projection.turns, projection.turn_count, shown)


def base_of_lists(lists: ProjectionLists, ref: Ref) -> BaseProjection:
    """A projection that was read back, as the base of a later one."""
    return BaseProjection(ref, lists.eligible, shown=as_shown(lists.visible))


def lists_of(projection: Projection) -> ProjectionLists:
    """The lists that reading the recorded projection will give."""
    return ProjectionLists(
        tuple([item.ref for item in projection.eligible()]),
        tuple([each.item.ref for each in projection.visible]),
        tuple([(each.item.ref, each.reason or NOT_ADMITTED) for each in projection.suppressed()]),
        {_key(item.ref): item.reasons for item in (*projection.eligible(), *projection.recalled)},
    )


class _FullLists(CommonPayload):
    """The lists of a payload of an older version, which wrote short lists in full."""

    eligible_refs: list[ListedRefMapping]
    visible_refs: list[ListedRefMapping]
    suppressed_refs: list[SuppressedRef]
    eligibility_reasons: Mapping[str, Sequence[EligibilityReason]]


class _ListChanges(CommonPayload):
    """The lists of a payload, as changes of the base's lists."""

    eligible_refs: EligibleEdits
    visible_refs: VisiblePositions
    suppressed_refs: SuppressedPositions
    eligibility_reasons: Mapping[str, Sequence[EligibilityReason]]


# --- writing ---------------------------------------------------------------------------------------------------------------


def projection_payload(
    projection: Projection,
    rendering: Rendering,
    *,
    timestamp: str,
    turn_id: str | None,
    bases: Iterable[BaseProjection] = (),
    transition_refs: Iterable[Ref] = (),
    authority: AuthorityMapping = UNSIGNED,
    hashed: Callable[[bytes], str] = digest,
) -> ProjectionPayload:
    """The payload of `PROJECTION_COMPUTED`, ready for a ledger (references are JSON fragments).

    Args:
        projection: the decision
        rendering: the decision's text; the hash and size of its stable part are recorded
        timestamp: the turn's time
        turn_id: the turn; None: the projection belongs to no turn
        bases: earlier projections of the session, of which the lists may be a change, the most likely first
        transition_refs: the entries of this turn's intent transition
        authority: the signer
        hashed: the hash of content; keyed if content is sealed, because a short goal could be guessed
    """
    lists = _list_changes(projection, bases)
    payload: ProjectionPayload = {
        "v": _VERSION,
        "overlay_type": events.PROJECTION_COMPUTED,
        "timestamp": timestamp,
        "intent_id": projection.intent_id,
        "mode": projection.mode,
        "token_budget": projection.token_budget,
        "tokens_used": projection.tokens_used,
        "stable_prefix_tokens": rendering.stable_prefix_tokens,
        "stable_prefix_hash": hashed(rendering.stable_prefix.encode()),
        "ruleset_hash": projection.ruleset_hash,
        "flags": [
            {"kind": flag.kind, "details_ref": flag.details_ref.as_mapping() if flag.details_ref is not None else None}
            for flag in projection.flags
        ],
        "authority": authority,
        "eligible_refs": lists["eligible_refs"],
        "visible_refs": lists["visible_refs"],
        "suppressed_refs": lists["suppressed_refs"],
        "eligibility_reasons": lists["eligibility_reasons"],
        "proof_refs": [ref.as_listed() for ref in _proofs(projection, transition_refs)],
    }
    if turn_id is not None:
        payload["turn_id"] = turn_id
    if projection.history is not None:
        payload["history"] = _history_mapping(projection.history, projection.cut_by)
    return payload


def _history_mapping(history: Sequence[PlacedItem], cut_by: int) -> HistoryMapping:
    found: HistoryMapping = {"first": history[0].item.ref.as_mapping() if history else None, "items": len(history)}
    if cut_by:
        found["cut_by"] = cut_by
    return found


def conflict_flag_payload(
    flag: Flag, *, timestamp: str, intent_id: str | None, ruleset_hash: str, proof_refs: Iterable[Ref] = ()
) -> ConflictFlagPayload:
    """The payload of `CONFLICT_FLAG`, ready for a ledger.

    Args:
        flag: the conflict
        timestamp: the turn's time
        intent_id: the active intent; None: there is none
        ruleset_hash: identity of the policy that raised it
        proof_refs: further entries that show it
    """
    own = (flag.details_ref,) if flag.details_ref is not None else ()
    return {
        "v": _FLAG_VERSION,
        "overlay_type": events.CONFLICT_FLAG,
        "timestamp": timestamp,
        "kind": flag.kind,
        "detail": flag.detail,
        "intent_id": intent_id,
        "involved_refs": [ref.as_listed() for ref in flag.involved_refs],
        "proof_refs": [ref.as_listed() for ref in dict.fromkeys((*own, *proof_refs))],
        "ruleset_hash": ruleset_hash,
    }


def _reasons(reasons: Reasons) -> Sequence[EligibilityReason]:
    return cast(Sequence[EligibilityReason], orjson.Fragment(orjson.dumps(reasons)))


def _key(ref: Ref) -> str:
    return f"{ref.ledger_id}/{ref.entry_id}"


def _proofs(projection: Projection, transition_refs: Iterable[Ref]) -> Iterable[Ref]:
    """The last life-cycle entry of each eligible item. Entries that are eligible themselves are left out."""
    changed = [each.item.proof for each in projection.head if each.item.proof != each.item.ref]
    return dict.fromkeys([*changed, *transition_refs])


def _fragment(edits: list[list[int] | AddedRefs]) -> list[list[int] | AddedRefs]:
    """Edits as a fragment of canonical JSON, which is not proven to be canonical again."""
    return cast(list[list[int] | AddedRefs], orjson.Fragment(orjson.dumps(edits, option=orjson.OPT_SORT_KEYS)))


def _group(ledger_id: str, refs: Iterable[Ref]) -> RefGroup:
    return {
        "ledger_id": ledger_id,
        "entries": cast(list[list[str]], orjson.Fragment(orjson.dumps([each[1:] for each in refs]))),
    }


def _groups(refs: Iterable[Ref]) -> list[RefGroup]:
    """References in their order, those of one ledger together while they follow each other."""
    return [_group(ledger_id, members) for ledger_id, members in groupby(refs, attrgetter("ledger_id"))]


def _suppressed_groups(evidence: Iterable[PlacedItem]) -> list[SuppressedGroup]:
    """As `_groups`, by ledger and reason."""
    return [
        {**_group(ledger_id, [each.item.ref for each in members]), "reason": reason}
        for (ledger_id, reason), members in groupby(evidence, lambda each: (each.item.ref[0], each.reason or NOT_ADMITTED))
    ]


_FEW: Final = 16
"""A change that adds so many references is short enough."""


class _Changes(NamedTuple):
    """The eligible and the visible recalled items as changes of a base."""

    base: BaseProjection
    eligible: list[list[int] | AddedRefs]
    recalled: list[list[int] | AddedRefs]
    added: int
    """Number of references that the base does not have."""


def _shortest(projection: Projection, recalled: Sequence[Ref], bases: Iterable[BaseProjection]) -> _Changes | None:
    """The shortest change; None: for each base, most references are new both in the eligible list and among the recalled.

    A later base is not read if an earlier one is good enough, because the lists of another intent are long.
    """
    found: _Changes | None = None
    for base in bases:
        eligible, added = _edits(projection, base)
        edits, recalled_added = written_edits(edit_script(base.shown, recalled), _groups) if recalled else ([], 0)
        is_mostly_kept = added * 2 <= len(projection.head) + projection.turn_count
        if is_mostly_kept or (recalled and recalled_added * 2 <= len(recalled)):
            changes = _Changes(base, eligible, edits, added + recalled_added)
            found = changes if found is None or changes.added < found.added else found
        if found is not None and found.added <= _FEW:
            break
    return found


def _list_changes(projection: Projection, bases: Iterable[BaseProjection]) -> _ListChanges:
    """The four lists, with the base that makes them shortest."""
    evidence = {item.ref for item in projection.recalled}
    items = [each.item for each in projection.placed if each.form == "FULL" and each.item.ref in evidence]
    recalled, recent = [item.ref for item in items], [n for n, item in enumerate(items) if item.reasons == RECENT]
    changes = _shortest(projection, recalled, bases)
    eligible: EligibleEdits
    recalled_shown: RecalledEdits | list[RefGroup]
    if changes is not None:
        eligible = {"base": changes.base.ref.as_mapping(), "edits": changes.eligible}
        recalled_shown = {"edits": _fragment(changes.recalled)}
    else:
        eligible = {"edits": written_edits([[item.ref for item in projection.eligible()]])[0]}
        recalled_shown = _groups(recalled)
    visible: list[int] = []
    suppressed: dict[Literal["DEFERRED", "BUDGET_EVICTION", "ERASED", "UNSUPPORTED"], list[int]] = {}
    for index, each in _indexed(projection, evidence):
        if each.form == "FULL":
            visible.append(index)
        elif each.reason is not None and each.reason != "LOW_URGENCY":
            suppressed.setdefault(each.reason, []).append(index)
    hidden: SuppressedPositions = {"rest": NOT_ADMITTED}
    if recalled_hidden := _suppressed_groups(projection.suppressed_evidence()):
        hidden["recalled"] = recalled_hidden
    for reason, indexes in suppressed.items():
        hidden[reason] = runs_of(indexes)
    shown: VisiblePositions = {"eligible": runs_of(visible)}
    if recalled:
        shown["recalled"] = recalled_shown
    if recent:
        shown["recent"] = runs_of(recent)
    return {
        "eligible_refs": eligible,
        "visible_refs": shown,
        "suppressed_refs": hidden,
        "eligibility_reasons": _named_reasons(projection, {recalled[n] for n in recent}),
    }


def _named_reasons(projection: Projection, recent: Container[Ref]) -> dict[str, Sequence[EligibilityReason]]:
    """Why items were eligible or recalled; the usual reason of either is written once, and that of `recent` ones not at all."""
    reasons: dict[str, Sequence[EligibilityReason]] = {_ALL: IN_INTENT}
    if projection.recalled:
        reasons[_OF_RECALLED] = RECALLED
    reasons |= {_key(each.item.ref): _reasons(each.item.reasons) for each in projection.head}
    others = [item for item in projection.recalled if item.reasons != RECALLED and item.ref not in recent]
    return reasons | {_key(item.ref): _reasons(item.reasons) for item in others}


def _indexed(projection: Projection, evidence: set[Ref]) -> Iterable[tuple[int, PlacedItem]]:
    """The packed eligible items with their positions among all eligible items, in order."""
    yield from enumerate(projection.head)
    turns, count, index, before = projection.turns, projection.turn_count, -1, len(projection.head)
    known = projection.positions
    for each in projection.placed:
        item = each.item
        if item.ref not in evidence:
            index += 1  # both are in order, and most shown turns are neighbours
            if index >= count or turns[index] is not item:
                found = known.get(item.entity_id)
                index = bisect_left(turns, item.place, index, count, key=place_of) if found is None else found
            yield before + index, each


def _edits(projection: Projection, base: BaseProjection) -> tuple[list[list[int] | AddedRefs], int]:
    """The edits from the base's eligible list to this one's, and the number of new references."""
    head = [each.item.ref for each in projection.head]
    if base.turns is projection.turns and base.turn_count <= projection.turn_count:
        # The common case: the same list, one or two turns longer. Its old part is not read.
        script = edit_script(base.head, head)
        if base.turn_count:
            script.append((len(base.head), base.size))
        script.append([item.ref for item in projection.turns[base.turn_count : projection.turn_count]])
    else:
        before = [*base.head, *[item.ref for item in base.turns[: base.turn_count]]]
        script = edit_script(before, [*head, *[item.ref for item in projection.turns[: projection.turn_count]]])
    return written_edits(script)


# --- reading ---------------------------------------------------------------------------------------------------------------


def base_ref(payload: Mapping[str, object]) -> Ref | None:
    """The projection that must be read before this one; None: it names none."""
    eligible = payload_as(ProjectionPayload, payload)["eligible_refs"]
    base = None if isinstance(eligible, list) else eligible.get("base")
    return None if base is None else Ref.from_mapping(base)


def read_lists(payload: Mapping[str, object], base: ProjectionLists | None = None) -> ProjectionLists:
    """The lists of a recorded projection of any version, written out.

    `base` holds those of the projection that `base_ref` names; None: it names none.

    Raises:
        ValueError: the payload refers to a base that is not given, or to positions that the base does not have
    """
    payload = events.read_payload(events.PROJECTION_COMPUTED, payload)
    if isinstance(payload["eligible_refs"], list):
        full = payload_as(_FullLists, payload)
        return ProjectionLists(
            read_refs(full["eligible_refs"]),
            read_refs(full["visible_refs"]),
            read_suppressed(full["suppressed_refs"]),
            _read_reasons(full["eligibility_reasons"]),
        )
    if base is None and (below := base_ref(payload)) is not None:
        raise ValueError(f"this projection is recorded as a change of {below}; read that one first")
    changes = payload_as(_ListChanges, payload)
    return _read_positions(
        changes, apply_edits(changes["eligible_refs"]["edits"], base.eligible if base is not None else ()), base
    )


def read_base(payload: Mapping[str, object], base: ProjectionLists | None = None) -> ProjectionLists:
    """The lists of a recorded projection that another one may be a change of, and no others; otherwise as `read_lists`."""
    payload = events.read_payload(events.PROJECTION_COMPUTED, payload)
    if isinstance(payload["eligible_refs"], list):
        full = payload_as(_FullLists, payload)
        return ProjectionLists(read_refs(full["eligible_refs"]), read_refs(full["visible_refs"]))
    changes, before = payload_as(_ListChanges, payload), base or ProjectionLists()
    eligible = apply_edits(changes["eligible_refs"]["edits"], before.eligible)
    visible = [eligible[n] for n in positions_of(changes["visible_refs"]["eligible"], len(eligible))]
    return ProjectionLists(eligible, (*visible, *read_recalled(changes["visible_refs"], _shown_by(base))))


def read_recalled(visible: VisiblePositions, shown: Callable[[], Sequence[Ref]]) -> tuple[Ref, ...]:
    """The recalled items among the visible ones of a payload; `shown` gives all that its base showed (`as_shown`)."""
    recalled = visible.get("recalled", [])
    return read_refs(recalled) if isinstance(recalled, list) else apply_edits(recalled["edits"], shown())


def _shown_by(base: ProjectionLists | None) -> Callable[[], Sequence[Ref]]:
    return lambda: as_shown(base.visible) if base is not None else ()


def read_chain(
    payload: Mapping[str, object], known: MutableMapping[Ref, ProjectionLists], find: Callable[[Ref], Mapping[str, object]]
) -> ProjectionLists:
    """The lists of a recorded projection. Adds the lists of its bases to `known`."""
    chain, ref = [], base_ref(payload)
    while ref is not None and ref not in known:
        chain.append((ref, find(ref)))
        ref = base_ref(chain[-1][1])
    lists = known[ref] if ref is not None else None
    for below, earlier in reversed(chain):
        lists = known[below] = read_lists(earlier, lists)
    return read_lists(payload, lists)


def _read_positions(payload: _ListChanges, eligible: tuple[Ref, ...], base: ProjectionLists | None) -> ProjectionLists:
    shown, hidden = payload["visible_refs"], payload["suppressed_refs"]
    visible = positions_of(shown["eligible"], len(eligible))
    reason_of: dict[int, SuppressReason] = {}
    for name, runs in hidden.items():
        if (reason := _SUPPRESS_REASONS.get(name)) is not None and isinstance(runs, list):
            reason_of |= dict.fromkeys(positions_of(runs, len(eligible)), reason)
    seen = set(visible)
    rest = [(ref, reason_of.get(n, hidden["rest"])) for n, ref in enumerate(eligible) if n not in seen]
    named = _read_reasons(payload["eligibility_reasons"])
    common, of_recalled = named.pop(_ALL), named.pop(_OF_RECALLED, None)
    recalled_shown, recalled_hidden = read_recalled(shown, _shown_by(base)), read_suppressed(hidden.get("recalled", ()))
    reasons = {_key(ref): common for ref in eligible}
    if of_recalled is not None:
        reasons |= {_key(ref): of_recalled for ref in (*recalled_shown, *[ref for ref, _ in recalled_hidden])}
        reasons |= {_key(recalled_shown[n]): RECENT for n in positions_of(shown.get("recent", []), len(recalled_shown))}
    return ProjectionLists(
        eligible,
        (*[eligible[n] for n in visible], *recalled_shown),
        (*rest, *recalled_hidden),
        reasons | named,
    )


def read_suppressed(values: Iterable[SuppressedGroup | SuppressedRef]) -> tuple[tuple[Ref, SuppressReason], ...]:
    """Suppressed references and their reasons as a payload contains them, one by one or in groups."""
    found: list[tuple[Ref, SuppressReason]] = []
    for each in values:
        refs = [Ref.from_mapping(each["ref"])] if "ref" in each else refs_of(each)
        found += [(ref, each["reason"] or NOT_ADMITTED) for ref in refs]
    return tuple(found)


def _read_reasons(reasons: Mapping[str, Sequence[EligibilityReason]]) -> dict[str, Reasons]:
    return {key: tuple(each) for key, each in reasons.items()}
