"""The built-in model fills a caller's schema with the plainest value that fits it. See docs/gateway.md."""

from enum import StrEnum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from kitchener.gateway.providers.offline import OfflineProvider
from kitchener.gateway.rules.filled_object import filled
from kitchener.schemas.json_schema import JsonSchema
from tests.gateway.shared.gateway_kit import ask


class Kind(StrEnum):
    TRAIN = "train"
    BUS = "bus"


class Stop(BaseModel):
    name: str = Field(min_length=3, max_length=8)
    minutes: int = Field(gt=2, le=90)
    onward: "Stop | None" = None


class Plan(BaseModel):
    kind: Kind
    mode: Literal["fast", "cheap"]
    stops: list[Stop] = Field(min_length=2)
    price: float = Field(ge=1.5)
    note: str | None
    is_open: bool
    tags: dict[str, str]
    first: Stop
    more: Any


def test_a_nested_model_is_filled_and_fits() -> None:
    made = filled(Plan.model_json_schema(), "A long reply.")
    plan = Plan.model_validate(made)
    assert (plan.kind, plan.mode, plan.price, plan.note, plan.is_open) == (Kind.TRAIN, "fast", 1.5, "A long reply.", False)
    assert [(stop.name, stop.minutes) for stop in plan.stops] == [("A long r", 3)] * 2


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, {}),
        ({"required": ["a"]}, {"a": "Hi"}),
        ({"required": ["a"], "properties": {"a": {"type": ["null", "integer"], "maximum": -5}}}, {"a": -5}),
        ({"required": ["a"], "properties": {"a": {"anyOf": [{"type": "null"}, {"const": 4}]}}}, {"a": 4}),
        ({"required": ["a"], "properties": {"a": {"$ref": "#/$defs/x~1y"}}, "$defs": {"x/y": {"default": 3}}}, {"a": 3}),
        ({"required": ["a"], "properties": {"a": {"type": "string", "minLength": 4}}}, {"a": "Hi.."}),
    ],
)
def test_small_schemas(schema: dict[str, Any], value: dict[str, Any]) -> None:
    schema = {"type": "object", **schema}
    assert filled(schema, "Hi") == value
    assert JsonSchema(schema).problem(value) is None


def test_a_schema_that_requires_itself_ends() -> None:
    schema = {"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#"}}}
    assert filled(schema, "x") == {"next": {"next": None}}


async def test_offline_gives_text_an_object_or_a_tool_request() -> None:
    schema = {"type": "object", "required": ["answer"], "properties": {"answer": {"type": "string"}}}
    request = ask("thanks!", variables={"user_message": "thanks!", "prior_results": [{"speech_act": "thanks"}]})
    made = await OfflineProvider().complete(request._replace(output_schema=schema))
    assert made.structured == {"answer": "You are welcome."}
    assert (await OfflineProvider().complete(request)).text == "You are welcome."


def test_a_schema_that_multiplies_is_not_filled_to_its_end() -> None:
    """A client of a server with the built-in model may send one. Regression: twenty levels took seconds, forty had no end."""
    known: dict[str, Any] = {
        f"d{number}": {
            "type": "object",
            "required": ["a", "b"],
            "properties": {name: {"$ref": f"#/$defs/d{number + 1}"} for name in ("a", "b")},
        }
        for number in range(60)
    }
    found = filled({"$ref": "#/$defs/d0", "$defs": {**known, "d60": {"type": "string"}}}, "x")
    assert len(str(found)) < 1_000_000
    arrays: dict[str, Any] = {"type": "string", "minLength": 10**15}
    for _ in range(60):
        arrays = {"type": "array", "minItems": 100, "items": arrays}
    assert len(str(filled({"type": "object", "required": ["a"], "properties": {"a": arrays}}, "x"))) < 10_000_000


def test_limits_may_be_whole_numbers_with_a_fraction() -> None:
    """JSON schemas may say `3.0`."""
    named = {"a": {"type": "string", "minLength": 3.0, "maxLength": 4.0}, "b": {"type": "array", "minItems": 2.0}}
    schema = {"type": "object", "properties": named, "required": ["a", "b"]}
    made = filled(schema, "hello")
    assert made == {"a": "hell", "b": ["hello", "hello"]}
    assert JsonSchema(schema).problem(made) is None


def test_a_long_chain_of_references_is_followed_only_so_far() -> None:
    chain: dict[str, Any] = {f"s{number}": {"$ref": f"#/$defs/s{number + 1}"} for number in range(2_500)}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/s0"}}, "required": ["a"], "$defs": chain}
    assert filled(schema, "hello") == {"a": None}
