"""Streams write the text that has arrived at common beats, and at once if nothing waits (docs/server.md)."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from starlette.types import Message

from kitchener.records.prompt import PromptRequest, PromptResponse, TextPiece
from kitchener.serve.text_pace import TextPace
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo
from tests.actors.time_control import in_virtual_time
from tests.serve.shared.requests import COMPLETIONS, Asked, chat_body, serving


async def test_all_that_wait_are_called_at_one_beat_once_and_in_order() -> None:
    pace, called = TextPace(0.001, lambda: 1), list[str]()
    beat, later = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pace.run)
        for name in ("one", "two"):
            pace.at_beat(lambda name=name: called.append(name))  # type: ignore[misc]
        pace.at_beat(beat.set)
        assert called == []
        with anyio.fail_after(10):
            await beat.wait()
        assert called == ["one", "two"]
        pace.at_beat(later.set)  # after a rest, too
        with anyio.fail_after(10):
            await later.wait()
        tasks.cancel_scope.cancel()
    assert called == ["one", "two"]


def test_where_nothing_waits_the_call_is_made_at_once() -> None:
    called = list[str]()
    TextPace(0.0, lambda: 1_000).at_beat(lambda: called.append("one"))
    assert called == ["one"]


@in_virtual_time
@pytest.mark.parametrize(
    ("interval_s", "running", "after_s"),
    [(0.03, 1, 0.03), (0.03, 12, 0.03), (0.03, 24, 0.06), (0.03, 10_000, 0.5), (1.0, 10_000, 1.0)],
)
async def test_beats_are_rarer_the_more_turns_run_but_text_never_waits_longer_than_half_a_second(
    interval_s: float, running: int, after_s: float
) -> None:
    """Unless the interval itself is longer."""
    pace, beat = TextPace(interval_s, lambda: running), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pace.run)
        began = anyio.current_time()
        pace.at_beat(beat.set)
        await beat.wait()
        assert anyio.current_time() - began == pytest.approx(after_s)
        tasks.cancel_scope.cancel()


class Wordy(ScriptedProvider):
    """A model that says its answer word by word."""

    async def stream(self, request: PromptRequest) -> AsyncIterator[TextPiece | PromptResponse]:
        """The answer, and other tasks' steps between its words."""
        response = await self.complete(request)
        for word in response.text.split(" "):
            yield TextPiece(1, word if response.text.endswith(word) else f"{word} ")
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
        yield response


class Steps(Asked):
    """Takes an answer at once, and notes in which step of the event loop each message came."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.came = 0, list[int]()

    async def send(self, message: Message) -> None:
        """Takes what the server sends."""
        self.came.append(self.step)
        self.status = message.get("status", self.status)
        self.headers |= {name.decode(): value.decode() for name, value in message.get("headers", ())}
        self.body += message.get("body", b"")

    async def count(self) -> None:
        """Counts steps until it is cancelled."""
        while True:
            self.step += 1
            await anyio.lowlevel.checkpoint()


async def test_a_reply_of_many_words_is_sent_with_the_head_then_at_beats_and_with_the_end(tmp_path: Path) -> None:
    """What is sent in one step is one write (`JoinedWrites`): here the head with the first text, and the rest with the end."""
    said = " ".join(f"word-{number}" for number in range(200))
    async with (
        serving(tmp_path / "root", Wordy(echo), serve={"text_interval_s": 10.0}) as client,
        anyio.create_task_group() as tasks,
    ):
        asked = Steps()
        tasks.start_soon(asked.count)
        await client.run(asked, "POST", COMPLETIONS, chat_body(said, stream=True))
        tasks.cancel_scope.cancel()
    assert asked.status == 200
    assert asked.text == f"echo: {said}"
    head, first, rest, end = asked.came
    assert head == first < rest == end


async def test_a_question_about_a_stream_gets_its_head_and_an_end(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:
        made = await client.ask("POST", COMPLETIONS, chat_body("hello"), x_kitchener_session="chat")
        path = f"/v1/sessions/{made.headers['x-kitchener-session']}/events"
        with anyio.fail_after(10):
            found = await client.ask("HEAD", path)
        assert (found.status, found.body) == (200, b"")
        assert found.headers["content-type"].startswith("text/event-stream")
