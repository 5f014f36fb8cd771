"""Reads the files of prompt contracts and packs, and checks each against the manifest of its directory.

Contracts (`PRC-*.json`) and packs (`PRM-*.txt`) ship with the package; a user's directory can override or add files by id. This
module does not know what they contain. Explained in `docs/prompts.md`.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from kitchener.actors.manifest import MANIFEST, write_hashes
from kitchener.canonical import canonical_digest, digest
from kitchener.config.shown import described_key
from kitchener.errors import PromptError
from kitchener.plain_names import shown_path
from kitchener.small_files import read_regular

MAX_SOURCE_BYTES: Final = 1_048_576
"""Largest file of a prompt directory, bytes. The shipped files have a few thousand."""
_FILE_NAME: Final = re.compile(r"(PRM-[A-Z0-9-]{1,64})\.txt|(PRC-[A-Z0-9-]{1,64})\.json")


class PromptSource:
    """The text of one file whose hash matches the manifest."""

    __slots__ = ("file", "hash", "text")

    def __init__(self, file: str, found_hash: str, text: str) -> None:
        self.file, self.hash, self.text = file, found_hash, text


def prompt_sources(directory: str | None = None) -> dict[str, PromptSource]:
    """Returns the shipped contracts and packs by id, and those of `directory`, which override. It reads files.

    Raises:
        PromptError: a file is missing, unlisted or unreadable, or its hash differs from the manifest
    """
    return {**_shipped(), **(_read(Path(directory)) if directory is not None else {})}


def sources_digest(directory: str | None = None) -> str:
    """Returns one hash over the shipped contracts and packs, and those of `directory`, which override by id.

    Raises:
        PromptError: a file is missing, unlisted or unreadable, or its hash differs from the manifest
    """
    return canonical_digest({source_id: source.hash for source_id, source in prompt_sources(directory).items()}, at="prompts")


def own_ids(directory: str | None) -> frozenset[str]:
    """Returns the ids of the contracts and packs that a user's directory overrides or adds. It reads files.

    Raises:
        PromptError: a file is missing, unlisted or unreadable, or its hash differs from the manifest
    """
    return frozenset() if directory is None else frozenset(_read(Path(directory)))


@cache
def _shipped() -> Mapping[str, PromptSource]:
    """The files of the package. Cached, because installed files do not change under a running process."""
    return _read(files("kitchener.actors") / "assets" / "prompts")


def _read(root: Traversable | Path) -> dict[str, PromptSource]:
    """Reads every contract and pack of a directory, by id, and checks each against the directory's manifest."""
    if not root.is_dir():
        shown = shown_path(str(root))
        raise PromptError(f"prompt_dir = {shown!r}: expected a directory of contracts and packs with a {MANIFEST}")
    manifest_file = root / MANIFEST
    manifest = json_object(_bytes(manifest_file), str(manifest_file))
    listed: dict[str, PromptSource] = {}
    for name, expected in manifest.items():
        match = _FILE_NAME.fullmatch(name)
        if match is None:
            # Another program's manifest may hold anything, so the error repeats a name only if it resembles a valid one.
            named = repr(name) if "PRM-" in name or "PRC-" in name else described_key(name)
            raise PromptError(f"{manifest_file}: expected names such as PRM-MY-001.txt or PRC-MY-001.json, found {named}")
        file = root / name
        data = _bytes(file)
        if (found := digest(data)) != expected:
            raise PromptError(
                f"{file}: expected {expected}, as {MANIFEST} says, found {found};"
                " if the change is intended, write the manifest again"
            )
        listed[match[1] or match[2]] = PromptSource(str(file), found, _text(data, str(file)))
    for entry in sorted(root.iterdir(), key=lambda entry: entry.name):
        if _FILE_NAME.fullmatch(entry.name) and entry.name not in manifest:
            raise PromptError(f"{entry}: expected in {MANIFEST}, found no hash of it there; write the manifest again")
    return listed


def _bytes(file: Traversable | Path) -> bytes:
    try:
        data = read_regular(file, MAX_SOURCE_BYTES + 1) if isinstance(file, Path) else file.read_bytes()
    except OSError as error:
        where = shown_path(str(file))
        raise PromptError(f"{where}: expected a readable file, found: {error.strerror or error}") from error
    if len(data) > MAX_SOURCE_BYTES:
        raise PromptError(f"{file}: expected at most {MAX_SOURCE_BYTES:,} bytes, found more")
    return data


def _text(data: bytes, file: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PromptError(f"{file}: expected UTF-8 text, found byte {data[error.start]:#04x} at {error.start}") from error


def json_object(data: bytes, file: str) -> dict[str, object]:
    """Returns the JSON object in the bytes of a file. Raises PromptError, which names the file, if it has none."""
    try:
        value = json.loads(_text(data, file))
    except ValueError as error:
        raise PromptError(f"{file}: expected a JSON object, found: {error}") from error
    if not isinstance(value, dict):
        raise PromptError(f"{file}: expected a JSON object, found {type(value).__name__}")
    return value


def write_manifest(root: Path) -> None:
    """Writes `manifest.json` with the hash of every contract and pack in a directory."""
    names = sorted(path.name for path in root.iterdir() if _FILE_NAME.fullmatch(path.name))
    write_hashes(root, {name: _bytes(root / name) for name in names})
