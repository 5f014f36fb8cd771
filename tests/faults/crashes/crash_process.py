"""One life of a process whose prompts were compiled before the fork, which is half of what a start takes."""

import os
from contextlib import suppress
from typing import ClassVar, Final

from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.testing.crash_process import CrashProcess, Life, Tell, signals_deferred
from kitchener.testing.kill_places import KillPlaces

_PROMPTS: Final = PromptLibrary.load()


class Process(CrashProcess):
    """A forked child that runs one life in an event loop of its own."""

    newest: ClassVar["Process | None"] = None

    def __init__(self, life: Life, backend: str, at: int | None = None) -> None:
        async def quick(tell: Tell, places: KillPlaces) -> None:
            setattr(PromptLibrary, "load", lambda _=None: _PROMPTS)  # noqa: B010  a forked child's own copy of the class
            await life(tell, places)

        with signals_deferred():  # until there is somebody to end
            super().__init__(quick, backend, at)
            Process.newest = self

    @classmethod
    def end(cls) -> None:
        """Ends the newest process, if it still runs."""
        if cls.newest is not None:
            with suppress(ProcessLookupError, ChildProcessError):
                cls.newest.kill()
                os.waitpid(cls.newest.pid, 0)
