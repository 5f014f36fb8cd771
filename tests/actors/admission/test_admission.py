"""Which message of a session may run, and when; explained in docs/sessions.md."""

import anyio
import pytest
from anyio.abc import TaskGroup

from kitchener.actors.admission.admission import TurnLimiter
from kitchener.errors import Overloaded, RuntimeClosed, SessionBusy, TurnReplaced, WaitedTooLong
from kitchener.records.turn import TurnCall
from tests.actors.admission.admission_kit import FAR, Message, Place
from tests.actors.time_control import in_virtual_time, settle, settle_then


async def send_in_order(place: Place, tasks: TaskGroup, texts: str) -> list[Message]:
    messages = [Message(text) for text in texts]
    for message in messages:
        tasks.start_soon(message.send, place)
        await settle()
    return messages


def results(messages: list[Message]) -> list[object]:
    return [type(each.outcome) if isinstance(each.outcome, Exception) else each.outcome for each in messages]


async def test_one_turn_of_a_session_runs_at_a_time_in_the_order_of_arrival() -> None:
    place = Place()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            messages = await send_in_order(place, tasks, "abcd")
            assert results(messages) == ["running", "waiting", "waiting", "waiting"]
            for message in messages:
                message.go.set()
    assert place.order == list("abcd")
    assert place.most_running == 1
    assert place.is_free()
    assert place.written.entries == []


async def test_a_full_session_queue_turns_the_next_message_away_at_once_and_on_record() -> None:
    place = Place(session_queue=2)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            messages = await send_in_order(place, tasks, "abcde")
            assert results(messages) == ["running", "waiting", "waiting", Overloaded, Overloaded]
            assert place.written.rejections() == [("d", "overloaded"), ("e", "overloaded")]
            assert place.written.commits_asked == 2
            refusal = messages[3].outcome
            assert isinstance(refusal, Overloaded)
            assert (refusal.what, refusal.limit) == ("the queue of session SES-00000001", 2)
            for message in messages:
                message.go.set()
    assert place.order == list("abc")
    assert place.is_free()


async def test_a_rejected_message_keeps_its_idempotency_key_on_record() -> None:
    place = Place(overlap_policy="reject")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            [running] = await send_in_order(place, tasks, "a")
            await Message("b", key="k-1").send(place)
            running.go.set()
    [(kind, payload)] = place.written.entries
    assert kind == "TURN_REJECTED"
    assert payload == {
        "v": 1,
        "session_id": "SES-00000001",
        "subject_id": "ada",
        "user_message": "b",
        "reason": "busy",
        "idempotency_key": "k-1",
    }


async def test_a_busy_session_that_rejects_says_busy_and_takes_the_next_when_it_is_free() -> None:
    place = Place(overlap_policy="reject")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            messages = await send_in_order(place, tasks, "ab")
            assert results(messages) == ["running", SessionBusy]
            assert place.written.rejections() == [("b", "busy")]
            messages[0].go.set()
            await settle()
            [third] = await send_in_order(place, tasks, "c")
            assert third.outcome == "running"
            third.go.set()
    assert place.is_free()


async def test_the_newest_message_replaces_the_running_one_and_those_in_line() -> None:
    place = Place(overlap_policy="replace")
    stubborn = anyio.Event()

    class Slow(Message):
        async def send(self, place: Place) -> None:  # a turn that takes its time to stop, as one that records its end does
            with self.caller:
                async with place.turn(self.text, self.call, nested=False) as queue:
                    queue.scope = scope = anyio.CancelScope()
                    with scope:
                        await anyio.sleep_forever()
                    self.outcome = "replaced while running" if queue.is_replaced else "cut off"
                    await stubborn.wait()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            first = Slow("a")
            tasks.start_soon(first.send, place)
            await settle()
            messages = await send_in_order(place, tasks, "bcd")
            assert first.outcome == "replaced while running"
            assert results(messages) == [TurnReplaced, TurnReplaced, "waiting"]
            assert place.written.rejections() == [("b", "replaced"), ("c", "replaced")]
            stubborn.set()
            await settle()
            assert results(messages)[2] == "running"
            [last] = await send_in_order(place, tasks, "e")
            assert results(messages)[2] == "replaced while running"
            assert last.outcome == "running"
            last.go.set()
    assert place.order == ["d", "e"]
    assert place.is_free()


async def test_a_message_replaced_while_it_waits_for_a_slot_gives_everything_back() -> None:
    place = Place(overlap_policy="replace", max_running=1)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            await place.limiter.enter(FAR)
            messages = await send_in_order(place, tasks, "ab")
            assert results(messages) == ["waiting", "waiting"]
            place.limiter.leave()
            await settle()
            assert results(messages) == [TurnReplaced, "running"]
            assert place.written.rejections() == [("a", "replaced")]
            messages[1].go.set()
    assert place.order == ["b"]
    assert place.is_free()


@pytest.mark.parametrize("policy", ["queue", "replace"])
@pytest.mark.parametrize("state", ["running", "waiting for the session", "waiting for a slot", "in the tick of its turn"])
async def test_a_cancelled_message_hands_the_session_on(policy: str, state: str) -> None:
    place = Place(overlap_policy=policy, max_running=1)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            if state == "waiting for a slot":
                await place.limiter.enter(FAR)
            messages = await send_in_order(place, tasks, "ab")
            if state == "in the tick of its turn":
                messages[1].caller.cancel()
                messages[0].go.set()
            else:
                messages[{"running": 0, "waiting for the session": 1, "waiting for a slot": 0}[state]].caller.cancel()
            messages += await send_in_order(place, tasks, "c")
            if state == "waiting for a slot":
                place.limiter.leave()
            for _ in range(3):
                await settle()
                for message in messages:
                    message.go.set()
    assert place.order[-1] == "c"
    assert place.is_free()


@in_virtual_time
async def test_who_waits_for_the_session_past_the_deadline_is_overloaded() -> None:
    place = Place()
    async with anyio.create_task_group() as tasks:
        [running] = await send_in_order(place, tasks, "a")
        began = anyio.current_time()
        late = Message("b")
        await late.send(place)
        assert anyio.current_time() == began + 30
        assert isinstance(late.outcome, WaitedTooLong)
        what = f"the wait for session {place.session.session_id}, where another call runs, took more than 30 s"
        assert str(late.outcome) == f"{what}; nothing was started, send again later"
        assert place.written.rejections() == [("b", "overloaded")]
        running.go.set()
    assert place.is_free()


@in_virtual_time
@pytest.mark.parametrize(("of_the_call", "ends_at"), [(5.0, 5.0), (1_000.0, 30.0)])
async def test_the_call_s_own_deadline_ends_the_wait_if_it_is_sooner(of_the_call: float, ends_at: float) -> None:
    place = Place()
    async with anyio.create_task_group() as tasks:
        [running] = await send_in_order(place, tasks, "a")
        began = anyio.current_time()
        late = Message("b", deadline=began + of_the_call)
        await late.send(place)
        assert isinstance(late.outcome, Overloaded)
        assert anyio.current_time() == began + ends_at
        running.go.set()


@in_virtual_time
async def test_session_and_slot_share_one_deadline() -> None:
    place = Place(max_running=1)
    async with anyio.create_task_group() as tasks:
        await place.limiter.enter(FAR)  # another session's turn
        began = anyio.current_time()
        first = Message("a")
        tasks.start_soon(first.send, place)
        await anyio.sleep(10)
        second = Message("b")
        tasks.start_soon(second.send, place)
        await anyio.sleep(20.5)
        assert isinstance(first.outcome, Overloaded)  # at 30 s; now b has the session and waits for a slot
        assert second.outcome == "waiting"
        await anyio.sleep(10)
        assert isinstance(second.outcome, Overloaded)  # at 40 s, 30 after it came, not 30 after it had the session
        assert anyio.current_time() == began + 40.5
        place.limiter.leave()
    assert place.is_free()
    assert place.written.rejections() == [("a", "overloaded"), ("b", "overloaded")]


async def test_a_full_runtime_turns_a_message_away_on_record_and_frees_its_session() -> None:
    limiter = TurnLimiter(1, 1)
    place, another = Place(limiter=limiter), Place(limiter=limiter)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            await limiter.enter(FAR)
            [other] = await send_in_order(another, tasks, "x")
            message = Message("a")
            await message.send(place)
            assert isinstance(message.outcome, Overloaded)
            assert place.written.rejections() == [("a", "overloaded")]
            assert place.session.queue is None
            limiter.leave()
            other.go.set()
    assert place.is_free()


async def test_a_runtime_that_closes_is_no_rejection_of_the_message() -> None:
    place = Place()
    place.limiter.close()
    message = Message("a")
    await message.send(place)
    assert isinstance(message.outcome, RuntimeClosed)
    assert place.written.entries == []
    assert place.is_free()


async def test_a_nested_turn_takes_no_slot_because_its_caller_holds_one() -> None:
    place = Place(max_running=1)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            await place.limiter.enter(FAR)
            nested = Message("a", nested=True)
            tasks.start_soon(nested.send, place)
            await settle()
            assert nested.outcome == "running"
            assert (place.limiter.running, place.limiter.waiting) == (1, 0)
            nested.go.set()
        assert (place.limiter.running, place.session.queue) == (1, None)
        place.limiter.leave()
    assert place.is_free()


async def test_a_call_that_is_no_turn_waits_in_the_same_line() -> None:
    place = Place()
    order: list[str] = []

    async def end() -> None:
        async with place.admission.call(place.session):
            order.append("call")
            assert place.running == []

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            [first] = await send_in_order(place, tasks, "a")
            tasks.start_soon(end)
            await settle()
            [second] = await send_in_order(place, tasks, "b")
            first.go.set()
            await settle()
            assert order == ["call"]
            assert second.outcome == "running"
            second.go.set()
    assert place.is_free()


async def test_a_message_cancelled_and_replaced_at_once_gives_away_no_session_that_it_never_had() -> None:
    place = Place(overlap_policy="replace")
    released = anyio.Event()

    async def hold() -> None:
        async with place.admission.call(place.session):
            place.running.append("call")
            await released.wait()
            place.running.remove("call")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            await settle()
            [second] = await send_in_order(place, tasks, "b")
            third = Message("c")
            third.go.set()
            tasks.start_soon(settle_then, released.set)
            second.caller.cancel()
            await third.send(place)  # replaces b, who is being cancelled in this very tick
    assert results([second, third]) == ["cancelled while waiting", "done"]
    assert place.most_running == 1
    assert place.is_free()


async def test_a_newer_message_does_not_turn_away_a_call_that_is_no_turn() -> None:
    place = Place(overlap_policy="replace")
    done: list[str] = []

    async def end() -> None:
        async with place.admission.call(place.session):
            done.append("call")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            blocked = anyio.Event()

            async def hold() -> None:
                async with place.admission.call(place.session):
                    await blocked.wait()

            tasks.start_soon(hold)
            await settle()
            tasks.start_soon(end)
            await settle()
            messages = await send_in_order(place, tasks, "ab")
            assert results(messages) == [TurnReplaced, "waiting"]
            blocked.set()
            await settle()
            assert done == ["call"]
            assert messages[1].outcome == "running"
            messages[1].go.set()
    assert place.is_free()


@pytest.mark.parametrize("nested", [False, True])
async def test_a_message_replaced_in_the_tick_of_its_turn_does_not_run(nested: bool) -> None:
    place = Place(overlap_policy="replace")
    second, third = Message("b", nested=nested), Message("c", nested=nested)
    third.go.set()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            async with place.turn("a", TurnCall(), nested=False):
                tasks.start_soon(second.send, place)
                await settle()
            await third.send(place)  # b has the session and does not know it yet
    assert results([second, third]) == [TurnReplaced, "done"]
    assert place.written.rejections() == [("b", "replaced")]
    assert place.order == ["c"]
    assert place.is_free()


@pytest.mark.parametrize("policy", ["queue", "reject", "replace"])
async def test_a_call_that_is_no_turn_waits_whatever_the_policy_says_of_messages(policy: str) -> None:
    place = Place(overlap_policy=policy)
    done = anyio.Event()

    async def end() -> None:
        async with place.admission.call(place.session):
            done.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            [running] = await send_in_order(place, tasks, "a")
            tasks.start_soon(end)
            await settle()
            assert running.outcome == "running"
            assert not done.is_set()
            running.go.set()
            await done.wait()
    assert place.is_free()


async def test_a_turn_that_fails_hands_the_session_on() -> None:
    place = Place()
    with anyio.fail_after(5):
        with pytest.raises(LookupError):
            async with place.turn("a", TurnCall(), nested=False):
                raise LookupError("in the turn")
        assert place.is_free()
        message = Message("b")
        message.go.set()
        await message.send(place)
        assert message.outcome == "done"
