"""What a user sees of a setting of the ledgers, the memory and the gateway, driven by their own public interfaces.

As in `observed_turns.py`, each function runs one small scene under one value of a setting and returns what was seen.
"""

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Final

import anyio
import trio

from kitchener.config import LedgerConfig, LimitsConfig, ModelPrice, ProviderConfig, RouterConfig
from kitchener.errors import ConfigError, KitchenerError, LedgerDamaged, ProviderError, ProviderReason
from kitchener.gateway import LLMGateway, build_providers
from kitchener.gateway.routing import check_router
from kitchener.ledger import LedgerClient, Ledgers
from kitchener.records.prompt import PromptRequest
from kitchener.signing import make_key
from kitchener.testing import ScriptedProvider
from tests.actors.time_control import settle
from tests.config.observed_turns import CLOCK, pass_time
from tests.gateway.shared.fake_server import completion, fake_server
from tests.gateway.shared.gateway_kit import Told, ask, failure, gateway_of, in_virtual_time
from tests.gateway.shared.secured_server import certificates
from tests.gateway.test_gateway import Remote
from tests.ledger.support import FaultFS, SetClock, fact, fill, open_ledger
from tests.memory.shared.kit import open_memory, recur
from tests.telemetry.watch import Watch

_HOUR_US: Final = 3_600_000_000


async def commits(root: Path, **config: Any) -> Hashable:
    """Writes and syncs of three entries whose commits come one by one while two turns run."""
    ops = FaultFS()
    settings = LedgerConfig.model_validate({"durability": "os", "linger_ms": 1_000.0, **config})
    async with LedgerClient.open(
        root / "ho2m.jsonl", ledger_id="HO2M:ADMIN", clock=SetClock(), config=settings, file_ops=ops
    ) as ledger:
        ledgers = Ledgers(ledger, ledger, ledger)
        for _ in range(4):
            ledgers.enter_turn()
        ops.log.clear()
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                await ledger.write(fact(number))
                tasks.start_soon(ledgers.commit)
                await settle()
            CLOCK.jump(1.0)
        return tuple(kind for kind, _ in ops.log if kind in ("write", "sync"))


async def one_by_one(root: Path, **config: Any) -> Hashable:
    """Writes to the file for three entries of which nobody awaits the commit."""
    ops = FaultFS()
    async with open_ledger(root / "l.jsonl", config=LedgerConfig(durability="none", **config), file_ops=ops) as ledger:
        ops.log.clear()
        for number in range(3):
            await ledger.write(fact(number))
        await ledger.commit()
        return [kind for kind, _ in ops.log].count("write")


async def segments(root: Path, **config: Any) -> Hashable:
    """How many segments three entries of half a mebibyte make."""
    async with open_ledger(root / "l.jsonl", config=LedgerConfig(durability="none", **config)) as ledger:
        for number in range(3):
            await ledger.write(fact(number, text="x" * 524_288))
            await ledger.commit()
    return len(list((root / "l.jsonl.segments").glob("*.segment")))


async def late_entry(root: Path, **config: Any) -> Hashable:
    """An entry two hours after the one before."""
    clock = SetClock()
    try:
        async with open_ledger(root / "l.jsonl", clock=clock, config=LedgerConfig(durability="none", **config)) as ledger:
            await ledger.write(fact(1))
            clock.now += 2 * _HOUR_US
            await ledger.write(fact(2))
    except KitchenerError as error:
        return type(error).__name__
    return "written"


async def reopened(root: Path, **config: Any) -> Hashable:
    """A ledger whose first entry was edited after the index had seen it."""
    path = root / "l.jsonl"
    data = await fill(path, [1, 2])
    path.write_bytes(data.replace(b'"n":1', b'"n":7', 1))
    try:
        async with open_ledger(path, config=LedgerConfig(**config)):
            return "opened"
    except LedgerDamaged:
        return "refused"


async def signed(root: Path, value: str | None) -> Hashable:
    """A checkpoint of a ledger."""
    make_key(root / "key.pem")
    config = LedgerConfig(durability="none", signing_key=str(root / value) if value else None)
    async with open_ledger(root / "l.jsonl", config=config) as ledger:
        await ledger.write(fact(1))
        try:
            return await ledger.checkpoint() is not None
        except KitchenerError as error:
            return type(error).__name__


async def read_again(root: Path, **settings: Any) -> Hashable:
    """Reads of the signals' file for a subject that was read before, and then another one with many signals."""
    disk = FaultFS()
    async with open_memory(root, disk=disk, **settings) as memory:
        for name in ("ADMIN/ada", "ADMIN/bo"):
            await recur(memory, count=700, namespace=name)
        await memory.commit()
        disk.log.clear()
        await memory.read_signals(namespace="ADMIN/ada")
        return [kind for kind, _ in disk.log].count("read")


async def in_flight(root: Path, **settings: Any) -> Hashable:
    """How many of three calls a provider has in its hands."""
    arrived, released = list[PromptRequest](), anyio.Event()

    async def hold(request: PromptRequest) -> None:
        arrived.append(request)
        await released.wait()

    async with gateway_of(a=(ScriptedProvider(lambda _: "fine", gate=hold), settings)).open() as gateway:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(call, gateway)
            await settle()
            seen = len(arrived)
            tasks.cancel_scope.cancel()
        return seen


async def call(gateway: LLMGateway) -> str:
    """One call, and what it came to."""
    try:
        response = await gateway.complete(ask(within_s=1_000.0), on_attempt=Told())
    except ProviderError as error:
        return error.reason
    return response.text


async def silent(root: Path, **settings: Any) -> Hashable:
    """A call to a provider that is silent for a while."""
    released = anyio.Event()

    async def hold(_: PromptRequest) -> None:
        await released.wait()

    ends = list[str]()
    async with gateway_of(a=(ScriptedProvider(lambda _: "fine", gate=hold), {"max_retries": 0, **settings})).open() as gateway:

        async def send() -> None:
            ends.append(await call(gateway))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await settle()
            await pass_time()
            released.set()
        return tuple(ends)


def attempts(
    failures: int = 5, calls: int = 1, pause_s: float = 0.0, reason: ProviderReason = "connection", **settings: Any
) -> Callable[[], Hashable]:
    """When a provider that fails some times was asked, on a clock that jumps to whatever is waited for."""

    async def main() -> Hashable:
        times = list[float]()
        begun = trio.current_time()

        def answer(_: PromptRequest) -> Any:
            times.append(round(trio.current_time() - begun, 6))
            return failure(reason) if len(times) <= failures else "fine"

        async with gateway_of(0.5, a=(ScriptedProvider(answer), settings)).open() as gateway:
            for _ in range(calls):
                await call(gateway)
                await trio.sleep(pause_s)
            return tuple(times)

    return lambda: in_virtual_time(main)


def retried(key: str, **others: Any) -> Callable[[Path, Any], Any]:
    """The scene of `attempts` under one value of a provider's setting."""

    async def observe(_: Path, value: Any) -> Hashable:
        return await anyio.to_thread.run_sync(attempts(**{key: value}, **others))

    return observe


async def over_http(root: Path, **settings: Any) -> Hashable:
    """A call in a trace to an endpoint: what it saw of path, headers and trace, and the answer. `{}` stands for its address."""
    async with fake_server(completion("x" * 4_096)) as server:
        address = settings.pop("base_url", "{}").format(server.url)
        config = RouterConfig(
            default_provider="it", providers={"it": ProviderConfig(base_url=address, model="m", max_retries=0, **settings)}
        )
        watch = Watch()
        async with (
            build_providers(config) as providers,
            watch.telemetry.gateway(config, providers, LimitsConfig()).open() as gateway,
        ):
            answer = await call(gateway)
        (hit,) = server.hits
        has_trace = "traceparent" in hit.headers
        told = tuple(hit.headers.get(each) for each in ("authorization", "x-title"))
        return hit.path, told, hit.body.get("prompt_cache_key"), has_trace, answer


async def thought(root: Path, **settings: Any) -> Hashable:
    """The output tokens that two calls ask for, whose model used more than its text has."""
    async with fake_server() as server:
        server.respond = lambda _: completion("fine", usage={"prompt_tokens": 9, "completion_tokens": 500})
        it = ProviderConfig(base_url=server.url, model="m", **settings)
        config = RouterConfig(default_provider="it", providers={"it": it})
        async with build_providers(config) as providers, LLMGateway(config, providers).open() as gateway:
            answers = [await call(gateway) for _ in range(2)]
        return (*answers, *(hit.body["max_tokens"] for hit in server.hits))


async def too_long(root: Path, value: Any) -> Hashable:
    """A call with a request that the first provider finds too long."""
    config = RouterConfig(default_provider="a", context_window_fallbacks=value)
    providers = {"a": ScriptedProvider([failure("context_length")]), "b": ScriptedProvider(["fine"])}
    async with LLMGateway(config, providers).open() as gateway:
        return await call(gateway)


async def opened(root: Path, **settings: Any) -> Hashable:
    """Whether a provider with these settings can be opened."""
    it = ProviderConfig(base_url="https://127.0.0.1:1/v1", model="m", **settings)
    try:
        async with build_providers(RouterConfig(providers={"it": it})):
            return "opened"
    except ConfigError:
        return "refused"


async def opened_with_certificate(root: Path, **settings: Any) -> Hashable:
    """Whether a provider with these settings and a certificate, in one file with its key, can be opened."""
    _, chain = certificates(root)
    return await opened(root, client_cert=str(chain), **settings)


async def kind(root: Path, value: str) -> Hashable:
    """Whether a provider of that kind needs an address."""
    try:
        check_router(RouterConfig(providers={"it": ProviderConfig.model_validate({"kind": value})}))
    except ConfigError:
        return "refused"
    return "right"


async def foreign(root: Path, value: bool) -> Hashable:
    """A call to a provider that is not built in."""
    async with LLMGateway(RouterConfig(default_provider="it", allow_model_calls=value), {"it": Remote()}).open() as gateway:
        return await call(gateway)


async def cost(root: Path, **prices: float | None) -> Hashable:
    """What a call costs, of whose input a part was cached."""
    price = {"input_per_million": 2.0, "output_per_million": 10.0, **prices}
    return ModelPrice.model_validate(price).cost(1_000, 100, 500, 200)
