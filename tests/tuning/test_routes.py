"""Another router over recorded calls: providers do what they did, and the same router changes nothing (docs/gateway.md)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.config import HO2Config, ModelChoice, ModelPrice, ProviderConfig, Route, RouterConfig, RuntimeConfig
from kitchener.config.router import price_of
from kitchener.errors import ProviderError, ProviderReason
from kitchener.gateway import LLMGateway
from kitchener.records.prompt import Attempt
from kitchener.replaying.on_record.recorded_ledgers import open_recorded
from kitchener.runtime import open_runtime
from kitchener.testing import ScriptedProvider, prompt_request
from kitchener.tuning import OWN_MODELS, PastAttempt, RecordedCall, Reroute, Router, RouteSummary, Tokens, read_calls
from tests.acceptance.memory.memory_kit import LESSON
from tests.acceptance.stack import QUICK
from tests.replay.shared.recorded_sessions import model
from tests.shared.property_examples import examples

NAMES = ("a", "b", "c")
TAGS = ("consolidation", "long")
RETRYABLE: tuple[ProviderReason, ...] = ("rate_limited", "connection", "empty")
FATAL: tuple[ProviderReason, ...] = ("bad_request", "authentication")


def settings_of(**fields: Any) -> RouterConfig:
    """A router of three providers, each with a model of its own."""
    providers = {
        name: ProviderConfig(base_url="http://127.0.0.1:1/v1", model=f"{name}-own", max_retries=2, backoff_initial_s=0.001)
        for name in NAMES
    }
    return RouterConfig(**{"default_provider": "a", "providers": providers, **fields})


def call_of(
    *tries: PastAttempt,
    answered: bool = True,
    provider_id: str | None = None,
    model_id: str | None = None,
    tags: tuple[str, ...] = (),
) -> RecordedCall:
    return RecordedCall(
        wo_id="WO-1",
        wo_type="synthesize",
        call=1,
        session_id="SES-00000001",
        turn_id="T-00000001-000001",
        provider_id=provider_id,
        model_id=model_id,
        domain_tags=tags,
        tries=tries,
        state="answered" if answered else "failed",
        tokens=Tokens(1_000, 100) if answered else None,
    )


def rerouted(call: RecordedCall, other: RouterConfig, recorded: RouterConfig | None = None) -> Any:
    return Reroute(Router(recorded or settings_of()), Router(other)).of(call)


class TestSteps:
    """Explicit, then the first routed tag, then the default; the plan is the gateway's."""

    def test_another_default(self) -> None:
        found = rerouted(call_of(PastAttempt("a", "a-own", "default")), settings_of(default_provider="b"))
        assert (found.other.provider_id, found.other.model_id, found.other.route_reason) == ("b", "b-own", "default")
        assert (found.is_changed, found.other.is_assumed, found.recorded.is_assumed) == (True, True, False)

    def test_a_tag_that_is_routed_now(self) -> None:
        other = settings_of(domain_tag_routes={"long": Route(provider_id="c", model_id="big")})
        found = rerouted(call_of(PastAttempt("a", "a-own", "default"), tags=("consolidation", "long")), other)
        assert found.other[:4] == ("c", "big", "domain_tag:long", "answered")

    def test_another_route_to_the_same_is_no_change(self) -> None:
        other = settings_of(domain_tag_routes={"long": Route(provider_id="a")})
        found = rerouted(call_of(PastAttempt("a", "a-own", "default"), tags=("long",)), other)
        assert (found.other[:3], found.is_changed, found.other.is_assumed) == (("a", "a-own", "domain_tag:long"), False, False)

    def test_what_was_asked_for_stays(self) -> None:
        call = call_of(PastAttempt("b", "mine", "explicit"), provider_id="b", model_id="mine")
        found = rerouted(call, settings_of(default_provider="c", domain_tag_routes={"long": Route(provider_id="c")}))
        assert (found.other[:3], found.is_changed) == (("b", "mine", "explicit"), False)

    def test_a_provider_that_is_asked_for_and_not_there_fails(self) -> None:
        call = call_of(PastAttempt("b", "b-own", "explicit"), provider_id="b")
        other = RouterConfig(providers={"a": settings_of().providers["a"]})
        found = rerouted(call, other).other
        assert (found.state, found.failure, found.provider_id) == ("failed", "bad_request", "b")

    def test_models_that_are_forbidden(self) -> None:
        call = call_of(PastAttempt("a", "a-own", "default"))
        assert rerouted(call, settings_of(allow_model_calls=False)).other.failure == "forbidden"
        offline = RouterConfig(allow_model_calls=False)
        found = Reroute(Router(settings_of()), Router(offline, own_models=OWN_MODELS)).of(call).other
        assert found[:4] == ("offline", OWN_MODELS["offline"], "default", "answered")


class TestFailures:
    """Failures on record are taken as given."""

    FELL_BACK = (PastAttempt("a", "a-own", "default", "connection"), PastAttempt("b", "b-own", "fallback"))
    WITH_FALLBACK = settings_of(fallbacks={"a": ("b",)})

    def test_a_provider_that_failed_fails_again_and_the_next_fallback_is_another(self) -> None:
        found = rerouted(call_of(*self.FELL_BACK), settings_of(fallbacks={"a": ("c", "b")}), self.WITH_FALLBACK)
        assert found.other == ("c", "c-own", "fallback", "answered", None, True)

    def test_without_a_fallback_the_call_fails(self) -> None:
        found = rerouted(call_of(*self.FELL_BACK), settings_of(), self.WITH_FALLBACK)
        assert (found.other.provider_id, found.other.state, found.other.failure) == ("a", "failed", "connection")
        assert (found.is_changed, found.other_cost) == (True, 0.0)

    def test_the_fallback_that_answered_then_answers_as_the_first(self) -> None:
        found = rerouted(call_of(*self.FELL_BACK), settings_of(default_provider="b"), self.WITH_FALLBACK).other
        assert (found.provider_id, found.state, found.is_assumed, found.fell_back) == ("b", "answered", False, False)

    def test_fewer_retries_give_up_before_the_answer(self) -> None:
        call = call_of(PastAttempt("a", "a-own", "default", "empty"), PastAttempt("a", "a-own", "default"))
        hasty = settings_of(fallbacks={"a": ("b",)})
        hasty = hasty.model_copy(
            update={"providers": {**hasty.providers, "a": hasty.providers["a"].model_copy(update={"max_retries": 0})}}
        )
        assert rerouted(call, hasty, self.WITH_FALLBACK).other == ("b", "b-own", "fallback", "answered", None, True)
        assert rerouted(call, settings_of()).other[:4] == ("a", "a-own", "default", "answered")

    @pytest.mark.parametrize(
        ("reason", "state"), [("connection", "failed"), ("bad_request", "answered"), ("empty", "answered")]
    )
    def test_another_model_of_a_provider_meets_its_outages_only(self, reason: ProviderReason, state: str) -> None:
        call = call_of(PastAttempt("a", "a-own", "default", reason), answered=False)
        found = rerouted(call, settings_of(default_model="other"))
        assert (found.other.model_id, found.other.state) == ("other", state)

    def test_a_provider_that_was_left_out_is_left_out_again(self) -> None:
        """As an open circuit does: the fallback was asked though there is no attempt at the first."""
        call = call_of(PastAttempt("b", "b-own", "fallback"))
        assert not rerouted(call, self.WITH_FALLBACK, self.WITH_FALLBACK).is_changed
        assert rerouted(call, settings_of(), self.WITH_FALLBACK).other.failure == "breaker_open"

    def test_a_failure_that_ended_the_call_ends_it_again(self) -> None:
        """Its deadline had passed, or text had been shown: no fallback was tried then."""
        call = call_of(PastAttempt("a", "a-own", "default", "timeout"), answered=False)
        assert not rerouted(call, self.WITH_FALLBACK, self.WITH_FALLBACK).is_changed
        shown = call_of(PastAttempt("a", "a-own", "default", "timeout", True), answered=False)
        assert not rerouted(shown, self.WITH_FALLBACK).is_changed
        assert rerouted(call, self.WITH_FALLBACK, settings_of()).other[:4] == ("b", "b-own", "fallback", "answered")


PRICES = {
    "a-own": ModelPrice(input_per_million=2, output_per_million=10, cached_per_million=0.5),
    "b-own": ModelPrice(input_per_million=1, output_per_million=4),
}


class TestCosts:
    def test_the_same_tokens_at_both_prices(self) -> None:
        found = rerouted(
            call_of(PastAttempt("a", "a-own", "default")), settings_of(default_provider="b"), settings_of(prices=PRICES)
        )
        assert (found.recorded_cost, found.other_cost) == (pytest.approx(0.003), pytest.approx(0.0014))

    def test_a_model_without_a_price_is_in_neither_sum(self) -> None:
        summary = RouteSummary()
        for provider_id in ("b", "c"):
            call = call_of(PastAttempt("a", "a-own", "default"), provider_id=None)
            summary.add(rerouted(call, settings_of(default_provider=provider_id, prices=PRICES)))
        found = summary.sums()["cost"]
        assert found == {
            "recorded": pytest.approx(0.003),
            "other": pytest.approx(0.0014),
            "difference": pytest.approx(-0.0016),
            "unpriced_calls": 1,
        }

    def test_the_built_in_model_is_free_and_a_provider_of_its_name_is_not(self) -> None:
        call = call_of(PastAttempt("offline", "x", "default"))
        assert rerouted(call, settings_of(), RouterConfig()).recorded_cost == 0.0
        mine = RouterConfig(providers={"offline": settings_of().providers["a"]})
        assert rerouted(call, settings_of(), mine).recorded_cost is None

    @given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 20_000))
    def test_cached_tokens_cost_their_own_price(self, sent: int, received: int, cached: int) -> None:
        price = PRICES["a-own"]
        found = price.cost(sent, received, cached, 0)
        kept = min(cached, sent)
        assert found == pytest.approx(((sent - kept) * 2 + kept * 0.5 + received * 10) / 1e6)
        dearer = price.model_copy(update={"cached_per_million": None}).cost(sent, received, cached, 0)
        assert dearer >= found

    @given(st.integers(0, 10_000), st.integers(0, 20_000), st.integers(0, 20_000))
    def test_what_is_written_to_a_cache_costs_its_own_price(self, sent: int, cached: int, written: int) -> None:
        """Each token has one price, whatever a provider claims to have read and written."""
        price = PRICES["a-own"].model_copy(update={"cache_write_per_million": 2.5})
        kept = min(cached, sent)
        stored = min(written, sent - kept)
        expected = ((sent - kept - stored) * 2 + kept * 0.5 + stored * 2.5) / 1e6
        assert price.cost(sent, 0, cached, written) == pytest.approx(expected)
        as_input = PRICES["a-own"].cost(sent, 0, cached, written)
        assert as_input == pytest.approx(((sent - kept) * 2 + kept * 0.5) / 1e6)

    def test_a_price_of_one_provider_is_not_the_price_at_another(self) -> None:
        dear, cheap = PRICES["a-own"], PRICES["a-own"].model_copy(update={"input_per_million": 1.0})
        prices = {"m": dear, "local/m": cheap, "x/y": dear}
        assert price_of(prices, "local", "m") is cheap
        assert price_of(prices, "other", "m") is dear
        assert price_of(prices, "other", "x/y") is dear
        assert price_of(prices, "other", "unknown") is None


routers = st.builds(
    settings_of,
    default_provider=st.sampled_from(NAMES),
    default_model=st.sampled_from([None, "big"]),
    domain_tag_routes=st.dictionaries(
        st.sampled_from(TAGS),
        st.builds(Route, provider_id=st.sampled_from(NAMES), model_id=st.sampled_from([None, "small"])),
        max_size=2,
    ),
    fallbacks=st.dictionaries(
        st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), unique=True, max_size=2).map(tuple), max_size=3
    ).map(lambda found: {name: tuple(each for each in others if each != name) for name, others in found.items()}),
)
requests = st.fixed_dictionaries(
    {
        "provider_id": st.sampled_from([None, None, *NAMES]),
        "model_id": st.sampled_from([None, "asked"]),
        "domain_tags": st.lists(st.sampled_from(TAGS), unique=True, max_size=2).map(tuple),
    }
)
scripts = st.fixed_dictionaries(
    {name: st.lists(st.sampled_from([None, *RETRYABLE, *FATAL]), min_size=4, max_size=4) for name in NAMES}
)


async def made(
    config: RouterConfig, request: dict[str, Any], script: dict[str, Sequence[ProviderReason | None]]
) -> RecordedCall:
    """A call through the real gateway, recorded as the executor records it."""
    tries: dict[int, PastAttempt] = {}

    async def note(each: Attempt) -> None:
        tries[each.attempt] = PastAttempt(each.provider_id, each.model_id, each.route_reason, each.reason, each.output_begun)

    providers = {
        name: ScriptedProvider(["answer" if each is None else ProviderError(name, each, "scripted") for each in script[name]])
        for name in NAMES
    }
    async with LLMGateway(config, providers, jitter=lambda: 0.0).open() as gateway:
        is_answered = True
        try:
            await gateway.complete(prompt_request("hello", **request), on_attempt=note)
        except ProviderError:
            is_answered = False
        return call_of(
            *(tries[n] for n in sorted(tries)),
            answered=is_answered,
            provider_id=request["provider_id"],
            model_id=request["model_id"],
            tags=request["domain_tags"],
        )


@settings(max_examples=examples(few=30, many=1_000))
@given(routers, requests, scripts)
async def test_under_the_router_of_the_record_nothing_changes(
    config: RouterConfig, request: dict[str, Any], script: Any
) -> None:
    """Whatever failed, was tried again, or fell back: the real gateway's end is the one that is worked out."""
    call = await made(config, request, script)
    found = rerouted(call, config, config)
    assert found.other[:5] == found.recorded[:5]
    assert not found.other.is_assumed
    assert not found.is_changed


@settings(max_examples=examples(few=30, many=1_000))
@given(routers, routers, requests)
async def test_where_nothing_failed_another_router_asks_whom_the_gateway_would_ask(
    config: RouterConfig, other: RouterConfig, request: dict[str, Any]
) -> None:
    calm: Any = {name: [None] * 4 for name in NAMES}
    before, after = await made(config, request, calm), await made(other, request, calm)
    found = rerouted(before, other, config)
    assert found.other[:3] == after.choice[:3]
    assert found.is_changed == (before.choice[:2] != after.choice[:2])


def test_an_agent_class_asks_for_its_own_models_and_tags() -> None:
    """Its settings replace what is on record; without them, or for a call without tags, that stays."""
    call = call_of(PastAttempt("b", "b-own", "explicit"), provider_id="b", tags=("synthesis",))
    router = settings_of(domain_tag_routes={"long": Route(provider_id="c")})
    by_record = Reroute(Router(router), Router(router)).choose(call)
    assert by_record[:3] == ("b", "b-own", "explicit")
    named = HO2Config(models={"synthesis": ModelChoice(provider="a", model="a-large")})
    tagged, plain = HO2Config(domain_tags=("long",)), HO2Config()
    chosen = [Reroute(Router(router), Router(router, agent=each)).choose(call)[:3] for each in (named, tagged, plain)]
    assert chosen == [("a", "a-large", "explicit"), ("c", "c-own", "domain_tag:long"), ("a", "a-own", "default")]
    untagged = call_of(PastAttempt("a", "a-own", "default"))
    assert Reroute(Router(router), Router(router, agent=tagged)).choose(untagged).route_reason == "default"


async def test_recorded_sessions_under_their_own_router_and_under_another(tmp_path: Path) -> None:
    """Calls of real turns with failures and consolidations: read from the ledgers with what their work orders asked for."""

    def first(request: Any) -> Any:
        if request.wo_type == "classify":
            raise ProviderError("first", "server_error", "HTTP 503", status=503)
        return LESSON if request.wo_type == "consolidate" else model(request)

    router = RouterConfig(
        default_provider="first",
        providers={"first": ProviderConfig(kind="offline", max_retries=1, backoff_initial_s=0.001, breaker_failures=3)},
        fallbacks={"first": ("second",)},
        domain_tag_routes={"consolidation": Route(provider_id="second")},
    )
    agent = {"agent_class": "ADMIN", "ho3_enabled": True, "ho3_gate_count_threshold": 2, "ho3_gate_session_threshold": 1}
    config = RuntimeConfig.model_validate(
        {"plane_root": str(tmp_path), "ledger": QUICK, "router": router, "agents": {"ADMIN": agent}}
    )
    providers = {"first": ScriptedProvider(first), "second": ScriptedProvider(model)}
    async with open_runtime(config, providers=providers) as runtime:
        session_id = await runtime.supervisor().start_session(subject_id="ada")
        for message in ("hello", "which packages?", "thanks"):
            await runtime.supervisor().handle_turn(message, session_id=session_id)
            await runtime.drain()
    async with open_recorded(config, "ADMIN") as recorded:
        ho1m, ho2m = recorded.readers[recorded.ho1m], recorded.readers[recorded.ho2m]
        calls = [call async for call in read_calls(ho1m, ho2m)]
        mine = [call async for call in read_calls(ho1m, ho2m, session_id)]
    learned = [call for call in calls if call.wo_type == "consolidate"]
    assert len(calls) == len(mine) + len(learned) == 6 + len(learned)
    assert {call.domain_tags for call in learned} == {("consolidation",)}
    assert {call.turn_id for call in learned} == {None}
    given_, own = ("first", "second"), {"first": "scripted", "second": "scripted"}
    for call in calls:
        own |= {each.provider_id: each.model_id for each in call.tries}
    own_router = Router(router, given_, own)
    assert not any(Reroute(own_router, own_router).of(call).is_changed for call in calls)
    classified = [call for call in mine if call.wo_type == "classify"]
    assert all(call.choice.fell_back for call in classified)
    other = router.model_copy(update={"default_provider": "second", "domain_tag_routes": {}})
    found = RouteSummary()
    for call in calls:
        found.add(Reroute(own_router, Router(other, given_, own)).of(call))
    told = found.sums()
    assert told["fallbacks"] == {"recorded": 3, "other": 0, "gained": 0, "lost": 3}
    assert told["calls"] == len(calls)
    assert told["changed"] == 3 + sum(call.choice.provider_id == "first" for call in calls)
    assert sum(way.calls for way in found.pairs) == len(calls)
