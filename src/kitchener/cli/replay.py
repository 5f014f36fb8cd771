"""`kitchener replay`: runs recorded turns again and reports differences. Takes no lock and changes nothing."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Generic, NamedTuple, TypeVar

import anyio.to_thread
from cyclopts import Parameter

from kitchener.actors.tools.named_tools import load_tools
from kitchener.cli.exits import DIVERGED, NEGATIVE, OK
from kitchener.cli.options import NO_OPTIONS, JsonFlag, Options, SessionChoice, named_argument
from kitchener.cli.terminal.log_lines import nothing_logged
from kitchener.cli.terminal.output import print_json, print_text
from kitchener.cli.terminal.progress import progress_bar
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.config import RuntimeConfig
from kitchener.errors import CallerError
from kitchener.plain_names import counted
from kitchener.replaying import ReplayReport, SourceChange, WhatIfReport, open_replays, open_what_if, summary_of, summary_text
from kitchener.runtime.root_layout import agent_classes, class_of, settings_of

R = TypeVar("R", ReplayReport, WhatIfReport)
Tools = Annotated[
    tuple[str, ...],
    Parameter(
        name="--tool",
        negative="",
        help="`module:attribute` of a tool that the program gave to `open_runtime`. It is not run.",
    ),
]


def replay(
    session: Annotated[SessionChoice, Parameter(help="Replay this session, of any agent class. `last`: the newest.")] = None,
    *,
    options: Options = NO_OPTIONS,
    is_all: Annotated[
        bool, Parameter(name="--all", negative="", help="Replay every session of every class, or of --agent.")
    ] = False,
    tools: Tools = (),
    same_policy: Annotated[
        bool,
        Parameter(negative="", help="Also fail if settings or policy code differ, even if all decisions are the same."),
    ] = False,
    with_config: Annotated[
        Path | None,
        Parameter(help="Settings of another policy: show what the model would have seen under it. Calls no model."),
    ] = None,
    nested: Annotated[
        bool,
        Parameter(negative="", help="Also replay the sessions in which tools of SESSION ran turns, and so on."),
    ] = False,
    json: JsonFlag = False,
) -> int:
    """Run recorded turns again, and report where they differ from the record.

    Verifies the ledgers, then runs each turn with the recorded answers of models and tools and compares every decision with
    the record. Exits with 0 if all are identical, with 5 if a session diverges, with 6 if a ledger is damaged or missing, and
    with 1 if a session cannot be compared because its key is missing. Reports sessions that were recorded under another
    policy; with --same-policy they exit with 5 too. With --with-config, --all prints the sessions that would change and a
    count of all; --json has every session. Works while a server runs.

    For example:

        kitchener replay last
        kitchener replay --all --json
        kitchener replay --all --same-policy
        kitchener replay --all --with-config other.toml
        kitchener replay last --nested
    """
    if (session is None) != is_all:
        raise CallerError("replay: expected either SESSION (SES-… or `last`) or --all")
    if with_config is not None:
        if same_policy:
            raise CallerError(
                "replay: --same-policy asks for the recorded policy and --with-config for another one; leave one out"
            )
        if nested:
            raise CallerError("replay: --with-config compares SESSION alone, without those that --nested adds; leave one out")
        return run_to_end(partial(_what_if, options, session, tools, with_config, is_json=json))
    return run_to_end(partial(_replay, options, session, tools, same_policy=same_policy, nested=nested, is_json=json))


class _ReplayJob(NamedTuple, Generic[R]):
    """The replays of an agent class's sessions."""

    sessions: Callable[[], Awaitable[list[str]]]
    do: Callable[[str], Awaitable[R]]
    text: Callable[[R], str]
    """A report for a reader; "": it says nothing that the line for all sessions does not say."""


async def _replay(
    options: Options, session: str | None, tools: Sequence[str], *, same_policy: bool, nested: bool, is_json: bool
) -> int:
    config, given = await anyio.to_thread.run_sync(settings_and_tools, options, tools)
    reports = [report async for report in _reports(config, _classes(config, options, session), session, given, is_json=is_json)]
    done = {report.session_id for report in reports}
    for report in reports if nested else ():  # `reports` grows, because a nested session may have nested sessions
        for turn in report.nested_turns:
            if turn["session_id"] not in done:
                done.add(turn["session_id"])
                classes = _in_order(config, turn["agent_class"])
                again = _reports(config, classes, turn["session_id"], given, is_json=is_json)
                reports += [each async for each in again]
    erased = sum(report.erased for report in reports if not report.is_of_memory)
    diverged = any(report.divergence is not None or (same_policy and report.policy is not None) for report in reports)
    ok = not diverged and all(report.is_identical for report in reports)
    if is_json:
        of_memory, sessions = (
            [report.as_json() for report in reports if report.is_of_memory is each] for each in (True, False)
        )
        print_json({"ok": ok, "erased": erased, "sessions": sessions, "consolidations": of_memory})
    elif len(reports) != 1:
        print_text(_summary(reports, erased))
    return OK if ok else DIVERGED if diverged else NEGATIVE


async def _what_if(options: Options, session: str | None, tools: Sequence[str], other: Path, *, is_json: bool) -> int:
    config, given = await anyio.to_thread.run_sync(settings_and_tools, options, tools)
    with named_argument("--with-config", other):
        policy = await anyio.to_thread.run_sync(settings_of, other, config.plane_root)

    async def compare(agent_class: str, opened: AsyncExitStack) -> _ReplayJob[WhatIfReport]:
        what_if = await opened.enter_async_context(open_what_if(config, policy, agent_class, tools=given))
        return _ReplayJob(what_if.sessions, what_if.compare, WhatIfReport.text if session is not None else _change)

    classes = _classes(config, options, session)
    reports = [report async for report in _worked(config, classes, session, compare, is_json=is_json)]
    if is_json:
        print_json({"summary": summary_of(reports), "sessions": [report.as_json() for report in reports]})
    else:
        print_text(summary_text(reports))
    return OK


def _change(report: WhatIfReport) -> str:
    """The report of one of many sessions, if it changes or cannot be read. The line for all sessions counts the others."""
    return report.text() if report.changed or report.unreadable else ""


def _classes(config: RuntimeConfig, options: Options, session: str | None) -> list[str]:
    """The agent classes whose sessions are replayed, or in whose ledgers a session is searched for, in order."""
    if session is None and options.named_agent is not None:
        return [options.named_agent]
    return _in_order(config, options.first_agent)


def _in_order(config: RuntimeConfig, preferred: str) -> list[str]:
    return [preferred, *(name for name in agent_classes(config) if name != preferred)]


async def _reports(
    config: RuntimeConfig, classes: Sequence[str], session: str | None, tools: Sequence[Callable[..., object]], *, is_json: bool
) -> AsyncIterator[ReplayReport]:
    """Yields a report of each session. Prints each one as it comes."""

    told: set[SourceChange] = set()

    async def replays(agent_class: str, opened: AsyncExitStack) -> _ReplayJob[ReplayReport]:
        found = await opened.enter_async_context(open_replays(config, agent_class, tools=tools))

        async def everything() -> list[str]:
            return [*await found.sessions(), *await found.consolidations()]

        return _ReplayJob(everything, found.replay, lambda report: report.text(told))

    async for report in _worked(config, classes, session, replays, is_json=is_json):
        yield report


async def _worked(
    config: RuntimeConfig,
    classes: Sequence[str],
    session: str | None,
    open_work: Callable[[str, AsyncExitStack], Awaitable[_ReplayJob[R]]],
    *,
    is_json: bool,
) -> AsyncIterator[R]:
    """Yields the report of the session, or of all sessions of these agent classes. Prints each one as it comes."""
    for agent_class in classes if session is None else [await class_of(config, session, classes)]:
        async with AsyncExitStack() as opened:
            work = await open_work(agent_class, opened)
            sessions = [session] if session is not None else await work.sessions()
            async with progress_bar(f"sessions of {agent_class}", len(sessions)) as done:
                for each in sessions:
                    with nothing_logged():
                        report = await work.do(each)
                    done.add()
                    if not is_json and (text := work.text(report)):
                        print_text(text)
                    yield report


def _summary(reports: Sequence[ReplayReport], erased: int) -> str:
    """One line for all sessions."""
    sessions = sum(not report.is_of_memory for report in reports)
    turns = sum(len(report.turns) for report in reports)
    learned = sum(len(report.consolidations) for report in reports)
    diverged = sum(report.divergence is not None for report in reports)
    unreadable = sum(bool(report.unreadable) for report in reports)
    consolidations = f" and {counted(learned, 'consolidation')}" if learned else ""
    others = sum(report.policy is not None for report in reports)
    policy = f", {counted(others, 'session')} recorded under another policy" if others else ""
    no_key = f", {counted(unreadable, 'session')} not readable without the missing keys" if unreadable else ""
    gone = f", {counted(erased, 'turn')} erased with their subject" if erased else ""
    done = f"{counted(sessions, 'session')}, {counted(turns, 'turn')}{consolidations} identical"
    return f"{done}, {counted(diverged, 'session')} diverged{policy}{gone}{no_key}"


def settings_and_tools(options: Options, tools: Iterable[str]) -> tuple[RuntimeConfig, tuple[Callable[..., object], ...]]:
    """The settings that a command's options choose, and the imported tools that it names.

    Raises:
        ConfigError: the settings are wrong
        ToolError: a name does not name a tool
    """
    loaded, here = options.load_importing(reads=True), str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # `module:attribute` may name a module here, too
    return loaded.config, load_tools(tools)
