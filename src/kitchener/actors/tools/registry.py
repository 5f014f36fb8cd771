"""Holds the tools of an agent class, and runs them so that no tool can break a turn.

If a tool raises, hangs, or is called with wrong arguments, the model gets an error text. A result that is too large is cut.
`executor.py` decides when a tool runs, and `execution.py` records it. This module knows no ledger and no model. Explained in
`docs/tools.md`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import copy
from types import MappingProxyType
from typing import Final, cast

import anyio
import anyio.to_thread

from kitchener.actors.tools.call_limits import ToolCallLimits, waited_too_long, within_limit
from kitchener.actors.tools.results import ToolOutcome, outcome_of
from kitchener.actors.tools.tool import Tool
from kitchener.actors.tools.tool_job import ToolJob, ToolThreads
from kitchener.actors.tools.toolsets import NO_TOOLS, Toolset, toolset_of
from kitchener.config import ToolLimits
from kitchener.errors import ToolError
from kitchener.plain_names import without_halves
from kitchener.records.entries import ToolDefinition
from kitchener.records.tools.runnable_tool import (
    RunnableTool,
    ToolIdentity,
    ToolSource,
    definition_of,
)
from kitchener.records.tools.tool_context import ToolContext

_MAX_REASON_CHARS: Final = 300
"""Longest text that a tool says of what its call waits for. What goes beyond is cut."""


class ToolRegistry:
    """Holds all tools, checks their arguments, and runs them within limits of time, size and threads.

    Args:
        tools: tools, or plain functions, which become tools with effects
        timeout_s: longest run of a tool without its own limit, seconds
        max_result_bytes: largest result, bytes of its JSON; a larger one is cut and ends with a note
        max_threads: synchronous tools that run at the same time; others wait, within their own time limit. One subject can
            use at most seven eighths of the threads, rounded up
        builtin: tools that a work order can allow by name, but that no list shows
        limits: limits of single tools, by name or pattern
        replaceable: sources whose tools come or change later, in the order of their tools; see `replace`

    Raises:
        ToolError: two tools have the same name
    """

    generation: int = 0
    """Rises with each `replace`."""

    def __init__(
        self,
        tools: Iterable[RunnableTool | Callable[..., object]] = (),
        *,
        timeout_s: float = 30.0,
        max_result_bytes: int = 65_536,
        max_threads: int = 32,
        builtin: Iterable[RunnableTool] = (),
        limits: Mapping[str, ToolLimits] = MappingProxyType({}),
        replaceable: Iterable[ToolSource] = (),
    ) -> None:
        self._limits = ToolCallLimits(limits)
        self.functions: tuple[RunnableTool, ...] = tuple(_as_tool(each) for each in tools)
        """The tools that are not built in and do not belong to a source that `replace` can change."""
        self._replaceable: dict[ToolSource, tuple[RunnableTool, ...]] = dict.fromkeys(replaceable, ())
        self.replaceable: tuple[ToolSource, ...] = tuple(self._replaceable)
        """The sources whose tools `replace` can change."""
        self.builtin: tuple[RunnableTool, ...] = tuple(builtin)
        """The tools that Kitchener brings along."""
        self._timeout_s, self._max_result_bytes, self._threads = timeout_s, max_result_bytes, ToolThreads(max_threads)
        self._in_tasks: set[ToolJob] = set()
        self.of_client: frozenset[str] = frozenset[str]()
        """The tools that the caller of a turn runs."""
        self._held: dict[str, ToolRegistry] = {}
        """The tools that `hold` gave to turns, by turn id."""
        self._ready: Callable[[], Awaitable[None]] | None = None
        self._put_in_place()

    def _put_in_place(self) -> None:
        listed = (*self.functions, *(each for tools in self._replaceable.values() for each in tools))
        found: dict[str, RunnableTool] = {}
        for each in listed:
            if each.tool_id in found:
                raise ToolError(f"two tools are called {each.tool_id!r}; give one of them another name=…")
            found[each.tool_id] = each
        listed_ids = tuple(found)
        for each in self.builtin:
            if each.tool_id in found:
                raise ToolError(f"tool {each.tool_id!r} has the name of a built-in one; give it another name=…")
            found[each.tool_id] = each
        self._tools, self._listed = found, listed_ids
        self._toolsets: dict[tuple[str, ...], Toolset] = {(): NO_TOOLS}

    def replace(self, source: ToolSource, tools: Iterable[RunnableTool]) -> None:
        """Replaces the tools of a replaceable source, for turns that begin from now on.

        Raises:
            ToolError: another tool has the same name, or the source is not replaceable; nothing was changed
        """
        before = self._replaceable
        if source not in before:
            raise ToolError(f"the tools of {source!r} cannot be replaced; these can: {', '.join(before) or 'none'}")
        self._replaceable = {**before, source: tuple(tools)}
        try:
            self._put_in_place()
        except ToolError:
            self._replaceable = before
            raise
        self.generation += 1

    def let_wait(self, ready: Callable[[], Awaitable[None]]) -> None:
        """Makes the next turn wait until `ready` has returned; `ready` may call `replace`."""
        self._ready = ready
        self.generation += 1

    async def ready(self) -> None:
        """Awaits what was given to `let_wait`, once."""
        if self._ready is not None:
            await self._ready()
            self._ready = None

    def present(self) -> "ToolRegistry":
        """A registry of the present tools, which no later `replace` changes. It shares the threads and their limits."""
        return copy(self)

    def with_client_tools(self, tools: Iterable[RunnableTool]) -> "ToolRegistry":
        """A registry of these tools and the caller's tools.

        A caller's tool hides another one of the same name, which came after the message was checked.
        """
        found, own = copy(self), {each.tool_id: each for each in tools}
        found._tools, found.of_client = {**self._tools, **own}, frozenset(own)
        found._listed = tuple(dict.fromkeys((*self._listed, *own)))
        found._toolsets = {(): NO_TOOLS}
        return found

    def hold(self, turn_id: str, tools: "ToolRegistry | None") -> None:
        """Gives a turn these tools, whatever is replaced later; None: the turn has ended."""
        if tools is None:
            self._held.pop(turn_id, None)
        elif self._replaceable or tools.of_client:
            self._held[turn_id] = tools

    def in_turn(self, turn_id: str) -> "ToolRegistry":
        """The tools of a turn: those that `hold` gave it, else the present ones."""
        return self._held.get(turn_id, self) if self._held else self

    @property
    def tool_ids(self) -> tuple[str, ...]:
        """The ids of all tools except built-in ones, in the order given."""
        return self._listed

    @property
    def listed(self) -> list[RunnableTool]:
        """All tools except built-in ones, in the order given."""
        return [self._tools[tool_id] for tool_id in self._listed]

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the asynchronous tools that run now, sorted."""
        return tuple(sorted({each.tool_id for each in self._in_tasks}))

    def is_read_only(self, tool_id: str) -> bool:
        """Whether the tool exists and has no effects."""
        found = self._tools.get(tool_id)
        return found is not None and found.is_read_only

    def toolset(self, allowed: tuple[str, ...]) -> Toolset:
        """The existing tools among `allowed`, in that order. Cached for each combination."""
        found = self._toolsets.get(allowed)
        if found is None:
            found = toolset_of(self._tools[tool_id].spec for tool_id in dict.fromkeys(allowed) if tool_id in self._tools)
            self._toolsets[allowed] = found
        return found

    def identity(self, tool_id: str) -> ToolIdentity | None:
        """The facts by which the approval policy judges a tool; None for an unknown tool."""
        found = self._tools.get(tool_id)
        return ToolIdentity.of(definition_of(found, built_in=tool_id not in self._listed)) if found is not None else None

    def untrusted_source(self, tool_id: str) -> str | None:
        """The source of a tool's results, if it is not trusted; None: it is trusted, or there is no such tool."""
        found = self._tools.get(tool_id)
        return found.source if found is not None and not found.traits.is_trusted else None

    def definitions(self) -> list[ToolDefinition]:
        """The definitions of all tools, in the order given, then of the built-in ones."""
        return [definition_of(each, built_in=each.tool_id not in self._listed) for each in self._tools.values()]

    def validate(self, tool_id: str, arguments: Mapping[str, object]) -> dict[str, object] | str:
        """Returns the converted arguments, or one line of text that names the argument, its value and what was expected."""
        found = self._tools.get(tool_id)
        if found is None:
            return f"there is no tool {tool_id!r}; there are {sorted(self._tools)}"
        return found.bind(arguments)

    async def run(
        self,
        tool_id: str,
        arguments: Mapping[str, object],
        call: ToolContext,
        *,
        bound: Mapping[str, object] | None = None,
    ) -> ToolOutcome:
        """Runs the tool and returns its result as JSON, or an error text, within its time limit and `call.deadline`.

        The caller's cancellation and a KeyboardInterrupt on the event loop pass through. Any other cancellation, such as that
        of a task that the tool awaited, is an error of the tool. An asynchronous tool that shields itself from cancellation is
        waited for. A synchronous tool cannot be stopped: after its time limit its thread keeps running, and the error says so.
        With `max_threads` such threads, no further tool is started in a thread.

        Args:
            tool_id: the tool
            arguments: its arguments as the model gave them
            call: what the tool may know of its call
            bound: what `validate` returned for these arguments, for this call alone; None: they are checked here
        """
        if tool_id in self.of_client:  # it has run, and its arguments were checked earlier
            if call.answer is None:
                return ToolOutcome(error=f"tool {tool_id!r} runs at the client, which has given no output")
            return self.client_outcome(tool_id, call.answer.answer)
        checked = self.validate(tool_id, arguments) if bound is None else bound
        if isinstance(checked, str):
            return ToolOutcome(error=checked)
        found = self._tools[tool_id]
        limits = self._limits.limits_of(found.limits if isinstance(found, Tool) else ToolLimits(), tool_id, found.policy_name)
        limit_s = limits.timeout_s or found.timeout_s or self._timeout_s
        max_bytes = limits.max_result_bytes or self._max_result_bytes
        job = ToolJob(found.prepared(checked, call), max_bytes, call.subject_id, found.tool_id)
        job.tool_run.has_read_untrusted = call.has_read_untrusted
        deadline = min(anyio.current_time() + limit_s, call.deadline)
        try:
            async with self._limits.place(tool_id, limits, deadline, limit_s) as problem:
                if problem is not None:
                    return ToolOutcome(error=problem)
                if found.is_async:
                    self._in_tasks.add(job)
                    outcome = await job.run_async(deadline)
                else:
                    outcome = await self._threads.run(job, deadline)
        finally:
            self._in_tasks.discard(job)
            job.tool_run.has_ended = True  # a task or thread that it left behind now counts as a separate caller
        if outcome is None:
            waited_for: str | None = "no thread was free for it"
            if job.has_begun:
                can_say = found.is_async and call.answer is None  # a thread goes on, and who has asked has begun
                waited_for = _told_reason(call) if can_say else None
            outcome = ToolOutcome(error=_late(found, limit_s, waited_for))
        return job.with_cost(outcome)

    def client_outcome(self, tool_id: str, output: object) -> ToolOutcome:
        """The outcome of a client's call: the output, cut like any result, or an error if the output has no JSON form."""
        own = self._limits.limits_of(ToolLimits(), tool_id, tool_id)
        return outcome_of(output, own.max_result_bytes or self._max_result_bytes)


def _as_tool(given: RunnableTool | Callable[..., object]) -> RunnableTool:
    return cast(RunnableTool, given) if hasattr(given, "tool_id") else Tool(given)


def _told_reason(call: ToolContext) -> str | None:
    """What the tool says that its call waits for, as one line; None: it says nothing, or nothing that is a text."""
    try:
        reason = call.wait.reason() if call.wait.is_waiting else None
    except Exception:  # noqa: BLE001 - an author's code, which must not break the turn
        return None
    return " ".join(without_halves(reason).split())[:_MAX_REASON_CHARS] if isinstance(reason, str) else None


def _late(found: RunnableTool, limit_s: float, waited_for: str | None) -> str:
    """The error text for a call that ran out of time; `waited_for`: why nothing was done; None: something may have been."""
    within = within_limit(limit_s)
    if waited_for is not None:
        return waited_too_long(found.tool_id, f"{waited_for} {within}")
    what = "was stopped" if found.is_async else "may still be running, but nobody waits for it any longer"
    effect = "" if found.is_read_only else " Its effect may or may not have happened: check before you repeat it."
    return f"tool {found.tool_id!r} did not end {within}; it {what}.{effect}"
