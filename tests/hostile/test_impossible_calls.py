"""Calls that cannot be right are refused at once with what would be right; nothing is started, nothing half recorded."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import tool
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.errors import CallerError, ReentrantTurn
from kitchener.records.prompt import PromptRequest
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import echo, open_scripted, read_all
from tests.hostile.kit import bystander, unless_bystander

NO_DEADLINE: list[Any] = [float("inf"), float("-inf"), float("nan"), 0, -1, 1e300, "5", b"5", [5], 2 + 1j, True, 86_401]
NO_SESSION: list[Any] = ["SES-", "SES-XYZ", "ses-00000000"]
NO_BOOL: list[Any] = [None, 1, "no", []]
BAD_SESSIONS: list[Any] = [7, b"SES-00000001", ["SES-00000001"], {}, "SES-1", "x" * 10_000]
BAD_TEXTS: list[Any] = [7, b"text", {}, "", "half \ud800", "x" * 10_000]
NO_ID: list[Any] = [7, 7.5, b"ada", ["ada"], {}, "", "a\x00b", "a\ud800", "a\nb", "x" * 257]


@pytest.mark.parametrize("anyio_backend", ["trio"])  # options are checked without waiting
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("deadline", NO_DEADLINE),
        ("subject_id", NO_ID),
        ("idempotency_key", NO_ID),
        ("session_id", [*NO_ID, *NO_SESSION]),
        ("memory", NO_BOOL),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_an_option_that_cannot_be_right_is_named(tmp_path: Path, name: str, values: list[Any], *, streams: bool) -> None:
    async with open_scripted(tmp_path) as runtime:
        supervisor = runtime.supervisor()
        for value in values:
            options = {"subject_id": "mallory", name: value}
            turn = anext(supervisor.stream_turn("hello", **options)) if streams else supervisor.handle_turn("hello", **options)
            with pytest.raises(CallerError) as caught:
                await turn
            text = str(caught.value)
            assert name.replace("_", " ") in text.replace("_", " "), value
            assert "expected" in text, value
            assert len(text) < 400, value
            assert await read_all(runtime.ledgers().ho2m) == [], value


Call = Callable[[HO2Supervisor, Any], Awaitable[object]]
WITH_A_SESSION: Mapping[str, Call] = {
    "end_session": lambda s, session: s.end_session(session),
    "session": lambda s, session: s.session(session),
    "start_session": lambda s, session: s.start_session(session),
    "declare_intent": lambda s, session: s.declare_intent(session, "a goal"),
    "fork_intent": lambda s, session: s.fork_intent(session, "INT-1", ["a"]),
    "close_intent": lambda s, session: s.close_intent(session, "INT-1", "done"),
    "abandon_intent": lambda s, session: s.abandon_intent(session, "INT-1", "no"),
    "reopen_intent": lambda s, session: s.reopen_intent(session, "INT-1", "yes"),
    "resolve_conflict": lambda s, session: s.resolve_conflict(session, keep="INT-1"),
}
WITH_TEXTS: Mapping[str, Call] = {
    "reason": lambda s, text: s.end_session("SES-00000001", reason=text),
    "external_id": lambda s, text: s.find_external(text),
    "objective": lambda s, text: s.declare_intent("SES-00000001", text),
    "objectives": lambda s, text: s.fork_intent("SES-00000001", "INT-1", text),
    "targets": lambda s, text: s.declare_intent("SES-00000001", "a goal", targets=text),
    "outcome": lambda s, text: s.close_intent("SES-00000001", "INT-1", text),
}


@pytest.mark.parametrize("anyio_backend", ["trio"])  # options are checked without waiting
@pytest.mark.parametrize("call", WITH_A_SESSION)
async def test_a_session_id_that_is_none_is_refused_everywhere(tmp_path: Path, call: str) -> None:
    async with open_scripted(tmp_path, context_mode="enforce") as runtime:
        for value in BAD_SESSIONS:
            with pytest.raises(CallerError, match="session id") as caught:
                await WITH_A_SESSION[call](runtime.supervisor(), value)
            assert len(str(caught.value)) < 400
        assert await read_all(runtime.ledgers().ho2m) == []


@pytest.mark.parametrize("anyio_backend", ["trio"])  # options are checked without waiting
@pytest.mark.parametrize("call", WITH_TEXTS)
async def test_a_text_that_is_none_is_refused_everywhere(tmp_path: Path, call: str) -> None:
    async with open_scripted(tmp_path, context_mode="enforce") as runtime:
        for value in BAD_TEXTS:
            with pytest.raises(CallerError, match=call.rstrip("s")):
                await WITH_TEXTS[call](runtime.supervisor(), value)


REENTRANT: Mapping[str, Callable[[Runtime, str], Awaitable[object]]] = {
    "end_session": lambda runtime, session: runtime.supervisor().end_session(session),
    "handle_turn": lambda runtime, session: runtime.supervisor().handle_turn("again", session_id=session),
    "declare_intent": lambda runtime, session: runtime.supervisor().declare_intent(session, "a goal"),
    "close_intent": lambda runtime, session: runtime.supervisor().close_intent(session, "INT-1", "done"),
    "drain": lambda runtime, session: runtime.drain(),
}


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("call", REENTRANT)
async def test_a_tool_that_would_wait_for_its_own_turn_is_told_at_once(tmp_path: Path, call: str, *, is_async: bool) -> None:
    """Regression: `end_session` waited for the turn that waited for it, and then said that a queue was full."""
    told: list[BaseException] = []

    async def attempt(session_id: str) -> str:
        try:
            await REENTRANT[call](runtime, session_id)
        except ReentrantTurn as error:
            told.append(error)
            raise
        return "done"

    if is_async:

        @tool(name="attack", read_only=True)
        async def attack(session_id: str) -> str:
            """Calls back into its own session."""
            return await attempt(session_id)
    else:

        @tool(name="attack", read_only=True)
        def attack(session_id: str) -> str:
            """Calls back into its own session, from a thread."""
            return anyio.from_thread.run(attempt, session_id)

    def answer(request: PromptRequest) -> Any:
        if request.wo_type == "synthesize" and request.call == 1:
            return use_tool("attack", session_id=request.session_id)
        return echo(request)

    provider = ScriptedProvider(unless_bystander(answer))
    async with open_scripted(tmp_path, provider, tools=[attack], context_mode="enforce") as runtime, bystander(runtime):
        session_id = await runtime.supervisor().start_session(subject_id="mallory")
        with anyio.fail_after(10):
            result = await runtime.supervisor().handle_turn("attack", session_id=session_id)
        assert result.response == "echo: attack"
        [error] = told
        assert session_id in str(error)
        await runtime.supervisor().end_session(session_id)
