"""What a gateway promises holds called directly and behind a mailbox alike; explained in docs/actors.md."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import pytest

from kitchener.actors.mailbox.hosts import GatewayCall, HostedGateway
from kitchener.actors.mailbox.mailbox import INTERACTIVE, LaneLimits, Mailbox
from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ActorStopped, LedgerClosed, ProviderError
from kitchener.gateway import LLMGateway
from kitchener.gateway.traits import ProviderTraits
from kitchener.records.prompt import (
    Attempt,
    PromptGateway,
    PromptRequest,
    PromptResponse,
    Provider,
    StreamItem,
    StreamRestart,
    TextPiece,
    Usage,
)
from tests.actors.waiting import settle, settle_then
from tests.gateway.asking import Told, ask
from tests.logs import captured_logs

BUFFER = 2


@pytest.fixture(params=["direct", "behind a mailbox"])
def host(request: pytest.FixtureRequest) -> str:
    """How the component is called."""
    kind: str = request.param
    return kind


def bounds(concurrency: int = 8, capacity: int = 8) -> dict[str, Any]:
    return {
        "name": "the host",
        "lanes": {INTERACTIVE: LaneLimits(concurrency, capacity)},
        "max_restarts": 100,
        "restart_window_s": 60.0,
        "abort_grace_s": 60.0,
    }


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


@dataclass
class Opened:
    """A gateway behind its host."""

    gateway: PromptGateway
    core: LLMGateway
    mailbox: Mailbox[GatewayCall, PromptResponse | None] | None

    def is_idle(self) -> bool:
        lanes = self.mailbox.statistics().values() if self.mailbox is not None else ()
        return self.core.statistics()["p"].in_flight == 0 and all((lane.running, lane.waiting) == (0, 0) for lane in lanes)


@asynccontextmanager
async def open_gateway(host: str, provider: Provider, *, concurrency: int = 8, capacity: int = 8) -> AsyncIterator[Opened]:
    """A gateway over one provider; no call may be taken for a failure of the actor."""
    config = ProviderConfig(kind="offline", max_retries=1)
    core = LLMGateway(RouterConfig(default_provider="p", providers={"p": config}), {"p": provider}, jitter=lambda: 0.0)
    with anyio.fail_after(10), captured_logs() as logs:
        if host == "direct":
            yield Opened(core, core, None)
        else:
            mailbox = HostedGateway.hosting(core, **bounds(concurrency, capacity))
            async with mailbox.open():
                opened = Opened(HostedGateway(mailbox, stream_buffer=BUFFER), core, mailbox)
                yield opened
                await settle()
                assert opened.is_idle()
    assert [line for line in logs if line["event"] == "actor failed"] == []


def stream_of(opened: Opened, request: PromptRequest, told: Told | None = None) -> Any:
    """The stream in a form that can be closed early."""
    return aclosing(cast(Any, opened.gateway.stream(request, on_attempt=told or Told())))


async def read_into(seen: list[StreamItem], gateway: PromptGateway, request: PromptRequest) -> None:
    """Everything that the stream gives before it ends or fails."""
    async for item in gateway.stream(request, on_attempt=Told()):
        seen.append(item)  # noqa: PERF401  what came before a failure has to be kept


async def read(opened: Opened, told: Told | None = None) -> list[StreamItem]:
    async with stream_of(opened, ask(restart_streams=True), told) as items:
        return [item async for item in items]


async def test_a_completion_is_the_model_s_answer_and_each_attempt_is_told(host: str) -> None:
    provider = Pieces(words=2, fails_after=[1])
    async with open_gateway(host, provider) as opened:
        told = Told()
        response = await opened.gateway.complete(ask(), on_attempt=told)
        assert (response.text, response.provider_id, response.attempts, response.route_reason) == ("0 1 ", "p", 2, "default")
        assert told.lines == ["1 started p", "1 failed p server_error", "2 started p"]


async def test_a_call_that_cannot_be_answered_says_why(host: str) -> None:
    async with open_gateway(host, Pieces(fails_after=[0, 0])) as opened:
        with pytest.raises(ProviderError) as caught:
            await opened.gateway.complete(ask(), on_attempt=Told())
        assert (caught.value.provider_id, caught.value.reason, caught.value.status) == ("p", "server_error", 502)


async def test_an_attempt_that_cannot_be_recorded_is_not_made(host: str) -> None:
    async def cannot(attempt: Attempt, /) -> None:
        raise LedgerClosed("the ledger is closed")

    provider = Pieces()
    async with open_gateway(host, provider) as opened:
        with pytest.raises(LedgerClosed):
            await opened.gateway.complete(ask(), on_attempt=cannot)
        with pytest.raises(LedgerClosed):
            async for _ in opened.gateway.stream(ask(), on_attempt=cannot):
                pass
        assert provider.given == 0


async def test_a_stream_gives_every_piece_in_order_and_the_response_last(host: str) -> None:
    async with open_gateway(host, Pieces(words=9)) as opened:
        told = Told()
        items = await read(opened, told)
        assert items[:-1] == [TextPiece(1, f"{n} ") for n in range(9)]
        assert isinstance(items[-1], PromptResponse)
        assert items[-1].text == "0 1 2 3 4 5 6 7 8 "
        assert told.lines == ["1 started p"]


async def test_a_stream_that_starts_over_says_so(host: str) -> None:
    async with open_gateway(host, Pieces(words=3, fails_after=[2])) as opened:
        items = await read(opened)
        assert items[:-1] == [
            *(TextPiece(1, f"{n} ") for n in range(2)),
            StreamRestart(2),
            *(TextPiece(2, f"{n} ") for n in range(3)),
        ]


async def test_a_stream_that_breaks_off_gives_what_there_was_and_then_the_error(host: str) -> None:
    async with open_gateway(host, Pieces(words=9, fails_after=[7])) as opened:
        seen: list[StreamItem] = []
        with pytest.raises(ProviderError) as caught:
            await read_into(seen, opened.gateway, ask(restart_streams=False))
        assert seen == [TextPiece(1, f"{n} ") for n in range(7)]
        assert caught.value.output_begun


async def test_a_reader_that_leaves_closes_the_provider_s_stream_before_it_is_gone(host: str) -> None:
    provider = Pieces(words=50)
    async with open_gateway(host, provider) as opened:
        for n in range(1, 4):
            async with stream_of(opened, ask()) as items:
                assert await anext(items) == TextPiece(1, "0 ")
                await settle()  # behind a mailbox, the provider is now held back by a full buffer
            assert provider.closed == n
            assert opened.core.statistics()["p"].in_flight == 0
        assert len(await read(opened)) == 51


async def test_a_reader_cancelled_while_it_waits_stops_the_provider(host: str) -> None:
    held, never = anyio.Event(), anyio.Event()

    async def gate(n: int) -> None:
        if n == 2 and not held.is_set():
            held.set()
            await never.wait()

    provider = Pieces(gate=gate)
    async with open_gateway(host, provider) as opened, anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(settle_then, scope.cancel)
            await read(opened)
        assert scope.cancelled_caught
        assert (provider.given, provider.closed) == (2, 1)
        assert opened.core.statistics()["p"].in_flight == 0
        assert len(await read(opened)) == 6


async def test_a_cancelled_completion_stops_the_provider(host: str) -> None:
    never = anyio.Event()

    async def gate(n: int) -> None:
        if n == 1 and provider.closed == 0:
            await never.wait()

    provider = Pieces(gate=gate)
    async with open_gateway(host, provider) as opened, anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(settle_then, scope.cancel)
            await opened.gateway.complete(ask(), on_attempt=Told())
        assert scope.cancelled_caught
        assert provider.closed == 1
        assert (await opened.gateway.complete(ask(), on_attempt=Told())).text == "0 1 2 3 4 "


async def test_a_slow_reader_holds_the_provider_back(host: str) -> None:
    provider = Pieces(words=50)
    async with open_gateway(host, provider) as opened, stream_of(opened, ask()) as items:
        for read_so_far in range(1, 6):
            await anext(items)
            await settle()
            assert provider.given <= read_so_far + BUFFER + 1  # one more is in the provider's hand


@pytest.mark.parametrize("kind", [RuntimeError, anyio.BrokenResourceError, OSError])
async def test_a_bug_in_a_provider_is_its_failure_with_the_bug_as_cause(host: str, kind: type[Exception]) -> None:
    error = kind()
    provider = Pieces(fails_after=[0, 2], error=error)
    settings = ProviderConfig(kind="offline", max_retries=0)
    core = LLMGateway(RouterConfig(default_provider="p", providers={"p": settings}), {"p": provider})
    mailbox = HostedGateway.hosting(core, **bounds())
    async with mailbox.open():
        gateway: PromptGateway = core if host == "direct" else HostedGateway(mailbox, stream_buffer=BUFFER)
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
        assert core.statistics()["p"].in_flight == 0


async def test_calls_run_side_by_side(host: str) -> None:
    meeting = anyio.Event()
    arrived = 0

    async def gate(n: int) -> None:
        nonlocal arrived
        if n == 0:
            arrived += 1
            if arrived == 8:
                meeting.set()
            await meeting.wait()

    async with open_gateway(host, Pieces(words=1, gate=gate)) as opened, anyio.create_task_group() as tasks:
        for n in range(8):
            tasks.start_soon(read, opened) if n % 2 else tasks.start_soon(complete, opened)
    assert arrived == 8


async def complete(opened: Opened) -> None:
    await opened.gateway.complete(ask(), on_attempt=Told())


# --- what only a host can do wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stands", ["running", "running with a full buffer", "in line", "waiting for room"])
async def test_a_stream_is_answered_when_its_mailbox_ends(stands: str) -> None:
    held = anyio.Event()

    async def gate(n: int) -> None:
        if n == 1 and stands != "running with a full buffer":
            await held.wait()

    provider = Pieces(words=50, gate=gate)
    core = LLMGateway(RouterConfig(default_provider="p"), {"p": provider})
    mailbox = HostedGateway.hosting(core, **bounds(concurrency=1, capacity=1))
    gateway = HostedGateway(mailbox, stream_buffer=BUFFER)
    outcomes: list[Exception] = []

    async def read_slowly() -> None:
        try:
            async for _ in gateway.stream(ask(), on_attempt=Told()):
                await settle()
        except ActorStopped as error:
            outcomes.append(error)

    readers = {"running": 1, "running with a full buffer": 1, "in line": 2, "waiting for room": 3}[stands]
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks, mailbox.open():
            for _ in range(readers):
                tasks.start_soon(read_slowly)
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
    assert len(outcomes) == readers
    assert provider.closed == 1


async def test_a_gateway_whose_mailbox_is_closed_says_so() -> None:
    core = LLMGateway(RouterConfig(default_provider="p"), {"p": Pieces()})
    mailbox = HostedGateway.hosting(core, **bounds())
    gateway = HostedGateway(mailbox, stream_buffer=BUFFER)
    async with mailbox.open():
        pass
    with pytest.raises(ActorStopped):
        await gateway.complete(ask(), on_attempt=Told())
    with pytest.raises(ActorStopped):
        async for _ in gateway.stream(ask(), on_attempt=Told()):
            pass


@pytest.mark.parametrize("place", ["in line", "waiting for room"])
async def test_a_stream_cancelled_before_it_began_leaves_no_trace(place: str) -> None:
    held = anyio.Event()

    async def gate(n: int) -> None:
        await held.wait()

    provider = Pieces(gate=gate)
    async with open_gateway("behind a mailbox", provider, concurrency=1, capacity=1) as opened:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, opened)
            await settle()
            if place == "waiting for room":
                tasks.start_soon(read, opened)
                await settle()
            with anyio.CancelScope() as scope:
                tasks.start_soon(settle_then, scope.cancel)
                await read(opened)
            assert scope.cancelled_caught
            held.set()
        assert provider.closed == (1 if place == "in line" else 2)
        assert opened.is_idle()


async def test_readers_that_leave_a_full_stream_are_no_failures_of_the_gateway() -> None:
    # Regression: each counted as one, and enough of them stopped the runtime.
    core = LLMGateway(RouterConfig(default_provider="p"), {"p": Pieces(words=50)})
    mailbox = HostedGateway.hosting(core, **{**bounds(), "max_restarts": 1})
    gateway = HostedGateway(mailbox, stream_buffer=BUFFER)
    async with mailbox.open():
        for _ in range(3):
            async with aclosing(cast(Any, gateway.stream(ask(), on_attempt=Told()))) as items:
                await anext(items)
                await settle()
        assert len((await gateway.complete(ask(), on_attempt=Told())).text.split()) == 50
        assert mailbox.statistics()[INTERACTIVE].running == 0
