"""Forged, flooding and broken inputs: each is refused by name, and reveals nothing of another subject (docs/server.md)."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from kitchener.testing import ScriptedProvider, use_tool
from tests.serve.agui.front_end import PATH, FrontEnd, checked, of_kind
from tests.serve.agui.test_agui import calling, send_letter
from tests.serve.shared.requests import Client, serving
from tests.shared.event_loops import ON_TRIO

RIGHTS = {"desk": ("chat", "read", "approve", "act_for"), "bot": ("chat", "act_for")}


def asking() -> ScriptedProvider:
    return calling(use_tool("send_letter", to="ada"))


def as_subject(client: Client, key: str, subject: str) -> Client:
    return client.with_headers(authorization=f"Bearer key-of-{key}-0123456789", x_kitchener_subject=subject)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for key in RIGHTS:
        monkeypatch.setenv(f"{key.upper()}_KEY", f"key-of-{key}-0123456789")
    return {"clients": {key: {"key": f"env:{key.upper()}_KEY", "rights": rights} for key, rights in RIGHTS.items()}}


async def test_a_thread_and_its_interrupts_belong_to_their_subject(tmp_path: Path, clients: dict[str, Any]) -> None:
    async with serving(tmp_path / "root", asking(), serve=clients, tools=[send_letter]) as client:
        ada = FrontEnd(as_subject(client, "desk", "ada"))
        await ada.say("go")
        (waits,) = ada.interrupts
        denied = {"interruptId": waits["id"], "status": "cancelled"}
        bob = FrontEnd(as_subject(client, "desk", "bob"))
        await bob.run()
        assert (bob.messages, bob.interrupts) == ([], [])  # the same name is another thread
        for thread in ("thread-1", ada.session):
            forged = FrontEnd(as_subject(client, "desk", "bob"), thread=thread)
            assert await forged.resume(denied) == []
            assert (forged.last.status, forged.last.code) == (404, "approval_not_found")
        for thread in (ada.session, "SES-00000000"):
            forged = FrontEnd(as_subject(client, "desk", "bob"), thread=thread)
            told = list[bytes]()
            for request in (forged.run(), forged.say("hello")):
                assert await request == []
                assert (forged.last.status, forged.last.code) == (404, "session_not_found")
                told.append(forged.last.body)
            assert told[0] == told[1]
        elsewhere = FrontEnd(ada.client, thread="other")
        assert await elsewhere.resume(denied) == []
        assert elsewhere.last.code == "approval_not_found"
        await ada.run(messages=[])
        assert ada.interrupts == [waits]


async def test_answers_and_history_need_their_rights(tmp_path: Path, clients: dict[str, Any]) -> None:
    async with serving(tmp_path / "root", asking(), serve=clients, tools=[send_letter]) as client:
        front = FrontEnd(as_subject(client, "bot", "ada"))
        await front.say("go")
        allowed = {"interruptId": front.interrupts[0]["id"], "status": "resolved", "payload": {"approved": True}}
        assert await front.resume(allowed) == []
        assert (front.last.status, front.last.code) == (403, "right_missing")
        assert await FrontEnd(front.client, thread="x").run() == []
        nobody = FrontEnd(client)
        assert await nobody.say("hello") == []
        assert nobody.last.status == 401
        assert [each.turns for each in await client.runtime.sessions()] == [1]


MESSAGE = {"id": "u", "role": "user", "content": "hello"}
REPLY = {"id": "a", "role": "assistant", "content": "hi"}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # bodies are checked without waiting
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"[" * 100_000, "not_json"),
        (b'{"threadId": "t", "runId": "r", "messages": [' + b"[" * 900 + b"]" * 900 + b"]}", "invalid_request"),
        ([], "invalid_request"),
        ({"runId": "r", "messages": [MESSAGE]}, "invalid_request"),
        ({"threadId": "t", "messages": [MESSAGE]}, "invalid_request"),
        ({"threadId": "", "runId": "r", "messages": [MESSAGE]}, "invalid_request"),
        ({"threadId": "t\n", "runId": "r", "messages": [MESSAGE]}, "session_invalid"),
        ({"threadId": "t" * 10_000, "runId": "r", "messages": [MESSAGE]}, "invalid_request"),
        ({"threadId": "t", "runId": "r\x00", "messages": [MESSAGE]}, "invalid_request"),
        ({"threadId": "t", "runId": "r" * 10_000, "messages": [MESSAGE]}, "invalid_request"),
        ({"threadId": "t", "runId": "r", "messages": [{"role": "user", "content": "x"}]}, "invalid_request"),
        ({"threadId": "t", "runId": "r", "messages": [{**MESSAGE, "role": "king"}]}, "invalid_request"),
        ({"threadId": "t", "runId": "r", "messages": [MESSAGE, REPLY]}, "invalid_request"),
        ({"threadId": "t", "runId": "r", "messages": [REPLY]}, "invalid_request"),
        (
            {
                "threadId": "t",
                "runId": "r",
                "messages": [{**MESSAGE, "content": [{"type": "image", "source": {"type": "data", "value": "x"}}]}],
            },
            "invalid_request",
        ),
    ],
)
async def test_a_wrong_input_is_named_and_nothing_is_started(tmp_path: Path, body: Any, code: str) -> None:
    async with serving(tmp_path / "root") as client:
        found = await client.ask("POST", PATH, body)
        assert (found.status, found.code) == (400, code)
        assert client.provider.requests == []


async def test_state_of_any_size_costs_its_bytes_only_and_tools_that_are_none_are_refused(tmp_path: Path) -> None:
    deep = b'{"x":[' * 400 + b"1" + b"]}" * 400
    async with serving(tmp_path / "root", serve={"max_request_bytes": 200_000}) as client:
        front = FrontEnd(client)
        plain = orjson.dumps({"threadId": "t", "runId": "r", "messages": [MESSAGE], "forwardedProps": [*range(10_000)]})
        found = await client.ask("POST", PATH, plain[:-1] + b',"state":' + deep + b"}")
        assert checked(found.events)[-1]["outcome"] == {"type": "success"}
        for wrong in (deep, b'{"name":"f","parameters":{"properties":' + deep + b"}}", b"{}", b'{"name":["f"]}'):
            again = plain.replace(b'"runId":"r"', b'"runId":"r2"')
            found = await client.ask("POST", PATH, again[:-1] + b',"tools":[' + wrong + b"]}")
            assert (found.status, found.code) == (400, "invalid_request")
        assert await front.say("more", state="x" * 300_000) == []
        assert front.last.status == 413


async def test_a_message_that_cannot_be_told_again_does_not_end_the_run(tmp_path: Path) -> None:
    deep = b'{"id":"d","role":"system","content":"x","metadata":' + b'{"x":[' * 505 + b"1" + b"]}" * 505 + b"},"
    left = {"id": "r:1", "role": "assistant", "content": "cut"}
    plain = orjson.dumps({"threadId": "t", "runId": "r", "messages": [MESSAGE, left]})
    async with serving(tmp_path / "root") as client:
        found = await client.ask("POST", PATH, plain.replace(b"[", b"[" + deep, 1))
        (snapshot,) = of_kind(checked(found.events), "MESSAGES_SNAPSHOT")
        assert snapshot["messages"] == [MESSAGE]
        assert found.events[-1]["outcome"] == {"type": "success"}


async def test_another_agent_or_an_unknown_one_is_not_there(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:
        for agent in ("NOBODY", "ADMIN-utility", "..%2fADMIN", "x" * 1_000):
            front = FrontEnd(client, path=f"/v1/agui/{agent}")
            assert await front.say("hello") == []
            assert front.last.status == 404


@ON_TRIO
async def test_a_reply_in_many_messages_is_one_reply(tmp_path: Path) -> None:
    pieces = [{"id": f"r:{number}", "role": "assistant", "content": "ab "} for number in range(19_000)]
    asked = {"threadId": "t", "runId": "new", "messages": [MESSAGE, *pieces, {**MESSAGE, "id": "u2"}]}
    async with serving(tmp_path / "root") as client:
        found = await client.ask("POST", PATH, orjson.dumps(asked))
        session = await client.runtime.supervisor().session(found.headers["x-kitchener-session"])
        assert [len(each.response) async for each in session.read_history()] == [3 * 19_000 - 1, len("echo: hello")]


async def test_a_reply_whose_message_has_no_id_is_part_of_the_history(tmp_path: Path) -> None:
    """Regression: the empty id was taken for that of the run before, of which there is none."""
    reply = {"id": "", "role": "assistant", "content": "hi"}
    asked = {"threadId": "t", "runId": "new", "messages": [MESSAGE, reply, {**MESSAGE, "id": "u2"}]}
    async with serving(tmp_path / "root") as client:
        found = await client.ask("POST", PATH, orjson.dumps(asked))
        assert found.status == 200
        session = await client.runtime.supervisor().session(found.headers["x-kitchener-session"])
        assert [each.response async for each in session.read_history()] == ["hi", "echo: hello"]
