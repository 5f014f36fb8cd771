"""Hosts the executor and the gateway behind mailboxes. Each host has the same methods as the component that it hosts.

A host chooses the lane of a message and returns the items of a stream. `mailbox.py` owns queues, workers and failures.
The callers, the supervisor and the executor, see only the protocols. Explained in `docs/actors.md`.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine
from contextlib import aclosing
from typing import NamedTuple, Unpack, cast

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from kitchener.actors.mailbox.calling_chain import calling_chain
from kitchener.actors.mailbox.mailbox import BACKGROUND, INTERACTIVE, Envelope, Mailbox, MailboxBounds
from kitchener.records.prompt import OnAttempt, PromptGateway, PromptRequest, PromptResponse, StreamItem
from kitchener.records.work_order import HO1ExecutorProtocol, WorkOrder


class HostedExecutor:
    """An executor behind a mailbox with bounded lanes; implements `HO1ExecutorProtocol`.

    Consolidation uses the background lane. A turn that a tool started uses a lane for its nesting depth. So a nested turn
    never waits for a slot that its own caller holds.
    """

    def __init__(self, mailbox: Mailbox[WorkOrder, WorkOrder]) -> None:
        self._mailbox = mailbox

    @staticmethod
    def hosting(executor: HO1ExecutorProtocol, **bounds: Unpack[MailboxBounds]) -> Mailbox[WorkOrder, WorkOrder]:
        """Returns a mailbox for the executor. Open the mailbox, then pass it to `HostedExecutor`."""
        return Mailbox(executor.execute, origin=lambda work_order: work_order.subject_id, **bounds)

    def execute(self, work_order: WorkOrder) -> Coroutine[object, object, WorkOrder]:
        """Returns the executed work order; see `HO1ExecutorProtocol`. The caller enforces the deadline."""
        return self._mailbox.ask_within(work_order, lane=self.lane_of(work_order))

    @staticmethod
    def lane_of(work_order: WorkOrder) -> str:
        """The lane for this work order: background, interactive, or `nested-<depth>`."""
        if work_order.wo_type == "consolidate":
            return BACKGROUND
        depth = len(calling_chain())
        return INTERACTIVE if depth <= 1 else f"nested-{depth - 1}"


class GatewayCall(NamedTuple):
    """One request to the gateway, as a mailbox message."""

    request: PromptRequest
    on_attempt: OnAttempt
    sink: MemoryObjectSendStream[StreamItem] | None
    """Receives the stream items; None for a plain completion."""


class HostedGateway:
    """A gateway behind a bounded mailbox; implements `PromptGateway`."""

    def __init__(self, mailbox: Mailbox[GatewayCall, PromptResponse | None], *, stream_buffer: int) -> None:
        self._mailbox = mailbox
        self._stream_buffer = stream_buffer

    @staticmethod
    def hosting(gateway: PromptGateway, **bounds: Unpack[MailboxBounds]) -> Mailbox[GatewayCall, PromptResponse | None]:
        """Returns a mailbox for the gateway. Open the mailbox, then pass it to `HostedGateway`.

        The mailbox replies with the response, or with None after a stream.
        """

        async def pass_on(call: GatewayCall, sink: MemoryObjectSendStream[StreamItem]) -> None:
            stream = cast(AsyncGenerator[StreamItem, None], gateway.stream(call.request, on_attempt=call.on_attempt))
            async with aclosing(stream):
                async for item in stream:
                    try:
                        await sink.send(item)
                    except anyio.BrokenResourceError:
                        return  # the reader has closed its end

        def serve(call: GatewayCall) -> Awaitable[PromptResponse | None]:
            if call.sink is not None:
                return pass_on(call, call.sink)
            return gateway.complete(call.request, on_attempt=call.on_attempt)

        return Mailbox(serve, origin=lambda call: call.request.subject_id, **bounds)

    def complete(self, request: PromptRequest, *, on_attempt: OnAttempt) -> Coroutine[object, object, PromptResponse]:
        """Returns the model's answer; see `PromptGateway`."""
        answer = self._mailbox.ask_here(GatewayCall(request, on_attempt, None))
        return cast("Coroutine[object, object, PromptResponse]", answer)  # without a sink there is an answer

    async def stream(self, request: PromptRequest, *, on_attempt: OnAttempt) -> AsyncIterator[StreamItem]:
        """Yields the answer as the provider produces it; see `PromptGateway`. A slow reader slows down the provider."""
        send, receive = anyio.create_memory_object_stream[StreamItem](self._stream_buffer)
        envelope: Envelope[GatewayCall, PromptResponse | None] | None = None
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
