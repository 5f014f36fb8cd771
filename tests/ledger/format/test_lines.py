"""Entries as lines: what they hold in memory, and what they refuse (docs/ledger.md)."""

import tracemalloc
from pathlib import Path

import pytest

from kitchener.errors import EntryRefused
from kitchener.ledger import LedgerEntry
from kitchener.ledger.format.lines import body_of
from tests.ledger.support import open_ledger

AT = "2026-02-18T12:00:00.000000+00:00"


async def test_a_pending_entry_takes_little_more_memory_than_its_bytes(tmp_path: Path) -> None:
    """The encoder returns bytes that keep its buffer of 4 KiB or more; a thousand waiting turns held 33 MiB of that."""
    payload = {"session_id": "SES-00000001", "text": "x" * 400}
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        await ledger.write(LedgerEntry("NOTE", "n", payload))
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for number in range(200):
                await ledger.write(LedgerEntry("NOTE", str(number), payload))
            held = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert held / 200 < 2_500


@pytest.mark.parametrize(
    ("entity_id", "expected"),
    [
        ("WO-1", b'"WO-1"'),
        ('quote " and \\', b'"quote \\" and \\\\"'),
        ("línea\n\x01", '"línea\\n\\u0001"'.encode()),
        ("\u2028😀", '"\u2028😀"'.encode()),
    ],
)
def test_any_text_names_an_entity(entity_id: str, expected: bytes) -> None:
    assert body_of("NOTE", entity_id, {"v": 1}, AT) == (
        b'{"entity_id":%b,"entry_type":"NOTE","payload":{"v":1},"timestamp":"%b"}' % (expected, AT.encode())
    )


@pytest.mark.parametrize(("entry_type", "entity_id", "named"), [("NOTE", "\ud800", "entity_id"), ("\ud800", "x", "entry_type")])
def test_text_without_utf8_is_refused_by_name(entry_type: str, entity_id: str, named: str) -> None:
    with pytest.raises(EntryRefused, match=named):
        body_of(entry_type, entity_id, {}, AT)
