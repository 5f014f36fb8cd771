"""Numbers the events of a response and keeps them in order, for any number of readers, each from the event that it asks for.

The log grows while the turn runs. It is kept for a while afterwards, so that a client that was cut off gets exactly the events
that it lacks. Explained in `docs/server.md`.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final, Unpack

import anyio

from kitchener.serve.answer_models.response_answers import MessageStatus
from kitchener.serve.chat_completions.chat_chunks import DONE
from kitchener.serve.event_stream import event
from kitchener.serve.responses.response_objects import (
    CompletedFields,
    ResponseHead,
    message_item,
    output_of,
    text_part,
)
from kitchener.serve.served_turns import ServedTurn

_MAX_KEPT: Final = 256
"""Logs of ended turns that are kept in memory, the newest."""
_MAX_BYTES: Final = 32 * 1_048_576
"""Most bytes that they have together. Each piece of a reply is an event of its own, ten times as long."""


class ResponseLog:
    """The events of one response.

    Args:
        first: number of its first event
    """

    def __init__(self, first: int = 0) -> None:
        self.head: ResponseHead | None = None
        """None: the turn has not begun."""
        self.turn: ServedTurn | None = None
        """The turn that runs; None: it has ended, or this log is read from the record."""
        self.response: dict[str, object] | None = None
        """The complete response; None: it is not complete."""
        self.is_closed = False
        self.size = 0
        """Bytes of its events."""
        self._first, self._events = first, list[bytes]()
        self._grew = anyio.Event()
        self._text = ""
        """Of the message that is open."""
        self._output_index, self._is_open, self._is_withdrawn = 0, False, False

    async def wait_begun(self) -> bool:
        """Returns when the turn has begun; False: there is no turn yet. Raises the error of a turn that ended before that."""
        while self.head is None:
            if self.is_closed:
                assert self.turn is not None
                return await self.turn.result() is not None
            await self._grew.wait()
        return True

    async def wait_complete(self) -> bool:
        """Returns when the response is complete; False: there is no turn yet. Raises the error of its turn."""
        while not self.is_closed:
            await self._grew.wait()
        assert self.turn is not None
        return await self.turn.result() is not None

    async def after(self, number: int) -> AsyncGenerator[bytes, None]:
        """The events after the one with this number (-1: all), until the response is complete."""
        at = max(0, number + 1 - self._first)
        while True:
            while at < len(self._events):
                yield self._events[at]
                at += 1
            if self.is_closed:
                break
            await self._grew.wait()
        yield DONE

    def begin(self, head: ResponseHead) -> None:
        """The turn has begun."""
        self.go_on(head)
        self._add("response.created", response=head.response("in_progress"))
        self._add("response.in_progress", response=head.response("in_progress"))

    def go_on(self, head: ResponseHead) -> None:
        """The reader knows that the turn has begun."""
        self.head = head

    def add_text(self, text: str) -> None:
        """A piece of the reply."""
        if self._is_withdrawn:
            self._close_message("incomplete")
        if not self._is_open:
            self._is_open, self._text = True, ""
            self._add_item("added", message_item(self._item_id, None, "in_progress"))
            self._add_part("response.content_part.added", part=text_part(""))
        self._text += text
        self._add_part("response.output_text.delta", delta=text, logprobs=[])

    def retract(self) -> None:
        """The text so far was withdrawn. This API cannot take text back: its message ends as incomplete, unless it turns out
        to be the reply after all, as it does beside calls of functions."""
        self._is_withdrawn = self._is_open

    def complete(self, reply: str, calls: Sequence[Mapping[str, object]], **made: Unpack[CompletedFields]) -> None:
        """The turn has completed.

        Args:
            reply: its whole reply
            calls: items for the tool calls that wait
            **made: further arguments of `ResponseHead.response`
        """
        assert self.head is not None
        if self._is_open and not (self._text and reply.startswith(self._text)):
            self._close_message("incomplete")
        self._is_withdrawn = False
        status = made["status"]
        message = message_item(self._item_id, reply, status)
        if reply or not calls:
            if not self._is_open or reply != self._text:
                self.add_text(reply[len(self._text) :] if self._is_open else reply)
            self._close_message(status)
        for each in calls:
            self._add_call(each)
        self.response = self.head.response(output=output_of(message, reply, calls), **made)
        self._add(f"response.{status}", response=self.response)

    def fail(self, response: Mapping[str, object]) -> None:
        """The turn has ended without a reply."""
        if self._is_open:
            self._close_message("incomplete")
        self._add("response.failed", response=response)

    def close(self) -> None:
        """No event follows."""
        self.is_closed = True
        self._tell()

    @property
    def _item_id(self) -> str:
        assert self.head is not None
        return self.head.message_id + (f"_{self._output_index}" if self._output_index else "")

    def _close_message(self, status: MessageStatus) -> None:
        self._add_part("response.output_text.done", text=self._text, logprobs=[])
        self._add_part("response.content_part.done", part=text_part(self._text))
        self._add_item("done", message_item(self._item_id, self._text, status))
        self._output_index, self._is_open, self._text = self._output_index + 1, False, ""
        self._is_withdrawn = False

    def _add_call(self, item: Mapping[str, object]) -> None:
        """A tool call that waits: for a person, or for the client that runs it, which gets its arguments as one piece."""
        if item["type"] != "function_call":
            self._add_item("added", item)
        else:
            arguments, part = item["arguments"], {"item_id": item["id"], "output_index": self._output_index}
            self._add_item("added", {**item, "arguments": "", "status": "in_progress"})
            self._add("response.function_call_arguments.delta", **part, delta=arguments)
            self._add("response.function_call_arguments.done", **part, arguments=arguments)
        self._add_item("done", item)
        self._output_index += 1

    def _add_item(self, what: str, item: Mapping[str, object]) -> None:
        self._add(f"response.output_item.{what}", output_index=self._output_index, item=item)

    def _add_part(self, name: str, **fields: object) -> None:
        self._add(name, item_id=self._item_id, output_index=self._output_index, content_index=0, **fields)

    def _add(self, name: str, **fields: object) -> None:
        number = self._first + len(self._events)
        added = event({"type": name, "sequence_number": number, **fields}, name=name)
        self._events.append(added)
        self.size += len(added)
        self._tell()

    def _tell(self) -> None:
        self._grew.set()
        self._grew = anyio.Event()


class ResponseLogs:
    """The logs of the turns that run, and of those that ended last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, ResponseLog] = OrderedDict()

    def keep(self, log: ResponseLog) -> None:
        """Keeps the log of a turn that has begun, unless there is one: a message may be sent again with its key."""
        assert log.head is not None
        self._kept.setdefault(log.head.response_id, log)
        ended = [(response_id, kept.size) for response_id, kept in self._kept.items() if kept.is_closed]
        left = sum(size for _, size in ended)
        for response_id, size in ended:  # the oldest first
            if len(self._kept) <= _MAX_KEPT and left <= _MAX_BYTES:
                break
            del self._kept[response_id]
            left -= size

    def forget_ended(self) -> None:
        """Drops the logs of ended turns, because a subject was erased and no text may stay in memory."""
        for response_id in [each for each, kept in self._kept.items() if kept.is_closed]:
            del self._kept[response_id]

    def of(self, response_id: str) -> ResponseLog | None:
        """The log of a response; None: it is no longer kept."""
        return self._kept.get(response_id)
