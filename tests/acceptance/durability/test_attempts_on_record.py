"""Each attempt at a model call is on record once, with its outcome or as cut off; only the end of the process loses one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kitchener.actors.executor.executor import HO1Executor
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.clock import SystemClock
from kitchener.config import HO2Config, ProviderConfig, RouterConfig, RuntimeConfig
from kitchener.errors import ProviderError
from kitchener.ledger import StoredEntry
from kitchener.model_usage import Usage
from kitchener.records import events
from kitchener.records.prompt import Attempt, OnAttempt, PromptRequest, PromptResponse
from kitchener.records.work_order import Cost, DirectReply, WorkOrder
from kitchener.replaying import replay_session
from kitchener.runtime import Runtime, open_runtime
from kitchener.testing import ScriptedProvider
from kitchener.tuning import RecordedCall, read_calls
from tests.acceptance.conftest import OpenStack
from tests.acceptance.stack import Hold, ScriptedExecutor, Stack, echo, fitting, outcome, read_all, scripted_config
from tests.actors.time_control import in_stopped_time, pass_time_after
from tests.cli.shared.commands import finish, start_program

ROUTER = RouterConfig(
    default_provider="main",
    providers={"main": ProviderConfig(kind="offline", max_retries=1, backoff_initial_s=1e-6)},
    fallbacks={"main": ("spare",)},
)


def config_of(root: Path, **config: Any) -> RuntimeConfig:
    return scripted_config(root, **config).model_copy(update={"router": ROUTER})


async def attempts_of(runtime: Runtime, session_id: str) -> list[StoredEntry]:
    return await read_all(runtime.ledgers().ho1m, session_id=session_id, entry_type=events.OF_MODEL_CALLS)


async def calls_of(runtime: Runtime, session_id: str) -> list[RecordedCall]:
    ledgers: Any = runtime.ledgers()  # a writer's ledger reads as a reader's does
    return [each async for each in read_calls(ledgers.ho1m, ledgers.ho2m, session_id)]


async def test_an_answer_tells_its_attempt_and_the_failures_before_it_stand_alone(tmp_path: Path) -> None:
    """A retry and a fallback of one subject's reply; what-if and replay see all attempts. The other subject's call is plain."""

    def main(request: PromptRequest) -> Any:
        if request.wo_type == "synthesize" and request.variables["user_message"] == "down":
            return ProviderError("main", "server_error", "down")
        return echo(request)

    config = config_of(tmp_path)
    providers = {"main": ScriptedProvider(main), "spare": ScriptedProvider(echo, model_id="spare-1")}
    async with open_runtime(config, providers=providers) as runtime:
        ada, bob = [await runtime.supervisor().handle_turn(said, subject_id=said) for said in ("down", "up")]
        told = [
            (entry.entry_type, entry.payload["attempt"], entry.payload["provider_id"], entry.payload["route_reason"])
            for entry in await attempts_of(runtime, ada.session_id)
        ]
        plain = [(each.entry_type, each.payload["attempt"]) for each in await attempts_of(runtime, bob.session_id)]
        reply = (await calls_of(runtime, ada.session_id))[-1]
    assert told == [
        (events.LLM_CALL, 1, "main", "default"),
        (events.ATTEMPT_FAILED, 1, "main", "default"),
        (events.ATTEMPT_FAILED, 2, "main", "default"),
        (events.LLM_CALL, 3, "spare", "fallback"),
    ]
    assert plain == [(events.LLM_CALL, 1)] * 2
    assert [(each.provider_id, each.failure) for each in reply.tries] == [
        ("main", "server_error"),
        ("main", "server_error"),
        ("spare", None),
    ]
    assert reply.state == "answered"
    for session_id in (ada.session_id, bob.session_id):
        report = await replay_session(session_id, config=config)
        assert report.is_identical, report.text()


class Renaming:
    """A provider that answers under another model's name than it was asked for."""

    async def complete(self, request: PromptRequest) -> PromptResponse:
        answer = dict(echo(request))
        return PromptResponse(provider_id="main", model_id="their-name", text="", structured=answer, usage=Usage(3, 2))


async def test_the_model_that_was_asked_for_is_told_where_the_answer_has_another_name(tmp_path: Path) -> None:
    config = config_of(tmp_path).model_copy(update={"router": ROUTER.model_copy(update={"default_model": "asked-1"})})
    async with open_runtime(config, providers={"main": Renaming(), "spare": ScriptedProvider(echo)}) as runtime:
        result = await runtime.supervisor().handle_turn("hello")
        answers = [entry.payload for entry in await attempts_of(runtime, result.session_id)]
        calls = await calls_of(runtime, result.session_id)
    assert {(each["model_id"], each["requested_model_id"]) for each in answers} == {("their-name", "asked-1")}
    assert {each.model_id for call in calls for each in call.tries} == {"asked-1"}
    report = await replay_session(result.session_id, config=config)
    assert report.is_identical, report.text()


async def cancel(runtime: Runtime, session_id: str, hold: Hold) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: runtime.supervisor().handle_turn("slow", session_id=session_id))
        await hold.arrived["slow"].wait()
        tasks.cancel_scope.cancel()


async def cancel_stream(runtime: Runtime, session_id: str, hold: Hold) -> None:
    async def read() -> None:
        async for _ in runtime.supervisor().stream_turn("slow", session_id=session_id):
            pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await hold.arrived["slow"].wait()
        tasks.cancel_scope.cancel()


async def run_late(runtime: Runtime, session_id: str, hold: Hold) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pass_time_after, hold.arrived["slow"].is_set, 15)
        await outcome(runtime.supervisor().handle_turn("slow", session_id=session_id, deadline=15))


async def replace(runtime: Runtime, session_id: str, hold: Hold) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: outcome(runtime.supervisor().handle_turn("slow", session_id=session_id)))
        await hold.arrived["slow"].wait()
        await runtime.supervisor().handle_turn("newer", session_id=session_id)


CUTS: Mapping[str, tuple[Callable[..., Any], str]] = {
    "cancelled": (cancel, "cancelled"),
    "stream cancelled": (cancel_stream, "cancelled"),
    "replaced": (replace, "cancelled"),
}


@pytest.mark.parametrize("how", CUTS)
async def test_an_attempt_that_was_cut_off_is_on_record_before_the_abort(tmp_path: Path, how: str) -> None:
    """After a failed one, with provider and number. Another subject's turn meanwhile records its answers alone."""
    await check_record(tmp_path, *CUTS[how])


@in_stopped_time
async def test_an_attempt_past_its_deadline_is_on_record_before_the_abort(tmp_path: Path) -> None:
    """Its deadline comes while the second attempt runs."""
    await check_record(tmp_path, run_late, "timeout")


async def check_record(tmp_path: Path, act: Callable[..., Any], reason: str) -> None:
    hold, failed = Hold("slow", wo_type="synthesize"), list[str]()

    def model(request: PromptRequest) -> Any:
        if request.wo_type == "synthesize" and request.variables["user_message"] == "slow" and not failed:
            failed.append(request.wo_id)
            raise ProviderError("main", "connection", "on purpose, once")
        return echo(request)

    async def gate(request: PromptRequest) -> None:
        if request.wo_id in failed:
            await hold(request)

    config = config_of(tmp_path, overlap_policy="replace")
    providers = {"main": ScriptedProvider(model, gate=gate), "spare": ScriptedProvider(echo)}
    async with open_runtime(config, providers=providers) as runtime:
        supervisor = runtime.supervisor()
        ada = await supervisor.start_session(subject_id="ada")
        with anyio.fail_after(20):
            await act(runtime, ada, hold)
            # The turn of a stream that nobody reads any more ends a moment later.
            ho2m = runtime.ledgers().ho2m
            while not (ended := await read_all(ho2m, session_id=ada, entry_type=events.TURN_ABORTED)):
                await anyio.lowlevel.checkpoint()
        (aborted,) = ended
        assert aborted.payload["reason"] == reason
        entries = [each for each in await attempts_of(runtime, ada) if each.payload["turn_id"] == aborted.entity_id]
        call = (await calls_of(runtime, ada))[1]
        bob = await supervisor.handle_turn("hello", subject_id="bob")
        others = await attempts_of(runtime, bob.session_id)
    classified, first, second = entries
    assert classified.entry_type == events.LLM_CALL
    assert (first.entry_type, first.payload["attempt"], first.payload["reason"]) == (events.ATTEMPT_FAILED, 1, "connection")
    if second.entry_type == events.ATTEMPT_FAILED:  # the gateway can meet the deadline before the turn's end does
        assert second.payload["reason"] == reason == "timeout"
    else:
        assert second.entry_type == events.ATTEMPT_STARTED
        assert call.state == "cut off"
    assert (second.payload["attempt"], second.payload["provider_id"], second.payload["call"]) == (2, "main", 1)
    assert second.timestamp < aborted.timestamp
    assert len(call.tries) == 2
    assert {each.entry_type for each in others} == {events.LLM_CALL}
    report = await replay_session(ada, config=config)
    assert report.is_identical, report.text()
    assert aborted.entity_id in report.skipped


class Breaking:
    """A gateway that breaks down in the middle of the second call."""

    def __init__(self) -> None:
        self.calls = 0

    async def complete(self, request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
        self.calls += 1
        await on_attempt(Attempt("started", request.call, 1, "main", "m-1", "default"))
        if self.calls == 2:
            raise RuntimeError("out of order")
        return PromptResponse(provider_id="main", model_id="m-1", text="no object", usage=Usage(3, 2))

    def stream(self, request: PromptRequest, *, on_attempt: OnAttempt) -> Any:
        raise NotImplementedError


async def test_a_call_without_ho1_is_numbered_after_those_that_ho1_began(by_hand: OpenStack) -> None:
    """One was answered, the other one had no answer when HO1 broke down."""
    gateway, before, stacks = Breaking(), list[int](), list[Stack]()

    async def classified(wo: WorkOrder) -> WorkOrder | Mapping[str, Any]:
        executor = HO1Executor(
            ledgers=stacks[0].ledgers,
            gateway=gateway,
            prompts=PromptLibrary.load(),
            tools=ToolRegistry(),
            clock=SystemClock(),
            config=HO2Config(),
        )
        return await executor.execute(wo)

    async def direct(work_order: WorkOrder, *, calls_before: int) -> DirectReply:
        before.append(calls_before)
        return DirectReply("direct", Cost(llm_calls=1))

    executor = ScriptedExecutor(lambda wo: classified(wo) if wo.wo_type == "classify" else fitting(wo))
    async with by_hand(executor, direct_call=direct) as stack:
        stacks.append(stack)
        result = await stack.turn("hello")
        told = [
            (each.entry_type, each.payload["call"]) async for each in stack.ledgers.ho1m.read(entry_type=events.OF_MODEL_CALLS)
        ]
    assert (result.response, before) == ("direct", [2])
    assert told == [(events.LLM_CALL, 1), (events.ATTEMPT_STARTED, 2)]


_KILLED = """
import os, signal, sys
import anyio
from kitchener.runtime import open_runtime
from kitchener.testing import ScriptedProvider
from pathlib import Path
from tests.acceptance.stack import echo, scripted_config

async def main():
    async def gate(request):
        if request.variables["user_message"] == "last":
            await runtime.ledgers().commit()
            os.kill(os.getpid(), signal.SIGKILL)

    provider = ScriptedProvider(echo, gate=gate)
    async with open_runtime(scripted_config(Path(sys.argv[1])), providers={"scripted": provider}) as runtime:
        session_id = await runtime.supervisor().start_session("SES-0000000a", subject_id="ada")
        for message in ("first", "last"):
            await runtime.supervisor().handle_turn(message, session_id=session_id)

anyio.run(main, backend=sys.argv[2])
"""


async def test_a_process_that_ends_in_the_middle_of_a_call_leaves_a_session_that_goes_on(
    tmp_path: Path, anyio_backend_name: str
) -> None:
    """The attempt is not told; the turn is aborted as a crash, the ledgers verify, and the rest replays identical."""
    died = finish(start_program(_KILLED, tmp_path, anyio_backend_name))
    assert died.code == -9, died.err
    session_id, config = "SES-0000000a", scripted_config(tmp_path)
    async with open_runtime(config, providers={"scripted": ScriptedProvider(echo)}) as runtime:
        result = await runtime.supervisor().handle_turn("next", session_id=session_id)
        ends = await read_all(
            runtime.ledgers().ho2m, session_id=session_id, entry_type=(events.TURN_COMPLETED, events.TURN_ABORTED)
        )
        told = {(each.payload["turn_id"], each.entry_type) for each in await attempts_of(runtime, session_id)}
        for ledger in (runtime.ledgers().ho1m, runtime.ledgers().ho2m):
            assert (await ledger.verify()).ok
    assert result.response == "echo: next"
    first, aborted, last = ends
    assert aborted.payload["reason"] == "crash"
    assert told == {(each.entity_id, events.LLM_CALL) for each in (first, last)}
    report = await replay_session(session_id, config=config)
    assert report.is_identical, report.text()
    assert set(report.skipped) <= {aborted.entity_id}
