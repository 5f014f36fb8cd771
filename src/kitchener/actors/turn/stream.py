"""A turn's updates as an iterator: the turn runs in a task of its own, and ends when its reader goes."""

from collections.abc import AsyncGenerator, Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from kitchener.cancellation import cut_off, is_scope_cancelled
from kitchener.records.turn import TurnUpdate, UpdateListener


async def streamed(
    run: Callable[[UpdateListener], Awaitable[None]], tasks: TaskGroup, capacity: int
) -> AsyncGenerator[TurnUpdate, None]:
    """What `run` tells, as it tells it; leaving the iterator cancels it, and what it raises is raised here.

    Args:
        run: the turn; it is given the function to tell by
        tasks: where it runs
        capacity: updates held for a slow reader; then the turn waits for the reader
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
            except BaseException as error:  # handed to the reader, who is another task
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
