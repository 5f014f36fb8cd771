"""Compiles JSON schemas, and says how a value violates one. Pure."""

from collections.abc import Mapping
from typing import Final, NoReturn

import jsonschema_rs

MAX_ERROR_CHARS: Final = 600
"""Longest description of a violation, in characters. The description is shown to the model and recorded."""


class JsonSchema:
    """A compiled schema. It must not refer to other files, because a fetched schema could change while the agent runs.

    Raises:
        ValueError: the schema is invalid, or does not stand by itself; the error's text is one line
    """

    __slots__ = ("_validator",)

    def __init__(self, schema: Mapping[str, object]) -> None:
        try:
            self._validator = jsonschema_rs.validator_for(dict(schema), retriever=_refuse)
        except ValueError as error:
            raise ValueError(str(error).partition("\n")[0]) from error

    def problem(self, value: object) -> str | None:
        """Returns how a value violates the schema, or None. A value that the validator cannot read violates it too."""
        try:
            return None if self._validator.is_valid(value) else self._first_problem(value)
        except ValueError as error:  # too deep, or of a type without a JSON form
            return f"the whole value: {error}"

    def _first_problem(self, value: object) -> str:
        error = next(self._validator.iter_errors(value))
        where = "/".join(str(part) for part in error.instance_path) or "the whole value"
        text = f"{where}: {error.message}"
        return text if len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]}…"


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} lies outside this file")
