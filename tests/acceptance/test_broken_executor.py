"""A turn whose HO1 is broken asks the gateway directly, on record as a governance violation. See `docs/turn.md`.

HO1 breaks here as it does for users: the agent class names a contract that does not exist.
"""

from pathlib import Path
from typing import Any, Final

import pytest

from kitchener.config import RuntimeConfig
from kitchener.errors import ActorStopped, Overloaded, ProviderError
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.records.work_order import Cost, DirectReply, WorkOrder
from kitchener.replaying import replay_session
from kitchener.runtime import open_runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.conftest import OpenStack
from tests.acceptance.stack import ScriptedExecutor, echo, fitting, read_all, scripted_config

DIRECT = "PRC-DIRECT-002"
BROKEN: Final[dict[str, Any]] = {"synthesize_contract_id": "PRC-NOWHERE-001", "instructions": "You are Bo."}


def direct(answer: Any) -> ScriptedProvider:
    """A model that gives the direct call this answer."""
    return ScriptedProvider(lambda request: answer if request.contract_id == DIRECT else echo(request))


async def recorded(config: RuntimeConfig, provider: ScriptedProvider, **options: Any) -> Any:
    """One turn: its result, HO1m's entries, HO2m's entries, and the session's tokens; the turn replays identical."""
    async with open_runtime(config, providers={"scripted": provider}, **options) as runtime:
        result = await runtime.supervisor().handle_turn("hello")
        used = (await runtime.supervisor().session(result.session_id)).state.tokens_used
        entries = [await read_all(ledger) for ledger in (runtime.ledgers().ho1m, runtime.ledgers().ho2m)]
    async with open_runtime(config, providers={"scripted": provider}) as runtime:
        assert (await runtime.supervisor().session(result.session_id)).state.tokens_used == used
    report = await replay_session(result.session_id, config=config)
    assert report.is_identical, report.text()
    assert report.turns == (result.turn_id,)
    return result, *entries, used


@pytest.mark.parametrize("answer", [{"response_text": "from the gateway"}, "from the gateway"])
async def test_a_broken_ho1_answers_through_the_gateway(tmp_path: Path, answer: Any) -> None:
    """The reply is the model's; the turn says that it is degraded; violation, call and cost are on record."""
    provider = direct(answer)
    result, ho1m, ho2m, used = await recorded(scripted_config(tmp_path, **BROKEN), provider)
    assert (result.response, result.degraded, result.quality_gate_passed) == ("from the gateway", True, False)
    assert result.error is not None
    assert result.error.kind == "EXECUTOR"
    (asked,) = [request for request in provider.requests if request.contract_id == DIRECT]
    assert "You are Bo." in asked.messages[0].content
    assert "hello" in asked.messages[1].content
    assert asked.tools == ()
    (degradation,) = [entry.payload for entry in ho2m if entry.entry_type == events.DEGRADATION]
    assert (degradation["component"], degradation["governance_violation"]) == ("HO1", True)
    violations = [entry for entry in ho1m if entry.payload.get("governance_violation")]
    assert [entry.entry_type for entry in violations] == [events.LLM_CALL]
    assert {entry.entity_id for entry in violations} == {degradation["wo_id"]}
    completed = ho2m[-1].payload
    assert completed["direct_cost"]["llm_calls"] == 1
    assert result.wo_chain_summary[-1]["cost"] == completed["direct_cost"]
    assert result.cost_summary["llm_calls"] == 2
    assert used == result.cost_summary["input_tokens"] + result.cost_summary["output_tokens"]


@pytest.mark.parametrize("answer", [ProviderError("scripted", "refused", "no"), "", " \n"])
async def test_only_if_the_direct_call_fails_too_the_user_gets_the_apology(tmp_path: Path, answer: Any) -> None:
    """A provider's failure and an empty answer, on record with their attempts."""
    result, ho1m, _, _ = await recorded(scripted_config(tmp_path, **BROKEN), direct(answer))
    assert result.response.startswith("I could not produce a reply")
    assert result.error is not None
    assert result.error.kind == "EXECUTOR"
    assert ho1m[-1].payload["governance_violation"] is True


async def test_the_direct_call_keeps_to_the_budget_of_the_turn(tmp_path: Path) -> None:
    """Where instructions, message and reply do not fit, the model is not asked."""
    provider = direct("never")
    config = scripted_config(tmp_path, classify_contract_id="PRC-NOWHERE-001", turn_budget=1_500, instructions="x" * 3_000)
    result, *_ = await recorded(config, provider)
    assert result.response.startswith("I could not produce a reply")
    assert provider.requests == []


async def test_the_programs_own_degraded_call_comes_first(tmp_path: Path) -> None:
    """Where one is given, the gateway is not asked, and the turn replays with the recorded reply."""

    async def own(message: str, **_: Any) -> str:
        return f"own: {message}"

    provider = direct("never")
    result, *_ = await recorded(scripted_config(tmp_path, **BROKEN), provider, degraded_call=own)
    assert result.response == "own: hello"
    assert DIRECT not in [request.contract_id for request in provider.requests]


async def test_the_direct_call_is_routed_as_a_reply(tmp_path: Path) -> None:
    """By the tags and models of synthesis, also where classification was what broke."""
    models = {"synthesis": {"model": "large"}}
    config = scripted_config(tmp_path, classify_contract_id="PRC-NOWHERE-001", models=models)
    result, ho1m, _, _ = await recorded(config, direct("here"))
    assert result.response == "here"
    (call,) = [entry.payload for entry in ho1m if entry.entry_type == events.LLM_CALL]
    assert call["model_id"] == "large"


class Asked:
    """A direct call that keeps what it was asked."""

    def __init__(self) -> None:
        self.work_orders: list[WorkOrder] = []

    async def __call__(self, work_order: WorkOrder, *, calls_before: int) -> DirectReply:
        self.work_orders.append(work_order)
        return DirectReply("direct", Cost(llm_calls=1))


@pytest.mark.parametrize(
    ("error", "is_asked"),
    [
        (RuntimeError("out of order"), True),
        (ActorStopped("HO1 ADMIN has stopped"), True),
        (Overloaded("HO1", 1), False),
        (TimeoutError("late"), False),
        (ProviderError("p", "server_error", "down"), False),
    ],
)
async def test_overload_deadline_and_provider_do_not_bypass_ho1(by_hand: OpenStack, error: Exception, is_asked: bool) -> None:
    """HO1 that raises one of these is not broken, so the governed path is not left."""
    call = Asked()
    executor = ScriptedExecutor(lambda wo: error if wo.wo_type == "synthesize" else fitting(wo))
    async with by_hand(executor, direct_call=call) as stack:
        result = await stack.turn("hello")
    assert (result.response == "direct", bool(call.work_orders)) == (is_asked, is_asked)
    assert result.degraded


@pytest.mark.parametrize("answer", [" ", ProviderError("scripted", "server_error", "down")])
async def test_a_malformed_answer_or_a_failed_provider_does_not_bypass_ho1(tmp_path: Path, answer: Any) -> None:
    """These are results of HO1, and the turn says so as before."""

    def model(request: PromptRequest) -> Any:
        return answer if request.wo_type == "synthesize" else echo(request)

    provider = ScriptedProvider(model)
    result, ho1m, ho2m, _ = await recorded(scripted_config(tmp_path), provider)
    assert result.error is not None
    assert DIRECT not in [request.contract_id for request in provider.requests]
    assert events.DEGRADATION not in [entry.entry_type for entry in ho2m]
    assert not any(entry.payload.get("governance_violation") for entry in ho1m)
