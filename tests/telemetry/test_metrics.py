"""The metrics of the conventions, with few labels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from kitchener.errors import ProviderError
from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.telemetry import names
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import open_scripted
from tests.shared.event_loops import ON_TRIO
from tests.telemetry.test_spans import forecaster, weather
from tests.telemetry.watch import Watch


async def test_a_turn_counts_in_every_metric(tmp_path: Path) -> None:
    watch = Watch()
    async with open_scripted(tmp_path, ScriptedProvider(forecaster), tools=[weather], telemetry=watch.telemetry) as runtime:
        result = await runtime.supervisor().handle_turn("Graz")
    metrics = watch.metrics()
    (turn,), (ran,) = metrics[names.AGENT_DURATION], metrics[names.TOOL_DURATION]
    assert (turn.count, dict(turn.attributes)) == (1, {names.AGENT_NAME: "ADMIN"})
    assert tuple(turn.explicit_bounds) == names.AGENT_SECONDS
    assert dict(ran.attributes) == {names.TOOL_NAME: "weather", names.TOOL_TYPE: "function"}
    (calls,) = metrics[names.OPERATION_DURATION]
    assert calls.count == 3
    labels = {
        names.OPERATION: "chat",
        names.PROVIDER_NAME: "scripted",
        names.REQUEST_MODEL: "scripted-1",
        names.RESPONSE_MODEL: "scripted-1",
    }
    assert dict(calls.attributes) == labels
    tokens = {point.attributes[names.TOKEN_TYPE]: point.sum for point in metrics[names.TOKEN_USAGE]}
    spent = result.cost_summary
    assert tokens == {"input": spent["input_tokens"], "output": spent["output_tokens"]}


class Renaming(ScriptedProvider):
    """A model whose answers have another name for it: that of the message."""

    async def complete(self, request: PromptRequest) -> PromptResponse:
        return replace(await super().complete(request), served_model=str(request.variables["user_message"]))


@ON_TRIO
async def test_the_model_of_a_response_is_the_one_that_the_answer_names(tmp_path: Path) -> None:
    """Regression: it was the requested one. A text that is no name, and the 33rd name, are not told."""
    watch = Watch()
    said = ["small-1-2026-02-18", "vendor/small:free", "my name is Ada", *[f"small-{n}" for n in range(40)]]
    async with open_scripted(tmp_path, Renaming(["hello"] * 60), classify="off", telemetry=watch.telemetry) as runtime:
        for message in said:
            await runtime.supervisor().handle_turn(message)
    told = [(each.attributes or {})[names.RESPONSE_MODEL] for each in watch.named("chat")]
    assert told[:4] == ["small-1-2026-02-18", "vendor/small:free", "scripted-1", "small-0"]
    assert (len({*told}), told[-1]) == (33, "scripted-1")
    assert {(each.attributes or {})[names.REQUEST_MODEL] for each in watch.named("chat")} == {"scripted-1"}
    assert {each.attributes[names.RESPONSE_MODEL] for each in watch.metrics()[names.OPERATION_DURATION]} == {*told}


async def test_failures_are_told_apart_by_kind(tmp_path: Path) -> None:
    watch, calls = Watch(), [0]

    def answer(request: PromptRequest) -> Any:
        calls[0] += 1
        return ProviderError("scripted", "server_error", "down") if calls[0] == 1 else "up"

    lane = {"max_retries": 1}
    async with open_scripted(
        tmp_path, ScriptedProvider(answer), classify="off", lane=lane, telemetry=watch.telemetry
    ) as runtime:
        await runtime.supervisor().handle_turn("hello")
    found = {point.attributes.get(names.ERROR_TYPE): point.count for point in watch.metrics()[names.OPERATION_DURATION]}
    assert found == {"server_error": 1, None: 1}
