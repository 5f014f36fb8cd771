"""`kitchener memory bisect`: finds the consolidation that changed what the model sees in a turn. Takes no lock."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Final

import anyio.to_thread
from cyclopts import Parameter

from kitchener.cli.exits import NEGATIVE, OK
from kitchener.cli.memory.explain import TurnText, entry_text, read_turn_text
from kitchener.cli.options import NO_OPTIONS, JsonFlag, Options, SessionChoice, TurnChoice
from kitchener.cli.replay import Tools, settings_and_tools
from kitchener.cli.terminal.output import print_json, print_text
from kitchener.cli.terminal.progress import progress_bar
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.errors import CallerError
from kitchener.ids import session_of_valid_turn
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.shown_text import one_line, short_time
from kitchener.plain_names import counted
from kitchener.records import events
from kitchener.records.entries import QuarantinePayload
from kitchener.replaying import open_replays
from kitchener.tuning import BisectQuestion, BisectReport, MemoryChange, bisect

_WIDTH: Final = 100
_AT_MOST: Final = 10
"""Most printed turns behind an artifact."""


def bisect_(
    turn: Annotated[
        TurnChoice,
        Parameter(
            name=("--turn", "--bad"), help="The turn that shows the change, or `last`. Default: the last turn of --session."
        ),
    ] = None,
    *,
    options: Options = NO_OPTIONS,
    good: Annotated[
        TurnChoice, Parameter(help="An earlier turn of the subject without the change. Default: an empty memory.")
    ] = None,
    item: Annotated[
        str | None, Parameter(help="The item that came or went: ART-…, T-…, or words of a learned line. Default: any item.")
    ] = None,
    session: Annotated[SessionChoice, Parameter(help="The session whose last turn is used without TURN, or `last`.")] = None,
    is_all: Annotated[bool, Parameter(name="--all", negative="", help="Report every change, not only one.")] = False,
    tools: Tools = (),
    json: JsonFlag = False,
) -> int:
    """Find the consolidation that changed what the model sees in a turn.

    Runs the turn again without a model, each time with the memory at another position. All else stays as recorded. Exits with
    1 if no change of the memory changes the turn. Works while a server runs.

    For example:

        kitchener memory bisect last
        kitchener memory bisect T-0a1b2c3d-000002 --good T-0a1b2c3d-000001 --item ART-0a1b2c3d4e5f
        kitchener memory bisect --session SES-0a1b2c3d --all --json
    """
    question = _question(session, turn, good, item, every=is_all)
    return run_to_end(partial(_run, options, question, tools, is_json=json))


def _question(session: str | None, bad: str | None, good: str | None, item: str | None, *, every: bool) -> BisectQuestion:
    of_turn = _session_of("--bad", bad) or (session is None and _session_of("--good", good)) or session
    if not of_turn:
        raise CallerError("memory bisect: expected TURN (T-… or `last`), the turn that shows the change, or --session SES-…")
    if session is not None and of_turn != session:
        raise CallerError(f"--bad {bad!r} is not a turn of --session {session!r}")
    return BisectQuestion(of_turn, bad, good, item, every)


def _session_of(option: str, turn_id: str | None) -> str | None:
    return None if turn_id is None else session_of_valid_turn(turn_id, option)


async def _run(options: Options, question: BisectQuestion, tools: tuple[str, ...], *, is_json: bool) -> int:
    config, given = await anyio.to_thread.run_sync(settings_and_tools, options, tools)
    paths = LedgerPaths(config)
    agent_class = await options.class_of(question.session_id, paths)
    async with open_replays(config, agent_class, tools=given) as replays, progress_bar("runs", None) as runs:
        report = await bisect(replays, question, probed=runs.add)
    if is_json:
        print_json({"agent_class": agent_class, **report.as_json()})
    else:
        turns = await _read_turns(paths, agent_class, report)
        print_text("\n".join(_report_lines(report, agent_class, turns)))
    return OK if report.changes else NEGATIVE


async def _read_turns(paths: LedgerPaths, agent_class: str, report: BisectReport) -> dict[str, TurnText]:
    """The texts of the turns behind the changes."""
    wanted = [turn for change in report.changes for turn in _turns_of(change)[:_AT_MOST]]
    async with paths.reader(agent_class) as ho2m:
        return {turn_id: await read_turn_text(ho2m, turn_id) for turn_id in dict.fromkeys(wanted)}


def _turns_of(change: MemoryChange) -> list[str]:
    return list(dict.fromkeys(each.turn_id for each in change.sources if each.turn_id is not None))


def _report_lines(report: BisectReport, agent_class: str, turns: Mapping[str, TurnText]) -> Iterator[str]:
    whom = f"{report.turn_id} of {report.subject_id} ({agent_class})"
    looked = (
        f"{counted(report.between, 'entry', 'entries')} of the memory in between, {counted(report.probes, 'run')} of the turn"
    )
    since = report.question.good or "the time when nothing was known"
    if not report.changes:
        yield f"{whom}: nothing that was learned since {since} changes {_what(report)}"
        yield from _why_not(report)
    for change in report.changes:
        yield from _change_lines(change, whom, turns)
        yield ""
    if not report.is_exact:
        yield "the settings have changed since: with the recorded memory, the turn is not shown what is on record"
    yield looked


def _what(report: BisectReport) -> str:
    wanted = report.question.item
    return "what it is shown" if wanted is None else f"whether {wanted!r} is shown to it"


def _why_not(report: BisectReport) -> Iterator[str]:
    good = report.question.good
    if report.between and not report.question.every:
        both = {None: "it is shown the same", True: "the item is shown", False: "the item is not shown"}[report.is_shown]
        yield f"{both} at both ends; --all shows what changed in between"
    if good is not None:
        yield f"what else differs between the turns: kitchener context diff {good} {report.turn_id}"


def _change_lines(change: MemoryChange, whom: str, turns: Mapping[str, TurnText]) -> Iterator[str]:
    entry, overlay = change.entry, change.overlay
    name = overlay.key if overlay is not None else events.read_as(QuarantinePayload, entry).get("target")
    yield f"{name!s} changes what {whom} is shown"
    yield f"  {short_time(entry.timestamp)}  {entry_text(entry)}  ({entry.ledger_id} {entry.entry_id})"
    if overlay is not None:
        snapshot = overlay.gate_snapshot or {}
        gate = (
            f": {counted(snapshot['count'], 'event')} in {counted(snapshot['sessions'], 'session')}"
            if snapshot.keys() >= {"count", "sessions"}
            else ""
        )
        yield f"  from {overlay.signal_id}{gate}"
    yield "  before, after:"
    yield from (f"    {one_line(each, _WIDTH)}" for each in change.lines())
    if entry.entry_type == events.HO3_OVERLAY:
        yield from _source_lines(change, turns)


def _source_lines(change: MemoryChange, turns: Mapping[str, TurnText]) -> Iterator[str]:
    behind = _turns_of(change)
    yield f"  because of {counted(len(change.sources), 'event')} in {counted(len(behind), 'turn')}:"
    for turn_id in behind[:_AT_MOST]:
        yield f"    {turn_id}  {turns[turn_id].said()[0]}"
    if len(behind) > _AT_MOST:
        yield f"    and {len(behind) - _AT_MOST} more (--json has them all)"
