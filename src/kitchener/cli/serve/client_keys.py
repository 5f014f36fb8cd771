"""Checks the keys of `[serve.clients]` for commands that look at the settings. The server checks them when it starts."""

import importlib.util

from kitchener.runtime.loading import LoadedConfig, named_source


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
