"""Tools: functions that a model may ask for, and the registry that runs them so that none can break a turn.

A tool that raises, hangs, returns too much or is asked for with wrong arguments gives an error text for the model to react
to. Neighbours: `executor.py` above decides when a tool runs and records it; `schema.py` reads signatures. It knows no
ledger and no model. Explained in `docs/tools.md`.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial, update_wrapper
from threading import Lock, current_thread
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from kitchener.actors.mailbox.calling_chain import enter_tool
from kitchener.actors.mailbox.mailbox import ASKERS_CONTEXT
from kitchener.actors.tools.results import ToolOutcome, failure, outcome_of
from kitchener.actors.tools.schema import code_of, read_signature, summary
from kitchener.cancellation import is_scope_cancelled
from kitchener.canonical import canonical_digest
from kitchener.errors import ToolError
from kitchener.plain_names import counted, is_plain_name
from kitchener.records.prompt import ToolSpec

P = ParamSpec("P")
R = TypeVar("R")

_TOOL_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """What a tool may know of the call it runs for. A parameter of this type is filled in and not shown to the model."""

    idempotency_key: str
    """The same for the same turn, position, tool and arguments: hand it to services that take one."""
    session_id: str
    """The session."""
    subject_id: str
    """Whose conversation it is."""
    turn_id: str
    """The turn."""
    wo_id: str
    """The work order."""
    deadline: float
    """On the event loop's clock, seconds: nobody waits for the result after it."""


class Tool(Generic[P, R]):
    """A function with what a model and the registry need to know of it. Calling it calls the function.

    Attributes:
        tool_id: its name, `[A-Za-z0-9_.-]{1,64}`
        description: what it does, for the model
        parameters: JSON schema of its arguments
        is_read_only: whether it has no effect, so that it may run again and needs no durable record before it starts
        timeout_s: its longest run, seconds; None: the registry's
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        read_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        self.tool_id = name if name is not None else getattr(function, "__name__", "")
        if not _TOOL_ID.fullmatch(self.tool_id):
            raise ToolError(f"tool name {self.tool_id!r}: expected 1 to 64 letters, digits, '_', '.' or '-'; give name=…")
        if timeout_s is not None and not 0 < timeout_s < float("inf"):
            raise ToolError(f"tool {self.tool_id!r}: timeout_s: expected seconds above 0, found {timeout_s!r}")
        called = code_of(function)
        if inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
            raise ToolError(f"tool {self.tool_id!r}: is a generator; return a list instead")
        docstring = inspect.getdoc(function) or ""
        self.description = summary(docstring) if description is None else description
        self.is_read_only, self.timeout_s = read_only, timeout_s
        self._signature = read_signature(function, self.tool_id, ToolCall)
        self.parameters = self._signature.parameters
        self._is_async = inspect.iscoroutinefunction(called)
        self._function = function
        update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function itself, as if it were no tool."""
        return self._function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Whether it runs on the event loop; otherwise it runs in a worker thread."""
        return self._is_async

    @property
    def spec(self) -> ToolSpec:
        """The tool as a model sees it."""
        return ToolSpec(self.tool_id, self.description, self.parameters)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any] | str:
        """The arguments converted and completed, or what is wrong with them."""
        return self._signature.bind(self.tool_id, arguments)

    def prepared(self, bound: Mapping[str, Any], call: ToolCall) -> Callable[[], Any]:
        """The function with its bound arguments and, where it asks for it, the call."""
        injected = self._signature.injected
        return partial(self._function, **(bound if injected is None else {**bound, injected: call}))


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    read_only: bool = False,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    read_only: bool = False,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Makes a function a tool; use it bare or with arguments.

    Args:
        read_only: it changes nothing anywhere, so it may be repeated; anything else is recorded durably before it runs
        name: what the model calls it; default: the function's name
        description: what it does; default: the docstring up to its first section
        timeout_s: longest run, seconds; default: the agent class's `tool_timeout_s`

    Raises:
        ToolError: the name, a parameter or the timeout cannot be right
    """
    declare = partial(Tool, name=name, description=description, read_only=read_only, timeout_s=timeout_s)
    return declare if function is None else declare(function)


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools offered in one call, and the digest of what the model is told of them."""

    specs: tuple[ToolSpec, ...]
    digest: str


def _toolset(tools: Iterable[Tool[..., Any]]) -> Toolset:
    specs = tuple(tool.spec for tool in tools)
    shown = [{"tool_id": spec.tool_id, "description": spec.description, "parameters": dict(spec.parameters)} for spec in specs]
    return Toolset(specs, canonical_digest(shown, at="tools"))


NO_TOOLS: Final = _toolset(())
"""Nothing is offered."""


class ToolRegistry:
    """The tools there are. It checks arguments and runs tools within time, size and thread limits.

    Args:
        tools: tools, or plain functions that become tools with effects
        timeout_s: longest run of a tool that sets no own limit, seconds
        max_result_bytes: largest result kept, bytes of its JSON; a longer one is cut and says so
        max_threads: synchronous tools that run at the same time; others wait, within their own time limit. One subject leaves
            an eighth of them to others
        builtin: tools that run where a work order allows them by name, and are listed nowhere

    Raises:
        ToolError: two tools have one name
    """

    def __init__(
        self,
        tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
        *,
        timeout_s: float = 30.0,
        max_result_bytes: int = 65_536,
        max_threads: int = 32,
        builtin: Iterable[Tool[..., Any]] = (),
    ) -> None:
        self._tools: dict[str, Tool[..., Any]] = {}
        for each in tools:
            declared = each if isinstance(each, Tool) else Tool(each)
            if declared.tool_id in self._tools:
                raise ToolError(f"two tools are called {declared.tool_id!r}; give one of them another name=…")
            self._tools[declared.tool_id] = declared
        self._listed = tuple(self._tools)
        for each in builtin:
            if each.tool_id in self._tools:
                raise ToolError(f"tool {each.tool_id!r} has the name of a built-in one; give it another name=…")
            self._tools[each.tool_id] = each
        self._timeout_s, self._max_result_bytes, self._max_threads = timeout_s, max_result_bytes, max_threads
        # Each event loop has its own, so that one registry serves several runs.
        self._threads = RunVar[anyio.CapacityLimiter]("kitchener tool threads")
        self._share = max_threads - max_threads // 8
        self._threads_of: dict[tuple[object, str], anyio.CapacityLimiter] = {}
        """The share of each subject who uses threads now, by event loop."""
        self._left_behind: set[_Job] = set()
        self._toolsets: dict[tuple[str, ...], Toolset] = {(): NO_TOOLS}

    @property
    def tool_ids(self) -> tuple[str, ...]:
        """The ids of all tools but the built-in ones, in the order given."""
        return self._listed

    def is_read_only(self, tool_id: str) -> bool:
        """Whether this tool exists and has no effect."""
        found = self._tools.get(tool_id)
        return found is not None and found.is_read_only

    def toolset(self, allowed: tuple[str, ...]) -> Toolset:
        """The allowed tools that exist, in the order allowed; made once per combination."""
        found = self._toolsets.get(allowed)
        if found is None:
            found = _toolset(self._tools[tool_id] for tool_id in dict.fromkeys(allowed) if tool_id in self._tools)
            self._toolsets[allowed] = found
        return found

    def specs(self, allowed: tuple[str, ...]) -> tuple[ToolSpec, ...]:
        """The allowed tools that exist, as a model sees them."""
        return self.toolset(allowed).specs

    def validate(self, tool_id: str, arguments: Mapping[str, Any]) -> dict[str, Any] | str:
        """The arguments as the tool takes them, or one line of text that names argument, value and expectation."""
        found = self._tools.get(tool_id)
        if found is None:
            return f"there is no tool {tool_id!r}; there are {sorted(self._tools)}"
        return found.bind(arguments)

    async def run(self, tool_id: str, arguments: Mapping[str, Any], call: ToolCall) -> ToolOutcome:
        """What became of the tool: its result as JSON, or an error text. Returns by the tool's time limit or `call.deadline`.

        The caller's cancellation and a KeyboardInterrupt on the event loop pass through; a cancellation that is not the
        caller's, of a task that the tool waited for, is the tool's error. A synchronous tool cannot be stopped: past its
        limit its thread is left behind and the error says so; beyond `max_threads` such threads no further one is started.
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
                    return await job.run_async()
                return await self._run_in_thread(job, found.tool_id)
        finally:
            job.tool_run.has_ended = True  # what it has left behind is a caller of its own from now on
        return ToolOutcome(error=_late(found, limit_s, started=found.is_async or job.has_begun))

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
        """Why no further thread is started for this subject, of whose tools so many run, this one among them; or None."""
        self._left_behind = {each for each in self._left_behind if not each.has_ended}
        stuck = len(self._left_behind)
        held = running + sum(each.subject_id == subject_id for each in self._left_behind)
        if stuck < self._max_threads and (held <= self._share or self._share == self._max_threads):
            return None
        return f"tool {tool_id!r} was not started: {stuck} tools that ran out of time still occupy their threads"


class _Job:
    """One run of a tool, in a task of its own or in a thread that may be left behind.

    It runs with a copy of the asker's context variables, and what it does to them, or to its task, ends with it: a cancel
    scope or task group that it enters and never leaves, or its own cancellation, would else hit the next one's work order.
    """

    def __init__(self, work: Callable[[], Any], max_result_bytes: int, subject_id: str, tool_id: str) -> None:
        self.subject_id, self._tool_id = subject_id, tool_id
        self._work, self._max_result_bytes = work, max_result_bytes
        asker = ASKERS_CONTEXT.get()
        self._context = asker.copy() if asker is not None else copy_context()
        self.tool_run = enter_tool(self._context)
        self._lock = Lock()
        self._is_given_up = False
        self.has_begun = self.has_ended = False
        self._outcome: ToolOutcome | None = None
        self._interrupt: BaseException | None = None

    async def run_async(self) -> ToolOutcome:
        """The outcome of a coroutine function."""
        try:
            async with anyio.create_task_group() as own:
                self._context.run(own.start_soon, self._finish)
        except BaseExceptionGroup as group:  # the task could not end, as with a task group that was never left
            if is_scope_cancelled():
                raise
            self._outcome = self._outcome or failure(group)
        if self._interrupt is not None:
            raise self._interrupt
        return self._outcome or ToolOutcome(error="the tool's task was cancelled by something other than the turn")

    async def _finish(self) -> None:
        try:
            self._outcome = outcome_of(await self._work(), self._max_result_bytes)
        except BaseException as error:  # whatever a tool raises is its outcome, for the model to see
            if _is_interrupt(error):
                self._interrupt = error  # raised here, it would end the event loop at once
            elif is_scope_cancelled():
                raise
            else:
                self._outcome = failure(error)

    def run(self) -> ToolOutcome:
        """The outcome of a synchronous function; called in the thread. Does nothing once nobody waits for it."""
        with self._lock:
            if self._is_given_up:
                return ToolOutcome(error="not started")
            self.has_begun = True
        thread = current_thread()
        idle_name, thread.name = thread.name, f"tool {self._tool_id!r}"  # whoever looks for what still runs finds it
        try:
            return self._context.run(lambda: outcome_of(self._work(), self._max_result_bytes))
        except BaseException as error:  # noqa: BLE001 - nobody interrupts a thread
            return failure(error)
        finally:
            thread.name = idle_name
            self.has_ended = True

    def is_left_behind(self) -> bool:
        """Gives the job up unless it has ended: afterwards it runs only if it had begun, and then this is true."""
        with self._lock:
            self._is_given_up = True
            return self.has_begun and not self.has_ended


def _is_interrupt(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def load_tools(names: Iterable[str]) -> tuple[Tool[..., Any], ...]:
    """The tools that `module:attribute` names stand for. Imports modules: do it at start.

    Raises:
        ToolError: a name has another form, the module or attribute does not exist, or it is no tool and no function
    """
    return tuple(_load(name) for name in names)


def _load(name: str) -> Tool[..., Any]:
    module_name, colon, attribute = name.partition(":")
    is_plain = is_plain_name(name)  # otherwise it may be a secret in the wrong place, which no error quotes
    shown = repr(name) if is_plain else f"of {counted(len(name), 'character')}"
    if not (module_name and colon and attribute):
        raise ToolError(f"tool {shown}: expected module:attribute, such as my_bot.tools:list_packages")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        if not is_plain:
            raise ToolError(f"tool {shown}: its module cannot be imported") from None
        raise ToolError(f"tool {shown}: module {module_name!r} cannot be imported: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            absent = f"{module_name!r} has no attribute {attribute!r}" if is_plain else "its module has no such attribute"
            raise ToolError(f"tool {shown}: {absent}")
        found = getattr(found, part)
    if isinstance(found, Tool):
        return found
    if not callable(found):
        raise ToolError(f"tool {shown}: expected a tool or a function, found {type(found).__name__}")
    return Tool(found)


def _late(found: Tool[..., Any], limit_s: float, *, started: bool) -> str:
    within = f"within its time limit of {limit_s:g} s or the turn's deadline"
    if not started:
        return f"tool {found.tool_id!r} was not started: no thread was free for it {within}"
    what = "was stopped" if found.is_async else "may still be running, but nobody waits for it any longer"
    effect = "" if found.is_read_only else " Its effect may or may not have happened: check before you repeat it."
    return f"tool {found.tool_id!r} did not end {within}; it {what}.{effect}"
