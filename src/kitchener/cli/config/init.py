"""`kitchener init`: writes a settings file with the settings that matter, their meanings and their defaults."""

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from kitchener.cli.config.toml import toml_value
from kitchener.cli.exits import OK
from kitchener.cli.options import DEFAULT_FILE
from kitchener.cli.terminal.output import meaning, print_text
from kitchener.cli.terminal.written_files import write_whole
from kitchener.config import HO2Config, LedgerConfig, RouterConfig, RuntimeConfig, Settings
from kitchener.errors import ConfigError

_WIDTH: Final = 120

_HEAD: Final = """\
# The settings of Kitchener that matter. A line that begins with `# key =` shows a default, or an example where nothing is
# set; remove the `#` to change it. `kitchener config schema` lists all settings, and `kitchener config check` checks this file.
# An environment variable such as KITCHENER_LEDGER__DURABILITY=os overrides it.
"""

_LOCAL: Final = """\
# To use the one below, remove the `#` of its lines and set `default_provider = "local"`.
# [router.providers.local]
# base_url = "http://127.0.0.1:8080/v1"
# model = "llama-3-8b"
# api_key = "env:LOCAL_API_KEY"  # unset by default"""


def init(
    directory: Annotated[Path, Parameter(name="DIR", help="Where to write the file; made if it is not there.")] = Path(),
    /,
    *,
    force: Annotated[bool, Parameter(negative="", help="Overwrite a file that is there.")] = False,
) -> int:
    """Write a `kitchener.toml` with the settings that matter.

    It needs no network and no key: the offline provider answers, ledgers go to `.kitchener` beside the file, long-term memory
    is on, and the Context Authority decides what the model sees. `kitchener config schema` lists all settings.

    For example:

        kitchener init
        kitchener init my_bot && cd my_bot && kitchener chat
    """
    path = directory / DEFAULT_FILE
    directory.mkdir(parents=True, exist_ok=True)
    if not force and os.path.lexists(path):
        raise ConfigError(str(path), "", "", "is there already; `kitchener init --force` overwrites it")
    write_whole(path, lambda file: file.write(settings_text().encode()))
    print_text(f"wrote {path}")
    return OK


def settings_text() -> str:
    """The whole file. Meanings and defaults are those of `kitchener.config`, so they cannot go out of date."""
    parts = [
        _HEAD,
        *_setting(RuntimeConfig, "plane_root", ".kitchener"),
        "[ledger]",
        *_setting(LedgerConfig, "keyring", example="keys"),
        "[router]",
        *_setting(RouterConfig, "default_provider", "offline"),
        *_comment(RouterConfig, "providers"),
        _LOCAL,
        "",
        "[agents.ADMIN]",
        *_setting(HO2Config, "instructions", "You are a helpful assistant."),
        *_setting(HO2Config, "tools", example=["my_bot.tools:list_packages"]),
        *_setting(HO2Config, "ho3_enabled", True),
        *_setting(HO2Config, "context_mode", "enforce"),
        *_setting(HO2Config, "intent_mode", "classified"),
        *_setting(HO2Config, "repeated_failure_policy", "defer"),
    ]
    return "\n".join(parts)


def _setting(
    model: type[Settings], key: str, active: str | bool | None = None, *, example: str | list[str] | None = None
) -> Iterator[str]:
    """The lines of one setting: its meaning, then a value in force, or its default or an example as a comment."""
    yield from _comment(model, key)
    default = model.model_fields[key].get_default(call_default_factory=True)
    if active is not None:
        yield f"{key} = {toml_value(active)}" + (f"  # default: {toml_value(default)}" if active != default else "")
    else:
        shown = f"{toml_value(example)}  # unset by default" if default is None else toml_value(default)
        yield f"# {key} = {shown}"
    yield ""


def _comment(model: type[Settings], key: str) -> Iterator[str]:
    for line in textwrap.wrap(meaning(model.model_fields[key]), _WIDTH, break_on_hyphens=False, break_long_words=False):
        yield f"# {line}"
