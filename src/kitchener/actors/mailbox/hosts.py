"""The executor and the gateway behind their mailboxes: each offers the very method of the component that it hosts.

Which lane takes a message, and how a stream of items comes back, is decided here; queues, workers and failures are the
mailbox's (`mailbox.py`). Above stand the supervisor and the executor, who see the protocols only. Explained in
`docs/actors.md`.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine
from contextlib import aclosing
from typing import Any, NamedTuple, cast

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from kitchener.actors.mailbox.calling_chain import calling_chain
from kitchener.actors.mailbox.mailbox import BACKGROUND, INTERACTIVE, Envelope, Mailbox
from kitchener.records.prompt import OnAttempt, PromptGateway, PromptRequest, PromptResponse, StreamItem
from kitchener.records.work_order import HO1ExecutorProtocol, WorkOrder


class HostedExecutor:
    """An executor behind its mailbox: the same protocol, bounded, in lanes.

    Consolidation takes the background lane. A turn that a tool started takes a lane of its own depth, so that no slot waits for
    itself.
    """

    def __init__(self, mailbox: Mailbox[WorkOrder, WorkOrder]) -> None:
        self._mailbox = mailbox

    @staticmethod
    def hosting(executor: HO1ExecutorProtocol, **bounds: Any) -> Mailbox[WorkOrder, WorkOrder]:
        """A mailbox for the executor; open it, then wrap it."""
        return Mailbox(executor.execute, origin=lambda work_order: work_order.subject_id, **bounds)

    def execute(self, work_order: WorkOrder) -> Coroutine[Any, Any, WorkOrder]:
        """The executed work order; see `HO1ExecutorProtocol`. The caller holds the deadline."""
        return self._mailbox.ask_within(work_order, lane=self.lane_of(work_order))

    @staticmethod
    def lane_of(work_order: WorkOrder) -> str:
        """The lane that takes this work order."""
        if work_order.wo_type == "consolidate":
            return BACKGROUND
        depth = len(calling_chain())
        return INTERACTIVE if depth <= 1 else f"nested-{depth - 1}"


class GatewayCall(NamedTuple):
    """One request on its way to the gateway's worker."""

    request: PromptRequest
    on_attempt: OnAttempt
    sink: MemoryObjectSendStream[StreamItem] | None
    """Where stream items go; None for a plain completion."""


class HostedGateway:
    """A gateway behind its mailbox: the same protocol, bounded."""

    def __init__(self, mailbox: Mailbox[GatewayCall, Any], *, stream_buffer: int) -> None:
        self._mailbox = mailbox
        self._stream_buffer = stream_buffer

    @staticmethod
    def hosting(gateway: PromptGateway, **bounds: Any) -> Mailbox[GatewayCall, Any]:
        """A mailbox for the gateway; open it, then wrap it. It replies with the response, to a stream with nothing."""

        async def pass_on(call: GatewayCall, sink: MemoryObjectSendStream[StreamItem]) -> None:
            stream = cast(AsyncGenerator[StreamItem, None], gateway.stream(call.request, on_attempt=call.on_attempt))
            async with aclosing(stream):
                async for item in stream:
                    try:
                        await sink.send(item)
                    except anyio.BrokenResourceError:
                        return  # the reader has gone

        def serve(call: GatewayCall) -> Awaitable[Any]:
            if call.sink is not None:
                return pass_on(call, call.sink)
            return gateway.complete(call.request, on_attempt=call.on_attempt)

        return Mailbox(serve, origin=lambda call: call.request.subject_id, **bounds)

    def complete(self, request: PromptRequest, *, on_attempt: OnAttempt) -> Coroutine[Any, Any, PromptResponse]:
        """The model's answer; see `PromptGateway`."""
        return self._mailbox.ask_here(GatewayCall(request, on_attempt, None))

    async def stream(self, request: PromptRequest, *, on_attempt: OnAttempt) -> AsyncIterator[StreamItem]:
        """The answer as it is being made; see `PromptGateway`. A slow reader holds the provider back."""
        send, receive = anyio.create_memory_object_stream[StreamItem](self._stream_buffer)
        envelope: Envelope[GatewayCall, Any] | None = None
        with send, receive:
            try:
                envelope = await self._mailbox.post(GatewayCall(request, on_attempt, send), on_done=send.close)
                async for item in receive:
                    yield item
            except BaseException:
                if envelope is not None:
                    await self._mailbox.abandon(envelope)
                raise
        await self._mailbox.reply(envelope)
