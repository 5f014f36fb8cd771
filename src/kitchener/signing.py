"""Turns a key file into a `Signer`, and bytes into Ed25519 signatures; checks signatures.

A writer of a file without the key cannot forge a signature for it. Knows nothing of the meaning of the bytes: heads of ledgers
(`ledger/verify/checkpoint.py`) and projections (`actors/authority/authority.py`) are signed with it. `cryptography` is
imported only when a key is made, loaded or used for a check. Explained in `docs/proof.md`.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kitchener.errors import SigningError
from kitchener.plain_names import shown_path
from kitchener.small_files import open_regular, problem_and_remedy, write_private

_SCHEME: Final = "ed25519:"
_MAX_BYTES: Final = 4_096
_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_MISSING: Final = "`cryptography`, a part of the installation, cannot be imported: pip install --force-reinstall cryptography"


class Signer:
    """A private key, ready to sign. It never shows the key. Made by `load_signer` and `make_key`."""

    __slots__ = ("_sign", "public_key", "signer")

    def __init__(self, public_key: str, sign: Callable[[bytes], bytes]) -> None:
        self.public_key = public_key
        """The public key that checks this key's signatures: 64 hex digits."""
        self.signer: str = signer_id(public_key)
        """Short name of the key: `ed25519:` and 16 hex digits."""
        self._sign = sign

    def sign(self, data: bytes) -> str:
        """The signature of some bytes, 128 hex digits. Equal bytes give equal signatures."""
        return self._sign(data).hex()

    def __repr__(self) -> str:
        return f"<Signer {self.signer}>"  # never the key


def signer_id(public_key: str) -> str:
    """The name of a key: `ed25519:` and the first 16 hex digits of the SHA-256 of the raw public key.

    Args:
        public_key: 64 hex digits
    """
    return f"{_SCHEME}{hashlib.sha256(bytes.fromhex(public_key)).hexdigest()[:16]}"


def is_public_key(text: object) -> bool:
    """Whether `text` has the form of a public key: 64 lower-case hex digits."""
    return isinstance(text, str) and _PUBLIC_KEY.fullmatch(text) is not None


def is_signed(public_key: str, data: bytes, signature: str) -> bool:
    """Whether the owner of a public key signed exactly these bytes. False also if the key or the signature is malformed.

    Raises:
        SigningError: `cryptography` cannot be imported
    """
    if not is_public_key(public_key) or _SIGNATURE.fullmatch(signature) is None:
        return False
    ed = _ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        ed.Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(bytes.fromhex(signature), data)
    except (InvalidSignature, ValueError):
        return False
    return True


def load_signer(path: Path | str) -> Signer:
    """Reads the key from a file. Blocks.

    Raises:
        SigningError: the file is missing or unreadable, other users can read it, or it contains no Ed25519 key
    """
    path, ed = Path(path), _ed25519()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    text = _read_private(path)
    # The library's message may quote the key file, so only the type of the error is kept.
    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SigningError(f"{path}: is not an unencrypted private key in PEM form ({type(error).__name__})") from None
    if not isinstance(key, ed.Ed25519PrivateKey):
        raise SigningError(f"{path}: contains another kind of key; make an Ed25519 key with `kitchener ledger key --new PATH`")
    return _signer(key)


def make_key(path: Path | str) -> Signer:
    """Creates a key file (PKCS8 PEM, mode 0600) and returns the key. Blocks.

    Raises:
        SigningError: the file exists already, or cannot be created
    """
    path, ed = Path(path), _ed25519()
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ed.Ed25519PrivateKey.generate()
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with _os_errors(path):
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(path, text)
        except FileNotFoundError as error:
            raise SigningError(f"{shown_path(str(path))}: no file can be made there; use another path") from error
    return _signer(key)


def _signer(key: Any) -> Signer:  # an Ed25519PrivateKey of a library that may not be installed
    return Signer(key.public_key().public_bytes_raw().hex(), key.sign)


def _read_private(path: Path) -> bytes:
    with _os_errors(path), open_regular(path, follows_links=False) as file:
        mode = os.fstat(file.fileno()).st_mode
        if mode & 0o077:
            raise SigningError(f"{path}: other users can use it (mode {mode & 0o777:04o}); run `chmod 600` on it")
        return file.read(_MAX_BYTES)


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise SigningError(f"signatures are needed, but {_MISSING}") from error
    return ed25519


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise SigningError(f"{path}: the file exists already, and a key is never replaced; use another path") from error
    except FileNotFoundError as error:
        raise SigningError(
            f"{shown_path(str(path))}: there is no such file; make a key with `kitchener ledger key --new PATH`"
        ) from error
    except OSError as error:
        raise SigningError(f"{shown_path(str(path))}: {problem_and_remedy(error)}") from error
