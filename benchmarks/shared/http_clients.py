"""Light HTTP clients that chat with a server, in a process of their own: raw sockets, so that a thousand cost little.

    python -m benchmarks.shared.http_clients PORT --clients 1000 --turns 5

Each client holds one connection and one conversation. It sends its whole history with each message, as chat clients do, reads
the stream to its end and checks it. The last line of stdout is one JSON object.
"""

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

_TIMEOUT_S = 300.0
"""Longest wait for one answer."""


@dataclass
class Answer:
    """An answer to one request."""

    status: int
    headers: dict[str, str]
    body: bytes
    first_s: float = 0.0
    """Time until the first piece of the body."""

    @property
    def events(self) -> list[Any]:
        """The data of its server-sent events."""
        lines = [each[6:] for each in self.body.split(b"\n") if each.startswith(b"data: ")]
        return [json.loads(each) for each in lines if each != b"[DONE]"]

    @property
    def is_whole_stream(self) -> bool:
        """Whether it is a stream that ended as it should."""
        return self.status == 200 and self.body.endswith(b"data: [DONE]\n\n")

    @property
    def text(self) -> str:
        """The reply in it, of a stream or whole."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return str(json.loads(self.body)["choices"][0]["message"]["content"])
        return "".join(
            each["choices"][0]["delta"].get("content", "")
            for each in self.events
            if each.get("choices") and "error" not in each
        )


class Connection:
    """One connection; opens again when the server has closed it.

    Args:
        port: of the server on loopback
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, data: bytes) -> Answer:
        """The answer to a request.

        Raises:
            OSError, EOFError, TimeoutError: the connection was refused or cut, or nothing came for too long
        """
        async with asyncio.timeout(_TIMEOUT_S):
            if self._streams is None or self._streams[0].at_eof():
                self.close()
                self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
            reader, writer = self._streams
            writer.write(data)
            await writer.drain()
            try:
                answer = await read_answer(reader)
            except BaseException:
                self.close()
                raise
            if answer.headers.get("connection") == "close":
                self.close()
            return answer

    def close(self) -> None:
        """Closes the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Reads an answer to its end. Raises EOFError if the connection ends before."""
    began = time.perf_counter()
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    lines = (each.partition(":") for each in head[1:] if each)
    answer = Answer(int(head[0].split(" ")[1]), {name.lower(): value.strip() for name, _, value in lines}, b"")
    if answer.headers.get("transfer-encoding") != "chunked":
        answer.body = await reader.readexactly(int(answer.headers.get("content-length", "0")))
        answer.first_s = time.perf_counter() - began
        return answer
    pieces = list[bytes]()
    while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
        pieces.append((await reader.readexactly(size + 2))[:-2])
        answer.first_s = answer.first_s or time.perf_counter() - began
    await reader.readexactly(2)
    answer.body = b"".join(pieces)
    return answer


def request(method: str, path: str, body: object = None, **headers: str) -> bytes:
    """The bytes of a request; `_` in the name of a header stands for `-`."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: localhost"]
    if data:
        lines += ["content-type: application/json", f"content-length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def chat(messages: list[dict[str, str]], *, stream: bool = True, model: str = "ADMIN", **headers: str) -> bytes:
    """The bytes of a chat completions request."""
    body = {
        "model": model,
        "messages": messages,
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    }
    return request("POST", "/v1/chat/completions", body, **headers)


@dataclass
class Seen:
    """What all clients saw."""

    latencies: list[float] = field(default_factory=list)
    first_texts: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """What was wrong with answers; empty is right."""
    refused: int = 0
    """Answers of 429 or 503, after which the client came again."""
    texts: list[str] = field(default_factory=list)
    """The last reply of each client, if that is wanted."""


async def converse(port: int, number: int, options: argparse.Namespace, seen: Seen) -> None:
    """One client: so many turns, one after the other."""
    connection, messages, name = Connection(port), list[dict[str, str]](), f"{options.name}-{number}"
    for turn in range(options.turns):
        messages.append({"role": "user", "content": f"Message {turn} of {name}: is there a hotel in that area?"})
        began = time.perf_counter()
        try:
            answer = await connection.ask(chat(messages, stream=not options.whole, x_kitchener_session=name))
            while answer.status in (429, 503) and seen.refused < options.clients * options.turns * 100:
                seen.refused += 1
                await asyncio.sleep(float(answer.headers.get("retry-after", "1")))
                answer = await connection.ask(chat(messages, stream=not options.whole, x_kitchener_session=name))
        except (OSError, EOFError, TimeoutError) as error:
            seen.wrong.append(f"client {number}, turn {turn}: {type(error).__name__}: {error}")
            return
        seen.latencies.append(time.perf_counter() - began)
        seen.first_texts.append(answer.first_s)
        is_right = answer.is_whole_stream if not options.whole else answer.status == 200
        if not is_right or not answer.text or any("error" in each for each in answer.events):
            seen.wrong.append(f"client {number}, turn {turn}: {answer.status} {answer.body[:300]!r}")
            return
        messages.append({"role": "assistant", "content": answer.text})
    if options.texts:
        seen.texts.append(messages[-1]["content"])
    connection.close()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--clients", type=int, default=1000, help="clients at the same time (default 1000)")
    parser.add_argument("--turns", type=int, default=5, help="messages of each (default 5)")
    parser.add_argument("--whole", action="store_true", help="ask for whole answers, not for streams")
    parser.add_argument("--name", default="client", help="what their conversations are called (default client)")
    parser.add_argument("--texts", action="store_true", help="give the last reply of each, too")
    return parser.parse_args(arguments)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """All clients at once."""
    seen, began = Seen(), time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(options.clients):
            tasks.create_task(converse(options.port, number, options, seen))
    return {"seconds": time.perf_counter() - began, **vars(seen)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(run(parse()))) + "\n")
