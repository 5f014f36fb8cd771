"""Reads and changes keys on disk, as `docs/erasure.md` describes the files."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from kitchener.sealing import Keyring

SLOT_BYTES = 256


def name_of(directory: Path, subject_id: str) -> Path:
    """The name of a subject's key."""
    return directory / f"{hashlib.sha256(subject_id.encode()).hexdigest()}.key"


def slot_of(name: Path) -> tuple[Path, int]:
    """The batch that a name leads to, and where in it the key begins, bytes."""
    batch, slot = os.readlink(name).split(":")
    return name.parent / batch, int(slot) * SLOT_BYTES


def key_at(name: Path) -> bytes:
    """What is stored under a name, without padding."""
    if not name.is_symlink():
        return name.read_bytes()
    batch, start = slot_of(name)
    return batch.read_bytes()[start : start + SLOT_BYTES].rstrip()


def change_key(name: Path, how: Callable[[bytes], bytes]) -> None:
    """Rewrites what is stored under a name."""
    batch, start = slot_of(name)
    content = batch.read_bytes()
    changed = how(content[start : start + SLOT_BYTES].rstrip())
    batch.write_bytes(content[:start] + changed.ljust(SLOT_BYTES) + content[start + SLOT_BYTES :])


def as_file(directory: Path, subject_id: str) -> Path:
    """Makes a subject's key a file of its own, as older versions wrote it."""
    name, content = name_of(directory, subject_id), Keyring(directory).key_file(subject_id)
    assert content is not None
    name.unlink()
    name.touch(mode=0o600)
    name.write_bytes(content)
    return name
