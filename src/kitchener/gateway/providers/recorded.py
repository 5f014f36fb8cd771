"""Answers requests with the responses that a ledger recorded for the same requests.

A response is found by work order and call number, and returned only if the request has the recorded hash. The provider makes no
model call, so it stays allowed when model calls are forbidden. `kitchener replay` uses it. Explained in `docs/replay.md`.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Self

from kitchener.errors import ProviderError
from kitchener.gateway.traits import ProviderTraits
from kitchener.model_usage import Usage
from kitchener.records.entries import ModelCallPayload, opened, payload_as
from kitchener.records.prompt import PromptRequest, PromptResponse, TextPiece, ToolUse

RequestHash = Callable[[PromptRequest], str]
"""Returns the hash of a request as recorded in the ledger. Only the ledger knows whether the hash is keyed."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded model call."""

    request_hash: str
    prompt_pack_version: str
    """The version of the prompt pack that rendered the request."""
    response: PromptResponse
    """The model's recorded response."""

    @classmethod
    def from_payload(cls, payload: Mapping[str, object]) -> Self:
        """Reads a recording from a decrypted `LLM_CALL` payload. Raises KeyError or TypeError if the payload is invalid."""
        call = payload_as(ModelCallPayload, payload)
        said, usage = opened(call["response"]), call["usage"]
        if said is None:
            raise TypeError("the answer is sealed")
        response = PromptResponse(
            provider_id=call["provider_id"],
            model_id=call["model_id"],
            text=said["text"],
            structured=said.get("structured"),
            tool_uses=tuple(map(ToolUse.of, said["tool_uses"])),
            usage=Usage(
                usage["input_tokens"], usage["output_tokens"], usage.get("cached_tokens"), usage.get("cache_write_tokens")
            ),
            latency_ms=call["latency_ms"],
            finish_reason=call["finish_reason"],
            served_model=said.get("served_model"),
            route_reason=call["route_reason"],
            thinking_tokens=call.get("thinking_tokens", 0),
        )
        return cls(call["request_hash"], call["prompt_pack_version"], response)


class NotRecorded(ProviderError):
    """There is no recording of this call."""

    def __init__(self, provider_id: str, request: PromptRequest) -> None:
        self.request = request
        super().__init__(
            provider_id,
            "not_recorded",
            f"call {request.call} of work order {request.wo_id} ({request.wo_type}) was never recorded;"
            " record the session anew, or find out what asks for one more call",
        )


class RequestChanged(ProviderError):
    """The call was recorded, but another request was made then.

    Attributes:
        request: the current request
        recording: the recorded call
        found: the hash of the current request
    """

    def __init__(self, provider_id: str, request: PromptRequest, recording: Recording, found: str) -> None:
        self.request, self.recording, self.found = request, recording, found
        super().__init__(
            provider_id,
            "not_recorded",
            f"call {request.call} of work order {request.wo_id} ({request.wo_type}) was recorded for another request:"
            f" request_hash {recording.request_hash}, now {found}",
        )


class RecordedProvider:
    """Answers from recordings.

    Args:
        recordings: the calls by work order id and call number
        request_hash: returns the hash of a request in the form of the recordings; None: requests are not compared
        provider_id: the provider's id in errors; responses keep the id of the recorded provider
    """

    def __init__(
        self,
        recordings: Mapping[tuple[str, int], Recording],
        *,
        request_hash: RequestHash | None = None,
        provider_id: str = "recorded",
    ) -> None:
        self._recordings, self._request_hash, self._provider_id = recordings, request_hash, provider_id
        self.traits = ProviderTraits(
            built_in=True, needs_timeout=False, model_id="recorded", media_types=("image/*", "application/pdf", "text/*")
        )

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """Returns the recorded response.

        Raises:
            NotRecorded: the call was not recorded
            RequestChanged: the call was recorded for a request with another hash
        """
        recording = self._recordings.get((request.wo_id, request.call))
        if recording is None:
            raise NotRecorded(self._provider_id, request)
        found = self._request_hash(request) if self._request_hash is not None else recording.request_hash
        if found != recording.request_hash:
            raise RequestChanged(self._provider_id, request, recording, found)
        return recording.response

    async def stream(self, request: PromptRequest) -> AsyncIterator[TextPiece | PromptResponse]:
        """Yields the recorded text in one piece, then the response."""
        response = await self.complete(request)
        if response.text:
            yield TextPiece(1, response.text)
        yield response
