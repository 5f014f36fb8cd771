"""The task that checks all streams outlives even the shortest of them; if the task ended, the server would end.

And a stream that has sent all its pieces ends, whatever else was to be written.
"""

from collections import Counter
from collections.abc import AsyncGenerator

import anyio
from starlette.types import Message

from kitchener.config import ServeConfig
from kitchener.serve.event_stream import COMMENT, OPEN_STREAMS, EventStream, OpenStreams
from tests.shared.cycles import left_in_cycles
from tests.shared.event_loops import ON_ASYNCIO


async def one_piece() -> AsyncGenerator[bytes, None]:
    yield b"data: {}\n\n"


async def test_a_stream_that_ends_in_the_step_in_which_it_began_ends_alone() -> None:
    streams, sent = OpenStreams(ServeConfig()), list[Message]()

    async def receive() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:  # as a connection does that takes all at once
        sent.append(message)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(streams.run)
        for _ in range(2):
            await anyio.wait_all_tasks_blocked()
            await EventStream(one_piece(), ServeConfig(), lambda: None)({"method": "GET", OPEN_STREAMS: streams}, receive, send)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert [each["type"] for each in sent] == ["http.response.start", "http.response.body", "http.response.body"] * 2


async def test_a_comment_that_the_client_does_not_take_ends_with_the_stream() -> None:
    sent, commenting = list[Message](), anyio.Event()

    async def receive() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)
        if message.get("body") == COMMENT:
            commenting.set()
            await anyio.sleep_forever()

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"data: {}\n\n"
        stream.check(anyio.current_time() + 1e6)
        await commenting.wait()

    config = ServeConfig()
    stream = EventStream(pieces(), config, lambda: None)
    with anyio.fail_after(20):
        await stream({"method": "GET", OPEN_STREAMS: OpenStreams(config)}, receive, send)
    assert [each.get("body") for each in sent] == [None, b"data: {}\n\n", COMMENT, b""]


async def test_a_silent_stream_sends_a_comment_every_15_seconds() -> None:
    sent, taken = list[bytes](), anyio.Event()

    async def receive() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))
        if sent[-1] == COMMENT:
            taken.set()

    async def pieces() -> AsyncGenerator[bytes, None]:
        now = anyio.current_time()
        assert stream.check(now + 14) <= now + 15
        assert stream.check(now + 15) == now + 30
        await taken.wait()
        yield b"data: {}\n\n"

    config = ServeConfig()
    stream = EventStream(pieces(), config, lambda: None)
    with anyio.fail_after(20):
        await stream({"method": "GET", OPEN_STREAMS: OpenStreams(config)}, receive, send)
    assert sent == [b"", COMMENT, b"data: {}\n\n", b""]


async def test_a_client_that_leaves_a_piece_untaken_for_the_time_of_a_request_counts_as_gone() -> None:
    gone, untaken, config = list[str](), anyio.Event(), ServeConfig(request_timeout_s=20)

    async def receive() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        if message.get("body"):
            untaken.set()
            await anyio.sleep_forever()

    stream = EventStream(one_piece(), config, lambda: gone.append("gone"))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream, {"method": "GET", OPEN_STREAMS: OpenStreams(config)}, receive, send)
            await untaken.wait()
            now = anyio.current_time()
            stream.check(now + 19)
            await anyio.wait_all_tasks_blocked()
            assert gone == []
            stream.check(now + 20)
    assert gone == ["gone"]


@ON_ASYNCIO
async def test_a_stream_with_a_comment_leaves_nothing_to_the_collector() -> None:
    """A comment that was taken needs no cancellation at the end, which would leave a cycle."""

    async def receive() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async def answer() -> None:
        taken, config = anyio.Event(), ServeConfig()

        async def send(message: Message) -> None:
            if message.get("body") == COMMENT:
                taken.set()

        async def pieces() -> AsyncGenerator[bytes, None]:
            yield b"data: {}\n\n"
            stream.check(anyio.current_time() + 1e6)
            await taken.wait()
            await anyio.wait_all_tasks_blocked()
            yield b"data: {}\n\n"

        stream = EventStream(pieces(), config, lambda: None)
        await stream({"method": "GET", OPEN_STREAMS: OpenStreams(config)}, receive, send)

    with anyio.fail_after(20):
        assert await left_in_cycles(answer) == Counter()
