"""Turns the 32 random bytes of a subject's key into a cipher and keyed digests.

Knows nothing of files. Explained in `docs/erasure.md`.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Final, Protocol

from kitchener.canonical import NOTHING, Opening
from kitchener.errors import SealingError

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
"""Length of an AES-GCM nonce, which precedes the encrypted data."""
_OPENINGS: Final = 4
"""Most openings whose hash states a `Mac` caches; a subject's turns use one opening for each contract."""
_BLOCK_BYTES: Final = 64
"""Block size of SHA-256; the keys of a `Mac` are no longer."""
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))


def subject_digits(subject_id: str) -> str:
    """Names a subject's files: a hash, because an id may contain any character, and other users may see file names."""
    return hashlib.sha256(subject_id.encode()).hexdigest()


def subject_folder(subject_id: str) -> str:
    """Names what is kept of a subject beside the ledgers: the first half of `subject_digits`."""
    return subject_digits(subject_id)[:32]


class Cipher(Protocol):
    """The interface of AES-256-GCM. The library is imported with the first key, because most commands need none."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes) -> bytes:
        """The encrypted data, followed by their tag."""
        ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes) -> bytes:
        """The decrypted data; raises InvalidTag if anything was changed."""
        ...


class Mac:
    """HMAC-SHA-256 under one key. The hash states of the key and of the newest openings are computed once.

    A turn makes seven digests; copying an `hmac.HMAC` for each takes 3.1 instead of 1.2 us. Hashing a turn's system messages
    again would add a sixth to the bytes that a sealed turn hashes.
    """

    __slots__ = ("_begun", "_outer")

    def __init__(self, key: bytes) -> None:
        block = key.ljust(_BLOCK_BYTES, b"\0")
        self._begun = {NOTHING: hashlib.sha256(block.translate(_INNER))}
        """The inner state after each opening."""
        self._outer = hashlib.sha256(block.translate(_OUTER))

    def digest(self, data: bytes, opening: Opening = NOTHING) -> bytes:
        """The 32 bytes of the digest of an opening and the data after it."""
        begun = self._begun.get(opening)
        inner = (begun if begun is not None else self._begin(opening)).copy()
        inner.update(data)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()

    def _begin(self, opening: Opening) -> "hashlib._Hash":
        """Prepares the state after an opening."""
        begun = self._begun[NOTHING].copy()
        begun.update(opening.data)
        if len(self._begun) > _OPENINGS:
            self._begun = {NOTHING: self._begun[NOTHING]}
        self._begun[opening] = begun
        return begun


@dataclass(frozen=True, slots=True)
class SubjectKey:
    """One subject's key, ready to use."""

    kid: str
    """The key's id in sealed values: 32 random hex digits, which reveal nothing about the subject."""
    cipher: Cipher
    """Encrypts and decrypts values."""
    mac: Mac
    """Makes keyed digests of content."""

    def __repr__(self) -> str:
        return f"<SubjectKey {self.kid}>"  # never the key


def subject_key(kid: str, secret: bytes) -> SubjectKey:
    """The key with this id and these `KEY_BYTES` bytes.

    Raises:
        SealingError: the library of ciphers cannot be imported
    """
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise SealingError(
            "content is sealed, but `cryptography`, a part of the installation, cannot be imported:"
            " pip install --force-reinstall cryptography"
        ) from error
    return SubjectKey(kid, AESGCM(secret), Mac(hmac.digest(secret, b"kitchener/1 content digest", "sha256")))


def encoded(data: bytes) -> str:
    """URL-safe base64 text without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: object) -> bytes:
    """The bytes of URL-safe base64 text without padding; raises TypeError or ValueError for anything else."""
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} is not text")
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
