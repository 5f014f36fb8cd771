"""The cost of a turn does not depend on the length of its history: the work is counted, not timed (`docs/context.md`)."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.acceptance.context.context_kit import BRIDGE, ENFORCE, Talk, talking

pytestmark = pytest.mark.soak

SAID = ("Find me a hotel in that area.", "Yes, a hotel for two people.", "I always like a hotel by the sea.", "Which area?")
"""Each shares its words with a quarter of all turns, and with its neighbours: the worst that a ranking can meet."""
BUDGET = {"context_budget": 400, "ranking_postings": 128, "recalled_turns": 10}


async def steps_of_turns(ada: Talk, session_id: str, count: int = 8) -> int:
    """Bytecodes that all of Kitchener's modules execute over a few turns: loops count by their rounds."""
    steps = 0

    def in_frame(_: FrameType, event: str, __: object) -> Any:
        nonlocal steps
        steps += event == "opcode"
        return in_frame

    def begin(frame: FrameType, _: str, __: object) -> Any:
        if "/kitchener/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return in_frame

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # since 3.12 nothing counts before a frame wants it
    sys.settrace(begin)
    try:
        await ada.say(*[SAID[n % 4] for n in range(count)], session_id=session_id)
    finally:
        sys.settrace(before)
    assert steps > 0
    return steps


@pytest.mark.parametrize(("settings", "scope"), [(BRIDGE, "intent"), (ENFORCE, "session")])
async def test_a_turn_costs_the_same_in_a_long_session(tmp_path: Path, settings: dict[str, Any], scope: str) -> None:
    """In the session scope the early turns belong to another intent, so that there is something to recall."""
    async with talking(tmp_path, **{**settings, **BUDGET, "recall_scope": scope}) as ada:
        costs, told = list[int](), 0
        for turns in (80, 320):
            while told < turns - 8:
                await ada.say(("[switch] " if told == 30 else "") + SAID[told % 4])
                told += 1
            await ada.say(*SAID, *SAID)  # what was not ranked yet is read by the first turn that ranks
            costs.append(await steps_of_turns(ada, ada.session_id))
            told += 16
        assert costs[1] <= costs[0] * 1.1


async def test_a_turn_costs_the_same_after_many_sessions_of_its_subject(tmp_path: Path) -> None:
    async with talking(tmp_path, **{**BRIDGE, **BUDGET, "recall_scope": "subject"}) as ada:
        costs, held = list[int](), 0
        for sessions in (6, 30):
            while held < sessions:
                earlier = f"SES-{held:08x}"
                await ada.start(earlier)
                await ada.say(*[SAID[n % 4] for n in range(10)], session_id=earlier)
                held += 1
            now = f"SES-{1000 + held:08x}"
            await ada.start(now)
            await ada.say(*SAID, session_id=now)
            costs.append(await steps_of_turns(ada, now))
        assert costs[1] <= costs[0] * 1.1
