"""The colours of all pages, in light and in dark, as one style sheet."""

from functools import cache
from importlib.resources import files


@cache
def palette() -> str:
    """The style sheet. The colours follow `color-scheme`: the reader's, unless a page sets another one."""
    return files("kitchener.inspection").joinpath("palette.css").read_text("utf-8")
