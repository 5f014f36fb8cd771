"""Turns a model's answer into the output of a work order.

Pure. It knows nothing of schemas, ledgers or streams: `executor.py` checks and records what comes out here, `replies.py` reads
an answer that is still growing. Explained in `docs/work-orders.md`.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import orjson

from kitchener.canonical import parse_json
from kitchener.records.prompt import PromptResponse

REPLY_KEY: Final = "response_text"
"""The key of a synthesize answer that holds what the user is shown."""

_FENCE: Final = "```"
_FENCE_LINE: Final = re.compile(r"```(?:json)?[ \t]*+\n", re.IGNORECASE)
_BROKEN_REPLY: Final = re.compile(r'\s*+(?:```(?:json)?\s*+)?\{\s*+"', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An answer in which no JSON object could be found."""

    problem: str
    """What is wrong, in words that a model can act on."""


def read_answer(response: PromptResponse, *, plain_text: bool) -> dict[str, Any] | Unreadable:
    """The object that the model answered with: structured if the provider gave it, else parsed from the text.

    Args:
        response: the answer
        plain_text: whether text that is no JSON object stands for `{"response_text": text}`
    """
    if response.structured is not None:
        return response.structured
    text = response.text
    try:
        value = parse_json(_unfenced(text))
    except ValueError as error:
        # An object cut off in the middle is a broken answer; shown as it is, the user would see half a JSON text.
        if plain_text and not _BROKEN_REPLY.match(text):
            return {REPLY_KEY: text}
        return Unreadable(f"the answer is not JSON: {error}")
    if isinstance(value, dict):
        return value
    if plain_text:
        return {REPLY_KEY: text}
    return Unreadable(f"the answer is a JSON {type(value).__name__}, not a JSON object")


def is_stored_by_text(response: PromptResponse) -> bool:
    """Whether the text of an answer already holds its structured form, so that it need not be stored twice."""
    if response.structured is None:
        return True
    try:
        found: Any = orjson.loads(_unfenced(response.text))
        return bool(found == response.structured)
    except (orjson.JSONDecodeError, RecursionError):  # of values too deep to be compared; storing them refuses them
        return False


def _unfenced(text: str) -> str:
    body = text.strip()
    opening = _FENCE_LINE.match(body) if body.startswith(_FENCE) else None
    if opening is None or not body.endswith(_FENCE, opening.end()):
        return text
    return body[opening.end() : -len(_FENCE)].rstrip()
