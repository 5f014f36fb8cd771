"""Turns the bearer key of a request into a caller, with its subject, its agent classes and its rights.

Keys are kept as hashes only, and compared in constant time. Explained in `docs/server.md`.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import anyio

from kitchener.config import RuntimeConfig, ServeClientConfig, ServeConfig, ServeRight, dotted_key
from kitchener.errors import CallerError, ConfigError
from kitchener.errors.root import CONFIGURATION
from kitchener.gateway.providers.factory import read_secret
from kitchener.gateway.resilience import Rate
from kitchener.ids import check_caller
from kitchener.plain_names import quoted
from kitchener.serve.access.counted_work import CONTEXT_S
from kitchener.serve.access.schema_time import SchemaTime
from kitchener.serve.access.wrong_keys import WrongKeys
from kitchener.serve.problems import RequestRefused

MIN_KEY_CHARS: Final = 16
"""Shortest key of a client, characters."""
MIN_TOKEN_SECRET_BYTES: Final = 32
"""Shortest secret of signed subjects, bytes: as long as the hash of HS256."""
_LOCAL: Final = "local"


@dataclass(slots=True)
class Caller:
    """The sender of requests with one key, and the use of its limits."""

    name: str
    """The name of the key in the settings."""
    settings: ServeClientConfig
    rate: Rate
    running: int = 0
    """Number of running requests of this key."""
    left_behind: int = 0
    """Turns that run on after their request ended: in the background, or because the client disconnected."""
    schema_time: SchemaTime = field(init=False, repr=False)
    """Processor time for the schemas of its requests."""
    token_secret: str | None = field(default=None, kw_only=True, repr=False)
    """The secret that signs the tokens that name the subject; None: a header names it."""
    is_local: bool = field(default=False, kw_only=True)
    """Whether the server has no keys, so that everybody on this machine is this caller."""

    def __post_init__(self) -> None:
        self.schema_time = SchemaTime(self.settings.schema_ms_per_minute)

    def check(self, right: ServeRight) -> None:
        """Raises RequestRefused unless the key allows this."""
        if right not in self.settings.rights:
            raise RequestRefused(403, "right_missing", f"this key has no right {right!r}; its settings name its `rights`")

    def check_agent(self, agent_class: str) -> None:
        """Raises RequestRefused unless the key reaches this agent class."""
        if not self.reaches(agent_class):
            raise self.unknown_agent(agent_class)

    @staticmethod
    def unknown_agent(agent_class: str) -> RequestRefused:
        """The error for an agent class that does not exist, or not for this key."""
        return RequestRefused(
            404, "model_not_found", f"there is no agent {quoted(agent_class)} for this key; GET /v1/me lists them"
        )

    def reaches(self, agent_class: str) -> bool:
        """Whether the key reaches this agent class."""
        return "*" in self.settings.agents or agent_class in self.settings.agents

    def subject(self, named: str | None) -> str:
        """The subject that a request acts for.

        Args:
            named: what its headers say; None: nothing

        Raises:
            RequestRefused: the headers name no valid subject, or the key reaches none
        """
        if self.settings.subject is not None:
            return self.settings.subject
        self.check("act_for")
        if named is None:
            raise RequestRefused(400, "subject_missing", "this key acts for others: name the subject in X-Kitchener-Subject")
        try:
            check_caller(named, None)
        except CallerError as error:
            raise RequestRefused(400, "subject_invalid", str(error)) from None
        return named

    def enter(self) -> "RequestPlace":
        """Counts a request as running until its place is left.

        Raises:
            RequestRefused: the key's requests come too fast, or too many run
        """
        now, settings = anyio.current_time(), self.settings
        if self.running >= settings.max_requests:
            raise RequestRefused(
                429, "too_many_requests", f"{self.running} requests of this key run (max_requests)", retry_after_s=1.0
            )
        wait = self.rate.ready_at(1) - now
        if wait > 0:
            limit = settings.requests_per_minute
            raise RequestRefused(
                429, "rate_limited", f"more than {limit} requests a minute (requests_per_minute)", retry_after_s=wait
            )
        self.rate.take(1, now)
        return RequestPlace(self)

    def count_more(self, further: int) -> None:
        """Counts a costly request as several, before its work is done, because the work takes time from everybody.

        Args:
            further: how many; 0: it is an ordinary one

        Raises:
            RequestRefused: costly requests of this key come too fast
        """
        if not further:
            return
        now = anyio.current_time()
        wait = self.rate.ready_at(0) - now
        if wait > 0:
            raise RequestRefused(
                429,
                "rate_limited",
                "a large body, a long list or a long conversation counts as several requests, and there were more than"
                f" {self.settings.requests_per_minute} a minute (requests_per_minute)",
                retry_after_s=wait,
            )
        self.rate.take(further, now)

    def book_more(self, further: int) -> None:
        """Counts work of a request as further requests after it was done; later requests wait for it."""
        self.rate.take(further, anyio.current_time())

    def book_context(self, seconds: float) -> None:
        """Counts the processor time that choosing the context of a turn took as further requests."""
        self.book_more(int(seconds / CONTEXT_S))


class RequestPlace:
    """The place of a request among those of its key. A turn that it began keeps the place until it ends.

    Args:
        caller: who sent the request
    """

    def __init__(self, caller: Caller) -> None:
        self.caller, self._turns, self._is_left = caller, 0, False
        caller.running += 1

    def check_turn(self) -> None:
        """Raises RequestRefused if turns that run on after their request ended leave no room for another turn."""
        caller = self.caller
        if caller.running + caller.left_behind > caller.settings.max_requests:
            raise RequestRefused(
                429,
                "too_many_requests",
                f"{caller.left_behind} turns of this key go on without their request (max_requests)",
                retry_after_s=1.0,
            )

    def check_going_on(self) -> None:
        """Raises RequestRefused if no turn of this key may be continued, because its schema checks have taken too long.

        A continued turn checks against the schemas of its first request, which are not part of this one.
        """
        self.caller.schema_time.check(anyio.current_time(), is_new=False)

    def begin_turn(self) -> None:
        """A turn of the request begins; `end_turn` follows."""
        self._turns += 1

    def end_turn(self) -> None:
        """A turn of the request has ended."""
        self._turns -= 1
        if self._is_left and not self._turns:
            self.caller.left_behind -= 1

    def leave(self) -> None:
        """The request has ended."""
        self._is_left = True
        self.caller.running -= 1
        if self._turns:
            self.caller.left_behind += 1


class Callers:
    """All callers of a server.

    Args:
        by_digest: callers by the hash of their key
        local: who everybody is without keys; None: there are keys
        wrong_keys: what addresses may try
    """

    def __init__(self, by_digest: Mapping[bytes, Caller], local: Caller | None, wrong_keys: WrongKeys) -> None:
        self._by_digest, self._local, self._wrong = dict(by_digest), local, wrong_keys

    @classmethod
    def load(cls, config: RuntimeConfig) -> "Callers":
        """Reads the keys that the settings refer to.

        Raises:
            ConfigError: a reference leads nowhere, a key is too short, two names have one key, an agent class is not
                configured, or the address is not a loopback one and there are no keys; never shows a key
        """
        serve = config.serve
        wrong_keys = WrongKeys(serve.wrong_keys_per_minute, serve.max_addresses)
        if not serve.clients:
            if not is_loopback(serve.host):
                raise ConfigError(
                    CONFIGURATION,
                    "serve.host",
                    repr(serve.host),
                    "needs [serve.clients.<name>]: without keys it must be 127.0.0.1",
                )
            try:
                check_caller(serve.local_subject, None)
            except CallerError as error:
                raise ConfigError(CONFIGURATION, "serve.local_subject", "", str(error)) from None
            return cls({}, _local_caller(serve), wrong_keys)
        found: dict[bytes, Caller] = {}
        for name, settings in serve.clients.items():
            at = dotted_key(("serve", "clients", name, "key"))
            secret = read_secret(settings.key, at) or ""
            if len(secret) < MIN_KEY_CHARS:
                raise ConfigError(CONFIGURATION, at, "", f"leads to a key of fewer than {MIN_KEY_CHARS} characters")
            if _digest(secret) in found:
                raise ConfigError(CONFIGURATION, at, "", "leads to the key of another name")
            _check_settings(name, settings, config)
            token_secret = _token_secret(name, settings)
            found[_digest(secret)] = Caller(name, settings, Rate(settings.requests_per_minute), token_secret=token_secret)
        return cls(found, None, wrong_keys)

    def of(self, authorization: str | None, address: str) -> Caller:
        """The caller of a request.

        Args:
            authorization: its header of that name; None: it has none
            address: where it comes from

        Raises:
            RequestRefused: there is no such key, or too many wrong ones came from this address
        """
        if self._local is not None:
            return self._local
        scheme, _, key = (authorization or "").partition(" ")
        wanted, match = _digest(key.strip()), None
        if scheme.casefold() == "bearer":
            for digest, caller in self._by_digest.items():
                match = caller if hmac.compare_digest(digest, wanted) else match
            self._wrong.note(address, match.name if match is not None else None, anyio.current_time())
        if match is None:
            what = "this is no key of the server" if key.strip() else "the request has no key"
            raise RequestRefused(401, "invalid_api_key", f"{what}; send one of `serve.clients` as `Authorization: Bearer …`")
        return match


def is_loopback(host: str) -> bool:
    """Whether an address or a name means this machine only."""
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _token_secret(name: str, settings: ServeClientConfig) -> str | None:
    """Reads the secret of signed subjects. Raises ConfigError if its reference leads nowhere, or it is too short for HS256."""
    if settings.subject_secret is None:
        return None
    at = dotted_key(("serve", "clients", name, "subject_secret"))
    secret = read_secret(settings.subject_secret, at) or ""
    if len(secret.encode("utf-8", "surrogatepass")) < MIN_TOKEN_SECRET_BYTES:
        raise ConfigError(CONFIGURATION, at, "", f"leads to a secret of fewer than {MIN_TOKEN_SECRET_BYTES} bytes")
    return secret


def _local_caller(serve: ServeConfig) -> Caller:
    settings = ServeClientConfig(
        key=f"env:{_LOCAL}",
        subject=serve.local_subject,
        rights=("chat", "read", "approve", "operate", "erase"),
        max_requests=serve.max_requests,
        schema_ms_per_minute=_ALL_MS,
    )
    return Caller(_LOCAL, settings, Rate(_UNLIMITED), is_local=True)


def anybody(serve: ServeConfig) -> Caller:
    """The caller of paths that need no key. It has no right, reaches no agent, and leaves most places to callers with a key."""
    most = max(1, serve.max_requests // _PART_OF_ANYBODY)
    settings = ServeClientConfig(key="env:none", subject="none", agents=(), rights=(), max_requests=most)
    return Caller("", settings, Rate(_UNLIMITED))


_UNLIMITED: Final = 1_000_000_000
_ALL_MS: Final = 60_000
"""All of one processor's time, milliseconds a minute: a caller who is alone on the machine delays nobody."""
_PART_OF_ANYBODY: Final = 4


def _check_settings(name: str, settings: ServeClientConfig, config: RuntimeConfig) -> None:
    """Raises ConfigError unless the subject and the agent classes of a key are valid."""
    if settings.subject is not None:
        try:
            check_caller(settings.subject, None)
        except CallerError as error:
            raise ConfigError(CONFIGURATION, dotted_key(("serve", "clients", name, "subject")), "", str(error)) from None
    classes = config.classes or ("ADMIN",)
    for each in settings.agents:
        if each != "*" and each not in classes:
            known = ", ".join(sorted(classes))
            raise ConfigError(
                CONFIGURATION,
                dotted_key(("serve", "clients", name, "agents")),
                repr(each),
                f"no such agent class; there are: {known}",
            )
