"""A lane's places and queue, under a clock that the test moves; explained in docs/actors.md."""

import asyncio
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.lanes.lane import Lane
from tests.gateway.shared.gateway_kit import in_virtual_time
from tests.shared.property_examples import examples

FAR = 1e6


def lane(*, places: int = 64, capacity: int = 1_000) -> Lane:
    return Lane("the lane", places, capacity, now=anyio.current_time)


async def test_subjects_take_turns_however_many_one_of_them_sends() -> None:
    """A busy subject's thousand waiting calls cost another subject one place each, not a thousand."""
    limits = lane(places=1)
    assert limits.try_enter("")
    served: list[str] = []

    async def call(subject: str) -> None:
        await limits.enter(subject, anyio.current_time() + 20)
        served.append(subject)
        limits.leave(subject)

    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(call, "busy")
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(call, "quiet")
        tasks.start_soon(call, "quiet")
        await anyio.wait_all_tasks_blocked()
        assert limits.waiting == 102
        limits.leave()
    assert len(served) == 102
    assert served.index("quiet") == 1
    assert served[:4].count("quiet") == 2


async def test_a_newcomer_does_not_overtake_who_waits() -> None:
    limits = lane(places=1)
    now = anyio.current_time()
    assert limits.try_enter("")
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            await limits.enter("first", now + 20)

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        limits.leave()
        assert not limits.try_enter("")
    limits.leave("first")
    assert limits.try_enter("")


def test_an_asker_without_room_waits_for_it_and_is_told_at_its_deadline_that_there_was_none() -> None:
    """Those in the queue are late at their deadline; those beyond it never had room."""

    async def main() -> None:
        limits = lane(places=1, capacity=2)
        assert limits.try_enter("running")
        outcomes: list[tuple[str, str, float]] = []

        async def wait(name: str, seconds: float) -> None:
            outcome = await limits.enter(name, trio.current_time() + seconds)
            outcomes.append((name, outcome, trio.current_time()))
            if outcome == "entered":
                limits.leave(name)

        async with trio.open_nursery() as nursery:
            for name, seconds in [("first", 50.0), ("second", 30.0), ("third", 10.0), ("fourth", 40.0)]:
                nursery.start_soon(wait, name, seconds)
                await trio.testing.wait_all_tasks_blocked()
            found = limits.statistics()
            assert (found.running, found.waiting, found.asking_for_room) == (1, 2, 2)
            await trio.sleep(20.0)
            assert outcomes == [("third", "no room", 10.0)]
            await trio.sleep(15.0)  # the second gives up its room to the fourth
            assert outcomes[1:] == [("second", "late", 30.0)]
            limits.leave("running")
        assert [outcome[:2] for outcome in outcomes[2:]] == [("first", "entered"), ("fourth", "entered")]
        found = limits.statistics()
        assert (found.running, found.waiting, found.asking_for_room) == (0, 0, 0)
        assert (found.waited, found.longest_wait_s, found.given_up) == (2, 35.0, 1)

    in_virtual_time(main)


async def test_one_origin_leaves_room_in_the_queue_and_places_to_others() -> None:
    """However many one subject sends: it takes seven eighths of the places and three quarters of the queue."""
    limits = lane(places=8, capacity=8)
    deadline = anyio.current_time() + 20

    async def call(subject: str) -> None:
        if await limits.enter(subject, deadline) == "entered":
            served.append(subject)
            await released.wait()
            limits.leave(subject)

    served: list[str] = []
    released = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for _ in range(64):
            tasks.start_soon(call, "busy")
        await anyio.wait_all_tasks_blocked()
        found = limits.statistics()
        assert (found.running, found.waiting, found.asking_for_room) == (7, 6, 64 - 7 - 6)
        for _ in range(3):
            tasks.start_soon(call, "quiet")
        await anyio.wait_all_tasks_blocked()
        assert served.count("quiet") == 1
        found = limits.statistics()
        assert (found.running, found.waiting, found.asking_for_room) == (8, 8, 64 - 7 - 6)
        released.set()
    assert sorted(served) == ["busy"] * 64 + ["quiet"] * 3
    assert served.index("quiet", 8) <= 16


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("abc"), st.floats(0.5, 20.0)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.none()),
        st.tuples(st.just("leave"), st.integers(0, 30), st.none()),
        st.tuples(st.just("pass"), st.floats(0.1, 5.0), st.none()),
        st.tuples(st.just("send away"), st.none(), st.none()),
    ),
    max_size=40,
)


class Asked:
    """One asker of a lane in a task of its own, and what became of it."""

    def __init__(self, limits: Lane, origin: str, deadline: float) -> None:
        self.limits, self.origin, self.deadline = limits, origin, deadline
        self.scope, self.work = trio.CancelScope(), trio.Event()
        self.outcome = "waiting"

    async def run(self) -> None:
        with self.scope:
            self.outcome = await self.limits.enter(self.origin, self.deadline)
            if self.outcome == "entered":
                try:
                    await self.work.wait()
                finally:
                    self.limits.leave(self.origin)
                    self.outcome = "left"
        if self.scope.cancelled_caught and self.outcome == "waiting":
            self.outcome = "cancelled"


@settings(max_examples=examples(few=60, many=2_000))
@given(steps, st.integers(1, 9), st.integers(1, 5))
def test_no_place_is_lost_whatever_is_cancelled_late_or_sent_away(
    script: list[tuple[str, Any, Any]], places: int, capacity: int
) -> None:
    """Each asker has one outcome, the bounds hold at every step, and at the end every place is free."""

    async def main() -> None:
        limits = lane(places=places, capacity=capacity)
        asked: list[Asked] = []
        async with trio.open_nursery() as nursery:
            for step, first, second in script:
                if step == "ask":
                    asked.append(Asked(limits, first, trio.current_time() + second))
                    nursery.start_soon(asked[-1].run)
                elif step == "pass":
                    await trio.sleep(first)
                elif step == "send away":
                    limits.send_away()
                elif asked and step == "cancel":
                    asked[first % len(asked)].scope.cancel()
                elif asked:
                    asked[first % len(asked)].work.set()
                await trio.testing.wait_all_tasks_blocked()
                found, states = limits.statistics(), [each.outcome for each in asked]
                assert found.running == states.count("entered") <= places
                assert found.waiting <= capacity
                assert found.waiting + found.asking_for_room <= states.count("waiting")
                if found.asking_for_room:
                    assert found.running >= places - places // 8
            for each in asked:
                each.work.set()
        assert {each.outcome for each in asked} <= {"left", "late", "no room", "sent away", "cancelled"}
        assert limits.statistics().running == limits.waiting == limits.statistics().asking_for_room == 0

    in_virtual_time(main)


@pytest.mark.parametrize("served_too", [False, True])
async def test_a_cancelled_wait_leaves_no_trace(served_too: bool) -> None:
    """Also if it was served in the very moment in which it was cancelled: its slot goes on to the next one."""
    limits = lane(places=1)
    deadline = anyio.current_time() + 20
    assert limits.try_enter("")
    after = anyio.Event()

    async def cancelled(*, task_status: anyio.abc.TaskStatus[anyio.CancelScope]) -> None:
        with anyio.CancelScope() as scope:
            task_status.started(scope)
            await limits.enter("a", deadline)
            limits.leave("a")

    async def next_one() -> None:
        await limits.enter("b", deadline)
        after.set()
        limits.leave("b")

    async with anyio.create_task_group() as tasks:
        scope = await tasks.start(cancelled)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(next_one)
        await anyio.wait_all_tasks_blocked()
        if served_too:
            limits.leave()
            scope.cancel()
        else:
            scope.cancel()
            await anyio.wait_all_tasks_blocked()
            assert limits.waiting == 1
            limits.leave()
        with anyio.fail_after(5):
            await after.wait()
    assert (limits.running, limits.waiting) == (0, 0)


def test_a_call_that_is_served_and_cancelled_in_one_moment_gives_its_slot_back() -> None:
    """anyio's scopes let the service win; a plain `Task.cancel` of asyncio does not, and the slot must not be lost."""

    async def main() -> None:
        limits = lane(places=1)
        now = anyio.current_time()
        assert limits.try_enter("")
        task = asyncio.create_task(limits.enter("a", now + 20))
        await anyio.wait_all_tasks_blocked()
        limits.leave()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert limits.try_enter("")

    asyncio.run(main())


async def test_send_away_ends_every_wait() -> None:
    limits = lane(places=1)
    deadline = anyio.current_time() + 20
    assert limits.try_enter("")
    results: list[str] = []

    async def wait(subject: str) -> None:
        results.append(await limits.enter(subject, deadline))

    async with anyio.create_task_group() as tasks:
        for subject in "aab":
            tasks.start_soon(wait, subject)
        await anyio.wait_all_tasks_blocked()
        limits.send_away()
    assert results == ["sent away"] * 3
    assert (limits.running, limits.waiting) == (1, 0)


def test_a_wait_for_a_slot_ends_at_its_deadline() -> None:
    async def main() -> float:
        limits = lane(places=1)
        assert limits.try_enter("")
        begun = trio.current_time()
        assert await limits.enter("a", begun + 7.0) == "late"
        assert limits.waiting == 0
        return trio.current_time() - begun

    assert in_virtual_time(main) == pytest.approx(7.0)
