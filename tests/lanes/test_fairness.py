"""A lane's workers serve origins in rotation, and one origin leaves workers and room to others; explained in docs/actors.md."""

from collections import Counter
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.lanes.mailbox import INTERACTIVE
from tests.actors.time_control import settle
from tests.lanes.mailbox_kit import NOTHING, Asker, GatedHandler, ask_in_order, counts, mailbox_of, opened
from tests.shared.property_examples import examples


def origin(message: str) -> str:
    """The subject of a message: its first letter."""
    return message[0]


async def test_one_origin_leaves_a_worker_and_room_in_the_queue_to_others() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=8, capacity=8, origin=origin)
    async with opened(mailbox) as askers:
        busy = await ask_in_order(mailbox, askers, [f"a{n}" for n in range(40)])
        assert counts(mailbox) == (7, 6, 27)
        await ask_in_order(mailbox, askers, ["b0", "b1"])
        assert handler.started[-1] == "b0"
        assert counts(mailbox) == (8, 7, 27)
        handler.open("a0")
        await settle()
        assert handler.started[-1] in {"a7", "b1"}
        handler.open(*(asker.message for asker in busy), "b0", "b1")
        await settle()
        assert counts(mailbox) == NOTHING
        assert len(handler.replied) == 42
        assert [each for each in handler.started if each[0] == "a"] == [f"a{n}" for n in range(40)]


async def test_origins_take_turns_however_many_one_of_them_sends() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=1, capacity=100, origin=origin)
    async with opened(mailbox) as askers:
        await ask_in_order(mailbox, askers, [f"a{n}" for n in range(20)])
        await ask_in_order(mailbox, askers, ["b0", "b1"])
        handler.open(*(f"a{n}" for n in range(20)), "b0", "b1")
        await settle()
        assert handler.started[:5] == ["a0", "a1", "b0", "a2", "b1"]


async def test_origins_that_ask_for_room_take_turns_too() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=1, capacity=1, origin=origin)
    messages = ["a0", "a1", "b0", "b1", "a2"]
    async with opened(mailbox) as askers:
        await ask_in_order(mailbox, askers, messages)
        assert counts(mailbox) == (1, 1, 3)
        handler.open(*messages)
        await settle()
        assert handler.started == ["a0", "a1", "b0", "a2", "b1"]


async def test_no_worker_is_started_for_a_message_whose_origin_has_its_share() -> None:
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=8, capacity=8, origin=origin)
    messages = [f"a{n}" for n in range(9)]
    async with opened(mailbox) as askers:
        await ask_in_order(mailbox, askers, messages)
        found = mailbox.statistics()[INTERACTIVE]
        assert (found.running, found.waiting, found.idle) == (7, 2, 0)
        handler.open(*messages)


async def test_a_message_that_returns_comes_before_all_that_wait_and_also_asks_for_room_first() -> None:
    """Its first handling was in vain, such as a model call that a provider refused."""
    handler = GatedHandler()
    mailbox = mailbox_of(handler, concurrency=1, capacity=4, origin=origin)
    async with opened(mailbox) as askers:
        await ask_in_order(mailbox, askers, ["a0", "b0", "c0"])
        askers.start_soon(partial(mailbox.ask_within, "c1", is_return=True))
        await settle()
        await ask_in_order(mailbox, askers, ["d0", "e0", "f0"])
        askers.start_soon(partial(mailbox.ask_within, "g0", is_return=True))
        await settle()
        assert counts(mailbox) == (1, 4, 3)
        handler.open("a0", "b0", "c0", "c1", "d0", "g0", "e0", "f0")
        await settle()
        assert handler.started == ["a0", "c1", "b0", "d0", "g0", "c0", "e0", "f0"]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("aaab")),
        st.tuples(st.just("finish"), st.integers(0, 60)),
        st.tuples(st.just("cancel"), st.integers(0, 60)),
        st.tuples(st.just("tick"), st.integers(1, 3)),
        st.tuples(st.just("settle"), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=examples(few=40, many=1_000))
@given(steps, st.integers(1, 17), st.integers(1, 8))
async def test_no_worker_idles_while_a_message_waits_that_it_may_take(
    script: list[tuple[str, Any]], concurrency: int, capacity: int
) -> None:
    handler, asked = GatedHandler(), list[Asker]()
    mailbox = mailbox_of(handler, concurrency=concurrency, capacity=capacity, origin=origin)
    share = concurrency - concurrency // 8

    def check() -> None:
        ended = {asker.message for asker in asked if asker.outcome is not None}
        running = Counter(origin(each) for each in handler.started if each not in ended)
        assert running.total() == counts(mailbox)[0] <= concurrency
        for asker in asked:
            if asker.outcome is None and asker.message not in handler.started:
                assert running.total() == concurrency or running[origin(asker.message)] == share

    async with opened(mailbox) as askers:
        for step, what in script:
            if step == "ask":
                asked.append(Asker(f"{what}{len(asked)}"))
                askers.start_soon(asked[-1].ask, mailbox)
            elif step == "tick":
                for _ in range(what):
                    await anyio.lowlevel.checkpoint()
            elif step == "settle":
                await settle()
                check()
            elif asked and step == "finish":
                handler.open(asked[what % len(asked)].message)
            elif asked:
                asked[what % len(asked)].scope.cancel()
        await settle()
        check()
        handler.open(*(asker.message for asker in asked))
        await settle()
        assert counts(mailbox) == NOTHING
        assert all(asker.outcome is not None for asker in asked)
