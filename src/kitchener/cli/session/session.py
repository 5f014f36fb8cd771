"""`kitchener session`: lists and shows recorded sessions. Only `end`, `repair` and `import` write to a ledger."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, Self, TypedDict

import anyio
from cyclopts import App, Parameter

from kitchener.cli.exits import NEGATIVE, OK
from kitchener.cli.options import NO_OPTIONS, JsonFlag, Options, SessionArgument, whole_number
from kitchener.cli.session.portable import export, import_
from kitchener.cli.session.repair import repair
from kitchener.cli.session.session_search import SessionRow, filter_of, found_lines, search_sessions
from kitchener.cli.terminal.output import print_answer, print_json, print_table, print_text, say
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.errors import UnknownSession
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.shown_text import UNREADABLE, short_time
from kitchener.inspection.spending import Spending, in_all, read_spending
from kitchener.inspection.turn_views.answered_calls import read_answered_calls
from kitchener.inspection.turn_views.turn_approvals import TurnApprovals, approvals_of
from kitchener.inspection.turn_views.turn_breaks import break_text, read_breaks
from kitchener.inspection.turn_views.turn_end import CUT, TurnState, shown_reply, state_words
from kitchener.ledger import StoredEntry
from kitchener.plain_names import counted
from kitchener.records import events
from kitchener.records.entries import (
    ERASED,
    AbandonReason,
    AbortReason,
    CostMapping,
    MessageImportedPayload,
    RejectReason,
    SealedText,
    SessionStartPayload,
    TurnAbortedPayload,
    TurnCompletedPayload,
    TurnRejectedPayload,
    TurnStartedPayload,
    WorkOrderAbandonedPayload,
    WorkOrderCompletedPayload,
    WorkOrderPlannedPayload,
    WorkOrderState,
    WorkOrderType,
    opened,
    payload_as,
)
from kitchener.records.parts import StoredPart
from kitchener.records.spoken import speaker_label
from kitchener.runtime.admin.operations import EndSession
from kitchener.runtime.administration import administer
from kitchener.runtime.sealed_root import why_unreadable
from kitchener.sealed_values import is_sealed
from kitchener.tuning import BreakCause

app = App(name="session", help="List, show, end, repair and move sessions.")
app.command(repair)
app.command(export)
app.command(import_, name="import")
_ShownState = Literal[WorkOrderState, "retired"]
_WORK_ORDER_STATES: Final[Mapping[str, _ShownState]] = {
    events.WO_PLANNED: "planned",
    events.WO_DISPATCHED: "dispatched",
    events.WO_COMPLETED: "completed",
    events.WO_FAILED: "failed",
    events.WO_DEFERRED: "deferred",
    events.WO_REOPENED: "planned",
    events.WO_RETIRED: "retired",
    events.WO_SUPERSEDED: "superseded",
    events.WO_ABANDONED: "abandoned",
}


@app.command(name="list")
def list_(
    *,
    options: Options = NO_OPTIONS,
    subject: Annotated[str | None, Parameter(help="Only sessions of this subject.")] = None,
    grep: Annotated[
        str | None, Parameter(help="Only sessions with these words in a message or a reply, and the turns that have them.")
    ] = None,
    since: Annotated[
        str | None, Parameter(help="Only what happened since: 30m, 12h, 7d, a day, or ISO time with a zone.")
    ] = None,
    limit: Annotated[int | None, whole_number("Show only this many, the newest ones.")] = None,
    json: JsonFlag = False,
) -> int:
    """List the sessions of an agent class, oldest first.

    Without --agent, lists those of all agent classes if there are several and none is ADMIN, or if --subject, --grep or --since
    is given. With one of these three, exits with 1 if there is no such session. --grep ignores upper and lower case and line
    breaks, and reads sealed texts if their keys are here. Works while a server runs.

    For example:

        kitchener session list
        kitchener session list --grep "wrong hotel" --since 7d
        kitchener session list --subject ada --json
        kitchener session list --agent RESIDENT:bo --limit 20 --json
    """
    wanted = filter_of(subject, grep, since)
    found = anyio.run(search_sessions, options, wanted, limit)
    if found.sealed:
        say(f"kitchener: {counted(found.sealed, 'text')} could not be searched: erased, or sealed without the key")
    if json:
        print_json(found.rows)
    elif found.rows and wanted.words is not None:
        print_text("\n".join(found_lines(found.rows, wanted.words)))
    elif found.rows:
        _print_rows(found.rows)
    else:
        whose = f"no sessions of {options.agent}" if options.has_agent else "no sessions yet"
        print_text(whose if wanted.is_any else "no session matches")
    return OK if found.rows or wanted.is_any else NEGATIVE


def _print_rows(rows: Sequence[SessionRow]) -> None:
    is_of_many = len({row["agent_class"] for row in rows}) > 1
    columns = (
        "session_id",
        *(("agent_class",) if is_of_many else ()),
        "subject_id",
        "external_id",
        "turns",
        "last_at",
        "state",
    )
    shown = ({**row, "last_at": short_time(row["last_at"]), "state": "ended" if row["ended"] else "open"} for row in rows)
    print_table(columns, shown)


@app.command
def show(session: SessionArgument, *, options: Options = NO_OPTIONS, json: JsonFlag = False) -> int:
    """Show the turns of a session: messages, replies and work orders.

    Works while a server runs.

    For example:

        kitchener session show last
        kitchener session show SES-0a1b2c3d --json
    """
    history = anyio.run(_shown, options, session)
    print_answer(history, is_json=json)
    return OK


@app.command
def end(session: SessionArgument, *, options: Options = NO_OPTIONS, json: JsonFlag = False) -> int:
    """End a session. It runs the messages that already wait and takes no more.

    While a server runs, it makes the change.

    For example:

        kitchener session end SES-0a1b2c3d
    """

    async def work() -> int:
        loaded = options.load_checked()
        agent_class = await options.class_of(session, LedgerPaths(loaded.config))
        await administer(loaded, EndSession(agent_class=agent_class, session_id=session))
        if json:
            print_json({"session_id": session, "agent_class": agent_class, "ended": True})
        else:
            print_text(f"ended {session} of {agent_class}")
        return OK

    return run_to_end(work)


async def _shown(options: Options, session_id: str) -> "_History":
    paths = options.paths()
    agent_class = await options.class_of(session_id, paths)
    history = _History(session_id, agent_class)
    async with paths.reader(agent_class) as reader:
        if reader is None:
            raise UnknownSession(session_id, agent_class)
        sealed = []
        async for entry in reader.read(session_id=session_id):
            history.take(entry)
            if any(map(is_sealed, entry.payload.values())):
                sealed.append(entry.payload)
            history.entries.append(entry)
        history.unreadable = await why_unreadable(reader, sealed)
    spent = await read_spending(paths, agent_class, session_id)
    history.spent = in_all(spent.values())
    breaks, approvals = await read_breaks(paths, agent_class, session_id), approvals_of(history.entries)
    for turn in history.turns.values():
        turn.spent, turn.breaks = spent.get(turn.turn_id, turn.spent), breaks.get(turn.turn_id)
        turn.approvals = approvals.get(turn.turn_id, turn.approvals)
        if turn.result is None and turn.state != "imported":
            turn.waited_for = (await read_answered_calls(paths, agent_class, history.entries, turn.turn_id)).waited_for
    return history


class _WorkOrderRow(TypedDict):
    """One work order of a turn, with its state."""

    wo_id: str
    wo_type: WorkOrderType | None
    state: _ShownState
    reason: AbandonReason | None
    """Why it was abandoned; None: it was not abandoned."""
    cost: CostMapping | None


class _Rejected(TypedDict):
    """A message that got no turn."""

    at: str
    message: SealedText
    reason: RejectReason


@dataclass(slots=True)
class _TurnRow:
    turn_id: str
    started_at: str
    message: SealedText
    speaker: SealedText | None = None
    """The name of the person who said it; None: the subject."""
    state: TurnState = "open"
    abort_reason: AbortReason | None = None
    """Why it was aborted; None: it was not."""
    result: TurnCompletedPayload | None = None
    waited_for: str = ""
    """The model attempts for which a turn without a result waited; "": the turn was answered, or called no model."""
    work_orders: dict[str, _WorkOrderRow] = field(default_factory=dict)
    parts: dict[str, StoredPart] = field(default_factory=dict)
    """The images and files of the message, by their ids."""
    spent: Spending = field(default_factory=Spending)
    """The cost of its model and tool calls."""
    breaks: tuple[BreakCause, ...] | None = None
    """Why its prompt begins differently from the turn's before; (): it does not; None: there is no prompt to compare."""
    approvals: TurnApprovals = field(default=TurnApprovals())
    """Its requests for approval, or the work order that it continued."""
    is_reply: bool = False
    """Whether an assistant said the message, in an imported conversation."""

    @classmethod
    def imported(cls, turn_id: str, message: MessageImportedPayload) -> Self:
        """A message of an imported conversation, for which no turn ran."""
        said, at = message["text"], message.get("said_at", "")
        is_reply = message["role"] == "assistant"
        return cls(turn_id, at, said, message.get("speaker"), state="imported", is_reply=is_reply)

    @property
    def state_words(self) -> str:
        return state_words(self.state, self.abort_reason)

    def as_json(self) -> dict[str, object]:
        result = self.result
        return {
            "turn_id": self.turn_id,
            "started_at": self.started_at,
            "state": self.state_words,
            "message": None if self.is_reply else opened(self.message),
            "speaker": self.speaker and opened(self.speaker),
            "parts": [{"part_id": part_id, **each._asdict()} for part_id, each in self.parts.items()],
            "response": opened(self.message) if self.is_reply else result and opened(result["response"]),
            "intent_id": result and result.get("intent_id"),
            "degraded": result is not None and result.get("degraded", False),
            "error": result and opened(result.get("error")),
            "truncated": result is not None and result.get("truncated", False),
            "waited_for": self.waited_for or None,
            "approvals": self.approvals.as_json(),
            "cost": result and result.get("cost_summary"),
            "usage": self.spent.as_json(),
            "nested_turns": self.spent.nested_turns,
            "prefix_break": self.breaks if self.breaks is None else list(self.breaks),
            "work_orders": list(self.work_orders.values()),
        }


@dataclass(slots=True)
class _History:
    """One session, folded from its entries."""

    session_id: str
    agent_class: str
    start: SessionStartPayload | None = None
    started_at: str = ""
    ended_at: str | None = None
    is_erased: bool = False
    """Whether it ended because its subject was erased."""
    unreadable: str = ""
    """Why some of its texts cannot be read; "": all can be read."""
    turns: dict[str, _TurnRow] = field(default_factory=dict)
    rejected: list[_Rejected] = field(default_factory=list)
    spent: Spending = field(default_factory=Spending)
    """The cost of the calls of all turns."""
    entries: list[StoredEntry] = field(default_factory=list)
    """All entries of the session, in order."""

    def take(self, entry: StoredEntry) -> None:
        """Adds the session's next entry."""
        kind, payload = entry.entry_type, events.read_payload(entry.entry_type, entry.payload)
        turn = self.turns.get(events.read_common(entry).get("turn_id", ""))
        if kind == events.SESSION_START:
            self.start, self.started_at = payload_as(SessionStartPayload, payload), entry.timestamp
        elif kind == events.SESSION_END:
            self.ended_at, self.is_erased = entry.timestamp, events.ends_by_erasure(kind, payload)
        elif kind == events.TURN_STARTED:
            started = payload_as(TurnStartedPayload, payload)
            said, speaker = started["user_message"], started.get("speaker")
            self.turns[started["turn_id"]] = _TurnRow(started["turn_id"], entry.timestamp, said, speaker)
        elif kind == events.MESSAGE_IMPORTED:
            message = payload_as(MessageImportedPayload, payload)
            self.turns[entry.entity_id] = _TurnRow.imported(entry.entity_id, message)
        elif kind == events.TURN_REJECTED:
            rejected = payload_as(TurnRejectedPayload, payload)
            self.rejected.append({"at": entry.timestamp, "message": rejected["user_message"], "reason": rejected["reason"]})
        elif turn is None:
            return
        elif kind == events.PART_ATTACHED:
            turn.parts[entry.entity_id] = StoredPart.from_payload(payload)
        elif kind == events.TURN_COMPLETED:
            turn.state, turn.result = "completed", payload_as(TurnCompletedPayload, payload)
        elif kind == events.TURN_ABORTED:
            turn.state, turn.abort_reason = "aborted", payload_as(TurnAbortedPayload, payload)["reason"]
        elif kind in _WORK_ORDER_STATES:
            self._take_work_order(turn, entry.entity_id, kind, payload)

    def _take_work_order(self, turn: _TurnRow, wo_id: str, kind: str, payload: Mapping[str, object]) -> None:
        state = _WORK_ORDER_STATES[kind]
        # A turn that continues after an approval ends the work order of the turn that asked.
        turn = turn if kind == events.WO_PLANNED else next((t for t in self.turns.values() if wo_id in t.work_orders), turn)
        known = turn.work_orders.setdefault(
            wo_id, {"wo_id": wo_id, "wo_type": None, "state": state, "reason": None, "cost": None}
        )
        known["state"] = state
        if kind == events.WO_ABANDONED:
            known["reason"] = payload_as(WorkOrderAbandonedPayload, payload).get("reason")
        known["wo_type"] = payload_as(WorkOrderPlannedPayload, payload).get("wo_type", known["wo_type"])
        known["cost"] = payload_as(WorkOrderCompletedPayload, payload).get("cost", known["cost"])

    def as_json(self) -> dict[str, object]:
        start = self.start
        return {
            "session_id": self.session_id,
            "agent_class": self.agent_class,
            "subject_id": start and start.get("subject_id"),
            "external_id": start and start.get("external_id"),
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "erased": self.is_erased,
            "unreadable": self.unreadable or None,
            "usage": self.spent.as_json(),
            "turns": [turn.as_json() for turn in self.turns.values()],
            "rejected": [{**each, "message": opened(each["message"])} for each in self.rejected],
        }

    def lines(self) -> Iterator[str]:
        """The session as lines of text."""
        start = self.start
        external = f", named {start['external_id']!r}" if start is not None and start.get("external_id") else ""
        ended = f", {'erased' if self.is_erased else 'ended'} {short_time(self.ended_at)}" if self.ended_at else ""
        subject = None if start is None else start.get("subject_id")
        yield f"{self.session_id} of {subject} ({self.agent_class}){external}, started {short_time(self.started_at)}{ended}"
        if self.unreadable:
            yield f"not readable: {self.unreadable}"
        for turn in self.turns.values():
            yield f"\n{turn.turn_id}  {short_time(turn.started_at) if turn.started_at else 'undated'}  {turn.state_words}"
            yield f"  {'<' if turn.is_reply else '>'} {label(turn.speaker)}{self._text(turn.message)}"
            for part_id, part in turn.parts.items():
                yield f"    {part_id}  {part.described}"
            if turn.result is not None:
                yield from self._reply_lines(turn.result)
            elif turn.waited_for:
                yield f"  ! {turn.waited_for}"
            for each in turn.work_orders.values():
                yield f"    {each['wo_id']}  {each['wo_type'] or '?':<10}  {_how_far(each)}{_cost(each['cost'])}"
            yield from (f"    {line}" for line in turn.approvals.lines())
            if turn.spent.has_answers:
                yield f"    {turn.spent.text()}"
            yield from (f"    {line}" for line in turn.spent.nested_lines())
            if turn.breaks:
                yield f"    {break_text(turn.breaks)}"
        for rejected in self.rejected:
            at, message = short_time(rejected["at"]), self._text(rejected["message"])
            yield f"\nnot run ({rejected['reason']})  {at}\n  > {message}"
        if self.spent.has_answers:
            yield f"\nin all: {self.spent.text()}"

    def _reply_lines(self, result: TurnCompletedPayload) -> Iterator[str]:
        """The reply of a turn, and what was wrong with it."""
        yield f"  < {self._text(shown_reply(result))}"
        if (error := result.get("error")) is not None:
            told = opened(error)
            yield f"  ! {self._text(None if told is None else told['kind'] + ': ' + told['message'])}"
        if result.get("truncated"):
            yield f"  ! the reply was {CUT}"

    def _text(self, value: object) -> str:
        """A message or reply, indented; if it cannot be read, the reason."""
        if isinstance(value, str):
            return value.replace("\n", "\n    ")
        return ERASED if self.is_erased else UNREADABLE


def label(speaker: SealedText | None) -> str:
    """The label with a speaker's name before a message; "": the subject spoke, or the name was erased."""
    return speaker_label(speaker) if isinstance(speaker, str) else ""


def _how_far(work_order: _WorkOrderRow) -> str:
    """The state of a work order. If another turn continued it, the event that ended its wait."""
    if work_order["reason"] in (None, "answered"):
        return work_order["reason"] or work_order["state"]
    return f"{work_order['state']}: {work_order['reason']}"


def _cost(cost: CostMapping | None) -> str:
    return f"  {cost['input_tokens']:,} tokens in, {cost['output_tokens']:,} out" if cost is not None else ""
