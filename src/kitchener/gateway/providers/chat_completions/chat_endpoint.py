"""Calls the models of one endpoint that speaks OpenAI's chat-completions format, over an HTTP client of our own.

One attempt is one HTTP request; the gateway retries, because it records each attempt. The one exception: if an endpoint refuses
an optional field, the request is sent again without it, and later requests for that model leave it out. Where the caller gives
the value of a field, the refusal holds for that value alone: one user's bad schema must not leave the schemas of all others
unsent. `request_body.py` and `answer_reader.py` have the format. Explained in `docs/gateway.md`.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, get_args
from urllib.parse import urlsplit

import anyio
import orjson

from kitchener.config import ProviderConfig
from kitchener.errors import ProviderError
from kitchener.gateway.providers.bodies import UnusableAnswer, parsed_json
from kitchener.gateway.providers.chat_completions.answer_reader import AnswerReader
from kitchener.gateway.providers.chat_completions.http_pool import TRANSPORT_ERRORS, connection_failure
from kitchener.gateway.providers.chat_completions.request_body import (
    ExtendedBody,
    OptionalField,
    has_calls,
    request_body,
    shows_tools,
)
from kitchener.gateway.providers.chat_completions.token_counts import TokenCounts
from kitchener.gateway.providers.chat_completions.transport import (
    ChatTransport,
    PostedAnswer,
    StatusError,
    open_transport,
)
from kitchener.gateway.providers.endpoint_errors import Hiding, error_in, is_loading, reason_of, redacted_line, told_by
from kitchener.gateway.providers.redaction import RedactedPieces, Redaction
from kitchener.gateway.providers.sent_values import SentValues
from kitchener.gateway.traits import ALL_CONTENT, TEXT_FILES, ProviderTraits
from kitchener.logs import get_logger
from kitchener.model_usage import Usage
from kitchener.records.prompt import NO_TOOL_CHOICE, PromptRequest, PromptResponse, TextPiece

AFTER_END_S: Final = 0.5
"""Longest wait for the end of a connection's answer after its last event, seconds."""
OPENAI_HOSTS: Final = ("api.openai.com", "openai.azure.com")
_OPENROUTER: Final = ".openrouter.ai"
_MISTRAL: Final = ".mistral.ai"
_MARKED_MODELS: Final = "anthropic/"
"""How OpenRouter's names of models begin whose cache needs marks."""

_OPTIONAL: Final[tuple[OptionalField, ...]] = get_args(OptionalField)
_NAMES: Final = {"response_format": ("response_format", "json_schema"), "tool_call_id": ("Tool call id was",)}
"""Words that name a field in an error text, if they are not the field's own name."""
_COUNT: Final = re.compile(r"(?<!HTTP )(?<![\w.-])[0-9]{3,}(?![\w-])")
"""A number that stands by itself, and is no status and no part of a model's name."""
_log = get_logger(__name__)

LOADING_PAUSE_S: Final = 1.0
"""Seconds after which a server that loads its model is asked again."""
REMEMBERED_MODELS: Final = 64
"""Models whose refusals are remembered, those learned last."""
REMEMBERED_VALUES: Final = 1_024
"""Refused values of fields that are remembered, those learned last."""
_OF_CALLER: Final[frozenset[OptionalField]] = frozenset(("response_format", "tool_choice"))
"""The fields whose values callers give."""

_RefusedValue = tuple[str, OptionalField, bytes]
"""A model, a field, and a digest of its value."""


class RefusedFields:
    """Remembers which optional fields of requests the models of an endpoint refuse, so that none of them is sent again.

    Args:
        provider_id: the provider's id in the configuration, for the log
        always: fields that no request has from the start
    """

    def __init__(self, provider_id: str, always: frozenset[OptionalField]) -> None:
        self._provider_id, self.always = provider_id, always
        self._models: OrderedDict[str, frozenset[OptionalField]] = OrderedDict()
        self._values: OrderedDict[_RefusedValue, None] = OrderedDict()

    def of(self, model: str, request: PromptRequest) -> frozenset[OptionalField]:
        """The fields that a request to a model is sent without."""
        refused = self._models.get(model, self.always)
        if not self._values:
            return refused
        return refused.union(field for field in _OF_CALLER if _refused_value(model, field, request) in self._values)

    def add(self, model: str, request: PromptRequest, refused: frozenset[OptionalField]) -> None:
        """Remembers that a model took a request without these fields, after it had refused them."""
        for field in refused & _OF_CALLER:
            if len(self._values) >= REMEMBERED_VALUES:
                self._values.popitem(last=False)
            self._values[_refused_value(model, field, request)] = None
        if others := refused - _OF_CALLER:
            if model not in self._models and len(self._models) >= REMEMBERED_MODELS:
                self._models.popitem(last=False)
            self._models[model] = self._models.get(model, self.always) | others
        _log.info("model refuses fields", provider_id=self._provider_id, model_id=model, fields=sorted(refused))


def _refused_value(model: str, field: OptionalField, request: PromptRequest) -> _RefusedValue:
    given: Mapping[str, object] | str | None = request.output_schema if field == "response_format" else request.tool_choice
    return model, field, hashlib.sha256(orjson.dumps(given, option=orjson.OPT_SORT_KEYS)).digest()


class ChatEndpoint:
    """One configured endpoint. `open_chat_endpoint` opens it and closes it at the end of its block.

    Args:
        provider_id: the provider's id in the configuration, for responses and errors
        transport: the connections to the endpoint
        model_id: the model of requests that name none; None: such requests fail
        redaction: removes the API key from answers and error texts
        media_types: the types of images and files that its models take
        left_out: optional fields that no request has from the start
        marked_models: how the names of models begin whose prompts get marks for their cache; None: no model's
        fields: what the settings add to the body of every request
    """

    def __init__(
        self,
        provider_id: str,
        transport: ChatTransport,
        *,
        model_id: str | None,
        redaction: Redaction,
        media_types: tuple[str, ...],
        left_out: frozenset[OptionalField],
        marked_models: str | None,
        fields: Mapping[str, object],
    ) -> None:
        self._provider_id, self._transport, self._model_id, self._redaction = provider_id, transport, model_id, redaction
        self._counts, self._marked_models = TokenCounts(provider_id), marked_models
        self._body = ExtendedBody(fields) if fields else request_body
        self._refused, self._is_loading = RefusedFields(provider_id, left_out), False
        self.traits = ProviderTraits(model_id=model_id, media_types=media_types)

    def __repr__(self) -> str:
        return f"ChatEndpoint({self._provider_id!r}, model_id={self._model_id!r})"

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """Returns the answer to one request. Does not retry.

        Raises:
            ProviderError: there was no usable answer
        """
        reader = self._reader(request)
        try:
            answer = await self._post(request, streams=False)
            try:
                while bodies := await answer.read():
                    if answer.are_events:
                        raise UnusableAnswer("malformed", "the answer is a stream of events, which was not requested")
                    reader.take(parsed_json(bodies[0]), streams=False)
            finally:
                answer.close()
            reader.rest()
            return self._learned(request, reader.response(is_whole=True))
        except (UnusableAnswer, StatusError, *TRANSPORT_ERRORS) as error:
            with Hiding(error, self._redaction) as cause:
                raise self._failure(error, reader.told_usage) from cause

    async def stream(self, request: PromptRequest) -> AsyncGenerator[TextPiece | PromptResponse, None]:
        """Yields the text of the answer to one request in pieces, then the whole response.

        The text of events that arrived together is one piece, so a burst of tokens costs no more than one.

        Raises:
            ProviderError: there was no usable answer, or it was cut off
        """
        reader, pieces, is_whole = self._reader(request), RedactedPieces(self._redaction), False
        try:
            answer = await self._post(request, streams=True)
            try:
                while bodies := await answer.read():
                    text, is_over, failure = _read(reader, bodies, are_events=answer.are_events)
                    is_whole = is_over or not answer.are_events  # some servers answer as a whole
                    if text and (shown := pieces.take(text)):
                        yield TextPiece(1, shown)
                    if failure is not None:
                        raise failure
                    if is_over:
                        await _read_to_end(answer)
                        break
            finally:
                answer.close()
            if text := pieces.take(reader.rest()) + pieces.rest():
                yield TextPiece(1, text)
            yield self._learned(request, reader.response(is_whole=is_whole))
        except (UnusableAnswer, StatusError, *TRANSPORT_ERRORS) as error:
            with Hiding(error, self._redaction) as cause:
                raise self._failure(error, reader.told_usage) from cause

    def _reader(self, request: PromptRequest) -> AnswerReader:
        asked = request.model_id or self._model_id
        if asked is None:
            raise ProviderError(self._provider_id, "bad_request", "neither the request nor the configuration names a model")
        return AnswerReader(request, self._provider_id, asked, self._redaction, self._counts)

    async def _post(self, request: PromptRequest, *, streams: bool) -> PostedAnswer:
        """Sends a request. Sends it again for each optional field that the endpoint refuses, and until its model is loaded."""
        asked, began = request.model_id or self._model_id or "", anyio.current_time()
        known = without = self._refused.of(asked, request)
        marks = self._marked_models is not None and asked.startswith(self._marked_models)
        while True:
            content = self._body(request, self._provider_id, asked, streams=streams, without=without, marks_cache=marks)
            try:
                answer = await self._transport.post(content)
            except StatusError as error:
                if is_loading(error.status, error.body) and await self._waited(began):
                    continue
                field = _refused_field(error, content) or _refused_form(error, request, without)
                if field is None or field in without:  # a field that the settings add is not left out
                    raise
                without = without | {field}
                continue
            self._is_loading = False
            if without is not known:
                # Remembered only now, because a text that one user caused may name a field by chance.
                self._refused.add(asked, request, without - known)
            return answer

    async def _waited(self, began: float) -> bool:
        """Pauses while a model is loaded, and logs the first pause. Returns False at once if the attempt has no time left."""
        ends = min(anyio.current_effective_deadline(), began + self._transport.timeout_s)
        if anyio.current_time() + 2 * LOADING_PAUSE_S >= ends:  # the next request needs time, too
            return False
        if not self._is_loading:
            self._is_loading = True
            _log.warning("provider loads its model", provider_id=self._provider_id, waits_at_most_s=self._transport.timeout_s)
        await anyio.sleep(LOADING_PAUSE_S)
        return True

    def _learned(self, request: PromptRequest, response: PromptResponse) -> PromptResponse:
        """Remembers a model that calls tools although it must not, so that it is shown none where it must not call any."""
        if response.tool_uses and request.tool_choice == NO_TOOL_CHOICE:
            model = request.model_id or self._model_id or ""
            if "uncalled_tools" not in self._refused.of(model, request):  # a model that goes on calling is logged once
                self._refused.add(model, request, frozenset(("uncalled_tools",)))
        return response

    @property
    def left_out(self) -> frozenset[OptionalField]:
        """Optional fields that no request has from the start."""
        return self._refused.always

    def _failure(self, error: Exception, usage: Usage | None) -> ProviderError:
        """An error as our own, with the tokens of an answer that came."""
        if isinstance(error, UnusableAnswer):
            return ProviderError(self._provider_id, error.reason, self._redaction.text(error.detail), usage=usage)
        if isinstance(error, StatusError):
            return ProviderError(
                self._provider_id,
                reason_of(error.status, error.body),
                redacted_line(_status_text(error), self._redaction),
                status=error.status,
                retry_after_s=error.retry_after_s,
            )
        failure = connection_failure(self._provider_id, error, self._transport.url, self._redaction)
        failure.usage = usage
        return failure


def _read(
    reader: AnswerReader, bodies: list[bytes], *, are_events: bool
) -> tuple[str, bool, UnusableAnswer | ProviderError | None]:
    """Returns the text in events or in a whole body, whether the answer is over, and what is wrong after that text."""
    texts: list[str] = []
    try:
        for body in bodies:
            data = body.strip() if are_events else body
            if data == b"[DONE]":
                return "".join(texts), True, None
            if data:
                texts.append(reader.take(parsed_json(data), streams=are_events))
    except (UnusableAnswer, ProviderError) as error:
        return "".join(texts), False, error
    return "".join(texts), False, None


async def _read_to_end(answer: PostedAnswer) -> None:
    """Reads what follows the last event of a whole answer, so that its connection can be used again; not for long."""
    if not answer.has_arrived:
        with anyio.move_on_after(AFTER_END_S), suppress(UnusableAnswer, *TRANSPORT_ERRORS):
            while await answer.read():
                pass


def _status_text(error: StatusError) -> str:
    if 300 <= error.status < 400:
        return f"HTTP {error.status}: the endpoint redirects, which is not followed; set `base_url` to the final address"
    return told_by(error.status, error.body)


def _refused_field(error: StatusError, content: bytes) -> OptionalField | None:
    """Returns the optional field of a request that an error names as its cause; None: none of them."""
    if error.status not in (400, 422) or reason_of(error.status, error.body) == "context_length":
        return None  # an error about the context names `max_tokens` as a part of it
    body = error_in(error.body)
    named = body.get("param") if isinstance(body, dict) else None
    text = told_by(error.status, error.body)
    for field in _OPTIONAL:
        if f'"{field}":'.encode() in content and (named == field or any(_is_named(each, text) for each in _words_for(field))):
            # The number of tokens was refused, not the field, if the error says how many there may be.
            return None if field == "max_tokens" and _COUNT.search(text) else field
    return None


def _refused_form(error: StatusError, request: PromptRequest, without: frozenset[OptionalField]) -> OptionalField | None:
    """Returns `undescribed_calls` if an error can be about calls whose tools a request left out; None: it is not."""
    left_out = bool(request.tools) and has_calls(request) and not shows_tools(request, without)
    is_about_tools = error.status in (400, 422) and "tool" in told_by(error.status, error.body).lower()
    return "undescribed_calls" if left_out and is_about_tools else None


def _words_for(field: OptionalField) -> tuple[str, ...]:
    return _NAMES.get(field, (field,))


def _is_named(word: str, text: str) -> bool:
    """Whether an error text names a field: as an identifier or a phrase, or in quotation marks if it is an ordinary word."""
    return word in text if "_" in word or " " in word else any(f"{mark}{word}{mark}" in text for mark in "'\"`")


@asynccontextmanager
async def open_chat_endpoint(provider_id: str, config: ProviderConfig, sent: SentValues) -> AsyncIterator[ChatEndpoint]:
    """Opens an endpoint with a pool of connections of its own for the block, and yields it.

    Args:
        provider_id: the provider's id in the configuration
        config: the provider's settings, of kind `openai_compatible`
        sent: the API key, and what is sent beside it

    Raises:
        ConfigError: the key, the proxy or the certificates cannot be used
    """
    redaction = sent.redaction()
    async with open_transport(provider_id, config, sent, redaction) as transport:
        yield ChatEndpoint(
            provider_id,
            transport,
            model_id=config.model,
            redaction=redaction,
            media_types=ALL_CONTENT if is_of_openai(config.base_url or "") else TEXT_FILES,
            left_out=left_out_by(config),
            marked_models=marked_models_of(config),
            fields=config.request_fields,
        )


def left_out_by(config: ProviderConfig) -> frozenset[OptionalField]:
    """The optional fields that no request to an endpoint has from the start.

    OpenAI's own takes `max_completion_tokens` only. Mistral's own, told that none of the described tools may be called, answers
    with broken text, as its adapter in the library `pydantic-ai` says.
    """
    is_openai, host = is_of_openai(config.base_url or ""), urlsplit(config.base_url or "").hostname or ""
    keys_cache = config.prompt_cache == "on" or (config.prompt_cache == "auto" and is_openai)
    left_out: dict[OptionalField, bool] = {
        "max_tokens": is_openai,
        "prompt_cache_key": not keys_cache,
        "temperature": "temperature" in config.request_fields,
        "uncalled_tools": host.endswith(_MISTRAL),
    }
    return frozenset(field for field, is_left_out in left_out.items() if is_left_out)


def marked_models_of(config: ProviderConfig) -> str | None:
    """How the names of models begin whose prompts get marks for their cache; "": all models; None: none."""
    if config.prompt_cache == "marks":
        return ""
    is_openrouter = f".{urlsplit(config.base_url or '').hostname}".endswith(_OPENROUTER)
    return _MARKED_MODELS if is_openrouter and config.prompt_cache != "off" else None


def is_of_openai(url: str) -> bool:
    """Whether an address is OpenAI's own endpoint, or Azure's of its models."""
    return (urlsplit(url).hostname or "").endswith(OPENAI_HOSTS)
