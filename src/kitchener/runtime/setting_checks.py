"""Checks settings that were read without an error: what they refer to, and tables that contradict each other.

`check_config` refuses settings whose agent classes, providers, models or keys do not exist. `kitchener config check` prints the
rest as warnings: routes that no call takes, limits that do not fit each other, models without a price, endpoints without a
key. `loading.py` reads the settings. Explained in `docs/configuration.md` and `docs/gateway.md`.
"""

import difflib
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, assert_never

from kitchener.actors.attention.templates import SETTING
from kitchener.actors.work.plan import model_choice
from kitchener.config import INHERITED, HO2Config, ModelChoice, ProviderConfig, RouterConfig, RuntimeConfig
from kitchener.config.router import price_of
from kitchener.config.settings_parser import SettingPath, dotted_key, toml_key
from kitchener.config.shown import (
    REFERENCE,
    described_key,
    described_name,
    described_names,
    is_public_address,
    is_reference,
    read_reference,
    shown_reference,
)
from kitchener.errors import CallerError, ConfigError, PromptError
from kitchener.errors.root import CONFIGURATION
from kitchener.extras import can_call_vendors, needs
from kitchener.gateway.providers.authorities import read_authorities, read_client_certificate
from kitchener.gateway.providers.factory import MAX_KEY_BYTES
from kitchener.gateway.providers.library.vendors import check_vendors
from kitchener.gateway.providers.offline import MODEL_ID
from kitchener.gateway.routing import check_router
from kitchener.plain_names import is_plain_name, quoted
from kitchener.records.prompt import RULES_PROVIDER, UTILITY_TAG
from kitchener.records.tokens import tokens_of_bytes
from kitchener.records.work_order import TYPE_TAGS
from kitchener.runtime.loading import EMBEDDED, check_agent_class
from kitchener.runtime.tools.connected_servers import check_servers
from kitchener.small_files import read_regular

_CLASSIFICATION: Final = "classification"
_SHOWN_CLASS_CHARS: Final = 80
_TOOL: Final = TYPE_TAGS["tool_call"]
_NEEDS: Final[Mapping[str, str]] = {
    TYPE_TAGS["verify"]: "without `verify_with_model`, no model verifies",
    TYPE_TAGS["consolidate"]: "without `ho3_enabled`, nothing is consolidated",
}


def check_config(
    config: RuntimeConfig,
    *,
    source: str = EMBEDDED,
    given: Collection[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Checks what the settings refer to: agent classes, providers of routes and work orders, and the presence of API keys.

    Requires no keys if model calls are forbidden, nor for providers that the program passes in as objects.

    Args:
        config: the settings, loaded or built by hand
        source: the source of the settings, for errors
        given: ids of provider objects that the program passes in
        environ: the environment in which `env:NAME` references are looked up

    Raises:
        ConfigError: names the first reference that cannot be resolved, and never shows a key's value
    """
    for name, agent in config.agents.items():
        # Settings made by hand may leave `agent_class` at its default.
        check_agent_class(name, name if "agent_class" not in agent.model_fields_set else agent.agent_class, source)
    check_router(config.router, given=given, source=source)
    check_vendors(config.router, given=given, source=source)
    check_model_choices(config, given=given, source=source)
    check_servers(config, source)
    if not config.router.allow_model_calls:
        return
    for provider_id, provider in config.router.providers.items():
        if provider_id not in given:
            if provider.is_vendor and not can_call_vendors():
                raise ConfigError(source, dotted_key(("router", "providers", provider_id, "kind")), "'model'", needs("models"))
            with named_source(source):
                read_authorities(provider_id, provider)
                read_client_certificate(provider_id, provider)
            for at, reference in _references(provider):
                _check_key(reference, source, dotted_key(("router", "providers", provider_id, *at)), environ)


@contextmanager
def named_source(source: str) -> Iterator[None]:
    """Makes an error about the settings name their source, like the errors of `check_config`.

    Code that opens a provider knows its settings, but not their source.

    Args:
        source: the source of the settings
    """
    try:
        yield
    except ConfigError as error:
        if error.source != CONFIGURATION:
            raise
        raise ConfigError(source, error.key, error.value, error.expected) from error.__cause__


@contextmanager
def named_class(source: str, agent_class: str) -> Iterator[None]:
    """Makes an error about the settings of an agent class, or about files that they lead to, name their source and the class.

    Args:
        source: the source of the settings
        agent_class: the agent class that is built
    """
    at = dotted_key(("agents", agent_class))
    try:
        with named_source(source):
            yield
    except PromptError as error:
        raise PromptError(f"{source}: {at}: {error}") from error
    except ConfigError as error:
        if error.source != SETTING:
            raise
        key = f"{at}.{error.source}.{error.key}" if error.key else f"{at}.{error.source}"
        raise ConfigError(source, key, error.value, error.expected) from error


def check_is_configured(config: RuntimeConfig, agent_class: str) -> None:
    """Checks that an agent class has a table if other classes have one, because a misspelt name would get no settings.

    Raises:
        CallerError: the class has no table; names the closest class
    """
    if not config.classes or agent_class in config.classes:
        return
    folded = {name.casefold(): name for name in config.classes}
    (closest,) = difflib.get_close_matches(agent_class[:_SHOWN_CLASS_CHARS].casefold(), folded, n=1, cutoff=0.0)
    named = repr(folded[closest]) if is_plain_name(folded[closest]) else described_key(folded[closest])
    raise CallerError(
        f"agent class {quoted(agent_class)} is not configured; the closest one is {named}"
        f" (to configure it, add a table [{toml_key(('agents', agent_class))}])"
    )


def check_model_choices(config: RuntimeConfig, *, given: Collection[str] = (), source: str = CONFIGURATION) -> None:
    """Checks that the providers and models of `[agents.<class>]` exist, if the settings can tell.

    Args:
        config: the settings
        given: ids of provider objects that the program passes in, which need no settings
        source: the file or argument that errors name

    Raises:
        ConfigError: names the first wrong setting by key
    """
    for name, agent in config.agents.items():
        of_class = ModelChoice(provider=agent.provider, model=agent.model)
        _check_choice(of_class, config.router, given, source, ("agents", name))
        if agent.classify == "rules" and RULES_PROVIDER in {*config.router.providers, *given}:
            problem = f"a provider has the id {RULES_PROVIDER!r}, which is that of the built-in rules; give it another id"
            raise ConfigError(source, dotted_key(("agents", name, "classify")), "'rules'", problem)
        for task in agent.models:
            if task != _CLASSIFICATION or agent.classify == "model":
                _check_choice(model_choice(agent, task), config.router, given, source, ("agents", name, "models", task))


def unreachable_routes(config: RuntimeConfig) -> Iterator[tuple[str, str]]:
    """The routes that no model call takes, and the models that no work order uses: key and reason."""
    default = config.agents.get(INHERITED)
    asked = {tag for agent in config.classes.values() or (default or HO2Config(),) for tag in _tags_for_models(agent)}
    for name, agent in config.agents.items():
        for task, chosen in agent.models.items():
            is_inherited = agent is not default and default is not None and default.models.get(task) == chosen
            may_ask = task in _tags_for_models(agent) or (agent is default and task in asked)
            if not may_ask and not is_inherited:
                why = f'with `classify = "{agent.classify}"`, no model classifies' if task == _CLASSIFICATION else _NEEDS[task]
                yield dotted_key(("agents", name, "models", task)), why
    carried = asked | {tag for agent in config.agents.values() for tag in agent.domain_tags if tag != _TOOL}
    for tag in config.router.domain_tag_routes:
        is_refused = config.serve.utility_calls == "refuse"
        if tag in carried or (tag == UTILITY_TAG and not is_refused):
            continue
        why = f"no work order carries this tag; work orders carry: {described_names(carried)}"
        if tag == _TOOL:
            why = "a work order with this tag runs a tool and asks no model"
        elif tag == _CLASSIFICATION:
            why = "no agent class classifies by a model"
        elif tag == UTILITY_TAG:
            why = 'with `utility_calls = "refuse"`, the server makes no such calls'
        yield dotted_key(("router", "domain_tag_routes", tag)), _NEEDS.get(tag, why)


def _tags_for_models(agent: HO2Config) -> set[str]:
    """The tags of the work order types for which an agent class may ask a model."""
    optional = {
        _CLASSIFICATION: agent.classify == "model",
        TYPE_TAGS["verify"]: agent.verify_with_model,
        TYPE_TAGS["consolidate"]: agent.ho3_enabled,
        _TOOL: False,
    }
    return {tag for tag in TYPE_TAGS.values() if optional.get(tag, True)}


def _check_choice(choice: ModelChoice, router: RouterConfig, given: Collection[str], source: str, at: SettingPath) -> None:
    if (provider_id := choice.provider) is None:
        provider_id = router.default_provider
        if choice.model is None or router.domain_tag_routes:
            return
    known = {"offline", *router.providers, *given}
    if provider_id not in known:
        expected = f"no such provider; there are: {described_names(known)}"
        raise ConfigError(source, dotted_key((*at, "provider")), described_name(provider_id), expected)
    provider = router.providers.get(provider_id)
    if provider_id in given:
        return
    kind = provider.kind if provider is not None else "offline"
    match kind:
        case "offline":
            if choice.model not in (None, MODEL_ID):
                expected = f"no such model; provider {described_name(provider_id)} has only {MODEL_ID!r}"
                if choice.provider is None:
                    expected += "; set `router.default_provider`, or `provider` beside it"
                raise ConfigError(source, dotted_key((*at, "model")), described_name(str(choice.model)), expected)
        case "openai_compatible":
            if provider is not None and provider.model is None and choice.model is None:
                expected = f"is required, because provider {described_name(provider_id)} names no model"
                raise ConfigError(source, dotted_key((*at, "model")), "", expected)
        case "model":  # its settings name a model
            pass
        case _:
            assert_never(kind)


def unfitting_limits(config: RuntimeConfig) -> Iterator[tuple[str, str]]:
    """The key of each limit that is too small for another one, with the reason. Without classes, checks the settings of all.

    Sizes are estimates for plain text, three bytes a token. They leave out prompts and tool descriptions, so real turns need
    more.
    """
    agents: Mapping[str, HO2Config] = config.classes or {"default": HO2Config()}
    for name, agent in agents.items():
        for key, problem in _of_agent(agent, config.limits.max_message_chars):
            yield dotted_key(("agents", name, key)), problem


def unpriced_models(config: RuntimeConfig) -> Iterator[tuple[str, str]]:
    """The key of each provider's model without a price, if `[spending]` limits costs, because such calls are refused."""
    limits = config.spending
    if limits.subject_day is None and limits.turn is None:
        return
    for name, provider in config.router.providers.items():
        model = provider.model
        if not provider.is_built_in and model is not None and price_of(config.router.prices, name, model) is None:
            what = f'{model!r} has no price, so [spending] refuses its calls; set [router.prices."{model}"]'
            yield dotted_key(("router", "providers", name, "model")), what


def keyless_endpoints(config: RuntimeConfig) -> Iterator[tuple[str, str]]:
    """The key of each missing `api_key` of an endpoint that is public and gets no secret, with the reason."""
    problem = "no key is sent to this endpoint, which has a public address; set it if the endpoint asks for a key"
    for name, provider in config.router.providers.items():
        secrets = (provider.api_key or "", *provider.headers.values(), *provider.query.values())
        if provider.is_endpoint and is_public_address(provider.base_url) and not any(map(is_reference, secrets)):
            yield dotted_key(("router", "providers", name, "api_key")), problem
    embeddings = config.embeddings
    if embeddings.kind == "openai_compatible" and is_public_address(embeddings.base_url) and embeddings.api_key is None:
        yield "embeddings.api_key", problem


def _of_agent(agent: HO2Config, max_message_chars: int) -> Iterator[tuple[str, str]]:
    reserve, budget = agent.reply_reserve, agent.turn_budget
    shown = agent.context_budget if agent.context_mode == "enforce" else agent.attention_budget_tokens
    message = tokens_of_bytes(max_message_chars)
    result = min(tokens_of_bytes(agent.tool_result_max_bytes), agent.result_page_tokens)
    if (needed := 2 * (message + reserve) + shown) > budget:
        yield (
            "turn_budget",
            f"{budget:,} tokens do not cover a message of limits.max_message_chars = {max_message_chars:,}, which is read by"
            f" classification and by the reply, with its context: about {needed:,}",
        )
    if agent.tools != () and (needed := 2 * (shown + reserve) + result) > budget:
        yield (
            "turn_budget",
            f"{budget:,} tokens do not cover a page of a tool's result (result_page_tokens = {agent.result_page_tokens:,}) with"
            f" its context: about {needed:,}",
        )
    if agent.tools != () and result > agent.results_budget:
        yield (
            "results_budget",
            f"{agent.results_budget:,} tokens do not cover one page of a result, result_page_tokens ="
            f" {agent.result_page_tokens:,}: about {result:,}",
        )
    if agent.budget_ceiling is not None and agent.budget_ceiling < budget:
        yield "budget_ceiling", f"{agent.budget_ceiling:,} tokens of a session do not cover one turn_budget of {budget:,}"


def _references(provider: ProviderConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """A provider's references to secrets, each with its position in the provider's table."""
    if provider.api_key is not None:
        yield ("api_key",), provider.api_key
    if is_reference(provider.proxy):
        yield ("proxy",), provider.proxy
    for table, values in (("headers", provider.headers), ("query", provider.query)):
        yield from (((table, name), value) for name, value in values.items() if is_reference(value))


def _check_key(reference: str, source: str, key: str, environ: Mapping[str, str]) -> None:
    """Checks that a reference to a secret can be resolved. Errors show only what cannot be a secret (`shown_reference`)."""
    shown = repr(shown_reference(reference))
    found = read_reference(reference)
    if found is None:
        raise ConfigError(source, key, "", REFERENCE)
    if found.kind == "env":
        if not environ.get(found.name):
            named = found.name if found.name in shown else "of that name"
            raise ConfigError(source, key, shown, f"environment variable {named} is not set")
        return
    try:
        data = read_regular(Path(found.name), MAX_KEY_BYTES + 1)
    except OSError as error:
        raise ConfigError(source, key, shown, f"cannot be read: {error.strerror or error}") from None
    if not data.strip():
        raise ConfigError(source, key, shown, "the file is empty")
    if len(data) > MAX_KEY_BYTES:
        raise ConfigError(source, key, shown, f"is larger than {MAX_KEY_BYTES:,} bytes, so it is no key")
