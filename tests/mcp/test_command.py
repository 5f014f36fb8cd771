"""A command that is stopped while it starts, and lines of its output in whatever parts they come."""

import gc
import os
import sys
from typing import Never

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.mcp.command import LineReader, LongLine, open_command

LIMIT = 100


@given(st.lists(st.binary(max_size=150).map(lambda each: each.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_come_whole_in_whatever_parts_they_were_sent(lines: list[bytes], data: st.DataObject) -> None:
    """Of a line beyond the limit, its two ends."""
    sent = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    reader, found = LineReader(LIMIT), list[bytes | LongLine]()
    for start, end in zip((0, *cuts), (*cuts, len(sent)), strict=True):
        found += reader.add(sent[start:end])
    assert len(found) == len(lines)
    for line, seen in zip(lines, found, strict=True):
        if len(line) <= LIMIT:
            assert seen == line
        else:
            assert isinstance(seen, LongLine)
            assert seen.beginning == line[:64]
            assert line.endswith(seen.end)


def test_what_is_kept_of_an_endless_line_does_not_grow() -> None:
    reader = LineReader(LIMIT)
    for _ in range(1_000):
        assert not list(reader.add(b"x" * 65_536))
    (seen,) = reader.add(b"the end\n")
    assert isinstance(seen, LongLine)
    assert len(seen.beginning) == len(seen.end) == 64
    assert list(reader.add(b"next\n")) == [b"next"]


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_command_that_is_stopped_while_it_starts_is_ended_before_the_loop_is(loop: str) -> None:
    """Whatever is left of its process or pipes would be told here as never closed."""

    async def use() -> None:
        command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
        with open(os.devnull, "w") as errors:
            async with open_command(_no_message, command, unreadable=-1, cwd=None, env={}, errors=errors, limit=LIMIT):
                await anyio.sleep_forever()

    async def stop_after(steps: int) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

    for steps in (*range(8), *range(8)):
        anyio.run(stop_after, steps, backend=loop)
    gc.collect()


def _no_message(line: bytes) -> Never:
    raise ValueError(line)
