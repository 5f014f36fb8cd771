"""The harness of `crash_harness.py`: a sample each time, hundreds of kills with `make soak` (docs/survival.md)."""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

SEGMENTS = [None, 16_384]
"""Ledgers in one file each, and with files that are full every few turns."""


async def killed(backend: str, kills: int, *options: str) -> dict[str, Any]:
    """What came of so many kills."""
    command = [
        sys.executable,
        "-m",
        "tests.faults.crashes.crash_harness",
        "--json",
        "--backend",
        backend,
        "--kills",
        str(kills),
    ]
    run = await anyio.run_process([*command, *options], check=False)
    assert run.stdout, run.stderr.decode()
    (summary,) = json.loads(run.stdout)
    assert summary["violations"] == []
    assert run.returncode == 0
    result: dict[str, Any] = summary
    return result


def check(summary: dict[str, Any], kills: int, segment_bytes: int | None = None) -> None:
    """So many processes really died, at places and at moments, and real work was done in between."""
    assert summary["kills"] >= kills
    assert summary["at_boundaries"] + summary["outlived"] >= kills // 2 - 1
    assert summary["outlived"] < max(1, kills // 8), "places are counted in a life of the same length"
    assert summary["at_boundaries"] + summary["under_load"] + summary["in_recovery"] == summary["kills"]
    assert summary["power_losses"] == (kills // 5 if segment_bytes is None else 0)
    assert (summary["segments"] > 0) is (segment_bytes is not None)
    assert summary["acknowledged"] <= summary["completed"]
    assert summary["acknowledged"] > summary["under_load"]
    assert summary["aborted"] > 0
    assert summary["consolidations"] > 0


@pytest.mark.timeout(180)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the long run on both
async def test_a_runtime_that_is_killed_keeps_what_it_promised(anyio_backend: str) -> None:
    """A sample: a few places of a turn with all that belongs to it, and a few moments under load."""
    check(await killed(anyio_backend, 6, "--seed", "20260101"), 6)


@pytest.mark.soak  # each time, `ledger/write/test_faults.py` and `test_segments.py` stop and kill what finishes a file
@pytest.mark.timeout(180)
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_ledgers_whose_files_are_finished_meanwhile_keep_it_too(anyio_backend: str) -> None:
    """A file is full every few turns, so kills come while one is finished and the next takes its name."""
    options = ("--seed", "20260101", "--segment-bytes", "16384")
    check(await killed(anyio_backend, 10, *options), 10, 16_384)


@pytest.mark.soak
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("segment_bytes", SEGMENTS)
async def test_five_hundred_kills_cost_nothing_that_was_promised(anyio_backend: str, segment_bytes: int | None) -> None:
    """The long run."""
    options = ["--segment-bytes", str(segment_bytes)] if segment_bytes is not None else []
    check(await killed(anyio_backend, 500, "--seed", "1", *options), 500, segment_bytes)


@pytest.mark.soak
@pytest.mark.timeout(60)
async def test_a_harness_that_is_ended_leaves_nothing_behind(tmp_path: Path, anyio_backend: str) -> None:
    where = tmp_path / "roots"
    command = [
        sys.executable,
        "-m",
        "tests.faults.crashes.crash_harness",
        "--backend",
        anyio_backend,
        "--kills",
        "100",
        "--root",
        where,
    ]
    async with await anyio.open_process([str(each) for each in command], stdin=None) as process:
        assert process.stderr is not None
        await process.stderr.receive()  # what it tells of the first kills
        process.terminate()
        assert await process.wait() == 143
    assert not where.exists()
