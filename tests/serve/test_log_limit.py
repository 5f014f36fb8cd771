"""Clients that send what is no request fill no log (docs/server.md)."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from kitchener.serve.log_limit import LogLimit, limited
from tests.serve.test_openai_client import listening

LINES = 10


class Journal(logging.Handler):
    """What a logger wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def logged() -> Iterator[tuple[logging.Logger, list[str]]]:
    """A logger of its own, and what it wrote."""
    logger, journal = logging.Logger("clients"), Journal()
    logger.addHandler(journal)
    yield logger, journal.lines


def warn(logger: logging.Logger, at: float, text: str = "bad", level: int = logging.WARNING) -> None:
    """A line at a time of day."""
    record = logging.LogRecord("clients", level, "", 0, text, (), None)
    record.created = at
    logger.handle(record)


def test_of_many_warnings_few_are_logged_and_the_next_minute_says_how_many_were_not() -> None:
    with logged() as (logger, lines):
        limit = LogLimit(logger, LINES)
        logger.addFilter(limit)
        for number in range(1_000):
            warn(logger, number / 100)
        assert lines == ["bad"] * LINES
        warn(logger, 30.0, "other")
        for _ in range(50):
            warn(logger, 30.0, level=logging.ERROR)
        assert lines[LINES:] == ["other", *["bad"] * 50]
        lines.clear()
        warn(logger, 60.0)
        assert lines == [f"bad (and {1_000 - LINES} more like it in a minute, not logged)", "bad"]
        warn(logger, 61.0)
        warn(logger, 1.0)  # the clock was set back
        assert lines[2:] == ["bad", "bad"]


@given(st.lists(st.tuples(st.floats(0, 1_000), st.sampled_from(["one", "two"])), max_size=200), st.integers(1, 20))
def test_every_warning_is_logged_or_counted(records: list[tuple[float, str]], most: int) -> None:
    with logged() as (logger, lines):
        limit = LogLimit(logger, most)
        logger.addFilter(limit)
        for at, text in sorted(records):
            warn(logger, at, text)
        limit.tell_left_out()
        counted = [1 if line in ("one", "two") else int(line.split()[2]) for line in lines]
        assert sum(counted) == len(records)
        limit.tell_left_out()
        assert len(counted) == len(lines), "nothing is told twice"


class LoopTime:
    """The time of day of a test whose event loop jumps over waits."""

    def time_us(self) -> int:
        return int(anyio.current_time() * 1_000_000)


@pytest.mark.parametrize("anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})])
async def test_what_was_left_out_is_told_when_the_minute_ends_though_no_line_follows() -> None:
    with logged() as (logger, lines):
        async with limited(logger, LINES, clock=LoopTime()):
            await anyio.sleep(45)
            began = anyio.current_time()
            for _ in range(LINES + 5):
                warn(logger, began)
            await anyio.sleep(59)
            assert lines == ["bad"] * LINES
            await anyio.sleep(2)
            assert lines[LINES:] == ["bad (and 5 more like it in a minute, not logged)"]
            await anyio.sleep(600)
            assert len(lines) == LINES + 1


async def test_what_was_left_out_is_told_when_the_server_stops() -> None:
    with logged() as (logger, lines):
        async with limited(logger, LINES):
            for _ in range(LINES + 5):
                logger.warning("bad %s", "request")
            assert lines == ["bad request"] * LINES
        assert lines[LINES:] == ["bad request (and 5 more like it in a minute, not logged)"]
        logger.warning("bad")
        assert lines[-1] == "bad", "after that nothing is bounded"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # uvicorn runs nowhere else
async def test_a_client_that_sends_no_requests_writes_few_lines(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "uvicorn.error")
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)  # another test may have ended its way to the root
    async with listening(tmp_path_factory.mktemp("root"), serve={"warnings_per_minute": 3}) as real:
        port = real.openai.base_url.port
        assert port is not None
        for _ in range(30):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(b"no request\r\n\r\n")
                assert (await stream.receive()).startswith(b"HTTP/1.1 400 ")
    said = {id(each): each.getMessage() for each in caplog.records if each.name == "uvicorn.error" and each.levelno == 30}
    assert len(said) in (4, 8)  # a minute may have ended meanwhile
    told = [int(matched[1]) for each in said.values() if (matched := re.search(r"and (\d+) more like it", each))]
    assert len(said) - len(told) + sum(told) == 30
