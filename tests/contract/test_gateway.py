"""What a gateway promises to its callers, for complete answers and for streams; explained in docs/gateway.md."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import pytest

from kitchener.config import LimitsConfig, ProviderConfig, RouterConfig
from kitchener.errors import ActorStopped, LedgerClosed, Overloaded, ProviderError
from kitchener.gateway import LLMGateway
from kitchener.gateway.traits import ProviderTraits
from kitchener.model_usage import Usage
from kitchener.records.prompt import (
    Attempt,
    PromptGateway,
    PromptRequest,
    PromptResponse,
    Provider,
    StreamItem,
    StreamRestart,
    TextPiece,
)
from tests.actors.time_control import settle, settle_then
from tests.gateway.shared.gateway_kit import Told, ask, in_virtual_time


@dataclass
class Pieces:
    """A provider that streams numbered words; each may be held back, fail, or come after a wait."""

    words: int = 5
    fails_after: list[int] = field(default_factory=list)
    """For each attempt in turn, after how many words it fails; then all succeed."""
    error: BaseException = field(default_factory=lambda: ProviderError("p", "server_error", "broke off", status=502))
    gate: Callable[[int], Awaitable[object]] | None = None
    """Awaited with its number before each word."""
    given: int = 0
    closed: int = 0
    traits: ProviderTraits = field(default_factory=lambda: ProviderTraits(built_in=True, needs_timeout=False, model_id="m"))

    async def complete(self, request: PromptRequest) -> PromptResponse:
        async with aclosing(self.stream(request)) as items:
            async for item in items:
                if isinstance(item, PromptResponse):
                    return item
        raise AssertionError("a stream ends with its response")

    async def stream(self, request: PromptRequest) -> Any:
        stop = self.fails_after.pop(0) if self.fails_after else None
        try:
            for n in range(self.words):
                if n == stop:
                    raise self.error
                if self.gate is not None:
                    await self.gate(n)
                self.given += 1
                yield TextPiece(1, f"{n} ")
            if self.words == stop:
                raise self.error
            text = "".join(f"{n} " for n in range(self.words))
            yield PromptResponse(provider_id="p", model_id="m", text=text, usage=Usage(1, self.words))
        finally:
            self.closed += 1


@asynccontextmanager
async def open_gateway(provider: Provider, *, places: int = 64, queue: int = 64) -> AsyncIterator[LLMGateway]:
    """A gateway over one provider. When it is left, all places of the provider are free."""
    config = ProviderConfig(kind="offline", max_retries=1, max_concurrency=places)
    router = RouterConfig(default_provider="p", providers={"p": config})
    with anyio.fail_after(10):
        async with LLMGateway(
            router, {"p": provider}, jitter=lambda: 0.0, limits=LimitsConfig(gateway_queue=queue)
        ).open() as gateway:
            yield gateway
            await settle()
    assert counts(gateway) == (0, 0, 0)


def counts(gateway: LLMGateway) -> tuple[int, int, int]:
    """Calls that run, wait, and ask for room."""
    found = gateway.statistics()["p"]
    return found.running, found.waiting, found.asking_for_room


def stream_of(gateway: LLMGateway, request: PromptRequest, told: Told | None = None) -> Any:
    """The stream in a form that can be closed early."""
    return aclosing(cast(Any, gateway.stream(request, on_attempt=told or Told())))


async def read_into(seen: list[StreamItem], gateway: PromptGateway, request: PromptRequest) -> None:
    """Everything that the stream gives before it ends or fails."""
    async for item in gateway.stream(request, on_attempt=Told()):
        seen.append(item)  # noqa: PERF401  what came before a failure has to be kept


async def read(gateway: LLMGateway, told: Told | None = None) -> list[StreamItem]:
    async with stream_of(gateway, ask(restart_streams=True), told) as items:
        return [item async for item in items]


async def test_a_completion_is_the_model_s_answer_and_each_attempt_is_told() -> None:
    provider = Pieces(words=2, fails_after=[1])
    async with open_gateway(provider) as gateway:
        told = Told()
        response = await gateway.complete(ask(), on_attempt=told)
        assert (response.text, response.provider_id, response.attempts, response.route_reason) == ("0 1 ", "p", 2, "default")
        assert told.lines == ["1 started p", "1 failed p server_error", "2 started p"]


async def test_a_call_that_cannot_be_answered_says_why() -> None:
    async with open_gateway(Pieces(fails_after=[0, 0])) as gateway:
        with pytest.raises(ProviderError) as caught:
            await gateway.complete(ask(), on_attempt=Told())
        assert (caught.value.provider_id, caught.value.reason, caught.value.status) == ("p", "server_error", 502)


async def test_an_attempt_that_cannot_be_recorded_is_not_made() -> None:
    async def cannot(attempt: Attempt, /) -> None:
        raise LedgerClosed("the ledger is closed")

    provider = Pieces()
    async with open_gateway(provider) as gateway:
        with pytest.raises(LedgerClosed):
            await gateway.complete(ask(), on_attempt=cannot)
        with pytest.raises(LedgerClosed):
            async for _ in gateway.stream(ask(), on_attempt=cannot):
                pass
        assert provider.given == 0


async def test_a_stream_gives_every_piece_in_order_and_the_response_last() -> None:
    async with open_gateway(Pieces(words=9)) as gateway:
        told = Told()
        items = await read(gateway, told)
        assert items[:-1] == [TextPiece(1, f"{n} ") for n in range(9)]
        assert isinstance(items[-1], PromptResponse)
        assert items[-1].text == "0 1 2 3 4 5 6 7 8 "
        assert told.lines == ["1 started p"]


async def test_a_stream_that_starts_over_says_so() -> None:
    async with open_gateway(Pieces(words=3, fails_after=[2])) as gateway:
        items = await read(gateway)
        assert items[:-1] == [
            *(TextPiece(1, f"{n} ") for n in range(2)),
            StreamRestart(2),
            *(TextPiece(2, f"{n} ") for n in range(3)),
        ]


async def test_a_stream_that_breaks_off_gives_what_there_was_and_then_the_error() -> None:
    async with open_gateway(Pieces(words=9, fails_after=[7])) as gateway:
        seen: list[StreamItem] = []
        with pytest.raises(ProviderError) as caught:
            await read_into(seen, gateway, ask(restart_streams=False))
        assert seen == [TextPiece(1, f"{n} ") for n in range(7)]
        assert caught.value.output_begun


async def test_a_reader_that_leaves_closes_the_provider_s_stream_before_it_is_gone() -> None:
    provider = Pieces(words=50)
    async with open_gateway(provider) as gateway:
        for n in range(1, 4):
            async with stream_of(gateway, ask()) as items:
                assert await anext(items) == TextPiece(1, "0 ")
                await settle()
            assert provider.closed == n
            assert gateway.statistics()["p"].running == 0
        assert len(await read(gateway)) == 51


async def test_a_reader_cancelled_while_it_waits_stops_the_provider() -> None:
    held, never = anyio.Event(), anyio.Event()

    async def gate(n: int) -> None:
        if n == 2 and not held.is_set():
            held.set()
            await never.wait()

    provider = Pieces(gate=gate)
    async with open_gateway(provider) as gateway, anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(settle_then, scope.cancel)
            await read(gateway)
        assert scope.cancelled_caught
        assert (provider.given, provider.closed) == (2, 1)
        assert gateway.statistics()["p"].running == 0
        assert len(await read(gateway)) == 6


async def test_a_cancelled_completion_stops_the_provider() -> None:
    never = anyio.Event()

    async def gate(n: int) -> None:
        if n == 1 and provider.closed == 0:
            await never.wait()

    provider = Pieces(gate=gate)
    async with open_gateway(provider) as gateway, anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(settle_then, scope.cancel)
            await gateway.complete(ask(), on_attempt=Told())
        assert scope.cancelled_caught
        assert provider.closed == 1
        assert (await gateway.complete(ask(), on_attempt=Told())).text == "0 1 2 3 4 "


async def test_a_slow_reader_holds_the_provider_back() -> None:
    provider = Pieces(words=50)
    async with open_gateway(provider) as gateway, stream_of(gateway, ask()) as items:
        for read_so_far in range(1, 6):
            await anext(items)
            await settle()
            assert provider.given == read_so_far


@pytest.mark.parametrize("kind", [RuntimeError, anyio.BrokenResourceError, OSError])
async def test_a_bug_in_a_provider_is_its_failure_with_the_bug_as_cause(kind: type[Exception]) -> None:
    error = kind()
    provider = Pieces(fails_after=[0, 2], error=error)
    settings = ProviderConfig(kind="offline", max_retries=0)
    async with LLMGateway(RouterConfig(default_provider="p", providers={"p": settings}), {"p": provider}).open() as gateway:
        with pytest.raises(ProviderError, match=f"malformed: the provider raised {kind.__name__}") as caught:
            await gateway.complete(ask(), on_attempt=Told())
        assert caught.value.__cause__ is not None
        assert caught.value.__cause__.__cause__ is error
        seen: list[StreamItem] = []
        with pytest.raises(ProviderError, match=f"malformed: the provider raised {kind.__name__}") as caught:
            await read_into(seen, gateway, ask())
        assert caught.value.__cause__ is not None
        assert caught.value.__cause__.__cause__ is error
        assert seen == [TextPiece(1, "0 "), TextPiece(1, "1 ")]
        assert gateway.statistics()["p"].running == 0


async def test_calls_run_side_by_side() -> None:
    meeting = anyio.Event()
    arrived = 0

    async def gate(n: int) -> None:
        nonlocal arrived
        if n == 0:
            arrived += 1
            if arrived == 8:
                meeting.set()
            await meeting.wait()

    async with open_gateway(Pieces(words=1, gate=gate)) as gateway, anyio.create_task_group() as tasks:
        for n in range(8):
            tasks.start_soon(read, gateway) if n % 2 else tasks.start_soon(complete, gateway)
    assert arrived == 8


async def complete(gateway: LLMGateway, request: PromptRequest | None = None) -> None:
    await gateway.complete(request or ask(), on_attempt=Told())


# --- the lane of a provider ----------------------------------------------------------------------------------------------


class Held:
    """A gate for `Pieces` that holds every call until it is released."""

    def __init__(self) -> None:
        self.released = anyio.Event()

    async def __call__(self, word: int) -> None:
        await self.released.wait()


async def failed(gateway: LLMGateway, request: PromptRequest) -> Exception:
    """The error of a call."""
    with pytest.raises((Overloaded, ProviderError)) as caught:
        await gateway.complete(request, on_attempt=Told())
    return caught.value


@pytest.mark.parametrize("kind", ["complete answers", "streams"])
def test_slow_calls_fill_the_lane_and_the_next_one_waits_for_room_until_its_deadline(kind: str) -> None:
    """Two run, three wait, and the sixth never has room. The others are answered, and another provider is not disturbed."""

    async def main() -> None:
        held, told = Held(), Told()
        config = ProviderConfig(kind="offline", max_concurrency=2)
        router = RouterConfig(default_provider="p", providers={"p": config}, fallbacks={"p": ("q",)})
        provider, other = Pieces(gate=held), Pieces()
        async with LLMGateway(router, {"p": provider, "q": other}, limits=LimitsConfig(gateway_queue=4)).open() as gateway:
            call = complete if kind == "complete answers" else read
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(call, gateway)
                await anyio.wait_all_tasks_blocked()
                assert counts(gateway) == (2, 3, 0)
                began = anyio.current_time()
                with pytest.raises(Overloaded) as caught:
                    await gateway.complete(ask(deadline=began + 7), on_attempt=told)
                assert anyio.current_time() == began + 7
                assert (caught.value.what, caught.value.limit) == ("the queue of the gateway for provider 'p'", 4)
                assert told.lines == []
                assert other.given == 0
                assert gateway.statistics()["p"].given_up == 1
                answer = await gateway.complete(ask(provider_id="q"), on_attempt=Told())
                assert answer.route_reason == "explicit"
                held.released.set()
            assert counts(gateway) == (0, 0, 0)
            assert provider.closed == 5
            assert gateway.statistics()["p"].waited == 3

    in_virtual_time(main)


async def test_a_full_lane_has_a_place_for_another_subject() -> None:
    held = Held()
    provider = Pieces(gate=held)
    async with open_gateway(provider, places=8, queue=8) as gateway, anyio.create_task_group() as tasks:
        for _ in range(64):
            tasks.start_soon(complete, gateway, ask(subject_id="mallory"))
        await settle()
        assert counts(gateway) == (7, 6, 51)
        tasks.start_soon(complete, gateway, ask(subject_id="ada"))
        await settle()
        assert counts(gateway) == (8, 6, 51)
        held.released.set()
    assert provider.closed == 65


async def test_a_stream_holds_its_place_until_it_ends() -> None:
    async with open_gateway(Pieces(words=3), places=1) as gateway, anyio.create_task_group() as tasks:
        async with stream_of(gateway, ask()) as items:
            assert await anext(items) == TextPiece(1, "0 ")
            tasks.start_soon(complete, gateway)
            await settle()
            assert counts(gateway) == (1, 1, 0)
            rest = [item async for item in items]
            assert isinstance(rest[-1], PromptResponse)
        await settle()
        assert counts(gateway) == (0, 0, 0)


async def test_a_call_that_falls_back_leaves_the_first_lane_to_others() -> None:
    """While the second provider is slow, the first one's only place is free."""
    down, held = Pieces(fails_after=[0]), Held()
    router = RouterConfig(
        default_provider="p",
        providers={"p": ProviderConfig(kind="offline", max_retries=0, max_concurrency=1)},
        fallbacks={"p": ("q",)},
    )
    both = {"p": down, "q": Pieces(gate=held)}
    async with LLMGateway(router, both).open() as gateway, anyio.create_task_group() as tasks:
        tasks.start_soon(complete, gateway)
        await settle()
        assert counts(gateway) == (0, 0, 0)
        assert gateway.statistics()["q"].running == 1
        assert (await gateway.complete(ask(), on_attempt=Told())).provider_id == "p"
        held.released.set()


def test_a_call_that_waits_to_be_retried_leaves_its_lane_to_others() -> None:
    async def main() -> None:
        config = ProviderConfig(kind="offline", max_concurrency=1, backoff_initial_s=8.0)
        router = RouterConfig(default_provider="p", providers={"p": config})
        async with LLMGateway(router, {"p": Pieces(fails_after=[0])}, jitter=lambda: 0.5).open() as gateway:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(complete, gateway)
                await anyio.wait_all_tasks_blocked()
                assert counts(gateway) == (0, 0, 0)
                began = anyio.current_time()
                await complete(gateway)
                assert anyio.current_time() == began
            assert anyio.current_time() == began + 4

    in_virtual_time(main)


@pytest.mark.parametrize("place", ["in line", "waiting for room"])
async def test_a_stream_cancelled_before_it_began_leaves_no_trace(place: str) -> None:
    held = Held()
    provider = Pieces(gate=held)
    async with open_gateway(provider, places=1, queue=1) as gateway:
        async with anyio.create_task_group() as tasks:
            for _ in range(1 if place == "in line" else 2):
                tasks.start_soon(read, gateway)
                await settle()
            with anyio.CancelScope() as scope:
                tasks.start_soon(settle_then, scope.cancel)
                await read(gateway)
            assert scope.cancelled_caught
            held.released.set()
        assert provider.closed == (1 if place == "in line" else 2)


@pytest.mark.parametrize("state", ["not open yet", "closed"])
async def test_a_gateway_that_is_not_open_says_so(state: str) -> None:
    gateway = LLMGateway(RouterConfig(default_provider="p"), {"p": Pieces()})
    if state == "closed":
        async with gateway.open():
            pass
    says = "the gateway has stopped" if state == "closed" else "enter its `open()` first"
    with pytest.raises(ActorStopped, match=re.escape(says)):
        await gateway.complete(ask(), on_attempt=Told())
    with pytest.raises(ActorStopped, match=re.escape(says)):
        async for _ in gateway.stream(ask(), on_attempt=Told()):
            pass
