"""A client whose schemas are to keep the process busy: while they are compiled, and while arguments and replies are checked."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener import ClientTool
from kitchener.actors.admission.client_tool_checks import checked_client_tools
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.errors import CallerError
from kitchener.records.tools.client_tools import ClientToolset
from kitchener.schemas.json_schema import MAX_COUNTED_PAIRS, MAX_STEPS, JsonSchema
from kitchener.schemas.pattern_limits import MAX_BACKTRACKS, MAX_PATTERNS, match_steps
from kitchener.testing import ScriptedProvider, replay_session
from tests.serve.shared.functions import calling, use_tools
from tests.serve.shared.requests import COMPLETIONS, Asked, Client, serving

LARGE = "(?i)[a-z]{4000}"
"""Compiles to more than a megabyte, in some 20 ms."""
EXPONENTIAL = "^((?=a)a+)+x"
"""Tries exponentially many ways to match a text of the letter `a`."""
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
"""As a widespread library of clients writes it, with look-ahead."""
NESTED_LOOK = "^(?:(?=.*c)a|a)+b"


def fields(*patterns: str) -> dict[str, Any]:
    """A schema with a text of each pattern."""
    properties = {f"p{number}": {"type": "string", "pattern": each} for number, each in enumerate(patterns)}
    return {"type": "object", "properties": properties}


COSTLY_TO_COMPILE: dict[str, dict[str, Any]] = {
    "one beyond the limit of bytes": fields("(?i)[a-z]{40000}"),
    "many large patterns": fields(*(f"(?i)[a-z]{{600}}{number}" for number in range(20))),
    "many small patterns": fields(*(f"^{number}$" for number in range(MAX_PATTERNS + 1))),
    "names": {"type": "object", "patternProperties": {f"{LARGE}{number}": {} for number in range(20)}},
    "within alternatives": {"type": "object", "anyOf": [fields(f"{LARGE}{number}") for number in range(20)]},
}
COSTLY_TO_CHECK: dict[str, tuple[dict[str, Any], Any]] = {
    "exponential names": (
        {"type": "object", "patternProperties": {f"{EXPONENTIAL}{number}": {} for number in range(40)}},
        {"a" * 30 + str(number): 1 for number in range(40)},
    ),
    "exponential names by reference": (
        {"type": "object", "propertyNames": {"$ref": "#/$defs/name"}, "$defs": {"name": {"pattern": EXPONENTIAL}}},
        {"a" * 30 + str(number): 1 for number in range(1_000)},
    ),
    "look-ahead over a long text": (fields(NESTED_LOOK), {"p0": "a" * 16_000}),
    "a long choice for each item": (
        {"type": "object", "properties": {"p": {"type": "array", "items": {"enum": [f"a{n}" for n in range(5_000)]}}}},
        {"p": [f"b{number}" for number in range(2_000)]},
    ),
    "many parts for each item": (
        {"type": "object", "properties": {"p": {"type": "array", "items": {"allOf": [{"minLength": 0}] * 9_000}}}},
        {"p": [f"b{number}" for number in range(5_000)]},
    ),
    "many parts for equal items": (
        {"type": "object", "properties": {"p": {"items": {"allOf": [{"minimum": -number} for number in range(9_000)]}}}},
        {"p": [1] * 5_000},
    ),
    "many patterns for many names": (
        {"type": "object", "patternProperties": {f"^{number}$": {} for number in range(1_000)}},
        {str(number): 1 for number in range(5_000)},
    ),
    "many required names for each item": (
        {"type": "object", "properties": {"p": {"items": {"required": [f"n{number}" for number in range(5_000)]}}}},
        {"p": [{"a": number} for number in range(1_000)]},
    ),
}


@pytest.mark.parametrize("name", COSTLY_TO_COMPILE)
def test_patterns_that_are_costly_to_compile_are_refused(name: str) -> None:
    with pytest.raises(CallerError, match=r"patterns|is not a"):
        checked_client_tools([ClientTool("t", "", COSTLY_TO_COMPILE[name])], ())


def test_patterns_count_over_all_tools_of_a_message() -> None:
    tools = [ClientTool(f"t{number}", "", fields("(?i)[a-z]{1000}")) for number in range(20)]  # each compiles it
    with pytest.raises(CallerError, match="patterns that take much memory"):
        checked_client_tools(tools, ())


def test_ordinary_patterns_of_many_tools_are_taken() -> None:
    tools = [ClientTool(f"t{number}", "", fields(EMAIL, r"^\w{1,64}$", r"^\d{4}-\d\d-\d\d$")) for number in range(127)]
    tools.append(ClientTool("name", "", fields(r"^[\p{L} ]{1,50}$")))
    assert len(checked_client_tools(tools, ()).tools) == 128


@pytest.mark.parametrize("name", COSTLY_TO_CHECK)
def test_a_value_that_is_costly_to_check_is_refused_unchecked(name: str) -> None:
    schema, value = COSTLY_TO_CHECK[name]
    problem = JsonSchema(schema, is_of_stranger=True).problem(value)
    too_many = "the schema has too many ways to read it"
    uncounted = "it has too many parts, or the schema too many ways to read it"
    assert problem in (
        f"the whole value: {too_many}; expected at most {MAX_STEPS:,} steps",
        f"the whole value: {uncounted}; expected at most {MAX_COUNTED_PAIRS:,} parts",
    )


def test_ordinary_schemas_are_checked_to_the_end() -> None:
    schema = {
        "type": "object",
        "properties": {"to": {"type": "array", "items": {"pattern": EMAIL}}, "text": {"pattern": "\\S"}},
    }
    checked = JsonSchema(schema, is_of_stranger=True)
    people = [f"some.body{number}@mail.example.com" for number in range(200)]
    assert checked.problem({"to": people, "text": "a" * 100_000}) is None
    assert "does not fit" in str(checked.problem({"to": [*people, "nobody"], "text": "a"}))
    assert "to/1" in str(checked.problem({"to": [people[0], "nobody"], "text": "a"}))


def test_a_single_match_has_an_end() -> None:
    found = JsonSchema(fields(EXPONENTIAL), is_of_stranger=True).problem({"p0": "a" * 60})
    assert found is not None


@pytest.mark.parametrize("version", [8, 9])
def test_replies_of_older_turns_are_checked_as_they_were(version: int) -> None:
    """A turn of version 8 accepted what takes many steps, and its replay has to."""
    contract = PromptLibrary.load().contract("PRC-SYNTHESIZE-002").asking(fields(NESTED_LOOK), version)
    assert (contract.output_problem({"p0": "a" * 3_000 + "b"}) is None) == (version == 8)
    assert contract.output_problem({"p0": "ab"}) is None
    assert contract.output_problem({"p0": "c"}) is not None


@pytest.mark.parametrize("version", [8, 9])
def test_arguments_of_older_turns_are_checked_as_they_were(version: int) -> None:
    """A turn of version 8 took arguments of more parts than a client's schema may have now, and its replay has to."""
    toolset = ClientToolset.of([ClientTool("t", "", {"type": "object", "properties": {"p": {"items": {"type": "integer"}}}})])
    (found,) = toolset.runnable(is_trusted=False, policy_version=version)
    many = {"p": list(range(MAX_COUNTED_PAIRS + 1))}
    bound = found.bind(many)
    assert bound == many if version == 8 else "too many parts" in bound
    assert found.bind({"p": [1]}) == {"p": [1]}
    assert isinstance(found.bind({"p": ["a"]}), str)


def test_a_recorded_schema_beyond_the_limits_fits_nothing() -> None:
    """A turn from before the limits may wait for an approval, and goes on after it."""
    contract = PromptLibrary.load().contract("PRC-SYNTHESIZE-002").asking(COSTLY_TO_COMPILE["names"])
    assert "patterns" in str(contract.output_problem({}))


@given(st.sampled_from([EMAIL, EXPONENTIAL, "^a+$", NESTED_LOOK]), st.text(max_size=3_000), st.text(max_size=10))
def test_a_longer_text_takes_no_fewer_steps(pattern: str, text: str, more: str) -> None:
    assert match_steps(pattern, text) <= match_steps(pattern, text + more)
    if pattern == "^a+$":
        assert match_steps(pattern, text) < MAX_BACKTRACKS * (1 + len(text))


async def asking(client: Client, door: str, schema: dict[str, Any]) -> Asked:
    """The answer to a request for an object."""
    if door == "chat":
        wanted = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
        return await client.chat("hello", response_format=wanted)
    if door == "responses":
        wanted = {"format": {"type": "json_schema", "name": "f", "schema": schema}}
        return await client.ask("POST", "/v1/responses", {"model": "ADMIN", "input": "hello", "text": wanted})
    session_id = (await client.ask("POST", "/v1/sessions", {})).json["session_id"]
    return await client.ask("POST", f"/v1/sessions/{session_id}/messages", {"message": "hello", "output_schema": schema})


class TestServer:
    @pytest.mark.parametrize("field", ["tools", "response_format"])
    async def test_a_request_with_costly_patterns_is_refused(self, tmp_path: Path, field: str) -> None:
        schema = fields(*(f"{LARGE}{number}" for number in range(20)))
        sent: dict[str, Any] = {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}},
        }
        async with serving(tmp_path / "root") as client:
            body = {"model": "ADMIN", "messages": [{"role": "user", "content": "hello"}], field: sent[field]}
            asked = await client.ask("POST", COMPLETIONS, body)
            assert (asked.status, client.provider.requests) == (400, [])

    @pytest.mark.parametrize("door", ["chat", "responses", "native"])
    async def test_replies_that_are_costly_to_check_are_told_to_the_model(self, tmp_path: Path, door: str) -> None:
        """And the turn is replayed as it was."""
        names = ("exponential names", "many patterns for many names")  # too many steps, and too many parts to count them
        for name in names if door == "chat" else names[:1]:
            (schema, value), root = COSTLY_TO_CHECK[name], tmp_path / name
            async with serving(root, ScriptedProvider([value, {}])) as client:
                asked = await asking(client, door, schema)
                told = [each.messages[-1].content for each in client.provider.requests]
                assert (asked.status, len(told), "too many ways to read it" in told[-1]) == (200, 2, True), name
                (session,) = await client.runtime.sessions("ADMIN")
                config = client.runtime.config
            report = await replay_session(session.session_id, config=config)
            assert report.is_identical, report.text()

    async def test_arguments_that_are_costly_to_check_are_told_to_the_model(self, tmp_path: Path) -> None:
        schema, value = COSTLY_TO_CHECK["exponential names"]
        async with serving(tmp_path / "root", calling(use_tools(("f", value)))) as client:
            functions = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
            body = {"model": "ADMIN", "messages": [{"role": "user", "content": "What is the weather?"}], "tools": functions}
            asked = await client.ask("POST", COMPLETIONS, body)
            told = [each.content for request in client.provider.requests for each in request.messages if each.role == "tool"]
            assert any("too many ways to read it" in each for each in told)
            assert "tool_calls" not in asked.json["choices"][0]["message"]
