"""A request to a model, its answer, and the protocols of gateways and providers.

The records are plain and immutable, because every model call makes and reads them. Vendor types never appear here.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

from kitchener.errors import ProviderReason
from kitchener.model_usage import Usage
from kitchener.records.entries.execution import FinishReason, ToolUseMapping
from kitchener.records.entries.work_orders import WorkOrderType
from kitchener.records.parts import MessagePart

CUT_SHORT: Final[frozenset[FinishReason]] = frozenset(("length", "content_filter"))
"""Finish reasons of an answer whose text is only a beginning."""


class Echo(NamedTuple):
    """What a provider sent with a tool request of its own and wants back with it, such as a signature or its thoughts."""

    provider_id: str
    """The provider. No other gets it."""
    fields: str
    """The fields as the text of a JSON object. Only the provider's adapter reads it."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A model's request to call a tool."""

    use_id: str
    """The provider's id of this request; the tool's result repeats it."""
    tool_id: str
    arguments: Mapping[str, Any]
    """The arguments, not validated yet."""
    problem: str | None = None
    """Why the arguments could not be read, as the model is told; they are empty then. None: they were read."""
    echo: Echo | None = None
    """What goes back to the provider with the request. None: nothing does."""

    @classmethod
    def of(cls, mapping: ToolUseMapping) -> "ToolUse":
        """Reads what `as_mapping` returns."""
        sent = mapping.get("echo")
        echo = Echo(sent["provider_id"], sent["fields"]) if sent is not None else None
        return cls(mapping["use_id"], mapping["tool_id"], mapping["arguments"], mapping.get("problem"), echo)

    def as_mapping(self) -> ToolUseMapping:
        """Returns the request as a JSON object."""
        found: ToolUseMapping = {"use_id": self.use_id, "tool_id": self.tool_id, "arguments": dict(self.arguments)}
        if self.problem is not None:
            found["problem"] = self.problem
        if self.echo is not None:
            found["echo"] = {"provider_id": self.echo.provider_id, "fields": self.echo.fields}
        return found


class Message(NamedTuple):
    """One message of the conversation with the model."""

    role: Literal["system", "user", "assistant", "tool"]
    """The speaker. A `tool` message carries the result of one tool."""
    content: str
    """The text; for a tool, its result as JSON."""
    tool_uses: tuple[ToolUse, ...] = ()
    """The tool calls that an assistant message requests."""
    tool_use_id: str | None = None
    """Id of the request that a tool message answers; None: it is no tool message."""
    tool_id: str | None = None
    """The tool whose result this is; None: it is no tool message."""
    parts: tuple[MessagePart, ...] = ()
    """Images and files of a user message, which follow its text."""

    def as_mapping(self) -> dict[str, object]:
        """Returns the message as a JSON object, without empty fields."""
        mapping: dict[str, object] = {"role": self.role, "content": self.content}
        if self.tool_uses:
            mapping["tool_uses"] = [use.as_mapping() for use in self.tool_uses]
        if self.tool_use_id is not None:
            mapping["tool_use_id"] = self.tool_use_id
        if self.tool_id is not None:
            mapping["tool_id"] = self.tool_id
        if self.parts:
            mapping["parts"] = [each.as_mapping() for each in self.parts]
        return mapping


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it."""

    tool_id: str
    description: str
    """What the tool does and when to use it."""
    parameters: Mapping[str, object]
    """JSON schema of the arguments."""


class PromptRequest(NamedTuple):
    """One call of a model. Pass its fields by name."""

    contract_id: str
    """The prompt contract that the messages were rendered from."""
    wo_type: WorkOrderType
    """The type of the work order."""
    prompt_pack_version: str
    """Id of the prompt pack, `@`, and the first 8 hex digits of the pack's hash."""
    messages: tuple[Message, ...]
    """The rendered conversation."""
    variables: Mapping[str, Any]
    """The validated input of the messages, for local providers. It is neither sent nor hashed."""
    call: int
    """Number of this call within its work order, from 1; not hashed."""
    session_id: str
    """The session, for records; not hashed."""
    wo_id: str
    """The work order, for records; not hashed."""
    subject_id: str
    """The subject. Limits are shared out fairly between subjects; not hashed."""
    deadline: float
    """On the event loop's clock, seconds; no attempt runs past it. Not hashed."""
    max_tokens: int
    """Most tokens of the answer."""
    temperature: float
    """Sampling temperature."""
    provider_id: str | None = None
    """Asked for explicitly."""
    model_id: str | None = None
    """Asked for explicitly. A provider receives the model that routing settled on here."""
    domain_tags: tuple[str, ...] = ()
    """Tags that choose a route."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that the model may request."""
    output_schema: Mapping[str, object] | None = None
    """JSON schema of a structured answer; None: the answer is text."""
    tool_choice: str | None = None
    """What the answer must call: `required` (any of `tools`), the id of one of them, or `none`. None: the model chooses."""
    restart_streams: bool = False
    """Whether the stream's reader can withdraw text. If so, a failed attempt is retried even after output has begun."""
    turn_id: str = ""
    """The turn, whose spending may be limited; "": it belongs to none. Not hashed."""
    tokens_left: int | None = None
    """Most output tokens, those for thoughts included, which `max_tokens` does not count; None: no limit. Not hashed."""

    @property
    def may_call_tools(self) -> bool:
        """Whether the answer may request one of `tools`. With the choice `none` they are only shown, so that a provider's cache
        can serve the prompt."""
        return bool(self.tools) and self.tool_choice != NO_TOOL_CHOICE

    @property
    def text_bytes(self) -> int:
        """Bytes of the messages' texts, in UTF-8."""
        return sum(len(each.content.encode()) for each in self.messages)

    @property
    def part_tokens(self) -> int:
        """Tokens that the images and files of the messages are estimated to cost."""
        return sum(part.stored.tokens for each in self.messages for part in each.parts)


NO_TOOL_CHOICE: Final = "none"
"""A `tool_choice`: no tool may be called."""
ANY_TOOL_CHOICE: Final = "required"
"""A `tool_choice`: some tool must be called."""
UTILITY_TAG: Final = "utility"
"""Domain tag of a server's calls for titles, tags and summaries, which no work order makes."""
RULES_PROVIDER: Final = "rules"
"""The built-in provider that classifies messages by rules (`classify = "rules"`)."""
RULES_MODEL: Final = "kitchener-rules-1"
"""What `RULES_PROVIDER` calls its model. Its answers use no tokens and count as no model call."""

RouteKind = Literal["explicit", "domain_tag", "default", "fallback"]
"""Why a provider was chosen: the request named it, a domain tag or the default led to it, or an earlier one failed."""
_ROUTE_KINDS: Final[Mapping[str, RouteKind]] = {
    "explicit": "explicit",
    "domain_tag": "domain_tag",
    "default": "default",
    "fallback": "fallback",
}


def route_kind(route_reason: str) -> tuple[RouteKind | None, str]:
    """The kind of a recorded `route_reason` and, of `domain_tag:<tag>`, the tag; None: another program wrote the reason."""
    kind, _, tag = route_reason.partition(":")
    return _ROUTE_KINDS.get(kind), tag


class Attempt(NamedTuple):
    """One attempt at one provider, as reported while it happens."""

    state: Literal["started", "failed"]
    """`started` before the call goes out; `failed` if it gave no answer. A success is not reported; it is the response."""
    call: int
    """Number of the call within the work order, from 1."""
    attempt: int
    """Number of the attempt, from 1, counted over all providers of the call."""
    provider_id: str
    model_id: str
    """The requested model."""
    route_reason: str
    """`explicit`, `domain_tag:<tag>`, `default` or `fallback`."""
    reason: ProviderReason | None = None
    """Why it failed; None: it started."""
    detail: str | None = None
    """The failure in words, which may quote the provider; None: it started."""
    output_begun: bool = False
    """Whether it had streamed text before it failed."""
    usage: Usage | None = None
    """The tokens of an answer that came but could not be used; None: none came, they are not known, or it started."""
    max_tokens: int = 0
    """Most output tokens, of an attempt that started; 0 where it was read from a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResponse:
    """A model's answer."""

    provider_id: str
    """The provider that answered."""
    model_id: str
    """The model, by the name that was requested. It is recorded unsealed."""
    text: str
    """The text; "" if the answer only requests tools."""
    structured: dict[str, Any] | None = None
    """The text as an object, if the provider parsed it; None: it did not."""
    tool_uses: tuple[ToolUse, ...] = ()
    """The tool calls that it requests."""
    usage: Usage
    """Tokens, as the provider counted them."""
    latency_ms: int = 0
    """Duration of the attempt that answered, milliseconds."""
    finish_reason: FinishReason = "stop"
    """Why the model stopped."""
    served_model: str | None = None
    """The name that the answer itself gives its model, if it differs; None: it does not. It is sealed with the text."""
    attempts: int = 1
    """Number of attempts, including this one."""
    route_reason: str = "default"
    """`explicit`, `domain_tag:<tag>`, `default` or `fallback`. Set by the gateway."""
    thinking_tokens: int = 0
    """The output tokens that it could have for thoughts, beside the `max_tokens` of the request. Set by the gateway."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of text of an unfinished answer."""

    attempt: int
    """Number of the attempt that the text belongs to."""
    text: str
    """The text, which follows the earlier pieces of this attempt."""


@dataclass(frozen=True, slots=True)
class StreamRestart:
    """Withdraws all text streamed so far, because a new attempt begins."""

    attempt: int
    """Number of the new attempt."""


StreamItem = TextPiece | StreamRestart | PromptResponse
"""One item of a stream. The response comes last, exactly once."""


class OnAttempt(Protocol):
    """Records attempts."""

    def __call__(self, attempt: Attempt, /) -> Awaitable[object]:
        """Records an attempt. The call continues when this returns; the returned value is ignored."""
        ...


class PromptGateway(Protocol):
    """The gateway, as HO1 sees it."""

    async def complete(self, request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
        """Returns the model's answer, after retries and fallbacks. Raises ProviderError if no attempt gave one."""
        ...

    def stream(self, request: PromptRequest, *, on_attempt: OnAttempt) -> AsyncIterator[StreamItem]:
        """Yields the answer as the provider produces it; the last item is the whole response."""
        ...


class Provider(Protocol):
    """A provider, as the gateway sees it. A provider that can stream also has `stream` (see `StreamingProvider`)."""

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """Returns the answer of one attempt, without retries of its own. Raises ProviderError if there is none."""
        ...


class StreamingProvider(Provider, Protocol):
    """A provider that can yield text as the model produces it."""

    def stream(self, request: PromptRequest) -> AsyncIterator[TextPiece | PromptResponse]:
        """Yields pieces of text, then the whole response. The gateway sets the attempt numbers of the pieces."""
        ...
