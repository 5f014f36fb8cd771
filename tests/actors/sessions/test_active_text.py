"""The text of active sessions is counted as it is, and idle sessions are passivated while it is too much; docs/sessions.md."""

import gc
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.sessions.active_text import ActiveText
from kitchener.actors.sessions.queue import SessionQueue
from kitchener.errors import SessionEnded
from kitchener.testing import ScriptedProvider
from tests.acceptance.context.context_kit import ENFORCE
from tests.acceptance.stack import Hold, echo, open_scripted
from tests.shared.property_examples import examples


class Idle:
    """A session that holds as much as the test says."""

    def __init__(self, chars: int) -> None:
        self.chars = chars
        self.queue: SessionQueue | None = None
        self.rejecting = 0
        self.is_ended = False

    def held_chars(self) -> int:
        return self.chars


class Active:
    """Sessions by number, as a directory keeps them."""

    def __init__(self, max_chars: int) -> None:
        self.text = ActiveText(max_chars)
        self.sessions: dict[int, Idle] = {}
        self._numbers = count(1)

    def start(self, chars: int) -> None:
        number, session = next(self._numbers), Idle(chars)
        self.sessions[number] = session
        self.text.add(session, lambda: self.end(number))

    def end(self, number: int) -> None:
        self.text.forget(self.sessions.pop(number))

    @property
    def chars(self) -> int:
        return sum(session.held_chars() for session in self.sessions.values())


KINDS = ("start", "say", "run", "passivate", "end")
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 60)), max_size=60)


@given(STEPS)
def test_the_count_is_the_sum_over_the_active_sessions(steps: list[tuple[str, int, int]]) -> None:
    active = Active(100)
    for step, which, chars in steps:
        number = sorted(active.sessions)[which % len(active.sessions)] if active.sessions else None
        if step == "start" or number is None:
            active.start(chars)
        elif step == "passivate":
            active.end(number)
        elif step == "end":
            session = active.sessions[number]
            session.is_ended, session.queue = True, None
            active.text.rest(session)
            assert number not in active.sessions
        elif step == "run":
            active.sessions[number].queue = SessionQueue()
        else:
            session = active.sessions[number]
            session.chars += chars
            session.queue = None
            active.text.count(session)
        assert active.text.chars == active.chars
        idle = [session for session in active.sessions.values() if session.queue is None]
        running = len(active.sessions) - len(idle)
        assert active.chars <= 100 or running or len(idle) == 1, "sessions were left idle beyond the bound"


def test_the_session_idle_for_longest_goes_first_and_a_running_one_stays() -> None:
    active = Active(100)
    for _ in range(3):
        active.start(30)
    active.sessions[1].queue = SessionQueue()
    active.text.count(active.sessions[2])
    active.start(30)
    assert sorted(active.sessions) == [1, 2, 4]


def test_a_session_that_was_passivated_is_not_counted_when_its_call_ends() -> None:
    active = Active(100)
    active.start(30)
    gone = active.sessions[1]
    active.end(1)
    active.text.count(gone)
    assert active.text.chars == 0


MESSAGES = st.lists(st.integers(1, 3_000), min_size=1, max_size=6)


@pytest.mark.hypothesis
@pytest.mark.parametrize("context", [{}, ENFORCE], ids=["window", "authority"])
def test_a_session_counts_the_same_running_as_read_back(tmp_path: Path, context: dict[str, Any]) -> None:
    """Its newest turns and, with the Context Authority, its whole thread. Two turns fit the window."""
    numbers = count()

    @given(MESSAGES)
    @settings(max_examples=examples(few=5, many=100), deadline=None)
    def check(sizes: list[int]) -> None:
        anyio.run(talk, tmp_path / str(next(numbers)), sizes)

    async def talk(root: Path, sizes: list[int]) -> None:
        agent = {**context, "attention_window_turns": 2, "turn_budget": 1_000_000}
        async with open_scripted(root, **agent) as runtime:
            supervisor = runtime.supervisor()
            session_id = await supervisor.start_session(subject_id="ada")
            held = []
            for number, size in enumerate(sizes):
                await supervisor.handle_turn(f"{number}" * size, session_id=session_id, subject_id="ada")
                held.append((await supervisor.session(session_id)).held_chars())
        async with open_scripted(root, **agent) as runtime:
            assert (await runtime.supervisor().session(session_id)).held_chars() == held[-1]
        said = sizes if context else sizes[-2:]
        assert held[-1] >= 2 * sum(said), "the messages and their echoes"
        if not context:
            assert held[-1] <= 2 * sum(said) + 2 * 300, "what left the window counts no more"

    check()


def in_memory(session_id: str) -> bool:
    gc.collect()
    return any(isinstance(each, SessionManager) and each.session_id == session_id for each in gc.get_objects())


async def test_a_session_that_has_ended_leaves_memory_at_once_and_can_be_read(tmp_path: Path) -> None:
    async with open_scripted(tmp_path) as runtime:
        supervisor = runtime.supervisor()
        session_id, other_id = await supervisor.start_session(subject_id="ada"), await supervisor.start_session()
        await supervisor.handle_turn("look", session_id=session_id, subject_id="ada")
        await supervisor.handle_turn("look", session_id=other_id)  # the names of the last turn stand in the log's context
        assert in_memory(session_id)
        await supervisor.end_session(session_id)
        assert not in_memory(session_id)
        assert (await supervisor.session(session_id)).history == [("look", "echo: look")]
        with pytest.raises(SessionEnded):
            await supervisor.handle_turn("again", session_id=session_id, subject_id="ada")


async def test_the_bound_holds_across_agent_classes_and_spares_a_running_turn(tmp_path: Path) -> None:
    hold = Hold("wait")

    async def answer(request: Any) -> Any:
        await hold(request)
        return echo(request)

    classes: dict[str, dict[str, Any]] = {"ADMIN": {}, "RESIDENT:guest": {}}
    limits = {"max_active_chars": 1_000}
    async with open_scripted(tmp_path, ScriptedProvider(answer), limits=limits, agents=classes) as runtime:
        admin, guest = runtime.supervisor("ADMIN"), runtime.supervisor("RESIDENT:guest")
        mine, theirs = await admin.start_session(), await guest.start_session()
        await guest.handle_turn("y" * 100, session_id=theirs)
        idle = await guest.session(theirs)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: guest.handle_turn("wait", session_id=theirs))
            await hold.arrived["wait"].wait()
            await admin.handle_turn("x" * 500, session_id=mine)
            assert await guest.session(theirs) is idle, "its turn runs"
            hold.released["wait"].set()
        await admin.handle_turn("x" * 500, session_id=mine)
        assert await guest.session(theirs) is not idle
        result = await guest.handle_turn("still there?", session_id=theirs)
        assert result.response == "echo: still there?"
        assert (await guest.session(theirs)).state.completed_turns == 3
