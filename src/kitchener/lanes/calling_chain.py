"""Knows which sessions' turns wait for the code that runs now, so that no turn waits for itself.

The chain is a context variable, so tasks that a tool starts inherit it. A tool's call ends, and such a task may continue:
nothing waits for it any more, and it counts as a caller of its own. Neighbours: the mailbox carries the chain from an asker to
a worker, the supervisor adds sessions, the tool registry adds calls of tools. Explained in `docs/actors.md`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Final

from kitchener.records.entries import NestedTurn
from kitchener.records.work_order import Cost

MOST_TURNS: Final = 100
"""Turns of one tool call that are named on record. What further ones use counts all the same."""


class ToolRun:
    """One call of a tool, as a link of the chain."""

    __slots__ = ("cost", "has_ended", "has_read_untrusted", "turns", "untrusted_source")

    def __init__(self, *, has_read_untrusted: bool = False) -> None:
        self.has_read_untrusted = has_read_untrusted
        """Whether the calling turn had read text of an untrusted source, which may have chosen the call."""
        self.has_ended = False
        """Called when the tool has returned or is no longer awaited."""
        self.cost: Cost | None = None
        """What the turns used that the tool ran so far; None: it ran none."""
        self.turns: list[NestedTurn] = []
        """Those turns, the first `MOST_TURNS`."""
        self.untrusted_source: str | None = None
        """`agent:CLASS` of the first of them that was shown text of an untrusted source; None: none was."""

    def add(self, turn: NestedTurn, spent: Cost, *, has_read_untrusted: bool) -> None:
        """Adds a turn that the tool ran, and what it used."""
        self.cost = spent.plus(self.cost)
        if len(self.turns) < MOST_TURNS:
            self.turns.append(turn)
        if has_read_untrusted and self.untrusted_source is None:
            self.untrusted_source = f"agent:{turn['agent_class']}"


Links = tuple[str | ToolRun, ...]

CALLING_CHAIN: ContextVar[Links] = ContextVar("CALLING_CHAIN", default=())
"""Sessions, outermost first, each followed by the call of its tool once one runs. Only for handing it on and adding to it: who
asks what waits now asks `calling_chain`."""


def live_links() -> Links:
    """The part of the chain that still waits: what stands after the last tool call that has ended."""
    links = CALLING_CHAIN.get()
    for place in range(len(links) - 1, 0, -1):
        link = links[place]
        if isinstance(link, ToolRun) and link.has_ended:
            return links[place + 1 :]
    return links


@contextmanager
def called_by(session_id: str, tool: ToolRun | None = None) -> Iterator[None]:
    """Runs the block as if a tool of this session ran it; `tool`: the call."""
    token = CALLING_CHAIN.set((session_id,) if tool is None else (session_id, tool))
    try:
        yield
    finally:
        CALLING_CHAIN.reset(token)


def calling_chain() -> tuple[str, ...]:
    """The sessions whose turns wait for what runs here, outermost first."""
    return tuple([link for link in live_links() if isinstance(link, str)])


def calling_tool() -> ToolRun | None:
    """The tool call that runs the present turn, if one does and still waits."""
    links = CALLING_CHAIN.get()
    return tool if len(links) > 1 and isinstance(tool := links[-2], ToolRun) and not tool.has_ended else None


def enter_tool(context: Context) -> ToolRun:
    """Marks what runs in the context as one call of a tool. The caller of the tool sets `has_ended`."""
    run = ToolRun()
    if links := context.get(CALLING_CHAIN):
        context.run(CALLING_CHAIN.set, (*links, run))
    return run
