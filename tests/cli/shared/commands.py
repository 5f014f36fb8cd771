"""Runs the command line: in this process where that is enough, in one of its own where a process has to die or wait."""

import atexit
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kitchener.records.events import SEALED_FIELDS
from kitchener.sealing import Keyring, Sealer
from tests.cli.shared.command_server import ROOT, CommandServer, Started

COMMAND = (sys.executable, "-m", "kitchener")
"""The command without anything loaded before; `start` takes a twentieth of its work."""


@dataclass(frozen=True)
class Outcome:
    """What a command line left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON value it has to be."""
        return json.loads(self.out)


def environment(**more: str) -> dict[str, str]:
    """The environment of a command that knows nothing of its caller's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KITCHENER_")}
    return {**kept, "PYTHONUNBUFFERED": "1", "TERM": "dumb", **more}


@cache
def _server() -> CommandServer:
    server = CommandServer(environment())
    atexit.register(server.stop)
    return server


def start(
    *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None, is_session: bool = False, **given: int
) -> Started:
    """The command in a process of its own.

    Args:
        *arguments: the command line
        cwd: its directory
        env: its environment; None: that of `environment()`
        is_session: whether it begins a session of processes, as on a terminal of its own
        **given: file descriptors of its `stdin`, `stdout` and `stderr`; the others are pipes
    """
    return _start(None, arguments, cwd, env, is_session, given)


def start_program(program: str, *arguments: str | Path, cwd: Path = ROOT, **given: int) -> Started:
    """A Python program in a process of its own that has the package loaded; `python -c` would load it first.

    Args:
        program: its text
        *arguments: what it finds in `sys.argv[1:]`
        cwd: its directory
        **given: file descriptors of its `stdin`, `stdout` and `stderr`; the others are pipes
    """
    return _start(program, arguments, cwd, None, False, given)


def _start(
    program: str | None,
    arguments: Sequence[str | Path],
    cwd: Path,
    env: Mapping[str, str] | None,
    is_session: bool,
    given: dict[str, int],
) -> Started:
    umask = os.umask(0)
    os.umask(umask)
    job = {
        "program": program,
        "arguments": [str(each) for each in arguments],
        "cwd": str(cwd),
        "env": dict(environment() if env is None else env),
        "umask": umask,
        "is_session": is_session,
    }
    return _server().start(job, given)


def finish(process: Started, text: str | None = None) -> Outcome:
    """Its outcome, after it was given `text` as the rest of its input."""
    out, err = process.communicate(text, timeout=30)
    assert process.returncode is not None
    return Outcome(process.returncode, out, err)


def write_messages(path: Path, *messages: tuple[str, str]) -> Path:
    """An input file for `run` out of (conversation, message)."""
    lines = (json.dumps({"conversation": name, "subject_id": f"of {name}", "message": text}) for name, text in messages)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[Any]:
    """A file of JSON lines; those of a ledger with what the keys beside its root open."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    root = (path.absolute() / "../../..").resolve()
    keys = root.with_name(f"{root.name}.keys")
    sealer = Sealer(Keyring(keys), SEALED_FIELDS)
    for line in lines if keys.is_dir() else ():
        if isinstance(line, dict) and "ledger_id" in line:
            entry = line["entry"]
            entry["payload"] = sealer.open(line["ledger_id"], entry["entry_type"], entry["payload"])
    return lines
