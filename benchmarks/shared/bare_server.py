"""The least that a server of chat completions can do: a Starlette app that sends everybody one answer, and keeps nothing.

    python -m benchmarks.shared.bare_server PORT [URL]

The answer is that of `benchmarks/shared/instant_server.py`, chunk by chunk. With the base URL of an endpoint, it passes each
request on and each piece of the answer back.
"""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from benchmarks.shared.instant_server import REPLY, streamed, whole


def app(url: str | None) -> Starlette:
    """The application.

    Args:
        url: of an endpoint; None: it answers by itself
    """
    answer, events = json.loads(whole(REPLY)), [each + b"\n\n" for each in streamed(REPLY).split(b"\n\n") if each]

    clients: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def open_client(_: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
            clients.append(client)
            yield

    def pieces() -> Iterator[bytes]:
        yield from events

    async def passed_on(data: bytes) -> AsyncIterator[bytes]:
        headers = {"content-type": "application/json"}
        async with clients[0].post(f"{url}/chat/completions", headers=headers, data=data) as found:
            async for piece in found.content.iter_any():
                yield piece

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

    routes = [Route("/v1/chat/completions", complete, methods=["POST"]), Route("/health/liveliness", alive)]
    return Starlette(routes=routes, lifespan=open_client)


if __name__ == "__main__":
    uvicorn.run(
        app(sys.argv[2] if len(sys.argv) > 2 else None),
        port=int(sys.argv[1]),
        log_level="critical",
        http="httptools",
        backlog=4_096,
    )
