"""Reads recorded ledgers up to the current position of a replay, and compares each write with the next recorded entry.

Nothing is written. A write that equals the next recorded entry gets that entry's reference and time. Later entries
therefore depend on the recorded references, hashes and times.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Unpack

from kitchener.canonical import NOTHING, Opening
from kitchener.config import LedgerConfig
from kitchener.ids import EntryId
from kitchener.ledger import Ledger, LedgerEntry, LedgerReader, StoredEntry
from kitchener.ledger.protocols import ReadConditions
from kitchener.records.ref import Ref
from kitchener.replaying.tape import NO_TIME, Tape
from kitchener.sealing import Sealer


class ReplayLedger:
    """One ledger of a replay; satisfies `Ledger`.

    Args:
        ledger_id: the ledger's name
        reader: the recorded ledger; None: there is none
        tape: the session
        config: limits of an entry
        sealer: makes keyed digests if content is sealed
    """

    def __init__(
        self, ledger_id: str, reader: LedgerReader | None, tape: Tape, config: LedgerConfig, sealer: Sealer | None
    ) -> None:
        self.ledger_id, self._config = ledger_id, config
        self._reader, self._tape, self._sealer = reader, tape, sealer
        self._watchers: list[list[StoredEntry]] = []
        self.last_timestamp = NO_TIME
        """ISO time of the last entry written."""

    @property
    def config(self) -> LedgerConfig:
        """Limits of an entry; whether content is sealed is taken from the record."""
        if self._config.seal == self._tape.is_sealed:
            return self._config
        return self._config.model_copy(update={"seal": self._tape.is_sealed})

    @property
    def position(self) -> int:
        """Number of the last entry that the replay may see."""
        return self._tape.seen.get(self.ledger_id, 0)

    async def write(self, entry: LedgerEntry, *, expected_head: EntryId | None = None) -> Ref:
        """Compares an entry with the next recorded one and returns the recorded reference."""
        return self.keep(self._tape.take(self.ledger_id, entry))

    async def write_all(self, entries: Sequence[LedgerEntry], *, expected_head: EntryId | None = None) -> list[StoredEntry]:
        """Compares entries with the next recorded ones and returns the recorded ones."""
        taken = [self._tape.take(self.ledger_id, entry) for entry in entries]
        for stored in taken:
            self.keep(stored)
        return taken

    def keep(self, stored: StoredEntry) -> Ref:
        """Makes a recorded entry the last one written."""
        self.last_timestamp = stored.timestamp
        for watcher in self._watchers:
            watcher.append(stored)
        return stored.ref

    async def read(self, **conditions: Unpack[ReadConditions]) -> AsyncIterator[StoredEntry]:
        """The recorded entries that meet all conditions and that the replay may see; see `LedgerClient.read`."""
        up_to_seq = conditions.get("up_to_seq")
        end = self._present_end() if up_to_seq is None else min(up_to_seq, self.position)
        conditions["up_to_seq"] = end
        given = {name for name, value in conditions.items() if value is not None}
        if given == {"session_id", "up_to_seq"} and conditions["session_id"] == self._tape.session_id:
            for entry in self._tape.entries.get(self.ledger_id, ()):
                if entry.seq <= end:
                    yield entry
        elif self._reader is not None:
            async for entry in self._reader.read(**conditions):
                yield entry

    def _present_end(self) -> int:
        """Number of the last entry before the one that should be written next; it may belong to another session."""
        following = self._tape.next_of(self.ledger_id)
        return following.seq - 1 if following is not None else self.position

    async def last(self, *, session_id: str | None = None, key: str | None = None, limit: int = 1) -> list[StoredEntry]:
        """The newest recorded entries of a session or a key that the replay may see, ascending."""
        return [entry async for entry in self.read(session_id=session_id, key=key)][-limit:]

    async def last_of(self, keys: Iterable[str]) -> dict[str, StoredEntry]:
        """The newest recorded entry of each key that the replay may see, by key."""
        found = {key: await self.last(key=key) for key in keys}
        return {key: entries[-1] for key, entries in found.items() if entries}

    async def known_keys(self, keys: Iterable[str]) -> set[str]:
        """The keys among these with entries that the replay may see."""
        return {key for key in keys if await self.last(key=key)}

    async def known_sessions(self, session_ids: Iterable[str]) -> set[str]:
        """The empty set, because a replay creates no session ids."""
        return set()

    @contextmanager
    def watch(self, session_id: str, entries: list[StoredEntry] | None = None) -> Iterator[list[StoredEntry]]:
        """A list of the entries as they are written, until the block ends."""
        entries = [] if entries is None else entries
        self._watchers.append(entries)
        try:
            yield entries
        finally:
            self._watchers[:] = [each for each in self._watchers if each is not entries]

    def content_digest(self, subject_id: str, data: bytes, opening: Opening = NOTHING) -> str:
        """The digest of some content, as the recorded ledger computes it."""
        if self._sealer is None or not self._tape.is_sealed:
            return opening.digest(data)
        return self._sealer.content_digest(subject_id, data, opening)

    async def commit(self) -> None:
        """Does nothing, because nothing is written."""

    def request_commit(self) -> None:
        """Does nothing, because nothing is written."""


class ReplayLedgers:
    """The three ledgers of an agent class in a replay; satisfies `LedgerGroup`."""

    is_sole_writer = False
    """Other sessions' entries become visible as the replay advances."""

    def __init__(self, ho1m: ReplayLedger, ho2m: ReplayLedger, context: ReplayLedger, tape: Tape) -> None:
        self.ho1m, self.ho2m, self.context, self._tape = ho1m, ho2m, context, tape

    async def commit(self) -> None:
        """Does nothing, because nothing is written."""

    def request_commit(self) -> None:
        """Does nothing, because nothing is written."""

    def enter_turn(self) -> None:
        """Does nothing, because no commit waits for a turn."""

    def leave_turn(self) -> None:
        """Does nothing, because no commit waits for a turn."""

    def covers(self, ledgers: Iterable[Ledger]) -> bool:
        """True: nothing is written, so a commit leaves nothing out."""
        return True

    def positions(self) -> dict[str, int]:
        """The positions that the turn read at this point."""
        return dict(self._tape.positions)
