"""The attacks of `make load`, with few connections: their statuses, and another client that is served meanwhile.

Over real connections, on asyncio only: the server's own library runs nowhere else.
"""

import asyncio
import socket
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import cast

import anyio
import pytest

from benchmarks.shared import attacks, http_clients
from kitchener.records import events
from kitchener.records.entries import opened
from tests.clients.test_openai_client import Real, listening
from tests.shared.logs import captured_logs

SERVE = {
    "request_timeout_s": 0.3,
    "max_request_bytes": 1_048_576,
    "max_requests": 32,
    "wrong_keys_per_minute": 2,
    "clients": {
        name: {"key": f"env:{name.upper()}_KEY", "subject": name, "requests_per_minute": 1_000_000, "max_requests": 512}
        for name in ("ada", "eve")
    }
    | {"desk": {"key": "env:DESK_KEY", "rights": ("chat", "read", "act_for"), "requests_per_minute": 400}},
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """uvicorn runs on asyncio."""
    return "asyncio"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in attacks.KEYS.items():
        monkeypatch.setenv(name, key)


def port_of(real: Real) -> int:
    assert real.openai.base_url.port is not None
    return real.openai.base_url.port


async def test_each_attack_gets_what_it_may_get_and_others_are_served(tmp_path: Path) -> None:
    said, wrong = list[str](), list[str]()
    with captured_logs() as logged:
        async with listening(tmp_path / "root", serve=SERVE) as real:
            for each in attacks.attacks(unread_s=0.6):
                with anyio.fail_after(60):
                    wrong += await attacks.under(each, port_of(real), 3, said)
                assert each.replies > 0
            messages = Counter[str]()
            async for entry in real.inside.runtime.ledgers().ho2m.read(entry_type=events.TURN_STARTED):
                messages[str(opened(entry.payload["user_message"]))] += 1
    assert wrong == []
    assert [each for each in said if messages[each] != 1] == []
    assert messages["Is this said once?"] == 1
    assert [each for each in logged if each["log_level"] in ("error", "critical")] == []
    assert not [each for each in logged if any(key in str(each) for key in attacks.KEYS.values())]


async def connected(real: Real, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    return [await asyncio.open_connection("127.0.0.1", port_of(real)) for _ in range(count)]


async def test_connections_that_send_nothing_give_way_to_those_that_ask(tmp_path: Path) -> None:
    settings = {**SERVE, "request_timeout_s": 1_000.0, "max_requests": 1}
    async with listening(tmp_path / "root", serve=settings) as real:
        idle = await connected(real, 300)  # the server takes 257
        answer = await attacks.sent(port_of(real), http_clients.request("GET", "/healthz"))
        assert answer == 200
        with anyio.fail_after(10):
            assert await idle[0][0].read() == b""  # the one that had waited longest
        for _, writer in idle:
            writer.close()


async def test_connections_that_never_asked_give_way_before_one_that_was_served(tmp_path: Path) -> None:
    """Regression: a burst of them ended the connection of a client between two of its requests."""
    settings = {**SERVE, "request_timeout_s": 1_000.0, "max_requests": 1}
    async with listening(tmp_path / "root", serve=settings) as real:
        ((reader, writer),) = await connected(real, 1)
        idle, asked = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]](), http_clients.request("GET", "/healthz")
        for _ in range(3):
            writer.write(asked)
            with anyio.fail_after(10):
                assert (await http_clients.read_answer(reader)).status == 200
            idle += await connected(real, 300)  # the server takes 257
        for _, each in ((reader, writer), *idle):
            each.close()


async def test_connections_that_were_served_and_stay_give_way_to_those_that_come(tmp_path: Path) -> None:
    """Two come in one step of the event loop: the second takes the place of one that stays, not that of the first."""
    settings = {**SERVE, "request_timeout_s": 1_000.0, "max_requests": 1}
    async with listening(tmp_path / "root", serve=settings) as real:
        address, asked = ("127.0.0.1", port_of(real)), http_clients.request("GET", "/healthz")
        stay = await connected(real, 256)  # one more and the first would be closed
        for reader, writer in stay:
            writer.write(asked)
            with anyio.fail_after(10):
                assert (await http_clients.read_answer(reader)).status == 200
        with ExitStack() as opened_here:
            new = [opened_here.enter_context(socket.create_connection(address)) for _ in range(2)]
            with anyio.fail_after(10):
                assert await stay[0][0].read() == b""
                assert await stay[1][0].read() == b""
            for each in new:
                each.sendall(asked)
                each.setblocking(False)
            for each in new:
                with anyio.fail_after(10):
                    answer = await asyncio.get_running_loop().sock_recv(each, 1_000)
                assert answer.startswith(b"HTTP/1.1 200 ")
        for _, writer in stay:
            writer.close()


async def test_a_burst_of_idle_connections_does_not_close_one_whose_request_is_there(tmp_path: Path) -> None:
    """All are taken before the first is read. Regression: the first, which asks, gave way to the last."""
    settings = {**SERVE, "request_timeout_s": 1_000.0, "max_requests": 1}
    async with listening(tmp_path / "root", serve=settings) as real:
        address = ("127.0.0.1", port_of(real))
        with ExitStack() as opened_here:  # the event loop, which is the server's too, sees none of them before all are there
            first, *_, last = [opened_here.enter_context(socket.create_connection(address)) for _ in range(300)]
            for asking in (first, last):
                asking.sendall(http_clients.request("GET", "/healthz"))
            for asking in (first, last):
                asking.setblocking(False)
                with anyio.fail_after(10):
                    answer = await asyncio.get_running_loop().sock_recv(asking, 1_000)
                assert answer.startswith(b"HTTP/1.1 200 ")


async def test_a_head_that_does_not_come_in_time_ends_its_connection_and_a_kept_one_may_ask_late(tmp_path: Path) -> None:
    async with listening(tmp_path / "root", serve=SERVE) as real:
        kept, *slow = await connected(real, 3)
        asked = http_clients.request("GET", "/healthz")
        kept[1].write(asked)
        assert (await http_clients.read_answer(kept[0])).status == 200
        slow[0][1].write(b"GET /healthz HT")
        with anyio.fail_after(10):
            for reader, _ in slow:
                assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        kept[1].write(asked)
        assert (await http_clients.read_answer(kept[0])).status == 200
        for _, writer in (kept, *slow):
            writer.close()


async def test_a_body_in_tiny_chunks_is_refused_and_one_in_usual_chunks_read(tmp_path: Path) -> None:
    async with listening(tmp_path / "root", serve=SERVE) as real:
        assert await attacks.sent(port_of(real), attacks.chunked(b" ", 20_000)) == 400
        text = b'{"model": "ADMIN", "messages": [{"role": "user", "content": "%b"}]}' % (b"long " * 8_000)
        pieces = [text[at : at + 1_000] for at in range(0, len(text), 1_000)]
        assert await attacks.sent(port_of(real), attacks.in_chunks(pieces)) == 200


async def test_clients_that_take_no_answer_hold_neither_places_nor_connections(tmp_path: Path) -> None:
    settings = {**SERVE, "max_requests": 4}
    async with listening(tmp_path / "root", serve=settings) as real:
        unread, page = await connected(real, 6), http_clients.request("GET", "/page/page.css")
        for _, writer in unread:
            cast(asyncio.Transport, writer.transport).pause_reading()
            writer.write(page * 2_000)  # many megabytes of answers, and no key
        own = http_clients.request("GET", "/v1/me", authorization=f"Bearer {attacks.KEYS['ADA_KEY']}")
        assert await attacks.sent(port_of(real), own) == 200
        for _, writer in unread:
            with anyio.fail_after(10):
                while not writer.is_closing():  # reset by the server
                    writer.write(page)
                    await asyncio.sleep(0.01)
            with suppress(OSError):
                await writer.wait_closed()


async def test_a_slow_client_gets_all_that_it_asked_for(tmp_path: Path) -> None:
    async with listening(tmp_path / "root", serve=SERVE) as real:
        ((reader, writer),) = await connected(real, 1)
        writer.write(http_clients.request("GET", "/page/page.css") * 1_000)
        missing, taken = 1_000, b""
        while missing:
            with anyio.fail_after(10):
                taken = taken[-16:] + await reader.read(65_536)
            assert len(taken) > 16
            missing -= taken.count(b"HTTP/1.1 200 OK\r\n")
            await asyncio.sleep(0.005)
        writer.close()


async def test_a_request_with_two_lengths_ends_its_connection_wherever_it_leads(tmp_path: Path) -> None:
    async with listening(tmp_path / "root", serve=SERVE) as real:
        for path in (b"/healthz", b"/", b"/v1/me"):
            ((reader, writer),) = await connected(real, 1)
            writer.write(b"GET %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n" % path)
            writer.write(b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + http_clients.request("GET", "/readyz"))
            with anyio.fail_after(10):
                answers = await reader.read()
            assert answers.startswith(b"HTTP/1.1 400 ")
            assert answers.count(b"HTTP/1.1 ") == 1
            writer.close()
