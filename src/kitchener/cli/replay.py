"""`kitchener replay`: do recorded turns come out again as they were recorded? Takes no lock and changes nothing."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, Protocol, TypeVar

import anyio.to_thread
from cyclopts import Parameter

from kitchener.actors.tools.registry import load_tools
from kitchener.cli.exits import DIVERGED, OK
from kitchener.cli.options import Json, Options
from kitchener.cli.terminal.interrupt import run_to_end
from kitchener.cli.terminal.output import print_json, print_text
from kitchener.cli.terminal.progress import progress_bar
from kitchener.config import RuntimeConfig
from kitchener.errors import CallerError
from kitchener.replaying import ReplayReport, WhatIfReport, open_replays, open_what_if, summary_of, summary_text
from kitchener.runtime.ledger_paths import agent_classes, class_of, settings_of


class _Report(Protocol):
    def text(self) -> str: ...


R = TypeVar("R", bound=_Report)
Tools = Annotated[
    tuple[str, ...],
    Parameter(
        name="--tool", negative="", help="`module:attribute` of a tool that the program gave to `open_runtime`; not run."
    ),
]
_EVERYTHING = Options()


def replay(
    *,
    options: Options = _EVERYTHING,
    session: Annotated[str | None, Parameter(help="This session, whatever its agent class.")] = None,
    is_all: Annotated[bool, Parameter(name="--all", negative="", help="Every session of every agent class.")] = False,
    tools: Tools = (),
    same_policy: Annotated[
        bool,
        Parameter(negative="", help="Fail also where settings or a line of policy code differ and all decisions are the same."),
    ] = False,
    with_config: Annotated[
        Path | None,
        Parameter(help="Settings of another policy: tell what a model would have been shown under it, with no model call."),
    ] = None,
    json: Json = False,
) -> int:
    """Run recorded turns again, and say where they come out otherwise.

    Verifies the ledgers, then takes each turn through the same code with what models and tools said then, and compares every
    decision with the record. Exits with 0 if all are identical, with 5 at the first that is not, with 6 if a ledger is damaged.
    A session that was recorded under another policy is told; with --same-policy it exits with 5 as well.

    For example:

        kitchener replay --session SES-0a1b2c3d
        kitchener replay --all --json
        kitchener replay --all --same-policy
        kitchener replay --all --with-config other.toml
    """
    if (session is None) != is_all:
        raise CallerError("replay: expected either --session SES-… or --all")
    if with_config is not None:
        if same_policy:
            raise CallerError(
                "replay: --same-policy asks for the recorded policy and --with-config for another one; leave one out"
            )
        return run_to_end(partial(_what_if, options, session, tools, with_config, is_json=json))
    return run_to_end(partial(_replay, options, session, tools, same_policy=same_policy, is_json=json))


class _Work(NamedTuple, Generic[R]):
    """What is to be done with the sessions of an agent class."""

    sessions: Callable[[], Awaitable[list[str]]]
    do: Callable[[str], Awaitable[R]]


async def _replay(options: Options, session: str | None, tools: Sequence[str], *, same_policy: bool, is_json: bool) -> int:
    config, given = await anyio.to_thread.run_sync(settings_and_tools, options, tools)
    reports = [report async for report in _reports(config, options.agent, session, given, is_json=is_json)]
    erased = sum(report.erased for report in reports if not report.is_of_memory)
    ok = all(report.is_identical and not (same_policy and report.policy) for report in reports)
    if is_json:
        of_memory, sessions = (
            [report.as_json() for report in reports if report.is_of_memory is each] for each in (True, False)
        )
        print_json({"ok": ok, "erased": erased, "sessions": sessions, "consolidations": of_memory})
    elif len(reports) != 1:
        print_text(_summary(reports, erased))
    return OK if ok else DIVERGED


async def _what_if(options: Options, session: str | None, tools: Sequence[str], other: Path, *, is_json: bool) -> int:
    config, given = await anyio.to_thread.run_sync(settings_and_tools, options, tools)
    policy = await anyio.to_thread.run_sync(settings_of, other, config.plane_root)

    async def compare(agent_class: str, opened: AsyncExitStack) -> _Work[WhatIfReport]:
        what_if = await opened.enter_async_context(open_what_if(config, policy, agent_class, tools=given))
        return _Work(what_if.sessions, what_if.compare)

    reports = [report async for report in _worked(config, options.agent, session, compare, is_json=is_json)]
    if is_json:
        print_json({"summary": summary_of(reports), "sessions": [report.as_json() for report in reports]})
    else:
        print_text(summary_text(reports))
    return OK


async def _reports(
    config: RuntimeConfig, preferred: str, session: str | None, tools: Sequence[Callable[..., Any]], *, is_json: bool
) -> AsyncIterator[ReplayReport]:
    """A report of each session, told as it comes."""

    async def replays(agent_class: str, opened: AsyncExitStack) -> _Work[ReplayReport]:
        found = await opened.enter_async_context(open_replays(config, agent_class, tools=tools))

        async def everything() -> list[str]:
            return [*await found.sessions(), *await found.consolidations()]

        return _Work(everything, found.replay)

    async for report in _worked(config, preferred, session, replays, is_json=is_json):
        yield report


async def _worked(
    config: RuntimeConfig,
    preferred: str,
    session: str | None,
    open_work: Callable[[str, AsyncExitStack], Awaitable[_Work[R]]],
    *,
    is_json: bool,
) -> AsyncIterator[R]:
    """What came of the session, or of all sessions of all agent classes, told as it comes."""
    known = [preferred, *(name for name in agent_classes(config) if name != preferred)]
    classes = known if session is None else [await class_of(config, session, known)]
    for agent_class in classes:
        async with AsyncExitStack() as opened:
            work = await open_work(agent_class, opened)
            sessions, done = [session] if session is not None else await work.sessions(), list[str]()
            async with progress_bar(f"sessions of {agent_class}", len(sessions), done.__len__):
                for each in sessions:
                    report = await work.do(each)
                    done.append(each)
                    if not is_json:
                        print_text(report.text())
                    yield report


def _summary(reports: Sequence[ReplayReport], erased: int) -> str:
    """One line for all sessions."""
    sessions = sum(not report.is_of_memory for report in reports)
    turns = sum(len(report.turns) for report in reports)
    learned = sum(len(report.consolidations) for report in reports)
    diverged = sum(not report.is_identical for report in reports)
    consolidations = f" and {_many(learned, 'consolidation')}" if learned else ""
    others = sum(report.policy is not None for report in reports)
    policy = f", {_many(others, 'session')} recorded under another policy" if others else ""
    gone = f", {_many(erased, 'turn')} erased with their subject" if erased else ""
    done = f"{_many(sessions, 'session')}, {_many(turns, 'turn')}{consolidations} identical"
    return f"{done}, {_many(diverged, 'session')} diverged{policy}{gone}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def settings_and_tools(options: Options, tools: Iterable[str]) -> tuple[RuntimeConfig, tuple[Callable[..., Any], ...]]:
    """The settings that a command's options mean, and the tools that it names, imported.

    Raises:
        ConfigError: the settings are wrong
        ToolError: a name leads to no tool
    """
    loaded = options.load()
    for place in (str(loaded.base_dir), str(Path.cwd())):
        if place not in sys.path:
            # `module:attribute` means a module beside the settings or here; installed ones go first.
            sys.path.append(place)
    return loaded.config, load_tools(tools)
