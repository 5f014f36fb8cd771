"""Divides a request to a model into named parts with their estimated tokens. Pure.

The parts are found by rendering the prompt again and noting which text each value became. Their tokens add up to the estimate
of the whole request.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from kitchener.actors.executor.prompts import CompiledContract, Placed
from kitchener.canonical import canonical_bytes
from kitchener.records.prompt import Message, PromptRequest
from kitchener.records.tokens import ESTIMATORS

CONTRACT: Final = "contract"
_NAMES: Final[Mapping[str, str]] = {
    "user_message": "message",
    "assembled_context.context_text": "history",
    "assembled_context.ho3_biases": "learned lines",
    "recent_turns": "history",
    "prior_results": "results of earlier steps",
    "tools": "tool schemas",
    "labels_vocabulary": "labels",
    "response_text": "reply to verify",
}
"""Variables of prompt packs by the part that they belong to; another variable is a part of its own name."""
_OF_ROLES: Final[Mapping[str, str]] = {"assistant": "earlier answers", "tool": "tool results", "user": "repair"}
"""The parts of the messages that follow the prompt."""


class RequestPart(NamedTuple):
    """A part of a request."""

    name: str
    """What it is: `contract` (the prompt pack's own text), `instructions`, `history`, `learned lines`, `message` and others."""
    tokens: int
    """Its estimated tokens."""


def parts_of(request: PromptRequest, contract: CompiledContract, turn_id: str, estimator: str) -> tuple[RequestPart, ...]:
    """Returns the parts in order of appearance. Their tokens add up to the estimate of the whole request.

    Args:
        request: as it was sent
        contract: the contract that it was rendered under
        turn_id: the turn, from which delimiters of data are derived
        estimator: the name of the token estimator
    """
    texts: dict[str, list[str]] = {}
    for name, text in _pieces(request, contract, turn_id):
        texts.setdefault(name, []).append(text)
    found, before, whole = list[RequestPart](), 0, ""
    for name, pieces in texts.items():
        whole += "".join(pieces)
        total = ESTIMATORS[estimator](whole)  # of everything so far, so that rounding up each part adds nothing
        found.append(RequestPart(name, total - before))
        before = total
    return tuple(found)


def _pieces(request: PromptRequest, contract: CompiledContract, turn_id: str) -> Iterator[tuple[str, str]]:
    names = dict(_names_of(request.variables))
    for message, values in zip(request.messages, contract.values_in(request.variables, turn_id), strict=False):
        yield from _of_prompt(message, values, names)
    for message in request.messages[2:]:
        asked = canonical_bytes([use.as_mapping() for use in message.tool_uses]).decode() if message.tool_uses else ""
        yield _OF_ROLES.get(message.role, message.role), message.content + asked
    for tool in request.tools:
        shown = {"tool_id": tool.tool_id, "description": tool.description, "parameters": dict(tool.parameters)}
        yield "tool schemas", canonical_bytes(shown).decode()
    if request.output_schema is not None:
        yield "answer schema", canonical_bytes(request.output_schema).decode()


def _of_prompt(message: Message, values: Iterable[Placed], names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """The pieces of a message: the pack's own text, and the values between it."""
    text, at = message.content, 0
    for value, shown in values:
        found = text.find(shown, at)
        if found >= 0 and shown:
            yield CONTRACT, text[at:found]
            yield names.get(id(value), "data"), shown
            at = found + len(shown)
    yield CONTRACT, text[at:]


def _names_of(variables: Mapping[str, object], prefix: str = "") -> Iterator[tuple[int, str]]:
    """The part of each value, by the value's identity: a pack shows a variable, or a key of one."""
    for key, value in variables.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and not prefix:
            yield from _names_of(value, f"{path}.")
        yield id(value), _NAMES.get(path, key.replace("_", " "))
