"""`kitchener memory export` and `import` (docs/commands.md)."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.memory.memories import OVERLAYS, as_lines, is_one_line, learned
from tests.cli.shared.commands import read_lines

OLDER = {
    "overlay_id": "OVL-0001",
    "signal_id": "tool:list_packages",
    "salience_weight": 0.8,
    "decay_modifier": 0.9,
    "source_event_ids": ["EVT-0000000000000001"],
    "content": {"bias": "Often asks about packages.", "category": "tool_preference"},
    "window_start": "2026-02-11T10:30:00+00:00",
    "window_end": "2026-02-18T10:30:00+00:00",
    "created_at": "2026-02-18T10:30:00+00:00",
}
"""An overlay of the flat shape."""


def test_an_export_has_every_artifact_with_its_sources_and_fate(taught: Cli) -> None:
    artifact = learned(taught)["intent:question"]["artifact_id"]
    taught("memory", "deactivate", artifact, "--subject", "ada", "--reason", "no longer true")
    outcome = taught("memory", "export")
    assert (outcome.code, outcome.err) == (0, "")
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert [(each["subject_id"], each["signal_id"]) for each in rows] == [
        ("ada", "intent:question"),
        ("ada", "domain:software"),
        ("bo", "intent:question"),
        ("bo", "domain:software"),
    ]
    first = rows[0]
    assert (first["artifact_id"], first["enabled"], first["agent_class"]) == (artifact, False, "ADMIN")
    assert [each["event_id"] for each in first["source_events"]] == first["source_event_ids"]
    assert all(each["turn_id"].startswith("T-") for each in first["source_events"])
    assert [each["entry_type"] for each in first["records"]] == ["HO3_OVERLAY", "HO3_OVERLAY_DEACTIVATED"]
    assert first["records"][1]["reason"] == "no longer true"


def test_an_export_comes_in_again_elsewhere_and_only_once(taught: Cli, tmp_path: Path) -> None:
    outcome = taught("memory", "export", "-o", "learned.jsonl")
    assert (outcome.code, outcome.out) == (0, "wrote 4 learned lines to learned.jsonl\n")
    assert (tmp_path / "learned.jsonl").stat().st_mode & 0o077 == 0
    there = ("--root", "other")
    result = taught("memory", "import", "learned.jsonl", *there, "--json").json
    assert [each["subject_id"] for each in result["imported"]] == ["ada", "bo"]
    assert taught("memory", "import", "learned.jsonl", *there).out == "imported 0 learned lines; 4 known already\n"
    for subject in ("ada", "bo"):
        before, after = learned(taught, subject), learned(taught, subject, *there)
        assert [(each["line"], each["weight"]) for each in before.values()] == [
            (each["line"], each["weight"]) for each in after.values()
        ]
        assert {(each["artifact_id"], each["labels"]) for each in after.values()} == {(None, None)}
    overlay = learned(taught)["intent:question"]["overlay_id"]
    text = taught("memory", "explain", overlay, "--subject", "ada", *there).out
    assert text.count("(imported; no ledger here knows it)") == 5
    assert taught("ledger", "verify", *there).code == 0


def test_an_export_of_one_subject_has_nobody_else(taught: Cli) -> None:
    rows = [json.loads(line) for line in taught("memory", "export", "--subject", "bo").out.splitlines()]
    assert {each["subject_id"] for each in rows} == {"bo"}
    nobody = taught("memory", "export", "--subject", "eve")
    assert (nobody.code, nobody.out) == (0, "")
    assert nobody.err == "nothing was learned about 'eve', so there is nothing to export\n"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".kitchener/x.jsonl", "lies under the root"),
        ("no/x.jsonl", "must be a file in a directory that exists"),
        (".", "must be a file in a directory that exists"),
    ],
)
def test_an_export_goes_only_where_it_can(taught: Cli, name: str, words: str) -> None:
    outcome = taught("memory", "export", "-o", name)
    assert is_one_line(outcome, 2)
    assert words in outcome.err


def test_the_older_shape_comes_in_with_its_category_and_unverified_sources(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "older").write_text("\n" + as_lines(OLDER, OLDER), encoding="utf-8")
    outcome = cli("memory", "import", "older", "--subject", "ada")
    assert (outcome.code, outcome.out) == (0, "imported 1 learned line of ada; 1 known already\n")
    (entry,) = (line["entry"]["payload"] for line in read_lines(tmp_path / OVERLAYS))
    assert entry["unverified_event_ids"] == OLDER["source_event_ids"]
    text = cli("memory", "biases", "--all").out
    assert (
        "OVL-0001  Often asks about packages.\n  tool_preference from tool:list_packages; shown in turns without labels\n"
        in text
    )
    assert "imported" in cli("memory", "explain", "OVL-0001").out
    refused = cli("memory", "deactivate", "OVL-0001", "--reason", "x")
    assert is_one_line(refused, 2)
    assert "it cannot be deactivated, and its weight decays" in refused.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "expected an object"),
        ({**OLDER, "source_event_ids": []}, "overlay source_event_ids = []: expected the events that"),
        ({**OLDER, "salience_weight": 2}, "overlay salience_weight = 2"),
        ({**OLDER, "signal_id": "mood:sad"}, "expected kind:value with a kind out of"),
        ({**OLDER, "created_at": "2026-02-18T10:30:00"}, "expected an aware datetime or ISO text with a zone"),
        ({**OLDER, "content": {"bias": "x", "n": 2**60}}, "content.n"),
        ({**OLDER, "content": {"bias": "x", "more": "x" * 1_100_000}}, "max_entry_bytes"),
        ({key: value for key, value in OLDER.items() if key != "overlay_id"}, "overlay_id"),
        ({**OLDER, "subject_id": "bo"}, "belongs to subject 'bo', not 'ada'"),
        ({**OLDER, "subject_id": 7}, "subject_id = 7: expected 1 to 256"),
        ({**OLDER, "agent_class": "RESIDENT:bo"}, "belongs to agent class 'RESIDENT:bo', not 'ADMIN'"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_written(cli: Cli, tmp_path: Path, line: Any, words: str) -> None:
    text = line if isinstance(line, str) else json.dumps(line)
    (tmp_path / "older").write_text(f"{as_lines({**OLDER, 'overlay_id': 'OVL-0000'})}{text}\n", encoding="utf-8")
    outcome = cli("memory", "import", "older", "--subject", "ada")
    assert is_one_line(outcome, 2)
    assert outcome.err.startswith("kitchener: older: line 2: ")
    assert words in outcome.err
    assert not (tmp_path / ".kitchener").exists()


def test_a_line_that_names_nobody_needs_a_subject(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "older").write_text(as_lines(OLDER), encoding="utf-8")
    outcome = cli("memory", "import", "older")
    assert is_one_line(outcome, 2)
    assert "older: line 1: names no subject_id; say with --subject whose it is" in outcome.err
