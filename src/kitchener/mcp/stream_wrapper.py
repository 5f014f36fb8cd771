"""Passes on everything to a stream of the protocol's library. A subclass changes what it needs."""

from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar


class ClosableStream(Protocol):
    """What a wrapper needs of a stream, besides what its own class uses."""

    async def aclose(self) -> None: ...
    async def __aenter__(self) -> object: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


StreamT = TypeVar("StreamT", bound=ClosableStream)


class StreamWrapper(Generic[StreamT]):
    """A stream that is another one, apart from what a subclass changes."""

    def __init__(self, stream: StreamT) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stream.__aexit__(kind, error, trace)
