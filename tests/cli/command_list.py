"""Every command of the command line, as it is registered."""

from collections.abc import Callable, Iterator
from typing import Any

from cyclopts import App

from kitchener.cli.app import build_app


def every_command() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the words of each command, such as `session list`, and its function."""
    return _commands(build_app(is_listing=False), "")


def _commands(app: App, name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for each in app:
        if each.startswith("-"):
            continue
        full = f"{name} {each}".strip()
        found = app[each]
        if found.default_command is not None:
            yield full, found.default_command
        yield from _commands(found, full)
