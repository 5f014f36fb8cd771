"""`kitchener approval` and what `run` and `chat` say of calls that wait (docs/approval.md)."""

import shutil
from pathlib import Path

import anyio
import pytest

from kitchener.cli.app import invoke
from kitchener.cli.terminal.account import account_name
from kitchener.clock import SystemClock
from kitchener.runtime import open_runtime
from kitchener.runtime.loading import load_config
from kitchener.testing import FakeClock
from tests.cli.chat.terminal import Terminal
from tests.cli.conftest import Cli, as_own_process
from tests.cli.shared.commands import read_lines, write_messages

DESK = '''
from pathlib import Path

from kitchener import tool


@tool(requires_approval=True)
def write_note(text: str) -> str:
    """Writes a note."""
    with Path("notes").open("a") as file:
        file.write(f"{text}\\n")
    return f"noted {text}"
'''
QUESTIONS = '''
from kitchener import ConfirmationRequired, ToolContext, tool


@tool
def book_table(day: str, context: ToolContext) -> str:
    """Books a table."""
    if context.answer is None:
        raise ConfirmationRequired("At which hour?", {"type": "string", "enum": ["18:00", "20:00"]})
    return f"{day} at {context.answer.answer}"
'''
SETTINGS = """
[router]
default_provider = "offline"

[agents.ADMIN]
tools = ["desk_of_cli:write_note"]
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory with a request that waits; the offline model asks for the tool that a message names. Not to be changed."""
    directory = tmp_path_factory.mktemp("desk")
    (directory / "desk_of_cli.py").write_text(DESK)
    (directory / "kitchener.toml").write_text(SETTINGS)
    with as_own_process(directory), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        assert invoke(["run", str(write_messages(directory / "in", ("a", 'write a note "milk"'))), "--output", "out"]) == 0
    (result,) = read_lines(directory / "out")
    (approval_id,) = result["pending_approval"]
    return directory, str(approval_id)


@pytest.fixture
def desk(cli: Cli, asked: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of that request, in a directory of the test's own."""
    shutil.copytree(asked[0], tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.syspath_prepend(tmp_path)
    return asked[1]


def notes(tmp_path: Path) -> list[str]:
    """What the tool has written."""
    path = tmp_path / "notes"
    return path.read_text().splitlines() if path.exists() else []


def test_what_waits_is_listed_and_shown(cli: Cli, desk: str) -> None:
    (row,) = cli("approval", "list", "--json").json
    assert (row["approval_id"], row["status"], row["tool"], row["rule"]) == (desk, "waiting", "write_note", "tool")
    assert row["arguments"] == {"text": "milk"}
    assert desk in cli("approval", "list", "last").out
    shown = cli("approval", "show", desk)
    assert (shown.code, '{"text":"milk"}' in shown.out) == (0, True)


def test_an_approved_call_is_made_once_and_its_reply_shown(cli: Cli, desk: str, tmp_path: Path) -> None:
    assert notes(tmp_path) == []
    done = cli("approval", "approve", desk, "--by", "ada", "--json")
    assert (done.code, done.json["decision"]) == (0, "approved")
    again = cli("approval", "approve", desk, "--json")
    assert again.json["turn_id"] == done.json["turn_id"]
    assert notes(tmp_path) == ["milk"]
    assert cli("approval", "list").out == "no tool call is waiting for a person\n"
    (row,) = cli("approval", "list", "--all", "--json").json
    assert row["status"] == "approved"
    assert cli("approval", "show", desk, "--json").json[0]["given_answered_by"] == "ada"
    other = cli("approval", "deny", desk)
    assert (other.code, "is approved" in other.err) == (1, True)


def test_arguments_can_be_edited(cli: Cli, desk: str, tmp_path: Path) -> None:
    assert cli("approval", "approve", desk, "--arguments", "[").code == 2
    assert cli("approval", "approve", desk, "--arguments", '{"words": 1}').code == 2
    assert cli("approval", "approve", desk, "--arguments", '{"text": "bread"}').code == 0
    assert notes(tmp_path) == ["bread"]


def test_a_denied_call_is_not_made(cli: Cli, desk: str, tmp_path: Path) -> None:
    assert cli("approval", "deny", desk, "--message", "not now").code == 0
    assert notes(tmp_path) == []
    unknown = cli("approval", "show", f"{desk}9")
    assert (unknown.code, "is not on record" in unknown.err) == (1, True)


def test_what_a_person_reads_of_a_request(cli: Cli, desk: str) -> None:
    before = cli("approval", "show", desk).out.splitlines()
    assert before[0] == f"{desk}  waiting"
    assert '  call      write_note {"text":"milk"}' in before
    assert "  rule      the author of the tool, or the tool itself" in before
    assert before[-1] == "  answer    nobody has answered yet"
    header, row = cli("approval", "list").out.splitlines()
    assert header.split()[:2] == ["approval", "id"]
    assert '{"text":"milk"}' in row
    assert cli("approval", "approve", desk, "--message", "two litres").code == 0
    (recorded,) = cli("approval", "show", desk, "--json").json
    assert recorded["given_answered_by"] == account_name(), "who answers is recorded without --by too"
    after = cli("approval", "show", desk).out.splitlines()[-1]
    assert after.startswith(f"  answer    approved by {account_name()} at ")
    assert after.endswith(" – two litres")


def test_run_tells_how_many_turns_asked(cli: Cli, desk: str, tmp_path: Path) -> None:
    messages = write_messages(tmp_path / "more", ("c", 'write a note "tea"'), ("d", "hello"))
    told = cli("run", messages, "--output", "out").out
    assert told.endswith("1 turn asked for approval; `kitchener approval list` shows what waits\n")
    assert cli("run", messages, "--output", "out", "--json").json["waiting"] == 0, "it asked in an earlier run"


def test_requests_of_all_agent_classes_are_listed(cli: Cli, desk: str, tmp_path: Path) -> None:
    other = SETTINGS.replace("ADMIN", "CLERK").replace('[router]\ndefault_provider = "offline"', "")
    (tmp_path / "kitchener.toml").write_text(SETTINGS + other)
    messages = write_messages(tmp_path / "in", ("b", 'write a note "bread"'))
    assert cli("run", messages, "--output", "out", "--agent", "CLERK").code == 0
    (result,) = read_lines(tmp_path / "out")
    theirs = result["pending_approval"]
    assert [each["approval_id"] for each in cli("approval", "list", "--json").json] == [desk, *theirs]
    assert [each["approval_id"] for each in cli("approval", "list", "--agent", "CLERK", "--json").json] == theirs
    assert cli("approval", "approve", *theirs).code == 0, "the class is found by the id"
    assert notes(tmp_path) == ["bread"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("approve", "17"), 2, "expected WO-SES-"),
        (("deny", "WO-SES-xyz-001.1"), 2, "expected WO-SES-"),
        (("approve", "WO-SES-00000000-001.1"), 1, "SES-00000000"),
        (("show", "WO-SES-00000000-001"), 1, "SES-00000000"),
        (("approve", "{}9"), 1, "is not on record"),
        (("approve", "{}", "--arguments", "[1]"), 2, "expected a JSON object"),
        (("approve", "{}", "--arguments", "{"), 2, "--arguments: expected JSON"),
        (("approve", "{}", "--answer", "tru"), 2, "--answer: expected JSON"),
        (("approve", "{}", "--answer", "1"), 2, "asks no question"),
        (("approve", "{}", "--scope", "always"), 2, "--scope"),
        (("approve", "{}", "--by", ""), 2, "--by is empty"),
        (("deny", "{}", "--message", " "), 2, "message"),
        (("list", "SES-00000000"), 1, "SES-00000000"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_answered(
    cli: Cli, desk: str, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    before = len((tmp_path / ".kitchener/HO2/ADMIN/ho2m.jsonl").read_bytes())
    outcome = cli("approval", *(each.replace("{}", desk) if each.startswith("{}") else each for each in arguments))
    assert (outcome.code, words in outcome.err) == (code, True), outcome.err
    assert len((tmp_path / ".kitchener/HO2/ADMIN/ho2m.jsonl").read_bytes()) == before
    assert notes(tmp_path) == []
    assert [each["status"] for each in cli("approval", "list", "--json").json] == ["waiting"]


def test_an_expired_request_is_told_as_that(cli: Cli, desk: str, tmp_path: Path) -> None:
    """It was asked half an hour ago, and had a minute."""
    (tmp_path / "kitchener.toml").write_text(SETTINGS + "[agents.ADMIN.approval]\nexpires_s = 60\n")
    other = tmp_path / "other"

    async def ask() -> str:
        clock = FakeClock(SystemClock().time_us() - 1_800_000_000)
        config = load_config(tmp_path / "kitchener.toml", root=other, environ={}).config
        async with open_runtime(config, clock=clock) as runtime:
            return (await runtime.supervisor().handle_turn('write a note "late"')).pending_approval[0]

    late = anyio.run(ask)
    assert cli("approval", "list", "--root", other, "--json").json == []
    outcome = cli("approval", "approve", late, "--root", other)
    assert (outcome.code, "it is expired" in outcome.err) == (1, True), outcome.err
    (row,) = cli("approval", "list", "--all", "--root", other, "--json").json
    assert (row["approval_id"], row["status"], notes(tmp_path)) == (late, "expired", [])
    assert cli("approval", "show", late, "--root", other).out.splitlines()[-1] == "  answer    nobody answered in time"


def typed(terminal: Terminal, line: str, *expected: str) -> None:
    """Types a line and waits for what appears."""
    terminal.type(line)
    for words in expected:
        terminal.read_until(words)


ASKS = "[y]es, [n]o, [a]lways in this session, [e]dit"


def test_chat_asks_the_person_at_once_and_again_after_a_mistake_or_another_message(desk: str, tmp_path: Path) -> None:
    """`a` also allows later calls in this session; any other line is a message, and the call goes on waiting."""
    terminal = Terminal(tmp_path, PYTHONPATH=str(tmp_path))
    try:
        terminal.read_until("> ")
        typed(terminal, 'write a note "one"', f'write_note {{"text":"one"}}: {ASKS}')
        typed(terminal, "e", "an empty line goes back")
        typed(terminal, "oops", "expected a JSON object", "an empty line goes back")
        typed(terminal, '{"words": "two"}', "there is no such argument", "an empty line goes back")
        typed(terminal, "", ASKS)
        typed(terminal, "e", "an empty line goes back")
        typed(terminal, '{"text": "two"}', "ADMIN> ", "noted two")
        typed(terminal, 'write a note "three"', ASKS)
        typed(terminal, "n", "did not allow")
        typed(terminal, f'write a note "{"x" * 300} and more"', "… (cut:", "characters)", ASKS)
        typed(terminal, "n", "did not allow")
        typed(terminal, 'write a note "four"', ASKS)
        typed(terminal, "hello", "Hello!")
        typed(terminal, "/approvals", "1 tool call of this session waits for you", ASKS)
        typed(terminal, "a", "noted four")
        typed(terminal, 'write a note "five"', "noted five")
        typed(terminal, "/approvals", "no tool call of this session is waiting")
        terminal.type("/quit")
        assert terminal.finish() == 1, "a mistake was told"
    finally:
        terminal.close()
    assert notes(tmp_path) == ["two", "four", "five"]


def test_a_chat_asks_about_the_calls_of_an_agent_that_its_agent_asked(cli: Cli, tmp_path: Path) -> None:
    """And `approval list` has them among those of the session that asked."""
    (tmp_path / "desk_of_cli.py").write_text(DESK)
    clerk = '[agents.CLERK]\ntools = ["desk_of_cli:write_note"]\n'
    (tmp_path / "kitchener.toml").write_text(SETTINGS.replace("desk_of_cli:write_note", "agent:CLERK") + clerk)
    terminal = Terminal(tmp_path, PYTHONPATH=str(tmp_path))
    try:
        terminal.read_until("> ")
        typed(terminal, 'ask clerk "write note milk"', f'CLERK asks: write_note {{"text":"milk"}}: {ASKS}')
        (listed,) = cli("approval", "list", "last", "--agent", "ADMIN", "--json").json
        typed(terminal, "y", "CLERK> ", "noted milk")
        typed(terminal, "/approvals", "no tool call of this session is waiting")
        typed(terminal, 'ask clerk "write note bread"', f'CLERK asks: write_note {{"text":"bread"}}: {ASKS}')
        typed(terminal, "hello", "Hello!")
        terminal.type("/quit")
        assert terminal.finish() == 0
    finally:
        terminal.close()
    assert (listed["agent"], listed["tool"], listed["arguments"]) == ("CLERK", "write_note", {"text": "milk"})
    assert notes(tmp_path) == ["milk"]
    outcome = cli("chat", stdin=b'ask clerk "write note tea"\n')
    assert outcome.err.startswith("kitchener: a tool call waits: kitchener approval approve WO-SES-")


def test_a_chat_that_continues_a_session_asks_about_what_waits_there(desk: str, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, arguments=("last",), PYTHONPATH=str(tmp_path))
    try:
        terminal.read_until(f'1 tool call of this session waits for you\r\nwrite_note {{"text":"milk"}}: {ASKS}')
        typed(terminal, "y", "noted milk")
        terminal.type("/quit")
        assert terminal.finish() == 0
    finally:
        terminal.close()
    assert notes(tmp_path) == ["milk"]


def test_a_chat_names_the_id_of_a_call_that_looks_like_another_one(cli: Cli, desk: str, tmp_path: Path) -> None:
    """Regression: the same question appeared twice, and nobody could tell whether an answer had been taken."""
    terminal = Terminal(tmp_path, arguments=("last",), PYTHONPATH=str(tmp_path))
    try:
        terminal.read_until(f'write_note {{"text":"milk"}}: {ASKS}')
        terminal.type('write a note "milk"')
        terminal.read_until('write_note {"text":"milk"} (WO-')
        (second,) = {each["approval_id"] for each in cli("approval", "list", "last", "--json").json} - {desk}
        typed(terminal, "/approvals", "2 tool calls of this session wait for you", f"({desk}): {ASKS}")
        typed(terminal, "n", "did not allow", f"({second}): {ASKS}")
        typed(terminal, "y", "noted milk")
        terminal.type("/quit")
        assert terminal.finish() == 0
    finally:
        terminal.close()
    assert notes(tmp_path) == ["milk"]
    answered = {each["approval_id"]: each["status"] for each in cli("approval", "list", "--all", "--json").json}
    assert (answered[desk], answered[second]) == ("denied", "approved")


def test_a_chat_takes_the_answer_to_a_question_of_a_tool(tmp_path: Path) -> None:
    (tmp_path / "desk_of_cli.py").write_text(QUESTIONS)
    (tmp_path / "kitchener.toml").write_text(SETTINGS.replace("write_note", "book_table") + 'classify = "rules"\n')
    terminal = Terminal(tmp_path, PYTHONPATH=str(tmp_path))
    try:
        terminal.read_until("> ")
        typed(terminal, 'book a table on "Friday"', "At which hour? [e]nter an answer, [n]o")
        typed(terminal, "e", '"enum":["18:00","20:00"]')
        typed(terminal, "19:00", "kitchener: answer = ", "an empty line goes back")
        typed(terminal, "20:00", "Friday at 20:00")
        terminal.type("/quit")
        assert terminal.finish() == 1, "a mistake was told"
    finally:
        terminal.close()


def test_a_chat_through_a_pipe_names_the_command_that_answers(cli: Cli, desk: str, tmp_path: Path) -> None:
    """`yes` there is a message: what a pipe brings need not come from a person."""
    outcome = cli("chat", stdin=b'write a note "bread"\nyes\n')
    assert notes(tmp_path) == []
    waiting = [each["approval_id"] for each in cli("approval", "list", "--json").json if each["approval_id"] != desk]
    assert f"a tool call waits: kitchener approval approve {waiting[0]}\n" in outcome.err
    assert len(waiting) == 1
