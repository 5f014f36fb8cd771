"""An endpoint may be told which span its work belongs to; by default none is (docs/telemetry.md). Real requests over HTTP."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from opentelemetry.trace import format_span_id, format_trace_id

from kitchener import HO2Config, RuntimeConfig, open_runtime
from kitchener.config import ProviderConfig, RouterConfig, ServeConfig
from kitchener.gateway.providers.trace_headers import trace_lines
from kitchener.serve.application import open_server
from kitchener.telemetry import OpenTelemetry, names
from kitchener.telemetry.port import Telemetry
from tests.gateway.shared.fake_server import FakeServer, completion, error, events, fake_server
from tests.serve.shared.requests import COMPLETIONS, Asked, chat_body, run_request
from tests.telemetry.test_broken_tracer import BrokenProvider
from tests.telemetry.watch import Watch, context_of

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def settings_of(root: Path, server: FakeServer, **lane: Any) -> RuntimeConfig:
    """A runtime whose one model is that of an endpoint."""
    provider = ProviderConfig(base_url=server.url, model="m", backoff_initial_s=0.001, **lane)
    router = RouterConfig(default_provider="it", providers={"it": provider})
    agents = {"ADMIN": HO2Config(classify="off")}
    return RuntimeConfig(plane_root=str(root), agents=agents, router=router, serve=ServeConfig())


async def sent(root: Path, telemetry: Telemetry | None, *answers: Any, **lane: Any) -> list[dict[str, str]]:
    """The headers of the requests of one turn."""
    async with fake_server(*answers) as server:
        async with open_runtime(settings_of(root, server, **lane), telemetry=telemetry) as runtime:
            result = await runtime.supervisor().handle_turn("hello", subject_id="ada")
            assert result.error is None
        assert all(each.body["messages"][-1]["role"] == "user" for each in server.hits)  # the body is there, and whole
        return [each.headers for each in server.hits]


async def test_each_attempt_names_its_own_span_in_the_trace_of_the_turn(tmp_path: Path) -> None:
    watch = Watch()
    with watch.span("request") as trace_id:
        hits = await sent(tmp_path, watch.telemetry, error(503), error(503), completion("Hi."), send_traceparent=True)
    attempts = [format_span_id(context_of(each).span_id) for each in watch.named("chat m")]
    assert len(attempts) == 3
    assert [each["traceparent"][:-2] for each in hits] == [f"00-{format_trace_id(trace_id)}-{each}-" for each in attempts]
    assert all(int(each["traceparent"][-2:], 16) & 1 for each in hits)  # it is sampled
    assert not any("tracestate" in each for each in hits)


async def test_a_span_has_the_temperature_of_the_provider_and_no_header_of_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_KEY", "sk-desk-0123456789")
    watch = Watch()
    headers = {"api-key": "env:DESK_KEY"}
    (hit,) = await sent(tmp_path, watch.telemetry, completion("Hi."), temperature=0.6, headers=headers)
    (span,) = watch.named("chat m")
    assert hit["api-key"] == "sk-desk-0123456789"
    assert span.attributes is not None
    assert span.attributes[names.REQUEST_TEMPERATURE] == 0.6
    assert "sk-desk" not in span.to_json()


async def test_streams_of_sessions_at_the_same_time_name_each_their_own(tmp_path: Path) -> None:
    """Also where the caller of the server began the trace; the state that its vendor keeps in the trace goes along."""
    watch = Watch()
    async with fake_server() as server:
        server.respond = lambda hit: events(["Hello"])
        config = settings_of(tmp_path, server, send_traceparent=True)
        async with (
            open_runtime(config, telemetry=watch.telemetry) as runtime,
            open_server(runtime) as served,
        ):
            for state in ("vendor=abc", "vendor=def"):
                asked = Asked()
                asked.taking.set()
                headers = {"traceparent": CALLER, "tracestate": state, "baggage": "user=ada"}
                body = chat_body("hello", stream=True)
                await run_request(served.app, asked, "POST", COMPLETIONS, [orjson.dumps(body)], headers)
                assert (asked.status, asked.text) == (200, "Hello")
    attempts = watch.named("chat m")
    assert [each.headers["traceparent"] for each in server.hits] == [
        f"{CALLER[:35]}-{format_span_id(context_of(each).span_id)}-01" for each in attempts
    ]
    assert [each.headers["tracestate"] for each in server.hits] == ["vendor=abc", "vendor=def"]
    assert not any("baggage" in each.headers for each in server.hits)


async def test_no_endpoint_is_told_unless_its_settings_say_so(tmp_path: Path) -> None:
    watch = Watch()
    with watch.span("request"):
        (hit,) = await sent(tmp_path, watch.telemetry, completion("Hi."))
    assert "traceparent" not in hit


async def test_without_telemetry_there_is_nothing_to_tell(tmp_path: Path) -> None:
    (hit,) = await sent(tmp_path, None, completion("Hi."), send_traceparent=True)
    assert "traceparent" not in hit


@pytest.mark.parametrize("starts", [True, False])
async def test_a_broken_tracer_harms_no_call(tmp_path: Path, starts: bool) -> None:
    telemetry = OpenTelemetry(tracer_provider=BrokenProvider(starts=starts))
    (hit,) = await sent(tmp_path, telemetry, completion("Hi."), send_traceparent=True)
    assert ("traceparent" in hit) == starts


@pytest.mark.parametrize("value", ["a=b\r\nx-evil: 1", "a=\u00e9", "a=" + "b" * 600, ""])
def test_what_no_line_can_hold_is_left_out(value: str) -> None:
    """A caller chooses the state of its trace."""
    lines = trace_lines({"traceparent": CALLER, "tracestate": value})
    assert lines == f"traceparent: {CALLER}\r\n".encode()
