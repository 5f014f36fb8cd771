"""A provider whose answers stand in a ledger: what a model said once, it says again to the same request.

An answer is looked up by work order and call number, and given only if the request has the hash of the recorded one. It makes
no model call, so it stays allowed where those are forbidden. `kitchener replay` stands on it; explained in `docs/replay.md`.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from kitchener.errors import ProviderError
from kitchener.gateway.traits import Traits
from kitchener.records.prompt import PromptRequest, PromptResponse, TextPiece, ToolUse, Usage

RequestHash = Callable[[PromptRequest], str]
"""The hash of a request as the ledger has it; the ledger alone knows whether it is keyed."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded model call."""

    request_hash: str
    """Of the request that was answered."""
    prompt_pack_version: str
    """The pack it was rendered from."""
    response: PromptResponse
    """What the model said."""

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Self:
        """The call of an `LLM_CALL` payload, opened where it was sealed; raises KeyError or TypeError where it is none."""
        said, usage = payload["response"], payload["usage"]
        response = PromptResponse(
            provider_id=payload["provider_id"],
            model_id=payload["model_id"],
            text=said["text"],
            structured=said.get("structured"),
            tool_uses=tuple(ToolUse(each["use_id"], each["tool_id"], each["arguments"]) for each in said["tool_uses"]),
            usage=Usage(usage["input_tokens"], usage["output_tokens"], usage.get("cached_tokens")),
            latency_ms=payload["latency_ms"],
            finish_reason=payload["finish_reason"],
            served_model=said.get("served_model"),
            route_reason=payload["route_reason"],
        )
        return cls(payload["request_hash"], payload["prompt_pack_version"], response)


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
        request: the one that was made now
        recording: the call as it was
        found: the hash of the request that was made now
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
        request_hash: the hash of a request, as it stands in the recordings; None: any request will do
        provider_id: what it calls itself in its errors; its answers name who gave them first
    """

    def __init__(
        self,
        recordings: Mapping[tuple[str, int], Recording],
        *,
        request_hash: RequestHash | None = None,
        provider_id: str = "recorded",
    ) -> None:
        self._recordings, self._request_hash, self._provider_id = recordings, request_hash, provider_id
        self.traits = Traits(built_in=True, needs_timeout=False, model_id="recorded")

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """The recorded answer.

        Raises:
            NotRecorded: no such call was recorded
            RequestChanged: it was recorded for a request with another hash
        """
        recording = self._recordings.get((request.wo_id, request.call))
        if recording is None:
            raise NotRecorded(self._provider_id, request)
        found = self._request_hash(request) if self._request_hash is not None else recording.request_hash
        if found != recording.request_hash:
            raise RequestChanged(self._provider_id, request, recording, found)
        return recording.response

    async def stream(self, request: PromptRequest) -> AsyncIterator[TextPiece | PromptResponse]:
        """The same answer, its text in one piece."""
        response = await self.complete(request)
        if response.text:
            yield TextPiece(1, response.text)
        yield response
