"""Takes the trace and the baggage of the program out of the messages to a server. Explained in `docs/telemetry.md`."""

from types import TracebackType
from typing import Final, Generic, Protocol, TypeVar

ProtocolMessageT = TypeVar("ProtocolMessageT", contravariant=True)
_PROGRESS: Final = "progressToken"
"""The one key of a request's `_meta` that the protocol reserves without a prefix, beside those of traces."""


class MessageStream(Protocol[ProtocolMessageT]):
    """Where the protocol's library writes its messages."""

    async def send(self, item: ProtocolMessageT, /) -> None: ...
    async def aclose(self) -> None: ...
    async def __aenter__(self) -> "MessageStream[ProtocolMessageT]": ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


class UntracedStream(Generic[ProtocolMessageT]):
    """A stream of messages to a server, without the trace and the baggage that the library adds to each request.

    They would tell a stranger which calls of the program belong together, and whatever the program keeps in its baggage.
    """

    def __init__(self, stream: MessageStream[ProtocolMessageT]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    async def send(self, item: ProtocolMessageT, /) -> None:
        params = getattr(getattr(item, "message", None), "params", None)
        if isinstance(params, dict) and isinstance(meta := params.get("_meta"), dict):
            # The protocol's own keys have a prefix, such as `io.modelcontextprotocol/`. Those of propagators have none.
            params["_meta"] = {key: value for key, value in meta.items() if key == _PROGRESS or "/" in key}
            if not params["_meta"]:
                del params["_meta"]
        await self._stream.send(item)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> "UntracedStream[ProtocolMessageT]":
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stream.__aexit__(kind, error, trace)
