"""A request for approval is answered by a command beside the process that has the root open (docs/approval.md)."""

import json
from pathlib import Path

import anyio
import pytest

from kitchener.errors import AdminRefused, ApprovalAnswered, ApprovalVoid, UnknownApproval
from kitchener.records.prompt import PromptRequest
from kitchener.runtime.admin.operations import AnswerApproval, EndSession
from kitchener.runtime.administration import administer
from tests.acceptance.approval.kit import Desk, model
from tests.runtime.admin.admin_kit import command, listening, listening_config

ONE = [("delete", {"path": "a"})]


async def test_a_command_answers_and_the_running_process_makes_the_call(tmp_path: Path) -> None:
    """Two people's requests: the answer to one is none to the other, and the active session knows it at once."""
    root, desk = tmp_path / "plane", Desk()
    async with listening(root, model(ONE), tools=desk.tools) as runtime:
        supervisor = runtime.supervisor()
        mine = await supervisor.handle_turn("tidy up", subject_id="ada")
        other = await supervisor.handle_turn("tidy up", subject_id="bo")
        (approval_id,), (theirs,) = mine.pending_approval, other.pending_approval
        listed = await command(tmp_path, "approval", "list", "--root", root, "--json")
        assert [each["approval_id"] for each in listed.json] == [approval_id, theirs]
        done = await command(tmp_path, "approval", "approve", approval_id, "--by", "carol", "--root", root, "--json")
        assert done.code == 0, done.err
        assert (done.json["response"], done.json["error"]) == ("done: deleted a", None)
        assert desk.done == ["delete a"]
        again = await supervisor.approve(approval_id)
        assert again is not None
        assert again.turn_id == done.json["turn_id"], "the process knows the answer that the command gave"
        refused = await command(tmp_path, "approval", "deny", approval_id, "--root", root)
        assert (refused.code, "it is approved" in refused.err) == (1, True)
        shown = await command(tmp_path, "approval", "show", approval_id, "--root", root, "--json")
        assert [each["given_answered_by"] for each in json.loads(shown.out)] == ["carol"]
        left = await command(tmp_path, "approval", "list", "--root", root, "--json")
        assert [each["approval_id"] for each in left.json] == [theirs]
    assert desk.done == ["delete a"]


async def test_a_command_without_tools_answers_by_the_process_that_has_them(tmp_path: Path) -> None:
    """Beside nobody, the command would need the tool itself; a denial needs none."""
    root, desk = tmp_path / "plane", Desk()
    async with listening(root, model(ONE), tools=desk.tools) as runtime:
        waiting = await runtime.supervisor().handle_turn("tidy up", subject_id="ada")
    (approval_id,) = waiting.pending_approval
    alone = await command(tmp_path, "approval", "approve", approval_id, "--root", root)
    assert (alone.code, "tool 'delete' is not known to this process" in alone.err) == (2, True)
    async with listening(root, model(ONE), tools=desk.tools):
        beside = await command(tmp_path, "approval", "approve", approval_id, "--root", root)
        assert (beside.code, beside.out) == (0, "done: deleted a\n")
    assert desk.done == ["delete a"]


async def test_an_answer_that_cannot_be_taken_has_the_error_of_a_direct_call(tmp_path: Path) -> None:
    root, desk = tmp_path / "plane", Desk()
    config = listening_config(root)
    async with listening(root, model(ONE), tools=desk.tools) as runtime:
        waiting = await runtime.supervisor().handle_turn("tidy up", subject_id="ada")
        (approval_id,) = waiting.pending_approval

        async def refused(own_id: str, decision: str) -> AdminRefused:
            answer = AnswerApproval(agent_class="ADMIN", approval_id=own_id, decision=decision)  # type: ignore[arg-type]
            with pytest.raises(AdminRefused) as caught:
                await administer(config, answer)
            return caught.value

        assert (await refused(f"{approval_id}9", "approved")).error_class is UnknownApproval
        assert await runtime.supervisor().deny(approval_id) is not None
        assert (await refused(approval_id, "approved")).error_class is ApprovalAnswered
    assert desk.done == []


async def test_a_command_tells_that_a_tool_has_changed(tmp_path: Path) -> None:
    root, desk = tmp_path / "plane", Desk()
    async with listening(root, model(ONE), tools=desk.tools) as runtime:
        waiting = await runtime.supervisor().handle_turn("tidy up", subject_id="ada")
    desk.change_delete()
    async with listening(root, model(ONE), tools=desk.tools):
        answer = AnswerApproval(agent_class="ADMIN", approval_id=waiting.pending_approval[0], decision="approved")
        with pytest.raises(AdminRefused, match="has changed since") as caught:
            await administer(listening_config(root), answer)
        assert caught.value.error_class is ApprovalVoid
    assert desk.done == []


async def test_an_answer_whose_turn_takes_long_holds_up_no_other_request_and_outlasts_their_deadline(tmp_path: Path) -> None:
    """The turn is in the model's hands; meanwhile another person's request is answered, and a session is ended."""
    root, desk = tmp_path / "plane", Desk()
    config, hold = listening_config(root, {"deadline_s": 5.0}), Held()
    async with listening(root, model(ONE, gate=hold), tools=desk.tools, admin={"deadline_s": 5.0}) as runtime:
        supervisor = runtime.supervisor()
        mine = await supervisor.handle_turn("tidy up", subject_id="ada")
        other = await supervisor.handle_turn("tidy up", subject_id="bo")
        third = await supervisor.start_session(subject_id="cy")
        slow = AnswerApproval(agent_class="ADMIN", approval_id=mine.pending_approval[0], decision="approved")
        assert slow.deadline_s(config) > 5.0 + config.agents["ADMIN"].turn_deadline_s
        ended = anyio.Event()

        async def answer() -> None:
            assert (await administer(config, slow)).response == "done: deleted a"
            ended.set()

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                hold.session_id = mine.session_id
                tasks.start_soon(answer)
                await hold.arrived.wait()
                quick = AnswerApproval(agent_class="ADMIN", approval_id=other.pending_approval[0], decision="denied")
                assert (await administer(config, quick)).turn_id is not None
                await administer(config, EndSession(agent_class="ADMIN", session_id=third))
                assert not ended.is_set()
                hold.released.set()
    assert desk.done == ["delete a"]


class Held:
    """Holds the model calls of one session."""

    def __init__(self) -> None:
        self.session_id = ""
        self.arrived, self.released = anyio.Event(), anyio.Event()

    async def __call__(self, request: PromptRequest) -> None:
        if self.session_id and self.session_id in request.wo_id:
            self.arrived.set()
            await self.released.wait()
