"""Posts requests to one endpoint over one pool of connections, and reads their bounded answers.

The caller's scope is the deadline; ending it closes the connection. Redirects are not followed, so a key reaches no other host.
The headers of a refused request say when the endpoint can be asked again. `bodies.py` has the limits of an answer. Explained in
`docs/gateway.md`.
"""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from math import inf
from typing import Final, Literal
from urllib.parse import urlencode

import anyio
import anyio.lowlevel

from kitchener.clock import SystemClock
from kitchener.config import ProviderConfig
from kitchener.config.settings_parser import dotted_key
from kitchener.errors import ConfigError
from kitchener.errors.root import CONFIGURATION
from kitchener.gateway.providers.authorities import read_authorities, read_client_certificate
from kitchener.gateway.providers.bodies import MAX_DEPTH, PIECES_AT_ONCE, BodyReader, UnusableAnswer, is_deeper, parsed_json
from kitchener.gateway.providers.chat_completions.http_pool import Connections, HttpAnswer, PoolTarget
from kitchener.gateway.providers.chat_completions.lent_pool import open_connections
from kitchener.gateway.providers.endpoint_errors import CONNECT_TIMEOUT_S
from kitchener.gateway.providers.proxies import chosen_proxy
from kitchener.gateway.providers.redaction import Redaction
from kitchener.gateway.providers.sent_values import SentValues
from kitchener.gateway.providers.trace_headers import TRACE_HEADERS

_MAX_HEADER_CHARS: Final = 100
_COUNTED: Final = ("requests", "tokens")
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?", re.ASCII)
_UNITS_S: Final = (3_600.0, 60.0, 1.0, 0.001)

Headers = Callable[[str], str | None]
"""Returns the value of a header by its name in lower case; None: it is absent."""


class StatusError(Exception):
    """The endpoint answered with an error.

    Attributes:
        status: the HTTP status
        body: the parsed body, or its text if it is not JSON
        retry_after_s: the pause that the endpoint asks for, seconds; None: it asks for none
    """

    def __init__(self, status: int, body: object, retry_after_s: float | None) -> None:
        self.status, self.body, self.retry_after_s = status, body, retry_after_s
        super().__init__(f"HTTP {status}")


class PostedAnswer:
    """The answer of an endpoint that accepted the request. Close it when no more is wanted of it.

    Args:
        answer: its connection
        reader: bounds its body
    """

    def __init__(self, answer: HttpAnswer, reader: BodyReader) -> None:
        self._answer, self._reader = answer, reader
        self._has_ended = False

    @property
    def are_events(self) -> bool:
        """Whether it is a stream of events, so far as was read."""
        return self._reader.has_events

    @property
    def has_arrived(self) -> bool:
        """Whether all of it was read, so that its connection is free."""
        return not self._reader.ready and (self._has_ended or self._answer.is_over())

    async def read(self) -> list[bytes]:
        """Returns the data of the next events that arrived together, 256 at most, or the whole body; empty: it is over.

        Raises:
            UnusableAnswer: the answer passed a limit
        """
        reader, answer, reads = self._reader, self._answer, 0
        while not reader.ready and not self._has_ended:
            if raw := await answer.read():
                reader.take(raw)
            if not raw or answer.is_over():
                reader.end()
                self._has_ended = True
            reads += 1
            if reads % PIECES_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        ready = reader.ready
        reader.ready = ready[PIECES_AT_ONCE:]
        return ready[:PIECES_AT_ONCE]

    def close(self) -> None:
        """Closes the connection unless the whole answer has arrived."""
        if not self._has_ended and not self._answer.is_over():
            self._answer.close()


class ChatTransport:
    """Posts to one URL. `open_transport` opens it and closes it at the end of its block.

    Args:
        connections: the connections to the endpoint
        url: the address of every request
        max_bytes: limit of an answer, both as received and decompressed
        timeout_s: longest wait for the next bytes of an answer, seconds
        sends_trace: whether the endpoint is told the trace that a call belongs to
    """

    def __init__(
        self, connections: Connections, url: str, max_bytes: int, timeout_s: float, *, sends_trace: bool = False
    ) -> None:
        self.url, self._sends_trace = url, sends_trace
        self._connections, self._max_bytes, self.timeout_s = connections, max_bytes, timeout_s

    async def post(self, content: bytes) -> PostedAnswer:
        """Sends one request, and returns its answer as soon as that has begun.

        Raises:
            StatusError: the endpoint answered with another status than 2xx
            UnusableAnswer: the answer is encoded as was not asked for
        """
        # The gateway's deadline is as near, so its calls do without a timer for each read.
        is_limited = anyio.current_effective_deadline() <= anyio.current_time() + self.timeout_s
        lines = TRACE_HEADERS.get() if self._sends_trace else b""
        answer = await self._connections.post(content, None if is_limited else self.timeout_s, lines)
        is_accepted = False
        try:
            status, headers = answer.status, answer.headers
            encoding = headers.get("content-encoding", "")
            reader = BodyReader(encoding=encoding, status=status, max_bytes=self._max_bytes, counts=None)
            if status >= 300:
                raise StatusError(status, await _error_body(answer, reader), asked_pause_s(headers.get))
            is_accepted = True
        finally:
            if not is_accepted and not answer.is_over():
                answer.close()
        return PostedAnswer(answer, reader)


@asynccontextmanager
async def open_transport(
    provider_id: str,
    config: ProviderConfig,
    sent: SentValues,
    redaction: Redaction,
    *,
    path: str = "chat/completions",
    method: Literal["POST", "GET"] = "POST",
) -> AsyncIterator[ChatTransport]:
    """Opens a pool of connections to an endpoint for the block.

    Args:
        provider_id: the provider's id in the configuration, for errors
        config: the provider's settings
        sent: the API key, and what is sent beside it
        redaction: the passwords of the address and of a proxy are added to it
        path: what is asked for, under the endpoint's root
        method: of every request

    Raises:
        ConfigError: a proxy, the key or the certificate authorities cannot be used
    """
    base = config.base_url or ""
    redaction.note_login(base)
    url = f"{base.rstrip('/')}/{path}{'?' if sent.query else ''}{urlencode(sent.query)}"
    target = PoolTarget(
        url=url,
        headers=_headers(provider_id, sent),
        proxy=chosen_proxy(provider_id, config, sent.proxy, redaction),
        authorities=read_authorities(provider_id, config),
        client_certificate=read_client_certificate(provider_id, config),
        connect_timeout_s=min(CONNECT_TIMEOUT_S, config.timeout_s),
        method=method,
    )
    async with open_connections(target) as connections:
        yield ChatTransport(connections, url, config.max_response_bytes, config.timeout_s, sends_trace=config.send_traceparent)


def _headers(provider_id: str, sent: SentValues) -> dict[str, str]:
    headers = {"content-type": "application/json", "accept-encoding": "gzip", "user-agent": "kitchener"}
    headers |= {name.lower(): value for name, value in sent.headers.items()}
    if (secret := sent.key) is not None:
        if not secret.isascii() or not secret.isprintable():
            key = dotted_key(("router", "providers", provider_id, "api_key"))
            raise ConfigError(CONFIGURATION, key, "", "leads to a key with characters that no HTTP header can carry")
        headers["authorization"] = f"Bearer {secret}"
    return headers


async def _error_body(answer: HttpAnswer, reader: BodyReader) -> object:
    """Reads the beginning of an error's body, and returns it parsed, or as its text if it is not JSON."""
    while not reader.is_over:
        if raw := await answer.read():
            reader.take(raw)
        else:
            reader.end()
    text = reader.ready[0] if reader.ready else b""
    try:
        body = parsed_json(text)
    except UnusableAnswer:
        return text.decode(errors="replace")
    return None if is_deeper(body, MAX_DEPTH) else body


def asked_pause_s(headers: Headers) -> float | None:
    """Returns the pause that an endpoint asks for, seconds; None: it asks for none.

    `retry-after-ms` comes first, then `Retry-After` in seconds or as a date. Without them, it is the longest
    `x-ratelimit-reset-*` of what has nothing left, such as `6m0s` or `120ms`.
    """
    for read in (_in_milliseconds, _of_retry_after, _of_resets):
        pause_s = read(headers)
        if pause_s is not None and 0 <= pause_s < inf:
            return pause_s
    return None


def _in_milliseconds(headers: Headers) -> float | None:
    pause_ms = _number(headers("retry-after-ms"))
    return None if pause_ms is None else pause_ms / 1_000


def _of_retry_after(headers: Headers) -> float | None:
    text = headers("retry-after")
    pause_s = _number(text)
    if pause_s is not None or text is None or len(text) > _MAX_HEADER_CHARS:
        return pause_s
    try:
        return parsedate_to_datetime(text).timestamp() - SystemClock().time_us() / 1_000_000
    except (ValueError, OverflowError):
        return None


def _of_resets(headers: Headers) -> float | None:
    used_up = [counted for counted in _COUNTED if _number(headers(f"x-ratelimit-remaining-{counted}")) == 0]
    pauses = [_duration_s(headers(f"x-ratelimit-reset-{counted}")) for counted in used_up]
    return max((pause_s for pause_s in pauses if pause_s is not None), default=None)


def _duration_s(text: str | None) -> float | None:
    if not text or len(text) > _MAX_HEADER_CHARS or (found := _DURATION.fullmatch(text)) is None:
        return None
    return sum(float(number) * unit_s for number, unit_s in zip(found.groups(), _UNITS_S, strict=True) if number)


def _number(text: str | None) -> float | None:
    if text is None or len(text) > _MAX_HEADER_CHARS:
        return None
    try:
        return float(text)
    except ValueError:
        return None
