"""Gathers the content of the page about a turn: the explanation, requests and tools of this turn and the previous one.

`context explain`, `--prompt` and `context diff` print the same facts. `sections.py` arranges them; `page_file.py` renders them.
"""

from dataclasses import dataclass

from kitchener.cli.terminal.log_lines import nothing_logged
from kitchener.errors import KitchenerError, LedgerError
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.turn_views.recorded_turn import TurnView, read_turn
from kitchener.inspection.turn_views.turn_end import current
from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.entries import ToolCallPayload, ToolStartedPayload, payload_as
from kitchener.replaying import TurnPrompts, read_prompts


@dataclass(frozen=True, slots=True)
class RecordedTool:
    """One recorded call of a tool."""

    wo_id: str
    tool_id: str
    arguments: object
    """The arguments; sealed if the key is missing; None: the call was refused before it started."""
    outcome: ToolCallPayload | None
    """The payload of its `TOOL_CALL`; None: the tool had not ended when the turn did."""


@dataclass(frozen=True, slots=True)
class TurnPage:
    """Everything that the page shows."""

    view: TurnView
    prompts: TurnPrompts
    tools: tuple[RecordedTool, ...]
    before: "TurnPage | None"
    """The session's turn before, whose own `before` is None; None: this turn is the first, or is not compared."""

    @property
    def entries(self) -> list[StoredEntry]:
        """The turn's own entries in the supervisor's ledger, in order."""
        return [each for each in self.view.past.entries if events.read_common(each).get("turn_id") == self.view.turn_id]


async def read_page(paths: LedgerPaths, preferred: str, turn_id: str) -> TurnPage:
    """Everything recorded about a turn, and the turn before it for comparison. Takes no lock.

    Raises:
        CallerError: the turn id is malformed
        UnknownSession, NotOnRecord: no ledger knows the turn
        LedgerDamaged: a line does not verify
    """
    page = await _read(paths, preferred, turn_id)
    started = [each.entity_id for each in page.view.past.entries if each.entry_type == events.TURN_STARTED]
    place = started.index(turn_id)
    before = await _read(paths, page.view.past.agent_class, started[place - 1]) if place else None
    return TurnPage(page.view, page.prompts, page.tools, before)


async def _read(paths: LedgerPaths, preferred: str, turn_id: str) -> TurnPage:
    view = await read_turn(paths, preferred, turn_id)
    return TurnPage(view, await _prompts(paths, view), tuple(await _tools(paths, view)), None)


async def _prompts(paths: LedgerPaths, view: TurnView) -> TurnPrompts:
    agent_class = view.past.agent_class
    try:
        with nothing_logged():  # as in `context explain --prompt`
            return await read_prompts(view.turn_id, config=paths.config, agent_class=agent_class)
    except LedgerError:
        raise
    except KitchenerError as error:  # requests of another program's session cannot be rebuilt
        return TurnPrompts(view.turn_id, agent_class, "", (), problem=str(error))


async def _tools(paths: LedgerPaths, view: TurnView) -> list[RecordedTool]:
    """The tools that the turn called, in order."""
    async with paths.reader(view.past.agent_class, "ho1m") as ho1m:
        if ho1m is None:
            return []
        read = ho1m.read(session_id=view.past.session_id, entry_type=(events.TOOL_STARTED, events.TOOL_CALL))
        found = [each async for each in read if events.read_common(each).get("turn_id") == view.turn_id]
    calls: dict[tuple[str, object], RecordedTool] = {}
    for entry in found:
        if entry.entry_type == events.TOOL_STARTED:
            began = payload_as(ToolStartedPayload, current(entry))
            tool = RecordedTool(entry.entity_id, str(began.get("tool_id")), began.get("arguments"), None)
            calls[entry.entity_id, began.get("call")] = tool
        else:
            outcome = payload_as(ToolCallPayload, current(entry))
            started = calls.get((entry.entity_id, outcome.get("call")))
            arguments = started.arguments if started is not None else None
            tool = RecordedTool(entry.entity_id, str(outcome.get("tool_id")), arguments, outcome)
            calls[entry.entity_id, outcome.get("call")] = tool
    return list(calls.values())
