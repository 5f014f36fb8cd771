"""A turn that may not call the model, or whose HO1 is broken, says so on record and never raises."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import tool
from kitchener.canonical import digest
from kitchener.config import LedgerConfig
from kitchener.errors import InvalidMessage, KitchenerError
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.records.work_order import Cost, WorkOrder, WorkOrderError
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.conftest import OpenStack
from tests.acceptance.stack import (
    AT,
    QUESTION,
    Said,
    ScriptedExecutor,
    check_lives,
    fitting,
    open_by_hand,
    open_scripted,
    read_all,
    synthesizes,
)
from tests.shared.payloads import payload_of

LARGE = Cost(input_tokens=2_000, output_tokens=1_000, llm_calls=1)


def costly(wo: WorkOrder) -> Said:
    """Every work order costs three thousand tokens."""
    output = fitting(wo)
    assert isinstance(output, dict)
    return wo.executing().completed(output, LARGE, AT)


async def test_the_budget_ceiling_holds_over_a_sessions_life(tmp_path: Path) -> None:
    """What a session has used counts in every later turn, also after a restart, and in no other session."""
    settings: dict[str, Any] = {"budget_ceiling": 7_500}
    async with open_by_hand(tmp_path, ScriptedExecutor(costly), settings=settings) as stack:
        first = await stack.turn("one")
        assert first.error is None
        refused = await stack.turn("two", session_id=first.session_id)
        assert (await stack.turn("one")).error is None
    async with open_by_hand(tmp_path, ScriptedExecutor(costly), settings=settings) as stack:
        again = await stack.turn("three", session_id=first.session_id)
        assert [wo.session_id for wo in stack.executor.given] in ([], [first.session_id])
        assert (await stack.turn("one")).error is None
    for result in (refused, again):
        assert result.degraded
        assert result.error is not None
        assert result.error.kind == "BUDGET"


async def test_what_an_aborted_turn_used_counts_after_a_restart(tmp_path: Path) -> None:
    """Cutting a turn off after its classification does not make its tokens free, here or in another process."""
    hanging = anyio.Event()

    async def hang(_wo: WorkOrder) -> Said:
        hanging.set()
        await anyio.sleep_forever()
        raise AssertionError

    def script(wo: WorkOrder) -> Any:
        return hang(wo) if wo.wo_type == "synthesize" else costly(wo)

    settings: dict[str, Any] = {"budget_ceiling": 5_000}
    async with open_by_hand(tmp_path, ScriptedExecutor(script), settings=settings) as stack:
        session_id = await stack.supervisor.start_session()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:

                async def send() -> None:
                    await stack.supervisor.handle_turn("one", session_id=session_id)

                tasks.start_soon(send)
                await hanging.wait()
                tasks.cancel_scope.cancel()
        used = (await stack.supervisor.session(session_id)).state.tokens_used
    assert used == LARGE.input_tokens + LARGE.output_tokens
    async with open_by_hand(tmp_path, ScriptedExecutor(costly), settings=settings) as stack:
        assert (await stack.supervisor.session(session_id)).state.tokens_used == used
        result = await stack.turn("two", session_id=session_id)
        assert result.error is not None
        assert result.error.kind == "BUDGET"


async def test_a_turns_work_orders_share_its_budget(by_hand: OpenStack) -> None:
    """`turn_budget` is the turn's: what classification used is not there for the reply, which is then the turn's last call
    and has no tools; the next turn starts afresh."""
    async with by_hand(ScriptedExecutor(costly), settings={"turn_budget": 3_500}) as stack:
        first = await stack.turn("one")
        second = await stack.turn("two", session_id=first.session_id)
    assert stack.executor.types() == ["classify", "synthesize"] * 2
    limits = [(wo.constraints.token_budget, wo.constraints.turn_limit) for wo in stack.executor.given]
    assert limits == [(3_500, 0), (500, 0)] * 2
    assert (first.error, second.error) == (None, None)


class Direct:
    """A degraded call that answers, or fails, and keeps what it was asked."""

    def __init__(self, answer: str | Exception) -> None:
        self._answer = answer
        self.asked: list[tuple[str, str, float]] = []

    async def __call__(self, message: str, *, session_id: str, deadline: float) -> str:
        self.asked.append((message, session_id, deadline))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def broken_at(wo_type: str) -> ScriptedExecutor:
    """An executor that is out of order for one kind of work."""
    return ScriptedExecutor(lambda wo: RuntimeError("out of order") if wo.wo_type == wo_type else fitting(wo))


@pytest.mark.parametrize("wo_type", ["classify", "synthesize", "verify"])
async def test_the_degraded_call_answers_when_ho1_is_broken(by_hand: OpenStack, wo_type: str) -> None:
    """The injected direct call gives the reply; the turn says that it is degraded, and the violation stands on record."""
    direct = Direct("from the direct call")
    settings = {"verify_with_model": True}
    async with by_hand(broken_at(wo_type), degraded_call=direct, settings=settings) as stack:
        result = await stack.turn("hello")
        (degradation,) = await stack.payloads(events.DEGRADATION)
        failed = await stack.payloads(events.WO_FAILED)
    assert (result.response, result.degraded) == ("from the direct call", True)
    assert result.error is not None
    assert result.error.kind == "EXECUTOR"
    ((message, session_id, deadline),) = direct.asked
    assert (message, session_id) == ("hello", result.session_id)
    assert anyio.current_time() < deadline < anyio.current_time() + 121
    assert degradation["governance_violation"] is True
    assert [(payload["wo_id"], payload["reason"]) for payload in failed] == [(degradation["wo_id"], "EXECUTOR")]


@pytest.mark.parametrize("answer", [OSError("no line"), "", "  \n"])
async def test_a_degraded_call_that_fails_leaves_an_honest_error(by_hand: OpenStack, answer: str | Exception) -> None:
    """When the last resort fails too, the turn completes with an error and a reply that says something."""
    async with by_hand(broken_at("synthesize"), degraded_call=Direct(answer)) as stack:
        result = await stack.turn("hello")
        assert (await stack.types())[-1] == events.TURN_COMPLETED
    assert result.response.strip()
    assert result.error is not None
    assert "out of order" in result.error.message


class Odd:
    """An executor that gives back something else than the ended work order it was given."""

    def __init__(self, what: str) -> None:
        self._what = what

    async def execute(self, work_order: WorkOrder) -> Any:
        other = work_order.replaced(wo_id="WO-SES-00000000-001")
        return {
            "nothing": None,
            "text": "fine",
            "as it was": work_order,
            "executing": work_order.executing(),
            "another one": other.executing().completed({"response_text": "hi"}, Cost(), AT),
            "deferred": work_order.executing().deferred(),
            "no output": work_order.executing().replaced(state="completed"),
            "no reason": work_order.executing().replaced(state="failed"),
        }[self._what]


@pytest.mark.parametrize(
    "what", ["nothing", "text", "as it was", "executing", "another one", "deferred", "no output", "no reason"]
)
async def test_an_executor_that_returns_nonsense_never_breaks_a_turn(by_hand: OpenStack, what: str) -> None:
    """Whatever HO1 gives back, handle_turn returns a result with an error, and nothing stays open."""
    async with by_hand() as stack:
        session_id = await stack.supervisor.start_session()
    async with by_hand(Odd(what)) as odd:
        result = await odd.turn("hello", session_id=session_id)
        assert result.error is not None
        assert result.response.strip()
        check_lives(await read_all(odd.ledgers.ho2m))
    async with by_hand() as stack:
        assert (await stack.turn("again", session_id=session_id)).response == "re: again"


async def test_many_failures_of_aborted_turns_do_not_poison_the_session(by_hand: OpenStack) -> None:
    """More failed work orders than are remembered, then a retry that succeeds: the turn completes as always."""
    hanging = anyio.Event()

    async def hang(_wo: WorkOrder) -> Said:
        hanging.set()
        await anyio.sleep_forever()
        raise AssertionError

    attempts = 0
    good = synthesizes({}, {"response_text": "fine again"})

    def script(wo: WorkOrder) -> Any:
        nonlocal attempts
        if attempts < 0:
            return good(wo)
        attempts += wo.wo_type == "synthesize"
        if attempts == 11:
            attempts = 0
            return hang(wo)
        return {} if wo.wo_type == "synthesize" else fitting(wo)

    settings = {"max_retries": 10, "max_wo_chain_length": 100}
    async with by_hand(ScriptedExecutor(script), settings=settings) as stack:
        session_id = await stack.supervisor.start_session()
        for _ in range(11):
            hanging = anyio.Event()
            with anyio.fail_after(10):
                async with anyio.create_task_group() as tasks:

                    async def send() -> None:
                        await stack.supervisor.handle_turn("bad", session_id=session_id)

                    tasks.start_soon(send)
                    await hanging.wait()
                    tasks.cancel_scope.cancel()
        assert len(await stack.payloads(events.WO_FAILED)) == 110
        attempts = -1
        result = await stack.turn("good", session_id=session_id)
    assert (result.response, result.error) == ("fine again", None)


@pytest.mark.parametrize("message", ["", " \n\t", "x" * 100_001, b"bytes", None, 7, ["text"]])
async def test_a_message_that_is_no_text_is_refused(runtime: Runtime, message: Any) -> None:
    """Empty, too long, or no text at all: a clear error, nothing recorded."""
    with pytest.raises(InvalidMessage):
        await runtime.supervisor().handle_turn(message)
    assert await read_all(runtime.ledgers().ho2m) == []


async def test_text_without_a_canonical_form_is_refused_and_harms_nothing(runtime: Runtime) -> None:
    """Half a surrogate pair cannot be stored: a typed error, and the session takes the next message."""
    session_id = await runtime.supervisor().start_session()
    with pytest.raises(KitchenerError):
        await runtime.supervisor().handle_turn("half \ud83d", session_id=session_id)
    result = await runtime.supervisor().handle_turn("whole \U0001f600 \x00 \u2028", session_id=session_id)
    assert result.response == "echo: whole \U0001f600 \x00 \u2028"
    completed = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_STARTED)
    assert digest(payload_of(completed[-1])["user_message"].encode()) == digest("whole \U0001f600 \x00 \u2028".encode())


async def test_a_failed_work_orders_reason_decides_what_the_user_reads(by_hand: OpenStack) -> None:
    """A model that cannot be reached, or takes too long, is told apart in the reply; no internals are shown."""
    replies = set()
    for reason in ("PROVIDER", "TIMEOUT", "TOOL"):

        def script(wo: WorkOrder, reason: Any = reason) -> Said:
            if wo.wo_type != "synthesize":
                return fitting(wo)
            return wo.executing().failed(WorkOrderError(reason=reason, detail="secret-host:8080 said 503"))

        async with by_hand(ScriptedExecutor(script)) as stack:
            result = await stack.turn("hello")
        assert result.error is not None
        assert result.error.kind == reason
        assert "secret-host" not in result.response
        replies.add(result.response)
    assert len(replies) == 3


async def test_a_reply_of_any_size_gives_a_result(tmp_path: Path) -> None:
    """Around the largest entry there is no size at which a turn breaks: the reply comes whole, or the result says why not."""
    size = 0

    def answer(request: PromptRequest) -> Any:
        return QUESTION if request.wo_type == "classify" else "x" * size

    ledger = LedgerConfig(durability="none", max_entry_bytes=4_096)
    failed = whole = 0
    async with open_scripted(tmp_path, ScriptedProvider(answer), ledger=ledger) as runtime:
        for size in range(1_000, 4_200, 50):
            result = await runtime.supervisor().handle_turn("hello")
            whole += result.response == "x" * size
            failed += result.error is not None
            assert (result.response == "x" * size) is (result.error is None)
        assert await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_ABORTED) == []
    assert min(whole, failed) > 0


def nested(depth: int) -> Any:
    """An object of so many levels."""
    value: Any = "x"
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("where", ["classify", "tool_call", "synthesize"])
async def test_an_output_of_any_depth_gives_a_result(tmp_path: Path, where: str) -> None:
    """However deep a classification, a tool's result or a reply is nested: the turn gives a result, the ledger stays sound."""
    depth = 0

    @tool(read_only=True)
    async def dig() -> Any:
        """Digs."""
        return nested(depth) if where == "tool_call" else "done"

    def answer(request: PromptRequest) -> Any:
        extra = {"extra": nested(depth)} if request.wo_type == where else {}
        if request.wo_type == "classify":
            return {**QUESTION, "speech_act": "command", "tool_request": {"tool_id": "dig"}, **extra}
        return {"response_text": "hi", **extra}

    async with open_scripted(tmp_path, ScriptedProvider(answer), tools=[dig]) as runtime:
        for levels in range(50, 70):
            depth = levels
            assert (await runtime.supervisor().handle_turn("hello")).response
        ledgers = runtime.ledgers()
        assert await read_all(ledgers.ho2m, entry_type=events.TURN_ABORTED) == []
        await ledgers.commit()
        assert (await ledgers.ho1m.verify()).ok
