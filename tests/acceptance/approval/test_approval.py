"""A tool call that waits for a person: asked, answered, made once, replayed (docs/approval.md)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from kitchener.errors import ApprovalAnswered, CallerError, UnknownApproval
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.turn_views.recorded_turn import read_turn
from kitchener.records import events
from kitchener.records.turn import TextDelta, ToolRan, TurnUpdate
from tests.acceptance.approval.kit import Desk, model, open_desk, replayed
from tests.acceptance.stack import read_all, scripted_config
from tests.shared.payloads import payload_of

ENFORCE: Final[Mapping[str, Any]] = {"context_mode": "enforce"}


async def test_a_call_waits_until_a_person_allows_it(tmp_path: Path) -> None:
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model([("delete", {"path": "a.txt"})])) as runtime:
        supervisor = runtime.supervisor()
        waiting = await supervisor.handle_turn("tidy up", subject_id="ada")
        assert desk.done == []
        (approval_id,) = waiting.pending_approval
        assert (waiting.degraded, waiting.error, waiting.wo_chain_summary[-1]["state"]) == (False, None, "deferred")
        assert 'delete {"path":"a.txt"}' in waiting.response
        assert approval_id in waiting.response
        result = await supervisor.approve(approval_id, answered_by="bo")
        assert desk.done == ["delete a.txt"]
        assert result is not None
        assert (result.response, result.pending_approval) == ("done: deleted a.txt", ())
        again = await supervisor.approve(approval_id)
        assert again is not None
        assert again.turn_id == result.turn_id
        assert desk.done == ["delete a.txt"]
        with pytest.raises(ApprovalAnswered, match="approved"):
            await supervisor.deny(approval_id)
    assert await replayed(root, desk, waiting.session_id) == 2


@pytest.mark.parametrize("allowed", [True, False])
async def test_the_turn_after_an_answer_can_be_watched(tmp_path: Path, allowed: bool) -> None:
    """A page that streams replies also streams the one after its user has answered (docs/turn.md, "Watching it happen")."""
    desk, told = Desk(), list[TurnUpdate]()

    async def listen(update: TurnUpdate) -> None:
        told.append(update)

    async with open_desk(tmp_path / "root", desk, model([("delete", {"path": "a.txt"})])) as runtime:
        supervisor = runtime.supervisor()
        (approval_id,) = (await supervisor.handle_turn("tidy up", subject_id="ada")).pending_approval
        answer = supervisor.approve if allowed else supervisor.deny
        result = await answer(approval_id, listener=listen)
    assert result is not None
    assert "".join(each.text for each in told if isinstance(each, TextDelta)) == result.response
    (call,) = [each for each in told if isinstance(each, ToolRan)]
    assert (call.tool_id, call.error is None) == ("delete", allowed)


async def test_a_request_survives_a_restart(tmp_path: Path) -> None:
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model([("delete", {"path": "a.txt"})])) as runtime:
        waiting = await runtime.supervisor().handle_turn("tidy up", subject_id="ada")
    async with open_desk(root, desk, model([("delete", {"path": "a.txt"})])) as runtime:
        talk = await runtime.supervisor().handle_turn("chat meanwhile", session_id=waiting.session_id)
        assert talk.response == "done: "
    async with open_desk(root, desk, model([("delete", {"path": "a.txt"})])) as runtime:
        result = await runtime.supervisor().approve(waiting.pending_approval[0])
        assert result is not None
        assert result.response == "done: deleted a.txt"
        types = [
            e.entry_type for e in await read_all(runtime.ledgers("ADMIN").ho2m, entity_id=result.wo_chain_summary[0]["wo_id"])
        ]
        assert types[-1] == events.WO_COMPLETED
    async with open_desk(root, desk, model([("delete", {"path": "a.txt"})])) as runtime:
        again = await runtime.supervisor().approve(waiting.pending_approval[0])
        assert again is not None
        assert again.turn_id == result.turn_id
    assert desk.done == ["delete a.txt"]
    assert await replayed(root, desk, waiting.session_id) == 3


async def test_a_denied_call_is_not_made_and_the_model_is_told_why(tmp_path: Path) -> None:
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model([("delete", {"path": "a.txt"})])) as runtime:
        waiting = await runtime.supervisor().handle_turn("tidy up", subject_id="ada")
        result = await runtime.supervisor().deny(waiting.pending_approval[0], "it is still needed")
        assert result is not None
        assert "it is still needed" in result.response
        with pytest.raises(ApprovalAnswered, match="denied"):
            await runtime.supervisor().approve(waiting.pending_approval[0])
    assert desk.done == []
    assert await replayed(root, desk, waiting.session_id) == 2


async def test_several_calls_of_one_round_are_asked_for_at_once(tmp_path: Path) -> None:
    """Calls before the first that waits have run; those after it wait with it, and run in their order."""
    root, desk = tmp_path / "root", Desk()
    asked = [("look", {"path": "0"}), ("delete", {"path": "1"}), ("write", {"path": "2"}), ("delete", {"path": "3"})]
    async with open_desk(root, desk, model(asked, [("look", {"path": "4"})])) as runtime:
        supervisor = runtime.supervisor()
        waiting = await supervisor.handle_turn("tidy up", subject_id="ada")
        assert desk.done == ["look 0"]
        first, second = waiting.pending_approval
        assert (first[-2:], second[-2:]) == (".2", ".4")
        assert await supervisor.approve(second, arguments={"path": "other"}) is None
        assert desk.done == ["look 0"]
        result = await supervisor.deny(first, "keep it")
        assert result is not None
        assert desk.done == ["look 0", "write 2", "delete other", "look 4"]
        assert result.response.startswith('done: saw 0 | {"error":"a person was asked and did not allow this call: keep it"}')
        assert result.response.endswith("wrote 2 | deleted other | saw 4")
    assert await replayed(root, desk, waiting.session_id) == 2


async def test_a_loop_that_goes_on_can_wait_again(tmp_path: Path) -> None:
    root, desk = tmp_path / "root", Desk()
    rounds = [[("delete", {"path": str(n)}), ("look", {"path": str(n)})] for n in range(3)]
    waiting_ids = list[str]()
    async with open_desk(root, desk, model(*rounds)) as runtime:
        result = await runtime.supervisor().handle_turn("tidy up", subject_id="ada")
    while result.pending_approval:
        waiting_ids += result.pending_approval
        async with open_desk(root, desk, model(*rounds)) as runtime:
            more = await runtime.supervisor().approve(result.pending_approval[0])
            assert more is not None
            result = more
    assert len(waiting_ids) == 3
    assert desk.done == [f"{what} {n}" for n in range(3) for what in ("delete", "look")]
    assert result.response == "done: deleted 0 | saw 0 | deleted 1 | saw 1 | deleted 2 | saw 2"
    assert await replayed(root, desk, result.session_id) == 4


async def test_an_approval_for_the_session_holds_for_later_calls_of_the_tool_there_alone(tmp_path: Path) -> None:
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model([("delete", {"path": "a"})])) as runtime:
        supervisor = runtime.supervisor()
        waiting = await supervisor.handle_turn("tidy up", subject_id="ada")
        await supervisor.approve(waiting.pending_approval[0], scope="session")
    async with open_desk(root, desk, model([("delete", {"path": "b"})])) as runtime:
        supervisor = runtime.supervisor()
        more = await supervisor.handle_turn("once more", session_id=waiting.session_id)
        assert more.pending_approval == ()
        other = await supervisor.handle_turn("tidy up", subject_id="bo")
        assert len(other.pending_approval) == 1
        planned = await read_all(runtime.ledgers("ADMIN").ho2m, session_id=waiting.session_id, entry_type=events.WO_PLANNED)
        assert payload_of(planned[-1])["constraints"]["grants"] == list(waiting.pending_approval)
    assert desk.done == ["delete a", "delete b"]
    assert await replayed(root, desk, waiting.session_id) == 3


async def test_a_question_of_a_tool_is_answered_and_its_call_made_again(tmp_path: Path) -> None:
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model([("pay", {"amount": 5}), ("look", {"path": "x"})])) as runtime:
        waiting = await runtime.supervisor().handle_turn("pay the bill", subject_id="ada")
        assert "Pay 5 EUR?" in waiting.response
    async with open_desk(root, desk, model([("pay", {"amount": 5}), ("look", {"path": "x"})])) as runtime:
        (approval_id,) = waiting.pending_approval
        with pytest.raises(CallerError, match="pin"):
            await runtime.supervisor().approve(approval_id, answer={"word": "yes"})
        with pytest.raises(CallerError, match=f"so give an answer, or deny the call; `kitchener approval show {approval_id}`"):
            await runtime.supervisor().approve(approval_id)
        result = await runtime.supervisor().approve(approval_id, answer={"pin": 1})
        assert result is not None
        assert result.response == "done: paid {'n': 5} with {'pin': 1} | saw x"
    assert desk.done == ["pay 5", "look x"]
    assert await replayed(root, desk, waiting.session_id) == 2


async def test_no_message_can_have_the_key_of_a_turn_that_goes_on(tmp_path: Path) -> None:
    """Otherwise a message could stand in the place of an approved call, or be answered with its result."""
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model([("delete", {"path": "a"})])) as runtime:
        supervisor = runtime.supervisor()
        waiting = await supervisor.handle_turn("tidy up", subject_id="ada", idempotency_key="approvals")
        key = f"approval:{waiting.wo_chain_summary[-1]['wo_id']}"
        with pytest.raises(CallerError, match="'approval:' belong to turns that continue after an approval"):
            await supervisor.handle_turn("take its place", session_id=waiting.session_id, idempotency_key=key)
        assert await supervisor.approve(waiting.pending_approval[0]) is not None
    assert desk.done == ["delete a"]


async def test_an_unknown_request_is_refused(tmp_path: Path) -> None:
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model([("delete", {"path": "a"})])) as runtime:
        supervisor = runtime.supervisor()
        waiting = await supervisor.handle_turn("tidy up", subject_id="ada")
        with pytest.raises(UnknownApproval):
            await supervisor.approve(f"{waiting.pending_approval[0]}9")
        with pytest.raises(CallerError, match="expected WO-SES"):
            await supervisor.approve("yes")
        with pytest.raises(CallerError, match="path"):
            await supervisor.approve(waiting.pending_approval[0], arguments={})
    assert desk.done == []


async def test_a_turn_that_goes_on_does_not_show_its_work_order_as_one_that_waits(tmp_path: Path) -> None:
    """Turns in between are told that it waits; the other subject's request is never told. It stays explained and replays."""
    root, desk, settings = tmp_path / "root", Desk(), ENFORCE
    provider = model([("delete", {"path": "a.txt"})])
    async with open_desk(root, desk, provider, **settings) as runtime:
        other = await runtime.supervisor().handle_turn("tidy up", subject_id="bo")
        asked = await runtime.supervisor().handle_turn("tidy up", subject_id="ada")
        await runtime.supervisor().handle_turn("chat meanwhile", session_id=asked.session_id)
        between = provider.requests[-1]
        resumed = await runtime.supervisor().approve(asked.pending_approval[0])
        assert resumed is not None
    waits = f"Work order {asked.wo_chain_summary[-1]['wo_id']} (synthesize) waiting"
    shown = ["\n".join(each.content for each in request.messages) for request in (between, provider.requests[-1])]
    assert [waits in each for each in shown] == [True, False]
    assert not any(other.pending_approval[0] in each for each in shown)
    view = await read_turn(LedgerPaths(scripted_config(root, **settings)), "ADMIN", resumed.turn_id)
    assert view.is_exact
    told = {each.entity_id: each.text for each in view.explain_all()}
    assert "not shown: the turn continues it" in told[asked.wo_chain_summary[-1]["wo_id"]]
    assert await replayed(root, desk, asked.session_id, **settings) == 3
