"""A subject is erased in a running process: theirs ends, others' goes on, and nothing of theirs is kept (docs/erasure.md)."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import HO2Config, RuntimeConfig, ToolContext, open_runtime, tool
from kitchener.config import LedgerConfig
from kitchener.errors import CallerError, ConfigError, LedgerLocked, ReentrantTurn, SealingError, SubjectErased, UnknownSubject
from kitchener.ledger import LedgerClient
from kitchener.records import events
from kitchener.replaying import replay_session
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import Hold
from tests.erasure.kit import (
    ADA,
    BO,
    MARKS,
    MESSAGE,
    TALK,
    config,
    converse,
    entries,
    fetch,
    found,
    key_files,
    model,
    running,
    sealer,
    verified,
)
from tests.memory.shared.kit import learned
from tests.shared.logs import captured_logs

ADAS = "ADMIN/ada"


async def test_nothing_of_the_subject_can_be_read_and_all_of_the_others_can(
    tmp_path: Path, filled: dict[str, list[str]]
) -> None:
    before = await entries(tmp_path, *events.SEALED_FIELDS)
    async with running(tmp_path) as runtime:
        report = await runtime.erase_subject(ADA)
    assert (report.sessions, report.turns, report.plain_turns, report.was_erased_before) == (3, 7, 0, False)
    assert report.artifacts > 0
    assert len(key_files(tmp_path)) == 1, "only Bo's"
    assert verified(tmp_path)
    assert found(tmp_path) == []
    after = {entry.ref: entry.payload for entry in await entries(tmp_path, *events.SEALED_FIELDS)}
    for entry in before:
        is_same = after[entry.ref] == entry.payload
        is_ada = entry.payload["subject_id"] == ADA
        has_content = any(entry.payload.get(field) not in (None, []) for field in events.SEALED_FIELDS[entry.entry_type])
        assert is_same is not (is_ada and has_content), entry
    for session_id in filled[ADA]:
        replayed = await replay_session(session_id, config=config(tmp_path), tools=[fetch])
        assert (replayed.is_identical, replayed.erased, replayed.turns) == (True, len(replayed.skipped), ())
        assert replayed.erased > 0
    for session_id in filled[BO]:
        replayed = await replay_session(session_id, config=config(tmp_path), tools=[fetch])
        assert replayed.is_identical, replayed.text()
        assert (replayed.erased, len(replayed.turns)) == (0, len(replayed.turns))
        assert replayed.turns


async def test_it_is_on_record_in_every_ledger_that_tells_of_subjects(tmp_path: Path, filled: dict[str, list[str]]) -> None:
    """Once in each supervisor's ledger, once in each namespace of the memory, with counts and no content."""
    async with running(tmp_path) as runtime:
        report = await runtime.erase_subject(ADA)
    records = await entries(tmp_path, events.SUBJECT_ERASED)
    assert sorted((each.ledger_id, each.payload.get("namespace")) for each in records) == [
        ("HO2M:ADMIN", None),
        ("HO2M:RESIDENT%3Abo", None),
        ("OVERLAYS", "ADMIN/ada"),
        ("OVERLAYS", "RESIDENT%3Abo/ada"),
        ("SIGNALS", "ADMIN/ada"),
        ("SIGNALS", "RESIDENT%3Abo/ada"),
    ]
    counts = {"sessions", "turns", "artifacts", "events"}
    for each in records:
        facts = {key: value for key, value in each.payload.items() if key not in {"v", "namespace", *counts}}
        assert facts == {"subject_id": ADA, "key_id": report.key_id, "erased_at": report.erased_at}
        assert each.entity_id == ADA
    ends = {each.entity_id: each.payload for each in await entries(tmp_path, events.SESSION_END)}
    assert set(ends) == set(filled[ADA])
    assert {(each["reason"], each["key_id"]) for each in ends.values()} == {("erased", report.key_id)}
    withdrawn = await entries(tmp_path, events.HO3_OVERLAY_DEACTIVATED)
    assert len(withdrawn) == report.artifacts
    assert {each.payload["erased_subject"] for each in withdrawn} == {ADA}


@pytest.mark.usefixtures("filled")
async def test_once_more_says_that_it_is_done(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        first = await runtime.erase_subject(ADA)
        size = runtime.ledgers().ho2m.position
        again = await runtime.erase_subject(ADA)
        assert again.was_erased_before
        assert (again.key_id, again.erased_at, again.sessions, again.turns, again.artifacts) == (
            first.key_id,
            first.erased_at,
            first.sessions,
            first.turns,
            first.artifacts,
        )
        assert runtime.ledgers().ho2m.position == size, "and writes nothing"


async def test_old_sessions_are_over_and_a_new_one_begins_with_nothing(tmp_path: Path, filled: dict[str, list[str]]) -> None:
    """Who was erased may come back: under a new key, without anything learned before, and to no old conversation."""
    async with running(tmp_path) as runtime:
        supervisor, memory = runtime.supervisor(), runtime.memory()
        assert await memory.read_active_biases(namespace=ADAS)
        first = await runtime.erase_subject(ADA)
        with pytest.raises(SubjectErased, match=rf"{filled[ADA][0]}.*was erased; start a new session"):
            await supervisor.handle_turn("hello", session_id=filled[ADA][0])
        with pytest.raises(SubjectErased):
            await supervisor.declare_intent(filled[ADA][0], "go on")
        with pytest.raises(SubjectErased):
            await supervisor.end_session(filled[ADA][0])
        assert (await supervisor.session(filled[ADA][0])).history[0] == ("[erased]", "[erased]")
        assert await memory.read_signals(namespace=ADAS) == []
        assert await memory.read_active_biases(namespace=ADAS) == []
        withdrawn = await memory.read_overlays(namespace=ADAS, active_only=False)
        assert withdrawn
        assert all(each.is_erased for each in withdrawn)

        new = [await converse(runtime, ADA), await converse(runtime, ADA)]
        assert not set(new) & set(filled[ADA])
        learned = await memory.read_active_biases(namespace=ADAS)
        assert learned, "in the same window, from nothing but what was said since"
        assert not any(each.is_erased for each in learned)
        second = await runtime.erase_subject(ADA)
        assert (second.sessions, second.key_id == first.key_id) == (2, False)
        assert await memory.read_active_biases(namespace=ADAS) == []
    assert found(tmp_path) == []
    by_key = [each.payload["key_id"] for each in await entries(tmp_path, events.SUBJECT_ERASED)]
    assert (by_key.count(first.key_id), by_key.count(second.key_id), len(by_key)) == (6, 6, 12)


@pytest.mark.usefixtures("filled")
async def test_who_came_back_replays_identical(tmp_path: Path) -> None:
    """Memory of the time before stands in no gate's way, now and in a replay."""
    async with running(tmp_path) as runtime:
        await runtime.erase_subject(ADA)
        new = [await converse(runtime, ADA), await converse(runtime, ADA)]
        told = len(await runtime.memory().read_active_biases(namespace=ADAS))
    assert told > 0
    for session_id in new:
        replayed = await replay_session(session_id, config=config(tmp_path), tools=[fetch])
        assert replayed.is_identical, replayed.text()
        assert (len(replayed.turns), replayed.erased) == (len(TALK), 0)


@pytest.mark.usefixtures("filled")
async def test_others_go_on_while_a_running_turn_of_the_subject_is_cancelled(tmp_path: Path) -> None:
    """The one that thinks and the one that waits in line both end with the typed error; Bo's turn completes meanwhile."""
    hold = Hold("ada waits", "bo waits", wo_type="synthesize")
    outcomes: dict[str, Any] = {}
    async with running(tmp_path, ScriptedProvider(model, gate=hold)) as runtime:
        supervisor = runtime.supervisor()
        ada, bo = await supervisor.start_session(subject_id=ADA), await supervisor.start_session(subject_id=BO)

        async def say(name: str, message: str, session_id: str) -> None:
            try:
                outcomes[name] = await supervisor.handle_turn(message, session_id=session_id)
            except CallerError as error:
                outcomes[name] = error

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(say, "ada", "ada waits", ada)
                tasks.start_soon(say, "bo", "bo waits", bo)
                for message in ("ada waits", "bo waits"):
                    await hold.arrived[message].wait()
                tasks.start_soon(say, "in line", "and then?", ada)
                await anyio.wait_all_tasks_blocked()
                await runtime.erase_subject(ADA)
                assert "bo" not in outcomes
                with pytest.raises(SubjectErased):
                    await supervisor.handle_turn("still there?", session_id=ada)
                hold.released["bo waits"].set()
        assert isinstance(outcomes["ada"], SubjectErased)
        assert isinstance(outcomes["in line"], SubjectErased)
        assert outcomes["bo"].response.endswith("yes")
    aborted = [each.payload for each in await entries(tmp_path, events.TURN_ABORTED)]
    assert [(each["subject_id"], each["reason"]) for each in aborted] == [(ADA, "cancelled")]
    assert not await entries(tmp_path, events.TURN_REJECTED), "what they said is not kept either"
    assert found(tmp_path) == []
    assert verified(tmp_path)


async def test_a_consolidation_about_the_subject_is_cancelled_too(tmp_path: Path) -> None:
    """Else a line about them would be written under a new key, after the old one was destroyed."""
    arrived = anyio.Event()

    async def hold(request: Any) -> None:
        if request.wo_type == "consolidate":
            arrived.set()
            await anyio.sleep_forever()

    async with running(tmp_path, ScriptedProvider(model, gate=hold)) as runtime:
        supervisor = runtime.supervisor()
        with anyio.fail_after(20):
            for _ in range(2):
                session_id = await supervisor.start_session(subject_id=ADA)
                await supervisor.handle_turn(TALK[0], session_id=session_id)
            await arrived.wait()
            await runtime.erase_subject(ADA)
            await runtime.drain()
    assert not await entries(tmp_path, events.HO3_OVERLAY)
    assert key_files(tmp_path) == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_nothing_of_the_subject_stays_in_memory(tmp_path: Path, backend: str) -> None:
    """Looked for in a process of its own: in that of all tests, most live objects are none of the runtime's."""
    command = [sys.executable, "-m", "tests.erasure.live_objects", str(tmp_path), backend]
    looked = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=50, check=False)
    assert looked.returncode == 0, looked.stderr


@pytest.mark.usefixtures("filled")
async def test_an_event_given_to_anothers_memory_takes_what_was_learned_there_with_it(tmp_path: Path) -> None:
    """A program may log a subject's signal in a namespace that others share: what rests on it is withdrawn for good."""
    async with running(tmp_path) as runtime:
        memory = runtime.memory()
        ada = await converse(runtime, ADA, TALK[0])
        bo = await converse(runtime, BO, TALK[0])
        given = [await memory.log_signal("domain:tea", session, namespace="team") for session in (ada, bo)]
        alone = [await memory.log_signal("domain:rice", bo, namespace="team")]
        for signal, sources in (("domain:tea", given), ("domain:rice", alone)):
            await memory.log_overlay(learned(sources, signal, scope="global"), namespace="team")
        assert len(await memory.read_overlays(namespace="team")) == 2
        await runtime.erase_subject(ADA)
        assert [each.signal_id for each in await memory.read_overlays(namespace="team")] == ["domain:rice"]
        gate = await memory.check_gate("domain:tea", namespace="team")
        assert (gate.count, gate.session_count) == (1, 1), "Ada's event counts no more"
    [quarantined] = await entries(tmp_path, events.HO3_QUARANTINED)
    assert quarantined.payload == {
        "v": 1,
        "namespace": "team",
        "subject_id": "team",
        "target": given[0],
        "erased_subject": ADA,
    }


async def test_an_idempotency_key_of_an_erased_turn_is_not_run_again(tmp_path: Path) -> None:
    """It would bring back what was erased."""
    async with running(tmp_path) as runtime:
        supervisor = runtime.supervisor()
        await supervisor.handle_turn(TALK[0], subject_id=ADA, idempotency_key="one")
        await runtime.erase_subject(ADA)
        with pytest.raises(SubjectErased):
            await supervisor.handle_turn(TALK[0], subject_id=ADA, idempotency_key="one")
        await supervisor.handle_turn(TALK[0], subject_id=ADA, idempotency_key="two")


async def test_anonymous_subjects_can_be_erased(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        result = await runtime.supervisor().handle_turn(TALK[0])
        report = await runtime.erase_subject(f"anon-{result.session_id}")
        assert (report.sessions, report.turns) == (1, 1)
        with pytest.raises(SubjectErased):
            await runtime.supervisor().handle_turn("again", session_id=result.session_id)
    assert key_files(tmp_path) == []


async def test_a_tool_cannot_erase_the_subject_of_its_own_turn(tmp_path: Path) -> None:
    """It would wait for itself; nothing is erased, and nobody is kept out afterwards."""
    outcome: list[BaseException] = []
    holder: list[Any] = []

    @tool
    async def leave(call: ToolContext) -> str:
        """Erases whoever asks."""
        try:
            await holder[0].erase_subject(call.subject_id)
        except ReentrantTurn as error:
            outcome.append(error)
        return "tried"

    def script(request: Any) -> Any:
        if request.wo_type == "synthesize" and not any(each.role == "tool" for each in request.messages):
            return use_tool("leave")
        return model(request)

    async with open_runtime(config(tmp_path), providers={"scripted": ScriptedProvider(script)}, tools=[leave]) as runtime:
        holder.append(runtime)
        with anyio.fail_after(20):
            result = await runtime.supervisor().handle_turn("erase me", subject_id=ADA)
        assert outcome
        assert result.error is None
        await runtime.supervisor().handle_turn("and now?", session_id=result.session_id)


@pytest.mark.parametrize("subject_id", ["", "\ud800", "x" * 1_025, 7, None])
async def test_what_is_no_subject_id_is_refused(tmp_path: Path, subject_id: Any) -> None:
    async with running(tmp_path) as runtime:
        with pytest.raises(CallerError, match="subject_id"):
            await runtime.erase_subject(subject_id)


async def test_who_is_not_known_is_refused_and_not_kept_out(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        with pytest.raises(UnknownSubject, match="'eve': is not known"):
            await runtime.erase_subject("eve")
        await runtime.supervisor().handle_turn("hello", subject_id="eve")
    assert not list((tmp_path / "keys").glob("erasing/*"))


async def test_without_a_keyring_nobody_can_be_erased(tmp_path: Path) -> None:
    plain = RuntimeConfig(plane_root=str(tmp_path), ledger=LedgerConfig(seal=False), agents={"ADMIN": HO2Config()})
    async with open_runtime(plain) as runtime:
        await runtime.supervisor().handle_turn("hello", subject_id=ADA)
        with pytest.raises(
            ConfigError, match=r"is off, and there are no keys: everything is stored in plain text.*seal = true"
        ):
            await runtime.erase_subject(ADA)


async def test_what_was_stored_before_there_was_a_keyring_is_counted(tmp_path: Path) -> None:
    """Nothing is ever taken out of a ledger, so an erasure says what stays readable."""
    async with running(tmp_path, seal=False) as runtime:
        session_id = await converse(runtime, ADA, TALK[0])
        await converse(runtime, BO, TALK[0])
    async with running(tmp_path) as runtime:
        with pytest.raises(UnknownSubject, match="'bo': has no key: the entries about this subject were stored in plain text"):
            await runtime.erase_subject(BO)
        await runtime.supervisor().handle_turn(TALK[0], session_id=session_id)
        report = await runtime.erase_subject(ADA)
    assert (report.turns, report.plain_turns) == (2, 1)
    assert any(MESSAGE in each for each in found(tmp_path))


@pytest.mark.usefixtures("filled")
async def test_a_key_that_somebody_removed_by_hand_is_put_on_record(tmp_path: Path) -> None:
    kid = sealer(tmp_path).keyring.destroy(ADA)
    async with running(tmp_path) as runtime:
        report = await runtime.erase_subject(ADA)
    assert (report.key_id, report.was_erased_before, report.sessions) == (kid, False, 3)
    assert {each.payload["key_id"] for each in await entries(tmp_path, events.SUBJECT_ERASED)} == {kid}


@pytest.mark.usefixtures("filled")
async def test_a_cancelled_erasure_is_finished_by_the_next_start(tmp_path: Path) -> None:
    """From the note on, the key counts as destroyed: nobody reads or writes for them until it is on record."""
    keyring = sealer(tmp_path).keyring
    begun = keyring.begin_erasure(ADA, "2026-11-22T00:00:00.000000+00:00")
    assert begun is not None
    assert keyring.find(ADA) is None
    with pytest.raises(SealingError, match=r"'ada' is being erased.*kitchener subject erase ada"):
        keyring.get(ADA)
    async with running(tmp_path) as runtime:
        assert keyring.erasures() == []
        assert (await runtime.erase_subject(ADA)).was_erased_before
        await runtime.supervisor().handle_turn("hello again", subject_id=ADA)
    records = await entries(tmp_path, events.SUBJECT_ERASED)
    assert {(each.payload["key_id"], each.payload["erased_at"]) for each in records} == {(begun.kid, begun.begun_at)}
    assert [word for word in MARKS if word in str(records)] == []


@pytest.mark.usefixtures("filled")
async def test_a_start_that_cannot_finish_an_erasure_goes_on_without_the_subject(tmp_path: Path) -> None:
    """Another process has the ledger of a class that this one does not serve: others are served, and the subject is not."""
    sealer(tmp_path).keyring.begin_erasure(ADA, "2026-11-22T00:00:00.000000+00:00")
    whole = config(tmp_path)
    admin_alone = whole.model_copy(update={"agents": {"ADMIN": whole.agents["ADMIN"]}})
    providers = {"scripted": ScriptedProvider(model)}
    place = tmp_path / "plane" / "HO2" / "RESIDENT%3Abo" / "ho2m.jsonl"
    async with LedgerClient.open(place, ledger_id="HO2M:RESIDENT%3Abo", index_dir=tmp_path / "plane" / "index"):
        with captured_logs() as logs:
            async with open_runtime(admin_alone, providers=providers, tools=[fetch]) as runtime:
                supervisor = runtime.supervisor()
                await supervisor.handle_turn("hello", subject_id=BO)
                with pytest.raises(SubjectErased, match="is being erased"):
                    await supervisor.handle_turn("hello", subject_id=ADA)
                with pytest.raises(LedgerLocked):
                    await runtime.erase_subject(ADA)
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == ["erasure not finished"]
    assert not await entries(tmp_path, events.SUBJECT_ERASED)
    async with running(tmp_path) as runtime:
        assert (await runtime.erase_subject(ADA)).was_erased_before
        await runtime.supervisor().handle_turn("hello", subject_id=ADA)


@pytest.mark.usefixtures("filled")
async def test_an_erasure_that_its_caller_cancels_keeps_the_subject_out_until_it_is_done(tmp_path: Path) -> None:
    """Wherever it is cut off: either nothing has begun, or the next call finishes it."""
    async with running(tmp_path) as runtime:
        supervisor = runtime.supervisor()
        is_done = False
        for steps in range(200):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:

                    async def stop(steps: int = steps) -> None:
                        for _ in range(steps):
                            await anyio.lowlevel.checkpoint()
                        scope.cancel()

                    tasks.start_soon(stop)
                    await runtime.erase_subject(ADA)
                    is_done = True
            if sealer(tmp_path).keyring.erasures():
                with pytest.raises(SubjectErased, match="is being erased"):
                    await supervisor.handle_turn("hello", subject_id=ADA)
                break
            if is_done:
                break
        await runtime.erase_subject(ADA)
        await supervisor.handle_turn("hello", subject_id=ADA)
    assert len(await entries(tmp_path, events.SUBJECT_ERASED)) == 6
    assert verified(tmp_path)
