"""Requests for tests, gateways over scripts, a recorder of attempts, a reader of streams, and virtual time."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from importlib import resources
from typing import Any

import anyio
import orjson
import pytest
import trio
import trio.testing

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ConfigError, ProviderError, ProviderReason
from kitchener.gateway import LLMGateway, build_providers
from kitchener.gateway.spending_limits import MeteredGateway
from kitchener.records.prompt import Attempt, Message, PromptRequest, StreamItem
from kitchener.testing import ScriptedProvider, prompt_request

_CONTRACTS = resources.files("kitchener") / "actors" / "assets" / "prompts"
FAR = 30.0
"""Seconds until the deadline of a request that is not about deadlines."""


def ask(
    text: str = "hello", *, within_s: float = FAR, variables: Mapping[str, Any] | None = None, **fields: Any
) -> PromptRequest:
    """A synthesize request due `within_s` seconds from now, with an instruction before the message."""
    fields = {"messages": (Message("system", "be brief"), Message("user", text)), "max_tokens": 100, **fields}
    if variables is not None:
        fields["variables"] = variables
    return prompt_request(text, within_s=within_s, **fields)


def one(**settings: Any) -> RouterConfig:
    """A router whose only further provider is `it`."""
    return RouterConfig(providers={"it": ProviderConfig(**settings)})


async def refusal_of(config: RouterConfig) -> ConfigError:
    """Why the providers of a router cannot be opened."""
    with pytest.raises(ConfigError) as caught:
        async with build_providers(config):
            pass
    return caught.value


def as_type(request: PromptRequest, wo_type: Any) -> PromptRequest:
    return request._replace(wo_type=wo_type)


def schema_of(contract_id: str) -> dict[str, Any]:
    """The output schema of a contract that ships with Kitchener."""
    schema: dict[str, Any] = orjson.loads((_CONTRACTS / f"{contract_id}.json").read_bytes())["output_schema"]
    return schema


class Told:
    """An `on_attempt` that remembers."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []

    async def __call__(self, attempt: Attempt, /) -> None:
        self.attempts.append(attempt)

    @property
    def lines(self) -> list[str]:
        """`1 started local`, `1 failed local server_error`, …"""
        return [
            " ".join(str(part) for part in (each.attempt, each.state, each.provider_id, each.reason) if part is not None)
            for each in self.attempts
        ]


async def read_until_error(
    gateway: LLMGateway | MeteredGateway, request: PromptRequest, told: Told
) -> tuple[list[StreamItem], ProviderError | None]:
    """What came before the error, and the error."""
    seen: list[StreamItem] = []
    try:
        async with aclosing(gateway.stream(request, on_attempt=told)) as items:
            async for item in items:
                seen.append(item)  # noqa: PERF401 - an extension would lose what came before the error
    except ProviderError as error:
        return seen, error
    return seen, None


Script = list[Any]


def failure(reason: ProviderReason, **facts: Any) -> ProviderError:
    return ProviderError("whoever", reason, f"{reason} it was", **facts)


def gateway_of(jitter: float = 0.0, fallbacks: dict[str, tuple[str, ...]] | None = None, **scripts: Script | Any) -> LLMGateway:
    """A gateway over scripted providers; the first is the default. A provider is a script, or a (script, settings) pair."""
    providers, configs = {}, {}
    for name, given_script in scripts.items():
        script, settings_ = given_script if isinstance(given_script, tuple) else (given_script, {})
        providers[name] = script if not isinstance(script, list) else ScriptedProvider(script)
        configs[name] = ProviderConfig(kind="offline", **settings_)
    config = RouterConfig(default_provider=next(iter(scripts)), providers=configs, fallbacks=fallbacks or {})
    return LLMGateway(config, providers, jitter=lambda: jitter)


def in_virtual_time(test: Callable[[], Awaitable[Any]]) -> Any:
    return trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))


async def cancel_a_reader(gateway: LLMGateway) -> None:
    """Cancels the reader of a stream after its first item."""
    got_one = anyio.Event()

    async def read() -> None:
        async with aclosing(gateway.stream(ask(), on_attempt=Told())) as items:
            async for _ in items:
                got_one.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        with anyio.fail_after(10):
            await got_one.wait()
        tasks.cancel_scope.cancel()
