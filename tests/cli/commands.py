"""Runs the command line: in this process where that is enough, in one of its own where a process has to die or wait."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kitchener.records.events import SEALED_FIELDS
from kitchener.sealing import Keyring, Sealer

COMMAND = (sys.executable, "-m", "kitchener")


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


def start(*arguments: str | Path, cwd: Path, **options: Any) -> "subprocess.Popen[str]":
    """The command in a process of its own, with pipes for all three streams unless told otherwise."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([*COMMAND, *map(str, arguments)], cwd=cwd, env=environment(), text=True, **pipes)


def finish(process: "subprocess.Popen[str]", text: str | None = None) -> Outcome:
    """Its outcome, after it was given `text` as the rest of its input."""
    out, err = process.communicate(text, timeout=30)
    return Outcome(process.returncode, out or "", err or "")


def write_messages(path: Path, *messages: tuple[str, str]) -> Path:
    """An input file for `run` out of (conversation, message)."""
    lines = (json.dumps({"conversation": name, "subject_id": f"of {name}", "message": text}) for name, text in messages)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[Any]:
    """A file of JSON lines; those of a ledger with what the keys beside its root open."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    keys = Path(f"{path.parents[2]}.keys")
    sealer = Sealer(Keyring(keys), SEALED_FIELDS)
    for line in lines if keys.is_dir() else ():
        if isinstance(line, dict) and "ledger_id" in line:
            entry = line["entry"]
            entry["payload"] = sealer.open(line["ledger_id"], entry["entry_type"], entry["payload"])
    return lines
