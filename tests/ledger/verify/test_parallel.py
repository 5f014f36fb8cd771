"""Several processes find what one finds (docs/ledger.md, long ledgers)."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kitchener.ledger import VerifyReport, verify_file, verify_ledger
from kitchener.ledger.disk.manifests import segment_path
from kitchener.ledger.verify.checkpoint import sign_ledger
from kitchener.signing import make_key
from tests.ledger.support import LEDGER, fill, segments_of
from tests.ledger.write.test_segments import DAMAGES, MOMENT, flip

IN_SEGMENTS, IN_ONE_FILE = segments_of(1_000, durability="os"), segments_of(10**9, durability="os")


def facts(report: VerifyReport) -> tuple[object, ...]:
    """All but how long it took; a fault as its text."""
    return (str(report.fault), *[getattr(replace(report, seconds=0.0, fault=None), name) for name in report.__slots__])


async def both(path: Path) -> VerifyReport:
    """What both ways say, if it is the same."""
    seen: list[tuple[int, int]] = []
    report = await verify_ledger(path, jobs=2, progress=lambda done, size: seen.append((done, size)), chunk_bytes=900)
    assert facts(report) == facts(verify_file(path))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    return report


async def whole_ledgers(tmp_path: Path) -> None:
    signer = make_key(tmp_path / "signing.pem")
    for name, config in (("segments", IN_SEGMENTS), ("one file", IN_ONE_FILE)):
        path = tmp_path / name / "l.jsonl"
        await fill(path, [3, 3, 1, 5, 2, 4], config=config)
        assert sign_ledger(path, signer, MOMENT)
        report = await both(path)
        assert (report.ok, report.entries, report.batches, report.ledger_id) == (True, 18, 6, LEDGER)
        assert report.checkpoint is not None
        assert report.seconds > 0
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert (await both(empty)).ok


async def damaged_segments(tmp_path: Path) -> None:
    whole = tmp_path / "whole" / "l.jsonl"
    await fill(whole, [3, 3, 3, 3, 2], config=IN_SEGMENTS)
    for number, (damage, (do, _, _, _)) in enumerate(DAMAGES.items()):
        if damage == "the file gone":
            continue
        path = tmp_path / str(number) / "l.jsonl"
        shutil.copytree(whole.parent, path.parent)
        do(path)
        assert not (await both(path)).ok
    path = tmp_path / "two" / "l.jsonl"
    shutil.copytree(whole.parent, path.parent)
    flip(segment_path(path, 4), 500)
    flip(segment_path(path, 2), 900)
    report = await both(path)
    assert report.fault is not None
    assert report.fault.path == str(segment_path(path, 2))


async def every_line_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    data = await fill(path, [2, 1, 3, 1, 2, 2], config=IN_ONE_FILE)
    lines = data.splitlines(keepends=True)
    for number in range(len(lines)):
        wrong = lines[number][:-9] + b"?" + lines[number][-8:]
        path.write_bytes(b"".join([*lines[:number], wrong, *lines[number + 1 :]]))
        report = await both(path)
        assert report.fault is not None
        assert (report.fault.line, report.entries) == (number + 1, number)
        path.write_bytes(b"".join([*lines[:number], *lines[number + 1 :]]))
        assert not (await both(path)).ok or number == len(lines) - 1
    path.write_bytes(data[:-1])
    assert not (await both(path)).ok


async def test_several_processes_find_what_one_finds(tmp_path: Path) -> None:
    """In one test, as starting processes is what takes the time."""
    for check in (whole_ledgers, damaged_segments, every_line_of_a_long_file):
        (tmp_path / check.__name__).mkdir()
        await check(tmp_path / check.__name__)


async def test_no_other_process_is_started_for_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "l.jsonl"
    await fill(path, [3, 3, 3], config=IN_SEGMENTS)
    monkeypatch.setattr("anyio.to_process.run_sync", None)
    assert (await verify_ledger(path)).entries == 9
    assert (await verify_ledger(path, jobs=1)).entries == 9
