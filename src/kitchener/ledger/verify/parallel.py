"""Turns a long ledger into a verification report, with the work shared by several processes.

The ledger is split into chunks at the ends of commits: at the ends of segments, and in a long file about every `chunk_bytes`.
A chunk is verified from the chain hash in the line before it. That hash is right if the chunk before ends with it. After any
fault, this process verifies again from the first wrong chunk and reports the fault.
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
"""Approximate length of a chunk. Short enough to show progress and to keep all processes busy until the end."""
_WORTH_BYTES: Final = 256 << 20
"""Shorter ledgers are verified in this process unless the caller sets `jobs`. One core verifies so many bytes in about two
seconds (`benchmarks.ledger`, see `docs/performance.md`)."""
_LAST_BYTES: Final = 65_536


class _Chunk(NamedTuple):
    start: Mark
    """The position before the chunk, as the line before it states it."""
    end: int
    """The end of the chunk, bytes from the ledger's start."""


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
    """Verifies a whole ledger as `verify_file` does, with the work shared by several processes.

    Args:
        path: the current file, which entries are appended to
        jobs: number of processes; None: one per core for a long ledger, otherwise only this process
        progress: called with `(bytes done, bytes in all)` after each chunk, in a worker thread
        public_key: as in `verify_file`
        chunk_bytes: approximate size of a chunk

    Raises:
        LedgerPathError: the ledger cannot be read
        SigningError: there is a signed head, and `cryptography` cannot be imported
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
    """The end of a chunk and of each of its commits; None: the chunk has a fault. Runs in a separate process."""
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
    """The report on the whole ledger, made from the results of the chunks."""
    starts = [chunk.start for chunk in plan.chunks[1:]]
    ends = [each.end if each is not None else None for each in found]
    right = next((n for n, start in enumerate(starts) if ends[n] != start), len(starts))
    # If a chunk has a fault, or does not end where the next one begins, the chunks before it are still right.
    last = ends[right] if right == len(starts) else None
    begin, boundaries = last or plan.chunks[right].start, head.boundaries()
    for each in found[: right + (last is not None)]:
        for seq in each.commits if each is not None else ():
            boundaries.take(seq)
    with open_volume(path, FileOps()) as volume:
        report = verify_part(volume, plan.ledger_id, begin, plan.size, ended=boundaries.take)
        report = replace(report, entries=begin.seq + report.entries, batches=begin.batch + report.batches)
        return head.with_head_checked(report, volume, public_key, boundaries)


def _plan(path: Path, chunk_bytes: int) -> _Plan | None:
    """Splits a ledger into chunks; None: its files do not belong together."""
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
    """Positions where commits end, taken from the line before each position, which is not verified yet."""
    for part in volume.parts(0, size):
        if part.manifest is not None:
            mark = _mark(_last_line(volume, part.base, part.end), part.end)
            if mark is None:
                return  # damage; the last chunk starts before it and will find it
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
    """The first position after an offset where a commit ends; None: there is none."""
    offset, is_first = after, True
    try:
        for lines in read_lines(volume.read, after, size):
            for line in lines:
                offset += len(line) + 1
                mark = None if is_first else _mark(line, offset)  # the first piece is the rest of a line
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
    """The position after a line that ends a commit; None: the line does not."""
    parts = split_line(line)
    if parts is None or parts.batch[1] != parts.batch[2]:
        return None
    stamp = stamp_of(parts.body).decode("ascii", "replace")
    return Mark(parts.seq, after, parts.chain_hash, parts.batch[0], stamp)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # missing on some systems
        return os.cpu_count() or 1
