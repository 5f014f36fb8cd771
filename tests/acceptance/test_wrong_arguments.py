"""A wrong argument of a call is an error that names it, whatever its type (docs/turn.md, docs/runtime.md)."""

import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kitchener import CallerError, KitchenerError, Runtime
from kitchener.records import events
from kitchener.testing import ScriptedProvider
from tests.acceptance.approval.kit import Desk, model, open_desk
from tests.acceptance.stack import echo, open_scripted, read_all


class Thing:
    """An object that no argument expects."""


JUNK: tuple[Any, ...] = (
    *(0, -1, 1.5, float("nan"), 10**400, True, "", "x", "\0", "\ud800", "y" * 100_000, b"x", [], [5], (5,), {}, {5: 5}),
    *({"a": 5}, {1}, Thing(), Thing, print, int),
)


def calls_of(runtime: Runtime, session_id: str) -> dict[Callable[..., Any], dict[str, object]]:
    """The public calls of an agent, and right arguments for each."""
    agent, intent, ask = runtime.supervisor(), "INT-0000000000000000", f"WO-{session_id}-001.1"
    of_intent = {"session_id": session_id, "intent_id": intent}
    return {
        runtime.supervisor: {},
        runtime.sessions: {},
        runtime.pending_approvals: {},
        runtime.erase_subject: {"subject_id": "nobody"},
        agent.start_session: {},
        agent.session: {"session_id": session_id},
        agent.end_session: {"session_id": "SES-00000000"},
        agent.find_external: {"external_id": "chat-7"},
        agent.find_all_external: {"external_id": "chat-7"},
        agent.handle_turn: {"message": "hello"},
        agent.stream_turn: {"message": "hello"},
        agent.approve: {"approval_id": ask},
        agent.deny: {"approval_id": ask},
        agent.answer_client_calls: {"outputs": {ask: "x"}},
        agent.run_consolidation: {"signal_ids": ["topic:x"]},
        agent.declare_intent: {"session_id": session_id, "objective": "to rest"},
        agent.fork_intent: {**of_intent, "objectives": ["a", "b"]},
        agent.close_intent: {**of_intent, "outcome": "done"},
        agent.abandon_intent: {**of_intent, "reason": "late"},
        agent.reopen_intent: {**of_intent, "reason": "early"},
        agent.resolve_conflict: {"session_id": session_id, "keep": intent},
    }


async def done(call: Callable[..., Any], arguments: dict[str, object]) -> None:
    made = call(**arguments)
    if inspect.isawaitable(made):
        await made
    elif inspect.isasyncgen(made):
        async for _ in made:
            pass


async def test_no_wrong_argument_of_a_call_is_a_bug(tmp_path: Path) -> None:
    """It is taken, or refused with an error of this library. Each argument gets values of many types."""
    found = []
    async with open_scripted(tmp_path, ScriptedProvider(echo)) as runtime:
        session_id = await runtime.supervisor().start_session(subject_id="ada")
        for call, arguments in calls_of(runtime, session_id).items():
            for name in inspect.signature(call).parameters:
                for value in JUNK:
                    if name == "listener" and callable(value):  # it is told updates, and may raise what it likes
                        continue
                    try:
                        with suppress(KitchenerError):
                            await done(call, {**arguments, name: value})
                    except Exception as error:  # noqa: BLE001  what the test looks for
                        found.append(f"{call.__name__}({name}={value!r:.30}): {error!r:.80}")
    assert found == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"listener": 5}, "listener = 5: expected an asynchronous function of one update"),
        ({"listener": Thing}, "expected an asynchronous function of one update"),
        ({"client_tools": 0}, "client_tools = 0: expected a list of ClientTool"),
        ({"client_tools": {}}, "client_tools = {}: expected a list of ClientTool"),
    ],
)
async def test_a_wrong_argument_of_a_message_starts_nothing(tmp_path: Path, arguments: Any, problem: str) -> None:
    async with open_scripted(tmp_path, ScriptedProvider(echo)) as runtime:
        with pytest.raises(CallerError, match=problem):
            await runtime.supervisor().handle_turn("hello", **arguments)
        assert await runtime.sessions() == []


async def test_a_wrong_listener_of_an_answer_answers_nothing(tmp_path: Path) -> None:
    """Regression: the answer was on record, the tool ran, and then the turn was aborted."""
    desk = Desk()
    async with open_desk(tmp_path / "root", desk, model([("delete", {"path": "a.txt"})])) as runtime:
        agent = runtime.supervisor()
        (approval_id,) = (await agent.handle_turn("tidy up", subject_id="ada")).pending_approval
        wrong: Any = 5
        answers: list[Callable[[], Awaitable[object]]] = [
            lambda: agent.approve(approval_id, listener=wrong),
            lambda: agent.deny(approval_id, listener=wrong),
        ]
        for answer in answers:
            with pytest.raises(CallerError, match="listener = 5"):
                await answer()
        assert await read_all(runtime.ledgers().ho2m, entry_type=events.APPROVAL_RESOLVED) == []
        assert desk.done == []


async def test_a_wrong_number_of_results_is_refused(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, ScriptedProvider(echo)) as runtime:
        for limit in (0, -1, 1.5, True, "10", None, 10**400):
            wrong: Any = limit
            with pytest.raises(CallerError, match=r"^limit = .*: expected a whole number from 1 to 1,000,000,000,000$"):
                await runtime.sessions(limit=wrong)
            with pytest.raises(CallerError, match=r"^limit = .*: expected a whole number from 1"):
                await runtime.supervisor().find_all_external("chat-7", limit=wrong)
