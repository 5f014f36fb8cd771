"""A check of a value against a schema takes bounded time, whatever the schema and the value are (`docs/security.md`)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize("levels", [10, pytest.param(12, marks=pytest.mark.soak)])
def test_a_long_value_of_a_schema_that_refers_to_itself_is_checked(levels: int) -> None:
    """Steps grow with the value where no alternatives refer to each other, so no size of it is refused."""
    entry = {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}
    tree = {"type": "object", "properties": {"left": entry, "right": entry}, "additionalProperties": False}
    schema = {"$defs": {"tree": tree}, "$ref": "#/$defs/tree"}

    def grown(levels: int) -> dict[str, Any] | None:
        return {"left": grown(levels - 1), "right": grown(levels - 1)} if levels else None

    assert JsonSchema(schema).problem(grown(levels)) is None
    assert steps(schema, grown(levels)) < MAX_STEPS // 10 * 2**levels // 2**12


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


class Asked(dict[str, Any]):
    """An object that counts how often it is asked for a name."""

    times = 0

    def __contains__(self, name: object) -> bool:
        Asked.times += 1
        return super().__contains__(name)


def test_counting_goes_through_the_shorter_of_a_schema_and_an_object() -> None:
    """Regression: a schema of 2,000 names and a list of 40,000 small objects took two seconds to count."""
    schema: dict[str, Any] = {"items": {"properties": {f"p{number}": {} for number in range(2_000)}}}
    Asked.times = 0
    assert steps(schema, [Asked(p1=1, p7=2, q=3) for _ in range(300)]) == 1 + 300 * 3
    assert Asked.times < 10_000


@given(st.lists(st.integers(0, 40), unique=True), st.lists(st.integers(0, 40), unique=True))
def test_steps_do_not_depend_on_which_one_is_longer(named: list[int], present: list[int]) -> None:
    """Parts that hold each other count by the order in which they are visited, which is that of the schema."""
    either = {"anyOf": [{"$ref": "#/$defs/one"}, {"$ref": "#"}]}
    wide = {f"n{number}": either for number in named}
    value = {f"n{number}": {"n1": 1} for number in present}
    schema = {"properties": wide, "$defs": {"one": {"properties": wide}}}
    in_order = {name: value[name] for name in wide if name in value}
    others = {name: each for name, each in value.items() if name not in wide}
    assert steps(schema, value) == steps(schema, in_order | others)


OF_KINDS: dict[str, Any] = {"properties": {"v": {"type": "array", "items": {"type": ["string", "number", "null", "object"]}}}}


@pytest.mark.parametrize("item", ["a", "ab", 7, 7.5, None, {"k": 1}], ids=repr)
def test_equal_values_take_as_many_steps_whichever_objects_they_are(item: object) -> None:
    shared = {"v": [item] * 100}
    assert steps(OF_KINDS, shared) == steps(OF_KINDS, json.loads(json.dumps(shared))) > 100


@pytest.mark.parametrize("item", ["ab", {"k": 1}], ids=repr)
def test_a_stranger_schema_judges_equal_values_alike_whichever_objects_they_are(item: object) -> None:
    """Regression: a provider in the process gave one object many times; the replay, which reads several, refused the reply."""
    schema = JsonSchema(OF_KINDS, is_of_stranger=True)
    for count in (1_000, 50_000):
        shared = {"v": [item] * count}
        problem = schema.problem(shared)
        assert problem == schema.problem(json.loads(json.dumps(shared)))
        assert (problem is None) == (count == 1_000)


@pytest.mark.parametrize("count", [1_000, 14_000])
def test_equal_stranger_schemas_judge_alike_whichever_objects_they_are(count: int) -> None:
    """A program may use one part of a schema several times; the recorded text has it several times."""
    text = {"type": "string"}
    shared: dict[str, Any] = {"properties": {"v": {"items": {"anyOf": [text] * 6}}}}
    read = json.loads(json.dumps(shared))
    value = {"v": [str(number) for number in range(count)]}
    found = {JsonSchema(each, is_of_stranger=True).problem(value) for each in (shared, read)}
    assert len(found) == 1
    assert (None in found) == (count == 1_000)


@given(
    st.recursive(
        st.sampled_from(["a", "ab", 7, None, True]),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("ab"), inner),
    )
)
def test_steps_do_not_depend_on_which_equal_values_are_one_object(value: object) -> None:
    schema = {"anyOf": [{"items": {"$ref": "#"}}, {"additionalProperties": {"$ref": "#"}}, {"propertyNames": {"maxLength": 1}}]}
    copied = json.loads(json.dumps(value))
    for most in (None, 3, 10, 30):
        counts = {
            steps(schema, each, own_steps=lambda *_: 0, most_pairs=most)
            for each in ([value] * 3, [copied, *json.loads(json.dumps([value] * 2))])
        }
        assert len(counts) == 1
