"""An endpoint that wants to fill the process, stop it or plant keys in the record, while another subject is served by it."""

import json
import tracemalloc
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.config import ProviderConfig, RouterConfig, RuntimeConfig
from kitchener.errors import ConfigError, ProviderError
from kitchener.gateway import build_providers
from kitchener.records.events import TURN_ABORTED
from kitchener.records.turn import TextDelta
from kitchener.runtime import Runtime, open_runtime
from kitchener.runtime.setting_checks import check_config
from tests.acceptance.stack import QUESTION, QUICK, read_all
from tests.gateway.shared.fake_server import Answer, FakeServer, Hit, completion, error, events, fake_server, hang
from tests.gateway.shared.gateway_kit import ask
from tests.hostile.kit import bystander
from tests.shared.payloads import payload_of

# Under trio the vendor's library leaves its own generators to the garbage collector once it has read the end of a stream.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2|pydantic_ai):ResourceWarning")

KEY = "sk-this-must-never-be-kept"
MIB = 1_048_576
LIMIT = MIB
IN_FLIGHT = 16 * MIB
"""More than what two sockets and their readers hold; an endpoint that got rid of more was still being read."""


def properly(hit: Hit) -> Answer:
    """What a well-behaved model answers."""
    schema = json.dumps(hit.body.get("response_format", {}))
    return completion(json.dumps(QUESTION if "speech_act" in schema else {"response_text": "well"}))


@asynccontextmanager
async def attacked(root: Path, attack: Callable[[Hit], Answer], **settings: Any) -> AsyncIterator[tuple[FakeServer, Runtime]]:
    """A runtime on an endpoint that answers the bystander properly and everybody else as the attack does."""
    async with fake_server() as server:
        server.respond = lambda hit: properly(hit) if "bystander" in json.dumps(hit.body) else attack(hit)
        asked = {"max_retries": 0, "timeout_s": 60.0, "max_response_bytes": LIMIT, "breaker_failures": 2, **settings}
        local = ProviderConfig(base_url=server.url, model="m", **asked)
        config = RuntimeConfig(
            plane_root=str(root), ledger=QUICK, router=RouterConfig(default_provider="it", providers={"it": local})
        )
        async with open_runtime(config) as runtime:
            yield server, runtime


def bomb(size: int) -> bytes:
    """A gzip body that becomes `size` bytes of one JSON text."""
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    zeros = bytes(b"0" * MIB)
    return packer.compress(b'{"x":"') + b"".join(packer.compress(zeros) for _ in range(size // MIB)) + packer.flush()


def deep(levels: int) -> bytes:
    return b'{"choices":' + b"[" * levels + b"]" * levels + b"}"


GZIP: Mapping[str, str] = {"content-encoding": "gzip"}
ATTACKS: dict[str, Answer] = {
    "a compressed bomb": Answer(bomb(32 * MIB), headers=GZIP),
    "an endless body": Answer(b'{"x":"', flood=b"0" * 65_536),
    "an endless event": Answer(b'data: {"x":"', flood=b"0" * 65_536, content_type="text/event-stream"),
    "endless events": Answer(b"", flood=b'data: {"choices":[]}\n\n' * 1_000, content_type="text/event-stream"),
    "endless comments": Answer(b"", flood=(b": nothing" + b" at all" * 12 + b"\n\n") * 100, content_type="text/event-stream"),
    "an endless error": Answer(b'{"error":"', status=500, flood=b"0" * 65_536),
    "a body 100,000 deep": Answer(deep(100_000)),
    "a body 300 deep": Answer(deep(300)),
    "an error 100,000 deep": Answer(deep(100_000), status=400),
    "an error 900 deep": Answer(b'{"error":' + deep(900) + b"}", status=400),
    "arguments 100,000 deep": completion(None, tool_calls=[("c", "t", '{"a":' + "[" * 100_000 + "]" * 100_000 + "}")]),
    "twenty thousand choices": Answer(b'{"choices":[' + b",".join([b'{"index":0,"message":{}}'] * 20_000) + b"]}"),
    "an encoding nobody asked for": Answer(b"x" * 100, headers={"content-encoding": "br"}),
}


@pytest.mark.parametrize("what", ATTACKS)
async def test_no_answer_fills_the_process_or_stops_another_subject(what: str, tmp_path: Path) -> None:
    """More often in a row than the circuit breaker takes: what content does is no failure of the provider. HTTP 500 is one."""
    failures = 100 if ATTACKS[what].status == 500 else 2
    attack = attacked(tmp_path, lambda _: ATTACKS[what], breaker_failures=failures)
    async with attack as (server, runtime), bystander(runtime) as second:
        for number in range(3):
            with anyio.fail_after(60):
                result = await runtime.supervisor().handle_turn(f"hello {number}", subject_id="mallory")
            assert result.degraded
    assert server.flooded <= 8 * IN_FLIGHT
    assert len(second.results) >= 2


STALLS: dict[str, Answer] = {
    "silence": hang(),
    "half a body": Answer(completion("well").body, end="hang"),
    "half a stream": events(['{"response_text":"we'], end="hang"),
}
STALLED = 7
"""Calls of the attacker that never end, of the eight that the endpoint takes at a time."""


# Events where none were requested are refused at once, so half a stream stalls only a streamed answer.
@pytest.mark.parametrize(
    ("what", "streams"), [(each, streams) for each in STALLS for streams in (False, True) if streams or each != "half a stream"]
)
async def test_answers_that_stall_for_one_subject_hold_up_nobody_else_at_the_endpoint(
    what: str, tmp_path: Path, *, streams: bool
) -> None:
    """The bystander is answered by the very endpoint that leaves all calls of the attacker waiting, through the slot left."""
    stalled = list[Hit]()

    def attack(hit: Hit) -> Answer:
        if "speech_act" in json.dumps(hit.body.get("response_format", {})):
            return properly(hit)
        stalled.append(hit)
        return STALLS[what]

    async def talk(supervisor: HO2Supervisor, session_id: str) -> None:
        if not streams:
            await supervisor.handle_turn("attack", session_id=session_id)
            return
        updates: Any = supervisor.stream_turn("attack", session_id=session_id)
        await _read_all_of(updates)

    async with attacked(tmp_path, attack, max_concurrency=STALLED + 1) as (server, runtime):
        supervisor = runtime.supervisor()
        sessions = [await supervisor.start_session(subject_id="mallory") for _ in range(STALLED)]
        with anyio.fail_after(60):
            async with bystander(runtime) as second, anyio.create_task_group() as tasks:
                for session_id in sessions:
                    tasks.start_soon(talk, supervisor, session_id)
                while len(stalled) < STALLED:
                    await anyio.lowlevel.checkpoint()
                served = len(second.results)
                while len(second.results) < served + 5:
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            await server.gone.wait()
            await runtime.drain()
        ends = [each.session_id or "" for each in await read_all(runtime.ledgers().ho2m, entry_type=TURN_ABORTED)]
    assert sorted(ends) == sorted(sessions)
    assert len(stalled) == STALLED


@pytest.mark.parametrize("what", ["a compressed bomb", "an endless body", "an endless event", "an endless error"])
@pytest.mark.parametrize("how", ["whole", "streamed"])
async def test_what_is_held_of_an_answer_is_bounded(what: str, how: str) -> None:
    """Counted in bytes that Python holds at its peak, and in bytes that the endpoint got rid of."""
    async with fake_server(completion(), ATTACKS[what]) as server:
        settings = ProviderConfig(base_url=server.url, model="m", max_response_bytes=LIMIT, timeout_s=60.0)
        async with build_providers(RouterConfig(providers={"it": settings})) as providers:
            provider: Any = providers["it"]
            await provider.complete(ask())
            tracemalloc.start()
            try:
                with anyio.fail_after(60), pytest.raises(ProviderError) as caught:
                    await (provider.complete(ask()) if how == "whole" else _read_all_of(provider.stream(ask())))
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            if ATTACKS[what].flood:
                with anyio.fail_after(20):
                    await server.gone.wait()
    if ATTACKS[what].status == 500:
        assert (caught.value.reason, caught.value.status) == ("server_error", 500)
    else:
        assert caught.value.reason == "malformed"
        assert "max_response_bytes = 1,048,576" in caught.value.detail
    assert server.flooded <= IN_FLIGHT
    assert peak <= 8 * LIMIT + 4 * MIB


async def _read_all_of(stream: AsyncGenerator[Any, None]) -> None:
    async with aclosing(stream) as items:
        async for _ in items:
            pass


async def test_a_key_that_an_answer_repeats_reaches_no_ledger_and_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its text, its model's name, a tool's arguments, or an error: whole, and cut into pieces of a stream."""
    monkeypatch.setenv("SOME_KEY", KEY)
    script = [
        completion(json.dumps({"response_text": f"your key is {KEY}"})),
        completion(None, tool_calls=[(KEY, KEY, json.dumps({KEY: [KEY]}))]),
        error(401, f"no such key: {KEY}"),
    ]

    def attack(hit: Hit) -> Answer:
        if hit.body.get("stream"):
            return events([*"your key is ", *KEY, *" indeed"])
        schema = json.dumps(hit.body.get("response_format", {}))
        answer = properly(hit) if "speech_act" in schema or not script else script.pop(0)
        return Answer(answer.body.replace(b"served-model", KEY.encode()), answer.status)

    async with attacked(tmp_path, attack, api_key="env:SOME_KEY") as (_, runtime), bystander(runtime):
        supervisor = runtime.supervisor()
        told = []
        for number in range(3):
            result = await supervisor.handle_turn(f"hello {number}", subject_id="mallory")
            told.append(repr(result))
        updates = [update async for update in supervisor.stream_turn("hello", subject_id="mallory")]
        entries = [repr(each.payload) for each in await read_all(runtime.ledgers("ADMIN").ho1m)]
    said = "".join(update.text for update in updates if isinstance(update, TextDelta))
    assert "your key is ***" in "".join(told)
    assert said == "your key is *** indeed"
    assert "***" in "".join(entries)
    assert KEY not in "".join([*told, repr(updates)])
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


async def test_what_an_answer_calls_its_model_is_content(tmp_path: Path) -> None:
    """It stands bounded beside the text, which is sealed where content is sealed; the plain field names what was asked for."""
    name = "m-hiv-positive\x1b[2J" + "x" * 5_000

    def attack(hit: Hit) -> Answer:
        answer = json.loads(properly(hit).body)
        return Answer(json.dumps({**answer, "model": name}).encode())

    async with attacked(tmp_path, attack) as (_, runtime), bystander(runtime):
        result = await runtime.supervisor().handle_turn("hello", subject_id="mallory")
        ledger = runtime.ledgers("ADMIN").ho1m
        calls = [payload_of(each) for each in await read_all(ledger) if each.entry_type == "LLM_CALL"]
    assert not result.degraded
    assert {call["model_id"] for call in calls} == {"m"}
    shown = {call["response"].get("served_model") for call in calls} - {"served-model"}
    assert shown == {"m-hiv-positive\ufffd[2J" + "x" * (256 - 18)}


@pytest.mark.parametrize("vendor", ["azure:m", "cerebras:m", "deepseek:m", "openrouter:m", "together:m", "litellm:m"])
async def test_an_endpoint_that_a_vendor_would_ignore_is_refused(vendor: str, tmp_path: Path) -> None:
    """Messages and key would go to the vendor instead of the configured proxy."""
    proxy = ProviderConfig(kind="model", model=vendor, base_url="http://127.0.0.1:1/v1", api_key="env:HOME")
    router = RouterConfig(default_provider="it", providers={"it": proxy})
    with pytest.raises(ConfigError) as caught:
        async with open_runtime(RuntimeConfig(plane_root=str(tmp_path), router=router)):
            pass
    assert caught.value.key == "router.providers.it.base_url"
    assert "would go to the vendor itself" in caught.value.expected


@pytest.mark.parametrize("vendor", ["bedrock", "huggingface", "xai"])
async def test_a_vendor_whose_answers_nothing_would_bound_is_refused(vendor: str, tmp_path: Path) -> None:
    """Its library brings its own HTTP client. The remedy is an endpoint to which ours can speak, or the program's provider."""
    it = ProviderConfig(kind="model", model=f"{vendor}:m", api_key="env:HOME")
    config = RuntimeConfig(plane_root=str(tmp_path), router=RouterConfig(default_provider="it", providers={"it": it}))
    with pytest.raises(ConfigError) as caught:
        async with open_runtime(config):
            pytest.fail("it was opened")
    assert caught.value.key == "router.providers.it.model"
    assert repr(vendor) in caught.value.expected
    for part in ("own HTTP client", "openai_compatible", "`base_url = ", "provider of your own"):
        assert part in caught.value.expected
    with pytest.raises(ConfigError, match="own HTTP client"):
        check_config(config)  # as `kitchener config check` does, without any library
