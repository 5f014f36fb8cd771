"""What a tool can read about its call, and how it reports progress. Only values: `actors/tools` runs tools."""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final

from anyio.lowlevel import checkpoint

from kitchener.errors import ToolError
from kitchener.plain_names import quoted
from kitchener.records.entries.common import Json
from kitchener.records.tools.tool_question import ToolAnswer

MAX_PROGRESS_CHARS: Final = 500
"""Longest message of progress. What goes beyond is cut."""

Report = Callable[[float | None, float | None, str | None], None]
"""Takes value, total and message of a progress, in any thread, and never waits."""

ReadPage = Callable[[str, int], Json]
"""Takes the id of a result and the offset of a page. Returns the page; None: there is no such result."""


NoteSource = Callable[[str, str], None]
"""Takes the id of an item and the source of its text, which is not trusted."""


class _Reported:
    """What `progress` returns: an async tool awaits it to let others run, a sync tool ignores it."""

    __slots__ = ()

    def __await__(self) -> Generator[object, None, None]:
        return checkpoint().__await__()


_REPORTED: Final = _Reported()


class CallWait:
    """What a call waits for before it has any effect, such as a connection. An `async def` tool that waits says so.

    If the time of the call runs out meanwhile, the model is told that the tool was not started, and why.
    """

    __slots__ = ("is_waiting", "reason")

    def __init__(self) -> None:
        self.is_waiting = False
        """Whether the call waits, and has had no effect yet. False: it may have an effect from now on."""
        self.reason: Callable[[], str] = str
        """What it waits for, as one line of text, at once. It counts while the call waits."""

    def begin(self, reason: Callable[[], str]) -> None:
        """The call waits from now on.

        Args:
            reason: says what for, as one line of text, at once; called when the time of the call runs out
        """
        self.is_waiting, self.reason = True, reason

    def end(self) -> None:
        """The call no longer waits, and may have an effect from now on."""
        self.is_waiting = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The facts of a tool call. The runtime fills a parameter of this type; the model does not see it."""

    idempotency_key: str
    """Equal for equal turn, position, tool and arguments. Pass it to services that accept an idempotency key."""
    session_id: str
    """The conversation that the call is made in, `SES-…`."""
    subject_id: str
    """The subject of the conversation."""
    turn_id: str
    """The turn that makes the call, `T-…`."""
    wo_id: str
    """The work order that the call is part of, `WO-…`."""
    deadline: float
    """On the event loop's clock, seconds. A later result is discarded."""
    has_read_untrusted: bool = False
    """Whether the turn has read text of an untrusted source, which may have chosen this call."""
    report: Report | None = None
    """Takes the progress; None: nobody watches the turn."""
    answer: ToolAnswer | None = None
    """A person's answer to the question that this call asked before; None: it has asked none."""
    read_page: ReadPage | None = None
    """Reads on in a long result of this work order, for the built-in tool that does so; None: there is none."""
    note_source: NoteSource | None = None
    """Takes the source of an item that is not trusted, for the built-in tool that reads items; None: nobody asks."""
    wait: CallWait = field(default_factory=CallWait)
    """What the call waits for before it has any effect."""

    def progress(self, value: float | None = None, total: float | None = None, message: str | None = None) -> _Reported:
        """Tells those who watch the turn how far the tool is, as a `ToolProgress`. It is not recorded.

        It never waits for a reader. If a reader is slow, the oldest waiting report is dropped. An `async def` tool awaits it
        (`await context.progress(3, 10)`), so that other tasks run; a tool in a thread calls it without `await`.

        Args:
            value: how much is done; None: unknown
            total: how much there is to do, in the unit of `value`; None: unknown
            message: what is being done, for people; cut after 500 characters

        Raises:
            ToolError: `value` or `total` is no finite number, or `message` is no text
        """
        for name, number in (("value", value), ("total", total)):
            if number is not None and (type(number) not in (int, float) or not math.isfinite(number)):
                raise ToolError(f"progress: {name} = {quoted(number)}: expected a finite number")
        if message is not None and not isinstance(message, str):
            raise ToolError(f"progress: message = {quoted(message)}: expected text")
        if self.report is not None:
            self.report(value, total, message[:MAX_PROGRESS_CHARS] if message is not None else None)
        return _REPORTED
