"""Turns a model's answer into the output of a work order.

Pure. It knows nothing of schemas, ledgers or streams: `executor.py` checks and records the output, and `reply_stream.py` reads
an answer that is still streaming. Explained in `docs/work-orders.md`.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

import orjson

from kitchener.canonical import parse_json
from kitchener.records.prompt import CUT_SHORT, PromptResponse

REPLY_KEY: Final = "response_text"
"""The key of a synthesize answer that holds the reply to the user."""

OUTPUT_KEY: Final = "output"
"""The key of a synthesize output under which the caller's object stands."""

_FENCE: Final = "```"
_FENCE_LINE: Final = re.compile(r"```(?:json)?[ \t]*+\n", re.IGNORECASE)
_BROKEN_REPLY: Final = re.compile(r'\s*+(?:```(?:json)?\s*+)?\{\s*+"', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class UnreadableAnswer:
    """An answer without a JSON object."""

    problem: str
    """A description of the problem that a model can act on."""


def read_answer(response: PromptResponse, *, plain_text: bool, in_prose: bool = False) -> dict[str, object] | UnreadableAnswer:
    """Returns the object in the model's answer: the provider's structured form, or else parsed from the text.

    Args:
        response: the answer
        plain_text: whether to read text that is not a JSON object as `{"response_text": text}`
        in_prose: whether to find an object that stands on lines of its own among sentences, if the answer was not cut. Not for
            a verdict, which could quote what it judges
    """
    if response.structured is not None:
        return response.structured
    text = response.text
    try:
        value = parse_json(_unfenced(text))
    except ValueError as error:
        # A truncated object is a broken answer. As plain text, it would show the user half a JSON object.
        if plain_text and not _BROKEN_REPLY.match(text):
            return {REPLY_KEY: text}
        if not in_prose or response.finish_reason in CUT_SHORT or (found := _object_in(text)) is None:
            return UnreadableAnswer(f"the answer is not JSON: {error}")
        return found
    if isinstance(value, dict):
        return value
    if plain_text:
        return {REPLY_KEY: text}
    return UnreadableAnswer(f"the answer is a JSON {type(value).__name__}, not a JSON object")


def read_text(response: PromptResponse) -> dict[str, object]:
    """Returns the output of a contract whose answer is text: the text is the reply, even if it looks like JSON."""
    return {REPLY_KEY: response.text}


def read_object(response: PromptResponse, *, in_prose: bool) -> dict[str, object] | UnreadableAnswer:
    """Returns the output of a call that asks for a caller's object: the object as `output`, and its text as the reply.

    The text is what the model wrote, without a fence or sentences around it, so that it mostly equals the streamed text.
    """
    found = read_answer(response, plain_text=False, in_prose=in_prose)
    if isinstance(found, UnreadableAnswer):
        if response.finish_reason == "length":
            told = f"the answer is too long: it was cut after {response.usage.output_tokens} tokens; write a shorter object"
            return UnreadableAnswer(told)
        return found
    whole = _unfenced(response.text).strip()
    text = next((each for each in (whole, _lines_in(whole)) if _says(each, found)), None)
    return {REPLY_KEY: text if text is not None else json.dumps(found, ensure_ascii=False), OUTPUT_KEY: found}


def is_stored_by_text(response: PromptResponse) -> bool:
    """Whether the text of an answer already contains its structured form, so that storing the text is enough."""
    if response.structured is None:
        return True
    return _says(_unfenced(response.text), response.structured)


def _says(text: str, value: dict[str, object]) -> bool:
    try:
        found: object = orjson.loads(text)
        return bool(found == value)
    except (orjson.JSONDecodeError, RecursionError):  # for values too deep to compare, which the ledger refuses
        return False


def _object_in(text: str) -> dict[str, object] | None:
    """The object that stands on lines of its own in a text; None: there is none, or it is not the only one."""
    try:
        value = parse_json(_lines_in(text))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _lines_in(text: str) -> str:
    """The lines from the first brace of a text to the last one, if these begin and end lines; otherwise "".

    There may be sentences and a fence around them, but no bracket: an object inside a list, beside a second one, or quoted in a
    sentence may not be the answer. Nor may one be that a model thought of.
    """
    start, end = text.find("{"), text.rfind("}") + 1
    before, after = text[: max(0, start)].rstrip(" \t"), text[end:].lstrip(" \t")
    is_alone = (not before or before[-1] == "\n") and (not after or after[0] in "\r\n")
    if start < 0 or not is_alone or any(each in before or each in after for each in ("{", "}", "[", "]", "</think>")):
        return ""
    return text[start:end]


def _unfenced(text: str) -> str:
    body = text.strip()
    opening = _FENCE_LINE.match(body) if body.startswith(_FENCE) else None
    if opening is None or not body.endswith(_FENCE, opening.end()):
        return text
    return body[opening.end() : -len(_FENCE)].rstrip()
