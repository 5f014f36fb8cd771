"""Takes the trace and the baggage of the program out of the messages to a server. Explained in `docs/telemetry.md`."""

from typing import Final, Generic, Protocol, TypeVar

from kitchener.mcp.stream_wrapper import ClosableStream, StreamWrapper

ProtocolMessageT = TypeVar("ProtocolMessageT", contravariant=True)
_PROGRESS: Final = "progressToken"
"""The one key of a request's `_meta` that the protocol reserves without a prefix, beside those of traces."""


class MessageStream(ClosableStream, Protocol[ProtocolMessageT]):
    """Where the protocol's library writes its messages."""

    async def send(self, item: ProtocolMessageT, /) -> None: ...


class UntracedStream(StreamWrapper[MessageStream[ProtocolMessageT]], Generic[ProtocolMessageT]):
    """A stream of messages to a server, without the trace and the baggage that the library adds to each request.

    They would tell a stranger which calls of the program belong together, and whatever the program keeps in its baggage.
    """

    async def send(self, item: ProtocolMessageT, /) -> None:
        params = getattr(getattr(item, "message", None), "params", None)
        if isinstance(params, dict) and isinstance(meta := params.get("_meta"), dict):
            # The protocol's own keys have a prefix, such as `io.modelcontextprotocol/`. Those of propagators have none.
            params["_meta"] = {key: value for key, value in meta.items() if key == _PROGRESS or "/" in key}
            if not params["_meta"]:
                del params["_meta"]
        await self._stream.send(item)
