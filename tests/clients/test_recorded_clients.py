"""Requests of existing chat clients, captured or built from their sources, find the right session, and utility calls make no
turn.

Each step of `recorded/*.json` is a request; `headers` of the file are those of every step. `session` labels the session that
must answer: the same label means the same one, and null means none. `reply` is what the model says. `calls` are the functions
that it calls: a name for the id of each, by which later steps name it, the function and the arguments. `said_before` counts the
messages that a new session begins with. `stops` names the message whose stream the client leaves.
"""

import json
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.testing import ScriptedProvider, assert_replays
from tests.acceptance.stack import Hold, echo
from tests.serve.shared.functions import use_tools
from tests.serve.shared.requests import COMPLETIONS, Asked, Client, serving

FILES = sorted((Path(__file__).parent / "recorded").glob("*.json"))
KEY = "key-of-the-front-end-01234"
SERVE = {
    "clients": {"front_end": {"key": "env:FRONT_END_KEY", "rights": ("chat", "act_for"), "subject_share": 1.0}},
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

    def __init__(self, client: Client, hold: Hold, replies: list[Any]) -> None:
        self._client, self._hold, self._replies = client, hold, replies
        self._sessions: dict[str, str] = {}
        self._call_ids: dict[str, str] = {}

    async def take(self, recorded: dict[str, Any]) -> None:
        """Sends a request, and compares what becomes of it."""
        before, step = await turns(self._client), self._with_call_ids(recorded)
        self._replies[:] = [answer_of(step)] if "reply" in step else []
        if "stops" in step:
            return await self._leave(step)
        method, path = ("POST" if "body" in step else "GET"), step.get("path", COMPLETIONS)
        found = await self._client.ask(method, path, step.get("body"), **step["headers"])
        assert found.status == 200, found.body
        if "models" in step:
            assert [each["id"] for each in found.json["data"]] == step["models"]
        elif step["session"] is None:
            answer = step.get("reply", "A title")
            assert (found.text if isinstance(answer, str) else orjson.loads(found.text)) == answer
            assert await turns(self._client) == before
        else:
            assert said(found) == step["reply"]
            is_new = step["session"] not in self._sessions
            self._check(step, found.headers["x-kitchener-session"])
            history = await self._history(step)
            assert step.get("said_before") in (None, len(history) - 1)
            assert await turns(self._client) - before == (1 + 2 * (len(history) - 1) if is_new else 1)
            self._call_ids.update(zip((each[0] for each in step.get("calls", ())), calls_of(found), strict=True))

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

    def _with_call_ids(self, step: dict[str, Any]) -> dict[str, Any]:
        """The same with the ids of calls that this server gave."""
        messages = step.get("body", {}).get("messages", ())
        own = [
            {
                name: self._call_ids[each] if name == "tool_call_id" else self._renamed(name, each)
                for name, each in message.items()
            }
            for message in messages
        ]
        return {**step, "body": {**step["body"], "messages": own}} if own else step

    def _renamed(self, name: str, value: Any) -> Any:
        return [{**each, "id": self._call_ids[each["id"]]} for each in value] if name == "tool_calls" else value

    async def _history(self, step: dict[str, Any]) -> list[str]:
        session = await self._client.runtime.supervisor().session(self._sessions[step["session"]])
        return [each.user_message async for each in session.read_history()]

    def _check(self, step: dict[str, Any], session_id: str) -> None:
        """Fails unless this is the session of the label, and of no other label."""
        label = step["session"]
        assert self._sessions.setdefault(label, session_id) == session_id
        assert [each for each, known in self._sessions.items() if known == session_id] == [label]


def answer_of(step: dict[str, Any]) -> Any:
    """What the model answers in a step."""
    if "calls" not in step:
        return step["reply"]
    return use_tools(*((function, arguments) for _, function, arguments in step["calls"]), text=step["reply"])


def calls_of(found: Asked) -> list[str]:
    """The ids of the calls in a streamed reply."""
    if b'"tool_calls"' not in found.body:
        return []
    deltas = (choice["delta"] for each in found.events if each != "[DONE]" for choice in each["choices"])
    return [call["id"] for delta in deltas for call in delta.get("tool_calls", ())]


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
    file = json.loads(path.read_text(encoding="utf-8"))
    steps = [{**step, "headers": {**file.get("headers", {}), **step["headers"]}} for step in file["steps"]]
    hold = Hold(*(step["stops"] for step in steps if "stops" in step), wo_type="synthesize")

    replies = list[Any]()

    def model(request: PromptRequest) -> Any:
        if request.contract_id == "utility":
            answer = replies.pop() if replies else "A title"
            assert isinstance(answer, str) or request.output_schema is not None
            return {"response_text": answer} if isinstance(answer, str) else answer
        if not replies or request.wo_type != "synthesize":
            return echo(request)
        answer = replies.pop()
        return answer if isinstance(answer, PromptResponse) else {"response_text": answer}

    async with serving(tmp_path / "root", ScriptedProvider(model, gate=hold), serve=SERVE) as client:
        story = Story(client.with_headers(authorization=f"Bearer {KEY}"), hold, replies)
        for step in steps:
            try:
                await story.take(step)
            except Exception as error:
                error.add_note(f"{path.stem}: {step['what']}")
                raise
        sessions, config = await client.runtime.sessions(), client.runtime.config
    for each in sessions:
        await assert_replays(each.session_id, config=config)
