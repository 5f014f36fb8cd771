"""Valid and invalid requests made from `/openapi.json` get the answers that it describes (docs/server.md)."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
import requests
import schemathesis
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from pydantic import ValidationError
from schemathesis.checks import CHECKS
from schemathesis.core.parameters import ParameterLocation
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from kitchener.config.field_docstrings import DescribedModel, field_docstrings
from tests.serve.responses.test_responses import asking, send_card
from tests.serve.shared.described import described
from tests.serve.shared.requests import Asked, Client, run_request, serving

CHECKED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)
BOTH = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
PLACES = (ParameterLocation.PATH, ParameterLocation.QUERY, ParameterLocation.BODY)
REFUSALS = schemathesis.Config.from_dict({"checks": {"negative_data_rejection": {"expected-statuses": ["4xx", "5xx"]}}})
"""Any refusal will do: 20,001 made-up messages are often too large to be read at all, and get 413."""
WITHOUT_SUCCESS = {
    "DELETE /v1/responses/{response_id}",
    "POST /v1/subject/erase",
    "POST /v1/memory/quarantine",
    "POST /v1/memory/{artifact_id}/deactivate",
}
"""What made-up requests cannot do: delete, erase without the right name, forget what nobody learned."""


class Sender:
    """Sends what was made up to a server that runs in another thread.

    Args:
        portal: to the thread
        client: of the server
    """

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal, self._client = portal, client
        self.statuses: dict[str, Counter[int]] = defaultdict(Counter)
        """How often each operation answered with which status."""

    def known(self) -> Mapping[str, Any]:
        """Fields that fit each other: of a session with a turn, an intent and a call that waits."""
        session = self._json("/v1/sessions", {})["session_id"]
        turn = self._json(f"/v1/sessions/{session}/messages", {"message": "a card"})
        return {
            "agent": "ADMIN",
            "answer": None,
            "approval_id": turn["pending_approval"][0],
            "arguments": {"to": "bob"},
            "before": turn["turn_id"],
            "change": "close",
            "intent_id": self._json(f"/v1/sessions/{session}/intents", {"objective": "travel"})["intent_id"],
            "input": "hello",
            "message": "hello",
            "messages": [{"id": "m1", "role": "user", "content": "hello"}],
            "model": "ADMIN",
            "response_id": f"resp_{turn['turn_id'][2:].replace('-', '_')}",
            "session_id": session,
            "n": 1,
            "objective": "travel",
            "resume": None,
            "runId": turn["turn_id"],
            "response_format": None,
            "threadId": f"thread of {session}",
            "tool_choice": "auto",
            "tools": None,
            "turn_id": turn["turn_id"],
        }

    def send(self, case: Any) -> schemathesis.Response:
        """The answer to a request."""
        made = requests.Request(**case.as_transport_kwargs(base_url="http://localhost")).prepare()
        asked = Asked()
        asked.taking.set()
        body = made.body.encode() if isinstance(made.body, str) else made.body
        assert isinstance(body, bytes | None)
        headers = {name: each if isinstance(each, str) else each.decode("latin-1") for name, each in made.headers.items()}

        async def run() -> None:
            with anyio.fail_after(120):
                await run_request(self._client.server.app, asked, str(made.method), str(made.path_url), [body or b""], headers)

        self._portal.call(run)
        self.statuses[case.operation.label][asked.status] += 1
        given_headers = {name: [each] for name, each in asked.headers.items()}
        return schemathesis.Response(asked.status, given_headers, asked.body, made, elapsed=0.0, verify=False)

    def _json(self, path: str, body: object) -> Any:
        return self._portal.call(self._client.ask, "POST", path, body).json


@contextmanager
def sending(root: Path) -> Iterator[tuple[Sender, list[Any]]]:
    """A sender, and the operations of its server."""
    opened = serving(root, asking("ada"), tools=[send_card], ho3_enabled=True, context_mode="enforce")
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(opened) as client:
        description = dict(described(client.server.operations).description)
        del description["security"]  # without keys, nobody needs one; the tests of the guard say who does
        found = schemathesis.openapi.from_dict(description, config=REFUSALS).get_all_operations()
        yield Sender(portal, client), [each.ok() for each in found if isinstance(each, Ok)]


def ask_made_up(sender: Sender, operation: Any, mode: GenerationMode, examples: int) -> None:
    """Sends requests to an operation, half of them about what exists, and fails at an answer that is not as described.

    The first valid request is made of nothing else, so each run reaches each operation, whatever is made up.
    """
    known, numbers = sender.known(), count()

    @settings(max_examples=examples, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        number = next(numbers)
        if number == 0 and mode == GenerationMode.POSITIVE:
            only_known(case, known)
        elif number % 2:
            for place, values in zip(PLACES, (case.path_parameters, case.query, case.body), strict=True):
                info = case.meta.components.get(place)
                if isinstance(values, dict) and info is not None and info.mode == GenerationMode.POSITIVE:
                    values.update({name: known[name] for name in values.keys() & known.keys()})
        if operation.path.endswith("/events"):
            case.query = {**(case.query or {}), "follow": "false"}  # one that is followed does not end
        case.validate_response(sender.send(case), checks=CHECKS.get_by_names(list(CHECKED)))

    check()


async def test_the_description_has_the_docstring_of_each_field(tmp_path: Path) -> None:
    """And each field of a request's body has one. They are read from the source when the description is asked for."""
    async with serving(tmp_path / "root", asking("ada"), tools=[send_card]) as client:
        found = (await client.ask("GET", "/openapi.json")).json
    schemas = found["components"]["schemas"]
    models = {each.__name__: each for each in subclasses_of(DescribedModel)}
    for name, schema in schemas.items():
        model = models[name]
        for field, text in field_docstrings(model).items():
            assert schema["properties"][model.model_fields[field].alias or field]["description"] == text, f"{name}.{field}"
    bodies = {
        name: schema
        for path in found["paths"].values()
        for operation in path.values()
        for name, schema in reached_from(operation.get("requestBody"), schemas).items()
    }
    fields = {f"{name}.{field}": each for name, schema in bodies.items() for field, each in schema["properties"].items()}
    assert len(fields) > 50
    assert [name for name, each in fields.items() if "description" not in each] == []


async def test_a_switch_of_a_request_takes_true_and_false_only(tmp_path: Path) -> None:
    """As described. Pydantic alone would also take `"off"`, 1 and 0.0."""
    async with serving(tmp_path / "root", asking("ada"), tools=[send_card]) as client:
        paths = (await client.ask("GET", "/openapi.json")).json
        schemas = paths["components"]["schemas"]
        models, switches = {each.__name__: each for each in subclasses_of(DescribedModel)}, list[str]()
        for operation in (each for path in paths["paths"].values() for each in path.values()):
            for name, schema in reached_from(operation.get("requestBody"), schemas).items():
                for field, each in schema["properties"].items():
                    if "boolean" in (each.get("type"), *(one.get("type") for one in each.get("anyOf", ()))):
                        switches.append(f"{name}.{field}")
                        for wrong in ("off", 1, 0.0):
                            with pytest.raises(ValidationError) as caught:
                                models[name].model_validate({field: wrong})
                            assert (field,) in {error["loc"] for error in caught.value.errors()}, f"{name}.{field} = {wrong!r}"
    assert len(switches) >= 5


def subclasses_of(model: type[DescribedModel]) -> Iterator[type[DescribedModel]]:
    """All classes derived from a model."""
    for each in model.__subclasses__():
        yield each
        yield from subclasses_of(each)


def reached_from(schema: object, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The named schemas that a schema refers to, themselves or through others, by name."""
    names = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(schema)))
    found = {name: schemas[name] for name in names}
    for each in list(found.values()):
        found |= reached_from(each, schemas)
    return found


def only_known(case: Any, known: Mapping[str, Any]) -> None:
    """Leaves a request only the fields that are known: all of its path and query, and what its body must have."""
    operation = case.operation
    case.path_parameters = {each.name: known.get(each.name, "unknown") for each in operation.path_parameters}
    case.query = {each.name: known[each.name] for each in operation.query if each.name in known}
    case.headers = {}
    if isinstance(case.body, dict):
        (body,) = operation.body
        case.body = {name: known.get(name, case.body[name]) for name in body.resolved_schema.get("required", ())}


def test_every_operation_answers_made_up_requests_as_described(tmp_path: Path) -> None:
    with sending(tmp_path / "root") as (sender, operations):
        for operation in operations:
            ask_made_up(sender, operation, GenerationMode.POSITIVE, 2)
        for operation in operations:
            if operation.body or operation.query:
                ask_made_up(sender, operation, GenerationMode.NEGATIVE, 1)
        reached = {label for label, statuses in sender.statuses.items() if any(each < 400 for each in statuses)}
        assert {each.label for each in operations} - reached <= WITHOUT_SUCCESS


@pytest.mark.soak
@pytest.mark.parametrize("mode", BOTH)
def test_every_operation_answers_many_made_up_requests_as_described(tmp_path: Path, mode: GenerationMode) -> None:
    with sending(tmp_path / "root") as (sender, operations):
        for operation in operations:
            try:
                ask_made_up(sender, operation, mode, 100)
            except Unsatisfiable:  # nothing about the operation can be wrong
                assert mode == GenerationMode.NEGATIVE
