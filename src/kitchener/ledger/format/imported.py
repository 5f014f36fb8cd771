"""Turns an entry that contains an entry of another root into the contained entry, as it was written there.

The line of the ledger, with its number, hashes and chain, stays that of the outer entry. Only readers get the contained one. A
session that was imported twice is contained twice. `docs/sessions.md` explains imports.
"""

from collections.abc import Mapping

from kitchener.canonical import canonical_bytes, digest
from kitchener.ledger.format.lines import BadLine, IndexKeys, Opener, StoredEntry, make_entry, other_bytes
from kitchener.records.entries import ImportedPayload, ImportOrigin, payload_as
from kitchener.records.events import ENTRY_IMPORTED, IMPORTED_TYPES


class ImportedEntry(StoredEntry):
    """An entry of another root. `ref`, `timestamp` and `body` are from that root; `seq` is its number in this ledger."""

    __slots__ = ("holder",)

    holder: StoredEntry
    """The entry of this ledger that contains it."""


def as_read(entry: StoredEntry, opener: Opener | None) -> StoredEntry:
    """The entry that a reader gets: the contained one for `ENTRY_IMPORTED`, the entry itself for all other types.

    Raises:
        BadLine: the held entry does not have the hash that its origin names
    """
    holder = entry
    while entry.entry_type == ENTRY_IMPORTED:
        entry = _imported_entry(entry, opener, holder)
    return entry


def innermost(entry: StoredEntry) -> StoredEntry:
    """The entry that was written first, even if it was imported for the replay only. Raises as `as_read`."""
    while entry.entry_type in IMPORTED_TYPES:
        entry = _imported_entry(entry, entry._opener, entry)
    return entry


def at_origin(holder: StoredEntry, index_keys: IndexKeys | None, opener: Opener | None) -> StoredEntry:
    """The entry inside another one, as readers of its own root get it, with its number there.

    Raises:
        BadLine: as `as_read`
    """
    origin, _, body = _parts(holder)
    entry_hash = origin["entry_hash"].removeprefix("sha256:")
    made = make_entry(holder.ledger_id, origin["seq"], origin["entry_id"], entry_hash, body, index_keys, opener)
    return as_read(made, opener)


def _imported_entry(entry: StoredEntry, opener: Opener | None, holder: StoredEntry) -> ImportedEntry:
    origin, held, body = _parts(entry)
    made = ImportedEntry(
        entry.ledger_id,
        entry.seq,
        origin["entry_id"],
        origin["entry_hash"],
        str(held["entry_type"]),
        str(held["entity_id"]),
        str(held["timestamp"]),
        body,
        entry.session_id,
        entry.keys,
        opener,
    )
    made.holder = holder
    return made


def _parts(holder: StoredEntry) -> tuple[ImportOrigin, Mapping[str, object], bytes]:
    """Origin, body, and the stored bytes of the contained entry, whose hash was checked."""
    try:
        payload = payload_as(ImportedPayload, holder.payload)
        origin, held = payload["origin"], payload["entry"]
        body = canonical_bytes(held)
        if digest(body) != origin["entry_hash"]:
            raise BadLine("entry_hash", origin["entry_hash"], digest(body))
        if {"entity_id", "entry_type", "payload", "timestamp"} != held.keys() or type(origin["seq"]) is not int:
            raise KeyError
    except (KeyError, TypeError, AttributeError) as error:
        raise BadLine("entry", "an imported entry with its origin", other_bytes(len(holder.body))) from error
    return origin, held, body
