"""Compiles JSON schemas, and says how a value violates one. Pure."""

import json
from collections.abc import Mapping
from typing import Final, NoReturn

import jsonschema_rs

from kitchener.plain_names import first_chars
from kitchener.schemas.pattern_limits import MATCH_OPTIONS, pattern_problem
from kitchener.schemas.schema_steps import UNCOUNTED, refers, steps, steps_of_strangers

MAX_ERROR_CHARS: Final = 600
"""Longest description of a violation, in characters. The description is shown to the model and recorded."""

MAX_STEPS: Final = 2_000_000
"""Steps of checking above which a value is refused unchecked, because the event loop would wait; about 50 ms."""
MAX_EXPLAINED_STEPS: Final = 20_000
"""Steps of checking above which a violation is not described. A description takes thousands of times as long as a check."""
MAX_COUNTED_PAIRS: Final = 50_000
"""Parts of a value, each with a part of a stranger's schema, above which the value is refused uncounted; about 100 ms."""


class JsonSchema:
    """A compiled schema. It must not refer to other files, because a fetched schema could change while the agent runs.

    A check takes bounded time, also where alternatives refer to each other and a value nests deeply.

    Args:
        schema: the schema
        is_of_stranger: whether somebody wrote it who may want the process to stand still, such as a client. Then the cost of
            its patterns is bounded too, and so are the steps of every check

    Raises:
        ValueError: the schema is invalid, or does not stand by itself; the error's text is one line
    """

    __slots__ = ("_counted", "_is_of_stranger", "_validator")
    _counted: Mapping[str, object] | None

    def __init__(self, schema: Mapping[str, object], *, is_of_stranger: bool = False) -> None:
        if is_of_stranger and (problem := pattern_problem([schema])) is not None:
            raise ValueError(problem)
        options = MATCH_OPTIONS if is_of_stranger else None
        try:
            self._validator = jsonschema_rs.validator_for(dict(schema), retriever=_refuse, pattern_options=options)
        except ValueError as error:
            raise ValueError(str(error).partition("\n")[0]) from error
        self._is_of_stranger = is_of_stranger
        if is_of_stranger:  # as it is read from a record: no part is one object with another, and names have one order
            self._counted = json.loads(json.dumps(schema, sort_keys=True))
        else:
            self._counted = schema if refers(schema) else None

    def problem(self, value: object) -> str | None:
        """Returns how a value violates the schema, or None. A value that the validator cannot read violates it too."""
        count = self._steps(value)
        if count == UNCOUNTED:
            most = f"expected at most {MAX_COUNTED_PAIRS:,} parts"
            return f"the whole value: it has too many parts, or the schema too many ways to read it; {most}"
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

    def _steps(self, value: object) -> int:
        if self._counted is None:
            return 0
        if self._is_of_stranger:
            return steps(self._counted, value, own_steps=steps_of_strangers, most_pairs=MAX_COUNTED_PAIRS)
        return steps(self._counted, value)

    def _first_problem(self, value: object) -> str:
        error = next(self._validator.iter_errors(value))
        where = "/".join(str(part) for part in error.instance_path) or "the whole value"
        text = f"{where}: {error.message}"
        return first_chars(text, MAX_ERROR_CHARS)


def ordered_json(value: object) -> str:
    """Returns JSON without white space whose keys keep their order, because a model reads them in this order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} lies outside this file")
