"""`kitchener context explain --prompt` and `/prompt` in a chat show what models were asked (docs/prompts.md)."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.context.contexts import TALK, configure, say, talk, turn
from tests.cli.shared.commands import read_lines
from tests.replay.golden_roots import VERSION_1, unpacked

WORDS = "You are a helpful assistant."


@pytest.fixture(scope="module")
def talked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory with a session of two turns; not to be changed."""
    directory = tmp_path_factory.mktemp("talk")
    configure(directory, instructions=json.dumps(WORDS))
    return directory, say(directory, *TALK[:2])


@pytest.fixture
def session(cli: Cli, talked: tuple[Path, str], tmp_path: Path) -> str:
    """That session, in a directory of the test's own."""
    shutil.copytree(talked[0], tmp_path, symlinks=True, dirs_exist_ok=True)
    return talked[1]


def test_the_instructions_are_in_the_root_as_the_readme_promises(session: str) -> None:
    """In the ledger, under the key of what is configured. A root that is not sealed shows them to grep."""
    recorded = [json.dumps(line) for line in read_lines(Path(".kitchener/HO2/ADMIN/ho2m.jsonl"))]
    assert any(WORDS in line for line in recorded)
    assert not [path for path in Path(".kitchener").rglob("*.jsonl") if WORDS in path.read_text(encoding="utf-8")]


def test_each_request_is_shown_word_for_word_after_the_instructions_were_edited(cli: Cli, session: str) -> None:
    """The hash proves the text; the tokens of its parts add up; the provider's own count stands beside them."""
    configure(instructions='"You are somebody else."')
    told = cli("context", "explain", turn(session, 2), "--prompt", "--json")
    assert told.code == 0
    classify, reply = told.json["calls"]
    assert [each["wo_type"] for each in (classify, reply)] == ["classify", "synthesize"]
    for each in (classify, reply):
        assert each["is_verified"] is True
        assert each["request_hash"] == each["recorded_hash"]
        assert sum(part["tokens"] for part in each["parts"]) == each["estimated_tokens"] > 300
        assert each["usage"]["input_tokens"] > 0
    parts = {part["name"]: part["tokens"] for part in reply["parts"]}
    assert parts["instructions"] == pytest.approx(len(f"{WORDS}\n\nStanding rules:\n- Never delete files.") / 3, abs=1)
    assert {"contract", "history", "message"} <= parts.keys()
    assert "answer schema" in {part["name"] for part in classify["parts"]}
    assert "answer schema" not in parts, "a reply is text"
    assert WORDS in reply["messages"][0]["content"]
    text = cli("context", "explain", turn(session, 2), "--prompt").out
    assert reply["messages"][0]["content"] in text
    assert reply["messages"][1]["content"] in text
    assert f"  hash        {reply['request_hash']}, as recorded" in text
    assert f"the provider counted {reply['usage']['input_tokens']:,} in" in text


def test_a_request_that_the_built_in_rules_answered_says_that_no_model_saw_it(cli: Cli) -> None:
    assert cli("init").code == 0
    assert cli("chat", stdin=b"hello\n").code == 0
    told = cli("context", "explain", "last", "--prompt").out
    assert told.count("\n  asked       the built-in rules; no model saw this\n") == 1
    assert "\n  asked       offline-rules-1 of offline, " in told


def test_one_request_of_a_turn_can_be_chosen(cli: Cli, session: str) -> None:
    """By its number in the turn; a wrong number names those that there are."""
    told = cli("context", "explain", "--turn", turn(session, 2), "--prompt", "--call", "2", "--json").json
    assert [(each["number"], each["wo_type"]) for each in told["calls"]] == [(2, "synthesize")]
    wrong = cli("context", "explain", turn(session, 2), "--prompt", "--call", "3")
    assert wrong.code == 1
    assert "request 3: turn" in wrong.err
    assert "has requests 1 to 2" in wrong.err


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--call", "1"), "expected --prompt too"), (("--prompt", "--entry", "INV-1"), "leave one out")],
)
def test_options_that_contradict_are_refused(cli: Cli, session: str, options: tuple[str, ...], words: str) -> None:
    """With what to write instead."""
    outcome = cli("context", "explain", turn(session, 1), *options)
    assert outcome.code == 2
    assert words in outcome.err


def test_explain_says_what_the_models_read_in_all(cli: Cli, session: str) -> None:
    """Regression: a call took 591 tokens where explain showed only `5 of 2,400`, the part that the projection bounds."""
    told = cli("context", "explain", turn(session, 2), "--json").json["calls"]
    total = sum(each["usage"]["input_tokens"] for each in told)
    assert len(told) == 2
    assert total > 500
    text = cli("context", "explain", turn(session, 2)).out
    assert f"  {total:,} tokens in, " in text
    assert ", 2 model calls; cost 0.00; word for word: " in text
    assert f"kitchener context explain {turn(session, 2)} --prompt" in text


def test_a_chat_shows_the_requests_of_its_last_reply(cli: Cli, session: str) -> None:
    """All of them, or one by its number; nothing before the first message."""
    lines = ("/prompt", "/prompt 2", "/prompt 9", "/prompt all", "and trio?", "/prompt 2")
    out = cli("chat", "--session", session, stdin="\n".join(lines).encode()).out
    assert "request 1 of 2: classify" in out
    assert out.count("request 2 of 2: synthesize") == 3
    assert WORDS in out
    assert "request 9: turn" in out
    assert "/prompt N only the N-th request" in out
    assert "\n\nand trio?\n" in out
    empty = cli("chat", stdin=b"/prompt\n").out
    assert "no session yet" in empty


def test_a_replay_shows_what_was_edited_and_still_exits_as_documented(cli: Cli, session: str) -> None:
    """The recorded text is in the ledger, so both sides of the diff are."""
    assert cli("replay", "--session", session).code == 0
    configure(instructions='"You are somebody else."')
    outcome = cli("replay", "--session", session)
    assert outcome.code == 5
    assert (
        f"changed since: instructions of ADMIN\n    --- as recorded\n    +++ now\n    @@ -1 +1 @@\n    -{WORDS}\n"
        in outcome.out
    )
    assert "    +You are somebody else.\n" in outcome.out
    talk(cli, "hello")
    assert cli("replay", "--all").out.count("changed since: instructions of ADMIN") == 1, "the other session has them"
    told = cli("replay", "--session", session, "--json").json["sessions"][0]
    assert [each["name"] for each in told["changes"]] == ["instructions of ADMIN"]


def test_an_erased_turn_names_its_requests_and_says_why_they_are_gone(cli: Cli) -> None:
    """What was asked held what the subject said."""
    configure()
    Path("kitchener.toml").write_text(f'{Path("kitchener.toml").read_text()}\n[ledger]\nkeyring = "keys"\n', encoding="utf-8")
    session = talk(cli, "hello")
    assert cli("context", "explain", turn(session, 1), "--prompt").code == 0
    assert cli("subject", "erase", "ada", "--yes").code == 0
    outcome = cli("context", "explain", turn(session, 1), "--prompt")
    assert outcome.code == 1
    assert "why: its subject was erased" in outcome.out
    assert "not shown: call 1 of WO-" in outcome.out


def test_a_missing_key_is_not_told_as_an_erasure(cli: Cli) -> None:
    """What was erased is on record. A key that is only missing can be restored."""
    configure()
    session_id = talk(cli, "which python packages are installed?", "and which version is anyio?")
    Path(".kitchener.keys").rename("elsewhere")
    words = "the key of 'ada' is missing here and no erasure is on record: restore the keys from their backup"
    assert f"\n  shown as erased below: {words}\n" in cli("context", "explain", turn(session_id, 2)).out
    assert cli("context", "explain", turn(session_id, 2), "--json").json["unreadable"] == words
    assert f"\nwhy: {words}\n" in cli("context", "explain", turn(session_id, 2), "--prompt").out
    assert cli("context", "explain", turn(session_id, 2), "--html", "--out", "a.html").code == 0
    assert "is missing here and no erasure is on record" in Path("a.html").read_text(encoding="utf-8")
    shown, replayed = cli("session", "show", session_id), cli("replay", session_id)
    assert f"\nnot readable: {words}\n" in shown.out
    assert f"{session_id}  not readable: {words}\n" in replayed.out
    assert replayed.out.endswith("2 skipped (2 unreadable)\n")
    under_another = ("replay", session_id, "--with-config", "kitchener.toml")
    assert f"{session_id}  not readable: {words}\n" in cli(*under_another).out
    for command in (("session", "show", session_id), ("replay", session_id), under_another):
        told = cli(*command, "--json").json
        of_session = told["sessions"][0] if "sessions" in told else told
        assert of_session["unreadable"] == words
        assert {**told, **of_session}["erased"] in (False, 0)
    Path("elsewhere").rename(".kitchener.keys")
    assert cli("context", "explain", turn(session_id, 2), "--json").json["unreadable"] is None
    assert cli("session", "show", session_id, "--json").json["unreadable"] is None
    assert cli("subject", "erase", "ada", "--yes").code == 0
    erased = cli("context", "explain", turn(session_id, 2), "--json").json["unreadable"]
    assert erased.startswith("its subject was erased (E-")
    assert cli("session", "show", session_id, "--json").json["unreadable"] == erased
    assert "2 skipped (2 erased)" in cli("replay", session_id).out


def test_rules_that_classify_are_not_counted_as_a_model(cli: Cli) -> None:
    cli("init", ".")
    said = cli("chat", stdin=b"find hotels in Oslo\n")
    assert said.code == 0
    assert ", 1 model call; " in cli("context", "explain", "last").out


@pytest.mark.parametrize("arguments", [("--prompt", "--json"), ("--html", "--json")])
def test_a_turn_without_recorded_tools_finds_them_beside_the_settings(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """Wherever the command is called, as an agent under these settings does."""
    folder = unpacked(VERSION_1[0], tmp_path / "elsewhere")
    settings, module = folder / "corpus.toml", f"tools_beside_{arguments[0].strip('-')}"
    (folder / f"{module}.py").write_text("from tests.replay.corpus import water\nfrom tests.replay.tools import *\n")
    text = settings.read_text(encoding="utf-8")
    settings.write_text(re.sub(r'"tests\.replay\.\w+:', f'"{module}:', text), encoding="utf-8")
    told = cli("context", "explain", "T-9f54211f-000001", *arguments, "--config", settings)
    assert (told.code, told.json["problem"]) == (0, None)


def test_a_tool_that_may_not_be_called_is_shown_as_that(cli: Cli) -> None:
    """After a greeting no tool may be called, but the model is shown what it has, as in every other turn."""
    configure(tools='["tests.replay.tools:list_packages"]')
    said = talk(cli, "hello", "tell me of packages")
    greeted, asked = (cli("context", "explain", turn(said, number), "--prompt").out for number in (1, 2))
    assert "\n--- tool shown, not to be called: list_packages\n" in greeted
    assert "\n--- tool offered: list_packages\n" in asked
