"""Attacks on a `kitchener serve` process, each with a well-behaved client beside it whose replies have to come.

Every attack says which statuses it may get; 0 is a connection that the server closed without an answer. At the end the ledgers
must verify, and hold every reply that the well-behaved client was given, once. Bounded: each attack takes a few seconds.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.shared.http_clients import Answer, Connection, chat, read_answer, request
from benchmarks.shared.served_root import checked_ledgers, served

KEYS: Final = {"ADA_KEY": "the-key-of-ada-0001", "EVE_KEY": "the-key-of-eve-0002", "DESK_KEY": "the-key-of-desk-0003"}
SETTINGS: Final = """[serve]
request_timeout_s = 2
max_request_bytes = 1048576
wrong_keys_per_minute = 10
[serve.clients.ada]
key = "env:ADA_KEY"
subject = "ada"
requests_per_minute = 1000000
max_requests = 512
[serve.clients.eve]
key = "env:EVE_KEY"
subject = "eve"
requests_per_minute = 1000000
max_requests = 512
[serve.clients.desk]
key = "env:DESK_KEY"
rights = ["chat", "read", "act_for"]
requests_per_minute = 400
"""
_ADA: Final[dict[str, Any]] = {"authorization": f"Bearer {KEYS['ADA_KEY']}"}
_EVE: Final[dict[str, Any]] = {"authorization": f"Bearer {KEYS['EVE_KEY']}"}
_DESK: Final[dict[str, Any]] = {"authorization": f"Bearer {KEYS['DESK_KEY']}"}
_CLOSED: Final = 0
_LONGEST_S: Final = 60.0


@dataclass
class Attack:
    """One attack and what came of it."""

    name: str
    allowed: frozenset[int]
    run: Callable[[int, int], Awaitable[list[int]]]
    """Attacks a port with so many connections; gives the statuses."""
    got: Counter[int] = field(default_factory=Counter)
    replies: int = 0
    slowest_s: float = 0.0
    """Of the well-behaved client's replies."""


async def sent(port: int, *pieces: bytes, pause_s: float = 0.0, hangs_up_after_s: float | None = None) -> int:
    """The status of the answer to some bytes, or 0.

    Args:
        port: of the server
        *pieces: what is sent, one piece after the other
        pause_s: between the pieces
        hangs_up_after_s: when the client closes the connection without reading; None: it waits for the answer
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)
        if hangs_up_after_s is not None:
            await asyncio.sleep(hangs_up_after_s)
            return _CLOSED
        async with asyncio.timeout(_LONGEST_S):
            return (await read_answer(reader)).status
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
        return _CLOSED
    finally:
        writer.close()


def each(*of: bytes, pause_s: float = 0.0, hangs_up_after_s: float | None = None) -> Callable[[int, int], Awaitable[list[int]]]:
    """An attack that sends each of these requests, over and over, until all connections are used."""

    async def run(port: int, connections: int) -> list[int]:
        wanted = [of[number % len(of)] for number in range(max(connections, len(of)))]
        return await asyncio.gather(*(sent(port, data, pause_s=pause_s, hangs_up_after_s=hangs_up_after_s) for data in wanted))

    return run


def trickled(data: bytes, step: int) -> Callable[[int, int], Awaitable[list[int]]]:
    """An attack that sends a request in pieces of so many bytes, five a second, which would take minutes."""

    async def run(port: int, connections: int) -> list[int]:
        pieces = [data[at : at + step] for at in range(0, len(data), step)]
        return await asyncio.gather(*(sent(port, *pieces, pause_s=0.2) for _ in range(connections)))

    return run


def body(data: bytes, content_type: str = "application/json", path: str = "/v1/chat/completions") -> bytes:
    """A request of Eve with this body."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: {_EVE['authorization']}\r\n"
    return f"{head}content-type: {content_type}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


def chunked(data: bytes, times: int) -> bytes:
    """A request of Eve in chunks, without a length."""
    return in_chunks([data] * times)


def in_chunks(pieces: Sequence[bytes]) -> bytes:
    """A request of Eve with this body, without a length."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: {_EVE['authorization']}\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces)
    return f"{head}content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n"


_SAID: Final = [{"role": "user", "content": "hello"}]
_TALK: Final = chat(_SAID, **_EVE)
_BIG: Final = 2_000_000
_VALID: Final = '{"model": "ADMIN", "messages": [{"role": "user", "content": "hi"}], '
JSON_BOMBS: Final = (
    b"[" * 500_000,
    b'{"a":' * 100_000,
    (_VALID + '"metadata": ' + "[" * 200 + "]" * 200 + "}").encode(),
    (_VALID + '"x": ' + "9" * 500_000 + "}").encode(),
    (_VALID + '"x": 1e999999}').encode(),
    (_VALID + ", ".join(f'"k{number}": 0' for number in range(60_000)) + "}").encode(),
    (_VALID + ", ".join(['"model": "NOBODY"'] * 30_000) + "}").encode(),
    json.dumps({"model": "ADMIN", "messages": [{"role": "user", "content": "a"}] * 20_001}).encode(),
    json.dumps({"model": "A" * 900_000, "messages": _SAID}).encode(),
    b'{"model": "ADMIN", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b"\xff\xfe{\x00}\x00",
    b"null",
    b"",
)
IDS: Final = (
    "..", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "../../etc/passwd", "%00", "SES-%00", "SES-../../x", "%ff%fe", "%e2%80%ae",
    "SES-" + "a" * 8_000, "SES-0123abcd%0d%0aset-cookie:x", "%2f", "%5c..%5c", "*", "SES-ABCDEF01", "SES-%ef%bc%91%ef%bc%92",
)  # fmt: skip
PATHS: Final = tuple(
    request(method, path.format(id=each), **_EVE)
    for each in IDS
    for method, path in (
        ("GET", "/v1/sessions/{id}"),
        ("GET", "/v1/sessions/{id}/events?follow=false"),
        ("GET", "/v1/responses/{id}"),
        ("GET", "/v1/sessions/{id}/turns/{id}/why"),
        ("POST", "/v1/memory/{id}/deactivate"),
        ("GET", "/v1/models/{id}"),
        ("POST", "/v1/sessions/{id}/stop"),
    )
)
_HEAD: Final = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n"
HEADER_BOMBS: Final = (
    _HEAD + b"x-long: " + b"a" * _BIG + b"\r\n\r\n",
    _HEAD + b"".join(b"x-%d: y\r\n" % number for number in range(50_000)) + b"\r\n",
    b"GET /" + b"a" * _BIG + b" HTTP/1.1\r\n\r\n",
    _HEAD + b"authorization: Bearer " + b"a" * 60_000 + b"\r\n\r\n",
    _HEAD + b"x-openwebui-chat-id: " + b"a" * 60_000 + b"\r\n" + f"authorization: {_EVE['authorization']}\r\n\r\n".encode(),
    _HEAD.replace(b"HTTP/1.1", b"HTTP/9.9") + b"\r\n",
    _HEAD + b" folded\r\n\r\n",
    _HEAD + b"bad name: x\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: evil.example\r\n\r\n",
    _HEAD + b"origin: http://evil.example\r\n\r\n",
)
_SMUGGLED: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
)


async def smuggled(port: int, connections: int) -> list[int]:
    """A second request within the body of a first one that has two lengths; -1: the second one was answered, too."""
    found = list[int]()
    for _ in range(connections):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(_SMUGGLED)
            async with asyncio.timeout(_LONGEST_S):
                found.append((await read_answer(reader)).status)
                found += [-1] if await reader.read() else []
        finally:
            writer.close()
    return found


async def slow_files(port: int, connections: int) -> list[int]:
    """Requests for the page, without a key, whose bodies never come."""
    head = b"GET / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n"
    return await asyncio.gather(*(sent(port, head) for _ in range(connections * 10)))


async def pipelined(port: int, connections: int) -> list[int]:
    """Twenty requests at once on each connection, of which all are answered in their order."""

    async def one() -> list[int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        try:
            writer.write((_TALK + request("GET", "/v1/models", **_EVE)) * 10)
            async with asyncio.timeout(_LONGEST_S):
                answers = [await read_answer(reader) for _ in range(20)]
        finally:
            writer.close()
        is_ordered = all(each.is_whole_stream == (number % 2 == 0) for number, each in enumerate(answers))
        return [each.status for each in answers] if is_ordered else [-1]

    return [status for found in await asyncio.gather(*(one() for _ in range(max(1, connections // 20)))) for status in found]


async def slow_readers(port: int, connections: int, for_s: float = 4.0) -> list[int]:
    """Clients that ask for a long stream and read nothing for so long."""
    said = [{"role": "user", "content": "say " + "very long words " * 3_000}]
    return await asyncio.gather(*(sent(port, chat(said, **_EVE), hangs_up_after_s=for_s) for _ in range(connections)))


async def forged(port: int, connections: int) -> list[int]:
    """Eve names Ada in every header that could say who she is, and asks for Ada's session."""
    asked = Connection(port)
    mine = json.loads((await asked.ask(request("POST", "/v1/sessions", {}, **_ADA))).body)["session_id"]
    names: dict[str, Any] = {
        "x_kitchener_subject": "ada",
        "x_openwebui_user_id": "ada",
        "x_forwarded_user": "ada",
        "x_forwarded_for": "127.0.0.1",
        "x_openwebui_user_jwt": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.",
    }
    found = list[int]()
    for method, path in (
        ("GET", ""), ("GET", "/messages"), ("GET", "/events?follow=false"), ("POST", "/stop"), ("GET", "/approvals"),
        ("GET", "/intents"), ("POST", "/end"),
    ):  # fmt: skip
        content: dict[str, Any] | None = {} if path == "/end" else None
        found.append((await asked.ask(request(method, f"/v1/sessions/{mine}{path}", content, **_EVE, **names))).status)
    found.append((await asked.ask(chat(_SAID, x_kitchener_session=mine, **_EVE, **names))).status)
    listed = await asked.ask(request("GET", "/v1/sessions", **_EVE, **names))
    if mine.encode() in listed.body:
        found.append(-1)
    asked.close()
    return found


async def crowded_out(port: int, connections: int) -> list[int]:
    """One user of a front end asks without pause, so often that the key's minute would be used up; another one asks once."""
    asked = Connection(port)
    try:
        found = [
            (await asked.ask(request("GET", "/v1/me", x_kitchener_subject="mallory", **_DESK))).status
            for _ in range(max(60, connections))
        ]
        other = await asked.ask(request("GET", "/v1/me", x_kitchener_subject="bob", **_DESK))
        return [*found, *([-1] if other.status != 200 or 429 not in found else [])]
    finally:
        asked.close()


async def replayed(port: int, connections: int) -> list[int]:
    """One message sent many times at once with one idempotency key, and others with the same key in between."""
    named: dict[str, Any] = {"idempotency_key": "replayed-1", "x_kitchener_session": "replayed", **_EVE}
    answers: list[Answer] = []

    async def one(said: str) -> int:
        connection = Connection(port)
        try:
            answers.append(answer := await connection.ask(chat([{"role": "user", "content": said}], stream=False, **named)))
            return answer.status
        finally:
            connection.close()

    await one("Is this said once?")
    found = await asyncio.gather(*(one(f"Is this said {'once' if at % 4 else 'twice'}?") for at in range(connections)))
    turns = {json.loads(each.body)["kitchener"]["turn_id"] for each in answers if each.status == 200}
    return [*found, *([-1] if len(turns) != 1 else [])]


async def guessed(port: int, connections: int) -> list[int]:
    """Somebody tries keys."""
    return [await sent(port, request("GET", "/v1/models", authorization=f"Bearer guess-{at:012}")) for at in range(connections)]


async def idle(port: int, connections: int) -> list[int]:
    """More connections than the server takes, which send nothing, or one byte."""
    return await asyncio.gather(*(sent(port, b"G" * (number % 2)) for number in range(connections * 15)))


def attacks(unread_s: float = 4.0) -> list[Attack]:
    """All of them; slow readers read nothing for so long."""
    gone: tuple[tuple[str, bytes, float], ...] = (
        ("before the body", _TALK[: _TALK.index(b"\r\n\r\n") + 4], 0.0),
        ("in the body", _TALK[:-20], 0.0),
        ("before the first text", _TALK, 0.0),
        ("in the stream", _TALK, 0.05),
        ("after the end", _TALK, 1.0),
    )
    return [
        # First, because later ones send wrong keys from the same address, which then may begin to use no further key.
        Attack("one user of a front end", frozenset({200, 429}), crowded_out),
        Attack("header bombs", frozenset({_CLOSED, 400, 401, 403, 421, 431, 200, 429}), each(*HEADER_BOMBS)),
        Attack("JSON bombs", frozenset({200, 400, 404, 408, 415}), each(*map(body, JSON_BOMBS))),
        Attack("an oversized body", frozenset({_CLOSED, 413}), each(body(b" " * _BIG))),
        Attack("a body in chunks without end", frozenset({_CLOSED, 408, 413}), each(chunked(b"x" * 65_536, 40))),
        Attack("a body in tiny chunks", frozenset({400, 413, 200}), each(chunked(b" ", 50_000))),
        Attack(
            "another type",
            frozenset({415}),
            each(*(body(b"{}", kind) for kind in ("text/plain", "application/xml", "", "*/*"))),
        ),
        Attack("lengths that contradict", frozenset({400}), smuggled),
        Attack("path-like ids", frozenset({400, 404, 405, 415}), each(*PATHS)),
        Attack("forged headers", frozenset({404}), forged),
        Attack("replayed requests", frozenset({200, 409}), replayed),
        Attack("pipelining", frozenset({200}), pipelined),
        Attack("heads a byte at a time", frozenset({_CLOSED, 408}), trickled(_TALK, 1)),
        Attack("bodies a byte at a time", frozenset({_CLOSED, 408}), _slow_body),
        Attack("slow bodies for the page", frozenset({200}), slow_files),
        Attack("slow readers", frozenset({_CLOSED}), partial(slow_readers, for_s=unread_s)),
        *(Attack(f"gone {phase}", frozenset({_CLOSED}), each(data, hangs_up_after_s=after)) for phase, data, after in gone),
        Attack("idle connections", frozenset({_CLOSED, 408, 503}), idle),
        Attack("wrong keys", frozenset({401, 429}), guessed),
    ]


async def _slow_body(port: int, connections: int) -> list[int]:
    head, _, data = _TALK.partition(b"\r\n\r\n")
    pieces = [head + b"\r\n\r\n", *(data[at : at + 1] for at in range(len(data)))]
    return await asyncio.gather(*(sent(port, *pieces, pause_s=0.2) for _ in range(connections)))


async def well_behaved(
    port: int, attack_name: str, served: asyncio.Event, done: asyncio.Event, found: Attack, said: list[str]
) -> None:
    """Ada talks before the attack, which begins when she is `served`, and while it runs; each of her replies has to come."""
    connection, number = Connection(port), 0
    while not done.is_set():
        message, began = f"Ada says {number} during {attack_name}", time.perf_counter()
        answer = await connection.ask(chat([{"role": "user", "content": message}], **_ADA))
        if not answer.is_whole_stream or not answer.text:
            raise RuntimeError(f"{answer.status} {answer.body[:200]!r}")
        found.slowest_s = max(found.slowest_s, time.perf_counter() - began)
        said.append(message)
        found.replies, number = found.replies + 1, number + 1
        served.set()
        await asyncio.sleep(0.02)
    connection.close()


async def under(attack: Attack, port: int, connections: int, said: list[str]) -> list[str]:
    """Runs an attack with a well-behaved client beside it, whose messages are added to `said`. Returns what went wrong."""
    served, done, problems = asyncio.Event(), asyncio.Event(), list[str]()

    async def talk() -> None:
        try:
            await well_behaved(port, attack.name, served, done, attack, said)
        except (OSError, EOFError, TimeoutError, RuntimeError) as error:
            what = (
                "its connection ended without an answer" if isinstance(error, EOFError) else f"{type(error).__name__}: {error}"
            )
            problems.append(f"{attack.name}: the well-behaved client: {what}")
        finally:
            served.set()

    talking = asyncio.create_task(talk())
    try:
        await served.wait()
        attack.got.update(await attack.run(port, connections))
    finally:
        done.set()
        await talking
    if not set(attack.got) <= attack.allowed:
        problems.append(f"{attack.name}: got {dict(attack.got)}, expected only {sorted(attack.allowed)}")
    return problems


async def attack(folder: Path, connections: int) -> dict[str, Any]:
    """Runs all attacks against a server of its own, one after the other.

    Args:
        folder: an empty folder
        connections: of each attack, about
    """
    wrong, said, all_of = list[str](), list[str](), attacks()
    with served(folder, SETTINGS, KEYS) as server:
        for one in all_of:
            wrong += await under(one, server.port, connections, said)
        memory, files, code = server.rss_mib(), server.open_files(), server.process.poll()
    if code is not None:
        wrong.append(f"the server ended with {code}")
    found = await checked_ledgers(folder)
    with contextlib.suppress(FileNotFoundError):
        text = (folder / "log.txt").read_text()
        wrong += [f"the log has {name}" for name, key in KEYS.items() if key in text]
        wrong += ["the log has a traceback"] if "Traceback" in text else []
    return {
        **{
            one.name: f"{dict(one.got)}; {one.replies} replies beside it, the slowest in {one.slowest_s:.2f} s"
            for one in all_of
        },
        "memory_mib": round(memory),
        "open_files_after": files,
        "wrong": wrong,
        "lost": sum(found["messages"][each] != 1 for each in said),
        "twice": len(found["twice"]) + (found["messages"]["Is this said once?"] != 1),
    }
