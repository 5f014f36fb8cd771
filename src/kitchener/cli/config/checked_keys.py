"""Checks keys that only some processes use, for the commands that look at the settings."""

import importlib.util

from kitchener.errors import ConfigError, SigningError
from kitchener.runtime.loading import LoadedConfig, named_source
from kitchener.signing import load_signer


def check_clients(loaded: LoadedConfig) -> None:
    """Checks what `[serve]` refers to: keys and agent classes of clients, and that any are there if others reach the server.

    Checks nothing without `[serve]`, or without the extra `serve`.

    Raises:
        ConfigError: names the first setting that `kitchener serve` would refuse, and never shows a key
    """
    if "serve" not in loaded.config.model_fields_set or importlib.util.find_spec("starlette") is None:
        return
    from kitchener.serve.access.callers import Callers  # needs the extra

    with named_source(loaded.source):
        Callers.load(loaded.config)


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
