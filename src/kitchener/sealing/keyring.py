"""Turns subject ids into keys: creates, loads and destroys one key per subject.

Keys are files in one directory, the keyring, which may be on another disk than the ledgers. A key is on disk before anybody can
use it, so nothing sealed can become durable without its key. Explained in `docs/erasure.md`.
"""

import hashlib
import hmac
import json
import os
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kitchener.errors import SealingError
from kitchener.plain_names import shown_path
from kitchener.small_files import NOT_REGULAR, read_regular, sync_directory, write_private

VERSION: Final = 1
"""Version of key files, notes and sealed values."""
_KEY_BYTES: Final = 32
_BLOCK_BYTES: Final = 64
"""Block size of SHA-256; the keys of a `Mac` are no longer."""
_CACHED_KEYS: Final = 4_096
_WRITERS: Final = 4
"""Key files that are written at the same time."""
_MAX_FILE_BYTES: Final = 65_536
"""Most bytes of a key file or note that are read or overwritten; both are much smaller."""
_REMEDY: Final = "; remove it, and restore the file from a backup"
_ERASURES: Final = "erasing"
"""Subdirectory of a keyring with one note for each unfinished erasure."""


class Cipher(Protocol):
    """The interface of AES-256-GCM. The library is imported with the first key, because most commands need none."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes) -> bytes:
        """The encrypted data, followed by their tag."""
        ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes) -> bytes:
        """The decrypted data; raises InvalidTag if anything was changed."""
        ...


@dataclass(frozen=True, slots=True)
class SubjectKey:
    """One subject's key, ready to use."""

    kid: str
    """The key's id in sealed values: 32 random hex digits, which reveal nothing about the subject."""
    cipher: Cipher
    """Encrypts and decrypts values."""
    mac: "Mac"
    """Makes keyed digests of content."""

    def __repr__(self) -> str:
        return f"<SubjectKey {self.kid}>"  # never the key


class Mac:
    """HMAC-SHA-256 under one key, with both hash states prepared.

    Copying an `hmac.HMAC` for each digest, of which a turn makes seven, takes 3.1 instead of 1.2 us.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def digest(self, *data: bytes) -> bytes:
        """The 32 bytes of the digest of the data, one part after the other."""
        inner, outer = self._inner.copy(), self._outer.copy()
        for each in data:
            inner.update(each)
        outer.update(inner.digest())
        return outer.digest()


@dataclass(frozen=True, slots=True)
class Erasure:
    """An unfinished erasure. The subject's key encrypts and decrypts nothing any more."""

    subject_id: str
    """The subject to erase."""
    kid: str
    """Id of the key to destroy."""
    begun_at: str
    """ISO time when the erasure started."""


class Keyring:
    """A directory with one key file per subject, which only its owner can read.

    Methods block if a key is not cached, so call them in worker threads (`Sealer.load_key`). An erasure has several steps:
    `begin_erasure`, `destroy`, the records in the ledgers, `end_erasure`. A note in the subdirectory `erasing` survives a crash
    between the steps. While the note exists, the key counts as destroyed.

    Args:
        directory: created with the first key
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self._prefix = f"{self.directory}{os.sep}"
        self._recent: dict[str, SubjectKey] = {}
        self._older: dict[str, SubjectKey] = {}
        self._has_new_names = False
        # A thread that reads a key file must not cache the key after another thread has destroyed it.
        self._changing = threading.Lock()

    def has(self, subject_id: str) -> bool:
        """Whether the subject's key is cached, so that using it does not block."""
        return subject_id in self._recent or subject_id in self._older

    def find(self, subject_id: str) -> SubjectKey | None:
        """The subject's key; None: there is none, or it was destroyed.

        Raises:
            SealingError: the key file cannot be read, or does not contain a key
        """
        key = self._recent.get(subject_id) or self._older.get(subject_id)
        if key is not None:
            return key
        with self._changing:
            found = self._find(subject_id)
        return found if isinstance(found, SubjectKey) else None

    def get(self, subject_id: str, key_file: bytes | None = None) -> SubjectKey:
        """The subject's key; creates a missing one.

        Args:
            subject_id: the subject
            key_file: becomes the missing key, such as one that `key_file` gave elsewhere; None: a new key

        Raises:
            SealingError: the key file cannot be read or created, or the subject is being erased
        """
        key = self._recent.get(subject_id) or self._older.get(subject_id)
        if key is not None:
            return key
        with self._changing:
            found = self._find(subject_id)
            if isinstance(found, Erasure):
                raise SealingError(
                    f"subject {subject_id!r} is being erased, so nothing can be encrypted for the subject;"
                    f" `kitchener subject erase {subject_id}` completes the erasure"
                )
            if found is None:
                found = self._make(subject_id, key_file)
        if found is None:
            raise SealingError(f"{self._path(subject_id)}: the key was destroyed while it was being created; try again")
        return found

    def load(self, subject_ids: Iterable[str]) -> None:
        """Caches the keys of many subjects and creates missing ones; one flush of the directory makes all new names durable.

        Leaves out a subject whose key cannot be used; `get` raises the reason.
        """
        missing = []
        with self._changing:
            for subject_id in subject_ids:
                with suppress(SealingError):
                    if self._find(subject_id) is None:
                        missing.append(subject_id)
            if len(missing) < 2:
                with suppress(SealingError):
                    for subject_id in missing:
                        self._make(subject_id, None)
                return
            paths = {subject_id: self._path(subject_id) for subject_id in missing}
            # Files that are flushed at the same time share commits of the file system: a tenth of the time of one by one.
            with ThreadPoolExecutor(_WRITERS) as writers:
                drafts = [writers.submit(_write_draft, self.directory, path, None) for path in paths.values()]
            self._has_new_names = True
            linked = {}
            for (subject_id, path), draft in zip(paths.items(), drafts, strict=True):
                with suppress(SealingError):
                    linked[subject_id] = _link(draft.result(), path)
            for subject_id, content in linked.items():
                with suppress(SealingError):
                    self._use(subject_id, content)

    def kid_of(self, subject_id: str) -> str | None:
        """Id of the subject's key, or of the key that an unfinished erasure destroys; None: there is neither."""
        with self._changing:
            pending = self._erasure(subject_id)
            if pending is not None:
                return pending.kid
            key = self._read(subject_id)
        return key.kid if key is not None else None

    def begin_erasure(self, subject_id: str, begun_at: str, *, lost_kid: str | None = None) -> Erasure | None:
        """Records on disk that the subject's erasure has started. Returns it, or the one that had started already.

        Args:
            subject_id: the subject to erase
            begun_at: the present time, ISO
            lost_kid: id of the subject's key if the key file is already gone

        Returns:
            None if the subject has no key and `lost_kid` is None
        """
        with self._changing:
            found = self._erasure(subject_id)
            if found is not None:
                return found
            key = self._read(subject_id)
            kid = key.kid if key is not None else lost_kid
            if kid is None:
                return None
            begun = Erasure(subject_id, kid, begun_at)
            path = self._note_path(subject_id)
            text = json.dumps({"v": VERSION, "subject_id": subject_id, "kid": kid, "begun_at": begun_at})
            with _os_errors(path):
                path.parent.mkdir(mode=0o700, exist_ok=True)
                draft = path.with_suffix(".new")
                write_private(draft, text.encode(), replaces=True)
                draft.replace(path)
                sync_directory(path.parent)
                sync_directory(self.directory)  # the subdirectory of notes may be new
            self._forget(subject_id)
            return begun

    def key_file(self, subject_id: str) -> bytes | None:
        """The content of the subject's key file, a secret; None: there is no key, or it is being destroyed.

        Raises:
            SealingError: the key file cannot be read, or does not contain a key
        """
        with self._changing:
            if self._erasure(subject_id) is not None or self._read(subject_id) is None:
                return None
            return read_regular(self._path(subject_id), _MAX_FILE_BYTES, follows_links=False)

    def erasures(self) -> list[Erasure]:
        """The unfinished erasures, oldest first."""
        directory = self.directory / _ERASURES
        with _os_errors(directory):
            found = [self._noted(path) for path in directory.glob("*.json")] if directory.is_dir() else []
        return sorted(found, key=lambda each: (each.begun_at, each.subject_id))

    def destroy(self, subject_id: str) -> str | None:
        """Destroys the subject's key, so that nothing encrypted with it can be read again. Durable when it returns.

        Returns:
            id of the destroyed key; None: the subject had no key
        """
        with self._changing:
            pending = self._erasure(subject_id)
            # A crash may have left an overwritten key file; the note has the key's id then.
            key = self._read(subject_id) if pending is None else None
            self._forget(subject_id)
            path = Path(self._path(subject_id))
            with _os_errors(path):
                if path.exists():
                    _shred(path)
                if self.directory.is_dir():
                    sync_directory(self.directory)
        return pending.kid if pending is not None else key.kid if key is not None else None

    def end_erasure(self, subject_id: str) -> None:
        """Removes the note of an erasure that the ledgers have recorded. The subject may then get a new key."""
        path = self._note_path(subject_id)
        with self._changing, _os_errors(path):
            path.unlink(missing_ok=True)
            sync_directory(path.parent)

    def _find(self, subject_id: str) -> SubjectKey | Erasure | None:
        return self._erasure(subject_id) or self._use(subject_id)

    def _use(self, subject_id: str, content: bytes | None = None) -> SubjectKey | None:
        """Caches a key, once its name is on disk too; reads its file, unless its content is given."""
        key = self._read(subject_id, content)
        if key is not None:
            if self._has_new_names:
                with _os_errors(self.directory):
                    sync_directory(self.directory)
                self._has_new_names = False
            if len(self._recent) >= _CACHED_KEYS:
                self._older, self._recent = self._recent, {}
            self._recent[subject_id] = key
        return key

    def _forget(self, subject_id: str) -> None:
        self._recent.pop(subject_id, None)
        self._older.pop(subject_id, None)

    def _erasure(self, subject_id: str) -> Erasure | None:
        # Text, because building a `Path` takes longer than asking for the file.
        name = f"{self._prefix}{_ERASURES}{os.sep}{_digits(subject_id)}.json"
        return self._noted(Path(name)) if os.path.exists(name) else None

    def _noted(self, path: Path) -> Erasure:
        with _os_errors(path):
            text = read_regular(path, _MAX_FILE_BYTES, follows_links=False)
        try:
            stored = json.loads(text)
            noted = Erasure(str(stored["subject_id"]), str(stored["kid"]), str(stored["begun_at"]))
            own_path = self._note_path(noted.subject_id)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SealingError(f"{path}: is not the note of an erasure ({type(error).__name__}); remove it") from None
        if path != own_path:  # a copied or forged note must not destroy another subject's key
            raise SealingError(f"{path}: belongs to another subject than its file name says; remove it")
        return noted

    def _note_path(self, subject_id: str) -> Path:
        return self.directory / _ERASURES / f"{_digits(subject_id)}.json"

    def _path(self, subject_id: str) -> str:
        return f"{self._prefix}{_digits(subject_id)}.key"

    def _read(self, subject_id: str, content: bytes | None = None) -> SubjectKey | None:
        path = self._path(subject_id)
        with _os_errors(path):
            found = _read_key(path, content)
        if isinstance(
            found, str
        ):  # raised here, because no local variable of this frame holds the key, which a traceback could show
            raise SealingError(f"{path}: {found}")
        return found

    def _make(self, subject_id: str, content: bytes | None) -> SubjectKey | None:
        """Creates a key file and caches its key, or the one that another process has created meanwhile."""
        path = self._path(subject_id)
        draft = _write_draft(self.directory, path, content)
        self._has_new_names = True
        return self._use(subject_id, _link(draft, path))


def _digits(subject_id: str) -> str:
    """Names a subject's files: a hash, because an id may contain any character, and other users may see file names."""
    return hashlib.sha256(subject_id.encode()).hexdigest()


def _write_draft(directory: Path, path: str, content: bytes | None) -> tuple[str, bytes]:
    """Writes the content of a key file, by default a new key, to a file that is nobody's yet. It is on disk on return.

    Args:
        directory: where, made if it is missing
        path: the key file that it is for, which errors name
        content: the content; None: a new key

    Returns:
        the file and its content
    """
    kid = os.urandom(16).hex()
    if content is None:
        content = json.dumps({"v": VERSION, "kid": kid, "key": _encoded(os.urandom(_KEY_BYTES))}).encode()
    draft = f"{directory}{os.sep}.{kid}.new"
    with _os_errors(path):
        if not directory.is_dir():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_directory(directory.parent)
        write_private(draft, content)
    return draft, content


def _link(draft: tuple[str, bytes], path: str) -> bytes | None:
    """Makes a draft a key file, atomically; the name may not be on disk yet.

    Returns:
        the content; None: another process has created the key file meanwhile
    """
    written, content = draft
    with _os_errors(path):
        try:
            os.link(written, path)  # unlike rename, never replaces a key
        except FileExistsError:
            return None
        finally:
            os.unlink(written)
    return content


def _read_key(path: str, content: bytes | None) -> SubjectKey | str | None:
    """The key in a file, or in its content if that is known, or the problem with it as text; None: there is no file."""
    try:
        text = read_regular(path, _MAX_FILE_BYTES, follows_links=False) if content is None else content
    except FileNotFoundError:
        return None
    try:
        stored = json.loads(text)
        secret = decoded(stored["key"])
        kid = str(stored["kid"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"is not a key file ({type(error).__name__}); restore it from a backup"
    if len(secret) != _KEY_BYTES:
        return f"holds a key of {len(secret)} bytes instead of {_KEY_BYTES}; restore it from a backup"
    derived = hmac.digest(secret, b"kitchener/1 content digest", "sha256")
    return SubjectKey(kid, _cipher(secret), Mac(derived))


def _cipher(secret: bytes) -> Cipher:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise SealingError(
            "content is sealed, but `cryptography`, a part of the installation, cannot be imported:"
            " pip install --force-reinstall cryptography"
        ) from error
    return AESGCM(secret)


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: object) -> bytes:
    """The bytes of URL-safe base64 text without padding; raises TypeError or ValueError for anything else."""
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} is not text")
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _shred(path: Path) -> None:
    """Overwrites a file with zeros and removes it, because removing alone may leave the blocks on the disk."""
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.write(fd, b"\0" * min(os.fstat(fd).st_size, _MAX_FILE_BYTES))
        os.fsync(fd)
    finally:
        os.close(fd)
    path.unlink()


@contextmanager
def _os_errors(place: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        path = Path(place)
        where = Path(shown_path(str(path.parent))) / path.name
        raise SealingError(f"{where}: {error.strerror or error}{_REMEDY if error.strerror == NOT_REGULAR else ''}") from error
