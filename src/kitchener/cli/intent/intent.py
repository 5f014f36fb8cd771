"""`kitchener intent`: what sessions are about. `list` reads and takes no lock; all others write through a runtime."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import anyio
from cyclopts import App, Parameter
from cyclopts.validators import Number

from kitchener.actors.authority.authority import ruleset_of
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.cli.exits import OK
from kitchener.cli.intent.threads import SessionThreads, read_threads, session_of_intent
from kitchener.cli.options import Json, Options, Places
from kitchener.cli.terminal.interrupt import run_to_end
from kitchener.cli.terminal.output import print_json, print_table, print_text
from kitchener.context import resolve_active
from kitchener.records.entries import IntentScope
from kitchener.runtime import open_runtime

app = App(name="intent", help="List and steer what sessions are about.")

IntentId = Annotated[str, Parameter(name="INTENT", help="An intent id, such as INT-0a1b2c3d4e5f6071.")]
SessionOf = Annotated[
    str | None, Parameter(name="--session", help="The intent's session. Without it the whole ledger is searched for it.")
]
Reason = Annotated[str, Parameter(help="Why; kept on record.")]

_EVERYTHING = Options()
_Call = Callable[[HO2Supervisor, str], Awaitable[dict[str, Any]]]


@app.command(name="list")
def list_(
    *,
    options: Options = _EVERYTHING,
    session: Annotated[str | None, Parameter(help="Only this session's. Without it the whole ledger is read.")] = None,
    json: Json = False,
) -> int:
    """List intents with their status, in the order of their declarations. Takes no lock.

    For example:

        kitchener intent list --session SES-0a1b2c3d
        kitchener intent list --json
    """
    threads: list[SessionThreads] = anyio.run(read_threads, Places(options.load().config), options.agent, session)
    rows = [row for each in threads for row in each.rows()]
    if json:
        print_json(rows)
    elif rows:
        columns = ("session_id", "intent_id", "status", "scope", "turns", "parent", "objective")
        print_table(columns, rows)
        for each in threads:
            for line in each.notes():
                print_text(line)
    else:
        print_text(f"no intents of {session or options.agent}")
    return OK


@app.command
def declare(
    objective: Annotated[str, Parameter(name="OBJECTIVE", help="What the session is to be about, in a sentence.")],
    /,
    *,
    options: Options = _EVERYTHING,
    session: Annotated[str, Parameter(help="Which session.")],
    parent: Annotated[str | None, Parameter(help="The intent above it; what belongs to that stays in view.")] = None,
    scope: Annotated[IntentScope, Parameter(help="Whose it is: the session's, or wider.")] = "SESSION",
    target: Annotated[tuple[str, ...], Parameter(negative="", help="What it works on; may be given again.")] = (),
    json: Json = False,
) -> int:
    """Declare an intent of a session. It competes with another live one, unless that is above it.

    For example:

        kitchener intent declare "find a hotel in Graz" --session SES-0a1b2c3d
        kitchener intent declare "compare prices" --session SES-0a1b2c3d --parent INT-0a1b2c3d4e5f6071
    """

    async def call(supervisor: HO2Supervisor, session_id: str) -> dict[str, Any]:
        made = await supervisor.declare_intent(session_id, objective, scope=scope, parent_intent_id=parent, targets=target)
        return {"intent_id": made, "status": "live"}

    return _write(options, session, call, is_json=json)


@app.command
def fork(
    intent: IntentId,
    objectives: Annotated[tuple[str, ...], Parameter(name="OBJECTIVE", help="One for each child.")],
    /,
    *,
    options: Options = _EVERYTHING,
    session: SessionOf = None,
    active: Annotated[
        int | None, Parameter(validator=Number(gte=1), help="The child that goes on first, counted from 1. Else they compete.")
    ] = None,
    json: Json = False,
) -> int:
    """Let an intent go on in children, one for each objective.

    For example:

        kitchener intent fork INT-0a1b2c3d4e5f6071 "the flight" "the hotel" --active 1
    """

    async def call(supervisor: HO2Supervisor, session_id: str) -> dict[str, Any]:
        position = active - 1 if active is not None else None
        children = await supervisor.fork_intent(session_id, intent, objectives, active=position)
        chosen = children[position] if position is not None else None
        return {"intent_id": intent, "status": "live", "child_intent_ids": children, "active_child_intent_id": chosen}

    return _write(options, session, call, is_json=json, intent=intent)


@app.command
def close(
    intent: IntentId,
    /,
    *,
    options: Options = _EVERYTHING,
    session: SessionOf = None,
    outcome: Annotated[str, Parameter(help="What came of it; kept on record.")] = "done",
    json: Json = False,
) -> int:
    """Close an intent: its turns are no longer shown.

    For example:

        kitchener intent close INT-0a1b2c3d4e5f6071 --outcome "booked"
    """

    async def call(supervisor: HO2Supervisor, session_id: str) -> dict[str, Any]:
        await supervisor.close_intent(session_id, intent, outcome)
        return {"intent_id": intent, "status": "closed"}

    return _write(options, session, call, is_json=json, intent=intent)


@app.command
def abandon(
    intent: IntentId, /, *, options: Options = _EVERYTHING, session: SessionOf = None, reason: Reason, json: Json = False
) -> int:
    """Give an intent up.

    For example:

        kitchener intent abandon INT-0a1b2c3d4e5f6071 --reason "too expensive"
    """

    async def call(supervisor: HO2Supervisor, session_id: str) -> dict[str, Any]:
        await supervisor.abandon_intent(session_id, intent, reason)
        return {"intent_id": intent, "status": "abandoned"}

    return _write(options, session, call, is_json=json, intent=intent)


@app.command
def reopen(
    intent: IntentId, /, *, options: Options = _EVERYTHING, session: SessionOf = None, reason: Reason, json: Json = False
) -> int:
    """Bring back an intent that was closed, abandoned or gave way to another, with its turns.

    For example:

        kitchener intent reopen INT-0a1b2c3d4e5f6071 --reason "still needed"
    """

    async def call(supervisor: HO2Supervisor, session_id: str) -> dict[str, Any]:
        await supervisor.reopen_intent(session_id, intent, reason)
        return {"intent_id": intent, "status": "live"}

    return _write(options, session, call, is_json=json, intent=intent)


def _write(options: Options, session: str | None, call: _Call, *, is_json: bool, intent: str = "") -> int:
    """Runs one call of a supervisor, and says what it did and whether intents compete now."""

    async def work() -> int:
        loaded = options.load_checked()
        places = Places(loaded.config)
        if session is None:
            agent_class, session_id = await session_of_intent(places, intent, options.agent)
        else:
            agent_class, session_id = await places.class_of(session, options.agent), session
        async with open_runtime(loaded.config) as runtime:
            supervisor = runtime.supervisor(agent_class)
            done = {"session_id": session_id, **await call(supervisor, session_id)}
            thread = (await supervisor.session(session_id)).thread
            competing: tuple[str, ...] = ()
            if thread is not None:
                competing = resolve_active(thread.state, ruleset_of(places.agent(agent_class))).competing
        done["competing"] = list(competing)
        if is_json:
            print_json(done)
            return OK
        children = f" in {', '.join(done['child_intent_ids'])}" if "child_intent_ids" in done else ""
        print_text(f"{done['intent_id']} of {session_id} is {done['status']}{children}")
        if competing:
            print_text(f"{len(competing)} intents compete now: {', '.join(competing)}")
            print_text(f"  = choose: kitchener chat --session {session_id}, then /intents keep N; or close the others")
        return OK

    return run_to_end(work)
