"""Checks what Kitchener works with, for `kitchener doctor`: MCP servers, and embeddings with the vectors of recent turns.

Each check gives findings. `doctor.py` has the checks of the machine, the settings and the root, and prints all of them.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import anyio
import anyio.to_thread

from kitchener.actors.similarity.vectors import unit_vector
from kitchener.actors.work.plan import model_choice
from kitchener.cancellation import failed_alone
from kitchener.config import DEFAULT_AGENT, HO2Config, RuntimeConfig
from kitchener.config.shown import described_key, shown_address
from kitchener.errors import ConfigError, KitchenerError
from kitchener.gateway.embedding_providers.configured_provider import open_embeddings
from kitchener.gateway.providers.chat_completions.context_window import ContextWindow
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.mcp.connection import library_of_protocol
from kitchener.mcp.server import ServerReport
from kitchener.plain_names import counted, origin_of
from kitchener.records import events
from kitchener.records.entries import ProjectionPayload
from kitchener.runtime.tools.connected_servers import look_at_servers

FindingState = Literal["ok", "warn", "fail"]
"""Whether something is in order; a command with a `fail` exits with 1."""
_LOOKED_AT: Final = 1_000
"""Newest entries of a context ledger that are searched for missing vectors."""
_INSTRUCTIONS: Final = 500
"""Tokens that instructions, tools and message are taken to have."""
_PROBE_S: Final = 20.0
"""Longest wait for a vector, seconds."""


class Finding(NamedTuple):
    """The result of one check."""

    what: str
    state: FindingState
    detail: str


async def look_at_mcp_servers(config: RuntimeConfig, probe: bool) -> list[Finding]:
    """Checks the configured servers. Returns no findings if there are none.

    Args:
        config: the settings
        probe: whether to start or reach them
    """
    if not config.mcp:
        return []
    try:
        await anyio.to_thread.run_sync(library_of_protocol)
        if not probe:
            return [Finding("mcp", "ok", f"{counted(len(config.mcp), 'server')}, not asked; `--probe` asks them")]
        return list(_findings(await look_at_servers(config.mcp)))
    except ConfigError as error:
        return [Finding("mcp", "fail", error.expected)]


def _findings(reports: list[ServerReport]) -> Iterator[Finding]:
    for each in reports:
        if each.state != "connected":
            yield Finding("mcp", "fail", f"{each.label}: {each.problem}")
        else:
            tools = f"{each.label}: {each.server}, {counted(len(each.tools), 'tool')}"
            left_out = f", {len(each.refused)} left out" if each.refused else ""
            yield Finding("mcp", "warn" if each.refused else "ok", tools + left_out)


def look_at_window(config: RuntimeConfig, provider_id: str, model: str, window: ContextWindow) -> Finding:
    """Compares the context window of a model with what the replies of turns may need.

    Args:
        config: the settings
        provider_id: the model's provider
        model: its name
        window: as its endpoint says
    """
    what, told = f"window {described_key(provider_id)}", f"{model!r} takes {window.tokens:,} tokens a call"
    classes = config.classes or {DEFAULT_AGENT: HO2Config()}
    replying = {name: agent for name, agent in classes.items() if _replies_at(config, agent) == provider_id}
    needed, agent_class = max(
        ((_shown_tokens(agent) + _beside(agent), name) for name, agent in replying.items()), default=(0, "")
    )
    if needed <= window.tokens:
        return Finding(what, "ok", told)
    agent = replying[agent_class]
    key = "context_budget" if agent.context_mode == "enforce" else "attention_budget_tokens"
    needs = f"a reply of {described_key(agent_class)} may need about {needed:,}, most of them by `{key}`"
    fitting = window.tokens - _beside(agent)
    remedy = f"set `{key}` to at most {fitting:,}" if fitting > 0 else "use a model that takes more"
    if window.is_silent:
        cuts = "Ollama cuts longer prompts without an error: set OLLAMA_CONTEXT_LENGTH where it runs, or"
        return Finding(what, "warn", f"{told}; {needs}. {cuts} {remedy}")
    return Finding(what, "warn", f"{told}; {needs}. Longer requests fail: let its server take more, or {remedy}")


def _replies_at(config: RuntimeConfig, agent: HO2Config) -> str:
    """The provider that an agent class asks for replies, unless a route says otherwise."""
    return model_choice(agent, "synthesis").provider or config.router.default_provider


def _shown_tokens(agent: HO2Config) -> int:
    """The most tokens of the past that a turn shows."""
    return agent.context_budget if agent.context_mode == "enforce" else agent.attention_budget_tokens


def _beside(agent: HO2Config) -> int:
    """Tokens of a call beside the past: the reply, and instructions, tools and message of ordinary length."""
    return agent.reply_reserve + _INSTRUCTIONS


async def look_at_embeddings(config: RuntimeConfig, probe: bool) -> list[Finding]:
    """Checks the configured provider and the newest projections. Returns no findings if embeddings are not configured.

    Args:
        config: the settings
        probe: whether to ask the provider for a vector
    """
    found = [await _provider(config, probe)] if config.embeddings.kind != "off" else []
    return [*found, *await _recent(config)]


async def _provider(config: RuntimeConfig, probe: bool) -> Finding:
    settings = config.embeddings
    facts = [settings.kind, *([shown_address(settings.base_url)] if settings.base_url is not None else [])]
    try:
        async with open_embeddings(config) as provider:
            if provider is None:
                return Finding("embeddings", "warn", f"{settings.kind}, not used: allow_model_calls is false")
            facts.append(f"model {provider.model_id}")
            if probe:
                with anyio.fail_after(_PROBE_S):
                    facts.append(f"a vector of {len(unit_vector((await provider.embed(['ok']))[0])):,} numbers")
    except ConfigError as error:
        return Finding("embeddings", "fail", error.expected)
    except BaseException as error:
        if not await failed_alone(error):
            raise
        detail = str(error) if isinstance(error, KitchenerError) else origin_of(error)
        return Finding("embeddings", "fail", f"{', '.join(facts)}: {detail}")
    return Finding("embeddings", "ok", ", ".join(facts))


async def _recent(config: RuntimeConfig) -> list[Finding]:
    """How many of the newest projections lacked vectors, and why."""
    places, seen, problems = LedgerPaths(config), 0, Counter[str]()
    for agent_class in (DEFAULT_AGENT, *(each for each in places.agent_classes() if each != DEFAULT_AGENT)):
        try:
            async with places.reader(agent_class, "context") as reader:
                if reader is None:
                    continue
                after = max(0, reader.head()[0] - _LOOKED_AT)
                async for entry in reader.read(entry_type=events.PROJECTION_COMPUTED, after_seq=after):
                    if (used := events.read_as(ProjectionPayload, entry).get("similarity")) is not None:
                        seen += 1
                        problems[used.get("problem", "")] += 1
        except KitchenerError:  # the check of that ledger reports it
            continue
    lacking = {name: count for name, count in sorted(problems.items()) if name}
    if not seen:
        return []
    detail = f"{sum(lacking.values()):,} of the newest {seen:,} projections with embeddings had a problem"
    if not lacking:
        return [Finding("vectors", "ok", detail)]
    named = ", ".join(f"{count:,} {name}" for name, count in lacking.items())
    return [Finding("vectors", "warn", f"{detail}: {named}")]
