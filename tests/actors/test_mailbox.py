"""Mailboxes under every kind of bad luck: full, cancelled, failing, closing; explained in docs/actors.md."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import structlog.testing
from anyio.abc import TaskGroup

from kitchener.actors.mailbox import (
    BACKGROUND,
    CALLING_CHAIN,
    INTERACTIVE,
    HostedExecutor,
    LaneLimits,
    LaneStatistics,
    Mailbox,
)
from kitchener.errors import ActorStopped, ConfigError, Overloaded, ToolError
from kitchener.records.work_order import WorkOrder
from tests.actors.waiting import in_virtual_time, settle, settle_then


class GatedHandler:
    """Replies to a message with itself, once its gate is open; keeps a diary."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.replied: list[str] = []
        self.running = 0
        self.most_running = 0
        self._gates: dict[str, anyio.Event] = {}

    def open(self, *messages: str) -> None:
        for message in messages:
            self.gate(message).set()

    def gate(self, message: str) -> anyio.Event:
        return self._gates.setdefault(message, anyio.Event())

    async def __call__(self, message: str) -> str:
        self.started.append(message)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.gate(message).wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(message)
            raise
        finally:
            self.running -= 1
        self.replied.append(message)
        return f"reply to {message}"


class Asker:
    """One asker in a task of its own, and what became of it."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.scope = anyio.CancelScope()
        self.outcome: object = None
        """The reply, the error, or "cancelled"."""

    async def ask(self, mailbox: Mailbox[str, str], lane: str = INTERACTIVE) -> None:
        with self.scope:
            try:
                self.outcome = await mailbox.ask_within(self.message, lane=lane)
            except Exception as error:  # noqa: BLE001  the outcome is looked at by the test
                self.outcome = error
        if self.scope.cancelled_caught:
            assert self.outcome is None
            self.outcome = "cancelled"


def mailbox_of(
    handler: Callable[[str], Awaitable[str]],
    *,
    concurrency: int = 1,
    capacity: int = 8,
    idle_workers: int = 256,
    max_restarts: int = 100,
    abort_grace_s: float = 60.0,
) -> Mailbox[str, str]:
    return Mailbox(
        handler,
        name="the cook",
        lanes={INTERACTIVE: LaneLimits(concurrency, capacity, idle_workers), BACKGROUND: LaneLimits(1, 2)},
        max_restarts=max_restarts,
        restart_window_s=60.0,
        abort_grace_s=abort_grace_s,
    )


@asynccontextmanager
async def opened(mailbox: Mailbox[str, str]) -> AsyncIterator[TaskGroup]:
    """The mailbox open, with a task group for its askers; nothing in it may hang."""
    with anyio.fail_after(5):
        async with mailbox.open(), anyio.create_task_group() as askers:
            yield askers


async def ask_in_order(
    mailbox: Mailbox[str, str], askers: TaskGroup, messages: str | list[str], lane: str = INTERACTIVE
) -> list[Asker]:
    """One asker for each message, each in place before the next comes."""
    asking = [Asker(message) for message in messages]
    for asker in asking:
        askers.start_soon(asker.ask, mailbox, lane)
        await settle()
    return asking


def counts(mailbox: Mailbox[str, str], lane: str = INTERACTIVE) -> tuple[int, int, int]:
    found = mailbox.statistics()[lane]
    return found.running, found.waiting, found.asking_for_room


NOTHING = (0, 0, 0)


async def stopped_by(mailbox: Mailbox[str, str], body: Callable[[], Awaitable[object]]) -> ActorStopped:
    """What leaving the mailbox raises, after `body` has brought it to its end."""

    async def hold() -> None:
        async with mailbox.open():
            await body()
            await anyio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await hold()
    [stopped] = caught.value.exceptions
    assert isinstance(stopped, ActorStopped)
    return stopped


async def test_as_many_run_and_wait_as_the_lane_allows_and_no_more() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=2, capacity=3)
    async with opened(mailbox) as askers:
        asking = await ask_in_order(mailbox, askers, "abcdefg")
        assert handler.started == ["a", "b"]
        assert counts(mailbox) == (2, 3, 2)
        handler.open("a")
        await settle()
        assert handler.started == ["a", "b", "c"]
        assert counts(mailbox) == (2, 3, 1)
        handler.open(*"bcdefg")
        await settle()
        assert handler.started == list("abcdefg")
        assert handler.most_running == 2
        assert [asker.outcome for asker in asking] == [f"reply to {each}" for each in "abcdefg"]
        assert counts(mailbox) == NOTHING


async def test_a_burst_in_one_tick_keeps_the_bounds() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=2, capacity=3)
    asking = [Asker(f"m{n}") for n in range(40)]
    async with opened(mailbox) as askers:
        for asker in asking:
            askers.start_soon(asker.ask, mailbox)
        await settle()
        assert counts(mailbox) == (2, 3, 35)
        for asker in asking:
            handler.open(asker.message)
            await anyio.lowlevel.checkpoint()
            assert mailbox.statistics()[INTERACTIVE].waiting <= 3
        await settle()
        assert [asker.outcome for asker in asking] == [f"reply to {asker.message}" for asker in asking]
        assert handler.most_running == 2
        assert counts(mailbox) == NOTHING


async def test_a_burst_uses_every_slot_although_few_may_wait() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=4, capacity=1)
    asking = [Asker(f"m{n}") for n in range(7)]
    async with opened(mailbox) as askers:
        for asker in asking:
            askers.start_soon(asker.ask, mailbox)
        await settle()
        assert counts(mailbox) == (4, 1, 2)
        assert handler.running == 4
        for asker in asking:
            handler.open(asker.message)


async def test_nobody_takes_the_room_that_another_was_given_a_moment_ago() -> None:
    # Regression: between being given room and waking, an asker's place belonged to whoever came along.
    gate = anyio.Event()
    started: list[str] = []
    waiting: list[int] = []

    async def handle(message: str) -> str:
        started.append(message)
        if message == "a":
            await gate.wait()
        if message == "b":  # its leaving the queue has just given room to "c", who does not know it yet
            with anyio.CancelScope() as impatient:
                impatient.cancel()
                await mailbox.post("late")
            waiting.append(mailbox.statistics()[INTERACTIVE].waiting)
            await settle()
            waiting.append(mailbox.statistics()[INTERACTIVE].waiting)
        return message

    mailbox = mailbox_of(handle, capacity=1)
    async with opened(mailbox) as askers:
        await ask_in_order(mailbox, askers, "abc")
        gate.set()
        await settle()
        await settle()
        assert max(waiting) == 1
        assert started == ["a", "b", "c"]
        assert counts(mailbox) == NOTHING


async def test_a_finished_worker_takes_the_next_message() -> None:
    handler = GatedHandler()
    handler.open("a", "b", "c")
    mailbox = mailbox_of(handler, concurrency=4)
    async with opened(mailbox):
        for message in "abc":
            assert await mailbox.ask_within(message) == f"reply to {message}"
            await settle()
        assert mailbox.statistics()[INTERACTIVE] == LaneStatistics(waiting=0, running=0, idle=1, asking_for_room=0)


async def test_no_more_workers_than_the_limit_stay_idle() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=6, idle_workers=2)
    async with opened(mailbox) as askers:
        for turn in range(3):
            messages = [f"{turn}{each}" for each in "abcdef"]
            await ask_in_order(mailbox, askers, messages)
            assert counts(mailbox) == (6, 0, 0)
            handler.open(*messages)
            await settle()
            assert mailbox.statistics()[INTERACTIVE] == LaneStatistics(waiting=0, running=0, idle=2, asking_for_room=0)


@in_virtual_time
async def test_an_asker_who_finds_no_room_in_time_is_overloaded_and_nothing_was_started() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, capacity=1)
    async with mailbox.open(), anyio.create_task_group() as askers:
        await ask_in_order(mailbox, askers, "ab")
        began = anyio.current_time()
        with pytest.raises(Overloaded) as caught:
            await mailbox.ask("c", deadline=began + 7)
        assert anyio.current_time() == began + 7
        assert (caught.value.what, caught.value.limit) == ("the mailbox of the cook", 1)
        assert counts(mailbox) == (1, 1, 0)
        handler.open("a", "b", "c")
        await settle()
        assert handler.started == ["a", "b"]


@in_virtual_time
async def test_a_reply_that_is_late_is_a_timeout_and_its_handler_is_stopped() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler)
    async with mailbox.open():
        began = anyio.current_time()
        with pytest.raises(TimeoutError, match="the cook did not reply before the deadline"):
            await mailbox.ask("a", deadline=began + 7)
        assert anyio.current_time() == began + 7
        assert handler.cancelled == ["a"]
        await settle()
        assert counts(mailbox) == NOTHING


@in_virtual_time
async def test_a_message_that_waits_in_line_past_its_deadline_is_never_handled() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler)
    async with mailbox.open(), anyio.create_task_group() as askers:
        await ask_in_order(mailbox, askers, "a")
        with pytest.raises(TimeoutError):
            await mailbox.ask("b", deadline=anyio.current_time() + 7)
        handler.open("a", "b")
        await settle()
        assert handler.started == ["a"]
        assert counts(mailbox) == NOTHING


@in_virtual_time
async def test_the_deadline_covers_room_queue_and_reply_together() -> None:
    async def handle(message: str) -> str:
        await anyio.sleep(4)
        return message

    mailbox = mailbox_of(handle, capacity=1)
    async with mailbox.open(), anyio.create_task_group() as askers:
        await ask_in_order(mailbox, askers, "ab")
        began = anyio.current_time()
        with pytest.raises(TimeoutError):
            await mailbox.ask("c", deadline=began + 10)  # 4 s for room, 4 s in line, and 2 of the 4 that the handler takes
        assert anyio.current_time() == began + 10


@in_virtual_time
async def test_a_handler_that_will_not_stop_is_waited_for_no_longer_than_the_grace() -> None:
    async def handle(message: str) -> str:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(1_000)
        return message

    mailbox = mailbox_of(handle, abort_grace_s=3)
    async with mailbox.open():
        began = anyio.current_time()
        with pytest.raises(TimeoutError):
            await mailbox.ask("a", deadline=began + 7)
        assert anyio.current_time() == began + 10
        assert counts(mailbox) == (1, 0, 0)  # it still holds its slot: it is still running


async def test_background_work_never_takes_an_interactive_slot_nor_the_other_way_round() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=2)
    async with opened(mailbox) as askers:
        await ask_in_order(mailbox, askers, ["b1", "b2", "b3", "b4"], BACKGROUND)
        assert counts(mailbox, BACKGROUND) == (1, 2, 1)
        assert counts(mailbox) == NOTHING
        await ask_in_order(mailbox, askers, ["i1", "i2", "i3"])
        assert handler.started == ["b1", "i1", "i2"]
        assert counts(mailbox) == (2, 1, 0)
        handler.open("i1", "i2", "i3")
        await settle()
        assert counts(mailbox) == NOTHING
        assert handler.started == ["b1", "i1", "i2", "i3"]  # free interactive slots do not take background work
        handler.open("b1", "b2", "b3", "b4")
        await settle()
        assert counts(mailbox, BACKGROUND) == NOTHING


async def test_a_nested_lane_has_slots_of_its_own_so_no_slot_waits_for_itself() -> None:
    async def handle(message: str) -> str:
        depth = int(message)
        return message if depth == 3 else message + await mailbox.ask_within(str(depth + 1), lane=f"nested-{depth + 1}")

    mailbox = mailbox_of(handle, concurrency=1, capacity=1)
    async with opened(mailbox):
        assert await mailbox.ask_within("0") == "0123"
        await settle()
        found = mailbox.statistics()
        assert set(found) == {INTERACTIVE, BACKGROUND, "nested-1", "nested-2", "nested-3"}
        assert all((lane.running, lane.waiting) == (0, 0) for lane in found.values())


async def test_a_nested_lane_has_the_bounds_of_the_interactive_one() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=2, capacity=1)
    async with opened(mailbox) as askers:
        await ask_in_order(mailbox, askers, "abcd", "nested-1")
        assert counts(mailbox, "nested-1") == (2, 1, 1)
        handler.open(*"abcd")


async def test_an_asker_cancelled_while_it_waits_for_room_leaves_no_trace() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, capacity=1)
    async with opened(mailbox) as askers:
        asking = await ask_in_order(mailbox, askers, "abcd")
        asking[2].scope.cancel()
        await settle()
        assert counts(mailbox) == (1, 1, 1)
        handler.open(*"abcd")
        await settle()
        assert handler.started == ["a", "b", "d"]
        assert [asker.outcome for asker in asking] == ["reply to a", "reply to b", "cancelled", "reply to d"]
        assert counts(mailbox) == NOTHING


@pytest.mark.parametrize("first", ["cancel", "room"])
async def test_room_given_in_the_tick_of_the_cancellation_goes_to_the_next_in_line(first: str) -> None:
    started: list[str] = []
    gate = anyio.Event()

    async def handle(message: str) -> str:
        started.append(message)
        if message == "a":
            await gate.wait()
        if message == "b" and first == "room":
            asking[2].scope.cancel()  # b has just left the queue, so c has just been given its room
        return message

    mailbox = mailbox_of(handle, capacity=1)
    async with opened(mailbox) as askers:
        asking = await ask_in_order(mailbox, askers, "abcd")
        gate.set()
        if first == "cancel":
            asking[2].scope.cancel()
        await settle()
        assert asking[2].outcome in ("cancelled", "c")
        assert [asker.outcome for asker in asking if asker.message != "c"] == ["a", "b", "d"]
        assert counts(mailbox) == NOTHING


async def test_a_message_in_line_whose_asker_is_gone_is_never_handled_and_gives_its_room_at_once() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, capacity=2)
    async with opened(mailbox) as askers:
        asking = await ask_in_order(mailbox, askers, "abcde")
        assert counts(mailbox) == (1, 2, 2)
        asking[1].scope.cancel()
        await settle()
        assert asking[1].outcome == "cancelled"
        assert counts(mailbox) == (1, 2, 1)
        asking[2].scope.cancel()
        asking[3].scope.cancel()
        await settle()
        assert counts(mailbox) == (1, 1, 0)
        handler.open(*"abcde")
        await settle()
        assert handler.started == ["a", "e"]
        assert asking[4].outcome == "reply to e"
        assert counts(mailbox) == NOTHING


async def test_a_cancelled_asker_stops_its_own_handler_and_no_other() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=3)
    async with opened(mailbox) as askers:
        asking = await ask_in_order(mailbox, askers, "abcd")
        asking[1].scope.cancel()
        await settle()
        assert handler.cancelled == ["b"]
        assert handler.started == ["a", "b", "c", "d"]  # its slot is free at once
        handler.open("a", "c", "d")
        await settle()
        assert [asker.outcome for asker in asking] == ["reply to a", "cancelled", "reply to c", "reply to d"]
        assert counts(mailbox) == NOTHING


async def test_a_cancelled_asker_waits_until_its_handler_has_cleaned_up() -> None:
    never, tidy = anyio.Event(), anyio.Event()
    events: list[str] = []

    async def handle(message: str) -> str:
        try:
            await never.wait()
        finally:
            with anyio.CancelScope(shield=True):
                events.append("cleaning up")
                await tidy.wait()
                events.append("clean")
        return message

    async def ask() -> None:
        try:
            await mailbox.ask_within("a")
        finally:
            events.append("the asker has gone")

    mailbox = mailbox_of(handle)
    async with opened(mailbox) as askers:
        async with anyio.create_task_group() as inner:
            inner.start_soon(ask)
            await settle()
            inner.cancel_scope.cancel()
            askers.start_soon(settle_then, tidy.set)
        assert events == ["cleaning up", "clean", "the asker has gone"]


@pytest.mark.parametrize("ends_by", ["returning", "raising", "a known error"])
@pytest.mark.parametrize("next_comes", ["before", "in the same tick", "after"])
async def test_a_handler_that_ends_although_it_was_cancelled_takes_nobody_with_it(ends_by: str, next_comes: str) -> None:
    # Regression: the worker went on in its cancelled scope, and the next message was cancelled in its place.
    gate = anyio.Event()
    started: list[str] = []

    async def handle(message: str) -> str:
        started.append(message)
        if message == "stubborn":
            with anyio.CancelScope(shield=True):
                await gate.wait()
            if ends_by == "raising":
                raise ValueError("while cleaning up")
            if ends_by == "a known error":
                raise ToolError("while cleaning up")
            return message
        await anyio.lowlevel.checkpoint()
        return message

    mailbox = mailbox_of(handle)
    async with opened(mailbox) as askers:
        [stubborn] = await ask_in_order(mailbox, askers, ["stubborn"])
        others = await ask_in_order(mailbox, askers, ["next", "last"]) if next_comes == "before" else []
        stubborn.scope.cancel()
        await settle()
        gate.set()
        if next_comes == "after":
            await settle()
        if not others:
            others = await ask_in_order(mailbox, askers, ["next", "last"])
        await settle()
        assert stubborn.outcome == "cancelled"
        assert [asker.outcome for asker in others] == ["next", "last"]
        assert started == ["stubborn", "next", "last"]
        assert counts(mailbox) == NOTHING


@pytest.mark.parametrize("order", ["reply first", "cancel first"])
@pytest.mark.parametrize("outcome", ["reply", "known error", "bug"])
async def test_cancelled_in_the_tick_of_the_reply_an_asker_has_one_outcome_and_others_theirs(order: str, outcome: str) -> None:
    gates = {message: anyio.Event() for message in "ab"}

    async def handle(message: str) -> str:
        await gates[message].wait()
        if message == "a" and outcome == "known error":
            raise ToolError("no")
        if message == "a" and outcome == "bug":
            raise ValueError("no")
        await anyio.lowlevel.checkpoint()
        return message

    for rounds in range(8):  # how far the reply has come when the cancellation arrives
        gates = {message: anyio.Event() for message in "ab"}
        mailbox = mailbox_of(handle)
        async with opened(mailbox) as askers:
            first, second = await ask_in_order(mailbox, askers, "ab")
            gates["b"].set()
            if order == "cancel first":
                first.scope.cancel()
                gates["a"].set()
            else:
                gates["a"].set()
                for _ in range(rounds):
                    await anyio.lowlevel.checkpoint()
                first.scope.cancel()
            await settle()
            if order == "cancel first":
                assert first.outcome == "cancelled"
            else:
                assert first.outcome in ("cancelled", "a") or isinstance(first.outcome, ToolError | ValueError)
            assert second.outcome == "b"
            assert counts(mailbox) == NOTHING
            assert await mailbox.ask_within("b") == "b"


@in_virtual_time
async def test_a_message_abandoned_before_its_worker_woke_is_dropped_at_once() -> None:
    # Regression: the asker waited out the whole grace for a handler that never ran.
    handler = GatedHandler()
    handler.open("warm", "next")
    mailbox = mailbox_of(handler)
    async with mailbox.open():
        await mailbox.ask_within("warm")  # leaves an idle worker, who is handed the next message directly
        await settle()
        began = anyio.current_time()
        envelope = await mailbox.post("gone")
        await mailbox.abandon(envelope)
        assert anyio.current_time() == began
        assert await mailbox.ask_within("next") == "reply to next"
        assert handler.started == ["warm", "next"]


async def test_an_asker_cancelled_in_the_tick_of_asking_leaves_no_trace() -> None:
    handler = GatedHandler()
    handler.open("warm", "next")
    mailbox = mailbox_of(handler, concurrency=2)
    async with opened(mailbox) as askers:
        for is_warm in (False, True):
            if is_warm:
                await mailbox.ask_within("warm")
                await settle()
            gone = Asker("gone")
            gone.scope.cancel()
            askers.start_soon(gone.ask, mailbox)
            await settle()
            assert gone.outcome == "cancelled"
            assert handler.running == 0
            assert counts(mailbox) == NOTHING
            assert await mailbox.ask_within("next") == "reply to next"


async def test_cancelled_handlers_give_their_slots_back() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=3, capacity=3)
    async with opened(mailbox) as askers:
        for attempt in range(6):
            for asker in await ask_in_order(mailbox, askers, [f"{attempt}{each}" for each in "abcde"]):
                asker.scope.cancel()
            await settle()
            assert counts(mailbox) == NOTHING
        last = await ask_in_order(mailbox, askers, "xyz")
        assert counts(mailbox) == (3, 0, 0)
        handler.open(*"xyz")
        await settle()
        assert [asker.outcome for asker in last] == ["reply to x", "reply to y", "reply to z"]


async def test_an_error_of_ours_is_an_answer_and_no_failure_of_the_actor() -> None:
    error = ToolError("not in this kitchen")

    async def handle(message: str) -> str:
        raise error

    mailbox = mailbox_of(handle, max_restarts=1)
    async with opened(mailbox):
        for _ in range(3):
            with pytest.raises(ToolError) as caught:
                await mailbox.ask_within("a")
            assert caught.value is error


async def test_an_unexpected_error_reaches_its_own_asker_and_the_worker_goes_on() -> None:
    async def handle(message: str) -> str:
        if message == "bad":
            raise ZeroDivisionError(message)
        return message

    mailbox = mailbox_of(handle)
    async with opened(mailbox) as askers:
        with structlog.testing.capture_logs() as logs:
            asking = await ask_in_order(mailbox, askers, ["good", "bad", "fine"])
        assert [asker.outcome for asker in (asking[0], asking[2])] == ["good", "fine"]
        assert isinstance(asking[1].outcome, ZeroDivisionError)
        assert counts(mailbox) == NOTHING
    [line] = logs
    assert (line["event"], line["log_level"], line["actor"]) == ("actor failed", "error", "the cook")
    assert "ZeroDivisionError: bad" in line["traceback"]


async def test_too_many_failures_stop_the_actor_and_everybody_is_told_why() -> None:
    gate = anyio.Event()
    bugs = [ValueError(f"bug {n}") for n in range(3)]
    started: list[str] = []

    async def handle(message: str) -> str:
        started.append(message)
        if message.isdigit():
            raise bugs[int(message)]
        await gate.wait()
        return message

    mailbox = mailbox_of(handle, concurrency=2, capacity=2, max_restarts=3)
    asking = {message: Asker(message) for message in ("0", "1", "running", "2")}
    with anyio.fail_after(5):
        async with anyio.create_task_group() as askers:

            async def fail_three_times() -> None:
                for asker in asking.values():
                    askers.start_soon(asker.ask, mailbox)
                    await settle()

            stopped = await stopped_by(mailbox, fail_three_times)
    assert stopped.__cause__ is bugs[2]
    assert "failed 3 times within 60 s" in str(stopped)
    assert [asking[n].outcome for n in "012"] == bugs
    assert isinstance(asking["running"].outcome, ActorStopped)
    assert asking["running"].outcome.__cause__ is bugs[2]
    with pytest.raises(ActorStopped) as after:
        await mailbox.ask_within("much too late")
    assert after.value.__cause__ is bugs[2]
    assert started == ["0", "1", "running", "2"]


async def test_what_stands_in_line_when_the_actor_is_stopped_is_never_begun() -> None:
    # Regression: each was begun and cancelled at its first wait; an effect could have happened.
    gate = anyio.Event()
    started: list[str] = []

    async def handle(message: str) -> str:
        started.append(message)
        await gate.wait()
        if message == "bad":
            raise ValueError("the last straw")
        return message

    mailbox = mailbox_of(handle, capacity=2, max_restarts=1)
    asking: list[Asker] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as askers:

            async def fail_with_a_queue() -> None:
                asking.extend(await ask_in_order(mailbox, askers, ["bad", "x", "y", "for room"]))
                gate.set()

            await stopped_by(mailbox, fail_with_a_queue)
    assert started == ["bad"]
    assert isinstance(asking[0].outcome, ValueError)
    assert all(isinstance(asker.outcome, ActorStopped) for asker in asking[1:])


@in_virtual_time
@pytest.mark.parametrize(("apart", "stops"), [(30.0, True), (30.1, False)])
async def test_failures_count_together_only_inside_the_window(apart: float, stops: bool) -> None:
    async def handle(message: str) -> str:
        if message == "bad":
            raise ValueError(message)
        return message

    mailbox = mailbox_of(handle, max_restarts=3)  # the window is 60 s
    try:
        async with mailbox.open():
            for _ in range(3):
                with pytest.raises(ValueError, match="bad"):
                    await mailbox.ask_within("bad")
                await anyio.sleep(apart)
            assert not stops
            assert await mailbox.ask_within("good") == "good"
    except* ActorStopped:
        assert stops


async def test_what_an_idle_worker_was_handed_in_that_moment_is_not_begun_either() -> None:
    started: list[str] = []
    handed: list[Any] = []

    async def handle(message: str) -> str:
        started.append(message)
        if message == "bad":
            handed.append(await mailbox.post("handed"))
            raise ValueError("the last straw")
        await gate.wait()
        return message

    gate = anyio.Event()
    mailbox = mailbox_of(handle, concurrency=2, max_restarts=1)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as askers:

            async def fail_beside_an_idle_worker() -> None:
                await ask_in_order(mailbox, askers, ["warm", "too"])
                gate.set()
                await settle()
                assert mailbox.statistics()[INTERACTIVE].idle == 2
                with pytest.raises(ValueError, match="the last straw"):
                    await mailbox.ask_within("bad")

            await stopped_by(mailbox, fail_beside_an_idle_worker)
        with pytest.raises(ActorStopped):
            await mailbox.reply(handed[0])
    assert started == ["warm", "too", "bad"]


async def test_closing_answers_everybody_who_still_waits() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, capacity=2)
    asking: list[Asker] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as askers, mailbox.open():
            asking += await ask_in_order(mailbox, askers, ["running", "in line", "in line too", "for room"])
    assert handler.cancelled == ["running"]
    assert handler.started == ["running"]
    for asker in asking:
        assert isinstance(asker.outcome, ActorStopped), asker.message
        assert str(asker.outcome) == "the cook has stopped"
    assert counts(mailbox) == NOTHING


async def test_closing_in_the_tick_of_asking_answers_too() -> None:
    handler = GatedHandler()
    handler.open("warm")
    for is_warm in (False, True):
        mailbox = mailbox_of(handler)
        asker = Asker("a")
        with anyio.fail_after(5):
            async with anyio.create_task_group() as askers:
                async with mailbox.open():
                    if is_warm:
                        await mailbox.ask_within("warm")
                        await settle()
                    envelope = await mailbox.post("posted")
                    askers.start_soon(asker.ask, mailbox)
                with pytest.raises(ActorStopped):
                    await mailbox.reply(envelope)
        assert isinstance(asker.outcome, ActorStopped)


@pytest.mark.parametrize("how", ["an error in the body", "a cancellation from outside"])
async def test_an_opener_that_is_torn_down_answers_everybody_too(how: str) -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler)
    asking: list[Asker] = []
    left_by_an_error = False
    with anyio.fail_after(5):
        async with anyio.create_task_group() as askers:
            with anyio.CancelScope() as outside:
                try:
                    async with mailbox.open():
                        asking += await ask_in_order(mailbox, askers, ["running", "in line"])
                        if how == "an error in the body":
                            raise LookupError("in the body")
                        outside.cancel()
                        await anyio.sleep_forever()
                except* LookupError:
                    left_by_an_error = True
            assert left_by_an_error == (how == "an error in the body")
    assert all(isinstance(asker.outcome, ActorStopped) for asker in asking)
    assert handler.cancelled == ["running"]


async def test_a_mailbox_that_is_not_open_takes_nothing() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler)
    with pytest.raises(ActorStopped):
        await mailbox.ask_within("before")
    async with mailbox.open():
        pass
    with pytest.raises(ActorStopped):
        await mailbox.ask("after", deadline=anyio.current_time() + 5)
    assert handler.started == []


async def test_the_calling_chain_travels_with_the_message() -> None:
    async def handle(message: str) -> str:
        return " → ".join(CALLING_CHAIN.get())

    mailbox = mailbox_of(handle)
    async with opened(mailbox):
        assert await mailbox.ask_within("by a new worker, without a chain") == ""
        token = CALLING_CHAIN.set(("SES-1", "SES-2"))
        await settle()
        assert await mailbox.ask_within("by the same worker, now idle") == "SES-1 → SES-2"
        assert CALLING_CHAIN.get() == ("SES-1", "SES-2")
        CALLING_CHAIN.reset(token)
        assert await mailbox.ask_within("again without") == ""


async def test_the_calling_chain_is_the_one_at_the_time_of_asking() -> None:
    seen: list[tuple[str, ...]] = []
    gate = anyio.Event()

    async def handle(message: str) -> str:
        await gate.wait()
        seen.append(CALLING_CHAIN.get())
        return message

    async def ask(*chain: str) -> None:
        CALLING_CHAIN.set(chain)
        await mailbox.ask_within("x")

    mailbox = mailbox_of(handle)
    async with opened(mailbox) as askers:
        for chain in [("SES-1",), ("SES-2", "SES-3"), ()]:
            askers.start_soon(ask, *chain)
            await settle()
        gate.set()
    assert seen == [("SES-1",), ("SES-2", "SES-3"), ()]


@pytest.mark.parametrize(
    ("wo_type", "chain", "lane"),
    [
        ("classify", (), INTERACTIVE),
        ("synthesize", ("SES-00000001",), INTERACTIVE),
        ("tool_call", ("SES-00000001", "SES-00000002"), "nested-1"),
        ("verify", ("SES-00000001", "SES-00000002", "SES-00000003"), "nested-2"),
        ("consolidate", (), BACKGROUND),
        ("consolidate", ("SES-00000001", "SES-00000002"), BACKGROUND),
    ],
)
def test_an_executor_s_lane_follows_from_the_kind_of_work_and_its_depth(
    wo_type: Any, chain: tuple[str, ...], lane: str
) -> None:
    wo = WorkOrder.create(
        session_id="SES-00000001", number=1, turn_id="T-00000001-000001", wo_type=wo_type, created_at="2026-01-01T00:00:00Z"
    )
    token = CALLING_CHAIN.set(chain)
    try:
        assert HostedExecutor.lane_of(wo) == lane
    finally:
        CALLING_CHAIN.reset(token)


async def test_errors_keep_their_facts_on_the_way_back() -> None:
    async def handle(message: str) -> str:
        raise ConfigError("kitchener.toml", "limits.x", "1", "unknown key")

    mailbox = mailbox_of(handle)
    async with opened(mailbox):
        with pytest.raises(ConfigError) as caught:
            await mailbox.ask_within("a")
        assert caught.value.key == "limits.x"
