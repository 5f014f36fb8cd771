"""Entries that belong together stand in one commit, so a crash leaves all of them or none (docs/survival.md).

With one entry that may wait, every other entry is a commit of its own, so a process can die between any two of them. Dying is a
copy of the ledgers that ends after an entry, or in the middle of one.
"""

import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from kitchener.config import LedgerConfig
from kitchener.errors import EntryTooLarge, InvalidLifecycle, SealingError
from kitchener.records import events
from kitchener.replaying import replay_session
from kitchener.sealing import Sealer
from kitchener.testing import FakeClock
from tests.acceptance.context.context_kit import BRIDGE, ENFORCE, SID, Talk, actions, talking
from tests.acceptance.memory.memory_kit import ledger_entries
from tests.acceptance.stack import open_scripted, places, read_all, scripted_config
from tests.shared.property_examples import examples

ONE_BY_ONE = LedgerConfig(durability="os", linger_ms=0, max_pending_entries=1)
LATER = 2_000_000_000_000_000
"""A clock that is ahead of the conversation's, microseconds."""


def died_after(root: Path, copy: Path, number: int, *, rest: int = 0) -> None:
    """The ledgers and keys as they are where HO2m ends so many bytes after this entry; what was derived of it is gone."""
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("index"))
    shutil.copytree(root.with_name(f"{root.name}.keys"), copy.with_name(f"{copy.name}.keys"), symlinks=True)
    path = places(copy)["ho2m"]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[: number + 1], *[line[:rest] for line in lines[number + 1 : number + 2]]]))


def position(root: Path, entry_type: str, which: int = -1) -> int:
    """Where an entry of a type stands in HO2m."""
    return [n for n, entry in enumerate(ledger_entries(root)) if entry["entry_type"] == entry_type][which]


async def said(root: Path, *messages: str) -> None:
    """A conversation, each of whose entries is a commit."""
    async with talking(root, **ENFORCE, ledger=ONE_BY_ONE) as ada:
        await ada.say(*messages)


async def switches(ada: Talk) -> None:
    await ada.say("[switch] a hotel")


async def switches_back(ada: Talk) -> None:
    await ada.say("[switch] a hotel")
    await ada.say("[back] the train")


async def forks(ada: Talk) -> None:
    (live,) = (await ada.state()).live_intents
    await ada.supervisor.fork_intent(SID, live, ["find a hotel", "find food", "find a train"], active=1)


async def settles(ada: Talk) -> None:
    for objective in ("a hotel", "a boat"):
        await ada.supervisor.declare_intent(SID, objective)
    await ada.supervisor.resolve_conflict(SID, keep=next(iter((await ada.state()).live_intents)))


async def settles_by_word(ada: Talk) -> None:
    for objective in ("a hotel", "a boat"):
        await ada.supervisor.declare_intent(SID, objective)
    await ada.say("a boat")


DECISIONS: Sequence[tuple[Callable[[Talk], Awaitable[None]], list[str]]] = [
    (switches, ["DECLARED", "SUPERSEDED"]),
    (switches_back, ["REOPENED", "SUPERSEDED"]),
    (forks, ["DECLARED", "DECLARED", "DECLARED", "FORKED"]),
    (settles, ["SUPERSEDED", "SUPERSEDED"]),
    (settles_by_word, ["SUPERSEDED", "SUPERSEDED"]),
]


@pytest.mark.hypothesis
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
@pytest.mark.parametrize(("decide", "together"), DECISIONS)
async def test_a_decision_that_takes_several_entries_is_there_as_a_whole_or_not_at_all(
    tmp_path: Path, decide: Callable[[Talk], Awaitable[None]], together: list[str]
) -> None:
    root = tmp_path / "live"
    async with talking(root, **ENFORCE, ledger=ONE_BY_ONE) as ada:
        await ada.say("a train to Rome")
        await decide(ada)
        done = actions(await ada.intents())
        assert done[-len(together) :] == together
    before = done[: -len(together)]
    end = [n for n, entry in enumerate(ledger_entries(root)) if entry["entry_type"].startswith("INTENT_")][-1]
    for number in range(end - len(together), end + 1):
        for rest in (0, 40)[examples(few=number % 2, many=0) :: examples(few=2, many=1)]:  # in turn, or both
            copy = tmp_path / f"{number} {rest}"
            died_after(root, copy, number, rest=rest)
            async with talking(copy, FakeClock(LATER), **ENFORCE) as ada:
                await ada.supervisor.session(SID)
                assert actions(await ada.intents()) == (done if number == end else before)
                state = await ada.state()
                assert state.invalid == {}
                assert state.snapshot() == await ada.kept()
                conflict = together == ["SUPERSEDED", "SUPERSEDED"] and number != end
                result = await ada.say("go on")
                assert (result.error is not None) is conflict, "what a user did not settle yet is still asked about"


async def test_a_session_begins_with_its_first_intent_or_not_at_all(tmp_path: Path) -> None:
    """Dead after each of the two entries, or in the second one. What goes on afterwards replays."""
    root = tmp_path / "live"
    async with talking(root, **BRIDGE, ledger=ONE_BY_ONE):
        pass
    began = position(root, events.SESSION_START)
    assert position(root, events.INTENT_DECLARED) == began + 1
    for number, rest in ((began, 0), (began, 40), (began + 1, 0)):
        copy = tmp_path / f"{number} {rest}"
        died_after(root, copy, number, rest=rest)
        async with talking(copy, FakeClock(LATER), **BRIDGE) as ada:
            assert (await ada.say("a train to Rome")).error is None
            assert actions(await ada.intents()) == ["DECLARED"]
        report = await replay_session(SID, config=scripted_config(copy, **BRIDGE))
        assert (report.is_identical, len(report.turns)) == (True, 1)


async def test_a_session_whose_subject_can_get_no_key_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full_disk(*_: object) -> None:
        raise SealingError("no room for a key")

    async with open_scripted(tmp_path, **BRIDGE) as runtime:
        supervisor, ho2m = runtime.supervisor(), runtime.ledgers().ho2m
        with monkeypatch.context() as patched:
            patched.setattr(Sealer, "load_key", full_disk)
            with pytest.raises(SealingError):
                await supervisor.handle_turn("hello", subject_id="bo")
            with pytest.raises(SealingError):
                await supervisor.start_session(SID, subject_id="bo")
        assert await read_all(ho2m, entry_type=events.SESSION_START) == []
        assert await supervisor.start_session(SID, subject_id="bo") == SID
        assert [each.entry_type for each in await read_all(ho2m, session_id=SID)] == [
            events.SESSION_START,
            events.INTENT_DECLARED,
        ]


async def test_a_fork_of_which_a_child_is_refused_leaves_no_child(tmp_path: Path) -> None:
    """Its second objective takes more bytes than an entry may, which is found out when the first child was taken already."""
    async with talking(tmp_path, **ENFORCE, ledger=LedgerConfig(max_entry_bytes=8_192)) as ada:
        await ada.say("a train to Rome")
        (live,) = (await ada.state()).live_intents
        with pytest.raises(EntryTooLarge):
            await ada.supervisor.fork_intent(SID, live, ["find a hotel", "find" + "\x01" * 1_900])
        assert actions(await ada.intents()) == ["DECLARED"]
        assert (await ada.state()).snapshot() == await ada.kept()
        assert (await ada.say("go on")).error is None
        await ada.supervisor.fork_intent(SID, live, ["find a hotel", "find food"])
        assert actions(await ada.intents()) == ["DECLARED", "DECLARED", "DECLARED", "FORKED"]


async def test_what_cannot_follow_its_own_decision_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Two sessions choose of the same threads: the second choice comes too late, and none of it is on record."""
    async with talking(tmp_path, **ENFORCE) as ada:
        await ada.say("a train to Rome")
        await settles(ada)
        done = actions(await ada.intents())
        gone = (await ada.intents())[-1].entity_id
        with pytest.raises(InvalidLifecycle, match=gone):
            await ada.supervisor.fork_intent(SID, gone, ["find a hotel", "find food"])
        assert actions(await ada.intents()) == done


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
    died_after(root, first, position(root, events.WO_PLANNED))
    await said(first, "go on")
    begin, end = position(first, events.WO_ABANDONED, 0), position(first, events.TURN_ABORTED)
    assert begin < end
    for number in range(begin - 1, end + 1):
        copy = tmp_path / f"second {number}"
        died_after(first, copy, number)
        async with talking(copy, FakeClock(LATER), **ENFORCE) as ada:
            assert (await ada.say("go on")).error is None
            assert (await ada.state()).invalid == {}
            told = [(e.entry_type, e.payload.get("turn_id")) for e in await read_all(ada.ledgers.ho2m, session_id=SID)]
            assert told.count((events.TURN_ABORTED, "T-0000000a-000002")) == 1


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
