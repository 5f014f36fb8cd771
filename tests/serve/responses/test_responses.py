"""`/v1/responses`: create, stream, retrieve after a cut or a restart, cancel, continue, approvals (docs/server.md)."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import tool
from kitchener.config import ServeClientConfig
from kitchener.ledger import LedgerClient, StoredEntry
from kitchener.model_usage import Usage
from kitchener.records.events import TURN_COMPLETED
from kitchener.records.prompt import PromptRequest, PromptResponse, ToolUse
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import CutShort, Hold, echo
from tests.serve.shared.requests import Asked, Client, serving

PATH = "/v1/responses"
KEYS = {"ada": "key-of-ada-0123456789", "bob": "key-of-bob-0123456789"}
ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


async def respond(client: Client, said: Any, **more: Any) -> Asked:
    return await client.ask("POST", PATH, {"input": said, **more})


def text_of(response: Any) -> str:
    """The text of a response's messages."""
    messages = (each for each in response["output"] if each["type"] == "message")
    return "".join(part["text"] for each in messages for part in each["content"])


def told(asked: Asked) -> list[Any]:
    """The events of a stream that ended as it should."""
    *events, done = asked.events
    assert done == "[DONE]"
    return events


def kinds(asked: Asked) -> list[str]:
    """The types of the events of a stream, deltas in a row as one."""
    found: list[str] = []
    for each in told(asked):
        if found[-1:] != [each["type"]]:
            found.append(each["type"])
    return found


def deltas(events: list[Any]) -> str:
    """The text that events add."""
    return "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")


async def turns_of(client: Client) -> dict[str, int]:
    """The number of turns of each session."""
    return {each.session_id: each.turns for each in await client.runtime.sessions()}


class TestAResponse:
    @pytest.mark.parametrize("model", ["ADMIN", "ADMIN-utility"])
    async def test_one_that_was_cut_is_incomplete_and_says_why(self, tmp_path: Path, model: str) -> None:
        provider = CutShort(lambda request: "The three reasons are")
        async with serving(tmp_path / "root", provider) as client:
            response = (await respond(client, "hello", model=model)).json
            assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
            assert (response["completed_at"], response["output"][0]["status"]) == (None, "incomplete")
            assert text_of(response) == "The three reasons are"
            streamed = await respond(client, "hello", model=model, stream=True)
            assert kinds(streamed) == [*ORDER[:-1], "response.incomplete"]
            last = told(streamed)[-1]["response"]
            assert (last["status"], last["output"][0]["status"]) == ("incomplete", "incomplete")
            if model == "ADMIN":
                for each in (response, last):
                    assert (await client.ask("GET", f"{PATH}/{each['id']}")).json == each

    async def test_it_is_a_turn_on_record_and_is_read_back_as_it_was_given(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            made = await respond(client, "hello")
            response = made.json
            assert (made.status, response["status"], text_of(response)) == (200, "completed", "echo: hello")
            assert response["id"] == f"resp_{response['kitchener']['turn_id'][2:].replace('-', '_')}"
            assert response["conversation"]["id"] == made.headers["x-kitchener-session"]
            assert response["usage"]["total_tokens"] > 0
            assert (await client.ask("GET", f"{PATH}/{response['id']}")).json == response
        async with serving(tmp_path / "root") as client:
            assert (await client.ask("GET", f"{PATH}/{response['id']}")).json == response

    async def test_a_stream_has_the_events_in_order_with_numbers_without_gaps(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            made = await respond(client, "one two three", stream=True)
            events = told(made)
            assert kinds(made) == ORDER
            assert [each["sequence_number"] for each in events] == list(range(len(events)))
            assert deltas(events) == text_of(events[-1]["response"]) == "echo: one two three"
            (item,) = events[-1]["response"]["output"]
            assert {each["item_id"] for each in events if "item_id" in each} == {item["id"]}
            read = await client.ask("GET", f"{PATH}/{events[0]['response']['id']}")
            assert read.json == events[-1]["response"]

    async def test_text_that_comes_soon_after_other_text_is_one_piece_and_adds_up(self, tmp_path: Path) -> None:
        said = " ".join(map(str, range(200)))
        async with serving(tmp_path / "root", serve={"text_interval_s": 10.0}) as client:
            events = told(await respond(client, said, stream=True))
            assert len([each for each in events if each["type"] == "response.output_text.delta"]) <= 2
            assert deltas(events) == text_of(events[-1]["response"]) == f"echo: {said}"

    async def test_a_client_that_was_cut_off_gets_exactly_what_it_lacks(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            whole = told(await respond(client, "one two three", stream=True))
            path = f"{PATH}/{whole[0]['response']['id']}?stream=true"
            assert told(await client.ask("GET", path)) == whole
            for number in range(len(whole)):
                rest = await client.ask("GET", f"{path}&starting_after={number}")
                assert told(rest) == whole[number + 1 :]

    async def test_after_a_restart_the_stream_has_the_reply_from_the_record(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            whole = told(await respond(client, "one two", stream=True))
        async with serving(tmp_path / "root") as client:
            path = f"{PATH}/{whole[0]['response']['id']}?stream=true"
            again = await client.ask("GET", path)
            assert (kinds(again), told(again)[-1]["response"]) == (ORDER, whole[-1]["response"])
            rest = await client.ask("GET", f"{path}&starting_after=4")
            assert kinds(rest) == ORDER[2:]
            assert [each["sequence_number"] for each in told(rest)] == list(range(5, 5 + len(told(rest))))
            assert deltas(told(rest)) == "echo: one two"

    async def test_a_turn_of_any_operation_is_a_response(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            made = (await client.chat("hello")).json["kitchener"]
            found = await client.ask("GET", f"{PATH}/resp_{made['turn_id'][2:].replace('-', '_')}")
            assert (text_of(found.json), found.json["kitchener"]) == ("echo: hello", made)

    @pytest.mark.parametrize(
        "response_id", ["resp_0a1b2c3d_000001", "resp_", "x" * 4_000, "..%2f", "T-0a1b2c3d-000001", "resp_utility_1"]
    )
    async def test_an_id_that_is_none_reaches_nothing(self, tmp_path: Path, response_id: str) -> None:
        async with serving(tmp_path / "root") as client:
            for method, path in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel")):
                found = await client.ask(method, f"{PATH}/{response_id}{path}")
                assert (found.status, found.code) == (404, "response_not_found")
            found = await respond(client, "x", previous_response_id=response_id[:200])
            assert (found.status, found.code) == (404, "response_not_found")
            assert client.provider.requests == []

    async def test_a_number_that_its_session_does_not_have_is_none(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            made = (await respond(client, "hello")).json["id"]
            later = f"{made[:-6]}000009"
            assert (await client.ask("GET", f"{PATH}/{later}")).code == "response_not_found"
            assert (await respond(client, "x", previous_response_id=later)).code == "response_not_found"
            assert list((await turns_of(client)).values()) == [1]

    async def test_no_operation_reaches_another_subjects_response(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, key in KEYS.items():
            monkeypatch.setenv(f"{name.upper()}_KEY", key)
        keys = {"clients": {name: ServeClientConfig(key=f"env:{name.upper()}_KEY", subject=name) for name in KEYS}}
        hold = Hold("wait", wo_type="synthesize")
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold), serve=keys) as client:
            ada, bob = (client.with_headers(authorization=f"Bearer {KEYS[name]}") for name in ("ada", "bob"))
            path = f"{PATH}/{(await respond(ada, 'wait', background=True)).json['id']}"
            for method, rest in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel")):
                found = await bob.ask(method, f"{path}{rest}")
                assert (found.status, found.code) == (404, "response_not_found")
            taken = await respond(bob, "and?", previous_response_id=path.rpartition("/")[2])
            assert (taken.status, taken.code) == (404, "response_not_found")
            hold.released["wait"].set()
            assert told(await ada.ask("GET", f"{path}?stream=true"))[-1]["type"] == "response.completed"

    @pytest.mark.parametrize("anyio_backend", ["asyncio"])  # bodies are checked without waiting
    @pytest.mark.parametrize(
        ("body", "code"),
        [
            ({}, "invalid_request"),
            ({"messages": [{"role": "user", "content": "x"}]}, "wrong_api"),
            ({"input": ""}, "invalid_request"),
            ({"input": " "}, "invalid_request"),
            ({"input": [{"role": "user", "content": ""}]}, "invalid_request"),
            ({"input": []}, "invalid_request"),
            ({"input": [{"role": "assistant", "content": "x"}]}, "invalid_request"),
            ({"input": [{"role": "nobody", "content": "x"}, {"role": "user", "content": "x"}]}, "invalid_request"),
            ({"input": [{"type": "mcp_approval_response", "approve": 1}]}, "invalid_request"),
            ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]}, "unsupported"),
            ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "unsupported"),
            ({"input": [{"type": ["message"], "role": "user", "content": "x"}]}, "invalid_request"),
            ({"input": [{"role": ["user"], "content": "x"}]}, "invalid_request"),
            ({"input": [{"role": "user", "content": {"text": "x"}}]}, "invalid_request"),
            ({"input": [{"role": "user", "content": [["x"]]}]}, "invalid_request"),
            ({"input": [{"role": "user", "content": [{"type": {"a": 1}}]}]}, "unsupported"),
            ({"input": [{"type": "mcp_approval_response", "approval_request_id": 1, "approve": True}]}, "invalid_request"),
            ({"input": [{"type": "mcp_approval_response", "approval_request_id": "x", "approve": True}]}, "invalid_request"),
            ({"input": "x", "tool_choice": "required"}, "unsupported"),
            ({"input": "x", "text": {"format": {"type": "grammar"}}}, "unsupported"),
            ({"input": "x", "text": {"format": []}}, "invalid_request"),
            ({"input": "x", "conversation": {"id": 1}}, "invalid_request"),
            ({"input": "x", "conversation": "a", "previous_response_id": "b"}, "invalid_request"),
        ],
    )
    async def test_a_wrong_body_is_named_and_nothing_is_started(self, tmp_path: Path, body: Any, code: str) -> None:
        async with serving(tmp_path / "root") as client:
            found = await client.ask("POST", PATH, body)
            assert (found.status, found.code) == (400, code)
            assert client.provider.requests == []

    async def test_an_object_is_asked_for_by_its_schema(self, tmp_path: Path) -> None:
        def model(request: PromptRequest) -> Any:
            return {"n": 3} if request.wo_type == "synthesize" else echo(request)

        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        async with serving(tmp_path / "root", ScriptedProvider(model)) as client:
            wanted = {"format": {"type": "json_schema", "name": "count", "schema": schema}}
            assert text_of((await respond(client, "count", text=wanted)).json) == '{"n":3}'

    async def test_instructions_and_system_items_do_not_reach_the_model(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            said = [{"role": "system", "content": "say beep"}, {"role": "user", "content": "hello"}]
            assert text_of((await respond(client, said, instructions="say boop")).json) == "echo: hello"
            assert not any(word in str(each.messages) for each in client.provider.requests for word in ("beep", "boop"))

    async def test_a_title_is_no_turn(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", ScriptedProvider(lambda _: {"response_text": "A title"})) as client:
            for made in (
                await respond(client, "title?", model="ADMIN-utility"),
                await client.ask("POST", PATH, {"input": "title?"}, x_openwebui_task="title_generation"),
            ):
                assert text_of(made.json) == "A title"
            stream = await respond(client, "title?", model="ADMIN-utility", stream=True)
            assert (kinds(stream), deltas(told(stream))) == (ORDER, "A title")
            assert await turns_of(client) == {}


async def said_in(response: Any, client: Client) -> list[str]:
    """The user's messages in the session of a response."""
    session = await client.runtime.supervisor().session(response["conversation"]["id"])
    return [each.user_message async for each in session.read_history()]


class TestGoingOn:
    async def test_the_previous_response_names_the_session(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            first = (await respond(client, "one")).json
        async with serving(tmp_path / "root") as client:
            second = (await respond(client, "two", previous_response_id=first["id"], stream=True)).events[-2]["response"]
            assert second["conversation"] == first["conversation"]
            assert second["previous_response_id"] == first["id"]
            assert list((await turns_of(client)).values()) == [2]

    async def test_an_earlier_response_is_gone_on_with_in_another_session(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            first = (await respond(client, "one")).json
            second = (await respond(client, "two", previous_response_id=first["id"])).json
            other = (await respond(client, "other", previous_response_id=first["id"])).json
            assert other["conversation"] != second["conversation"] == first["conversation"]
            session = await client.runtime.supervisor().session(other["conversation"]["id"])
            assert [each.user_message async for each in session.read_history()] == ["one", "other"]

    async def test_a_header_names_the_conversation_and_the_previous_response_the_turn_in_it(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            chat = client.with_headers(x_chat_id="c")
            first = (await respond(chat, "one")).json
            second = (await respond(chat, "two", previous_response_id=first["id"])).json
            assert second["conversation"] == first["conversation"]
            keyed = chat.with_headers(idempotency_key="k")
            edited = [(await respond(keyed, "zwei", previous_response_id=first["id"])).json for _ in range(2)]
            assert edited[0]["id"] == edited[1]["id"]
            assert edited[0]["conversation"] != first["conversation"]
            third = (await respond(chat, "drei", previous_response_id=edited[0]["id"])).json
            assert third["conversation"] == edited[0]["conversation"]
            assert await said_in(third, client) == ["one", "zwei", "drei"]

    async def test_a_header_that_names_another_conversation_counts_before_the_previous_response(self, tmp_path: Path) -> None:
        """The new conversation knows what was said until that response, as a copy of a chat does."""
        async with serving(tmp_path / "root") as client:
            first = (await respond(client.with_headers(x_chat_id="c"), "one")).json
            copy = client.with_headers(x_chat_id="copy of c")
            second = (await respond(copy, "two", previous_response_id=first["id"])).json
            third = (await respond(copy, "three", previous_response_id=second["id"])).json
            assert third["conversation"] == second["conversation"] != first["conversation"]
            assert await said_in(third, client) == ["one", "two", "three"]
            assert await said_in(first, client) == ["one"]
            again = await respond(copy, "x", previous_response_id="resp_00000000_000001")
            assert again.code == "response_not_found"

    async def test_a_header_with_the_id_of_a_session_counts_before_the_previous_response(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            first, other = [(await respond(client, each)).json for each in ("one", "uno")]
            named = client.with_headers(x_kitchener_session=other["conversation"]["id"])
            second = (await respond(named, "due", previous_response_id=first["id"])).json
            assert await said_in(second, client) == ["uno", "due"]

    async def test_a_response_that_still_runs_is_waited_for(self, tmp_path: Path) -> None:
        hold = Hold("wait", wo_type="synthesize")
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client:
            first = (await respond(client, "wait", background=True)).json
            assert (first["status"], first["background"], first["output"]) == ("in_progress", True, [])
            asked = Asked()
            asked.taking.set()
            async with anyio.create_task_group() as tasks:
                body = {"input": "and?", "previous_response_id": first["id"]}
                tasks.start_soon(client.run, asked, "POST", PATH, body)
                hold.released["wait"].set()
            assert asked.json["conversation"] == first["conversation"]
            assert list((await turns_of(client)).values()) == [2]

    async def test_a_conversation_goes_on_by_its_name_and_brings_new_items_only(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            first = (await respond(client, "one", conversation="trip")).json
            second = (await respond(client, "two", conversation={"id": "trip"})).json
            third = (await respond(client, "three", conversation=first["conversation"]["id"])).json
            assert first["conversation"] == second["conversation"] == third["conversation"]
            other = (await respond(client, "one")).json
            assert other["conversation"] != first["conversation"]

    async def test_a_client_that_sends_all_items_goes_on_or_forks_by_what_it_sends(self, tmp_path: Path) -> None:
        def items(*said: str) -> list[Any]:
            return [
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": each}]}
                if number % 2
                else {"role": "user", "content": [{"type": "input_text", "text": each}]}
                for number, each in enumerate(said)
            ]

        async with serving(tmp_path / "root") as client:
            chat = client.with_headers(x_chat_id="c")
            first = (await respond(chat, items("one"))).json
            second = (await respond(chat, items("one", "echo: one", "two"))).json
            edited = (await respond(chat, items("one", "echo: ONE", "two"))).json
            assert second["conversation"] == first["conversation"] != edited["conversation"]

    async def test_a_request_sent_again_with_its_key_gets_its_one_response(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            first = (await respond(client, "one")).json
            second = (await respond(client, "two", previous_response_id=first["id"])).json
            for previous in (None, first["id"], second["id"]):
                keyed = client.with_headers(idempotency_key=f"k-{previous}")
                made = [(await respond(keyed, "x", previous_response_id=previous)).json for _ in range(2)]
                assert made[0]["id"] == made[1]["id"] not in (first["id"], second["id"])


class TestCancelling:
    async def test_the_turn_is_aborted_and_every_reader_is_told(self, tmp_path: Path) -> None:
        hold = Hold("wait", wo_type="synthesize")
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client:
            asked = Asked()
            asked.taking.set()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run, asked, "POST", PATH, {"input": "wait", "stream": True})
                await asked.arrived.wait()
                await hold.arrived["wait"].wait()
                path = f"{PATH}/{asked.events[0]['response']['id']}"
                gone = await client.ask("POST", f"{path}/cancel")
            assert (gone.status, gone.json["status"], gone.json["output"]) == (200, "cancelled", [])
            assert told(asked)[-1]["type"] == "response.failed"
            assert told(asked)[-1]["response"]["status"] == "cancelled"
            assert (await client.ask("POST", f"{path}/cancel")).json == gone.json
            session = await client.runtime.supervisor().session(gone.json["conversation"]["id"])
            assert [each async for each in session.read_history()] == []
        async with serving(tmp_path / "root") as client:
            assert (await client.ask("GET", path)).json == gone.json

    async def test_a_response_that_is_complete_stays_so(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            made = (await respond(client, "hello")).json
            assert (await client.ask("POST", f"{PATH}/{made['id']}/cancel")).json == made

    async def test_a_turn_of_another_operation_is_stopped_there(self, tmp_path: Path) -> None:
        hold = Hold("wait", wo_type="synthesize")
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client:
            asked = Asked()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run, asked, "POST", "/v1/chat/completions", CHAT)
                await hold.arrived["wait"].wait()
                (session,) = await client.runtime.sessions()
                path = f"{PATH}/resp_{session.session_id[4:]}_000001"
                assert (await client.ask("GET", path)).json["status"] == "in_progress"
                refused = await client.ask("POST", f"{path}/cancel")
                assert (refused.status, refused.code) == (409, "response_running")
                asked.taking.set()
                hold.released["wait"].set()
            assert told(await client.ask("GET", f"{path}?stream=true"))[-1]["type"] == "response.completed"


CHAT: Mapping[str, Any] = {"model": "ADMIN", "messages": [{"role": "user", "content": "wait"}]}


@tool(requires_approval=True)
def send_card(to: str) -> str:
    """Sends a card."""
    return f"sent to {to}"


def asking(*names: str) -> ScriptedProvider:
    def answer(request: PromptRequest) -> Any:
        if request.wo_type != "synthesize":
            return echo(request)
        outcomes = [each.content for each in request.messages if each.role == "tool"]
        if outcomes:
            return {"response_text": f"heard {outcomes}"}
        uses = tuple(ToolUse(f"c{number}", "send_card", {"to": each}) for number, each in enumerate(names))
        return PromptResponse(provider_id="scripted", model_id="m", text="", usage=Usage(5, 5), tool_uses=uses)

    return ScriptedProvider(answer)


def answer_item(request: Any, *, approve: bool = True, reason: str | None = None) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve, "reason": reason}


class TestApproval:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_call_that_waits_is_an_item_and_its_answer_another(self, tmp_path: Path, stream: bool) -> None:
        async with serving(tmp_path / "root", ScriptedProvider(_one_card), tools=[send_card]) as client:
            first = await respond(client, "a card", stream=stream)
            asked = told(first)[-1]["response"] if stream else first.json
            message, waiting = asked["output"]
            assert message["type"] == "message"
            assert (waiting["type"], waiting["name"], waiting["arguments"], waiting["server_label"]) == (
                "mcp_approval_request",
                "send_card",
                '{"to":"ada"}',
                "kitchener",
            )
            assert (await client.ask("GET", f"{PATH}/{asked['id']}")).json["output"] == [message, waiting]
            if stream:
                added = [each["item"] for each in told(first) if each["type"] == "response.output_item.added"]
                assert added[-1] == waiting
            said = [answer_item(waiting)]
            second = await respond(client, said, previous_response_id=asked["id"], stream=stream)
            done = told(second)[-1]["response"] if stream else second.json
            assert "sent to ada" in text_of(done)
            assert done["conversation"] == asked["conversation"]
            assert (await client.ask("GET", f"{PATH}/{done['id']}")).json == done
            late = await respond(client, [answer_item(waiting, approve=False)])
            assert (late.status, late.code) == (409, "approval_closed")

    async def test_a_refusal_tells_the_model_why(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", ScriptedProvider(_one_card), tools=[send_card]) as client:
            (_, waiting) = (await respond(client, "a card")).json["output"]
            said = [{"role": "user", "content": "a card"}, answer_item(waiting, approve=False, reason="not today")]
            assert "not today" in text_of((await respond(client, said)).json)

    async def test_several_calls_are_answered_one_by_one_or_at_once(self, tmp_path: Path) -> None:
        for at_once in (False, True):
            async with serving(tmp_path / f"root{at_once}", asking("ada", "bob"), tools=[send_card]) as client:
                asked = (await respond(client, "cards")).json
                message, one, other = asked["output"]
                if at_once:
                    done = await respond(client, [answer_item(one), answer_item(other)])
                else:
                    still = (await respond(client, [answer_item(one)])).json
                    assert (still["id"], still["output"]) == (asked["id"], [message, other])
                    done = await respond(client, [answer_item(other)])
                assert all(f"sent to {each}" in text_of(done.json) for each in ("ada", "bob"))

    async def test_a_client_that_leaves_has_given_all_of_its_answers(self, tmp_path: Path) -> None:
        runs, goes_on, both, ran = anyio.Event(), anyio.Event(), anyio.Event(), list[str]()

        @tool(requires_approval=True, name="send_card")
        async def send_slowly(to: str) -> str:
            runs.set()
            await goes_on.wait()
            ran.append(to)
            if len(ran) == 2:
                both.set()
            return f"sent to {to}"

        async with serving(tmp_path / "root", ScriptedProvider(_one_card), tools=[send_slowly]) as client:
            first = (await respond(client, "a card")).json
            second = (await respond(client, "a card", conversation=first["conversation"]["id"])).json
            said, asked = [answer_item(each["output"][1]) for each in (first, second)], Asked()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run, asked, "POST", PATH, {"input": said})
                await runs.wait()
                asked.gone.set()
                await asked.done.wait()
                goes_on.set()
            with anyio.fail_after(20):
                await both.wait()
            unknown = answer_item({"id": "WO-SES-00000000-001.1"})
            third = (await respond(client, "a card", conversation=first["conversation"]["id"])).json
            refused = await respond(client, [answer_item(third["output"][1]), unknown])
            assert (refused.code, ran) == ("approval_not_found", ["ada", "ada"])

    async def test_nobody_answers_without_the_right_or_for_another_subject(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, key in KEYS.items():
            monkeypatch.setenv(f"{name.upper()}_KEY", key)
        serve = {
            "clients": {
                "ada": {"key": "env:ADA_KEY", "rights": ("chat", "approve", "act_for")},
                "bob": {"key": "env:BOB_KEY", "rights": ("chat", "act_for")},
            }
        }
        async with serving(tmp_path / "root", ScriptedProvider(_one_card), serve=serve, tools=[send_card]) as client:
            desk, bot = (client.with_headers(authorization=f"Bearer {KEYS[name]}") for name in ("ada", "bob"))
            mine, others = ({"x_kitchener_subject": each} for each in ("ada", "eve"))
            (_, waiting) = (await respond(desk.with_headers(**mine), "a card")).json["output"]
            said = [answer_item(waiting)]
            assert (await respond(bot.with_headers(**mine), said)).code == "right_missing"
            found = await respond(desk.with_headers(**others), said)
            nowhere = await respond(desk.with_headers(**others), [answer_item({"id": "WO-SES-00000000-001.1"})])
            assert (found.status, found.code) == (nowhere.status, nowhere.code) == (404, "approval_not_found")
            assert await client.runtime.pending_approvals()


def _one_card(request: PromptRequest) -> Any:
    if request.wo_type != "synthesize":
        return echo(request)
    outcomes = [each.content for each in request.messages if each.role == "tool"]
    return {"response_text": f"heard {outcomes}"} if outcomes else use_tool("send_card", to="ada")


class TestAStreamThatIsCut:
    async def test_text_that_the_gate_rejected_ends_as_an_incomplete_message(self, tmp_path: Path) -> None:
        replies = iter(({"response_text": "bad"}, {"response_text": "good enough"}))

        def answer(request: PromptRequest) -> Any:
            return next(replies) if request.wo_type == "synthesize" else echo(request)

        async with serving(tmp_path / "root", ScriptedProvider(answer), acceptance=("min_chars:5",)) as client:
            events = told(await respond(client, "hello", stream=True))
            done = [each["item"] for each in events if each["type"] == "response.output_item.done"]
            assert [(each["status"], each["content"][0]["text"]) for each in done] == [
                ("incomplete", "bad"),
                ("completed", "good enough"),
            ]
            assert done[0]["id"] != done[1]["id"]
            assert events[-1]["response"]["output"] == [done[1]]
            assert [each["sequence_number"] for each in events] == list(range(len(events)))

    @pytest.mark.parametrize(("gone", "status"), [("detach", "completed"), ("cancel", "cancelled")])
    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_client_that_goes_away_finds_what_became_of_its_turn(
        self, tmp_path: Path, gone: str, status: str, stream: bool
    ) -> None:
        hold = Hold("wait", wo_type="synthesize")
        provider = ScriptedProvider(echo, gate=hold)
        async with serving(tmp_path / "root", provider, serve={"client_gone": gone}) as client:
            asked = Asked()
            asked.taking.set()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run, asked, "POST", PATH, {"input": "wait", "stream": stream})
                await hold.arrived["wait"].wait()
                asked.gone.set()
                await asked.done.wait()
            (session,) = await client.runtime.sessions()
            path = f"{PATH}/resp_{session.session_id[4:]}_000001"
            hold.released["wait"].set()
            events = told(await client.ask("GET", f"{path}?stream=true"))
            assert events[-1]["response"]["status"] == status
            assert (text_of(events[-1]["response"]) == "echo: wait") == (status == "completed")

    async def test_a_background_turn_has_no_client_to_lose(self, tmp_path: Path) -> None:
        hold = Hold("wait", wo_type="synthesize")
        provider = ScriptedProvider(echo, gate=hold)
        async with serving(tmp_path / "root", provider, serve={"client_gone": "cancel"}) as client:
            asked = Asked()
            asked.taking.set()
            async with anyio.create_task_group() as tasks:
                body = {"input": "wait", "stream": True, "background": True}
                tasks.start_soon(client.run, asked, "POST", PATH, body)
                await asked.arrived.wait()
                asked.gone.set()
                await asked.done.wait()
            path = f"{PATH}/{asked.events[0]['response']['id']}"
            assert (await client.ask("GET", path)).json["status"] == "in_progress"
            hold.released["wait"].set()
            assert told(await client.ask("GET", f"{path}?stream=true"))[-1]["type"] == "response.completed"

    async def test_a_server_that_shuts_down_tells_every_reader(self, tmp_path: Path) -> None:
        hold, limits = Hold("wait", wo_type="synthesize"), {"shutdown_grace_s": 0.01}
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold), limits=limits) as client:
            path = f"{PATH}/{(await respond(client, 'wait', background=True)).json['id']}"
            await hold.arrived["wait"].wait()
            asked = Asked()
            asked.taking.set()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run, asked, "GET", f"{path}?stream=true")
                await asked.arrived.wait()
                assert await client.server.drain() is False
            assert (told(asked)[-1]["type"], told(asked)[-1]["response"]["status"]) == ("response.failed", "cancelled")
        async with serving(tmp_path / "root") as client:
            assert (await client.ask("GET", path)).json["status"] == "cancelled"

    async def test_an_error_before_the_first_event_has_a_status_of_its_own(self, tmp_path: Path) -> None:
        hold = Hold("wait", wo_type="synthesize")
        provider = ScriptedProvider(echo, gate=hold)
        async with serving(tmp_path / "root", provider, overlap_policy="reject") as client:
            first = (await respond(client, "wait", background=True, conversation="c")).json
            await hold.arrived["wait"].wait()
            for stream in (False, True):
                busy = await respond(client, "more", conversation=first["conversation"]["id"], stream=stream)
                assert (busy.status, busy.code) == (409, "session_busy")
            hold.released["wait"].set()
            await client.ask("GET", f"{PATH}/{first['id']}?stream=true")

    @pytest.mark.parametrize("by_request", [False, True])
    async def test_an_erased_subject_has_no_responses(self, tmp_path: Path, by_request: bool) -> None:
        async with serving(tmp_path / "root") as client:
            made = (await respond(client, "my secret")).json
            if by_request:
                assert (await client.ask("POST", "/v1/subject/erase", {"subject_id": "local"})).status == 200
            else:
                await client.runtime.erase_subject("local")
            for path in ("", "?stream=true"):
                found = await client.ask("GET", f"{PATH}/{made['id']}{path}")
                assert b"my secret" not in found.body
            again = await respond(client, "hello", previous_response_id=made["id"])
            assert (again.status, again.code) == (410, "subject_erased")


async def test_of_what_followed_a_response_one_turn_is_read_and_not_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: all turns after the previous response were read before anything was counted for the key."""
    read, found = LedgerClient.read, list[str]()

    async def counted(client: LedgerClient, **asked: Any) -> AsyncIterator[StoredEntry]:
        async for each in read(client, **asked):
            if asked.get("entry_type") == (TURN_COMPLETED,) and asked.get("after_seq"):
                found.append(each.entity_id)
            yield each

    async with serving(tmp_path / "root") as client:
        first = last = await respond(client, "one")
        for number in range(10):
            last = await respond(client, f"more {number}", previous_response_id=last.json["id"])
        monkeypatch.setattr(LedgerClient, "read", counted)
        branch = await respond(client, "other", previous_response_id=first.json["id"])
        assert branch.json["conversation"] != first.json["conversation"] == last.json["conversation"]
    assert 1 <= len(found) <= 2
