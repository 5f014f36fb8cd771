"""Writes replies in the form of the chat completions API: whole, or as the chunks of a stream. Knows no connection."""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from typing import NamedTuple

from kitchener.records.tools.client_tools import ClientCall
from kitchener.records.turn import TextDelta, TextRetracted, TurnCompleted, TurnResult, TurnUpdate
from kitchener.serve.chat_completions.chat_request import WITHDRAWN
from kitchener.serve.event_stream import event
from kitchener.serve.problems import problem_for
from kitchener.serve.sendable import as_json
from kitchener.serve.token_usage import TokenUsage

DONE = b"data: [DONE]\n\n"


class Heading(NamedTuple):
    """The fields that all parts of an answer begin with."""

    answer_id: str
    created: int
    """Seconds since 1970."""
    model: str

    def chunk(
        self,
        delta: dict[str, object],
        finish: str | None = None,
        usage: object = ...,
        told: dict[str, object] | None = None,
    ) -> bytes:
        """A chunk of a stream as an event.

        Args:
            delta: what it adds
            finish: why the reply ends; None: it continues
            usage: the tokens that were used, or None; left out: the client did not ask for them
            told: what this server adds; None: nothing
        """
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        found = {**self._head("chat.completion.chunk"), "choices": choices}
        return event({**found, **({} if usage is ... else {"usage": usage}), **({"kitchener": told} if told else {})})

    def calls_chunk(self, calls: Sequence[ClientCall], usage: object = ...) -> bytes:
        """The chunk with the functions that the client has to run."""
        return self.chunk({"tool_calls": [{"index": number, **_call(each)} for number, each in enumerate(calls)]}, usage=usage)

    def usage_chunk(self, used: TokenUsage) -> bytes:
        """The chunk with the tokens that were used."""
        return event({**self._head("chat.completion.chunk"), "choices": [], "usage": usage_of(used)})

    def whole(
        self,
        text: str,
        used: TokenUsage,
        told: dict[str, object] | None = None,
        calls: Sequence[ClientCall] = (),
        *,
        truncated: bool = False,
    ) -> dict[str, object]:
        """A whole answer.

        Args:
            text: the reply
            used: the tokens that it took
            told: what this server adds; None: there is no turn
            calls: the functions that the client has to run
            truncated: whether the text is only the beginning of a reply
        """
        message: dict[str, object] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if calls:
            message["tool_calls"] = [_call(each) for each in calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(calls, truncated=truncated)}
        return {
            **self._head("chat.completion"),
            "choices": [choice],
            "usage": usage_of(used),
            **({"kitchener": told} if told else {}),
        }

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self.answer_id, "object": kind, "created": self.created, "model": self.model}


def _finish(calls: Sequence[ClientCall], *, truncated: bool) -> str:
    """The `finish_reason` of a reply."""
    return "tool_calls" if calls else "length" if truncated else "stop"


def _call(call: ClientCall) -> dict[str, object]:
    """A call of a function as clients expect it."""
    function = {"name": call.name, "arguments": as_json(call.arguments).decode()}
    return {"id": call.call_id, "type": "function", "function": function}


def usage_of(used: TokenUsage) -> dict[str, object]:
    """Tokens as clients expect them."""
    return {
        "prompt_tokens": used.read,
        "completion_tokens": used.written,
        "total_tokens": used.read + used.written,
        "prompt_tokens_details": {"cached_tokens": used.cached},
    }


def turn_fields(result: TurnResult) -> dict[str, object]:
    """The fields about a turn that this server adds to its reply."""
    return {
        "session_id": result.session_id,
        "turn_id": result.turn_id,
        "pending_approval": list(result.pending_approval),
        "error": result.error.as_mapping() if result.error is not None else None,
        **({"truncated": True} if result.truncated else {}),
    }


async def chunks(
    heading: Heading,
    updates: AsyncIterable[Sequence[TurnUpdate]],
    *,
    includes_usage: bool,
    after: Callable[[TurnResult], Awaitable[str]],
) -> AsyncGenerator[bytes, None]:
    """The stream of a turn: one piece for the updates that came together, whose text is one chunk.

    Args:
        heading: what each chunk begins with
        updates: of the turn, in batches
        includes_usage: whether the client wants the tokens that were used
        after: what to write after the reply of a turn
    """
    usage = None if includes_usage else ...
    begun = heading.chunk({"role": "assistant", "content": ""}, usage=usage)
    sent, is_withdrawn = "", False  # what the client has of the reply, and whether that was taken back
    try:
        async for batch in updates:
            said, piece = "", begun
            for update in batch:
                if isinstance(update, TextDelta):
                    if is_withdrawn:
                        sent, said, is_withdrawn = "", said + WITHDRAWN, False
                    sent, said = sent + update.text, said + update.text
                elif isinstance(update, TextRetracted):
                    # Not sent before other text arrives: text beside calls of functions is part of the reply.
                    is_withdrawn = bool(sent)
                elif isinstance(update, TurnCompleted):
                    reply, calls = update.result.response, update.result.client_calls
                    said += reply[len(sent) :] if reply.startswith(sent) else WITHDRAWN + reply
                    said += await after(update.result)
                    piece += heading.chunk({"content": said}, usage=usage) if said else b""
                    piece += heading.calls_chunk(calls, usage=usage) if calls else b""
                    finish = _finish(calls, truncated=update.result.truncated)
                    piece += heading.chunk({}, finish, usage, turn_fields(update.result))
                    if includes_usage:
                        piece += heading.usage_chunk(TokenUsage.of_turn(update.result))
                    said, piece = "", piece + DONE
            if said:
                piece += heading.chunk({"content": said}, usage=usage)
            if piece:
                yield piece
            begun = b""
    except Exception as error:  # noqa: BLE001  the status is sent, so the stream itself says what went wrong
        yield event(problem_for(error).body()) + DONE


async def whole_as_chunks(
    heading: Heading,
    text: str,
    used: TokenUsage,
    *,
    includes_usage: bool,
    calls: Sequence[ClientCall] = (),
    truncated: bool = False,
) -> AsyncGenerator[bytes, None]:
    """The stream of a reply that has ended. It takes the arguments of `Heading.whole` and `chunks`."""
    usage = None if includes_usage else ...
    yield heading.chunk({"role": "assistant", "content": text}, usage=usage)
    if calls:
        yield heading.calls_chunk(calls, usage=usage)
    yield heading.chunk({}, _finish(calls, truncated=truncated), usage=usage)
    if includes_usage:
        yield heading.usage_chunk(used)
    yield DONE
