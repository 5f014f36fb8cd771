"""The bounds of a mailbox: room, slots, lanes, deadlines, and what travels with a message; explained in docs/actors.md."""

from typing import Any

import anyio
import pytest

from kitchener.actors.executor.executor_host import HostedExecutor
from kitchener.errors import Overloaded
from kitchener.lanes.calling_chain import CALLING_CHAIN, calling_chain
from kitchener.lanes.mailbox import (
    BACKGROUND,
    INTERACTIVE,
)
from kitchener.records.work_order import WorkOrder
from tests.actors.time_control import in_virtual_time, settle
from tests.lanes.mailbox_kit import NOTHING, GatedHandler, ask_at_once, ask_in_order, counts, mailbox_of, opened


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
    async with opened(mailbox) as askers:
        asking = await ask_at_once(mailbox, askers, [f"m{n}" for n in range(40)])
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
    async with opened(mailbox) as askers:
        asking = await ask_at_once(mailbox, askers, [f"m{n}" for n in range(7)])
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
                await mailbox.ask_within("late")
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


async def test_a_burst_that_nothing_waits_in_is_served_by_the_few_workers_that_were_called() -> None:
    # A worker for each message would cost a switch of tasks for each.
    async def handle(message: str) -> str:
        return f"reply to {message}"

    mailbox = mailbox_of(handle, concurrency=64, capacity=64)
    async with opened(mailbox) as askers:
        asking = await ask_at_once(mailbox, askers, [f"m{n}" for n in range(50)])
        assert [asker.outcome for asker in asking] == [f"reply to {asker.message}" for asker in asking]
        assert mailbox.statistics()[INTERACTIVE].idle <= 3
        assert counts(mailbox) == NOTHING


async def test_a_burst_has_a_worker_for_each_message_where_messages_take_time() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=64, capacity=64, idle_workers=8)
    async with opened(mailbox) as askers:
        for burst in range(2):  # the second finds eight workers idle
            asking = await ask_at_once(mailbox, askers, [f"{burst}-{n}" for n in range(50)])
            assert counts(mailbox) == (50, 0, 0)
            handler.open(*(asker.message for asker in asking))
            await settle()
            assert [asker.outcome for asker in asking] == [f"reply to {asker.message}" for asker in asking]
            assert mailbox.statistics()[INTERACTIVE].idle == 8


async def test_a_finished_worker_takes_the_next_message() -> None:
    handler = GatedHandler()
    handler.open("a", "b", "c")
    mailbox = mailbox_of(handler, concurrency=4)
    async with opened(mailbox):
        for message in "abc":
            assert await mailbox.ask_within(message) == f"reply to {message}"
            await settle()
        assert (mailbox.statistics()[INTERACTIVE].idle, counts(mailbox)) == (1, (0, 0, 0))


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
            assert (mailbox.statistics()[INTERACTIVE].idle, counts(mailbox)) == (2, (0, 0, 0))


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


async def test_the_calling_chain_travels_with_the_message() -> None:
    async def handle(message: str) -> str:
        return " → ".join(calling_chain())

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
        seen.append(calling_chain())
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
