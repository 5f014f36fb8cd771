"""Opens the three ledgers of one agent class and commits them together, with HO2m as the commit record."""

from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Never

import anyio.to_thread

from kitchener.clock import Clock
from kitchener.config import LedgerConfig
from kitchener.errors import CallerError
from kitchener.ids import path_part
from kitchener.lanes.durations import DurationCounts
from kitchener.ledger.client import LedgerClient
from kitchener.ledger.protocols import Ledger
from kitchener.ledger.write.commit_group import CommitGroup, OnFailure
from kitchener.records.index_keys import index_keys
from kitchener.sealing import Sealer


class Ledgers:
    """The ledgers of one agent class, committed as a group.

    A commit of one member commits all. HO1m and context become durable first and HO2m last, so a durable `TURN_COMPLETED`
    never refers to an entry that is not durable.

    Args:
        ho1m: every model and tool call
        ho2m: the supervisor's ledger and commit record; its configuration decides when a round starts
        context: projections and flags
        also: ledgers shared with other agent classes, which a commit covers too
        on_failure: called when a commit failed, after which these ledgers take no more entries
    """

    ho1m: LedgerClient
    ho2m: LedgerClient
    context: LedgerClient
    is_sole_writer = True
    """Whether only this process writes these ledgers; then cached facts about them stay valid until it writes."""
    _members: tuple[LedgerClient, ...]
    _group: CommitGroup

    def __init__(
        self,
        ho1m: LedgerClient,
        ho2m: LedgerClient,
        context: LedgerClient,
        *,
        also: Iterable[LedgerClient] = (),
        on_failure: OnFailure | None = None,
    ) -> None:
        self.ho1m, self.ho2m, self.context = ho1m, ho2m, context
        shared = tuple(also)
        self._members = (ho1m, context, *shared, ho2m)
        self._group = CommitGroup(self._members, ho2m.config, on_failure)
        for member in self._members:
            member.join(self._group, is_shared=member in shared)

    def commit(self) -> Coroutine[object, object, None]:
        """Returns when everything written so far to any of the ledgers is durable; see `LedgerClient.commit`."""
        return self._group.commit()

    async def update_index(self) -> None:
        """Adds the durable entries to the indexes, so that a `LedgerReader` opened beside these ledgers scans little.

        Otherwise a client adds them only in large parts, because it has their positions in memory. A failed write of an
        index only slows reads.
        """
        for member in self._members:
            await anyio.to_thread.run_sync(member.storage.index_flushed)

    def request_commit(self) -> None:
        """Requests a commit within `linger_ms`, or with the next `commit`, and does not wait for it."""
        self._group.request()

    def enter_turn(self) -> None:
        """Counts a turn that begins: a commit round may linger for its entries."""
        self._group.enter_turn()

    def leave_turn(self) -> None:
        """Counts a turn that has ended: commit rounds no longer wait for it."""
        self._group.leave_turn()

    def covers(self, ledgers: Iterable[Ledger]) -> bool:
        """Whether a commit covers all of these ledgers."""
        return all(ledger in self._members for ledger in ledgers)

    def commit_times(self) -> DurationCounts:
        """How long the commit rounds of these ledgers took so far."""
        return self._group.rounds.statistics()

    @property
    def members(self) -> tuple[LedgerClient, ...]:
        """The ledgers in the order in which they become durable."""
        return self._members

    def positions(self) -> dict[str, int]:
        """The number of the last entry of each ledger, by ledger id."""
        return {member.ledger_id: member.position for member in self._members}


class LateLedgers(Ledgers):
    """Ledgers for objects that are built before the ledgers are open. Only `covers` works until `attach`.

    Args:
        also: ledgers shared with other agent classes, which a commit will cover too
    """

    def __init__(self, *, also: Iterable[LedgerClient] = ()) -> None:
        self._members = tuple(also)

    def __getattr__(self, name: str) -> Never:
        """Called only for what `attach` sets, while it is not there."""
        if name in ("ho1m", "ho2m", "context", "_group"):
            raise CallerError(
                "these ledgers are not open yet: they open with the first call of their agent class's supervisor, such as"
                " `await supervisor.start_session()`"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def attach(self, opened: Ledgers) -> None:
        """Makes these the open ledgers. May be called again after those were closed."""
        self.ho1m, self.ho2m, self.context = opened.ho1m, opened.ho2m, opened.context
        self._members, self._group = opened._members, opened._group


@asynccontextmanager
async def open_ledgers(  # noqa: PLR0913  paths and how to open them, all by keyword
    *,
    ho1m: Path,
    ho2m: Path,
    context: Path,
    agent_class: str,
    config: LedgerConfig | None = None,
    clock: Clock | None = None,
    index_dir: Path | None = None,
    sealer: Sealer | None = None,
    also: Iterable[LedgerClient] = (),
    on_failure: OnFailure | None = None,
) -> AsyncIterator[Ledgers]:
    """Opens the ledgers of an agent class, as one commit group, until the block ends. Raises as `LedgerClient.open`.

    Args:
        ho1m, ho2m, context: the files of the three ledgers
        agent_class: owner of the ledgers; their ids are `HO1M:<class>` and so on, with the class percent-encoded
        config, clock, index_dir, sealer: as in `LedgerClient.open`
        also: open ledgers shared with other agent classes, which a commit covers too
        on_failure: called when a commit failed, after which these ledgers take no more entries
    """
    part = path_part(agent_class)
    opened = partial(LedgerClient.open, config=config, clock=clock, index_dir=index_dir, sealer=sealer)
    async with (
        opened(ho1m, ledger_id=f"HO1M:{part}") as ho1m_client,
        opened(context, ledger_id=f"CONTEXT:{part}") as context_client,
        opened(ho2m, ledger_id=f"HO2M:{part}", index_keys=index_keys) as ho2m_client,
    ):
        yield Ledgers(ho1m_client, ho2m_client, context_client, also=also, on_failure=on_failure)
