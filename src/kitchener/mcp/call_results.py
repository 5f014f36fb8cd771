"""Turns the answer of a server to a tool call into a JSON value for a model, or into a question for a person.

Pure: it knows no connection. `server.py` asks the server. Explained in `docs/mcp.md`.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from kitchener.canonical import canonical_bytes
from kitchener.errors import EntryRefused, KitchenerError
from kitchener.mcp.definitions import extent_problem
from kitchener.plain_names import quoted
from kitchener.records.entries.common import Json
from kitchener.records.tools.runnable_tool import ToolAnswer, ToolQuestion
from kitchener.schemas.json_schema import JsonSchema

_MAX_QUESTION_CHARS: Final = 4_000
_MAX_STATE_BYTES: Final = 262_144
"""Largest state of a question, bytes of its JSON. It is kept on record until a person answers."""
_ACCEPT_SCHEMA: Final[Mapping[str, object]] = {"type": "boolean"}


class McpCallFailed(KitchenerError):
    """A call of a server's tool failed. The text is for the model."""


def result_of(answer: Mapping[str, Any], max_bytes: int) -> Json | ToolQuestion:
    """Returns the result of a tool call, or the question that the tool asks first.

    A structured result goes before the text that repeats it. Images and other content that is no text become short notes.

    Args:
        answer: the result of `tools/call`, as a JSON object of the protocol
        max_bytes: largest result, bytes of its JSON

    Raises:
        McpCallFailed: the tool reports an error, or its result is too large or cannot be recorded
    """
    if answer.get("resultType") == "input_required":
        return _question(answer)
    content = answer.get("content")
    texts = [_text(part) for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    text = "\n".join(texts)
    if answer.get("isError"):
        raise McpCallFailed(text[:_MAX_QUESTION_CHARS] or "the tool failed without a message")
    structured = answer.get("structuredContent")
    result: Json = text if structured is None else structured
    try:
        size = len(canonical_bytes(result, at="result"))
    except EntryRefused as error:
        raise McpCallFailed(f"the tool has run, but its result cannot be recorded: {error}") from error
    if size > max_bytes:
        raise McpCallFailed(f"the tool has run, but its result has {size:,} bytes, and max_result_bytes = {max_bytes:,}")
    return result


def responses_to(answer: ToolAnswer) -> tuple[Mapping[str, object], str | None]:
    """Returns the input responses and the request state with which a call is made again after a person's answer.

    Raises:
        McpCallFailed: the answer belongs to no question of a server
    """
    state = answer.state
    if not isinstance(state, Mapping) or not isinstance(asked := state.get("requests"), Mapping):
        raise McpCallFailed("the answer belongs to no question of this tool; call the tool again")
    request_state = state.get("request_state")
    responses = {key: _response(kind, _answer_to(key, answer.answer, len(asked))) for key, kind in asked.items()}
    return responses, request_state if isinstance(request_state, str) else None


def _answer_to(key: str, answer: Json, asked: int) -> Json:
    if asked == 1:
        return answer
    return answer.get(key) if isinstance(answer, Mapping) else None


def _response(kind: Json, answer: Json) -> dict[str, object]:
    """One response of the protocol. No, or no answer, declines."""
    if answer is None or answer is False:
        return {"action": "decline"}
    if kind == "form" and isinstance(answer, Mapping):
        return {"action": "accept", "content": dict(answer)}
    return {"action": "accept"} if answer is True else {"action": "decline"}


def _text(part: Mapping[str, object]) -> str:
    kind = part.get("type")
    if kind == "text":
        return str(part.get("text", ""))
    if kind == "resource" and isinstance(resource := part.get("resource"), Mapping):
        if isinstance(resource.get("text"), str):
            return str(resource["text"])
        return f"[a resource: {quoted(str(resource.get('uri', '')))}, {_kind_of(resource)}]"
    if kind == "resource_link":
        return f"[a link: {quoted(str(part.get('uri', '')))}, {_kind_of(part)}]"
    data = part.get("data")
    size = f", {3 * len(data) // 4:,} bytes" if isinstance(data, str) else ""
    return (
        f"[{'an' if kind in ('image', 'audio') else 'other content:'} {quoted(str(kind))}, {_kind_of(part)}{size}; not shown]"
    )


def _kind_of(part: Mapping[str, object]) -> str:
    return quoted(str(part.get("mimeType") or "of an unknown type"))


def _question(answer: Mapping[str, Any]) -> ToolQuestion:
    """Reads the requests for input. Only questions for a person can be answered.

    Raises:
        McpCallFailed: the server asks for something else, or its state is too large to be kept
    """
    requests = answer.get("inputRequests") or {}
    kinds = dict[str, Literal["form", "url"]]()
    messages, schemas = list[str](), dict[str, object]()
    for key, request in requests.items():
        if request.get("method") != "elicitation/create":
            raise McpCallFailed(f"the tool asks the client for {quoted(str(request.get('method')))}, which it does not offer")
        params = request.get("params") or {}
        is_url = params.get("mode") == "url"
        kinds[key] = "url" if is_url else "form"
        messages.append(f"{params.get('message', '')} ({params.get('url')})" if is_url else str(params.get("message", "")))
        schemas[key] = _ACCEPT_SCHEMA if is_url else _schema_of(params.get("requestedSchema"))
    state: Json = {"requests": dict(kinds), "request_state": answer.get("requestState")}
    if len(canonical_bytes([state, schemas], at="state")) > _MAX_STATE_BYTES:
        raise McpCallFailed(f"the tool asks a person, but its question is larger than {_MAX_STATE_BYTES:,} bytes")
    schema = next(iter(schemas.values())) if len(schemas) == 1 else {"type": "object", "properties": schemas}
    message = "\n".join(messages)[:_MAX_QUESTION_CHARS] or "the tool asks whether to go on"
    return ToolQuestion(message, schema if isinstance(schema, Mapping) else None, state, "input_required")


def _schema_of(requested: object) -> Mapping[str, object]:
    """The schema of an answer.

    Raises:
        McpCallFailed: it is too large or too entangled to check an answer, or invalid
    """
    if not isinstance(requested, Mapping) or not requested:
        return _ACCEPT_SCHEMA
    problem = extent_problem(requested)
    if problem is None:
        try:
            JsonSchema(requested)
        except (ValueError, RecursionError) as error:
            problem = f"its schema is invalid: {error}"
    if problem is not None:
        raise McpCallFailed(f"the tool asks a person for an answer that cannot be checked: {problem}")
    return requested


__all__ = ["McpCallFailed", "responses_to", "result_of"]
