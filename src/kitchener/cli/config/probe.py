"""Asks each configured provider for one short answer, for `kitchener doctor --probe`. Costs a few tokens; records nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import anyio

from kitchener.config import ProviderConfig, RuntimeConfig, described_key
from kitchener.errors import KitchenerError, ProviderError
from kitchener.gateway import build_providers
from kitchener.records.prompt import Message, PromptRequest

PROBE_S: Final = 20.0
"""Longest wait for a provider's answer, seconds; less if its `timeout_s` is."""
_DETAIL_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What came of asking one provider."""

    provider_id: str
    problem: str | None
    """Why there was no answer; None: there was one."""
    detail: str
    """The answer in figures, or what went wrong, for people."""


async def probe_providers(config: RuntimeConfig) -> list[ProbeResult]:
    """Asks all providers at the same time, each until its deadline; in the order of their names."""
    found: dict[str, ProbeResult] = {}
    asked = dict(_asked(config))

    async def ask(provider_id: str, provider: ProviderConfig) -> None:
        found[provider_id] = await _probe(config, provider_id, provider)

    async with anyio.create_task_group() as tasks:
        for provider_id, provider in asked.items():
            tasks.start_soon(ask, provider_id, provider)
    return [found[provider_id] for provider_id in asked]


def _asked(config: RuntimeConfig) -> Iterator[tuple[str, ProviderConfig]]:
    for provider_id, provider in sorted(config.router.providers.items()):
        if provider.kind != "offline":
            yield provider_id, provider


async def _probe(config: RuntimeConfig, provider_id: str, provider: ProviderConfig) -> ProbeResult:
    name, limit_s = described_key(provider_id), min(PROBE_S, provider.timeout_s)
    began = anyio.current_time()
    try:
        alone = config.router.model_copy(update={"providers": {provider_id: provider}})
        with anyio.fail_after(limit_s):
            async with build_providers(alone) as providers:
                response = await providers[provider_id].complete(_request(config, provider_id, provider, began + limit_s))
    except TimeoutError:
        return ProbeResult(name, "timeout", f"no answer within {limit_s:g} s")
    except ProviderError as error:
        return ProbeResult(name, error.reason, f"{error.reason}: {error.detail:.{_DETAIL_CHARS}}")
    except KitchenerError as error:
        return ProbeResult(name, "settings", f"{error!s:.{_DETAIL_CHARS}}")
    taken_ms = 1_000 * (anyio.current_time() - began)
    tokens = f"{response.usage.input_tokens:,} tokens in, {response.usage.output_tokens:,} out"
    return ProbeResult(name, None, f"answers as {response.model_id}, {taken_ms:,.0f} ms, {tokens}")


def _request(config: RuntimeConfig, provider_id: str, provider: ProviderConfig, deadline: float) -> PromptRequest:
    router = config.router
    routed = (route.model_id for route in router.domain_tag_routes.values() if route.provider_id == provider_id)
    default = router.default_model if provider_id == router.default_provider else None
    return PromptRequest(
        contract_id="PRC-PROBE-001",
        wo_type="synthesize",
        prompt_pack_version="PRM-PROBE-001@00000000",
        messages=(Message("user", "Answer with the word: ok"),),
        variables={"user_message": "Answer with the word: ok"},
        call=1,
        session_id="SES-00000000",
        wo_id="WO-SES-00000000-001",
        subject_id="doctor",
        deadline=deadline,
        max_tokens=256,
        temperature=0.0,
        model_id=provider.model or default or next(filter(None, routed), None),
    )
