"""Two verifiers that share no code, asked about the same files.

Each file has to get the same verdict of both. docs/proof.md names the one exception, lines that Kitchener never writes.
"""

import atexit
import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest

from kitchener.canonical import canonical_bytes
from kitchener.cli.ledger.proof import is_bundle
from kitchener.ledger import verify_file
from kitchener.ledger.bundles.bundle_check import verify_bundle
from kitchener.ledger.format.lines import chain_hash, split_line

SCRIPT = Path(__file__).resolve().parents[2] / "verify" / "verify.mjs"
MANY_RUNS = Path(__file__).with_name("many_runs.mjs")
NODE = shutil.which("node")
TIMEOUT_S = 60
needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed, so its verifier cannot be asked")


@dataclass(frozen=True, slots=True)
class Run:
    """What a run of the Node verifier printed, and the status with which it ended."""

    stdout: str
    stderr: str
    status: int


def run_command(*arguments: str) -> Run:
    """Runs the Node verifier as users do, in a process of its own."""
    assert NODE is not None
    done = subprocess.run([NODE, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return Run(done.stdout, done.stderr, done.returncode)


def run(*arguments: str) -> Run:
    """Runs the Node verifier in a process that all runs share, which saves most of the time.

    That it says the same as the command is tested in `test_many_runs.py`.
    """
    process = shared_process()
    assert process.stdin is not None
    assert process.stdout is not None
    limit = threading.Timer(TIMEOUT_S, process.kill)
    limit.start()
    try:
        process.stdin.write(f"{json.dumps(arguments)}\n")
        process.stdin.flush()
        return Run(**json.loads(process.stdout.readline()))
    except (OSError, ValueError) as error:  # it ended; its standard error says why
        shared_process.cache_clear()
        raise AssertionError(f"the Node verifier gave no answer for {arguments}") from error
    finally:
        limit.cancel()


@cache
def shared_process() -> subprocess.Popen[str]:
    """A process for the runs of this one. It ends when its input does."""
    assert NODE is not None
    process = subprocess.Popen(
        [NODE, str(MANY_RUNS), str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", cwd=SCRIPT.parent
    )
    atexit.register(process.communicate)
    return process


def node(paths: Sequence[Path], public_key: str | None = None) -> list[str]:
    """What the Node verifier says, a line for each file."""
    key = ["--public-key", public_key] if public_key is not None else []
    done = run(*key, *map(str, paths))
    assert done.stderr == ""
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert len(lines) == len(paths)
    assert done.status == int(any(line.startswith("damaged") for line in lines))
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
