"""Clients that send invalid requests cannot fill the log (docs/server.md)."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from kitchener.records.prompt import PromptRequest
from kitchener.serve.log_limit import MAX_KINDS, LogLimit, limited
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo
from tests.clients.test_openai_client import listening
from tests.serve.shared.requests import serving

LINES = 10
ATTEMPTS = 3
"""How often a model call is tried, by default."""


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
        limit = LogLimit([logger], LINES)
        logger.addFilter(limit)
        for number in range(1_000):
            warn(logger, number / 100)
        assert lines == ["bad"] * LINES
        warn(logger, 30.0, "other")
        for _ in range(50):
            warn(logger, 30.0, level=logging.INFO)
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
        limit = LogLimit([logger], most)
        logger.addFilter(limit)
        for at, text in sorted(records):
            warn(logger, at, text)
        limit.tell_left_out()
        counted = [1 if line in ("one", "two") else int(line.split()[2]) for line in lines]
        assert sum(counted) == len(records)
        limit.tell_left_out()
        assert len(counted) == len(lines), "nothing is told twice"


def test_the_first_error_of_each_kind_is_logged_however_many_others_there_are() -> None:
    """By its text, and by the class of its exception."""
    with logged() as (logger, lines):
        limit = LogLimit([logger], LINES)
        logger.addFilter(limit)
        for number in range(1_000):
            warn(logger, 1.0, "bad", logging.ERROR)
            if number == 500:
                warn(logger, 1.0, "worse", logging.ERROR)
                warn(logger, 1.0, "bad")  # a warning is another kind
        record = logging.LogRecord("clients", logging.ERROR, "", 0, "bad", (), (KeyError, KeyError(), None))
        record.created = 2.0
        logger.handle(record)
        assert lines == [*["bad"] * LINES, "worse", "bad", "bad"]


def test_a_flood_of_kinds_takes_bounded_memory_and_is_bounded_too() -> None:
    with logged() as (logger, lines):
        limit = LogLimit([logger], 1)
        logger.addFilter(limit)
        for number in range(2 * MAX_KINDS):
            logger.error("bad", extra={"error": f"E{number}"})
        assert len(lines) == MAX_KINDS + 1
        limit.tell_left_out()
        assert lines[-1] == f"bad (and {MAX_KINDS - 1} more like it in a minute, not logged)"


class Records(logging.Handler):
    """The records that a logger wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[logging.LogRecord]()

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record)


@contextmanager
def records_of(name: str) -> Iterator[list[logging.LogRecord]]:
    """What a logger and those below it write."""
    logger, records = logging.getLogger(name), Records()
    logger.addHandler(records)
    try:
        yield records.found
    finally:
        logger.removeHandler(records)


async def test_a_client_that_provokes_an_error_with_each_request_writes_few_lines(tmp_path: Path) -> None:
    """Errors are events of this library, from several of its modules; those of another kind are logged all the same."""

    class Bug(Exception):
        """What nobody expected."""

    def answer(request: PromptRequest) -> Any:
        if request.wo_type == "synthesize":
            raise (KeyError if "other" in str(request.variables["user_message"]) else Bug)("at a user's wish")
        return echo(request)

    with records_of("kitchener") as found, logged() as (logger, _):
        async with serving(tmp_path, ScriptedProvider(answer)) as client:
            async with limited([logger], 3):
                for number in range(12):
                    await client.chat("other" if number == 10 else "hello")
                failed = [each for each in found if each.msg == "provider failed"]
                assert [str(each.__dict__["error"]).split()[0] for each in failed] == ["Bug"] * 3 + ["KeyError"] * 3
            told = [each for each in found if "more like it" in each.getMessage()]
            (of_provider,) = [each for each in told if each.getMessage().startswith("provider failed")]
            assert (of_provider.levelno, of_provider.getMessage()) == (
                logging.ERROR,
                f"provider failed (and {11 * ATTEMPTS - 3} more like it in a minute, not logged)",
            )
            assert str(of_provider.__dict__["error"]).startswith("Bug")
            before = len(found)
            for _ in range(4):
                await client.chat("hello")
            assert len([each for each in found[before:] if each.msg == "provider failed"]) == 4 * ATTEMPTS, (
                "bounded in the block only"
            )


class LoopTime:
    """The time of day of a test whose event loop jumps over waits."""

    def time_us(self) -> int:
        return int(anyio.current_time() * 1_000_000)


@pytest.mark.parametrize("anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})])
async def test_what_was_left_out_is_told_when_the_minute_ends_though_no_line_follows() -> None:
    with logged() as (logger, lines):
        async with limited([logger], LINES, clock=LoopTime()):
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
        async with limited([logger], LINES):
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
    async with listening(tmp_path_factory.mktemp("root")) as real:
        port = real.openai.base_url.port
        assert port is not None
        for _ in range(40):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(b"no request\r\n\r\n")
                assert (await stream.receive()).startswith(b"HTTP/1.1 400 ")
    said = {id(each): each.getMessage() for each in caplog.records if each.name == "uvicorn.error" and each.levelno == 30}
    assert len(said) in (LINES + 1, 2 * (LINES + 1))  # a minute may have ended meanwhile
    told = [int(matched[1]) for each in said.values() if (matched := re.search(r"and (\d+) more like it", each))]
    assert len(said) - len(told) + sum(told) == 40


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # uvicorn runs nowhere else
async def test_connections_that_cannot_be_accepted_write_few_lines(tmp_path: Path) -> None:
    """Regression: asyncio wrote thousands of lines a second while the process could open no more files."""
    with records_of("asyncio") as found:
        async with listening(tmp_path):
            for _ in range(40):
                logging.getLogger("asyncio").error("socket.accept() out of system resource")
    said = [each.getMessage() for each in found]
    told = [int(matched[1]) for each in said if (matched := re.search(r"and (\d+) more like it", each))]
    assert len(said) <= 2 * (LINES + 1)  # a minute may have ended meanwhile
    assert len(said) - len(told) + sum(told) == 40
