"""Clients that send what is no request fill no log (docs/server.md)."""

import logging

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.serve.log_limit import LINES_A_MINUTE, LogLimit
from tests.serve.test_openai_client import listening


def passed(limit: LogLimit, at: float, text: str = "bad", level: int = logging.WARNING) -> str | None:
    record = logging.LogRecord("uvicorn.error", level, "", 0, text, (), None)
    record.created = at
    return record.getMessage() if limit.filter(record) else None


def test_of_many_warnings_few_are_logged_and_the_next_minute_says_how_many_were_not() -> None:
    limit = LogLimit()
    said = [passed(limit, number / 100) for number in range(1_000)]
    assert [each for each in said if each] == ["bad"] * LINES_A_MINUTE
    assert passed(limit, 30.0, "other") == "other"
    assert [passed(limit, 30.0, level=logging.ERROR) for _ in range(50)] == ["bad"] * 50
    assert passed(limit, 60.0) == f"bad (and {1_000 - LINES_A_MINUTE} more, not logged)"
    assert passed(limit, 61.0) == "bad"
    assert passed(limit, 1.0) == "bad"  # the clock was set back


@given(st.lists(st.tuples(st.floats(0, 1_000), st.sampled_from(["one", "two"])), max_size=200))
def test_every_warning_is_logged_or_counted(records: list[tuple[float, str]]) -> None:
    limit, counted = LogLimit(), 0
    logged = [(passed(limit, at, text), text) for at, text in sorted(records)]
    # What is not counted yet is counted by the next warning.
    logged += [(passed(limit, 5_000.0, text), text) for text in ("one", "two")]
    for line, text in logged:
        counted += (line is not None) + (int(line.split()[2]) if line is not None and line != text else 0)
    assert counted == len(records) + 2


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # uvicorn runs nowhere else
async def test_a_client_that_sends_no_requests_writes_few_lines(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "uvicorn.error")
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)  # another test may have ended its way to the root
    async with listening(tmp_path_factory.mktemp("root")) as real:
        port = real.openai.base_url.port
        assert port is not None
        for _ in range(3 * LINES_A_MINUTE):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(b"no request\r\n\r\n")
                assert (await stream.receive()).startswith(b"HTTP/1.1 400 ")
    said = {id(each) for each in caplog.records if each.name == "uvicorn.error" and each.levelno == logging.WARNING}
    assert len(said) in range(LINES_A_MINUTE, 2 * LINES_A_MINUTE + 1)  # a minute may have ended meanwhile
