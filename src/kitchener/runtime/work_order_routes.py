"""Checks which providers and models the work orders of the agent classes reach. Pure.

`kitchener.gateway.routing` routes single requests and knows no agent classes. `loading.py` and `kitchener config check` call
this module. Explained in `docs/gateway.md`.
"""

from collections.abc import Collection, Iterator
from typing import Final

from kitchener.actors.work.plan import model_choice
from kitchener.config import ModelChoice, RouterConfig, RuntimeConfig, SettingPath, described_name, described_names, dotted_key
from kitchener.errors import ConfigError
from kitchener.gateway.providers.offline import MODEL_ID
from kitchener.records.work_order import TYPE_TAGS

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
        for task in agent.models:
            _check_choice(model_choice(agent, task), config.router, given, source, ("agents", name, "models", task))


def unreachable_routes(config: RuntimeConfig) -> Iterator[tuple[str, str]]:
    """The routes of `[router.domain_tag_routes]` that no model call of a work order takes: key, and why."""
    carried = {*TYPE_TAGS.values(), *(tag for agent in config.agents.values() for tag in agent.domain_tags)} - {_TOOL}
    for tag in config.router.domain_tag_routes:
        if tag in carried:
            continue
        why = f"no work order carries this tag; work orders carry: {described_names(carried)}"
        if tag == _TOOL:
            why = "a work order with this tag runs a tool and asks no model"
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
