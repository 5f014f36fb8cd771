"""Restores the ledgers of an imported session as its turns read them in their own root.

An import brought the session's entries and all others that its turns could read, each with its original number. A replay of
the imported turns reads these entries only, because the turns did not see the other entries of this root.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.ledger.format.imported import ImportedEntry, at_origin
from kitchener.ledger.format.lines import START, IndexKeys, Mark
from kitchener.ledger.index.query import EntrySearch, Query
from kitchener.ledger.reads import LedgerReads, Snapshot
from kitchener.memory.subject_cache import OVERLAYS, SIGNALS, overlay_keys, signal_keys
from kitchener.records.entries import ImportedPayload, payload_as
from kitchener.records.events import IMPORTED_TYPES
from kitchener.records.index_keys import imported_key, index_keys
from kitchener.replaying.on_record.recorded_ledgers import RecordedLedgers


async def ledgers_before_import(recorded: RecordedLedgers, session_id: str) -> RecordedLedgers | None:
    """The ledgers that an imported session had before its import; None: the session was not imported.

    Raises:
        LedgerDamaged: a line is not what was written
    """
    ho2m = recorded.readers.get(recorded.ho2m)
    if ho2m is None or not [each async for each in ho2m.read(key=imported_key(session_id), limit=1)]:
        return None
    keys: dict[str, IndexKeys] = {recorded.ho2m: index_keys, SIGNALS: signal_keys, OVERLAYS: overlay_keys}
    found: dict[str, LedgerReader] = {}
    for ledger_id, reader in recorded.readers.items():
        holders = await _holders(reader, session_id, is_keyed=ledger_id in keys)
        found[ledger_id] = _ImportedReader(reader, holders, keys.get(ledger_id), recorded)
    return replace(recorded, readers=found)


async def _holders(reader: LedgerReader, session_id: str, *, is_keyed: bool) -> list[StoredEntry]:
    """The entries of a ledger that hold an entry of the import, in the order of the ledger."""
    found: dict[int, StoredEntry] = {}
    reads = [reader.read(session_id=session_id), *([reader.read(key=imported_key(session_id))] if is_keyed else ())]
    for read in reads:
        async for entry in read:
            holder = entry.holder if isinstance(entry, ImportedEntry) else entry
            is_import = holder.entry_type in IMPORTED_TYPES
            if is_import and payload_as(ImportedPayload, holder.payload).get("import_of") == session_id:
                found[holder.seq] = holder
    return [found[seq] for seq in sorted(found)]


class _ImportedReader(LedgerReader):
    """The imported entries of one ledger, with the numbers that they had."""

    def __init__(
        self, reader: LedgerReader, holders: Sequence[StoredEntry], keys: IndexKeys | None, recorded: RecordedLedgers
    ) -> None:
        LedgerReads.__init__(self, reader.path, keys)  # no file is read, so there is none to hand to the reader
        self._id = reader.ledger_id
        opener = recorded.sealer.open if recorded.sealer is not None else None
        entries = (at_origin(holder, keys, opener) for holder in holders)
        self._entries = sorted(entries, key=lambda entry: entry.seq)

    @property
    def ledger_id(self) -> str:
        return self._id

    @property
    def position(self) -> int:
        """Number of the last imported entry."""
        return self._entries[-1].seq if self._entries else 0

    def _view(self, up_to_seq: int = 0) -> Callable[[], Snapshot]:
        snapshot = Snapshot(_NoFiles(), START, self._entries)
        return lambda: snapshot


class _NoFiles(EntrySearch):
    """Finds nothing: all entries of the snapshot are in memory."""

    def __init__(self) -> None:
        pass

    def search(self, query: Query, end: Mark) -> Iterator[StoredEntry]:
        return iter(())

    def of_keys(self, keys: Iterable[str], end: Mark) -> dict[str, list[StoredEntry]]:
        return {key: [] for key in keys}

    def newest(self, query: Query, end: Mark, limit: int) -> list[StoredEntry]:
        return []

    def known(self, queries: object, end: Mark) -> list[Query]:
        return []
