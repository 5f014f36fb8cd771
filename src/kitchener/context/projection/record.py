"""Turns a projection into the payloads of `PROJECTION_COMPUTED` and `CONFLICT_FLAG`, and reads such payloads back.

A short list of references is written out. A long list is written as a difference from an earlier projection of the session,
its *base*: runs of kept positions, and new references. Visible and suppressed items are then given by their positions in the
eligible list. The size of an entry therefore does not grow with the length of the session.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

import orjson

from kitchener.canonical import digest
from kitchener.context.flags import Flag
from kitchener.context.fold.items import IN_INTENT, Item
from kitchener.context.projection.packing import Placed
from kitchener.context.projection.projection import NOT_ADMITTED, Projection
from kitchener.context.projection.ref_lists import apply_edits, edit_script, positions_of, read_refs, runs_of, written_edits
from kitchener.context.projection.rendering import Rendering
from kitchener.records.ref import Ref

_place_of: Final = attrgetter("place")

OVERLAY_TYPE: Final = "PROJECTION"
MAX_WRITTEN_OUT: Final = 16
"""Eligible references up to which the lists are written out. A choice of form: it changes no decision."""
UNSIGNED: Final[Mapping[str, Any]] = {"tier": "HO2", "signer": None, "sig": None}
_ALL: Final = "*"


class Base(NamedTuple):
    """A recorded projection to which a later one may refer. Take the last one of the same intent, else the last one."""

    ref: Ref
    """Its `PROJECTION_COMPUTED` entry."""
    head: tuple[Ref, ...]
    turns: Sequence[Item] = ()
    turn_count: int = 0

    @property
    def size(self) -> int:
        """References that were eligible in it."""
        return len(self.head) + self.turn_count


class ProjectionLists(NamedTuple):
    """What a recorded projection says about every item, written out."""

    eligible: tuple[Ref, ...] = ()
    """By tier and age."""
    visible: tuple[Ref, ...] = ()
    """What is eligible in the same order, then recalled evidence."""
    suppressed: tuple[tuple[Ref, str], ...] = ()
    """With the reason; in the same order."""
    reasons: Mapping[str, tuple[str, ...]] = {}
    """Why it was eligible or recalled, by `{ledger_id}/{entry_id}`."""


def base_of(projection: Projection, ref: Ref) -> Base:
    """What a later projection may refer to, of one that was just written."""
    return Base(ref, tuple([each.item.ref for each in projection.head]), projection.turns, projection.turn_count)


def base_of_lists(lists: ProjectionLists, ref: Ref) -> Base:
    """The same of one that was read back."""
    return Base(ref, lists.eligible)


def lists_of(projection: Projection) -> ProjectionLists:
    """What reading the recorded projection will give."""
    return ProjectionLists(
        tuple([item.ref for item in projection.eligible()]),
        tuple([each.item.ref for each in projection.visible]),
        tuple([(each.item.ref, each.reason or NOT_ADMITTED) for each in projection.suppressed()]),
        {_key(item.ref): item.reasons for item in (*projection.eligible(), *projection.recalled)},
    )


# --- writing ---------------------------------------------------------------------------------------------------------------


def projection_payload(
    projection: Projection,
    rendering: Rendering,
    *,
    timestamp: str,
    turn_id: str | None,
    base: Base | None = None,
    transition_refs: Iterable[Ref] = (),
    authority: Mapping[str, Any] = UNSIGNED,
    hashed: Callable[[bytes], str] = digest,
) -> dict[str, Any]:
    """The payload of `PROJECTION_COMPUTED`, ready for a ledger (references are JSON fragments).

    Args:
        projection: the decision
        rendering: its text, of which the stable part is noted
        timestamp: the turn's time
        turn_id: the turn; None where somebody only looks at a session
        base: an earlier projection of the session, if there is one
        transition_refs: the entries of this turn's intent transition
        authority: who signed it
        hashed: the hash of content; keyed where content is sealed, since a short goal could be guessed
    """
    lists = _changed_lists(projection, base) if base is not None else None
    return {
        "overlay_type": OVERLAY_TYPE,
        "timestamp": timestamp,
        "intent_id": projection.intent_id,
        "turn_id": turn_id,
        "mode": projection.mode,
        "token_budget": projection.token_budget,
        "tokens_used": projection.tokens_used,
        "stable_prefix_tokens": rendering.stable_prefix_tokens,
        "stable_prefix_hash": hashed(rendering.stable_prefix.encode()),
        "ruleset_hash": projection.ruleset_hash,
        "flags": [
            {"kind": flag.kind, "details_ref": _json(flag.details_ref) if flag.details_ref is not None else None}
            for flag in projection.flags
        ],
        "authority": dict(authority),
        **(lists or _written_out(projection)),
        "proof_refs": [_json(ref) for ref in _proofs(projection, transition_refs, is_short=lists is None)],
    }


def conflict_flag_payload(
    flag: Flag, *, timestamp: str, intent_id: str | None, ruleset_hash: str, proof_refs: Iterable[Ref] = ()
) -> dict[str, Any]:
    """The payload of `CONFLICT_FLAG`, ready for a ledger.

    Args:
        flag: what to look at
        timestamp: the turn's time
        intent_id: the active intent, if there is one
        ruleset_hash: of the ruleset that raised it
        proof_refs: further entries that show it
    """
    own = (flag.details_ref,) if flag.details_ref is not None else ()
    return {
        "timestamp": timestamp,
        "kind": flag.kind,
        "detail": flag.detail,
        "intent_id": intent_id,
        "involved_refs": [ref.as_json() for ref in flag.involved_refs],
        "proof_refs": [ref.as_json() for ref in dict.fromkeys((*own, *proof_refs))],
        "ruleset_hash": ruleset_hash,
    }


@lru_cache(4_096)
def _json(ref: Ref) -> orjson.Fragment:
    """A reference as JSON. Kept, because most of them stand in three lists, and again in the next projection."""
    return ref.as_json()


def _key(ref: Ref) -> str:
    return f"{ref.ledger_id}/{ref.entry_id}"


def _proofs(projection: Projection, transition_refs: Iterable[Ref], *, is_short: bool) -> Iterable[Ref]:
    """The last life-cycle entry of what is eligible. In a long list, an entry that is eligible itself proves itself."""
    if is_short:
        return dict.fromkeys([*[item.proof for item in projection.eligible()], *transition_refs])
    changed = [each.item.proof for each in projection.head if each.item.proof != each.item.ref]
    return dict.fromkeys([*changed, *transition_refs])


def _written_out(projection: Projection) -> dict[str, Any]:
    every = [*projection.eligible()]
    return {
        "eligible_refs": [_json(item.ref) for item in every],
        "visible_refs": [_json(each.item.ref) for each in projection.visible],
        "suppressed_refs": [_suppressed(each) for each in projection.suppressed()],
        "eligibility_reasons": {_key(item.ref): item.reasons for item in (*every, *projection.recalled)},
    }


def _suppressed(placed: Placed) -> dict[str, Any]:
    return {"ref": _json(placed.item.ref), "reason": placed.reason}


def _changed_lists(projection: Projection, base: Base) -> dict[str, Any] | None:
    """The four lists in the short form, or None where writing them out is no longer."""
    size = len(projection.head) + projection.turn_count
    if size <= MAX_WRITTEN_OUT:
        return None
    edits, added = _edits(projection, base)
    if added * 2 > size:
        return None
    evidence = {item.ref for item in projection.recalled}
    visible: list[int] = []
    suppressed: dict[str, list[int]] = {}
    for index, each in _indexed(projection, evidence):
        if each.form == "FULL":
            visible.append(index)
        elif each.reason is not None and each.reason != NOT_ADMITTED:
            suppressed.setdefault(each.reason, []).append(index)
    recalled_visible = [each.item.ref for each in projection.placed if each.form == "FULL" and each.item.ref in evidence]
    named = (*[each.item for each in projection.head], *projection.recalled)
    return {
        "eligible_refs": {"base": base.ref.as_json(), "edits": edits},
        "visible_refs": {"eligible": runs_of(visible), "recalled": [ref.as_json() for ref in recalled_visible]},
        "suppressed_refs": {
            "rest": NOT_ADMITTED,
            **{reason: runs_of(indexes) for reason, indexes in suppressed.items()},
            "recalled": [_suppressed(each) for each in projection.suppressed_evidence()],
        },
        "eligibility_reasons": {_ALL: IN_INTENT, **{_key(item.ref): item.reasons for item in named}},
    }


def _indexed(projection: Projection, evidence: set[Ref]) -> Iterable[tuple[int, Placed]]:
    """What was placed of the eligible items, with its position among them, in order."""
    yield from enumerate(projection.head)
    turns, count, index, before = projection.turns, projection.turn_count, -1, len(projection.head)
    known = projection.positions
    for each in projection.placed:
        item = each.item
        if item.ref not in evidence:
            index += 1  # both are in order, and most turns that are shown stand next to each other
            if index >= count or turns[index] is not item:
                found = known.get(item.entity_id)
                index = bisect_left(turns, item.place, index, count, key=_place_of) if found is None else found
            yield before + index, each


def _edits(projection: Projection, base: Base) -> tuple[list[Any], int]:
    """What makes the base's eligible list into this one's, and how many references are new."""
    head = [each.item.ref for each in projection.head]
    if base.turns is projection.turns and base.turn_count <= projection.turn_count:
        # The common case: the same list, a turn or two longer. Its old part is not looked at.
        script = edit_script(base.head, head)
        if base.turn_count:
            script.append((len(base.head), base.size))
        script.append([item.ref for item in projection.turns[base.turn_count : projection.turn_count]])
    else:
        before = [*base.head, *[item.ref for item in base.turns[: base.turn_count]]]
        script = edit_script(before, [*head, *[item.ref for item in projection.turns[: projection.turn_count]]])
    return written_edits(script)


# --- reading ---------------------------------------------------------------------------------------------------------------


def base_ref(payload: Mapping[str, Any]) -> Ref | None:
    """The projection that must be read first to read this one, or None."""
    eligible = payload["eligible_refs"]
    return Ref.from_mapping(eligible["base"]) if isinstance(eligible, Mapping) else None


def read_lists(payload: Mapping[str, Any], base: ProjectionLists | None = None) -> ProjectionLists:
    """The lists of a recorded projection, written out.

    Args:
        payload: of `PROJECTION_COMPUTED`, as it was read from a ledger
        base: the lists of the projection that `base_ref` names

    Raises:
        ValueError: the payload refers to a base that is not given, or to positions that the base does not have
    """
    eligible = payload["eligible_refs"]
    if not isinstance(eligible, Mapping):
        return ProjectionLists(
            read_refs(eligible),
            read_refs(payload["visible_refs"]),
            tuple([(Ref.from_mapping(each["ref"]), each["reason"]) for each in payload["suppressed_refs"]]),
            {key: tuple(reasons) for key, reasons in payload["eligibility_reasons"].items()},
        )
    if base is None:
        raise ValueError(f"this projection is recorded as a change of {base_ref(payload)}; read that one first")
    return _read_positions(payload, apply_edits(eligible["edits"], base.eligible))


def _read_positions(payload: Mapping[str, Any], eligible: tuple[Ref, ...]) -> ProjectionLists:
    shown, hidden = payload["visible_refs"], payload["suppressed_refs"]
    visible = positions_of(shown["eligible"], len(eligible))
    reason_of = {
        n: reason
        for reason, runs in hidden.items()
        if reason not in ("rest", "recalled")
        for n in positions_of(runs, len(eligible))
    }
    seen = set(visible)
    rest = [(ref, reason_of.get(n, hidden["rest"])) for n, ref in enumerate(eligible) if n not in seen]
    named = {key: tuple(reasons) for key, reasons in payload["eligibility_reasons"].items()}
    common = named.pop(_ALL)
    return ProjectionLists(
        eligible,
        (*[eligible[n] for n in visible], *read_refs(shown["recalled"])),
        (*rest, *[(Ref.from_mapping(each["ref"]), each["reason"]) for each in hidden["recalled"]]),
        {**{_key(ref): common for ref in eligible}, **named},
    )
