"""An agent that asks before it acts is killed at places of its whole life: nothing is lost, and no effect happens twice.

One life asks, answers at once, and goes on; between request, answer and effect there are as many places as anywhere else.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Container, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools.tool import tool
from kitchener.records import events
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
from kitchener.testing import CrashRoot, crash_test
from tests.acceptance.stack import open_scripted
from tests.faults.crashes.waiting_turns import MESSAGES, answered, recorded, two_rounds

EFFECTS = "effects"


async def converse(supervisor: HO2Supervisor, message: str, **options: Any) -> TurnResult:
    """Beside a person who allows the first call of each turn and denies the second, as often as it takes."""
    result = await supervisor.handle_turn(message, **options)
    allowed, denied = result.pending_approval
    first = await supervisor.approve(allowed)
    done = await supervisor.deny(denied, "not this one")
    assert done is not None
    assert first is None or first == done  # it was answered before
    return done


@asynccontextmanager
async def build(root: Path) -> AsyncIterator[Runtime]:
    """The agent. Its effects are lines of a file."""

    def effect(what: str) -> str:
        with (root / EFFECTS).open("a") as file:
            file.write(json.dumps(what) + "\n")
        return f"did {what}"

    @tool(requires_approval=True)
    def change(what: str) -> str:
        """Changes something."""
        return effect(what)

    @tool
    def add(what: str) -> str:
        """Adds something."""
        return effect(what)

    async with open_scripted(root / "plane", two_rounds("change", "add"), tools=[change, add]) as runtime:
        yield answered(runtime, converse)


def check(found: CrashRoot) -> Iterable[str]:
    """No effect twice, none that was denied, none missing of an answered message, no answer lost, and no doubt kept quiet."""
    path = found.root / EFFECTS
    done = Counter(json.loads(line) for line in path.read_text().splitlines()) if path.exists() else Counter[str]()
    yield from [f"effect {what!r} happened {count} times" for what, count in done.items() if count > 1]
    yield from [f"effect {what!r} was denied and happened" for what in done if what.endswith(" b")]
    asked = recorded(found.root, "HO2", "ho2m.jsonl")
    yield from _lost_answers(asked, [*found.acknowledged.values()])
    for subject, number in found.acknowledged:
        name = MESSAGES[subject][number]
        yield from [f"effect {what!r} is missing" for what in (f"{name} a", f"{name} c") if what not in done]
    begun = {each["entity_id"] for each in asked if each["entry_type"] == events.TURN_STARTED}
    doubtful = _doubtful_subjects(recorded(found.root, "HO1", "ho1m.jsonl"), begun)
    told = {subject for subject, _ in found.unknown}
    yield from [f"an effect for {each} began and did not end, and nobody was told" for each in doubtful - told]
    yield from [f"an effect for {each} was told as unknown, and none is" for each in told - doubtful]


def _lost_answers(entries: Iterable[Mapping[str, Any]], turns: Iterable[str]) -> Iterable[str]:
    """The requests of these turns that do not have one answer, or not the one that the person gave."""
    answers: dict[str, list[str]] = {}
    resumed: dict[str, list[str]] = {}
    for each in entries:
        payload = each["payload"]
        if each["entry_type"] == events.APPROVAL_RESOLVED:
            answers.setdefault(each["entity_id"], []).append(payload["decision"])
        elif each["entry_type"] == events.TURN_STARTED and "resumes" in payload:
            resumed[each["entity_id"]] = payload["resumes"]["approval_ids"]
    for turn_id in turns:
        given = [answers.get(each) for each in resumed.get(turn_id, ())]
        if given != [["approved"], ["denied"]]:
            yield f"turn {turn_id} went on after the answers {given}"


def _doubtful_subjects(entries: Iterable[Mapping[str, Any]], turns: Container[str]) -> set[str]:
    """The subjects for whom a tool with effects began and has no outcome on record.

    A tool runs once all ledgers are durable. Where the kill left the start of a call and not that of its turn, it did not run.
    """
    begun: dict[tuple[str, int], str] = {}
    for each in entries:
        payload = each["payload"]
        if each["entry_type"] == events.TOOL_STARTED and not payload["read_only"] and payload["turn_id"] in turns:
            begun[each["entity_id"], payload["call"]] = payload["subject_id"]
        elif each["entry_type"] == events.TOOL_CALL:
            begun.pop((each["entity_id"], payload["call"]), None)
    return {*begun.values()}


@pytest.mark.timeout(180)
def test_kills_between_request_answer_and_effect_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    """On one event loop: which one runs decides nothing about what is durable."""
    report = crash_test(build, MESSAGES, kills=4, check=check)
    assert report.kills >= 3
    assert report.violations == []


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_kills_at_most_places_of_an_approval(tmp_path: Path, backend: Literal["asyncio", "trio"]) -> None:
    """Some of them between the start of an effect and its record, so that what nobody can know is told as that."""
    report = crash_test(build, MESSAGES, kills=200, check=check, backend=backend)
    assert report.kills >= 200
    assert report.outcome_unknown > 0
