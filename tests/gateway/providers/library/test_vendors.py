"""Vendors of kind `model`: named by the settings, bounded by our HTTP client, and refused where nothing would bound them."""

import re
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import orjson
import pytest
from anthropic.resources.messages import DEPRECATED_MODELS

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ConfigError, ProviderError
from kitchener.gateway import LLMGateway, build_providers
from kitchener.gateway.providers.library.vendors import LISTED_VENDORS, OWN_CLIENT_VENDORS, check_vendors
from kitchener.gateway.routing import FIXED_URL_VENDORS, check_router
from kitchener.model_usage import Usage
from kitchener.records.prompt import Message, ToolSpec, ToolUse
from tests.gateway.shared.fake_server import Answer, completion, error, fake_server, hang
from tests.gateway.shared.gateway_kit import Told, ask, one, read_until_error, refusal_of


async def test_another_vendors_interface_is_spoken_by_the_same_adapter() -> None:
    """Anthropic's: its own path, key header and answer; cached tokens are part of the input; no silent retries."""
    message = {
        "id": "msg-1",
        "type": "message",
        "role": "assistant",
        "model": "claude-served",
        "content": [
            {"type": "text", "text": "Let me see. "},
            {"type": "tool_use", "id": "tu-1", "name": "list_packages", "input": {"all": True}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 11, "output_tokens": 7, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 3},
    }
    async with fake_server(Answer(orjson.dumps(message)), error(429, headers={"retry-after": "3"})) as server:
        config = RouterConfig(
            default_provider="it",
            providers={
                "it": ProviderConfig(
                    kind="model",
                    model="anthropic:claude-haiku-4-5",
                    base_url=server.url.removesuffix("/v1"),
                    api_key="env:KITCHENER_TEST_KEY",
                    max_retries=0,
                )
            },
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KITCHENER_TEST_KEY", "sk-ant")
            async with build_providers(config) as providers, LLMGateway(config, providers).open() as gateway:
                response = await gateway.complete(ask(), on_attempt=Told())
                with pytest.raises(ProviderError) as caught:
                    await gateway.complete(ask(model_id="anthropic:claude-sonnet-4-6"), on_attempt=Told())
    assert [hit.path.partition("?")[0] for hit in server.hits] == ["/v1/messages", "/v1/messages"]
    assert "sk-ant" in repr(server.hits[0].headers)
    assert [hit.body["model"] for hit in server.hits] == ["claude-haiku-4-5", "claude-sonnet-4-6"]
    assert (response.text, response.finish_reason) == ("Let me see. ", "tool_use")
    assert (response.model_id, response.served_model) == ("anthropic:claude-haiku-4-5", "claude-served")
    assert [(use.use_id, use.tool_id, use.arguments) for use in response.tool_uses] == [
        ("tu-1", "list_packages", {"all": True})
    ]
    assert response.usage == Usage(18, 7, 4, 3)
    assert (caught.value.reason, caught.value.retry_after_s) == ("rate_limited", 3.0)


ANTHROPIC_ANSWER = {
    "id": "msg-1",
    "type": "message",
    "role": "assistant",
    "model": "claude-haiku-4-5",
    "content": [{"type": "text", "text": "Yes."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


_CLAUDE, _CHAT, _RESPONSES = "anthropic:claude-", "openai-chat:", "openai-responses:"
TAKES_TEMPERATURE = {
    _CLAUDE + "haiku-4-5": True,
    _CLAUDE + "opus-4-8": False,
    _CLAUDE + "sonnet-5": False,
    _CHAT + "gpt-4o": True,
    _CHAT + "gpt-5-mini": False,
    _CHAT + "gpt-5.1": True,
    _CHAT + "gpt-5.5": False,
    _RESPONSES + "gpt-5.4": True,
    _RESPONSES + "o3": False,
}
RESPONSES_ANSWER = {
    "id": "resp-1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "it",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [
        {
            "type": "message",
            "id": "msg-1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Yes.", "annotations": []}],
        }
    ],
}


@pytest.mark.parametrize("model", TAKES_TEMPERATURE)
async def test_a_model_that_takes_no_temperature_gets_none(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the library left it out with a warning, which is an error here as under `python -W error`."""
    monkeypatch.setenv("KITCHENER_TEST_KEY", "sk-some-key")
    answer = Answer(orjson.dumps(ANTHROPIC_ANSWER if model.startswith(_CLAUDE) else RESPONSES_ANSWER))
    async with fake_server(completion("Yes.") if model.startswith(_CHAT) else answer) as server:
        url = server.url.removesuffix("/v1") if model.startswith(_CLAUDE) else server.url
        it = ProviderConfig(kind="model", model=model, base_url=url, api_key="env:KITCHENER_TEST_KEY", max_retries=0)
        config = RouterConfig(default_provider="it", providers={"it": it})
        async with build_providers(config) as providers, LLMGateway(config, providers).open() as gateway:
            response = await gateway.complete(ask(temperature=0.3), on_attempt=Told())
    assert response.text == "Yes."
    assert [hit.body.get("temperature") for hit in server.hits] == [0.3 if TAKES_TEMPERATURE[model] else None]


def marks_of(body: Any) -> list[str]:
    """The texts that end with a mark for the cache, in their order; "*" stands for a mark of the whole request."""
    blocks = [*body["system"]] if isinstance(body["system"], list) else []
    for each in body["messages"]:
        blocks += each["content"] if isinstance(each["content"], list) else []
    marked = [block.get("text", block["type"]) for block in blocks if "cache_control" in block]
    return [*marked, *(["*"] if "cache_control" in body else [])]


@pytest.mark.parametrize("setting", ["auto", "off"])
async def test_anthropic_is_told_where_the_stable_part_of_a_prompt_ends(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the system message and after the history, never after what only this turn sends; in a round of tools also after
    the newest results, since the next call of the turn begins with them."""
    monkeypatch.setenv("KITCHENER_TEST_KEY", "sk-ant")
    begun = (Message("system", "Be brief."), Message("user", "Is it open?"))
    later = (*begun, Message("assistant", "Yes, it is."), Message("user", "[recalled]\n\nUntil when?"))
    use = ToolUse("tu-1", "look", {})
    with_tools = (*later, Message("assistant", "", (use,)), Message("tool", '"six"', tool_use_id="tu-1", tool_id="look"))
    async with fake_server(*[Answer(orjson.dumps(ANTHROPIC_ANSWER))] * 3) as server:
        it = ProviderConfig(
            kind="model",
            model="anthropic:claude-haiku-4-5",
            base_url=server.url.removesuffix("/v1"),
            api_key="env:KITCHENER_TEST_KEY",
            prompt_cache=setting,  # type: ignore[arg-type]
        )
        config = RouterConfig(default_provider="it", providers={"it": it})
        async with build_providers(config) as providers, LLMGateway(config, providers).open() as gateway:
            for messages in (begun, later, with_tools):
                await gateway.complete(ask(messages=messages), on_attempt=Told())
    expected = [["Be brief."], ["Be brief.", "Yes, it is."], ["Be brief.", "Yes, it is.", "tool_result"]]
    assert [marks_of(hit.body) for hit in server.hits] == (expected if setting == "auto" else [[], [], []])
    assert all("Until when?" in repr(hit.body) for hit in server.hits[1:])


@pytest.mark.parametrize(("setting", "keys"), [("auto", [None]), ("on", ["SES-0000000a"]), ("off", [None])])
async def test_the_key_of_the_cache_goes_to_openai_and_elsewhere_if_asked_for(
    setting: str, keys: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address here is not OpenAI's."""
    monkeypatch.setenv("KITCHENER_TEST_KEY", "sk-some-key")
    async with fake_server() as server:
        it = ProviderConfig(
            kind="model",
            model="openai-chat:m",
            base_url=server.url,
            api_key="env:KITCHENER_TEST_KEY",
            prompt_cache=setting,  # type: ignore[arg-type]
        )
        config = RouterConfig(default_provider="it", providers={"it": it})
        async with build_providers(config) as providers, LLMGateway(config, providers).open() as gateway:
            await gateway.complete(ask(session_id="SES-0000000a"), on_attempt=Told())
    assert [hit.body.get("prompt_cache_key") for hit in server.hits] == keys


async def test_a_model_that_takes_either_tools_or_a_schema_gets_the_tools() -> None:
    """Google's older models refuse both at once; the executor checks the schema in any case."""
    content = {"parts": [{"text": '{"n": 1}'}], "role": "model"}
    answer = Answer(orjson.dumps({"candidates": [{"content": content, "finishReason": "STOP"}], "modelVersion": "g-1"}))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = ToolSpec("look", "Looks", {"type": "object", "properties": {}})
    async with fake_server(answer, answer, answer) as server:
        google = ProviderConfig(
            kind="model", model="google:gemini-2.0-flash", base_url=server.url.removesuffix("/v1"), api_key="env:HOME"
        )
        config = RouterConfig(default_provider="it", providers={"it": google})
        async with build_providers(config) as providers, LLMGateway(config, providers).open() as gateway:
            with_both = await gateway.complete(ask(tools=(tool,), output_schema=schema), on_attempt=Told())
            with_schema = await gateway.complete(ask(output_schema=schema), on_attempt=Told())
            repair = ask(tools=(tool,), tool_choice="none", output_schema=schema)
            without_calls = await gateway.complete(repair, on_attempt=Told())
    assert with_both.structured == with_schema.structured == without_calls.structured == {"n": 1}
    sent = [repr(hit.body) for hit in server.hits]
    assert ("functionDeclarations" in sent[0], "application/json" in sent[0]) == (True, False)
    assert ("functionDeclarations" in sent[1], "application/json" in sent[1]) == (False, True)
    assert ("functionDeclarations" in sent[2], "application/json" in sent[2]) == (False, True)


async def test_anthropic_is_shown_the_tools_of_results_that_no_further_call_may_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses a request with results of tools which the request does not describe."""
    monkeypatch.setenv("KITCHENER_TEST_KEY", "sk-some-key")
    tool = ToolSpec("look", "Looks", {"type": "object", "properties": {}})
    asked = Message("assistant", "", tool_uses=(ToolUse("tu-1", "look", {}),))
    said = (Message("user", "Look!"), asked, Message("tool", "nothing", tool_use_id="tu-1", tool_id="look"))
    async with fake_server(Answer(orjson.dumps(ANTHROPIC_ANSWER))) as server:
        url = server.url.removesuffix("/v1")
        it = ProviderConfig(kind="model", model=_CLAUDE + "haiku-4-5", base_url=url, api_key="env:KITCHENER_TEST_KEY")
        config = RouterConfig(default_provider="it", providers={"it": it})
        async with build_providers(config) as providers, LLMGateway(config, providers).open() as gateway:
            await gateway.complete(ask(messages=said, tools=(tool,), tool_choice="none"), on_attempt=Told())
    (hit,) = server.hits
    assert [each["name"] for each in hit.body["tools"]] == ["look"]
    assert hit.body["tool_choice"] == {"type": "none"}


async def test_an_unknown_vendor_is_named_by_the_check_and_by_the_opening() -> None:
    config = one(kind="model", model="antropic:x")
    for refused in (await refusal_of(config), check_of(config)):
        assert refused.key == "router.providers.it.model"
        assert "knows no such vendor" in refused.expected
        assert "did you mean `anthropic:…`?" in refused.expected
    assert "did you mean" not in check_of(one(kind="model", model="nobody:x")).expected


def check_of(config: RouterConfig) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_vendors(config)
    return caught.value


def test_settings_that_name_a_listed_vendor_are_checked_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_ai.providers", None)
    for vendor in sorted(LISTED_VENDORS - OWN_CLIENT_VENDORS.keys()):
        check_vendors(one(kind="model", model=f"{vendor}:m"))
    assert "knows no such vendor" in check_of(one(kind="model", model="nobody:x")).expected


def test_a_vendor_of_a_newer_library_passes_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def knows(vendor: str) -> None:
        if vendor == "without-its-package":
            raise ImportError(vendor)
        if vendor != "newcomer":
            raise ValueError(vendor)

    monkeypatch.setattr("pydantic_ai.providers.infer_provider_class", knows)
    check_vendors(one(kind="model", model="newcomer:m"))
    check_vendors(one(kind="model", model="without-its-package:m"))
    check_of(one(kind="model", model="nobody:m"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_library_knows_every_listed_vendor() -> None:
    from pydantic_ai.providers import infer_provider_class

    for vendor in sorted(LISTED_VENDORS):
        with suppress(ImportError):  # it needs a package of its own
            infer_provider_class(vendor)


def test_a_provider_that_the_program_brings_needs_no_vendor() -> None:
    check_vendors(one(kind="model", model="nobody:x"), given=("it",))


async def test_a_vendor_without_its_key_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    refused = await refusal_of(one(kind="model", model="anthropic:claude-haiku-4-5"))
    assert refused.key == "router.providers.it.api_key"
    assert "ANTHROPIC_API_KEY" in refused.expected


def test_a_vendor_that_needs_asyncio_is_refused_under_trio() -> None:
    async def main() -> ConfigError:
        return await refusal_of(one(kind="model", model="mistral:small", api_key="env:HOME"))

    assert "works on asyncio only" in anyio.run(main, backend="trio").expected


async def test_without_the_vendors_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pydantic_ai.providers.groq", raising=False)
    monkeypatch.setitem(sys.modules, "groq", None)
    refused = await refusal_of(one(kind="model", model="groq:llama", api_key="env:HOME"))
    assert refused.key == "router.providers.it"
    assert "kitchener[models]" in refused.expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_base_url_reaches_the_vendors_library_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings are checked by a list of vendors, the opening by the library itself: they must agree."""
    monkeypatch.setenv("OPENAI_API_VERSION", "2024-06-01")
    url = "http://127.0.0.1:1/v1"
    for vendor in sorted(FIXED_URL_VENDORS - {"cohere", "openai-chatgpt", "openai-codex", "xai"}):
        provider = ProviderConfig(kind="model", model=f"{vendor}:m", base_url=url, api_key="env:HOME")
        config = RouterConfig(providers={"it": provider})
        with pytest.raises(ConfigError, match="would go to the vendor itself") as checked:
            check_router(config)
        assert (await refusal_of(config)).key == checked.value.key == "router.providers.it.base_url"
    for vendor in ("alibaba", "anthropic", "google", "heroku", "moonshotai", "ollama", "openai", "sambanova", "vllm", "zai"):
        provider = ProviderConfig(kind="model", model=f"{vendor}:m", base_url=url, api_key="env:HOME")
        config = RouterConfig(providers={"it": provider})
        check_router(config)
        async with build_providers(config) as providers:
            assert "it" in providers


# Under trio the library leaves its own generators to the garbage collector where a body is not read to its end.
@pytest.mark.filterwarnings("ignore:Async generator '(httpcore|httpcore2|httpx):ResourceWarning")
async def test_the_limits_hold_for_another_vendors_library_too() -> None:
    """It is given the same HTTP client: an answer that is too long is refused, and no request leaves the endpoint."""
    long = Answer(b'{"type": "message", "x": "' + b"0" * 5_000 + b'"}')
    for vendor in ("anthropic", "google", "groq", "openai"):
        async with fake_server(long, completion()) as server:
            it = ProviderConfig(
                kind="model", model=f"{vendor}:m", base_url=server.url, api_key="env:HOME", max_response_bytes=4_096
            )
            async with build_providers(RouterConfig(providers={"it": it})) as providers:
                with pytest.raises(ProviderError) as caught:
                    await providers["it"].complete(ask())
        assert (caught.value.reason, len(server.hits)) == ("malformed", 1)
        assert "max_response_bytes = 4,096" in caught.value.detail


# As above.
@pytest.mark.filterwarnings("ignore:Async generator '(httpcore|httpx):ResourceWarning")
async def test_a_library_that_takes_only_the_former_http_client_gets_one_with_the_same_limits() -> None:
    """One attempt is one request, its errors are told apart, and no other host is asked."""
    async with fake_server(completion("hi"), error(429), hang(), Answer(status=302, headers={"location": "/v1/b"})) as server:
        it = ProviderConfig(kind="model", model="groq:m", base_url=server.url, api_key="env:HOME", timeout_s=0.5)
        async with build_providers(RouterConfig(providers={"it": it})) as providers:
            assert (await providers["it"].complete(ask())).text == "hi"
            reasons = []
            for _ in range(3):
                with pytest.raises(ProviderError) as caught:
                    await providers["it"].complete(ask())
                reasons.append(caught.value.reason)
    assert reasons == ["rate_limited", "timeout", "malformed"]
    assert len(server.hits) == 4
    assert all(hit.headers["accept-encoding"] == "gzip" for hit in server.hits)
    async with build_providers(RouterConfig(providers={"it": it})) as providers:
        with pytest.raises(ProviderError) as caught:
            await providers["it"].complete(ask())
    assert caught.value.reason == "connection", "the server is gone"


async def test_a_library_that_takes_no_http_client_is_refused_also_where_no_list_names_its_vendor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Settings are checked by a list; the opening asks the library itself. The package of `voyageai` is a stub here."""
    for vendor in OWN_CLIENT_VENDORS:
        refused = await refusal_of(one(kind="model", model=f"{vendor}:m", api_key="env:HOME"))
        assert (refused.key, "own HTTP client" in refused.expected) == ("router.providers.it.model", True)
    stub = ModuleType("voyageai.client_async")
    stub.AsyncClient = object  # type: ignore[attr-defined]  # what the library imports from the package
    monkeypatch.setitem(sys.modules, "voyageai", ModuleType("voyageai"))
    monkeypatch.setitem(sys.modules, "voyageai.client_async", stub)
    refused = await refusal_of(one(kind="model", model="voyageai:m", api_key="env:HOME"))
    assert refused.key == "router.providers.it.model"
    assert "'voyageai' brings its own HTTP client" in refused.expected


async def test_a_model_that_the_vendors_library_refuses_is_a_wrong_setting() -> None:
    refused = await refusal_of(one(kind="model", model="elevenlabs:nothing", api_key="env:HOME"))
    assert refused.key == "router.providers.it.model"
    assert "the vendor's library refuses this model" in refused.expected


@pytest.mark.parametrize("streams", [False, True])
async def test_what_a_vendors_library_will_not_do_for_a_request_is_a_bad_request(*, streams: bool) -> None:
    """Its `UserError` at the call: this vendor's models write no text. Nothing is sent."""
    async with fake_server(completion()) as server:
        it = ProviderConfig(kind="model", model="openai-decisions:m", base_url=server.url, api_key="env:HOME")
        config = RouterConfig(default_provider="it", providers={"it": it})
        async with build_providers(config) as providers:
            told = Told()
            async with LLMGateway(config, providers).open() as gateway:
                if streams:
                    seen, refused = await read_until_error(gateway, ask(), told)
                    assert seen == []
                else:
                    with pytest.raises(ProviderError) as caught:
                        await gateway.complete(ask(), on_attempt=told)
                    refused = caught.value
    assert refused is not None
    assert refused.reason == "bad_request"
    assert "Text output is not supported" in refused.detail
    assert told.lines == ["1 started it", "1 failed it bad_request"], "it is not tried again"
    assert server.hits == []


def test_pages_name_models_that_their_vendors_still_serve() -> None:
    """Regression: a page named one that its vendor was about to turn off."""
    root = Path(__file__).parents[4]
    text = "\n".join(page.read_text(encoding="utf-8") for page in (root / "README.md", *(root / "docs").glob("*.md")))
    named = set(re.findall(r"\bclaude-[\w.-]*\w", text))
    assert named
    assert named & DEPRECATED_MODELS.keys() == set()
