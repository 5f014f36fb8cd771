"""A root whose heads are signed, with a turn to prove: it was shown learned lines, and its context was decided on record."""

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import orjson

from kitchener.canonical import canonical_bytes
from kitchener.cli.app import invoke
from kitchener.runtime import open_runtime
from kitchener.signing import Signer, make_key
from tests.cli.memory.memories import DISK, PACKAGES

SETTINGS = """
[ledger]
durability = "os"
signing_key = "keys/signing.pem"
[memory]
gate_window_hours = 87600
[agents.ADMIN]
ho3_enabled = true
context_mode = "enforce"
"""


@dataclass(frozen=True)
class Proven:
    """A directory with settings, signed ledgers, and the ids of some turns."""

    directory: Path
    signer: Signer
    turns: list[str]
    """Of one subject, oldest first; the last are shown what was learned from the first."""

    @property
    def root(self) -> Path:
        """Where the ledgers are."""
        return self.directory / ".kitchener"

    def options(self) -> list[str]:
        """What commands are given."""
        return ["--config", str(self.directory / "kitchener.toml"), "--root", str(self.root)]


def fill(directory: Path) -> Proven:
    """Ada asks the same in four sessions, and Bo once; then all heads are signed."""
    signer = make_key(directory / "keys" / "signing.pem")
    (directory / "kitchener.toml").write_text(SETTINGS, encoding="utf-8")
    turns = anyio.run(_talk, directory)
    proven = Proven(directory, signer, turns)
    assert invoke(["ledger", "checkpoint", *proven.options(), "--json"]) == 0
    return proven


async def _talk(directory: Path) -> list[str]:
    turns = []
    async with open_runtime(directory / "kitchener.toml", root=directory / ".kitchener") as runtime:
        supervisor = runtime.supervisor()
        for subject, sessions in (("bo", 1), ("ada", 4), ("bo", 1)):
            for _ in range(sessions):
                session = await supervisor.start_session(subject_id=subject)
                for message in (PACKAGES, DISK):
                    result = await supervisor.handle_turn(message, session_id=session)
                    turns += [result.turn_id] if subject == "ada" else []
                    await runtime.drain()
    return turns


def bundle(proven: Proven, turn_id: str, path: Path, *more: str) -> Path:
    """The bundle of a turn; with `--chain`, every entry up to the heads has a row."""
    assert invoke(["ledger", "proof", turn_id, "-o", str(path), *more, *proven.options()]) == 0
    return path


def strip(path: Path, to: Path, *types: str, more: Callable[[dict[str, Any]], object] = lambda _: None) -> Path:
    """A copy of a signed bundle without the bodies of these entries; the count is right, and every signature holds."""
    content = orjson.loads(path.read_bytes())
    for part in content["ledgers"]:
        for row in shown_rows(part):
            if orjson.loads(row[5])["entry_type"] in types:
                row.pop()
                content["entries"] -= 1
    more(content)
    to.write_bytes(canonical_bytes(content) + b"\n")
    return to


def unsigned_heads(proven: Proven, to: Path) -> Proven:
    """A copy of a root whose heads are not signed."""
    shutil.copytree(proven.directory, to, symlinks=True, ignore=shutil.ignore_patterns("*.checkpoint", "*.json"))
    return dataclasses.replace(proven, directory=to)


def types_in(path: Path) -> dict[str, list[str]]:
    """The entry types of a bundle, by ledger."""
    parts = orjson.loads(path.read_bytes())["ledgers"]
    return {part["ledger_id"]: [orjson.loads(row[5])["entry_type"] for row in shown_rows(part)] for part in parts}


def shown_rows(part: dict[str, Any]) -> list[list[Any]]:
    """The rows of a bundle's part that have a body."""
    return [row for row in part["rows"] if len(row) == 6]
