"""`kitchener init`: writes a settings file with the settings that matter, their meanings and their defaults."""

import difflib
import importlib.util
import os
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from cyclopts import Parameter

from kitchener.cli.config.toml import meaning, toml_value
from kitchener.cli.exits import OK
from kitchener.cli.terminal.output import print_text
from kitchener.cli.terminal.written_files import write_output
from kitchener.config import ApprovalConfig, HO2Config, RouterConfig, RuntimeConfig, Settings
from kitchener.config.shown import address_problem, described
from kitchener.errors import ConfigError
from kitchener.plain_names import is_printable, quoted
from kitchener.runtime.loading import DEFAULT_FILE
from kitchener.small_files import is_directory, is_there

_WIDTH: Final = 120

_SUFFIX: Final = Path(DEFAULT_FILE).suffix
_HEAD: Final = """\
# The settings of Kitchener that matter. `kitchener config schema` lists all others, and `kitchener config check` checks this
# file. An environment variable such as KITCHENER_LEDGER__DURABILITY=os overrides it. To use a line that begins with
# `# key =`, which is an example, remove its `#`.
"""

_LOCAL: Final = """\
# To use the one below, remove the `#` of its lines and set `default_provider = "local"`.
# [router.providers.local]
# base_url = "http://127.0.0.1:8080/v1"
# model = "llama-3-8b"
# api_key = "env:LOCAL_API_KEY"  # unset by default"""


_SERVER: Final = """\
# An MCP server offers tools of another program. To use this one, remove the `#` of its lines, add "mcp:time" to `tools` above
# and run `kitchener mcp check`. Its tools ask before they run, see `mcp_default` of the approval.
# [mcp.time]
# command = "mcp-server-time"
"""
_KEYS: Final = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "google": "GOOGLE_API_KEY"}
"""The environment variable with the key of each vendor."""
_OPENAI: Final = "https://api.openai.com/v1"
_OLLAMA: Final = "ollama"
_OF_URL: Final = "local"
"""The id of a provider that is given by its URL."""
_OLLAMAS_URL: Final = "http://127.0.0.1:11434/v1"
_NAMED: Final = (*_KEYS, _OLLAMA)
_OF_OLLAMA: Final = """\
# Ollama gives a model 4,096 tokens for prompt and reply where it has less than 24 GiB of graphics memory, and cuts longer
# prompts without an error. So `context_budget` is small below. To show more, raise it and OLLAMA_CONTEXT_LENGTH, which is set
# where Ollama runs. `kitchener doctor --probe` compares them."""
_LOCAL_TIMES: Final = "timeout_s = 300  # default: 60. The server may have to load the model first, and the model may think"
_LOCAL_DEADLINE_S: Final = 360
"""`turn_deadline_s` of a model that runs on a small machine."""
_BUDGET: Final = 8_000
"""`context_budget`: in a conversation with itself, 94 of 100 questions are shown all evidence (`docs/performance.md`)."""
_BUDGET_OF_OLLAMA: Final = 2_500
"""`context_budget` that leaves room for instructions, message and reply in Ollama's 4,096 tokens."""
_LIBRARY: Final = ("anthropic", "google")
"""The vendors that do not speak OpenAI's format."""
_MAX_MODEL_CHARS: Final = 100
"""Longest name of a model, characters, so that vendor and name fit into the setting."""


def init(
    directory: Annotated[
        Path, Parameter(name="DIR", help=f"Directory in which {DEFAULT_FILE} is written. Created if missing.")
    ] = Path(),
    /,
    *,
    force: Annotated[bool, Parameter(negative="", help="Overwrite an existing file.")] = False,
    provider: Annotated[
        str | None,
        Parameter(
            help="`openai`, `anthropic`, `google`, `ollama`, or the URL of an OpenAI-compatible endpoint. Default: offline."
        ),
    ] = None,
    model: Annotated[str | None, Parameter(help="Name of the model, as the provider spells it.")] = None,
) -> int:
    """Write a `kitchener.toml` with the settings that matter.

    Without `--provider` it needs no network and no key: the offline provider answers. Ledgers go to `.kitchener` beside the
    file, long-term memory is on, and the Context Authority decides what the model sees. A key is never written, only the name
    of its environment variable. `kitchener config schema` lists all settings.

    For example:

        kitchener init
        kitchener init my_bot && cd my_bot && kitchener chat
        kitchener init openai_bot --provider openai --model gpt-5-mini
        kitchener init local_bot --provider http://127.0.0.1:8080/v1 --model llama-3-8b
    """
    path = directory / DEFAULT_FILE
    text = settings_text(_provider_lines(provider, model))
    _make_directory(directory)
    if not force and os.path.lexists(path):
        raise ConfigError(str(path), "", "", "already exists; `kitchener init --force` overwrites it")
    write_output(path, lambda file: file.write(text.encode()))
    print_text(f"wrote {path}")
    print_text(f"what people say is sealed under keys in {directory / '.kitchener.keys'}; back them up, apart from the ledgers")
    if provider in _KEYS:
        print_text(f"put the key of {provider} into the environment variable {_KEYS[provider]}")
    if provider in _LIBRARY and importlib.util.find_spec("pydantic_ai") is None:
        print_text(f"the models of {provider} need one more package: pip install 'kitchener[models]'")
    print_text(f"next: {_next_step(directory)}")
    return OK


def _make_directory(directory: Path) -> None:
    """Makes the directory of the settings file, unless it is there. Raises ConfigError if it is a file or cannot be made."""
    try:
        exists = is_there(directory)
        if not is_directory(directory) and (exists or directory.suffix == _SUFFIX):
            found = "is a file" if exists else "is the name of a file"
            meant = f"kitchener init {shlex.quote(str(directory.parent))}"
            raise ConfigError("DIR", "", repr(str(directory)), f"{found}; name the directory of {DEFAULT_FILE}: {meant}")
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        expected = f"cannot be made: {error.strerror or error}; name another directory"
        raise ConfigError("DIR", "", quoted(str(directory)), expected) from error


def _next_step(directory: Path) -> str:
    """The command line that starts a conversation with the settings in a directory."""
    return "kitchener chat" if directory == Path() else f"cd {shlex.quote(str(directory))} && kitchener chat"


def _provider_lines(provider: str | None, model: str | None) -> tuple[str, str] | None:
    """The id of the provider and the lines of its table; None: the offline provider.

    Raises:
        ConfigError: the provider is neither known nor a URL, or its model is missing or invalid
    """
    if provider is None:
        if model is not None:
            raise ConfigError("--model", "", "", "needs --provider, such as --provider openai")
        return None
    if provider not in _NAMED and (problem := address_problem(provider)) is not None:
        closest = difflib.get_close_matches(provider[:_MAX_MODEL_CHARS].casefold(), _NAMED, n=1)
        meant = f"; did you mean {closest[0]}?" if closest else ""
        raise ConfigError("--provider", "", described(provider), f"{problem}; or it is one of: {', '.join(_NAMED)}{meant}")
    if not is_printable(model, _MAX_MODEL_CHARS):
        expected = f"name the model with --model, in 1 to {_MAX_MODEL_CHARS} printable characters"
        raise ConfigError("--provider", "", described(provider), expected)
    if provider == "openai":
        lines = [f"base_url = {toml_value(_OPENAI)}", f"model = {toml_value(model)}", f'api_key = "env:{_KEYS[provider]}"']
        return provider, "\n".join(lines)
    if provider in _KEYS:
        lines = ['kind = "model"', f"model = {toml_value(f'{provider}:{model}')}", f'api_key = "env:{_KEYS[provider]}"']
        return provider, "\n".join(lines)
    if provider == _OLLAMA or urlsplit(provider).port == urlsplit(_OLLAMAS_URL).port:
        url = _OLLAMAS_URL if provider == _OLLAMA else provider
        return _OLLAMA, f"base_url = {toml_value(url)}\nmodel = {toml_value(model)}\n{_LOCAL_TIMES}\n{_OF_OLLAMA}"
    key = '# api_key = "env:LOCAL_API_KEY"  # unset by default'
    return _OF_URL, f"base_url = {toml_value(provider)}\nmodel = {toml_value(model)}\n{_LOCAL_TIMES}\n{key}"


def settings_text(provider: tuple[str, str] | None = None) -> str:
    """The text of the settings file. Meanings and defaults come from `kitchener.config`, so they are always up to date.

    Args:
        provider: the id and the lines of the table of a provider; None: the offline provider, with another one as an example
    """
    chosen, table = (
        ("offline", _LOCAL) if provider is None else (provider[0], f"[router.providers.{provider[0]}]\n{provider[1]}")
    )
    parts = [
        _HEAD,
        *_setting(RuntimeConfig, "plane_root", ".kitchener"),
        "[router]",
        *_setting(RouterConfig, "default_provider", chosen),
        *_comment(RouterConfig, "providers"),
        table,
        "",
        "[agents.ADMIN]",
        *_setting(HO2Config, "instructions", "You are a helpful assistant."),
        *_setting(HO2Config, "tools", ["*"]),
        *_setting(HO2Config, "classify", "rules"),
        *_setting(HO2Config, "ho3_enabled", True),
        *_setting(HO2Config, "context_mode", "enforce"),
        *_setting(HO2Config, "context_budget", _BUDGET_OF_OLLAMA if chosen == _OLLAMA else _BUDGET),
        *(_setting(HO2Config, "turn_deadline_s", _LOCAL_DEADLINE_S) if chosen in (_OLLAMA, _OF_URL) else ()),
        *_setting(HO2Config, "intent_mode", "classified"),
        *_setting(HO2Config, "continue_after_close", "reopen"),
        "[agents.ADMIN.approval]",
        *_setting(ApprovalConfig, "after_untrusted", "ask"),
        _SERVER,
    ]
    return "\n".join(parts)


def _setting(model: type[Settings], key: str, value: str | bool | int | list[str]) -> Iterator[str]:
    """The lines of one setting: its meaning, then its value, with the default where that is another."""
    yield from _comment(model, key)
    default = model.model_fields[key].get_default(call_default_factory=True)
    unset = "unset by default" if default is None else f"default: {toml_value(default)}"
    yield f"{key} = {toml_value(value)}" + (f"  # {unset}" if value != default else "")
    yield ""


def _comment(model: type[Settings], key: str) -> Iterator[str]:
    for line in textwrap.wrap(meaning(model, key), _WIDTH, break_on_hyphens=False, break_long_words=False):
        yield f"# {line}"
