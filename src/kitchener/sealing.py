"""Encrypts what a subject said under a key of its own, so that destroying the key erases it while every hash still holds.

Turns fields of a payload into sealed values and back. Knows which fields only because it is told, and nothing of ledgers.
Keys are files of a directory, which may live elsewhere than the ledgers. Needs the `crypto` extra. Explained in
`docs/ledger.md`.
"""

import hashlib
import hmac
import json
import os
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from kitchener.canonical import canonical_bytes
from kitchener.errors import SealingError
from kitchener.plain_names import shown_path
from kitchener.small_files import NOT_REGULAR, read_regular

MARK: Final = "$sealed"
"""The one key of a sealed value."""
_VERSION: Final = 1
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_CACHED_KEYS: Final = 4_096
_MAX_FILE_BYTES: Final = 65_536
"""How much of a key file or a note is read or overwritten; both are far smaller."""
_REMEDY: Final = "; remove it, and restore the file from a backup"
_ERASURES: Final = "erasing"
"""Directory within a keyring: the erasures that were begun and not finished."""


def is_sealed(value: object) -> bool:
    """Whether a field of a payload was not opened: its key is gone, or not at hand."""
    return isinstance(value, dict) and len(value) == 1 and MARK in value


class Cipher(Protocol):
    """What is needed of AES-256-GCM. The library is imported when the first keyring is made: most programs have none."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes) -> bytes:
        """The encrypted data and their tag."""
        ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes) -> bytes:
        """The data; raises InvalidTag where anything was changed."""
        ...


@dataclass(frozen=True, slots=True)
class SubjectKey:
    """One subject's key, ready to use."""

    kid: str
    """Names the key in sealed values: 32 random hex digits, which say nothing about the subject."""
    cipher: Cipher
    """Encrypts and decrypts."""
    mac_key: bytes
    """For digests of content."""

    def __repr__(self) -> str:
        return f"<SubjectKey {self.kid}>"  # never the key


@dataclass(frozen=True, slots=True)
class Erasure:
    """An erasure that was begun and not finished: from then on the subject's key opens and seals nothing."""

    subject_id: str
    """Who is being erased."""
    kid: str
    """The key that is destroyed."""
    begun_at: str
    """ISO time."""


class Keyring:
    """A directory with one key file per subject, readable by its owner alone.

    Its methods block when a key is not in memory, so they are called in worker threads (`Sealer.make_ready`). An erasure takes
    several steps, and a note in the directory `erasing` outlives a crash between them: `begin_erasure`, `destroy`, then
    whatever has to be recorded elsewhere, `end_erasure`. While the note is there, the key counts as destroyed.

    Args:
        directory: made when the first key is

    Raises:
        SealingError: the `crypto` extra is not installed
    """

    def __init__(self, directory: Path | str) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise SealingError(
                "a keyring is configured, but the `crypto` extra is not installed: pip install 'kitchener[crypto]'"
            ) from error
        self._cipher: Callable[[bytes], Cipher] = AESGCM
        self._directory = Path(directory)
        self._recent: dict[str, SubjectKey] = {}
        self._older: dict[str, SubjectKey] = {}
        # A thread that is reading a key must not put it back into memory after another one has destroyed it.
        self._changing = threading.Lock()

    def has(self, subject_id: str) -> bool:
        """Whether the subject's key is in memory, so that using it does not block."""
        return subject_id in self._recent or subject_id in self._older

    def find(self, subject_id: str) -> SubjectKey | None:
        """The subject's key, or None if there is none (any more).

        Raises:
            SealingError: the key file cannot be read, or is not one
        """
        key = self._recent.get(subject_id) or self._older.get(subject_id)
        if key is None:
            with self._changing:
                key = self._load(subject_id)
        return key

    def get(self, subject_id: str) -> SubjectKey:
        """The subject's key, made if there is none.

        Raises:
            SealingError: the key file cannot be read or made, or the subject is being erased
        """
        key = self.find(subject_id)
        if key is None:
            with self._changing:
                if self._erasure(subject_id) is not None:
                    raise SealingError(
                        f"subject {subject_id!r} is being erased, so nothing can be sealed for them;"
                        f" `kitchener subject erase {subject_id}` finishes it"
                    )
                self._make(subject_id)
                key = self._load(subject_id)
        if key is None:
            raise SealingError(f"{self._path(subject_id)}: the key was destroyed while it was being made; try again")
        return key

    def kid_of(self, subject_id: str) -> str | None:
        """The kid of the key that the subject has, or that is being destroyed; None: there is none (any more)."""
        with self._changing:
            pending = self._erasure(subject_id)
            if pending is not None:
                return pending.kid
            key = self._read(subject_id)
        return key.kid if key is not None else None

    def begin_erasure(self, subject_id: str, begun_at: str, *, lost_kid: str | None = None) -> Erasure | None:
        """Notes durably that the subject is being erased; the one that was begun already, if there is one.

        Args:
            subject_id: who
            begun_at: ISO time
            lost_kid: the key's kid, where the key itself is gone already

        Returns:
            None if the subject has no key and `lost_kid` names none
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
            text = json.dumps({"v": _VERSION, "subject_id": subject_id, "kid": kid, "begun_at": begun_at})
            with _os_errors(path):
                _write_whole(path, text.encode())
                _sync_directory(self._directory)  # which may have got its directory of notes just now
            self._forget(subject_id)
            return begun

    def erasures(self) -> list[Erasure]:
        """The erasures that were begun and not finished, oldest first."""
        directory = self._directory / _ERASURES
        with _os_errors(directory):
            found = [self._noted(path) for path in directory.glob("*.json")] if directory.is_dir() else []
        return sorted(found, key=lambda each: (each.begun_at, each.subject_id))

    def destroy(self, subject_id: str) -> str | None:
        """Destroys the subject's key: what was sealed under it can never be read again. Durable when it returns.

        Returns:
            the destroyed key's kid, or None if the subject had no key
        """
        with self._changing:
            pending = self._erasure(subject_id)
            # A crash may have left the file overwritten and there; what it was is in the note then.
            key = self._read(subject_id) if pending is None else None
            self._forget(subject_id)
            path = self._path(subject_id)
            with _os_errors(path):
                if path.exists():
                    _shred(path)
                if self._directory.is_dir():
                    _sync_directory(self._directory)
        return pending.kid if pending is not None else key.kid if key is not None else None

    def end_erasure(self, subject_id: str) -> None:
        """Takes the note away: the erasure is on record. From now on the subject may get another key."""
        path = self._note_path(subject_id)
        with self._changing, _os_errors(path):
            path.unlink(missing_ok=True)
            _sync_directory(path.parent)

    def _load(self, subject_id: str) -> SubjectKey | None:
        return self._keep(subject_id, self._read(subject_id)) if self._erasure(subject_id) is None else None

    def _forget(self, subject_id: str) -> None:
        self._recent.pop(subject_id, None)
        self._older.pop(subject_id, None)

    def _erasure(self, subject_id: str) -> Erasure | None:
        path = self._note_path(subject_id)
        return self._noted(path) if path.exists() else None

    def _noted(self, path: Path) -> Erasure:
        with _os_errors(path):
            text = read_regular(path, _MAX_FILE_BYTES, follows_links=False)
        try:
            stored = json.loads(text)
            noted = Erasure(str(stored["subject_id"]), str(stored["kid"]), str(stored["begun_at"]))
            own_path = self._note_path(noted.subject_id)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SealingError(f"{path}: is not the note of an erasure ({type(error).__name__})") from None
        if path != own_path:  # a copy of a note, or one that somebody made up: it must not have another key destroyed
            raise SealingError(f"{path}: is the note of another subject's erasure than its name says; remove it")
        return noted

    def _note_path(self, subject_id: str) -> Path:
        return self._directory / _ERASURES / f"{self._path(subject_id).stem}.json"

    def _path(self, subject_id: str) -> Path:
        # A hash: subject ids may hold anything, and file names are seen by many.
        return self._directory / f"{hashlib.sha256(subject_id.encode()).hexdigest()}.key"

    def _keep(self, subject_id: str, key: SubjectKey | None) -> SubjectKey | None:
        if key is not None:
            if len(self._recent) >= _CACHED_KEYS:
                self._older, self._recent = self._recent, {}
            self._recent[subject_id] = key
        return key

    def _read(self, subject_id: str) -> SubjectKey | None:
        path = self._path(subject_id)
        with _os_errors(path):
            found = self._read_file(path)
        if isinstance(found, str):  # raised from here, where no name holds a key that a traceback could show
            raise SealingError(f"{path}: {found}")
        return found

    def _read_file(self, path: Path) -> SubjectKey | str | None:
        """The key in a file, or what is wrong with the file; None where there is none."""
        try:
            text = read_regular(path, _MAX_FILE_BYTES, follows_links=False)
        except FileNotFoundError:
            return None
        try:
            stored = json.loads(text)
            secret = _decoded(stored["key"])
            kid = str(stored["kid"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return f"is not a key file ({type(error).__name__}); restore it from a backup"
        if len(secret) != _KEY_BYTES:
            return f"holds a key of {len(secret)} bytes instead of {_KEY_BYTES}; restore it from a backup"
        return SubjectKey(kid, self._cipher(secret), hmac.digest(secret, b"kitchener/1 content digest", "sha256"))

    def _make(self, subject_id: str) -> None:
        """Makes a key file, whole or not at all; does nothing where another process was faster."""
        kid = os.urandom(16).hex()
        text = json.dumps({"v": _VERSION, "kid": kid, "key": _encoded(os.urandom(_KEY_BYTES))}).encode()
        path = self._path(subject_id)
        draft = self._directory / f".{kid}.new"
        with _os_errors(path):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                try:
                    os.write(fd, text)
                    os.fsync(fd)
                finally:
                    os.close(fd)
                os.link(draft, path)  # unlike rename, never replaces a key
            except FileExistsError:
                pass
            finally:
                draft.unlink()
            _sync_directory(self._directory)


class Sealer:
    """Seals and opens the fields of payloads that hold what a subject said.

    Args:
        keyring: the subjects' keys
        sealed_fields: which fields of which entry type are sealed
    """

    def __init__(self, keyring: Keyring, sealed_fields: Mapping[str, tuple[str, ...]]) -> None:
        self.keyring = keyring
        self._fields = sealed_fields

    def is_ready(self, entry_type: str, payload: Mapping[str, object]) -> bool:
        """Whether sealing this payload would not block. What has nothing to seal needs no key, and makes none."""
        subject_id = payload.get("subject_id")
        if not isinstance(subject_id, str) or self.keyring.has(subject_id):
            return True
        return all(payload.get(field) is None for field in self._fields.get(entry_type, ()))

    def make_ready(self, payload: Mapping[str, object]) -> None:
        """Fetches or makes the key of the payload's subject. Blocks."""
        subject_id = payload.get("subject_id")
        if isinstance(subject_id, str):
            self.keyring.get(subject_id)

    def seal(self, ledger_id: str, entry_type: str, payload: dict[str, object]) -> dict[str, object]:
        """The payload with its sealed fields encrypted; itself where there are none. None stays None.

        Raises:
            SealingError: there is something to seal, but no subject whose key to use
            EntryRefused: a value has no canonical form
        """
        fields = [field for field in self._fields.get(entry_type, ()) if payload.get(field) is not None]
        if not fields:
            return payload
        subject_id = payload.get("subject_id")
        if not isinstance(subject_id, str):
            raise SealingError(
                f"{entry_type}: {fields[0]} is to be sealed, but the payload names no subject_id; nothing was written"
            )
        key, sealed = self.keyring.get(subject_id), dict(payload)
        for field in fields:
            nonce = os.urandom(_NONCE_BYTES)
            plain = canonical_bytes(payload[field], at=f"payload.{field}")
            text = key.cipher.encrypt(nonce, plain, _bound_to(ledger_id, entry_type, field))
            sealed[field] = {MARK: {"v": _VERSION, "kid": key.kid, "nonce": _encoded(nonce), "ct": _encoded(text)}}
        return sealed

    def open(self, ledger_id: str, entry_type: str, payload: dict[str, object]) -> dict[str, object]:
        """The payload with its sealed fields decrypted; those whose key is gone stay sealed.

        Raises:
            SealingError: a sealed value was changed, or was moved here from elsewhere
        """
        opened: dict[str, object] | None = None
        for field in self._fields.get(entry_type, ()):
            value = payload.get(field)
            if isinstance(value, dict) and len(value) == 1 and MARK in value:
                key = self._key_of(payload, value[MARK])
                if key is not None:
                    if opened is None:
                        opened = dict(payload)
                    opened[field] = _unsealed(key, value[MARK], ledger_id, entry_type, field)
        return payload if opened is None else opened

    def content_digest(self, subject_id: str, data: bytes) -> str:
        """`hmac-sha256:` and hex digits under the subject's key: of use only to those who have the key."""
        return f"hmac-sha256:{hmac.digest(self.keyring.get(subject_id).mac_key, data, 'sha256').hex()}"

    def _key_of(self, payload: Mapping[str, object], sealed: object) -> SubjectKey | None:
        subject_id = payload.get("subject_id")
        if not isinstance(subject_id, str) or not isinstance(sealed, dict):
            return None
        key = self.keyring.find(subject_id)
        # The subject may have a newer key than the one this was sealed under, which is destroyed then.
        return key if key is not None and key.kid == sealed.get("kid") else None


def _unsealed(key: SubjectKey, sealed: Mapping[str, Any], ledger_id: str, entry_type: str, field: str) -> Any:
    from cryptography.exceptions import InvalidTag

    where = f"{ledger_id}: {entry_type}.{field}"
    if sealed.get("v") != _VERSION:
        raise SealingError(
            f"{where}: sealed in version {sealed.get('v')!r}; this version of Kitchener opens {_VERSION}, use a newer one"
        )
    try:
        nonce, text = _decoded(sealed["nonce"]), _decoded(sealed["ct"])
        return orjson.loads(key.cipher.decrypt(nonce, text, _bound_to(ledger_id, entry_type, field)))
    except (InvalidTag, KeyError, ValueError, TypeError) as error:
        raise SealingError(
            f"{where}: the sealed value was changed or moved here from another entry type, field or ledger (key {key.kid})"
        ) from error


def _bound_to(ledger_id: str, entry_type: str, field: str) -> bytes:
    return canonical_bytes([ledger_id, entry_type, field])


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _shred(path: Path) -> None:
    """Overwrites a file, then removes it: a file system that reuses the blocks in place holds no copy either."""
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.write(fd, b"\0" * min(os.fstat(fd).st_size, _MAX_FILE_BYTES))
        os.fsync(fd)
    finally:
        os.close(fd)
    path.unlink()


def _write_whole(path: Path, data: bytes) -> None:
    """A file with this content, durable and whole or not there at all; its directory is made."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_suffix(".new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    draft.replace(path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = Path(shown_path(str(path.parent))) / path.name
        raise SealingError(f"{where}: {error.strerror or error}{_REMEDY if error.strerror == NOT_REGULAR else ''}") from error
