"""Turns the updates of a running turn into an async iterator. The turn runs in its own task."""

from collections.abc import AsyncGenerator, Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from kitchener.cancellation import cut_off, is_scope_cancelled
from kitchener.records.turn import TurnUpdate, UpdateListener


async def streamed(
    run: Callable[[UpdateListener], Awaitable[None]], tasks: TaskGroup, capacity: int
) -> AsyncGenerator[TurnUpdate, None]:
    """Yields the updates of `run` as they happen. Leaving the iterator cancels `run`; its errors are raised here.

    Args:
        run: the turn; its argument is the function that it calls with each update
        tasks: the task group that runs the turn
        capacity: updates buffered for a slow reader; when the buffer is full, the turn waits for the reader
    """
    send, receive = anyio.create_memory_object_stream[TurnUpdate](capacity)
    stop, failure = anyio.CancelScope(), list[Exception]()

    async def tell(update: TurnUpdate) -> None:
        try:
            await send.send(update)
        except anyio.BrokenResourceError:
            stop.cancel()  # the reader has gone

    async def work() -> None:
        with stop, send:
            try:
                await run(tell)
            except BaseException as error:  # passed to the reader, which is another task
                if is_scope_cancelled() or isinstance(error, KeyboardInterrupt):
                    raise
                failure.append(error if isinstance(error, Exception) else cut_off("the turn", error))

    tasks.start_soon(work)
    try:
        async with receive:
            async for update in receive:
                yield update
    finally:
        stop.cancel()
    if failure:
        raise failure[0]
