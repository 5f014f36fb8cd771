"""Turns what pydantic finds wrong with the body of a request into a sentence: the field, what is expected, what was given.

The sentence repeats no value of the body, which may be private or long. It names the kind of the value, or its size.
"""

import re
from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kitchener.plain_names import counted

_KINDS: Final = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a JSON object",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "a JSON object",
    "string_type": "a text",
}
"""What a field takes, by pydantic's type of the error about a value of another kind."""
_SIZES: Final = ("too_short", "too_long", "string_too_short", "string_too_long")
_BRANCH: Final = re.compile(r"str|int|float|bool|(?:list|dict)\[.*\]")
"""How pydantic names, within a place, which kind of a union it tried."""
_SUBJECT: Final = re.compile(r"^\w+ should be")


def body_problem(error: ValidationError) -> str:
    """Returns the sentence about the first problem, such as `messages: expected a list of at least 1 item, not of 0`."""
    found = error.errors(include_url=False)
    told, others = found[0], list[ErrorDetails]()
    tag = next((n for n, part in enumerate(told["loc"]) if _is_branch(told, n)), None)
    if tag is not None:  # the field takes several kinds of values, and there is an error for each
        base = told["loc"][:tag]
        of_field = [each for each in found if each["loc"][:tag] == base]
        # A kind that fits, with something wrong in it, says more than the kinds that do not fit.
        fitting = [each for each in of_field if each["type"] not in _KINDS or len(each["loc"]) > tag + 1]
        told, others = (fitting[0], []) if fitting else (told, of_field[1:])
    place = ".".join(str(part) for n, part in enumerate(told["loc"]) if not _is_branch(told, n)) or "body"
    return f"{place}: {_sentence(told, others)}"


def _is_branch(error: ErrorDetails, at: int) -> bool:
    """Whether this part of the place of an error is no field, but a kind of values that a field takes."""
    part = error["loc"][at]
    return error["type"] != "extra_forbidden" and isinstance(part, str) and _BRANCH.fullmatch(part) is not None


def _sentence(error: ErrorDetails, others: Sequence[ErrorDetails]) -> str:
    kind, given, facts = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        return "required, but missing"
    if kind == "extra_forbidden":
        return "there is no such field"
    if kind in _KINDS:
        expected = " or ".join(dict.fromkeys(_KINDS[each["type"]] for each in (error, *others)))
        return f"expected {expected}, not {'a fraction' if kind == 'int_from_float' else _kind_of(given)}"
    if kind in _SIZES:
        is_least = "min_length" in facts
        limit = counted(facts["min_length" if is_least else "max_length"], "character" if isinstance(given, str) else "item")
        return f"expected {_kind_of(given)} of at {'least' if is_least else 'most'} {limit}, not of {len(given):,}"
    if kind == "literal_error":
        return f"expected {facts['expected']}, not {'another text' if isinstance(given, str) else _kind_of(given)}"
    return _SUBJECT.sub("expected a value", error["msg"])


def _kind_of(value: object) -> str:
    """What a sentence calls a JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "a text"
        case int() | float():
            return "a number"
        case list():
            return "a list"
    return "an object"
