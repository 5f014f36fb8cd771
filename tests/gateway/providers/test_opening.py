"""From configuration to open providers: keys by reference only, vendors by name, nothing opened in vain."""

from pathlib import Path

import anyio
import pytest

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ConfigError, ProviderError
from kitchener.gateway import LLMGateway, build_providers
from kitchener.gateway.providers.factory import read_secret
from tests.gateway.shared.fake_server import completion, fake_server
from tests.gateway.shared.gateway_kit import Told, ask, one, refusal_of


async def test_offline_is_always_there() -> None:
    async with (
        build_providers(RouterConfig(providers={})) as providers,
        LLMGateway(RouterConfig(), providers).open() as gateway,
    ):
        response = await gateway.complete(ask(), on_attempt=Told())
    assert list(providers) == ["offline"]
    assert (response.provider_id, response.model_id) == ("offline", "offline-rules-1")


async def test_the_offline_model_answers_under_other_names_too() -> None:
    async with build_providers(one(kind="offline")) as providers:
        assert (await providers["it"].complete(ask())).provider_id == "it"


async def test_leaving_the_block_closes_the_connections() -> None:
    async with fake_server() as server:
        config = one(base_url=server.url, model="m")
        async with build_providers(config) as providers:
            await providers["it"].complete(ask())
            await anyio.wait_all_tasks_blocked()
            assert not server.ended.is_set()
        with anyio.fail_after(10):
            await server.ended.wait()


# --- keys ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "shown", "expected"),
    [
        ("env:KITCHENER_TEST_UNSET", "env:KITCHENER_TEST_UNSET", "environment variable KITCHENER_TEST_UNSET is not set"),
        ("env:KITCHENER_TEST_EMPTY", "env:KITCHENER_TEST_EMPTY", "leads to an empty value"),
        ("env:perhaps_a_key", "env:(not shown)", "environment variable of that name is not set"),
        ("file:/nowhere/key", "file:(not shown)", "cannot be read: No such file or directory"),
    ],
)
async def test_a_reference_that_leads_nowhere_is_named(
    reference: str, shown: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KITCHENER_TEST_UNSET", raising=False)
    monkeypatch.setenv("KITCHENER_TEST_EMPTY", " ")
    refused = await refusal_of(one(base_url="http://127.0.0.1:1/v1", model="m", api_key=reference))
    assert (refused.key, refused.value, refused.expected) == ("router.providers.it.api_key", repr(shown), expected)


@pytest.mark.parametrize("written", ["sk-secret", "env:sk-secret"])
async def test_a_key_in_place_of_a_reference_is_refused_and_not_shown(written: str) -> None:
    refused = await refusal_of(one(base_url="http://127.0.0.1:1/v1", model="m", api_key=written))
    assert "must be a reference" in refused.expected
    assert "sk-secret" not in f"{refused!r}{refused}"


def test_a_secret_is_read_without_the_white_space_around_it(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("  sk-1\n")
    assert read_secret(f"file:{file}", "k") == "sk-1"
    assert read_secret(None, "k") is None
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        read_secret(f"file:{file}", "k")


# --- what is not opened -------------------------------------------------------------------------------------------------


async def test_where_model_calls_are_not_allowed_no_key_is_needed_and_nothing_goes_out() -> None:
    async with fake_server() as server:
        remote = ProviderConfig(base_url=server.url, model="m", api_key="env:KITCHENER_TEST_UNSET")
        config = RouterConfig(default_provider="it", providers={"it": remote}, allow_model_calls=False)
        async with build_providers(config) as providers:
            with pytest.raises(ProviderError, match="forbidden"):
                async with LLMGateway(config, providers).open() as gateway:
                    await gateway.complete(ask(), on_attempt=Told())
            with pytest.raises(ProviderError, match="forbidden"):
                await providers["it"].complete(ask())
    assert server.hits == []


async def test_providers_that_the_program_passes_in_are_left_out() -> None:
    config = one(base_url="http://127.0.0.1:1/v1", model="m", api_key="env:KITCHENER_TEST_UNSET")
    async with build_providers(config, given={"it"}) as providers:
        assert list(providers) == ["offline"]


async def test_two_providers_may_share_an_endpoint_and_differ_in_everything_else() -> None:
    async with fake_server(completion("a"), completion("b")) as server:
        providers = {name: ProviderConfig(base_url=server.url, model=name) for name in ("small", "large")}
        config = RouterConfig(default_provider="small", providers=providers)
        async with build_providers(config) as opened, LLMGateway(config, opened).open() as gateway:
            for name in ("small", "large"):
                await gateway.complete(ask(provider_id=name), on_attempt=Told())
    assert [hit.body["model"] for hit in server.hits] == ["small", "large"]
