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

from kitchener.config import RuntimeConfig, ServeClientConfig, ServeConfig, ServeRight
from kitchener.config.settings_parser import dotted_key
from kitchener.errors import CallerError, ConfigError
from kitchener.errors.root import CONFIGURATION
from kitchener.gateway.providers.factory import read_secret
from kitchener.ids import check_caller
from kitchener.plain_names import quoted
from kitchener.serve.access.allowances import Allowance, SubjectAllowances
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
    allowance: Allowance
    """What all requests of this key use."""
    _subjects: SubjectAllowances | None = field(init=False, repr=False, default=None)
    """What the requests of each subject use; None: the key has one subject, or no subject has a limit of its own."""
    token_secret: str | None = field(default=None, kw_only=True, repr=False)
    """The secret that signs the tokens that name the subject; None: a header names it."""
    is_local: bool = field(default=False, kw_only=True)
    """Whether the server has no keys, so that everybody on this machine is this caller."""

    def __post_init__(self) -> None:
        settings = self.settings
        if settings.subject is None and settings.subject_share < 1:
            limits = (settings.requests_per_minute, settings.max_requests, settings.schema_ms_per_minute)
            self._subjects = SubjectAllowances(settings.subject_share, *limits)

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

    def allowances(self, subject: str | None) -> tuple[Allowance, ...]:
        """What a request counts for.

        Args:
            subject: whom it is for; None: nobody, so that it counts for the key alone
        """
        if self._subjects is None or subject is None:
            return (self.allowance,)
        return (self._subjects.of(subject), self.allowance)


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
        wrong_keys = WrongKeys(serve.wrong_keys_per_minute)
        if not serve.clients:
            if not is_loopback(serve.host):
                raise ConfigError(
                    CONFIGURATION,
                    "serve.host",
                    repr(serve.host),
                    "needs [serve.clients.<name>]: without keys it must be 127.0.0.1",
                )
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
            found[_digest(secret)] = Caller(name, settings, _allowance(settings), token_secret=token_secret)
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
            what = "the server does not know this key" if key.strip() else "the request has no key"
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
        subject=_LOCAL,
        rights=("chat", "read", "approve", "operate", "erase"),
        max_requests=serve.max_requests,
        schema_ms_per_minute=_ALL_MS,
    )
    return Caller(_LOCAL, settings, _allowance(settings, _UNLIMITED), is_local=True)


def anybody(serve: ServeConfig) -> Caller:
    """The caller of paths that need no key. It has no right, reaches no agent, and leaves most places to callers with a key."""
    most = max(1, serve.max_requests // _PART_OF_ANYBODY)
    settings = ServeClientConfig(key="env:none", subject="none", agents=(), rights=(), max_requests=most)
    return Caller("", settings, _allowance(settings, _UNLIMITED))


def _allowance(settings: ServeClientConfig, requests_per_minute: int | None = None) -> Allowance:
    """The allowance of a key. None: as its settings say."""
    requests = requests_per_minute or settings.requests_per_minute
    return Allowance(requests, settings.max_requests, settings.schema_ms_per_minute)


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
    classes = config.class_names
    for each in settings.agents:
        if each != "*" and each not in classes:
            known = ", ".join(sorted(classes))
            raise ConfigError(
                CONFIGURATION,
                dotted_key(("serve", "clients", name, "agents")),
                repr(each),
                f"no such agent class; there are: {known}",
            )
