"""Stores keys on disk, found by a digest of their subject, and destroys them one by one.

New keys are written together to one *batch*, a file of slots of equal size that changes only when a key is destroyed. Each key
also has a *name*: a symbolic link whose text says which slot of which batch holds the key. The text is read; the link is never
followed. A copy of the directory keeps links as they are, so it holds each key once. Older keys have a file each, which is read
and destroyed, but no longer written. This module knows nothing of ciphers, and caches nothing. `docs/erasure.md` describes the
format.
"""

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson

from kitchener.errors import SealingError
from kitchener.plain_names import shown_path
from kitchener.sealing.batch_mark import BATCH_SUFFIX, finish_left, marked
from kitchener.sealing.subject_key import KEY_BYTES, decoded, encoded
from kitchener.small_files import NOT_REGULAR, is_directory, problem_and_remedy, read_regular, sync_directory, write_private

KEYS_IN_BATCH: Final = 512
"""Most slots of a batch."""
MAX_FILE_BYTES: Final = 65_536
"""Most bytes of a file with one key, or of a note, that are read or overwritten; both are much smaller."""
_BATCHES: Final = "batches"
_SLOT_BYTES: Final = 256
"""A divisor of a sector's size, so no slot extends over two sectors."""
_MAX_BATCH_BYTES: Final = KEYS_IN_BATCH * _SLOT_BYTES
_PLACE: Final = re.compile(r"batches/([0-9a-f]{32}\.keys):(0|[1-9][0-9]{0,2})", re.ASCII)
_OWN_NAME: Final = re.compile(r"[0-9a-f]{32,64}(?:\.[a-z]+)*", re.ASCII)
_KID_BYTES: Final = 16
_RANDOM_BYTES: Final = KEY_BYTES + _KID_BYTES
_REMEDY: Final = "; remove it, and restore the file from a backup"


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key as it is on disk."""

    kid: str
    secret: bytes = field(repr=False)

    def file(self) -> bytes:
        """A file with this key alone, which every version of Kitchener can read."""
        return json.dumps({"v": 1, "kid": self.kid, "key": encoded(self.secret)}).encode()


@dataclass(frozen=True, slots=True)
class Vacancy:
    """A name without its key: the key's destruction was interrupted, or its batch is missing."""

    problem: str
    """Which of the two happened, to which path, and what to do."""


class KeyFiles:
    """The files of the keys in one directory, which only its owner can read.

    Another process may create and destroy keys at the same time. Everything here blocks, and threads take turns.

    Args:
        directory: created with the first key
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._prefix = f"{directory}{os.sep}"
        self._batches = directory / _BATCHES
        self._settled_ns: int | None = None
        self._has_finished_left = False

    def path(self, digest: str) -> str:
        """The file of a subject's key."""
        return f"{self._prefix}{digest}.key"

    def find(self, digest: str) -> StoredKey | Vacancy | None:
        """The key of a subject. Its name may not be on disk yet; see `settle`.

        Raises:
            SealingError: its file cannot be read, or does not hold this subject's key
        """
        path = self.path(digest)
        try:
            found = self._read(path, digest)
        except OSError as error:
            raise _translated(error, path) from error
        if isinstance(found, str):  # raised here, where no local variable holds the key: a traceback may show them
            raise SealingError(f"{path}: {found}")
        return found

    def add(self, wanted: Mapping[str, StoredKey | None]) -> dict[str, StoredKey]:
        """Makes keys of subjects that have none, and their names, durably.

        Args:
            wanted: at most `KEYS_IN_BATCH` keys by digest; None: a new one

        Returns:
            the keys that were made; another process has made the others in the meantime

        Raises:
            SealingError: no key can be made
        """
        batch, keys = self._batches / f"{os.urandom(_KID_BYTES).hex()}{BATCH_SUFFIX}", _with_new_ones(wanted)
        slots = b"".join([_slot(digest, key) for digest, key in keys.items()])
        with os_errors(batch):
            self._make_directories()
            if not self._has_finished_left:
                with suppress(OSError):  # `destroy` says what is wrong
                    self._finish_left()
            with marked(batch):
                write_private(batch, slots)
                sync_directory(self._batches)  # so no name can be on disk without its batch, and no batch without its mark
                unused, problem = self._name(batch.name, list(keys))
                if unused:
                    _clear(batch, list(unused.values()))
                self.settle()  # so no mark can be gone without the names
        if problem is not None and len(unused) == len(keys):
            raise _translated(problem, self.path(next(iter(keys)))) from problem
        return {digest: key for digest, key in keys.items() if digest not in unused}

    def settle(self) -> None:
        """Returns when the names of all keys that were found or made are on disk, including those that other processes made.

        Raises:
            SealingError: the names cannot be written
        """
        with os_errors(self._directory):
            # Read before the names are written, so a name made in between counts as a change.
            changed_ns = os.stat(self._directory).st_mtime_ns
            if changed_ns != self._settled_ns:
                sync_directory(self._directory)
                self._settled_ns = changed_ns

    @property
    def is_settled(self) -> bool:
        """Whether no process has made or removed a name since `settle`."""
        try:
            return os.stat(self._directory).st_mtime_ns == self._settled_ns
        except OSError:
            return False

    def destroy(self, digest: str) -> None:
        """Overwrites a key, and removes its name. Durable when it returns. No error if there is no such key.

        Raises:
            SealingError: a file cannot be written, or the name leads to another subject's key
        """
        path = self.path(digest)
        with os_errors(path):
            try:
                place = _PLACE.fullmatch(os.readlink(path))
            except FileNotFoundError:
                place = None
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                _shred(path)
            else:
                self._destroy_slot(path, place, digest)
            if is_directory(self._directory):
                sync_directory(self._directory)
            # The key may stand in a batch that a crash left without names: an imported key that was imported again.
            self._finish_left()

    def _finish_left(self) -> None:
        """Overwrites the keys that a crash left without a name. Nothing can have been encrypted with them here."""
        finish_left(self._batches, self._clear_nameless)
        self._has_finished_left = True

    def _clear_nameless(self, batch: Path) -> None:
        with suppress(FileNotFoundError):  # it was never written, or was removed with its last key
            found = read_regular(batch, _MAX_BATCH_BYTES, follows_links=False)
            slots = range((len(found) + _SLOT_BYTES - 1) // _SLOT_BYTES)
            texts = [found[each * _SLOT_BYTES : (each + 1) * _SLOT_BYTES] for each in slots]
            _clear(batch, [each for each in slots if texts[each].strip(b"\0") and not self._has_name(batch, each, texts[each])])

    def _has_name(self, batch: Path, slot: int, text: bytes) -> bool:
        """Whether the name of the subject in a slot leads to this slot."""
        try:
            name = self.path(str(json.loads(text)["subject"]))
        except (ValueError, KeyError, TypeError, RecursionError):  # it was not written to its end
            return False
        try:
            return os.readlink(name) == f"{_BATCHES}/{batch.name}:{slot}"
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno == errno.EINVAL:  # a file with a key of its own
                return False
            raise  # the name cannot be read, so the key stays

    def _destroy_slot(self, path: str, place: re.Match[str] | None, digest: str) -> None:
        if place is None:
            raise SealingError(f"{path}: {_NO_PLACE}")
        batch, slot = self._batches / place[1], int(place[2])
        try:
            found = _key_in(_slot_of(batch, slot), digest)
        except FileNotFoundError:
            found = None
        if found == _OTHERS:
            raise SealingError(f"{path}: {_OTHERS}")
        if found is None:
            os.unlink(path)
            return
        # The name is removed before the batch, so no name is left without its batch.
        _overwrite(batch, [slot])
        os.unlink(path)
        _remove_if_empty(batch)

    def _read(self, path: str, digest: str) -> StoredKey | Vacancy | str | None:
        """The key, or what is wrong as text."""
        for _ in range(2):
            try:
                link = os.readlink(path)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                return self._read_single(path)
            place = _PLACE.fullmatch(link)
            if place is None:
                return _NO_PLACE
            try:
                found = _key_in(_slot_of(self._batches / place[1], int(place[2])), digest)
            except FileNotFoundError:
                found = None
            if found is not None:
                return found
            # Another process may have destroyed the key between the two steps; then its name is gone now.
        return Vacancy(
            f"{path}: its key is not in {_BATCHES} any more. If it was not to be destroyed, restore the keyring from a"
            " backup; otherwise erase the subject again, which completes it"
        )

    def _read_single(self, path: str) -> StoredKey | Vacancy | str | None:
        try:
            text = read_regular(path, MAX_FILE_BYTES, follows_links=False)
        except FileNotFoundError:
            return None
        found = _key_in(text, None)
        return (
            found
            if found is not None
            else Vacancy(f"{path}: its key was overwritten; erase the subject again, which completes it")
        )

    def _make_directories(self) -> None:
        if is_directory(self._batches):
            return
        if not is_directory(self._directory):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_directory(self._directory.parent)
        self._batches.mkdir(mode=0o700, exist_ok=True)
        sync_directory(self._directory)

    def _name(self, batch: str, digests: Sequence[str]) -> tuple[dict[str, int], OSError | None]:
        """Gives keys their names. Each name appears atomically, and never replaces another.

        Returns:
            the slots of the keys that got no name, by digest, and the error that stopped it
        """
        unused, problem = dict[str, int](), None
        for slot, digest in enumerate(digests):
            if problem is None:
                try:
                    os.symlink(f"{_BATCHES}/{batch}:{slot}", self.path(digest))
                    continue
                except FileExistsError:
                    pass
                except OSError as error:
                    problem = error
            unused[digest] = slot
        return unused, problem


_NO_PLACE: Final = f"is a link to something other than a key{_REMEDY}"
_OTHERS: Final = f"leads to the key of another subject{_REMEDY}"


def key_in_file(content: bytes) -> StoredKey:
    """The key in the content of a file with one key, as `StoredKey.file` returns it.

    Raises:
        SealingError: the content holds no key
    """
    found = _key_in(content, None)
    if isinstance(found, StoredKey):
        return found
    raise SealingError(f"the key to import {found or 'was overwritten; export it again'}")


@contextmanager
def os_errors(place: Path | str) -> Iterator[None]:
    """Turns an error of the operating system into a `SealingError` that names the file."""
    try:
        yield
    except OSError as error:
        raise _translated(error, place) from error


def _translated(error: OSError, place: Path | str) -> SealingError:
    error.with_traceback(None)  # its frames may hold a key, which a traceback with local variables would show
    named = error.filename2 or error.filename  # of a link that cannot be made, the first one is its text
    path = Path(named if isinstance(named, str) else place)
    # Names that this module gives look like keys, and are none. The directory's name is a user's.
    is_own_name = _OWN_NAME.fullmatch(path.name) is not None
    where = Path(shown_path(str(path.parent))) / path.name if is_own_name else shown_path(str(path))
    return SealingError(f"{where}: {problem_and_remedy(error)}{_REMEDY if error.strerror == NOT_REGULAR else ''}")


def _with_new_ones(wanted: Mapping[str, StoredKey | None]) -> dict[str, StoredKey]:
    random = os.urandom(_RANDOM_BYTES * len(wanted))
    keys = dict[str, StoredKey]()
    for at, (digest, key) in zip(range(0, len(random), _RANDOM_BYTES), wanted.items(), strict=True):
        drawn = random[at : at + _RANDOM_BYTES]
        keys[digest] = key or StoredKey(drawn[:_KID_BYTES].hex(), drawn[_KID_BYTES:])
    return keys


def _slot(digest: str, key: StoredKey) -> bytes:
    """A slot that holds a key: a line of JSON, padded with spaces."""
    text = orjson.dumps({"v": 2, "subject": digest, "kid": key.kid, "key": encoded(key.secret)})
    if len(text) >= _SLOT_BYTES:
        raise SealingError(f"a key has an id of {len(key.kid)} characters, which is too long; it cannot be imported")
    return text.ljust(_SLOT_BYTES - 1) + b"\n"


def _slot_of(batch: Path, slot: int) -> bytes:
    return read_regular(batch, _SLOT_BYTES, start=slot * _SLOT_BYTES, follows_links=False)


def _key_in(text: bytes, digest: str | None) -> StoredKey | str | None:
    """The key in a slot or in its own file, or the problem with it as text; None: it was overwritten.

    Args:
        text: the content of the slot or file
        digest: the subject that a slot must name; None: the key has its own file, whose name is the digest
    """
    if not text.strip(b"\0") and (text or digest is not None):
        return None
    try:
        stored = json.loads(text)
        secret, kid, subject = decoded(stored["key"]), str(stored["kid"]), stored.get("subject")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"is not a key file ({type(error).__name__}); restore it from a backup"
    if digest is not None and subject != digest:
        return _OTHERS
    if len(secret) != KEY_BYTES:
        return f"holds a key of {len(secret)} bytes instead of {KEY_BYTES}; restore it from a backup"
    return StoredKey(kid, secret)


def _clear(batch: Path, slots: Sequence[int]) -> None:
    """Overwrites unused slots, and removes the batch if no key is left in it."""
    _overwrite(batch, slots)
    _remove_if_empty(batch)


def _overwrite(batch: Path, slots: Sequence[int]) -> None:
    """Writes zeros in place, durably, because a file that is only removed may leave its blocks on the disk."""
    fd = os.open(batch, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        for slot in slots:
            os.pwrite(fd, bytes(_SLOT_BYTES), slot * _SLOT_BYTES)
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove_if_empty(batch: Path) -> None:
    """Removes a batch without keys. One whose names are still being made has keys in all its slots."""
    with suppress(FileNotFoundError):  # another process removed it
        if not read_regular(batch, _MAX_BATCH_BYTES + 1, follows_links=False).strip(b"\0"):
            os.unlink(batch)


def _shred(path: str) -> None:
    """Overwrites a file with one key, and removes it."""
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.write(fd, b"\0" * min(os.fstat(fd).st_size, MAX_FILE_BYTES))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.unlink(path)
