"""Clients that send no more after their request, as `nc -N` does, and clients that have gone (docs/server.md)."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import orjson
import pytest
from anyio.abc import SocketStream

from kitchener.ledger import LedgerClient
from kitchener.records import events
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import Hold, echo, read_all
from tests.clients.test_openai_client import Real, listening

GET = b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@pytest.fixture
def anyio_backend() -> str:
    """uvicorn runs on asyncio."""
    return "asyncio"


def request(*, streams: bool = False, version: str = "1.1", text: str = "wait") -> bytes:
    body = orjson.dumps({"model": "ADMIN", "stream": streams, "messages": [{"role": "user", "content": text}]})
    head = f"POST /v1/chat/completions HTTP/{version}\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body)


async def connected(real: Real) -> SocketStream:
    assert real.openai.base_url.port is not None
    return await anyio.connect_tcp("127.0.0.1", real.openai.base_url.port)


async def rest_of(stream: SocketStream) -> bytes:
    with anyio.fail_after(20):
        return b"".join([piece async for piece in _pieces(stream)])


async def _pieces(stream: SocketStream) -> AsyncIterator[bytes]:
    try:
        while True:
            yield await stream.receive()
    except anyio.EndOfStream:
        pass


async def recorded(ledger: LedgerClient, entry_type: str) -> None:
    """Waits for an entry. Nobody else is told of the end of a turn whose client has gone."""
    with anyio.fail_after(20):
        while not await read_all(ledger, entry_type=entry_type):
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("gone", ["detach", "cancel"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_a_client_that_sends_no_more_gets_its_reply(tmp_path: Path, version: str, gone: str, *, streams: bool) -> None:
    hold = Hold("wait", wo_type="synthesize")
    serve, provider = {"client_gone": gone}, ScriptedProvider(echo, gate=hold)
    async with listening(tmp_path / "root", provider, serve=serve) as real, await connected(real) as client:
        await client.send(request(streams=streams, version=version))
        await client.send_eof()
        with anyio.fail_after(20):
            await hold.arrived["wait"].wait()
        if gone == "cancel":
            await anyio.sleep(0.6)  # longer than the pause between two looks whether the client is still there
        hold.released["wait"].set()
        answer = await rest_of(client)
    status, _, text = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n")
    assert status == b"HTTP/1.1 200 OK"
    assert b"echo: wait" in text or (b"echo" in text and b"[DONE]" in text)


async def test_requests_that_were_sent_ahead_are_answered_before_the_connection_ends(tmp_path: Path) -> None:
    async with listening(tmp_path / "root") as real, await connected(real) as client:
        await client.send(request(text="one") + GET + request(text="two") + b"GET /v1/mod")
        await client.send_eof()
        answer = await rest_of(client)
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.index(b"echo: one") < answer.index(b'"ADMIN-utility"') < answer.index(b"echo: two")


@pytest.mark.parametrize("sent", [b"", b"GET /v1/models HTTP/1.1\r\nho", request()[:-1]], ids=["nothing", "head", "body"])
async def test_a_request_that_can_no_longer_come_ends_the_connection(tmp_path: Path, sent: bytes) -> None:
    async with listening(tmp_path / "root") as real, await connected(real) as client:
        await client.send(sent)
        await client.send_eof()
        assert await rest_of(client) == b""


async def test_a_client_that_closes_an_open_connection_ends_it_at_once(tmp_path: Path) -> None:
    async with listening(tmp_path / "root") as real, await connected(real) as client:
        await client.send(GET)
        first = await client.receive()
        assert first.startswith(b"HTTP/1.1 200 OK")
        await client.send_eof()
        assert b"HTTP/1.1" not in await rest_of(client)


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_a_client_that_has_gone_is_noticed_where_its_turn_is_to_be_cancelled(tmp_path: Path, *, streams: bool) -> None:
    hold = Hold("wait", wo_type="synthesize")
    async with listening(tmp_path / "root", ScriptedProvider(echo, gate=hold), serve={"client_gone": "cancel"}) as real:
        async with await connected(real) as client:
            await client.send(request(streams=streams))
            with anyio.fail_after(20):
                await hold.arrived["wait"].wait()
        ledger = real.inside.runtime.ledgers().ho2m
        await recorded(ledger, events.TURN_ABORTED)


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_a_client_that_has_gone_leaves_its_turn_to_end(tmp_path: Path, *, streams: bool) -> None:
    hold = Hold("wait", wo_type="synthesize")
    async with listening(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as real:
        async with await connected(real) as client:
            await client.send(request(streams=streams))
            with anyio.fail_after(20):
                await hold.arrived["wait"].wait()
        hold.released["wait"].set()
        ledger = real.inside.runtime.ledgers().ho2m
        await recorded(ledger, events.TURN_COMPLETED)
        assert real.ended == []
