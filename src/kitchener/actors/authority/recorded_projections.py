"""Rebuilds the last projection of each intent of a session from the context ledger.

A projection is recorded as edits of the intent's previous projection. This module applies the edits in the order of the
ledger, so that one pass over the projections is enough.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kitchener.context import BaseProjection
from kitchener.context.projection.ref_lists import apply_edits, read_refs
from kitchener.ledger import StoredEntry
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of
from kitchener.records import events
from kitchener.records.entries import AddedRefs, ProjectionPayload
from kitchener.records.ref import Ref

logger = get_logger(__name__)


class _RecordedBase(NamedTuple):
    ref: Ref
    eligible: list[Ref]


class RecordedProjections:
    """The last projection of each intent, with its eligible items. Reads projections in the order of the ledger."""

    def __init__(self) -> None:
        self._last: dict[str | None, _RecordedBase] = {}

    def read(self, entry: StoredEntry) -> None:
        """Reads a `PROJECTION_COMPUTED` entry. If its edits do not apply, the intent's next projection names no base."""
        payload = events.read_as(ProjectionPayload, entry)
        intent_id = payload.get("intent_id")
        try:
            eligible = self._eligible(payload, self._last.get(intent_id))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            logger.warning("projection cannot be followed", entry_id=entry.entry_id, error=origin_of(error))
            self._last.pop(intent_id, None)
        else:
            self._last[intent_id] = _RecordedBase(entry.ref, eligible)

    def all(self) -> dict[str | None, BaseProjection]:
        """The last projection of each intent, as a base for the next one."""
        return {intent_id: BaseProjection(last.ref, tuple(last.eligible)) for intent_id, last in self._last.items()}

    def _eligible(self, payload: ProjectionPayload, last: _RecordedBase | None) -> list[Ref]:
        eligible = payload["eligible_refs"]
        if isinstance(eligible, list):
            return list(read_refs(eligible))
        if "base" not in eligible:
            return list(apply_edits(eligible["edits"], ()))
        base = Ref.from_mapping(eligible["base"])
        if last is None or last.ref != base:
            raise ValueError(f"it refers to {base.entry_id}, which is not the one before it")
        return _changed(last.eligible, eligible["edits"])


def _changed(before: list[Ref], edits: Sequence[list[int] | AddedRefs]) -> list[Ref]:
    """Applies edits to a list of references. If they only append, `before` itself is extended and returned."""
    if edits and edits[0] == [0, len(before)]:
        added = [step for step in edits[1:] if not isinstance(step, list)]
        if len(added) == len(edits) - 1:
            for step in added:
                before += read_refs(step["add"])
            return before
    return list(apply_edits(edits, before))
