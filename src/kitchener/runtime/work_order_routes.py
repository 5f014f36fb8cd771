"""Checks which providers and models the work orders of the agent classes reach. Pure.

`kitchener.gateway.routing` routes single requests and knows no agent classes. `loading.py` and `kitchener config check` call
this module. Explained in `docs/gateway.md`.
"""

from collections.abc import Collection, Iterator
from typing import Final

from kitchener.actors.work.plan import model_choice
from kitchener.config import (
    INHERITED,
    ModelChoice,
    RouterConfig,
    RuntimeConfig,
    SettingPath,
    described_name,
    described_names,
    dotted_key,
)
from kitchener.errors import ConfigError
from kitchener.gateway.providers.offline import MODEL_ID
from kitchener.records.prompt import RULES_PROVIDER
from kitchener.records.work_order import TYPE_TAGS

_CLASSIFICATION: Final = "classification"
_TOOL: Final = TYPE_TAGS["tool_call"]


def check_model_choices(config: RuntimeConfig, *, given: Collection[str] = (), source: str = "configuration") -> None:
    """Checks that the providers and models of `[agents.<class>]` exist, as far as settings can tell.

    Args:
        config: the settings
        given: ids of provider objects that the program passes in; they need no settings
        source: the file or argument to name in errors

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
    """The routes that no model call of a work order takes, and the models chosen for none: key, and why."""
    default = config.agents.get(INHERITED)
    for name, agent in config.agents.items():
        chosen = agent.models.get(_CLASSIFICATION)
        is_inherited = agent is not default and default is not None and default.models.get(_CLASSIFICATION) == chosen
        if chosen is not None and agent.classify != "model" and not is_inherited:
            why = f'with `classify = "{agent.classify}"`, no model classifies'
            yield dotted_key(("agents", name, "models", _CLASSIFICATION)), why
    classifies = any(agent.classify == "model" for agent in config.classes.values()) or not config.classes
    types = {*TYPE_TAGS.values()} - ({_TOOL} if classifies else {_TOOL, _CLASSIFICATION})
    carried = types | {tag for agent in config.agents.values() for tag in agent.domain_tags if tag != _TOOL}
    for tag in config.router.domain_tag_routes:
        if tag in carried:
            continue
        why = f"no work order carries this tag; work orders carry: {described_names(carried)}"
        if tag == _TOOL:
            why = "a work order with this tag runs a tool and asks no model"
        if tag == _CLASSIFICATION:
            why = 'no agent class classifies by a model; `classify` is "rules" or "off" in each'
        yield dotted_key(("router", "domain_tag_routes", tag)), why


def _check_choice(choice: ModelChoice, router: RouterConfig, given: Collection[str], source: str, at: SettingPath) -> None:
    if (provider_id := choice.provider) is None:
        return
    known = {"offline", *router.providers, *given}
    if provider_id not in known:
        expected = f"no such provider; there are: {described_names(known)}"
        raise ConfigError(source, dotted_key((*at, "provider")), described_name(provider_id), expected)
    provider = router.providers.get(provider_id)
    if provider_id in given:
        return
    if (provider is None or provider.kind == "offline") and choice.model not in (None, MODEL_ID):
        expected = f"no such model; provider {described_name(provider_id)} has only {MODEL_ID!r}"
        raise ConfigError(source, dotted_key((*at, "model")), described_name(str(choice.model)), expected)
    if provider is not None and provider.kind == "openai_compatible" and provider.model is None and choice.model is None:
        expected = f"is required, because provider {described_name(provider_id)} names no model"
        raise ConfigError(source, dotted_key((*at, "model")), "", expected)
