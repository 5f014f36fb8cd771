"""Ed25519 keys and signatures (docs/proof.md)."""

import stat
import sys
from pathlib import Path

import pytest

from kitchener.errors import SigningError
from kitchener.signing import is_public_key, is_signed, load_signer, make_key, signer_id

# RFC 8032, section 7.1, test 2: public key, message, signature.
PUBLIC = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
SIGNATURE = (
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def test_a_published_signature_is_right_and_no_other_is() -> None:
    """RFC 8032's own example."""
    assert is_signed(PUBLIC, b"\x72", SIGNATURE)
    assert not is_signed(PUBLIC, b"\x73", SIGNATURE)
    for bit in range(0, 512, 7):
        changed = bytearray.fromhex(SIGNATURE)
        changed[bit // 8] ^= 1 << bit % 8
        assert not is_signed(PUBLIC, b"\x72", changed.hex())


def test_a_key_is_private_signs_and_is_named_by_its_public_half(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "signing.pem"
    made = make_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----\n")
    signer = load_signer(path)
    assert (signer.signer, signer.public_key) == (made.signer, made.public_key)
    assert signer.signer == signer_id(signer.public_key)
    assert is_public_key(signer.public_key)
    signature = signer.sign(b"data")
    assert signature == made.sign(b"data")
    assert is_signed(signer.public_key, b"data", signature)
    assert not is_signed(make_key(tmp_path / "other.pem").public_key, b"data", signature)


@pytest.mark.parametrize("signature", ["", "00", SIGNATURE.upper(), SIGNATURE + "00", "x" * 128])
def test_what_has_not_the_form_of_a_signature_is_none(signature: str) -> None:
    assert not is_signed(PUBLIC, b"\x72", signature)


@pytest.mark.parametrize("public_key", ["", PUBLIC.upper(), PUBLIC[2:], "ff" * 32])
def test_what_is_no_public_key_checks_nothing(public_key: str) -> None:
    assert not is_signed(public_key, b"\x72", SIGNATURE)


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    make_key(path)
    text = path.read_bytes()
    with pytest.raises(SigningError, match="the file exists already"):
        make_key(path)
    assert path.read_bytes() == text


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    make_key(path)
    path.chmod(0o640)
    with pytest.raises(SigningError, match=r"mode 0640\); run `chmod 600`"):
        load_signer(path)


def _rsa() -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "no such file"), (b"", "PEM form"), (b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n", "PEM form"), (_rsa(), "Ed25519")],
)
def test_what_is_no_key_is_told_without_showing_it(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "signing.pem"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(SigningError) as caught:
        load_signer(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert "c2VjcmV0" not in repr(caught.value)
    assert caught.value.__cause__ is None or isinstance(caught.value.__cause__, OSError)


def test_a_directory_and_a_link_are_no_keys(tmp_path: Path) -> None:
    make_key(tmp_path / "signing.pem")
    (tmp_path / "link.pem").symlink_to("signing.pem")
    (tmp_path / "directory").mkdir(mode=0o700)
    for name in ("link.pem", "directory"):
        with pytest.raises(SigningError, match=name):
            load_signer(tmp_path / name)


def test_a_signer_shows_its_name_and_never_the_key(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    signer = make_key(path)
    secret = path.read_text().splitlines()[1]
    assert repr(signer) == f"<Signer {signer.signer}>"
    assert secret not in repr(vars(type(signer))) + repr(signer)


def test_without_the_library_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_key(tmp_path / "signing.pem")
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(SigningError, match=r"pip install .*cryptography"):
        load_signer(tmp_path / "signing.pem")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no directory here refuses new files even to the superuser")
def test_a_key_that_cannot_be_made_is_told_so() -> None:
    """Regression: the error said how to make a key."""
    with pytest.raises(SigningError, match=r"^/proc/kitchener-key: no file can be made there; use another path$"):
        make_key("/proc/kitchener-key")
