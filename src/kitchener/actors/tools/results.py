"""Turns a tool's return value or exception into an outcome for the ledger and the model: JSON of limited size.

`registry.py` runs tools and calls this module; `execution.py` records the outcome. Explained in `docs/tools.md`.
"""

import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from kitchener.canonical import canonical_bytes
from kitchener.errors import EntryRefused
from kitchener.errors.nested import errors_in, sole_error
from kitchener.plain_names import error_text, first_chars
from kitchener.records.entries import NestedTurn
from kitchener.records.tools.tool_question import ConfirmationRequired, ToolQuestion
from kitchener.records.work_order import Cost
from kitchener.schemas.json_schema import JsonSchema

_MAX_ERROR_CHARS: Final = 2_000
_CANCELLATIONS: Final = ("CancelledError", "Cancelled")
"""Names of the event loops' cancellation errors. Their texts are replaced, because they name tasks of this process."""
_MAX_ERRORS: Final = 10
"""Most errors of a group whose types and messages the model sees."""
_MAX_VALUES: Final = 100_000
"""Most values in a result, or `max_bytes // 2` if that is more. A part that occurs several times counts each time."""
_MAX_CHARS: Final = 64 * 1_048_576
"""Most characters of all texts in a result, counted like the values. There must be a limit, because a result is encoded before
it is cut."""
_MAX_WALKED_DEPTH: Final = 300
"""Nesting depth at which the size check stops. No result with a JSON form is that deep."""
_DEPTH_MARGIN: Final = 4
"""Levels that an entry or a prompt adds around a result, which must have a canonical form there, too."""
_TEXTS: Final = (str, bytes, bytearray)
_WITHOUT_PARTS: Final = frozenset((*_TEXTS, type(None)))
"""Types themselves, without those derived from them: a dataclass that is also a text has its fields in JSON."""
_NESTED_PATH: Final = "[0]" * _DEPTH_MARGIN
"""The path to a result inside these levels, which says nothing to a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """The outcome of a tool call: a result or an error."""

    result: Any = None  # any JSON value
    """The tool's result as a JSON value; meaningless if there is an error."""
    error: str | None = None
    """The error text for the model and the ledger; None: no error."""
    untrusted_source: str | None = None
    """The source of the outcome, such as `mcp:web`, if it is not trusted; None: it is trusted."""
    nested_cost: Cost | None = None
    """The cost of turns that the tool ran in other sessions; None: it ran none."""
    nested_turns: Sequence[NestedTurn] = ()
    """The turns that the tool ran in other sessions."""
    question: ToolQuestion | None = None
    """The tool's question to a person; None: it asks nothing. `error` describes the question to the model."""

    def as_text(self) -> str:
        """The outcome as JSON text, for the model."""
        return canonical_bytes(self.result if self.error is None else {"error": self.error}).decode()


def outcome_of(value: object, max_bytes: int) -> ToolOutcome:
    """Converts a tool's return value to a JSON value of at most `max_bytes` bytes, or to an error if it has no JSON form."""
    if isinstance(value, ToolQuestion):
        return _question_outcome(value)
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        return ToolOutcome(error="the tool gave an awaitable instead of a result; declare its function with `async def`")
    if (problem := _extent_problem(value, max(_MAX_VALUES, max_bytes // 2))) is not None:
        return ToolOutcome(error=f"the tool has run, but its result {problem}")
    try:
        result = to_jsonable_python(value)
        # Checked at the depth that it will have in an entry, so that recording it cannot fail.
        size = len(canonical_bytes(_nested(result))) - 2 * _DEPTH_MARGIN
    except EntryRefused as error:
        place = f"result{error.path.removeprefix(_NESTED_PATH)}"
        return ToolOutcome(error=storable(f"the tool has run, but its result has no JSON form: {place}: {error.problem}"))
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        return ToolOutcome(error=storable(f"the tool has run, but its result has no JSON form: {error}"))
    return ToolOutcome(result=result if size <= max_bytes else _cut(result, size, max_bytes))


def _question_outcome(question: ToolQuestion) -> ToolOutcome:
    try:
        if question.response_schema is not None:
            JsonSchema(question.response_schema)
    except ValueError as error:  # no answer could ever fit
        return ToolOutcome(error=storable(f"the tool asks a person, but its response_schema is not valid: {error}"))
    problem = f"the tool asks a person, and has done nothing yet: {question.message}"
    return ToolOutcome(error=storable(problem), question=question)


def cut_text(text: str, max_bytes: int) -> str:
    """Shortens an outcome's JSON text to a JSON text with a note, of `max_bytes` bytes; or to the note, if it needs more."""
    return canonical_bytes(_cut(text, len(text.encode()), max_bytes)).decode()


def failure(error: BaseException) -> ToolOutcome:
    """Converts an exception of a tool to an error with its type and message, without a traceback, or to its question.

    A traceback would tell the model about this machine. The text for an exception group names the errors in the group.
    """
    error = sole_error(error)
    if isinstance(error, ConfirmationRequired):
        return _question_outcome(error.question)
    text = _failure_text(error)
    if isinstance(error, BaseExceptionGroup):
        text = f"{text}: {'; '.join(_failure_text(each) for each in islice(errors_in(error), _MAX_ERRORS))}"
    return ToolOutcome(error=storable(text))


def _failure_text(error: BaseException) -> str:
    if type(error).__name__ in _CANCELLATIONS:
        return f"{type(error).__name__}: something that the tool waited for was cancelled"
    return error_text(error)


def storable(text: str) -> str:
    """Makes a foreign error text storable in a ledger: cut after 2,000 characters, without lone surrogates."""
    kept = first_chars(text, _MAX_ERROR_CHARS)
    return kept.encode("utf-8", "backslashreplace").decode()


def _extent_problem(value: object, max_values: int) -> str | None:
    """Returns why a result is too large or endless for JSON, or None. Shared parts count each time."""
    values, chars, open_parts = 0, 0, [iter((value,))]
    while open_parts and len(open_parts) <= _MAX_WALKED_DEPTH:
        for item in open_parts[-1]:
            values += 1
            if isinstance(item, _TEXTS):
                chars += len(item)
            elif isinstance(item, Iterator):
                return "is or holds an iterator, which may have no end; return a list instead"
            if values > max_values or chars > _MAX_CHARS:
                return f"has more than {max_values:,} values or {_MAX_CHARS:,} characters; return less"
            if (parts := _parts(item)) is not None:
                open_parts.append(iter(parts))
                break
        else:
            open_parts.pop()
    return None


def _parts(item: object) -> Iterable[object] | None:
    if type(item) in _WITHOUT_PARTS:
        return None
    if isinstance(item, dict):
        return (part for pair in dict.items(item) for part in pair)
    if isinstance(item, list | tuple | set | frozenset | deque):
        return item
    if isinstance(item, BaseModel):
        return list(vars(item).values())
    if is_dataclass(item) and not isinstance(item, type):
        return [getattr(item, each.name, None) for each in fields(item)]
    return None


def _nested(value: object) -> Any:
    for _ in range(_DEPTH_MARGIN):
        value = [value]
    return value


def _cut(result: object, size: int, limit: int) -> str:
    """Cuts a result that is too large to a text that ends with a note. The text's JSON fits into `limit` bytes."""
    text = result if isinstance(result, str) else canonical_bytes(result).decode()
    marker = f" … {cut_note(size, limit)}"
    return fitting_start(text, limit - len(canonical_bytes(marker))) + marker


def cut_note(size: int, limit: int) -> str:
    """Returns the note that tells a model that it reads only the beginning of a result.

    Args:
        size: bytes of the whole result
        limit: most bytes that may be shown
    """
    return f"[cut: the result had {size} bytes, the limit is {limit}]"


def fitting_start(text: str, room: int) -> str:
    """The beginning of a text that takes at most `room` bytes within a JSON text."""
    kept = text[: max(0, room)]
    # Quotes and other escapes make JSON longer than its text, so the text is shortened until it fits.
    while kept and (excess := len(canonical_bytes(kept)) - 2 - room) > 0:
        kept = kept[: -max(1, min(excess, len(kept) // 2))]
    return kept
