"""A cancelled asker takes back its own message, whatever its state, and disturbs nobody; explained in docs/actors.md."""

import anyio
import pytest

from kitchener.errors import ToolError
from kitchener.lanes.envelope import Outlet
from kitchener.lanes.mailbox import INTERACTIVE, Mailbox
from kitchener.lanes.worker_lane import LaneLimits
from tests.actors.time_control import settle, settle_then
from tests.lanes.mailbox_kit import NOTHING, Asker, GatedHandler, ask_in_order, counts, mailbox_of, opened


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


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_an_asker_that_is_cancelled_already_takes_no_place_from_an_idle_worker(concurrency: int) -> None:
    """Whether its message begins at once or has to wait for its turn."""
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=concurrency)
    async with opened(mailbox) as askers:
        handler.open("warm", "next")
        await ask_in_order(mailbox, askers, ["warm"])
        gone = Asker("gone")
        gone.scope.cancel()
        await gone.ask(mailbox)
        assert gone.outcome == "cancelled"
        assert handler.cancelled == [each for each in handler.started if each == "gone"]
        await settle()
        assert counts(mailbox) == NOTHING
        assert await mailbox.ask_within("next") == "reply to next"


@pytest.mark.parametrize("asked", ["ask", "ask_within", "stream"])
async def test_an_asker_cancelled_by_its_own_handler_gets_no_reply_and_no_later_cancellation(asked: str) -> None:
    """Also where the worker has replied at once: the next wait may be outside the scope that was cancelled, and is not
    cancelled there."""

    async def handle(message: str) -> str:
        if message == "cancels":
            scope.cancel()
        return message

    scope, replies = anyio.CancelScope(), list[str]()
    mailbox = mailbox_of(handle)
    async with opened(mailbox):
        await mailbox.ask_within("warm")
        await settle()
        with scope:
            if asked == "ask":
                replies.append(await mailbox.ask("cancels", deadline=anyio.current_time() + 5))
            elif asked == "ask_within":
                replies.append(await mailbox.ask_within("cancels"))
            else:
                replies.extend([each async for each in mailbox.stream("cancels", Outlet[str]())])
            await settle()
            replies.append("after a wait inside the scope")
        await settle()
        replies.append(await mailbox.ask_within("next"))
        assert counts(mailbox) == NOTHING
    assert scope.cancelled_caught
    assert replies == ["next"]  # looked at out here, because a cancellation that nobody asked for ends the blocks in silence


async def test_messages_that_begin_inside_each_other_do_not_use_up_the_stack() -> None:
    async def handle(depth: int) -> int:
        if depth == 0:
            await gate.wait()
            return 0
        return 1 + await mailbox.ask_within(depth - 1)

    gate, deep = anyio.Event(), 300
    mailbox: Mailbox[int, int] = Mailbox(
        handle,
        name="the well",
        lanes={INTERACTIVE: LaneLimits(2 * deep, 2 * deep, 2 * deep)},
        max_restarts=1,
        restart_window_s=60.0,
        abort_grace_s=5.0,
    )
    with anyio.fail_after(5):
        async with mailbox.open(), anyio.create_task_group() as askers:
            for _ in range(deep + 1):
                askers.start_soon(mailbox.ask_within, 0)
            await settle()
            gate.set()
            await settle()
            assert mailbox.statistics()[INTERACTIVE].idle > deep
            assert await mailbox.ask_within(deep) == deep
