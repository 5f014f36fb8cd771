"""Turns subject ids into keys: creates, loads and destroys one key per subject, and notes which erasures are unfinished.

The keys are in one directory, the keyring, which may be on another disk than the ledgers. A key is on disk before it can be
used, so no sealed content becomes durable without its key. Explained in `docs/erasure.md`.
"""

import json
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from kitchener.errors import SealingError
from kitchener.sealing.key_files import (
    KEYS_IN_BATCH,
    MAX_FILE_BYTES,
    KeyFiles,
    StoredKey,
    key_in_file,
    os_errors,
)
from kitchener.sealing.subject_key import SubjectKey, subject_digits, subject_key
from kitchener.small_files import is_there, read_regular, replace_private, sync_directory

_NOTE_VERSION: Final = 1
_CACHED_KEYS: Final = 4_096
_ERASURES: Final = "erasing"
"""Subdirectory of a keyring with one note for each unfinished erasure."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """An unfinished erasure. The subject's key can no longer encrypt or decrypt."""

    subject_id: str
    """The subject to erase."""
    kid: str
    """Id of the key to destroy."""
    begun_at: str
    """ISO time when the erasure started."""


class Keyring:
    """A directory with the keys of subjects, which only its owner can read.

    Methods block if a key is not cached, so call them in worker threads (`Sealer.load_key`). An erasure has several steps:
    `begin_erasure`, `destroy`, the records in the ledgers, `end_erasure`. A note in the subdirectory `erasing` survives a crash
    between the steps. While the note exists, the key counts as destroyed.

    Args:
        directory: created with the first key
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory: Path = Path(directory)
        self._files = KeyFiles(self.directory)
        self._recent: dict[str, SubjectKey] = {}
        self._older: dict[str, SubjectKey] = {}
        # Whether all cached keys have their names on disk, so content may be sealed with them.
        self._is_settled = True
        # A thread that reads a key file must not cache the key after another thread has destroyed it.
        self._changing = threading.Lock()

    def has(self, subject_id: str) -> bool:
        """Whether the subject's key is cached, so that using it does not block."""
        return self._is_settled and (subject_id in self._recent or subject_id in self._older)

    def find(self, subject_id: str) -> SubjectKey | None:
        """The subject's key; None: there is none, or it was destroyed. Writes nothing.

        Raises:
            SealingError: the key file cannot be read, or does not contain a key
        """
        key = self._recent.get(subject_id) or self._older.get(subject_id)
        if key is not None:
            return key
        with self._changing:
            found = None if self._erasure(subject_id) is not None else self._files.find(subject_digits(subject_id))
            if not isinstance(found, StoredKey):
                return None
            if self._is_settled and not self._files.is_settled:
                self._is_settled = False  # before the key is cached, so no other thread seals with it
            return self._cache(subject_id, found)

    def get(self, subject_id: str, key_file: bytes | None = None) -> SubjectKey:
        """The subject's key; creates a missing one.

        Args:
            subject_id: the subject
            key_file: holds the key to use if there is none, e.g. as another keyring's `key_file` returned it; None: a new key

        Raises:
            SealingError: the key cannot be read or created, or the subject is being erased
        """
        key = self._recent.get(subject_id) or self._older.get(subject_id)
        if key is not None and self._is_settled:
            return key
        digest = subject_digits(subject_id)
        with self._changing:
            if self._erasure(subject_id) is not None:
                raise SealingError(
                    f"subject {subject_id!r} is being erased, so nothing can be encrypted for the subject;"
                    f" `kitchener subject erase {subject_id}` completes the erasure"
                )
            found = self._files.find(digest)
            if found is None:
                given = key_in_file(key_file) if key_file is not None else None
                found = self._files.add({digest: given}).get(digest) or self._files.find(digest)
            if isinstance(found, StoredKey):
                self._settle()
                return self._cache(subject_id, found)
        if found is not None:
            raise SealingError(found.problem)
        raise SealingError(f"{self._files.path(digest)}: the key was destroyed while it was being created; try again")

    def load(self, subject_ids: Iterable[str]) -> None:
        """Caches the keys of many subjects and creates missing ones, which become durable together.

        Leaves out a subject whose key cannot be used; `get` raises the reason.
        """
        with self._changing, suppress(SealingError):
            found, missing = self._find_many(subject_ids)
            remaining = iter(missing)
            with suppress(SealingError):
                while some := dict.fromkeys(islice(remaining, KEYS_IN_BATCH)):
                    made = self._files.add(some)
                    found |= {missing[digest]: key for digest, key in made.items()}
                    # Another process has made the others in the meantime.
                    found |= self._find_many([missing[digest] for digest in some if digest not in made])[0]
            if found:
                self._settle()
            for subject_id, key in found.items():
                self._cache(subject_id, key)

    def kid_of(self, subject_id: str) -> str | None:
        """Id of the subject's key, or of the key that an unfinished erasure destroys; None: there is neither."""
        with self._changing:
            pending = self._erasure(subject_id)
            if pending is not None:
                return pending.kid
            return self._kid(subject_id)

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
            kid = self._kid(subject_id) or lost_kid
            if kid is None:
                return None
            begun = Erasure(subject_id, kid, begun_at)
            path = self._note_path(subject_id)
            text = json.dumps({"v": _NOTE_VERSION, "subject_id": subject_id, "kid": kid, "begun_at": begun_at})
            with os_errors(path):
                path.parent.mkdir(mode=0o700, exist_ok=True)
                replace_private(path, text.encode())
                sync_directory(self.directory)  # the subdirectory of notes may be new
            self._forget(subject_id)
            return begun

    def key_file(self, subject_id: str) -> bytes | None:
        """A file with the subject's key alone, a secret, for another keyring's `get`; None: no key, or it is being destroyed.

        Raises:
            SealingError: the key cannot be read
        """
        with self._changing:
            found = self._files.find(subject_digits(subject_id)) if self._erasure(subject_id) is None else None
        return found.file() if isinstance(found, StoredKey) else None

    def erasures(self) -> list[Erasure]:
        """The unfinished erasures, oldest first."""
        found = [self._noted(self.directory / _ERASURES / name) for name in self._notes() if name.endswith(".json")]
        return sorted(found, key=lambda each: (each.begun_at, each.subject_id))

    def destroy(self, subject_id: str) -> str | None:
        """Destroys the subject's key, so that nothing encrypted with it can be read again. Durable when it returns.

        Returns:
            id of the destroyed key; None: the subject had no key
        """
        with self._changing:
            pending = self._erasure(subject_id)
            # If a crash left the key overwritten, only the note still has its id.
            kid = self._kid(subject_id) if pending is None else pending.kid
            self._forget(subject_id)
            self._files.destroy(subject_digits(subject_id))
        return kid

    def end_erasure(self, subject_id: str) -> None:
        """Removes the note of an erasure that the ledgers have recorded. The subject may then get a new key."""
        path = self._note_path(subject_id)
        with self._changing, os_errors(path):
            path.unlink(missing_ok=True)
            sync_directory(path.parent)

    def _find_many(self, subject_ids: Iterable[str]) -> tuple[dict[str, StoredKey], dict[str, str]]:
        """The keys by subject, and the subjects without a key by digest. A subject whose key cannot be used is in neither."""
        found, missing = dict[str, StoredKey](), dict[str, str]()
        noted = self._notes()
        for subject_id in subject_ids:
            digest = subject_digits(subject_id)
            with suppress(SealingError):
                key = self._files.find(digest)
                if f"{digest}.json" in noted:
                    continue
                if key is None:
                    missing[digest] = subject_id
                elif isinstance(key, StoredKey):
                    found[subject_id] = key
        return found, missing

    def _kid(self, subject_id: str) -> str | None:
        found = self._files.find(subject_digits(subject_id))
        return found.kid if isinstance(found, StoredKey) else None

    def _settle(self) -> None:
        self._files.settle()
        self._is_settled = True

    def _cache(self, subject_id: str, stored: StoredKey) -> SubjectKey:
        key = subject_key(stored.kid, stored.secret)
        if len(self._recent) >= _CACHED_KEYS:
            self._older, self._recent = self._recent, {}
        self._recent[subject_id] = key
        return key

    def _forget(self, subject_id: str) -> None:
        self._recent.pop(subject_id, None)
        self._older.pop(subject_id, None)

    def _erasure(self, subject_id: str) -> Erasure | None:
        path = self._note_path(subject_id)
        return self._noted(path) if is_there(path) else None

    def _notes(self) -> frozenset[str]:
        """The names of the notes of erasures."""
        directory = self.directory / _ERASURES
        with os_errors(directory):
            try:
                return frozenset(os.listdir(directory))
            except FileNotFoundError:
                return frozenset()

    def _noted(self, path: Path) -> Erasure:
        with os_errors(path):
            text = read_regular(path, MAX_FILE_BYTES, follows_links=False)
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
        return self.directory / _ERASURES / f"{subject_digits(subject_id)}.json"
