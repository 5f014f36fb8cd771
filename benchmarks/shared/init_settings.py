"""The settings that `kitchener init` writes, for benchmarks that measure what a new user runs."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from kitchener import RuntimeConfig
from kitchener.runtime import load_config


def settings_as_init(folder: Path, overrides: Mapping[str, object], *options: str) -> RuntimeConfig:
    """Runs `kitchener init` and loads what it wrote.

    Args:
        folder: where it writes; the ledgers go there, too
        overrides: settings that the benchmark changes, such as the provider
        options: further options of the command
    """
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        (sys.executable, "-m", "kitchener", "init", str(folder), *options), check=True, capture_output=True, text=True
    )
    return load_config(folder / "kitchener.toml", overrides=overrides).config
