"""With `--json`, the answer of each command is one JSON object or list (docs/commands.md)."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, get_type_hints

import pytest

from kitchener.cli.app import invoke
from kitchener.cli.options import JsonFlag
from tests.acceptance.replies.content_kit import png
from tests.cli.conftest import Cli, as_own_process
from tests.cli.context.contexts import HO2M
from tests.cli.memory.memories import OVERLAYS
from tests.cli.shared.command_list import every_command
from tests.cli.shared.commands import read_lines

SETTINGS = """
[ledger]
durability = "none"
signing_key = "signing.pem"
[router.providers.offline]
kind = "offline"
media_types = ["image/*"]
[memory]
gate_count_threshold = 1
gate_session_threshold = 1
[agents.ADMIN]
context_mode = "enforce"
ho3_enabled = true
tools = ["tools_of_answers:write_note"]
"""
TOOLS = '''
from kitchener import tool

@tool(requires_approval=True)
def write_note(text: str) -> str:
    """Writes a note."""
    return f"noted {text}"
'''
SAID: Final = (
    {"conversation": "first", "subject_id": "ada", "message": "how many chairs are there?", "parts": ["photo.png"]},
    {"conversation": "first", "subject_id": "ada", "message": "and how many tables?"},
    {"conversation": "second", "subject_id": "ada", "message": 'write a note "milk"'},
)
WITHOUT_JSON: Final = {
    "init": "writes a file and says which",
    "chat": "is a conversation",
    "serve": "answers over HTTP",
    "memory export": "prints JSON lines",
    "completion": "prints a script",
}
"""Commands without `--json`, and why."""

ANSWERS: Final = {
    "run": "run said.jsonl -o results.jsonl",
    "context project": "context project {session}",
    "context explain": "context explain {turn}",
    "context diff": "context diff {turn} {next}",
    "context shadow": "context shadow {session}",
    "intent list": "intent list {session}",
    "intent declare": "intent declare chairs {session}",
    "intent fork": "intent fork {intent} red blue",
    "intent close": "intent close {intent}",
    "intent abandon": "intent abandon {intent} --reason late",
    "intent reopen": "intent reopen {closed} --reason late",
    "session repair": "session repair {session}",
    "session export": "session export {session} --out folder",
    "session import": "session import exported --root another",
    "session list": "session list",
    "session show": "session show {session}",
    "session end": "session end {session}",
    "approval list": "approval list",
    "approval show": "approval show {approval}",
    "approval approve": "approval approve {approval}",
    "approval deny": "approval deny {approval}",
    "content check": "content check",
    "content save": "content save {turn}.1 --out saved.png",
    "content clean": "content clean",
    "subject erase": "subject erase ada --yes",
    "memory tune": "memory tune ada",
    "memory bisect": "memory bisect {next}",
    "memory signals": "memory signals",
    "memory biases": "memory biases",
    "memory explain": "memory explain {artifact}",
    "memory cost": "memory cost",
    "memory deactivate": "memory deactivate {artifact} --reason late",
    "memory quarantine": "memory quarantine intent:question ada --reason late",
    "memory import": "memory import learned.jsonl",
    "gateway what-if": "gateway what-if --with-config kitchener.toml",
    "gateway cost": "gateway cost",
    "mcp list": "mcp list",
    "mcp check": "mcp check",
    "ledger checkpoint": "ledger checkpoint",
    "ledger key": "ledger key",
    "ledger proof": "ledger proof {turn} -o proof.json",
    "ledger verify": "ledger verify",
    "ledger tail": "ledger tail",
    "ledger show": "ledger show {entry}",
    "ledger accept-head": "ledger accept-head --reason late",
    "audit leaks": "audit leaks",
    "replay": "replay {session}",
    "config check": "config check",
    "config show": "config show",
    "config schema": "config schema",
    "doctor": "doctor",
}
"""A command line of each command that has something to answer in the root of `recorded`."""


NEGATIVE: Final = {
    "context shadow": "nothing was decided in shadow",
    "ledger accept-head": "nothing is missing",
    "memory bisect": "no learned line changed the reply",
}
"""Commands that answer with exit code 1 here, and why."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A directory with an image, a request that waits and what was learned, and what to put into a line. Not to be changed."""
    directory = tmp_path_factory.mktemp("answers")
    (directory / "kitchener.toml").write_text(SETTINGS, encoding="utf-8")
    (directory / "tools_of_answers.py").write_text(TOOLS, encoding="utf-8")
    (directory / "photo.png").write_bytes(png())
    (directory / "said.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in SAID), encoding="utf-8")
    with as_own_process(directory), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        for line in ("ledger key --new signing.pem", "run said.jsonl -o results.jsonl"):
            assert invoke(line.split()) == 0
        first, second, asking = read_lines(directory / "results.jsonl")
        intent, closed = (each["entry"]["entity_id"] for each in lines(directory / HO2M, "INTENT_DECLARED"))
        export = f"session export {first['session_id']} --out exported"
        for line in (f"intent close {closed}", export, "memory export -o learned.jsonl"):
            assert invoke(line.split()) == 0
    (approval,) = asking["pending_approval"]
    artifact = next(lines(directory / OVERLAYS, "HO3_OVERLAY"))["entry"]["payload"]["artifact_id"]
    entry = next(lines(directory / HO2M, "SESSION_START"))["entry_id"]
    ids = {"session": first["session_id"], "turn": first["turn_id"], "next": second["turn_id"], "approval": approval}
    return directory, ids | {"intent": intent, "closed": closed, "artifact": artifact, "entry": entry}


def lines(path: Path, entry_type: str) -> Iterator[dict[str, Any]]:
    """The lines of a ledger with entries of a type."""
    yield from (each for each in read_lines(path) if each["entry"]["entry_type"] == entry_type)


def takes_json(function: Callable[..., object]) -> bool:
    return JsonFlag in get_type_hints(function, include_extras=True).values()


def test_every_command_takes_json_or_says_why_not() -> None:
    assert {name for name, function in every_command() if not takes_json(function)} == WITHOUT_JSON.keys()


def test_every_command_with_json_is_in_the_table() -> None:
    assert list(ANSWERS) == [name for name, function in every_command() if takes_json(function)]
    assert all(line.startswith(name) for name, line in ANSWERS.items())


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_one_json_value(
    cli: Cli, recorded: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    directory, ids = recorded
    shutil.copytree(directory, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.syspath_prepend(tmp_path)
    outcome = cli(*ANSWERS[name].format(**ids).split(), "--json")
    assert outcome.code == (1 if name in NEGATIVE else 0), outcome.err
    answer = outcome.json
    assert isinstance(answer, dict | list)
    assert answer
