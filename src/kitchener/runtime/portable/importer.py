"""Adds an exported session to a root: each entry unchanged, with its original position, so that every chain still verifies.

Each import entry of this root's ledger contains the entry of the other root. Readers return the contained entry.
HO2m is written last, in one commit. Until then the session does not exist here, and a repeated import continues. Explained in
`docs/sessions.md`.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio.to_thread

from kitchener.actors.sources import record_sources
from kitchener.clock import Clock, SystemClock
from kitchener.config import RuntimeConfig
from kitchener.errors import ConfigError, EntryTooLarge, FolderDamaged, PartDamaged, SealingError, SessionExists, SubjectErased
from kitchener.ids import memory_namespace
from kitchener.ledger import LedgerClient, LedgerEntry
from kitchener.ledger.format.imported import innermost
from kitchener.media.content_store import ContentStore
from kitchener.memory.subject_cache import OVERLAYS, signal_keys
from kitchener.records import events
from kitchener.records.entries import (
    ImportedPayload,
    SessionImportedPayload,
    SubjectErasedPayload,
    TurnStartedPayload,
    payload_as,
)
from kitchener.records.index_keys import erased_index_key, imported_key, index_keys, shared_intents_key
from kitchener.records.ref import Ref
from kitchener.runtime.portable.folder import FORMAT, LEDGERS, FolderEntry, SessionFolder, read_folder
from kitchener.runtime.root_layout import INDEX_KEYS, LedgerName, index_dir, ledger_paths, sealer_of, settings_of
from kitchener.runtime.sealed_root import record_sealing
from kitchener.sealing import Sealer

_HOLDER_BYTES: Final = 1_024
"""Most bytes of an import entry, besides the contained entry and the ids of session and subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionImport:
    """The result of an import."""

    session_id: str
    subject_id: str
    agent_class: str
    turns: int
    """Number of completed turns in the folder."""
    entries: int
    """Number of entries in the folder."""
    was_there: bool
    """Whether the root already had all the session's entries, so that nothing was written."""
    is_readable: bool
    """Whether the content can be read here: it is plain, or this root has its key."""
    is_signed: bool
    """Whether every ledger's head in the folder is signed."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


async def import_session(
    folder: str | Path,
    *,
    config: RuntimeConfig | str | Path | None = None,
    root: str | Path | None = None,
    public_key: str | None = None,
    clock: Clock | None = None,
    on_step: Callable[[], object] = int,
) -> SessionImport:
    """Adds an exported session to a root that no runtime uses. Verifies all of the folder before it writes anything.

    The session keeps its id, subject, intents and turn numbers. A second call completes an interrupted import.

    Args:
        folder: as `export_session` wrote it
        config: path of a `kitchener.toml`, or a `RuntimeConfig`; None: the embedded defaults
        root: overrides `plane_root`
        public_key: 64 hex digits; every ledger's head must be signed with this key. None: signed heads are checked with their
            own key
        clock: the time of day; None: the system clock
        on_step: called after each ledger that was written

    Raises:
        FolderDamaged: a file of the folder was changed
        SessionExists: the root has the session, but without some entries of the folder
        SubjectErased: the subject was erased here, and the folder has the erased content
        SealingError: the subject has another key here
        ConfigError: a setting is wrong, or the folder has a key and this root has no keyring
        EntryTooLarge: an entry does not fit `max_entry_bytes` here
        InvalidPart: `limits.max_content_bytes` leaves no room for its images and files
        LedgerLocked: a process has the ledgers open
    """
    settings = await anyio.to_thread.run_sync(partial(settings_of, config, root))
    found = await anyio.to_thread.run_sync(partial(read_folder, Path(folder), public_key=public_key))
    return await add_folder(
        found, config=settings, sealer=sealer_of(settings), clock=clock or SystemClock(), opened={}, on_step=on_step
    )


async def add_folder(
    found: SessionFolder,
    *,
    config: RuntimeConfig,
    sealer: Sealer | None,
    clock: Clock,
    opened: Mapping[LedgerName, LedgerClient],
    on_step: Callable[[], object] = int,
) -> SessionImport:
    """Adds the session of a verified folder; see `import_session`.

    Args:
        found: the folder
        config: the whole configuration, with absolute paths
        sealer: the sealer of the configuration; None: there is no keyring
        clock: the time of day
        opened: the ledgers that a runtime has open; the others are opened and locked
        on_step: called after each ledger that was written
    """
    manifest = found.manifest
    _check_sizes(found, config.ledger.max_entry_bytes)
    await anyio.to_thread.run_sync(_check_key, found, sealer)
    async with AsyncExitStack() as stack:  # all ledgers are locked before the first is written
        target = _Target(found, opened)
        for name in (*found.sections, *_empty_memory(found)):
            if name not in opened:
                await stack.enter_async_context(target.open(name, config, sealer, clock))
        was_there = await target.has_session()
        await target.record_sealing(sealer)
        is_readable = await anyio.to_thread.run_sync(_install_key, found, sealer)
        await target.record_sources()
        await anyio.to_thread.run_sync(_copy_content, found, config, sealer)
        for name in LEDGERS:
            if name in found.sections and not was_there:
                await target.write(name)
                on_step()
    return SessionImport(
        session_id=manifest.session_id,
        subject_id=manifest.subject_id,
        agent_class=manifest.agent_class,
        turns=manifest.turns,
        entries=found.count,
        was_there=was_there,
        is_readable=is_readable,
        is_signed=found.is_signed,
    )


def _empty_memory(folder: SessionFolder) -> tuple[LedgerName, ...]:
    """The memory's ledgers without an entry in the folder. Created because turns that read a memory need one to replay."""
    reads = (payload_as(TurnStartedPayload, entry.payload).get("read_positions") or {} for entry in folder.entries("ho2m"))
    names: tuple[LedgerName, ...] = ("signals", "overlays") if any(OVERLAYS in each for each in reads) else ()
    return tuple(name for name in names if name not in folder.sections)


def _check_sizes(folder: SessionFolder, limit: int) -> None:
    for section in folder.sections.values():
        ids = 2 * len(folder.manifest.session_id) + len(folder.manifest.subject_id.encode()) * 6
        for line in section.lines:
            if (size := len(line.body) + _HOLDER_BYTES + ids) > limit:
                raise EntryTooLarge(line.ledger_id, line.entry_id, size, limit)


def _check_key(folder: SessionFolder, sealer: Sealer | None) -> None:
    """Raises an error if this root cannot keep the folder's key."""
    kid, subject_id = folder.manifest.key_id, folder.manifest.subject_id
    if sealer is None and folder.key_file is not None:
        expected = "is off, but the folder has the key of its subject, which belongs in a keyring; nothing was imported"
        raise ConfigError("[ledger]", "seal", "false", expected)
    known = sealer.keyring.kid_of(subject_id) if sealer is not None else None
    if None not in (kid, known) and known != kid:
        raise SealingError(
            f"subject {subject_id!r} has another key here ({known}) than in the folder ({kid}); nothing was imported."
            " A subject has one key: import into a root without this subject"
        )


def _install_key(folder: SessionFolder, sealer: Sealer | None) -> bool:
    """Installs the folder's key as the subject's, if there is one. Returns whether the content can be read here."""
    kid, subject_id = folder.manifest.key_id, folder.manifest.subject_id
    if sealer is None or kid is None:
        return kid is None
    if folder.key_file is not None:
        return sealer.keyring.get(subject_id, folder.key_file).kid == kid
    return sealer.keyring.kid_of(subject_id) == kid


def _copy_content(folder: SessionFolder, config: RuntimeConfig, sealer: Sealer | None) -> None:
    """Stores the folder's images and files unchanged. They are on disk before the entries that name them."""
    store = ContentStore(config.plane_root, sealer, config.limits.max_content_bytes)
    for each in folder.content:
        try:
            store.copy_in(folder.manifest.subject_id, each.content_hash, each.read())
        except PartDamaged as error:
            raise FolderDamaged(
                str(each.path), "content_hash", each.content_hash, "other content, or content that cannot be read"
            ) from error


class _Target:
    """The ledgers of the root that gets the session."""

    def __init__(self, folder: SessionFolder, opened: Mapping[LedgerName, LedgerClient]) -> None:
        manifest = folder.manifest
        self._folder, self._ledgers = folder, dict(opened)
        self._session_id, self._subject_id, self._class = manifest.session_id, manifest.subject_id, manifest.agent_class

    @asynccontextmanager
    async def open(
        self, name: LedgerName, config: RuntimeConfig, sealer: Sealer | None, clock: Clock
    ) -> AsyncIterator[LedgerClient]:
        """Opens and locks one ledger, until the block ends."""
        opened = LedgerClient.open(
            ledger_paths(config, self._class)[name],
            ledger_id=self._folder.manifest.ledger_ids[name],
            config=config.ledger,
            index_dir=index_dir(config),
            index_keys=INDEX_KEYS.get(name),
            clock=clock,
            sealer=sealer,
        )
        async with opened as ledger:
            self._ledgers[name] = ledger
            yield ledger

    async def has_session(self) -> bool:
        """Whether HO2m has the session with all its entries of the folder.

        Raises:
            SessionExists: it has a session of this id with other entries
            SubjectErased: an erasure here destroyed the key that the folder's content needs
        """
        ho2m, kid = self._ledgers["ho2m"], self._folder.manifest.key_id
        there = {entry.ref async for entry in ho2m.read(session_id=self._session_id)}
        own = {entry.ref for entry in self._folder.entries("ho2m") if self._is_own("ho2m", entry)}
        if there and not own <= there:
            raise SessionExists(self._session_id, self._class)
        async for entry in ho2m.read(key=erased_index_key(self._subject_id)):
            if kid is not None and payload_as(SubjectErasedPayload, entry.payload).get("key_id") == kid:
                raise SubjectErased(self._subject_id, self._session_id)
        return bool(there)

    async def record_sealing(self, sealer: Sealer | None) -> None:
        """Records that content is sealed from now on, if that is a change. Raises SealingError if the root's keys are lost."""
        await record_sealing(self._ledgers["ho2m"], sealer)

    async def record_sources(self) -> None:
        """Records the sources of the folder's turns that are missing in this root."""
        await record_sources(self._ledgers["ho2m"], self._folder.sources)
        await self._ledgers["ho2m"].commit()

    async def write(self, name: LedgerName) -> None:
        """Appends the entries of one ledger in one commit, except those that an earlier import added."""
        ledger, entries = self._ledgers[name], self._folder.entries(name)
        there, shared = await self._there(name, ledger), await self._shared(name, ledger)
        made = [self._import_entry(name, entry, shared) for entry in entries if entry.ref not in there]
        if name == "ho2m":
            made.sort(key=lambda each: each.entry_type == events.ENTRY_IMPORTED)  # entries that only replays read come last
            made.append(self._record())
        if made:
            await ledger.write_all(made)
            await ledger.commit()

    async def _there(self, name: LedgerName, ledger: LedgerClient) -> set[Ref]:
        """The entries that an interrupted import of this session has written."""
        found = {entry.ref async for entry in ledger.read(session_id=self._session_id)}
        if name in INDEX_KEYS:
            async for entry in ledger.read(key=imported_key(self._session_id)):
                found.add(innermost(entry).ref)
        return found

    async def _shared(self, name: LedgerName, ledger: LedgerClient) -> set[Ref]:
        """The entries that count for all sessions of the subject and that this root already has."""
        (memory,) = signal_keys("", {"namespace": memory_namespace(self._class, self._subject_id)})
        keys = {"ho2m": shared_intents_key(self._subject_id), "overlays": memory}
        return {entry.ref async for entry in ledger.read(key=keys[name])} if name in keys else set()

    def _is_own(self, name: LedgerName, entry: FolderEntry) -> bool:
        """Whether an entry is the session's own. A folder cannot declare signers, sources or erasures for this root."""
        if name == "overlays" or entry.entry_type in events.OF_NO_SESSION:
            return False
        return bool(entry.body["payload"].get("session_id") == self._session_id)

    def _import_entry(self, name: LedgerName, entry: FolderEntry, shared: set[Ref]) -> LedgerEntry:
        """The import entry that contains an entry of the folder."""
        line, is_known = entry.line, entry.ref in shared
        payload: ImportedPayload = {
            "v": events.VERSION,
            "subject_id": self._subject_id,
            "import_of": self._session_id,
            "origin": {"seq": line.seq, "entry_id": line.entry_id, "entry_hash": f"sha256:{line.entry_hash}"},
            "entry": entry.body,
        }
        if self._is_own(name, entry):
            payload["session_id"] = self._session_id
            if is_known:
                payload["is_known"] = True
            return LedgerEntry(events.ENTRY_IMPORTED, str(entry.body["entity_id"]), payload)
        counts = name == "overlays" or (name == "ho2m" and self._is_shared(entry))
        kind = events.ENTRY_IMPORTED if counts and not is_known and not entry.is_context else events.CONTEXT_IMPORTED
        return LedgerEntry(kind, str(entry.body["entity_id"]), payload)

    def _is_shared(self, entry: FolderEntry) -> bool:
        return shared_intents_key(self._subject_id) in index_keys(entry.entry_type, entry.payload)

    def _record(self) -> LedgerEntry:
        folder = self._folder
        sections = [folder.sections[name] for name in LEDGERS if name in folder.sections]
        payload: SessionImportedPayload = {
            "v": events.VERSION,
            "session_id": self._session_id,
            "subject_id": self._subject_id,
            "format": FORMAT,
            "manifest_hash": folder.manifest_hash,
            "exported_at": folder.manifest.exported_at,
            "heads": [
                {"ledger_id": each.ledger_id, "seq": each.seq, "chain_hash": each.chain_hash, "signer": each.signer}
                for each in sections
            ],
            "entries": folder.count,
        }
        return LedgerEntry(events.SESSION_IMPORTED, self._session_id, payload)
