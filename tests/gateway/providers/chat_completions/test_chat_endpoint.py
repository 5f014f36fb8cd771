"""Endpoints that speak OpenAI's format, in all the ways in which they differ, over our own HTTP client (docs/gateway.md)."""

from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from kitchener import TextDelta, TextRetracted, TurnCompleted, open_runtime
from kitchener.config import ProviderConfig, RouterConfig, RuntimeConfig
from kitchener.errors import ConfigError, ProviderError
from kitchener.gateway.providers.chat_completions.chat_endpoint import (
    REMEMBERED_VALUES,
    ChatEndpoint,
    RefusedFields,
    left_out_by,
    marked_models_of,
)
from kitchener.gateway.providers.chat_completions.request_body import request_body
from kitchener.model_usage import Usage
from kitchener.records.prompt import Message, TextPiece, ToolSpec, ToolUse
from tests.cli.shared.commands import finish, start_program
from tests.gateway.shared.chat_endpoints import chunks, endpoint, gather, message, opened, stream_of, streamed
from tests.gateway.shared.fake_server import Answer, completion, error, events, fake_server
from tests.gateway.shared.gateway_kit import ask
from tests.gateway.shared.secured_server import secured
from tests.shared.logs import captured_logs

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
TOOL = ToolSpec("look", "Looks", {"type": "object", "properties": {}})


def test_no_vendors_library_is_imported() -> None:
    """What speaks to an endpoint is part of the plain installation, on either event loop."""
    program = (
        "import anyio, sys\nfrom kitchener.config import ProviderConfig, RouterConfig\n"
        "from kitchener.gateway import build_providers\n"
        "async def main():\n"
        "    it = ProviderConfig(base_url='http://127.0.0.1:1/v1', model='m')\n"
        "    async with build_providers(RouterConfig(providers={'it': it})):\n"
        "        print(sorted({'pydantic_ai', 'openai', 'httpx', 'httpx2'} & set(sys.modules)))\n"
        "for backend in ('asyncio', 'trio'):\n"
        "    anyio.run(main, backend=backend)"
    )
    assert finish(start_program(program)).out == "[]\n" * 2


# --- fields that an endpoint refuses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "gone", "instead"),
    [
        ({"message": "This response_format type is unavailable now"}, "response_format", None),
        ({"message": "'temperature' does not support 0 with this model"}, "temperature", None),
        ({"message": "no", "param": "max_tokens"}, "max_tokens", "max_completion_tokens"),
        (
            {"message": "'max_tokens' is not supported with gpt-5-2025-08-07. Use 'max_completion_tokens' instead."},
            "max_tokens",
            "max_completion_tokens",
        ),
        ({"message": "Extra inputs are not permitted: prompt_cache_key"}, "prompt_cache_key", None),
        ({"message": "tool_choice: only 'auto' is supported by this server"}, "tool_choice", None),
    ],
)
async def test_a_request_is_sent_again_without_an_optional_field_that_the_endpoint_refuses(
    refusal: dict[str, str], gone: str, instead: str | None
) -> None:
    """Once for a model; the next request leaves it out from the start, and another model is asked with it."""
    script = (Answer(orjson.dumps({"error": refusal}), 400), *[completion('{"n": 1}')] * 3)
    async with endpoint(*script, prompt_cache="on") as (server, provider):
        for model in ("m", "m", "other"):
            request = ask(output_schema=SCHEMA, model_id=model, tools=(TOOL,), tool_choice="required")
            response = await provider.complete(request)
            assert response.structured == {"n": 1}
    assert [gone in hit.body for hit in server.hits] == [True, False, False, True]
    if instead is not None:
        assert [instead in hit.body for hit in server.hits] == [False, True, True, False]


@pytest.mark.parametrize("field", ["response_format", "tool_choice"])
async def test_one_callers_refused_value_of_a_field_leaves_the_field_to_all_others(field: str) -> None:
    """A schema or a choice that the endpoint refuses is not sent again; another one, of another user, is."""
    refusal = Answer(orjson.dumps({"error": {"message": f"Invalid value for {field}"}}), 400)
    bad = ask(model_id="m", output_schema={**SCHEMA, "title": "bad"}, tools=(TOOL,), tool_choice="required")
    good = ask(model_id="m", output_schema=SCHEMA, tools=(TOOL,), tool_choice="auto")
    async with endpoint(refusal, *[completion('{"n": 1}')] * 4) as (server, provider):
        for asked in (bad, good, bad, good):
            assert (await provider.complete(asked)).structured == {"n": 1}
    assert [field in hit.body for hit in server.hits] == [True, False, True, False, True]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_model_that_calls_tools_although_it_must_not_is_shown_none_from_then_on(streams: bool) -> None:
    """Where it may not call any; elsewhere it is shown them as before."""
    calls = [{"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    script = [chunks({"tool_calls": calls}), *[events(["Hi."])] * 2] if streams else [message(tool_calls=calls)]
    async with endpoint(*script, *[completion("Hi.")] * 2) as (server, provider):
        for choice in ("none", "none", None):
            request = ask(tools=(TOOL,), tool_choice=choice)
            if streams:
                await streamed(provider, tools=(TOOL,), tool_choice=choice)
            else:
                await provider.complete(request)
    assert [hit.body.get("tool_choice") for hit in server.hits] == ["none", None, "auto"]
    assert ["tools" in hit.body for hit in server.hits] == [True, False, True]


@pytest.mark.parametrize(
    ("base_url", "shows"),
    [
        ("https://api.mistral.ai/v1", False),
        ("https://openrouter.ai/api/v1", True),
        ("https://mistral.ai.example/v1", True),
        ("http://notmistral.ai/v1", True),
    ],
)
async def test_mistral_is_shown_no_tools_where_none_may_be_called(base_url: str, shows: bool) -> None:
    """It answers with broken text otherwise."""
    without = left_out_by(ProviderConfig(base_url=base_url, model="m"))
    body = orjson.loads(request_body(ask(tools=(TOOL,), tool_choice="none"), "it", "m", streams=False, without=without))
    assert ("tools" in body, "tool_choice" in body) == (shows, shows)
    body = orjson.loads(request_body(ask(tools=(TOOL,)), "it", "m", streams=False, without=without))
    assert "tools" in body


async def test_a_model_that_goes_on_calling_tools_is_logged_once() -> None:
    """A model sees calls in its history, and some call again although no tool is described."""
    calls = [{"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    with captured_logs() as logs:
        async with endpoint(*[message(tool_calls=calls)] * 3) as (_, provider):
            for _each in range(3):
                await provider.complete(ask(tools=(TOOL,), tool_choice="none"))
    assert len([each for each in logs if each["event"] == "model refuses fields"]) == 1


async def test_a_vendor_that_refuses_calls_of_undescribed_tools_is_shown_the_tools_of_a_model_that_called_one() -> None:
    """One reply in which the model calls a tool although it must not leaves the last call of every other reply usable."""
    calls = [{"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    refusal = error(400, "Requests which include `tool_use` or `tool_result` blocks must define tools")
    asked = Message("assistant", "", tool_uses=(ToolUse("tu-1", "look", {}),))
    said = (Message("user", "Look!"), asked, Message("tool", "nothing", tool_use_id="tu-1", tool_id="look"))
    script = (message(tool_calls=calls), refusal, *[completion("Hi.")] * 3)
    async with endpoint(*script) as (server, provider):
        await provider.complete(ask(tools=(TOOL,), tool_choice="none"))
        for messages in (said, said, said[:1]):
            await provider.complete(ask(messages=messages, tools=(TOOL,), tool_choice="none"))
    assert ["tools" in hit.body for hit in server.hits] == [True, False, True, True, False]
    assert [hit.body.get("tool_choice") for hit in server.hits] == ["none", None, "none", "none", None]


async def test_a_vendor_may_refuse_both_the_choice_of_no_tool_and_calls_of_undescribed_tools() -> None:
    said = (Message("user", "Look!"), Message("assistant", "", tool_uses=(ToolUse("tu-1", "look", {}),)))
    refusals = error(400, "tool_choice is not supported"), error(400, "Requests with toolUse must define toolConfig")
    async with endpoint(*refusals, *[completion("Hi.")] * 2) as (server, provider):
        for _ in range(2):
            await provider.complete(ask(messages=said, tools=(TOOL,), tool_choice="none"))
    asked = [("tools" in hit.body, hit.body.get("tool_choice")) for hit in server.hits]
    assert asked == [(True, "none"), (False, None), (True, None), (True, None)]


async def test_an_error_about_tools_of_which_none_was_left_out_stands() -> None:
    said = (Message("user", "Look!"), Message("assistant", "", tool_uses=(ToolUse("tu-1", "look", {}),)))
    async with endpoint(error(400, "tool_use ids must have results"), error(400, "tools: missing")) as (server, provider):
        for tools in ((TOOL,), ()):
            with pytest.raises(ProviderError, match="bad_request"):
                await provider.complete(ask(messages=said, tools=tools, tool_choice="none"))
    assert len(server.hits) == 2


async def test_a_server_that_refuses_the_choice_of_no_tool_is_shown_no_tools() -> None:
    async with endpoint(error(400, "tool_choice: 'none' is not supported"), *[completion("Hi.")] * 2) as (server, provider):
        for _ in range(2):
            assert (await provider.complete(ask(tools=(TOOL,), tool_choice="none"))).text == "Hi."
    assert ["tools" in hit.body for hit in server.hits] == [True, False, False]


async def test_refused_values_are_remembered_within_a_bound() -> None:
    refused = RefusedFields("p", frozenset())
    asked = [ask(output_schema={**SCHEMA, "title": f"t{number}"}) for number in range(REMEMBERED_VALUES + 1)]
    for each in asked:
        refused.add("m", each, frozenset(("response_format",)))
    assert [bool(refused.of("m", each)) for each in asked] == [False, *[True] * REMEMBERED_VALUES]
    assert not refused.of("other", asked[-1])


@pytest.mark.parametrize(
    ("base_url", "setting", "is_sent"),
    [
        ("https://api.openai.com/v1", "auto", True),
        ("https://me.openai.azure.com/openai/v1", "auto", True),
        ("https://api.openai.com/v1", "off", False),
        ("https://elsewhere.example/v1", "auto", False),
        ("https://elsewhere.example/v1", "on", True),
    ],
)
async def test_the_session_is_the_key_of_the_prompt_cache_where_it_is_known_to_be_taken(
    base_url: str, setting: str, is_sent: bool
) -> None:
    """Other servers ignore the field at best, so they get it only if asked to."""
    async with opened(base_url, prompt_cache=setting) as provider:
        assert isinstance(provider, ChatEndpoint)
        assert ("prompt_cache_key" not in provider.left_out) is is_sent
    async with endpoint(completion("ok"), events(["ok"]), prompt_cache="on") as (server, local):
        await local.complete(ask(session_id="SES-0000000a"))
        await streamed(local, session_id="SES-0000000b")
    assert [hit.body["prompt_cache_key"] for hit in server.hits] == ["SES-0000000a", "SES-0000000b"]


@pytest.mark.parametrize(
    ("base_url", "setting", "marked"),
    [
        ("https://openrouter.ai/api/v1", "auto", "anthropic/"),
        ("https://openrouter.ai/api/v1", "on", "anthropic/"),
        ("https://eu.openrouter.ai/api/v1", "auto", "anthropic/"),
        ("https://openrouter.ai/api/v1", "off", None),
        ("https://notopenrouter.ai/api/v1", "auto", None),
        ("https://openrouter.ai.example/v1", "auto", None),
        ("https://gateway.example/v1", "auto", None),
        ("https://gateway.example/v1", "marks", ""),
        ("https://api.openai.com/v1", "auto", None),
    ],
)
def test_caches_that_need_marks_are_known_or_named_by_the_settings(base_url: str, setting: Any, marked: str | None) -> None:
    assert marked_models_of(ProviderConfig(base_url=base_url, prompt_cache=setting)) == marked


@pytest.mark.parametrize("setting", ["auto", "marks"])
async def test_marks_end_the_stable_parts_of_a_prompt(setting: str) -> None:
    """After the system message, after the history, and after the newest result of a tool; the texts stay as they were."""
    begun = (Message("system", "Be brief."), Message("user", "Is it open?"))
    later = (*begun, Message("assistant", "Yes, it is."), Message("user", "[recalled]\n\nUntil when?"))
    use = ToolUse("tu-1", "look", {})
    with_tools = (*later, Message("assistant", "", (use,)), Message("tool", "six", tool_use_id="tu-1", tool_id="look"))
    asked = [begun, later, with_tools]
    async with endpoint(*[completion("Yes.")] * 3, prompt_cache=setting) as (server, provider):
        for messages in asked:
            await provider.complete(ask(messages=messages))
    expected = [["Be brief."], ["Be brief.", "Yes, it is."], ["Be brief.", "Yes, it is.", "six"]]
    assert [_marked(hit.body) for hit in server.hits] == (expected if setting == "marks" else [[], [], []])
    assert [_texts(hit.body) for hit in server.hits] == [[each.content for each in messages] for messages in asked]


async def test_no_mark_ends_an_empty_text() -> None:
    """Anthropic refuses it. A prompt pack without instructions has an empty system message."""
    said = (Message("system", ""), Message("user", "Hi."), Message("assistant", "Hello."), Message("user", "And?"))
    async with endpoint(completion("Yes."), prompt_cache="marks") as (server, provider):
        await provider.complete(ask(messages=said))
    assert _marked(server.hits[0].body) == ["Hello."]


def _marked(body: dict[str, Any]) -> list[str]:
    parts = [part for each in body["messages"] if isinstance(each["content"], list) for part in each["content"]]
    return [part["text"] for part in parts if part.get("cache_control") == {"type": "ephemeral"}]


def _texts(body: dict[str, Any]) -> list[str]:
    return [
        each["content"][0]["text"] if isinstance(each["content"], list) else each["content"] or "" for each in body["messages"]
    ]


async def test_a_refusal_that_names_a_field_by_chance_changes_nothing_for_later_requests() -> None:
    """One user's message could be repeated in an error. What is sent without the field then fails, too."""
    refusal = error(400, "cannot process: what does response_format mean?")
    async with endpoint(refusal, refusal, completion('{"n": 1}')) as (server, provider):
        with pytest.raises(ProviderError) as caught:
            await provider.complete(ask(output_schema=SCHEMA))
        await provider.complete(ask(output_schema=SCHEMA))
    assert (caught.value.reason, caught.value.status) == ("bad_request", 400)
    assert ["response_format" in hit.body for hit in server.hits] == [True, False, True]


async def test_a_stream_is_asked_for_again_in_the_same_way() -> None:
    async with endpoint(error(422, "Extra inputs are not permitted: stream_options"), events(["a"])) as (server, provider):
        assert (await streamed(provider))[0] == ["a"]
    assert ["stream_options" in hit.body for hit in server.hits] == [True, False]


async def test_a_schema_is_strict_only_where_strict_mode_takes_it() -> None:
    loose = {"type": "object", "properties": {"n": {"type": "integer"}}}
    async with endpoint() as (server, provider):
        for schema in (SCHEMA, loose, {**SCHEMA, "minProperties": 1}):
            await provider.complete(ask(output_schema=schema))
    assert [hit.body["response_format"]["json_schema"].get("strict") for hit in server.hits] == [True, None, None]


# --- how servers differ -------------------------------------------------------------------------------------------------


async def test_parallel_tool_requests_of_a_stream_are_put_together() -> None:
    def part(index: int | None, use_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
        call = {"index": index, "id": use_id, "function": {"name": name, "arguments": arguments}}
        return {"tool_calls": [{key: value for key, value in call.items() if value is not None}]}

    numbered = chunks(
        part(0, "a", "look", ""), part(1, "b", "look", '{"x"'), part(0, None, None, "{}"), part(1, None, None, ":1}")
    )
    without_numbers = chunks(part(None, "a", "look", "{"), part(None, None, None, "}"), part(None, "b", "look", '{"x":1}'))
    async with endpoint(numbered, without_numbers) as (server, provider):
        for _ in range(2):
            pieces, response = await streamed(provider, tools=(TOOL,))
            assert response.tool_uses == (ToolUse("a", "look", {}), ToolUse("b", "look", {"x": 1}))
            assert (pieces, response.finish_reason) == ([], "tool_use")
    assert server.hits[0].body["tool_choice"] == "auto"


async def test_a_tool_request_without_an_id_gets_one_and_its_arguments_may_be_an_object() -> None:
    async with endpoint(message(tool_calls=[{"function": {"name": "look", "arguments": {"x": 1}}}])) as (_, provider):
        response = await provider.complete(ask(tools=(TOOL,)))
    assert response.tool_uses == (ToolUse("call-1-1", "look", {"x": 1}),)


@pytest.mark.parametrize(
    ("thought", "expected"),
    [
        ({"content": "yes", "reasoning_content": "hm"}, "yes"),
        ({"content": "yes", "reasoning": "hm"}, "yes"),
        ({"content": "\n<think>hm</think>\n\nyes"}, "yes"),
        ({"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "yes"}]}, "yes"),
        ({"content": "a <think> in the middle"}, "a <think> in the middle"),
        ({"content": " <thin"}, " <thin"),
    ],
)
async def test_a_models_thoughts_are_no_part_of_its_text(thought: dict[str, Any], expected: str) -> None:
    content = thought["content"]
    letters = [{"content": each} for each in content] if isinstance(content, str) else [thought]
    async with endpoint(message(**thought), chunks(*letters)) as (_, provider):
        whole = await provider.complete(ask())
        pieces, response = await streamed(provider)
    assert whole.text == response.text == "".join(pieces) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hm\n</think>\n\nyes", "yes"),
        ("</think>\nyes", "yes"),
        (" hm</think>\nyes\n</think>\nno", "yes\n</think>\nno"),
        ("a </think> in the middle", None),
        ("a\n<think>\n</think>\nb", None),
        ("<think>hm</think>yes\n</think>\nno", "yes\n</think>\nno"),
        ("hm</think>", None),
    ],
)
async def test_thoughts_that_the_prompt_began_are_no_part_of_the_answer(content: str, expected: str | None) -> None:
    """As of models whose template ends the prompt with `<think>`. A stream passes them on before it can know."""
    expected = content if expected is None else expected
    async with endpoint(message(content=content), chunks(*({"content": each} for each in content))) as (_, provider):
        whole = await provider.complete(ask())
        pieces, response = await streamed(provider)
    assert whole.text == response.text == expected
    assert "".join(pieces) == content.removeprefix("<think>hm</think>")
    assert whole.usage == response.usage


async def test_a_turn_takes_thoughts_back_that_were_streamed_as_text(tmp_path: Path) -> None:
    """So all text that its listener keeps is the reply, which is the same as without a stream."""
    thought, reply = "The user says hello.\n</think>\n", "Hello, Ada."
    answer = chunks(*({"content": each} for each in (thought, "\n", *reply)))
    async with fake_server(message(content='{"speech_act": "greeting"}'), answer) as server:
        local = ProviderConfig(base_url=server.url, model="m", max_retries=0)
        router = RouterConfig(default_provider="local", providers={"local": local})
        async with open_runtime(RuntimeConfig(plane_root=str(tmp_path), router=router)) as runtime:
            updates = [each async for each in runtime.supervisor().stream_turn("hello")]
    kept = ""
    for each in updates:
        if isinstance(each, TextDelta):
            kept += each.text
        elif isinstance(each, TextRetracted):
            assert kept.startswith(thought)
            kept = ""
    assert isinstance(updates[-1], TurnCompleted)
    assert updates[-1].result.response == kept == reply


async def test_thoughts_alone_are_an_empty_answer_and_count_where_the_server_does_not() -> None:
    async with endpoint(message(content="<think>hm"), message(content="ok", reasoning="x" * 300)) as (_, provider):
        with pytest.raises(ProviderError) as caught:
            await provider.complete(ask())
        usage = (await provider.complete(ask())).usage
    assert caught.value.reason == "empty"
    assert usage.output_tokens > 100


async def test_a_refusal_is_told() -> None:
    async with endpoint(message(content=None, refusal="I cannot help with that.")) as (_, provider):
        with pytest.raises(ProviderError, match=r"I cannot help with that\.") as caught:
            await provider.complete(ask())
    assert caught.value.reason == "refused"


@pytest.mark.parametrize(
    ("code", "reason", "status"), [(429, "rate_limited", 429), (503, "server_error", 503), ("some_code", "server_error", 500)]
)
async def test_an_error_that_comes_with_status_200_is_an_error(code: Any, reason: str, status: int) -> None:
    """Gateways in front of models report so, also in the middle of a stream."""
    report = {"error": {"message": "busy", "code": code}}
    begun = orjson.dumps({"choices": [{"delta": {"content": "a"}}]})
    async with endpoint(Answer(orjson.dumps(report)), stream_of([begun, orjson.dumps(report)])) as (_, provider):
        for asking in (lambda: provider.complete(ask()), lambda: streamed(provider)):
            with pytest.raises(ProviderError, match=f"HTTP {status}: busy") as caught:
                await asking()
            assert (caught.value.reason, caught.value.status) == (reason, status)


@pytest.mark.parametrize("chunk_bytes", [0, 150])
async def test_events_that_arrive_together_are_one_piece(chunk_bytes: int) -> None:
    """A burst of tokens costs about as much as one token, also where the server sends each as a chunk of its own."""
    words = [f"word-{number} " for number in range(200)]
    async with endpoint(replace(events(words), chunk_bytes=chunk_bytes)) as (_, provider):
        pieces, response = await streamed(provider)
    assert "".join(pieces) == response.text == "".join(words)
    assert len(pieces) < 50


async def test_text_is_passed_on_while_the_rest_of_the_stream_is_not_there_yet() -> None:
    shown: list[object] = []
    passed_on = anyio.Event()
    async with endpoint(events(["first"], end="hang")) as (_, provider), anyio.create_task_group() as tasks:

        async def read() -> None:
            async for each in provider.stream(ask()):
                shown.append(each)
                passed_on.set()

        tasks.start_soon(read)
        with anyio.fail_after(10):
            await passed_on.wait()
        tasks.cancel_scope.cancel()
    assert shown == [TextPiece(1, "first")]


@pytest.mark.parametrize("fault", [b'{"error": {"message": "busy", "code": 503}}', b'{"choices": [3]}', b"no JSON"])
async def test_text_before_a_fault_is_passed_on_even_if_both_arrive_together(fault: bytes) -> None:
    """So it does not depend on the network whether a failed attempt has shown text."""
    begun = orjson.dumps({"choices": [{"delta": {"content": "begun"}}]})
    shown: list[object] = []
    async with endpoint(replace(stream_of([begun, fault]), chunk_bytes=0)) as (_, provider):
        with pytest.raises(ProviderError):
            await gather(provider, shown)
    assert shown == [TextPiece(1, "begun")]


async def test_a_server_that_cannot_stream_answers_as_a_whole() -> None:
    async with endpoint(completion("all of it")) as (_, provider):
        pieces, response = await streamed(provider)
    assert (pieces, response.text) == (["all of it"], "all of it")


async def test_whole_and_streamed_answers_leave_their_connection_open_for_the_next_call() -> None:
    async with endpoint(chunks({"content": "a"}), completion("b"), chunks({"content": "c"})) as (server, provider):
        assert (await streamed(provider))[0] == ["a"]
        assert (await provider.complete(ask())).text == "b"
        assert (await streamed(provider))[0] == ["c"]
        await anyio.wait_all_tasks_blocked()
        assert (len(server.hits), server.ended.is_set()) == (3, False)


async def test_an_answer_is_whole_with_its_last_event_even_if_the_connection_then_hangs() -> None:
    done = chunks({"content": "a"})
    async with endpoint(Answer(done.body, content_type=done.content_type, end="hang")) as (server, provider):
        assert (await streamed(provider))[1].text == "a"
        with anyio.fail_after(10):
            await server.gone.wait()


async def test_cached_tokens_are_counted_as_each_server_names_them() -> None:
    counts = {"prompt_tokens": 20, "completion_tokens": 5}
    named: list[tuple[dict[str, Any], Usage]] = [
        ({"prompt_tokens_details": {"cached_tokens": 0}}, Usage(20, 5, 0)),
        ({"prompt_cache_hit_tokens": 12}, Usage(20, 5, 12)),
        ({"prompt_tokens_details": {"audio_tokens": 0}, "prompt_cache_hit_tokens": 12}, Usage(20, 5, 12)),
        ({"prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 8}}, Usage(20, 5, 3, 8)),
        ({"cache_read_input_tokens": 4, "cache_creation_input_tokens": 7}, Usage(20, 5, 4, 7)),
        ({"prompt_tokens_details": None}, Usage(20, 5, None)),
        # counted apart from `prompt_tokens`, as Anthropic does
        ({"cache_read_input_tokens": 500, "cache_creation_input_tokens": 20}, Usage(540, 5, 500, 20)),
        ({"prompt_tokens_details": {"cached_tokens": 50}, "total_tokens": 25}, Usage(70, 5, 50)),
        ({"prompt_tokens_details": {"cached_tokens": 50}, "total_tokens": 80}, Usage(70, 10, 50)),
        ({"prompt_tokens_details": {"cached_tokens": -1}, "total_tokens": "25"}, Usage(20, 5)),
    ]
    whole = [completion("ok", usage={**counts, **told}) for told, _ in named]
    said = b'{"choices": [{"delta": {"content": "ok"}, "finish_reason": "stop"}]}'
    events = [stream_of([said, orjson.dumps({"choices": [], "usage": {**counts, **told}})]) for told, _ in named]
    async with endpoint(*whole, *events) as (_, provider):
        assert [(await provider.complete(ask())).usage for _ in named] == [usage for _, usage in named]
        assert [(await streamed(provider))[1].usage for _ in named] == [usage for _, usage in named]


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [3]},
        {"choices": {"0": 1}},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": 7}}]},
        {"choices": [{"message": {"content": [7]}}]},
        {"choices": [{"message": {"tool_calls": {"a": 1}}}]},
        {"choices": [{"message": {"tool_calls": [{"function": 1}]}}]},
        {"choices": [{"message": {"content": "a"}, "finish_reason": 3}]},
    ],
)
async def test_what_has_not_the_format_is_malformed(body: object) -> None:
    event = orjson.dumps(body).replace(b'"message"', b'"delta"')
    async with endpoint(Answer(orjson.dumps(body)), stream_of([event])) as (_, provider):
        for asking in (lambda: provider.complete(ask()), lambda: streamed(provider)):
            with pytest.raises(ProviderError) as caught:
                await asking()
            is_nothing = b'"delta":null' in event and caught.value.detail.startswith("the answer is empty")
            assert caught.value.reason == ("empty" if is_nothing else "malformed")


# --- the way there ------------------------------------------------------------------------------------------------------


async def test_a_redirect_is_not_followed_so_the_key_goes_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-some-key")
    async with fake_server() as other:
        moved = Answer(status=307, headers={"location": f"{other.url}/chat/completions"})
        async with endpoint(moved, api_key="env:SOME_KEY") as (server, provider):
            with pytest.raises(ProviderError, match="redirects, which is not followed"):
                await provider.complete(ask())
    assert (len(server.hits), other.hits) == (1, [])


async def test_a_proxy_of_the_environment_is_used_but_not_for_hosts_that_it_excludes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
    async with fake_server() as server, fake_server() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        async with opened("http://model.example/v1") as provider:
            await provider.complete(ask())
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,other.example")
        async with opened(server.url) as provider:
            await provider.complete(ask())
    assert [hit.path for hit in proxy.hits] == ["http://model.example/v1/chat/completions"]
    assert len(server.hits) == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_gets_its_password_and_no_error_shows_it(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.delenv("REQUEST_METHOD", raising=False)
    monkeypatch.delenv(f"{scheme}_proxy", raising=False)
    async with fake_server(error(407, "who is secret-word?")) as proxy:
        monkeypatch.setenv(f"{scheme}_proxy".upper(), proxy.url.removesuffix("/v1").replace("//", "//me:secret-word@"))
        async with opened(f"{scheme}://model.example/v1") as provider:
            with pytest.raises(ProviderError, match="407") as caught:
                await provider.complete(ask())
    expected = {"http": "http://model.example/v1/chat/completions", "https": "model.example:443"}
    assert [hit.path for hit in proxy.hits] == [expected[scheme]]
    assert proxy.hits[0].headers["proxy-authorization"] == f"Basic {b64encode(b'me:secret-word').decode()}"
    assert "secret-word" not in f"{caught.value!r}{caught.value.__cause__!r}"
    assert caught.value.reason == "authentication", "which is not retried"
    if scheme == "https":  # otherwise the proxy's answer is the endpoint's
        assert caught.value.detail.startswith("the proxy refused a connection to the endpoint: HTTP 407: ")


async def test_a_proxy_that_is_none_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret-word@:x")
    with pytest.raises(ConfigError, match="HTTP_PROXY") as caught:
        async with opened("http://model.example/v1"):
            pass
    assert "secret-word" not in f"{caught.value!r}{caught.value}"


async def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-se\ncret")
    with pytest.raises(ConfigError) as caught:
        async with opened("http://127.0.0.1:1/v1", api_key="env:SOME_KEY"):
            pass
    assert caught.value.key == "router.providers.it.api_key"
    assert "cret" not in f"{caught.value!r}{caught.value}"


async def test_a_private_certificate_is_trusted_only_with_its_ca_file(tmp_path: Path) -> None:
    async with secured(tmp_path) as (_, url, ca):
        async with opened(url) as provider:
            with pytest.raises(ProviderError, match=r"the certificate of .* is not trusted: ") as caught:
                await provider.complete(ask())
        async with opened(url, ca_file=str(ca)) as provider:
            assert (await provider.complete(ask())).text == "Hello!"
    assert caught.value.reason == "connection"


@pytest.mark.parametrize("content", [None, b"no certificate"])
async def test_a_ca_file_without_certificates_is_a_wrong_setting(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        async with opened("https://127.0.0.1:1/v1", ca_file=str(path)):
            pass
    assert caught.value.key == "router.providers.it.ca_file"
