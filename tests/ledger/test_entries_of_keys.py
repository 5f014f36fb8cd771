"""Entries of several keys, read from a ledger by one question; see docs/ledger.md."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from kitchener.errors import CallerError, LedgerDamaged
from kitchener.ledger import LedgerClient, LedgerEntry, LedgerReader
from tests.ledger.support import LEDGER

KEYS = ("about:tea", "about:none", "about:rain")
FOUND = {"about:tea": [1, 3], "about:none": [], "about:rain": [2, 3]}


def keys_of(entry_type: str, payload: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"about:{each}" for each in str(payload["about"]).split())


async def numbers(ledger: LedgerClient | LedgerReader) -> dict[str, list[int]]:
    return {key: [each.seq for each in entries] for key, entries in (await ledger.of_keys(KEYS)).items()}


async def recorded(path: Path) -> None:
    """Three entries; the numbers of each are the same from a writer, before and after it commits."""
    async with LedgerClient.open(path, ledger_id=LEDGER, index_keys=keys_of) as ledger:
        assert await numbers(ledger) == {key: list[int]() for key in KEYS}
        for about in ("tea", "rain", "tea rain"):
            await ledger.write(LedgerEntry("NOTED", "X-1", {"v": 1, "about": about}))
        assert await numbers(ledger) == FOUND
        await ledger.commit()
        assert await numbers(ledger) == FOUND


async def test_a_writer_and_a_reader_find_the_entries_of_each_key(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    path.touch()
    async with LedgerReader.open(path, index_keys=keys_of) as reader:
        assert await numbers(reader) == {key: list[int]() for key in KEYS}
    await recorded(path)
    async with LedgerReader.open(path, index_keys=keys_of) as reader:
        assert await numbers(reader) == FOUND
        assert list(await reader.of_keys(["about:tea", "about:tea"])) == ["about:tea"]
    async with LedgerReader.open(path) as reader:
        with pytest.raises(CallerError, match="index_keys"):
            await reader.of_keys(KEYS)


@pytest.mark.parametrize("damage", ["UPDATE places SET base = base + 1", "DROP TABLE places", "DELETE FROM head"])
async def test_without_its_index_a_ledger_gives_the_same_entries(tmp_path: Path, damage: str) -> None:
    await recorded(tmp_path / "l.jsonl")
    (index,) = tmp_path.rglob("*.sqlite*")
    with closing(sqlite3.connect(index, isolation_level=None)) as connection:
        connection.execute(damage)
    async with LedgerReader.open(tmp_path / "l.jsonl", index_keys=keys_of) as reader:
        assert await numbers(reader) == FOUND


async def test_a_line_that_is_not_what_was_written_is_told(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    await recorded(path)
    async with LedgerReader.open(path, index_keys=keys_of) as reader:
        assert await numbers(reader) == FOUND
        path.write_bytes(path.read_bytes().replace(b'"rain"', b'"rein"', 1))
        with pytest.raises(LedgerDamaged):
            await reader.of_keys(KEYS)
