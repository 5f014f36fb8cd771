"""Fields, headers and a query of one's own in a provider's requests (docs/gateway.md)."""

import json
import traceback
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from kitchener.config import ProviderConfig, RouterConfig, RuntimeConfig
from kitchener.config.settings_parser import parse_settings, without_secrets
from kitchener.errors import ConfigError, ProviderError
from kitchener.gateway import build_providers
from kitchener.gateway.providers.endpoint_errors import CHECK_KEY
from kitchener.gateway.routing import check_router
from tests.gateway.shared.chat_endpoints import endpoint, opened, streamed
from tests.gateway.shared.fake_server import Answer, completion, error, events, fake_server, unanswered
from tests.gateway.shared.gateway_kit import ask, one, refusal_of

FIELDS: dict[str, Any] = {
    "temperature": 0.6,
    "top_p": 0.95,
    "seed": 7,
    "stop": ("END",),
    "reasoning_effort": "low",
    "extra_body": {"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}, "provider": {"order": ["one", "two"]}},
}
SECRET = "sk-desk-0123456789"


@pytest.mark.parametrize("streams", [False, True])
async def test_each_request_has_the_fields_of_the_settings(streams: bool) -> None:
    async with endpoint(completion("ok"), events(["ok"]), **FIELDS) as (server, provider):
        await provider.complete(ask(temperature=0.1))
        await streamed(provider, temperature=0.1)
    body = server.hits[streams].body
    expected = {**FIELDS, "stop": ["END"], **FIELDS["extra_body"]}
    del expected["extra_body"]
    assert {name: body[name] for name in expected} == expected
    assert list(body)[-len(expected) :] == list(expected), "they come last, each once"


async def test_a_field_that_the_settings_add_is_not_left_out_where_the_endpoint_refuses_it() -> None:
    """Kitchener leaves out what it chose itself; what a user chose is told as wrong."""
    async with endpoint(*[error(400, "Unsupported value: 'temperature' does not support 0.6")] * 3, temperature=0.6) as (
        server,
        provider,
    ):
        with pytest.raises(ProviderError, match=r"does not support 0\.6"):
            await provider.complete(ask())
    assert {hit.body["temperature"] for hit in server.hits} == {0.6}


async def test_headers_and_a_query_go_out_with_each_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As Azure wants them: the key in `api-key`, and the version behind the address."""
    monkeypatch.setenv("DESK_KEY", SECRET)
    (tmp_path / "token").write_text("t-0123456789\n")
    settings = {
        "headers": {"api-key": "env:DESK_KEY", "X-Title": "Garden & Co", "X-Token": f"file:{tmp_path}/token"},
        "query": {"api-version": "2024-10-21"},
    }
    async with endpoint(completion("ok"), completion("ok"), **settings) as (server, provider):
        await provider.complete(ask())
        await provider.complete(ask())
    for hit in server.hits:
        assert hit.path == "/v1/chat/completions?api-version=2024-10-21"
        assert (hit.headers["api-key"], hit.headers["x-title"], hit.headers["x-token"]) == (
            SECRET,
            "Garden & Co",
            "t-0123456789",
        )
        assert "authorization" not in hit.headers


@pytest.mark.parametrize("value", [SECRET, f"Bearer {SECRET}"])
async def test_an_endpoint_that_repeats_a_secret_header_shows_it_to_nobody(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_KEY", value)
    monkeypatch.setenv("DESK_CODE", "code-9876543210")
    sent = {"headers": {"authorization": "env:DESK_KEY"}, "query": {"code": "env:DESK_CODE"}}
    said = f"{SECRET} and code-9876543210"
    async with endpoint(completion(said), events([said[:9], said[9:]]), error(400, said), **sent) as (_, provider):
        assert (await provider.complete(ask())).text == "*** and ***"
        assert "".join((await streamed(provider))[0]) == "*** and ***"
        with pytest.raises(ProviderError) as caught:
            await provider.complete(ask())
    assert SECRET not in str(caught.value)
    assert "9876543210" not in str(caught.value)


async def test_an_endpoint_that_cannot_be_reached_shows_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_CODE", "code-9876543210")
    config = one(base_url="http://127.0.0.1:1/v1", model="m", query={"code": "env:DESK_CODE"})
    async with build_providers(config) as providers:
        assert "9876543210" not in repr(providers)
        with pytest.raises(ProviderError) as caught:
            await providers["it"].complete(ask())
    assert "9876543210" not in f"{caught.value!r} {caught.value.__cause__!r}"


@pytest.mark.parametrize("code", ["aB3+dE/fGh1JkLmN0pQr==", "50 % of this & more"])
async def test_an_endpoint_that_quotes_the_address_of_a_request_shows_no_query(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a key was found only as it stands, not as the address has it."""
    monkeypatch.setenv("DESK_CODE", code)
    async with endpoint(query={"code": "env:DESK_CODE"}) as (server, provider):
        server.respond = lambda hit: error(404, f"no route {hit.path}")
        with pytest.raises(ProviderError) as caught:
            await provider.complete(ask())
    assert caught.value.detail == "HTTP 404: no route /v1/chat/completions?code=***; check `base_url`"
    assert "%" in server.hits[0].path


async def test_an_endpoint_that_takes_no_connection_shows_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the client's error, which is the cause of ours, has the whole address."""
    monkeypatch.setenv("DESK_CODE", "aB3+dE/fGh1JkLmN0pQr==")
    with unanswered() as url:
        async with opened(url, query={"code": "env:DESK_CODE"}, timeout_s=0.3) as provider:
            with pytest.raises(ProviderError) as caught, anyio.fail_after(20):
                await provider.complete(ask())
    assert caught.value.reason == "timeout"
    shown = "".join(traceback.format_exception(caught.value))
    assert ("aB3" in shown, "in time" in shown) == (False, True)


async def test_an_endpoint_that_repeats_the_password_of_its_address_shows_it_to_nobody() -> None:
    async with fake_server() as server, opened(server.url.replace("//", "//me:pass%2Dword@")) as provider:
        server.respond = lambda hit: error(401, f"who is {hit.headers['authorization']}, pass-word?")
        with pytest.raises(ProviderError) as caught:
            await provider.complete(ask())
    assert caught.value.detail == f"HTTP 401: who is Basic ***, ***?; {CHECK_KEY}"


# --- refused settings ---------------------------------------------------------------------------------------------------

OWNED = ("messages", "model", "stream", "tools", "tool_choice", "response_format", "max_tokens", "max_completion_tokens", "n")
WRONG: list[tuple[dict[str, Any], str, str]] = [
    *[({"extra_body": {name: 1}}, "extra_body", f"cannot have {name!r}: ") for name in OWNED],
    ({"extra_body": {"temperature": 1}}, "extra_body", "set it in the provider's table itself"),
    ({"extra_body": {"note": "x" * 70_000}}, "extra_body", "expected at most 65,536"),
    ({"extra_body": {"top_k": 2**60}}, "extra_body", "must hold JSON values"),
    ({"extra_body": {"top_k": float("inf")}}, "extra_body", "must hold JSON values"),
    ({"extra_body": "top_k"}, "extra_body", "must be an object"),
    ({"temperature": 2.5}, "temperature", "less than or equal to 2"),
    ({"temperature": "0.5"}, "temperature", "valid number"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"seed": 0.5}, "seed", "integer"),
    ({"stop": [""]}, "stop[0]", "at least 1 character"),
    ({"stop": [str(each) for each in range(17)]}, "stop", "at most 16"),
    ({"reasoning_effort": "High!"}, "reasoning_effort", "match pattern"),
    ({"extra_headers": {}}, "extra_headers", "it is called 'headers' here"),
    ({"stop_sequences": []}, "stop_sequences", "it is called 'stop' here"),
    ({"top_k": 5}, "top_k", "a field of requests goes to `extra_body`"),
    ({"max_tokens": 5}, "max_tokens", "'max_tokens' is a setting of [agents.<name>]"),
    ({"headers": {"Content-Type": "text/plain"}}, "headers", "cannot have 'Content-Type': Kitchener's HTTP client writes it"),
    ({"headers": {"traceparent": "x"}}, "headers", "set `send_traceparent`"),
    ({"headers": {"X-Title": "a", "x-title": "b"}}, "headers", "names one header twice"),
    ({"headers": {"X Title": "a"}}, "headers", "not the name of a header"),
    ({"headers": {"X-Title": "a\r\nHost: b"}}, "headers", "printable ASCII"),
    ({"headers": {"X-Title": "a" * 9_000}}, "headers", "at most 8,192"),
    ({"headers": {f"X-{each}": "a" for each in range(33)}}, "headers", "at most 32"),
    ({"headers": {"api-key": SECRET}}, "headers", "never the key itself"),
    ({"headers": {"X-Title": "env:not a name"}}, "headers", "must be a reference"),
    ({"query": {"subscription-key": SECRET}}, "query", "never the key itself"),
    ({"headers": {"Authorization": "env:KEY"}, "api_key": "env:KEY"}, "", "leave out one of the two"),
    ({"kind": "offline", "top_p": 0.5}, "", "top_p: only kind 'openai_compatible' sends it"),
    ({"kind": "model", "model": "anthropic:m", "headers": {"X-Title": "a"}}, "", "only kind 'openai_compatible'"),
]


@pytest.mark.parametrize(("settings", "key", "expected"), WRONG, ids=lambda each: str(each)[:40])
def test_a_setting_that_cannot_be_sent_is_refused_by_name_with_the_remedy(
    settings: dict[str, Any], key: str, expected: str
) -> None:
    table = {"base_url": "http://127.0.0.1:1/v1", "model": "m", **settings}
    with pytest.raises(ConfigError) as caught:
        parse_settings(RuntimeConfig, {"router": {"providers": {"it": table}}}, "kitchener.toml")
    assert caught.value.key == f"router.providers.it{'.' if key else ''}{key}"
    assert expected in caught.value.expected
    assert SECRET not in str(caught.value)


def test_an_address_with_a_query_names_the_setting_for_it() -> None:
    with pytest.raises(ConfigError, match="parameters of a provider to `query`"):
        check_router(one(base_url="http://127.0.0.1:1/v1?api-version=1", model="m"))


@pytest.mark.parametrize("secret", ["a\nb", "é", "x" * 9_000])
async def test_a_secret_that_no_header_can_carry_is_refused_when_the_provider_opens(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_KEY", secret)
    refused = await refusal_of(one(base_url="http://127.0.0.1:1/v1", model="m", headers={"api-key": "env:DESK_KEY"}))
    assert refused.key == "router.providers.it.headers.api-key"
    assert secret not in str(refused)


def test_shown_settings_hold_no_value_that_may_be_a_secret() -> None:
    provider = ProviderConfig(
        base_url="http://127.0.0.1:1/v1",
        model="m",
        headers={"api-key": "env:DESK_KEY", "X-Title": "garden", "X-Note": SECRET},
        query={"api-version": "2024-10-21", "code": SECRET},
        extra_body={"top_k": 20, "user": SECRET, "provider": {"order": ["one"]}},
    )
    shown = without_secrets(RouterConfig(default_provider="it", providers={"it": provider}))
    assert SECRET not in json.dumps(shown)
    table = shown["providers"]["it"]  # type: ignore[index]
    assert table["headers"]["api-key"] == "env:DESK_KEY"
    assert table["headers"]["X-Title"] == "garden"
    assert (table["extra_body"]["top_k"], table["extra_body"]["provider"]) == (20, {"order": ["one"]})


# --- accounts without money ---------------------------------------------------------------------------------------------


def told(status: int, **fields: Any) -> Answer:
    return Answer(orjson.dumps({"error": fields}), status)


EMPTY: dict[str, Answer] = {
    "OpenAI": told(
        429, message="You exceeded your current quota", type="insufficient_quota", param=None, code="insufficient_quota"
    ),
    "OpenRouter": told(402, message="Insufficient credits. Add more", code=402),
    "OpenRouter, with status 200": told(200, message="Insufficient credits. Add more", code=402),
    "DeepSeek": told(402, message="Insufficient Balance", type="unknown_error", param=None, code="invalid_request_error"),
    "Moonshot": told(429, message="Your account is suspended, check your balance", type="exceeded_current_quota_error"),
    "One API": told(403, message="quota", type="new_api_error", code="insufficient_user_quota"),
}


@pytest.mark.parametrize("who", EMPTY)
@pytest.mark.parametrize("streams", [False, True])
async def test_an_account_without_money_is_told_apart_from_a_limit_of_the_rate(who: str, streams: bool) -> None:
    async with endpoint(EMPTY[who]) as (_, provider):
        with pytest.raises(ProviderError) as caught:
            await (streamed(provider) if streams else provider.complete(ask()))
    assert caught.value.reason == "out_of_credit"


async def test_a_429_without_such_a_code_is_a_limit_of_the_rate() -> None:
    async with endpoint(told(429, message="Rate limit reached", type="requests", code="rate_limit_exceeded")) as (_, provider):
        with pytest.raises(ProviderError) as caught:
            await provider.complete(ask())
    assert caught.value.reason == "rate_limited"
