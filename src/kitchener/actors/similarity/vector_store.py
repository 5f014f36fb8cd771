"""Stores vectors of texts in a SQLite file beside the ledgers, by a hash of the text, sealed where content is sealed.

The file is derived: it can be deleted at any time, and a vector that cannot be read is computed again. Each subject has its own
vectors, which are removed when the subject is erased. All methods block. This module knows nothing of turns.
"""

import os
import sqlite3
import threading
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from kitchener.actors.similarity.vectors import Vector
from kitchener.canonical import canonical_bytes, digest
from kitchener.ledger.disk.file_ops import remove_database
from kitchener.logs import get_logger
from kitchener.sealing import Sealer
from kitchener.sealing.subject_key import NONCE_BYTES, subject_folder
from kitchener.small_files import is_there

_log = get_logger(__name__)

FILE: Final = "vectors.sqlite"
"""The name of the file, in the directory of the indexes."""
_FORMAT: Final = 1
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS vectors (
    id INTEGER PRIMARY KEY, subject TEXT NOT NULL, model TEXT NOT NULL, hash TEXT NOT NULL, vector BLOB NOT NULL,
    UNIQUE (subject, model, hash)
)
"""
_AT_ONCE: Final = 500
"""Hashes of one query."""
_BUSY_S: Final = 1.0
"""Longest wait for another process that writes, seconds."""


class VectorStore:
    """The stored vectors of one root.

    Args:
        directory: the directory of the indexes
        sealer: seals vectors; None: they are stored in plain form
        max_stored: most vectors; beyond it, the oldest are removed
    """

    def __init__(self, directory: Path, sealer: Sealer | None, max_stored: int) -> None:
        self._path, self._sealer, self._max_stored = directory / FILE, sealer, max_stored
        self._lock = threading.Lock()
        self._is_told = False

    def find(self, subject_id: str, model: str, texts: Sequence[str]) -> "list[Vector | None]":
        """Returns the vectors of a subject's texts, in their order; None: the vector is missing or cannot be read."""
        hashes = [self._hash(subject_id, text) for text in texts]
        rows: dict[str, bytes] = {}

        def read(connection: sqlite3.Connection) -> None:
            for start in range(0, len(hashes), _AT_ONCE):
                part = hashes[start : start + _AT_ONCE]
                where = f"subject = ? AND model = ? AND hash IN ({','.join('?' * len(part))})"
                found = connection.execute(
                    f"SELECT hash, vector FROM vectors WHERE {where}", (subject_folder(subject_id), model, *part)
                )
                rows.update(found.fetchall())

        if is_there(self._path):
            self._use(read)
        return [self._opened(subject_id, model, each, rows.get(each)) for each in hashes]

    def put(self, subject_id: str, model: str, vectors: Mapping[str, Vector]) -> None:
        """Stores vectors of a subject, by text. Does nothing if the file cannot be written."""
        rows = [self._row(subject_id, model, text, vector) for text, vector in vectors.items()]

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT OR REPLACE INTO vectors (subject, model, hash, vector) VALUES (?, ?, ?, ?)", rows)
            # By id, because the time to count rows grows with their number.
            connection.execute("DELETE FROM vectors WHERE id <= (SELECT max(id) FROM vectors) - ?", (self._max_stored,))
            connection.execute("COMMIT")

        self._use(write)

    def _use(self, action: Callable[[sqlite3.Connection], None]) -> None:
        """Runs an action on the file, one at a time. Removes a damaged file. Logs the first failure."""
        try:
            with self._lock, _connection(self._path) as connection:
                action(connection)
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            if not self._is_told:
                self._is_told = True
                _log.warning("vectors not kept", path=str(self._path), problem=str(error))
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                remove_database(self._path)

    def _row(self, subject_id: str, model: str, text: str, vector: Vector) -> tuple[str, str, str, bytes]:
        content_hash, data = self._hash(subject_id, text), vector.tobytes()
        data = zlib.crc32(data).to_bytes(4, "big") + data
        if self._sealer is not None and self._sealer.seals:
            nonce = os.urandom(NONCE_BYTES)
            key = self._sealer.keyring.get(subject_id)
            data = nonce + key.cipher.encrypt(nonce, data, _bound_to(model, content_hash))
        return subject_folder(subject_id), model, content_hash, data

    def _opened(self, subject_id: str, model: str, content_hash: str, data: bytes | None) -> "Vector | None":
        if data is None:
            return None
        if content_hash.startswith("hmac-") and self._sealer is not None:
            from cryptography.exceptions import InvalidTag

            key = self._sealer.keyring.get(subject_id)
            try:
                data = key.cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], _bound_to(model, content_hash))
            except (InvalidTag, ValueError):
                return None
        body = data[4:]
        if len(body) % 4 or not body or zlib.crc32(body).to_bytes(4, "big") != data[:4]:
            return None
        return array("f", body)

    def _hash(self, subject_id: str, text: str) -> str:
        # Keyed if content is sealed, so that nobody can test guesses of a text by its hash.
        sealer, data = self._sealer, text.encode(errors="surrogatepass")
        return sealer.content_digest(subject_id, data) if sealer is not None and sealer.seals else digest(data)


def erase_vectors(directory: Path, subject_id: str) -> None:
    """Removes all vectors of a subject. If the file is damaged, removes the whole file.

    Raises:
        OSError: the file cannot be changed or removed
    """
    path = directory / FILE
    if not os.path.lexists(path):
        return
    try:
        with _connection(path) as connection:
            connection.execute("DELETE FROM vectors WHERE subject = ?", (subject_folder(subject_id),))
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except (sqlite3.Error, UnicodeDecodeError):
        remove_database(path)


@contextmanager
def _connection(path: Path) -> Iterator[sqlite3.Connection]:
    if path.is_symlink():  # SQLite would follow it and write to its target
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None, timeout=_BUSY_S)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")
        ((version,),) = connection.execute("PRAGMA user_version")
        if version != _FORMAT:
            connection.execute("DROP TABLE IF EXISTS vectors")
            connection.execute(f"PRAGMA user_version = {_FORMAT}")
        connection.execute(_TABLE)
        yield connection


def _bound_to(model: str, content_hash: str) -> bytes:
    return canonical_bytes(["vector", model, content_hash])
