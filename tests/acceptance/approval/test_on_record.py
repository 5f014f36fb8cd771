"""A request that waits while records are erased, moved to another root, run under other settings, or changed around it."""

from pathlib import Path
from typing import Any

import pytest

from kitchener.errors import CallerError, SubjectErased
from kitchener.records import events
from kitchener.replaying import open_what_if
from kitchener.runtime.portable.exporter import export_session
from kitchener.runtime.portable.importer import import_session
from tests.acceptance.approval.kit import Desk, model, open_desk, replayed
from tests.acceptance.stack import read_all, scripted_config
from tests.shared.payloads import payload_of

SECRET = "bo's diary"
OTHER = "ada's letters"
ENFORCE: dict[str, Any] = {"context_mode": "enforce"}


def asks_for(path: str) -> list[list[tuple[str, dict[str, str]]]]:
    """A model that asks to delete a file."""
    return [[("delete", {"path": path})]]


def stored(root: Path) -> bytes:
    """All bytes of the ledgers."""
    return b"".join(path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file())


async def test_an_erasure_takes_open_and_answered_requests_along(tmp_path: Path) -> None:
    """What was asked, answered and said about it is unreadable; nobody can answer; the other subject's request still works."""
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model(*asks_for(SECRET))) as runtime:
        supervisor = runtime.supervisor()
        answered = await supervisor.handle_turn(f"delete {SECRET}", subject_id="bo")
        waiting = await supervisor.handle_turn(f"delete {SECRET}", subject_id="bo")
        await supervisor.approve(
            answered.pending_approval[0], arguments={"path": f"{SECRET} 2"}, answered_by="bo's mother", message="burn it"
        )
    async with open_desk(root, desk, model(*asks_for(OTHER))) as runtime:
        supervisor = runtime.supervisor()
        other = await supervisor.handle_turn(f"delete {OTHER}", subject_id="ada")
        await runtime.erase_subject("bo")
        for each in (answered, waiting):
            with pytest.raises(SubjectErased):
                await supervisor.approve(each.pending_approval[0])
            with pytest.raises(SubjectErased):
                await supervisor.deny(each.pending_approval[0])
        found = await read_all(runtime.ledgers("ADMIN").ho2m, entry_type=events.APPROVAL_REQUESTED)
        readable = [isinstance(payload_of(each)["arguments"].get("path"), str) for each in found]
        assert [each.session_id == other.session_id for each in found] == readable
        (answer,) = await read_all(runtime.ledgers("ADMIN").ho2m, entry_type=events.APPROVAL_RESOLVED)
        assert not any(isinstance(answer.payload[name], str) for name in ("message", "answered_by"))
        assert payload_of(answer)["override_args"].keys() != {"path"}
        done = await supervisor.approve(other.pending_approval[0])
        assert done is not None
        assert OTHER in done.response
    for words in (SECRET, "mother", "burn it", OTHER):
        assert words.encode() not in stored(root)
    assert desk.done == [f"delete {SECRET} 2", f"delete {OTHER}"]


async def test_a_request_that_moved_to_another_root_is_answered_there(tmp_path: Path) -> None:
    """Both turns are replayed there, and the session of the other subject stays behind."""
    root, there, desk = tmp_path / "a" / "root", tmp_path / "b" / "root", Desk()
    async with open_desk(root, desk, model(*asks_for("a"))) as runtime:
        waiting = await runtime.supervisor().handle_turn("tidy up", subject_id="ada")
        await runtime.supervisor().handle_turn("tidy up", subject_id="bo")
    await export_session(waiting.session_id, tmp_path / "folder", config=scripted_config(root), with_key=True)
    await import_session(tmp_path / "folder", config=scripted_config(there))
    async with open_desk(there, desk, model(*asks_for("a"))) as runtime:
        done = await runtime.supervisor().approve(waiting.pending_approval[0], arguments={"path": "b"})
        assert done is not None
        assert done.response == "done: deleted b"
    assert desk.done == ["delete b"]
    assert await replayed(there, desk, waiting.session_id) == 2


async def test_a_request_that_nobody_can_read_takes_no_answer(tmp_path: Path) -> None:
    """A session that moved without its key. Once the key is there, the request is answered."""
    root, there, desk = tmp_path / "a" / "root", tmp_path / "b" / "root", Desk()
    async with open_desk(root, desk, model(*asks_for("a"))) as runtime:
        waiting = await runtime.supervisor().handle_turn("tidy up", subject_id="ada")
    for name, with_key in (("sealed", False), ("whole", True)):
        await export_session(waiting.session_id, tmp_path / name, config=scripted_config(root), with_key=with_key)
    await import_session(tmp_path / "sealed", config=scripted_config(there))
    (approval_id,) = waiting.pending_approval
    async with open_desk(there, desk, model(*asks_for("a"))) as runtime:
        supervisor = runtime.supervisor()
        for answer in (supervisor.approve, supervisor.deny):
            with pytest.raises(CallerError, match="cannot be read"):
                await answer(approval_id)
        assert await read_all(runtime.ledgers("ADMIN").ho2m, entry_type=events.APPROVAL_RESOLVED) == []
    await import_session(tmp_path / "whole", config=scripted_config(there))
    async with open_desk(there, desk, model(*asks_for("a"))) as runtime:
        assert await runtime.supervisor().approve(approval_id) is not None
    assert desk.done == ["delete a"]


@pytest.mark.parametrize("change", ["fork", "abandon", "close"])
async def test_an_intent_that_changes_meanwhile_keeps_no_answer_from_its_call(tmp_path: Path, change: str) -> None:
    """The call was asked for under an intent that has ended or was split since. The turn that goes on is replayed."""
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model(*asks_for("a")), **ENFORCE) as runtime:
        supervisor = runtime.supervisor()
        waiting = await supervisor.handle_turn("tidy up", subject_id="ada")
        session_id, intent_id = waiting.session_id, waiting.intent_id
        assert intent_id is not None
        if change == "fork":
            await supervisor.fork_intent(session_id, intent_id, ("the cellar", "the attic"), active=0)
        elif change == "abandon":
            await supervisor.abandon_intent(session_id, intent_id, "not wanted")
        else:
            await supervisor.close_intent(session_id, intent_id, "tidy")
        done = await supervisor.approve(waiting.pending_approval[0])
        assert done is not None
        assert done.response == "done: deleted a"
    assert desk.done == ["delete a"]
    assert await replayed(root, desk, session_id, **ENFORCE) == 2


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_other_rules_ask_the_same_in_a_what_if(tmp_path: Path, decision: str) -> None:
    """Regression: the turns after one that asked were shown work orders that had failed only in the comparison."""
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model(*asks_for("a")), **ENFORCE) as runtime:
        supervisor = runtime.supervisor()
        waiting = await supervisor.handle_turn("tidy up", subject_id="ada")
        await supervisor.handle_turn("chat meanwhile", session_id=waiting.session_id)
        await supervisor.approve(waiting.pending_approval[0])
        await supervisor.handle_turn("chat again", session_id=waiting.session_id)
    config = scripted_config(root, **ENFORCE)
    rules = [{"tool": "delete", "decision": decision}]
    other = scripted_config(root, **ENFORCE, approval={"rules": rules})
    async with open_what_if(config, other, "ADMIN", tools=desk.tools) as what_if:
        report = await what_if.compare(waiting.session_id)
    assert len(report.turns) == 4
    assert report.changed == ()
