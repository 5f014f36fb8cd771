"""Writes replies in the form of the chat completions API: whole, or as the chunks of a stream. Knows no connection."""

from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from typing import NamedTuple

from kitchener.records.turn import TextDelta, TextRetracted, TurnCompleted, TurnResult, TurnUpdate
from kitchener.serve.chat.client_history import WITHDRAWN
from kitchener.serve.event_stream import event
from kitchener.serve.problems import problem_of
from kitchener.serve.token_usage import TokenUsage

DONE = b"data: [DONE]\n\n"


class Heading(NamedTuple):
    """What all parts of an answer begin with."""

    answer_id: str
    created: int
    """Seconds since 1970."""
    model: str

    def chunk(self, delta: dict[str, object], finish: str | None = None, usage: object = ...) -> bytes:
        """A chunk of a stream as an event.

        Args:
            delta: what it adds
            finish: why the reply ends; None: it goes on
            usage: the tokens that were used, or None; left out: the client did not ask for them
        """
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        return event({**self._head("chat.completion.chunk"), "choices": choices, **({} if usage is ... else {"usage": usage})})

    def usage_chunk(self, used: TokenUsage) -> bytes:
        """The chunk with the tokens that were used."""
        return event({**self._head("chat.completion.chunk"), "choices": [], "usage": usage_of(used)})

    def whole(self, text: str, used: TokenUsage, told: dict[str, object] | None = None) -> dict[str, object]:
        """A whole answer.

        Args:
            text: the reply
            used: the tokens that it took
            told: what this server adds; None: there is no turn
        """
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return {
            **self._head("chat.completion"),
            "choices": [choice],
            "usage": usage_of(used),
            **({"kitchener": told} if told else {}),
        }

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self.answer_id, "object": kind, "created": self.created, "model": self.model}


def usage_of(used: TokenUsage) -> dict[str, object]:
    """Tokens as clients expect them."""
    return {
        "prompt_tokens": used.read,
        "completion_tokens": used.written,
        "total_tokens": used.read + used.written,
        "prompt_tokens_details": {"cached_tokens": used.cached},
    }


def told_of(result: TurnResult) -> dict[str, object]:
    """What this server says of a turn beside its reply."""
    return {
        "session_id": result.session_id,
        "turn_id": result.turn_id,
        "pending_approval": list(result.pending_approval),
        "error": result.error.as_mapping() if result.error is not None else None,
    }


async def chunks(
    heading: Heading, updates: AsyncIterable[Sequence[TurnUpdate]], *, includes_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The stream of a turn: one piece for the updates that came together, whose text is one chunk.

    Args:
        heading: what each chunk begins with
        updates: of the turn, in batches
        includes_usage: whether the client wants the tokens that were used
    """
    usage = None if includes_usage else ...
    begun = heading.chunk({"role": "assistant", "content": ""}, usage=usage)
    sent = ""  # what the client has of the reply
    try:
        async for batch in updates:
            said, piece = "", begun
            for update in batch:
                if isinstance(update, TextDelta):
                    sent, said = sent + update.text, said + update.text
                elif isinstance(update, TextRetracted) and sent:
                    sent, said = "", said + WITHDRAWN
                elif isinstance(update, TurnCompleted):
                    reply = update.result.response
                    said += reply[len(sent) :] if reply.startswith(sent) else WITHDRAWN + reply
                    piece += heading.chunk({"content": said}, usage=usage) if said else b""
                    piece += heading.chunk({}, "stop", usage=usage)
                    if includes_usage:
                        piece += heading.usage_chunk(TokenUsage.of_turn(update.result))
                    said, piece = "", piece + DONE
            if said:
                piece += heading.chunk({"content": said}, usage=usage)
            if piece:
                yield piece
            begun = b""
    except Exception as error:  # noqa: BLE001  the status is sent, so the stream itself says what went wrong
        yield event(problem_of(error).body()) + DONE


async def whole_as_chunks(
    heading: Heading, text: str, used: TokenUsage, *, includes_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The stream of a reply that is there as a whole."""
    usage = None if includes_usage else ...
    yield heading.chunk({"role": "assistant", "content": text}, usage=usage)
    yield heading.chunk({}, "stop", usage=usage)
    if includes_usage:
        yield heading.usage_chunk(used)
    yield DONE
