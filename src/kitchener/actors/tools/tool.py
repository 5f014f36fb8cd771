"""Turns a function into a tool that a model may call: its name, its description, its arguments and its limits.

`schema.py` reads the function's signature, and `registry.py` runs the tool. Explained in `docs/tools.md`.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial, update_wrapper
from typing import Any, Final, Generic, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from pydantic import ValidationError

from kitchener.actors.tools.progress_queue import last_of
from kitchener.actors.tools.schema import code_of, read_signature, summary
from kitchener.config import ToolLimits
from kitchener.criteria import criterion_problem
from kitchener.errors import ToolError
from kitchener.plain_names import quoted
from kitchener.records.prompt import ToolSpec
from kitchener.records.tools.runnable_tool import ToolSource, ToolTraits, function_source, function_traits
from kitchener.records.tools.tool_context import ToolContext

P = ParamSpec("P")
R = TypeVar("R")

_TOOL_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class DeclaredLimits(TypedDict, total=False):
    """Limits that the author of a tool sets, see `kitchener.config.ToolLimits`."""

    concurrency: int
    rate_per_minute: int
    max_result_bytes: int


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
        limits: how often it may run, and how large its results may be
        source: where its results come from
        traits: its author's statements about its effects
        policy_name: its name in rules of approval
        requires_approval: whether its author wants a person to approve each call
    """

    def __init__(  # noqa: PLR0913  as `tool`
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        read_only: bool = False,
        timeout_s: float | None = None,
        acceptance: Sequence[str] = (),
        closes_intent: bool = False,
        requires_approval: bool = False,
        trusted: bool = True,
        **limits: Unpack[DeclaredLimits],
    ) -> None:
        if not callable(function):
            found = type(function).__name__
            raise ToolError(f"a tool is {found}: expected a function; names of functions belong into the settings' `tools`")
        self.tool_id: str = name if name is not None else getattr(function, "__name__", "")
        if not _TOOL_ID.fullmatch(self.tool_id):
            raise ToolError(f"tool name {self.tool_id!r}: expected 1 to 64 letters, digits, '_', '.' or '-'; give name=…")
        if timeout_s is not None and not 0 < timeout_s < float("inf"):
            raise ToolError(f"tool {self.tool_id!r}: timeout_s: expected seconds above 0, found {timeout_s!r}")
        self.acceptance: tuple[str, ...] = _checked_criteria(self.tool_id, acceptance)
        self.limits: ToolLimits = _checked_limits(self.tool_id, limits)
        called = code_of(function)
        if inspect.isgeneratorfunction(called):
            raise ToolError(
                f"tool {self.tool_id!r}: is a generator; return a list, or make it `async def` to yield its progress"
            )
        docstring = inspect.getdoc(function) or ""
        self.description: str = summary(docstring) if description is None else description
        self.is_read_only: bool = read_only
        self.timeout_s: float | None = timeout_s
        self.closes_intent: bool = closes_intent
        self.policy_name: str = self.tool_id
        self.source: ToolSource = function_source(self.tool_id)
        self.traits: ToolTraits = function_traits(read_only=read_only, is_trusted=trusted)
        self.requires_approval: bool = requires_approval
        self._signature = read_signature(function, self.tool_id, ToolContext)
        self.parameters: Mapping[str, Any] = self._signature.parameters
        self._has_steps = inspect.isasyncgenfunction(called)
        self._is_async = self._has_steps or inspect.iscoroutinefunction(called)
        self._function = function
        update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function directly, without the registry's checks and limits."""
        return self._function(*args, **kwargs)

    def running(self, function: Callable[P, R]) -> "Tool[P, R]":
        """Returns this tool with another function of the same signature, such as a method of another instance."""
        found = copy(self)
        found._function = function
        return found

    @property
    def is_async(self) -> bool:
        """Whether the function runs on the event loop; otherwise it runs in a worker thread."""
        return self._is_async

    @property
    def spec(self) -> ToolSpec:
        """The tool's description for a model."""
        return ToolSpec(self.tool_id, self.description, self.parameters)

    def bind(self, arguments: Mapping[str, object]) -> dict[str, object] | str:
        """Returns the arguments, converted and completed by defaults, or a text that says what is wrong with them."""
        return self._signature.bind(self.tool_id, arguments)

    def prepared(self, bound: Mapping[str, object], context: ToolContext) -> Callable[[], object]:
        """Returns the function with its bound arguments, and with `context` if the function has a parameter for it.

        For an async generator, returns a coroutine function that runs the generator to its end.
        """
        injected = self._signature.injected
        given = bound if injected is None else {**bound, injected: context}
        run = partial(cast(Callable[..., Any], self._function), **given)
        return run if not self._has_steps else lambda: last_of(run(), context)


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
    requires_approval: bool = False,
    trusted: bool = True,
    **limits: Unpack[DeclaredLimits],
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(  # noqa: PLR0913  what an author may say of a tool; all by keyword
    function: Callable[..., object] | None = None,
    /,
    *,
    read_only: bool = False,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    acceptance: Sequence[str] = (),
    closes_intent: bool = False,
    requires_approval: bool = False,
    trusted: bool = True,
    **limits: Unpack[DeclaredLimits],
) -> Any:
    """Turns a function into a tool. Use the decorator with or without arguments.

    Args:
        read_only: True: the tool has no effects, so it may be repeated; False: its call is recorded durably before it runs
        name: the tool's name for the model; default: the function's name
        description: what the tool does; default: the docstring up to its first section
        timeout_s: longest run, seconds; default: the agent class's `tool_timeout_s`
        acceptance: criteria that the reply must meet if its turn runs the tool, such as `contains:EUR`
        closes_intent: True: a successful call reaches the goal of its turn's intent, which is closed after the reply
        requires_approval: True: each call waits for a person, unless a rule of `approval` says otherwise
        trusted: False: strangers wrote what it returns, such as a web page; the model sees it marked as untrusted data
        **limits: `concurrency`: most calls at a time; `rate_per_minute`: most calls that start within any minute;
            `max_result_bytes`: the largest result. The setting `tool_limits` overrides these

    Raises:
        ToolError: the name, a parameter, the timeout, a criterion or a limit is invalid
    """
    declare = partial(
        Tool,
        name=name,
        description=description,
        read_only=read_only,
        timeout_s=timeout_s,
        acceptance=acceptance,
        closes_intent=closes_intent,
        requires_approval=requires_approval,
        trusted=trusted,
        **limits,
    )
    return declare if function is None else declare(function)


def _checked_limits(tool_id: str, limits: Mapping[str, object]) -> ToolLimits:
    try:
        return ToolLimits.model_validate(limits, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise ToolError(f"tool {tool_id!r}: {name} = {quoted(limits.get(name))}: {first['msg']}") from None


def _checked_criteria(tool_id: str, acceptance: Sequence[str]) -> tuple[str, ...]:
    if isinstance(acceptance, str) or not all(isinstance(each, str) for each in acceptance):
        raise ToolError(f"tool {tool_id!r}: acceptance: expected a list of texts")
    for each in acceptance:
        problem = criterion_problem(each)
        if problem is not None:
            raise ToolError(f"tool {tool_id!r}: acceptance: {quoted(each)}: {problem}")
    return tuple(acceptance)
