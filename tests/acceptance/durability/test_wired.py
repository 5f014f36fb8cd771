"""The promises that only hold where all parts are connected: overload, cancellation, overlap, and a process that is killed."""

import signal
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from kitchener.errors import Overloaded, SessionBusy, TurnReplaced
from kitchener.ids import SessionId
from kitchener.records import events
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.conftest import OpenRuntime
from tests.acceptance.stack import Hold, echo, open_scripted, outcome, read_all, types_of
from tests.cli.shared.commands import start_program
from tests.shared.payloads import payload_of


class Callers:
    """Several calls of one supervisor at once, each with what it came to, by message and in order of their ends."""

    def __init__(self, runtime: Runtime, agent_class: str = "ADMIN") -> None:
        self.supervisor = runtime.supervisor(agent_class)
        self.ledger = runtime.ledgers(agent_class).ho2m
        self.outcomes: dict[str, TurnResult | Exception] = {}

    async def send(self, session_id: str, message: str) -> None:
        """One call, to its end."""
        self.outcomes[message] = await outcome(self.supervisor.handle_turn(message, session_id=session_id))

    async def entries(self, session_id: str) -> list[str]:
        """The types of a session's entries."""
        return types_of(await read_all(self.ledger, session_id=session_id))

    async def rejected(self, session_id: str) -> list[tuple[str, str]]:
        """What was turned away in a session, and why."""
        entries = await read_all(self.ledger, session_id=session_id, entry_type=events.TURN_REJECTED)
        return [(payload_of(entry)["user_message"], payload_of(entry)["reason"]) for entry in entries]


async def test_full_mailbox_overloaded_nothing_started(scripted: OpenRuntime) -> None:
    """A full queue, of a session or of the runtime, refuses at once: Overloaded, and no new entry but TURN_REJECTED."""
    hold = Hold("running")
    provider = ScriptedProvider(echo, gate=hold)
    async with scripted(provider, session_queue=1, limits={"max_running_turns": 1, "max_waiting_turns": 1}) as runtime:
        callers = Callers(runtime)
        busy, other, third = [await callers.supervisor.start_session() for _ in range(3)]
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(callers.send, busy, "running")
                await hold.arrived["running"].wait()
                tasks.start_soon(callers.send, busy, "waits for its session")
                tasks.start_soon(callers.send, other, "waits for the runtime")
                await anyio.wait_all_tasks_blocked()
                for session_id, what in ((busy, "session"), (third, "runtime")):
                    before, asked = await callers.entries(session_id), len(provider.requests)
                    with pytest.raises(Overloaded, match=what) as caught:
                        await callers.supervisor.handle_turn("too much", session_id=session_id)
                    assert caught.value.limit == 1
                    assert await callers.entries(session_id) == [*before, events.TURN_REJECTED]
                    assert await callers.rejected(session_id) == [("too much", "overloaded")]
                    assert len(provider.requests) == asked
                hold.released["running"].set()
        assert {message: type(end) for message, end in callers.outcomes.items()} == dict.fromkeys(
            ("running", "waits for its session", "waits for the runtime"), TurnResult
        )
        result = await callers.supervisor.handle_turn("now there is room", session_id=third)
        assert result.turn_id.endswith("-000001")


async def test_waiting_past_the_admission_deadline_is_overload(scripted: OpenRuntime) -> None:
    """Who waits for a session, or for a turn slot, past the admission deadline is told so; nothing was started."""
    hold = Hold("running")
    provider = ScriptedProvider(echo, gate=hold)
    async with scripted(provider, admission_deadline_s=0.01, limits={"max_running_turns": 1}) as runtime:
        callers = Callers(runtime)
        busy, other = [await callers.supervisor.start_session() for _ in range(2)]
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(callers.send, busy, "running")
                await hold.arrived["running"].wait()
                for session_id in (busy, other):
                    with pytest.raises(Overloaded):
                        await callers.supervisor.handle_turn("late", session_id=session_id)
                    assert await callers.rejected(session_id) == [("late", "overloaded")]
                hold.released["running"].set()
        assert await callers.entries(other) == [events.SESSION_START, events.TURN_REJECTED]
        for session_id in (busy, other):
            assert (await callers.supervisor.handle_turn("again", session_id=session_id)).error is None


async def test_cancelled_turn_aborted_session_usable(scripted: OpenRuntime) -> None:
    """The caller is cancelled while the model thinks: TURN_ABORTED, on disk, open work abandoned, and the next turn works."""
    hold = Hold("never mind")
    async with scripted(ScriptedProvider(echo, gate=hold)) as runtime:
        supervisor, ledger = runtime.supervisor("ADMIN"), runtime.ledgers("ADMIN").ho2m
        session_id = await supervisor.start_session()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    await supervisor.handle_turn("never mind", session_id=session_id)

                tasks.start_soon(call)
                await hold.arrived["never mind"].wait()
                tasks.cancel_scope.cancel()
            (aborted,) = await read_all(ledger, session_id=session_id, entry_type=events.TURN_ABORTED)
            (abandoned,) = await read_all(ledger, session_id=session_id, entry_type=events.WO_ABANDONED)
            (planned,) = await read_all(ledger, session_id=session_id, entry_type=events.WO_PLANNED)
            assert aborted.payload["reason"] == "cancelled"
            assert aborted.seq <= ledger.durable_position
            assert abandoned.payload["wo_id"] == planned.payload["wo_id"]
            result = await supervisor.handle_turn("and now?", session_id=session_id)
    assert result.response == "echo: and now?"
    assert (aborted.payload["turn_id"], result.turn_id) == (f"T-{session_id[4:]}-000001", f"T-{session_id[4:]}-000002")


async def overlapping(callers: Callers, hold: Hold) -> SessionId:
    """A session in which `one` runs, `two` arrives meanwhile, then `three`; then `one` is let go."""
    session_id = await callers.supervisor.start_session()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(callers.send, session_id, "one")
            await hold.arrived["one"].wait()
            for message in ("two", "three"):
                tasks.start_soon(callers.send, session_id, message)
                await anyio.wait_all_tasks_blocked()
            hold.released["one"].set()
    return session_id


async def ends(callers: Callers, session_id: str) -> list[tuple[str, str, str]]:
    """Each turn of the session: its message, how it ended, and the reply or the reason."""
    found: list[tuple[str, str, str]] = []
    message = ""
    for entry in await read_all(callers.ledger, session_id=session_id):
        if entry.entry_type == events.TURN_STARTED:
            message = payload_of(entry)["user_message"]
        elif entry.entry_type in (events.TURN_COMPLETED, events.TURN_ABORTED):
            found.append((message, entry.entry_type, payload_of(entry).get("response") or payload_of(entry)["reason"]))
    return found


@pytest.mark.parametrize("policy", ["queue", "reject", "replace"])
async def test_overlap_policies(scripted: OpenRuntime, policy: str) -> None:
    """queue: first come, first served. reject: SessionBusy. replace: only the newest message counts. All of it is recorded."""
    hold = Hold("one")
    async with scripted(ScriptedProvider(echo, gate=hold), overlap_policy=policy) as runtime:
        callers = Callers(runtime)
        session_id = await overlapping(callers, hold)
        kinds = {message: type(end) for message, end in callers.outcomes.items()}
        turns, rejected = await ends(callers, session_id), await callers.rejected(session_id)
        if policy == "queue":
            assert list(kinds.items()) == [("one", TurnResult), ("two", TurnResult), ("three", TurnResult)]
            assert turns == [(message, events.TURN_COMPLETED, f"echo: {message}") for message in ("one", "two", "three")]
            assert rejected == []
        elif policy == "reject":
            assert kinds == {"one": TurnResult, "two": SessionBusy, "three": SessionBusy}
            assert turns == [("one", events.TURN_COMPLETED, "echo: one")]
            assert rejected == [("two", "busy"), ("three", "busy")]
        else:
            assert kinds["one"] is TurnReplaced
            assert kinds["three"] is TurnResult
            assert turns[0] == ("one", events.TURN_ABORTED, "cancelled")
            assert turns[-1] == ("three", events.TURN_COMPLETED, "echo: three")
            assert {message for message, _, _ in turns} | {message for message, _ in rejected} == {"one", "two", "three"}
        assert (await callers.supervisor.handle_turn("four", session_id=session_id)).response == "echo: four"


async def test_replace_turns_away_those_in_line(scripted: OpenRuntime) -> None:
    """While the replaced turn still winds up, a third message turns away the second, which never started."""
    hold = Hold("one", "two")
    async with scripted(ScriptedProvider(echo, gate=hold), overlap_policy="replace") as runtime:
        callers = Callers(runtime)
        session_id = await callers.supervisor.start_session()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(callers.send, session_id, "one")
                await hold.arrived["one"].wait()
                tasks.start_soon(callers.send, session_id, "two")
                await hold.arrived["two"].wait()
                tasks.start_soon(callers.send, session_id, "three")
        assert [(message, kind) for message, kind, _ in await ends(callers, session_id)] == [
            ("one", events.TURN_ABORTED),
            ("two", events.TURN_ABORTED),
            ("three", events.TURN_COMPLETED),
        ]
        assert {message: type(end) for message, end in callers.outcomes.items()} == {
            "one": TurnReplaced,
            "two": TurnReplaced,
            "three": TurnResult,
        }


KILLED = """
import sys
from pathlib import Path

import anyio

from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import open_scripted


async def hang(request):
    print("asked", flush=True)
    await anyio.sleep_forever()


async def main():
    async with open_scripted(Path(sys.argv[1]), ScriptedProvider([], gate=hang)) as runtime:
        supervisor = runtime.supervisor("ADMIN")
        session_id = await supervisor.start_session(subject_id="ada")
        await runtime.ledgers().commit()
        print(session_id, flush=True)
        await supervisor.handle_turn("do not lose this", session_id=session_id)


anyio.run(main, backend=sys.argv[2])
"""


async def test_user_message_survives_a_crash(tmp_path: Path, anyio_backend: str) -> None:
    """A process is killed while its model call hangs: the message stands in TURN_STARTED, and the session goes on elsewhere."""
    path = tmp_path / "HO2" / "ADMIN" / "ho2m.jsonl"
    with start_program(KILLED, tmp_path, anyio_backend) as process:
        assert process.stdout is not None
        session_id, asked = process.stdout.readline().strip(), process.stdout.readline().strip()
        assert asked == "asked"
        with anyio.fail_after(30):
            while b"TURN_STARTED" not in path.read_bytes():  # nobody waits for this commit, but it comes
                await anyio.lowlevel.checkpoint()
        process.kill()
        assert process.wait() == -signal.SIGKILL
    async with open_scripted(tmp_path) as runtime:
        supervisor, ledger = runtime.supervisor("ADMIN"), runtime.ledgers("ADMIN").ho2m
        with anyio.fail_after(10):
            result = await supervisor.handle_turn("are you there?", session_id=session_id, subject_id="ada")
        entries = await read_all(ledger, session_id=session_id)
        assert (await ledger.verify()).ok
    by_turn = [(entry.entry_type, entry.payload) for entry in entries if entry.entry_type.startswith("TURN_")]
    assert [kind for kind, _ in by_turn] == ["TURN_STARTED", "TURN_ABORTED", "TURN_STARTED", "TURN_COMPLETED"]
    assert by_turn[0][1]["user_message"] == "do not lose this"
    assert by_turn[1][1]["reason"] == "crash"
    assert by_turn[0][1]["turn_id"] == by_turn[1][1]["turn_id"] != result.turn_id
    assert result.response == "echo: are you there?"
    assert result.turn_id.endswith("-000002")
