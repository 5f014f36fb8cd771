"""A crash in the middle of what a turn writes about intents and its own end: the next start finishes it (docs/survival.md).

With one entry that may wait, every entry is a commit of its own, so a process can die between any two of them. Dying is a copy
of the ledgers that ends after an entry.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kitchener.config import LedgerConfig
from kitchener.ledger import verify_file
from kitchener.records import events
from kitchener.testing import FakeClock
from tests.acceptance.context_kit import ENFORCE, SID, actions, talking
from tests.acceptance.remembering import ledger_entries
from tests.acceptance.stack import places, read_all

ONE_BY_ONE = LedgerConfig(durability="os", linger_ms=0, max_pending_entries=1)
LATER = 2_000_000_000_000_000
"""A clock that is ahead of the conversation's, microseconds."""


def died_after(root: Path, copy: Path, number: int) -> None:
    """The ledgers as they are where HO2m ends after this entry; what was derived of it is gone."""
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("index"))
    path = places(copy)["ho2m"]
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[: number + 1]))
    assert verify_file(path).ok


def position(root: Path, entry_type: str, which: int = -1) -> int:
    """Where an entry of a type stands in HO2m."""
    return [n for n, entry in enumerate(ledger_entries(root)) if entry["entry_type"] == entry_type][which]


async def said(root: Path, *messages: str) -> None:
    """A conversation, each of whose entries is a commit."""
    async with talking(root, **ENFORCE, ledger=ONE_BY_ONE) as ada:
        await ada.say(*messages)


@pytest.mark.parametrize(
    ("script", "entry_type", "finished"),
    [
        (("a train to Rome", "[switch] a hotel"), events.INTENT_DECLARED, ["DECLARED", "DECLARED", "SUPERSEDED"]),
        (
            ("a train to Rome", "[switch] a hotel", "[back] the train"),
            events.INTENT_REOPENED,
            ["DECLARED", "DECLARED", "SUPERSEDED", "REOPENED", "SUPERSEDED"],
        ),
    ],
)
async def test_a_switch_that_was_cut_off_is_finished(
    tmp_path: Path, script: Sequence[str], entry_type: str, finished: list[str]
) -> None:
    """Dead between the new intent and the old one's giving way: nobody is asked about a conflict that he never made."""
    root, copy = tmp_path / "live", tmp_path / "copy"
    await said(root, *script)
    died_after(root, copy, position(root, entry_type))
    async with talking(copy, FakeClock(LATER), **ENFORCE) as ada:
        result = await ada.say("go on")
        assert result.error is None
        assert actions(await ada.intents()) == finished
        entries = await read_all(ada.ledgers.ho2m, session_id=SID)
        gave_way = [entry for entry in entries if entry.entry_type == events.INTENT_SUPERSEDED][-1]
        aborted = next(entry for entry in entries if entry.entry_type == events.TURN_ABORTED)
        assert gave_way.seq < aborted.seq, "a crash in between leaves the turn open, and so this is done again"
        assert gave_way.payload["turn_id"] == aborted.entity_id
        assert gave_way.payload["superseded_by_intent_id"] == result.intent_id
        assert gave_way.payload["reason"] == "switch"
        assert await ada.flags() == []


async def test_the_same_entries_are_written_as_without_the_crash(tmp_path: Path) -> None:
    root, copy = tmp_path / "live", tmp_path / "copy"
    await said(root, "a train to Rome", "[switch] a hotel")
    died_after(root, copy, position(root, events.INTENT_DECLARED))
    await said(copy, "go on")

    def payload(of: Path) -> dict[str, Any]:
        found: dict[str, Any] = ledger_entries(of)[position(of, events.INTENT_SUPERSEDED, 0)]["payload"]
        return found

    assert payload(copy) == payload(root)


async def test_a_conflict_that_the_user_made_is_still_asked_about(tmp_path: Path) -> None:
    """He declared the second intent himself, and a crash came in the next turn: recovery decides nothing for him."""
    root, copy = tmp_path / "live", tmp_path / "copy"
    async with talking(root, **ENFORCE, ledger=ONE_BY_ONE) as ada:
        await ada.say("a train to Rome")
        await ada.supervisor.declare_intent(SID, "a hotel")
        assert (await ada.say("hello")).error is not None
    died_after(root, copy, position(root, events.TURN_STARTED))
    async with talking(copy, FakeClock(LATER), **ENFORCE) as ada:
        result = await ada.say("go on")
        assert result.error is not None
        assert result.error.kind == "CONFLICT"


async def test_a_recovery_that_is_cut_off_is_finished_by_the_next_one(tmp_path: Path) -> None:
    """Dead after each of the entries that close a turn: none of its work orders stays open."""
    root, first = tmp_path / "live", tmp_path / "first"
    await said(root, "a train to Rome", "[switch] a hotel")
    died_after(root, first, position(root, events.INTENT_DECLARED))
    await said(first, "go on")
    begin, end = position(first, events.INTENT_SUPERSEDED), position(first, events.TURN_ABORTED)
    assert begin < end
    for number in range(begin, end + 1):
        copy = tmp_path / f"second {number}"
        died_after(first, copy, number)
        async with talking(copy, FakeClock(LATER), **ENFORCE) as ada:
            assert (await ada.say("go on")).error is None
            assert (await ada.state()).invalid == {}
            told = [(e.entry_type, e.payload.get("turn_id")) for e in await read_all(ada.ledgers.ho2m, session_id=SID)]
            assert told.count((events.TURN_ABORTED, "T-0000000a-000002")) == 1
            assert [kind for kind, _ in told].count(events.INTENT_SUPERSEDED) == 1


async def test_every_work_order_of_a_turn_that_was_cut_off_is_closed(tmp_path: Path) -> None:
    """Dead after each single entry of a turn, with each entry a commit of its own."""
    root = tmp_path / "live"
    await said(root, "a train to Rome", "[switch] a hotel")
    begin, end = position(root, events.TURN_STARTED), position(root, events.TURN_COMPLETED)
    assert end - begin > 8
    for number in range(begin, end):
        copy = tmp_path / str(number)
        died_after(root, copy, number)
        async with talking(copy, FakeClock(LATER), **ENFORCE) as ada:
            await ada.supervisor.session(SID)
            state = await ada.state()
            assert [wo_id for wo_id, each in state.work_orders.items() if each.is_live] == []
            assert len(state.live_intents) == 1
            assert state.invalid == {}
