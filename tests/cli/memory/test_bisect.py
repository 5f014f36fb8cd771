"""`kitchener memory bisect`: the consolidation after which a turn is shown something else (docs/commands.md)."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.memory.memories import OVERLAYS, PACKAGES, is_one_line, learned
from tests.replay.test_replay_identical import files


def last_session(cli: Cli, subject: str = "ada") -> str:
    return str([each["session_id"] for each in cli("session", "list", "--json").json if each["subject_id"] == subject][-1])


def turn(session_id: str, number: int) -> str:
    return f"T-{session_id[4:]}-{number:06d}"


def test_it_tells_what_was_learned_from_what_and_what_changed(taught: Cli, tmp_path: Path) -> None:
    session = last_session(taught)
    question = learned(taught)["intent:question"]
    before = files(tmp_path)
    outcome = taught("memory", "bisect", "--bad", turn(session, 2), "--item", question["artifact_id"])
    assert (outcome.code, outcome.err) == (0, "")
    assert files(tmp_path) == before
    lines = outcome.out.splitlines()
    assert lines[0] == f"{question['artifact_id']} changes what {turn(session, 2)} of ada (ADMIN) is shown"
    assert "  learned  (OVERLAYS E-" in lines[1]
    assert lines[2] == "  from intent:question: 5 events in 3 sessions"
    assert lines[3:5] == ["  before, after:", f"    + {question['line']}"]
    assert lines[5] == "  because of 5 events in 5 turns:"
    assert lines[6].endswith(f"-000001  > {PACKAGES}")
    assert lines[-1] == "2 entries of the memory in between, 3 runs of the turn"


def test_json_has_all_of_it(taught: Cli) -> None:
    session = last_session(taught)
    found: dict[str, Any] = taught("memory", "bisect", "--session", session, "--all", "--json").json
    assert (found["agent_class"], found["subject_id"], found["turn_id"]) == ("ADMIN", "ada", turn(session, 2))
    assert (found["between"], found["probes"], found["is_exact"], found["is_shown"]) == (2, 3, True, None)
    assert {each["signal_id"] for each in found["changes"]} == {"intent:question", "domain:software"}
    first = found["changes"][0]
    assert first["before"]["lines"] == []
    assert first["diff"] == [f"+ {first['line']}"]
    assert len(first["source_events"]) == first["gate_snapshot"]["count"] == 5
    assert first["entry"]["entry_type"] == "HO3_OVERLAY"


def test_a_line_that_somebody_took_back(taught: Cli) -> None:
    """The first turn after it is not shown it: the deactivation is found, with its reason."""
    artifact, session = learned(taught)["intent:question"]["artifact_id"], last_session(taught)
    assert taught("memory", "deactivate", artifact, "--subject", "ada", "--reason", "not true").code == 0
    assert taught("chat", "--session", session, stdin=PACKAGES.encode()).code == 0
    outcome = taught("memory", "bisect", "--good", turn(session, 2), "--session", session, "--item", "of this kind")
    assert outcome.code == 0
    assert "deactivated: not true" in outcome.out
    assert "    - Most messages are of this kind: question." in outcome.out


def test_nothing_changed_is_a_negative_answer(taught: Cli) -> None:
    session = last_session(taught)
    outcome = taught("memory", "bisect", "--good", turn(session, 1), "--bad", turn(session, 2))
    assert (outcome.code, outcome.err) == (1, "")
    first, second, last = outcome.out.splitlines()
    assert first.endswith(f"nothing that was learned since {turn(session, 1)} changes what it is shown")
    assert second == f"what else differs between the turns: kitchener context diff {turn(session, 1)} {turn(session, 2)}"
    assert last == "0 entries of the memory in between, 1 run of the turn"
    assert taught("memory", "bisect", "--good", turn(session, 1), "--json").json["changes"] == []


def test_a_class_is_found_by_itself(taught: Cli) -> None:
    session = [each["session_id"] for each in taught("session", "list", "--agent", "RESIDENT:solo", "--json").json][-1]
    found = taught("memory", "bisect", "--session", session, "--json")
    assert (found.code, found.json["agent_class"], found.json["subject_id"]) == (0, "RESIDENT:solo", "cy")


def test_wrong_usage(taught: Cli) -> None:
    session = last_session(taught)
    for arguments, expected in (
        ((), "expected TURN (T-… or `last`), the turn that shows the change, or --session SES-…"),
        (("--bad", "T-1"), "--bad 'T-1' is not a turn id"),
        (("--good", "yesterday"), "'yesterday' is not a turn id: expected one such as T-0a1b2c3d-000002, or `last`"),
        (("--bad", turn(session, 2), "--session", "SES-00000000"), "is not a turn of --session 'SES-00000000'"),
        (("--session", "x"), "'x' is not a session id"),
    ):
        outcome = taught("memory", "bisect", *arguments)
        assert is_one_line(outcome, 2)
        assert expected in outcome.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--session", "SES-00000000"), "session 'SES-00000000' is not known"),
        (("--bad", "T-00000000-000001"), "session 'SES-00000000' is not known"),
        (("--item", "ART-000000000000"), "`kitchener memory biases --all --subject ada` shows what was learned"),
        (("--item", "no such words"), "the turn could not have been shown it"),
    ],
)
def test_what_is_not_on_record_is_a_negative_answer(taught: Cli, arguments: tuple[str, ...], expected: str) -> None:
    session = () if "--item" not in arguments else ("--session", last_session(taught))
    outcome = taught("memory", "bisect", *arguments, *session)
    assert is_one_line(outcome, 1)
    assert expected in outcome.err


def test_memory_that_is_off(taught: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    session = last_session(taught)
    monkeypatch.setenv("KITCHENER_AGENTS__ADMIN__HO3_ENABLED", "false")
    outcome = taught("memory", "bisect", "--session", session)
    assert is_one_line(outcome, 1)
    assert "`ho3_enabled = true` below [agents.ADMIN] of kitchener.toml turns it on" in outcome.err


def test_a_damaged_ledger_exits_with_6(taught: Cli, tmp_path: Path) -> None:
    session, file = last_session(taught), tmp_path / OVERLAYS
    file.write_bytes(file.read_bytes().replace(b"ADMIN/bo", b"ADMIN/bx", 1))
    outcome = taught("memory", "bisect", "--session", session)
    assert (outcome.code, outcome.out) == (6, "")
    assert "overlays.jsonl" in outcome.err
