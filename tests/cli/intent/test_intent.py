"""`kitchener intent` and `kitchener session repair` (docs/commands.md)."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.context.contexts import HO2M, TALK, append, configure, declared, intents, say, superseded, talk
from tests.cli.shared.commands import read_lines


@pytest.fixture(scope="module")
def talked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory in which a session has four turns under two intents; not to be changed."""
    directory = tmp_path_factory.mktemp("talk")
    configure(directory)
    return directory, say(directory, *TALK[:4])


@pytest.fixture
def session(cli: Cli, talked: tuple[Path, str], tmp_path: Path) -> str:
    """That session, in a directory of the test's own."""
    shutil.copytree(talked[0], tmp_path, symlinks=True, dirs_exist_ok=True)
    return talked[1]


def statuses(cli: Cli, session_id: str) -> list[str]:
    return [each["status"] for each in intents(cli, session_id)]


def test_the_list_says_what_became_of_each_intent(cli: Cli, session: str) -> None:
    first, second = intents(cli, session)
    assert first.keys() == {
        "session_id",
        "intent_id",
        "status",
        "closed_by",
        "scope",
        "turns",
        "parent",
        "superseded_by",
        "objective",
        "declared_at",
        "last_entry",
    }
    assert (first["status"], first["superseded_by"], first["turns"]) == ("superseded", second["intent_id"], 3)
    assert (second["status"], second["turns"], second["scope"]) == ("active", 1, "SESSION")
    header, row, _ = cli("intent", "list", "--session", session).out.splitlines()
    assert header.split()[:3] == ["session", "id", "intent"]
    assert f"{first['intent_id']}  superseded" in row
    other = talk(cli, "hello")
    assert {each["session_id"] for each in cli("intent", "list", "--json").json} == {session, other}
    unknown = cli("intent", "list", "--agent", "RESIDENT:bo")
    told = "kitchener: --agent 'RESIDENT:bo' is neither configured nor on record; there is: ADMIN\n"
    assert (unknown.code, unknown.err) == (1, told)
    assert cli("intent", "list", "--session", "SES-00000000").code == 1


def test_an_intent_is_declared_below_another_and_competes_where_it_is_not(cli: Cli, session: str) -> None:
    parent = intents(cli, session)[1]["intent_id"]
    outcome = cli(
        "intent", "declare", "find the station", "--session", session, "--parent", parent, "--target", "map", "--json"
    )
    assert outcome.code == 0
    child = outcome.json["intent_id"]
    assert outcome.json == {"session_id": session, "intent_id": child, "status": "live", "competing": []}
    assert intents(cli, session)[2]["parent"] == parent
    outcome = cli("intent", "declare", "compare prices", "--session", session)
    assert outcome.code == 0
    assert "2 intents compete now: " in outcome.out
    assert "then /intents keep N" in outcome.out
    assert statuses(cli, session) == ["superseded", "live", "competing", "competing"]
    assert "\n  2. INT-" in cli("intent", "list", "--session", session).out


def test_a_fork_names_the_child_that_goes_on(cli: Cli, session: str) -> None:
    parent = intents(cli, session)[1]["intent_id"]
    outcome = cli("intent", "fork", parent, "the flight", "the hotel", "--active", "2", "--json")
    assert outcome.code == 0
    children = outcome.json["child_intent_ids"]
    assert len(children) == 2
    assert (outcome.json["active_child_intent_id"], outcome.json["competing"]) == (children[1], [])
    listed = {each["intent_id"]: each for each in intents(cli, session)}
    assert listed[children[1]]["status"] == "active"
    assert listed[children[0]]["objective"] == "the flight"
    assert cli("intent", "fork", parent, "one", "--active", "2").code == 2
    assert cli("intent", "fork", parent).code == 2
    assert cli("intent", "fork", intents(cli, session)[0]["intent_id"], "one").code == 4


def test_intents_are_closed_abandoned_and_reopened(cli: Cli, session: str) -> None:
    first, second = (each["intent_id"] for each in intents(cli, session))
    assert cli("intent", "close", second, "--outcome", "booked").out == f"{second} of {session} is closed\n"
    assert statuses(cli, session) == ["superseded", "closed"]
    outcome = cli("intent", "reopen", first, "--session", session, "--reason", "still needed", "--json")
    assert outcome.json == {"session_id": session, "intent_id": first, "status": "live", "competing": []}
    assert statuses(cli, session) == ["active", "closed"]
    assert cli("intent", "abandon", first, "--reason", "too expensive").code == 0
    assert statuses(cli, session) == ["abandoned", "closed"]
    written = [line["entry"] for line in read_lines(HO2M) if line["entry"]["entry_type"] == "INTENT_ABANDONED"]
    assert written[0]["payload"]["reason"] == "too expensive"


def test_what_cannot_follow_is_refused_with_exit_code_4_and_nothing_is_written(cli: Cli, session: str) -> None:
    first, second = (each["intent_id"] for each in intents(cli, session))
    lines = read_lines(HO2M)
    for command in (
        ["close", first],
        ["abandon", first, "--reason", "x"],
        ["reopen", second, "--reason", "x"],
        ["close", "INT-0", "--session", session],
        ["declare", "x", "--session", session, "--parent", "INT-0"],
    ):
        outcome = cli("intent", *command)
        assert (outcome.code, outcome.out) == (4, ""), command
        assert outcome.err.count("\n") == 1
    assert read_lines(HO2M) == lines


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["close", "INT-0"], 4, "intent 'INT-0' was never declared; `kitchener intent list`"),
        (["abandon", "INT-0"], 2, "--reason"),
        (["declare", "x"], 2, "SESSION is missing"),
        (["declare", " ", "--session", "{}"], 2, "objective = ' '"),
        (["declare", "x", "--session", "{}", "--scope", "WORLD"], 2, "--scope"),
        (["declare", "x", "--session", "SES-00000000"], 1, "is not known"),
    ],
)
def test_a_mistake_gives_one_line(cli: Cli, session: str, command: list[str], code: int, words: str) -> None:
    outcome = cli("intent", *(each.format(session) for each in command))
    assert (outcome.code, outcome.out) == (code, "")
    assert words in outcome.err


def test_without_the_authority_there_are_no_intents_to_steer(cli: Cli) -> None:
    session = talk(cli, "hello")
    outcome = cli("intent", "declare", "x", "--session", session)
    assert (outcome.code, outcome.out) == (2, "")
    assert 'intents need context_mode = "enforce"' in outcome.err


class TestRepair:
    def damage(self, session: str) -> list[str]:
        """Three entries that cannot be, and one that can."""
        one: dict[str, Any] = {"session_id": session}
        append(HO2M, declared("INT-1", scope="PROJECT", session_id=session))
        return append(
            HO2M,
            superseded("INT-1", "INT-1", **one),
            ("INTENT_CLOSED", "INT-0", {**one, "intent_id": "INT-0"}),
            ("WO_COMPLETED", "WO-0", {**one, "wo_id": "WO-0"}),
        )

    def test_it_lists_what_cannot_be_and_voids_what_is_named(self, cli: Cli, session: str) -> None:
        first, second, third = self.damage(session)
        listed = cli("session", "repair", session)
        assert listed.code == 4
        assert "invalid life cycle: 3 entries" in listed.out
        assert f"--> HO2M:ADMIN {first}" in listed.out
        assert "= INT-1 is superseded by itself" in listed.out
        outcome = cli("session", "repair", session, "--void", second, "--reason", "a faulty import", "--json")
        assert outcome.code == 4
        assert [each["entry_id"] for each in outcome.json["voided"]] == [second]
        assert [each["entry_id"] for each in outcome.json["invalid"]] == [first, third]
        entry = read_lines(HO2M)[-1]["entry"]
        assert (entry["entry_type"], entry["payload"]["reason"]) == ("LIFECYCLE_VOIDED", "a faulty import")
        assert entry["payload"]["ref"]["entry_id"] == second
        outcome = cli("session", "repair", session, "--all", "--reason", "the rest")
        assert outcome.code == 0
        assert f"voided {third}: " in outcome.out
        assert f"no invalid entries in {session}\n" in outcome.out
        assert cli("context", "project", "--session", session).code == 0
        assert cli("ledger", "verify").code == 0
        assert cli("chat", "--session", session, stdin=b"hello\n").code == 0

    def test_nothing_is_voided_without_a_reason_or_if_it_can_be(self, cli: Cli, session: str) -> None:
        assert cli("session", "repair", session, "--json").json == {"session_id": session, "voided": [], "invalid": []}
        first, *_ = self.damage(session)
        fine = read_lines(HO2M)[-4]["entry_id"]
        for arguments, code, words in (
            (["--void", first], 2, "--reason is missing"),
            (["--all", "--reason", " "], 2, "--reason is missing"),
            (["--void", fine, "--reason", "x"], 1, "not an invalid entry"),
        ):
            outcome = cli("session", "repair", session, *arguments)
            assert (outcome.code, outcome.out) == (code, "")
            assert words in outcome.err
        assert cli("session", "repair", "SES-00000000").code == 1
        assert len(cli("session", "repair", session, "--json").json["invalid"]) == 3

    def test_a_ledger_of_another_program_is_repaired_too(self, cli: Cli) -> None:
        append(HO2M, declared("INT-1"), declared("INT-1"))
        assert cli("context", "project", "--session", "SES-0000beef").code == 4
        assert cli("session", "repair", "SES-0000beef", "--all", "--reason", "written twice").code == 0
        assert cli("context", "project", "--session", "SES-0000beef", "--json").json["active_intent"] == "INT-1"


def test_an_intent_of_a_project_is_listed_with_its_scope_and_above_another_sessions(cli: Cli, session: str) -> None:
    outcome = cli("intent", "declare", "open the shop", "--session", session, "--scope", "PROJECT", "--json")
    project = outcome.json["intent_id"]
    other = talk(cli, "which lamps are there?")
    assert cli("intent", "declare", "compare lamps", "--session", other, "--parent", project, "--json").code == 0
    rows = intents(cli, other)
    assert [(each["session_id"], each["scope"]) for each in rows if each["intent_id"] == project] == [(session, "PROJECT")]
    everything = cli("intent", "list", "--json").json
    assert [each["intent_id"] for each in everything].count(project) == 1
    assert "PROJECT" in cli("intent", "list", "--session", other).out
    mine = rows[0]["intent_id"] if rows[0]["intent_id"] != project else rows[1]["intent_id"]
    assert cli("intent", "close", mine, "--session", other).code == 0
    shown = cli("context", "project", "--session", other, "--dry-run", "--json")
    assert shown.code == 0
    assert project in [each["entity_id"] for each in shown.json["visible"]]
    assert cli("intent", "close", project, "--session", other, "--outcome", "opened").code == 0
    assert next(each for each in intents(cli, session) if each["intent_id"] == project)["status"] == "closed"
    shown = cli("context", "project", "--session", other, "--dry-run", "--json")
    assert project not in [each["entity_id"] for each in shown.json["visible"]]
    assert cli("intent", "close", project, "--session", session).code == 4
