"""What existing chat clients send, captured or as in their sources, finds the right session and makes no turn of what is none.

Each step of `recorded/*.json` is a request. `session` labels the session that must answer: the same label means the same one,
and null means none. `reply` is what the model says. `said_before` counts the messages that a new session begins with. `stops`
names the message whose stream the client leaves.
"""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.records.prompt import PromptRequest
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import Hold, echo
from tests.serve.requests import COMPLETIONS, Asked, Client, serving

FILES = sorted((Path(__file__).parent / "recorded").glob("*.json"))
KEY = "key-of-the-front-end-01234"
SERVE = {
    "clients": {"front_end": {"key": "env:FRONT_END_KEY", "rights": ("chat", "act_for")}},
    "cache_key_names_session": True,
    "text_interval_s": 0.0,  # the head of a stream is there at once, so that who stops a reply knows its session
}


async def turns(client: Client) -> int:
    """All turns and imported messages of all sessions."""
    return sum(each.turns for each in await client.runtime.sessions())


class Story:
    """The requests of a client in turn, and the sessions that have answered by their labels.

    Args:
        client: sends them
        hold: holds replies back that the client does not wait for
        replies: what the model says next
    """

    def __init__(self, client: Client, hold: Hold, replies: list[str]) -> None:
        self._client, self._hold, self._replies = client, hold, replies
        self._sessions: dict[str, str] = {}

    async def take(self, step: dict[str, Any]) -> None:
        """Sends a request, and compares what becomes of it."""
        before = await turns(self._client)
        self._replies[:] = [step["reply"]] if "reply" in step else []
        if "stops" in step:
            return await self._leave(step)
        method, path = ("POST" if "body" in step else "GET"), step.get("path", COMPLETIONS)
        found = await self._client.ask(method, path, step.get("body"), **step["headers"])
        assert found.status == 200, found.body
        if "models" in step:
            assert [each["id"] for each in found.json["data"]] == step["models"]
        elif step["session"] is None:
            assert (found.text, await turns(self._client)) == ("A title", before)
        else:
            assert said(found) == step["reply"]
            is_new = step["session"] not in self._sessions
            self._check(step, found.headers["x-kitchener-session"])
            history = await self._history(step)
            assert step.get("said_before") in (None, len(history) - 1)
            assert await turns(self._client) - before == (1 + 2 * (len(history) - 1) if is_new else 1)

    async def _leave(self, step: dict[str, Any]) -> None:
        """The client closes the stream while the turn runs, which then goes on."""
        asked = Asked()
        asked.taking.set()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: self._client.run(asked, "POST", COMPLETIONS, step["body"], **step["headers"]))
            await self._hold.arrived[step["stops"]].wait()
            asked.gone.set()
            await asked.done.wait()
        self._hold.released[step["stops"]].set()
        self._check(step, asked.headers["x-kitchener-session"])

    async def _history(self, step: dict[str, Any]) -> list[str]:
        session = await self._client.runtime.supervisor().session(self._sessions[step["session"]])
        return [each.user_message async for each in session.read_history()]

    def _check(self, step: dict[str, Any], session_id: str) -> None:
        """Fails unless this is the session of the label, and of no other label."""
        label = step["session"]
        assert self._sessions.setdefault(label, session_id) == session_id
        assert [each for each, known in self._sessions.items() if known == session_id] == [label]


def said(found: Asked) -> str:
    """The reply as the client reads it."""
    if found.body.startswith(b"event: response."):
        return "".join(each["delta"] for each in found.events[:-1] if each["type"] == "response.output_text.delta")
    if found.headers["content-type"].startswith("text/event-stream"):
        *_, usage, done = found.events
        assert done == "[DONE]"
        assert "usage" not in usage or usage["usage"]["total_tokens"] > 0
    return found.text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_its_requests_find_their_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setenv("FRONT_END_KEY", KEY)
    steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
    hold = Hold(*(step["stops"] for step in steps if "stops" in step), wo_type="synthesize")

    replies = list[str]()

    def model(request: PromptRequest) -> Any:
        if request.contract_id == "utility":
            return {"response_text": "A title"}
        return {"response_text": replies.pop()} if replies and request.wo_type == "synthesize" else echo(request)

    async with serving(tmp_path / "root", ScriptedProvider(model, gate=hold), serve=SERVE) as client:
        story = Story(client.with_headers(authorization=f"Bearer {KEY}"), hold, replies)
        for step in steps:
            try:
                await story.take(step)
            except Exception as error:
                error.add_note(f"{path.stem}: {step['what']}")
                raise
