"""Two verifiers that share no code, asked about the same files.

Whatever Kitchener accepts, the script accepts; what only Kitchener looks at is listed in docs/proof.md. Everything else has to
be the same verdict.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from kitchener.canonical import canonical_bytes
from kitchener.cli.ledger.proof import is_bundle
from kitchener.ledger import verify_file
from kitchener.ledger.audit.bundle_check import verify_bundle
from kitchener.ledger.format.lines import chain_hash, split_line

SCRIPT = Path(__file__).resolve().parents[2] / "verify" / "verify.mjs"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed, so its verifier cannot be asked")


def node(paths: Sequence[Path], public_key: str | None = None) -> list[str]:
    """What the Node verifier says, a line for each file."""
    assert NODE is not None
    key = ["--public-key", public_key] if public_key is not None else []
    done = subprocess.run([NODE, str(SCRIPT), *key, *map(str, paths)], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert len(lines) == len(paths)
    assert done.returncode == int(any(line.startswith("damaged") for line in lines))
    return lines


def python(path: Path, public_key: str | None = None) -> str:
    """What Kitchener says."""
    fault: Exception | None
    if is_bundle(path):
        fault = verify_bundle(path, public_key=public_key).fault
    else:
        fault = verify_file(path, public_key=public_key).fault
    return f"ok {path}" if fault is None else f"damaged {path}: {fault}"


def refused(paths: Sequence[Path], public_key: str | None = None) -> list[Path]:
    """The files that both verifiers refuse; fails where they differ."""
    by_node, by_python = _refused_by_each(paths, public_key)
    assert [path for path in paths if (path in by_node) != (path in by_python)] == []
    return by_node


def refused_by_kitchener_alone(paths: Sequence[Path], public_key: str | None = None) -> list[Path]:
    """The files that Kitchener refuses; fails where the script refuses one of them, or any other."""
    by_node, by_python = _refused_by_each(paths, public_key)
    assert by_node == []
    return by_python


def refused_by_the_script_alone(paths: Sequence[Path]) -> list[Path]:
    """The files that the script refuses; fails where Kitchener refuses one of them, or any other."""
    by_node, by_python = _refused_by_each(paths, None)
    assert by_python == []
    return by_node


def _refused_by_each(paths: Sequence[Path], public_key: str | None) -> tuple[list[Path], list[Path]]:
    told = node(paths, public_key)
    by_node = [path for path, line in zip(paths, told, strict=True) if line.startswith("damaged")]
    return by_node, [path for path in paths if python(path, public_key).startswith("damaged")]


def rewritten(raw: bytes, how: Callable[[dict[str, Any]], None]) -> bytes:
    """A line whose body was edited, with a fresh entry hash; the chain hash is the old one."""
    line = split_line(raw)
    assert line is not None
    fields = orjson.loads(line.body)
    how(fields)
    body = canonical_bytes(fields)
    return raw.replace(line.body, body).replace(line.entry_hash.encode(), hashlib.sha256(body).hexdigest().encode())


def relinked(lines: Sequence[bytes], before: str) -> list[bytes]:
    """Lines with fresh chain hashes from a hash on; everything else stays."""
    out = []
    for raw in lines:
        line = split_line(raw)
        assert line is not None
        before = chain_hash(before, line.ledger_id, line.seq, line.entry_id, line.entry_hash)
        out.append(raw.replace(f'"chain_hash":"sha256:{line.chain_hash}"'.encode(), f'"chain_hash":"sha256:{before}"'.encode()))
    return out
