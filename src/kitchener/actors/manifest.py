"""Writes the manifest of a directory of prompts or of attention templates: the hash of each file, by its name.

Each kind of directory reads its own manifest, because its errors name its own setting and its own files.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kitchener.canonical import digest

MANIFEST: Final = "manifest.json"


def write_hashes(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Writes the manifest of a directory from the contents of its files, by name, in their order."""
    hashes = {name: digest(data) for name, data in contents.items()}
    (directory / MANIFEST).write_text(json.dumps(hashes, indent=2) + "\n", encoding="utf-8")
