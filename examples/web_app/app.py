"""A Starlette app that embeds a supervisor: one POST a message, the session in the path.

    uvicorn examples.web_app.app:app          (or any ASGI server; `pip install starlette uvicorn`)
    curl -s localhost:8000/sessions -d '{"subject_id": "ada"}'
    curl -s localhost:8000/sessions/SES-…/messages -d '{"message": "hello"}'
    curl -sN localhost:8000/sessions/SES-…/stream -d '{"message": "hello"}'

The runtime opens and closes with the app. Errors of the caller become 4xx, an overload becomes 503, a turn whose model did
not answer becomes 502 with its `error`, and the same `Idempotency-Key` gives the same turn. A streamed turn is cancelled if its
client goes away. One process serves a root, so start the app with one worker.
"""

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from json import JSONDecodeError
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kitchener import (
    CallerError,
    KitchenerError,
    Overloaded,
    SessionEnded,
    TextDelta,
    TextRetracted,
    TurnCompleted,
    TurnResult,
    TurnTimeout,
    TurnUpdate,
    UnknownSession,
    open_runtime,
)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
    """The runtime lives as long as the app."""
    async with open_runtime(root=os.environ.get("BOT_ROOT", ".kitchener")) as runtime:
        yield {"supervisor": runtime.supervisor("ADMIN")}


async def body_of(request: Request) -> dict[str, Any]:
    """The request's JSON object."""
    try:
        body = await request.json()
    except JSONDecodeError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise HTTPException(400, "the body must be a JSON object")
    return body


async def start(request: Request) -> Response:
    """POST /sessions {subject_id?}"""
    body = await body_of(request)
    session_id = await request.state.supervisor.start_session(subject_id=body.get("subject_id"))
    return JSONResponse({"session_id": session_id}, status_code=201)


async def message(request: Request) -> Response:
    """POST /sessions/{session_id}/messages {message}"""
    body = await body_of(request)
    result = await request.state.supervisor.handle_turn(
        body.get("message"),
        session_id=request.path_params["session_id"],
        idempotency_key=request.headers.get("idempotency-key"),
    )
    return JSONResponse(answer_of(result), status_code=FAILED.get(result.error.kind, 200) if result.error else 200)


async def stream(request: Request) -> Response:
    """POST /sessions/{session_id}/stream {message}: the updates of the turn as server-sent events."""
    body = await body_of(request)
    updates = request.state.supervisor.stream_turn(body.get("message"), session_id=request.path_params["session_id"])
    first = await anext(updates)  # raises what is wrong with the request while there is a status to say so
    return StreamingResponse(events(first, updates), media_type="text/event-stream")


async def events(first: TurnUpdate, updates: AsyncGenerator[TurnUpdate, None]) -> AsyncIterator[str]:
    """Each update that a page shows. Starlette ends this loop if the client goes away; closing `updates` cancels the turn."""
    async with aclosing(updates):
        try:
            yield event_of(first)
            async for update in updates:
                yield event_of(update)
        except KitchenerError as error:  # such as TurnTimeout
            yield f"data: {json.dumps({'error': str(error)})}\n\n"


def event_of(update: TurnUpdate) -> str:
    """An event: text to show, text to take back, or the answer; a comment for the other updates."""
    match update:
        case TextDelta():
            told: dict[str, Any] = {"text": update.text}
        case TextRetracted():
            told = {"retracted": update.wo_id}
        case TurnCompleted():
            told = {"answer": answer_of(update.result)}
        case _:
            return f": {type(update).__name__}\n\n"
    return f"data: {json.dumps(told)}\n\n"


def answer_of(result: TurnResult) -> dict[str, Any]:
    """What a client is told of a turn. The message of its error quotes a provider, and belongs into the operator's log."""
    error = None if result.error is None else {"kind": result.error.kind, "wo_id": result.error.wo_id}
    return {"turn_id": result.turn_id, "response": result.response, "degraded": result.degraded, "error": error}


FAILED = {"PROVIDER": 502, "TIMEOUT": 504, "EXECUTOR": 503, "OUTPUT_SCHEMA": 502, "QUALITY_GATE": 502}
"""Kinds of errors in which the turn failed. In the others the reply says what is wrong with the message, or asks back."""
STATUS: dict[type[Exception], int] = {
    UnknownSession: 404,
    SessionEnded: 410,
    Overloaded: 503,
    TurnTimeout: 504,
    CallerError: 400,
}


async def refused(request: Request, error: Exception) -> Response:
    """One line of JSON for what Kitchener refuses."""
    return JSONResponse({"error": str(error)}, status_code=STATUS.get(type(error), 400))


app = Starlette(
    routes=[
        Route("/sessions", start, methods=["POST"]),
        Route("/sessions/{session_id}/messages", message, methods=["POST"]),
        Route("/sessions/{session_id}/stream", stream, methods=["POST"]),
    ],
    exception_handlers=dict.fromkeys(STATUS, refused),
    lifespan=lifespan,
)
