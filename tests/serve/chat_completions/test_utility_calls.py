"""Calls by which chat clients make titles, tags, suggestions and summaries: no turn, no session (docs/server.md)."""

from pathlib import Path

import orjson
import pytest

from kitchener.records.prompt import PromptRequest
from kitchener.testing import ScriptedProvider
from tests.serve.shared.requests import COMPLETIONS, chat_body, serving

CHAT = {"x_openwebui_chat_id": "chat 1"}
TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
SUMMARIES = (
    "Hold on, before you continue I need you to write me a checkpoint of everything so far. Your context window is filling up"
    " and this checkpoint replaces the messages above, so capture everything you need to pick right back up.\n\n## Goal",
    "Hold on again, update your checkpoint. Merge the new messages into your existing checkpoint and give me a single"
    " consolidated replacement.\n\nRules:",
)
"""The beginnings of LibreChat's prompts for a summary, and for the next one."""


class TestAUtilityCall:
    @pytest.mark.parametrize("by_header", [True, False])
    async def test_it_is_a_plain_model_call_and_no_turn(self, tmp_path: Path, by_header: bool) -> None:
        def answer(request: PromptRequest) -> str:
            return "A title"

        async with serving(tmp_path / "root", ScriptedProvider(answer), instructions="You are Bo.") as client:
            model, headers = ("ADMIN", {"x_openwebui_task": "title_generation"}) if by_header else ("ADMIN-utility", {})
            body = chat_body("Make a title for: hello", model=model)
            found = await client.ask("POST", COMPLETIONS, body, **headers, **CHAT)
            assert (found.status, found.text, found.json["usage"]["total_tokens"] > 0) == (200, "A title", True)
            streamed = await client.ask("POST", COMPLETIONS, {**body, "stream": True}, **headers, **CHAT)
            assert (streamed.text, streamed.events[-1]) == ("A title", "[DONE]")
            assert "You are Bo" not in repr(client.provider.requests)
            assert await client.runtime.sessions() == []

    @pytest.mark.parametrize(
        "prompt",
        [
            "### Task:\nGenerate a title.\n### Chat History:\n<chat_history>\nUSER: hello\nASSISTANT: hi\n</chat_history>",
            "Provide a concise, 5-word-or-less title for the conversation, using title case conventions.\n\nhello",
            "Analyze this conversation and provide:\n1. The detected language of the conversation\n"
            "2. A concise title in the detected language (5 words or less, no punctuation or quotation)\n\nhello",
            *SUMMARIES,
        ],
    )
    async def test_what_clients_ask_without_a_header_is_known_by_its_prompt(self, tmp_path: Path, prompt: str) -> None:
        async with serving(tmp_path / "root") as client:
            responses = {"model": "ADMIN", "input": prompt}
            for path, body in ((COMPLETIONS, chat_body(prompt)), ("/v1/responses", responses)):
                assert (await client.ask("POST", path, body, **CHAT)).status == 200
            assert await client.runtime.sessions() == []

    @pytest.mark.parametrize("api", ["completions", "responses"])
    async def test_it_is_an_object_where_the_client_asks_for_one(self, tmp_path: Path, api: str) -> None:
        def answer(request: PromptRequest) -> str:
            return '{"title": "Two days in Graz"}' if request.output_schema == TITLE else "text"

        async with serving(tmp_path / "root", ScriptedProvider(answer)) as client:
            if api == "completions":
                wanted = {"type": "json_schema", "json_schema": {"name": "extract", "schema": TITLE}}
                body = chat_body("A title for: hello", model="ADMIN-utility", response_format=wanted)
                text = (await client.ask("POST", COMPLETIONS, body)).text
            else:
                form = {"format": {"type": "json_schema", "name": "extract", "schema": TITLE}}
                asked = {"model": "ADMIN-utility", "input": "A title for: hello", "text": form}
                text = (await client.ask("POST", "/v1/responses", asked)).json["output"][0]["content"][0]["text"]
            assert orjson.loads(text) == {"title": "Two days in Graz"}
            assert await client.runtime.sessions() == []

    async def test_a_schema_that_cannot_be_one_is_refused_and_no_model_is_asked(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            for schema in ({"type": "string"}, {"type": "object", "properties": {"title": {"type": "no type"}}}):
                wanted = {"type": "json_schema", "json_schema": {"name": "extract", "schema": schema}}
                body = chat_body("A title for: hello", model="ADMIN-utility", response_format=wanted)
                found = await client.ask("POST", COMPLETIONS, body)
                assert (found.status, found.json["error"]["code"]) == (400, "invalid_request")
            assert client.provider.requests == []

    @pytest.mark.parametrize("prompt", SUMMARIES)
    async def test_a_summary_of_a_conversation_neither_joins_it_nor_branches_off(self, tmp_path: Path, prompt: str) -> None:
        async with serving(tmp_path / "root") as client:
            chat = client.with_headers(**CHAT)
            await chat.chat("one")
            summary = await chat.chat("one", "echo: one", prompt, stream=True)
            assert (summary.status, "x-kitchener-session" in summary.headers) == (200, False)
            await chat.chat("one", "echo: one", "two")
            (session,) = await client.runtime.sessions()
            assert session.turns == 2
            assert [each.role for each in client.provider.requests[1].messages] == ["user", "assistant", "user"]
            assert "You" not in client.provider.requests[1].messages[0].content

    async def test_where_they_are_refused_a_summary_is(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", serve={"utility_calls": "refuse"}) as client:
            refused = await client.chat("one", "echo: one", SUMMARIES[0])
            assert (refused.status, refused.code) == (400, "unsupported")

    async def test_where_they_are_refused_no_model_is_asked_by_any_of_their_ways(self, tmp_path: Path) -> None:
        prompt = "### Task:\nGenerate a title.\n<chat_history>\nUSER: hello\n</chat_history>"
        async with serving(tmp_path / "root", serve={"utility_calls": "refuse"}) as client:
            listed = (await client.ask("GET", "/v1/models")).json["data"]
            assert [each["id"] for each in listed] == ["ADMIN"]
            assert (await client.ask("GET", "/v1/models/ADMIN-utility")).status == 404
            for body, headers, told in (
                (chat_body("a title", model="ADMIN-utility"), {}, (404, "model_not_found")),
                ({"model": "ADMIN-utility", "input": "a title"}, {}, (404, "model_not_found")),
                (chat_body("a title"), {"x_openwebui_task": "title_generation"}, (400, "unsupported")),
                (chat_body(prompt), {}, (400, "unsupported")),
                ({"model": "ADMIN", "input": prompt}, {}, (400, "unsupported")),
            ):
                path = "/v1/responses" if "input" in body else COMPLETIONS
                found = await client.ask("POST", path, body, **headers)
                assert (found.status, found.json["error"]["code"]) == told
            assert (client.provider.requests, await client.runtime.sessions()) == ([], [])
            assert (await client.chat("hello")).text == "echo: hello"

    async def test_without_prompts_the_header_and_the_model_still_tell(self, tmp_path: Path) -> None:
        prompt = "### Task:\nGenerate a title.\n<chat_history>\nUSER: hello\n</chat_history>"
        async with serving(tmp_path / "root", serve={"utility_prompts": ()}) as client:
            assert (await client.chat("a title", model="ADMIN-utility")).status == 200
            assert (await client.ask("POST", COMPLETIONS, chat_body("a title"), x_openwebui_task="tags")).status == 200
            assert await client.runtime.sessions() == []
            assert (await client.ask("POST", COMPLETIONS, chat_body(prompt))).status == 200
            assert len(await client.runtime.sessions()) == 1

    @pytest.mark.parametrize(
        "messages",
        [
            ("### Task:\nSummarise this text for me, please",),
            ("hello", "echo: hello", "### Task:\nhm\n<chat_history>\nUSER: hello\n</chat_history>"),
        ],
    )
    async def test_what_a_person_says_is_a_message(self, tmp_path: Path, messages: tuple[str, ...]) -> None:
        async with serving(tmp_path / "root") as client:
            await client.with_headers(**CHAT).chat(*messages)
            (session,) = await client.runtime.sessions()
            assert session.turns == len(messages)
