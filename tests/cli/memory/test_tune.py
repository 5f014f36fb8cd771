"""`kitchener memory tune`: other thresholds of the gate over recorded signals (docs/commands.md)."""

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.memory.memories import OVERLAYS, SIGNALS, is_one_line, learned
from tests.replay.test_replay_identical import files

HEAD = ["·", "count", "sessions", "artifacts", "learned", "renewals", "flips", "subjects", "events", "turns", "hours"]


def test_each_setting_is_a_row_and_the_current_one_is_marked(taught: Cli, tmp_path: Path) -> None:
    """Ada's two lines and Bo's come from eight and six questions; `task:lookup` has four and three events."""
    before = files(tmp_path)
    outcome = taught("memory", "tune", "--count", "3..5", "--sessions", "3,4")
    assert (outcome.code, outcome.err) == (0, "")
    first, head, *lines = outcome.out.splitlines()
    assert first == "2 subjects (ADMIN): 49 signals in 14 turns; on record 4 artifacts, 0 taken back"
    assert head.split() == [*HEAD, "taken", "back"]
    rows = [line.split() for line in lines[:-2]]
    assert [row[:3] for row in rows if row[0] != ">"] == [
        ["3", "3", "6"],
        ["3", "4", "3"],
        ["4", "3", "5"],
        ["4", "4", "3"],
        ["5", "4", "2"],
    ]
    assert [row[1:4] for row in rows if row[0] == ">"] == [["5", "3", "4"]]
    assert lines[-2].startswith("given the same signals: ")
    assert files(tmp_path) == before


def test_json_has_the_numbers(taught: Cli) -> None:
    found = taught("memory", "tune", "--count", "5", "--subject", "ada", "--json").json
    assert (found["agent_class"], found["subject_id"], found["given"]) == ("ADMIN", "ada", "the same signals")
    assert found["on_record"] == {
        "subjects": 1,
        "sealed_subjects": 0,
        "signals": 28,
        "turns": 8,
        "gates": 20,
        "crossings": 2,
        "artifacts": 2,
        "taken_back": 0,
    }
    (current,) = found["settings"]
    assert current["current"] is True
    assert {name: current[name] for name in ("count", "sessions", "window_hours", "half_life_hours")} == {
        "count": 5,
        "sessions": 3,
        "window_hours": 87600,
        "half_life_hours": 336.0,
    }
    assert (current["artifacts"], current["renewals"], current["flips"]) == (2, 0, 0)
    assert current["to_first_crossing"]["events"] == {"median": 5, "p90": 5}
    assert current["to_first_crossing"]["turns"] == {"median": 5, "p90": 5}
    assert current["on_record"] == {"known": 2, "taken_back": 0}


def test_what_a_person_took_back_counts_against_the_settings_that_would_have_learned_it(taught: Cli) -> None:
    artifact = learned(taught)["intent:question"]["artifact_id"]
    assert taught("memory", "deactivate", artifact, "--subject", "ada", "--reason", "no").code == 0
    outcome = taught("memory", "tune", "--count", "5,9", "--subject", "ada")
    first, _, current, nine, *_ = outcome.out.splitlines()
    assert first.endswith("on record 2 artifacts, 1 taken back")
    assert current.endswith("1 of 2")
    assert nine.split()[:3] == ["9", "3", "0"]
    assert nine.endswith("–")


def test_without_ranges_it_goes_around_the_current_setting(taught: Cli) -> None:
    settings = taught("memory", "tune", "--json").json["settings"]
    assert {each["count"] for each in settings} == set(range(2, 9))
    assert {each["sessions"] for each in settings} == set(range(1, 5))
    assert len({each["half_life_hours"] for each in settings}) == 1
    assert is_one_line(taught("memory", "tune", "--window", "1,24", "--half-life", "0..1"), 2)
    swept = taught("memory", "tune", "--window", "1,24", "--json")
    assert [(each["window_hours"], each["current"]) for each in swept.json["settings"]] == [
        (1, False),
        (24, False),
        (87600, True),
    ]


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--count", "8..2", "expected whole numbers from 1 to 100,000, as in 3, 2..8 (upwards) or 3,5,8..10"),
        ("--count", "0", "expected whole numbers from 1 to 100,000"),
        ("--sessions", "two", "expected whole numbers from 1 to 100,000"),
        ("--sessions", "1..2000", "expected at most 1,000 values"),
        ("--window", "1..99999999", "expected whole numbers from 1 to 87,600"),
        ("--half-life", "-1", "expected whole numbers from 1 to 876,000"),
    ],
)
def test_an_impossible_range_names_option_value_and_what_was_expected(
    taught: Cli, option: str, value: str, expected: str
) -> None:
    outcome = taught("memory", "tune", f"{option}={value}")
    assert is_one_line(outcome, 2)
    assert f"{option} {value!r}: {expected}" in outcome.err


def test_too_many_settings_are_refused(taught: Cli) -> None:
    outcome = taught("memory", "tune", "--count", "1..500", "--sessions", "1..3")
    assert is_one_line(outcome, 2)
    assert "these ranges make 1,500 settings: expected at most 1,000" in outcome.err


def test_an_unknown_subject_is_a_negative_answer(taught: Cli) -> None:
    outcome = taught("memory", "tune", "--subject", "nobody")
    assert is_one_line(outcome, 1)
    assert (
        "subject 'nobody' gave no signal to agent class 'ADMIN'; `kitchener memory signals` shows whose there are"
        in outcome.err
    )


def test_without_signals_it_says_so_and_how_to_turn_memory_on(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("memory", "tune")
    assert is_one_line(outcome, 1)
    assert "no signal is on record for agent class 'ADMIN'" in outcome.err
    assert "`ho3_enabled = true` below [agents.ADMIN] of kitchener.toml turns it on" in outcome.err


def test_a_class_that_has_none_of_the_signals(taught: Cli) -> None:
    assert is_one_line(taught("memory", "tune", "--agent", "RESIDENT:nobody"), 1)
    assert taught("memory", "tune", "--agent", "RESIDENT:solo").out.startswith("1 subject (RESIDENT:solo): 21 signals")


@pytest.mark.parametrize("ledger", [SIGNALS, OVERLAYS])
def test_a_damaged_ledger_exits_with_6(taught: Cli, tmp_path: Path, ledger: Path) -> None:
    file = tmp_path / ledger
    file.write_bytes(file.read_bytes().replace(b"ADMIN/bo", b"ADMIN/bx", 1))
    outcome = taught("memory", "tune")
    assert (outcome.code, outcome.out) == (6, "")
    assert ledger.name in outcome.err


def test_kinds_with_their_own_thresholds_are_named(taught: Cli, tmp_path: Path) -> None:
    settings = (tmp_path / "kitchener.toml").read_text(encoding="utf-8")
    more = settings.replace("[memory]\n", "[memory]\ngate_overrides = { intent = { count = 2, sessions = 1 } }\n")
    (tmp_path / "kitchener.toml").write_text(more, encoding="utf-8")
    outcome = taught("memory", "tune", "--count", "9")
    assert "thresholds of their own (gate_overrides), which the sweep does not move: intent" in outcome.out
    assert taught("memory", "tune", "--json").json["own_thresholds"] == {"intent": {"count": 2, "sessions": 1}}


def test_a_subject_who_was_erased_is_counted_and_left_out(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    monkeypatch.setenv("KITCHENER_LEDGER__KEYRING", str(keys))
    monkeypatch.setenv("KITCHENER_AGENTS__ADMIN__HO3_ENABLED", "true")
    for subject in ("ada", "bo"):
        assert cli("chat", "--subject", subject, stdin=b"hello").code == 0
    assert cli("subject", "erase", "bo", "--yes").code == 0
    outcome = cli("memory", "tune")
    assert outcome.out.startswith("1 subject (ADMIN): ")
    assert outcome.out.splitlines()[-1].endswith("sealed and the key is missing: 1 subject")
    found = cli("memory", "tune", "--json").json["on_record"]
    assert (found["subjects"], found["sealed_subjects"], found["turns"]) == (1, 1, 1)
    told = cli("gateway", "what-if", "--with-config", "other.toml")
    assert told.code == 2
    (tmp_path / "other.toml").write_text("", encoding="utf-8")
    told = cli("gateway", "what-if", "--with-config", "other.toml", "--json")
    assert told.json["summary"]["calls"] == 4  # nothing that is sealed is needed
