"""A turn within its limits gets a reply: tools stay offered, and one without tokens left makes a last call without tools."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from kitchener import tool
from kitchener.actors.turn.reply import APOLOGIES, MESSAGE_TOO_LARGE, SESSION_USED_UP
from kitchener.config import HO2Config, LimitsConfig
from kitchener.model_usage import Usage
from kitchener.records import events
from kitchener.records.prompt import PromptRequest, PromptResponse, ToolUse
from kitchener.records.tokens import tokens_of_bytes
from kitchener.records.turn import TurnResult
from kitchener.replaying import replay_session
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUESTION, open_scripted, read_all, scripted_config
from tests.shared.payloads import payload_of

DEFAULT: Final = HO2Config()
SEARCH: Final = {"speech_act": "command", "tool_request": {"tool_id": "fetch", "arguments": {"size": 100}}}


@tool(read_only=True)
def fetch(size: int) -> str:
    """Gives a text of this many bytes."""
    return "x" * size


@tool
def book(hotel: str) -> str:
    """Books a hotel."""
    return f"booked {hotel}"


def answered(request: PromptRequest, said: str | tuple[ToolUse, ...], *, cached: int | None = None) -> PromptResponse:
    """An answer whose tokens are counted as the estimate has them, so that nothing is cheaper than it looks."""
    size = tokens_of_bytes(sum(len(each.content.encode()) for each in request.messages))
    return PromptResponse(
        provider_id="scripted",
        model_id="scripted-1",
        text=said if isinstance(said, str) else "",
        structured=None,
        tool_uses=said if isinstance(said, tuple) else (),
        usage=Usage(size, 50, cached),
        latency_ms=1,
        finish_reason="stop",
    )


def fetching(size: int, rounds: int = 100, *, at_once: int = 1, caches: bool = False) -> ScriptedProvider:
    """A model that asks for a text of about this size again and again, as long as it may, and then replies."""

    def answer(request: PromptRequest) -> PromptResponse | Mapping[str, Any]:
        if request.wo_type == "classify":
            return QUESTION
        done = sum(bool(each.tool_uses) for each in request.messages)
        before = tokens_of_bytes(sum(len(each.content.encode()) for each in request.messages[: -at_once or None]))
        cached = before if caches and done else None
        if not request.may_call_tools or done >= rounds:
            return answered(request, f"read {done} times", cached=cached)
        uses = tuple(ToolUse(f"use-{done}-{n}", "fetch", {"size": size - done * at_once - n}) for n in range(at_once))
        return answered(request, uses, cached=cached)

    return ScriptedProvider(answer)


def replies(provider: ScriptedProvider) -> list[PromptRequest]:
    return [each for each in provider.requests if each.wo_type == "synthesize"]


async def turn(root: Path, provider: ScriptedProvider, message: str = "go", **settings: Any) -> TurnResult:
    """One turn, which replays as it was."""
    async with open_scripted(root, provider, tools=[fetch, book], **settings) as runtime:
        result = await runtime.supervisor().handle_turn(message, subject_id="ada")
    config = scripted_config(root, tools=("*",), **settings)
    report = await replay_session(result.session_id, config=config, tools=[fetch, book])
    assert report.is_identical, report.text()
    return result


@pytest.mark.parametrize(
    ("size", "rounds"),
    [(10_000, 4), (DEFAULT.tool_result_max_bytes - 10, 1)],
    ids=["four results of 10 kB", "one result of the permitted size"],
)
async def test_results_of_tools_within_their_limits_end_no_turn(tmp_path: Path, size: int, rounds: int) -> None:
    provider = fetching(size, rounds)
    result = await turn(tmp_path, provider)
    assert (result.error, result.response) == (None, f"read {rounds} times")
    assert [bool(each.tools) for each in replies(provider)] == [True] * (rounds + 1)


@pytest.mark.parametrize("length", [30_000, LimitsConfig().max_message_chars])
async def test_message_within_its_limit_gets_a_reply(tmp_path: Path, length: int) -> None:
    provider = fetching(10, 1)
    result = await turn(tmp_path, provider, "y" * length)
    assert (result.error, result.response) == (None, "read 1 times")


async def test_turn_that_runs_out_makes_one_last_call_without_tools(tmp_path: Path) -> None:
    """It is shown them as before, so that a cache serves the prompt, but may call none."""
    provider = fetching(3_000)
    result = await turn(tmp_path, provider, turn_budget=12_000)
    offered = [each.may_call_tools for each in replies(provider)]
    assert all(each.tools == replies(provider)[0].tools for each in replies(provider))
    assert offered == [True] * (len(offered) - 1) + [False]
    assert 2 < len(offered) < 9
    assert (result.error, result.response) == (None, f"read {len(offered) - 1} times")
    assert result.cost_summary["input_tokens"] + result.cost_summary["output_tokens"] <= 12_000


async def test_what_a_cache_served_costs_no_budget(tmp_path: Path) -> None:
    """The same turn under the same budget may use all its rounds, and its cost says why."""
    provider = fetching(3_000, caches=True)
    async with open_scripted(tmp_path, provider, tools=[fetch], turn_budget=24_000) as runtime:
        result = await runtime.supervisor().handle_turn("go", subject_id="ada")
        (done,) = [
            payload_of(each)
            for each in await read_all(runtime.ledgers().ho2m, entry_type=events.WO_COMPLETED)
            if payload_of(each)["cost"]["tool_calls"]
        ]
    assert result.response == f"read {DEFAULT.tool_turn_limit} times"
    cost = done["cost"]
    assert cost["input_tokens"] > 24_000
    assert cost["input_tokens"] - cost["cached_tokens"] + cost["output_tokens"] <= 24_000
    uncached = fetching(3_000)
    assert (await turn(tmp_path / "other", uncached, turn_budget=24_000)).error is None
    assert len(replies(uncached)) < len(replies(provider))


async def test_results_of_one_reply_have_a_limit_together(tmp_path: Path) -> None:
    """What goes beyond is cut and says so, and the model replies without asking for more."""
    provider = fetching(3_000, at_once=4)
    result = await turn(tmp_path, provider, results_budget=2_500)
    first, last = replies(provider)
    assert (first.may_call_tools, last.may_call_tools, result.response) == (True, False, "read 1 times")
    shown = [each.content for each in last.messages if each.role == "tool"]
    assert ["[cut: " in each for each in shown] == [False, False, True, True]
    assert sum(tokens_of_bytes(len(each)) for each in shown) <= 2_500 + 50  # the notes of those for which nothing was left


async def test_classification_that_used_the_budget_up_leaves_a_reply_without_tools(tmp_path: Path) -> None:
    def answer(request: PromptRequest) -> PromptResponse:
        if request.wo_type == "classify":
            return answered(request, '{"speech_act": "question"}')
        return answered(request, "short and good" if not request.may_call_tools else "tools?")

    provider = ScriptedProvider(answer)
    result = await turn(tmp_path, provider, "z" * 3_000, turn_budget=3_500)
    assert (result.error, result.response) == (None, "short and good")
    assert [(bool(each.tools), each.may_call_tools) for each in replies(provider)] == [(True, False)]


async def test_tools_stay_offered_after_one_that_classification_called(tmp_path: Path) -> None:
    """Find hotels and book the first: the second call depends on the first one's result."""

    def answer(request: PromptRequest) -> PromptResponse | Mapping[str, Any]:
        if request.wo_type == "classify":
            return SEARCH
        if any(each.role == "tool" for each in request.messages):
            return answered(request, "It is booked.")
        assert {each.tool_id for each in request.tools} == {"fetch", "book"}
        return answered(request, (ToolUse("use-1", "book", {"hotel": "Fjord"}),))

    provider = ScriptedProvider(answer)
    result = await turn(tmp_path, provider, "find hotels and book the first")
    assert (result.error, result.response) == (None, "It is booked.")
    assert result.cost_summary["tool_calls"] == 2


def too_large(root: Path) -> tuple[dict[str, Any], str, str]:
    return {"turn_budget": 2_000}, "z" * 30_000, MESSAGE_TOO_LARGE


def used_up(root: Path) -> tuple[dict[str, Any], str, str]:
    return {"budget_ceiling": 500}, "hello", SESSION_USED_UP


def ran_out(root: Path) -> tuple[dict[str, Any], str, str]:
    return {"turn_budget": 4_000, "acceptance": ("contains:never",)}, "z" * 2_400, APOLOGIES["BUDGET"]


@pytest.mark.parametrize("case", [too_large, used_up, ran_out])
async def test_the_user_reads_what_is_true(tmp_path: Path, case: Callable[[Path], tuple[dict[str, Any], str, str]]) -> None:
    """A text says that no model was asked for a reply only where none was."""
    settings, message, text = case(tmp_path)
    provider = fetching(10, 0)
    result = await turn(tmp_path, provider, message, **settings)
    assert result.error is not None
    assert (result.error.kind, result.response) == ("BUDGET", text)
    assert ("no model was asked" in text) <= (not replies(provider))
    assert bool(replies(provider)) is (case is ran_out)
