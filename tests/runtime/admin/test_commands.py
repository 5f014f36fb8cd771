"""Commands in a process of their own change a root that a runtime has open, through that runtime (docs/commands.md)."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kitchener import ImagePart
from kitchener.config import AdminConfig
from kitchener.errors import AdminRefused, CallerError, InvalidLifecycle, KitchenerError, SessionEnded, SubjectErased
from kitchener.ledger import LedgerEntry
from kitchener.records import events
from kitchener.records.turn import TurnResult
from kitchener.runtime import export_session
from kitchener.runtime.admin.admin_client import ask
from kitchener.runtime.admin.operations import (
    OPERATIONS,
    ChangeIntent,
    CleanContent,
    DeactivateArtifact,
    DeclareIntent,
    EndSession,
    EraseSubject,
    ForkIntent,
    ImportSession,
    QuarantineTarget,
    ReadStatistics,
)
from kitchener.runtime.administration import administer
from kitchener.testing import ScriptedProvider
from tests.acceptance.replies.content_kit import blobs, png
from tests.acceptance.replies.content_kit import config as content_config
from tests.acceptance.replies.content_kit import running as content_running
from tests.acceptance.stack import Hold, echo, outcome, portrait, read_all
from tests.cli.shared.command_list import every_command
from tests.memory.shared.kit import learned
from tests.runtime.admin.admin_kit import command, listening, listening_config
from tests.shared.payloads import payload_of

ADA, BO = "ada", "bo"


async def test_an_intent_is_closed_in_a_session_that_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "plane"
    async with listening(root) as runtime:
        supervisor = runtime.supervisor()
        first = await supervisor.handle_turn("find a hotel", subject_id=ADA)
        session = await supervisor.session(first.session_id)
        assert session.thread is not None
        (intent,) = session.thread.state.intents
        done = await command(tmp_path, "intent", "close", intent, "--outcome", "booked", "--root", root, "--json")
        assert (done.code, json.loads(done.out)["status"]) == (0, "closed")
        assert session.thread.state.intents[intent].status == "closed", "the active session knows it at once"
        again = await command(tmp_path, "intent", "close", intent, "--root", root)
        assert again.code == 4, "the exit code is that of a root that no process has open"
        assert f"intent {intent} was closed before" in again.err
        second = await supervisor.handle_turn("thank you", session_id=first.session_id)
        assert second.error is None
        before = portrait(await supervisor.session(first.session_id))
    async with listening(root) as runtime:
        assert portrait(await runtime.supervisor().session(first.session_id)) == before


async def test_an_intent_is_declared_and_forked(tmp_path: Path) -> None:
    root = tmp_path / "plane"
    async with listening(root) as runtime:
        session_id = (await runtime.supervisor().handle_turn("plan a trip", subject_id=ADA)).session_id
        declare = DeclareIntent(agent_class="ADMIN", session_id=session_id, objective="pack")
        made = await ask(listening_config(root), declare)
        assert (made.status, len(made.competing)) == ("live", 2)
        fork = ForkIntent(agent_class="ADMIN", session_id=session_id, intent_id=made.intent_id, objectives=("shoes", "hats"))
        forked = await ask(listening_config(root), fork)
        assert forked.child_intent_ids is not None
        thread = (await runtime.supervisor().session(session_id)).thread
        assert thread is not None
        assert {made.intent_id, *forked.child_intent_ids} <= thread.state.intents.keys()


async def test_a_subject_is_erased_while_their_turn_and_anothers_run(tmp_path: Path) -> None:
    root, hold = tmp_path / "plane", Hold("a secret", "hello")
    async with listening(root, ScriptedProvider(echo, gate=hold)) as runtime, anyio.create_task_group() as tasks:
        supervisor, ends = runtime.supervisor(), dict[str, TurnResult | Exception]()

        async def say(subject_id: str, message: str) -> None:
            ends[subject_id] = await outcome(supervisor.handle_turn(message, subject_id=subject_id))

        tasks.start_soon(say, ADA, "a secret")
        tasks.start_soon(say, BO, "hello")
        for each in hold.arrived.values():
            await each.wait()
        done = await command(tmp_path, "subject", "erase", ADA, "--yes", "--root", root, "--json")
        assert done.code == 0, done.err
        assert (done.json["subject_id"], done.json["sessions"]) == (ADA, 1)
        hold.released["hello"].set()
        with anyio.fail_after(20):
            while len(ends) < 2:
                await anyio.lowlevel.checkpoint()
        untouched = ends[BO]
        assert isinstance(untouched, TurnResult)
        assert untouched.error is None
        assert isinstance(ends[ADA], KitchenerError)
        erased = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_STARTED)
        (old,) = [each for each in erased if each.payload["subject_id"] == ADA]
        assert "secret" not in str(old.payload["user_message"])
        with pytest.raises(SubjectErased):
            await supervisor.handle_turn("still there?", session_id=payload_of(old)["session_id"])
        assert (await supervisor.handle_turn("a new start", subject_id=ADA)).error is None


async def test_an_erasure_takes_the_images_too(tmp_path: Path) -> None:
    settings = content_config(tmp_path).model_copy(update={"admin": AdminConfig(socket=True)})
    async with content_running(settings) as runtime:
        for subject_id in (ADA, BO):
            await runtime.supervisor().handle_turn("look", subject_id=subject_id, parts=[ImagePart(png())])
        assert len(blobs(settings)) == 2
        report = await ask(settings, EraseSubject(subject_id=ADA))
        assert (report.files, len(blobs(settings))) == (1, 1)


async def test_files_that_no_entry_names_are_removed_beside_turns(tmp_path: Path) -> None:
    settings = content_config(tmp_path).model_copy(update={"admin": AdminConfig(socket=True)})
    async with content_running(settings) as runtime:
        await runtime.supervisor().handle_turn("look", subject_id=ADA, parts=[ImagePart(png())])
        (kept,) = blobs(settings)
        left = [kept.with_name(".0a1b.new"), kept.with_name("0" * 62)]
        for path in left:
            path.write_bytes(b"half")
        assert await ask(settings, CleanContent()) == tuple(left)
        assert blobs(settings) == [kept]
        again = await runtime.supervisor().handle_turn("again", subject_id=ADA, parts=[ImagePart(png(seed=2))])
        assert again.error is None


async def test_a_session_is_ended(tmp_path: Path) -> None:
    root = tmp_path / "plane"
    async with listening(root) as runtime:
        first = await runtime.supervisor().handle_turn("hello", subject_id=ADA)
        end = EndSession(agent_class="ADMIN", session_id=first.session_id)
        await administer(listening_config(root), end)
        assert (await runtime.supervisor().session(first.session_id)).state.is_ended
        with pytest.raises(AdminRefused, match="has ended") as again:
            await administer(listening_config(root), end)
        assert again.value.error_class is SessionEnded


async def test_impossible_entries_of_an_active_session_are_voided(tmp_path: Path) -> None:
    root = tmp_path / "plane"
    async with listening(root) as runtime:
        session_id = (await runtime.supervisor().handle_turn("hello", subject_id=ADA)).session_id
        common = {"v": 1, "session_id": session_id, "subject_id": ADA}
        closed = {**common, "intent_id": "INT-9", "outcome": "done", "reason": "a faulty import"}
        await runtime.ledgers().ho2m.write(LedgerEntry(events.INTENT_CLOSED, "INT-9", closed))
    async with listening(root, invalid_lifecycle_policy="block") as runtime:
        supervisor = runtime.supervisor()
        blocked = await supervisor.handle_turn("still there?", session_id=session_id)
        assert blocked.error is not None
        done = await command(tmp_path, "session", "repair", session_id, "--all", "--reason", "by mistake", "--root", root)
        assert (done.code, done.err) == (0, "")
        session = await supervisor.session(session_id)
        assert session.thread is not None
        assert not session.thread.state.invalid
        assert (await supervisor.handle_turn("and now?", session_id=session_id)).error is None
        before = portrait(await supervisor.session(session_id))
    async with listening(root, invalid_lifecycle_policy="block") as runtime:
        assert portrait(await runtime.supervisor().session(session_id)) == before


async def test_a_voided_entry_of_another_program_is_shown_to_the_running_sessions_of_its_subject(tmp_path: Path) -> None:
    """The entry is about an intent that they share. Regression: they saw it void only after a restart."""
    root, other = tmp_path / "plane", "SES-0000000d"
    fields = {"session_id": other, "subject_id": ADA, "scope": "PROJECT", "intent_id": "INT-9", "outcome": "done"}
    async with listening(root) as runtime:
        session_id = (await runtime.supervisor().handle_turn("hello", subject_id=ADA)).session_id
        await runtime.ledgers().ho2m.write(LedgerEntry(events.INTENT_CLOSED, "INT-9", fields))
    async with listening(root, invalid_lifecycle_policy="block") as runtime:
        supervisor = runtime.supervisor()
        blocked = await supervisor.handle_turn("still there?", session_id=session_id)
        assert blocked.error is not None
        done = await command(tmp_path, "session", "repair", other, "--all", "--reason", "by mistake", "--root", root)
        assert (done.code, done.err) == (0, "")
        assert (await supervisor.handle_turn("and now?", session_id=session_id)).error is None


async def test_what_was_learned_is_withdrawn_and_imported_while_turns_read_it(tmp_path: Path) -> None:
    root = tmp_path / "plane"
    line = {
        "subject_id": ADA,
        "overlay_id": "OVL-1",
        "signal_id": "domain:travel",
        "content": {"bias": "prefers trains"},
        "salience_weight": 0.9,
        "source_event_ids": ["EVT-1"],
        "created_at": "2026-02-18T10:00:00+00:00",
        "window_start": "2026-02-17T10:00:00+00:00",
        "window_end": "2026-02-18T10:00:00+00:00",
        "decay_modifier": 1.0,
    }
    (tmp_path / "lines.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    async with listening(root, ho3_enabled=True) as runtime:
        memory, namespace = runtime.memory(), f"ADMIN/{ADA}"
        await memory.log_signal("domain:travel", "SES-00000001", namespace=namespace)
        await memory.commit()
        before, cut = await memory.snapshot(namespace=namespace)
        assert list(before.overlays(cut)) == []
        done = await command(tmp_path, "memory", "import", "lines.jsonl", "--root", root, "--json")
        assert (done.code, done.json["imported"]) == (0, [{"subject_id": ADA, "overlay_ids": ["OVL-1"]}])
        subject, cut = await memory.snapshot(namespace=namespace)
        assert [each.line for each in subject.overlays(cut)] == ["prefers trains"]
        quarantine = QuarantineTarget(agent_class="ADMIN", subject_id=ADA, target="domain:travel", reason="a test")
        assert (await administer(listening_config(root), quarantine)).is_written
        subject, cut = await memory.snapshot(namespace=namespace)
        assert "domain:travel" in subject.quarantined(cut)
        assert not (await administer(listening_config(root), quarantine)).is_written


async def test_a_learned_line_is_deactivated_for_the_next_turn(tmp_path: Path) -> None:
    """Also where the runtime has no memory: then its ledgers are opened for the command alone."""
    root = tmp_path / "plane"
    namespace = f"ADMIN/{ADA}"
    async with listening(root, ho3_enabled=True) as runtime:
        memory = runtime.memory()
        event = await memory.log_signal("domain:travel", "SES-00000001", namespace=namespace)
        await memory.log_overlay(learned([event], "domain:travel", scope="global"), namespace=namespace)
        await memory.commit()
        subject, cut = await memory.snapshot(namespace=namespace)
        (overlay,) = subject.overlays(cut)
        deactivate = DeactivateArtifact(agent_class="ADMIN", subject_id=ADA, artifact_id=overlay.key, reason="no longer true")
        done = await command(tmp_path, "memory", "deactivate", overlay.key, "--reason", "old", "--root", root, "--json")
        assert (done.code, done.json["written"]) == (0, True), done.err
        subject, cut = await memory.snapshot(namespace=namespace)
        (overlay,) = subject.overlays(cut)
        assert not overlay.enabled
    async with listening(root) as runtime:
        again = await administer(listening_config(root), deactivate)
        assert not again.is_written
        with pytest.raises(CallerError, match="no long-term memory"):
            runtime.memory()


async def test_a_session_of_another_root_is_imported_and_goes_on(tmp_path: Path) -> None:
    theirs, root = tmp_path / "theirs", tmp_path / "plane"
    async with listening(theirs) as runtime:
        session_id = (await runtime.supervisor().handle_turn("find a hotel", subject_id=ADA)).session_id
    await export_session(session_id, tmp_path / "folder", config=listening_config(theirs), with_key=True)
    async with listening(root) as runtime:
        await runtime.supervisor().handle_turn("hello", subject_id=BO)
        done = await command(tmp_path, "session", "import", "folder", "--root", root, "--json")
        assert (done.code, done.err) == (0, "")
        assert (done.json["session_id"], done.json["was_there"]) == (session_id, False)
        second = await runtime.supervisor().handle_turn("the first one", session_id=session_id, subject_id=ADA)
        assert second.error is None
        assert second.turn_id.endswith("-000002")
        again = await administer(listening_config(root), ImportSession(folder=tmp_path / "folder"))
        assert again.was_there
        before = portrait(await runtime.supervisor().session(session_id))
    async with listening(root) as runtime:
        assert portrait(await runtime.supervisor().session(session_id)) == before


async def test_doctor_shows_the_queues_of_the_running_process(tmp_path: Path) -> None:
    root, hold = tmp_path / "plane", Hold("a", "b")
    limits = {"max_running_turns": 1}
    async with (
        listening(root, ScriptedProvider(echo, gate=hold), limits=limits) as runtime,
        anyio.create_task_group() as tasks,
    ):
        for message in "ab":
            tasks.start_soon(lambda text: runtime.supervisor().handle_turn(text, subject_id=text), message)
        with anyio.fail_after(20):
            while runtime.statistics()["waiting_turns"] < 1:
                await anyio.lowlevel.checkpoint()
        found = await command(tmp_path, "doctor", "--root", root, "--json")
        for each in hold.released.values():
            each.set()
    queues = found.json["queues"]
    turns = queues["turns"]
    assert (turns["running"], turns["places"], turns["waiting"], turns["capacity"]) == (1, 1, 1, 10_000)
    assert queues["mailboxes"]["gateway"]["scripted"]["running"] == 1
    assert {"interactive", "background"} == queues["mailboxes"]["ADMIN"].keys()
    shown = {each["what"]: each["detail"] for each in found.json["findings"]}
    assert shown["queue turns"].startswith("1 of 1 running, 1 of 10,000 waiting; ")
    assert {"queue gateway scripted", "queue ADMIN interactive", "queue ADMIN background"} <= shown.keys()


async def test_doctor_shows_how_many_wait_for_a_provider_and_for_how_long(tmp_path: Path) -> None:
    """Four turns want a provider with one place and room for one more: two cannot even queue."""
    root, users = tmp_path / "plane", "abcd"
    hold = Hold(*users)

    async def doctor() -> tuple[dict[str, Any], dict[str, Any]]:
        found = (await command(tmp_path, "doctor", "--root", root, "--json")).json
        (finding,) = [each for each in found["findings"] if each["what"] == "queue gateway scripted"]
        return found["queues"]["mailboxes"]["gateway"]["scripted"], finding

    async with listening(
        root, ScriptedProvider(echo, gate=hold), lane={"max_concurrency": 1}, limits={"gateway_queue": 1}
    ) as runtime:
        async with anyio.create_task_group() as tasks:
            for user in users:
                tasks.start_soon(lambda text: runtime.supervisor().handle_turn(text, subject_id=text), user)
            with anyio.fail_after(20):
                while runtime.statistics()["mailboxes"]["gateway"]["scripted"].asking_for_room < 2:
                    await anyio.lowlevel.checkpoint()
            lane, finding = await doctor()
            assert (lane["running"], lane["places"], lane["waiting"], lane["capacity"]) == (1, 1, 1, 1)
            assert (lane["asking_for_room"], lane["waited"], lane["longest_wait_s"]) == (2, 0, 0)
            assert finding["state"] == "warn", "turns are kept from queueing"
            assert finding["detail"].startswith("1 of 1 running, 1 of 1 waiting; so far 0 waited")
            for each in hold.released.values():
                each.set()
        lane, finding = await doctor()
        assert (lane["running"], lane["waiting"], lane["asking_for_room"], lane["given_up"]) == (0, 0, 0, 0)
        assert lane["waited"] >= 3
        assert lane["longest_wait_s"] > 0, "the first ones waited while doctor looked"
        assert finding["state"] == "ok"
        assert f"so far {lane['waited']} waited, {lane['longest_wait_s']:.1f} s at most" in finding["detail"]


async def test_an_error_there_has_the_text_and_the_kind_that_it_has_here(tmp_path: Path) -> None:
    root = tmp_path / "plane"
    async with listening(root) as runtime:
        session_id = (await runtime.supervisor().handle_turn("hello", subject_id=ADA)).session_id
        operation = ChangeIntent(agent_class="ADMIN", session_id=session_id, change="close", intent_id="INT-9", why="done")
        with pytest.raises(InvalidLifecycle) as here:
            await runtime.supervisor().close_intent(session_id, "INT-9", "done")
        with pytest.raises(AdminRefused) as there:
            await ask(listening_config(root), operation)
        assert str(there.value) == str(here.value)
        assert there.value.error_class is InvalidLifecycle


async def test_a_process_that_does_not_listen_is_told_as_before(tmp_path: Path) -> None:
    root = tmp_path / "plane"
    async with listening(root, admin={"socket": None}) as runtime:
        session_id = (await runtime.supervisor().handle_turn("hello", subject_id=ADA)).session_id
        done = await command(tmp_path, "session", "end", session_id, "--root", root)
        assert done.code == 7
        assert "process" in done.err
        assert not (root / "admin").exists()
    await administer(listening_config(root), EndSession(agent_class="ADMIN", session_id=session_id))


async def test_where_a_service_runs_no_end_of_a_ledger_is_left_to_accept(tmp_path: Path) -> None:
    root = tmp_path / "plane"
    async with listening(root) as runtime:
        await runtime.supervisor().handle_turn("hello", subject_id=ADA)
        before = [entry.entry_id for entry in await read_all(runtime.ledgers().ho2m)]
        done = await command(tmp_path, "ledger", "accept-head", "--reason", "restored", "--root", root)
        assert done.code == 1
        assert "ho2m.jsonl: nothing is missing there, since process " in done.out
        assert done.out.endswith("nothing is missing, so nothing was changed\n")
        assert [entry.entry_id for entry in await read_all(runtime.ledgers().ho2m)] == before


THROUGH_A_SERVICE = {
    "approval approve": {"approval.answer"},
    "approval deny": {"approval.answer"},
    "content clean": {"content.clean"},
    "intent abandon": {"intent.change"},
    "intent close": {"intent.change"},
    "intent declare": {"intent.declare"},
    "intent fork": {"intent.fork"},
    "intent reopen": {"intent.change"},
    "memory deactivate": {"memory.deactivate"},
    "memory import": {"memory.import"},
    "memory quarantine": {"memory.quarantine"},
    "session end": {"session.end"},
    "session import": {"session.import", "session.import_conversations"},
    "session repair": {"session.void"},
    "subject erase": {"subject.erase"},
}
"""The commands that change a root, and the operations that a running service carries out for them."""
CHANGES_NO_OPEN_ROOT = {
    "chat": "is a service of its own",
    "serve": "is a service of its own",
    "run": "is a service of its own",
    "init": "writes the settings of a root that is not there yet",
    "context project": "records its projection in a root that nobody has open; beside a service it is a dry run and says so",
    "ledger accept-head": "tells that nothing is missing where a service has the ledgers open",
    "ledger checkpoint": "signs what is on disk in a file of its own",
    "ledger key": "writes a key file",
}
READS = {
    *(
        "approval list",
        "approval show",
        "audit leaks",
        "completion",
        "config check",
        "config schema",
        "config show",
        "content check",
        "content save",
    ),
    *("mcp check", "mcp list"),
    *("context diff", "context explain", "context shadow", "doctor", "gateway cost", "gateway what-if", "intent list"),
    *("ledger proof", "ledger show", "ledger tail", "ledger verify", "memory biases", "memory bisect", "memory cost"),
    *("memory explain", "memory export", "memory signals", "memory tune", "replay", "session export", "session list"),
    "session show",
}


NEEDS_NO_ROOT = {
    "completion": "prints a script",
    "config check": "reads settings and what they name, and no ledger",
    "config schema": "prints what can be set",
    "config show": "prints the settings",
    "init": "writes the settings of a root that is not there yet",
}
"""Commands that neither read nor change ledgers, so that a server makes no difference to them. They need not speak of one."""

WORKS = r"Works while (a server|`kitchener serve`) runs[.,]"
SAYS = {
    **dict.fromkeys([*READS, "ledger checkpoint", "ledger key"], WORKS),
    **dict.fromkeys(THROUGH_A_SERVICE, r"While a server runs, (it makes the change|the turn continues)"),
    **dict.fromkeys(("chat", "run", "serve"), r"with 7 if (a server or )?another process has the root open\."),
    "context project": r"While a server or another process has the root open, it shows the decision and appends nothing\.",
    "ledger accept-head": r"While a server runs, the ledgers that it has open stay as they are",
}
"""What a help text says of a running server."""


def test_every_command_reads_or_is_carried_out_by_the_running_service() -> None:
    names = [*THROUGH_A_SERVICE, *CHANGES_NO_OPEN_ROOT, *READS]
    assert sorted(names) == sorted(name for name, _ in every_command())
    assert NEEDS_NO_ROOT.keys() <= set(names)
    assert set().union(*THROUGH_A_SERVICE.values(), {"statistics"}) == OPERATIONS.keys()


@pytest.mark.parametrize(("name", "function"), [each for each in every_command() if each[0] not in NEEDS_NO_ROOT])
def test_a_help_text_says_whether_the_command_works_while_a_server_runs(name: str, function: Callable[..., object]) -> None:
    says = " ".join((function.__doc__ or "").split())
    assert {each for each in SAYS.values() if re.search(each, says)} == {SAYS[name]}


def test_the_page_lists_what_works_beside_a_process() -> None:
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text(encoding="utf-8")
    rows = page.partition("| command | beside a process that has the root open |")[2].partition("\n\n")[0].splitlines()[2:]
    found = []
    for row in rows:
        names = set()
        for group in row.split("|")[1].split(";"):
            first, *others = re.findall(r"`([^`]+)`", group)
            names |= {first, *(each if " " in each or " " not in first else f"{first.split()[0]} {each}" for each in others)}
        found.append(names)
    reads, changes, own, *rest = found
    assert reads == READS - NEEDS_NO_ROOT.keys()
    assert changes == THROUGH_A_SERVICE.keys()
    assert own | set().union(*rest) == CHANGES_NO_OPEN_ROOT.keys() - {"init"}


async def test_requests_that_change_something_are_carried_out_one_at_a_time(tmp_path: Path) -> None:
    """The end of a session waits for its turn; that of another one, which came later, waits for it too. Readers do not wait."""
    hold, settings = Hold("hello"), listening_config(tmp_path)
    async with listening(tmp_path, ScriptedProvider(echo, gate=hold)) as runtime:
        supervisor = runtime.supervisor()
        busy, idle = [await supervisor.start_session() for _ in range(2)]
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(supervisor.handle_turn, "hello", session_id=busy))
                await hold.arrived["hello"].wait()
                tasks.start_soon(ask, settings, EndSession(agent_class="ADMIN", session_id=busy))
                while (queue := (await supervisor.session(busy)).queue) is None or not queue.waiting:
                    await anyio.lowlevel.checkpoint()
                tasks.start_soon(ask, settings, EndSession(agent_class="ADMIN", session_id=idle))
                for _ in range(5):
                    await ask(settings, ReadStatistics())
                hold.released["hello"].set()
        ends = await read_all(runtime.ledgers().ho2m, entry_type=events.SESSION_END)
    assert [each.entity_id for each in ends] == [busy, idle]
