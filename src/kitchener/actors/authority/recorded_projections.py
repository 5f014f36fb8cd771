"""Rebuilds the last projection of each intent of a session from the context ledger.

A projection is recorded as edits of the intent's previous projection. This module applies the edits in the order of the
ledger, so that one pass over the projections is enough.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from kitchener.context import Base, base_ref
from kitchener.context.projection.ref_lists import apply_edits, read_refs
from kitchener.errors import origin_of
from kitchener.ledger import StoredEntry
from kitchener.records.ref import Ref

logger = structlog.get_logger(__name__)


class _Last(NamedTuple):
    ref: Ref
    eligible: list[Ref]


class RecordedBases:
    """The last projection of each intent, with its eligible items. Reads projections in the order of the ledger."""

    def __init__(self) -> None:
        self._last: dict[str | None, _Last] = {}

    def read(self, entry: StoredEntry) -> None:
        """Reads a `PROJECTION_COMPUTED` entry. If its edits do not apply, the intent's next projection is written in full."""
        intent_id = entry.payload.get("intent_id")
        try:
            eligible = self._eligible(entry.payload, self._last.get(intent_id))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            logger.warning("projection cannot be followed", entry_id=entry.entry_id, error=origin_of(error))
            self._last.pop(intent_id, None)
        else:
            self._last[intent_id] = _Last(entry.ref, eligible)

    def all(self) -> dict[str | None, Base]:
        """The last projection of each intent, as a base for the next one."""
        return {intent_id: Base(last.ref, tuple(last.eligible)) for intent_id, last in self._last.items()}

    def _eligible(self, payload: Mapping[str, Any], last: _Last | None) -> list[Ref]:
        base = base_ref(payload)
        if base is None:
            return list(read_refs(payload["eligible_refs"]))
        if last is None or last.ref != base:
            raise ValueError(f"it refers to {base.entry_id}, which is not the one before it")
        return _changed(last.eligible, payload["eligible_refs"]["edits"])


def _changed(before: list[Ref], edits: Sequence[Any]) -> list[Ref]:
    """Applies edits to a list of references. If they only append, `before` itself is extended and returned."""
    if edits and edits[0] == [0, len(before)] and all(isinstance(step, Mapping) for step in edits[1:]):
        for step in edits[1:]:
            before += read_refs(step["add"])
        return before
    return list(apply_edits(edits, before))
