"""Verifies a long ledger in several processes.

The ledger is cut where commits end: at the ends of segments, and within a long file every so many bytes. Each line holds its
own chain hash, so a chunk can be checked against the end that the line before it claims; the claim is right if the chunk
before comes out there. Where anything is wrong, this process checks on from the first wrong chunk and says what it is.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

import anyio
import anyio.to_process
import anyio.to_thread

from kitchener.errors import LedgerDamaged
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.ledger.disk.scan import ledger_id_of, read_lines
from kitchener.ledger.disk.volume import Volume, open_volume
from kitchener.ledger.format.checks import stamp_of
from kitchener.ledger.format.lines import START, BadLine, Mark, split_line
from kitchener.ledger.verify.verification import Head, VerifyReport, verify_file, verify_part

_CHUNK_BYTES: Final = 32 << 20
"""About how long a chunk is. Short enough to show progress and to keep all processes at work until the end."""
_WORTH_BYTES: Final = 256 << 20
"""Shorter ledgers are verified in this process unless somebody asks: starting others takes about a second."""
_LAST_BYTES: Final = 65_536


class _Chunk(NamedTuple):
    start: Mark
    """What the line before it says."""
    end: int
    """Where it ends, bytes from the ledger's start."""


class _Checked(NamedTuple):
    end: Mark
    commits: Sequence[int]
    """Number of the last entry of each commit."""


class _Plan(NamedTuple):
    ledger_id: str
    size: int
    chunks: Sequence[_Chunk]


async def verify_ledger(
    path: Path | str,
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    public_key: str | None = None,
    chunk_bytes: int = _CHUNK_BYTES,
) -> VerifyReport:
    """What `verify_file` says, with the work shared by several processes.

    Args:
        path: the file that is appended to
        jobs: how many processes; None: one for each core where the ledger is long, else none but this
        progress: told `(bytes done, bytes in all)` now and then, in a worker thread
        public_key: as in `verify_file`
        chunk_bytes: about how much a process is given at a time

    Raises:
        LedgerPathError: it cannot be read
        SigningError: there is a signed head, and the `crypto` extra is not installed
    """
    path, began = Path(path), perf_counter()
    head = await anyio.to_thread.run_sync(Head.of, path)
    plan = await anyio.to_thread.run_sync(_plan, path, chunk_bytes) if jobs != 1 else None
    at_once = jobs if jobs is not None else _cores()
    is_worth_it = plan is not None and len(plan.chunks) > 1 and (jobs is not None or plan.size >= _WORTH_BYTES)
    if plan is None or not is_worth_it or at_once < 2:
        return await anyio.to_thread.run_sync(partial(verify_file, path, progress=progress, public_key=public_key))
    found = await _check_chunks(path, plan, at_once, progress)
    report = await anyio.to_thread.run_sync(_joined, path, plan, found, head, public_key)
    return replace(report, seconds=perf_counter() - began)


def check_chunk(path: Path, ledger_id: str, start: Mark, end: int) -> "_Checked | None":
    """Where a chunk and its commits end if it is right; runs in a process of its own."""
    ends = list[int]()
    with open_volume(path, FileOps()) as volume:
        report = verify_part(volume, ledger_id, start, end, ended=ends.append)
    return _Checked(report.end, ends) if report.ok else None


async def _check_chunks(
    path: Path, plan: _Plan, jobs: int, progress: Callable[[int, int], None] | None
) -> list[_Checked | None]:
    found: list[_Checked | None] = [None] * len(plan.chunks)
    limiter, telling, done = anyio.CapacityLimiter(jobs), anyio.Lock(), 0

    async def check(number: int, chunk: _Chunk) -> None:
        nonlocal done
        found[number] = await anyio.to_process.run_sync(
            check_chunk, path, plan.ledger_id, chunk.start, chunk.end, cancellable=True, limiter=limiter
        )
        async with telling:
            done += chunk.end - chunk.start.offset
            if progress is not None:
                await anyio.to_thread.run_sync(progress, done, plan.size)

    async with anyio.create_task_group() as tasks:
        for number, chunk in enumerate(plan.chunks):
            tasks.start_soon(check, number, chunk)
    return found


def _joined(path: Path, plan: _Plan, found: Sequence[_Checked | None], head: Head, public_key: str | None) -> VerifyReport:
    """The report on the whole, out of where the chunks end."""
    starts = [chunk.start for chunk in plan.chunks[1:]]
    ends = [each.end if each is not None else None for each in found]
    right = next((n for n, start in enumerate(starts) if ends[n] != start), len(starts))
    # Where a chunk is wrong, or does not end where the next one begins, what comes before it is right all the same.
    last = ends[right] if right == len(starts) else None
    begin, boundaries = last or plan.chunks[right].start, head.boundaries()
    for each in found[: right + (last is not None)]:
        for seq in each.commits if each is not None else ():
            boundaries.take(seq)
    with open_volume(path, FileOps()) as volume:
        report = verify_part(volume, plan.ledger_id, begin, plan.size, ended=boundaries.take)
        report = replace(report, entries=begin.seq + report.entries, batches=begin.batch + report.batches)
        return head.held_against(report, volume, public_key, boundaries)


def _plan(path: Path, chunk_bytes: int) -> _Plan | None:
    """How a ledger is cut; None where its files do not belong together."""
    try:
        volume = open_volume(path, FileOps())
    except LedgerDamaged:
        return None
    with volume:
        size = volume.size()
        marks = [START, *_cuts(volume, size, chunk_bytes)]
        ends = [mark.offset for mark in marks[1:]] + [size]
        return _Plan(ledger_id_of(volume.read), size, [_Chunk(*each) for each in zip(marks, ends, strict=True)])


def _cuts(volume: Volume, size: int, chunk_bytes: int) -> Iterator[Mark]:
    """Places where a commit ends, as the line before each of them says; nobody has checked that line yet."""
    for part in volume.parts(0, size):
        if part.seal is not None:
            mark = _mark(_last_line(volume, part.base, part.end), part.end)
            if mark is None:
                return  # damage, which a whole chunk from here on will find
            if mark.offset < size:
                yield mark
            continue
        after = part.base + chunk_bytes
        while after < size:
            mark = _next_end(volume, after, size)
            if mark is None or mark.offset >= size:
                return
            yield mark
            after = mark.offset + chunk_bytes


def _next_end(volume: Volume, after: int, size: int) -> Mark | None:
    """The first place after an offset where a commit ends."""
    offset, is_first = after, True
    try:
        for lines in read_lines(volume.read, after, size):
            for line in lines:
                offset += len(line) + 1
                mark = None if is_first else _mark(line, offset)  # the first is the rest of one
                is_first = False
                if mark is not None:
                    return mark
    except BadLine:
        pass
    return None


def _last_line(volume: Volume, base: int, end: int) -> bytes:
    size = _LAST_BYTES
    while True:
        begin = max(base, end - size)
        data = b""
        while len(data) < end - begin and (piece := volume.read(end - begin - len(data), begin + len(data))):
            data += piece
        before, _, line = data[:-1].rpartition(b"\n")
        if before or begin == base:
            return line
        size *= 4


def _mark(line: bytes, after: int) -> Mark | None:
    """The place after a line, if that ends a commit."""
    parts = split_line(line)
    if parts is None or parts.batch[1] != parts.batch[2]:
        return None
    stamp = stamp_of(parts.body).decode("ascii", "replace")
    return Mark(parts.seq, after, parts.chain_hash, parts.batch[0], stamp)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
