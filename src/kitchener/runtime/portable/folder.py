"""Writes one session as a folder, and reads and verifies such a folder.

The folder has `manifest.json`, a file for each ledger with entries, `sources.json` with the sources of its turns' requests
(`source_file.py`), the images and files of its messages as stored, and on request the subject's key. A ledger's file has the
form of a section of a bundle (`docs/proof.md`): the entries as stored, and the chain that links them to the ledger's head. All
functions block. `exporter.py` decides what belongs in a folder.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from kitchener.actors.sources import Source
from kitchener.canonical import canonical_bytes, canonical_digest, digest
from kitchener.errors import CallerError, EntryRefused, FolderDamaged
from kitchener.ids import check_erasable, is_agent_class, is_session_id, memory_namespace, session_of_turn
from kitchener.ledger.bundles.bundle import MAX_BUNDLE_BYTES, BundleSelection, write_section
from kitchener.ledger.bundles.bundle_check import VerifiedSection, read_section
from kitchener.ledger.bundles.bundle_sections import BundleFault
from kitchener.ledger.format.imported import innermost
from kitchener.ledger.format.lines import BadLine, Line, make_entry
from kitchener.media.content_store import MAX_STORED_BYTES, is_content_hash
from kitchener.plain_names import cut_to, quoted
from kitchener.records.entries import Payload
from kitchener.records.events import CONTEXT_IMPORTED, PART_ATTACHED, SEALED_FIELDS, SIGNER_DECLARED
from kitchener.records.parts import StoredPart
from kitchener.records.ref import Ref
from kitchener.runtime.portable.source_file import SOURCES, imported_sources, named_by
from kitchener.runtime.root_layout import LedgerName, ledger_ids
from kitchener.sealed_values import sealing_key_id
from kitchener.small_files import is_directory, is_file, read_regular, sync_directory, write_private

FORMAT: Final = "kitchener-session/1"
LEDGERS: Final[tuple[LedgerName, ...]] = ("ho1m", "context", "signals", "overlays", "ho2m")
"""The ledgers in the order in which an import writes them: HO2m is the commit record, so it is last."""
_OWN_FORMAT: Final = b'"kitchener-session/'
"""What only the manifest of such a folder has: prompts and attention templates have files of this name, too."""
_MANIFEST: Final = "manifest.json"
KEY: Final = "subject.key"
"""The file with the subject's key."""
_MAX_SMALL_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a folder."""

    session_id: str
    subject_id: str
    agent_class: str
    exported_at: str
    """ISO time."""
    turns: int
    """Number of completed turns."""
    key_id: str | None
    """Kid of the key under which content is sealed; None: it is plain."""
    files: Mapping[str, str]
    """Name of each other file to the `sha256:` hash of its bytes."""
    format: str = FORMAT

    @property
    def ledger_ids(self) -> dict[LedgerName, str]:
        """The ids of the ledgers of the session's agent class."""
        return ledger_ids(self.agent_class)


class FolderEntry(NamedTuple):
    """A line of an exported ledger, and what it says."""

    line: Line
    """The entry as stored in its ledger."""
    body: Mapping[str, Any]
    """The decoded body: entity, type, payload and time."""
    entry_type: str
    payload: Payload
    """Type and payload of the entry; of the contained entry, if an earlier import brought it."""
    ref: Ref
    """The reference to the entry, or to the contained one."""

    @property
    def is_context(self) -> bool:
        """Whether an earlier import brought it only for replays."""
        return bool(self.body["entry_type"] == CONTEXT_IMPORTED)


class FolderContent(NamedTuple):
    """An image or a file of a folder."""

    path: Path
    content_hash: str
    """Hash of the content, by which it is stored."""
    stored_hash: str
    """Hash of the file."""

    def read(self) -> bytes:
        """The content of the file. Raises FolderDamaged if it was changed."""
        data = _read(self.path, MAX_STORED_BYTES)
        _same(self.path, "stored_hash", self.stored_hash, digest(data))
        return data


@dataclass(frozen=True, slots=True)
class SessionFolder:
    """A folder that was read and verified."""

    manifest: Manifest
    manifest_hash: str
    """The `sha256:` hash of the manifest, which covers all files."""
    sections: Mapping[LedgerName, VerifiedSection]
    """The chain of each ledger with entries."""
    key_file: bytes | None
    """The subject's key, a secret; None: the folder has none."""
    sources: tuple[Source, ...]
    """The sources of its turns' requests, each configuration with all sources that it names; empty: the folder has none."""
    content: tuple[FolderContent, ...] = ()
    """The images and files of its messages."""

    def __repr__(self) -> str:
        return f"<SessionFolder {self.manifest.session_id}>"  # never the key

    def entries(self, name: LedgerName) -> list[FolderEntry]:
        """The entries of a ledger, ascending."""
        section = self.sections.get(name)
        return [] if section is None else [_entry(line) for line in section.lines]

    @property
    def count(self) -> int:
        """Number of entries in all ledgers."""
        return sum(len(section.lines) for section in self.sections.values())

    @property
    def is_signed(self) -> bool:
        """Whether every head is signed."""
        return all(section.signer is not None for section in self.sections.values())


def write_folder(
    out: Path,
    manifest: Callable[[Mapping[str, str]], Manifest],
    selections: Mapping[LedgerName, BundleSelection],
    extra: Mapping[str, bytes],
    on_step: Callable[[], object],
    content: Mapping[str, Path] = MappingProxyType({}),
) -> SessionFolder:
    """Writes a folder under a temporary name, verifies it, and renames it. If anything fails, there is no folder.

    Args:
        out: the folder; it must not exist
        manifest: builds the manifest from the hashes of the files
        selections: the entries of each ledger
        extra: the other files by name: `KEY`, `SOURCES`
        on_step: called after each ledger
        content: stored images and files, by their names in the folder

    Raises:
        CallerError: the path exists, or its parent directory cannot be written
        LedgerDamaged: a line is malformed or has the wrong number
    """
    with _draft(out) as draft:
        files = {}
        for name, selection in selections.items():
            chunks = bytearray()
            write_section(chunks.extend, selection)
            files[f"{name}.json"] = _put(draft / f"{name}.json", bytes(chunks) + b"\n")
            on_step()
        for file, data in extra.items():
            files[file] = _put(draft / file, data)
        for file, path in content.items():
            files[file] = _put(draft / file, _read(path, MAX_STORED_BYTES), MAX_STORED_BYTES)
        facts = asdict(manifest(files))
        _put(draft / _MANIFEST, canonical_bytes({**facts, "digest": canonical_digest(facts)}) + b"\n")
        sync_directory(draft)
        folder = read_folder(draft)
        draft.rename(out)
        sync_directory(out.absolute().parent)
    return folder


def folder_at(path: Path) -> Path | None:
    """The folder of an exported session that a path names, itself or by one of its JSON files; None: the path names no such."""
    folder = path if is_directory(path) else path.parent
    if folder != path and not (path.suffix == ".json" and is_file(path)):
        return None
    try:
        return folder if _OWN_FORMAT in read_regular(folder / _MANIFEST, _MAX_SMALL_BYTES, follows_links=False) else None
    except OSError:
        return None


def read_folder(path: Path, *, public_key: str | None = None) -> SessionFolder:
    """Reads a folder and verifies all of it: every file's hash, every entry and its owner, and every chain up to its head.

    Args:
        path: the folder
        public_key: 64 hex digits; every head must be signed with this key. None: signed heads are checked with their own key

    Raises:
        FolderDamaged: a file is missing or was changed
        SigningError: a head is signed, and `cryptography` cannot be imported
    """
    stored = _read(path / _MANIFEST, _MAX_SMALL_BYTES)
    manifest = _manifest(path / _MANIFEST, stored)
    sections: dict[LedgerName, VerifiedSection] = {}
    for name in LEDGERS:
        if f"{name}.json" not in manifest.files:
            continue
        file = path / f"{name}.json"
        data = _checked(file, manifest, MAX_BUNDLE_BYTES)
        try:
            sections[name] = section = read_section(data, public_key=public_key)
            entries = [_entry(line) for line in section.lines]
        except (BadLine, BundleFault) as fault:
            where = f"{fault.where}: {fault.field}" if isinstance(fault, BundleFault) else fault.field
            raise FolderDamaged(str(file), where, fault.expected, fault.found) from fault
        _same(file, "ledger_id", manifest.ledger_ids[name], section.ledger_id)
        for entry in entries:
            _check_owner(file, manifest, entry)
    _same(path / _MANIFEST, "files", "ho2m.json", "ho2m.json" if "ho2m" in sections else "none")
    key_file = _checked(path / KEY, manifest, _MAX_SMALL_BYTES) if KEY in manifest.files else None
    if key_file is not None:
        _same(path / KEY, "kid", str(manifest.key_id), _kid(path / KEY, key_file))
    sources, content = _sources(path / SOURCES, manifest, sections["ho2m"]), tuple(_content(path, manifest, sections["ho2m"]))
    return SessionFolder(manifest, digest(stored), sections, key_file, sources, content)


def _sources(file: Path, manifest: Manifest, ho2m: VerifiedSection) -> tuple[Source, ...]:
    if SOURCES not in manifest.files:
        return ()
    named = {each for line in ho2m.lines for each in named_by(_entry(line).payload)}
    return imported_sources(str(file), _checked(file, manifest, MAX_BUNDLE_BYTES), named, manifest.agent_class)


def content_file(stored_hash: str) -> str:
    """The name of an image or a file in a folder."""
    return f"content-{stored_hash.removeprefix('sha256:')}"


def _content(path: Path, manifest: Manifest, ho2m: VerifiedSection) -> Iterator[FolderContent]:
    """The images and files in the folder that entries name. An older folder may lack them."""
    for entry in map(_entry, ho2m.lines):
        if entry.entry_type != PART_ATTACHED:
            continue
        part = StoredPart.from_payload(entry.payload)
        name = content_file(part.stored_hash)
        if name in manifest.files:
            file = path / name
            _same(file, f"{entry.line.entry_id}: stored_hash", part.stored_hash, manifest.files[name])
            if not is_content_hash(part.content_hash):
                raise FolderDamaged(str(file), "content_hash", "a hash of content", cut_to(part.content_hash, 80))
            found = FolderContent(file, part.content_hash, part.stored_hash)
            found.read()
            yield found


def kids_in(entry_type: str, payload: Payload) -> set[str]:
    """The ids of the keys under which fields of a stored payload are sealed."""
    kids = (sealing_key_id(payload.get(name)) for name in SEALED_FIELDS.get(entry_type, ()))
    return {kid for kid in kids if kid is not None}


def _entry(line: Line) -> FolderEntry:
    """Parses a line. Raises BadLine if it contains another entry than its origin names."""
    stored = make_entry(line.ledger_id, line.seq, line.entry_id, line.entry_hash, line.body, None, None)
    held = innermost(stored)
    return FolderEntry(line, orjson.loads(line.body), held.entry_type, held.payload, held.ref)


@contextmanager
def _draft(out: Path) -> Iterator[Path]:
    """A temporary directory beside the folder that only its owner can enter; removed if the block fails."""
    if os.path.lexists(out):
        raise CallerError(f"--out {str(out)!r} exists already: name a folder that does not, which the export creates")
    try:
        draft = Path(tempfile.mkdtemp(dir=out.absolute().parent, prefix=f".{out.name}."))
    except OSError as error:
        raise CallerError(f"--out {str(out)!r} cannot be created: {error.strerror or error}") from error
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _put(path: Path, data: bytes, limit: int = MAX_BUNDLE_BYTES) -> str:
    if len(data) > limit:
        raise CallerError(f"{path.name} would have {len(data):,} bytes; a folder's file has at most {limit:,}")
    write_private(path, data)
    return digest(data)


def _read(path: Path, limit: int) -> bytes:
    try:
        data = read_regular(path, limit + 1, follows_links=False)
    except OSError as error:
        raise FolderDamaged(str(path), "file", "a file of an exported session", error.strerror or str(error)) from error
    if len(data) > limit:
        raise FolderDamaged(str(path), "size", f"at most {limit:,} bytes", "more")
    return data


def _checked(path: Path, manifest: Manifest, limit: int) -> bytes:
    data = _read(path, limit)
    _same(path, "sha256", manifest.files[path.name], digest(data))
    return data


def _manifest(path: Path, data: bytes) -> Manifest:
    try:
        fields = orjson.loads(data)
        is_canonical = isinstance(fields, dict) and canonical_bytes(fields) + b"\n" == data
    except (orjson.JSONDecodeError, EntryRefused, RecursionError):
        is_canonical = False
    if not is_canonical:
        raise FolderDamaged(str(path), "form", "one object of canonical JSON and a line feed", f"{len(data)} other bytes")
    _same(path, "format", FORMAT, cut_to(str(fields.get("format")), 80))
    stated = fields.pop("digest", None)
    _same(path, "digest", canonical_digest(fields), cut_to(str(stated), 80))
    names = {*Manifest.__dataclass_fields__}
    _same(path, "fields", ", ".join(sorted(names)), cut_to(", ".join(sorted(fields)), 400))
    texts = all(isinstance(fields[each], str) for each in names - {"turns", "key_id", "files"})
    files = fields["files"]
    fits = texts and type(fields["turns"]) is int and isinstance(fields["key_id"], str | None) and isinstance(files, dict)
    if not fits or not all(isinstance(each, str) for each in files.values()) or not is_agent_class(fields["agent_class"]):
        raise FolderDamaged(str(path), "fields", "ids and times as text, and the hashes of files", "others")
    if not is_session_id(fields["session_id"]):
        raise FolderDamaged(str(path), "session_id", "SES- and 8 to 32 hex digits", quoted(fields["session_id"]))
    try:
        check_erasable(fields["subject_id"])
    except CallerError as error:
        expected = "1 to 1024 characters of Unicode text that do not name the operator"
        raise FolderDamaged(str(path), "subject_id", expected, quoted(fields["subject_id"])) from error
    return Manifest(**fields)


def _check_owner(file: Path, manifest: Manifest, entry: FolderEntry) -> None:
    """Refuses an entry that belongs to another subject, session or namespace than the folder's."""
    if entry.entry_type == SIGNER_DECLARED:
        return
    where, payload = entry.line.entry_id, entry.payload
    _same(file, f"{where}: subject_id", manifest.subject_id, str(payload.get("subject_id")))
    # Messages are found by their turn, so a folder must not name a turn of another session. Only in the ledger of decisions may
    # an entry name none: `kitchener context project` records a projection of no turn.
    if "turn_id" in payload and not (file.stem == "context" and payload["turn_id"] is None):
        _same(file, f"{where}: turn_id", str(payload.get("session_id")), str(session_of_turn(str(payload["turn_id"]))))
    if file.stem in ("signals", "overlays"):
        namespace = memory_namespace(manifest.agent_class, manifest.subject_id)
        _same(file, f"{entry.line.entry_id}: namespace", namespace, str(entry.payload.get("namespace")))


def _kid(path: Path, key_file: bytes) -> str:
    try:
        return str(json.loads(key_file)["kid"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FolderDamaged(str(path), "key", "a key file", "something else") from None


def _same(path: Path, field: str, expected: str, found: str) -> None:
    if expected != found:
        raise FolderDamaged(str(path), field, expected, found)
