"""Defines the settings of the server: where it listens, who may do what, and the limits of each key."""

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from kitchener.config.settings_parser import Name, Positive, Seconds, Settings
from kitchener.config.shown import REFERENCE, is_reference

ServeRight = Literal["chat", "read", "approve", "act_for", "operate", "erase"]
"""What a key allows. `chat`: send messages, and forget what was learned. `read`: see sessions and events. `approve`: list and
answer tool calls that wait. `act_for`: name the subject of each request, and so act for all of them. `operate`: read the
metrics. `erase`: erase the subject for good."""

HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,64}$")]
"""The name of an HTTP header."""


def _ip_address(text: str) -> str:
    """Raises ValueError for what is no address; else what its requests come from."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError("must be one IP address, such as 127.0.0.1; networks and names never match") from None


IpAddress = Annotated[Name, AfterValidator(_ip_address)]
"""An IPv4 or IPv6 address."""


def _host_name(text: str) -> str:
    """Raises ValueError for what no header Host has as its name, so that every request would be refused."""
    if _HOST_NAME.fullmatch(text) is None:
        raise ValueError("must be a name as in the header Host, such as chat.example, without scheme, port, path and `*`")
    return text


_HOST_NAME: Final = re.compile(r"\[[0-9A-Fa-f:.]+\]|[^\s/:*@\[\]]+")
HostName = Annotated[Name, AfterValidator(_host_name)]
"""A name of a server, or an address; one of IPv6 stands in brackets."""


class ServeClientConfig(Settings):
    """`[serve.clients.<name>]`: a client, its key, and what the key allows."""

    key: str
    """Reference to the key that it sends as `Authorization: Bearer …`: `env:NAME` or `file:/path`. The key has at least 16
    characters, and no other client has it."""
    subject: Name | None = None
    """The subject whose sessions and memory this key reaches. None: only with the right `act_for`, by which each request names
    its subject."""
    subject_secret: str | None = None
    """Reference to the secret with which a front end with the right `act_for` signs whom each request is for, in the header
    `subject_token_header`, as a JSON web token with HS256. At least 32 bytes. None: plain headers name the subject."""
    agents: tuple[Name, ...] = ("*",)
    """Agent classes that this key reaches. `*`: all."""
    rights: tuple[ServeRight, ...] = ("chat", "read", "approve")
    """What this key allows: `chat`, `read`, `approve`, `act_for`, `operate`, `erase`."""
    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] = 600
    """Requests a minute. One tenth of them may come at once; a further one is refused with 429. A request that
    takes much of the processor counts as several, by its body and by the turns and messages that it reads or records, see
    `docs/server.md`."""
    max_request_bytes: Annotated[int, Field(ge=1_024, le=1_073_741_824)] | None = None
    """Largest body of a request with this key, bytes. A larger one is refused with 413. None: that of `[serve]`, which no key
    can go beyond."""
    max_requests: Positive = 64
    """Requests at the same time. A further one is refused with 429. Turns that continue without their request, in the
    background or because the client went away, count until they end, for requests that begin a turn."""
    schema_ms_per_minute: Annotated[int, Field(ge=10, le=60_000)] = 3_000
    """Processor time for schemas of requests, of functions and of formats of replies, milliseconds a minute: to compile those
    that are new to the server, and to check arguments and replies against them. One tenth of it may be used at once. After
    that, requests with new schemas are refused with 429; where checks alone took so long, all with schemas are, and those by
    which a turn continues. Turns that run are not stopped."""

    subject_share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """For a key with the right `act_for`: the share of `requests_per_minute`, `max_requests` and `schema_ms_per_minute` that
    one subject may use, so that no user of a front end uses up what all its users have. The limits of the key hold for all
    subjects together. 1: a subject has no limit of its own."""

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        for name, value in (("key", self.key), ("subject_secret", self.subject_secret)):
            if value is not None and not is_reference(value):
                raise ValueError(f"`{name}` {REFERENCE}")
        if self.subject_secret is not None and "act_for" not in self.rights:
            raise ValueError("`subject_secret` needs `act_for` among the `rights`")
        if (self.subject is None) != ("act_for" in self.rights) and self.rights != ("operate",):
            raise ValueError("needs either `subject`, or `act_for` among its `rights`")
        return self


class ServeConfig(Settings):
    """`[serve]`: the server of `kitchener serve`. Needs the extra `serve`."""

    gone_keys: ClassVar[Mapping[str, str]] = {
        "max_addresses": "was removed: the server remembers 4,096 addresses with wrong keys, those seen last",
        "local_subject": "was removed: without `clients` the subject is `local`; a client's key has a `subject` of its own",
        "write_timeout_s": "was removed: `request_timeout_s` holds for what the client takes as for what it sends",
        "keep_alive_s": "was removed: a silent stream sends a comment every 15 seconds",
        "warnings_per_minute": "was removed: 10 lines of one kind a minute are logged",
        "max_branches": "was removed: the 16 newest sessions of a conversation are compared",
    }

    host: Name = "127.0.0.1"
    """Address to listen on. Any other than a loopback address needs `clients`."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8_321
    """Port to listen on. 0: a free one."""
    lock_wait_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 0.0
    """How long a server waits at its start for another process to release the root, seconds: the server that it replaces. 0:
    it refuses at once."""
    allowed_hosts: tuple[HostName, ...] = ()
    """Further names by which clients reach the server, as in the header Host, without a port. Loopback names and `host`
    always count."""
    clients: dict[Name, ServeClientConfig] = Field(default_factory=dict)
    """`[serve.clients.<name>]`. Without any, everybody who reaches the server is the subject `local`."""
    session_headers: tuple[HeaderName, ...] = ("X-OpenWebUI-Chat-Id", "X-Chat-Id")
    """Headers in which chat clients name the conversation, first match first. `X-Kitchener-Session` comes before them."""
    subject_headers: tuple[HeaderName, ...] = ("X-Kitchener-Subject", "X-OpenWebUI-User-Id")
    """Headers that name the subject, for keys with the right `act_for`. A request in which two of them differ is refused."""
    subject_token_header: HeaderName = "X-OpenWebUI-User-Jwt"
    """The header with the signed subject of a request, for keys with a `subject_secret`."""
    cache_key_names_session: bool = False
    """Whether `prompt_cache_key` of a request names the conversation, where no header does."""
    utility_calls: Literal["allow", "refuse"] = "allow"
    """What becomes of requests for titles, tags, suggestions and summaries. `allow`: each is one plain model call that is not
    recorded. `refuse`: they are refused, there is no model `<agent>-utility`, and all that the server asks a model is on
    record."""
    utility_prompts: tuple[Name, ...] = (
        "### Task:\n*<chat_history>\n*</chat_history>*",
        "Provide a concise, 5-word-or-less title for the conversation*",
        "Analyze this conversation and provide:\n1. The detected language of the conversation\n2. A concise title *",
        "You have been provided with a set of responses from various models *",
    )
    """Patterns of prompts by which chat clients ask for titles, tags and suggestions, where no header says so; by default
    those of Open WebUI and LibreChat. A conversation that begins with such a message is one plain model call and no turn.
    Each `*` stands for any text. Empty: a prompt alone makes no such call, so headers and the model's name tell;
    `utility_calls` refuses those, too."""
    summary_prompts: tuple[Name, ...] = (
        "Hold on, before you continue I need you to write me a checkpoint of everything so far. Your context window *",
        "Hold on again, update your checkpoint. Merge the new messages into your existing checkpoint *",
    )
    """Patterns of prompts by which chat clients ask for a summary of a long conversation, as its last message; by default
    those of LibreChat. Such a request is one plain model call and no turn. Each `*` stands for any text. Empty: it is a message
    to the agent; `utility_calls` refuses what fits."""
    page: bool = True
    """Whether the server has the web chat at `/`."""
    client_gone: Literal["detach", "cancel"] = "detach"
    """What becomes of a turn whose client goes away. `detach`: it continues, and its reply is in the session. `cancel`: it is
    aborted."""
    wrong_keys_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] = 30
    """Wrong keys a minute that may come from one address. After them it gets 429 for every key that was not good from there
    before."""
    trusted_proxies: tuple[IpAddress, ...] = ()
    """IP addresses of reverse proxies, such as `127.0.0.1`; no names, no networks. Their X-Forwarded-For tells the address
    that wrong keys count for. Nobody else is believed."""
    max_request_bytes: Annotated[int, Field(ge=1_024, le=1_073_741_824)] = 16 * 1_048_576
    """Largest body of a request, bytes. A larger one is refused with 413."""
    request_timeout_s: Seconds = 30.0
    """How long a client may take to send the head of its request, and again for its body, seconds. After that it gets 408. And
    how long it may leave a piece of a stream, or 16 KiB of any answer, untaken before it counts as gone."""
    text_interval_s: Annotated[float, Field(ge=0, le=10)] = 0.03
    """How long text of a stream may wait to be sent with the text that follows, seconds. The first text of a reply never
    waits; what comes before it, such as the head of the answer, may wait for it as long. With more than 12 turns at once the
    time grows in proportion, to half a second. 0: nothing waits."""
    max_requests: Positive = 1_024
    """Requests at the same time, of all keys together. A further one is refused with 503."""
