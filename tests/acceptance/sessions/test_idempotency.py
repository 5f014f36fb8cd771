"""One key, one turn: while it runs, after it has ended, after a restart, and after an abort."""

import re
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import tool
from kitchener.actors.tools.tool import Tool
from kitchener.errors import CallerError, IdempotencyConflict, OutcomeUnknown, Overloaded, WaitedTooLong
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.records.tools.tool_context import ToolContext
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.conftest import OpenRuntime
from tests.acceptance.stack import QUESTION, Hold, echo, open_scripted, outcome, read_all
from tests.cli.shared.commands import finish, start_program
from tests.shared.payloads import payload_of

Call = dict[str, Any]
"""The arguments of a `handle_turn`."""


async def started(runtime: Runtime) -> list[str]:
    """The messages of all turns that began, in order."""
    entries = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_STARTED)
    return [payload_of(entry)["user_message"] for entry in entries]


async def both(runtime: Runtime, hold: Hold, *calls: Mapping[str, Any]) -> list[TurnResult | Exception]:
    """What several calls come to of which the first is held until the others wait."""
    (message,) = hold.arrived
    outcomes: list[TurnResult | Exception | None] = [None] * len(calls)

    async def send(n: int) -> None:
        outcomes[n] = await outcome(runtime.supervisor().handle_turn(**calls[n]))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, 0)
            await hold.arrived[message].wait()
            for n in range(1, len(calls)):
                tasks.start_soon(send, n)
            await anyio.wait_all_tasks_blocked()
            hold.released[message].set()
    return [each for each in outcomes if each is not None]


@pytest.mark.parametrize("policy", ["queue", "reject", "replace"])
async def test_a_running_duplicate_joins_before_any_overlap_policy(scripted: OpenRuntime, policy: str) -> None:
    """The same key and message, sent again while its turn runs: one turn, one result, whatever the policy for others."""
    hold = Hold("hello")
    async with scripted(ScriptedProvider(echo, gate=hold), overlap_policy=policy) as runtime:
        session_id = await runtime.supervisor().start_session()
        call: Call = {"message": "hello", "session_id": session_id, "idempotency_key": "k1"}
        first, second, third = await both(runtime, hold, call, call, call)
        assert isinstance(first, TurnResult)
        assert first == second == third
        assert await started(runtime) == ["hello"]


async def test_a_key_without_a_session_belongs_to_its_subject(scripted: OpenRuntime) -> None:
    """Two calls that name a subject but no session share one session and one turn; another subject's call is another turn."""
    hold = Hold("hello")
    async with scripted(ScriptedProvider(echo, gate=hold)) as runtime:
        ada: Call = {"message": "hello", "subject_id": "ada", "idempotency_key": "k1"}
        first, joined, other = await both(runtime, hold, ada, ada, {**ada, "subject_id": "bo"})
        assert isinstance(first, TurnResult)
        assert isinstance(other, TurnResult)
        assert first == joined
        assert first.session_id != other.session_id
        assert await runtime.supervisor().handle_turn(**ada) == first
        assert len(await started(runtime)) == 2


async def test_a_key_that_belongs_to_nobody_is_refused(runtime: Runtime) -> None:
    """A key needs a session or a subject."""
    with pytest.raises(CallerError, match="session_id or a subject_id"):
        await runtime.supervisor().handle_turn("hello", idempotency_key="k1")
    assert await started(runtime) == []


async def test_a_finished_turn_is_answered_from_the_ledger_after_a_restart(tmp_path: Path) -> None:
    """Another process answers with an equal result, without a model call and without a turn."""
    call: Call = {"message": "hello", "subject_id": "ada", "idempotency_key": "k1"}
    async with open_scripted(tmp_path) as runtime:
        first = await runtime.supervisor().handle_turn(**call)
        in_session: Call = {"message": "again", "session_id": first.session_id, "idempotency_key": "k1"}
        second = await runtime.supervisor().handle_turn(**in_session)
        assert await runtime.supervisor().handle_turn(**call) == first
    provider = ScriptedProvider([])
    async with open_scripted(tmp_path, provider) as runtime:
        assert await runtime.supervisor().handle_turn(**call) == first
        assert await runtime.supervisor().handle_turn(**in_session) == second
        assert await started(runtime) == ["hello", "again"]
    assert provider.requests == []


OTHERS: list[Call] = [
    {"message": "something else"},
    {"memory": False},
    {"acceptance": ["contains:hello"]},
    {"tool_choice": "none"},
]


@pytest.mark.parametrize("changed", OTHERS, ids=lambda each: next(iter(each)))
async def test_the_same_key_with_another_message_is_a_conflict(tmp_path: Path, changed: Call) -> None:
    """While the turn runs, after it, and after a restart; the error names the key."""
    hold = Hold("hello")
    async with open_scripted(tmp_path, ScriptedProvider(echo, gate=hold)) as runtime:
        session_id = await runtime.supervisor().start_session()
        call: Call = {"message": "hello", "session_id": session_id, "idempotency_key": "k1"}
        other: Call = {**call, **changed}
        first, second = await both(runtime, hold, call, other)
        assert isinstance(first, TurnResult)
        assert isinstance(second, IdempotencyConflict)
        with pytest.raises(IdempotencyConflict, match="'k1'"):
            await runtime.supervisor().handle_turn(**other)
    async with open_scripted(tmp_path) as runtime:
        with pytest.raises(IdempotencyConflict) as caught:
            await runtime.supervisor().handle_turn(**other)
        assert (caught.value.key, caught.value.turn_id) == ("k1", first.turn_id)
        assert await started(runtime) == ["hello"]


async def test_a_key_of_one_subject_never_answers_for_another(runtime: Runtime) -> None:
    """Names that only look alike when written one after the other are different owners with different keys."""
    calls = [("ada", "x|y"), ("ada|x", "y"), ("session", "x"), ("ada:x", "y"), ("ada", "x:y")]
    results = [
        await runtime.supervisor().handle_turn("hello", subject_id=subject, idempotency_key=key) for subject, key in calls
    ]
    assert len({result.session_id for result in results}) == len(calls)


async def test_a_key_is_found_among_many_sessions_of_its_subject(tmp_path: Path) -> None:
    """Clients that number their messages use one key in each of a subject's sessions; none of them is forgotten."""
    async with open_scripted(tmp_path) as runtime:
        supervisor = runtime.supervisor()
        sessions = [await supervisor.start_session(subject_id="ada") for _ in range(40)]
        results = [await supervisor.handle_turn("hello", session_id=session_id, idempotency_key="1") for session_id in sessions]
    async with open_scripted(tmp_path, ScriptedProvider([])) as runtime:
        for result in results:
            again = await runtime.supervisor().handle_turn("hello", session_id=result.session_id, idempotency_key="1")
            assert again == result


async def cut_off(runtime: Runtime, reached: anyio.Event, **call: Any) -> None:
    """A call that is cancelled once it has reached a point."""
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:

            async def send() -> None:
                await runtime.supervisor().handle_turn(**call)

            tasks.start_soon(send)
            await reached.wait()
            tasks.cancel_scope.cancel()


async def test_an_aborted_turns_key_runs_again(tmp_path: Path) -> None:
    """After an abort the key has a new turn, in this process and in another, and its result is the key's from then on."""
    hold = Hold("hello")
    call: Call = {"message": "hello", "subject_id": "ada", "idempotency_key": "k1"}
    async with open_scripted(tmp_path, ScriptedProvider(echo, gate=hold)) as runtime:
        session_id = await runtime.supervisor().start_session(subject_id="ada")
        call["session_id"] = session_id
        await cut_off(runtime, hold.arrived["hello"], **call)
        hold.arrived["hello"] = anyio.Event()
        await cut_off(runtime, hold.arrived["hello"], **call)
    async with open_scripted(tmp_path) as runtime:
        result = await runtime.supervisor().handle_turn(**call)
        assert result.turn_id.endswith("-000003")
        assert await runtime.supervisor().handle_turn(**call) == result
        assert await started(runtime) == ["hello"] * 3


async def test_a_message_that_is_sent_again_runs_its_tools_under_other_keys(tmp_path: Path) -> None:
    """What a tool's author can rely on (docs/tools.md): the second turn is another one, and so are its calls."""
    keys: list[str] = []

    @tool
    def pay(order: str, call: ToolContext) -> str:
        """Pays an order."""
        keys.append(call.idempotency_key)
        return f"paid {order}"

    hold = Hold("pay it", wo_type="synthesize")

    async def stop_after_the_tool(request: PromptRequest) -> None:
        if len(keys) == 1:
            await hold(request)

    def model(request: PromptRequest) -> Mapping[str, Any]:
        if request.wo_type == "synthesize":
            return {"response_text": "done"}
        return {**QUESTION, "speech_act": "command", "tool_request": {"tool_id": "pay", "arguments": {"order": "7"}}}

    provider = ScriptedProvider(model, gate=stop_after_the_tool)
    call: Call = {"message": "pay it", "subject_id": "ada", "idempotency_key": "k"}
    async with open_scripted(tmp_path, provider, tools=[pay]) as runtime:
        await cut_off(runtime, hold.arrived["pay it"], **call)
        hold.released["pay it"].set()
        with anyio.fail_after(10):
            result = await runtime.supervisor().handle_turn(**call)
        assert (result.response, len(keys), len(set(keys))) == ("done", 2, 2)
        assert await runtime.supervisor().handle_turn(**call) == result
        assert len(keys) == 2, "a turn that completed is answered from the record"


async def test_a_joiner_takes_over_when_the_first_caller_is_cancelled(scripted: OpenRuntime) -> None:
    """The turn belongs to the caller that started it; if that one goes away, a duplicate that waits runs it anew."""
    hold = Hold("hello")
    async with scripted(ScriptedProvider(echo, gate=hold)) as runtime:
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session()
        outcomes: list[TurnResult | Exception] = []
        first = anyio.CancelScope()

        async def send(scope: anyio.CancelScope) -> None:
            with scope:
                call = supervisor.handle_turn("hello", session_id=session_id, idempotency_key="k1")
                outcomes.append(await outcome(call))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, first)
                await hold.arrived["hello"].wait()
                tasks.start_soon(send, anyio.CancelScope())
                await anyio.wait_all_tasks_blocked()
                first.cancel()
                hold.released["hello"].set()
        (result,) = outcomes
        assert isinstance(result, TurnResult)
        assert result.turn_id.endswith("-000002")


async def test_a_refused_messages_key_is_free(scripted: OpenRuntime) -> None:
    """A message that was turned away started nothing: its key runs when it is sent again."""
    hold = Hold("running")
    async with scripted(ScriptedProvider(echo, gate=hold), admission_deadline_s=0.01) as runtime:
        session_id = await runtime.supervisor().start_session()
        call: Call = {"message": "late", "session_id": session_id, "idempotency_key": "k1"}
        _, late = await both_with_late(runtime, hold, call)
        assert isinstance(late, Overloaded)
        (rejected,) = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_REJECTED)
        assert rejected.payload["idempotency_key"] == "k1"
        assert (await runtime.supervisor().handle_turn(**call)).response == "echo: late"


async def test_a_duplicate_that_waits_too_long_is_told_for_what(scripted: OpenRuntime) -> None:
    """Regression: it said that a running turn was full."""
    hold = Hold("running")
    async with scripted(ScriptedProvider(echo, gate=hold)) as runtime:
        session_id = await runtime.supervisor().start_session()
        call: Call = {"message": "running", "session_id": session_id, "idempotency_key": "k1"}
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(runtime.supervisor().handle_turn, **call))
                await hold.arrived["running"].wait()
                late = await outcome(runtime.supervisor().handle_turn(**call, deadline=0.1))
                hold.released["running"].set()
    assert isinstance(late, WaitedTooLong)
    assert re.fullmatch(r"the running turn of idempotency key 'k1' took more than 0\.\d+ s; nothing was started, .*", str(late))


async def both_with_late(runtime: Runtime, hold: Hold, call: Mapping[str, Any]) -> list[TurnResult | Exception]:
    """A held turn of the same session, and what the call comes to while it runs."""
    outcomes: list[TurnResult | Exception] = []

    async def run() -> None:
        outcomes.append(await outcome(runtime.supervisor().handle_turn("running", session_id=call["session_id"])))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await hold.arrived["running"].wait()
            late = await outcome(runtime.supervisor().handle_turn(**call))
            hold.released["running"].set()
    return [*outcomes, late]


class Lever:
    """A tool that hangs when it is first run, with an effect or without."""

    def __init__(self, *, read_only: bool) -> None:
        self.runs = 0
        self.pulled = anyio.Event()

        @tool(read_only=read_only)
        async def pull_lever() -> str:
            """Pulls the lever."""
            self.runs += 1
            self.pulled.set()
            if self.runs == 1:
                await anyio.sleep_forever()
            return "pulled"

        self.tool: Tool[..., Any] = pull_lever


def pulling(request: PromptRequest) -> Mapping[str, Any]:
    """A model that takes every message for the command to pull the lever."""
    if request.wo_type == "classify":
        return {**QUESTION, "speech_act": "command", "tool_request": {"tool_id": "pull_lever", "arguments": {}}}
    return echo(request)


async def test_an_effect_of_unknown_outcome_is_never_repeated(tmp_path: Path) -> None:
    """Cut off while a tool with effects ran: the key is refused, here and after a restart, and the tool does not run again."""
    lever = Lever(read_only=False)
    async with open_scripted(tmp_path, ScriptedProvider(pulling), tools=[lever.tool]) as runtime:
        session_id = await runtime.supervisor().start_session()
        call: Call = {"message": "pull!", "session_id": session_id, "idempotency_key": "k1"}
        await cut_off(runtime, lever.pulled, **call)
        with pytest.raises(OutcomeUnknown, match="pull_lever"):
            await runtime.supervisor().handle_turn(**call)
    async with open_scripted(tmp_path, ScriptedProvider(pulling), tools=[lever.tool]) as runtime:
        with pytest.raises(OutcomeUnknown) as caught:
            await runtime.supervisor().handle_turn(**call)
        assert (caught.value.key, caught.value.tool_id) == ("k1", "pull_lever")
        assert caught.value.turn_id == f"T-{session_id[4:]}-000001"
        assert lever.runs == 1
        result = await runtime.supervisor().handle_turn("pull!", session_id=session_id, idempotency_key="k2")
        assert (result.error, lever.runs) == (None, 2)


async def test_a_read_only_tool_leaves_no_unknown_outcome(scripted: OpenRuntime) -> None:
    """Cut off while a tool without effects ran: there is nothing to repeat by mistake, so the key runs again."""
    lever = Lever(read_only=True)
    async with scripted(ScriptedProvider(pulling), tools=[lever.tool]) as runtime:
        session_id = await runtime.supervisor().start_session()
        call: Call = {"message": "pull!", "session_id": session_id, "idempotency_key": "k1"}
        await cut_off(runtime, lever.pulled, **call)
        result = await runtime.supervisor().handle_turn(**call)
    assert (result.error, lever.runs) == (None, 2)


FATAL = """
import os, signal, sys
from pathlib import Path

import anyio

from kitchener import tool
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import open_scripted
from tests.acceptance.sessions.test_idempotency import pulling


@tool
async def pull_lever() -> str:
    "Pulls the lever, and all the lights go out."
    os.kill(os.getpid(), signal.SIGKILL)


async def main():
    async with open_scripted(Path(sys.argv[1]), ScriptedProvider(pulling), tools=[pull_lever]) as runtime:
        await runtime.supervisor().handle_turn("pull!", subject_id="ada", idempotency_key="k1")


anyio.run(main, backend=sys.argv[2])
"""


async def test_a_process_that_dies_in_a_tool_leaves_the_tools_start_on_record(tmp_path: Path, anyio_backend: str) -> None:
    """Before a tool with effects runs, its start is on disk, and so is its turn: the next process knows what it cannot know."""
    lever = Lever(read_only=False)
    died = finish(start_program(FATAL, tmp_path, anyio_backend))
    assert died.code == -signal.SIGKILL, died.err
    async with open_scripted(tmp_path, ScriptedProvider(pulling), tools=[lever.tool]) as runtime:
        with pytest.raises(OutcomeUnknown, match="pull_lever"):
            await runtime.supervisor().handle_turn("pull!", subject_id="ada", idempotency_key="k1")
        assert await started(runtime) == ["pull!"]
        assert lever.runs == 0
