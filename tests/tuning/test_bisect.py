"""After which consolidation was a turn shown something else: the search, and real turns run again (docs/replay.md)."""

import math
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.lowlevel import current_token
from hypothesis import given
from hypothesis import strategies as st

from kitchener.config import LedgerConfig, RuntimeConfig
from kitchener.errors import CallerError, LedgerDamaged, NotOnRecord, UnknownSession
from kitchener.memory import MemoryReader, select_biases
from kitchener.memory.subject_cache import OVERLAYS
from kitchener.records import events
from kitchener.records.entries import TurnStartedPayload, payload_as
from kitchener.records.prompt import PromptRequest
from kitchener.replaying import open_replays
from kitchener.runtime import Runtime, open_runtime
from kitchener.runtime.root_layout import sealer_of
from kitchener.sealing import Keyring
from kitchener.testing import ScriptedProvider
from kitchener.tuning import BisectQuestion, BisectReport, bisect, bisection
from tests.acceptance.stack import QUESTION, scripted_config
from tests.replay.test_replay_diverges import changed
from tests.replay.test_replay_identical import files

MODES: list[dict[str, Any]] = [{"context_mode": "off"}, {"context_mode": "enforce", "intent_mode": "classified"}]
EAGER: dict[str, Any] = {"ho3_enabled": True, "ho3_gate_count_threshold": 1, "ho3_gate_session_threshold": 1}
"""Each new signal is learned from at once."""


def found_by_bisection(answers: list[bool]) -> tuple[int, int]:
    """The place found among answers, and how many were asked for."""
    asking, asked = bisection(len(answers) - 1), 0
    try:
        place = next(asking)
        while True:
            asked += 1
            place = asking.send(answers[place])
    except StopIteration as end:
        return int(end.value), asked


@given(st.lists(st.booleans(), max_size=200))
def test_a_bisection_finds_a_change_from_old_to_new_and_asks_little(middle: list[bool]) -> None:
    answers = [False, *middle, True]
    place, asked = found_by_bisection(answers)
    linear = [n for n in range(1, len(answers)) if answers[n] and not answers[n - 1]]
    assert place in linear
    assert asked <= math.ceil(math.log2(len(answers) - 1))


@given(st.integers(1, 300), st.integers(0, 300))
def test_where_the_answer_changes_once_it_finds_what_a_linear_scan_finds(old: int, more: int) -> None:
    answers = [False] * old + [True] * (more + 1)
    assert found_by_bisection(answers)[0] == answers.index(True)


def teacher(request: PromptRequest) -> Any:
    """A model that labels each message by its first word, and learns a line for each signal."""
    if request.wo_type == "consolidate":
        signal_id = request.variables["signal_id"]
        return {
            "bias": f"Comes back to {signal_id}.",
            "category": "topic_affinity",
            "salience_weight": 0.8,
            "decay_modifier": 0.9,
            "labels": {"domain": [], "task": []},
            "context_line": f"Often gives {signal_id}.",
        }
    message = request.variables["user_message"]
    if request.wo_type == "classify":
        return {**QUESTION, "intent_relation": "continue", "labels": {"domain": message.split()[0]}}
    return {"response_text": f"echo: {message}"}


async def say(runtime: Runtime, session_id: str, *messages: str) -> None:
    for message in messages:
        await runtime.supervisor().handle_turn(message, session_id=session_id)
        await runtime.drain()


@asynccontextmanager
async def open_school(root: Path, **admin: Any) -> AsyncIterator[tuple[RuntimeConfig, Runtime, str]]:
    """A runtime that learns from everything, with one session of Ada's."""
    config = scripted_config(root, **{**EAGER, **admin})
    async with open_runtime(config, providers={"scripted": ScriptedProvider(teacher)}) as runtime:
        yield config, runtime, await runtime.supervisor().start_session(subject_id="ada")


TAUGHT: dict[str, tuple[Path, str]] = {}
"""Roots on which the four turns of `taught` have run, and the sessions, by event loop and how the agent is configured."""


async def taught(root: Path, **admin: Any) -> tuple[RuntimeConfig, str]:
    """A root with four turns, the same ones for all tests, and each test has a copy."""
    if (kind := f"{current_token().backend_class.__name__} {admin!r}") not in TAUGHT:
        school = root.parent / f"school-{len(TAUGHT)}"
        TAUGHT[kind] = school, await teach(school, **admin)
    school, session_id = TAUGHT[kind]
    shutil.copytree(school, root, dirs_exist_ok=True)
    shutil.copytree(f"{school}.keys", f"{root}.keys", symlinks=True)
    return scripted_config(root, **{**EAGER, **admin}), session_id


async def teach(root: Path, **admin: Any) -> str:
    """Four turns. Learned are questions and gardens, then kitchens, then books; then the line of kitchens is taken back."""
    async with open_school(root, **admin) as (_, runtime, session_id):
        await say(runtime, session_id, "garden one", "kitchen two", "books three")
        memory = runtime.memory("ADMIN")
        (kitchen,) = await memory.read_overlays("domain:kitchen", namespace="ADMIN/ada")
        await memory.deactivate_overlay(str(kitchen.artifact_id), "no more", str(kitchen.created_at), namespace="ADMIN/ada")
        await memory.commit()
        await say(runtime, session_id, "garden four")
    return session_id


async def asked(config: RuntimeConfig, session_id: str, **question: Any) -> BisectReport:
    async with open_replays(config, "ADMIN") as replays:
        return await bisect(replays, BisectQuestion(session_id, **question))


def turn(session_id: str, number: int) -> str:
    return f"T-{session_id[4:]}-{number:06d}"


@pytest.mark.parametrize("mode", MODES, ids=["attention", "authority"])
class TestRealSessions:
    async def test_it_finds_the_consolidation_behind_a_line(self, tmp_path: Path, mode: dict[str, Any]) -> None:
        config, session_id = await taught(tmp_path, **mode)
        before = files(tmp_path)
        found = await asked(config, session_id, bad=turn(session_id, 4), item="domain:books")
        assert files(tmp_path) == before
        (change,) = found.changes
        assert (change.entry.entry_type, found.is_exact, found.is_shown) == (events.HO3_OVERLAY, True, True)
        assert change.overlay is not None
        assert change.overlay.signal_id == "domain:books"
        assert list(change.lines()) == ["+ Often gives domain:books."]
        assert [each.turn_id for each in change.sources] == [turn(session_id, 3)]
        by_id = await asked(config, session_id, bad=turn(session_id, 4), item=change.overlay.key)
        assert [each.entry.seq for each in by_id.changes] == [change.entry.seq]

    async def test_every_change_is_what_a_linear_scan_of_the_memory_finds(self, tmp_path: Path, mode: dict[str, Any]) -> None:
        """The scan reads the memory by itself and knows no replay."""
        config, session_id = await taught(tmp_path, **mode)
        found = await asked(config, session_id, every=True)
        async with open_replays(config, "ADMIN") as replays:
            started = payload_as(TurnStartedPayload, (await replays.tape_of(session_id)).turns[-1].started.payload)
        linear, lines = [], list[str]()
        async with MemoryReader.open(tmp_path, sealer=sealer_of(config)) as reader:
            last = started["read_positions"][OVERLAYS]
            for seq in range(1, last + 1):
                active = await reader.read_active_biases(started["turn_ts"], up_to={OVERLAYS: seq}, namespace="ADMIN/ada")
                chosen = select_biases([each.as_mapping() for each in active], {"domain": "garden"}, 2_000, started["turn_ts"])
                now = [each["context_line"] for each in chosen]
                if now != lines:
                    linear.append((seq, now))
                lines = now
        assert [(each.entry.seq, list(each.after.lines)) for each in found.changes] == linear
        assert len(linear) == found.between == 5
        (one,) = (await asked(config, session_id)).changes
        assert one.entry.seq in [seq for seq, _ in linear]

    async def test_what_came_and_went_is_the_same_at_both_ends(self, tmp_path: Path, mode: dict[str, Any]) -> None:
        config, session_id = await taught(tmp_path, **mode)
        found = await asked(config, session_id, item="domain:kitchen")
        assert (found.changes, found.is_shown) == ((), False)
        came, went = (await asked(config, session_id, item="domain:kitchen", every=True)).changes
        assert list(came.lines()) == ["+ Often gives domain:kitchen."]
        assert list(went.lines()) == ["- Often gives domain:kitchen."]
        assert went.entry.entry_type == events.HO3_OVERLAY_DEACTIVATED

    async def test_what_went_between_two_turns(self, tmp_path: Path, mode: dict[str, Any]) -> None:
        config, session_id = await taught(tmp_path, **mode)
        found = await asked(config, session_id, good=turn(session_id, 3), item="domain:kitchen")
        (went,) = found.changes
        assert went.entry.payload["reason"] == "no more"
        assert went.as_json()["diff"] == ["- Often gives domain:kitchen."]
        assert (found.turn_id, found.between) == (turn(session_id, 4), 2)

    async def test_nothing_changed(self, tmp_path: Path, mode: dict[str, Any]) -> None:
        config, session_id = await taught(tmp_path, **mode)
        first = turn(session_id, 1)
        found = await asked(config, session_id, bad=first, good=first)
        assert (found.changes, found.between, found.probes) == ((), 0, 1)
        assert found.at_good == found.at_bad

    async def test_other_settings_are_noticed(self, tmp_path: Path, mode: dict[str, Any]) -> None:
        config, session_id = await taught(tmp_path, **mode)
        found = await asked(changed(config, ho3_bias_budget=8), session_id)
        assert not found.is_exact


class TestWhatCannotBeAsked:
    async def test_turns_that_are_not_there_or_cannot_run_again(self, tmp_path: Path) -> None:
        config, session_id = await taught(tmp_path)
        for question in ({"bad": turn(session_id, 9)}, {"good": turn(session_id, 9)}):
            with pytest.raises(NotOnRecord, match=rf"is not on record; `kitchener session show {session_id}`"):
                await asked(config, session_id, **question)
        with pytest.raises(UnknownSession):
            await asked(config, "SES-00000000")
        with pytest.raises(CallerError, match="expected a turn that began before --bad"):
            await asked(config, session_id, bad=turn(session_id, 2), good=turn(session_id, 4))
        with pytest.raises(CallerError, match="is not a turn id"):
            await asked(config, session_id, good="T-1")

    async def test_a_line_that_nobody_learned(self, tmp_path: Path) -> None:
        config, session_id = await taught(tmp_path)
        for item in ("ART-000000000000", "bicycles", "", "T-00000000-000001", "INT-0"):
            with pytest.raises(NotOnRecord, match=r"the turn could not have been shown it; `kitchener memory biases --all"):
                await asked(config, session_id, item=item)
        with pytest.raises(NotOnRecord, match="the turn could not have been shown it"):
            await asked(config, session_id, bad=turn(session_id, 2), item="domain:books")

    async def test_memory_that_is_off_or_was_not_used(self, tmp_path: Path) -> None:
        config, session_id = await taught(tmp_path)
        with pytest.raises(NotOnRecord, match=r"is off, so no turn is shown a learned line; `ho3_enabled = true` below"):
            await asked(changed(config, ho3_enabled=False), session_id)
        async with open_runtime(config, providers={"scripted": ScriptedProvider(teacher)}) as runtime:
            await runtime.supervisor().handle_turn("garden five", session_id=session_id, memory=False)
        with pytest.raises(NotOnRecord, match="ran without memory"):
            await asked(config, session_id)

    async def test_a_turn_of_somebody_else(self, tmp_path: Path) -> None:
        async with open_school(tmp_path) as (config, runtime, session_id):
            await say(runtime, session_id, "garden one")
            theirs = await runtime.supervisor().start_session(subject_id="bo")
            await say(runtime, theirs, "garden two")
        with pytest.raises(CallerError, match=r"--good '.*' is a turn of 'ada': expected one of 'bo'"):
            await asked(config, theirs, good=turn(session_id, 1))

    async def test_a_turn_of_an_earlier_session_of_the_same_subject(self, tmp_path: Path) -> None:
        async with open_school(tmp_path) as (config, runtime, session_id):
            await say(runtime, session_id, "garden one", "kitchen two")
            later = await runtime.supervisor().start_session(subject_id="ada")
            await say(runtime, later, "garden three")
        found = await asked(config, later, good=turn(session_id, 2))
        (change,) = found.changes
        assert list(change.lines()) == ["+ Often gives domain:kitchen."]

    async def test_a_changed_byte_is_found_before_anything_is_said(self, tmp_path: Path) -> None:
        config, session_id = await taught(tmp_path)
        file = tmp_path / "HOT" / "memory" / "overlays.jsonl"
        before = file.read_bytes()
        place = before.index(b'"ct":"') + 30  # the words are sealed: one character of them
        file.write_bytes(before[:place] + (b"A" if before[place : place + 1] != b"A" else b"B") + before[place + 1 :])
        with pytest.raises(LedgerDamaged):
            await asked(config, session_id)

    async def test_an_erased_subject(self, tmp_path: Path) -> None:
        keys = tmp_path / "keys"
        sealed = LedgerConfig(durability="os", linger_ms=0, keyring=str(keys))
        config = scripted_config(tmp_path / "root", **EAGER).model_copy(update={"ledger": sealed})
        async with open_runtime(config, providers={"scripted": ScriptedProvider(teacher)}) as runtime:
            session_id = await runtime.supervisor().start_session(subject_id="ada")
            await say(runtime, session_id, "garden one", "garden two")
        found = await asked(config, session_id)
        assert len(found.changes) == 1
        Keyring(keys).destroy("ada")
        with pytest.raises(NotOnRecord, match="cannot be run again: erased"):
            await asked(config, session_id, bad=turn(session_id, 2))
        with pytest.raises(NotOnRecord, match="has no turn that can be run again"):
            await asked(config, session_id)


async def test_a_turn_of_the_session_can_be_asked_for(tmp_path: Path) -> None:
    """What is learned takes no place of other things, so the earlier turn is shown at both ends."""
    config, session_id = await taught(tmp_path)
    found = await asked(config, session_id, item=turn(session_id, 1))
    assert (found.changes, found.is_shown) == ((), True)
    missing = await asked(changed(config, recent_turns=0, attention_matches=0), session_id, item=turn(session_id, 1))
    assert (missing.changes, missing.is_shown, missing.is_exact) == ((), False, False)
