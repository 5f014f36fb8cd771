"""Turns functions into tools that a model may call, and runs them so that no tool can break a turn.

If a tool raises, hangs, or is called with wrong arguments, the model gets an error text. A result that is too large is cut.
`executor.py` decides when a tool runs, `execution.py` records it, and `schema.py` reads signatures. This module knows no ledger
and no model. Explained in `docs/tools.md`.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from threading import Lock, current_thread
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast, overload

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from kitchener.actors.tools.results import ToolOutcome, failure, outcome_of
from kitchener.actors.tools.schema import code_of, read_signature, summary
from kitchener.actors.tools.toolsets import NO_TOOLS, Toolset, toolset_of
from kitchener.cancellation import is_scope_cancelled
from kitchener.criteria import criterion_problem
from kitchener.errors import ToolError
from kitchener.lanes.askers import ASKERS_CONTEXT
from kitchener.lanes.calling_chain import enter_tool
from kitchener.plain_names import quoted
from kitchener.records.entries import ToolDefinition
from kitchener.records.prompt import ToolSpec
from kitchener.records.tools import (
    RunnableTool,
    ToolIdentity,
    ToolSource,
    definition_of,
    function_source,
    function_traits,
)

P = ParamSpec("P")
R = TypeVar("R")

_TOOL_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """The facts of a tool call. The runtime fills a parameter of this type; the model does not see it."""

    idempotency_key: str
    """Equal for equal turn, position, tool and arguments. Pass it to services that accept an idempotency key."""
    session_id: str
    """The session."""
    subject_id: str
    """The subject of the conversation."""
    turn_id: str
    """The turn."""
    wo_id: str
    """The work order."""
    deadline: float
    """On the event loop's clock, seconds. A later result is discarded."""


class Tool(Generic[P, R]):
    """A function with its description for the model and its limits. Calling the tool calls the function.

    Attributes:
        tool_id: the tool's name, `[A-Za-z0-9_.-]{1,64}`
        description: what the tool does, for the model
        parameters: JSON schema of the arguments
        is_read_only: whether the tool has no effect, so that it may run again and needs no durable record before it starts
        timeout_s: longest run, seconds; None: the registry's limit
        acceptance: criteria that the reply must meet if its turn runs this tool
        closes_intent: whether a successful call closes the intent of its turn
        source: where its results come from
        traits: what its author says of its effects
        policy_name: its name in rules of approval
        requires_approval: whether its author wants each call approved by a person
    """

    requires_approval: bool = False

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        read_only: bool = False,
        timeout_s: float | None = None,
        acceptance: Sequence[str] = (),
        closes_intent: bool = False,
    ) -> None:
        self.tool_id = name if name is not None else getattr(function, "__name__", "")
        if not _TOOL_ID.fullmatch(self.tool_id):
            raise ToolError(f"tool name {self.tool_id!r}: expected 1 to 64 letters, digits, '_', '.' or '-'; give name=…")
        if timeout_s is not None and not 0 < timeout_s < float("inf"):
            raise ToolError(f"tool {self.tool_id!r}: timeout_s: expected seconds above 0, found {timeout_s!r}")
        self.acceptance = _checked_criteria(self.tool_id, acceptance)
        called = code_of(function)
        if inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
            raise ToolError(f"tool {self.tool_id!r}: is a generator; return a list instead")
        docstring = inspect.getdoc(function) or ""
        self.description = summary(docstring) if description is None else description
        self.is_read_only, self.timeout_s, self.closes_intent = read_only, timeout_s, closes_intent
        self.policy_name, self.source = self.tool_id, function_source(self.tool_id)
        self.traits = function_traits(read_only=read_only)
        self._signature = read_signature(function, self.tool_id, ToolCall)
        self.parameters = self._signature.parameters
        self._is_async = inspect.iscoroutinefunction(called)
        self._function = function
        update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function directly, without the registry's checks and limits."""
        return self._function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Whether the function runs on the event loop; otherwise it runs in a worker thread."""
        return self._is_async

    @property
    def spec(self) -> ToolSpec:
        """The tool's description for a model."""
        return ToolSpec(self.tool_id, self.description, self.parameters)

    def bind(self, arguments: Mapping[str, object]) -> dict[str, Any] | str:
        """Returns the arguments, converted and completed by defaults, or a text that says what is wrong with them."""
        return self._signature.bind(self.tool_id, arguments)

    def prepared(self, bound: Mapping[str, object], call: ToolCall) -> Callable[[], object]:
        """Returns the function with its bound arguments, and with `call` if the function has a parameter for it."""
        injected = self._signature.injected
        given = bound if injected is None else {**bound, injected: call}
        return partial(cast(Callable[..., object], self._function), **given)


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    read_only: bool = False,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    acceptance: Sequence[str] = (),
    closes_intent: bool = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[..., object] | None = None,
    /,
    *,
    read_only: bool = False,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    acceptance: Sequence[str] = (),
    closes_intent: bool = False,
) -> Any:
    """Turns a function into a tool. Use the decorator with or without arguments.

    Args:
        read_only: True: the tool has no effects, so it may be repeated; False: its call is recorded durably before it runs
        name: the tool's name for the model; default: the function's name
        description: what the tool does; default: the docstring up to its first section
        timeout_s: longest run, seconds; default: the agent class's `tool_timeout_s`
        acceptance: criteria that the reply must meet if its turn runs the tool, such as `contains:EUR`
        closes_intent: True: a successful call reaches the goal of its turn's intent, which is closed after the reply

    Raises:
        ToolError: the name, a parameter, the timeout or a criterion is invalid
    """
    declare = partial(
        Tool,
        name=name,
        description=description,
        read_only=read_only,
        timeout_s=timeout_s,
        acceptance=acceptance,
        closes_intent=closes_intent,
    )
    return declare if function is None else declare(function)


def _checked_criteria(tool_id: str, acceptance: Sequence[str]) -> tuple[str, ...]:
    if isinstance(acceptance, str) or not all(isinstance(each, str) for each in acceptance):
        raise ToolError(f"tool {tool_id!r}: acceptance: expected a list of texts")
    for each in acceptance:
        problem = criterion_problem(each)
        if problem is not None:
            raise ToolError(f"tool {tool_id!r}: acceptance: {quoted(each)}: {problem}")
    return tuple(acceptance)


class ToolRegistry:
    """Holds all tools, checks their arguments, and runs them within limits of time, size and threads.

    Args:
        tools: tools, or plain functions, which become tools with effects
        timeout_s: longest run of a tool without its own limit, seconds
        max_result_bytes: largest result, bytes of its JSON; a larger one is cut and ends with a note
        max_threads: synchronous tools that run at the same time; others wait, within their own time limit. One subject can
            use at most seven eighths of the threads, rounded up
        builtin: tools that a work order can allow by name, but that are not listed
        replaceable: sources whose tools come and change later, in the order of their tools. See `replace`

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
        replaceable: Iterable[ToolSource] = (),
    ) -> None:
        self._functions = tuple(_as_tool(each) for each in tools)
        self._replaceable: dict[ToolSource, tuple[RunnableTool, ...]] = dict.fromkeys(replaceable, ())
        self._builtin = tuple(builtin)
        self._timeout_s, self._max_result_bytes, self._max_threads = timeout_s, max_result_bytes, max_threads
        # Each event loop has its own limiter, so that one registry can serve several event loops.
        self._threads = RunVar[anyio.CapacityLimiter]("kitchener tool threads")
        self._share = max_threads - max_threads // 8
        self._threads_of: dict[tuple[object, str], anyio.CapacityLimiter] = {}
        """The thread limiter of each subject that uses threads now, by event loop."""
        self._left_behind: set[_Job] = set()
        self._in_tasks: set[_Job] = set()
        self._held: dict[str, ToolRegistry] = {}
        """The tools of turns that hold theirs, by turn id."""
        self._ready: Callable[[], Awaitable[None]] | None = None
        self._put_in_place()

    def _put_in_place(self) -> None:
        listed = (*self._functions, *(each for tools in self._replaceable.values() for each in tools))
        found: dict[str, RunnableTool] = {}
        for each in listed:
            if each.tool_id in found:
                raise ToolError(f"two tools are called {each.tool_id!r}; give one of them another name=…")
            found[each.tool_id] = each
        listed_ids = tuple(found)
        for each in self._builtin:
            if each.tool_id in found:
                raise ToolError(f"tool {each.tool_id!r} has the name of a built-in one; give it another name=…")
            found[each.tool_id] = each
        self._tools, self._listed = found, listed_ids
        self._toolsets: dict[tuple[str, ...], Toolset] = {(): NO_TOOLS}

    @property
    def replaceable(self) -> tuple[ToolSource, ...]:
        """The sources whose tools `replace` can put in place."""
        return tuple(self._replaceable)

    def replace(self, source: ToolSource, tools: Iterable[RunnableTool]) -> None:
        """Puts tools in place of those of a replaceable source, for the turns that begin from now on.

        Raises:
            ToolError: another tool has the same name, and nothing has changed; or the source is not replaceable
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
        """Lets the next turn begin after `ready` has returned, which may `replace` tools."""
        self._ready = ready
        self.generation += 1

    async def ready(self) -> None:
        """Returns when what `let_wait` was given has returned. Waits for it once."""
        if self._ready is not None:
            await self._ready()
            self._ready = None

    def present(self) -> "ToolRegistry":
        """The tools that are in place now, which no `replace` changes. Threads and their limits are shared."""
        return copy(self)

    def hold(self, turn_id: str, tools: "ToolRegistry") -> None:
        """Gives a turn these tools until `release`, whatever is replaced meanwhile."""
        if self._replaceable:
            self._held[turn_id] = tools

    def release(self, turn_id: str) -> None:
        """Ends `hold`. The turn may not have held any."""
        self._held.pop(turn_id, None)

    def in_turn(self, turn_id: str) -> "ToolRegistry":
        """The tools of a turn: those that it holds, else those in place."""
        return self._held.get(turn_id, self) if self._held else self

    @property
    def tool_ids(self) -> tuple[str, ...]:
        """The ids of all tools except built-in ones, in the order given."""
        return self._listed

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the asynchronous tools that run now, sorted."""
        return tuple(sorted({each.tool_id for each in self._in_tasks}))

    def is_read_only(self, tool_id: str) -> bool:
        """Whether the tool exists and has no effects."""
        found = self._tools.get(tool_id)
        return found is not None and found.is_read_only

    def acceptance_of(self, tool_id: str) -> tuple[str, ...]:
        """The criteria that a reply must meet after the tool ran; none for an unknown tool."""
        found = self._tools.get(tool_id)
        return found.acceptance if found is not None else ()

    def closes_intent(self, tool_id: str) -> bool:
        """Whether the tool exists and a successful call closes the intent of its turn."""
        found = self._tools.get(tool_id)
        return found is not None and found.closes_intent

    def toolset(self, allowed: tuple[str, ...]) -> Toolset:
        """The existing tools among `allowed`, in that order. Cached for each combination."""
        found = self._toolsets.get(allowed)
        if found is None:
            found = toolset_of(self._tools[tool_id].spec for tool_id in dict.fromkeys(allowed) if tool_id in self._tools)
            self._toolsets[allowed] = found
        return found

    def specs(self, allowed: tuple[str, ...]) -> tuple[ToolSpec, ...]:
        """The descriptions of the existing tools among `allowed`, for a model."""
        return self.toolset(allowed).specs

    def identity(self, tool_id: str) -> ToolIdentity | None:
        """The facts by which permission to call the tool is given; None for an unknown tool."""
        found = self._tools.get(tool_id)
        return ToolIdentity.of(definition_of(found, built_in=tool_id not in self._listed)) if found is not None else None

    def definitions(self) -> list[ToolDefinition]:
        """All tools as sources of requests, in the order given, then the built-in ones."""
        return [definition_of(each, built_in=each.tool_id not in self._listed) for each in self._tools.values()]

    def validate(self, tool_id: str, arguments: Mapping[str, object]) -> dict[str, Any] | str:
        """Returns the arguments converted for the tool, or one line of text that names argument, value and expectation."""
        found = self._tools.get(tool_id)
        if found is None:
            return f"there is no tool {tool_id!r}; there are {sorted(self._tools)}"
        return found.bind(arguments)

    async def run(self, tool_id: str, arguments: Mapping[str, object], call: ToolCall) -> ToolOutcome:
        """Runs the tool and returns its result as JSON, or an error text, within its time limit and `call.deadline`.

        The caller's cancellation and a KeyboardInterrupt on the event loop pass through. Any other cancellation, such as that
        of a task that the tool awaited, is an error of the tool. This waits for an asynchronous tool
        that shields itself from cancellation. A synchronous tool cannot be stopped. After its time limit its
        thread keeps running, and the error says so. With `max_threads` such threads, no further tool is started in a thread.
        """
        bound = self.validate(tool_id, arguments)
        if isinstance(bound, str):
            return ToolOutcome(error=bound)
        found = self._tools[tool_id]
        limit_s = found.timeout_s if found.timeout_s is not None else self._timeout_s
        job = _Job(found.prepared(bound, call), self._max_result_bytes, call.subject_id, found.tool_id)
        try:
            with anyio.CancelScope(deadline=min(anyio.current_time() + limit_s, call.deadline)):
                if found.is_async:
                    self._in_tasks.add(job)
                    return job.with_cost(await job.run_async())
                return job.with_cost(await self._run_in_thread(job, found.tool_id))
        finally:
            self._in_tasks.discard(job)
            job.tool_run.has_ended = True  # what it has left behind is a caller of its own from now on
        return job.with_cost(ToolOutcome(error=_late(found, limit_s, started=found.is_async or job.has_begun)))

    async def _run_in_thread(self, job: "_Job", tool_id: str) -> ToolOutcome:
        threads = self._threads.get(None)
        if threads is None:
            threads = anyio.CapacityLimiter(self._max_threads)
            self._threads.set(threads)
        place = (threads, job.subject_id)
        own = self._threads_of.setdefault(place, anyio.CapacityLimiter(self._share))
        try:
            async with own:
                if (problem := self._stuck_threads(tool_id, job.subject_id, own.borrowed_tokens)) is not None:
                    return ToolOutcome(error=problem)
                return await anyio.to_thread.run_sync(job.run, abandon_on_cancel=True, limiter=threads)
        finally:
            if own.borrowed_tokens == 0 and own.statistics().tasks_waiting == 0:
                self._threads_of.pop(place, None)
            if job.is_left_behind():
                self._left_behind.add(job)

    def _stuck_threads(self, tool_id: str, subject_id: str, running: int) -> str | None:
        """Returns why no thread may be started for this subject, or None.

        Args:
            tool_id: the tool, for the error text
            subject_id: the subject
            running: the subject's running tools, including this one
        """
        self._left_behind.difference_update([each for each in self._left_behind if each.has_ended])
        stuck = len(self._left_behind)
        held = running + sum(each.subject_id == subject_id for each in self._left_behind)
        if stuck < self._max_threads and (held <= self._share or self._share == self._max_threads):
            return None
        return f"tool {tool_id!r} was not started: {stuck} tools that ran out of time still occupy their threads"


class _Job:
    """One run of a tool, in its own task or in a thread that may outlive the call.

    The tool runs with a copy of the asker's context variables, so its changes to them end with the run. In its own task, it
    cannot harm the next work order by a cancel scope or task group that it never leaves, or by cancelling itself.
    """

    def __init__(self, work: Callable[[], object], max_result_bytes: int, subject_id: str, tool_id: str) -> None:
        self.subject_id, self.tool_id = subject_id, tool_id
        self._work, self._max_result_bytes = work, max_result_bytes
        asker = ASKERS_CONTEXT.get()
        self._context = asker.copy() if asker is not None else copy_context()
        self.tool_run = enter_tool(self._context)
        self._lock = Lock()
        self._is_given_up = False
        self.has_begun = self.has_ended = False
        self._outcome: ToolOutcome | None = None
        self._interrupt: BaseException | None = None

    def with_cost(self, outcome: ToolOutcome) -> ToolOutcome:
        """The outcome with the cost of the turns that the tool ran."""
        cost = self.tool_run.cost
        return outcome if cost is None else replace(outcome, nested_cost=cost)

    async def run_async(self) -> ToolOutcome:
        """Runs a coroutine function and returns its outcome."""
        try:
            async with anyio.create_task_group() as own:
                self._context.run(own.start_soon, self._finish)
        except BaseExceptionGroup as group:  # the task ended badly, for example inside a task group that it never left
            if is_scope_cancelled():
                raise
            self._outcome = self._outcome or failure(group)
        if self._interrupt is not None:
            raise self._interrupt
        return self._outcome or ToolOutcome(error="the tool's task was cancelled by something other than the turn")

    async def _finish(self) -> None:
        try:
            self._outcome = outcome_of(await cast(Awaitable[object], self._work()), self._max_result_bytes)
        except BaseException as error:  # any error of a tool is its outcome, for the model
            if _is_interrupt(error):
                self._interrupt = error  # raised here, it would end the event loop at once
            elif is_scope_cancelled():
                raise
            else:
                self._outcome = failure(error)

    def run(self) -> ToolOutcome:
        """Runs a synchronous function in the worker thread and returns its outcome. Does nothing after the caller gave up."""
        with self._lock:
            if self._is_given_up:
                return ToolOutcome(error="not started")
            self.has_begun = True
        thread = current_thread()
        idle_name, thread.name = thread.name, f"tool {self.tool_id!r}"  # whoever looks for what still runs finds it
        try:
            return self._context.run(lambda: outcome_of(self._work(), self._max_result_bytes))
        except BaseException as error:  # noqa: BLE001 - nobody interrupts a thread
            return failure(error)
        finally:
            thread.name = idle_name
            self.has_ended = True

    def is_left_behind(self) -> bool:
        """Gives up the job and returns whether its function still runs. A job that has not begun never starts afterwards."""
        with self._lock:
            self._is_given_up = True
            return self.has_begun and not self.has_ended


def _is_interrupt(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def _as_tool(given: RunnableTool | Callable[..., object]) -> RunnableTool:
    return cast(RunnableTool, given) if hasattr(given, "tool_id") else Tool(given)


def _late(found: RunnableTool, limit_s: float, *, started: bool) -> str:
    within = f"within its time limit of {limit_s:g} s or the turn's deadline"
    if not started:
        return f"tool {found.tool_id!r} was not started: no thread was free for it {within}"
    what = "was stopped" if found.is_async else "may still be running, but nobody waits for it any longer"
    effect = "" if found.is_read_only else " Its effect may or may not have happened: check before you repeat it."
    return f"tool {found.tool_id!r} did not end {within}; it {what}.{effect}"
