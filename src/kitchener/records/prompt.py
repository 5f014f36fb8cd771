"""A request to a model and its answer, and the protocols of those who carry them.

Plain immutable records: they are made and read on every model call. Vendor types never appear here.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

import orjson

from kitchener.plain_names import quoted
from kitchener.records.entries.execution import FinishReason, ToolUseMapping
from kitchener.records.entries.work_orders import WorkOrderType


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A model asks for a tool."""

    use_id: str
    """The provider's id of this request, echoed with the result."""
    tool_id: str
    """Which tool."""
    arguments: Mapping[str, Any]
    """Its arguments, not yet validated."""

    def as_mapping(self) -> ToolUseMapping:
        """This request as a JSON object."""
        return {"use_id": self.use_id, "tool_id": self.tool_id, "arguments": dict(self.arguments)}


class Message(NamedTuple):
    """One message of the conversation with the model."""

    role: Literal["system", "user", "assistant", "tool"]
    """Who speaks. `tool` carries one tool's result."""
    content: str
    """What is said; of a tool, its result as JSON text."""
    tool_uses: tuple[ToolUse, ...] = ()
    """Tools that an assistant message asks for."""
    tool_use_id: str | None = None
    """Which request a tool message answers."""
    tool_id: str | None = None
    """Which tool a tool message comes from."""

    def as_mapping(self) -> dict[str, object]:
        """This message as a JSON object, without what is absent."""
        mapping: dict[str, object] = {"role": self.role, "content": self.content}
        if self.tool_uses:
            mapping["tool_uses"] = [use.as_mapping() for use in self.tool_uses]
        if self.tool_use_id is not None:
            mapping["tool_use_id"] = self.tool_use_id
        if self.tool_id is not None:
            mapping["tool_id"] = self.tool_id
        return mapping


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it."""

    tool_id: str
    """Its name."""
    description: str
    """What it does and when to use it."""
    parameters: Mapping[str, object]
    """JSON schema of its arguments."""


class PromptRequest(NamedTuple):
    """One call of a model. Name its fields when you make one: there are many."""

    contract_id: str
    """The prompt contract it was rendered from."""
    wo_type: WorkOrderType
    """What kind of work it is."""
    prompt_pack_version: str
    """Pack id, `@` and the first 8 hex digits of its hash."""
    messages: tuple[Message, ...]
    """The rendered conversation."""
    variables: Mapping[str, Any]
    """The validated input it was rendered from: for local providers, neither sent nor hashed."""
    call: int
    """Number of this call within its work order, from 1; not hashed."""
    session_id: str
    """For fair queues and records; not hashed."""
    wo_id: str
    """The work order; not hashed."""
    subject_id: str
    """Whose conversation; fair queues share out by it; not hashed."""
    deadline: float
    """On the event loop's clock, seconds; no attempt runs past it; not hashed."""
    max_tokens: int
    """Largest answer."""
    temperature: float
    """Sampling temperature."""
    provider_id: str | None = None
    """Asked for explicitly."""
    model_id: str | None = None
    """Asked for explicitly. A provider receives the model that routing settled on here."""
    domain_tags: tuple[str, ...] = ()
    """Tags to route by."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the model may ask for."""
    output_schema: Mapping[str, object] | None = None
    """JSON schema of the answer, where it is to be structured."""
    restart_streams: bool = False
    """The reader of this stream can take back text: after output has begun, a failed attempt may start over."""


MOST_TOKENS: Final = 1_000_000_000
"""More than any model takes or gives in one answer, and so few that no session's sum outgrows what a ledger stores."""
_COUNTS: Final = ("input_tokens", "output_tokens", "cached_tokens")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer, as the provider counted them."""

    input_tokens: int
    """Tokens sent, cached ones included."""
    output_tokens: int
    """Tokens received."""
    cached_tokens: int | None = None
    """Tokens of the input that came from the provider's cache; None: it did not say."""

    def problem(self) -> str | None:
        """What cannot be a count of tokens, with its value; None where all can."""
        for place, count in enumerate((self.input_tokens, self.output_tokens, self.cached_tokens or 0)):
            if type(count) is not int or not 0 <= count <= MOST_TOKENS:  # a bool is no count either
                return f"usage.{_COUNTS[place]} = {quoted(count)}: expected a whole number from 0 to {MOST_TOKENS:,}"
        return None

    def as_json(self) -> orjson.Fragment:
        """The counts as canonical JSON, to stand inside a payload."""
        cached = "" if self.cached_tokens is None else f'"cached_tokens":{self.cached_tokens:d},'
        text = f'{{{cached}"input_tokens":{self.input_tokens:d},"output_tokens":{self.output_tokens:d}}}'
        return orjson.Fragment(text.encode())


class Attempt(NamedTuple):
    """One try at one provider, told as it happens."""

    state: Literal["started", "failed"]
    """`started` before the call goes out; `failed` when it did not answer. Success is the response itself."""
    call: int
    """Call number within the work order."""
    attempt: int
    """From 1 over all providers of this call."""
    provider_id: str
    """Where it went."""
    model_id: str
    """Which model was asked."""
    route_reason: str
    """`explicit`, `domain_tag:<tag>`, `default` or `fallback`."""
    reason: str | None = None
    """Why it failed (`ProviderReason`)."""
    detail: str | None = None
    """The failure in words; may quote the provider."""
    output_begun: bool = False
    """Whether text had been streamed before it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResponse:
    """A model's answer."""

    provider_id: str
    """Who answered."""
    model_id: str
    """Which model answered, by the name under which it was asked for: it is recorded in plain."""
    text: str
    """Its text; "" where it only asked for tools."""
    structured: dict[str, Any] | None = None
    """Its text as an object, where the provider already gave one."""
    tool_uses: tuple[ToolUse, ...] = ()
    """Tools it asks for."""
    usage: Usage
    """Tokens, as counted by the provider."""
    latency_ms: int = 0
    """Of the attempt that answered, milliseconds."""
    finish_reason: FinishReason = "stop"
    """Why it stopped."""
    served_model: str | None = None
    """What the answer itself calls its model, where that is another name: content, recorded and sealed with the text."""
    attempts: int = 1
    """Attempts that were made, this one included."""
    route_reason: str = "default"
    """`explicit`, `domain_tag:<tag>`, `default` or `fallback`. Set by the gateway."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Some text of an answer that is still being made."""

    attempt: int
    """Which attempt it belongs to."""
    text: str
    """The text, to be appended to what came before in this attempt."""


@dataclass(frozen=True, slots=True)
class StreamRestart:
    """What was streamed so far is void: a new attempt begins."""

    attempt: int
    """The new attempt."""


StreamItem = TextPiece | StreamRestart | PromptResponse
"""What a stream yields; the response comes last, exactly once."""


class OnAttempt(Protocol):
    """Who records attempts."""

    def __call__(self, attempt: Attempt, /) -> Awaitable[object]:
        """Takes note of an attempt before the call goes on: it is awaited, what it gives is not looked at."""
        ...


class PromptGateway(Protocol):
    """What HO1 sees of the gateway."""

    async def complete(self, request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
        """The model's answer, after retries and fallbacks; raises ProviderError when all are exhausted."""
        ...

    def stream(self, request: PromptRequest, *, on_attempt: OnAttempt) -> AsyncIterator[StreamItem]:
        """The same answer as it is being made; the last item is the whole response."""
        ...


class Provider(Protocol):
    """What the gateway sees of a provider. A provider that can stream also has `stream` (see `StreamingProvider`)."""

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """One attempt, without retries of its own; raises ProviderError on failure."""
        ...


class StreamingProvider(Provider, Protocol):
    """A provider that can give text as it is made."""

    def stream(self, request: PromptRequest) -> AsyncIterator[TextPiece | PromptResponse]:
        """Text pieces (their attempt number is set by the gateway), then the whole response."""
        ...
