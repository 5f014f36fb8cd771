"""Checks the parts of an answer and makes the response, for every kind of real provider. Nothing is sent from here."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from kitchener.canonical import MAX_DEPTH
from kitchener.errors import ProviderError
from kitchener.gateway.providers.bodies import UnusableAnswer, is_deeper
from kitchener.gateway.providers.redaction import Redaction
from kitchener.model_usage import Usage
from kitchener.plain_names import without_halves
from kitchener.records.entries import FinishReason
from kitchener.records.prompt import Echo, PromptRequest, PromptResponse, ToolUse
from kitchener.records.tokens import tokens_of_bytes

MAX_PARTS: Final = 1_000
"""Texts, thoughts and tool requests in one answer."""
MAX_NAME_CHARS: Final = 256
"""Of a tool's name, of a request's id, and of what an answer calls its model."""


_MAX_SHOWN_CHARS: Final = 300
"""Characters of unreadable arguments that the model is shown again."""


class ReadAnswer(NamedTuple):
    """An answer in our types, without keys in its text and tool requests."""

    text: str
    tool_uses: tuple[ToolUse, ...]
    usage: Usage
    finish_reason: FinishReason
    served_model: str | None
    """What the answer calls its model."""


def checked_response(
    answer: ReadAnswer, request: PromptRequest, provider_id: str, asked: str, redaction: Redaction
) -> PromptResponse:
    """Returns the response to a request.

    Args:
        answer: what the provider answered
        request: what was asked
        provider_id: who was asked
        asked: the model that was asked for
        redaction: the keys

    Raises:
        ProviderError: it holds neither text nor a tool request (`empty`, `refused`)
    """
    text, tool_uses, usage, finish_reason, served_model = answer
    if not text and not tool_uses:
        if finish_reason == "content_filter":
            raise ProviderError(provider_id, "refused", "the provider's content filter stopped the answer", usage=usage)
        if finish_reason == "length":
            limit = f"max_tokens = {request.max_tokens:,}"
            told = (
                f"the answer has no text within {limit}; a model that thinks needs more (`thinking_tokens`), or to think less"
            )
            raise ProviderError(provider_id, "empty", told, only_thoughts=True, usage=usage)
        raise ProviderError(provider_id, "empty", f"the answer is empty (finish reason {finish_reason!r})", usage=usage)
    if finish_reason == "length" and tool_uses and tool_uses[-1].problem is not None:
        limit = f"max_tokens = {request.max_tokens:,}"
        told = f"the answer ended within these arguments, at {limit}; call the tool again with shorter ones"
        tool_uses = (*tool_uses[:-1], replace(tool_uses[-1], problem=told))
    return PromptResponse(
        provider_id=provider_id,
        model_id=asked,
        served_model=_served_model(served_model, asked, redaction),
        text=text,
        structured=redaction.value(object_in(text)) if request.output_schema is not None else None,
        tool_uses=tool_uses,
        usage=usage,
        finish_reason="tool_use" if tool_uses else finish_reason,
    )


def _served_model(name: str | None, asked: str, redaction: Redaction) -> str | None:
    if not name or name == asked or asked.endswith(f":{name}"):
        return None
    shown = redaction.text(name)
    return "".join(each if each.isprintable() else "\ufffd" for each in shown[:MAX_NAME_CHARS])


def checked_tool_use(use_id: str, name: str, arguments: object, redaction: Redaction, echo: Echo | None = None) -> ToolUse:
    """Returns a tool request without keys. If its arguments are no JSON object, the request says so, for the model.

    Args:
        use_id: the provider's id of the request
        name: the tool
        arguments: a JSON object, as a text or parsed; None or "": no arguments
        redaction: the keys
        echo: what the provider wants back with the request, without keys; None: nothing

    Raises:
        UnusableAnswer: the names are none
    """
    for what, given in (("name", name), ("id", use_id)):
        if len(given) > MAX_NAME_CHARS or not given.isprintable():
            raise UnusableAnswer(
                "malformed", f"the {what} of a tool request is not a name of up to {MAX_NAME_CHARS} characters"
            )
    arguments = value_without_halves(arguments)
    read = object_in(arguments or "{}") if arguments is None or isinstance(arguments, str) else arguments
    if not isinstance(read, Mapping) or is_deeper(read, MAX_DEPTH):
        shown = redaction.text(arguments)[:_MAX_SHOWN_CHARS] if isinstance(arguments, str) else ""
        found = f", found {shown.encode('utf-8', 'backslashreplace').decode()}" if shown else ""
        problem = f"the arguments are not a JSON object of up to {MAX_DEPTH} levels; call the tool again with one{found}"
        return ToolUse(redaction.text(use_id), redaction.text(name), {}, problem, echo)
    return ToolUse(redaction.text(use_id), redaction.text(name), redaction.value(dict(read)), echo=echo)


def answer_text(texts: Iterable[str], redaction: Redaction) -> str:
    """Returns the text of an answer that came in parts, without keys and without halves of characters."""
    return redaction.text(without_halves("".join(texts)))


def value_without_halves(value: Any) -> Any:
    """Returns a JSON value whose texts and names have a UTF-8 form. Its depth has been checked before."""
    if isinstance(value, str):
        return without_halves(value)
    if isinstance(value, dict):
        return {without_halves(name): value_without_halves(each) for name, each in value.items()}
    return [value_without_halves(each) for each in value] if isinstance(value, list) else value


def object_in(text: str) -> dict[str, object] | None:
    """Returns the JSON object that a text is; None: it is none, or nests too deep."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and not is_deeper(value, MAX_DEPTH) else None


def completed_usage(counted: Usage, request: PromptRequest, received: str) -> Usage:
    """Estimates the counts that a server does not give. Without them, budgets would take such a model for free.

    Args:
        counted: what the server counted; 0: it did not
        request: what was sent
        received: the text of the answer, with its thoughts and its tool requests
    """
    return replace(
        counted,
        input_tokens=counted.input_tokens or tokens_of_bytes(request.text_bytes) + request.part_tokens,
        output_tokens=counted.output_tokens or tokens_of_bytes(len(received.encode("utf-8", "replace"))),
    )
