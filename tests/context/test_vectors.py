"""The published cases of context decisions: events in; active intent, eligible items with reasons, flags and exit code out."""

import json
from pathlib import Path
from typing import Any

import pytest

from kitchener.context import eligible, fold, read_event, resolve_active
from kitchener.context.ruleset import Ruleset
from kitchener.records.ref import Ref
from tests.context.history import ESTIMATE

CASES = json.loads((Path(__file__).parent.parent / "vectors" / "context_cases.json").read_text(encoding="utf-8"))
EXITS = {None: 0, "COMPETING_INTENTS": 3, "INVALID_LIFECYCLE": 4}


class Entry:
    """An entry as any reader of ledgers could give it."""

    def __init__(self, stored: dict[str, Any]) -> None:
        self.entry_type: str = stored["entry_type"]
        self.entity_id: str = stored["entity_id"]
        self.timestamp: str = stored["timestamp"]
        self.payload: dict[str, Any] = stored["payload"]
        self.ref = Ref("HO2M:CASE", stored["entry_id"], "sha256:" + "0" * 64)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_published_case_is_decided_as_published(case: dict[str, Any]) -> None:
    events = [event for stored in case["events"] if (event := read_event(Entry(stored))) is not None]
    ruleset = Ruleset(admission="newest_first", intent_conflict_policy=case["policy"], invalid_lifecycle_policy="block")
    state = fold(events, ESTIMATE)
    resolution = resolve_active(state, ruleset)
    found = {
        "flags": [flag.kind for flag in resolution.flags],
        "active": resolution.active,
        "eligible": {name: list(reasons) for name, reasons in eligible(state, resolution.active).items()},
        "exit": EXITS[resolution.blocked_by],
    }
    assert found == case["expected"]
