"""Every command of the command line, as it is registered."""

import inspect
import shlex
from collections.abc import Callable, Iterator
from typing import Any

from cyclopts import App

from kitchener.cli.app import build_app


def every_command() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the words of each command, such as `session list`, and its function."""
    return _commands(build_app(is_listing=False), "")


def examples_of(name: str, function: Callable[..., Any]) -> list[list[str]]:
    """The command lines in the help text of a command, as words without `kitchener` and without what follows in a shell."""
    lines = [each.strip() for each in (inspect.getdoc(function) or "").partition("For example:")[2].splitlines()]
    found = [each for each in lines if each.startswith(f"kitchener {name}")]
    return [shlex.split(each.partition(" && ")[0].partition(" > ")[0])[1:] for each in found]


def _commands(app: App, name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for each in app:
        if each.startswith("-"):
            continue
        full = f"{name} {each}".strip()
        found = app[each]
        if found.default_command is not None:
            yield full, found.default_command
        yield from _commands(found, full)
