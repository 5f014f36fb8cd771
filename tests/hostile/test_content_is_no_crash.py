"""What users, models and endpoints say may fail their own turn, and nothing else: no actor counts it, nobody else notices.

Each story repeats its attack more often than an actor may fail. Regression: a hundred answers nested 300 deep, sent by one
subject within a minute, stopped the executor and with it every other subject's turns.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from markupsafe import Markup

from kitchener import tool
from kitchener.actors.tools.tool import Tool
from kitchener.config import LedgerConfig, ProviderConfig, RouterConfig
from kitchener.errors import InvalidMessage, ProviderError
from kitchener.gateway import build_providers
from kitchener.model_usage import Usage
from kitchener.records import events
from kitchener.records.prompt import PromptRequest, PromptResponse, TextPiece, ToolUse
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime, open_runtime
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import ScriptedExecutor, echo, open_by_hand, open_scripted, read_all, scripted_config
from tests.gateway.shared.fake_server import Answer, completion, error, fake_server
from tests.gateway.shared.fake_server import events as stream_of
from tests.hostile.kit import BYSTANDER, bystander, streamed_turn, unless_bystander
from tests.shared.payloads import payload_of
from tests.shared.sampled_tables import sampled

FEW = {"max_restarts": 1}
"""Limits under which the first unexpected error stops the runtime, so that a few attacks tell as much as many."""
QUICK = ProviderConfig(kind="offline", max_retries=0)
OBJECT: Final[dict[str, Any]] = {"synthesize_contract_id": "PRC-SYNTHESIZE-001"}
"""Replies as objects, which are parsed; text is not."""

# Under trio the vendor's library leaves its own generators to the garbage collector once it has read the end of a stream.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2|pydantic_ai):ResourceWarning")


def deep(levels: int) -> str:
    """A synthesize answer nested so deep."""
    return '{"response_text":' + "[" * levels + "]" * levels + "}"


def nested(levels: int) -> Any:
    """The same as a value."""
    value: Any = "end"
    for _ in range(levels):
        value = [value]
    return value


def on_reply(said: Any) -> Any:
    """A model that classifies properly and replies to all but the bystander with this."""

    def answer(request: PromptRequest) -> Any:
        return said if request.wo_type == "synthesize" else echo(request)

    return unless_bystander(answer)


async def fail_often(runtime: Runtime, kind: str, *, times: int = 2, streams: bool = False) -> TurnResult:
    """The attacker's turns, each of which fails with this kind of error and leaves a whole record."""
    session_id = await runtime.supervisor().start_session(subject_id="mallory")
    for number in range(times):
        if streams:
            result = await streamed_turn(runtime, f"attack {number}", session_id=session_id)
        else:
            result = await runtime.supervisor().handle_turn(f"attack {number}", session_id=session_id)
        assert result.error is not None
        assert result.error.kind == kind, result.error
    entries = await read_all(runtime.ledgers().ho2m, session_id=session_id)
    assert sum(entry.entry_type == events.TURN_COMPLETED for entry in entries) == times
    return result


async def test_deep_answers_stop_nobody(tmp_path: Path) -> None:
    provider = ScriptedProvider(on_reply(deep(300)))
    async with open_scripted(tmp_path, provider, limits=FEW, max_retries=0, **OBJECT) as runtime, bystander(runtime):
        await fail_often(runtime, "QUALITY_GATE")
        failed = await read_all(runtime.ledgers().ho1m, entry_type=events.WO_FAILED)
    assert {payload_of(entry)["error"]["reason"] for entry in failed} == {"OUTPUT_SCHEMA"}
    assert all("nested deeper than 64 levels" in payload_of(entry)["error"]["detail"] for entry in failed)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # texts are read without waiting
@pytest.mark.parametrize(("levels", "streams"), sampled((63, 65, 255, 300, 900, 1_020, 5_000, 100_000), (False, True)))
async def test_an_answer_of_any_depth_is_an_output_that_breaks_its_schema(
    tmp_path: Path, levels: int, *, streams: bool
) -> None:
    """Below, at and above the depth at which each of the parsers, validators and encoders gives up."""
    provider, room = ScriptedProvider(on_reply(deep(levels))), 10_000_000
    settings: dict[str, Any] = {"limits": FEW, "max_retries": 0, "turn_budget": room, "budget_ceiling": room}
    async with open_scripted(tmp_path, provider, **settings, **OBJECT) as runtime, bystander(runtime):
        await fail_often(runtime, "QUALITY_GATE", streams=streams)


@pytest.mark.parametrize("levels", [300, 990, 5_000])
async def test_an_answer_with_line_breaks_in_its_strings_has_no_other_depth(tmp_path: Path, levels: int) -> None:
    """Such a text goes to another parser, which recurses in Python."""
    text = '{"a":"line\nbreak","response_text":' + "[" * levels + "]" * levels + "}"
    provider = ScriptedProvider(on_reply(text))
    async with open_scripted(tmp_path, provider, limits=FEW, max_retries=0, **OBJECT) as runtime, bystander(runtime):
        await fail_often(runtime, "QUALITY_GATE")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # texts are read without waiting
async def test_a_classification_of_any_depth_leaves_the_turn_without_one(tmp_path: Path) -> None:
    def answer(request: PromptRequest) -> Any:
        return '{"labels":' + "[" * 300 + "]" * 300 + "}" if request.wo_type == "classify" else echo(request)

    provider = ScriptedProvider(unless_bystander(answer))
    async with open_scripted(tmp_path, provider, limits=FEW) as runtime, bystander(runtime):
        for number in range(2):
            result = await runtime.supervisor().handle_turn(f"attack {number}", subject_id="mallory")
            assert result.response == f"echo: attack {number}"


ODD: Mapping[str, Any] = {
    "no answer": None,
    "a text": "hello",
    "a text of another class": Markup("hello"),
    "bytes for text": b"hello",
    "a deep structured answer": {"response_text": nested(300)},
    "a structured answer too deep to be compared": {"response_text": nested(100_000)},
    "a list for a structured answer": [1],
    "a set inside a structured answer": {"response_text": {1, 2}},
    "no number inside a structured answer": {"response_text": float("nan")},
    "half a character": {"response_text": "\ud800"},
    "deep arguments for a tool": (ToolUse("u", "look", {"where": nested(300)}),),
    "what is no request for a tool": ({"tool_id": "look"},),
    "a tool without a name": (ToolUse("u", None, {}),),  # type: ignore[arg-type]
    "no counts": "no counts",
    "a number of thousands of digits": {"response_text": "hello", "n": 10**5_000},
    "arguments of thousands of digits": (ToolUse("u", "look", {"where": 10**5_000}),),
}


class Odd:
    """A provider of the program's own that breaks every promise of its type, except towards the bystander."""

    def __init__(self, said: Any, *, streams: bool) -> None:
        self._said = said
        if streams:
            self.stream = self._stream

    async def complete(self, request: PromptRequest) -> Any:
        if request.subject_id == BYSTANDER or request.wo_type != "synthesize":
            return await ScriptedProvider([echo(request)]).complete(request)
        if isinstance(self._said, BaseException):
            raise self._said
        whole = PromptResponse(provider_id="odd", model_id="m", text="", usage=Usage(1, 1))
        said = self._said
        if said is None or said == "hello":
            return said
        if said == "no counts":
            return replace(whole, text="hello", usage=None)  # type: ignore[arg-type]
        if isinstance(said, tuple):
            return replace(whole, tool_uses=said)
        if isinstance(said, bytes):
            return replace(whole, text=said)  # type: ignore[arg-type]
        return replace(whole, structured=said)

    async def _stream(self, request: PromptRequest) -> AsyncIterator[Any]:
        answer = await self.complete(request)
        if request.subject_id != BYSTANDER and isinstance(self._said, str | bytes):
            yield TextPiece(1, self._said)  # type: ignore[arg-type]
        yield answer


def settings_of(root: Path) -> Any:
    config = scripted_config(root, limits=FEW, max_retries=0, **OBJECT)
    router = RouterConfig(default_provider="odd", providers={"odd": QUICK})
    return config.model_copy(update={"router": router})


@tool(read_only=True)
def look(where: str) -> str:
    """Looks somewhere."""
    return where


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # texts are read without waiting
@pytest.mark.parametrize(("what", "streams"), sampled(ODD, (False, True)))
async def test_an_answer_that_is_none_is_malformed(tmp_path: Path, what: str, *, streams: bool) -> None:
    providers: Any = {"odd": Odd(ODD[what], streams=streams)}
    async with open_runtime(settings_of(tmp_path), providers=providers, tools=[look]) as runtime, bystander(runtime):
        session_id = await runtime.supervisor().start_session(subject_id="mallory")
        for number in range(2):
            result = await streamed_turn(runtime, f"attack {number}", session_id=session_id)
            assert result.error is not None
            assert result.error.kind == "PROVIDER", result.error
        failed = await read_all(runtime.ledgers().ho1m, session_id=session_id, entry_type=events.WO_FAILED)
    assert {payload_of(entry)["error"]["provider_reason"] for entry in failed} == {"malformed"}


class OfItsOwn(BaseException):
    """What no `except Exception` catches."""


class Unreadable(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


BUGS: Mapping[str, BaseException] = {
    "a value error": ValueError("odd"),
    "a recursion error": RecursionError("too deep"),
    "an exit": SystemExit(3),
    "a generator's exit": GeneratorExit(),
    "an error that is no Exception": OfItsOwn("mine"),
    "an error without a text": Unreadable(),
    "an error for no reason": ProviderError("odd", ["none"], "odd"),  # type: ignore[arg-type]
    "an error for another reason": ProviderError("odd", "whim", "odd"),  # type: ignore[arg-type]
    "an error without words": ProviderError("odd", "connection", None),  # type: ignore[arg-type]
    "a pause that is no number": ProviderError("odd", "rate_limited", "odd", retry_after_s="soon"),  # type: ignore[arg-type]
    "a pause without end": ProviderError("odd", "rate_limited", "odd", retry_after_s=float("inf")),
    "a group of errors": BaseExceptionGroup("two", [OfItsOwn(), ValueError()]),
}


@pytest.mark.parametrize(("bug", "streams"), sampled(BUGS, (False, True)))
async def test_whatever_a_provider_raises_is_its_own_failure(tmp_path: Path, bug: str, *, streams: bool) -> None:
    providers: Any = {"odd": Odd(BUGS[bug], streams=streams)}
    async with open_runtime(settings_of(tmp_path), providers=providers) as runtime, bystander(runtime):
        await fail_often(runtime, "PROVIDER", streams=streams)


@pytest.mark.parametrize(("bug", "is_async"), sampled(BUGS, (False, True)))
async def test_whatever_a_tool_raises_is_told_to_the_model(tmp_path: Path, bug: str, *, is_async: bool) -> None:
    def broken() -> str:
        """Is broken."""
        raise BUGS[bug]

    async def broken_too() -> str:
        """Is broken."""
        raise BUGS[bug]

    def answer(request: PromptRequest) -> Any:
        return use_tool("broken") if request.wo_type == "synthesize" and request.call == 1 else echo(request)

    given = Tool(broken_too if is_async else broken, name="broken", read_only=True)
    provider = ScriptedProvider(unless_bystander(answer))
    async with open_scripted(tmp_path, provider, tools=[given], limits=FEW) as runtime, bystander(runtime):
        for number in range(2):
            result = await runtime.supervisor().handle_turn(f"attack {number}", subject_id="mallory")
            assert result.response == f"echo: attack {number}"
        [first, *_] = await read_all(runtime.ledgers().ho1m, entry_type=events.TOOL_CALL)
    assert type(BUGS[bug]).__name__ in payload_of(first)["error"]


async def test_a_message_of_another_class_is_the_text_it_extends(tmp_path: Path) -> None:
    """`markupsafe.Markup` and its like come out of web frameworks."""

    class Loud(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "something else"

    async with open_scripted(tmp_path, limits=FEW) as runtime, bystander(runtime):
        for number in range(2):
            result = await runtime.supervisor().handle_turn(Markup(f"hello <b>{number}</b>"), subject_id="mallory")
            assert result.response == f"echo: hello <b>{number}</b>"
        assert (await runtime.supervisor().handle_turn(Loud("quiet"), subject_id="mallory")).response == "echo: quiet"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # texts are read without waiting
@pytest.mark.parametrize("message", ["half \ud800", "€" * 2_000, "\x00" * 1_000, b"bytes", 7, None, ["a"], "", " \n"])
async def test_a_message_that_cannot_be_recorded_is_refused_before_anything_is(tmp_path: Path, message: Any) -> None:
    small = LedgerConfig(durability="os", linger_ms=0, max_entry_bytes=8_192)
    async with open_scripted(tmp_path, ledger=small) as runtime:
        supervisor = runtime.supervisor()
        with pytest.raises(InvalidMessage, match="message"):
            await supervisor.handle_turn(message, subject_id="mallory")
        with pytest.raises(InvalidMessage, match="message"):
            await supervisor.handle_turn(message, subject_id="mallory", idempotency_key="k")
        assert await read_all(runtime.ledgers().ho2m) == []
        assert (await supervisor.handle_turn("hello", subject_id="mallory")).response == "echo: hello"


class Front:
    """Asks an HTTP endpoint for everybody but the bystander."""

    def __init__(self, remote: Any) -> None:
        self._remote, self._local = remote, ScriptedProvider(echo)

    def _for(self, request: PromptRequest) -> Any:
        return self._local if request.subject_id == BYSTANDER else self._remote

    async def complete(self, request: PromptRequest) -> PromptResponse:
        answer: PromptResponse = await self._for(request).complete(request)
        return answer

    async def stream(self, request: PromptRequest) -> AsyncIterator[Any]:
        async with aclosing(self._for(request).stream(request)) as items:
            async for item in items:
                yield item


DEEP = 100_000
BODIES: Mapping[str, Answer] = {
    "an error nested deep": Answer(b'{"error":' * DEEP + b"1" + b"}" * DEEP, 400),
    "an error that is a deep list": Answer(b"[" * DEEP + b"]" * DEEP, 500),
    "an answer nested deep": Answer(b'{"choices":' * DEEP + b"1" + b"}" * DEEP),
    "an answer that is a deep list": Answer(b"[" * DEEP),
    "a text nested deep": completion(deep(DEEP)),
    "a text nested less deep": completion(deep(300)),
    "arguments nested deep": completion(None, tool_calls=[("c", "look", '{"where":' + "[" * DEEP + "]" * DEEP + "}")]),
    "a message nested deep": error(400, "[" * DEEP),
    "a stream nested deep": Answer(b"data: " + b"[" * DEEP + b"\n\n", content_type="text/event-stream"),
    "a streamed text nested deep": stream_of([deep(DEEP)[n : n + 9_999] for n in range(0, 2 * DEEP + 18, 9_999)]),
}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # texts are read without waiting
@pytest.mark.parametrize("what", BODIES)
async def test_a_body_of_any_depth_from_the_endpoint_stops_nobody(tmp_path: Path, what: str) -> None:
    async with fake_server(*[BODIES[what]] * 100) as server:
        remote = ProviderConfig(base_url=server.url, model="m")
        async with build_providers(RouterConfig(default_provider="remote", providers={"remote": remote})) as known:
            providers: Any = {"odd": Front(known["remote"])}
            async with open_runtime(settings_of(tmp_path), providers=providers, tools=[look]) as runtime, bystander(runtime):
                session_id = await runtime.supervisor().start_session(subject_id="mallory")
                whole = await runtime.supervisor().handle_turn("attack", session_id=session_id)
                streamed = await streamed_turn(runtime, "attack", session_id=session_id)
                for result in (whole, streamed):
                    assert result.error is not None
                    assert result.error.kind in ("PROVIDER", "QUALITY_GATE"), result.error
    assert len(server.hits) >= 2


async def test_answers_that_one_subject_spoils_shut_no_provider_for_others(tmp_path: Path) -> None:
    """Regression: five malformed answers in a row, all brought about by one subject, opened the circuit for everybody."""

    def answer(request: PromptRequest) -> Any:
        return ProviderError("scripted", "malformed", "not JSON") if request.subject_id == "mallory" else echo(request)

    # Between attempts it waits for a thousandth of its time; the number of attempts is the usual one.
    settings = ProviderConfig(kind="offline", backoff_initial_s=0.0005, backoff_max_s=0.02)
    router = RouterConfig(default_provider="scripted", providers={"scripted": settings})
    config = scripted_config(tmp_path).model_copy(update={"router": router})
    async with open_runtime(config, providers={"scripted": ScriptedProvider(answer)}) as runtime:
        for number in range(8):
            result = await runtime.supervisor().handle_turn(f"attack {number}", subject_id="mallory")
            assert result.error is not None
            assert "malformed" in result.error.message
        assert (await runtime.supervisor().handle_turn("hello", subject_id=BYSTANDER)).response == "echo: hello"


async def test_a_reply_without_executor_that_is_no_text_is_an_apology(tmp_path: Path) -> None:
    for said in (None, 7, "half \ud800", "long " * 300_000):

        async def degraded(message: str, *, said: Any = said, **_: Any) -> Any:
            return said

        executor = ScriptedExecutor(lambda wo: RuntimeError("broken"))
        async with open_by_hand(tmp_path / repr(said)[:4], executor, degraded_call=degraded) as stack:
            result = await stack.turn("hello")
            assert result.response.startswith("I could not")
