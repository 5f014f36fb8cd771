"""Characters that a server divides over two events of a stream, or of which it sends only a half (docs/gateway.md).

In JSON, a character beyond U+FFFF may be two escapes, and servers that cut the text of a model between tokens cut between them.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ProviderError
from kitchener.gateway import build_providers
from kitchener.gateway.providers.redaction import RedactedPieces, Redaction
from kitchener.records.prompt import PromptResponse, TextPiece, ToolSpec, ToolUse
from tests.gateway.shared.fake_server import Answer, fake_server
from tests.gateway.shared.gateway_kit import ask
from tests.shared.property_examples import examples

# Under trio the vendor's library leaves its own generators to the garbage collector once it has read the end of a stream.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2|pydantic_ai):ResourceWarning")

KINDS: dict[str, dict[str, Any]] = {
    "openai_compatible": {"kind": "openai_compatible", "model": "m"},
    "library": {"kind": "model", "model": "openai-chat:m", "api_key": "env:A_KEY"},
}
HIGH, LOW, WHOLE, NONE = "\ud83d", "\ude00", "\U0001f600", "\ufffd"
LOOK = ToolSpec("look", "Looks", {"type": "object", "properties": {"city": {"type": "string"}}})
TEXTS: dict[str, tuple[list[str], str]] = {
    "a character over two events": (["hi ", HIGH, LOW, "!"], f"hi {WHOLE}!"),
    "inside longer pieces": ([f"hi {HIGH}", f"{LOW} there"], f"hi {WHOLE} there"),
    "with an empty piece between": (["hi ", HIGH, "", LOW], f"hi {WHOLE}"),
    "both halves in one event": ([f"hi {HIGH}{LOW}"], f"hi {WHOLE}"),
    "a first half alone": (["hi ", HIGH, " there"], f"hi {NONE} there"),
    "a second half alone": (["hi ", LOW, " there"], f"hi {NONE} there"),
    "a half at the end": (["hi ", HIGH], f"hi {NONE}"),
    "two first halves": ([HIGH, HIGH, LOW], f"{NONE}{WHOLE}"),
    "nothing but a half": ([HIGH], NONE),
}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-some-key")


def answer_of(message: dict[str, Any], finish_reason: str = "stop") -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return Answer(json.dumps({**_HEAD, "object": "chat.completion", "choices": [choice]}).encode())


def stream_of(*deltas: dict[str, Any], finish_reason: str = "stop") -> Answer:
    choices: list[dict[str, Any]] = [{"index": 0, "delta": each, "finish_reason": None} for each in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish_reason})
    sent = [json.dumps({**_HEAD, "object": "chat.completion.chunk", "choices": [each]}) for each in choices]
    body = "".join(f"data: {each}\n\n" for each in (*sent, "[DONE]"))
    return Answer(body.encode(), content_type="text/event-stream", chunk_bytes=50)


_HEAD: dict[str, Any] = {"id": "c-1", "created": 1, "model": "m"}


async def failure_of(answer: Answer, kind: str) -> ProviderError:
    async with fake_server(answer) as server:
        config = ProviderConfig(**{"base_url": server.url, "timeout_s": 20.0, **KINDS[kind]})
        async with build_providers(RouterConfig(providers={"it": config})) as providers:
            with pytest.raises(ProviderError) as caught:
                await providers["it"].complete(ask())
    return caught.value


async def read(answer: Answer, kind: str, *, streams: bool) -> tuple[list[str], PromptResponse]:
    async with fake_server(answer) as server:
        config = ProviderConfig(**{"base_url": server.url, "timeout_s": 20.0, **KINDS[kind]})
        async with build_providers(RouterConfig(providers={"it": config})) as providers:
            provider: Any = providers["it"]
            if not streams:
                return [], await provider.complete(ask(tools=(LOOK,)))
            *pieces, response = [each async for each in provider.stream(ask(tools=(LOOK,)))]
    assert isinstance(response, PromptResponse)
    return [each.text for each in pieces if isinstance(each, TextPiece)], response


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", TEXTS)
async def test_a_stream_has_whole_characters_and_a_mark_for_each_half(case: str, kind: str) -> None:
    sent, expected = TEXTS[case]
    pieces, response = await read(stream_of(*({"content": each} for each in sent)), kind, streams=True)
    assert ("".join(pieces), response.text) == (expected, expected)
    for piece in pieces:
        piece.encode()  # each piece goes out as it comes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", TEXTS)
async def test_so_has_a_whole_answer(case: str, kind: str) -> None:
    sent, expected = TEXTS[case]
    _, response = await read(answer_of({"content": "".join(sent)}), kind, streams=False)
    assert response.text == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("streams", [True, False])
async def test_so_have_the_arguments_of_a_tool(kind: str, *, streams: bool) -> None:
    texts = ['{"city": "', f"a{HIGH}", f'{LOW} b{HIGH}"}}']
    parts = [{"function": {"arguments": each}, "index": 0} for each in texts]
    parts[0] = {"index": 0, "id": "c-1", "type": "function", "function": {"name": "look", "arguments": texts[0]}}
    whole = {"id": "c-1", "type": "function", "function": {"name": "look", "arguments": "".join(texts)}}
    if streams:
        answer = stream_of(*({"tool_calls": [each]} for each in parts), finish_reason="tool_calls")
    else:
        answer = answer_of({"content": None, "tool_calls": [whole]}, "tool_calls")
    _, response = await read(answer, kind, streams=streams)
    assert response.tool_uses == (ToolUse("c-1", "look", {"city": f"a{WHOLE} b{NONE}"}),)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_thoughts_that_go_back_with_a_tools_result_have_whole_characters(name: str) -> None:
    signed = {"extra_content": {"google": {"thought_signature": f"x{HIGH}"}}}
    call = {"index": 0, "id": "c-1", "type": "function", "function": {"name": "look", "arguments": {"city": HIGH}}, **signed}
    answer = stream_of({name: f"hm {HIGH}"}, {name: f"{LOW}{LOW}"}, {"tool_calls": [call]}, finish_reason="tool_calls")
    _, response = await read(answer, "openai_compatible", streams=True)
    (use,) = response.tool_uses
    assert use.arguments == {"city": NONE}
    assert use.echo is not None
    assert json.loads(use.echo.fields) == {
        name: f"hm {WHOLE}{NONE}",
        "extra_content": {"google": {"thought_signature": f"x{NONE}"}},
    }


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_with_half_a_character_is_told(kind: str) -> None:
    body = json.dumps({"error": {"message": f"no {HIGH} model", "code": 404}}).encode()
    failure = await failure_of(Answer(body, status=404), kind)
    assert (failure.reason, failure.detail) == ("bad_request", f"HTTP 404: no {NONE} model")


async def test_json_that_is_wrong_in_another_way_too_is_malformed() -> None:
    for tail in ("", ',"n":NaN}', "," + "[" * 100_000):
        body = '{"choices":[{"message":{"content":"\\ud83d"}}]' + tail
        assert (await failure_of(Answer(body.encode()), "openai_compatible")).reason == "malformed"


@given(st.lists(st.lists(st.sampled_from([HIGH, LOW, "a", "\u00e4", WHOLE]), max_size=4).map("".join), max_size=8))
@settings(max_examples=examples(few=100, many=1_000))
def test_pieces_together_are_what_the_whole_is_and_each_can_be_sent(pieces: Sequence[str]) -> None:
    joined = RedactedPieces(Redaction(None))
    shown = [*(joined.take(each) for each in pieces), joined.rest()]
    assert "".join(shown) == "".join(pieces).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert [each.encode().decode() for each in shown] == shown
