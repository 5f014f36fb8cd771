"""Who is asked: explicit, then the first routed tag, then the default; and what the router's settings may say."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.config import ProviderConfig, Route, RouterConfig
from kitchener.errors import ConfigError, ProviderError
from kitchener.gateway import LLMGateway
from kitchener.gateway.routing import Candidate, check_router, plan_route, route
from kitchener.testing import ScriptedProvider
from tests.gateway.shared.gateway_kit import Told, ask


def two_places() -> tuple[LLMGateway, ScriptedProvider, ScriptedProvider]:
    """A gateway with `remote` as default and the tag `consolidation` mapped to `local`."""
    remote, local = ScriptedProvider(lambda _: "from remote"), ScriptedProvider(lambda _: "from local")
    config = RouterConfig(
        default_provider="remote",
        domain_tag_routes={"consolidation": Route(provider_id="local", model_id="small")},
    )
    return LLMGateway(config, {"remote": remote, "local": local}), remote, local


async def test_domain_tag_routes_local() -> None:
    """A request tagged `consolidation` goes to the provider and model that the tag is mapped to."""
    gateway, remote, local = two_places()
    async with gateway.open():
        told = Told()
        response = await gateway.complete(ask(domain_tags=("other", "consolidation")), on_attempt=told)
        assert (response.text, response.provider_id) == ("from local", "local")
        assert response.route_reason == "domain_tag:consolidation"
        assert local.requests[0].model_id == "small"
        assert remote.requests == []
        assert (told.attempts[0].provider_id, told.attempts[0].model_id) == ("local", "small")


async def test_no_tag_routes_default() -> None:
    """Without tags, or with tags that nobody routes, the default provider answers."""
    gateway, remote, local = two_places()
    async with gateway.open():
        for tags in ((), ("other",)):
            response = await gateway.complete(ask(domain_tags=tags), on_attempt=Told())
            assert (response.provider_id, response.route_reason) == ("remote", "default")
        assert len(remote.requests) == 2
        assert local.requests == []


async def test_explicit_provider_overrides_tags() -> None:
    """A provider that the request names answers, whatever its tags say."""
    gateway, remote, local = two_places()
    async with gateway.open():
        response = await gateway.complete(ask(provider_id="remote", domain_tags=("consolidation",)), on_attempt=Told())
        assert (response.provider_id, response.route_reason) == ("remote", "explicit")
        assert remote.requests[0].model_id is None
        assert local.requests == []


async def test_a_model_that_the_request_names_wins_over_the_routes_own() -> None:
    gateway, _, local = two_places()
    async with gateway.open():
        await gateway.complete(ask(domain_tags=("consolidation",), model_id="large"), on_attempt=Told())
        assert local.requests[0].model_id == "large"


async def test_an_unknown_explicit_provider_is_a_callers_error_that_names_the_known_ones() -> None:
    gateway, *_ = two_places()
    async with gateway.open():
        told = Told()
        with pytest.raises(ProviderError, match="local, offline, remote") as caught:
            await gateway.complete(ask(provider_id="lokal"), on_attempt=told)
        assert (caught.value.reason, caught.value.provider_id) == ("bad_request", "lokal")
        assert told.attempts == []


NAMES = st.sampled_from(["a", "b", "c", "d"])
TAGS = st.sampled_from(["t1", "t2", "t3"])
ROUTES = st.dictionaries(TAGS, st.builds(Route, provider_id=NAMES, model_id=st.none() | st.sampled_from(["m1", "m2"])))


@given(
    default=NAMES,
    routes=ROUTES,
    fallbacks=st.dictionaries(NAMES, st.lists(NAMES, unique=True, max_size=3).map(tuple)),
    explicit=st.none() | NAMES,
    tags=st.lists(TAGS, max_size=3).map(tuple),
    model=st.none() | st.just("asked"),
)
def test_precedence_holds_for_every_configuration(
    default: str,
    routes: dict[str, Route],
    fallbacks: dict[str, tuple[str, ...]],
    explicit: str | None,
    tags: tuple[str, ...],
    model: str | None,
) -> None:
    """Explicit request, else the first tag that has a route, else the default; then that provider's fallbacks in order."""
    providers = {name: ProviderConfig(kind="offline", model=f"{name}-own") for name in "abcd"}
    config = RouterConfig(default_provider=default, providers=providers, domain_tag_routes=routes, fallbacks=fallbacks)
    first, *others = plan_route(explicit, model, tags, config).candidates
    routed = [tag for tag in tags if tag in routes]
    if explicit is not None:
        expected = Candidate(explicit, model or f"{explicit}-own", "explicit")
    elif routed:
        to = routes[routed[0]]
        expected = Candidate(to.provider_id, model or to.model_id or f"{to.provider_id}-own", f"domain_tag:{routed[0]}")
    else:
        expected = Candidate(default, model or f"{default}-own", "default")
    assert first == expected
    assert others == [Candidate(each, f"{each}-own", "fallback") for each in fallbacks.get(first.provider_id, ())]


async def test_the_default_model_is_for_the_default_route_only() -> None:
    config = RouterConfig(default_model="usual", domain_tag_routes={"t": Route(provider_id="offline")})
    assert route(ask(), config).candidates == (Candidate("offline", "usual", "default"),)
    assert route(ask(domain_tags=("t",)), config).candidates == (Candidate("offline", None, "domain_tag:t"),)


LOCAL = ProviderConfig(base_url="http://127.0.0.1:1/v1", model="m")


@pytest.mark.parametrize(
    ("settings", "key", "expected"),
    [
        ({"default_provider": "x"}, "router.default_provider", "no such provider; there are: offline"),
        ({"domain_tag_routes": {"t": Route(provider_id="x")}}, "router.domain_tag_routes.t.provider_id", "no such provider"),
        ({"fallbacks": {"offline": ("x",)}}, "router.fallbacks.offline[0]", "no such provider"),
        ({"fallbacks": {"x": ("offline",)}}, "router.fallbacks.x", "no such provider"),
        ({"fallbacks": {"offline": ("offline",)}}, "router.fallbacks.offline[0]", "its own fallback"),
        (
            {"providers": {"l": LOCAL}, "fallbacks": {"offline": ("l", "l")}},
            "router.fallbacks.offline[1]",
            "is in this list twice",
        ),
        ({"providers": {"l": ProviderConfig(model="m")}}, "router.providers.l.base_url", "needs the root of its endpoint"),
        (
            {"providers": {"l": ProviderConfig(base_url="localhost:8080")}},
            "router.providers.l.base_url",
            "must begin with http",
        ),
        ({"providers": {"v": ProviderConfig(kind="model")}}, "router.providers.v.model", "needs `vendor:model`"),
        (
            {"providers": {"v": ProviderConfig(kind="model", model="google:gemini", send_traceparent=True)}},
            "router.providers.v.send_traceparent",
            "can send it",
        ),
        ({"providers": {"v": ProviderConfig(kind="model", model="gpt")}}, "router.providers.v.model", "needs `vendor:model`"),
        (
            {"providers": {"l": ProviderConfig(base_url="http://h/v1")}, "default_provider": "l"},
            "router.providers.l.model",
            "`router.default_provider` leads here without one",
        ),
        (
            {"providers": {"l": ProviderConfig(base_url="http://h/v1")}, "fallbacks": {"offline": ("l",)}},
            "router.providers.l.model",
            "`router.fallbacks.offline` leads here without one",
        ),
    ],
)
def test_a_wrong_router_is_refused_by_key(settings: dict[str, Any], key: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_router(RouterConfig(**settings), source="kitchener.toml")
    assert caught.value.key == key
    assert expected in caught.value.expected
    assert str(caught.value).startswith(f"kitchener.toml: {key}")


@pytest.mark.parametrize("field", ["api_key", "base_url"])
def test_a_secret_in_the_wrong_place_is_refused_and_not_shown(field: str) -> None:
    value = {"api_key": "sk-very-secret", "base_url": "http://me:sk-very-secret@host/v1"}[field]
    with pytest.raises(ConfigError) as caught:
        check_router(RouterConfig(providers={"l": LOCAL.model_copy(update={field: value})}))
    assert caught.value.key == f"router.providers.l.{field}"
    assert "sk-very-secret" not in f"{caught.value!r} {caught.value}"


def test_a_model_named_by_the_route_is_enough() -> None:
    bare = ProviderConfig(base_url="http://h/v1")
    check_router(RouterConfig(providers={"l": bare}, default_provider="l", default_model="m"))
    check_router(RouterConfig(providers={"l": bare}, domain_tag_routes={"t": Route(provider_id="l", model_id="m")}))


def test_a_provider_that_the_program_passes_in_needs_no_table() -> None:
    check_router(RouterConfig(default_provider="mine"), given={"mine"})
    check_router(RouterConfig(default_provider="mine", providers={"mine": ProviderConfig()}), given={"mine"})


def test_keys_stand_where_the_router_stands() -> None:
    with pytest.raises(ConfigError) as caught:
        check_router(RouterConfig(default_provider="x"), source="router_config.json", at=())
    assert caught.value.key == "default_provider"


@pytest.mark.parametrize(
    ("passed", "found"), [(object(), "object"), ("openai", "str"), (ScriptedProvider, "the class ScriptedProvider")]
)
def test_the_gateway_refuses_what_is_no_provider(passed: Any, found: str) -> None:
    """Otherwise each turn would end with an apology."""
    with pytest.raises(
        ConfigError, match=rf"^argument providers: .mine. = {found}: expected an object with `async def complete"
    ):
        LLMGateway(RouterConfig(), {"mine": passed})


def test_the_gateway_refuses_routes_to_providers_that_it_was_not_given() -> None:
    config = RouterConfig(providers={"l": LOCAL}, default_provider="l")
    with pytest.raises(ConfigError, match=r"default_provider = 'l': no such provider; there are: offline"):
        LLMGateway(config)
