"""A mailbox whose lane has a pace: rates and pauses hold, nobody starves, and no worker is lost; docs/actors.md."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.config import ProviderConfig
from kitchener.errors import ActorStopped, Overloaded
from kitchener.gateway.resilience import Pace
from kitchener.lanes.mailbox import INTERACTIVE, Mailbox
from kitchener.lanes.worker_lane import LaneLimits
from tests.gateway.shared.gateway_kit import in_virtual_time
from tests.gateway.test_resilience import most_in_a_minute
from tests.shared.property_examples import examples

FAR = 1e6


@dataclass(eq=False)
class Call:
    """A message that takes time."""

    subject: str = "a"
    arrives: float = 0.0
    lasts: float = 0.0
    tokens: int = 0
    begun: float | None = None


def paced(
    work: Callable[[Call], Awaitable[None]] | None = None,
    *,
    places: int = 64,
    capacity: int = 1_000,
    pace: Pace | None = None,
    **rates: Any,
) -> Mailbox[Call, float]:
    """A mailbox that replies with the time at which a call began."""

    async def handle(call: Call) -> float:
        call.begun = begun = trio.current_time()
        if work is not None:
            await work(call)
        else:
            await trio.sleep(call.lasts)
        return begun

    pace = pace or Pace(ProviderConfig(kind="offline", **rates))
    return Mailbox(
        handle,
        name="the cook",
        lanes={INTERACTIVE: LaneLimits(places, capacity, pacing=pace)},
        max_restarts=100,
        restart_window_s=60.0,
        abort_grace_s=60.0,
        origin=lambda call: call.subject,
    )


def counts(mailbox: Mailbox[Call, float]) -> tuple[int, int, int]:
    found = mailbox.statistics()[INTERACTIVE]
    return found.running, found.waiting, found.asking_for_room


calls = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.integers(1, 10), st.integers(1, 40)), min_size=1, max_size=25
).map(lambda rows: [Call(subject, arrives / 2, lasts / 4, tokens) for subject, arrives, lasts, tokens in rows])


@settings(max_examples=examples(few=60, many=1_000))
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
    running = 0

    async def work(call: Call) -> None:
        nonlocal running
        running += 1
        assert running <= concurrency
        await trio.sleep(call.lasts)
        running -= 1

    async def main() -> None:
        box = paced(work, places=concurrency, requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute)

        async def run(call: Call) -> None:
            await trio.sleep(call.arrives)
            await box.ask_within(call, begin_by=FAR, cost=call.tokens)

        async with box.open():
            async with trio.open_nursery() as nursery:
                for call in calls:
                    nursery.start_soon(run, call)
            assert counts(box) == (0, 0, 0)

    in_virtual_time(main)
    begun = [(call.begun, call) for call in calls if call.begun is not None]
    assert len(begun) == len(calls)
    if requests_per_minute is not None:
        assert most_in_a_minute([(at, 1) for at, _ in begun]) <= requests_per_minute
    begun.sort(key=lambda each: (each[0], each[1].arrives))  # trio runs the tasks that wake at one moment in any order
    for subject in "abc":
        arrivals = [call.arrives for _, call in begun if call.subject == subject]
        assert arrivals == sorted(arrivals)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("abc"), st.floats(0.5, 20.0)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.none()),
        st.tuples(st.just("end"), st.integers(0, 30), st.none()),
        st.tuples(st.just("pass"), st.floats(0.1, 5.0), st.none()),
        st.tuples(st.just("refuse"), st.none(), st.none()),
        st.tuples(st.just("slow down"), st.none() | st.floats(0.0, 5.0), st.none()),
    ),
    max_size=40,
)


class Asker:
    """One asker in a task of its own, and what became of it."""

    def __init__(self, subject: str, begin_by: float, *, is_return: bool) -> None:
        self.call, self.begin_by, self.is_return = Call(subject), begin_by, is_return
        self.scope, self.work = trio.CancelScope(), trio.Event()
        self.outcome = "pending"

    async def run(self, box: Mailbox[Call, float]) -> None:
        with self.scope:
            try:
                await box.ask_within(self.call, begin_by=self.begin_by, is_return=self.is_return)
                self.outcome = "replied"
            except (Overloaded, TimeoutError, ActorStopped) as error:
                self.outcome = type(error).__name__
        if self.scope.cancelled_caught:
            self.outcome = "cancelled"

    @property
    def state(self) -> str:
        return "running" if self.outcome == "pending" and self.call.begun is not None else self.outcome


def disturb(box: Mailbox[Call, float], pace: Pace, step: str, pause_s: float | None) -> None:
    """Refuses whoever waits, or slows the lane down as after a refusal by the provider."""
    if step == "refuse":
        box.refuse(INTERACTIVE, lambda: ActorStopped("refused"))
    else:
        pace.refuse(trio.current_time(), trio.current_time(), pause_s)


@settings(max_examples=examples(few=60, many=2_000))
@given(steps, st.integers(1, 9), st.integers(1, 5), st.none() | st.integers(20, 200))
def test_no_worker_is_lost_whatever_is_cancelled_late_or_refused(
    script: list[tuple[str, Any, Any]], places: int, capacity: int, requests_per_minute: int | None
) -> None:
    """Each asker has one outcome, what has begun is never late, the bounds hold at every step, and all places get free."""

    async def main() -> None:
        askers: list[Asker] = []

        async def work(call: Call) -> None:
            await next(each for each in askers if each.call is call).work.wait()

        pace = Pace(ProviderConfig(kind="offline", requests_per_minute=requests_per_minute))
        box = paced(work, places=places, capacity=capacity, pace=pace)
        async with box.open():
            async with trio.open_nursery() as nursery:
                for step, first, second in script:
                    if step == "ask":
                        is_return = len(askers) % 3 == 2
                        askers.append(Asker(first, trio.current_time() + second, is_return=is_return))
                        nursery.start_soon(askers[-1].run, box)
                    elif step == "pass":
                        await trio.sleep(first)
                    elif step in ("refuse", "slow down"):
                        disturb(box, pace, step, first)
                    elif askers and step == "cancel":
                        askers[first % len(askers)].scope.cancel()
                    elif askers:
                        askers[first % len(askers)].work.set()
                    await trio.testing.wait_all_tasks_blocked()
                    found, states = box.statistics()[INTERACTIVE], [each.state for each in askers]
                    assert found.running == states.count("running") <= places
                    assert found.waiting <= capacity
                    assert found.waiting + found.asking_for_room <= states.count("pending")
                    if not pace.is_on and found.asking_for_room:
                        assert found.running >= places - places // 8
                for each in askers:
                    each.work.set()
            assert counts(box) == (0, 0, 0)
        for each in askers:
            assert each.outcome in ({"replied", "cancelled"} if each.call.begun is not None else UNBEGUN)

    in_virtual_time(main)


UNBEGUN = {"Overloaded", "TimeoutError", "ActorStopped", "cancelled"}


def test_a_message_that_a_rate_makes_hopeless_fails_before_its_time_is_up() -> None:
    """Six of sixty a minute pass at once; the seventh would be due too late. It never begins."""

    async def main() -> None:
        async with paced(requests_per_minute=60).open() as box:
            for _ in range(6):
                await box.ask_within(Call(), begin_by=FAR)
            began, late = trio.current_time(), Call()
            with pytest.raises(TimeoutError):
                await box.ask_within(late, begin_by=began + 0.5)
            assert trio.current_time() == began
            assert late.begun is None
            assert await box.ask_within(Call(), begin_by=FAR) == pytest.approx(began + 60 / 55)

    in_virtual_time(main)


def test_a_message_waits_for_a_worker_until_its_time_and_for_room_as_long() -> None:
    """With room it is late, without it the lane is overloaded. What has begun may take longer."""

    async def main() -> None:
        async with paced(places=1, capacity=1).open() as box, trio.open_nursery() as nursery:
            nursery.start_soon(lambda: box.ask_within(Call(lasts=30.0), begin_by=trio.current_time() + 1.0))
            await trio.testing.wait_all_tasks_blocked()
            ends: list[tuple[str, float]] = []

            async def ask(seconds: float) -> None:
                with pytest.raises((TimeoutError, Overloaded)) as caught:
                    await box.ask_within(Call(), begin_by=seconds)
                ends.append((type(caught.value).__name__, trio.current_time()))

            for seconds in (9.0, 7.0):
                nursery.start_soon(ask, seconds)
                await trio.testing.wait_all_tasks_blocked()
            assert counts(box) == (1, 1, 1)
            await trio.sleep(20.0)
            assert ends == [("Overloaded", 7.0), ("TimeoutError", 9.0)]
            assert counts(box) == (1, 0, 0)

    in_virtual_time(main)


def test_the_next_message_begins_when_it_is_due_although_the_first_in_line_gives_up() -> None:
    """A worker sleeps until the first message is due. The next one costs less and is due earlier."""

    async def main() -> None:
        async with paced(tokens_per_minute=600).open() as box, trio.open_nursery() as nursery:
            await box.ask_within(Call(), begin_by=FAR, cost=60)
            began, scope, cheap = trio.current_time(), trio.CancelScope(), Call()

            async def gives_up() -> None:
                with scope:
                    await box.ask_within(Call(), begin_by=FAR, cost=60)

            nursery.start_soon(gives_up)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(lambda: box.ask_within(cheap, begin_by=FAR, cost=6))
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.sleep(5.0)
            assert cheap.begun is not None
            assert 0.5 < cheap.begun - began < 1.0

    in_virtual_time(main)


def test_a_worker_that_gets_free_late_does_not_put_off_the_rate() -> None:
    """The first in line waits for the one worker, and then for the rate."""

    async def main() -> float:
        async with paced(places=1, requests_per_minute=10).open() as box, trio.open_nursery() as nursery:
            nursery.start_soon(lambda: box.ask_within(Call(lasts=2.0), begin_by=FAR))
            await trio.testing.wait_all_tasks_blocked()
            return await box.ask_within(Call(), begin_by=FAR)

    assert in_virtual_time(main) == pytest.approx(6.0)


def test_a_shorter_pause_does_not_cut_a_longer_one_short() -> None:
    pace = Pace(ProviderConfig(kind="offline"))
    assert not pace.is_on
    pace.hold_until(10.0)
    pace.hold_until(5.0)
    assert pace.is_on
    assert pace.ready_at(0) == 10.0


def test_refusing_ends_every_wait_and_nothing_that_has_begun() -> None:
    async def main() -> None:
        async with paced(places=1, capacity=1).open() as box, trio.open_nursery() as nursery:
            replied: list[float] = []

            async def first() -> None:
                replied.append(await box.ask_within(Call(lasts=5.0)))

            async def refused() -> None:
                with pytest.raises(ActorStopped, match="try elsewhere"):
                    await box.ask_within(Call(), begin_by=FAR)

            nursery.start_soon(first)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                nursery.start_soon(refused)
            await trio.testing.wait_all_tasks_blocked()
            assert counts(box) == (1, 1, 2)
            box.refuse(INTERACTIVE, lambda: ActorStopped("try elsewhere"))
            await trio.testing.wait_all_tasks_blocked()
            assert counts(box) == (1, 0, 0)
            await trio.sleep(6.0)
            assert len(replied) == 1

    in_virtual_time(main)
