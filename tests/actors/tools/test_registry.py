"""Tools: what a function's signature tells, and a registry that no tool can break. See docs/tools.md."""

import functools
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from kitchener.actors.tools.named_tools import load_tools
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.results import ToolOutcome, outcome_of
from kitchener.actors.tools.schema import parameter_docs, summary
from kitchener.actors.tools.tool import Tool, tool
from kitchener.actors.tools.tool_job import ToolJob
from kitchener.actors.tools.toolsets import NO_TOOLS
from kitchener.canonical import canonical_bytes, canonical_digest
from kitchener.errors import ToolError
from kitchener.records.tools.tool_context import ToolContext
from kitchener.records.tools.tool_question import ConfirmationRequired, ToolAnswer
from tests.actors.time_control import in_stopped_time, in_virtual_time, pass_time
from tests.shared.tool_calls import a_call


class Unit(StrEnum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


@tool(read_only=True, timeout_s=5)
def forecast(
    city: str,
    days: Annotated[int, Field(ge=1, le=10)] = 3,
    *,
    unit: Unit = Unit.CELSIUS,
    places: list[str] | None = None,
) -> str:
    """Tells the weather.

    Asks no service.

    Args:
        city: where; a name
            in any language
        days: how many days ahead
        unit (Unit): of the temperature
        absent: is no parameter

    Returns:
        a sentence
    """
    return f"{city}: sun for {days} days, {unit.value} {places}"


# Declaring


def test_a_tool_can_still_be_called() -> None:
    assert forecast("Rome", unit=Unit.KELVIN) == "Rome: sun for 3 days, kelvin None"
    assert (forecast.__doc__ or "").startswith("Tells the weather.")
    assert (forecast.is_read_only, forecast.timeout_s, forecast.is_async) == (True, 5, False)


def test_a_signature_becomes_a_schema_with_its_documentation() -> None:
    assert forecast.description == "Tells the weather.\n\nAsks no service."
    schema = dict(forecast.parameters)
    assert schema.pop("$defs")["Unit"]["enum"] == ["celsius", "kelvin"]
    assert schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["city"],
        "properties": {
            "city": {"type": "string", "description": "where; a name in any language"},
            "days": {
                "type": "integer",
                "minimum": 1,
                "maximum": 10,
                "default": 3,
                "description": "how many days ahead",
            },
            "unit": {"$ref": "#/$defs/Unit", "default": "celsius", "description": "of the temperature"},
            "places": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
        },
    }


def test_a_tool_with_effects_is_the_default() -> None:
    @tool
    def act() -> None:
        """Acts."""

    assert not act.is_read_only
    assert act.timeout_s is None
    assert act.parameters == {"type": "object", "properties": {}, "additionalProperties": False}


def test_names_and_descriptions_may_be_given() -> None:
    @tool(name="mail.send-2", description="Sends.")
    def anything() -> None:
        """Not shown."""

    assert (anything.tool_id, anything.description) == ("mail.send-2", "Sends.")


def test_a_field_description_goes_before_the_docstring() -> None:
    @tool
    def look(at: Annotated[str, Field(description="the thing")]) -> None:
        """Looks.

        Args:
            at: something else
        """

    assert look.parameters["properties"]["at"]["description"] == "the thing"


def test_a_parameter_may_be_called_like_a_part_of_a_schema() -> None:
    @tool
    def name_it(title: str, self_: int, schema: str, json: bool) -> list[Any]:
        """Names."""
        return [title, self_, schema, json]

    assert list(name_it.parameters["properties"]) == ["title", "self_", "schema", "json"]
    assert name_it.bind({"title": "a", "self_": 1, "schema": "b", "json": True}) == {
        "title": "a",
        "self_": 1,
        "schema": "b",
        "json": True,
    }


def test_docstrings_without_sections_are_all_summary() -> None:
    assert summary("One.\n\nTwo: three.") == "One.\n\nTwo: three."
    assert summary("") == ""
    assert summary("\n    Says.\n\n    Raises:\n        X: y\n    ") == "Says."


def test_parameter_docs_of_several_lines_and_types() -> None:
    found = parameter_docs(
        """Does.

        Args:
            a (int, optional): first
                goes on: here
            *rest: the others
            b:
                on its own line

        Returns:
            c: not a parameter
        """
    )
    assert found == {"a": "first goes on: here", "rest": "the others", "b": "on its own line"}


def no_type(a) -> None:  # type: ignore[no-untyped-def]
    """Has a parameter without a type."""


def starred(*names: str) -> None:
    """Takes any number."""


def keyworded(**names: str) -> None:
    """Takes any names."""


def positional(a: int, /) -> None:
    """Takes it by position."""


def unknown_type(a: "Nowhere") -> None:  # type: ignore[name-defined] # noqa: F821
    """Has a type that does not exist."""


def not_json(a: threading.Lock) -> None:
    """Has a type without JSON form."""


def callable_type(a: Callable[[], int]) -> None:
    """Has a type that has a validator, but no schema."""


def two_calls(a: ToolContext, b: ToolContext) -> None:
    """Wants the call twice."""


class Garden:
    def water(self, bed: str) -> str:
        """Waters a bed."""
        return bed


def generator() -> Iterator[int]:
    """Gives one by one."""
    yield 1


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (no_type, r"'no_type': parameter 'a' has no type; annotate it"),
        (starred, r"'starred': parameter 'names' is variadic positional"),
        (keyworded, r"'keyworded': parameter 'names' is variadic keyword"),
        (positional, r"'positional': parameter 'a' is positional-only"),
        (unknown_type, r"'unknown_type': its signature cannot be read: name 'Nowhere' is not defined"),
        (not_json, r"'not_json': a parameter has a type that JSON cannot give"),
        (callable_type, r"'callable_type': a parameter has a type that JSON cannot give"),
        (two_calls, r"'two_calls': only one parameter may be a ToolContext, found \['a', 'b'\]"),
        (generator, r"'generator': is a generator; return a list"),
        (Garden.water, r"'water': is a method without its object; give that of an object, such as `garden.water`"),
        (lambda: None, r"tool name '<lambda>': expected 1 to 64 letters, digits"),
        (functools.partial(forecast, "Rome"), r"tool name '': expected"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_when_declared(function: Callable[..., Any], problem: str) -> None:
    with pytest.raises(ToolError, match=problem):
        tool(function)


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 65, "a/b"])
def test_names_follow_a_grammar(name: str) -> None:
    with pytest.raises(ToolError, match="expected 1 to 64 letters"):
        tool(name=name)(starred)


@pytest.mark.parametrize("given", [3, "my_bot.tools:list_packages", None])
def test_what_is_no_function_is_no_tool(given: Any) -> None:
    with pytest.raises(ToolError, match=rf"a tool is {type(given).__name__}: expected a function; names of functions belong"):
        ToolRegistry([given])


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("inf"), float("nan")])
def test_timeouts_are_positive_and_finite(timeout_s: float) -> None:
    with pytest.raises(ToolError, match="timeout_s: expected seconds above 0"):
        tool(timeout_s=timeout_s)(two)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ToolError, match="two tools are called 'forecast'"):
        ToolRegistry([forecast, tool(name="forecast")(two)])


def two() -> int:
    """Gives two."""
    return 2


# Offering


def test_specs_are_made_once_per_combination_in_the_order_allowed() -> None:
    registry = ToolRegistry([forecast, two])
    specs = registry.toolset(("two", "forecast", "nowhere", "two")).specs
    assert [spec.tool_id for spec in specs] == ["two", "forecast"]
    assert registry.toolset(("two", "forecast", "nowhere", "two")).specs is specs
    assert registry.tool_ids == ("forecast", "two")
    assert (registry.is_read_only("forecast"), registry.is_read_only("two"), registry.is_read_only("x")) == (True, False, False)


def test_the_digest_of_a_toolset_covers_what_the_model_is_told() -> None:
    registry = ToolRegistry([forecast, two])
    found = registry.toolset(("two",))
    told = [{"tool_id": "two", "description": "Gives two.", "parameters": dict(registry.toolset(("two",)).specs[0].parameters)}]
    assert found.digest == canonical_digest(told)
    assert registry.toolset(()) is NO_TOOLS
    assert NO_TOOLS.digest == canonical_digest([])


# Arguments


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "city: is required, but missing"),
        ({"city": 3}, "city: Input should be a valid string, found 3"),
        ({"city": "x", "days": 11}, "days: Input should be less than or equal to 10, found 11"),
        ({"city": "x", "days": "soon"}, "days: Input should be a valid integer, unable to parse .* found 'soon'"),
        ({"city": "x", "unit": "feet"}, "unit: Input should be 'celsius' or 'kelvin', found 'feet'"),
        ({"city": "x", "places": [1]}, r"places.0: Input should be a valid string, found 1"),
        ({"city": "x", "town": 1}, "town: there is no such argument"),
        ({"city": "x" * 3, "days": "y" * 500}, "found 'y{119}…$"),
        ({"city": None, "days": 0}, "city: .*; days: .*"),
    ],
)
def test_wrong_arguments_are_named_with_value_and_expectation(arguments: Mapping[str, Any], problem: str) -> None:
    found = ToolRegistry([forecast]).validate("forecast", arguments)
    assert isinstance(found, str)
    assert found.startswith("tool 'forecast' cannot take these arguments: ")
    assert re.search(problem, found), found


def test_arguments_are_converted_and_completed() -> None:
    found = ToolRegistry([forecast]).validate("forecast", {"city": "Rome", "days": "2", "unit": "kelvin"})
    assert found == {"city": "Rome", "days": 2, "unit": Unit.KELVIN, "places": None}


def test_an_unknown_tool_is_named_with_those_there_are() -> None:
    assert ToolRegistry([forecast, two]).validate("x", {}) == "there is no tool 'x'; there are ['forecast', 'two']"


# Running


async def run(declared: Callable[..., Any], arguments: Mapping[str, Any] | None = None, **limits: Any) -> ToolOutcome:
    registry = ToolRegistry([declared], **limits)
    with anyio.fail_after(10):
        return await registry.run(registry.tool_ids[0], arguments or {}, a_call())


async def test_a_call_that_was_not_checked_before_is_checked_when_it_runs() -> None:
    """As in `docs/tools.md`, where a test of a program runs a tool."""

    @tool(read_only=True)
    async def first(limit: int = 1) -> list[int]:
        """The first numbers."""
        return list(range(limit))

    registry = ToolRegistry([first])
    assert (await registry.run("first", {"limit": "2"}, a_call())).result == [0, 1]
    assert "cannot take these arguments: limit: " in str((await registry.run("first", {"limit": "many"}, a_call())).error)
    assert "there is no tool 'second'" in str((await registry.run("second", {}, a_call())).error)


async def test_synchronous_tools_run_in_a_thread_and_inherit_the_context() -> None:
    chain: ContextVar[str] = ContextVar("chain")
    chain.set("SES-1")

    def where() -> list[Any]:
        """Tells."""
        return [threading.get_ident(), chain.get()]

    async def here() -> list[Any]:
        """Tells."""
        return [threading.get_ident(), chain.get()]

    there, same = await run(where), await run(here)
    assert there.result[0] != threading.get_ident()
    assert same.result[0] == threading.get_ident()
    assert there.result[1] == same.result[1] == "SES-1"


async def test_a_tool_gets_the_call_it_runs_for_and_the_model_does_not_see_it() -> None:
    @tool
    async def remember(text: str, *, call: ToolContext) -> list[str]:
        """Remembers."""
        return [text, call.subject_id, call.idempotency_key]

    assert list(remember.parameters["properties"]) == ["text"]
    assert await run(remember, {"text": "x"}) == ToolOutcome(result=["x", "ada", "TK-1"])
    refused = await run(remember, {"text": "x", "call": {}})
    assert refused.error == "tool 'remember' cannot take these arguments: call: there is no such argument"


async def test_objects_with_a_call_method_may_be_tools() -> None:
    class Counter:
        """Counts."""

        def __init__(self) -> None:
            self.count = 0

        async def __call__(self, by: int) -> int:
            self.count += by
            return self.count

    counter = Tool(Counter(), name="count")
    assert counter.is_async
    assert await run(counter, {"by": 2}) == ToolOutcome(result=2)


async def test_bound_methods_may_be_tools() -> None:
    class Shop:
        def __init__(self) -> None:
            self.sold: list[str] = []

        def sell(self, what: str) -> int:
            """Sells."""
            self.sold.append(what)
            return len(self.sold)

    assert await run(Shop().sell, {"what": "tea"}) == ToolOutcome(result=1)


class Odd(Exception):
    def __str__(self) -> str:
        return "odd \ud800" + "x" * 5_000


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no such city"), "ValueError: no such city"),
        (SystemExit(3), "SystemExit: 3"),
        (TimeoutError(), "TimeoutError: "),
        (LookupError(), "LookupError: "),
        (ExceptionGroup("one", [ExceptionGroup("inner", [ValueError("a")])]), "ValueError: a"),
        (
            BaseExceptionGroup("two", [ExceptionGroup("x", [ValueError("a")]), SystemExit(3)]),
            "BaseExceptionGroup: two (2 sub-exceptions): ValueError: a; SystemExit: 3",
        ),
        (ExceptionGroup("many", [Odd()] * 100), "ExceptionGroup: many (100 sub-exceptions): Odd: odd \\ud800x"),
        (Odd(), "Odd: odd \\ud800x"),
    ],
)
async def test_what_a_tool_raises_is_its_outcome(error: BaseException, told: str, *, is_async: bool) -> None:
    def fail_here() -> None:
        """Fails."""
        raise error

    async def fail_there() -> None:
        """Fails."""
        raise error

    found = await run(fail_there if is_async else fail_here)
    assert found.error is not None
    assert found.error.startswith(told)
    assert len(found.error) < 2_100
    assert "Traceback" not in found.error
    found.error.encode()


async def test_what_a_task_group_of_a_tool_raises_is_told_by_its_own_words() -> None:
    """A task group wraps each error in a group whose text names none of them."""

    async def there() -> None:
        """Fails beside another task."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            raise ToolError("no such city: give the name of a capital")

    assert (await run(there)).error == "ToolError: no such city: give the name of a capital"


async def _never_leaves_a_scope() -> None:
    """Ends by the cancellation of a scope of its own that it never leaves."""
    scope = anyio.CancelScope()
    scope.__enter__()
    scope.cancel()
    await anyio.sleep_forever()


async def _never_leaves_a_task_group() -> None:
    """Waits in a task group of its own that it never leaves, while another task of the group fails."""

    async def fail() -> None:
        raise ValueError("no")

    tasks = anyio.create_task_group()
    await tasks.__aenter__()
    tasks.start_soon(fail)
    await anyio.sleep_forever()


@pytest.mark.parametrize("broken", [_never_leaves_a_scope, _never_leaves_a_task_group])
async def test_a_tool_that_fails_at_once_is_not_said_to_have_run_out_of_time(broken: Callable[[], Any]) -> None:
    """The event loop reports what such a tool left behind as an error of its task, which cancels the task's group."""
    found = await run(broken, timeout_s=1_000)
    assert found.error is not None
    assert found.error.startswith("RuntimeError: ")
    assert "time limit" not in found.error


async def test_a_question_from_a_task_group_of_a_tool_is_asked() -> None:
    async def there() -> None:
        """Asks beside another task."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            raise ConfirmationRequired("Really?")

    assert (await run(there)).question is not None


async def test_an_interrupt_from_the_keyboard_passes_through() -> None:
    async def there() -> None:
        """Is interrupted."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await run(there)


async def test_an_interrupt_in_a_thread_is_the_tools_own_doing() -> None:
    def here() -> None:
        """No keyboard interrupts a thread."""
        raise KeyboardInterrupt

    assert (await run(here)).error == "KeyboardInterrupt: "


async def test_an_async_tool_that_hangs_is_stopped_at_its_limit() -> None:
    ended = anyio.Event()

    @tool(read_only=True)
    async def hang() -> None:
        """Hangs."""
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    found = await run(hang, timeout_s=0.01)
    assert found.error == "tool 'hang' did not end within its time limit of 0.01 s or the turn's deadline; it was stopped."
    assert ended.is_set()


@in_virtual_time
@pytest.mark.parametrize("has_printer", [False, True])
async def test_a_tool_that_says_what_it_waits_for_was_not_started_when_its_time_runs_out(has_printer: bool) -> None:
    @tool(read_only=False)
    async def print_page(context: ToolContext) -> None:
        """Prints."""
        context.wait.begin(lambda: "no printer was free")
        await anyio.lowlevel.checkpoint()
        if has_printer:
            context.wait.end()
        await anyio.sleep_forever()

    found = await run(print_page, timeout_s=0.1)
    assert found.error is not None
    if has_printer:
        assert "Its effect may or may not have happened" in found.error
    else:
        assert found.error.startswith("tool 'print_page' was not started: no printer was free within its time limit of 0.1 s")


async def test_a_tools_own_limit_goes_before_the_registrys() -> None:
    @tool(timeout_s=0.01)
    async def hang() -> None:
        """Hangs."""
        await anyio.sleep_forever()

    found = await run(hang, timeout_s=1_000)
    assert found.error is not None
    assert "time limit of 0.01 s" in found.error
    assert found.error.endswith("Its effect may or may not have happened: check before you repeat it.")


async def test_the_deadline_of_the_call_bounds_every_tool() -> None:
    @tool
    async def hang() -> None:
        """Hangs."""
        await anyio.sleep_forever()

    registry = ToolRegistry([hang], timeout_s=1_000)
    with anyio.fail_after(10):
        found = await registry.run("hang", {}, a_call(deadline_in=-1.0))
    assert found.error is not None
    assert "the turn's deadline" in found.error


async def test_cancellation_passes_through_a_tool() -> None:
    begun = anyio.Event()

    @tool
    async def hang() -> None:
        """Hangs."""
        begun.set()
        await anyio.sleep_forever()

    registry = ToolRegistry([hang])
    outcomes: list[ToolOutcome] = []

    async def work() -> None:
        outcomes.append(await registry.run("hang", {}, a_call()))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await begun.wait()
            tasks.cancel_scope.cancel()
    assert outcomes == []


class Stuck:
    """A synchronous tool that runs until it is let go."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()
        self.runs = 0

    def stick(self) -> str:
        """Sticks."""
        self.runs += 1
        self.begun.set()
        assert self.released.wait(20)
        return "free"


async def abandon(registry: ToolRegistry, stuck: Stuck) -> None:
    """Starts the tool and cancels its caller once it runs."""
    stuck.begun.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(registry.run, "stick", {}, a_call())
        await anyio.to_thread.run_sync(stuck.begun.wait, 10)
        tasks.cancel_scope.cancel()


def _raises() -> str:
    raise RuntimeError("no reason")


@in_virtual_time
@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (lambda: "no\nprinter" + "!" * 1_000_000, "no printer!!!"),
        (lambda: "half \ud800", "half"),
        ("a text", None),
        (lambda: 7, None),
        (_raises, None),
    ],
)
async def test_what_a_tool_says_of_its_wait_cannot_break_a_turn(reason: Any, told: str | None) -> None:
    @tool
    async def print_page(context: ToolContext) -> None:
        """Prints."""
        context.wait.begin(reason)
        await anyio.sleep_forever()

    found = await run(print_page, timeout_s=0.1)
    assert found.error is not None
    assert len(found.error) < 600
    found.error.encode()
    expected = "Its effect may or may not have happened" if told is None else f"was not started: {told}"
    assert expected in found.error


@in_virtual_time
async def test_a_tool_that_has_asked_a_person_has_begun_whatever_it_waits_for() -> None:
    @tool
    async def print_page(context: ToolContext) -> None:
        """Prints."""
        context.wait.begin(lambda: "no printer was free")
        await anyio.sleep_forever()

    registry = ToolRegistry([print_page], timeout_s=0.1)
    found = await registry.run("print_page", {}, a_call(answer=ToolAnswer(None, True)))
    assert "Its effect may or may not have happened" in (found.error or "")


@in_stopped_time
async def test_a_synchronous_tool_that_hangs_is_left_behind_and_the_error_says_so() -> None:
    stuck, outcomes = Stuck(), list[ToolOutcome]()

    def print_page(context: ToolContext) -> str:
        """Prints. Nobody can stop it, so what it waits for does not tell that nothing will be done."""
        context.wait.begin(lambda: "no printer was free")
        return stuck.stick()

    async def hang() -> None:
        outcomes.append(await run(print_page, timeout_s=7))

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang)
            await anyio.to_thread.run_sync(stuck.begun.wait, 10)
            pass_time(7)
    finally:
        stuck.released.set()
    (found,) = outcomes
    assert stuck.runs == 1
    assert found.error is not None
    assert "it may still be running, but nobody waits for it any longer" in found.error
    assert "Its effect may or may not have happened" in found.error


async def test_threads_that_are_left_behind_are_bounded() -> None:
    stuck = Stuck()
    registry = ToolRegistry([stuck.stick], max_threads=2)
    try:
        with anyio.fail_after(20):
            await abandon(registry, stuck)
            await abandon(registry, stuck)
            refused = await registry.run("stick", {}, a_call())
    finally:
        stuck.released.set()
    assert stuck.runs == 2
    assert refused.error == "tool 'stick' was not started: 2 tools that ran out of time still occupy their threads"
    with anyio.fail_after(20):
        while (again := await registry.run("stick", {}, a_call())).error is not None:
            await anyio.lowlevel.checkpoint()
    assert again.result == "free"


async def test_a_tool_that_found_no_thread_in_time_never_runs() -> None:
    stuck, ran = Stuck(), threading.Event()

    def late() -> None:
        """Comes too late."""
        ran.set()

    registry = ToolRegistry([stuck.stick, late], max_threads=1)
    outcomes: list[ToolOutcome] = []

    async def occupy() -> None:
        outcomes.append(await registry.run("stick", {}, a_call()))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(occupy)
            await anyio.to_thread.run_sync(stuck.begun.wait, 10)
            found = await registry.run("late", {}, a_call(deadline_in=0.05))
            stuck.released.set()
    assert outcomes == [ToolOutcome(result="free")]
    assert found.error is not None
    assert found.error.startswith("tool 'late' was not started: no thread was free for it")
    assert not ran.is_set()


@pytest.mark.soak
def test_a_job_given_up_before_its_thread_begins_never_runs() -> None:
    """Between getting a thread and beginning in it lies a moment that no test can hit through the registry."""
    ran = threading.Event()
    job = ToolJob(ran.set, 1_000, "ada", "tool")
    assert not job.is_left_behind()
    assert job.run() == ToolOutcome(error="not started")
    assert not ran.is_set()


def test_one_registry_serves_several_event_loops() -> None:
    """Programs call `anyio.run` more than once, and a registry often stands at the top of a module."""
    registry = ToolRegistry([two])

    async def once() -> ToolOutcome:
        return await registry.run("two", {}, a_call())

    for backend in ("asyncio", "trio", "asyncio"):
        assert anyio.run(once, backend=backend) == ToolOutcome(result=2)


# Results


class Place(BaseModel):
    name: str
    since: datetime


@dataclass
class Pair:
    left: int
    right: tuple[int, ...]


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (Place(name="x", since=datetime(2026, 1, 1, tzinfo=UTC)), {"name": "x", "since": "2026-01-01T00:00:00Z"}),
        (Pair(1, (2, 3)), {"left": 1, "right": [2, 3]}),
        ({1: Path("a")}, {"1": "a"}),
        (None, None),
        (b"abc", "abc"),
        (Unit.KELVIN, "kelvin"),
    ],
)
def test_results_become_json(value: Any, result: Any) -> None:
    assert outcome_of(value, 1_000) == ToolOutcome(result=result)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (object(), "Unable to serialize unknown type"),
        (float("nan"), "form: result: nan has no JSON form"),
        ({"n": [0, 2**60]}, "form: result.n[1]: integer 1152921504606846976 is outside"),
        (["\ud800"], "form: result[0]: text holds a lone surrogate"),
        (b"\xff", "invalid utf-8"),
        (deep(62), "nested deeper than 64 levels"),
    ],
)
def test_results_without_json_form_are_errors(value: Any, problem: str) -> None:
    found = outcome_of(value, 1_000)
    assert found.error is not None
    assert found.error.startswith("the tool has run, but its result has no JSON form: ")
    assert problem in found.error


async def test_a_function_that_gives_a_coroutine_is_told_to_be_async() -> None:
    async def answer() -> int:
        return 1

    def wrap() -> Any:
        """Gives a coroutine."""
        return answer()

    found = await run(wrap)
    assert found.error is not None
    assert "declare its function with `async def`" in found.error


@given(
    value=st.recursive(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=80) | st.integers(-9, 9),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.sampled_from('a"\u0001é'), max_size=3), inner),
        max_leaves=8,
    ),
    limit=st.integers(80, 300),
)
def test_results_are_cut_to_their_limit_and_say_so(value: Any, limit: int) -> None:
    found = outcome_of(value, limit)
    size = len(canonical_bytes(value))
    assert len(canonical_bytes(found.result)) <= limit
    if size <= limit:
        assert found.result == value
    else:
        text = value if isinstance(value, str) else canonical_bytes(value).decode()
        kept, _, marker = found.result.partition(" … [cut: ")
        assert text.startswith(kept)
        assert marker == f"the result had {size} bytes, the limit is {limit}]"


_MIB = "x" * 1_048_576


@dataclass(eq=False)
class _Heading(str):
    """A text that has the form of an object in JSON, because it is a dataclass, too."""

    parts: list[Any]

    def __new__(cls, parts: list[Any]) -> "_Heading":
        return str.__new__(cls, "a heading")


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ([0] * 99_999, True),  # the list is a value, too
        ([0] * 100_000, False),
        ([[0] * 998] * 100, True),  # small in memory, because its parts are shared
        ([[0] * 999] * 100, False),
        ([_MIB] * 65, False),
        (_Heading([[0] * 999] * 100), False),
    ],
)
def test_a_result_of_too_many_values_or_characters_is_an_error(value: Any, fits: bool) -> None:
    found = outcome_of(value, 1_000)
    too_large = "the tool has run, but its result has more than 100,000 values or 67,108,864 characters; return less"
    assert found.error == (None if fits else too_large)


def test_a_cut_keeps_as_much_as_fits() -> None:
    found = outcome_of("x" * 10_000, 1_000)
    assert len(canonical_bytes(found.result)) == 1_000
    quotes = outcome_of('"' * 10_000, 1_000)
    assert 900 <= len(canonical_bytes(quotes.result)) <= 1_000


# Loading by name


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("my_bot_tools")
    made.__dict__.update(forecast=forecast, two=two, number=3)
    monkeypatch.setitem(sys.modules, "my_bot_tools", made)
    return made


def test_tools_load_by_name(module: ModuleType) -> None:
    loaded = load_tools(["my_bot_tools:forecast", "my_bot_tools:two"])
    assert loaded[0] is forecast
    assert (loaded[1].tool_id, loaded[1].is_read_only) == ("two", False)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("forecast", "expected module:attribute, such as"),
        (":forecast", "expected module:attribute"),
        ("my_bot_tools:", "expected module:attribute"),
        ("my_bot_nothing:x", "module 'my_bot_nothing' cannot be imported"),
        ("my_bot_tools:absent", "'my_bot_tools' has no attribute 'absent'"),
        ("my_bot_tools:number", "expected a tool or a function, found int"),
    ],
)
def test_names_that_give_no_tool_are_errors(module: ModuleType, name: str, problem: str) -> None:
    with pytest.raises(ToolError, match=problem):
        load_tools([name])


def test_modes_of_literal_types_are_checked() -> None:
    @tool
    def pick(mode: Literal["a", "b"]) -> str:
        """Picks."""
        return mode

    assert pick.bind({"mode": "a"}) == {"mode": "a"}
    assert pick.bind({"mode": "c"}) == ("tool 'pick' cannot take these arguments: mode: Input should be 'a' or 'b', found 'c'")
