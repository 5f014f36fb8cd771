"""A turn logs its signals in one entry, which counts as if each had been logged by itself (docs/memory.md)."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.errors import CallerError, InvalidSignal
from kitchener.memory import HO3Memory, MemoryReader
from kitchener.memory.signals import event_id
from kitchener.records.events import SEALED_FIELDS
from kitchener.sealing import Keyring, Sealer
from tests.memory.shared.kit import ADA, SetClock, entries, learned, open_memory
from tests.shared.property_examples import examples

SESSION, TURN = "SES-0000000a", "T-0000000a-000001"
GIVEN = ("intent:question", "domain:travel", "tool:look", "tool:look", "outcome:success")


def sealer(root: Path) -> Sealer:
    """As a new process makes it: no key in memory."""
    return Sealer(Keyring(root / "keys"), SEALED_FIELDS)


async def counts(memory: HO3Memory | MemoryReader) -> list[tuple[Any, ...]]:
    """What gates go by: counts, sessions and event ids of each signal."""
    found = await memory.read_signals(namespace=ADA)
    return [(each.signal_id, each.count, each.session_ids, sorted(each.event_ids)) for each in found]


async def test_one_entry_names_the_turn_and_each_event(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await memory.log_turn(GIVEN, SESSION, TURN, namespace=ADA)
        live = await counts(memory)
        assert await memory.last_turn_id(SESSION) == TURN
    [entry] = entries(tmp_path, "signals")
    payload = entry["payload"]
    assert (payload["v"], payload["session_id"], payload["turn_id"]) == (2, SESSION, TURN)
    numbers = (1, 1, 1, 2, 1)
    assert payload["signals"] == {event_id(SESSION, TURN, each, n): each for each, n in zip(GIVEN, numbers, strict=True)}
    assert "metadata" not in payload
    async with open_memory(tmp_path) as memory, MemoryReader.open(tmp_path, clock=SetClock()) as reader:
        assert await counts(memory) == await counts(reader) == live
        assert [each[1] for each in live if each[0] == "tool:look"] == [2]
        assert await memory.last_turn_id(SESSION) == TURN


async def test_labels_are_sealed_and_the_turn_is_not(tmp_path: Path) -> None:
    """A label may repeat words of the subject; ids of turns stand in every other entry as they are."""
    async with open_memory(tmp_path, sealer=sealer(tmp_path)) as memory:
        await memory.log_turn(GIVEN, SESSION, TURN, namespace=ADA)
        live = await counts(memory)
    everything = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"travel" not in everything
    [entry] = entries(tmp_path, "signals")
    assert entry["payload"]["turn_id"] == TURN
    assert list(entry["payload"]["words"]) == ["$sealed"]
    async with open_memory(tmp_path, sealer=sealer(tmp_path)) as memory:
        assert await counts(memory) == live
        assert "domain:travel" in [each[0] for each in live]
    Keyring(tmp_path / "keys").destroy("ada")
    async with MemoryReader.open(tmp_path, clock=SetClock(), sealer=sealer(tmp_path)) as reader:
        after = await counts(reader)
        assert [each[1:] for each in sorted(after, key=lambda each: each[3])] == [
            each[1:] for each in sorted(live, key=lambda each: each[3])
        ]
        assert "domain:travel" not in [each[0] for each in after]
        [event] = await reader.read_events(after[0][3][:1], namespace=ADA)
        assert event.turn_id == TURN


async def test_known_events_are_not_written_again(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await memory.log_turn(GIVEN[:2], SESSION, TURN, namespace=ADA)
        await memory.log_turn(GIVEN[:2], SESSION, TURN, namespace=ADA)
        await memory.log_turn((), SESSION, TURN, namespace=ADA)
        await memory.log_turn(GIVEN[:3], SESSION, TURN, namespace=ADA)
        assert [each.count for each in await memory.read_signals(namespace=ADA)] == [1, 1, 1]
    first, second = (each["payload"]["signals"] for each in entries(tmp_path, "signals"))
    assert sorted(first.values()) == sorted(GIVEN[:2])
    assert list(second.values()) == [GIVEN[2]]


@pytest.mark.parametrize("wrong", ["nonsense:x", "intent:", "?"])
async def test_all_signals_of_a_turn_are_written_or_none(tmp_path: Path, wrong: str) -> None:
    async with open_memory(tmp_path) as memory:
        with pytest.raises(InvalidSignal):
            await memory.log_turn((*GIVEN, wrong), SESSION, TURN, namespace=ADA)
        with pytest.raises(CallerError, match="turn_id"):
            await memory.log_turn(GIVEN, SESSION, "", namespace=ADA)
        assert memory.signals.position == 0
        assert await memory.read_signals(namespace=ADA) == []


async def test_a_line_rests_on_events_of_a_turn_and_falls_with_one(tmp_path: Path) -> None:
    """Learning, quarantine and erasure go by event ids, which one entry may hold several of."""
    async with open_memory(tmp_path, sealer=sealer(tmp_path)) as memory:
        for n in range(5):
            await memory.log_turn(GIVEN, f"SES-0000000{n % 3}", f"T-0000000{n % 3}-00000{n}", namespace=ADA)
        [looks] = await memory.read_signals("tool:look", namespace=ADA)
        await memory.log_overlay(learned([*looks.event_ids], "tool:look"), namespace=ADA)
        for each in looks.event_ids[:6]:
            await memory.quarantine(each, "a test", namespace=ADA)
        [left] = await memory.read_signals("tool:look", namespace=ADA)
        assert left.event_ids == looks.event_ids[6:]
        assert [each.count for each in await memory.read_signals("outcome:success", namespace=ADA)] == [5]
        erased = await memory.erase_subject("ada", key_id="k", erased_at="2026-02-18T10:30:00+00:00", namespaces=(ADA,))
        assert erased.events == 25
        assert await memory.read_signals(namespace=ADA) == []


kinds = st.sampled_from(["intent:question", "domain:a", "domain:b", "task:a b", "tool:look", "outcome:success"])
turns = st.lists(st.tuples(st.integers(0, 2), st.lists(kinds, max_size=6)), max_size=8)


@settings(max_examples=examples(few=6, many=100))
@given(turns)
def test_logged_at_once_or_one_by_one_counts_the_same(given_by: Sequence[tuple[int, list[str]]]) -> None:
    """As turns did before version 8 of the policy: the same events, the same counts, and the same after opening again."""

    async def compare() -> None:
        with TemporaryDirectory() as at_once, TemporaryDirectory() as singly:
            async with open_memory(Path(at_once)) as one, open_memory(Path(singly)) as other:
                for number, (session, given) in enumerate(given_by):
                    session_id, turn_id = f"SES-0000000{session}", f"T-0000000{session}-00000{number}"
                    await one.log_turn(given, session_id, turn_id, namespace=ADA)
                    for each in given:
                        await other.log_signal(each, session_id, metadata={"turn_id": turn_id}, namespace=ADA)
                live = await counts(one)
                assert live == await counts(other)
            async with open_memory(Path(at_once)) as one, open_memory(Path(singly)) as other:
                assert await counts(one) == await counts(other) == live

    anyio.run(compare)
