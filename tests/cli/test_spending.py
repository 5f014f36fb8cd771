"""What turns and sessions used and cost, as each command shows it: tokens from a cache have their own price."""

from pathlib import Path

import anyio
import pytest

from kitchener import HO2Config, RuntimeConfig, open_runtime
from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ProviderError
from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.testing import ScriptedProvider
from tests.cli.conftest import Cli

PRICES = """
[router.prices."far/model-b"]
input_per_million = 10.0
output_per_million = 100.0
cached_per_million = 1.0
cache_write_per_million = 20.0
"""
OF_TURN = {"input_tokens": 3_000, "output_tokens": 20, "cached_tokens": 1_000, "cache_write_tokens": 500}
COST = (500 * 10 + 1_000 * 1 + 500 * 20 + 10 * 100) / 1e6
"""Of one reply; its classification is by a model without a price."""


def answer(request: PromptRequest) -> PromptResponse:
    if request.wo_type == "classify":
        said = '{"speech_act": "question", "ambiguity": "low", "labels": {}, "intent_relation": "continue", "confidence": 0.9}'
        return PromptResponse(provider_id="far", model_id="model-a", text=said, usage=Usage(1_000, 10))
    said = '{"response_text": "Yes."}' if request.output_schema is not None else "Yes."
    return PromptResponse(provider_id="far", model_id="model-b", text=said, usage=Usage(2_000, 10, 1_000, 500))


@pytest.fixture
def sessions(cli: Cli, tmp_path: Path) -> list[str]:
    """Two turns of ada and one of bo, called at a provider that caches."""

    async def talk() -> list[str]:
        agents = {"ADMIN": HO2Config()}
        router = RouterConfig(default_provider="far")
        config = RuntimeConfig(plane_root=str(tmp_path / ".kitchener"), router=router, agents=agents)
        async with open_runtime(config, providers={"far": ScriptedProvider(answer)}) as runtime:
            supervisor = runtime.supervisor("ADMIN")
            ada = await supervisor.start_session(subject_id="ada")
            bo = await supervisor.start_session(subject_id="bo")
            for session_id in (ada, ada, bo):
                await supervisor.handle_turn("Is it so?", session_id=session_id)
            return [ada, bo]

    return anyio.run(talk)


def test_all_agent_classes_are_summed_up(cli: Cli, sessions: list[str], tmp_path: Path) -> None:
    """Regression: where there are several, one of them had to be named."""
    (tmp_path / "kitchener.toml").write_text("[agents.DESK]\n[agents.OTHER]\n", encoding="utf-8")
    found = cli("gateway", "cost", "--json").json
    of_one = cli("gateway", "cost", "--agent", "ADMIN", "--json").json
    assert (found["agent_class"], of_one["agent_class"]) == (None, "ADMIN")
    assert found["usage"] == of_one["usage"]
    assert found["usage"]["llm_calls"] == 6
    nothing = cli("gateway", "cost", "--agent", "DESK")
    assert (nothing.code, "no model call of agent class DESK" in nothing.err) == (1, True)


def write_prices(tmp_path: Path, prices: str) -> None:
    (tmp_path / "kitchener.toml").write_text(prices, encoding="utf-8")


def test_a_cost_without_a_price_is_unknown_and_never_nothing(cli: Cli, sessions: list[str], tmp_path: Path) -> None:
    write_prices(tmp_path, PRICES)
    shown = cli("session", "show", sessions[0], "--json").json
    expected = {**OF_TURN, "llm_calls": 2, "tool_calls": 0, "unusable_answers": 0, "cost": None, "unpriced_models": ["model-a"]}
    assert [each["usage"] for each in shown["turns"]] == [expected] * 2
    assert shown["usage"]["input_tokens"] == 6_000
    text = cli("session", "show", sessions[0]).out
    used = "3,000 tokens in (1,000 of them from a cache), 20 out, 2 model calls"
    assert text.count(f'{used}; cost {COST:.3f} and an unknown sum: set [router.prices."model-a"]') == 2
    write_prices(tmp_path, "")
    both = '[router.prices."model-a"] and [router.prices."model-b"]'
    assert f"cost unknown: set {both}" in cli("session", "show", sessions[1]).out
    assert "cost 0" not in cli("session", "show", sessions[1]).out


def test_every_command_says_the_same_of_a_turn(cli: Cli, sessions: list[str], tmp_path: Path) -> None:
    write_prices(tmp_path, PRICES + "[router.prices.model-a]\ninput_per_million = 1.0\noutput_per_million = 0.0\n")
    each, both = COST + 0.001, 2 * COST + 0.002
    shown = cli("session", "show", sessions[0], "--json").json
    assert [turn["usage"]["cost"] for turn in shown["turns"]] == [pytest.approx(each)] * 2
    assert shown["usage"]["cost"] == pytest.approx(both)
    turn_id = shown["turns"][0]["turn_id"]
    explained = cli("context", "explain", turn_id, "--json").json["usage"]
    assert {**explained, "cost": 0} == {**shown["turns"][0]["usage"], "cost": 0}
    assert explained["cost"] == pytest.approx(each)
    of_one = cli("gateway", "cost", sessions[0], "--json").json
    assert of_one["usage"] == {**shown["usage"], "cost": pytest.approx(both)}
    assert [(row["provider_id"], row["model_id"], row["cached_tokens"]) for row in of_one["models"]] == [
        ("far", "model-b", 2_000),
        ("far", "model-a", 0),
    ]
    assert cli("gateway", "cost", "--json").json["usage"]["input_tokens"] == 9_000


def test_costs_by_model_are_a_table(cli: Cli, sessions: list[str], tmp_path: Path) -> None:
    write_prices(tmp_path, PRICES)
    first, big, small, total = cli("gateway", "cost").out.splitlines()
    assert first.split() == ["model", "calls", "tokens", "in", "cached", "tokens", "out", "cost"]
    assert big.split() == ["far/model-b", "3", "6,000", "50", "%", "30", f"{3 * COST:.3f}"]
    assert small.split() == ["far/model-a", "3", "3,000", "0", "%", "30", "unknown"]
    assert total.startswith("in all: 9,000 tokens in (3,000 of them from a cache), 60 out, 6 model calls; cost 0.051 and an")


def test_costs_of_no_calls_are_a_refusal(cli: Cli) -> None:
    outcome = cli("gateway", "cost")
    assert outcome.code == 1
    assert "no model call of " in outcome.err


def test_answers_that_could_not_be_used_count_and_are_named(cli: Cli, tmp_path: Path) -> None:
    """Regression: their tokens were shown nowhere, although the provider charges them."""
    write_prices(tmp_path, '[router.prices."model-b"]\ninput_per_million = 1.0\noutput_per_million = 10.0\n')
    thoughts = [Usage(1_000, 700), Usage(1_000, 800)]

    def after_thoughts(request: PromptRequest) -> PromptResponse:
        if thoughts:
            raise ProviderError("far", "empty", "the answer has no text", usage=thoughts.pop(0))
        return answer(request)

    async def talk() -> str:
        far = ProviderConfig(kind="offline", model="model-b", backoff_initial_s=0.001, backoff_max_s=0.001)
        config = RuntimeConfig(
            plane_root=str(tmp_path / ".kitchener"),
            router=RouterConfig(default_provider="far", providers={"far": far}),
            agents={"ADMIN": HO2Config(classify="rules")},
        )
        async with open_runtime(config, providers={"far": ScriptedProvider(after_thoughts, model_id="model-b")}) as runtime:
            return (await runtime.supervisor("ADMIN").handle_turn("Is it so?", subject_id="ada")).session_id

    session_id = anyio.run(talk)
    used = {"input_tokens": 4_000, "output_tokens": 1_510, "llm_calls": 1, "unusable_answers": 2, "cost": 0.0191}
    (of_turn,) = cli("session", "show", session_id, "--json").json["turns"]
    for told in (cli("gateway", "cost", "--json").json["usage"], of_turn["usage"]):
        assert {name: told[name] for name in used} == pytest.approx(used)
    columns, row, total = cli("gateway", "cost").out.splitlines()
    assert columns.split()[:3] == ["model", "calls", "unusable"]
    assert row.split()[:4] == ["far/model-b", "1", "2", "4,000"]
    assert "4,000 tokens in (1,000 of them from a cache), 1,510 out, 1 model call, 2 unusable answers; cost" in total


def test_a_turn_without_a_usable_answer_shows_what_it_used(cli: Cli, tmp_path: Path) -> None:
    """Regression: `session show` had no line for it, and `context explain` said that no model had answered."""
    refused = ProviderError("far", "refused", "the provider's content filter stopped the answer", usage=Usage(450, 12))

    async def talk() -> str:
        far = ProviderConfig(kind="offline", model="model-b")
        config = RuntimeConfig(
            plane_root=str(tmp_path / ".kitchener"),
            router=RouterConfig(default_provider="far", providers={"far": far}),
            agents={"ADMIN": HO2Config(classify="rules")},
        )
        async with open_runtime(config, providers={"far": ScriptedProvider([refused], model_id="model-b")}) as runtime:
            return (await runtime.supervisor("ADMIN").handle_turn("Is it so?", subject_id="ada")).session_id

    session_id = anyio.run(talk)
    used = "450 tokens in, 12 out, 0 model calls, 1 unusable answer; cost unknown"
    shown = cli("session", "show", session_id).out
    assert f"    {used}" in shown
    assert f"in all: {used}" in shown
    assert used in cli("context", "explain", "last").out
