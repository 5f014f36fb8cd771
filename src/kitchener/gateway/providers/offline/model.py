"""The built-in model: rules instead of a language model, no network, no key, the same answer every time.

It answers from a request's `wo_type` and `variables`, so it works with any wording of the prompts; of the messages it reads
only the results of tools that it asked for itself. How it reads and writes stands in `offline_reading` and `offline_writing`.
What it can and cannot do is explained in `docs/gateway.md`.
"""

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from kitchener.gateway.providers.offline import relations as offline_relations
from kitchener.gateway.providers.offline.message import choose_tool, classify, speech_act
from kitchener.gateway.providers.offline.replies import consolidate, minimal, reply, verify
from kitchener.gateway.providers.offline.words import forget_words, words_of
from kitchener.gateway.traits import Traits
from kitchener.records.prompt import Message, PromptRequest, PromptResponse, TextPiece, ToolUse, Usage

MODEL_ID = "offline-rules-1"
REMEMBERED_SCHEMAS = 64

_WORDS = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a schema says about the top level of an answer."""

    schema: Mapping[str, Any]
    allowed: frozenset[str] | None
    required: frozenset[str]
    choices: tuple[tuple[str, tuple[Any, ...]], ...]

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> "_Shape":
        properties = schema.get("properties") or {}
        closed = schema.get("additionalProperties") is False
        choices = [
            (name, tuple(each["enum"])) for name, each in properties.items() if isinstance(each, Mapping) and "enum" in each
        ]
        return cls(schema, frozenset(properties) if closed else None, frozenset(schema.get("required") or ()), tuple(choices))

    def fitted(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer with what the schema demands beyond it and without what it forbids."""
        if self.allowed is not None and not self.allowed.issuperset(answer):
            answer = {key: value for key, value in answer.items() if key in self.allowed}
        if not self.required.issubset(answer):
            answer = {**minimal(self.schema), **answer}
        for name, choices in self.choices:
            if name in answer and answer[name] not in choices:
                answer[name] = "statement" if "statement" in choices else choices[0]
        return answer


class OfflineProvider:
    """Answers by fixed rules: classifies, picks a plainly requested tool, replies from what it was given.

    Args:
        provider_id: which provider its responses name
    """

    traits = Traits(built_in=True, needs_timeout=False, model_id=MODEL_ID)

    def __init__(self, provider_id: str = "offline") -> None:
        self._provider_id = provider_id
        self._shapes: dict[int, _Shape] = {}

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """The answer that the rules give; the same request always gets the same one."""
        if request.wo_type == "synthesize":
            return self._synthesize(request)
        if request.wo_type == "classify":
            answer = classify(request.variables)
        elif request.wo_type == "verify":
            answer = verify(request.variables)
        elif request.wo_type == "consolidate":
            answer = consolidate(request.variables)
        else:
            answer = minimal(request.output_schema)
        answer = self._fitted(answer, request.output_schema)
        return self._response(request, orjson.dumps(answer).decode(), answer)

    async def stream(self, request: PromptRequest) -> AsyncIterator[TextPiece | PromptResponse]:
        """The same answer, its text word by word."""
        response = await self.complete(request)
        for word in _WORDS.findall(response.text):
            yield TextPiece(1, word)
        yield response

    def _synthesize(self, request: PromptRequest) -> PromptResponse:
        variables = request.variables
        results = [each for each in variables.get("prior_results") or () if isinstance(each, Mapping) and "tool_id" in each]
        results += [_tool_result(message) for message in request.messages if message.role == "tool"]
        if request.tools and not results and (use := _tool_use(request)) is not None:
            return self._response(request, "", None, (use,))
        text = reply(variables, results)
        answer = self._fitted({"response_text": text}, request.output_schema)
        return self._response(request, text if request.output_schema is None else orjson.dumps(answer).decode(), answer)

    def _fitted(self, answer: dict[str, Any], schema: Mapping[str, Any] | None) -> dict[str, Any]:
        if schema is None:
            return answer
        shape = self._shapes.get(id(schema))
        if shape is None or shape.schema is not schema:
            if len(self._shapes) >= REMEMBERED_SCHEMAS:
                self._shapes.clear()
            shape = self._shapes[id(schema)] = _Shape.of(schema)
        return shape.fitted(answer)

    def _response(
        self, request: PromptRequest, text: str, structured: dict[str, Any] | None, tool_uses: tuple[ToolUse, ...] = ()
    ) -> PromptResponse:
        return PromptResponse(
            provider_id=self._provider_id,
            model_id=MODEL_ID,
            text=text,
            structured=structured,
            tool_uses=tool_uses,
            usage=Usage(_tokens(sum([_size(each.content) for each in request.messages])), _tokens(_size(text))),
            finish_reason="tool_use" if tool_uses else "stop",
        )


def forget_texts() -> None:
    """Drops what is kept in memory of messages: who is erased must not stay there."""
    offline_relations.forget_texts()
    forget_words()


def _tokens(size: int) -> int:
    return -(-size // 3)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _tool_use(request: PromptRequest) -> ToolUse | None:
    message = str(request.variables.get("user_message") or "")
    words = words_of(message)
    if speech_act(message, words) not in ("question", "command"):
        return None
    found = choose_tool(message, words, request.tools)
    return None if found is None else ToolUse(f"offline-{request.call}", *found)


def _tool_result(message: Message) -> dict[str, Any]:
    try:
        content = orjson.loads(message.content)
    except orjson.JSONDecodeError:
        content = message.content
    if isinstance(content, dict) and set(content) == {"error"}:
        return {"tool_id": message.tool_id or "the tool", "error": content["error"]}
    return {"tool_id": message.tool_id or "the tool", "result": content}
