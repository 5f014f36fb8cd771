"""Reads from a package's `__init__.pyi` where each of its names is defined, so that the package imports a name on first use."""

import ast
from pathlib import Path


def homes_in(init_file: str) -> dict[str, str]:
    """Returns the defining module of each name that the stub beside a package's `__init__.py` imports."""
    stub = ast.parse(Path(init_file).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {name.name: str(each.module) for each in stub.body if isinstance(each, ast.ImportFrom) for name in each.names}
