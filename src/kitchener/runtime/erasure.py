"""Erases a subject: destroys their key, withdraws what was learned from them, and puts both on record in every ledger.

The order is what makes it safe. A note in the keyring says that the erasure has begun, and from then on the key counts as
destroyed; then the key is destroyed; then the ledgers say so; then the note goes. So no record says erased while anything can
be read, and whatever is cut off is finished by the next start or the next call. Explained in `docs/erasure.md`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio.to_thread

from kitchener.actors.sessions.state import COSTS
from kitchener.clock import Clock, SystemClock, iso
from kitchener.config import RuntimeConfig
from kitchener.errors import ConfigError, UnknownSubject
from kitchener.ids import check_recorded_subject, memory_namespace, path_part
from kitchener.ledger import LedgerClient, LedgerEntry, StoredEntry
from kitchener.memory import HO3Memory
from kitchener.records import events
from kitchener.runtime.ledger_paths import memories, sealer_of, settings_of, supervisors_ledgers
from kitchener.sealing import MARK, Erasure, Keyring, Sealer, is_sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReport:
    """What became of an erasure."""

    subject_id: str
    """Who was erased."""
    key_id: str
    """The destroyed key."""
    erased_at: str
    """ISO time at which it began."""
    was_erased_before: bool
    """There was nothing left to do; the counts are those on record."""
    sessions: int = 0
    """Their conversations, with all agent classes."""
    turns: int = 0
    """The turns in them."""
    plain_turns: int = 0
    """Turns among them that were stored before there was a keyring: they cannot be erased, and stay readable."""
    artifacts: int = 0
    """Learned lines that had the subject as a source: withdrawn."""

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON types."""
        return asdict(self)


class Stores(NamedTuple):
    """Everything that has to do with a subject, open for writing."""

    keyring: Keyring
    supervisors: Mapping[str, LedgerClient]
    """HO2m by agent class."""
    memories: Sequence[HO3Memory]


def keyring_of(sealer: Sealer | None) -> Keyring:
    """The keyring of a configuration.

    Raises:
        ConfigError: there is none
    """
    if sealer is None:
        expected = (
            "is not set, so everything is stored plainly, in ledgers that nothing is ever taken out of: nobody can be erased"
        )
        raise ConfigError("[ledger]", "keyring", "", expected)
    return sealer.keyring


@asynccontextmanager
async def open_stores(
    config: RuntimeConfig,
    *,
    clock: Clock,
    sealer: Sealer | None,
    supervisors: Mapping[str, LedgerClient] | None = None,
    opened: Sequence[HO3Memory] = (),
) -> AsyncIterator[Stores]:
    """What an erasure needs; all that is not open yet is opened and locked until the block is left.

    Args:
        config: the whole configuration, its paths complete
        clock: the time of day
        sealer: of the configuration
        supervisors: the HO2m ledgers that are open; None: none is, and all that there are are opened
        opened: the memories that are open

    Raises:
        ConfigError: there is no keyring
        LedgerLocked: another process holds one of the ledgers
        LedgerDamaged, LedgerPathError: one of them cannot be opened
    """
    keyring, root = keyring_of(sealer), Path(config.plane_root)
    shared: dict[str, Any] = {"clock": clock, "sealer": sealer}
    unique = {memory.signals.path: memory for memory in opened}
    async with AsyncExitStack() as stack:
        found = dict(supervisors or {})
        for name, path in supervisors_ledgers(config).items() if supervisors is None else ():
            found[name] = await stack.enter_async_context(
                LedgerClient.open(
                    path,
                    ledger_id=f"HO2M:{path_part(name)}",
                    config=config.ledger,
                    index_dir=root / "index",
                    index_keys=events.index_keys,
                    **shared,
                )
            )
        all_memories = [*unique.values()]
        for where, own in memories(config).items():
            if where not in {path.parent for path in unique}:
                memory = HO3Memory.open(root, own, ledger_config=config.ledger, **shared)
                all_memories.append(await stack.enter_async_context(memory))
        yield Stores(keyring, found, all_memories)


async def erase_subject(
    subject_id: str,
    *,
    config: RuntimeConfig | str | Path | None = None,
    root: str | Path | None = None,
    clock: Clock | None = None,
) -> ErasureReport:
    """Erases a subject while no runtime has the ledgers open; a running one has `Runtime.erase_subject`.

    Cut off at any point, it is finished by calling it again, or by the next `open_runtime`.

    Args:
        subject_id: who
        config: path of a `kitchener.toml`, or a `RuntimeConfig`; None: the embedded defaults
        root: overrides `plane_root`
        clock: the time of day; None: the machine's

    Raises:
        ConfigError: a setting is wrong, or there is no keyring
        UnknownSubject: there is nothing of theirs that could be erased
        LedgerLocked: a process has the ledgers in use; nothing was erased
        LedgerError, SealingError: it could not be finished; try again
    """
    check_recorded_subject(subject_id)
    settings, clock = await anyio.to_thread.run_sync(settings_of, config, root), clock or SystemClock()
    async with open_stores(settings, clock=clock, sealer=sealer_of(settings.ledger)) as stores:
        return await erase(subject_id, stores, clock)


async def erase(subject_id: str, stores: Stores, clock: Clock) -> ErasureReport:
    """Erases a subject, or finishes what was begun. Everything is durable when it returns.

    Cut off at any point, it is finished by calling it again.

    Args:
        subject_id: who
        stores: where
        clock: the time of day

    Raises:
        UnknownSubject: there is nothing of theirs that could be erased
        SealingError: the key cannot be read or removed; nothing was erased
        LedgerWriteError: the key is destroyed, and it could not be recorded; try again
    """
    check_recorded_subject(subject_id)
    lost_kid = None
    if await anyio.to_thread.run_sync(stores.keyring.kid_of, subject_id) is None:
        lost_kid = await _find_lost_kid(subject_id, stores)
    begin = partial(stores.keyring.begin_erasure, subject_id, iso(clock.time_us()), lost_kid=lost_kid)
    begun = await anyio.to_thread.run_sync(begin)
    if begun is None:
        return await _erased_before(subject_id, stores)
    return await _finish(begun, stores)


async def _finish(begun: Erasure, stores: Stores) -> ErasureReport:
    """Destroys the key, records it, and takes the note away: in this order."""
    subject_id = begun.subject_id
    await anyio.to_thread.run_sync(stores.keyring.destroy, subject_id)
    held = {name: await _sessions_of(begun, ho2m) for name, ho2m in stores.supervisors.items()}
    sessions = [session for each in held.values() for session in each]
    namespaces = [memory_namespace(name, subject_id) for name in held]
    artifacts = 0
    for memory in stores.memories:
        erased = await memory.erase_subject(
            subject_id,
            key_id=begun.kid,
            erased_at=begun.begun_at,
            sessions=[each.session_id for each in sessions],
            namespaces=namespaces,
        )
        artifacts += erased.artifacts
    for name, ho2m in stores.supervisors.items():
        await _record(begun, ho2m, held[name], artifacts)
    await anyio.to_thread.run_sync(stores.keyring.end_erasure, subject_id)
    return ErasureReport(
        subject_id=subject_id,
        key_id=begun.kid,
        erased_at=begun.begun_at,
        was_erased_before=False,
        sessions=len(sessions),
        turns=sum(each.turns for each in sessions),
        plain_turns=sum(each.plain_turns for each in sessions),
        artifacts=artifacts,
    )


@dataclass(slots=True)
class _Session:
    """A session of the subject, as its ledger has it."""

    session_id: str
    turns: int = 0
    plain_turns: int = 0
    completed: int = 0
    cost: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COSTS, 0))
    end: StoredEntry | None = None

    def take(self, entry: StoredEntry) -> None:
        """Takes in its next entry."""
        if entry.entry_type == events.TURN_STARTED:
            self.turns += 1
            self.plain_turns += isinstance(entry.payload.get("user_message"), str)
        elif entry.entry_type == events.TURN_COMPLETED:
            self.completed += 1
            cost = entry.payload.get("cost_summary") or {}
            for name in COSTS:
                self.cost[name] += cost.get(name, 0)
        elif entry.entry_type == events.SESSION_END:
            self.end = entry

    def fell_to(self, kid: str) -> bool:
        """Whether it was not erased already, with an earlier key."""
        return self.end is None or self.end.payload.get("key_id") in (None, kid)


async def _sessions_of(begun: Erasure, ho2m: LedgerClient) -> list[_Session]:
    found = []
    async for start in ho2m.read(key="sessions", entry_type=events.SESSION_START):
        if start.payload.get("subject_id") == begun.subject_id:
            session = _Session(str(start.session_id))
            async for entry in ho2m.read(session_id=session.session_id):
                session.take(entry)
            if session.fell_to(begun.kid):
                found.append(session)
    return found


async def _record(begun: Erasure, ho2m: LedgerClient, sessions: Sequence[_Session], artifacts: int) -> None:
    """Ends the sessions of one agent class and writes `SUBJECT_ERASED` behind them, as far as that is not on record."""
    for session in sessions:
        if session.end is None:
            base = {"v": events.VERSION, "session_id": session.session_id, "subject_id": begun.subject_id}
            counts = {"turn_count": session.completed, "total_cost": session.cost}
            fields = {**base, **counts, "reason": "erased", "key_id": begun.kid}
            await ho2m.write(LedgerEntry(events.SESSION_END, session.session_id, fields))
    if not any(each.payload.get("key_id") == begun.kid for each in await _records(begun.subject_id, ho2m)):
        fields = {
            "v": events.VERSION,
            "subject_id": begun.subject_id,
            "key_id": begun.kid,
            "erased_at": begun.begun_at,
            "sessions": len(sessions),
            "turns": sum(each.turns for each in sessions),
            "artifacts": artifacts,
        }
        await ho2m.write(LedgerEntry(events.SUBJECT_ERASED, begun.subject_id, fields))
    await ho2m.commit()


async def _records(subject_id: str, ho2m: LedgerClient) -> list[StoredEntry]:
    return [entry async for entry in ho2m.read(key=events.erased_index_key(subject_id))]


async def _erased_before(subject_id: str, stores: Stores) -> ErasureReport:
    """What is on record about the last erasure; an error where there is none."""
    records = [each.payload for ho2m in stores.supervisors.values() for each in await _records(subject_id, ho2m)]
    if not records:
        raise UnknownSubject(subject_id, await _why_unknown(subject_id, stores))
    newest = max(records, key=lambda each: (str(each.get("erased_at")), str(each.get("key_id"))))
    same = [each for each in records if each.get("key_id") == newest.get("key_id")]
    return ErasureReport(
        subject_id=subject_id,
        key_id=str(newest.get("key_id")),
        erased_at=str(newest.get("erased_at")),
        was_erased_before=True,
        sessions=sum(int(each.get("sessions", 0)) for each in same),
        turns=sum(int(each.get("turns", 0)) for each in same),
        artifacts=max(int(each.get("artifacts", 0)) for each in same),
    )


async def _why_unknown(subject_id: str, stores: Stores) -> str:
    for ho2m in stores.supervisors.values():
        async for start in ho2m.read(key="sessions", entry_type=events.SESSION_START):
            if start.payload.get("subject_id") == subject_id:
                return "has no key: what is on record about them was stored plainly, before there was a keyring"
    return "is not known: there is no key, no session and no erasure of theirs"


async def _find_lost_kid(subject_id: str, stores: Stores) -> str | None:
    """The kid of a key that is gone without a record: somebody removed its file."""
    for ho2m in stores.supervisors.values():
        recorded = {str(each.payload.get("key_id")) for each in await _records(subject_id, ho2m)}
        async for start in ho2m.read(key="sessions", entry_type=events.SESSION_START):
            if start.payload.get("subject_id") != subject_id:
                continue
            async for entry in ho2m.read(session_id=start.session_id):
                for value in entry.payload.values():
                    if is_sealed(value) and (kid := str(value[MARK].get("kid"))) not in recorded:
                        return kid
    return None
