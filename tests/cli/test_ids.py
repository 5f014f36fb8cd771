"""Ids on the command line: by position or by option, and `last` wherever a session or a turn is meant (docs/commands.md)."""

import inspect
import shutil
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from cyclopts import Parameter

from kitchener.cli.app import invoke
from kitchener.cli.options import OUTPUT_NAMES, MayBeLast
from tests.cli.conftest import Cli, as_own_process
from tests.cli.shared.command_list import every_command
from tests.cli.shared.commands import write_messages

IDS = {"session", "turn", "before", "after", "good", "bad", "intent", "parent", "artifact", "subject", "entry", "void", "item"}
"""Names of the parameters that are ids."""
SESSIONS_AND_TURNS = {"session": "session", "turn": "turn", "before": "turn", "after": "turn", "good": "turn"}
OPTIONS_ONLY = {
    ("intent fork", "session"): "the objectives take all further positions",
    ("intent declare", "parent"): "the session is what the command is about",
    ("context project", "intent"): "the session is what the command is about",
    ("context explain", "entry"): "the turn is what the command is about",
    ("memory bisect", "good"): "the bad turn is what the command is about",
    ("memory bisect", "session"): "the bad turn is what the command is about",
    ("memory bisect", "item"): "the bad turn is what the command is about",
    ("session repair", "void"): "the session is what the command is about, and there may be several",
    ("session list", "subject"): "one of several filters",
    ("chat", "subject"): "the session is what the command is about",
    ("session import", "subject"): "the folder or file is what the command is about",
}


def test_every_id_has_a_position_and_every_session_and_turn_may_be_last() -> None:
    """Rule: an id that a command is about is positional and an option too; a session or turn may be `last`."""
    seen, unused = 0, set(OPTIONS_ONLY)
    for command, function in every_command():
        hints = get_type_hints(function, include_extras=True)
        for name, parameter in inspect.signature(function).parameters.items():
            if name not in IDS:
                continue
            seen += 1
            if (command, name) in OPTIONS_ONLY:
                unused.discard((command, name))
            else:
                assert parameter.kind is not inspect.Parameter.KEYWORD_ONLY, f"{command}: {name} has no position"
            marks = [each for each in get_args(hints[name]) if isinstance(each, MayBeLast)]
            expected = [SESSIONS_AND_TURNS[name]] if name in SESSIONS_AND_TURNS else []
            assert [each.what for each in marks] == expected, (command, name)
    assert seen > 30
    assert not unused, "no command has these any more"


def test_every_file_that_a_command_writes_is_named_by_the_same_option() -> None:
    """Rule: it is `--out`; the old `--output` and `-o` mean the same."""
    found = {
        f"{command} {name}": tuple(each.name for each in get_args(hints[name]) if isinstance(each, Parameter))
        for command, function in every_command()
        for hints in [get_type_hints(function, include_extras=True)]
        for name in inspect.signature(function).parameters
        if name in ("out", "output")
    }
    assert len(found) >= 5
    assert set(found.values()) == {(OUTPUT_NAMES,)}


@pytest.fixture(scope="module")
def root_of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which two subjects talked to ADMIN, and then a third one to another class; not to be changed."""
    directory = tmp_path_factory.mktemp("two")
    first = write_messages(directory / "in", ("a", "hello"), ("b", "The room is\nTOO  cold."), ("b", "thanks"))
    second = write_messages(directory / "in2", ("c", "what can you do?"))
    with as_own_process(directory):
        assert invoke(["run", str(first)]) == 0
        assert invoke(["run", str(second), "--agent", "RESIDENT:bo"]) == 0
    return directory


@pytest.fixture
def two(cli: Cli, root_of_two: Path, tmp_path: Path) -> Cli:
    """The command line, beside a copy of `root_of_two`."""
    shutil.copytree(root_of_two, tmp_path, symlinks=True, dirs_exist_ok=True)
    return cli


def session_of(cli: Cli, external_id: str) -> str:
    rows = cli("session", "list", "--since", "1d", "--json").json
    (found,) = [row["session_id"] for row in rows if row["external_id"] == external_id]
    return str(found)


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("session show {} --json", "session"),
        ("ledger tail {} --json", "session"),
        ("intent list {} --json", "session"),
        ("session repair {} --json", "session"),
        ("replay {} --json", "session"),
        ("replay --session {} --json", "session"),
        ("context explain {} --json", "turn"),
        ("context explain --turn {} --prompt --json", "turn"),
        ("context diff {} {} --json", "turn"),
    ],
)
def test_last_means_the_newest_of_all_agent_classes(two: Cli, command: str, what: str) -> None:
    session = session_of(two, "c")
    by_id = session if what == "session" else f"T-{session[4:]}-000001"
    expected, found = two(*command.format(*[by_id] * 2).split()), two(*command.format("last", "last").split())
    assert expected.code == found.code == 0
    assert found.json == expected.json


def test_last_of_a_named_agent_class_is_its_own(two: Cli) -> None:
    shown = two("session", "show", "last", "--agent", "ADMIN", "--json").json
    assert shown["agent_class"] == "ADMIN"
    assert (
        shown["session_id"]
        == max((row for row in two("session", "list", "--json").json), key=lambda row: (row["last_at"], row["session_id"]))[
            "session_id"
        ]
    )


@pytest.mark.parametrize("command", ["session show last", "context explain last", "chat last", "ledger proof last"])
def test_without_any_last_is_a_negative_answer_in_one_line(cli: Cli, command: str) -> None:
    outcome = cli(*command.split())
    assert (outcome.code, outcome.out) == (1, "")
    assert "is on record yet; `kitchener chat` begins one" in outcome.err
    assert outcome.err.count("\n") == 1


def test_last_is_found_in_any_case(two: Cli) -> None:
    assert two("session", "show", "LAST", "--json").json == two("session", "show", "last", "--json").json


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("session show lst", "'lst' is not a session id: expected one such as SES-0a1b2c3d, or `last`"),
        ("chat lst", "'lst' is not a session id: expected one such as SES-0a1b2c3d, or `last`"),
        ("context explain lats", "'lats' is not a turn id: expected one such as T-0a1b2c3d-000002, or `last`"),
        ("context diff last lst", "'lst' is not a turn id: expected one such as T-0a1b2c3d-000002, or `last`"),
    ],
)
def test_a_word_in_the_place_of_an_id_is_told_the_two_forms(two: Cli, command: str, words: str) -> None:
    outcome = two(*command.split())
    assert (outcome.code, outcome.out, outcome.err) == (2, "", f"kitchener: {words}\n")


@pytest.mark.parametrize(
    "command", ["session show", "context explain", "intent close", "memory explain", "ledger show", "chat"]
)
def test_an_empty_id_is_told_as_what_it_is(cli: Cli, command: str) -> None:
    """It is usually an unset variable of a shell."""
    outcome = cli(*command.split(), "")
    assert (outcome.code, outcome.out) == (2, "")
    assert " is empty, perhaps because a shell variable is not set" in outcome.err


class TestDefaultAgent:
    @staticmethod
    def configure(*classes: str) -> None:
        text = "".join(f'[agents."{each}"]\ninstructions = "Be brief."\n' for each in classes)
        Path("kitchener.toml").write_text(text, encoding="utf-8")

    def test_the_only_configured_class_is_meant(self, cli: Cli) -> None:
        self.configure("helpdesk")
        assert cli("chat", stdin=b"hello\n").code == 0
        (row,) = cli("session", "list", "--json").json
        assert row["agent_class"] == "helpdesk"
        assert cli("chat", "last", stdin=b"hello\n").code == 0

    def test_admin_is_meant_where_it_is_configured_or_no_class_is(self, cli: Cli) -> None:
        assert cli("session", "list").out == "no sessions of ADMIN\n"
        self.configure("ADMIN", "helpdesk")
        assert cli("session", "list").out == "no sessions of ADMIN\n"

    def test_of_several_others_one_has_to_be_named(self, cli: Cli) -> None:
        """A session's own id says enough."""
        self.configure("sales", "helpdesk")
        outcome = cli("chat", stdin=b"hello\n")
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err == "kitchener: --agent: name one of the configured classes: helpdesk, sales\n"
        assert cli("session", "list").out == "no sessions yet\n"
        assert cli("chat", "--agent", "sales", stdin=b"hello\n").code == 0
        (row,) = cli("session", "list", "--json").json
        assert row["agent_class"] == "sales"
        for command in ("session show last", "context explain last", "replay --all", "chat last", "session list --since 1d"):
            assert cli(*command.split()).code == 0, command


class TestSearch:
    def test_from_the_words_of_a_complaint_to_why_in_two_steps(self, two: Cli) -> None:
        listed = two("session", "list", "--grep", "room IS too cold")
        assert listed.code == 0
        session = session_of(two, "b")
        assert listed.out.startswith(f"{session} of of b (ADMIN), 2 turns\n  T-{session[4:]}-000001  ")
        assert "user: The room is TOO cold." in listed.out
        command = listed.out.splitlines()[-1].partition("kitchener ")[2]
        explained = two(*command.split())
        assert (explained.code, explained.err) == (0, "")
        assert f"turn T-{session[4:]}-000001" in explained.out

    def test_the_turns_that_were_found_are_in_the_json(self, two: Cli) -> None:
        (row,) = two("session", "list", "--grep", "WHAT CAN", "--json").json
        assert (row["agent_class"], row["external_id"]) == ("RESIDENT:bo", "c")
        assert [each["text"] for each in row["found"] if each["speaker"] == "user"] == ["what can you do?"]
        assert "found" not in two("session", "list", "--json").json[0]

    def test_filters_are_all_met_and_a_named_class_bounds_them(self, two: Cli) -> None:
        assert [row["external_id"] for row in two("session", "list", "--subject", "of b", "--json").json] == ["b"]
        for arguments in (
            ["--subject", "of a", "--grep", "cold"],
            ["--subject", "nobody"],
            ["--grep", "cold", "--agent", "RESIDENT:bo"],
            ["--since", "2999-01-01"],
        ):
            outcome = two("session", "list", *arguments)
            assert (outcome.code, outcome.out) == (1, "no session matches\n")
            assert two("session", "list", *arguments, "--json").json == []
        assert len(two("session", "list", "--since", "2h", "--limit", "2", "--json").json) == 2

    @pytest.mark.parametrize("since", ["yesterday", "2026-02-30", "3 d", "2026-02-18T10:30:00", "999999999d"])
    def test_a_time_that_is_none_is_refused(self, two: Cli, since: str) -> None:
        outcome = two("session", "list", "--since", since)
        assert (outcome.code, outcome.out) == (2, "")
        assert "expected 30m, 12h, 7d, a day such as 2026-02-18, or an ISO time with a zone" in outcome.err

    def test_sealed_texts_are_found_with_their_keys_and_counted_without(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "kitchener.toml").write_text('[ledger]\nkeyring = "keys"\n')
        assert cli("run", write_messages(tmp_path / "in", ("a", "the blue door"), ("b", "the red door"))).code == 0
        (row,) = cli("session", "list", "--grep", "blue", "--json").json
        assert row["subject_id"] == "of a"
        assert cli("subject", "erase", "of a", "--yes").code == 0
        outcome = cli("session", "list", "--grep", "blue")
        assert (outcome.code, outcome.out) == (1, "no session matches\n")
        assert outcome.err == "kitchener: 2 texts could not be searched: erased, or sealed without the key\n"
        (row,) = cli("session", "list", "--grep", "red", "--json").json
        assert row["subject_id"] == "of b"


class TestEntries:
    def test_an_entry_is_shown_whole_from_every_ledger_that_has_its_id(self, two: Cli) -> None:
        (entry,) = two("ledger", "tail", "-n", "1", "--type", "turn-completed", "--json").json
        (found,) = two("ledger", "show", entry["entry_id"], "--ledger", "ho2m", "--agent", "ADMIN", "--json").json
        assert found == {"ledger_id": "HO2M:ADMIN", **entry}
        text = two("ledger", "show", entry["entry_id"], "--agent", "ADMIN").out
        assert "TURN_COMPLETED of T-" in text
        assert f'"turn_id": "{entry["entity_id"]}"' in text
        (first,) = two("ledger", "tail", "--ledger", "ho1m", "-n", "1", "--agent", "RESIDENT:bo", "--json").json
        ledgers = {each["ledger_id"] for each in two("ledger", "show", first["entry_id"], "--json").json}
        assert {"HO1M:RESIDENT%3Abo", "HO1M:ADMIN", "HO2M:ADMIN"} <= ledgers

    @pytest.mark.parametrize(
        ("entry", "code"),
        [
            ("E-2026-02-18-999999999999", 1),
            ("E-2026-13-18-000000000001", 2),
            ("E-2026-02-30-000000000001", 2),
            ("E-2026-02-18-1", 2),
            ("E-2026-02", 2),
            ("E-1", 2),
            ("T-1", 2),
            ("E-x", 2),
            ("E-²", 2),
        ],
    )
    def test_an_unknown_entry_and_what_is_none(self, two: Cli, entry: str, code: int) -> None:
        outcome = two("ledger", "show", entry)
        assert (outcome.code, outcome.out) == (code, "")
        assert outcome.err.count("\n") == 1

    def test_types_are_found_in_any_case_and_a_misspelt_one_is_told(self, two: Cli) -> None:
        expected = two("ledger", "tail", "--type", "LLM_CALL", "--ledger", "ho1m", "--json").json
        assert expected
        for given in ("llm_call", "Llm-Call"):
            assert two("ledger", "tail", "--type", given, "--ledger", "ho1m", "--json").json == expected

    @pytest.mark.parametrize(
        ("given", "hint"),
        [
            ("turnstarted", "did you mean TURN_STARTED or "),
            ("wo_f", "did you mean WO_FAILED?\n"),
            ("foo", "there are: APPROVAL_REQUESTED, "),
            ("LEDGER_HEAD_ACCEPT", "did you mean LEDGER_HEAD_ACCEPTED?\n"),
        ],
    )
    def test_a_type_that_there_is_not_is_a_mistake_that_names_those_like_it(self, two: Cli, given: str, hint: str) -> None:
        outcome = two("ledger", "tail", "--type", given)
        assert (outcome.code, outcome.out) == (2, "")
        assert f"no entries of type {given!r}; {hint}" in outcome.err

    @pytest.mark.parametrize("given", ["llm_call", "LEDGER_HEAD_ACCEPTED"])
    def test_a_type_that_this_ledger_has_none_of_is_told_with_the_other_ledgers(self, two: Cli, given: str) -> None:
        outcome = two("ledger", "tail", "--type", given, "--json")
        assert (outcome.code, outcome.json) == (0, [])
        assert outcome.err.endswith("--ledger chooses another one: ho1m, context, signals, overlays\n")
