"""Exports a session as a folder: its own entries, and other entries of its subject that its turns could read.

Takes no lock, so it works while a runtime writes. Explained in `docs/sessions.md`.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio.to_thread
import orjson

from kitchener.actors.authority.agent_ruleset import recall_scope_of
from kitchener.clock import Clock, SystemClock
from kitchener.config import RuntimeConfig
from kitchener.errors import PartDamaged, SealingError, SubjectErased
from kitchener.ids import memory_namespace
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.ledger.bundles.bundle import BundleSelection
from kitchener.media.content_store import ContentStore
from kitchener.memory.subject_cache import OVERLAYS, SIGNALS
from kitchener.records import events
from kitchener.records.entries import SourceKind, TurnCompletedPayload, payload_as
from kitchener.records.index_keys import (
    SIGNERS_KEY,
    erased_index_key,
    imported_key,
    shared_intents_key,
    subject_index_key,
    turn_index_key,
)
from kitchener.records.parts import StoredPart
from kitchener.runtime.portable.folder import KEY, LEDGERS, Manifest, content_file, kids_in, write_folder
from kitchener.runtime.portable.source_file import SOURCES, named_by, sources_to_export
from kitchener.runtime.root_layout import (
    INDEX_KEYS,
    LedgerName,
    agent_of,
    open_reader,
    open_readers,
    sealer_of,
    settings_and_class_of,
)
from kitchener.times import iso_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionExport:
    """The result of an export."""

    session_id: str
    subject_id: str
    agent_class: str
    path: str
    """The folder that the export wrote."""
    turns: int
    """Number of completed turns."""
    entries: int
    """Number of entries, in all ledgers."""
    context_entries: int
    """Number of entries that are not the session's own: entries of its subject that its turns could read."""
    key_id: str | None
    """Id of the key under which content is sealed; None: content is plain."""
    has_key: bool
    """Whether the folder contains the key."""
    has_sources: bool
    """Whether the folder contains the sources of its turns' requests, so that the requests can be rebuilt elsewhere."""
    is_signed: bool
    """Whether every ledger's head is signed, so that the folder proves who signed it."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


async def export_session(
    session_id: str,
    out: str | Path,
    *,
    config: RuntimeConfig | str | Path | None = None,
    root: str | Path | None = None,
    agent_class: str | None = None,
    with_key: bool = False,
    clock: Clock | None = None,
    on_step: Callable[[], object] = int,
) -> SessionExport:
    """Writes a session as a folder that `import_session` adds to another root.

    Verifies the ledgers before it writes the folder, and the folder after that.

    Args:
        session_id: the session
        out: the folder; must not exist
        config: path of a `kitchener.toml`, or a `RuntimeConfig`; None: the embedded defaults
        root: overrides `plane_root`
        agent_class: the agent class of the session; None: the one whose ledger has it
        with_key: whether to add the subject's key; anybody with the key can read all sessions of the subject
        clock: the time of day; None: the system clock
        on_step: called after each verified or written ledger

    Raises:
        UnknownSession: no ledger contains the session
        PartDamaged: an image or a file of the session is missing or was changed; nothing was exported
        SubjectErased: the session's text was erased
        CallerError: the folder exists already or cannot be created
        LedgerDamaged: a ledger does not verify; nothing was exported
        SealingError: `with_key`, and there is no key
    """
    settings, found = await settings_and_class_of(session_id, config, root, agent_class)
    async with open_readers(settings, found) as readers:
        chosen = _Selection(session_id, found, readers, is_recalling=recall_scope_of(agent_of(settings, found)) == "subject")
        await chosen.select(on_step)
        key_file = await anyio.to_thread.run_sync(_key, settings, chosen) if with_key else None
        sources = await _sources(settings, chosen, with_key=with_key)
        content = await anyio.to_thread.run_sync(_content, settings, chosen)
        extra = {name: data for name, data in ((KEY, key_file), (SOURCES, sources)) if data is not None}
        manifest = partial(chosen.manifest, iso_of((clock or SystemClock()).time_us()))
        folder = await anyio.to_thread.run_sync(write_folder, Path(out), manifest, chosen.selections(), extra, on_step, content)
    return SessionExport(
        session_id=session_id,
        subject_id=chosen.subject_id,
        agent_class=found,
        path=str(out),
        turns=chosen.turns,
        entries=folder.count,
        context_entries=folder.count - chosen.own,
        key_id=folder.manifest.key_id,
        has_key=folder.key_file is not None,
        has_sources=bool(folder.sources),
        is_signed=folder.is_signed,
    )


def _content(config: RuntimeConfig, chosen: "_Selection") -> dict[str, Path]:
    """The stored images and files that the chosen entries name, by their names in the folder.

    Raises:
        PartDamaged: a file is missing or was changed
    """
    store = ContentStore(config.plane_root, sealer_of(config))
    for each in chosen.parts:
        if (problem := store.problem(chosen.subject_id, each.content_hash, each.stored_hash)) is not None:
            raise PartDamaged(str(store.path(chosen.subject_id, each.content_hash)), each.content_hash, problem)
    return {content_file(each.stored_hash): store.path(chosen.subject_id, each.content_hash) for each in chosen.parts}


def _key(config: RuntimeConfig, chosen: "_Selection") -> bytes:
    sealer = sealer_of(config)
    found = sealer.keyring.key_file(chosen.subject_id) if sealer is not None else None
    if found is None:
        raise SealingError(
            f"subject {chosen.subject_id!r} has no key here, so none can be exported; leave out --with-keys"
            " if their entries are plain, else set keyring in [ledger] to where it is"
        )
    return found


async def _sources(config: RuntimeConfig, chosen: "_Selection", *, with_key: bool) -> bytes | None:
    """The sources of the requests as plain text. Sealed sources are included only together with the subject's key."""
    sealer = sealer_of(config) if with_key else None
    async with open_reader(config, chosen.agent_class, "ho2m", sealer=sealer) as ho2m:
        return await sources_to_export(ho2m, chosen.named)


class _Selection:
    """Selects the entries, ledger by ledger, in the form in which they are stored: sealed values stay sealed."""

    def __init__(
        self, session_id: str, agent_class: str, readers: Mapping[LedgerName, LedgerReader], *, is_recalling: bool
    ) -> None:
        self.session_id, self.agent_class, self._readers = session_id, agent_class, readers
        self._is_recalling = is_recalling
        self._chosen: dict[LedgerName, dict[int, StoredEntry]] = {name: {} for name in LEDGERS}
        self._heads: dict[LedgerName, tuple[int, str]] = {}
        self._read_to: dict[str, int] = {}
        """Position to which the session's turns read each ledger."""
        self.subject_id = ""
        self.turns = self.own = 0
        self.kids: set[str] = set()
        self.parts: list[StoredPart] = []
        """The images and files of its messages."""
        self.named = set[tuple[SourceKind, str]]()
        """The sources that the session's turns name."""

    async def select(self, on_step: Callable[[], object]) -> None:
        """Verifies each ledger and selects from it. Starts with HO2m, because the other ledgers then have all that it names."""
        for name in reversed(LEDGERS):
            if (reader := self._readers.get(name)) is None:
                continue
            report = await reader.verify()
            if report.fault is not None:
                raise report.fault
            self._heads[name] = reader.head()
            if name != "overlays":
                await self._add_own(name, reader)
            if name in INDEX_KEYS:
                await self._add_found(name, reader, imported_key(self.session_id), self._heads[name][0])
            await _OTHERS[name](self, reader)
            on_step()

    def selections(self) -> dict[LedgerName, BundleSelection]:
        """The entries to write, by ledger; ledgers without selected entries are left out."""
        return {
            name: BundleSelection(reader.path, reader.ledger_id, tuple(sorted(seqs)), self._heads[name])
            for name, reader in self._readers.items()
            if (seqs := self._chosen[name])
        }

    def manifest(self, exported_at: str, files: Mapping[str, str]) -> Manifest:
        """What the folder says about itself.

        Args:
            exported_at: ISO time
            files: the hashes of its files, by name
        """
        kid = next(iter(sorted(self.kids)), None)
        return Manifest(self.session_id, self.subject_id, self.agent_class, exported_at, self.turns, kid, files)

    async def _add_own(self, name: LedgerName, reader: LedgerReader) -> None:
        async for entry in reader.read(session_id=self.session_id, up_to_seq=self._heads[name][0]):
            self._add(name, entry)
            self.own += 1
            if name == "ho2m":
                self._note(entry)

    def _note(self, entry: StoredEntry) -> None:
        self.subject_id = self.subject_id or events.read_common(entry)["subject_id"]
        if events.ends_by_erasure(entry.entry_type, entry.payload):
            raise SubjectErased(self.subject_id, self.session_id)
        self.turns += entry.entry_type == events.TURN_COMPLETED
        self.named |= named_by(entry.payload)
        for ledger_id, seq in payload_as(TurnCompletedPayload, entry.payload).get("read_positions", {}).items():
            self._read_to[ledger_id] = max(seq, self._read_to.get(ledger_id, 0))

    async def _of_subject(self, reader: LedgerReader) -> None:
        """Selects from HO2m: the signers, the subject's shared intents, and the turns that could be recalled.

        Selects nothing from before an erasure: that key is destroyed, and a folder has only one key.
        """
        erased = await reader.last(key=erased_index_key(self.subject_id))
        after = erased[-1].seq if erased else 0
        await self._add_found("ho2m", reader, SIGNERS_KEY, self._heads["ho2m"][0])
        await self._add_found("ho2m", reader, shared_intents_key(self.subject_id), self._heads["ho2m"][0], after)
        if not self._is_recalling:
            return
        async for entry in reader.read(
            key=subject_index_key(self.subject_id), after_seq=after, up_to_seq=self._read_to.get(reader.ledger_id)
        ):
            self._add("ho2m", entry)
            await self._add_found("ho2m", reader, turn_index_key(entry.entity_id), self._heads["ho2m"][0])

    async def _of_signals(self, reader: LedgerReader) -> None:
        """Selects every signal that the turns' gates counted."""
        await self._add_memory("signals", reader, self._read_to.get(SIGNALS, 0))

    async def _of_overlays(self, reader: LedgerReader) -> None:
        """Selects all entries about learned lines, including lines that were withdrawn later."""
        await self._add_memory("overlays", reader, self._heads["overlays"][0] if OVERLAYS in self._read_to else 0)

    async def _add_memory(self, name: LedgerName, reader: LedgerReader, up_to: int) -> None:
        namespace = memory_namespace(self.agent_class, self.subject_id)
        found = [entry async for entry in reader.read(key=f"in:{namespace}", up_to_seq=up_to)]
        erased = max((entry.seq for entry in found if entry.entry_type == events.SUBJECT_ERASED), default=0)
        for entry in found:
            if entry.seq > erased:
                self._add(name, entry)

    async def _nothing(self, reader: LedgerReader) -> None:
        """Selects nothing, because every entry of the ledger belongs to a session."""

    async def _add_found(self, name: LedgerName, reader: LedgerReader, key: str, up_to: int, after: int = 0) -> None:
        async for entry in reader.read(key=key, after_seq=after, up_to_seq=up_to):
            self._add(name, entry)

    def _add(self, name: LedgerName, entry: StoredEntry) -> None:
        if entry.seq not in self._chosen[name]:
            self._chosen[name][entry.seq] = entry
            if entry.entry_type == events.PART_ATTACHED:
                self.parts.append(StoredPart.from_payload(entry.payload))
            self.kids |= kids_in(entry.entry_type, orjson.loads(entry.body)["payload"])


_OTHERS: Final = {
    "ho2m": _Selection._of_subject,
    "ho1m": _Selection._nothing,
    "context": _Selection._nothing,
    "signals": _Selection._of_signals,
    "overlays": _Selection._of_overlays,
}
"""Ledger to the method that adds entries outside the session."""
