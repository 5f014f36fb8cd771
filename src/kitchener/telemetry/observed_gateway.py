"""The gateway that also tells of each attempt of a model call: a retry and a fallback have a span of their own.

The built-in rules, which classify without a model, have none.
"""

import re
from collections.abc import Mapping
from typing import Final

from opentelemetry.trace import SpanKind

from kitchener.config import LimitsConfig, RouterConfig
from kitchener.errors import ProviderError
from kitchener.gateway import LLMGateway
from kitchener.gateway.attempts import Attempts, PlannedAttempt
from kitchener.gateway.providers.trace_headers import TRACE_HEADERS, trace_lines
from kitchener.lanes.envelope import Outlet
from kitchener.model_usage import Usage
from kitchener.records.prompt import RULES_PROVIDER, PromptRequest, PromptResponse, Provider, StreamRestart, TextPiece
from kitchener.telemetry import names
from kitchener.telemetry.captured_content import attribute_json, content_of, finish_reason_of
from kitchener.telemetry.spans import AttributeValue, OpenSpan, Tracing

MAX_SERVED_MODELS: Final = 32
"""Most model names taken from a provider's answers. Each name is a new label of the metrics."""
_NAME: Final = re.compile(r"[\w.:/@+-]{1,128}", re.ASCII)
"""What an answer may call its model here. Any other text might be words of a person, which the provider repeats."""


class ObservedGateway(LLMGateway):
    """Makes attempts, each in a span `chat {model}`."""

    def __init__(
        self, tracing: Tracing, config: RouterConfig, providers: Mapping[str, Provider], *, limits: LimitsConfig
    ) -> None:
        self._tracing, self._served_models = tracing, dict[str, set[str]]()
        super().__init__(config, providers, limits=limits)

    async def attempt(self, attempts: Attempts) -> PromptResponse | BaseException:
        planned, request, tracing = attempts.planned, attempts.request, self._tracing
        if planned.target.provider_id == RULES_PROVIDER:
            return await super().attempt(attempts)
        labels: dict[str, AttributeValue] = {
            names.OPERATION: names.CHAT,
            names.PROVIDER_NAME: _provider_name(planned),
            names.REQUEST_MODEL: planned.model_name,
        }
        known = {**labels, **_request_attributes(request, planned), names.ATTEMPT: attempts.number + 1}
        outlet, name = attempts.outlet, f"{names.CHAT} {planned.model_name}"
        with OpenSpan(tracing, name, SpanKind.CLIENT, known, tracing.instruments.call, labels) as call:
            if outlet is not None:
                attempts.outlet = _NotedOutlet(outlet, call)
            response: PromptResponse | None = None
            if planned.target.config.send_traceparent:
                TRACE_HEADERS.set(trace_lines(call.headers()))  # until the next attempt of this worker sets its own
            try:
                reply = await super().attempt(attempts)
                if isinstance(reply, PromptResponse):
                    response = reply
                    self._answered(call, reply)
                return reply
            except ProviderError as error:
                if error.usage is not None:
                    self._used(call, error.usage)
                raise
            finally:
                attempts.outlet = outlet
                self._tell_content(call, known, request, response)

    def _answered(self, call: OpenSpan, response: PromptResponse) -> None:
        model = self._model_of(response)
        call.note({names.RESPONSE_MODEL: model, names.FINISH_REASONS: [finish_reason_of(response)]})
        call.label(names.RESPONSE_MODEL, model)
        self._used(call, response.usage)

    def _used(self, call: OpenSpan, usage: Usage) -> None:
        """Adds the tokens of an answer, usable or not."""
        tokens = self._tracing.instruments.tokens
        known: dict[str, AttributeValue] = {names.INPUT_TOKENS: usage.input_tokens, names.OUTPUT_TOKENS: usage.output_tokens}
        if usage.cached_tokens:
            known[names.CACHE_READ_TOKENS] = usage.cached_tokens
        if usage.cache_write_tokens:
            known[names.CACHE_WRITE_TOKENS] = usage.cache_write_tokens
        call.note(known)
        call.measure(tokens, usage.input_tokens, {names.TOKEN_TYPE: "input"})
        call.measure(tokens, usage.output_tokens, {names.TOKEN_TYPE: "output"})

    def _model_of(self, response: PromptResponse) -> str:
        """What an answer calls its model, or the name that was requested if the answer gives no name, or too many differ."""
        name, known = response.served_model, self._served_models.setdefault(response.provider_id, set())
        if name is None or (name not in known and (len(known) >= MAX_SERVED_MODELS or not _NAME.fullmatch(name))):
            return response.model_id
        known.add(name)
        return name

    def _tell_content(
        self, call: OpenSpan, known: dict[str, AttributeValue], request: PromptRequest, response: PromptResponse | None
    ) -> None:
        """Adds the messages to the span, and writes them as an event, if the environment asks for it."""
        content = self._tracing.content
        if content.in_spans:
            call.note(lambda: {key: attribute_json(value) for key, value in content_of(request, response).items()})
        if content.in_events:
            call.tell(names.INFERENCE_DETAILS, lambda: {**known, **content_of(request, response)})


class _NotedOutlet(Outlet[TextPiece | StreamRestart]):
    """Notes when the first text of a stream came, and hands everything on."""

    __slots__ = ("_call", "_has_begun", "_outlet")

    def __init__(self, outlet: Outlet[TextPiece | StreamRestart], call: OpenSpan) -> None:
        super().__init__()
        self._outlet, self._call, self._has_begun = outlet, call, False
        call.note({names.REQUEST_STREAM: True})

    async def give(self, item: TextPiece | StreamRestart) -> None:
        if not self._has_begun and isinstance(item, TextPiece):
            self._has_begun, after_s = True, self._call.elapsed_s()
            self._call.note({names.TIME_TO_FIRST_CHUNK: after_s})
            self._call.measure(self._call.tracing.instruments.first_chunk, after_s)
        await self._outlet.give(item)


def _request_attributes(request: PromptRequest, planned: PlannedAttempt) -> dict[str, AttributeValue]:
    own = planned.target.config.temperature
    asked: dict[str, AttributeValue] = {
        names.REQUEST_MAX_TOKENS: request.max_tokens,
        names.REQUEST_TEMPERATURE: request.temperature if own is None else own,
        names.CONVERSATION_ID: request.session_id,
        names.SESSION_ID: request.session_id,
        names.WORK_ORDER_ID: request.wo_id,
        names.PROVIDER_ID: planned.target.provider_id,
        names.ROUTE_REASON: planned.route_reason,
    }
    return {**asked, names.TURN_ID: request.turn_id} if request.turn_id else asked


def _provider_name(planned: PlannedAttempt) -> str:
    """The vendor as the conventions call it, or the id of the provider in the settings."""
    vendor = (planned.target.config.model or "").partition(":")[0]
    known = names.VENDORS.get(vendor) if planned.target.config.is_vendor else None
    return known or planned.target.provider_id
