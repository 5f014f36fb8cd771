"""Runs one recorded turn again, with the message and the options of then."""

from typing import Final

import anyio

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.lanes.calling_chain import ToolRun, called_by
from kitchener.records.entries import opened, text_of
from kitchener.records.turn import TurnCall
from kitchener.replaying.doubles import recorded_client_tools, recorded_output
from kitchener.replaying.tape import Tape, TurnTape

DEADLINE_S: Final = 86_400.0
"""Deadline of a replayed turn, seconds. It never passes: how long the turn took is on record."""


async def run_turn(supervisor: HO2Supervisor, tape: Tape, turn: TurnTape) -> None:
    """Runs a recorded turn again, with its message and options."""
    if not turn.start.get("after_untrusted"):
        return await _run_turn(supervisor, tape, turn)
    with called_by("", ToolRun(has_read_untrusted=True)):
        await _run_turn(supervisor, tape, turn)


async def _run_turn(supervisor: HO2Supervisor, tape: Tape, turn: TurnTape) -> None:
    started = turn.start
    if (resumes := started.get("resumes")) is not None:
        call = TurnCall(
            session_id=tape.session_id,
            deadline=anyio.current_time() + DEADLINE_S,
            memory=started.get("memory", True),
            acceptance=tuple(opened(started.get("acceptance", ())) or ()),
            output=recorded_output(tape, turn),
            resumes=resumes,
            client_tools=recorded_client_tools(tape, turn),
        )
        await supervisor.handle_call(text_of(started["user_message"]), call)
        return
    client_tools = recorded_client_tools(tape, turn)
    await supervisor.handle_turn(
        text_of(started["user_message"]),
        session_id=tape.session_id,
        memory=started.get("memory", True),
        acceptance=opened(started.get("acceptance", ())) or (),
        speaker=opened(started.get("speaker")),
        parts=turn.parts,  # type: ignore[arg-type]  # as they are stored, so that no bytes are read
        output=recorded_output(tape, turn),  # with the recorded judgement of the caller's own model
        deadline=DEADLINE_S,
        tool_choice=started.get("tool_choice", "auto"),
        client_tools=client_tools or (),  # as they were checked then
    )
