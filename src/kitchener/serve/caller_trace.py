"""Lets a turn belong to the trace that its caller names in `traceparent`. Explained in `docs/telemetry.md`."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from kitchener.telemetry.port import Telemetry


def traced_by(telemetry: Telemetry | None, app: ASGIApp) -> ASGIApp:
    """The application in which requests are parts of their callers' traces; without telemetry, the application itself."""
    if telemetry is None:
        return app

    async def traced(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        with telemetry.caller(Headers(scope=scope)):
            await app(scope, receive, send)

    return traced
