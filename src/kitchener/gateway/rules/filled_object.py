"""Fills a JSON schema with the plainest value that fits it, for the built-in model. Pure.

Texts are the reply, numbers the smallest allowed, and only what is required is there. A pattern, or a rule that ties values to
each other, is not kept to: the answer is then invalid, and the turn says so.
"""

from collections.abc import Mapping
from typing import Any, Final

_TYPES: Final = ("object", "array", "string", "integer", "number", "boolean", "null")
_MOST_ITEMS: Final = 100


def filled(schema: Mapping[str, object], text: str) -> dict[str, object]:
    """Returns an object for a schema of an object.

    Args:
        schema: the JSON schema
        text: the value of every text, shortened where the schema limits its length
    """
    value = _value(schema, schema, text, frozenset())
    return value if isinstance(value, dict) else {}


def _value(schema: object, whole: Mapping[str, object], text: str, within: frozenset[str]) -> object:
    """The value for a part of a schema, within references that are not followed again: such a schema fits no finite value."""
    if not isinstance(schema, Mapping):
        return text if schema is True else None
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    if "$ref" in schema:
        reference = str(schema["$ref"])
        return None if reference in within else _value(_at(whole, reference), whole, text, within | {reference})
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _value(_first(schema[key]), whole, text, within)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    if kind == "object":
        named = schema.get("properties", {})
        return {name: _value(named.get(name, True), whole, text, within) for name in schema.get("required", ())}
    if kind == "array":
        return [_value(schema.get("items", True), whole, text, within)] * min(schema.get("minItems", 0), _MOST_ITEMS)
    if kind == "string":
        return text.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]
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
