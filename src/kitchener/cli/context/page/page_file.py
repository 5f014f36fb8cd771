"""Draws a `TurnPage` as one HTML file that loads nothing, runs nothing and shows foreign text as text only.

Every value that the template prints passes `harmless` and is escaped, by rule of the environment and not of the template. The
file's own policy (`Content-Security-Policy`) allows no request and no script, and no style but its own, which it names by hash.
"""

import base64
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined, Template

from kitchener.cli.context.page.sections import sections_of
from kitchener.cli.context.page.turn_page import TurnPage
from kitchener.cli.terminal.written_files import write_whole
from kitchener.inspection.palette import palette
from kitchener.inspection.shown_text import harmless

_ASSETS: Final = files("kitchener.cli.context.page")
_POLICY: Final = "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"


def write_page(page: TurnPage, path: Path) -> int:
    """Writes the page to a file that only its owner can read, replacing what is there; returns its size in bytes.

    Raises:
        ConfigError: it cannot be written
    """
    data = page_html(page).encode()
    return write_whole(path, lambda file: file.write(data))


def page_html(page: TurnPage) -> str:
    """The whole page."""
    return _template().render(sections_of(page))


@cache
def _template() -> Template:
    style = palette() + (_ASSETS / "turn.css").read_text("utf-8")
    hashed = base64.b64encode(sha256(style.encode()).digest()).decode()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_as_shown, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals = {"policy": _POLICY.format(hashed)}
    # The style is part of the template, so that the page has it as it was hashed: unescaped.
    return environment.from_string((_ASSETS / "turn.html").read_text("utf-8").replace("/* turn.css */", style))


def _as_shown(value: object) -> object:
    """A value as the page prints it; jinja escapes it afterwards."""
    if hasattr(value, "__html__"):  # what a macro of the template made of escaped values
        return value
    return f"{value:,}" if isinstance(value, int) else harmless(str(value))
