"""Finds the dotted names of Kitchener in texts, such as `kitchener.gateway.Provider`, and what they name."""

import importlib
import re

DOTTED_NAME = re.compile(r"(?<![\w/])kitchener(?:\.[A-Za-z_]\w*)+")
FILES_OF_A_USER = {"kitchener.toml", "kitchener.schema.json", "kitchener.service", "kitchener.socket"}


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module, or a name in one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for name in parts[length:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False
