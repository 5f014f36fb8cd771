"""Answers requests from a script: a list of answers, or a function of the request. For tests and benchmarks.

A script can imitate everything that a gateway sees of a provider: answers, tool requests, streams, failures and delays.
"""

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Self

import anyio
import orjson

from kitchener.errors import ProviderError
from kitchener.gateway.traits import ProviderTraits
from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptRequest, PromptResponse, TextPiece, ToolUse

ScriptedAnswer = PromptResponse | str | Mapping[str, object] | ToolUse | tuple[ToolUse, ...] | BaseException
"""One answer of a script: a whole response, text, an object (sent as JSON), tool requests, or an error to raise. Of an object
with `response_text`, only that text is sent where the request asks for text."""
AnswerFunction = Callable[[PromptRequest], ScriptedAnswer | Awaitable[ScriptedAnswer]]

_WORDS = re.compile(r"\S+\s*|\s+")


class ScriptedProvider:
    """A provider with the answers of a script.

    Args:
        answers: the answers in order, or a function of the request, plain or async
        provider_id: the provider id of the responses
        model_id: the model id of the responses, if the request names no model
        gate: awaited with the request before each answer, so that a test can delay the call or make it fail
        latency_s: duration of each answer, seconds on the event loop's clock
        record: whether to keep the requests in `requests`; benchmarks turn it off to save memory
        media_types: the types of images and files that it takes
    """

    requests: list[PromptRequest]
    """All requests, in order of arrival."""

    def __init__(
        self,
        answers: Iterable[ScriptedAnswer] | AnswerFunction,
        *,
        provider_id: str = "scripted",
        model_id: str = "scripted-1",
        gate: Callable[[PromptRequest], Awaitable[object]] | None = None,
        latency_s: float = 0.0,
        record: bool = True,
        media_types: tuple[str, ...] = ("image/*", "application/pdf", "text/*"),
    ) -> None:
        self.requests = []
        self._function = answers if callable(answers) else None
        self._answers = None if callable(answers) else list(answers)
        self._provider_id, self._model_id = provider_id, model_id
        self._gate, self._latency_s, self._record = gate, latency_s, record
        self._used = self._made = 0
        waits = gate is not None or latency_s > 0 or inspect.iscoroutinefunction(self._function)
        self.traits: ProviderTraits = ProviderTraits(
            built_in=True, needs_timeout=waits, model_id=model_id, media_types=media_types
        )

    @classmethod
    def replies(cls, text: str, *, record: bool = False, latency_s: float = 0.0) -> Self:
        """Returns a provider with one fixed, valid answer for each type of work order.

        It classifies each message as a question that continues the conversation, replies with `text`, accepts each reply, and
        learns the same sentence from each signal.
        """
        prepared = {wo_type: _response("scripted", "scripted-1", answer, 1) for wo_type, answer in _fitting(text).items()}
        other = prepared["synthesize"]

        def answer(request: PromptRequest) -> PromptResponse:
            return prepared.get(request.wo_type, other)

        return cls(answer, record=record, latency_s=latency_s)

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """Returns the script's next answer.

        Raises:
            ProviderError: no answer is left in the list (`exhausted`)
            BaseException: the error that the script says to raise
        """
        if self._record:
            self.requests.append(request)
        if self._gate is not None:
            await self._gate(request)
        if self._latency_s:
            await anyio.sleep(self._latency_s)
        said = self._next(request) if self._function is None else self._function(request)
        if isinstance(said, PromptResponse):
            return said
        answer = await said if isinstance(said, Awaitable) else said
        if isinstance(answer, PromptResponse):
            return answer
        if isinstance(answer, BaseException):
            raise answer
        self._made += 1
        if request.output_schema is None and isinstance(answer, Mapping):
            reply = answer.get("response_text")
            answer = reply if isinstance(reply, str) else answer
        return _response(self._provider_id, request.model_id or self._model_id, answer, self._made)

    async def stream(self, request: PromptRequest) -> AsyncIterator[TextPiece | PromptResponse]:
        """Yields the script's next answer word by word, then the whole response."""
        for item in word_by_word(await self.complete(request)):
            yield item

    def _next(self, request: PromptRequest) -> ScriptedAnswer:
        answers = self._answers or []
        if self._used >= len(answers):
            raise ProviderError(
                self._provider_id,
                "exhausted",
                f"the script has {len(answers)} answers and all are used; request {self._used + 1} is"
                f" {request.wo_type} of work order {request.wo_id}, call {request.call}",
            )
        self._used += 1
        return answers[self._used - 1]


def use_tool(tool_id: str, /, **arguments: object) -> ToolUse:
    """Returns a script's answer that requests a tool, e.g. `use_tool("read_file", path="notes.txt")`."""
    return ToolUse("", tool_id, arguments)


def _response(
    provider_id: str, model_id: str, answer: str | Mapping[str, object] | ToolUse | tuple[ToolUse, ...], number: int
) -> PromptResponse:
    text = ""
    structured: dict[str, object] | None = None
    tool_uses: tuple[ToolUse, ...] = ()
    if isinstance(answer, str):
        text = answer
    elif isinstance(answer, ToolUse):
        tool_uses = (answer,)
    elif isinstance(answer, tuple):
        tool_uses = answer
    else:
        structured = dict(answer)
        text = orjson.dumps(structured).decode()
    # Real providers give each tool request an id of its own, and the conversation relies on it.
    tool_uses = tuple(
        use if use.use_id else ToolUse(f"use-{number}-{n}", use.tool_id, use.arguments) for n, use in enumerate(tool_uses, 1)
    )
    return PromptResponse(
        provider_id=provider_id,
        model_id=model_id,
        text=text,
        structured=structured,
        tool_uses=tool_uses,
        usage=Usage(input_tokens=20, output_tokens=max(1, len(text) // 4)),
        finish_reason="tool_use" if tool_uses else "stop",
    )


def word_by_word(response: PromptResponse) -> Iterator[TextPiece | PromptResponse]:
    """A response as a stream: its text word by word, then the whole."""
    for word in _WORDS.findall(response.text):
        yield TextPiece(1, word)
    yield response


def _fitting(reply: str) -> dict[str, str | dict[str, object]]:
    return {
        "classify": {
            "speech_act": "question",
            "ambiguity": "low",
            "labels": {},
            "intent_relation": "continue",
            "confidence": 0.9,
        },
        "synthesize": reply,
        "verify": {"decision": "accept", "reason": "scripted"},
        "consolidate": {
            "bias": "The user comes back to this topic.",
            "category": "topic_affinity",
            "salience_weight": 0.5,
            "decay_modifier": 0.5,
            "labels": {"domain": [], "task": []},
            "context_line": "The user comes back to this topic.",
        },
    }
