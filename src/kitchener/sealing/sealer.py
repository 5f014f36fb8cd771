"""Turns fields of a payload into encrypted values and back, with the key of the payload's subject.

Every ledger hash stays valid when a key is destroyed, because hashes cover the encrypted values. The caller says which fields
to encrypt; this module knows nothing of ledgers. Explained in `docs/ledger.md`.
"""

import os
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final

import anyio
import anyio.lowlevel
import orjson

from kitchener.canonical import NOTHING, Opening, canonical_bytes
from kitchener.errors import SealingError
from kitchener.sealed_values import MARK
from kitchener.sealing.key_files import KEYS_IN_BATCH
from kitchener.sealing.keyring import Keyring
from kitchener.sealing.subject_key import NONCE_BYTES, SubjectKey, decoded

_VERSION: Final = 1
"""Version of sealed values."""
_NONCES_AT_ONCE: Final = 512
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


@dataclass(frozen=True, slots=True)
class _Load:
    """Keys that a worker thread loads."""

    subjects: dict[str, None]
    done: anyio.Event


class Sealer:
    """Encrypts (seals) and decrypts (opens) the fields of payloads that contain what a subject said.

    Args:
        keyring: the subjects' keys
        sealed_fields: entry type to the names of the fields to encrypt
        seals: whether new entries are sealed; False: new entries stay in plain text, and sealed ones can still be opened
    """

    def __init__(self, keyring: Keyring, sealed_fields: Mapping[str, tuple[str, ...]], *, seals: bool = True) -> None:
        self.keyring: Keyring = keyring
        self.seals: bool = seals
        self._fields = sealed_fields
        self.sealed_types: frozenset[str] = frozenset(sealed_fields if seals else ())
        """The types of new entries that may have something to encrypt. Only these need `missing_key` and `seal`."""
        self._awaited = dict[str, None]()
        self._loading: _Load | None = None

    def missing_key(self, entry_type: str, payload: Mapping[str, object]) -> str | None:
        """The subject whose key must be loaded before a payload of a sealed type is sealed; None: sealing does not block."""
        subject_id = payload.get("subject_id")
        if not isinstance(subject_id, str) or self.keyring.has(subject_id):
            return None
        return None if all(payload.get(field) is None for field in self._fields[entry_type]) else subject_id

    async def load_key(self, subject_id: str) -> None:
        """Loads or creates a subject's key, in a worker thread.

        One call at a time loads the keys for all waiting calls: threads that create keys in parallel compete with the event
        loop for the interpreter, which took five times the CPU at 1,000 new subjects (`benchmarks/sessions.py --turns 1`).

        Raises:
            SealingError: the key file cannot be read or created, or the subject is being erased
        """
        self._awaited[subject_id] = None
        while True:
            load = self._loading
            if load is None and subject_id in self._awaited:
                await self._load_awaited(subject_id)
                break
            if load is None or (subject_id not in self._awaited and subject_id not in load.subjects):
                break
            await load.done.wait()  # wakes all waiting calls together, so that one commit can take all their entries
        if not self.keyring.has(subject_id):
            await anyio.to_thread.run_sync(self.keyring.get, subject_id)  # raises the reason

    async def _load_awaited(self, subject_id: str) -> None:
        """Loads the keys of a subject and of other waiting subjects, up to the size of a batch."""
        self._loading = load = _Load({}, anyio.Event())
        try:
            await anyio.lowlevel.checkpoint()  # lets further calls join this load
            load.subjects.update(dict.fromkeys([subject_id, *islice(self._awaited, KEYS_IN_BATCH)]))
            for each in load.subjects:
                self._awaited.pop(each, None)
            await anyio.to_thread.run_sync(self.keyring.load, load.subjects)
        finally:
            self._loading = None
            load.done.set()

    def seal(self, ledger_id: str, entry_type: str, payload: dict[str, object]) -> dict[str, object]:
        """A copy of a sealed type's payload with the subject's fields encrypted, as canonical JSON; itself if it has none.

        None and an empty list stay as they are: the length of the encrypted value would reveal them anyway.

        Raises:
            SealingError: a field must be encrypted, but the payload has no `subject_id`
            EntryRefused: a value has no canonical form
        """
        sealed, key = payload, None
        for field in self._fields[entry_type]:
            value = payload.get(field)
            if value is None or (not value and value == []):
                continue
            if key is None:
                key, sealed = self._sealing_key(entry_type, field, payload), dict(payload)
            nonce = _fresh_nonce()
            plain = canonical_bytes(value, at=f"payload.{field}")
            text = key.cipher.encrypt(nonce, plain, _bound_to(ledger_id, entry_type, field))
            sealed[field] = orjson.Fragment(
                b'{"%b":{"ct":"%b","kid":"%b","nonce":"%b","v":%d}}'
                % (MARK.encode(), _encoded(text), key.kid.encode(), _encoded(nonce), _VERSION)
            )
        return sealed

    def open(self, ledger_id: str, entry_type: str, payload: dict[str, object]) -> dict[str, object]:
        """A copy of the payload with its sealed fields decrypted. Fields whose key was destroyed stay sealed.

        Raises:
            SealingError: a sealed value was changed, or was copied from another field, entry type or ledger
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

    def content_digest(self, subject_id: str, data: bytes, opening: Opening = NOTHING) -> str:
        """`hmac-sha256:` and hex digits over an opening and the data after it, keyed with the subject's key.

        Without the key, nobody can test guesses.
        """
        return f"hmac-sha256:{self.keyring.get(subject_id).mac.digest(data, opening).hex()}"

    def _sealing_key(self, entry_type: str, field: str, payload: Mapping[str, object]) -> SubjectKey:
        subject_id = payload.get("subject_id")
        if not isinstance(subject_id, str):
            raise SealingError(
                f"{entry_type}: field {field!r} must be encrypted, but the payload has no subject_id; nothing was written"
            )
        return self.keyring.get(subject_id)

    def _key_of(self, payload: Mapping[str, object], sealed: object) -> SubjectKey | None:
        subject_id = payload.get("subject_id")
        if not isinstance(subject_id, str) or not isinstance(sealed, dict):
            return None
        key = self.keyring.find(subject_id)
        # A different id means that this value's key was destroyed and the subject has a new one.
        return key if key is not None and key.kid == sealed.get("kid") else None


def _unsealed(key: SubjectKey, sealed: Mapping[str, object], ledger_id: str, entry_type: str, field: str) -> object:
    from cryptography.exceptions import InvalidTag

    where = f"{ledger_id}: {entry_type}.{field}"
    if sealed.get("v") != _VERSION:
        raise SealingError(
            f"{where}: sealed in version {sealed.get('v')!r}; this Kitchener opens version {_VERSION}; use a newer Kitchener"
        )
    try:
        nonce, text = decoded(sealed["nonce"]), decoded(sealed["ct"])
        return orjson.loads(key.cipher.decrypt(nonce, text, _bound_to(ledger_id, entry_type, field)))
    except (InvalidTag, KeyError, ValueError, TypeError) as error:
        raise SealingError(
            f"{where}: the sealed value was changed or moved here from another entry type, field or ledger (key {key.kid});"
            " restore the ledger from a backup"
        ) from error


@lru_cache(maxsize=1_024)  # made once for each sealed field of a ledger; a turn seals 17 values (`benchmarks.steps`)
def _bound_to(ledger_id: str, entry_type: str, field: str) -> bytes:
    return canonical_bytes([ledger_id, entry_type, field])


# Unused random nonces, read in bulk. Reading them one by one lets a commit's thread take the interpreter for up to 5 ms each
# time, which cost 100 us a turn in `benchmarks/sessions.py --turns 20`.
_NONCES: Final[list[bytes]] = []
os.register_at_fork(after_in_child=_NONCES.clear)  # the parent uses these nonces


def _fresh_nonce() -> bytes:
    while True:
        try:
            return _NONCES.pop()  # atomic, so two threads never get the same one
        except IndexError:
            drawn = os.urandom(NONCE_BYTES * _NONCES_AT_ONCE)
            _NONCES.extend([drawn[at : at + NONCE_BYTES] for at in range(0, len(drawn), NONCE_BYTES)])


def _encoded(data: bytes) -> bytes:
    return b2a_base64(data, newline=False).translate(_URL_SAFE).rstrip(b"=")
