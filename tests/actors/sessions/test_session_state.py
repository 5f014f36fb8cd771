"""A session's state is the fold of its entries, whether it runs or comes back; explained in docs/sessions.md."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import tool
from kitchener.actors.sessions.session_state import (
    MAX_FAILED_KEPT,
    OpenTurn,
    PastTurn,
    SessionState,
    fold,
)
from kitchener.errors import Overloaded, ProviderError
from kitchener.ids import SessionId, SubjectId, TurnId
from kitchener.records import events
from kitchener.records.entries import SessionStartPayload, payload_as
from kitchener.records.prompt import PromptRequest
from kitchener.records.ref import Ref
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUESTION, Hold, echo, open_scripted, outcome

SESSION = SessionId("SES-00000001")
ESTIMATOR = "utf8/3"

Entry = tuple[str, Mapping[str, Any], Ref]


def state() -> SessionState:
    return SessionState(SESSION, SubjectId("ada"))


def entries(*items: tuple[str, Mapping[str, Any]]) -> list[Entry]:
    return [(kind, payload, Ref("HO2M:ADMIN", f"E-{n}", f"sha256:{n}")) for n, (kind, payload) in enumerate(items, 1)]


def folded(*items: tuple[str, Mapping[str, Any]]) -> SessionState:
    return fold(state(), entries(*items))


def facts(found: SessionState) -> dict[str, Any]:
    """A state in a form in which two of them can be compared."""
    plain = {each.name: getattr(found, each.name) for each in fields(found) if each.name != "window"}
    window = [(past.turn_id, past.user_message, past.response, past.fragment.ref) for past in found.window]
    return {**plain, "window": window}


def turn_id(n: int) -> TurnId:
    return TurnId(f"T-00000001-{n:06d}")


def wo_id(n: int) -> str:
    return f"WO-{SESSION}-{n:03d}"


def started(n: int, message: str = "hello") -> tuple[str, Mapping[str, Any]]:
    return events.TURN_STARTED, {"turn_id": turn_id(n), "user_message": message}


def planned(n: int, wo_type: str = "classify") -> tuple[str, Mapping[str, Any]]:
    return events.WO_PLANNED, {"wo_id": wo_id(n), "wo_type": wo_type}


def ended(kind: str, n: int, tokens: int = 0) -> tuple[str, Mapping[str, Any]]:
    cost = {"input_tokens": tokens, "output_tokens": 0, "llm_calls": 1, "tool_calls": 0}
    return kind, {"wo_id": wo_id(n), "cost": cost} if kind in (events.WO_COMPLETED, events.WO_FAILED) else {"wo_id": wo_id(n)}


def completed(n: int, response: str = "hi", **cost: int) -> tuple[str, Mapping[str, Any]]:
    full = {"input_tokens": 0, "output_tokens": 0, "llm_calls": 0, "tool_calls": 0, **cost}
    return events.TURN_COMPLETED, {"turn_id": turn_id(n), "response": response, "cost_summary": full}


def aborted(n: int) -> tuple[str, Mapping[str, Any]]:
    return events.TURN_ABORTED, {"turn_id": turn_id(n), "reason": "crash"}


START: tuple[str, Mapping[str, Any]] = (events.SESSION_START, {"agent_class": "ADMIN"})


def test_no_entries_are_a_session_without_turns() -> None:
    assert facts(folded()) == facts(state())


def test_the_last_entry_is_the_head_whatever_it_is() -> None:
    assert folded(START).head == "E-1"
    assert folded(START, started(1), ("SOMETHING_ELSE", {})).head == "E-3"


def test_a_turn_that_was_begun_is_open_with_its_work_orders() -> None:
    found = folded(START, started(1, "hello"), planned(1), planned(2, "synthesize"), ended(events.WO_COMPLETED, 1, 5))
    assert found.open_turn == OpenTurn(turn_id(1), "hello", {wo_id(2): "synthesize"})
    assert (found.turn_count, found.completed_turns, found.wo_count, found.tokens_used) == (1, 0, 2, 5)


@pytest.mark.parametrize("kind", [events.WO_COMPLETED, events.WO_FAILED, events.WO_ABANDONED, events.WO_SUPERSEDED])
def test_a_work_order_that_ended_is_not_open_any_more(kind: str) -> None:
    found = folded(START, started(1), planned(1), ended(kind, 1))
    assert found.open_turn is not None
    assert found.open_turn.work_orders == {}


@pytest.mark.parametrize("kind", [events.WO_DISPATCHED, events.WO_QUALITY_GATE, events.TURN_REJECTED, "WO_UNHEARD_OF"])
def test_other_entries_change_nothing_but_the_head(kind: str) -> None:
    before = folded(START, started(1), planned(1))
    after = folded(START, started(1), planned(1), (kind, {"wo_id": wo_id(1)}))
    before.head = after.head
    assert facts(after) == facts(before)


def test_numbers_that_a_crash_left_out_stay_taken() -> None:
    """The second turn and its work orders are in HO1m alone; the next ones have higher numbers, and these count."""
    found = folded(START, started(1), planned(1), completed(1), aborted(2))
    assert (found.turn_count, found.wo_count) == (2, 1)
    found = folded(START, started(1), planned(1), completed(1), aborted(2), started(3), planned(4))
    assert (found.turn_count, found.wo_count) == (3, 4)


def test_the_abort_of_a_turn_without_a_start_leaves_the_open_turn_open() -> None:
    """A crash lost the end of the first turn and the start of the second; when the session comes back, both are closed."""
    found = folded(START, started(1), planned(1), aborted(2))
    assert found.open_turn == OpenTurn(turn_id(1), "hello", {wo_id(1): "classify"})
    assert fold(found, entries(ended(events.WO_ABANDONED, 1), aborted(1))).open_turn is None


def test_a_completed_turn_is_part_of_the_history() -> None:
    found = folded(
        START,
        started(1, "the soup?"),
        completed(1, "is hot", input_tokens=10, output_tokens=2, llm_calls=2),
        started(2, "and now?"),
        completed(2, "is cold", input_tokens=5, cached_tokens=4, tool_calls=1),
    )
    assert [(past.turn_id, past.user_message, past.response) for past in found.window] == [
        (turn_id(1), "the soup?", "is hot"),
        (turn_id(2), "and now?", "is cold"),
    ]
    assert found.cost == {"input_tokens": 15, "output_tokens": 2, "cached_tokens": 4, "llm_calls": 2, "tool_calls": 1}
    assert (found.turn_count, found.completed_turns, found.open_turn) == (2, 2, None)


def test_a_past_turn_knows_its_text_size_words_and_where_it_stands() -> None:
    ref = Ref("HO2M:ADMIN", "E-9", "sha256:9")
    past = PastTurn(turn_id(1), "Where is the soup?", "On the stove.", ref, ESTIMATOR)
    assert past.fragment.content == "user: Where is the soup?\nassistant: On the stove."
    assert past.fragment.token_estimate == -(-len(past.fragment.content) // 3)
    assert (past.fragment.source, past.fragment.source_id, past.fragment.ref) == ("HO2M", turn_id(1), ref)
    assert past.exchange == {"user": "Where is the soup?", "assistant": "On the stove."}
    assert past.words == {"user", "assistant", "soup", "stove"}


def test_an_aborted_turn_counts_its_tokens_and_its_number_and_leaves_no_history() -> None:
    found = folded(
        START, started(1), planned(1), ended(events.WO_COMPLETED, 1, 40), planned(2), aborted(1), ended(events.WO_ABANDONED, 2)
    )
    assert (found.turn_count, found.completed_turns, found.tokens_used) == (1, 0, 40)
    assert (list(found.window), found.open_turn) == ([], None)
    assert found.cost["input_tokens"] == 0


def test_a_failed_work_order_is_remembered_until_it_is_put_away() -> None:
    history = [START, started(1), planned(1), ended(events.WO_FAILED, 1, 7), planned(2), ended(events.WO_FAILED, 2)]
    assert folded(*history).failed_work_orders == [wo_id(1), wo_id(2)]
    assert folded(*history).tokens_used == 7
    assert folded(*history, ended(events.WO_SUPERSEDED, 1)).failed_work_orders == [wo_id(2)]
    assert folded(*history, completed(1), started(2), ended(events.WO_ABANDONED, 1)).failed_work_orders == [wo_id(2)]


def test_no_more_failed_work_orders_are_remembered_than_the_bound() -> None:
    found = folded(START, started(1), *(ended(events.WO_FAILED, n) for n in range(1, MAX_FAILED_KEPT + 51)))
    assert found.failed_work_orders == [wo_id(n) for n in range(1, MAX_FAILED_KEPT + 1)]
    forgotten = entries(ended(events.WO_ABANDONED, MAX_FAILED_KEPT + 1), ended(events.WO_SUPERSEDED, 1))
    assert fold(found, forgotten).failed_work_orders == [wo_id(n) for n in range(2, MAX_FAILED_KEPT + 1)]


def test_an_ended_session_is_ended() -> None:
    assert not folded(START).is_ended
    assert folded(START, (events.SESSION_END, {"turn_count": 0})).is_ended


# --- a session that runs and one that comes back ------------------------------------------------------------------------


async def read_back(runtime: Runtime, session_id: str) -> SessionState:
    """The state that the session's entries add up to."""
    first: SessionState | None = None
    found: list[Entry] = []
    async for entry in runtime.ledgers().ho2m.read(session_id=session_id):
        payload = events.read_payload(entry.entry_type, entry.payload)
        if first is None:
            start = payload_as(SessionStartPayload, payload)
            first = SessionState(SessionId(session_id), SubjectId(start["subject_id"]), start.get("external_id"))
        found.append((entry.entry_type, payload, entry.ref))
    assert first is not None
    return fold(first, found)


async def check_state(runtime: Runtime, session_id: str) -> SessionState:
    """The running session's state, found equal to what its entries add up to."""
    live = (await runtime.supervisor().session(session_id)).state
    assert facts(await read_back(runtime, session_id)) == facts(live)
    return live


async def test_the_state_of_a_running_session_is_what_its_entries_add_up_to(tmp_path: Path) -> None:
    """After turns of every kind: plain, with tools, retried, escalated, failed, cancelled, turned away, out of budget."""

    @tool
    async def send(to: str) -> str:
        """Sends something."""
        return f"sent to {to}"

    rejections = {"retried": 1, "escalated": 9}

    def answer(request: PromptRequest) -> Any:
        message = str(request.variables.get("user_message"))
        if request.wo_type == "classify":
            if message == "unclassified":
                return ProviderError("scripted", "refused", "no")
            asks = {"tool_request": {"tool_id": "send", "arguments": {"to": "ada"}}}
            return {"speech_act": "command", "ambiguity": "low", **asks} if message == "tool" else QUESTION
        if rejections.get(message):
            rejections[message] -= 1
            return {"response_text": " "}
        if message == "outage":
            return ProviderError("scripted", "server_error", "down")
        return echo(request)

    hold = Hold("held", wo_type="synthesize")
    provider = ScriptedProvider(answer, gate=hold)
    async with open_scripted(tmp_path, provider, tools=[send], session_queue=1, max_retries=2) as runtime:
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session(subject_id="ada", external_id="chat-1")
        await check_state(runtime, session_id)
        with anyio.fail_after(20):
            for message in ("plain", "tool", "retried", "outage", "unclassified", "escalated", "plain again"):
                await supervisor.handle_turn(message, session_id=session_id)
                live = await check_state(runtime, session_id)
                assert live.open_turn is None
            assert live.failed_work_orders == []

            async with anyio.create_task_group() as tasks:
                results: list[Any] = []

                async def send_message(message: str) -> None:
                    results.append(await outcome(supervisor.handle_turn(message, session_id=session_id)))

                tasks.start_soon(send_message, "held")
                await hold.arrived["held"].wait()
                in_the_middle = await check_state(runtime, session_id)
                assert in_the_middle.open_turn is not None
                assert list(in_the_middle.open_turn.work_orders.values()) == ["synthesize"]
                tasks.start_soon(send_message, "in line")
                await anyio.wait_all_tasks_blocked()
                await send_message("turned away")
                await check_state(runtime, session_id)
                tasks.cancel_scope.cancel()
            assert [type(each) for each in results] == [Overloaded]
            assert (await check_state(runtime, session_id)).open_turn is None

            await supervisor.handle_turn("after all that", session_id=session_id)
            await supervisor.end_session(session_id)
        last = facts(await check_state(runtime, session_id))
    assert last["is_ended"]
    assert (last["turn_count"], last["completed_turns"]) == (9, 8)
    async with open_scripted(tmp_path) as runtime:
        assert facts(await check_state(runtime, session_id)) == last


async def test_a_session_out_of_budget_is_the_same_when_it_comes_back(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, budget_ceiling=2_500, recent_turns=1) as runtime:
        session_id = await runtime.supervisor().start_session()
        with anyio.fail_after(20):
            for _ in range(40):
                result = await runtime.supervisor().handle_turn("hello", session_id=session_id)
                live = await check_state(runtime, session_id)
                if result.degraded:
                    break
        assert result.error is not None
        assert result.error.kind == "BUDGET"
        used = live.tokens_used
    async with open_scripted(tmp_path, budget_ceiling=2_500, recent_turns=1) as runtime:
        assert (await check_state(runtime, session_id)).tokens_used == used
        again = await runtime.supervisor().handle_turn("hello", session_id=session_id)
        assert again.error is not None
        assert again.error.kind == "BUDGET"
