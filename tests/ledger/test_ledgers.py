"""The reads that all ledgers share, and ledgers that are attached later. See docs/ledger.md and docs/runtime.md."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kitchener.errors import CallerError, EntryRefused, LedgerClosed
from kitchener.ledger import LateLedgers, Ledger, LedgerClient, LedgerEntry, LedgerGroup, LedgerReader, Ledgers, ReadableLedger
from tests.ledger.support import LEDGER


def keys_of(entry_type: str, payload: Mapping[str, object]) -> tuple[str, ...]:
    return (f"about:{payload['about']}",)


def entry(session_id: str, about: str) -> LedgerEntry:
    return LedgerEntry("NOTED", "X-1", {"v": 1, "session_id": session_id, "about": about})


async def answers(ledger: ReadableLedger) -> tuple[set[str], set[str], dict[str, int], list[int]]:
    newest = await ledger.last_of(["about:tea", "about:none", "about:rain"])
    return (
        await ledger.known_sessions(["SES-00000001", "SES-00000002", "SES-00000003"]),
        await ledger.known_keys(["about:tea", "about:none"]),
        {key: found.seq for key, found in newest.items()},
        [found.seq async for found in ledger.read(key="about:tea")],
    )


async def test_a_reader_and_a_writer_give_the_same_answers(tmp_path: Path) -> None:
    """Also for entries that are in the file but not in the index, and for those that no commit has written yet."""
    path = tmp_path / "l.jsonl"
    expected = ({"SES-00000001", "SES-00000002"}, {"about:tea"}, {"about:tea": 3, "about:rain": 2}, [1, 3])
    async with LedgerClient.open(path, ledger_id=LEDGER, index_keys=keys_of) as ledger:
        for session_id, about in (("SES-00000001", "tea"), ("SES-00000002", "rain"), ("SES-00000001", "tea")):
            await ledger.write(entry(session_id, about))
        assert await answers(ledger) == expected
        await ledger.commit()
        assert await answers(ledger) == expected
        async with LedgerReader.open(path, index_keys=keys_of) as reader:
            assert await answers(reader) == expected
    async with LedgerReader.open(path, index_keys=keys_of) as reader:
        assert await answers(reader) == expected


async def test_an_empty_ledger_has_no_answers(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    nothing = (set[str](), set[str](), dict[str, int](), list[int]())
    async with LedgerClient.open(path, ledger_id=LEDGER, index_keys=keys_of) as ledger:
        assert await answers(ledger) == nothing
    async with LedgerReader.open(path, index_keys=keys_of) as reader:
        assert await answers(reader) == nothing
        report = await reader.verify()
    assert (report.ok, report.entries) == (True, 0)
    with pytest.raises(LedgerClosed):
        await reader.last()


async def test_a_refused_entry_leaves_nothing_of_its_batch(tmp_path: Path) -> None:
    async with LedgerClient.open(tmp_path / "l.jsonl", ledger_id=LEDGER, index_keys=keys_of) as ledger:
        with ledger.watch("SES-00000001") as watched:
            bad = LedgerEntry("NOTED", "X-1", {"about": "tea", "session_id": "SES-00000001", "value": float("nan")})
            with pytest.raises(EntryRefused):
                await ledger.write_all([entry("SES-00000001", "tea"), bad])
            assert (watched, ledger.position, await ledger.last()) == ([], 0, [])
            ref = await ledger.write(entry("SES-00000001", "tea"))
            assert (ref.entry_id[-12:], len(watched)) == ("000000000001", 1)


async def test_attached_ledgers_are_those_that_were_opened(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:

        async def opened(name: str) -> LedgerClient:
            return await stack.enter_async_context(LedgerClient.open(tmp_path / f"{name}.jsonl", ledger_id=name.upper()))

        shared = await opened("shared")
        late = LateLedgers(also=[shared])
        assert late.covers([shared])
        ho1m, ho2m, context = await opened("ho1m"), await opened("ho2m"), await opened("context")
        assert not late.covers([ho2m])
        with pytest.raises(CallerError, match="open with the first call of their agent class's supervisor"):
            late.ho2m  # noqa: B018
        assert not hasattr(late, "ho3m")
        late.attach(Ledgers(ho1m, ho2m, context, also=[shared]))
        assert late.covers([ho1m, ho2m, context, shared])
        group: LedgerGroup = late
        ledger: Ledger = group.ho2m
        await ledger.write(entry("SES-00000001", "tea"))
        await shared.write(entry("SES-00000001", "tea"))
        await group.commit()
        assert (ho2m.durable_position, shared.durable_position) == (1, 1)
        assert group.positions() == {"HO1M": 0, "CONTEXT": 0, "SHARED": 1, "HO2M": 1}
