"""Checks keys and files that settings refer to and that only some processes use, for the commands that look at the settings."""

from kitchener.actors.attention.templates import load_templates
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.config.settings_parser import dotted_key
from kitchener.errors import ConfigError, PromptError, SigningError
from kitchener.extras import can_serve
from kitchener.runtime.loading import LoadedConfig
from kitchener.runtime.setting_checks import named_source
from kitchener.signing import load_signer


def check_clients(loaded: LoadedConfig) -> None:
    """Checks what `[serve]` refers to: keys and agent classes of clients, and that any are there if others reach the server.

    Checks nothing without `[serve]`, or without the extra `serve`.

    Raises:
        ConfigError: names the first setting that `kitchener serve` would refuse, and never shows a key
    """
    if "serve" not in loaded.config.model_fields_set or not can_serve():
        return
    from kitchener.serve.access.callers import Callers  # needs the extra

    with named_source(loaded.source):
        Callers.load(loaded.config)


def check_prompts(loaded: LoadedConfig) -> None:
    """Checks the contracts, packs and attention templates of each agent class that has its own.

    Raises:
        ConfigError: no turn of the class could begin with them; names the setting, and what is wrong with the files
    """
    for name, agent in loaded.config.agents.items():
        try:
            PromptLibrary.load(agent.prompt_dir)
        except PromptError as error:
            raise ConfigError(loaded.source, dotted_key(("agents", name, "prompt_dir")), "", _problem(error)) from None
        try:
            load_templates(agent.attention_templates)
        except ConfigError as error:
            key = dotted_key(("agents", name, "attention_templates"))
            raise ConfigError(loaded.source, key, "", _problem(error)) from None


def _problem(error: PromptError | ConfigError) -> str:
    """What is wrong, without the name of the setting, which is named by its whole key."""
    return str(error).removeprefix("prompt_dir = ").removeprefix("attention_templates = ")


def check_signing_key(loaded: LoadedConfig) -> None:
    """Checks that the signing key can be used, where one is set.

    Raises:
        ConfigError: no runtime would open with it; never shows the key
    """
    path = loaded.config.ledger.signing_key
    if path is None:
        return
    try:
        load_signer(path)
    except SigningError as error:
        raise ConfigError(loaded.source, "ledger.signing_key", "", str(error)) from None
