"""What a piece of work leaves to the garbage collector: objects that hold each other, with all that they hold."""

import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from types import CoroutineType, FrameType, FunctionType, MethodType

OURS = "kitchener."


async def left_in_cycles(work: Callable[[], Awaitable[object]], *, times: int = 3) -> Counter[str]:
    """Kitchener's objects that only the collector frees after the work was done so many times, by class or code.

    What the event loop's library leaves by itself is not counted.
    """
    await work()  # what is made once may leave cycles
    gc.collect()
    gc.freeze()  # what is there already need not be searched again
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(times):
            await work()
        gc.collect()
        return Counter(name for each in gc.garbage if (name := _name(each)).startswith(OURS))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _name(each: object) -> str:
    """Module and name of an object's class; of code, its own."""
    if isinstance(each, FrameType):
        return f"{each.f_globals.get('__name__')}.{each.f_code.co_name}"
    if isinstance(each, CoroutineType):
        return f"{each.cr_frame.f_globals.get('__name__') if each.cr_frame is not None else ''}.{each.__qualname__}"
    kind = each if isinstance(each, FunctionType | MethodType) else type(each)
    return f"{kind.__module__}.{kind.__qualname__}"
