"""The server's own API: sessions, messages, events, stop, intents, its description (docs/server.md)."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import tool
from kitchener.config import ServeClientConfig
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.runtime import agent_tool
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import Hold, echo
from tests.serve.shared.requests import Asked, Client, serving
from tests.shared.event_loops import ON_ASYNCIO, ON_TRIO

KEYS = {"ada": "key-of-ada-0123456789", "bob": "key-of-bob-0123456789"}


async def begun(client: Client, **body: Any) -> str:
    found = await client.ask("POST", "/v1/sessions", body)
    assert found.status == 201, found.body
    return f"/v1/sessions/{found.json['session_id']}"


def names(asked: Asked) -> list[str]:
    """The names of the events of a stream."""
    return [line.removeprefix("event: ") for line in asked.body.decode().splitlines() if line.startswith("event: ")]


def numbers(asked: Asked) -> list[int]:
    """The numbers of the events of a stream."""
    return [int(line.removeprefix("id: ")) for line in asked.body.decode().splitlines() if line.startswith("id: ")]


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    for name, key in KEYS.items():
        monkeypatch.setenv(f"{name.upper()}_KEY", key)
    return {"clients": {name: ServeClientConfig(key=f"env:{name.upper()}_KEY", subject=name) for name in KEYS}}


class TestSessions:
    async def test_one_is_begun_shown_listed_read_back_and_ended(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            path = await begun(client, external_id="trip")
            reply = await client.ask("POST", f"{path}/messages", {"message": "hello"})
            assert (reply.status, reply.json["response"], reply.json["error"]) == (200, "echo: hello", None)
            shown = (await client.ask("GET", path)).json
            assert (shown["external_id"], shown["turns"], shown["is_ended"], shown["running_turn"]) == ("trip", 1, False, None)
            (listed,) = (await client.ask("GET", "/v1/sessions")).json["sessions"]
            assert (listed["session_id"], listed["agent"], listed["turns"]) == (shown["session_id"], "ADMIN", 1)
            assert listed["title"] == "hello"
            (turn,) = (await client.ask("GET", f"{path}/messages")).json["turns"]
            assert (turn["user_message"], turn["response"]) == ("hello", "echo: hello")
            assert (await client.ask("POST", f"{path}/end", {"reason": "done"})).json["is_ended"] is True
            over = await client.ask("POST", f"{path}/messages", {"message": "more"})
            assert (over.status, over.code) == (410, "session_ended")

    @pytest.mark.parametrize(("read", "most_s"), [("few", 20), ("sessions", 40), ("messages", 40)])
    async def test_a_long_list_counts_as_several_requests(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str, most_s: int
    ) -> None:
        """Of three requests a minute one passes every 20 s, so what a list counted shows in the next answer."""
        monkeypatch.setenv("ADA_KEY", KEYS["ada"])
        clients = {"ada": ServeClientConfig(key="env:ADA_KEY", subject="ada", requests_per_minute=3)}
        async with serving(tmp_path / "root", serve={"clients": clients}) as client:
            supervisor = client.runtime.supervisor()
            begun = [await supervisor.start_session(subject_id="ada") for _ in range(50)]
            for _ in range(100 if read == "messages" else 0):
                await supervisor.handle_turn("hello", session_id=begun[0])
            path = f"/v1/sessions/{begun[0]}/messages" if read == "messages" else f"/v1/sessions?limit={49 + (read != 'few')}"
            ada = client.with_headers(authorization=f"Bearer {KEYS['ada']}")
            assert (await ada.ask("GET", path)).status == 200
            found = await ada.ask("GET", "/v1/models")
            assert (found.status, found.code) == (429, "rate_limited")
            assert most_s - 20 < int(found.headers["retry-after"]) <= most_s

    @ON_TRIO
    async def test_no_operation_reaches_another_subjects_session(self, tmp_path: Path, keys: Mapping[str, Any]) -> None:
        async with serving(tmp_path / "root", serve=keys, context_mode="enforce") as client:
            ada, bob = (client.with_headers(authorization=f"Bearer {KEYS[name]}") for name in ("ada", "bob"))
            path = await begun(ada)
            await ada.ask("POST", f"{path}/messages", {"message": "hello"})
            before = (await ada.ask("GET", f"{path}/events?follow=false")).body
            description = (await bob.ask("GET", "/openapi.json")).json
            reached = [each for each in description["paths"] if "{session_id}" in each]
            assert len(reached) >= 9
            for each in reached:
                names = {"approval_id": "WO-SES-0-1.1", "intent_id": "INT-0", "turn_id": f"T-{path[-8:]}-000001"}
                own = each.replace("/v1/sessions/{session_id}", path).format(**names)
                for method in description["paths"][each]:
                    body = None if method == "get" else {"message": "x", "objective": "x", "change": "keep"}
                    found = await bob.ask(method.upper(), own, _fitting(each, body))
                    assert (found.status, found.code) == (404, "session_not_found"), each
            assert (await bob.ask("GET", "/v1/sessions")).json == {"sessions": []}
            assert (await ada.ask("GET", f"{path}/events?follow=false")).body == before

    @pytest.mark.parametrize("session_id", ["..", "SES-", "SES-zz", "%00", "x" * 5_000, "SES-0a1b2c3d/../../x"])
    async def test_an_id_that_is_none_reaches_nothing(self, tmp_path: Path, session_id: str) -> None:
        async with serving(tmp_path / "root") as client:
            found = await client.ask("GET", f"/v1/sessions/{session_id}")
            assert found.status in (400, 404)

    @pytest.mark.parametrize("anyio_backend", ["asyncio"])  # bodies are checked without waiting
    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/sessions", {"agent": 1}),
            ("/v1/sessions", {"nonsense": True}),
            ("/v1/sessions", []),
            ("/v1/sessions", {"external_id": ""}),
            ("{}/messages", {}),
            ("{}/messages", {"message": ""}),
            ("{}/messages", {"message": "x", "deadline_s": -1}),
            ("{}/messages", {"message": "x", "files": [{"data": "%"}]}),
            ("{}/messages", {"message": "x", "tool_choice": "rm"}),
            ("{}/messages", {"message": "x", "output_schema": {"type": "string"}}),
        ],
    )
    async def test_a_wrong_body_is_named_and_nothing_is_started(self, tmp_path: Path, path: str, body: Any) -> None:
        async with serving(tmp_path / "root") as client:
            found = await client.ask("POST", path.format(await begun(client)), body)
            assert (found.status, found.code) == (400, "invalid_request")
            assert client.provider.requests == []


def _fitting(path: str, body: Any) -> Any:
    """The fields that an operation takes."""
    if body is None:
        return None
    fields = {"messages": ("message",), "intents": ("objective",), "{intent_id}": ("change",)}
    return {name: body[name] for name in fields.get(path.rpartition("/")[2], ())}


class TestMessages:
    async def test_one_sent_again_with_its_key_has_one_turn_and_another_body_is_refused(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            path = await begun(client)
            headers = {"idempotency_key": "k"}
            first = await client.ask("POST", f"{path}/messages", {"message": "one"}, **headers)
            again = await client.ask("POST", f"{path}/messages", {"message": "one"}, **headers)
            other = await client.ask("POST", f"{path}/messages", {"message": "two"}, **headers)
            assert first.json["turn_id"] == again.json["turn_id"]
            assert (other.status, other.code) == (409, "idempotency_conflict")
            assert (await client.ask("GET", path)).json["turns"] == 1

    async def test_its_updates_come_as_events_and_end_with_the_result(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            path = await begun(client)
            found = await client.ask("POST", f"{path}/messages", {"message": "one two", "stream": True})
            assert found.headers["content-type"].startswith("text/event-stream")
            assert names(found)[0] == "work_order_planned"
            assert names(found)[-1] == "turn_completed"
            text = "".join(each["text"] for each, name in zip(found.events, names(found), strict=True) if name == "text")
            assert text == found.events[-1]["response"] == "echo: one two"

    async def test_an_error_before_the_first_update_has_a_status_also_for_a_stream(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            path = await begun(client)
            await client.ask("POST", f"{path}/end")
            found = await client.ask("POST", f"{path}/messages", {"message": "x", "stream": True})
            assert (found.status, found.code) == (410, "session_ended")

    async def test_it_brings_files_and_asks_for_objects(self, tmp_path: Path) -> None:
        def answer(request: PromptRequest) -> Mapping[str, Any]:
            return {"n": 1} if request.wo_type == "synthesize" else echo(request)

        async with serving(tmp_path / "root", ScriptedProvider(answer)) as client:
            sent = {"data": base64.b64encode(b"some notes").decode(), "name": "notes.txt"}
            schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
            body = {"message": "read", "files": [sent], "output_schema": schema}
            found = await client.ask("POST", f"{await begun(client)}/messages", body)
            assert (found.status, found.json["output"]) == (200, {"n": 1})
            (request,) = [each for each in client.provider.requests if each.wo_type == "synthesize"]
            assert [part.data for each in request.messages for part in each.parts] == [b"some notes"]

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_stop_aborts_the_running_turn_and_its_client_is_told(self, tmp_path: Path, stream: bool) -> None:
        hold = Hold("wait", wo_type="synthesize")
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client:
            path, asked = await begun(client), Asked()
            asked.taking.set()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run, asked, "POST", f"{path}/messages", {"message": "wait", "stream": stream})
                await hold.arrived["wait"].wait()
                assert (await client.ask("GET", path)).json["running_turn"] is not None
                assert (await client.ask("POST", f"{path}/stop")).json["stopped"] == 1
                assert (await client.ask("GET", path)).json["running_turn"] is None
            told = asked.events[-1]["error"]["code"] if stream else asked.code
            assert (asked.status, told) == (200 if stream else 409, "turn_stopped")
            assert (await client.ask("POST", f"{path}/stop")).json["stopped"] == 0
            assert (await client.ask("POST", f"{path}/messages", {"message": "next"})).json["response"] == "echo: next"


class TestEvents:
    async def test_they_are_numbered_and_go_on_after_the_last_one_that_a_client_has(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            path = await begun(client)
            await client.ask("POST", f"{path}/messages", {"message": "hello"})
            whole = await client.ask("GET", f"{path}/events?follow=false")
            assert names(whole)[:2] == ["session_started", "turn_started"]
            assert names(whole)[-1] == "turn_completed"
            assert (whole.events[1]["user_message"], whole.events[-1]["response"]) == ("hello", "echo: hello")
            assert numbers(whole) == sorted(set(numbers(whole)))
            for number in (0, *numbers(whole)):
                by_query = await client.ask("GET", f"{path}/events?follow=false&after={number}")
                by_header = await client.ask("GET", f"{path}/events?follow=false", last_event_id=str(number))
                assert numbers(by_query) == numbers(by_header) == [each for each in numbers(whole) if each > number]
            wrong = await client.ask("GET", f"{path}/events?after=-1")
            assert (wrong.status, wrong.code) == (400, "invalid_request")

    async def test_a_client_that_follows_sees_what_happens_and_a_drain_ends_its_stream(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            path, asked = await begun(client), Asked()
            asked.taking.set()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run, asked, "GET", f"{path}/events")
                await asked.arrived.wait()
                await client.ask("POST", f"{path}/messages", {"message": "hello"})
                while "turn_completed" not in names(asked):
                    await anyio.lowlevel.checkpoint()
                with anyio.fail_after(5):
                    assert await client.server.drain() is True
                    await asked.done.wait()
            assert names(asked)[0] == "session_started"

    async def test_an_event_is_sent_when_it_happens_and_not_when_somebody_looks(self, tmp_path: Path) -> None:
        hold = Hold("wait", wo_type="synthesize")
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client:
            path, asked, sent = await begun(client), Asked(), Asked()
            asked.taking.set()
            sent.taking.set()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run, asked, "GET", f"{path}/events")
                await asked.arrived.wait()
                asked.arrived = anyio.Event()
                tasks.start_soon(client.run, sent, "POST", f"{path}/messages", {"message": "wait"})
                await hold.arrived["wait"].wait()
                with anyio.fail_after(10):
                    while "turn_started" not in names(asked):  # although the turn has committed nothing yet
                        await asked.arrived.wait()
                        asked.arrived = anyio.Event()
                assert "turn_completed" not in names(asked)
                hold.released["wait"].set()
                await sent.done.wait()
                asked.gone.set()

    async def test_they_tell_nothing_of_how_the_agent_is_instructed(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", instructions="You are the secret Bo.") as client:
            path = await begun(client)
            await client.ask("POST", f"{path}/messages", {"message": "hello"})
            assert b"secret Bo" not in (await client.ask("GET", f"{path}/events?follow=false")).body


@tool(requires_approval=True)
def send_letter(to: str) -> str:
    """Sends a letter."""
    return f"sent to {to}"


def asked_for_a_letter(request: PromptRequest) -> Any:
    """A model that sends a letter, and tells what it heard of it."""
    if request.wo_type != "synthesize":
        return echo(request)
    outcomes = [each.content for each in request.messages if each.role == "tool"]
    return {"response_text": f"heard {outcomes}"} if outcomes else use_tool("send_letter", to="ada")


def asking_model() -> ScriptedProvider:
    return ScriptedProvider(asked_for_a_letter)


class TestApprovals:
    async def test_a_call_that_waits_is_listed_changed_and_allowed_once(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", asking_model(), tools=[send_letter]) as client:
            path = await begun(client)
            (approval_id,) = (await client.ask("POST", f"{path}/messages", {"message": "go"})).json["pending_approval"]
            (waiting,) = (await client.ask("GET", f"{path}/approvals")).json["approvals"]
            assert (waiting["approval_id"], waiting["tool_id"], waiting["arguments"]) == (
                approval_id,
                "send_letter",
                {"to": "ada"},
            )
            assert (await client.ask("GET", "/v1/approvals")).json == {"approvals": [waiting]}
            allow = f"{path}/approvals/{approval_id}/approve"
            done = await client.ask("POST", allow, {"arguments": {"to": "bob"}, "message": "bob instead"})
            assert "sent to bob" in done.json["result"]["response"]
            told = (await client.ask("GET", f"{path}/events?follow=false")).events
            started = [each.get("resumes") for each in told if "user_message" in each]
            assert (started[0], started[1]["approval_ids"]) == (None, [approval_id])
            again = await client.ask("POST", allow, {"arguments": {"to": "bob"}, "message": "bob instead"})
            assert again.json == done.json
            late = await client.ask("POST", f"{path}/approvals/{approval_id}/deny")
            assert (late.status, late.code) == (409, "approval_closed")
            assert (await client.ask("GET", f"{path}/approvals")).json == {"approvals": []}
            resolved = [each async for each in client.runtime.ledgers().ho2m.read(entry_type=events.APPROVAL_RESOLVED)]
            assert [each.payload["answered_by"] for each in resolved] == ["local"]

    @ON_TRIO
    async def test_a_call_of_an_agent_that_was_asked_is_listed_for_a_key_that_reaches_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And answered in its own session, which the list names."""

        def answer(request: PromptRequest) -> Any:
            offered = [each.tool_id for each in request.tools]
            if request.wo_type == "synthesize" and "ask_clerk" in offered:
                return "asked" if request.messages[-1].role == "tool" else use_tool("ask_clerk", message="go")
            return asked_for_a_letter(request)

        clients = {}
        for name, agents in (("front", ("ADMIN",)), ("whole", ("*",))):
            monkeypatch.setenv(f"{name.upper()}_KEY", f"key-of-{name}-0123456789")
            clients[name] = ServeClientConfig(
                key=f"env:{name.upper()}_KEY", subject="ada", agents=agents, rights=("chat", "read", "approve")
            )
        given: dict[str, Any] = {"tools": [send_letter, agent_tool("CLERK")], "agents": {"CLERK": {"tools": ("send_letter",)}}}
        async with serving(tmp_path / "root", ScriptedProvider(answer), serve={"clients": clients}, **given) as client:
            front, whole = (client.with_headers(authorization=f"Bearer key-of-{name}-0123456789") for name in clients)
            path = await begun(front)
            told = (await front.ask("POST", f"{path}/messages", {"message": "go"})).json
            assert told["pending_approval"] == []
            assert (await front.ask("GET", f"{path}/approvals")).json == {"approvals": []}
            (waiting,) = (await whole.ask("GET", f"{path}/approvals")).json["approvals"]
            assert (await whole.ask("GET", "/v1/approvals?agent=ADMIN")).json == {"approvals": [waiting]}
            assert (waiting["agent"], waiting["tool_id"]) == ("CLERK", "send_letter")
            allow = f"/v1/sessions/{waiting['session_id']}/approvals/{waiting['approval_id']}/approve"
            assert (await front.ask("POST", allow, {})).status == 404
            assert "sent to ada" in (await whole.ask("POST", allow, {})).json["result"]["response"]

    async def test_a_call_is_refused_with_a_reason(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", asking_model(), tools=[send_letter]) as client:
            path = await begun(client)
            (approval_id,) = (await client.ask("POST", f"{path}/messages", {"message": "go"})).json["pending_approval"]
            done = await client.ask("POST", f"{path}/approvals/{approval_id}/deny", {"message": "not today"})
            assert "not today" in done.json["result"]["response"]

    @pytest.mark.parametrize("approval_id", ["WO-SES-00000000-001.1", "nonsense", "WO-SES-00000000-001"])
    async def test_a_request_of_another_session_is_none(self, tmp_path: Path, approval_id: str) -> None:
        async with serving(tmp_path / "root") as client:
            found = await client.ask("POST", f"{await begun(client)}/approvals/{approval_id}/approve")
            assert found.status in (400, 404)


async def test_intents_are_declared_listed_and_changed(tmp_path: Path) -> None:
    async with serving(tmp_path / "root", context_mode="enforce", intent_mode="classified") as client:
        path = await begun(client)
        made = await client.ask("POST", f"{path}/intents", {"objective": "find a hotel"})
        assert made.status == 201
        intent_id = made.json["intent_id"]
        (one,) = (await client.ask("GET", f"{path}/intents")).json["intents"]
        assert (one["intent_id"], one["objective"], one["is_active"]) == (intent_id, "find a hotel", True)
        closed = await client.ask("POST", f"{path}/intents/{intent_id}", {"change": "close", "why": "found"})
        assert closed.json["intents"][0]["is_active"] is False
        again = await client.ask("POST", f"{path}/intents/{intent_id}", {"change": "close"})
        assert (again.status, again.code) == (409, "invalid_lifecycle")
        reopened = await client.ask("POST", f"{path}/intents/{intent_id}", {"change": "reopen"})
        assert reopened.json["intents"][0]["is_active"] is True


@ON_ASYNCIO
async def test_the_description_names_every_operation_and_only_schemas_that_it_has(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:
        found = (await client.ask("GET", "/openapi.json")).json
        assert found["openapi"] == "3.1.0"
        operations = [each for path in found["paths"].values() for each in path.values()]
        assert len({each["operationId"] for each in operations}) == len(operations) >= 17
        for path, methods in found["paths"].items():
            for each in methods.values():
                named = {parameter["name"] for parameter in each["parameters"] if parameter["in"] == "path"}
                assert named == {part.strip("{}") for part in path.split("/") if part.startswith("{")}
        assert references(found) == {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}


def references(value: Any) -> set[str]:
    """All references in a description."""
    if isinstance(value, list):
        return set[str]().union(*map(references, value))
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
    return own.union(*map(references, value.values()))
