"""Handlers that fail, actors that stop, mailboxes that close: everybody is answered; explained in docs/actors.md."""

import anyio
import pytest

from kitchener.errors import ActorStopped, ConfigError, ToolError
from kitchener.lanes.mailbox import (
    INTERACTIVE,
    Mailbox,
)
from tests.actors.time_control import in_virtual_time, settle
from tests.hostile.code.strays import of_a_kept_one
from tests.lanes.mailbox_kit import NOTHING, Asker, GatedHandler, ask_in_order, counts, mailbox_of, opened, stopped_by
from tests.shared.logs import captured_logs


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
        with captured_logs() as logs:
            asking = await ask_in_order(mailbox, askers, ["good", "bad", "fine"])
        assert [asker.outcome for asker in (asking[0], asking[2])] == ["good", "fine"]
        assert isinstance(asking[1].outcome, ZeroDivisionError)
        assert counts(mailbox) == NOTHING
    [line] = logs
    assert (line["event"], line["log_level"], line["actor"]) == ("actor failed", "error", "the cook")
    assert line["error"].startswith("ZeroDivisionError at test_failures.py:")
    assert "in handle" in line["traceback"]
    assert "bad" not in line["error"], "its words may be what somebody said"


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


async def test_what_an_idle_worker_is_handed_in_that_moment_begins_before_the_actor_stops_or_never() -> None:
    started: list[str] = []

    async def handle(message: str) -> str:
        started.append(message)
        if message == "bad":
            await straw.wait()
            started.append("the actor stops")
            raise ValueError("the last straw")
        await gate.wait()
        return message

    gate, straw, bad, handed = anyio.Event(), anyio.Event(), Asker("bad"), Asker("handed")
    mailbox = mailbox_of(handle, concurrency=2, max_restarts=1)

    async def ask_in_that_moment() -> None:
        straw.set()  # wakes the handler that will fail
        await handed.ask(mailbox)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as askers:

            async def fail_beside_an_idle_worker() -> None:
                await ask_in_order(mailbox, askers, ["warm", "too"])
                gate.set()
                await settle()
                assert mailbox.statistics()[INTERACTIVE].idle == 2
                askers.start_soon(bad.ask, mailbox)
                await settle()
                askers.start_soon(ask_in_that_moment)

            await stopped_by(mailbox, fail_beside_an_idle_worker)
    assert isinstance(bad.outcome, ValueError)
    assert started[:3] == ["warm", "too", "bad"]
    assert started[-1] == "the actor stops"  # nothing begins after it
    assert isinstance(handed.outcome, ActorStopped) or (handed.outcome == "handed" and "handed" in started)


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
        asker, late, asks = Asker("a"), Asker("late"), anyio.Event()

        async def ask(mailbox: Mailbox[str, str], asker: Asker, asks: anyio.Event) -> None:
            asks.set()
            await asker.ask(mailbox)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as askers, mailbox.open():
                if is_warm:
                    await mailbox.ask_within("warm")
                    await settle()
                askers.start_soon(ask, mailbox, asker, asks)
                await asks.wait()
                askers.start_soon(late.ask, mailbox)
        assert isinstance(asker.outcome, ActorStopped)
        assert isinstance(late.outcome, ActorStopped)


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


async def test_errors_keep_their_facts_on_the_way_back() -> None:
    async def handle(message: str) -> str:
        raise ConfigError("kitchener.toml", "limits.x", "1", "unknown key")

    mailbox = mailbox_of(handle)
    async with opened(mailbox):
        with pytest.raises(ConfigError) as caught:
            await mailbox.ask_within("a")
        assert caught.value.key == "limits.x"


async def test_failures_of_one_origin_count_once_and_those_of_many_stop_the_actor() -> None:
    async def handle(message: str) -> str:
        raise ValueError(message)

    mailbox = mailbox_of(handle, max_restarts=3, origin=lambda message: message[0])

    async def fail(*messages: str) -> None:
        for message in messages:
            with pytest.raises(ValueError, match=message):
                await mailbox.ask_within(message)

    async with opened(mailbox):
        await fail(*(f"a{n}" for n in range(20)), "b0", "b1")

    mailbox = mailbox_of(handle, max_restarts=3, origin=lambda message: message[0])
    with anyio.fail_after(5):
        await stopped_by(mailbox, lambda: fail("a0", "b0", "a1", "c0"))


async def test_a_cancellation_from_elsewhere_fails_its_own_message_only() -> None:
    async def handle(message: str) -> str:
        if message == "bad":
            await of_a_kept_one()
        return message

    mailbox = mailbox_of(handle)
    async with opened(mailbox):
        for _ in range(5):
            with pytest.raises(ActorStopped, match="the cook was cut off: Cancelled"):
                await mailbox.ask_within("bad")
            assert await mailbox.ask_within("good") == "good"
        assert counts(mailbox) == NOTHING


async def test_an_exit_in_a_handler_fails_its_own_message_only() -> None:
    async def handle(message: str) -> str:
        if message == "bad":
            raise SystemExit(3)
        return message

    mailbox = mailbox_of(handle)
    async with opened(mailbox):
        with pytest.raises(ActorStopped, match="SystemExit"):
            await mailbox.ask_within("bad")
        assert await mailbox.ask_within("good") == "good"
