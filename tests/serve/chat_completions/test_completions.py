"""Chat clients of the OpenAI API: whole replies, streams, conversations, edits (docs/server.md)."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import ConfirmationRequired, ToolContext, tool
from kitchener.errors import ProviderError
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.serve.chat_completions.chat_request import CONTINUE
from kitchener.testing import ScriptedProvider, replay_session, use_tool
from tests.acceptance.stack import CutShort, Hold, echo
from tests.serve.shared.requests import COMPLETIONS, Asked, Client, chat_body, serving

CHAT = {"x_openwebui_chat_id": "chat 1"}
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==")


async def session_of(asked: Asked, client: Client) -> Any:
    assert asked.status == 200, asked.body
    return await client.runtime.supervisor().session(asked.headers["x-kitchener-session"])


async def said_in(asked: Asked, client: Client) -> list[tuple[str, str]]:
    session = await session_of(asked, client)
    return [(each.user_message, each.response) async for each in session.read_history()]


class TestAReply:
    async def test_it_comes_whole_with_its_tokens_and_its_turn(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            found = await client.chat("hello")
            answer = found.json
            assert (found.status, answer["object"], answer["model"]) == (200, "chat.completion", "ADMIN")
            (choice,) = answer["choices"]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("echo: hello", "stop")
            usage = answer["usage"]
            assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"] > 0
            assert answer["kitchener"]["turn_id"].startswith("T-")
            assert found.headers["x-kitchener-session"] == answer["kitchener"]["session_id"]

    async def test_it_comes_as_a_stream_that_adds_up_to_it(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            found = await client.chat("one two three", stream=True)
            *chunks, done = found.events
            assert (found.text, done) == ("echo: one two three", "[DONE]")
            assert len(chunks) >= 3
            assert len({each["id"] for each in chunks}) == 1
            assert all("usage" not in each for each in chunks)
            assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
            assert [each["choices"][0]["finish_reason"] for each in chunks] == [None] * (len(chunks) - 1) + ["stop"]

    async def test_its_last_chunk_tells_an_apology_from_a_reply(self, tmp_path: Path) -> None:
        """Regression: only a whole answer did, and a stream of an apology ended like that of a reply."""

        def answer(request: PromptRequest) -> Any:
            if request.wo_type == "synthesize" and request.variables["user_message"] == "fail":
                raise ProviderError("scripted", "out_of_credit", "no money left")
            return echo(request)

        async with serving(tmp_path / "root", ScriptedProvider(answer)) as client:
            *begun, good, _ = (await client.chat("hello", stream=True)).events
            *_, failed, _ = (await client.chat("fail", stream=True)).events
        assert all("kitchener" not in each for each in begun)
        assert (good["choices"][0]["finish_reason"], good["kitchener"]["error"]) == ("stop", None)
        assert failed["kitchener"]["turn_id"].startswith("T-")
        assert "no money left" in failed["kitchener"]["error"]["message"]

    async def test_a_stream_ends_with_the_tokens_where_the_client_asks_for_them(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            found = await client.chat("hello", stream=True, stream_options={"include_usage": True})
            *chunks, last, _ = found.events
            assert {each["usage"] for each in chunks} == {None}
            assert (last["choices"], last["usage"]["total_tokens"] > 0) == ([], True)

    @pytest.mark.parametrize("model", ["ADMIN", "ADMIN-utility"])
    async def test_one_that_was_cut_ends_with_the_limit_as_its_reason(self, tmp_path: Path, model: str) -> None:
        """Clients offer to continue it. A plain model call says so, too."""
        provider = CutShort(lambda request: "The three reasons are")
        async with serving(tmp_path / "root", provider) as client:
            whole = (await client.chat("hello", model=model)).json
            assert whole["choices"][0]["finish_reason"] == "length"
            assert model != "ADMIN" or whole["kitchener"]["truncated"] is True
            *chunks, _ = (await client.chat("hello again", stream=True, model=model)).events
            assert [each["choices"][0]["finish_reason"] for each in chunks][-1] == "length"

    async def test_text_that_the_gate_rejected_is_marked_in_the_stream(self, tmp_path: Path) -> None:
        replies = iter(({"response_text": "bad"}, {"response_text": "good enough"}))

        def answer(request: PromptRequest) -> Mapping[str, Any]:
            return next(replies) if request.wo_type == "synthesize" else echo(request)

        async with serving(tmp_path / "root", ScriptedProvider(answer), acceptance=("min_chars:5",)) as client:
            first = await client.ask("POST", COMPLETIONS, chat_body("hello", stream=True), **CHAT)
            assert first.text.startswith("bad")
            assert "withdrawn" in first.text
            assert first.text.endswith("good enough")
            next_one = await client.ask("POST", COMPLETIONS, chat_body("hello", first.text, "hello"), **CHAT)
            assert next_one.headers["x-kitchener-session"] == first.headers["x-kitchener-session"]

    async def test_an_object_is_asked_for_by_its_schema(self, tmp_path: Path) -> None:
        def answer(request: PromptRequest) -> Mapping[str, Any]:
            return {"city": "Graz"} if request.wo_type == "synthesize" else echo(request)

        schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        wanted = {"type": "json_schema", "json_schema": {"name": "trip", "schema": schema}}
        async with serving(tmp_path / "root", ScriptedProvider(answer)) as client:
            assert (await client.chat("where to?", response_format=wanted)).text == '{"city":"Graz"}'

    async def test_an_image_in_the_request_reaches_the_model_and_an_address_is_not_fetched(self, tmp_path: Path) -> None:
        url = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
        body = chat_body("?")
        body["messages"][0]["content"] = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
        async with serving(tmp_path / "root") as client:
            assert (await client.ask("POST", COMPLETIONS, body)).text == "echo: look"
            (request,) = [each for each in client.provider.requests if each.wo_type == "synthesize"]
            assert [part.data for each in request.messages for part in each.parts] == [PIXEL]
            for wrong in (
                "https://example.org/x.png",
                "file:///etc/passwd",
                "data:image/png,plain",
                "data:image/png;base64,%%",
            ):
                body["messages"][0]["content"][1]["image_url"]["url"] = wrong
                refused = await client.ask("POST", COMPLETIONS, body)
                assert (refused.status, refused.code) == (400, "unsupported")

    @pytest.mark.parametrize(
        ("more", "status"),
        [
            ({"n": 2}, 400),
            ({"tool_choice": "required"}, 400),
            ({"response_format": {"type": "grammar"}}, 400),
            ({"model": "NOBODY"}, 404),
            ({"model": "../ADMIN"}, 404),
            ({"messages": [{"role": "assistant", "content": "I begin"}]}, 400),
            ({"messages": [{"role": "user", "content": " "}]}, 400),
            ({"messages": [{"role": "user", "content": None}]}, 400),
            ({"messages": [{"role": "user", "content": []}]}, 400),
        ],
    )
    async def test_what_this_server_does_not_do_is_refused(self, tmp_path: Path, more: dict[str, Any], status: int) -> None:
        async with serving(tmp_path / "root") as client:
            found = await client.ask("POST", COMPLETIONS, {**chat_body("hello"), **more})
            assert (found.status, client.provider.requests) == (status, [])

    async def test_a_body_of_the_responses_api_gets_a_completion(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            assert (await client.ask("POST", COMPLETIONS, {"model": "ADMIN", "input": "hello"})).text == "echo: hello"
            for wrong in ({"a": 1}, 3, None, [], ["hello"], [{"type": "reasoning"}], [{"type": ["message"]}]):
                refused = await client.ask("POST", COMPLETIONS, {"model": "ADMIN", "input": wrong})
                assert (refused.status, refused.code) == (400, "invalid_request"), wrong

    async def test_a_reply_is_continued_and_stays_one_reply_to_the_client(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            chat = client.with_headers(**CHAT)
            await chat.chat("one", stream=True)
            more = await chat.chat("one", "echo: one", stream=True)
            assert more.text == f"echo: {CONTINUE}"
            shown = f"echo: one{more.text}"
            await chat.chat("one", shown, "two")
            found = await chat.chat("one", shown, "two", "echo: two", "three")
            assert found.headers["x-kitchener-session"] == more.headers["x-kitchener-session"]
        async with serving(tmp_path / "root") as client:
            later = await client.with_headers(**CHAT).chat("one", shown, "two", "echo: two", "three", "echo: three", "four")
            assert later.headers["x-kitchener-session"] == more.headers["x-kitchener-session"]

    async def test_a_reply_that_a_client_stopped_reading_stays_as_it_shows_it(self, tmp_path: Path) -> None:
        said = ["one", "echo: one", "two", "ec", "three", "echo: three"]
        async with serving(tmp_path / "root") as client:
            chat = client.with_headers(**CHAT)
            first = await chat.chat("one")
            await chat.chat("one", "echo: one", "two", stream=True)
            found = [await chat.chat(*said[: 2 * number], "next" if number > 2 else "three") for number in (2, 3)]
        async with serving(tmp_path / "root") as client:
            chat = client.with_headers(**CHAT)
            found.append(await chat.chat(*said, "next", "echo: next", "four"))
            assert {each.headers["x-kitchener-session"] for each in found} == {first.headers["x-kitchener-session"]}
            for wrong in ("co", "ech o"):
                other = await chat.chat("one", "echo: one", "two", wrong, "three", "echo: three", "next")
                assert other.headers["x-kitchener-session"] != first.headers["x-kitchener-session"]

    async def test_the_empty_place_of_the_reply_does_not_count(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            assert (await client.chat("one", "")).text == "echo: one"


class TestAConversation:
    async def test_the_same_history_goes_on_with_the_session(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            chat = client.with_headers(**CHAT)
            await chat.chat("one")
            await chat.chat("one", "echo: one", "two", stream=True)
            third = await chat.chat("one", " echo: one\n", "two", "echo: two", "three")
            assert await said_in(third, client) == [(each, f"echo: {each}") for each in ("one", "two", "three")]

    async def test_it_goes_on_after_a_restart(self, tmp_path: Path) -> None:
        sessions = []
        for messages in (("one",), ("one", "echo: one", "two")):
            async with serving(tmp_path / "root") as client:
                found = await client.with_headers(**CHAT).chat(*messages)
                sessions.append(found.headers["x-kitchener-session"])
        assert sessions[0] == sessions[1]

    async def test_a_client_may_leave_out_the_beginning(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            chat = client.with_headers(**CHAT)
            await chat.chat("one")
            await chat.chat("one", "echo: one", "two")
            found = await chat.chat("two", "echo: two", "three")
            assert len(await said_in(found, client)) == 3

    async def test_it_may_leave_out_a_message_and_keep_the_reply(self, tmp_path: Path) -> None:
        """As LibreChat does after it has summed up the beginning."""
        async with serving(tmp_path / "root") as client:
            chat = client.with_headers(**CHAT)
            await chat.chat("one")
            second = await chat.chat("one", "echo: one", "two")
            for messages in (("three",), ("three", "echo: three", "four")):
                said: list[dict[str, str]] = [{"role": "system", "content": "a summary"}]
                said.append({"role": "assistant", "content": "echo: two"})
                said += chat_body(*messages)["messages"]
                found = await chat.ask("POST", COMPLETIONS, {"model": "ADMIN", "messages": said})
                assert found.headers["x-kitchener-session"] == second.headers["x-kitchener-session"]
            assert [message for message, _ in await said_in(found, client)] == ["one", "two", "three", "four"]

    @pytest.mark.parametrize("reply", ["echo:", "echo: two and more", "echo: one"])
    async def test_a_reply_without_its_message_must_be_the_whole_newest_one(self, tmp_path: Path, reply: str) -> None:
        async with serving(tmp_path / "root") as client:
            chat = client.with_headers(**CHAT)
            await chat.chat("one")
            second = await chat.chat("one", "echo: one", "two")
            said = [{"role": "assistant", "content": reply}, {"role": "user", "content": "three"}]
            found = await chat.ask("POST", COMPLETIONS, {"model": "ADMIN", "messages": said})
            assert found.headers["x-kitchener-session"] != second.headers["x-kitchener-session"]

    async def test_an_edited_message_begins_a_branch_that_knows_what_came_before(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            chat = client.with_headers(**CHAT)
            await chat.chat("one")
            second = await chat.chat("one", "echo: one", "two")
            edited = await chat.chat("one", "echo: one", "zwei")
            assert await said_in(edited, client) == [("one", "echo: one"), ("zwei", "echo: zwei")]
            assert len(await said_in(second, client)) == 2
            request = [each for each in client.provider.requests if each.wo_type == "synthesize"][-1]
            assert "echo: one" in repr(request.messages)
            assert "two" not in repr(request.messages)
            # Each branch goes on by its own history.
            older = await chat.chat("one", "echo: one", "two", "echo: two", "three")
            newer = await chat.chat("one", "echo: one", "zwei", "echo: zwei", "drei")
            assert older.headers["x-kitchener-session"] == second.headers["x-kitchener-session"]
            assert newer.headers["x-kitchener-session"] == edited.headers["x-kitchener-session"]

    @pytest.mark.parametrize("context_mode", ["off", "enforce"])
    async def test_every_branch_replays_as_it_was(self, tmp_path: Path, context_mode: str) -> None:
        async with serving(tmp_path / "root", context_mode=context_mode, ho3_enabled=True) as client:
            chat, found = client.with_headers(**CHAT), list[Asked]()
            for messages in (("one",), ("one", "echo: one", "two"), ("one", "echo: one", "zwei"), ("uno", "echo: uno", "due")):
                found.append(await chat.chat(*messages, stream=len(messages) > 1))
            config = client.runtime.config
        for session_id in {each.headers["x-kitchener-session"] for each in found}:
            report = await replay_session(session_id, config=config)
            assert report.is_identical, str(report)

    async def test_a_regenerated_reply_begins_a_branch(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            chat = client.with_headers(**CHAT)
            first = await chat.chat("one")
            again = await chat.chat("one")
            third = await chat.chat("one")
            assert len({each.headers["x-kitchener-session"] for each in (first, again, third)}) == 3
            assert await said_in(again, client) == [("one", "echo: one")]

    async def test_only_the_newest_branches_are_searched(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            chat = client.with_headers(**CHAT)
            first = await chat.chat("one")
            for number in range(15):
                await chat.chat(f"uno {number}")
            found = await chat.chat("one", "echo: one", "two")
            assert found.headers["x-kitchener-session"] == first.headers["x-kitchener-session"]
            await chat.chat("uno")
            found = await chat.chat("one", "echo: one", "two", "echo: two", "three")
            assert found.headers["x-kitchener-session"] != first.headers["x-kitchener-session"]
            assert await said_in(found, client) == [("one", "echo: one"), ("two", "echo: two"), ("three", "echo: three")]

    async def test_two_subjects_with_the_same_chat_id_share_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DESK_KEY", "key-of-desk-0123456789")
        serve = {"clients": {"desk": {"key": "env:DESK_KEY", "rights": ("chat", "act_for")}}}
        async with serving(tmp_path / "root", serve=serve) as client:
            desk = client.with_headers(authorization="Bearer key-of-desk-0123456789", **CHAT)
            adas = await desk.with_headers(x_kitchener_subject="ada").chat("one")
            bobs = await desk.with_headers(x_kitchener_subject="bob").chat("one", "echo: one", "two")
            assert adas.headers["x-kitchener-session"] != bobs.headers["x-kitchener-session"]
            assert (await session_of(bobs, client)).subject_id == "bob"

    async def test_without_a_name_each_request_is_a_session_that_knows_what_it_brings(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            first = await client.chat("one")
            second = await client.chat("one", "echo: one", "two", user="ada", prompt_cache_key="k")
            assert first.headers["x-kitchener-session"] != second.headers["x-kitchener-session"]
            assert await said_in(second, client) == [("one", "echo: one"), ("two", "echo: two")]

    async def test_a_session_is_named_by_its_id_or_by_the_cache_key_where_the_settings_say_so(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", serve={"cache_key_names_session": True}) as client:
            first = await client.chat("one", prompt_cache_key="k")
            session_id = first.headers["x-kitchener-session"]
            second = await client.chat("one", "echo: one", "two", prompt_cache_key="k")
            third = await client.ask("POST", COMPLETIONS, chat_body("three"), x_kitchener_session=session_id)
            assert second.headers["x-kitchener-session"] == session_id
            assert len(await said_in(third, client)) == 3

    @pytest.mark.parametrize("name", ["../../etc/passwd", "SES-zzzz", "a\tb", "x" * 300])
    async def test_a_name_is_only_a_name(self, tmp_path: Path, name: str) -> None:
        async with serving(tmp_path / "root") as client:
            found = await client.ask("POST", COMPLETIONS, chat_body("one"), x_chat_id=name)
            assert found.status == (400 if len(name) > 256 or "\t" in name else 200)

    async def test_two_first_messages_at_once_are_one_conversation_with_a_branch(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            found: list[Asked] = []

            async def ask() -> None:
                found.append(await client.with_headers(**CHAT).chat("one"))

            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(ask)
            # Each is complete, and no session has two of them.
            assert [each.status for each in found] == [200] * 3
            assert len({each.headers["x-kitchener-session"] for each in found}) == 3

    async def test_a_message_sent_again_with_its_key_gets_the_same_reply(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            first = await client.chat("one")
            headers = {"x_kitchener_session": first.headers["x-kitchener-session"], "idempotency_key": "k1"}
            second = await client.ask("POST", COMPLETIONS, chat_body("two"), **headers)
            again = await client.ask("POST", COMPLETIONS, chat_body("two", stream=True), **headers)
            other = await client.ask("POST", COMPLETIONS, chat_body("three"), **headers)
            assert (again.status, again.text) == (200, second.text)
            assert (other.status, other.code) == (409, "idempotency_conflict")
            assert len(await said_in(second, client)) == 2

    @pytest.mark.parametrize("chat", [CHAT, {}])
    async def test_a_key_finds_its_turn_also_by_a_name_without_one_and_after_a_restart(
        self, tmp_path: Path, chat: dict[str, str]
    ) -> None:
        found: list[Asked] = []
        hold = Hold("one", wo_type="synthesize")
        headers, body = {**chat, "idempotency_key": "k1"}, chat_body("zero", "echo: zero", "one")
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client:

            async def ask() -> None:
                found.append(await client.ask("POST", COMPLETIONS, body, **headers))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await hold.arrived["one"].wait()
                tasks.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                hold.released["one"].set()
        async with serving(tmp_path / "root") as client:
            found.append(await client.ask("POST", COMPLETIONS, body, **headers))
            assert client.provider.requests == []
            (session,) = await client.runtime.sessions()
        assert {each.json["kitchener"]["turn_id"] for each in found} == {found[0].json["kitchener"]["turn_id"]}
        assert session.session_id == found[0].headers["x-kitchener-session"]


class TestAClientThatGoesAway:
    @pytest.mark.parametrize("shows_empty", [False, True])
    async def test_its_conversation_goes_on_though_it_saw_nothing_of_a_reply(self, tmp_path: Path, shows_empty: bool) -> None:
        hold = Hold("wait", wo_type="synthesize")
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client:
            chat = client.with_headers(**CHAT)
            first = await chat.chat("one")
            await self._leave(client, hold, True, "one", "echo: one")
            hold.released["wait"].set()
            said = chat_body("one", "echo: one", "wait", "", "two", "echo: two", "three")["messages"]
            if not shows_empty:
                del said[3]
            for messages in (said[:-2], said):
                found = await chat.ask("POST", COMPLETIONS, {"model": "ADMIN", "messages": messages})
                assert found.headers["x-kitchener-session"] == first.headers["x-kitchener-session"]
            assert [message for message, _ in await said_in(found, client)] == ["one", "wait", "two", "three"]

    async def test_its_conversation_goes_on_after_a_turn_that_was_aborted(self, tmp_path: Path) -> None:
        hold = Hold("wait", wo_type="synthesize")
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold), serve={"client_gone": "cancel"}) as client:
            chat = client.with_headers(**CHAT)
            await chat.chat("one")
            await self._leave(client, hold, True, "one", "echo: one")
            said = chat_body("one", "echo: one", "wait", "", "two")["messages"]
            del said[3]
            found = await chat.ask("POST", COMPLETIONS, {"model": "ADMIN", "messages": said})
            assert [message for message, _ in await said_in(found, client)] == ["one", "two"]

    @pytest.mark.parametrize("stream", [False, True])
    async def test_its_turn_goes_on_and_is_in_the_session(self, tmp_path: Path, stream: bool) -> None:
        hold = Hold("wait", wo_type="synthesize")
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client:
            await self._leave(client, hold, stream)
            hold.released["wait"].set()
            found = await client.with_headers(**CHAT).chat("wait", "echo:", "two")
            assert await said_in(found, client) == [("wait", "echo: wait"), ("two", "echo: two")]

    @pytest.mark.parametrize("stream", [False, True])
    async def test_its_turn_is_aborted_where_the_settings_say_so(self, tmp_path: Path, stream: bool) -> None:
        hold = Hold("wait", wo_type="synthesize")
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold), serve={"client_gone": "cancel"}) as client:
            await self._leave(client, hold, stream)
            ho2m = client.runtime.ledgers().ho2m
            while not [each async for each in ho2m.read(entry_type=events.TURN_ABORTED)]:
                await anyio.lowlevel.checkpoint()
            assert (await client.with_headers(**CHAT).chat("two")).status == 200

    async def _leave(self, client: Client, hold: Hold, stream: bool, *before: str) -> None:
        asked = Asked()
        asked.taking.set()
        async with anyio.create_task_group() as tasks:
            chat = client.with_headers(**CHAT)
            tasks.start_soon(chat.run, asked, "POST", COMPLETIONS, chat_body(*before, "wait", stream=stream))
            await hold.arrived["wait"].wait()
            asked.gone.set()
            await asked.done.wait()


async def test_a_body_that_is_no_json_is_told_where_and_without_its_content(tmp_path: Path) -> None:
    """A shell removes quotes, and JavaScript cuts a text in the middle of a character."""
    async with serving(tmp_path / "root") as client:
        shell = await client.ask("POST", COMPLETIONS, b'{model: "secret"}')
        cut = await client.ask("POST", COMPLETIONS, b'{"model": "secret \\ud83d"}')
    assert (shell.status, shell.code, cut.code) == (400, "not_json", "not_json")
    told = [each.json["error"]["message"] for each in (shell, cut)]
    assert told[0].endswith("is not valid JSON: unexpected character, expected a string key: line 1 column 2 (char 1)")
    assert "no low surrogate in string" in told[1]
    assert not any("secret" in each for each in told)


@tool(requires_approval=True)
def send_mail(to: str) -> str:
    """Sends a mail."""
    return f"sent to {to}"


@tool
def book_table(context: ToolContext) -> str:
    """Books a table."""
    if context.answer is None:
        raise ConfirmationRequired("At which hour?", {"type": "string", "enum": ["18:00", "20:00"]})
    return f"a table at {context.answer.answer}"


class TestAToolThatWaits:
    def _model(self) -> ScriptedProvider:
        def answer(request: PromptRequest) -> Any:
            if request.wo_type != "synthesize":
                return echo(request)
            if any(each.role == "tool" for each in request.messages):
                return {"response_text": "Done."}
            if "mails" in str(request.variables["user_message"]):
                return use_tool("send_mail", to="ada"), use_tool("send_mail", to="bob")
            if "mail" in str(request.variables["user_message"]):
                return use_tool("send_mail", to="ada")
            if "table" in str(request.variables["user_message"]):
                return use_tool("book_table")
            return echo(request)

        return ScriptedProvider(answer)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_the_reply_names_it_and_the_user_answers_in_words(self, tmp_path: Path, stream: bool) -> None:
        async with serving(tmp_path / "root", self._model(), tools=[send_mail]) as client:
            chat = client.with_headers(**CHAT)
            first = await chat.chat("send a mail", stream=stream)
            (waiting,) = (await session_of(first, client)).state.approvals.open
            word = f"approve {waiting.approval_id}"
            assert f"`{word}`" in first.text, "the user knows only the chat"
            done = await chat.chat("send a mail", first.text, word, stream=stream)
            assert done.text == "Done."
            # Neither side's words about the approval make the history another one.
            after = await chat.chat("send a mail", first.text, word, done.text, "thanks")
            assert after.headers["x-kitchener-session"] == first.headers["x-kitchener-session"]
            again = await chat.chat("send a mail", first.text, f"deny {waiting.approval_id} too late")
            assert (again.status, again.code) == (409, "approval_closed")
            said = [each.response async for each in (await session_of(first, client)).read_history()]
            assert not any("To answer here" in each for each in said), "it is this door's own advice, and not on record"

    async def test_the_reply_says_how_to_answer_all_at_once_and_not_what_words_cannot_answer(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", self._model(), tools=[send_mail, book_table]) as client:
            first = await client.chat("send the mails")
            one, two = (await session_of(first, client)).state.approvals.open
            word = f"approve {one.approval_id.removesuffix('.1')}"
            assert f"`{word}`" in first.text
            assert two.approval_id in first.text
            assert (await client.chat("send the mails", first.text, word)).text == "Done."
            assert "To answer here" not in (await client.chat("book a table")).text

    async def test_nobody_answers_for_another_subject_or_without_the_right(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DESK_KEY", "key-of-desk-0123456789")
        monkeypatch.setenv("BOT_KEY", "key-of-bots-0123456789")
        serve = {
            "clients": {
                "desk": {"key": "env:DESK_KEY", "rights": ("chat", "approve", "act_for")},
                "bot": {"key": "env:BOT_KEY", "rights": ("chat", "act_for")},
            }
        }
        async with serving(tmp_path / "root", self._model(), serve=serve, tools=[send_mail]) as client:
            desk = client.with_headers(authorization="Bearer key-of-desk-0123456789")
            bot = client.with_headers(authorization="Bearer key-of-bots-0123456789")
            first = await desk.with_headers(x_kitchener_subject="ada").chat("send a mail")
            (waiting,) = (await session_of(first, client)).state.approvals.open
            word = f"approve {waiting.approval_id}"
            assert word in first.text
            assert word not in (await bot.with_headers(x_kitchener_subject="ada").chat("send a mail")).text
            other = await desk.with_headers(x_kitchener_subject="bob").chat(word)
            nowhere = await desk.with_headers(x_kitchener_subject="bob").chat("approve WO-SES-00000000-001.1")
            assert (other.status, other.code) == (nowhere.status, nowhere.code) == (404, "approval_not_found")
            assert (await bot.with_headers(x_kitchener_subject="ada").chat(word)).code == "right_missing"
            assert (await session_of(first, client)).state.approvals.open


async def test_requests_that_arrive_in_another_order_lose_nothing_and_mix_nothing(tmp_path: Path) -> None:
    """A proxy or a client that retries may send the second message of a conversation before the first one."""
    async with serving(tmp_path / "root") as client:
        chat = client.with_headers(x_chat_id="c")
        later = await chat.chat("one", "echo: one", "two")
        first = await chat.chat("one")
        assert (later.text, first.text) == ("echo: two", "echo: one")
        told = later.headers["x-kitchener-session"], first.headers["x-kitchener-session"]
        assert told[0] != told[1], "the record of the first has no second message yet"
        for said in (("one", "echo: one", "two", "echo: two", "three"), ("one", "echo: one", "uno")):
            assert (await chat.chat(*said)).text == f"echo: {said[-1]}"
        histories = {each: (await client.runtime.supervisor().session(each)).history for each in told}
        assert [said for said, _ in histories[told[0]]] == ["one", "two", "three"]
        assert [said for said, _ in histories[told[1]]] == ["one", "uno"]
