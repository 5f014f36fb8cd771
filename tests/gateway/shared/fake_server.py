"""A small HTTP server on loopback that answers like an OpenAI-compatible endpoint, or misbehaves as told.

Real sockets, real HTTP: what is tested against it went through the whole client stack. Each request takes the next `Answer`
of the script; `hits` shows what arrived, so silent retries would be seen.
"""

import json
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
from anyio.abc import SocketAttribute, SocketStream

End = Literal["whole", "cut", "hang"]


@dataclass(frozen=True)
class Answer:
    """One response."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    end: End = "whole"
    """`whole`: all of the body. `cut`: the connection closes in the middle. `hang`: nothing more comes."""
    content_type: str = "application/json"
    is_silent: bool = False
    """Send nothing at all before `end`."""
    flood: bytes = b""
    """Sent after the body again and again, in chunks, until the client closes the connection."""
    chunk_bytes: int = 0
    """Send the body in chunks of this size; 0: in one piece, with its length."""


@dataclass(frozen=True)
class Hit:
    """One request that arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def completion(
    text: str | None = "Hello!",
    *,
    finish_reason: str | None = "stop",
    tool_calls: Sequence[tuple[str, str, str]] = (),
    usage: Mapping[str, Any] | None = None,
) -> Answer:
    """A chat completion. Tool calls are (id, name, arguments as text). Empty `usage`: the server does not count."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if tool_calls:
        message["tool_calls"] = [
            {"id": use_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for use_id, name, arguments in tool_calls
        ]
    return Answer(
        _json(_envelope([{"index": 0, "message": message, "finish_reason": finish_reason}], "chat.completion", usage))
    )


def no_choices() -> Answer:
    return Answer(_json(_envelope([], "chat.completion", None)))


def error(status: int, message: str = "no", headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(_json({"error": {"message": message, "type": "test", "code": None}}), status, headers or {})


def hang() -> Answer:
    """The request is read and never answered."""
    return Answer(end="hang", is_silent=True)


def cut() -> Answer:
    """The connection closes in the middle of the body."""
    return Answer(completion("never complete").body, end="cut")


def not_json() -> Answer:
    return Answer(b'{"choices": [{"mess')


def events(
    words: Sequence[str], *, end: End = "whole", finish_reason: str | None = "stop", has_end_mark: bool = True
) -> Answer:
    """A stream of words. Unless it is `whole`, no final chunk is sent before it ends as told."""
    chunks: list[Any] = [_chunk({"role": "assistant", "content": ""}, None)]
    chunks += [_chunk({"content": word}, None) for word in words]
    if end == "whole":
        chunks.append(_chunk({}, finish_reason))
        chunks.append(
            {**_envelope([], "chat.completion.chunk", {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13})}
        )
    body = b"".join(b"data: " + _json(chunk) + b"\n\n" for chunk in chunks)
    if end == "whole" and has_end_mark:
        body += b"data: [DONE]\n\n"
    return Answer(body, end=end, content_type="text/event-stream")


def _chunk(delta: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return _envelope([{"index": 0, "delta": delta, "finish_reason": finish_reason}], "chat.completion.chunk", None)


def _envelope(choices: Sequence[Any], kind: str, usage: Mapping[str, Any] | None) -> dict[str, Any]:
    envelope = {"id": "c-1", "object": kind, "created": 1, "model": "served-model", "choices": list(choices)}
    if usage is None and kind == "chat.completion":
        usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    return {**envelope, "usage": dict(usage)} if usage else envelope


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


class FakeServer:
    """A running server. Without a script left it answers `completion()`."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"
        self.script: deque[Answer] = deque()
        self.respond: Callable[[Hit], Answer] = lambda _: completion()
        """What is answered once the script has ended."""
        self.flooded = 0
        """Bytes of floods that were sent before clients closed their connections."""
        self.hits: list[Hit] = []
        self.arrived = anyio.Event()
        """Set when the first request has been read."""
        self.gone = anyio.Event()
        """Set when a client closed its connection while an answer was hanging."""
        self.ended = anyio.Event()
        """Set when some connection has ended."""

    async def serve(self, stream: SocketStream) -> None:
        """One connection, with keep-alive."""
        async with stream:
            try:
                while (hit := await _read_request(stream)) is not None:
                    self.hits.append(hit)
                    self.arrived.set()
                    answer = self.script.popleft() if self.script else self.respond(hit)
                    await _send(stream, answer)
                    if answer.flood:
                        await self._flood(stream, answer.flood)
                    if answer.end == "hang":
                        await _read_until_closed(stream)
                        self.gone.set()
                    if answer.end != "whole":
                        return
            except (anyio.BrokenResourceError, anyio.EndOfStream):
                return
            finally:
                self.ended.set()

    async def _flood(self, stream: SocketStream, piece: bytes) -> None:
        try:
            while True:
                await stream.send(_chunked(piece, len(piece)))
                self.flooded += len(piece)
        finally:
            self.gone.set()


@asynccontextmanager
async def fake_server(*script: Answer) -> AsyncIterator[FakeServer]:
    """A server on a free port, with the answers to give in order."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        server = FakeServer(listener.extra(SocketAttribute.local_port))
        server.script.extend(script)
        tasks.start_soon(listener.serve, server.serve)
        try:
            yield server
        finally:
            tasks.cancel_scope.cancel()


@contextmanager
def unanswered() -> Iterator[str]:
    """The address of an endpoint that takes no connection."""
    with closing(socket.socket()) as listener, ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)  # the system answers nobody while its queue is full
        for _ in range(4):
            client = waiting.enter_context(closing(socket.socket()))
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


async def _read_request(stream: SocketStream) -> Hit | None:
    data = b""
    while b"\r\n\r\n" not in data:
        try:
            data += await stream.receive()
        except anyio.EndOfStream:
            return None
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += await stream.receive()
    return Hit(first.split(" ")[1], headers, json.loads(body) if body else {})


async def _send(stream: SocketStream, answer: Answer) -> None:
    if answer.is_silent:
        return
    # A length beyond what is sent is what tells a client that a body was cut off.
    length = len(answer.body) if answer.end == "whole" else len(answer.body) + 1_000
    is_chunked = bool(answer.flood or answer.chunk_bytes)
    lines = [
        f"HTTP/1.1 {answer.status} X",
        f"content-type: {answer.content_type}",
        "transfer-encoding: chunked" if is_chunked else f"content-length: {length}",
        *(f"{name}: {value}" for name, value in answer.headers.items()),
    ]
    body = _chunked(answer.body, answer.chunk_bytes or len(answer.body)) if is_chunked else answer.body
    if answer.chunk_bytes and not answer.flood:
        body += b"0\r\n\r\n"
    await stream.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def _chunked(body: bytes, size: int) -> bytes:
    """The body in chunks of this size, without the chunk that ends it."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)] if body else []
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


async def _read_until_closed(stream: SocketStream) -> None:
    try:
        while True:
            await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return
