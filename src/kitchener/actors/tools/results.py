"""Turns what a tool returned or raised into an outcome that a ledger and a model can take: JSON, of bounded size.

Neighbours: `registry.py` runs tools and asks here what came of it; `execution.py` records it. Explained in `docs/tools.md`.
"""

import inspect
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from kitchener.canonical import canonical_bytes
from kitchener.errors import EntryRefused, words_of

_MAX_ERROR_CHARS: Final = 2_000
_CANCELLATIONS: Final = ("CancelledError", "Cancelled")
"""What the event loops raise; their own texts name tasks and places in this process."""
_MAX_VALUES: Final = 100_000
"""Values in a result; a part that stands in several places counts in each. More where `max_bytes` has room for more."""
_MAX_CHARS: Final = 64 * 1_048_576
"""Characters of all texts of a result, counted likewise: also what will be cut is encoded first."""
_MAX_WALKED_DEPTH: Final = 300
"""Deeper than any result that has a JSON form."""
_DEPTH_MARGIN: Final = 4
"""Levels that an entry and a prompt put around a result; it must still have a canonical form there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """What became of a tool call: a result, or an error."""

    result: Any = None
    """JSON value that the tool returned; meaningless if there is an error."""
    error: str | None = None
    """What went wrong, for the model and the ledger; None: nothing."""

    def as_mapping(self) -> dict[str, Any]:
        """The outcome as it stands in a `TOOL_CALL` entry: either of `result` and `error`."""
        return {"result": self.result} if self.error is None else {"error": self.error}

    def as_text(self) -> str:
        """The outcome as JSON text, for the model."""
        return canonical_bytes(self.result if self.error is None else self.as_mapping()).decode()


def outcome_of(value: Any, max_bytes: int) -> ToolOutcome:
    """What a tool returned, as a JSON value whose JSON has at most `max_bytes` bytes, or the reason why it is none."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        return ToolOutcome(error="the tool gave an awaitable instead of a result; declare its function with `async def`")
    if (problem := _extent_problem(value, max(_MAX_VALUES, max_bytes // 2))) is not None:
        return ToolOutcome(error=f"the tool has run, but its result {problem}")
    try:
        result = to_jsonable_python(value)
        # Checked as deep as it will stand in an entry, so that recording it cannot fail.
        size = len(canonical_bytes(_nested(result), at="result")) - 2 * _DEPTH_MARGIN
    except (PydanticSerializationError, EntryRefused, ValueError, RecursionError) as error:
        return ToolOutcome(error=storable(f"the tool has run, but its result has no JSON form: {error}"))
    return ToolOutcome(result=result if size <= max_bytes else _cut(result, size, max_bytes))


def failure(error: BaseException) -> ToolOutcome:
    """What a tool raised: its type and message. The traceback would tell the model about this machine."""
    if type(error).__name__ in _CANCELLATIONS:
        return ToolOutcome(error=f"{type(error).__name__}: something that the tool waited for was cancelled")
    return ToolOutcome(error=storable(words_of(error)))


def storable(text: str) -> str:
    """A foreign error text as a ledger takes it: bounded, without lone surrogates."""
    kept = text if len(text) <= _MAX_ERROR_CHARS else f"{text[:_MAX_ERROR_CHARS]}…"
    return kept.encode("utf-8", "backslashreplace").decode()


def _extent_problem(value: Any, max_values: int) -> str | None:
    """Why the JSON form of a result is not even made: it has no end, or lists that share their parts make it endless."""
    values, chars, open_parts = 0, 0, [iter((value,))]
    while open_parts and len(open_parts) <= _MAX_WALKED_DEPTH:
        for item in open_parts[-1]:
            values += 1
            if isinstance(item, str | bytes | bytearray):
                chars += len(item)
            elif isinstance(item, Iterator):
                return "is or holds an iterator, which may have no end; return a list instead"
            if values > max_values or chars > _MAX_CHARS:
                return f"has more than {max_values} values or {_MAX_CHARS} characters; return less"
            if (parts := _parts(item)) is not None:
                open_parts.append(iter(parts))
                break
        else:
            open_parts.pop()
    return None


def _parts(item: Any) -> Iterable[Any] | None:
    if isinstance(item, dict):
        return (part for pair in dict.items(item) for part in pair)
    if isinstance(item, list | tuple | set | frozenset | deque):
        return item
    if isinstance(item, BaseModel):
        return list(vars(item).values())
    if is_dataclass(item) and not isinstance(item, type):
        return [getattr(item, each.name, None) for each in fields(item)]
    return None


def _nested(value: Any) -> Any:
    for _ in range(_DEPTH_MARGIN):
        value = [value]
    return value


def _cut(result: Any, size: int, limit: int) -> str:
    """The beginning of a result that is too large, as text that ends by saying so; its JSON fits into `limit` bytes."""
    text = result if isinstance(result, str) else canonical_bytes(result).decode()
    marker = f" … [cut: the result had {size} bytes, the limit is {limit}]"
    room = limit - len(canonical_bytes(marker))
    kept = text[: max(0, room)]
    # Quotes and other escapes make JSON longer than its text, so the text is shortened until it fits.
    while kept and (excess := len(canonical_bytes(kept)) - 2 - room) > 0:
        kept = kept[: -max(1, min(excess, len(kept) // 2))]
    return kept + marker
