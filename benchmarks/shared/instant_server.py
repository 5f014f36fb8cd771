"""An endpoint that speaks OpenAI's chat-completions format and answers at once, in a process of its own, on loopback.

It reads of a request no more than its length and three words, so that the time of a measurement is the client's. Other
benchmarks start it with `serving()`, or with `serving(delay_s)` where each answer shall begin so much later. With `apart_s` the
events of a stream come one by one, as tokens of a model do.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

REPLY = "Certainly. I have noted that down and will look into it right away."
_CLASSIFIED = {
    "speech_act": "question",
    "ambiguity": "low",
    "labels": {"domain": "travel", "task": "planning"},
    "intent_relation": "continue",
    "confidence": 0.9,
}
_USAGE = {"prompt_tokens": 200, "completion_tokens": 20, "total_tokens": 220}
_PIECE_CHARS = 4


def _envelope(kind: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
    return json.dumps({"id": "c-1", "object": kind, "created": 1, "model": "m", "choices": choices, **more}).encode()


def whole(text: str) -> bytes:
    """The body of an answer."""
    message = {"role": "assistant", "content": text}
    return _envelope("chat.completion", [{"index": 0, "message": message, "finish_reason": "stop"}], usage=_USAGE)


def streamed(text: str) -> bytes:
    """The events of the same answer, four characters at a time."""
    kind = "chat.completion.chunk"
    deltas = [{"content": text[at : at + _PIECE_CHARS]} for at in range(0, len(text), _PIECE_CHARS)]
    events = [_envelope(kind, [{"index": 0, "delta": each, "finish_reason": None}]) for each in deltas]
    events.append(_envelope(kind, [{"index": 0, "delta": {}, "finish_reason": "stop"}]))
    events.append(_envelope(kind, [], usage=_USAGE))
    return b"".join(b"data: " + each + b"\n\n" for each in (*events, b"[DONE]"))


def _response(body: bytes, content_type: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


_ANSWERS = {
    name: (_response(whole(text), "application/json"), _response(streamed(text), "text/event-stream"))
    for name, text in {
        "classify": json.dumps(_CLASSIFIED),
        "plain": REPLY,
    }.items()
}


_TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class _Gate:
    """Lets so many calls a second through, those of six seconds at once; 0: all."""

    def __init__(self, calls_per_s: float) -> None:
        self._per_s, self._most, self._at = calls_per_s, calls_per_s * 6, time.monotonic()
        self._left = self._most

    def opens(self) -> bool:
        """Whether one more call may pass now."""
        now = time.monotonic()
        self._left, self._at = min(self._most, self._left + (now - self._at) * self._per_s), now
        if self._per_s and self._left < 1:
            return False
        self._left -= 1
        return True


class _Connection(asyncio.Protocol):
    def __init__(self, delay_s: float, gate: _Gate, apart_s: float) -> None:
        self._delay_s, self._gate, self._apart_s = delay_s, gate, apart_s

    def connection_made(self, transport: Any) -> None:
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n") + 4) > 3:
            _, _, after = self.buffer[:end].lower().partition(b"content-length:")
            size = end + int(after.partition(b"\r\n")[0] or 0)
            if len(self.buffer) < size:
                return
            body, self.buffer = self.buffer[end:size], self.buffer[size:]
            kind = "classify" if b'"response_format"' in body else "plain"  # a reply is text
            answer = _ANSWERS[kind][b'"stream":true' in body] if self._gate.opens() else _TOO_MANY
            if self._apart_s and b"\n\n" in answer:
                self._write_events(answer)
            elif self._delay_s:
                asyncio.get_running_loop().call_later(self._delay_s, self.transport.write, answer)
            else:
                self.transport.write(answer)

    def _write_events(self, answer: bytes) -> None:
        events = answer.removesuffix(b"\n\n").split(b"\n\n")
        for number, event in enumerate(events):
            at_s = self._delay_s + self._apart_s * number
            asyncio.get_running_loop().call_later(at_s, self.transport.write, event + b"\n\n")


async def _serve(delay_s: float, calls_per_s: float = 0.0, apart_s: float = 0.0) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(_Connection, delay_s, _Gate(calls_per_s), apart_s), "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


@asynccontextmanager
async def serving(delay_s: float = 0.0, calls_per_s: float = 0.0, apart_s: float = 0.0) -> AsyncIterator[str]:
    """Starts the endpoint in another process for the block, and yields its `base_url`.

    Args:
        delay_s: how much later each answer begins
        calls_per_s: calls that it answers in a second; others get 429 with `Retry-After: 1`. 0: it answers all
        apart_s: time between two events of a stream; 0: all are one write
    """
    command = [sys.executable, __file__, str(delay_s), str(calls_per_s), str(apart_s)]
    async with await anyio.open_process(command, stderr=None) as process:
        try:
            assert process.stdout is not None
            port = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 16)
            yield f"http://127.0.0.1:{int(port)}/v1"
        finally:
            process.terminate()


if __name__ == "__main__":
    asyncio.run(_serve(*map(float, sys.argv[1:])))
