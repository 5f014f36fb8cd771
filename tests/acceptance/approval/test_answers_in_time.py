"""Ends of a request without an answer: expiry, a changed tool, a turn that was cut off (docs/approval.md)."""

from pathlib import Path

import anyio
import pytest

from kitchener.errors import ApprovalAnswered, ApprovalVoid, CallerError, SessionEnded, SubjectErased
from kitchener.records import events
from kitchener.records.turn import TurnResult
from kitchener.testing import FakeClock
from tests.acceptance.approval.kit import Desk, model, open_desk, replayed, replays
from tests.acceptance.stack import read_all

ONE = [("delete", {"path": "a"})]


async def test_a_request_expires(tmp_path: Path) -> None:
    """At the next look, be it an answer or a message; a call that was approved beside it is not made either."""
    root, desk, clock = tmp_path / "root", Desk(), FakeClock()
    asked = [*ONE, ("delete", {"path": "b"})]
    async with open_desk(root, desk, model(asked), clock, approval={"expires_s": 60}) as runtime:
        supervisor = runtime.supervisor()
        waiting = await supervisor.handle_turn("tidy up", subject_id="ada")
        other = await supervisor.handle_turn("tidy up", subject_id="bo")
        first, second = waiting.pending_approval
        assert await supervisor.approve(first) is None
        clock.advance(61)
        talk = await supervisor.handle_turn("chat", session_id=waiting.session_id)
        assert talk.pending_approval == ()
        for each in (first, second):
            with pytest.raises(ApprovalAnswered):
                await supervisor.approve(each)
        with pytest.raises(ApprovalAnswered, match="expired"):
            await supervisor.approve(other.pending_approval[0])
        ends = await read_all(runtime.ledgers("ADMIN").ho2m, entry_type=events.WO_ABANDONED)
        assert [each.payload["reason"] for each in ends] == ["expired", "expired"]
    assert desk.done == []
    assert await replayed(root, desk, waiting.session_id, approval={"expires_s": 60}) == 2


async def test_an_approval_of_a_tool_that_has_changed_is_void(tmp_path: Path) -> None:
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model(ONE)) as runtime:
        waiting = await runtime.supervisor().handle_turn("tidy up", subject_id="ada")
    desk.change_delete()
    async with open_desk(root, desk, model(ONE)) as runtime:
        with pytest.raises(ApprovalVoid) as caught:
            await runtime.supervisor().approve(waiting.pending_approval[0])
        told = caught.value.result
        assert isinstance(told, TurnResult)
        assert "the tool has changed since" in told.response
        with pytest.raises(ApprovalAnswered, match="cancelled"):
            await runtime.supervisor().approve(waiting.pending_approval[0])
    assert desk.done == []


async def test_a_tool_that_this_process_lacks_can_be_denied_only(tmp_path: Path) -> None:
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model(ONE)) as runtime:
        waiting = await runtime.supervisor().handle_turn("tidy up", subject_id="ada")
    desk.tools = desk.tools[1:]
    async with open_desk(root, desk, model(ONE)) as runtime:
        with pytest.raises(CallerError, match="not known to this process"):
            await runtime.supervisor().approve(waiting.pending_approval[0])
        told = await runtime.supervisor().deny(waiting.pending_approval[0])
        assert told is not None
        assert "did not allow this call" in told.response


async def test_requests_of_a_turn_that_was_cut_off_are_void(tmp_path: Path) -> None:
    """A message that is sent again asks again, so nobody answers twice."""
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model(ONE)) as runtime:
        ledgers = runtime.ledgers("ADMIN")
        session_id = await runtime.supervisor().start_session(subject_id="ada")
        write, stopped = ledgers.ho2m.write, anyio.Event()
        with anyio.CancelScope() as scope:

            async def cut(*args: object, **options: object) -> object:
                if args[0].entry_type == events.WO_CHAIN_COMPLETE and not stopped.is_set():  # type: ignore[attr-defined]
                    stopped.set()
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
                return await write(*args, **options)  # type: ignore[arg-type]

            ledgers.ho2m.write = cut  # type: ignore[method-assign, assignment]
            await runtime.supervisor().handle_turn("tidy up", session_id=session_id)
        entries = await read_all(ledgers.ho2m, entry_type=events.APPROVAL_REQUESTED)
        with pytest.raises(ApprovalAnswered, match="void"):
            await runtime.supervisor().approve(entries[0].entity_id)
        again = await runtime.supervisor().handle_turn("tidy up", session_id=session_id)
        done = await runtime.supervisor().approve(again.pending_approval[0])
        assert done is not None
    assert desk.done == ["delete a"]


async def test_an_answer_for_an_ended_or_erased_session_is_refused(tmp_path: Path) -> None:
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model(ONE)) as runtime:
        supervisor = runtime.supervisor()
        ended = await supervisor.handle_turn("tidy up", subject_id="ada")
        erased = await supervisor.handle_turn("tidy up", subject_id="bo")
        await supervisor.end_session(ended.session_id)
        await runtime.erase_subject("bo")
        with pytest.raises(SessionEnded):
            await supervisor.approve(ended.pending_approval[0])
        with pytest.raises(SubjectErased):
            await supervisor.approve(erased.pending_approval[0])
    assert desk.done == []


async def test_two_answers_at_once_make_the_call_once(tmp_path: Path) -> None:
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model(ONE)) as runtime:
        supervisor = runtime.supervisor()
        waiting = await supervisor.handle_turn("tidy up", subject_id="ada")
        results: list[str] = []

        async def answer() -> None:
            done = await supervisor.approve(waiting.pending_approval[0])
            assert done is not None
            results.append(done.turn_id)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(answer)
    assert len(results) == 5
    assert len(set(results)) == 1
    assert desk.done == ["delete a"]


async def test_a_turn_that_is_cut_off_after_the_effect_does_not_repeat_it(tmp_path: Path) -> None:
    """The same answer goes on with what the turn that was cut off has done, also in another process."""
    root, desk = tmp_path / "root", Desk()
    rounds = [[*ONE, ("write", {"path": "b"})], [("write", {"path": "c"}), ("delete", {"path": "d"})]]
    async with open_desk(root, desk, model(*rounds)) as runtime:
        waiting = await runtime.supervisor().handle_turn("tidy up", subject_id="ada")

    async def stop(request: object) -> None:
        scope.cancel()
        await anyio.sleep_forever()  # an answer could begin "write c", of which the outcome would be unknown

    async with open_desk(root, desk, model(*rounds, gate=stop)) as runtime:
        with anyio.CancelScope() as scope:
            await runtime.supervisor().approve(waiting.pending_approval[0])
    assert desk.done == ["delete a", "write b"]
    async with open_desk(root, desk, model(*rounds)) as runtime:
        done = await runtime.supervisor().approve(waiting.pending_approval[0])
        assert done is not None
        assert [each[-2:] for each in done.pending_approval] == [".2"]
    assert desk.done == ["delete a", "write b", "write c"]
    async with open_desk(root, desk, model(*rounds)) as runtime:
        end = await runtime.supervisor().approve(done.pending_approval[0])
        assert end is not None
        assert end.response == "done: deleted a | wrote b | wrote c | deleted d"
    assert desk.done == ["delete a", "write b", "write c", "delete d"]
    report = await replays(root, desk, waiting.session_id)
    assert report.divergence is None
    assert (len(report.turns), len(report.skipped)) == (3, 1)
