"""Sessions as a caller meets them: started, found again by id, kept apart by subject and class, ended."""

import re
import shutil
from contextlib import suppress
from functools import partial
from itertools import chain, count
from pathlib import Path

import anyio
import pytest

from kitchener.errors import CallerError, SessionBusy, SessionEnded, SessionMismatch, UnknownSession
from kitchener.ids import RandomIds
from kitchener.ledger import compute_trace_hash
from kitchener.records import events
from kitchener.runtime import open_runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.conftest import OpenRuntime, OpenStack
from tests.acceptance.stack import (
    Hold,
    Stack,
    echo,
    open_by_hand,
    open_scripted,
    outcome,
    portrait,
    read_all,
    scripted_config,
    types_of,
)

UNKNOWN = "SES-00000000"


class Ids:
    """Session ids in the order given, then others."""

    def __init__(self, *ids: str) -> None:
        self._ids = chain(ids, (f"SES-{n:08x}" for n in count(256)))

    def session_id(self) -> str:
        return next(self._ids)


async def test_start_session_generates_id(stack: Stack) -> None:
    """`SES-` and eight hex digits, each time others."""
    ids = {await stack.supervisor.start_session() for _ in range(5)}
    assert len(ids) == 5
    assert all(re.fullmatch(r"SES-[0-9a-f]{8}", session_id) for session_id in ids)


async def test_a_program_may_have_ids_that_nobody_can_guess(tmp_path: Path) -> None:
    async with open_runtime(
        scripted_config(tmp_path), providers={"scripted": ScriptedProvider(echo)}, ids=RandomIds(32)
    ) as own:
        session_id = await own.supervisor().start_session()
        assert re.fullmatch(r"SES-[0-9a-f]{32}", session_id)
        assert (await own.supervisor().handle_turn("hello", session_id=session_id)).session_id == session_id


async def test_start_session_idempotent(stack: Stack) -> None:
    """Started twice with one id is one session with one SESSION_START."""
    first = await stack.supervisor.start_session("SES-0123abcd", subject_id="ada")
    second = await stack.supervisor.start_session("SES-0123abcd", subject_id="ada")
    assert first == second == "SES-0123abcd"
    assert await stack.supervisor.session(first) is await stack.supervisor.session(second)
    assert await stack.types() == [events.SESSION_START]


async def test_start_session_writes_ledger(stack: Stack) -> None:
    """SESSION_START stands in HO2m with the session's class, subject and external id."""
    session_id = await stack.supervisor.start_session(subject_id="ada", external_id="ticket 7")
    (entry,) = await read_all(stack.ledgers.ho2m)
    assert (entry.entry_type, entry.entity_id) == (events.SESSION_START, session_id)
    assert (
        entry.payload.items()
        >= {
            "session_id": session_id,
            "subject_id": "ada",
            "agent_class": "ADMIN",
            "external_id": "ticket 7",
        }.items()
    )
    assert await stack.supervisor.find_external("ticket 7", subject_id="ada") == session_id
    assert await stack.supervisor.find_external("ticket 8", subject_id="ada") is None


async def test_end_session_writes_ledger(stack: Stack) -> None:
    """SESSION_END holds the number of turns and what they cost, and the session takes no more of them."""
    session_id = await stack.supervisor.start_session()
    results = [await stack.turn(message, session_id=session_id) for message in ("one", "two")]
    await stack.supervisor.end_session(session_id)
    (end,) = await stack.payloads(events.SESSION_END)
    assert end["turn_count"] == 2
    assert end["total_cost"] == {
        key: sum(result.cost_summary[key] for result in results)
        for key in ("input_tokens", "output_tokens", "llm_calls", "tool_calls")
    }
    with pytest.raises(SessionEnded):
        await stack.turn("three", session_id=session_id)


async def test_session_history_tracking(stack: Stack) -> None:
    """add_turn fills the history, oldest first, and so does every completed turn."""
    session = await stack.supervisor.session(await stack.supervisor.start_session())
    assert session.history == []
    session.add_turn("hello", "hi")
    session.add_turn("why?", "because")
    assert session.history == [("hello", "hi"), ("why?", "because")]
    await stack.turn("really?", session_id=session.session_id)
    assert session.history[-1] == ("really?", "re: really?")


async def test_next_wo_id_format(stack: Stack) -> None:
    """Work orders are `WO-{session}-` and a number of three digits."""
    session = await stack.supervisor.session(await stack.supervisor.start_session("SES-0123abcd"))
    assert session.next_wo_id() == "WO-SES-0123abcd-001"


async def test_next_wo_id_monotonic(stack: Stack) -> None:
    """Their numbers rise by one within the session, over its turns."""
    session = await stack.supervisor.session(await stack.supervisor.start_session("SES-0123abcd"))
    assert [session.next_wo_id() for _ in range(3)] == [f"WO-SES-0123abcd-00{n}" for n in (1, 2, 3)]
    assert session.wo_sequence == 3
    await stack.turn("one", session_id=session.session_id)
    await stack.turn("two", session_id=session.session_id)
    assert [wo.wo_id for wo in stack.executor.given] == [f"WO-SES-0123abcd-00{n}" for n in (4, 5, 6, 7)]


async def test_a_session_resumes_after_a_restart_with_history_and_numbering(tmp_path: Path) -> None:
    """Another process finds the session by its id, as it was: subject, history, numbers of turns and work orders."""
    async with open_by_hand(tmp_path) as stack:
        session_id = await stack.supervisor.start_session(subject_id="ada", external_id="ticket 7")
        for message in ("one", "two"):
            await stack.turn(message, session_id=session_id)
        before = portrait(await stack.supervisor.session(session_id))
    async with open_by_hand(tmp_path) as stack:
        assert await stack.supervisor.find_external("ticket 7", subject_id="ada") == session_id
        session = await stack.supervisor.session(session_id)
        assert portrait(session) == before
        assert session.history == [("one", "re: one"), ("two", "re: two")]
        result = await stack.turn("three", session_id=session_id)
        assert result.turn_id.endswith("-000003")
        assert [wo["wo_id"][-3:] for wo in result.wo_chain_summary] == ["005", "006"]
        assert stack.executor.given[-1].input_context["assembled_context"]["history"][2:] == ["two", "re: two"]
        assert (await stack.types()).count(events.SESSION_START) == 1


async def test_errors_name_what_is_wrong_with_a_session(stack: Stack) -> None:
    """Unknown, of another subject, ended, or no id at all: each is an error of its own type, and nothing is recorded."""
    session_id = await stack.supervisor.start_session(subject_id="ada")
    ended = await stack.supervisor.start_session(subject_id="ada")
    await stack.supervisor.end_session(ended)
    recorded = await stack.types()
    with pytest.raises(UnknownSession, match=UNKNOWN):
        await stack.turn(session_id=UNKNOWN)
    with pytest.raises(SessionMismatch, match="'bo'") as mismatch:
        await stack.turn(session_id=session_id, subject_id="bo")
    assert (mismatch.value.session_id, mismatch.value.expected) == (session_id, "bo")
    with pytest.raises(SessionMismatch):
        await stack.supervisor.start_session(session_id, subject_id="bo")
    for call in (stack.turn(session_id=ended), stack.supervisor.start_session(ended), stack.supervisor.end_session(ended)):
        with pytest.raises(SessionEnded, match=ended):
            await call
    for wrong in ("SES-1", "SES-0123ABCD", "T-0123abcd-000001", "", "SES-0123abcd\n"):
        with pytest.raises(CallerError, match="hex digits"):
            await stack.turn(session_id=wrong)
    assert await stack.types() == recorded


async def test_a_session_of_another_agent_class_is_unknown(scripted: OpenRuntime) -> None:
    """Agent classes share no state: the session of one does not exist for the other."""
    async with scripted(agents={"RESIDENT:bo": {}}) as runtime:
        result = await runtime.supervisor("ADMIN").handle_turn("hello")
        with pytest.raises(UnknownSession, match="RESIDENT:bo"):
            await runtime.supervisor("RESIDENT:bo").handle_turn("hello", session_id=result.session_id)


async def test_anonymous_sessions_share_no_subject(stack: Stack) -> None:
    """Without a subject each session is a subject of its own."""
    first, second = await stack.turn(), await stack.turn()
    subjects = [payload["subject_id"] for payload in await stack.payloads(events.SESSION_START)]
    assert subjects == [f"anon-{first.session_id}", f"anon-{second.session_id}"]


async def test_a_random_id_that_is_taken_is_drawn_again(by_hand: OpenStack) -> None:
    """A fresh session never lands in another one's ledger entries, however the dice fall."""
    taken = [f"SES-{n:08x}" for n in range(1, 6)]
    async with by_hand() as stack:
        for session_id in taken[:3]:
            await stack.supervisor.start_session(session_id, subject_id="ada")
    async with by_hand(ids=Ids(*taken, taken[3])) as stack:
        await stack.supervisor.start_session(taken[4], subject_id="ada")
        fresh = [await stack.supervisor.start_session(subject_id="bo") for _ in range(100)]
        assert fresh[0] == taken[3]
        started = [(payload["session_id"], payload["subject_id"]) for payload in await stack.payloads(events.SESSION_START)]
    assert len(set(fresh)) == 100
    assert sorted(started) == sorted(
        [*((each, "ada") for each in taken if each != taken[3]), *((each, "bo") for each in fresh)]
    )


async def test_a_message_that_waited_for_the_end_of_its_session_is_refused(scripted: OpenRuntime) -> None:
    """end_session waits for the messages before it; one after it finds the session ended, and no turn follows SESSION_END."""
    hold = Hold("first")
    async with scripted(ScriptedProvider(echo, gate=hold)) as runtime:
        supervisor = runtime.supervisor("ADMIN")
        session_id = await supervisor.start_session()
        outcomes = {}

        async def send(message: str) -> None:
            outcomes[message] = await outcome(supervisor.handle_turn(message, session_id=session_id))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, "first")
                await hold.arrived["first"].wait()
                tasks.start_soon(supervisor.end_session, session_id)
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(send, "second")
                await anyio.wait_all_tasks_blocked()
                hold.released["first"].set()
        types = types_of(await read_all(runtime.ledgers("ADMIN").ho2m))
    assert not isinstance(outcomes["first"], Exception)
    assert isinstance(outcomes["second"], SessionEnded)
    assert types.count(events.TURN_STARTED) == 1
    assert types[-1] == events.SESSION_END


async def test_ending_a_session_twice_at_once_ends_it_once(stack: Stack) -> None:
    """Two calls at the same time: one SESSION_END, and neither call hangs."""
    session_id = await stack.supervisor.start_session()

    async def end() -> None:
        with suppress(SessionEnded):
            await stack.supervisor.end_session(session_id)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(end)
    assert (await stack.types()).count(events.SESSION_END) == 1


async def test_sessions_that_are_put_away_come_back_equal(scripted: OpenRuntime) -> None:
    """With room for one active session, two that alternate lose nothing: state, history, numbering."""
    async with scripted(limits={"max_active_sessions": 1}) as runtime:
        supervisor = runtime.supervisor("ADMIN")
        one, two = [await supervisor.start_session(subject_id=name) for name in ("ada", "bo")]
        for n in range(3):
            for session_id in (one, two):
                result = await supervisor.handle_turn(f"message {n}", session_id=session_id)
                assert result.turn_id == f"T-{session_id[4:]}-{n + 1:06d}"
        first = await supervisor.session(one)
        before = portrait(first)
        await supervisor.session(two)
        again = await supervisor.session(one)
        assert again is not first
        assert portrait(again) == before
        assert again.history == [(f"message {n}", f"echo: message {n}") for n in range(3)]
        types = types_of(await read_all(runtime.ledgers("ADMIN").ho2m))
        assert events.TURN_ABORTED not in types


async def test_a_session_that_rejected_a_message_is_put_away_like_any_other(scripted: OpenRuntime) -> None:
    """Otherwise messages to busy sessions would fill the memory."""
    hold = Hold("first")
    provider = ScriptedProvider(echo, gate=hold)
    async with scripted(provider, limits={"max_active_sessions": 1}, overlap_policy="reject") as runtime:
        supervisor = runtime.supervisor("ADMIN")
        one, two = await supervisor.start_session(), await supervisor.start_session()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(supervisor.handle_turn, "first", session_id=one))
                await hold.arrived["first"].wait()
                with pytest.raises(SessionBusy):
                    await supervisor.handle_turn("second", session_id=one)
                hold.released["first"].set()
        first = await supervisor.session(one)
        await supervisor.session(two)
        assert await supervisor.session(one) is not first


async def test_a_session_with_a_running_turn_is_never_doubled_when_room_is_short(scripted: OpenRuntime) -> None:
    """All active sessions are busy and there is room for one: a second message of one of them still waits its turn."""
    hold = Hold("a1", "b1")
    provider = ScriptedProvider(echo, gate=hold)
    async with scripted(provider, limits={"max_active_sessions": 1}) as runtime:
        supervisor = runtime.supervisor("ADMIN")
        a, b = await supervisor.start_session(), await supervisor.start_session()
        outcomes = {}

        async def send(session_id: str, message: str) -> None:
            outcomes[message] = await outcome(supervisor.handle_turn(message, session_id=session_id))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for session_id, message in ((a, "a1"), (b, "b1")):
                    tasks.start_soon(send, session_id, message)
                    await hold.arrived[message].wait()
                tasks.start_soon(send, b, "b2")
                await anyio.wait_all_tasks_blocked()
                assert "b2" not in outcomes
                hold.released["b1"].set()
                hold.released["a1"].set()
        types = types_of(await read_all(runtime.ledgers("ADMIN").ho2m, session_id=b))
    assert all(not isinstance(result, Exception) for result in outcomes.values()), outcomes
    assert [kind for kind in types if kind.startswith("TURN_")] == ["TURN_STARTED", "TURN_COMPLETED"] * 2


async def test_a_session_asked_for_at_once_is_brought_back_once(tmp_path: Path) -> None:
    """After a restart five messages of one session arrive together: one session, five turns, no number twice."""
    async with open_by_hand(tmp_path) as stack:
        session_id = (await stack.turn("zero")).session_id
    async with open_by_hand(tmp_path) as stack:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for n in range(5):

                    async def send(message: str) -> None:
                        await stack.turn(message, session_id=session_id)

                    tasks.start_soon(send, f"message {n}")
        started = [payload["turn_id"] for payload in await stack.payloads(events.TURN_STARTED)]
    assert started == [f"T-{session_id[4:]}-{n:06d}" for n in range(1, 7)]


async def test_a_session_started_at_once_by_several_is_started_once(stack: Stack) -> None:
    """Five calls with one id at the same time: one SESSION_START, one session."""
    sessions: list[object] = []

    async def start() -> None:
        session_id = await stack.supervisor.start_session("SES-0123abcd", subject_id="ada")
        sessions.append(await stack.supervisor.session(session_id))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(start)
    assert len(sessions) == 5
    assert all(session is sessions[0] for session in sessions)
    assert await stack.types() == [events.SESSION_START]


async def lose_a_turn(root: Path) -> tuple[str, str]:
    """The ids of a session and of its second turn, of which a power loss kept HO1m's entries and lost HO2m's."""
    ho2m = root / "HO2" / "ADMIN" / "ho2m.jsonl"
    async with open_scripted(root) as runtime:
        session_id = (await runtime.supervisor().handle_turn("one")).session_id
    durable = ho2m.read_bytes()
    async with open_scripted(root) as runtime:
        lost = await runtime.supervisor().handle_turn("two", session_id=session_id)
    ho2m.write_bytes(durable)
    shutil.rmtree(root / "index")
    return session_id, lost.turn_id


async def test_numbers_that_a_lost_tail_had_given_out_are_not_given_again(tmp_path: Path) -> None:
    """A power loss keeps HO1m's entries of a turn and loses HO2m's: the turn is closed as a crash, its numbers stay taken."""
    session_id, lost = await lose_a_turn(tmp_path)
    async with open_scripted(tmp_path) as runtime:
        result = await runtime.supervisor().handle_turn("three", session_id=session_id)
        entries = await read_all(runtime.ledgers().ho2m, session_id=session_id)
        executed = await read_all(runtime.ledgers().ho1m, session_id=session_id, entry_type=events.LLM_CALL)
    assert (lost[-6:], result.turn_id[-6:]) == ("000002", "000003")
    assert [(entry.entity_id, entry.payload["reason"]) for entry in entries if entry.entry_type == events.TURN_ABORTED] == [
        (lost, "crash")
    ]
    assert len({entry.entity_id for entry in executed}) == len(executed) == 6


async def test_a_session_whose_start_was_lost_goes_on_after_its_lost_turn(tmp_path: Path) -> None:
    """A power loss keeps HO1m's entries and loses all of HO2m's. A caller that names the session starts it again."""
    session_id = "SES-0123abcd"
    ho2m = tmp_path / "HO2" / "ADMIN" / "ho2m.jsonl"
    async with open_scripted(tmp_path):
        pass
    durable = ho2m.read_bytes()
    async with open_scripted(tmp_path) as runtime:
        await runtime.supervisor().start_session(session_id, subject_id="ada")
        lost = await runtime.supervisor().handle_turn("one", session_id=session_id)
    ho2m.write_bytes(durable)
    shutil.rmtree(tmp_path / "index")
    async with open_scripted(tmp_path) as runtime:
        await runtime.supervisor().start_session(session_id, subject_id="ada")
        result = await runtime.supervisor().handle_turn("one", session_id=session_id)
        entries = await read_all(runtime.ledgers().ho2m, session_id=session_id)
        traced = await read_all(runtime.ledgers().ho1m, session_id=session_id)
    executed = [entry for entry in traced if entry.entry_type == events.LLM_CALL]
    assert (lost.turn_id[-6:], result.turn_id[-6:]) == ("000001", "000002")
    assert [entry.entity_id for entry in entries if entry.entry_type == events.TURN_ABORTED] == [lost.turn_id]
    assert len({entry.entity_id for entry in executed}) == len(executed) == 4
    [completed] = [entry for entry in entries if entry.entry_type == events.TURN_COMPLETED]
    assert completed.payload["trace_hash"] == compute_trace_hash(
        [each for each in traced if each.payload["turn_id"] == result.turn_id]
    )


async def test_numbers_that_a_crash_left_out_are_counted_however_often_the_session_comes_back(tmp_path: Path) -> None:
    """A lost turn is closed once, not at each activation, and the turns after it are not taken for lost."""
    session_id, lost = await lose_a_turn(tmp_path)
    for _ in range(2):  # it comes back, and dies before it says anything
        async with open_scripted(tmp_path) as runtime:
            await runtime.supervisor().session(session_id)
    turns = []
    for message in ("three", "four"):
        async with open_scripted(tmp_path) as runtime:
            turns.append((await runtime.supervisor().handle_turn(message, session_id=session_id)).turn_id[-6:])
    async with open_scripted(tmp_path) as runtime:
        session = await runtime.supervisor().session(session_id)
        entries = await read_all(runtime.ledgers().ho2m, session_id=session_id)
    assert turns == ["000003", "000004"]
    assert [entry.entity_id for entry in entries if entry.entry_type == events.TURN_ABORTED] == [lost]
    assert (session.state.turn_count, session.wo_sequence) == (4, 8)
