"""The published vectors: hashes of given entries, and the exact bytes of a file (docs/ledger.md, format)."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kitchener.canonical import canonical_bytes, digest
from kitchener.clock import to_us
from kitchener.config import LedgerConfig
from kitchener.ledger import LedgerClient, LedgerEntry, compute_trace_hash, verify_file
from kitchener.ledger.format.lines import NO_HASH, chain_hash
from tests.ledger.support import SetClock

VECTORS = Path(__file__).parent.parent.parent / "vectors"
SAMPLE = VECTORS / "ledger_sample.jsonl"
ENTRIES: list[dict[str, Any]] = json.loads((VECTORS / "ledger_chain.json").read_text(encoding="utf-8"))
COMMITS = (1, 3, 2, 2)


def test_entry_and_chain_hashes_are_the_published_ones() -> None:
    chain = NO_HASH
    for entry in ENTRIES:
        body = canonical_bytes({key: entry[key] for key in ("entity_id", "entry_type", "payload", "timestamp")})
        assert digest(body) == entry["entry_hash"]
        chain = chain_hash(
            chain, entry["ledger_id"], entry["seq"], entry["entry_id"], entry["entry_hash"].removeprefix("sha256:")
        )
        assert f"sha256:{chain}" == entry["chain_hash"]


async def test_the_client_writes_the_published_file_byte_for_byte(tmp_path: Path) -> None:
    path, clock = tmp_path / "ho2m.jsonl", SetClock(0)
    config = LedgerConfig(accept_clock_jump=True)  # the vector's hours pass in an instant
    rest = iter(ENTRIES)
    async with LedgerClient.open(path, ledger_id="HO2M:ADMIN", clock=clock, config=config) as ledger:
        for size in COMMITS:
            for _ in range(size):
                entry = next(rest)
                clock.now = to_us(datetime.fromisoformat(entry["timestamp"]))
                ref = await ledger.write(LedgerEntry(entry["entry_type"], entry["entity_id"], entry["payload"]))
                assert ref == (entry["ledger_id"], entry["entry_id"], entry["entry_hash"])
            await ledger.commit()
        assert ledger.head() == (8, ENTRIES[-1]["chain_hash"])
    assert path.read_bytes() == SAMPLE.read_bytes()


async def test_the_published_file_verifies_and_reads(tmp_path: Path) -> None:
    report = verify_file(SAMPLE)
    assert report.ok
    assert (report.ledger_id, report.entries, report.batches, report.head) == ("HO2M:ADMIN", 8, 4, ENTRIES[-1]["chain_hash"])

    path = tmp_path / "ho2m.jsonl"
    path.write_bytes(SAMPLE.read_bytes())
    async with LedgerClient.open(path, ledger_id="HO2M:ADMIN") as ledger:
        read = [entry async for entry in ledger.read()]
    assert [(e.entry_type, e.entity_id, e.timestamp, e.payload) for e in read] == [
        (e["entry_type"], e["entity_id"], e["timestamp"], e["payload"]) for e in ENTRIES
    ]


async def test_the_trace_hash_is_the_hash_of_the_stored_bodies_one_after_another(tmp_path: Path) -> None:
    path = tmp_path / "ho2m.jsonl"
    path.write_bytes(SAMPLE.read_bytes())
    async with LedgerClient.open(path, ledger_id="HO2M:ADMIN") as ledger:
        entries = [entry async for entry in ledger.read(up_to_seq=2)]
    lines = SAMPLE.read_bytes().splitlines()[:2]
    stored = b"".join(line.partition(b',"entry":')[2][:-1] for line in lines)
    assert compute_trace_hash(entries) == digest(stored)
    assert compute_trace_hash(entries[::-1]) != compute_trace_hash(entries)
    assert compute_trace_hash([]) == digest(b"")


@pytest.mark.parametrize("form", ["Z", "+00:00"])
async def test_readers_take_both_spellings_of_utc(tmp_path: Path, form: str) -> None:
    """A writer of another make may use `Z`; its line has its own hashes."""
    stamp = f"2026-02-18T10:30:00.000000{form}"
    body = canonical_bytes({"entity_id": "x", "entry_type": "NOTE", "payload": {}, "timestamp": stamp})
    entry_hash = digest(body)
    link = chain_hash(NO_HASH, "L", 1, "E-2026-02-18-000000000001", entry_hash.removeprefix("sha256:"))
    path = tmp_path / "l.jsonl"
    path.write_bytes(
        f'{{"ledger_id":"L","seq":1,"entry_id":"E-2026-02-18-000000000001","batch":[1,1,1],"entry_hash":"{entry_hash}",'
        f'"chain_hash":"sha256:{link}","entry":'.encode()
        + body
        + b"}\n"
    )
    assert verify_file(path).ok
    async with LedgerClient.open(path, ledger_id="L") as ledger:
        [entry] = [entry async for entry in ledger.read()]
        assert entry.timestamp == stamp
        await ledger.write(LedgerEntry("NOTE", "y", {}))
    assert verify_file(path).ok
