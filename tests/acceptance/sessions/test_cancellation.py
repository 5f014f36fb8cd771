"""A turn may be cut off anywhere; afterwards nothing is open, nothing is doubled, and the session can be continued."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kitchener import tool
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import CallerError, TurnTimeout
from kitchener.ledger import Ledgers
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.records.work_order import WorkOrder
from kitchener.runtime import Runtime, open_runtime
from kitchener.testing import FakeClock, ScriptedProvider
from tests.acceptance.conftest import OpenRuntime, OpenStack
from tests.acceptance.stack import (
    QUESTION,
    Hold,
    Said,
    ScriptedExecutor,
    check_lives,
    echo,
    failing_then_held,
    fitting,
    open_scripted,
    outcome,
    portrait,
    read_all,
    scripted_config,
    types_of,
)
from tests.actors.time_control import in_stopped_time, pass_time_after


@tool
async def send_letter() -> str:
    """Sends a letter: a tool with an effect, so that the ledgers are committed before it runs."""
    await anyio.lowlevel.checkpoint()
    return "sent"


def eventful(request: PromptRequest) -> Mapping[str, Any]:
    """A model that makes a turn as long as it gets: a tool, a reply that is rejected, and another one."""
    if request.wo_type == "classify":
        return {**QUESTION, "speech_act": "command", "tool_request": {"tool_id": "send_letter", "arguments": {}}}
    if request.wo_type == "verify":
        return {"decision": "reject" if request.wo_id.endswith("-004") else "accept", "reason": "scripted"}
    return echo(request)


class Tripwire(FakeClock):
    """A clock that calls somebody when it is read for the n-th time: every entry of a ledger reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.readings, self._left = 0, -1
        self._action: Callable[[], object] = list

    def trip_at(self, reading: int, action: Callable[[], object]) -> None:
        """Calls `action` at the so-manieth reading from now, counted from 1."""
        self._left, self._action = reading, action

    def time_us(self) -> int:
        self.readings += 1
        self._left -= 1
        self.advance(us=1)
        if self._left == 0:
            self._action()
        return super().time_us()


async def check_closed(ledgers: Ledgers, session_id: str) -> Counter[str]:
    """Asserts that nothing of the session is open and no id was given twice; says how its turns ended."""
    entries = await read_all(ledgers.ho2m, session_id=session_id)
    started = [entry.entity_id for entry in entries if entry.entry_type == events.TURN_STARTED]
    over = [e.entity_id for e in entries if e.entry_type in (events.TURN_COMPLETED, events.TURN_ABORTED)]
    assert started == over
    assert started == [f"T-{session_id[4:]}-{n + 1:06d}" for n in range(len(started))]
    check_lives(entries)
    return Counter(types_of(entries))


async def cut_and_go_on(supervisor: HO2Supervisor, ledgers: Ledgers, cut: Callable[[anyio.CancelScope], Any]) -> bool:
    """A turn that is cut off in its way, then another one in the same session. Says whether the first was cut short."""
    session_id = await supervisor.start_session()
    scope = anyio.CancelScope()

    async def call() -> None:
        with scope:
            await supervisor.handle_turn("first", session_id=session_id)

    async with anyio.create_task_group() as tasks:
        cutting = cut(scope)
        tasks.start_soon(call)
        if cutting is not None:
            await cutting
    result = await supervisor.handle_turn("second", session_id=session_id)
    assert (result.response, result.error) == ("echo: second", None)
    counts = await check_closed(ledgers, session_id)
    assert counts[events.TURN_COMPLETED] + counts[events.TURN_ABORTED] == counts[events.TURN_STARTED] <= 2
    return counts[events.TURN_COMPLETED] < 2


async def portraits(runtime: Runtime) -> list[dict[str, Any]]:
    """Every session there is, as it knows itself."""
    ids = [e.entity_id for e in await read_all(runtime.ledgers().ho2m, entry_type=events.SESSION_START)]
    return [portrait(await runtime.supervisor().session(session_id)) for session_id in ids]


@pytest.mark.parametrize("by", ["entry", "tick"])
async def test_a_turn_may_be_cancelled_at_any_point(tmp_path: Path, by: str, anyio_backend_name: str) -> None:
    """Cancelled at the n-th entry, or after n rounds of the event loop: the session stays usable.

    At every entry of a turn; of the rounds, one event loop takes the odd and the other the even ones.

    Nothing stays open, every chain verifies, and a restart finds each session as it was.
    """
    clock = Tripwire()
    config: dict[str, Any] = {"tools": [send_letter], "verify_with_model": True}
    async with open_scripted(tmp_path, ScriptedProvider(eventful), clock=clock, **config) as runtime:
        supervisor, ledgers = runtime.supervisor(), runtime.ledgers()
        before = clock.readings
        whole = await supervisor.handle_turn("first")
        assert [wo["wo_type"] for wo in whole.wo_chain_summary] == [
            *("classify", "tool_call", "synthesize", "verify", "synthesize", "verify")
        ]
        odd_or_even = 1 if anyio_backend_name == "asyncio" else 2
        points = range(1, clock.readings - before + 1) if by == "entry" else range(odd_or_even, 61, 2)

        def cut_at(n: int) -> Callable[[anyio.CancelScope], Any]:
            async def later(scope: anyio.CancelScope) -> None:
                for _ in range(n):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

            return later if by == "tick" else lambda scope: clock.trip_at(n, scope.cancel)

        with anyio.fail_after(40):
            cut_short = [await cut_and_go_on(supervisor, ledgers, cut_at(n)) for n in points]
        assert sum(cut_short) > 10  # how many rounds of the loop a turn takes is not fixed
        known = await portraits(runtime)
        await ledgers.commit()
        for ledger in (ledgers.ho1m, ledgers.ho2m):
            assert (await ledger.verify()).ok
    async with open_scripted(tmp_path, clock=clock, **config) as runtime:
        assert await portraits(runtime) == known


@in_stopped_time
async def test_a_turn_past_its_deadline_is_aborted(scripted: OpenRuntime) -> None:
    """TurnTimeout names the turn, TURN_ABORTED says why, open work is abandoned, and the session takes the next turn."""
    hold = Hold("slow")
    async with scripted(ScriptedProvider(echo, gate=hold), turn_deadline_s=7) as runtime:
        supervisor, ledgers = runtime.supervisor(), runtime.ledgers()
        session_id = await supervisor.start_session()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_time_after, hold.arrived["slow"].is_set, 7)
            result = await outcome(supervisor.handle_turn("slow", session_id=session_id))
        assert isinstance(result, TurnTimeout)
        assert "(attempt 1 at provider 'scripted' " in str(result)
        assert result.turn_id == f"T-{session_id[4:]}-000001"
        (aborted,) = await read_all(ledgers.ho2m, session_id=session_id, entry_type=events.TURN_ABORTED)
        assert aborted.payload["reason"] == "timeout"
        hold.released["slow"].set()
        assert (await supervisor.handle_turn("next", session_id=session_id, deadline=30)).response == "echo: next"
        await check_closed(ledgers, session_id)


@in_stopped_time
async def test_a_turn_past_its_deadline_names_the_last_failed_attempt(tmp_path: Path) -> None:
    hold = Hold("slow")
    limits = ProviderConfig(kind="offline", backoff_initial_s=1e-6)
    config = scripted_config(tmp_path, turn_deadline_s=7).model_copy(
        update={"router": RouterConfig(default_provider="scripted", providers={"scripted": limits})}
    )
    providers = {"scripted": failing_then_held(hold)}
    async with open_runtime(config, providers=providers) as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(pass_time_after, hold.arrived["slow"].is_set, 7)
        with pytest.raises(TurnTimeout) as caught:
            await runtime.supervisor().handle_turn("slow")
    first, second = "attempt 1 at provider 'scripted' failed: timeout", "attempt 2 at provider 'scripted' "
    assert caught.value.waited_for.startswith(f"{first}; {second}")
    assert caught.value.waited_for in str(caught.value)


@in_stopped_time
async def test_a_work_order_is_given_no_less_time_than_its_turn_has(by_hand: OpenStack) -> None:
    """So the turn runs out of time, never its last work order alone. Regression: rounding took up to a millisecond."""
    missing: list[float] = []

    def script(wo: WorkOrder) -> Said:
        assert wo.constraints.timeout_ms is not None
        missing.append(anyio.current_effective_deadline() - anyio.current_time() - wo.constraints.timeout_ms / 1_000)
        return fitting(wo)

    async with by_hand(ScriptedExecutor(script)) as stack:
        for deadline in (7, 7.0004, 7.0009, 0.000_1):
            await stack.turn("hello", deadline=deadline)
    assert len(missing) == 8
    assert max(missing) <= 0


@in_stopped_time
async def test_a_hanging_tool_meets_the_turns_deadline(scripted: OpenRuntime) -> None:
    """A tool that never ends is stopped by the turn's deadline, which aborts the turn."""
    began = anyio.Event()

    @tool(read_only=True)
    async def hang() -> str:
        """Never ends."""
        began.set()
        await anyio.sleep_forever()
        raise AssertionError

    request = {"tool_id": "hang", "arguments": {}}
    provider = ScriptedProvider(
        lambda asked: (
            {**QUESTION, "speech_act": "command", "tool_request": request} if asked.wo_type == "classify" else echo(asked)
        )
    )
    async with scripted(provider, tools=[hang]) as runtime:
        supervisor, ledgers = runtime.supervisor(), runtime.ledgers()
        session_id = await supervisor.start_session()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_time_after, began.is_set, 7)
            result = await outcome(supervisor.handle_turn("go", session_id=session_id, deadline=7))
        assert isinstance(result, TurnTimeout)
        (aborted,) = await read_all(ledgers.ho2m, session_id=session_id, entry_type=events.TURN_ABORTED)
        assert aborted.payload["reason"] == "timeout"
        await check_closed(ledgers, session_id)


async def test_a_calls_deadline_covers_its_wait_for_the_session(scripted: OpenRuntime) -> None:
    """`deadline` counts from the call: waiting for a busy session does not renew it."""
    hold = Hold("running")
    async with scripted(ScriptedProvider(echo, gate=hold)) as runtime:
        supervisor, ledgers = runtime.supervisor(), runtime.ledgers()
        session_id = await supervisor.start_session()

        async def run() -> None:
            await supervisor.handle_turn("running", session_id=session_id)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await hold.arrived["running"].wait()
                late = await outcome(supervisor.handle_turn("late", session_id=session_id, deadline=0.02))
                hold.released["running"].set()
        assert isinstance(late, Exception)
        counts = await check_closed(ledgers, session_id)
        assert (counts[events.TURN_STARTED], counts[events.TURN_REJECTED]) == (1, 1)


@pytest.mark.parametrize("deadline", [0, -1, float("nan")])
async def test_a_deadline_that_cannot_be_is_a_callers_error(runtime: Runtime, deadline: float) -> None:
    """No time, or no number: refused by value, and nothing is recorded."""
    with pytest.raises(CallerError, match="deadline"):
        await runtime.supervisor().handle_turn("hello", deadline=deadline)
    assert await read_all(runtime.ledgers().ho2m) == []
