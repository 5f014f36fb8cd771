"""Problems that stop `kitchener context project`: undecided conflicts between intents, and impossible lifecycles."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, cli
from tests.cli.context.contexts import CONTEXT, HO2M, append, completed, configure, declared, superseded, talk, turn
from tests.cli.shared.commands import read_lines

__all__ = ["cli"]

SESSION = "SES-0000beef"


def test_competing_intents_block_projection(cli: Cli) -> None:
    append(HO2M, declared("INT-1"), declared("INT-2"), completed("T-1", "INT-1"), completed("T-2", "INT-2"))
    outcome = cli("context", "project", "--session", SESSION, "--json")
    assert outcome.code == 3
    assert outcome.json["active_intent"] is None
    assert (outcome.json["eligible"], outcome.json["visible"], outcome.json["suppressed"]) == ([], [], [])
    assert [flag["kind"] for flag in outcome.json["flags"]] == ["COMPETING_INTENTS"]
    assert [line["entry"]["entry_type"] for line in read_lines(CONTEXT)] == ["CONFLICT_FLAG"]
    newest = cli("context", "project", "--session", SESSION, "--conflict-policy", "most_recent_wins", "--json")
    assert (newest.code, newest.json["active_intent"]) == (0, "INT-2")
    assert [each["entity_id"] for each in newest.json["visible"]] == ["INT-2", "T-2", "T-1"]
    assert [flag["kind"] for flag in newest.json["flags"]] == ["COMPETING_INTENTS"]


@pytest.mark.parametrize("links", [[("INT-1", "INT-1")], [("INT-1", "INT-2"), ("INT-2", "INT-1")]])
def test_supersession_cycle_is_invalid_lifecycle(cli: Cli, tmp_path: Path, links: list[tuple[str, str]]) -> None:
    append(HO2M, declared("INT-1"), declared("INT-2"), *[superseded(*link) for link in links])
    outcome = cli("context", "project", "--session", SESSION, "--dry-run", "--json")
    assert outcome.code == 4
    assert (outcome.json["active_intent"], outcome.json["eligible"]) == (None, [])
    assert [flag["kind"] for flag in outcome.json["flags"]] == ["INVALID_LIFECYCLE"]
    assert not (tmp_path / CONTEXT).exists()


@pytest.mark.parametrize("chosen", ["INT-1", "INT-2", "INT-3"])
def test_competing_intents_block_projection_whatever_intent_is_asked_for(cli: Cli, chosen: str) -> None:
    append(HO2M, declared("INT-1"), declared("INT-2"), declared("INT-3"), superseded("INT-3", "INT-2"))
    outcome = cli("context", "project", "--intent", chosen, "--budget", "2400")
    assert outcome.code == 3
    assert "this blocks projection until it is resolved" in outcome.out
    assert [line["entry"]["entry_type"] for line in read_lines(CONTEXT)] == ["CONFLICT_FLAG"]
    append(HO2M, superseded("INT-2", "INT-1"))
    after = cli("context", "project", "--intent", chosen, "--budget", "2400", "--json")
    assert (after.code, after.json["active_intent"]) == (0, "INT-1" if chosen == "INT-1" else None)
    assert [line["entry"]["entry_type"] for line in read_lines(CONTEXT)] == ["CONFLICT_FLAG", "PROJECTION_COMPUTED"]


def test_a_projection_past_a_conflict_is_of_the_intent_that_was_asked_for(cli: Cli) -> None:
    append(HO2M, declared("INT-1"), declared("INT-2"))
    past = cli("context", "project", "--intent", "INT-1", "--conflict-policy", "most_recent_wins", "--json")
    assert (past.code, past.json["active_intent"]) == (0, "INT-1")
    assert [flag["kind"] for flag in past.json["flags"]] == ["COMPETING_INTENTS"]


def test_the_session_is_found_by_the_intent(cli: Cli) -> None:
    """In the ledger of whatever class, by the session that the declaration names; or where no entry names one."""
    bo = Path(str(HO2M).replace("ADMIN", "RESIDENT%3Abo"))
    other = "SES-0000cafe"
    append(bo, declared("INT-8", session_id=other), completed("T-8", "INT-8", session_id=other))
    append(bo, declared("INT-1", session_id=SESSION), completed("T-1", "INT-1", session_id=SESSION))
    append(HO2M, declared("INT-9", session_id=other), declared("INT-001"), completed("T-2", "INT-001"))
    for intent, turns, session in (("INT-1", ["T-1"], SESSION), ("INT-001", ["T-2"], None), ("INT-8", ["T-8"], other)):
        outcome = cli("context", "project", "--intent", intent, "--budget", "2400", "--json")
        assert outcome.code == 0
        assert outcome.json["active_intent"] == intent
        assert [each["entity_id"] for each in outcome.json["eligible"]] == [intent, *turns]
        written = read_lines(CONTEXT if intent == "INT-001" else bo.with_name("context.jsonl"))[-1]["entry"]
        assert written["entry_type"] == "PROJECTION_COMPUTED"
        assert written["payload"].get("session_id") == session
    assert cli("ledger", "verify").code == 0
    unknown = cli("context", "project", "--intent", "INT-7")
    assert (unknown.code, "INT-7" in unknown.err) == (1, True)
    neither = cli("context", "project")
    assert (neither.code, "SESSION or --intent" in neither.err) == (2, True)
    given = cli("context", "project", "--intent", "INT-1", "--ledger", bo, "--json")
    assert given.json["active_intent"] == "INT-1"


@pytest.mark.parametrize("scope", ["PROJECT", "GLOBAL", "ARTIFACT"])
def test_a_lone_shared_intent_is_active_where_it_was_declared(cli: Cli, scope: str) -> None:
    ada: dict[str, Any] = {"subject_id": "ada"}
    here, there = {"session_id": SESSION, **ada}, {"session_id": "SES-0000cafe", **ada}
    append(HO2M, declared("INT-1", scope=scope, **here), completed("T-1", "INT-1", **here))
    append(HO2M, declared("INT-2", scope=scope, **there))

    def active(session: str) -> tuple[int, str | None]:
        outcome = cli("context", "project", "--session", session, "--dry-run", "--json")
        return outcome.code, outcome.json["active_intent"]

    assert (active(SESSION), active("SES-0000cafe")) == ((0, "INT-1"), (0, "INT-2"))
    append(HO2M, declared("INT-3", scope=scope, **here))
    assert (active(SESSION), active("SES-0000cafe")) == ((3, None), (0, "INT-2"))
    append(HO2M, declared("INT-4", **here))  # an intent of the session itself goes before those that it shares
    assert active(SESSION) == (0, "INT-4")


def test_what_was_retired_vanishes_and_what_was_reopened_is_back(cli: Cli) -> None:
    """The latest event wins; what contradicts it is flagged."""

    def of_work(entry_type: str, name: str, **more: Any) -> tuple[str, str, dict[str, Any]]:
        return entry_type, name, {"wo_id": name, "intent_id": "INT-1", "reason": "so", **more}

    def of_intent(entry_type: str) -> tuple[str, str, dict[str, Any]]:
        return entry_type, "INT-1", {"intent_id": "INT-1", "reason": "so", "outcome": "done"}

    def projected() -> tuple[int, str | None, set[str], set[str]]:
        found = cli("context", "project", "--session", SESSION, "--dry-run", "--json")
        put_off = {each["entity_id"] for each in found.json["suppressed"] if each["reason"] == "DEFERRED"}
        return found.code, found.json["active_intent"], {each["entity_id"] for each in found.json["eligible"]}, put_off

    opened = [of_work("WO_OPENED", f"WO-{n}", targets=["a.txt"], acceptance=["contains:pear"]) for n in (1, 2, 3)]
    append(HO2M, declared("INT-1"), *opened)
    append(HO2M, of_work("WO_RETIRED", "WO-1"), of_work("WO_DEFERRED", "WO-2"))
    assert projected() == (0, "INT-1", {"INT-1", "WO-2", "WO-3"}, {"WO-2"})
    append(HO2M, of_work("WO_REOPENED", "WO-1"), of_work("WO_REOPENED", "WO-2"))
    assert projected() == (0, "INT-1", {"INT-1", "WO-1", "WO-2", "WO-3"}, set())
    append(HO2M, of_intent("INTENT_RETIRED"))
    assert projected() == (0, None, set(), set())
    append(HO2M, of_intent("INTENT_CLOSED"))
    impossible = cli("context", "project", "--session", SESSION, "--dry-run", "--json")
    assert (impossible.code, [each["kind"] for each in impossible.json["flags"]]) == (4, ["INVALID_LIFECYCLE"])


def test_an_ended_work_order_is_explained_with_its_evidence(cli: Cli) -> None:
    configure()
    session = talk(cli, "hello", "which python packages are installed?")
    planned = [line["entry"] for line in read_lines(HO2M) if line["entry"]["entry_type"] == "WO_PLANNED"]
    done = planned[0]["entity_id"]
    ended = cli("context", "explain", "--turn", turn(session, 2), "--entry", done, "--json")
    assert ended.code == 0
    (found,) = ended.json["explanations"]
    assert (found["verdict"], found["evidence_refs"]) == ("not_live", [])
    text = cli("context", "explain", "--turn", turn(session, 2), "--entry", done)
    assert (text.code, f"Work order {done} (classify) closed" in text.out) == (0, True)
