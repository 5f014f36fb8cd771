"""Answers as real servers send them, where they differ from OpenAI's (docs/gateway.md).

The shapes are those of the servers' documentation and of reports in their users' trackers; names and numbers are made up.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import orjson
import pytest

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ProviderError, ProviderReason
from kitchener.gateway import LLMGateway, build_providers
from kitchener.model_usage import Usage
from kitchener.records.prompt import Message, PromptResponse, ToolSpec, ToolUse
from tests.gateway.shared.chat_endpoints import endpoint, streamed
from tests.gateway.shared.fake_server import Answer, completion, error, fake_server
from tests.gateway.shared.gateway_kit import Told, ask

LOOK: Final = ToolSpec("look", "Looks", {"type": "object", "properties": {"city": {"type": "string"}}})
END: Final = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def said(text: str, **more: Any) -> dict[str, Any]:
    """An event with a piece of text."""
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}


def calls(*requests: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    """An event with parts of tool requests."""
    return {"choices": [{"index": 0, "delta": {"tool_calls": list(requests)}, "finish_reason": finish_reason}]}


def call(name: str | None, arguments: str, **more: Any) -> dict[str, Any]:
    """A part of a tool request."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def sse(*events: Mapping[str, Any] | str) -> Answer:
    """A stream of these events; a text is sent as it is."""
    lines = [each if isinstance(each, str) else f"data: {orjson.dumps(each).decode()}" for each in events]
    return Answer("".join(f"{each}\n\n" for each in lines).encode(), content_type="text/event-stream", chunk_bytes=50)


async def answer_of(stream: Answer) -> PromptResponse:
    async with endpoint(stream) as (_, provider):
        pieces, response = await streamed(provider, tools=(LOOK,))
    assert "".join(pieces) == response.text
    return response


async def failure_of(answer: Answer, *, streams: bool) -> ProviderError:
    async with endpoint(answer) as (_, provider):
        with pytest.raises(ProviderError) as caught:
            await (streamed(provider) if streams else provider.complete(ask()))
    return caught.value


# --- streams of text ----------------------------------------------------------------------------------------------------

TEXTS: Final[dict[str, tuple[Answer, Usage]]] = {
    "OpenAI, with padding and the counts at the end": (
        sse(
            {**said(""), "service_tier": "default", "obfuscation": "7hJ2", "usage": None},
            {**said("Hello"), "system_fingerprint": None, "obfuscation": "x", "usage": None},
            {**END, "usage": None, "obfuscation": ""},
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 1100,
                    "completion_tokens": 70,
                    "total_tokens": 1170,
                    "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0},
                    "completion_tokens_details": {"reasoning_tokens": 64, "accepted_prediction_tokens": 0},
                },
            },
            "data: [DONE]",
        ),
        Usage(1100, 70, 1024),
    ),
    "Azure, whose filter reports before the text, and after it without a delta": (
        sse(
            {"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": [{"prompt_index": 0}]},
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "", "refusal": None}, "finish_reason": None}]},
            said("Hello"),
            {**END, "usage": None},
            {
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": None,
                        "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}},
                        "content_filter_offsets": {"check_offset": 44, "start_offset": 44, "end_offset": 198},
                    }
                ]
            },
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}},
            "data: [DONE]",
        ),
        Usage(9, 4),
    ),
    "OpenRouter, with comments until the model begins": (
        sse(
            ": OPENROUTER PROCESSING",
            ": OPENROUTER PROCESSING",
            {"provider": "Some", **said(""), "model": "m"},
            {"choices": [{"index": 0, "delta": {"content": "", "reasoning": "hm", "reasoning_details": [{"index": 0}]}}]},
            said("Hello"),
            {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop", "native_finish_reason": "end_turn"}]},
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "cost": 0.00014}},
            "data: [DONE]",
        ),
        Usage(9, 4),
    ),
    "Groq, which counts in x_groq": (
        sse(
            {**said(""), "x_groq": {"id": "req_01"}},
            said("Hello"),
            {**END, "x_groq": {"id": "req_01", "usage": {"queue_time": 0.01, "prompt_tokens": 9, "completion_tokens": 4}}},
            "data: [DONE]",
        ),
        Usage(9, 4),
    ),
    "Moonshot, which counts in the last choice": (
        sse(
            said("Hello"),
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {},
                        "finish_reason": "stop",
                        "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "cached_tokens": 8},
                    }
                ]
            },
            "data: [DONE]",
        ),
        Usage(9, 4, 8),
    ),
    "DeepSeek, with thoughts and keep-alive comments": (
        sse(
            ": keep-alive",
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None, "reasoning_content": ""}}]},
            {"choices": [{"index": 0, "delta": {"content": None, "reasoning_content": "hm"}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {"content": "Hello", "reasoning_content": None}, "finish_reason": None}]},
            {
                **END,
                "usage": {
                    "prompt_tokens": 9,
                    "completion_tokens": 4,
                    "total_tokens": 13,
                    "prompt_cache_hit_tokens": 8,
                    "prompt_cache_miss_tokens": 1,
                },
            },
            "data: [DONE]",
        ),
        Usage(9, 4, 8),
    ),
    "xAI, whose counts of every event leave out the thoughts": (
        sse(
            said("Hel", usage={"prompt_tokens": 32, "completion_tokens": 1, "total_tokens": 127}),
            said("lo", usage={"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135}),
            {**END, "usage": {"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135}},
            "data: [DONE]",
        ),
        Usage(32, 103),
    ),
    "Mistral, with thoughts as parts": (
        sse(
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
                    }
                ]
            },
            {"choices": [{"index": 0, "delta": {"content": [{"type": "text", "text": "Hel"}]}, "finish_reason": None}]},
            said("lo"),
            {**END, "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}},
            "data: [DONE]",
        ),
        Usage(9, 4),
    ),
    "llama.cpp, with progress and timings": (
        sse(
            {"choices": [], "prompt_progress": {"total": 9, "cache": 0, "processed": 9}},
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}]},
            said("Hello"),
            END,
            {
                "choices": [],
                "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13},
                "timings": {"prompt_n": 9, "predicted_per_second": 41.5},
            },
            "data: [DONE]",
        ),
        Usage(9, 4),
    ),
    "Ollama, whose every event has a role": (
        sse(
            {
                "choices": [
                    {"index": 0, "delta": {"role": "assistant", "content": "", "reasoning": "hm"}, "finish_reason": None}
                ]
            },
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hello"}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}},
            "data: [DONE]",
        ),
        Usage(9, 4),
    ),
    "vLLM, with counts in every event and no end mark": (
        sse(
            said("", usage={"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}),
            said("Hello", usage={"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}),
            {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop", "stop_reason": None}]},
        ),
        Usage(9, 4),
    ),
}


@pytest.mark.parametrize("server", TEXTS)
async def test_a_stream_of_text_is_read_as_each_server_sends_it(server: str) -> None:
    stream, usage = TEXTS[server]
    response = await answer_of(stream)
    assert (response.text, response.usage, response.finish_reason) == ("Hello", usage, "stop")


async def test_counts_are_estimated_where_a_server_sends_none() -> None:
    usage = (await answer_of(sse(said("Hello"), END, "data: [DONE]"))).usage
    assert usage.input_tokens > 0 < usage.output_tokens
    assert usage.cached_tokens is None


@pytest.mark.parametrize("thought", [["hm"], {"text": "hm"}, 7])
async def test_thoughts_of_a_form_that_is_not_known_are_left_out(thought: object) -> None:
    event = {"choices": [{"index": 0, "delta": {"content": "Hello", "reasoning": thought}}]}
    assert (await answer_of(sse(event, END))).text == "Hello"


async def test_a_streamed_refusal_is_told() -> None:
    parts = [{"choices": [{"index": 0, "delta": {"refusal": each}}]} for each in ("I cannot ", "help.")]
    failure = await failure_of(sse(*parts, END), streams=True)
    assert (failure.reason, failure.detail) == ("refused", "I cannot help.")


ENDS: Final = {
    "length": ("length", "model_length", "max_tokens", "MAX_TOKENS", "max_output_tokens"),
    "stop": ("stop", "STOP", "end_turn", "eos", "stop_sequence"),
    "content_filter": ("content_filter", "SAFETY", "refusal", "sensitive"),
    "other": ("something new",),
}


@pytest.mark.parametrize(("expected", "word"), [(expected, word) for expected, words in ENDS.items() for word in words])
async def test_the_end_of_an_answer_is_understood_in_the_words_of_other_formats(expected: str, word: str) -> None:
    """Gateways pass on what Anthropic and Google say. Regression: a cut answer was taken for a whole one."""
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": word}]}
    assert (await answer_of(sse(said("Hel"), end))).finish_reason == expected


# --- tool requests ------------------------------------------------------------------------------------------------------

LONDON, ROME = '{"city":"London"}', '{"city":"Rome"}'
BOTH: Final = (ToolUse("a", "look", {"city": "London"}), ToolUse("b", "look", {"city": "Rome"}))
NAMED: Final = tuple(replace(each, use_id=f"call-1-{number}") for number, each in enumerate(BOTH, 1))
REQUESTS: Final[dict[str, tuple[Answer, tuple[ToolUse, ...]]]] = {
    "Google: each request whole, in an event of its own, all with the number 0": (
        sse(calls(call("look", LONDON, index=0, id="a")), calls(call("look", ROME, index=0, id="b")), END),
        BOTH,
    ),
    "the same without ids": (
        sse(calls(call("look", LONDON, index=0, id="")), calls(call("look", ROME, index=0, id="")), END),
        NAMED,
    ),
    "Ollama of before: all requests in one event, all with the number 0": (
        sse(calls(call("look", LONDON, index=0, id="a"), call("look", ROME, index=0, id="b"), finish_reason="tool_calls")),
        BOTH,
    ),
    "numbers with gaps": (
        sse(
            calls(call("look", '{"city":', index=1, id="a")),
            calls(call(None, '"London"}', index=1)),
            calls(call("look", ROME, index=4, id="b")),
            END,
        ),
        BOTH,
    ),
    "name and id again with each part": (
        sse(
            calls(call("look", '{"city":', index=0, id="a")),
            calls(call("look", '"London"}', index=0, id="a")),
            calls(call("look", "", index=0, id="a")),
            calls(call("look", ROME, index=1, id="b")),
            END,
        ),
        BOTH,
    ),
    "another id with each part, but no name": (
        sse(
            calls(call("look", '{"city":', index=0, id="a")),
            calls(call(None, '"London"}', index=0, id="x")),
            calls(call("look", ROME, index=1, id="b")),
            END,
        ),
        BOTH,
    ),
    "no numbers, and the id again with each part": (
        sse(
            calls(call("look", '{"city":', id="a")),
            calls(call("look", '"London"}', id="a")),
            calls(call("look", ROME, id="b")),
            END,
        ),
        BOTH,
    ),
    "the id before everything else": (
        sse(
            calls({"index": 0, "id": "a"}),
            calls(call("look", LONDON, index=0)),
            calls(call("look", ROME, index=1, id="b")),
            END,
        ),
        BOTH,
    ),
    "one id for all": (
        sse(calls(call("look", LONDON, index=0, id="null")), calls(call("look", ROME, index=1, id="null")), END),
        (replace(BOTH[0], use_id="null"), NAMED[1]),
    ),
}


@pytest.mark.parametrize("how", REQUESTS)
async def test_two_tool_requests_of_a_stream_are_two_however_they_are_numbered(how: str) -> None:
    stream, expected = REQUESTS[how]
    response = await answer_of(stream)
    assert (response.tool_uses, response.finish_reason) == (expected, "tool_use")


@pytest.mark.parametrize("use_id", ["", "null", None])
async def test_tool_requests_of_a_whole_answer_are_told_apart_without_ids(use_id: str | None) -> None:
    """The results name the request that they answer, so no two may have one id."""
    requests = [call("look", each, id=use_id) for each in (LONDON, ROME)]
    body = {"choices": [{"message": {"content": None, "tool_calls": requests}, "finish_reason": "tool_calls"}]}
    async with endpoint(Answer(orjson.dumps(body))) as (_, provider):
        first, second = (await provider.complete(ask(tools=(LOOK,)))).tool_uses
    assert (first.arguments, second.arguments) == ({"city": "London"}, {"city": "Rome"})
    assert first.use_id != second.use_id


async def test_a_stream_with_its_end_mark_is_whole_without_a_finish_reason() -> None:
    text = await answer_of(sse(said("Hello"), "data: [DONE]"))
    assert (text.text, text.finish_reason) == ("Hello", "stop")
    asked = await answer_of(sse(calls(call("look", LONDON, index=0, id="a")), "data: [DONE]"))
    assert (asked.tool_uses, asked.finish_reason) == ((BOTH[0],), "tool_use")
    for begun in (said("Hello"), calls(call("look", LONDON, index=0, id="a"))):
        assert (await failure_of(sse(begun), streams=True)).reason == "malformed"


async def test_a_name_again_with_each_part_of_the_arguments_begins_no_new_request() -> None:
    parts = [calls(call("look", each, index=0)) for each in ('{"city"', ":", '"London"}')]
    assert (await answer_of(sse(*parts, END))).tool_uses == (NAMED[0],)


@pytest.mark.parametrize(
    ("pieces", "name"),
    [
        (["lo", "ok"], "look"),
        (["look", "_up"], "look_up"),
        (["look", "look"], "look"),
        (["look", "at"], "look"),
        (["lo", "lo", "ok"], "look"),
        (["sing", "sing"], "sing"),
        (["look", "_", "up"], "look_up"),
        (["lo", "look", "look_up"], "look_up"),
    ],
)
async def test_a_name_in_pieces_is_put_together_and_one_that_is_repeated_is_not(pieces: list[str], name: str) -> None:
    """Whether a further piece belongs to the name, the names of the offered tools tell."""
    parts = [calls({"index": 0, "id": "a", "function": {"name": each}}) for each in pieces]
    stream = sse(*parts, calls(call(None, LONDON, index=0)), END)
    async with endpoint(stream) as (_, provider):
        _, response = await streamed(provider, tools=(LOOK, replace(LOOK, tool_id="look_up")))
    assert [(each.tool_id, each.arguments) for each in response.tool_uses] == [(name, {"city": "London"})]


async def test_mistral_gets_short_ids_of_another_providers_tool_requests() -> None:
    """As after a fallback in the middle of a turn. The request and its result still name each other."""
    refusal = error(400, "Tool call id was call_abc-1 but must be a-z, A-Z, 0-9, with a length of 9.")
    conversation = (
        Message("user", "look"),
        Message("assistant", "", tool_uses=(ToolUse("call_abc-1", "look", {}), ToolUse("call_abc-2", "look", {}))),
        Message("tool", "sun", tool_use_id="call_abc-1", tool_id="look"),
        Message("tool", "rain", tool_use_id="call_abc-2", tool_id="look"),
    )
    async with endpoint(refusal, sse(said("Hello"), END), sse(said("Hello"), END)) as (server, provider):
        for _ in range(2):
            assert (await streamed(provider, messages=conversation, tools=(LOOK,)))[1].text == "Hello"
    sent = [hit.body["messages"] for hit in server.hits]
    ids = [[call["id"] for call in each[1]["tool_calls"]] for each in sent]
    assert ids == [[each[2]["tool_call_id"], each[3]["tool_call_id"]] for each in sent]
    assert ids[0] == ["call_abc-1", "call_abc-2"]
    assert ids[1] == ids[2]
    assert len(set(ids[1])) == 2
    assert all(len(each) == 9 and each.isalnum() for each in ids[1])


async def test_a_model_whose_thoughts_take_all_tokens_is_told_so() -> None:
    events: list[dict[str, Any]] = [
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"delta": {}, "finish_reason": "length"}]},
    ]
    failure = await failure_of(sse(*events), streams=True)
    assert (failure.reason, failure.detail) == (
        "empty",
        "the answer has no text within max_tokens = 100; a model that thinks needs more (`thinking_tokens`), or to think less",
    )


async def test_a_tool_request_that_the_limit_of_tokens_cut_is_told_so() -> None:
    """Else the model makes the same request again, which is cut again."""
    request = calls(call("write_file", '{"text": "once upon a'), finish_reason="length")
    answer = await answer_of(sse(request))
    assert answer.finish_reason == "tool_use"
    assert [each.problem for each in answer.tool_uses] == [
        "the answer ended within these arguments, at max_tokens = 100; call the tool again with shorter ones"
    ]
    whole = await answer_of(sse(calls(call("write_file", "{}"), finish_reason="length")))
    assert [each.problem for each in whole.tool_uses] == [None]


async def test_counts_of_zero_at_the_end_of_a_stream_leave_those_before() -> None:
    counts = {"prompt_tokens": 40, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 30}}
    zeros = {"prompt_tokens": 0, "completion_tokens": 0}
    found = (await answer_of(sse(said("Hello", usage=counts), {**END, "usage": counts}, {"choices": [], "usage": zeros}))).usage
    assert (found.input_tokens, found.output_tokens, found.cached_tokens) == (40, 2, 30)


# --- errors -------------------------------------------------------------------------------------------------------------

STREAMED_ERRORS: Final[dict[str, tuple[Answer, ProviderReason, str]]] = {
    "OpenRouter": (
        sse(
            said("Hel"),
            {
                "error": {"code": 502, "message": "Provider disconnected"},
                "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
            },
        ),
        "server_error",
        "HTTP 502: Provider disconnected",
    ),
    "OpenRouter, in the choice": (
        sse(
            said("Hel"), {"choices": [{"delta": {}, "finish_reason": "error", "error": {"code": 429, "message": "slow down"}}]}
        ),
        "rate_limited",
        "HTTP 429: slow down",
    ),
    "Mistral": (
        sse(said("Hel"), {"choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}),
        "server_error",
        "HTTP 500: the model stopped with 'error'",
    ),
    "DeepSeek": (
        sse(said("Hel"), {"choices": [{"delta": {}, "finish_reason": "insufficient_system_resource"}]}),
        "server_error",
        "HTTP 500: the model stopped with 'insufficient_system_resource'",
    ),
    "Groq": (
        sse(said("Hel"), {**END, "x_groq": {"error": "over capacity"}}),
        "server_error",
        "HTTP 500: over capacity",
    ),
    "LM Studio": (
        sse('event: error\ndata: {"error":{"message":"The model has crashed"}}', "data: [DONE]"),
        "server_error",
        "HTTP 500: The model has crashed",
    ),
    "Ollama": (sse('data: {"error":"model runner has stopped"}'), "server_error", "HTTP 500: model runner has stopped"),
    "llama.cpp of before, in a field of its own": (
        sse('error: {"code":400,"message":"the request exceeds the context","type":"invalid_request_error"}', "data: [DONE]"),
        "context_length",
        "HTTP 400: the request exceeds the context",
    ),
    "llama.cpp": (
        sse('data: {"error":{"code":500,"message":"too long","type":"exceed_context_size_error","n_ctx":4096}}'),
        "context_length",
        "HTTP 500: too long",
    ),
    "Anthropic, through a gateway": (
        sse('event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'),
        "server_error",
        "HTTP 503: Overloaded",
    ),
    "a code as a text": (sse({"error": {"message": "slow", "code": "429"}}), "rate_limited", "HTTP 429: slow"),
    "a code with a name": (
        sse({"error": {"message": "slow", "code": "rate_limit_exceeded"}}),
        "rate_limited",
        "HTTP 429: slow",
    ),
    "Google's status": (
        sse({"error": {"message": "slow", "code": None, "status": "RESOURCE_EXHAUSTED"}}),
        "rate_limited",
        "HTTP 429: slow",
    ),
    "too long, without a code": (
        sse({"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}),
        "context_length",
        "HTTP 500: prompt is too long: 9 tokens > 8 maximum",
    ),
    "a policy": (
        sse({"error": {"message": "no", "code": "content_policy_violation"}}),
        "refused",
        "HTTP 500: no",
    ),
    "vLLM of before, without `error`": (
        sse(said("Hel"), {"object": "error", "message": "boom", "type": "BadRequestError", "code": 400}),
        "bad_request",
        "HTTP 400: boom",
    ),
    "an event error with a bare message": (
        sse(said("Hel"), 'event: error\ndata: {"message":"boom","code":502}'),
        "server_error",
        "HTTP 502: boom",
    ),
    "an event error with a text": (sse(said("Hel"), "data: the model\nevent:error"), "server_error", "HTTP 500: the model"),
    "a web framework": (sse({"detail": "Rate limited"}), "server_error", "HTTP 500: Rate limited"),
    "vLLM": (
        sse(said("Hel"), {"error": {"message": "bad grammar", "type": "BadRequestError", "param": None, "code": 400}}),
        "bad_request",
        "HTTP 400: bad grammar",
    ),
}


@pytest.mark.parametrize("server", STREAMED_ERRORS)
async def test_an_error_inside_a_stream_is_told_as_each_server_reports_it(server: str) -> None:
    stream, reason, detail = STREAMED_ERRORS[server]
    failure = await failure_of(stream, streams=True)
    assert (failure.reason, failure.detail) == (reason, detail)


async def test_an_event_without_choices_is_no_error_though_it_has_a_message() -> None:
    progress = {"id": "c-1", "object": "progress", "message": "loading the model"}
    assert (await answer_of(sse(progress, said("Hello"), END))).text == "Hello"


async def test_a_whole_answer_that_is_an_error_without_choices_keeps_its_text() -> None:
    for body in ({"object": "error", "message": "boom"}, {"detail": "boom"}, {"type": "error", "error": {"message": "boom"}}):
        failure = await failure_of(Answer(orjson.dumps(body)), streams=False)
        assert (failure.reason, failure.detail) == ("server_error", "HTTP 500: boom")


async def test_a_refusal_for_the_rate_that_comes_with_status_200_is_waited_for() -> None:
    """As a 429 is: without a fallback the call takes the pace that the provider lets through, though it has no retries."""
    slow = Answer(orjson.dumps({"error": {"message": "slow", "code": "rate_limit_exceeded"}}))
    async with fake_server(slow, completion("at last")) as server:
        config = RouterConfig(
            default_provider="it",
            providers={"it": ProviderConfig(base_url=server.url, model="m", max_retries=1, backoff_initial_s=0.01)},
        )
        told = Told()
        async with build_providers(config) as providers, LLMGateway(config, providers).open() as gateway:
            assert (await gateway.complete(ask(), on_attempt=told)).text == "at last"
    assert told.lines[1] == "1 failed it rate_limited"


async def test_an_answer_that_broke_off_is_no_answer() -> None:
    """OpenRouter answers with status 200 and what there is of the text."""
    choice = {"message": {"content": "Hel"}, "finish_reason": "error", "error": {"code": 502, "message": "upstream"}}
    failure = await failure_of(Answer(orjson.dumps({"choices": [choice]})), streams=False)
    assert (failure.reason, failure.detail, failure.status) == ("server_error", "HTTP 502: upstream", 502)


@pytest.mark.parametrize(
    ("status", "body", "reason", "detail"),
    [
        (400, {"error": {"message": "filtered", "param": "prompt", "code": "content_filter"}}, "refused", "filtered"),
        (
            400,
            {"error": {"message": "call failed", "code": "tool_use_failed", "failed_generation": "<f"}},
            "malformed",
            "call failed",
        ),
        (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}, "context_length", "too long"),
        (500, {"error": {"message": "too long", "type": "exceed_context_size_error"}}, "context_length", "too long"),
        (
            400,
            [{"error": {"code": 400, "message": "no such field", "status": "INVALID_ARGUMENT"}}],
            "bad_request",
            "no such field",
        ),
        (400, {"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}, "bad_request", "too long"),
        (
            400,
            {"object": "error", "message": "This model's maximum context length is 8 tokens.", "code": 400},
            "context_length",
            "This model's maximum context length is 8 tokens.",
        ),
        (404, {"error": "model 'm' not found"}, "bad_request", "model 'm' not found"),
        (404, {"detail": "Not Found"}, "bad_request", "Not Found; check `base_url`"),
    ],
    ids=["Azure", "Groq", "OpenAI", "llama.cpp", "Google", "vLLM", "vLLM, too long", "Ollama", "FastAPI"],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_an_error_answer_is_told_as_each_server_writes_it(
    status: int, body: object, reason: str, detail: str, *, streams: bool
) -> None:
    failure = await failure_of(Answer(orjson.dumps(body), status), streams=streams)
    assert (failure.reason, failure.detail, failure.status) == (reason, f"HTTP {status}: {detail}", status)


async def test_a_refused_field_is_found_in_an_error_that_comes_as_a_list() -> None:
    refusal = Answer(orjson.dumps([{"error": {"message": 'Unknown name "stream_options"', "code": 400}}]), 400)
    async with endpoint(refusal, sse(said("Hello"), END)) as (server, provider):
        assert (await streamed(provider))[1].text == "Hello"
    assert ["stream_options" in hit.body for hit in server.hits] == [True, False]


async def test_a_key_is_taken_out_of_an_error_inside_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-some-secret-key")
    for each in (
        sse('error: {"code":401,"message":"wrong key sk-some-secret-key"}'),
        sse({**END, "x_groq": {"error": "wrong key sk-some-secret-key"}}),
        error(400, "sk-some-secret-key"),
    ):
        async with endpoint(each, api_key="env:SOME_KEY") as (_, provider):
            with pytest.raises(ProviderError) as caught:
                await streamed(provider)
        assert "***" in caught.value.detail
        assert "sk-some" not in f"{caught.value!r}{caught.value.__cause__!r}"


# --- thoughts that come as a list ---------------------------------------------------------------------------------------

HIDDEN: Final = {"type": "reasoning.encrypted", "data": "b3Bhcw==", "id": "r-2", "format": "openai-responses-v1", "index": 1}
DETAILS: Final = [
    {"type": "reasoning.text", "text": "I look.", "signature": "c2ln", "format": "anthropic-claude-v1", "index": 0},
    HIDDEN,
    {**HIDDEN, "id": "r-3"},
]


def thoughts(*details: object, **more: Any) -> dict[str, Any]:
    """An event with parts of the list."""
    return {"choices": [{"index": 0, "delta": {"content": "", "reasoning_details": list(details), **more}}]}


def piece(**fields: Any) -> dict[str, Any]:
    return {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0, **fields}


LISTED: Final[dict[str, Answer]] = {
    "streamed": sse(
        thoughts(piece(text="I ", signature=None), reasoning="I "),
        thoughts(piece(text="look.", signature=None), reasoning="look."),
        thoughts(piece(signature="c2ln")),
        thoughts(HIDDEN),
        thoughts({**HIDDEN, "id": "r-3"}, "no part"),
        calls({"index": 0, "id": "c-1", **call("look", "{}")}, finish_reason="tool_calls"),
        "data: [DONE]",
    ),
    "whole": Answer(
        orjson.dumps(
            {
                "choices": [
                    {
                        "message": {
                            "content": None,
                            "reasoning": "I look.",
                            "reasoning_details": DETAILS,
                            "tool_calls": [{"id": "c-1", **call("look", "{}")}],
                        },
                        "finish_reason": "tool_calls",
                    }
                ]
            }
        )
    ),
}


@pytest.mark.parametrize("how", LISTED)
async def test_openrouter_gets_its_list_of_thoughts_back_as_it_sent_it(how: str) -> None:
    """Signed and encrypted parts included, in place of the text of the thoughts: the vendors behind it check them."""
    async with endpoint(LISTED[how]) as (server, provider):
        asked = (await streamed(provider, tools=(LOOK,)))[1] if how == "streamed" else await provider.complete(ask())
        await provider.complete(ask(messages=(Message("user", "x"), Message("assistant", "", asked.tool_uses))))
    message = server.hits[1].body["messages"][1]
    assert message["reasoning_details"] == DETAILS
    assert "reasoning" not in message


async def test_a_list_of_thoughts_without_end_is_no_answer() -> None:
    parts = [thoughts({**HIDDEN, "id": f"r-{number}"}) for number in range(1_001)]
    assert (await failure_of(sse(*parts), streams=True)).reason == "malformed"
