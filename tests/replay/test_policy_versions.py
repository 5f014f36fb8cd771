"""A turn is replayed by the version of the policy that it followed; a turn that names none followed version 1."""

import json
from pathlib import Path
from typing import Final

import pytest

from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.replaying import ReplayReport, open_replays
from kitchener.replaying.tape import Tape
from kitchener.runtime.root_layout import settings_of
from tests.replay import corpus, golden_roots
from tests.replay.test_replay_diverges import found_in

pytestmark = pytest.mark.timeout(60)
FIRST: Final = golden_roots.FOLDER / "0.1.0-version-1.tar.xz"


async def poor(
    root: Path, version: int | None = None, *turns: int, agent_class: str = "RESIDENT:poor", only: int | str | None = None
) -> list[ReplayReport]:
    """The replays of the sessions of `corpus.policy_versions`, or of another agent class.

    Args:
        root: the root
        version: the version that some turns say they followed, whatever is on record; 1: they say none
        turns: numbers of these turns; none: all
        agent_class: whose sessions
        only: the one session that is replayed, by its number, from 0, or its id; None: all
    """
    settings = settings_of(root / corpus.SETTINGS.name, None)
    async with open_replays(settings, agent_class) as replays:
        named = [each for at, each in enumerate(await replays.sessions()) if only in (None, at, each)]
        tapes = [await replays.tape_of(each) for each in named]

        async def tape_of(session_id: str) -> Tape:
            (tape,) = [each for each in tapes if each.session_id == session_id]
            for turn in tape.turns if version is not None else ():
                if not turns or int(turn.turn_id[-6:]) in turns:
                    entries = turn.entries[tape.ho2m]
                    entries[0] = turn.started = saying(turn.started, version or 1)
            return tape

        replays.tape_of = tape_of  # type: ignore[method-assign]  # the entry keeps its hash, so only the version differs
        return [await replays.replay(each.session_id) for each in tapes]


def saying(started: StoredEntry, version: int) -> StoredEntry:
    """A `TURN_STARTED` with another version, and the hash that it had."""
    entry = json.loads(started.body)
    entry["payload"] = {**started.payload}  # in plain text, since the copy has no key
    entry["payload"].pop("policy_version", None)
    entry["payload"].update({"policy_version": version} if version > 1 else {})
    what = (started.entry_type, started.entity_id, started.timestamp, json.dumps(entry).encode())
    return StoredEntry(
        started.ledger_id, started.seq, started.entry_id, started.entry_hash, *what, started.session_id, (), None
    )


OTHERWISE: Final = (1, 2, 3, 4, 7)
"""The turns that version 2 decides otherwise also in what their messages mean."""
FIRST_DIFFERENCE: Final = ("WO_PLANNED", "constraints.reply_reserve")
"""Where version 2 shows in every turn. The tests of the pure modules have the other differences one by one."""


@pytest.mark.parametrize("turn", OTHERWISE)
async def test_turn_of_version_1_is_not_replayed_by_version_2(tmp_path: Path, turn: int) -> None:
    """The root was recorded by version 1 and replays identical; the same turn said to be of version 2 does not."""
    root = golden_roots.unpacked(FIRST, tmp_path)
    (first,) = await poor(root, only=0)
    assert (first.is_identical, len(first.turns)) == (True, 9)
    assert found_in((await poor(root, 2, turn, only=0))[0]) == (*FIRST_DIFFERENCE, turn)


async def test_turn_of_version_2_is_not_replayed_by_version_1(recorded_root: Path) -> None:
    """What this version recorded, without the version."""
    assert all(report.is_identical for report in await poor(recorded_root))
    for turn in OTHERWISE:
        assert found_in((await poor(recorded_root, 1, turn, only=0))[0])[2] == turn


@pytest.mark.parametrize(("turn", "field"), [(4, "tokens_used"), (9, "history.cut_by")])
async def test_turn_of_version_9_is_not_replayed_by_version_10(tmp_path: Path, turn: int, field: str) -> None:
    """A deferred goal has another mark; a long newest reply no longer takes the room of the oldest messages."""
    root = golden_roots.unpacked(golden_roots.FOLDER / "0.1.0-version-9.tar.xz", tmp_path)
    (report,) = [each for each in await poor(root, 10, turn, agent_class="RESIDENT:clerk") if not each.is_identical]
    assert found_in(report) == ("PROJECTION_COMPUTED", field, turn)


@pytest.mark.parametrize(
    ("agent_class", "turn", "entry_type", "field"),
    [
        ("RESIDENT:clerk", 1, "TURN_COMPLETED", "response"),
        ("RESIDENT:clerk", 4, "WO_FAILED", "error.detail"),
        ("RESIDENT:ask", 7, "WO_QUALITY_GATE", "reason"),
    ],
)
async def test_turn_of_version_10_is_not_replayed_by_version_11(
    tmp_path: Path, agent_class: str, turn: int, entry_type: str, field: str
) -> None:
    """A call that would fail again, an object that its caller never got, and an empty reply are told in other words."""
    root = golden_roots.unpacked(golden_roots.FOLDER / "0.1.0-version-10.tar.xz", tmp_path)
    (report,) = [each for each in await poor(root, 11, turn, agent_class=agent_class) if not each.is_identical]
    assert found_in(report) == (entry_type, field, turn)
    assert [each.is_identical for each in await poor(root, agent_class=agent_class, only=report.session_id)] == [True]


@pytest.mark.parametrize(
    ("agent_class", "session", "turn", "field"),
    [
        ("ADMIN", 3, 1, "constraints.allowed_tools"),
        ("ADMIN", 3, 4, "input_hash"),
        ("RESIDENT:clerk", 4, 1, "input_hash"),
    ],
)
async def test_turn_of_version_11_is_not_replayed_by_version_12(
    tmp_path: Path, agent_class: str, session: int, turn: int, field: str
) -> None:
    """Tools that may not be called were hidden, and what a reply must be stood among the instructions."""
    root = golden_roots.unpacked(golden_roots.FOLDER / "0.1.0-version-11.tar.xz", tmp_path)
    assert [each.is_identical for each in await poor(root, agent_class=agent_class, only=session)] == [True]
    (report,) = await poor(root, 12, turn, agent_class=agent_class, only=session)
    assert found_in(report) == ("WO_PLANNED", field, turn)


async def test_turn_of_version_12_is_not_replayed_by_version_13(tmp_path: Path) -> None:
    """Of the turns of another intent, only the newest twelve were chat messages."""
    root = golden_roots.unpacked(golden_roots.FOLDER / "0.1.0-version-12.tar.xz", tmp_path)
    assert all(report.is_identical for report in await poor(root, agent_class="RESIDENT:ask"))
    (report,) = await poor(root, 13, 15, agent_class="RESIDENT:ask")
    assert found_in(report) == ("PROJECTION_COMPUTED", "visible", 15)


@pytest.mark.parametrize(("agent_class", "session", "turn"), [("ADMIN", 0, 4), ("RESIDENT:poor", 1, 2)])
async def test_turn_of_version_13_is_not_replayed_by_version_14(
    tmp_path: Path, agent_class: str, session: int, turn: int
) -> None:
    """Recalled turns that match too little to be shown were named."""
    root = golden_roots.unpacked(golden_roots.FOLDER / "0.1.0-version-13.tar.xz", tmp_path)
    assert [each.is_identical for each in await poor(root, agent_class=agent_class, only=session)] == [True]
    (report,) = await poor(root, 14, turn, agent_class=agent_class, only=session)
    assert found_in(report) == ("PROJECTION_COMPUTED", "suppressed", turn)


@pytest.mark.parametrize("turn", [1, 2, 3, 4])
async def test_turn_of_version_14_is_not_replayed_by_version_15(tmp_path: Path, turn: int) -> None:
    """Whatever a model call failed with, its reply said that the model could not be reached."""
    root = golden_roots.unpacked(golden_roots.FOLDER / "0.1.0-version-14.tar.xz", tmp_path)
    (report,) = [each for each in await poor(root, 15, turn, agent_class="RESIDENT:clerk") if not each.is_identical]
    assert found_in(report) == ("TURN_COMPLETED", "response", turn)
    assert [each.is_identical for each in await poor(root, agent_class="RESIDENT:clerk", only=report.session_id)] == [True]


async def test_version_of_a_newer_kitchener_is_a_divergence_that_says_so(recorded_root: Path) -> None:
    report = (await poor(recorded_root, events.POLICY_VERSION + 1))[0]
    assert found_in(report) == ("TURN_STARTED", "policy_version", 1)
    assert "a newer version of Kitchener" in report.text()


async def test_session_of_version_1_goes_on_with_version_2(tmp_path: Path) -> None:
    """Each turn is replayed by its own version, also where the session changed it."""
    root = golden_roots.unpacked(FIRST, tmp_path)
    story = corpus.Story(root)
    story.clock.advance(us=30 * 24 * corpus.HOUR_US)
    session_id = (await poor(root, only=1))[0].session_id
    async with story.open() as runtime:
        await story.say(runtime.supervisor("RESIDENT:poor"), session_id, ["a pond | scope=ponds intent=supersede"], runtime)
    (report,) = await poor(root, only=session_id)
    assert report.is_identical, report.text()
    assert len(report.turns) == 3
    assert found_in((await poor(root, 1, 3, only=session_id))[0]) == (*FIRST_DIFFERENCE, 3)
