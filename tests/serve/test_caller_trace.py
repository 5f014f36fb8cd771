"""A turn belongs to the trace that the caller of the server names (docs/telemetry.md)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage

from kitchener.records.prompt import PromptRequest
from kitchener.telemetry import names
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo
from tests.serve.shared.requests import serving
from tests.telemetry.watch import Watch, context_of, facts

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_belongs_to_the_trace_of_its_caller(tmp_path: Path, stream: bool) -> None:
    watch = Watch()
    async with serving(tmp_path, telemetry=watch.telemetry) as client:
        here = client.with_headers(traceparent=f"00-{TRACE}-{SPAN}-01")
        assert (await here.chat("hello", stream=stream)).status == 200
        assert (await client.chat("hello again", stream=stream)).status == 200
    first, second = watch.named("invoke_agent")
    assert first.parent is not None
    assert (f"{first.parent.trace_id:032x}", f"{first.parent.span_id:016x}") == (TRACE, SPAN)
    assert second.parent is None
    inside = {facts(each)[names.SESSION_ID] for each in watch.spans if f"{context_of(each).trace_id:032x}" == TRACE}
    assert inside == {facts(first)[names.SESSION_ID]}


@pytest.mark.parametrize("header", ["", "00-zz-1-01", "00-" + "0" * 32 + f"-{SPAN}-01", "x" * 3_000, "99"])
async def test_a_header_that_is_none_is_passed_over(tmp_path: Path, header: str) -> None:
    watch = Watch()
    async with serving(tmp_path, telemetry=watch.telemetry) as client:
        answered = await client.with_headers(traceparent=header).chat("hello")
    assert answered.status == 200
    assert watch.one("invoke_agent").parent is None


async def test_a_strangers_baggage_is_not_taken_over(tmp_path: Path) -> None:
    carried: list[Mapping[str, object]] = []

    def answer(request: PromptRequest) -> Any:
        carried.append(baggage.get_all())
        return echo(request)

    async with serving(tmp_path, ScriptedProvider(answer), telemetry=Watch().telemetry) as client:
        here = client.with_headers(traceparent=f"00-{TRACE}-{SPAN}-01", baggage="user=mallory")
        assert (await here.chat("hello")).status == 200
    assert carried == [{}]
