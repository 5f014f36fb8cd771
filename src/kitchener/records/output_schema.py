"""Turns what a caller wants in place of a reply's text, a pydantic model or a JSON schema, into a schema and a check.

Explained in `docs/turn.md`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pydantic import BaseModel, PydanticUserError, ValidationError

from kitchener.canonical import canonical_bytes, digest
from kitchener.errors import EntryRefused, InvalidOutput
from kitchener.plain_names import first_chars, quoted
from kitchener.schemas.compiled_schemas import SchemaBudget, stranger_schema
from kitchener.schemas.json_schema import MAX_ERROR_CHARS, ordered_json

MAX_SCHEMA_CHARS: Final = 65_536
"""Longest schema as JSON. It is part of the prompt."""
_SCHEMA: Final = "expected a JSON schema of an object"


def _as_it_is(output: Mapping[str, object]) -> object:
    return output


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """The object that a caller wants."""

    name: str
    """The name of the model, or the title of the schema."""
    text: str
    """The JSON schema as JSON, with its keys in their order: a model fills an object in the order of its schema."""
    hash: str
    """`sha256:` of the text as UTF-8."""
    schema: Mapping[str, object]
    """`text`, parsed."""
    read: Callable[[Mapping[str, object]], object] = _as_it_is
    """Returns what the caller gets for an object of the schema; raises ValueError if the model's own checks refuse it."""

    def problem(self, output: Mapping[str, object]) -> str | None:
        """Returns why the model's own checks refuse an object that fits the schema, or None. Repeats no value of it."""
        try:
            self.read(output)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False, include_context=False)
            return first_chars("; ".join(f"{_place(each['loc'])}: {each['msg']}" for each in found), MAX_ERROR_CHARS)
        except ValueError as error:
            return first_chars(str(error), MAX_ERROR_CHARS)
        return None

    @classmethod
    def from_text(cls, text: str, read: Callable[[Mapping[str, object]], object] = _as_it_is, name: str = "") -> "OutputSchema":
        """The schema with this text, which was checked when it was made."""
        schema = json.loads(text)
        return cls(name or str(schema.get("title") or "output")[:_MAX_NAME], text, digest(text.encode()), schema, read)


def output_schema_of(output: object, budget: SchemaBudget | None = None) -> OutputSchema:
    """Returns the schema that a caller asks for.

    Args:
        output: a pydantic model class, a JSON schema, or an `OutputSchema`, which is returned as it is
        budget: what a JSON schema counts against; None: nothing

    Raises:
        InvalidOutput: it is neither, does not describe an object, does not stand by itself, or is too long
    """
    if isinstance(output, OutputSchema):
        return output
    if isinstance(output, type) and issubclass(output, BaseModel) and output is not BaseModel:
        return _of_model(output)
    if isinstance(output, Mapping):
        return _checked(dict(output), budget=budget)
    raise InvalidOutput(f"output = {quoted(output)}: {_SCHEMA}, or a class derived from pydantic.BaseModel")


@lru_cache(maxsize=256)
def _of_model(model: type[BaseModel]) -> OutputSchema:
    try:
        schema = model.model_json_schema()
    except (PydanticUserError, TypeError, ValueError) as error:  # a type without a JSON schema
        raise InvalidOutput(f"output = {model.__name__}: it has no JSON schema: {str(error).partition(chr(10))[0]}") from error
    return _checked(schema, model.model_validate, model.__name__)


def _checked(
    schema: dict[str, object],
    read: Callable[[Mapping[str, object]], object] = _as_it_is,
    name: str = "",
    budget: SchemaBudget | None = None,
) -> OutputSchema:
    try:
        canonical = canonical_bytes(schema, at="output")  # it is JSON, and not too deep
        text = ordered_json(schema)
        if len(text) > MAX_SCHEMA_CHARS:  # before it is compiled, which takes seconds for megabytes
            raise InvalidOutput(f"output has {len(text):,} characters as JSON: expected at most {MAX_SCHEMA_CHARS:,}")
        stranger_schema(schema, digest(canonical), budget)
    except (EntryRefused, ValueError) as error:
        raise InvalidOutput(f"output = {name or 'the schema'}: {_SCHEMA} that stands by itself, found: {error}") from error
    if schema.get("type", "object") != "object":
        raise InvalidOutput(f"output has `type` = {quoted(schema['type'])}: {_SCHEMA}; put other values into a property")
    return OutputSchema.from_text(text, read, name)


def _place(loc: tuple[int | str, ...]) -> str:
    return "/".join(map(str, loc)) or "the whole value"


_MAX_NAME: Final = 128
