"""A small request that asks for much work counts as several requests of its key, at every door (docs/server.md)."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.actors.turn import context_time
from kitchener.config import ServeClientConfig
from kitchener.runtime.portable.conversation_file import SpokenConversation, SpokenMessage
from tests.serve.shared.requests import COMPLETIONS, Asked, Client, chat_body, serving

KEY = "key-of-ada-0123456789"
_MESSAGES = 250
_SAID = tuple(f"word {number}" for number in range(_MESSAGES))
_RUN: Mapping[str, Any] = {
    "threadId": "trip",
    "runId": "run",
    "state": None,
    "tools": [],
    "context": [],
    "forwardedProps": None,
}


def spoken(*texts: str) -> list[dict[str, str]]:
    """Messages of the user and the assistant in turn, as all doors take them."""
    roles = ("user", "assistant")
    return [{"id": str(number), "role": roles[number % 2], "content": text} for number, text in enumerate(texts)]


async def long_session(client: Client) -> tuple[str, list[str]]:
    """A session with imported messages and two turns, and the ids of these turns."""
    messages = tuple(SpokenMessage("assistant" if number % 2 else "user", text, None, "") for number, text in enumerate(_SAID))
    session_id = await client.runtime.begin_from(SpokenConversation("trip", None, messages), subject_id="ada")
    supervisor = client.runtime.supervisor()
    turns = [(await supervisor.handle_turn(text, session_id=session_id)).turn_id for text in ("hello", "bye")]
    return session_id, turns


def asked_for(name: str, session_id: str, turns: list[str]) -> tuple[str, str, object]:
    """The method, the path and the body of a request."""
    responses = [f"resp_{each.removeprefix('T-').replace('-', '_')}" for each in turns]
    session, turn = f"/v1/sessions/{session_id}", f"/v1/sessions/{session_id}/turns/{turns[1]}"
    return {
        "messages": ("GET", f"{session}/messages", None),
        "events": ("GET", f"{session}/events?follow=false", None),
        "newest events": ("GET", f"{session}/events?follow=false&after=300", None),
        "input items": ("GET", f"/v1/responses/{responses[1]}/input_items", None),
        "thread": ("POST", "/v1/agui/ADMIN", {**_RUN, "messages": []}),
        "why": ("GET", f"{turn}/why", None),
        "diff": ("GET", f"{turn}/diff?before={turns[0]}", None),
        "chat": ("POST", COMPLETIONS, chat_body(*_SAID, "hello")),
        "short chat": ("POST", COMPLETIONS, chat_body(*_SAID[:24], "hello")),
        "response": ("POST", "/v1/responses", {"model": "ADMIN", "input": spoken(*_SAID, "hello")}),
        "run": ("POST", "/v1/agui/ADMIN", {**_RUN, "threadId": "other", "messages": spoken(*_SAID, "hello")}),
        "branch": ("POST", "/v1/responses", {"previous_response_id": responses[0], "input": "hello"}),
    }[name]


@pytest.mark.parametrize(
    ("name", "further"),
    [
        ("messages", 1),
        ("events", 1),
        ("newest events", 0),
        ("input items", 1),
        ("thread", 1),
        ("why", 12),
        ("diff", 24),
        ("chat", 10),
        ("short chat", 0),
        ("response", 10),
        ("run", 10),
        ("branch", 11),
    ],
)
async def test_a_long_conversation_counts_as_several_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, further: int
) -> None:
    """Regression: requests of a few bytes cost seconds of the processor each, and counted as one.

    Of three requests a minute one passes every 20 s, so what a request counted shows in the next answer.
    """
    monkeypatch.setenv("ADA_KEY", KEY)
    clients = {"ada": ServeClientConfig(key="env:ADA_KEY", subject="ada", requests_per_minute=3)}
    mode = "enforce" if name in ("why", "diff") else "off"
    async with serving(tmp_path / "root", serve={"clients": clients}, context_mode=mode) as client:
        method, path, body = asked_for(name, *await long_session(client))
        ada = client.with_headers(authorization=f"Bearer {KEY}")
        assert (await ada.ask(method, path, body)).status == 200
        found = await ada.ask("GET", "/v1/models")
        assert (found.status, found.code) == (429, "rate_limited")
        assert 20 * further < int(found.headers["retry-after"]) <= 20 * (further + 1)


@pytest.mark.parametrize("name", ["chat", "response", "branch", "why"])
async def test_of_two_at_once_the_one_that_counts_last_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Two requests of a minute's twenty may come at once. Together they count as more, before their work."""
    monkeypatch.setenv("ADA_KEY", KEY)
    clients = {"ada": ServeClientConfig(key="env:ADA_KEY", subject="ada", requests_per_minute=20)}
    async with serving(tmp_path / "root", serve={"clients": clients}, context_mode="enforce") as client:
        method, path, body = asked_for(name, *await long_session(client))
        ada, answers = client.with_headers(authorization=f"Bearer {KEY}"), list[Asked]()

        async def ask() -> None:
            answers.append(await ada.ask(method, path, body))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            tasks.start_soon(ask)
        assert sorted(each.status for each in answers) == [200, 429]
        begun = name in ("chat", "response", "branch")
        assert len(await client.runtime.sessions()) == 1 + begun


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/responses", "/v1/agui/ADMIN"])
async def test_the_time_that_the_context_of_a_turn_takes_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Regression: a message with words of many long ones took half a second of the processor, and counted as any other.

    The clock of processor time moves on by 0.07 s each time it is read, so each turn counts three requests more.
    """
    monkeypatch.setenv("ADA_KEY", KEY)
    clients = {"ada": ServeClientConfig(key="env:ADA_KEY", subject="ada", requests_per_minute=3)}
    times = (0.07 * number for number in count())
    monkeypatch.setattr(context_time, "thread_time", lambda: next(times))
    body = {
        COMPLETIONS: chat_body("hello"),
        "/v1/responses": {"model": "ADMIN", "input": "hello"},
        "/v1/agui/ADMIN": {**_RUN, "messages": spoken("hello")},
    }[path]
    async with serving(tmp_path / "root", serve={"clients": clients}, context_mode="enforce") as client:
        ada = client.with_headers(authorization=f"Bearer {KEY}")
        assert (await ada.ask("POST", path, body)).status == 200
        found = await ada.ask("GET", "/v1/models")
        assert (found.status, found.code) == (429, "rate_limited")
        assert 60 < int(found.headers["retry-after"]) <= 80
