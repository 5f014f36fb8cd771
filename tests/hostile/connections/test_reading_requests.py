"""However a client cuts or garbles its requests, each is answered in its place or the connection ends (docs/server.md)."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import httptools
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from kitchener.serve.connections import connection_class

UPGRADES = (b"", b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n", b"connection: upgrade\r\nupgrade: websocket\r\n")


class Client(asyncio.Transport):
    """The other end of a connection: what was sent to it, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.got, self.is_closed = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.got += bytes(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


@dataclass
class Answers:
    """What a client reads of all answers."""

    statuses: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def on_headers_complete(self) -> None:
        self.statuses.append(self.parser.get_status_code())
        self.bodies.append(b"")

    def on_body(self, body: bytes) -> None:
        self.bodies[-1] += body

    def read(self, data: bytes) -> "Answers":
        self.parser = httptools.HttpResponseParser(self)
        self.parser.feed_data(data)
        return self


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with what it was asked."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    names = [name.decode() for name, _ in scope["headers"]]
    told = json.dumps([scope["method"], scope["path"], names, len(body), body[-3:].decode("latin-1")]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(told))]})
    await send({"type": "http.response.body", "body": told})


async def at_once(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers before it has read the body."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@dataclass
class Served:
    """A client and its connection."""

    client: Client
    handling: Any
    tasks: set[asyncio.Task[None]]

    async def settle(self) -> None:
        """Lets the application answer what it can."""
        for _ in range(20):
            await asyncio.sleep(0)


def served(talk: Callable[[Served], Coroutine[Any, Any, None]], app: ASGIApp = echo) -> tuple[Client, Answers]:
    """What a client has got when it has talked."""

    async def run() -> Client:
        config, state = uvicorn.Config(app, log_config=None, lifespan="off", ws="none"), ServerState()
        config.load()
        handling = cast(Any, connection_class(20, 10.0, asks_back=False))(config=config, server_state=state, app_state={})
        found = Served(Client(), handling, state.tasks)
        handling.connection_made(found.client)
        await talk(found)
        await found.settle()
        handling.connection_lost(ConnectionResetError())
        await found.settle()
        assert state.tasks == set()
        return found.client

    client = asyncio.run(run())
    return client, Answers().read(client.got)


def sent(*pieces: bytes, app: ASGIApp = echo) -> tuple[Client, Answers]:
    """What a client has got that sent these, one after the other, without waiting for an answer."""

    async def talk(found: Served) -> None:
        for piece in pieces:
            if not found.client.is_closed:
                found.handling.data_received(piece)

    return served(talk, app)


def request(path: str, body: bytes, upgrade: bytes = b"", chunk: int = 0, trailer: bytes = b"") -> bytes:
    """A request, in chunks of so many bytes."""
    head = b"POST /%b HTTP/1.1\r\nhost: h\r\n%b" % (path.encode(), upgrade)
    if not chunk:
        return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    parts = [body[at : at + chunk] for at in range(0, len(body), chunk)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in parts)
    return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailer + b"\r\n"


@dataclass(frozen=True)
class Asked:
    """A request and what the application must have seen of it."""

    sent: bytes
    seen: list[object]


def asked(path: str, body: bytes, upgrade: bytes, chunk: int, trailer: bytes) -> Asked:
    names = ["host", *(["connection", "upgrade"] if upgrade else []), "transfer-encoding" if chunk else "content-length"]
    return Asked(
        request(path, body, upgrade, chunk, trailer), ["POST", f"/{path}", names, len(body), body[-3:].decode("latin-1")]
    )


REQUESTS = st.lists(
    st.builds(
        asked,
        st.sampled_from(["a", "b"]),
        st.integers(0, 3_000).map(lambda size: b"x" * size + b"GET / HTTP/1.1\r\n\r\n"[: size % 19]),
        st.sampled_from(UPGRADES),
        st.sampled_from([0, 0, 100, 700]),
        st.sampled_from([b"", b"authorization: Bearer stolen\r\n"]),
    ),
    min_size=1,
    max_size=5,
)


@given(requests=REQUESTS, cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_requests_are_read_as_they_were_sent_wherever_the_network_cuts_them(requests: list[Asked], cuts: list[int]) -> None:
    """Trailers are no headers, and a body is a body also after the wish for another protocol."""
    whole = b"".join(each.sent for each in requests)
    places = sorted({0, len(whole), *(each for each in cuts if each < len(whole))})
    client, answers = sent(*(whole[start:end] for start, end in pairwise(places)))
    assert [json.loads(each) for each in answers.bodies] == [each.seen for each in requests]
    assert not client.is_closed


def test_a_request_that_comes_byte_by_byte_is_read() -> None:
    whole = request("slow", b"12345", chunk=2) + request("next", b"", UPGRADES[1])
    _, answers = sent(*(whole[at : at + 1] for at in range(len(whole))))
    assert answers.statuses == [200, 200]


def test_what_follows_a_request_and_is_none_ends_the_connection_after_the_answers() -> None:
    client, answers = sent(request("first", b"1") + request("second", b"2") + b"\x16\x03\x01 nonsense\r\n\r\n")
    assert (answers.statuses, client.is_closed) == ([200, 200], True)


def test_a_body_that_is_none_gets_the_only_answer() -> None:
    client, answers = sent(b"POST /a HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n", b"zz\r\nhello")
    assert (answers.statuses, client.is_closed) == ([400], True)


def test_what_was_answered_gets_no_second_answer_for_the_rest_of_its_body() -> None:
    async def talk(found: Served) -> None:
        found.handling.data_received(b"POST /a HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n")
        await found.settle()
        found.handling.data_received(b"zz\r\nhello")

    client, answers = served(talk, at_once)
    assert (answers.statuses, client.is_closed) == ([200], True)


def test_a_head_longer_than_is_read_is_refused_also_after_other_requests() -> None:
    async def talk(found: Served) -> None:
        for _ in range(2):
            found.handling.data_received(request("a", b"x" * 100_000))
            await found.settle()
        found.handling.data_received(b"GET / HTTP/1.1\r\n")
        pieces = 0
        while not found.client.is_closed:
            found.handling.data_received(b"x-more: yyyyyyyy\r\n" * 100)
            pieces += 1
            assert pieces < 100

    client, answers = served(talk)
    assert (answers.statuses, client.is_closed) == ([200, 200, 431], True)


def test_a_flood_of_requests_that_wait_for_an_answer_takes_hardly_more_memory_than_its_bytes() -> None:
    """They are read a few at a time, each after the answers to those before it, and none is lost."""
    count, most = 3_000, list[int]()

    async def talk(found: Served) -> None:
        found.handling.data_received(b"GET / HTTP/1.1\r\n\r\n" * count)
        while found.tasks:
            most.append(len(found.handling.pipeline) + len(found.tasks))
            await asyncio.sleep(0)

    _, answers = served(talk)
    assert answers.statuses == [200] * count
    assert max(most) < 100


def test_lines_without_a_request_end_the_connection() -> None:
    client, answers = sent(*[b"\r\n" * 2_000] * 20)
    assert (answers.statuses, client.is_closed) == ([431], True)


def test_a_trailer_or_an_extension_of_a_chunk_that_never_ends_is_refused() -> None:
    """The parser copies such a line again with each piece. One of some megabytes stopped all other clients for seconds."""
    head = b"POST /a HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    for begun in (b"2\r\n{}\r\n0\r\nx: ", b"2\r\n{}\r\n0\r\n", b"2;", b'2;a="'):
        client, answers = sent(head + begun, *[b"a" * 10_000] * 100)
        assert (answers.statuses, client.is_closed) == ([400], True), begun
    trailers = b"x-checksum: 0123456789abcdef\r\n" * 100
    client, answers = sent(request("a", b"x" * 500_000, chunk=10_000, trailer=trailers), request("b", b""))
    assert (answers.statuses, client.is_closed) == ([200, 200], False)


def test_a_request_for_another_protocol_that_closes_its_connection_is_answered() -> None:
    for version, closing in ((b"1.1", b"connection: upgrade, close\r\n"), (b"1.0", b"connection: upgrade\r\n")):
        whole = request("a", b"12345", closing + b"upgrade: h2c\r\n").replace(b"HTTP/1.1", b"HTTP/%b" % version)
        for pieces in ([whole], [whole[at : at + 1] for at in range(len(whole))]):
            client, answers = sent(*pieces)
            assert (answers.statuses, client.is_closed) == ([200], True), version
            assert json.loads(answers.bodies[0])[3:] == [5, "345"]


def test_white_space_after_a_header_is_no_part_of_it() -> None:
    async def headers(scope: Scope, receive: Receive, send: Send) -> None:
        told = json.dumps([value.decode() for _, value in scope["headers"]]).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(told))]})
        await send({"type": "http.response.body", "body": told})

    _, answers = sent(b"POST / HTTP/1.1\r\nhost: \th \t\r\nx: a b \r\ncontent-length: 0 \t\r\n\r\n", app=headers)
    assert json.loads(answers.bodies[0]) == ["h", "a b", "0"]


def test_an_address_that_is_none_gets_an_error() -> None:
    for address in (b"a:80", b"http://h:80", b"?a"):
        client, answers = sent(b"GET %b HTTP/1.1\r\nhost: h\r\n\r\n" % address)
        assert (answers.statuses, client.is_closed) == ([400], True), address


@given(
    requests=REQUESTS,
    cuts=st.lists(st.integers(0, 10_000), max_size=6),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=4)), min_size=1, max_size=6),
)
def test_garbled_requests_get_whole_answers_or_none(
    requests: list[Asked], cuts: list[int], changes: list[tuple[int, bytes]]
) -> None:
    """Nothing is raised, no request stays, and what the client gets can be read."""
    whole = b"".join(each.sent for each in requests)
    for place, new in changes:
        at = place % (len(whole) + 1)
        whole = whole[:at] + new + whole[at + len(new) :]
    places = sorted({0, len(whole), *(each for each in cuts if each < len(whole))})
    _, answers = sent(*(whole[start:end] for start, end in pairwise(places)))
    assert set(answers.statuses) <= {200, 400, 431}


async def in_pieces(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers without saying how much it will be."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"some", "more_body": True})
    await send({"type": "http.response.body", "body": b" text", "more_body": False})


def test_a_client_of_http_1_0_gets_no_chunks_and_the_end_of_the_connection() -> None:
    client, answers = sent(b"GET / HTTP/1.0\r\nhost: h\r\n\r\n", app=in_pieces)
    assert (answers.bodies, client.is_closed) == ([b"some text"], True)
    assert b"transfer-encoding" not in client.got
    client, answers = sent(b"GET / HTTP/1.0\r\nhost: h\r\n\r\n", app=echo)
    assert (answers.statuses, client.is_closed) == ([200], True)


def test_a_client_of_http_1_1_gets_chunks_and_keeps_its_connection() -> None:
    client, answers = sent(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n" * 2, app=in_pieces)
    assert (answers.bodies, client.is_closed) == ([b"some text"] * 2, False)
