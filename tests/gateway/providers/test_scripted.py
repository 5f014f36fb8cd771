"""What a script may say, and the other tools that users' tests get."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from kitchener.clock import Clock
from kitchener.errors import ProviderError
from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptRequest, PromptResponse, TextPiece, ToolUse
from kitchener.testing import FakeClock, ScriptedProvider, use_tool
from kitchener.times import datetime_of
from tests.gateway.shared.gateway_kit import as_type, ask

READY = PromptResponse(provider_id="x", model_id="y", text="ready", usage=Usage(1, 2))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("plain", {"text": "plain", "structured": None, "finish_reason": "stop"}),
        ({"a": 1}, {"text": '{"a":1}', "structured": {"a": 1}}),
        (READY, {"provider_id": "x", "model_id": "y", "text": "ready"}),
        (
            use_tool("read_file", path="x"),
            {"text": "", "finish_reason": "tool_use", "tool_uses": (ToolUse("use-1-1", "read_file", {"path": "x"}),)},
        ),
        (
            (use_tool("a"), use_tool("a"), ToolUse("mine", "b", {})),
            {"tool_uses": (ToolUse("use-1-1", "a", {}), ToolUse("use-1-2", "a", {}), ToolUse("mine", "b", {}))},
        ),
    ],
)
async def test_each_kind_of_answer(answer: Any, expected: dict[str, Any]) -> None:
    """From a list, from a function and from an async function alike."""

    async def later(_: PromptRequest) -> Any:
        await anyio.lowlevel.checkpoint()
        return answer

    scripts: list[Any] = [[answer], lambda _: answer, later]
    for script in scripts:
        response = await ScriptedProvider(script).complete(ask())
        assert {name: getattr(response, name) for name in expected} == expected


async def test_tool_requests_of_one_conversation_have_ids_of_their_own() -> None:
    provider = ScriptedProvider(lambda _: use_tool("a"))
    ids = {(await provider.complete(ask())).tool_uses[0].use_id for _ in range(3)}
    assert len(ids) == 3


async def test_an_error_in_the_script_is_raised() -> None:
    provider = ScriptedProvider([ProviderError("p", "timeout", "slow"), ValueError("bug"), "then fine"])
    with pytest.raises(ProviderError, match="slow"):
        await provider.complete(ask())
    with pytest.raises(ValueError, match="bug"):
        await provider.complete(ask())
    assert (await provider.complete(ask())).text == "then fine"


async def test_a_script_that_is_used_up_names_the_request_it_has_no_answer_for() -> None:
    provider = ScriptedProvider(["only one"])
    await provider.complete(ask())
    with pytest.raises(ProviderError) as caught:
        await provider.complete(as_type(ask(call=7, wo_id="WO-SES-00000001-042"), "classify"))
    assert caught.value.reason == "exhausted"
    for part in ("1 answers", "request 2", "classify", "WO-SES-00000001-042", "call 7"):
        assert part in caught.value.detail


async def test_requests_are_kept_in_order_unless_that_is_off() -> None:
    kept, lost = ScriptedProvider(lambda _: "x"), ScriptedProvider(lambda _: "x", record=False)
    requests = [ask("one"), ask("two")]
    for request in requests:
        await kept.complete(request)
        await lost.complete(request)
    assert kept.requests == requests
    assert lost.requests == []


async def test_a_gate_holds_the_answer_back() -> None:
    opened = anyio.Event()

    async def gate(_: PromptRequest) -> None:
        await opened.wait()

    provider = ScriptedProvider(["held back"], gate=gate)
    answers: list[str] = []

    async def call() -> None:
        answers.append((await provider.complete(ask())).text)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        assert (len(provider.requests), answers) == (1, [])
        opened.set()
    assert answers == ["held back"]


async def test_replies_answers_every_kind_of_work_order_the_same_each_time() -> None:
    provider = ScriptedProvider.replies("pong")
    answers = {}
    for wo_type in ("classify", "synthesize", "verify", "consolidate"):
        first, second = [await provider.complete(as_type(ask(), wo_type)) for _ in range(2)]
        assert first is second
        answers[wo_type] = first.structured or {"text": first.text}
    assert answers["classify"]["speech_act"] == "question"
    assert answers["synthesize"] == {"text": "pong"}
    assert answers["verify"]["decision"] == "accept"
    assert answers["consolidate"]["category"] == "topic_affinity"
    assert provider.requests == []


async def test_a_stream_joins_to_the_answer() -> None:
    provider = ScriptedProvider([{"response_text": "one two"}])
    items = [item async for item in provider.stream(ask())]
    response = items[-1]
    assert isinstance(response, PromptResponse)
    assert "".join(item.text for item in items if isinstance(item, TextPiece)) == response.text


@pytest.mark.parametrize(
    ("move", "expected"),
    [
        (lambda clock: clock.advance(1.5), "2026-01-01T00:00:01.500000+00:00"),
        (lambda clock: clock.advance(us=7), "2026-01-01T00:00:00.000007+00:00"),
        (lambda clock: clock.set(0), "1970-01-01T00:00:00+00:00"),
    ],
)
def test_a_fake_clock_moves_only_when_told_to(move: Callable[[FakeClock], None], expected: str) -> None:
    fake = FakeClock()
    clock: Clock = fake
    assert datetime_of(clock.time_us()).isoformat() == "2026-01-01T00:00:00+00:00"
    assert clock.time_us() == clock.time_us()
    move(fake)
    assert datetime_of(clock.time_us()).isoformat() == expected
