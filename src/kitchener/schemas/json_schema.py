"""Compiles JSON schemas, and says how a value violates one. Pure."""

from collections.abc import Mapping
from typing import Final, NoReturn

import jsonschema_rs

from kitchener.schemas.schema_steps import refers, steps

MAX_ERROR_CHARS: Final = 600
"""Longest description of a violation, in characters. The description is shown to the model and recorded."""

MAX_STEPS: Final = 2_000_000
"""Steps of checking above which a value is refused unchecked, because the event loop would wait; about 50 ms."""
MAX_EXPLAINED_STEPS: Final = 20_000
"""Steps of checking above which a violation is not described. A description takes thousands of times as long as a check."""


class JsonSchema:
    """A compiled schema. It must not refer to other files, because a fetched schema could change while the agent runs.

    A check takes bounded time, also where alternatives refer to each other and a value nests deeply.

    Raises:
        ValueError: the schema is invalid, or does not stand by itself; the error's text is one line
    """

    __slots__ = ("_recursive", "_validator")

    def __init__(self, schema: Mapping[str, object]) -> None:
        try:
            self._validator = jsonschema_rs.validator_for(dict(schema), retriever=_refuse)
        except ValueError as error:
            raise ValueError(str(error).partition("\n")[0]) from error
        self._recursive = schema if refers(schema) else None

    def problem(self, value: object) -> str | None:
        """Returns how a value violates the schema, or None. A value that the validator cannot read violates it too."""
        count = steps(self._recursive, value) if self._recursive is not None else 0
        if count > MAX_STEPS:
            return f"the whole value: the schema has too many ways to read it; expected at most {MAX_STEPS:,} steps"
        try:
            if self._validator.is_valid(value):
                return None
            if count > MAX_EXPLAINED_STEPS:
                return "the whole value: it does not fit the schema, which has too many ways to read it to say where"
            return self._first_problem(value)
        except ValueError as error:  # too deep, or of a type without a JSON form
            return f"the whole value: {error}"

    def _first_problem(self, value: object) -> str:
        error = next(self._validator.iter_errors(value))
        where = "/".join(str(part) for part in error.instance_path) or "the whole value"
        text = f"{where}: {error.message}"
        return text if len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]}…"


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} lies outside this file")
