"""Checks every request before anything reads it: host, key, rate, size, and whether the server still admits requests.

It turns errors into answers, and passes a request on with its body read. A slow or endless body therefore ends here. Explained
in `docs/server.md`.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kitchener.config import ServeConfig
from kitchener.plain_names import quoted
from kitchener.serve.access.allowances import RequestPlace
from kitchener.serve.access.callers import Caller, Callers, anybody, is_loopback
from kitchener.serve.access.counted_work import BODY_BYTES
from kitchener.serve.access.request_names import HeadersOnce
from kitchener.serve.access.request_subject import RequestSubjects
from kitchener.serve.access.wrong_keys import address_of
from kitchener.serve.event_stream import OPEN_STREAMS, OpenStreams
from kitchener.serve.metrics.server_counts import ServerCounts
from kitchener.serve.problems import RequestRefused, problem_for

HEALTH_PATHS: Final = ("/healthz", "/readyz")
"""Paths that need no key and are answered while the server drains."""
_CALLER: Final = "kitchener.caller"
_PLACE: Final = "kitchener.place"
_SUBJECT: Final = "kitchener.subject"
_PORT: Final = 5
_LENGTHS: Final = (b"content-length", b"transfer-encoding")
_BODILESS: Final = ("GET", "HEAD", "DELETE", "OPTIONS")


class Draining:
    """Whether the server shuts down, and the calls that tell of it."""

    def __init__(self) -> None:
        self.has_begun = False
        self._told: dict[Callable[[], object], None] = {}

    def begin(self) -> None:
        """The server shuts down."""
        self.has_begun = True
        for tell in list(self._told):
            tell()

    @contextmanager
    def telling(self, tell: Callable[[], object]) -> Iterator[None]:
        """While the block runs, calls `tell` when the shutdown begins."""
        self._told[tell] = None
        try:
            yield
        finally:
            del self._told[tell]


class Guard:
    """An ASGI application around another one.

    Args:
        app: what answers the requests that pass
        callers: whose keys count
        subjects: finds out whom requests are for
        config: the settings of the server
        counts: counts the answers
        draining: whether new requests are refused
        public: paths that need no key
    """

    def __init__(
        self,
        app: ASGIApp,
        callers: Callers,
        subjects: RequestSubjects,
        config: ServeConfig,
        counts: ServerCounts,
        draining: Draining,
        public: Collection[str] = (),
    ) -> None:
        self._app, self._callers, self._subjects, self._config = app, callers, subjects, config
        self._public, self._anybody = frozenset(public), anybody(config)
        self._once = HeadersOnce(config)
        self._hosts = {each.casefold() for each in (*config.allowed_hosts, config.host)}
        self._counts, self.streams = counts, OpenStreams(config)
        self._draining = draining
        self.running = 0
        """Requests that run now, without those for health."""
        self._idle = anyio.Event()

    async def wait_idle(self) -> None:
        """Returns when no request runs."""
        while self.running:
            await self._idle.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or refuses it before anything is read."""
        if scope["type"] != "http":
            raise RuntimeError(f"this server has no {scope['type']}")
        answer = _Answer(send, self._counts)
        try:
            _check_lengths(scope)
            if scope["path"] in HEALTH_PATHS:
                await self._app(scope, receive, send)
                return
            self._check(scope)
            caller = self._anybody if scope["path"] in self._public else self._caller(scope)
            subject = self._subject(scope, caller)
            place = RequestPlace.enter(caller.allowances(None if isinstance(subject, RequestRefused) else subject))
        except RequestRefused as error:
            closes = {"connection": "close"} if error.code == "two_lengths" else None
            await problem_for(error).response(closes)(scope, receive, answer.send)
            return
        scope[_CALLER], scope[_SUBJECT], scope[_PLACE] = caller, subject, place
        self.running += 1
        try:
            await self._serve(scope, receive, answer)
        finally:
            place.leave()
            self.running -= 1
            if not self.running:
                self._idle.set()
                self._idle = anyio.Event()

    def _caller(self, scope: Scope) -> Caller:
        key = Headers(scope=scope).get("authorization")
        return self._callers.of(key, address_of(scope, self._config.trusted_proxies))

    def _subject(self, scope: Scope, caller: Caller) -> str | RequestRefused:
        """The subject of a request, or why it has none. Only operations that need a subject are then refused."""
        try:
            return self._subjects.of(Headers(scope=scope), caller)
        except RequestRefused as error:
            return error

    async def _serve(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        caller: Caller = scope[_CALLER]
        try:
            # Public files need no body, and a slow body must not take a place from callers with a key.
            body = b"" if caller is self._anybody else await self._body(scope, receive, caller.settings.max_request_bytes)
            place: RequestPlace = scope[_PLACE]
            place.count_more(len(body) // BODY_BYTES)
            scope[OPEN_STREAMS] = self.streams
            scope["app"] = self  # makes the router raise for an unknown path or method, so that the answer has our form
            await self._app(scope, _Body(body, receive).receive, answer.send)
        except (_ClientGone, ClientDisconnect):
            pass
        except Exception as error:  # noqa: BLE001  the outermost place of a request; what is no refusal is logged
            if not answer.has_begun:
                asked_for = f"{scope['method']} {scope['path']}"
                await problem_for(error, asked_for).response()(scope, receive, answer.send)
            else:
                problem_for(error)

    def _check(self, scope: Scope) -> None:
        """Raises RequestRefused for a request that is refused whatever its key."""
        headers = Headers(scope=scope)
        if self._draining.has_begun:
            raise RequestRefused(503, "shutting_down", "the server is shutting down; send this again", retry_after_s=1.0)
        if self.running >= self._config.max_requests:
            raise RequestRefused(503, "overloaded", f"{self.running} requests run (serve.max_requests)", retry_after_s=1.0)
        self._once.check(scope)
        # A page of another origin may send requests to this machine, and its host name may be made to resolve to it.
        host = _name_of(headers.get("host", ""))
        if host.casefold() not in self._hosts and not is_loopback(host):
            raise RequestRefused(
                421, "wrong_host", f"the server has no name {quoted(host)}; add the name to `serve.allowed_hosts`"
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].casefold() != headers.get("host", "").casefold():
            raise RequestRefused(403, "wrong_origin", f"pages of {quoted(origin)} may not use this server; only its own may")

    async def _body(self, scope: Scope, receive: Receive, own_limit: int | None) -> bytes:
        """The body of a request. Raises RequestRefused if it is too large, too slow or of another kind."""
        headers, limit = Headers(scope=scope), min(self._config.max_request_bytes, own_limit or self._config.max_request_bytes)
        declared = headers.get("content-length", "0")
        too_large = RequestRefused(413, "request_too_large", f"the body has more than {limit:,} bytes (max_request_bytes)")
        if not declared.isdecimal() or len(declared) > len(str(limit)) or int(declared) > limit:
            raise too_large
        found, chunks = 0, deque[bytes]()
        with anyio.move_on_after(self._config.request_timeout_s) as waiting:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _ClientGone
                found += len(message.get("body", b""))
                if found > limit:
                    raise too_large
                chunks.append(message.get("body", b""))
                if not message.get("more_body", False):
                    break
        if waiting.cancelled_caught:
            raise RequestRefused(408, "request_timeout", "the body took too long (serve.request_timeout_s)")
        kind = headers.get("content-type", "").partition(";")[0].strip().casefold()
        if found and scope["method"] not in _BODILESS and kind != "application/json":
            raise RequestRefused(415, "not_json", "send the body as application/json")
        return b"".join(chunks)


class _ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class _Answer:
    """Sends an answer, counts it, and knows whether it has begun."""

    def __init__(self, send: Send, counts: ServerCounts) -> None:
        self._send, self._counts, self.has_begun = send, counts, False

    async def send(self, message: Message) -> None:
        if not self.has_begun:
            self._counts.answers[message["status"]] += 1
        self.has_begun = True
        await self._send(message)


class _Body:
    """Receives a body that was read before, and then the messages of the connection."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        return await self._receive()


def caller_of(request: Request) -> Caller:
    """The caller of a request that has passed the guard."""
    found: Any = request.scope[_CALLER]
    assert isinstance(found, Caller)
    return found


def subject_of(request: Request) -> str:
    """The subject of a request that has passed the guard.

    Raises:
        RequestRefused: it names no subject, or one that its key does not reach, or its token is not valid for that subject
    """
    found: Any = request.scope[_SUBJECT]
    if isinstance(found, RequestRefused):
        raise found
    assert isinstance(found, str)
    return found


def place_of(request: Request) -> RequestPlace:
    """The place of a request that has passed the guard."""
    found: Any = request.scope[_PLACE]
    assert isinstance(found, RequestPlace)
    return found


def _check_lengths(scope: Scope) -> None:
    """Raises RequestRefused for a request with two lengths, for every path and client. A proxy in front may have used the other
    length, and take the bytes that follow for another client's request.
    """
    lengths = [name for name, _ in scope["headers"] if name in _LENGTHS]
    if len(lengths) > 1:
        told = "states its length twice" if len(set(lengths)) == 1 else "has a length and comes in chunks"
        raise RequestRefused(400, "two_lengths", f"the request {told}")


def _name_of(host: str) -> str:
    """The host in a Host header, without its port."""
    name, _, port = host.rpartition(":")
    return name if name and port.isdecimal() and len(port) <= _PORT and (name.startswith("[") or ":" not in name) else host
