"""Fills a JSON schema with the plainest value that fits it, for the built-in model. Pure.

Texts are the reply, numbers the smallest allowed, and only what is required is there. A pattern, or a rule that ties values to
each other, is not kept to: the answer is then invalid, and the turn says so.
"""

from collections.abc import Mapping
from typing import Any, Final

_TYPES: Final = ("object", "array", "string", "integer", "number", "boolean", "null")
_MOST_ITEMS: Final = 100
_MOST_CHARS: Final = 1_000_000
"""About how long an object may become as JSON, in characters, before the rest is left empty."""
_LONGEST: Final = 10_000
"""Longest text that is made longer than the reply, characters."""
_MOST_REFERENCES: Final = 100
"""How many references are followed one after the other."""
_EACH: Final = 50
"""Characters that count for each value, so that their number is bounded too."""


def filled(schema: Mapping[str, object], text: str) -> dict[str, object]:
    """Returns an object for a schema of an object.

    Args:
        schema: the JSON schema
        text: the value of every text, shortened where the schema limits its length
    """
    value = _Filling(schema, text).value(schema, frozenset())
    return value if isinstance(value, dict) else {}


class _Filling:
    """Fills one schema. A schema whose references multiply is not filled to its end, because a stranger may have written it."""

    def __init__(self, whole: Mapping[str, object], text: str) -> None:
        self._whole, self._text, self._left = whole, text, _MOST_CHARS

    def value(self, schema: object, within: frozenset[str]) -> object:
        """The value for a part of the schema, within references that are not followed again: such a schema fits no value."""
        self._left -= _EACH
        if self._left < 0:
            return None
        if not isinstance(schema, Mapping):
            return self._counted(self._text) if schema is True else None
        for key in ("const", "default"):
            if key in schema:
                return self._counted(schema[key])
        if schema.get("enum"):
            return self._counted(schema["enum"][0])
        if "$ref" in schema:
            reference = str(schema["$ref"])
            if reference in within or len(within) >= _MOST_REFERENCES:
                return None
            return self.value(_at(self._whole, reference), within | {reference})
        for key in ("anyOf", "oneOf", "allOf"):
            if schema.get(key):
                return self.value(_first(schema[key]), within)
        return self._of_kind(schema, within)

    def _counted(self, value: object) -> object:
        self._left -= len(str(value))
        return value

    def _of_kind(self, schema: Mapping[str, Any], within: frozenset[str]) -> object:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = next((each for each in kind if each != "null"), "null")
        if kind == "object":
            named = schema.get("properties", {})
            return {name: self.value(named.get(name, True), within) for name in schema.get("required", ())}
        if kind == "array":
            items = schema.get("items", True)
            return [self.value(items, within) for _ in range(min(int(schema.get("minItems", 0)), _MOST_ITEMS))]
        if kind == "string":
            least, most = min(int(schema.get("minLength", 0)), _LONGEST), schema.get("maxLength")
            return self._counted(self._text.ljust(least, ".")[: None if most is None else int(most)])
        return {"boolean": False, "null": None}.get(kind, _smallest(schema)) if kind in _TYPES else None


def _first(choices: list[object]) -> object:
    """The first choice that is not null."""
    return next((each for each in choices if not isinstance(each, Mapping) or each.get("type") != "null"), choices[0])


def _smallest(schema: Mapping[str, Any]) -> int | float:
    least: int | float = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    return least if most is None or least <= most else most


def _at(whole: Mapping[str, object], reference: str) -> object:
    """The part of a schema that a reference of its own names."""
    found: object = whole
    for name in reference.removeprefix("#").strip("/").split("/"):
        key = name.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) and name else found
    return found
