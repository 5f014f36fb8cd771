"""The least that a server of chat completions can do: a Starlette app that sends everybody one answer, and keeps nothing.

    python -m benchmarks.bare_server PORT [URL]

The answer is that of `benchmarks/instant_server.py`, chunk by chunk. With the base URL of an endpoint, it passes each
request on and each piece of the answer back.
"""

import json
import sys
from collections.abc import AsyncIterator, Iterator

import pyqwest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from benchmarks.instant_server import REPLY, streamed, whole


def app(url: str | None) -> Starlette:
    """The application.

    Args:
        url: of an endpoint; None: it answers by itself
    """
    answer, events = json.loads(whole(REPLY)), [each + b"\n\n" for each in streamed(REPLY).split(b"\n\n") if each]
    client = pyqwest.Client()

    def pieces() -> Iterator[bytes]:
        yield from events

    async def passed_on(data: bytes) -> AsyncIterator[bytes]:
        async with client.stream(
            "POST", f"{url}/chat/completions", headers={"content-type": "application/json"}, content=data
        ) as found:
            async for piece in found.content:
                yield bytes(piece)

    async def complete(request: Request) -> Response:
        data = await request.body()
        is_streamed = json.loads(data)["stream"]
        if url is not None:
            compact = json.dumps(json.loads(data), separators=(",", ":")).encode()
            return StreamingResponse(passed_on(compact), media_type="text/event-stream" if is_streamed else "application/json")
        if not is_streamed:
            return JSONResponse(answer)

        async def sent() -> AsyncIterator[bytes]:
            for piece in pieces():
                yield piece

        return StreamingResponse(sent(), media_type="text/event-stream")

    async def alive(_: Request) -> Response:
        return PlainTextResponse("ok")

    return Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"]), Route("/health/liveliness", alive)])


if __name__ == "__main__":
    uvicorn.run(
        app(sys.argv[2] if len(sys.argv) > 2 else None), port=int(sys.argv[1]), log_level="critical", http="h11", backlog=4_096
    )
