"""Stores the bytes of images and files beside the ledgers: once for each subject, by their hash, sealed where content is.

A file is `blobs/<subject>/<two digits>/<digits of the hash>`. It is on disk before an entry names it, so a crash between them
leaves at most a file that no entry names. Equal content of two subjects is stored twice: a shared file would tell one subject
what another has, and could not be erased. All methods block. This module knows no ledgers. Explained in `docs/content.md`.
"""

import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from kitchener.canonical import Opening, canonical_bytes, digest
from kitchener.errors import InvalidPart, PartDamaged
from kitchener.sealing import Sealer, SubjectKey
from kitchener.sealing.subject_key import NONCE_BYTES, subject_folder
from kitchener.small_files import is_directory, read_regular, replace_private, sync_directory

FOLDER: Final = "blobs"
"""The directory under a root."""
_HEAD: Final = b"kitchener-part/1 "
"""The start of every stored file; `plain`, or the id of the key, and a line feed follow."""
_PLAIN: Final = "plain"
_MOST_HEAD: Final = 128
_TAG_BYTES: Final = 16
_NONCE_OPENING: Final = Opening(b"kitchener/1 part nonce")
"""Derives the nonce of a stored part, beside its content hash."""
MAX_STORED_BYTES: Final = 268_500_000
"""Largest file that is read, bytes; settings allow no larger part."""
_HASH: Final = re.compile(r"(?:hmac-)?sha256:[0-9a-f]{64}")


def is_content_hash(text: str) -> bool:
    """Whether a text has the form of a content's hash. Entries of other programs may name anything."""
    return _HASH.fullmatch(text) is not None


class ContentStore:
    """The stored content of one root.

    Args:
        root: the directory of the ledgers
        sealer: seals content; None: it is stored in plain form, and none was ever sealed
        max_bytes: most bytes of all stored files; None: no bound, for reading
    """

    def __init__(self, root: Path | str, sealer: Sealer | None, max_bytes: int | None = None) -> None:
        self.directory = Path(root) / FOLDER
        self._sealer, self._max_bytes = sealer, max_bytes
        self._total: int | None = None
        self._writing = threading.Lock()
        self._put = set[Path]()

    def path(self, subject_id: str, content_hash: str) -> Path:
        """Where content of a subject is stored, whether it is there or not."""
        if not is_content_hash(content_hash):
            raise PartDamaged(str(self.directory), content_hash[:80], "its hash has no valid form")
        digits = content_hash.rpartition(":")[2]
        return self._folder(subject_id) / digits[:2] / digits[2:]

    def hash_of(self, subject_id: str, data: bytes) -> str:
        """The hash by which content of a subject is stored; keyed where content is sealed."""
        sealer = self._sealer
        return sealer.content_digest(subject_id, data) if sealer is not None and sealer.seals else digest(data)

    def put(self, subject_id: str, data: bytes) -> tuple[str, str]:
        """Stores content and returns the hashes of the content and of the file. The file and its name are on disk then.

        Content that is there already is not written again. A damaged file of the same content is replaced.

        Raises:
            InvalidPart: `max_bytes` leaves no room
            OSError: the file cannot be written
            SealingError: the subject has no usable key
        """
        content_hash = self.hash_of(subject_id, data)
        path, stored = self.path(subject_id, content_hash), self._encoded(subject_id, content_hash, data)
        with self._writing:
            self._put.add(path)
            if _read(path) != stored:
                self._store(path, stored)
        return content_hash, digest(stored)

    def get(self, subject_id: str, content_hash: str) -> bytes:
        """The content of a subject with this hash.

        Raises:
            PartDamaged: the file is missing or was changed, or its key is gone
        """
        path = self.path(subject_id, content_hash)
        stored = _read(path)
        if stored is None:
            raise PartDamaged(str(path), content_hash, "the file is missing")
        data = self._decoded(path, subject_id, content_hash, stored)
        if not self._fits(subject_id, content_hash, data):
            raise PartDamaged(str(path), content_hash, "the file was changed")
        return data

    def problem(self, subject_id: str, content_hash: str, stored_hash: str) -> str | None:
        """What is wrong with a stored file; None: nothing is. Needs no key.

        Args:
            subject_id: the subject
            content_hash, stored_hash: as an entry names them
        """
        try:
            stored = _read(self.path(subject_id, content_hash))
        except PartDamaged as error:
            return error.problem
        if stored is None:
            return "the file is missing"
        return None if digest(stored) == stored_hash else "the file was changed"

    def copy_in(self, subject_id: str, content_hash: str, stored: bytes) -> None:
        """Stores a file of another root as it is, such as one of an imported session.

        Raises:
            PartDamaged: the file has other content than its hash says, or nobody can tell without the key and another file is
                here; what is here stays as it is
            InvalidPart: `max_bytes` leaves no room
            OSError: the file cannot be written
        """
        path = self.path(subject_id, content_hash)
        with self._writing:
            there = _read(path)
            if there == stored:
                return
            if not self._is_content(path, subject_id, content_hash, stored, is_new=there is None):
                raise PartDamaged(str(path), content_hash, "the file to store is not the content of this hash")
            self._store(path, stored)

    def stored(self, subject_id: str, content_hash: str) -> bytes | None:
        """A stored file as it is; None: it is missing."""
        return _read(self.path(subject_id, content_hash))

    def erase(self, subject_id: str) -> int:
        """Removes all content of a subject and returns how many files there were. Durable when it returns."""
        folder = self._folder(subject_id)
        with self._writing:
            self._total = None
            if not os.path.lexists(folder):
                return 0
            if folder.is_symlink():
                folder.unlink()
                count = 0
            else:
                count = sum(1 for _ in _files(folder))
                shutil.rmtree(folder)
            sync_directory(self.directory)
        return count

    def remove_unnamed(self, paths: Iterable[Path]) -> tuple[Path, ...]:
        """Removes files that no entry named, and returns them. What `put` was given stays: an entry is about to name it."""
        with self._writing:
            self._total = None
            removed = tuple(each for each in paths if each not in self._put)
            for each in removed:
                each.unlink(missing_ok=True)
        return removed

    def files(self) -> Iterator[Path]:
        """Every file under the directory, in no order, also those that a crash left unfinished."""
        yield from _files(self.directory)

    def _folder(self, subject_id: str) -> Path:
        return self.directory / subject_folder(subject_id)

    def _store(self, path: Path, stored: bytes) -> None:
        self._take_room(len(stored))
        try:
            self._write(path, stored)
        except BaseException:
            self._total = None  # counted again: the room was not used
            raise

    def _take_room(self, size: int) -> None:
        if self._max_bytes is None:
            return
        if self._total is None:
            self._total = sum(each.lstat().st_size for each in self.files())
        if self._total + size > self._max_bytes:
            raise InvalidPart(
                f"parts: the root has {self._total:,} bytes of images and files, and {size:,} more exceed"
                f" limits.max_content_bytes = {self._max_bytes:,}; raise it, or erase subjects who have left"
            )
        self._total += size

    def _write(self, path: Path, stored: bytes) -> None:
        made = [each for each in (self.directory, path.parent.parent, path.parent) if not is_directory(each)]
        for each in made:
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_directory(each.parent)
        replace_private(path, stored)

    def _encoded(self, subject_id: str, content_hash: str, data: bytes) -> bytes:
        if self._sealer is None or not self._sealer.seals:
            return _HEAD + f"{_PLAIN}\n".encode() + data
        key = self._sealer.keyring.get(subject_id)
        # Derived from the content, so that equal content is stored once; no two contents of a key share a nonce.
        nonce = key.mac.digest(data, _NONCE_OPENING)[:NONCE_BYTES]
        sealed = key.cipher.encrypt(nonce, data, _bound_to(content_hash))
        return _HEAD + f"{key.kid}\n".encode() + nonce + sealed

    def _decoded(self, path: Path, subject_id: str, content_hash: str, stored: bytes) -> bytes:
        head = stored[:_MOST_HEAD].partition(b"\n")[0]
        if not head.startswith(_HEAD):
            raise PartDamaged(str(path), content_hash, "the file was changed")
        body, kid = stored[len(head) + 1 :], head[len(_HEAD) :].decode(errors="replace")
        if kid == _PLAIN:
            return body
        key = self._key(subject_id, kid)
        if key is None:
            raise PartDamaged(str(path), content_hash, "its key is not here, or was destroyed with its subject")
        return _opened(path, key, content_hash, body)

    def _is_content(self, path: Path, subject_id: str, content_hash: str, stored: bytes, *, is_new: bool) -> bool:
        """Whether a stored file has the content of a hash; `is_new`: the answer where the key to tell is not here."""
        key = self._sealer.keyring.find(subject_id) if self._sealer is not None else None
        if not content_hash.startswith("sha256:") and key is None:
            return is_new
        try:
            return self._fits(subject_id, content_hash, self._decoded(path, subject_id, content_hash, stored))
        except PartDamaged:
            return False

    def _key(self, subject_id: str, kid: str) -> SubjectKey | None:
        key = self._sealer.keyring.find(subject_id) if self._sealer is not None else None
        return key if key is not None and key.kid == kid else None

    def _fits(self, subject_id: str, content_hash: str, data: bytes) -> bool:
        if content_hash.startswith("sha256:"):
            return digest(data) == content_hash
        key = self._sealer.keyring.find(subject_id) if self._sealer is not None else None
        return key is not None and content_hash == f"hmac-sha256:{key.mac.digest(data).hex()}"


def _opened(path: Path, key: SubjectKey, content_hash: str, body: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag

    if len(body) < NONCE_BYTES + _TAG_BYTES:
        raise PartDamaged(str(path), content_hash, "the file was changed")
    try:
        return key.cipher.decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], _bound_to(content_hash))
    except InvalidTag:
        raise PartDamaged(str(path), content_hash, "the file was changed") from None


def _bound_to(content_hash: str) -> bytes:
    return canonical_bytes(["part", content_hash])


def _read(path: Path) -> bytes | None:
    """A stored file; None: there is none, or something else has its name."""
    try:
        return read_regular(path, MAX_STORED_BYTES, follows_links=False)
    except OSError:
        return None


def _files(folder: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(folder):
        yield from (Path(at) / name for name in names)
        yield from (Path(at) / name for name in folders if (Path(at) / name).is_symlink())
