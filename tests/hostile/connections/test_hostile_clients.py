"""Hostile clients over real connections: they get an error or nothing, and disturb no other client.

The server's own library runs on asyncio only, and so do these tests.
"""

from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream

from tests.clients.test_openai_client import Real, listening
from tests.serve.shared.requests import COMPLETIONS
from tests.shared.logs import captured_logs

HEAD = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" % COMPLETIONS.encode()
BODY = b'{"model": "ADMIN", "messages": [{"role": "user", "content": "hello"}]}'

HALF = BODY.replace(b"hello", b"hell\\ud800")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """uvicorn runs on asyncio."""
    return "asyncio"


async def connected(real: Real) -> SocketStream:
    assert real.openai.base_url.port is not None
    return await anyio.connect_tcp("127.0.0.1", real.openai.base_url.port)


async def answered(real: Real, data: bytes) -> bytes:
    """The first line of what the server says to these bytes; nothing: it closes the connection."""
    found = b""
    async with await connected(real) as stream:
        try:
            await stream.send(data)
            await stream.send_eof()
            while b"\r\n" not in found:
                found += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass
    return found.partition(b"\r\n")[0]


async def asked_as_usual(real: Real) -> str | None:
    with anyio.fail_after(10):
        found = await real.openai.chat.completions.create(model="ADMIN", messages=[{"role": "user", "content": "hello"}])
    return found.choices[0].message.content


RAW = {
    "a head without end": (b"GET / HTTP/1.1\r\n" + b"x-more: y\r\n" * 20_000, b"431"),
    "a line without end": (b"GET /" + b"a" * 200_000, b"431"),
    "another protocol": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
    "no host": (b"GET /v1/models HTTP/1.0\r\n\r\n", b"421"),
    "two lengths": (HEAD + b"content-length: 5\r\ncontent-length: 70\r\n\r\n" + BODY, b"400"),
    "a length and chunks": (HEAD + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", b"4"),
    "chunks that are none": (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\nhello", b""),
    "a body cut short": (HEAD + b"content-length: 70\r\n\r\n{", b""),
    "a deep body": (HEAD + b"content-length: 200000\r\n\r\n" + b"[" * 200_000, b"400"),
    "a path with a zero": (b"GET /v1/sessions/%00%2e%2e HTTP/1.1\r\nhost: localhost\r\n\r\n", b"40"),
    "half a character": (HEAD + b"content-length: %d\r\n\r\n%b" % (len(HALF), HALF), b"400"),
}


async def test_what_is_no_request_gets_an_error_or_nothing_and_the_next_client_is_served(tmp_path: Path) -> None:
    with captured_logs() as events:
        async with listening(tmp_path / "root") as real:
            for name, (data, status) in RAW.items():
                line = await answered(real, data)
                assert line[9:].startswith(status) or (status == b"" and line == b""), (name, line)
                assert await asked_as_usual(real) == "echo: hello", name
    assert [each["event"] for each in events if each["log_level"] in ("error", "critical")] == []


async def test_clients_that_never_finish_a_request_keep_nobody_from_being_served_or_the_server_from_stopping(
    tmp_path: Path,
) -> None:
    async with listening(tmp_path / "root") as real:
        streams = [await connected(real) for _ in range(40)]
        for number, stream in enumerate(streams):
            await stream.send((b"GET /v1/mod", HEAD, HEAD + b"content-length: 70\r\n\r\n{", b"")[number % 4] or b"G")
        assert await asked_as_usual(real) == "echo: hello"
        for stream in streams:
            await stream.aclose()
    assert real.ended == [True]


async def test_a_request_for_a_websocket_is_answered_as_it_stands(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Regression: the HTTP server's own library logged advice to install another one, which would have changed nothing."""
    upgrade = b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: MTIzNA==\r\n"
    length = b"content-length: %d\r\n\r\n" % len(BODY)
    async with listening(tmp_path / "root") as real:
        for request, status in (
            (b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\n" + upgrade + b"\r\n", b"405"),
            (HEAD + upgrade + length + BODY, b"200"),
        ):
            async with await connected(real) as stream:
                await stream.send(request)
                with anyio.fail_after(10):
                    assert (await stream.receive()).startswith(b"HTTP/1.1 " + status)
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == []
