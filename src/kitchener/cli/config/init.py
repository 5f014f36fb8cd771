"""`kitchener init`: a settings file that says what can be set, what it means and what happens without it."""

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from kitchener.cli.config.toml import toml_value
from kitchener.cli.exits import OK
from kitchener.cli.options import DEFAULT_FILE
from kitchener.cli.terminal.output import meaning, print_text
from kitchener.cli.terminal.written_files import write_whole
from kitchener.config import (
    HO2Config,
    HO3MemoryConfig,
    LedgerConfig,
    LimitsConfig,
    ProviderConfig,
    Route,
    RouterConfig,
    RuntimeConfig,
    Settings,
)
from kitchener.errors import ConfigError

_WIDTH: Final = 100

_HEAD = """\
# Settings of Kitchener. Every line that begins with `# key =` shows a default, or an example where there is none;
# take the `#` away to change it. `kitchener config check` says whether the file is right, `kitchener config schema`
# lists every setting there is. A variable such as KITCHENER_LEDGER__DURABILITY=os goes above this file.
"""

# Shown where the default is no value at all.
_EXAMPLES: Final[dict[str, Any]] = {
    "default_model": "llama-3-8b",
    "model": "llama-3-8b",
    "base_url": "http://127.0.0.1:8080/v1",
    "api_key": "env:LOCAL_API_KEY",
    "requests_per_minute": 600,
    "tokens_per_minute": 100_000,
    "standing_rules": ["Never delete files."],
    "tools": ["my_bot.tools:list_packages"],
    "prompt_dir": "prompts",
    "budget_ceiling": 1_000_000,
    "memory_dir": "memory",
    "gate_overrides": {"tool": {"count": 10, "sessions": 3}},
    "custom_kinds": ["mood"],
    "provider_id": "local",
    "model_id": "llama-3-8b",
    "consolidation": "auto",
    "labels_vocabulary": {"domain": ["system", "travel"], "task": ["lookup", "booking"]},
}

_LEDGER = ("durability", "linger_ms", "max_entry_bytes", "max_clock_jump_s", "verify_on_open")
_LIMITS = ("max_running_turns", "max_waiting_turns", "max_active_sessions", "max_message_chars", "shutdown_grace_s")
_ROUTER = ("default_model", "allow_model_calls")
_PROVIDER = (
    "kind",
    "base_url",
    "model",
    "api_key",
    "max_concurrency",
    "requests_per_minute",
    "tokens_per_minute",
    "timeout_s",
    "max_retries",
)
_MEMORY = (
    "memory_dir",
    "gate_count_threshold",
    "gate_session_threshold",
    "gate_window_hours",
    "decay_half_life_hours",
    "salience_floor",
    "gate_exclude",
    "gate_overrides",
    "custom_kinds",
    "supersede_on_renewal",
)
_ROUTE = ("provider_id", "model_id")
_AGENT = (
    "standing_rules",
    "tools",
    "prompt_dir",
    "turn_budget",
    "budget_ceiling",
    "max_retries",
    "tool_turn_limit",
    "tool_timeout_s",
    "verify_with_model",
    "labels_vocabulary",
    "ho3_bias_budget",
    "consolidation",
    "consolidation_budget",
    "recent_turns",
    "attention_budget_tokens",
    "attention_timeout_ms",
    "reply_reserve",
    "overlap_policy",
    "session_queue",
    "turn_deadline_s",
    "admission_deadline_s",
    "idle_passivate_s",
    "context_budget",
    "intent_conflict_policy",
    "unclear_policy",
    "invalid_lifecycle_policy",
    "recall_scope",
)


def init(
    directory: Annotated[Path, Parameter(name="DIR", help="Where to write the file; made if it is not there.")] = Path(),
    /,
    *,
    force: Annotated[bool, Parameter(negative="", help="Overwrite a file that is there.")] = False,
) -> int:
    """Write a documented `kitchener.toml`.

    What it sets needs no network and no key: the offline provider answers, ledgers go to `.kitchener` beside the file, and
    long-term memory is on.

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
    parts = [_HEAD]
    parts += _knob(RuntimeConfig, "plane_root", active=".kitchener")
    parts += ["", "[ledger]", *_knobs(LedgerConfig, _LEDGER)]
    parts += ["", "[limits]", *_knobs(LimitsConfig, _LIMITS)]
    parts += ["", "[router]", *_knob(RouterConfig, "default_provider", active="offline"), *_knobs(RouterConfig, _ROUTER)]
    parts += ["", "[router.providers.offline]", *_knob(ProviderConfig, "kind", active="offline")]
    parts += ["", "# A server on this machine or elsewhere: name it in `default_provider`."]
    parts += ["# [router.providers.local]", *_knobs(ProviderConfig, _PROVIDER)]
    parts += ["", "# Where the requests go that learn from what recurs: a small local model will do."]
    parts += ["# [router.domain_tag_routes.consolidation]", *_knobs(Route, _ROUTE)]
    parts += ["", "# Long-term memory of the agents that have `ho3_enabled`."]
    parts += ["[memory]", *_knobs(HO3MemoryConfig, _MEMORY)]
    parts += ["", "[agents.ADMIN]", *_knob(HO2Config, "instructions", active="You are a helpful assistant."), ""]
    parts += [*_knob(HO2Config, "ho3_enabled", active=True), ""]
    parts += _knobs(HO2Config, _AGENT)
    parts += ["", "# `kitchener context explain` and /why in a chat say what a turn was shown, and why."]
    parts += _knob(HO2Config, "context_mode", active="enforce")
    parts += ["", *_knob(HO2Config, "intent_mode", active="classified")]
    parts += ["", "# Another agent, with sessions and ledgers of its own: kitchener chat --agent RESIDENT:bo"]
    parts += ['# [agents."RESIDENT:bo"]', '# instructions = "You are Bo. You answer briefly."']
    return "\n".join(parts) + "\n"


def _knobs(model: type[Settings], keys: tuple[str, ...]) -> Iterator[str]:
    for number, key in enumerate(keys):
        if number:
            yield ""
        yield from _knob(model, key)


def _knob(model: type[Settings], key: str, *, active: str | bool | None = None) -> Iterator[str]:
    """The lines of one setting: what it means, and its default as a comment, or a value in force."""
    field = model.model_fields[key]
    for line in textwrap.wrap(meaning(field), _WIDTH, break_on_hyphens=False, break_long_words=False):
        yield f"# {line}"
    if active is not None:
        yield f"{key} = {toml_value(active)}"
        return
    default = field.get_default(call_default_factory=True)
    if field.is_required():
        yield f"# {key} = {toml_value(_EXAMPLES[key])}"
        return
    is_unset = default is None or default in ((), {})
    yield f"# {key} = {toml_value(_EXAMPLES[key] if is_unset else default)}{'  # unset by default' if is_unset else ''}"
