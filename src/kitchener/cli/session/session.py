"""`kitchener session`: what the ledger says about conversations. Only `end` and `repair` write."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import anyio
from cyclopts import App, Parameter
from cyclopts.validators import Number

from kitchener.cli.exits import OK
from kitchener.cli.options import Json, Options, Places
from kitchener.cli.session.repair import repair
from kitchener.cli.terminal.interrupt import run_to_end
from kitchener.cli.terminal.output import UNREADABLE, print_json, print_table, print_text, readable
from kitchener.errors import UnknownSession
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.records import events
from kitchener.records.entries import ERASED
from kitchener.runtime import open_runtime

app = App(name="session", help="List, show, end and repair sessions.")
app.command(repair)

SessionId = Annotated[str, Parameter(name="SESSION", help="A session id, such as SES-0a1b2c3d.")]

_EVERYTHING = Options()
_WORK_ORDER_STATES = {
    events.WO_PLANNED: "planned",
    events.WO_DISPATCHED: "dispatched",
    events.WO_COMPLETED: "completed",
    events.WO_FAILED: "failed",
    events.WO_DEFERRED: "deferred",
    events.WO_SUPERSEDED: "superseded",
    events.WO_ABANDONED: "abandoned",
}


@app.command(name="list")
def list_(
    *,
    options: Options = _EVERYTHING,
    limit: Annotated[int | None, Parameter(validator=Number(gte=1), help="Only so many, the newest ones.")] = None,
    json: Json = False,
) -> int:
    """List the sessions of an agent class, oldest first. Takes no lock.

    For example:

        kitchener session list
        kitchener session list --agent RESIDENT:bo --limit 20 --json
    """
    rows = anyio.run(_listed, options, limit)
    if json:
        print_json(rows)
    elif rows:
        columns = ("session_id", "subject_id", "external_id", "turns", "last_at", "state")
        print_table(columns, ({**row, "last_at": row["last_at"][:19], "state": _state(row)} for row in rows))
    else:
        print_text(f"no sessions of {options.agent}")
    return OK


@app.command
def show(session: SessionId, /, *, options: Options = _EVERYTHING, json: Json = False) -> int:
    """Show a session's turns: message, reply, work orders. Takes no lock.

    For example:

        kitchener session show SES-0a1b2c3d
        kitchener session show SES-0a1b2c3d --json
    """
    history = anyio.run(_shown, options, session)
    if json:
        print_json(history.as_json())
    else:
        print_text("\n".join(history.lines()))
    return OK


@app.command
def end(session: SessionId, /, *, options: Options = _EVERYTHING, json: Json = False) -> int:
    """End a session: it takes no more turns. Messages that wait for it run first.

    For example:

        kitchener session end SES-0a1b2c3d
    """

    async def work() -> int:
        loaded = options.load_checked()
        agent_class = await Places(loaded.config).class_of(session, options.agent)
        async with open_runtime(loaded.config) as runtime:
            await runtime.supervisor(agent_class).end_session(session)
        if json:
            print_json({"session_id": session, "agent_class": agent_class, "ended": True})
        else:
            print_text(f"ended {session} of {agent_class}")
        return OK

    return run_to_end(work)


async def _listed(options: Options, limit: int | None) -> list[dict[str, Any]]:
    async with Places(options.load().config).reader(options.agent) as reader:
        if reader is None:
            return []
        if limit is None:
            starts = [entry async for entry in reader.read(key="sessions")]
        else:
            starts = list(await reader.last(key="sessions", limit=limit))
        ended = {entry.entity_id async for entry in reader.read(key="ended")}
        return [await _row(reader, start, is_ended=start.entity_id in ended) for start in starts]


async def _row(reader: LedgerReader, start: StoredEntry, *, is_ended: bool) -> dict[str, Any]:
    payload = events.read_payload(start.entry_type, start.payload)
    session_id = start.entity_id
    (newest,) = await reader.last(session_id=session_id)
    return {
        "session_id": session_id,
        "agent_class": payload["agent_class"],
        "subject_id": payload["subject_id"],
        "external_id": payload.get("external_id"),
        "started_at": start.timestamp,
        "last_at": newest.timestamp,
        "turns": await _turns(reader, newest),
        "ended": is_ended,
    }


async def _turns(reader: LedgerReader, newest: StoredEntry) -> int:
    """How many turns a session has begun, from its newest entry where that says so."""
    if newest.entry_type == events.SESSION_START:
        return OK
    if (turn := newest.payload.get("turn_id")) is not None:
        return int(turn.rpartition("-")[2])
    session_id = newest.payload["session_id"]
    return len([entry async for entry in reader.read(session_id=session_id, entry_type=events.TURN_STARTED)])


def _state(row: Mapping[str, Any]) -> str:
    return "ended" if row["ended"] else "open"


async def _shown(options: Options, session_id: str) -> "_History":
    places = Places(options.load().config)
    agent_class = await places.class_of(session_id, options.agent)
    history = _History(session_id, agent_class)
    async with places.reader(agent_class) as reader:
        if reader is None:
            raise UnknownSession(session_id, agent_class)
        async for entry in reader.read(session_id=session_id):
            history.take(entry)
    return history


@dataclass(slots=True)
class _Turn:
    turn_id: str
    started_at: str
    message: Any
    state: str = "open"
    """`open` (running, or cut off by a crash and not yet closed), `completed`, `aborted: <reason>`."""
    result: Mapping[str, Any] = field(default_factory=dict)
    work_orders: dict[str, dict[str, Any]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        result = self.result
        return {
            "turn_id": self.turn_id,
            "started_at": self.started_at,
            "state": self.state,
            "message": readable(self.message),
            "response": readable(result.get("response")),
            "intent_id": result.get("intent_id"),
            "degraded": result.get("degraded", False),
            "error": readable(result.get("error")),
            "cost": result.get("cost_summary"),
            "work_orders": list(self.work_orders.values()),
        }


@dataclass(slots=True)
class _History:
    """One session, folded from its entries."""

    session_id: str
    agent_class: str
    start: Mapping[str, Any] = field(default_factory=dict)
    started_at: str = ""
    ended_at: str | None = None
    is_erased: bool = False
    """Ended because its subject was erased."""
    turns: dict[str, _Turn] = field(default_factory=dict)
    rejected: list[dict[str, Any]] = field(default_factory=list)

    def take(self, entry: StoredEntry) -> None:
        """Takes in the session's next entry."""
        kind, payload = entry.entry_type, events.read_payload(entry.entry_type, entry.payload)
        turn = self.turns.get(payload.get("turn_id", ""))
        if kind == events.SESSION_START:
            self.start, self.started_at = payload, entry.timestamp
        elif kind == events.SESSION_END:
            self.ended_at, self.is_erased = entry.timestamp, events.ends_by_erasure(kind, payload)
        elif kind == events.TURN_STARTED:
            turn_id = payload["turn_id"]
            self.turns[turn_id] = _Turn(turn_id, entry.timestamp, payload["user_message"])
        elif kind == events.TURN_REJECTED:
            at, message = entry.timestamp, payload["user_message"]
            self.rejected.append({"at": at, "message": message, "reason": payload["reason"]})
        elif turn is None:
            return
        elif kind == events.TURN_COMPLETED:
            turn.state, turn.result = "completed", payload
        elif kind == events.TURN_ABORTED:
            turn.state = f"aborted: {payload['reason']}"
        elif kind in _WORK_ORDER_STATES:
            self._work_order(turn, entry.entity_id, kind, payload)

    def _work_order(self, turn: _Turn, wo_id: str, kind: str, payload: Mapping[str, Any]) -> None:
        known = turn.work_orders.setdefault(wo_id, {"wo_id": wo_id, "wo_type": None, "state": None, "cost": None})
        known["state"] = _WORK_ORDER_STATES[kind]
        known["wo_type"] = payload.get("wo_type", known["wo_type"])
        known["cost"] = payload.get("cost", known["cost"])

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON types."""
        return {
            "session_id": self.session_id,
            "agent_class": self.agent_class,
            "subject_id": self.start.get("subject_id"),
            "external_id": self.start.get("external_id"),
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "erased": self.is_erased,
            "turns": [turn.as_json() for turn in self.turns.values()],
            "rejected": [{**each, "message": readable(each["message"])} for each in self.rejected],
        }

    def lines(self) -> Iterator[str]:
        """Everything, for a reader."""
        external = f", named {self.start['external_id']!r}" if self.start.get("external_id") else ""
        ended = f", {'erased' if self.is_erased else 'ended'} {self.ended_at[:19]}" if self.ended_at else ""
        subject = str(self.start.get("subject_id"))
        yield f"{self.session_id} of {subject} ({self.agent_class}){external}, started {self.started_at[:19]}{ended}"
        for turn in self.turns.values():
            yield f"\n{turn.turn_id}  {turn.started_at[:19]}  {turn.state}"
            yield f"  > {self._text(turn.message)}"
            if turn.result:
                yield f"  < {self._text(turn.result['response'])}"
            if error := turn.result.get("error"):
                yield f"  ! {self._text(error['kind'] + ': ' + error['message'] if 'kind' in error else error)}"
            for each in turn.work_orders.values():
                yield f"    {each['wo_id']}  {each['wo_type'] or '?':<10}  {each['state']}{_cost(each['cost'])}"
        for each in self.rejected:
            yield f"\nnot run ({each['reason']})  {each['at'][:19]}\n  > {self._text(each['message'])}"

    def _text(self, value: Any) -> str:
        """A message or reply, indented; what is sealed and cannot be opened is said to be so."""
        if isinstance(value, str):
            return value.replace("\n", "\n    ")
        return ERASED if self.is_erased else UNREADABLE


def _cost(cost: Mapping[str, Any] | None) -> str:
    return f"  {cost['input_tokens']:,} tokens in, {cost['output_tokens']:,} out" if cost else ""
