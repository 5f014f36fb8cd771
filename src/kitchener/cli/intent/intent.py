"""`kitchener intent`: lists and changes the intents of sessions. `list` takes no lock; the others change the root.

If a process has the root open, that process makes the change. Explained in `docs/commands.md`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import anyio
from cyclopts import App, Parameter

from kitchener.actors.authority.agent_ruleset import ruleset_of
from kitchener.cli.context.text import conflict_lines, invalid_lines
from kitchener.cli.exits import OK
from kitchener.cli.options import NO_OPTIONS, JsonFlag, Options, ReasonOption, SessionArgument, SessionChoice, whole_number
from kitchener.cli.terminal.output import print_json, print_table, print_text
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.config import HO2Config
from kitchener.context import ContextState, resolve_active
from kitchener.context.fold.items import count_turns
from kitchener.context.fold.lifecycle import OF_INTENTS
from kitchener.errors import InvalidLifecycle
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.shown_text import one_line
from kitchener.inspection.turn_views.recorded_session import fold_entries, read_past, state_of
from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.entries import IntentScope
from kitchener.records.index_keys import SHARED_INTENTS_KEY, index_keys
from kitchener.runtime.admin.operations import ChangeIntent, DeclareIntent, ForkIntent, IntentChange, IntentOperation
from kitchener.runtime.administration import administer

app = App(name="intent", help="List and change the intents of sessions.")

IntentArgument = Annotated[str, Parameter(help="An intent id, such as INT-0a1b2c3d4e5f6071.")]
SessionOf = Annotated[
    SessionChoice, Parameter(help="The intent's session, or `last`. Default: found by a search of the whole ledger.")
]
_WIDTH = 60
_OF_INTENTS = (*sorted(OF_INTENTS), events.LIFECYCLE_VOIDED, events.TURN_STARTED, events.TURN_COMPLETED)


@app.command(name="list")
def list_(
    session: Annotated[
        SessionChoice, Parameter(help="Only intents of this session, or `last`. Default: those of all sessions.")
    ] = None,
    *,
    options: Options = NO_OPTIONS,
    json: JsonFlag = False,
) -> int:
    """List intents and their status, in the order of declaration.

    Works while a server runs.

    For example:

        kitchener intent list last
        kitchener intent list --json
    """
    agent_class = options.first_agent if session is not None else options.agent
    threads: list[SessionThreads] = anyio.run(read_threads, options.paths(), agent_class, session)
    rows = [row for each in threads for row in each.rows()]
    if json:
        print_json(rows)
    elif rows:
        columns = ("session_id", "intent_id", "status", "closed_by", "scope", "turns", "parent", "objective")
        print_table(columns, rows)
        for each in threads:
            for line in each.notes():
                print_text(line)
    else:
        print_text(f"no intents of {session or agent_class}")
    return OK


@app.command
def declare(
    objective: Annotated[str, Parameter(help="The goal, in a sentence.")],
    session: SessionArgument,
    *,
    options: Options = NO_OPTIONS,
    parent: Annotated[str | None, Parameter(help="The parent intent. What belongs to the parent stays visible.")] = None,
    scope: Annotated[IntentScope, Parameter(help="Who shares it: the session only, or a wider scope.")] = "SESSION",
    target: Annotated[tuple[str, ...], Parameter(negative="", help="What it works on. May be repeated.")] = (),
    json: JsonFlag = False,
) -> int:
    """Declare an intent of a session. It competes with other live intents except its parent.

    While a server runs, it makes the change.

    For example:

        kitchener intent declare "find a hotel in Graz" last
        kitchener intent declare "compare prices" SES-0a1b2c3d --parent INT-0a1b2c3d4e5f6071
    """

    def operation(agent_class: str, session_id: str) -> IntentOperation:
        return DeclareIntent(
            agent_class=agent_class, session_id=session_id, objective=objective, scope=scope, parent=parent, targets=target
        )

    return _write(options, session, operation, is_json=json)


@app.command
def fork(
    intent: Annotated[IntentArgument, Parameter(name="INTENT")],
    objectives: Annotated[tuple[str, ...], Parameter(name="OBJECTIVE", help="The goal of one child. May be repeated.")],
    /,
    *,
    options: Options = NO_OPTIONS,
    session: SessionOf = None,
    active: Annotated[int | None, whole_number("The child that becomes active, counted from 1. Default: they compete.")] = None,
    json: JsonFlag = False,
) -> int:
    """Split an intent into child intents, one for each objective.

    While a server runs, it makes the change.

    For example:

        kitchener intent fork INT-0a1b2c3d4e5f6071 "the flight" "the hotel" --active 1
    """

    def operation(agent_class: str, session_id: str) -> IntentOperation:
        position = active - 1 if active is not None else None
        return ForkIntent(
            agent_class=agent_class, session_id=session_id, intent_id=intent, objectives=objectives, active=position
        )

    return _write(options, session, operation, is_json=json, intent=intent)


@app.command
def close(
    intent: IntentArgument,
    session: SessionOf = None,
    *,
    options: Options = NO_OPTIONS,
    outcome: Annotated[str, Parameter(help="The outcome. It is recorded.")] = "done",
    json: JsonFlag = False,
) -> int:
    """Close an intent. The model no longer sees its turns.

    While a server runs, it makes the change.

    For example:

        kitchener intent close INT-0a1b2c3d4e5f6071 --outcome "booked"
    """
    return _change(options, session, "close", intent, outcome, is_json=json)


@app.command
def abandon(
    intent: IntentArgument,
    session: SessionOf = None,
    *,
    options: Options = NO_OPTIONS,
    reason: ReasonOption,
    json: JsonFlag = False,
) -> int:
    """Abandon an intent, and record why. The model no longer sees its turns.

    While a server runs, it makes the change.

    For example:

        kitchener intent abandon INT-0a1b2c3d4e5f6071 --reason "too expensive"
    """
    return _change(options, session, "abandon", intent, reason, is_json=json)


@app.command
def reopen(
    intent: IntentArgument,
    session: SessionOf = None,
    *,
    options: Options = NO_OPTIONS,
    reason: ReasonOption,
    json: JsonFlag = False,
) -> int:
    """Reopen an intent that ended or was deferred. The model sees its turns again.

    While a server runs, it makes the change.

    For example:

        kitchener intent reopen INT-0a1b2c3d4e5f6071 --reason "still needed"
    """
    return _change(options, session, "reopen", intent, reason, is_json=json)


def _change(options: Options, session: str | None, change: IntentChange, intent: str, why: str, *, is_json: bool) -> int:
    def operation(agent_class: str, session_id: str) -> IntentOperation:
        return ChangeIntent(agent_class=agent_class, session_id=session_id, change=change, intent_id=intent, why=why)

    return _write(options, session, operation, is_json=is_json, intent=intent)


def _write(
    options: Options,
    session: str | None,
    operation: Callable[[str, str], IntentOperation],
    *,
    is_json: bool,
    intent: str = "",
) -> int:
    """Changes an intent, and prints the result and any conflict.

    Args:
        options, session: which session; None: the one that declared the intent
        operation: the change, for an agent class and a session
        is_json: whether to print JSON
        intent: the intent to change; "": a new one
    """

    async def work() -> int:
        loaded = options.load_checked()
        paths = LedgerPaths(loaded.config)
        if session is None:
            agent_class, session_id = await session_of_intent(paths, intent, options.first_agent)
        else:
            agent_class, session_id = await options.class_of(session, paths), session
        done = await administer(loaded, operation(agent_class, session_id))
        if is_json:
            print_json({"session_id": session_id, **done.model_dump(mode="json", exclude_unset=True)})
            return OK
        children = f" in {', '.join(done.child_intent_ids)}" if done.child_intent_ids is not None else ""
        print_text(f"{done.intent_id} of {session_id} is {done.status}{children}")
        if done.competing:
            print_text(f"{len(done.competing)} intents compete now: {', '.join(done.competing)}")
            print_text(f"  = choose: kitchener chat --session {session_id}, then /intents keep N; or close the others")
        return OK

    return run_to_end(work)


@dataclass(frozen=True, slots=True)
class SessionThreads:
    """One session's intents."""

    session_id: str
    config: HO2Config
    state: ContextState
    is_one_of_many: bool = False
    """Whether several sessions are listed. A shared intent is then listed only with the session that declared it."""

    def rows(self) -> Iterator[dict[str, object]]:
        """One row for each intent, in the order of their declarations."""
        resolution = resolve_active(self.state, ruleset_of(self.config))
        for record in self.state.intents.values():
            owner = record.facts.session_id or self.session_id
            if self.is_one_of_many and owner != self.session_id:
                continue
            status: str = record.status
            if record.intent_id == resolution.active:
                status = "active"
            elif record.intent_id in resolution.competing:
                status = "competing"
            yield {
                "session_id": owner,
                "intent_id": record.intent_id,
                "status": status,
                "closed_by": record.closed_by,
                "scope": record.facts.scope,
                "turns": count_turns(self.state.attached(record.intent_id).turns),
                "parent": record.facts.parent_id,
                "superseded_by": record.superseded_by,
                "objective": one_line(record.facts.objective, _WIDTH),
                "declared_at": record.declared.timestamp,
                "last_entry": record.last.ref.entry_id,
            }

    def notes(self) -> Iterator[str]:
        """The conflict that blocks the session, if there is one."""
        resolution = resolve_active(self.state, ruleset_of(self.config))
        if resolution.competing:
            yield from conflict_lines(self.state, resolution.competing, self.session_id)
        if self.state.invalid:
            yield from invalid_lines(self.state, self.session_id)


async def read_threads(paths: LedgerPaths, preferred: str, session_id: str | None) -> list[SessionThreads]:
    """The intents of one session, or of all sessions of an agent class that have any.

    Raises:
        UnknownSession: no ledger knows the session
    """
    if session_id is not None:
        past = await read_past(paths, session_id, preferred)
        return [SessionThreads(session_id, past.config, await state_of(paths, past))]
    config, sessions = paths.agent(preferred), dict[str, list[StoredEntry]]()
    shared: dict[str, list[StoredEntry]] = {}
    async with paths.reader(preferred) as ho2m:
        if ho2m is not None:
            async for entry in ho2m.read(entry_type=_OF_INTENTS):
                sessions.setdefault(entry.session_id or "", []).append(entry)
                if SHARED_INTENTS_KEY in index_keys(entry.entry_type, entry.payload):
                    shared.setdefault(events.read_common(entry)["subject_id"], []).append(entry)
    found = []
    for name, entries in sessions.items():
        subject_id = events.read_common(entries[0]).get("subject_id", "")
        others = [each for each in shared.get(subject_id, ()) if each.session_id != name]
        found.append(SessionThreads(name, config, fold_entries([*entries, *others], config, name), is_one_of_many=True))
    return [each for each in found if each.state.intents]


async def session_of_intent(paths: LedgerPaths, intent_id: str, preferred: str) -> tuple[str, str]:
    """The agent class and the session that declared an intent. Reads whole ledgers.

    Raises:
        InvalidLifecycle: the intent was never declared
    """
    for agent_class in [preferred, *[name for name in paths.agent_classes() if name != preferred]]:
        async with paths.reader(agent_class) as ho2m:
            if ho2m is None:
                continue
            async for entry in ho2m.read(entity_id=intent_id, entry_type=events.INTENT_DECLARED):
                if entry.session_id is not None:
                    return agent_class, entry.session_id
    text = f"intent {intent_id!r} was never declared; `kitchener intent list` lists the intents"
    raise InvalidLifecycle(intent_id, text)
