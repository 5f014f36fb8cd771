"""Lists the operations of the server in one table, from which its routes and its OpenAPI description are made."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Final, NamedTuple, TypeVar

import anyio
import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kitchener.config import ServeRight
from kitchener.serve.access.guard import caller_of
from kitchener.serve.answer_models.answer import ProblemAnswer
from kitchener.serve.body_problems import body_problem
from kitchener.serve.problems import RequestRefused, json_response

M = TypeVar("M", bound=BaseModel)

_MODELS: Final = "#/components/schemas/"
_ALWAYS: Final = (400, 401, 403, 404, 408, 413, 415, 421, 429, 500, 503)
"""Statuses that every operation may answer with."""


Answering = Callable[[Request], Awaitable[ASGIApp]]
"""Takes a request and returns the application that answers it."""


class Parameter(NamedTuple):
    """A parameter of a path, a query or a header."""

    name: str
    place: str
    """`path`, `query` or `header`."""
    meaning: str
    schema: Mapping[str, object] = {"type": "string"}


class Served(NamedTuple):
    """An operation of the HTTP API, with its path and method."""

    method: str
    path: str
    summary: str
    answer: Answering
    right: ServeRight | None = None
    """The right that the key must have; None: any key will do."""
    body: type[BaseModel] | None = None
    parameters: tuple[Parameter, ...] = ()
    status: int = 200
    """Of an answer that is no error."""
    errors: tuple[int, ...] = ()
    """Statuses of errors in addition to the ones that every operation may have."""
    streams: bool = False
    """Whether the answer may be a stream of events."""
    gives: type[BaseModel] | None = None
    """The JSON object of the answer. None: a stream of events, or an object that is not described."""

    def route(self) -> BaseRoute:
        """The route that leads to it."""
        return Route(self.path, _Endpoint(self.answer, self.right), methods=[self.method])

    def described(self) -> dict[str, object]:
        """Its entry in the OpenAPI description."""
        content: dict[str, object] = {}
        if self.gives is not None:
            content["application/json"] = {"schema": {"$ref": f"{_MODELS}{self.gives.__name__}"}}
        elif not self.streams:
            content["application/json"] = {"schema": {"type": "object"}}
        if self.streams:
            content["text/event-stream"] = {"schema": _EVENT}
        answers: dict[str, object] = {str(self.status): {"description": HTTPStatus(self.status).phrase, "content": content}}
        for each in sorted({*_ALWAYS, *self.errors}):
            answers[str(each)] = {"description": HTTPStatus(each).phrase, "content": _ERROR}
        found: dict[str, object] = {
            "operationId": f"{self.method.lower()}_{self.path.strip('/').translate(_PLAIN)}",
            "summary": self.summary,
            "parameters": [
                {"name": name, "in": place, "description": meaning, "required": place == "path", "schema": dict(schema)}
                for name, place, meaning, schema in self.parameters
            ],
            "responses": answers,
        }
        if self.body is not None:
            schema = {"$ref": f"{_MODELS}{self.body.__name__}"}
            is_required = any(each.is_required() for each in self.body.model_fields.values())
            found["requestBody"] = {"required": is_required, "content": {"application/json": {"schema": schema}}}
        return found


_EVENT: Final = {
    "description": "One event of the stream. `data` is JSON, or `[DONE]` at the end of a stream of the OpenAI API.",
    "type": "object",
    "required": ["data"],
    "properties": {"id": {"type": "string"}, "event": {"type": "string"}, "data": {"type": "string"}},
}
_PLAIN: Final = str.maketrans({"/": "_", "{": None, "}": None})
_ERROR: Final = {"application/json": {"schema": {"$ref": f"{_MODELS}{ProblemAnswer.__name__}"}}}


def open_api(operations: Sequence[Served]) -> dict[str, object]:
    """The OpenAPI 3.1 description of the operations."""
    paths: dict[str, dict[str, object]] = {}
    models: dict[str, type[BaseModel]] = {ProblemAnswer.__name__: ProblemAnswer}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = each.described()
        models |= {model.__name__: model for model in (each.body, each.gives) if model is not None}
    schemas: dict[str, object] = {}
    for name, model in models.items():
        schema = model.model_json_schema(ref_template=f"{_MODELS}{{model}}")
        schemas |= schema.pop("$defs", {})
        schemas[name] = schema
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kitchener", "version": version("kitchener")},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    }


def read_model(model: type[M], data: bytes) -> M:
    """The body of a request; raises as `checked_body`."""
    return checked_body(model, read_json(data))


def checked_body(model: type[M], found: object) -> M:
    """A body that was read as JSON types.

    Raises:
        RequestRefused: it is no such body; the error repeats none of it
    """
    try:
        return model.model_validate(found)
    except ValidationError as error:
        raise RequestRefused(400, "invalid_request", body_problem(error)) from None


def read_json(data: bytes) -> object:
    """The body of a request as JSON types. Raises RequestRefused if it is no JSON; the error says where and repeats nothing."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RequestRefused(400, "not_json", f"the body is not valid JSON: {error}") from None


class _Endpoint:
    """An ASGI application that checks the right of the key, and lets a function choose what answers."""

    def __init__(self, answer: Answering, right: ServeRight | None) -> None:
        self._answer, self._right = answer, right

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        if self._right is not None:
            caller_of(request).check(self._right)
        answer = await self._answer(request)
        await answer(scope, receive, send)


def described_by(operations: Sequence[Served]) -> Callable[[Request], Awaitable[ASGIApp]]:
    """Answers with the OpenAPI description, which is made when somebody first asks for it, in a thread of its own."""
    made: list[dict[str, object]] = []

    async def answer(_: Request) -> ASGIApp:
        if not made:
            made.append(await anyio.to_thread.run_sync(open_api, operations))
        return json_response(made[0])

    return answer
