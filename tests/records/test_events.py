"""Entry types, versions and sealed fields; explained in docs/ledger-entries.md."""

import re
from pathlib import Path
from typing import Any

import pytest

from kitchener.errors import EventVersionError
from kitchener.records import events

ENTRY_TYPES = {
    name: value for name, value in vars(events).items() if isinstance(value, str) and name == value and name.isupper()
}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "ledger-entries.md"


def test_an_entry_type_is_spelt_as_its_name() -> None:
    assert len(ENTRY_TYPES) >= 23
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]+", value) for value in ENTRY_TYPES.values())


def test_the_page_lists_every_entry_type_and_no_other() -> None:
    rows = re.findall(r"^\| `([A-Z0-9_]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(rows) == set(ENTRY_TYPES)


def test_sealed_fields_belong_to_entry_types_and_are_marked_on_the_page() -> None:
    assert set(events.SEALED_FIELDS) <= set(ENTRY_TYPES)
    text = PAGE.read_text(encoding="utf-8")
    for entry_type, fields in events.SEALED_FIELDS.items():
        row = "".join(re.findall(rf"^\| `{entry_type}` \|.*$", text, re.MULTILINE))
        for field in fields:
            assert f"`{field}`ˢ" in row, f"{entry_type}.{field}"


@pytest.mark.parametrize("payload", [{"v": 1, "a": 1}, {"a": 1}])
def test_a_payload_of_today_s_version_reads_as_it_is(payload: dict[str, Any]) -> None:
    assert events.read_payload(events.TURN_STARTED, payload) == payload


def test_unknown_fields_and_unknown_entry_types_pass() -> None:
    payload = {"v": events.VERSION, "from_the_future": [1, 2]}
    assert events.read_payload("SOMETHING_ELSE", payload) == payload


def test_reading_gives_a_payload_of_its_own() -> None:
    stored = {"v": 1, "a": 1}
    events.read_payload(events.TURN_STARTED, stored)["a"] = 2
    assert stored == {"v": 1, "a": 1}


@pytest.mark.parametrize("version", [events.VERSION + 1, 99, 0, -1, "1", 1.0, None, [1]])
def test_a_version_that_this_program_does_not_know_is_refused_by_name(version: Any) -> None:
    with pytest.raises(EventVersionError, match=re.escape(f"TURN_STARTED has version {version!r}")):
        events.read_payload(events.TURN_STARTED, {"v": version})


def test_older_versions_are_upgraded_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "VERSION", 3)
    upgrades = {
        (events.TURN_STARTED, 1): lambda payload: {**payload, "steps": [*payload.get("steps", []), "1 to 2"]},
        (events.TURN_STARTED, 2): lambda payload: {**payload, "steps": [*payload.get("steps", []), "2 to 3"]},
    }
    monkeypatch.setattr(events, "UPGRADES", upgrades)
    assert events.read_payload(events.TURN_STARTED, {"a": 1})["steps"] == ["1 to 2", "2 to 3"]
    assert events.read_payload(events.TURN_STARTED, {"v": 2})["steps"] == ["2 to 3"]
    assert events.read_payload(events.TURN_STARTED, {"v": 3}) == {"v": 3}


REF = {"ledger_id": "HO2M:ADMIN", "entry_id": "E-1", "entry_hash": "sha256:00"}
LISTED = {"ref": REF}


@pytest.mark.parametrize(
    ("entry_type", "older", "newest"),
    [
        (
            events.PROJECTION_COMPUTED,
            {
                "overlay_type": "PROJECTION",
                "eligible_refs": [REF, REF],
                "visible_refs": [REF],
                "suppressed_refs": [{"ref": REF, "reason": "DEFERRED"}],
                "proof_refs": [],
                "flags": [{"kind": "UNCLEAR_INTENT", "details_ref": REF}],
            },
            {
                "overlay_type": "PROJECTION_COMPUTED",
                "eligible_refs": [LISTED, LISTED],
                "visible_refs": [LISTED],
                "suppressed_refs": [{"ref": REF, "reason": "DEFERRED"}],
                "proof_refs": [],
                "flags": [{"kind": "UNCLEAR_INTENT", "details_ref": REF}],
            },
        ),
        (
            events.PROJECTION_COMPUTED,
            {
                "overlay_type": "PROJECTION",
                "eligible_refs": {"base": REF, "edits": [[0, 3], {"add": [REF]}]},
                "visible_refs": {"eligible": [[0, 2]], "recalled": [REF]},
                "proof_refs": [REF],
            },
            {
                "overlay_type": "PROJECTION_COMPUTED",
                "eligible_refs": {"base": REF, "edits": [[0, 3], {"add": [LISTED]}]},
                "visible_refs": {"eligible": [[0, 2]], "recalled": [LISTED]},
                "proof_refs": [LISTED],
            },
        ),
        (
            events.CONFLICT_FLAG,
            {"kind": "COMPETING_INTENTS", "involved_refs": [REF], "proof_refs": [REF]},
            {
                "kind": "COMPETING_INTENTS",
                "overlay_type": "CONFLICT_FLAG",
                "involved_refs": [LISTED],
                "proof_refs": [LISTED],
            },
        ),
        (events.HO3_OVERLAY_WEIGHT_UPDATED, {"weight": 0.5, "reason": "so"}, {"new_weight": 0.5, "reason": "so"}),
        (
            events.HO3_OVERLAY_WEIGHT_UPDATED,
            {"weight": None, "event_ts": "2026-01-01T00:00:00+00:00"},
            {"new_weight": None, "event_ts": "2026-01-01T00:00:00+00:00", "is_dated": False},
        ),
        (events.HO3_OVERLAY_DEACTIVATED, {"reason": "superseded"}, {"reason": "superseded"}),
        (
            events.HO3_OVERLAY_DEACTIVATED,
            {"event_ts": "2026-01-01T00:00:00+00:00"},
            {"event_ts": "2026-01-01T00:00:00+00:00", "is_dated": False},
        ),
    ],
    ids=["projection", "changed_projection", "conflict", "weight", "no_weight", "renewed", "deactivated"],
)
def test_the_names_of_before_are_upgraded(entry_type: str, older: dict[str, Any], newest: dict[str, Any]) -> None:
    last = events.VERSIONS[entry_type]
    for version in ({"v": 1}, {}):
        assert events.read_payload(entry_type, {**older, **version}) == {**newest, "v": last}
    assert events.read_payload(entry_type, {**newest, "v": 2}) == {**newest, "v": last}
    with pytest.raises(EventVersionError, match=f"has version {last + 1}; this version of Kitchener reads up to {last}"):
        events.read_payload(entry_type, {**newest, "v": last + 1})


@pytest.mark.parametrize("odd", [None, 7, "text", [], [None, 3, "x"], {"base": 1}, {"edits": None}])
def test_what_has_no_known_form_passes_the_upgrade(odd: Any) -> None:
    for entry_type in (events.PROJECTION_COMPUTED, events.CONFLICT_FLAG):
        assert events.read_payload(entry_type, {"proof_refs": odd})["proof_refs"] == odd
