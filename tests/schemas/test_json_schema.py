"""A check of a value against a schema takes bounded time, whatever the schema and the value are (`docs/security.md`)."""

from typing import Any

import pytest

from kitchener.schemas.json_schema import MAX_STEPS, JsonSchema
from kitchener.schemas.schema_steps import refers, steps


def nested(levels: int, leaf: object) -> object:
    value = leaf
    for _ in range(levels):
        value = {"child": value}
    return value


def either(kind: str) -> dict[str, Any]:
    """What pydantic writes for a union of two models that have members of the same union."""
    node = {"type": "object", "properties": {"child": {"$ref": "#/$defs/any"}}, "required": ["child"]}
    known = {
        "one": node,
        "other": node | {"title": "other"},
        "any": {kind: [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/other"}]},
    }
    return {"$defs": known, "$ref": "#/$defs/any"}


def ladder(rungs: int) -> dict[str, Any]:
    """Alternatives of alternatives, which all look at the same value."""
    known: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(rungs)}
    return {"$defs": {**known, f"d{rungs}": {"type": "string"}}, "$ref": "#/$defs/d0"}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["anyOf", "oneOf"])
@pytest.mark.parametrize("levels", [12, 20, 60])
def test_a_value_that_doubles_the_work_with_each_level_is_refused_in_bounded_time(kind: str, levels: int) -> None:
    """Regression: ten levels took a third of a second, eighteen a minute, and the event loop stood still."""
    problem = JsonSchema(either(kind)).problem(nested(levels, 1))
    assert "too many ways to read it" in (problem or "")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("rungs", [14, 60, 400])
def test_a_schema_that_doubles_the_work_by_itself_refuses_in_bounded_time(rungs: int) -> None:
    problem = JsonSchema(ladder(rungs)).problem({})
    assert "too many ways to read it" in (problem or "")


def test_a_violation_of_few_steps_is_described() -> None:
    assert "anyOf" in (JsonSchema(either("anyOf")).problem(nested(4, 1)) or "")


def test_a_long_value_of_a_schema_that_refers_to_itself_is_checked() -> None:
    """Steps grow with the value where no alternatives refer to each other, so no size of it is refused."""
    entry = {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}
    tree = {"type": "object", "properties": {"left": entry, "right": entry}, "additionalProperties": False}
    schema = {"$defs": {"tree": tree}, "$ref": "#/$defs/tree"}

    def grown(levels: int) -> dict[str, Any] | None:
        return {"left": grown(levels - 1), "right": grown(levels - 1)} if levels else None

    assert JsonSchema(schema).problem(grown(12)) is None
    assert steps(schema, grown(12)) < MAX_STEPS // 10


@pytest.mark.parametrize(
    ("reference", "many"),
    [("#", False), ("#/nowhere", False), ("#anchor", False), ("#/$defs/~0a~1b", True), ("#/$defs/list/1", True)],
)
def test_references_of_all_forms_are_followed_and_end(reference: str, *, many: bool) -> None:
    fork = {"allOf": [{"type": "object"}, {"type": "object"}]}
    schema = {"$defs": {"~a/b": fork, "list": [{}, fork]}, "$ref": reference}
    assert steps(schema, {}) == (4 if many else 1)


def test_only_schemas_with_references_are_counted() -> None:
    assert not refers({"anyOf": [{"type": "string"}, {"properties": {"a": {"enum": [1, None]}}}]})
    assert refers({"items": [{"not": {"$ref": "#"}}]})
