"""Serves the files of the web chat from memory, with headers by which a browser loads and runs nothing else.

The page holds no data. What it shows comes from the native API, for the key that its user enters. Explained in
`docs/server.md`.
"""

from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kitchener.inspection.palette import palette

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No text can become markup, whatever the page's own code does: it has no policy that makes HTML from text.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""The policy for what the page may load, run and connect to."""
_MEDIA_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_START: Final = "index.html"


def page_routes() -> list[Route]:
    """The routes of the page: `/`, and its files below `/page/`. Their requests need no key."""
    return [_route(path, name, data) for path, name, data in page_files()]


def page_files() -> Iterator[tuple[str, str, bytes]]:
    """The path, the name and the content of each file of the page."""
    for each in sorted(files("kitchener.serve.web_chat").joinpath("assets").iterdir(), key=lambda file: file.name):
        yield "/" if each.name == _START else f"/page/{each.name}", each.name, each.read_bytes()
    yield "/page/palette.css", "palette.css", palette().encode()


def _route(path: str, name: str, data: bytes) -> Route:
    tag = f'"{sha256(data).hexdigest()[:32]}"'
    headers = {
        "cache-control": "no-cache",  # cached, and validated by its tag: a newer server has newer files
        "etag": tag,
        "content-security-policy": POLICY,
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    media_type = _MEDIA_TYPES[name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if tag in (each.strip().removeprefix("W/") for each in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers, media_type=media_type)

    return Route(path, answer, methods=["GET"])
