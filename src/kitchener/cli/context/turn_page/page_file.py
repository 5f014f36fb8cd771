"""Renders a `TurnPage` as one HTML file that loads nothing, runs nothing and shows foreign text as plain text.

The template's environment passes every value through `harmless` and escapes it, so the template cannot forget to. The file's
`Content-Security-Policy` allows no request, no script, and only its own style, which it names by hash.
"""

import base64
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined, Template

from kitchener.cli.context.turn_page.sections import sections_of
from kitchener.cli.context.turn_page.turn_page import TurnPage
from kitchener.cli.terminal.written_files import write_output
from kitchener.inspection.palette import palette
from kitchener.inspection.shown_text import harmless

_ASSETS: Final = files("kitchener.cli.context.turn_page")
_POLICY: Final = "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"


def write_page(page: TurnPage, path: Path) -> int:
    """Writes the page to a file that only its owner can read, and returns its size in bytes. Replaces an existing file.

    Raises:
        ConfigError: the file cannot be written
    """
    data = page_html(page).encode()
    return write_output(path, lambda file: file.write(data))


def page_html(page: TurnPage) -> str:
    return _template().render(sections_of(page))


@cache
def _template() -> Template:
    style = palette() + (_ASSETS / "turn.css").read_text("utf-8")
    hashed = base64.b64encode(sha256(style.encode()).digest()).decode()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_as_shown, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals = {"policy": _POLICY.format(hashed)}
    # The style is part of the template, so that it is not escaped and keeps its hash.
    return environment.from_string((_ASSETS / "turn.html").read_text("utf-8").replace("/* turn.css */", style))


def _as_shown(value: object) -> object:
    """A value in the form that the page prints. Jinja escapes it afterwards."""
    if hasattr(value, "__html__"):  # the output of a macro, whose values are escaped already
        return value
    return f"{value:,}" if isinstance(value, int) else harmless(str(value))
