"""So many turns run in a runtime, so many wait, in order, and no slot is lost; explained in docs/sessions.md."""

import anyio
import pytest
from anyio.abc import TaskGroup

from kitchener.actors.admission.admission import TurnLimiter
from kitchener.errors import Overloaded, RuntimeClosed, WaitedTooLong
from tests.actors.admission.admission_kit import FAR
from tests.actors.time_control import in_virtual_time, settle, settle_then


class Turn:
    """Something that takes a slot, holds it until it is let go, and says what became of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scope = anyio.CancelScope()
        self.go = anyio.Event()
        self.outcome: object = "waiting"

    async def through(self, limiter: TurnLimiter, deadline: float = FAR) -> None:
        with self.scope:
            try:
                await limiter.enter(deadline)
            except Exception as error:  # noqa: BLE001  the outcome is looked at by the test
                self.outcome = error
                return
            try:
                self.outcome = "running"
                await self.go.wait()
                self.outcome = "done"
            finally:
                limiter.leave()
        if self.scope.cancelled_caught:
            self.outcome = f"cancelled while {self.outcome}"


async def enter_in_order(limiter: TurnLimiter, tasks: TaskGroup, names: str) -> list[Turn]:
    turns = [Turn(name) for name in names]
    for turn in turns:
        tasks.start_soon(turn.through, limiter)
        await settle()
    return turns


def outcomes(turns: list[Turn]) -> list[object]:
    return [type(turn.outcome) if isinstance(turn.outcome, Exception) else turn.outcome for turn in turns]


async def test_so_many_turns_run_so_many_wait_and_the_next_is_turned_away_at_once() -> None:
    limiter = TurnLimiter(2, 3)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            turns = await enter_in_order(limiter, tasks, "abcdefg")
            assert outcomes(turns) == ["running"] * 2 + ["waiting"] * 3 + [Overloaded] * 2
            assert (limiter.running, limiter.waiting) == (2, 3)
            refusal = turns[-1].outcome
            assert isinstance(refusal, Overloaded)
            assert (type(refusal), refusal.what, refusal.limit) == (Overloaded, "the runtime's queue of turns", 3)
            for turn in turns:
                turn.go.set()
    assert (limiter.running, limiter.waiting) == (0, 0)


async def test_one_subject_that_has_its_share_of_the_queue_is_told_so() -> None:
    limiter = TurnLimiter(1, 8)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            turns = await enter_in_order(limiter, tasks, "abcdefg")
            assert outcomes(turns) == ["running"] + ["waiting"] * 6
            with pytest.raises(Overloaded, match=r"one subject's share of the runtime's queue of turns is full \(6 waiting\)"):
                await limiter.enter(FAR)
            for turn in turns:
                turn.go.set()


async def test_slots_are_given_in_the_order_of_asking() -> None:
    limiter = TurnLimiter(1, 10)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            turns = await enter_in_order(limiter, tasks, "abcd")
            for n, turn in enumerate(turns):
                assert outcomes(turns) == ["done"] * n + ["running"] + ["waiting"] * (3 - n)
                turn.go.set()
                await settle()


async def test_nobody_overtakes_who_was_given_a_slot_a_moment_ago() -> None:
    limiter = TurnLimiter(1, 10)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            await limiter.enter(FAR)
            [waiting] = await enter_in_order(limiter, tasks, "a")
            limiter.leave()  # a has the slot and does not know it yet
            with anyio.CancelScope() as impatient:
                impatient.cancel()
                await limiter.enter(FAR)
            assert impatient.cancelled_caught
            await settle()
            assert waiting.outcome == "running"
            assert (limiter.running, limiter.waiting) == (1, 0)
            waiting.go.set()


@in_virtual_time
async def test_who_waits_past_the_deadline_is_overloaded_and_its_place_is_free() -> None:
    limiter = TurnLimiter(1, 1)
    async with anyio.create_task_group() as tasks:
        [running] = await enter_in_order(limiter, tasks, "a")
        began = anyio.current_time()
        with pytest.raises(WaitedTooLong) as late:
            await limiter.enter(began + 30)
        what = "the wait in the runtime's queue of turns for one of 1 places"
        assert str(late.value) == f"{what} took more than 30 s; nothing was started, send again later"
        assert anyio.current_time() == began + 30
        assert (limiter.running, limiter.waiting) == (1, 0)
        running.go.set()
    assert limiter.running == 0


@in_virtual_time
async def test_a_slot_given_in_the_moment_of_the_deadline_is_used_or_given_back() -> None:
    limiter = TurnLimiter(1, 1)
    await limiter.enter(FAR)
    late = Turn("late")
    late.go.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(late.through, limiter, anyio.current_time() + 10)
        await anyio.sleep(10)
        limiter.leave()
    assert late.outcome == "done" or isinstance(late.outcome, Overloaded)
    assert (limiter.running, limiter.waiting) == (0, 0)


@pytest.mark.parametrize("state", ["waiting", "running"])
async def test_a_cancelled_turn_gives_back_what_it_holds(state: str) -> None:
    limiter = TurnLimiter(1, 5)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            turns = await enter_in_order(limiter, tasks, "abc")
            turns[1 if state == "waiting" else 0].scope.cancel()
            await settle()
            if state == "waiting":
                assert outcomes(turns) == ["running", "cancelled while waiting", "waiting"]
                assert (limiter.running, limiter.waiting) == (1, 1)
            else:
                assert outcomes(turns) == ["cancelled while running", "running", "waiting"]
            for turn in turns:
                turn.go.set()
    assert (limiter.running, limiter.waiting) == (0, 0)


@pytest.mark.parametrize("order", ["cancel first", "slot first"])
@pytest.mark.parametrize("gives", ["leave", "close"])
async def test_a_slot_given_in_the_tick_of_the_cancellation_is_not_lost(order: str, gives: str) -> None:
    # Regression: the slot went to a task that was being cancelled, and never came back.
    limiter = TurnLimiter(1, 5)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            await limiter.enter(FAR)
            turns = await enter_in_order(limiter, tasks, "ab")
            if order == "cancel first":
                turns[0].scope.cancel()
            if gives == "leave":
                limiter.leave()
            else:
                limiter.close()
            turns[0].scope.cancel()
            await settle()
            if gives == "leave":
                assert turns[1].outcome == "running"
                assert (limiter.running, limiter.waiting) == (1, 0)
                turns[1].go.set()
            else:
                assert isinstance(turns[1].outcome, RuntimeClosed)
                limiter.leave()
    assert (limiter.running, limiter.waiting) == (0, 0)


async def test_a_closed_limiter_turns_everybody_away_and_lets_the_running_ones_finish() -> None:
    limiter = TurnLimiter(2, 5)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            turns = await enter_in_order(limiter, tasks, "abcd")
            limiter.close()
            assert limiter.is_closed
            with pytest.raises(RuntimeClosed):
                await limiter.enter(FAR)
            await settle()
            assert outcomes(turns) == ["running", "running", RuntimeClosed, RuntimeClosed]
            assert limiter.running == 2
            limiter.close()  # closing twice changes nothing
            assert limiter.running == 2
            turns[0].go.set()
            turns[1].go.set()
    assert (limiter.running, limiter.waiting) == (0, 0)


async def test_a_slot_given_in_the_tick_of_closing_is_given_back() -> None:
    """A shutdown waits until all slots are free."""
    limiter = TurnLimiter(1, 1)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            await limiter.enter(FAR)
            turns = await enter_in_order(limiter, tasks, "a")
            limiter.leave()
            limiter.close()
            await limiter.wait_idle()
    assert outcomes(turns) == [RuntimeClosed]


async def test_waiting_for_idleness_ends_with_the_last_turn_for_everybody_who_waits() -> None:
    limiter = TurnLimiter(2, 5)
    idle: list[str] = []

    async def wait(name: str) -> None:
        await limiter.wait_idle()
        idle.append(name)

    with anyio.fail_after(5):
        await limiter.wait_idle()  # nothing runs, so it does not wait
        async with anyio.create_task_group() as tasks:
            turns = await enter_in_order(limiter, tasks, "abc")
            for name in ("drain", "shutdown"):
                tasks.start_soon(wait, name)
            with anyio.CancelScope() as given_up:
                tasks.start_soon(settle_then, given_up.cancel)
                await wait("gave up")
            for turn in turns:
                assert idle == []
                turn.go.set()
                await settle()
            assert sorted(idle) == ["drain", "shutdown"]
            again = await enter_in_order(limiter, tasks, "d")
            tasks.start_soon(wait, "again")
            await settle()
            assert "again" not in idle
            again[0].go.set()
            await settle()
            assert idle[-1] == "again"


async def test_waiting_for_idleness_ends_with_a_turn_without_a_slot_too() -> None:
    """A nested turn has none, and may be the last one."""
    limiter, scope, is_idle = TurnLimiter(1, 1), anyio.CancelScope(), anyio.Event()

    async def wait() -> None:
        await limiter.wait_idle()
        is_idle.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            limiter.track(scope)
            tasks.start_soon(wait)
            await settle()
            assert not is_idle.is_set()
            limiter.untrack(scope)
            await is_idle.wait()


async def test_a_shutdown_cancels_the_turns_that_are_tracked_and_no_others() -> None:
    limiter = TurnLimiter(3, 0)
    kept, ended, over = anyio.CancelScope(), anyio.CancelScope(), anyio.CancelScope()
    limiter.track(ended)
    limiter.track(over)
    limiter.untrack(over)
    limiter.untrack(over)  # a turn may be told to be over twice
    limiter.cancel_running()
    assert [scope.cancel_called for scope in (kept, ended, over)] == [False, True, False]


async def test_a_turn_cancelled_as_it_gets_its_slot_does_not_keep_a_closing_runtime_waiting() -> None:
    """Nobody leaves that slot, so whoever waits for the last turn would wait for ever."""
    limiter, scope = TurnLimiter(1, 10), anyio.CancelScope()
    assert limiter.try_enter()

    async def cancelled() -> None:
        with scope:
            await limiter.enter(FAR)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancelled)
            while not limiter.waiting:
                await anyio.lowlevel.checkpoint()
            scope.cancel()
            limiter.leave()
            assert limiter.running == 1, "the slot was given to the turn that is cancelled"
            limiter.close()
            await limiter.wait_idle()
    assert (limiter.running, limiter.waiting) == (0, 0)
