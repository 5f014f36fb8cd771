"""Defines the protocols through which the rest of Kitchener uses ledgers: `ReadableLedger`, `Ledger` and `LedgerGroup`.

`LedgerReader`, `LedgerClient` and `Ledgers` satisfy them with files; a replay satisfies them with recorded entries. Method
documentation is in `LedgerClient` and `Ledgers`.
"""

from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypedDict, Unpack

from kitchener.canonical import NOTHING, Opening
from kitchener.config import LedgerConfig
from kitchener.ids import EntryId
from kitchener.ledger.format.lines import LedgerEntry, StoredEntry
from kitchener.records.ref import Ref


class ReadConditions(TypedDict, total=False):
    """The conditions of a read; `LedgerReads.read` documents them. A condition that is missing or None excludes no entry."""

    session_id: str | None
    entity_id: str | None
    entry_type: str | tuple[str, ...] | None
    key: str | None
    after_seq: int | None
    up_to_seq: int | None
    limit: int | None


class ReadableLedger(Protocol):
    """A ledger that can be read."""

    @property
    def ledger_id(self) -> str:
        """The name by which references find the ledger, such as `HO2M:ADMIN`."""
        ...

    @property
    def position(self) -> int:
        """Number of the last entry that a read can return."""
        ...

    def read(self, **conditions: Unpack[ReadConditions]) -> AsyncIterator[StoredEntry]:
        """The entries that meet all conditions, ascending."""
        ...

    async def last(self, *, session_id: str | None = None, key: str | None = None, limit: int = 1) -> list[StoredEntry]:
        """The newest entries of a session, of a key, or of the whole ledger, ascending."""
        ...

    async def last_of(self, keys: Iterable[str]) -> dict[str, StoredEntry]:
        """The newest entry of each key, by key."""
        ...

    async def known_sessions(self, session_ids: Iterable[str]) -> set[str]:
        """The sessions among these that have entries."""
        ...

    async def known_keys(self, keys: Iterable[str]) -> set[str]:
        """The keys among these that have entries."""
        ...


class Ledger(ReadableLedger, Protocol):
    """A ledger that can be read and appended to."""

    @property
    def config(self) -> LedgerConfig:
        """Limits of an entry."""
        ...

    @property
    def last_timestamp(self) -> str:
        """ISO time of the last entry."""
        ...

    async def write(self, entry: LedgerEntry, *, expected_head: EntryId | None = None) -> Ref:
        """Appends an entry and returns its reference."""
        ...

    async def write_all(self, entries: Sequence[LedgerEntry], *, expected_head: EntryId | None = None) -> list[StoredEntry]:
        """Appends entries in one commit and returns them."""
        ...

    async def commit(self) -> None:
        """Returns when everything written so far is durable."""
        ...

    def watch(self, session_id: str, entries: list[StoredEntry] | None = None) -> AbstractContextManager[list[StoredEntry]]:
        """A list that receives every entry of the session as it is written, until the block ends."""
        ...

    def content_digest(self, subject_id: str, data: bytes, opening: Opening = NOTHING) -> str:
        """The digest of some content; keyed if content is sealed."""
        ...


class LedgerGroup(Protocol):
    """The three ledgers of one agent class, committed together."""

    @property
    def ho1m(self) -> Ledger:
        """Every model and tool call."""
        ...

    @property
    def ho2m(self) -> Ledger:
        """The supervisor's ledger and commit record."""
        ...

    @property
    def context(self) -> Ledger:
        """Projections and flags."""
        ...

    @property
    def is_sole_writer(self) -> bool:
        """Whether only this process writes these ledgers; then cached facts about them stay valid until it writes."""
        ...

    def commit(self) -> Awaitable[None]:
        """Returns when everything written so far to any of the ledgers is durable."""
        ...

    def request_commit(self) -> None:
        """Requests a commit within `linger_ms`, or with the next `commit`, and does not wait for it."""
        ...

    def enter_turn(self) -> None:
        """Counts a turn that begins."""
        ...

    def leave_turn(self) -> None:
        """Counts a turn that has ended."""
        ...

    def covers(self, ledgers: Iterable[Ledger]) -> bool:
        """Whether a commit covers all of these ledgers."""
        ...

    def positions(self) -> dict[str, int]:
        """The number of the last entry of each ledger, by ledger id."""
        ...
