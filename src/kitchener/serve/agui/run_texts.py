"""Makes the text messages of one AG-UI run, and withdraws text. Explained in `docs/server.md`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kitchener.plain_names import without_halves
from kitchener.serve.agui.run_input import ROLES_OF_CLIENT, message_id
from kitchener.serve.event_stream import event
from kitchener.serve.sendable import as_json, can_be_sent


class _Text(NamedTuple):
    """A text message of the present turn."""

    message_id: str
    wo_id: str
    pieces: list[str]

    def message(self) -> dict[str, object]:
        """The message as a client keeps it."""
        return {"id": self.message_id, "role": "assistant", "content": without_halves("".join(self.pieces))}


class RunTexts:
    """The text messages of one run.

    Args:
        run_id: the run
        shown: the messages that the client shows, as it sent them
        made: the messages of this run that are closed; shared with its tool calls
        goes_on: what the run continues after, as `message_id` has it
    """

    def __init__(self, run_id: str, shown: Sequence[Mapping[str, object]], made: list[dict[str, object]], goes_on: str) -> None:
        self._run_id, self._shown, self._made, self._goes_on = run_id, shown, made, goes_on
        self._number = 0
        self._open: _Text | None = None
        self._content = b""
        """The fixed part of a delta of the open message. Deltas are the most frequent events by far."""
        self._texts: list[_Text] = []
        """The messages of the present turn that were not taken back."""

    def add(self, wo_id: str, text: str) -> bytes:
        """A piece of a reply."""
        if not text:
            return b""
        told = b""
        if self._open is None or self._open.wo_id != wo_id:
            told = self.close() + self._begin(wo_id)
            assert self._open is not None
        self._open.pieces.append(text)
        return told + self._content + as_json(text) + b"}\n\n"

    def close(self) -> bytes:
        """Closes the message that is open."""
        if self._open is None:
            return b""
        closed, self._open = self._open, None
        self._made.append(closed.message())
        return event({"type": "TEXT_MESSAGE_END", "messageId": closed.message_id})

    def withdraw(self, wo_id: str | None = None) -> bytes:
        """Withdraws the messages of a work order; None: all of the present turn."""
        gone = {each.message_id for each in self._texts if wo_id in (None, each.wo_id)}
        if not gone:
            return b""
        told = self.close() if self._open is not None and self._open.message_id in gone else b""
        self._texts = [each for each in self._texts if each.message_id not in gone]
        self._made[:] = [each for each in self._made if each["id"] not in gone]
        return told + self.snapshot()

    def complete(self, reply: str) -> bytes:
        """The rest of the turn's reply, or all of it if the text sent so far is not its beginning."""
        told, sent = b"", "".join(piece for each in self._texts for piece in each.pieces)
        if not reply.startswith(sent):
            told, sent = self.withdraw(), ""
        wo_id = self._open.wo_id if self._open is not None else ""
        told += self.add(wo_id, reply[len(sent) :]) + self.close()
        self._texts = []
        return told

    def snapshot(self) -> bytes:
        """All messages that the client is to show. AG-UI has no other way to withdraw text."""
        # Activities and reasoning are the client's own: a snapshot without any leaves them as they are.
        shown = [each for each in self._shown if each.get("role") not in ROLES_OF_CLIENT]
        open_one = [self._open.message()] if self._open is not None else []
        messages: list[Mapping[str, object]] = [*shown, *self._made, *open_one]
        try:
            return event({"type": "MESSAGES_SNAPSHOT", "messages": messages})
        except RecursionError:
            return event({"type": "MESSAGES_SNAPSHOT", "messages": [each for each in messages if can_be_sent(each)]})

    def _begin(self, wo_id: str) -> bytes:
        self._number += 1
        self._open = _Text(message_id(self._run_id, self._number, self._goes_on), wo_id, [])
        self._texts.append(self._open)
        named = as_json(self._open.message_id)
        self._content = b'data: {"type":"TEXT_MESSAGE_CONTENT","messageId":' + named + b',"delta":'
        return event({"type": "TEXT_MESSAGE_START", "messageId": self._open.message_id, "role": "assistant"})
