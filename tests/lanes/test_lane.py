"""A lane's places, queue and pace, under a clock that the test moves; explained in docs/actors.md."""

import asyncio
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.config import ProviderConfig
from kitchener.gateway.resilience import Pace
from kitchener.lanes.lane import Lane
from tests.gateway.asking import in_virtual_time
from tests.gateway.test_resilience import most_in_a_minute

FAR = 1e6


def lane(*, places: int = 64, capacity: int = 1_000, **rates: Any) -> Lane:
    pace = Pace(ProviderConfig(kind="offline", **rates))
    return Lane("the lane", places, capacity, now=anyio.current_time, pacing=pace)


@dataclass(frozen=True)
class Call:
    subject: str
    number: int
    arrives: float
    lasts: float
    tokens: int


calls = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.integers(1, 10), st.integers(1, 40)), min_size=1, max_size=25
).map(
    lambda rows: [
        Call(subject, number, arrives / 2, lasts / 4, tokens) for number, (subject, arrives, lasts, tokens) in enumerate(rows)
    ]
)


@settings(max_examples=60)
@given(
    calls=calls,
    concurrency=st.integers(1, 3),
    requests_per_minute=st.none() | st.integers(20, 200),
    tokens_per_minute=st.none() | st.integers(200, 2_000),
)
def test_everybody_is_served_within_the_limits_and_in_order_within_a_subject(
    calls: list[Call], concurrency: int, requests_per_minute: int | None, tokens_per_minute: int | None
) -> None:
    """Any arrival pattern: concurrency and rates hold, nobody starves, a subject's calls keep their order."""
    begun: list[tuple[float, Call]] = []
    running = 0

    async def main() -> Lane:
        limits = lane(places=concurrency, requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute)

        async def run(call: Call) -> None:
            nonlocal running
            await trio.sleep(call.arrives)
            assert await limits.enter(call.subject, FAR, call.tokens) == "entered"
            begun.append((trio.current_time(), call))
            running += 1
            assert running <= concurrency
            await trio.sleep(call.lasts)
            running -= 1
            limits.leave(call.subject)

        async with trio.open_nursery() as nursery:
            for call in calls:
                nursery.start_soon(run, call)
        return limits

    limits = in_virtual_time(main)
    assert len(begun) == len(calls)
    assert (limits.running, limits.waiting) == (0, 0)
    if requests_per_minute is not None:
        assert most_in_a_minute([(at, 1) for at, _ in begun]) <= requests_per_minute
    begun.sort(key=lambda each: (each[0], each[1].arrives))  # trio runs the tasks that wake at one moment in any order
    for subject in "abc":
        arrivals = [call.arrives for _, call in begun if call.subject == subject]
        assert arrivals == sorted(arrivals)


async def test_subjects_take_turns_however_many_one_of_them_sends() -> None:
    """A busy subject's thousand waiting calls cost another subject one place each, not a thousand."""
    limits = lane(places=1)
    assert limits.try_enter("", 0, anyio.current_time())
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
    assert limits.try_enter("", 0, now)
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            await limits.enter("first", now + 20)

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        limits.leave()
        assert not limits.try_enter("", 0, now)
    limits.leave("first")
    assert limits.try_enter("", 0, now)


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


@settings(max_examples=60)
@given(steps, st.integers(1, 9), st.integers(1, 5), st.none() | st.integers(20, 200))
def test_no_place_is_lost_whatever_is_cancelled_late_or_sent_away(
    script: list[tuple[str, Any, Any]], places: int, capacity: int, requests_per_minute: int | None
) -> None:
    """Each asker has one outcome, the bounds hold at every step, and at the end every place is free."""

    async def main() -> None:
        limits = lane(places=places, capacity=capacity, requests_per_minute=requests_per_minute)
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
                if requests_per_minute is None and found.asking_for_room:
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
    assert limits.try_enter("", 0, anyio.current_time())
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
        assert limits.try_enter("", 0, now)
        task = asyncio.create_task(limits.enter("a", now + 20))
        await anyio.wait_all_tasks_blocked()
        limits.leave()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert limits.try_enter("", 0, now)

    asyncio.run(main())


def test_a_shorter_pause_does_not_cut_a_longer_one_short() -> None:
    pace = Pace(ProviderConfig(kind="offline"))
    limits = Lane("the lane", 64, 1, now=lambda: 0.0, pacing=pace)
    pace.hold_until(10.0)
    pace.hold_until(5.0)
    assert not limits.try_enter("", 0, 9.9)
    assert limits.try_enter("", 0, 10.0)


async def test_send_away_ends_every_wait() -> None:
    limits = lane(places=1)
    deadline = anyio.current_time() + 20
    assert limits.try_enter("", 0, anyio.current_time())
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


def test_a_wait_that_a_rate_makes_hopeless_fails_before_its_deadline() -> None:
    """Six of sixty a minute pass at once; the seventh would be due too late for its deadline."""

    async def main() -> float:
        limits = lane(requests_per_minute=60)
        for _ in range(6):
            assert limits.try_enter("", 0, trio.current_time())
        begun = trio.current_time()
        assert await limits.enter("a", begun + 0.5) == "late"
        return trio.current_time() - begun

    assert in_virtual_time(main) == 0.0


def test_a_wait_for_a_slot_ends_at_its_deadline() -> None:
    async def main() -> float:
        limits = lane(places=1)
        assert limits.try_enter("", 0, trio.current_time())
        begun = trio.current_time()
        assert await limits.enter("a", begun + 7.0) == "late"
        assert limits.waiting == 0
        return trio.current_time() - begun

    assert in_virtual_time(main) == pytest.approx(7.0)


def test_the_next_one_keeps_the_time_when_the_first_in_line_gives_up() -> None:
    """A rate has no timer of its own: some waiter sleeps until it is due, and hands that over when it is cancelled."""

    async def main() -> float:
        limits = lane(requests_per_minute=10)
        assert limits.try_enter("", 0, trio.current_time())
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def gives_up() -> None:
                with scope:
                    await limits.enter("a", FAR)

            nursery.start_soon(gives_up)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(limits.enter, "b", FAR)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
        return trio.current_time() - begun

    assert in_virtual_time(main) == pytest.approx(6.0)


def test_a_slot_that_frees_late_does_not_put_off_the_rates_alarm() -> None:
    """The head of the line first waits for a slot without knowing when it is due, then for the rate."""

    async def main() -> float:
        limits = lane(places=1, requests_per_minute=10)
        assert limits.try_enter("", 0, trio.current_time())
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limits.enter, "a", FAR)
            await trio.sleep(2.0)
            limits.leave()
        return trio.current_time() - begun

    assert in_virtual_time(main) == pytest.approx(6.0)
