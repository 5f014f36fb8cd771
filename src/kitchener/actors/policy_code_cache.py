"""Keeps a hash of source code from process to process, beside Python's compiled files. How it is computed is not known here."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from kitchener.canonical import digest, parse_json
from kitchener.small_files import read_regular, replacing

_MAX_KEPT_BYTES: Final = 1_024
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")


def kept_code_hash(sources: Sequence[str], compute: Callable[[Sequence[str]], str], *, beside: str) -> str:
    """Returns what `compute` returns for the sources, from the cache if an earlier process computed it for the same sources.

    The key is a digest of all the text from which the hash is computed, so an edit takes effect at once. Anyone who can change
    the cache can also change the compiled code beside it. Nothing is cached where Python writes no compiled files: in a
    read-only folder, or if the environment forbids it.

    Args:
        sources: the texts of modules
        compute: turns them into a hash, which depends on nothing but them and its own module
        beside: the source file of that module; the hash is cached beside the module's compiled file
    """
    file = Path(cache_from_source(beside)).with_suffix(".code.json")
    key = digest(json.dumps([Path(beside).read_text(encoding="utf-8"), *sources]).encode())
    known = _kept_code(file, key)
    if known is None:
        known = compute(sources)
        if not sys.dont_write_bytecode:
            with suppress(OSError), replacing(file, 0o666) as draft:  # atomically: several processes may start at once
                draft.write(json.dumps({"sources": key, "code": known}).encode())
    return known


def _kept_code(file: Path, key: str) -> str | None:
    try:
        kept = parse_json(read_regular(file, _MAX_KEPT_BYTES).decode("utf-8", "replace"))
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict) or kept.get("sources") != key:
        return None
    code = kept.get("code")
    return code if isinstance(code, str) and _HASH.fullmatch(code) else None


__all__ = ["kept_code_hash"]
