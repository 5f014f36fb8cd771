"""Settings that a program builds are refused like those of a file."""

from collections.abc import Mapping
from typing import Any

import pytest

from kitchener import ConfigError, HO2Config, RuntimeConfig
from kitchener.config import GateThresholds, LedgerConfig, ProviderConfig, Route, Settings
from kitchener.config.settings_parser import parse_settings

WRONG: list[tuple[type[Settings], Mapping[str, Any]]] = [
    (HO2Config, {"turn_budget": -1}),
    (HO2Config, {"turn_bugdet": 1}),
    (HO2Config, {"overlap_policy": "never"}),
    (HO2Config, {"acceptance": ["polite"], "verify_with_model": False}),
    (LedgerConfig, {"batch_turns": 1}),
    (GateThresholds, {}),
    (ProviderConfig, {"kind": "openai_compatible", "api_key": 1234567890}),
    (Route, {"tags": ["x"], "provider": ""}),
    (RuntimeConfig, {"agents": {"support": {"turn_budget": 0}}}),
    (RuntimeConfig, {"router": {"providers": {"mine": {"kind": "nobody"}}}}),
    (
        RuntimeConfig,
        {"agents": {"default": {"verify_with_model": True, "acceptance": ["names it"]}, "a": {"verify_with_model": False}}},
    ),
]


@pytest.mark.parametrize(("settings", "given"), WRONG, ids=lambda each: each.__name__ if isinstance(each, type) else "")
def test_a_program_is_told_what_a_file_is_told(settings: type[Settings], given: Mapping[str, Any]) -> None:
    """The class stands where the error of a file names the file; no value of a secret is shown."""
    with pytest.raises(ConfigError) as of_file:
        parse_settings(settings, given, settings.__name__)
    with pytest.raises(ConfigError) as of_program:
        settings(**given)
    assert str(of_program.value) == str(of_file.value)
    assert of_program.value.source == settings.__name__
    assert "1234567890" not in str(of_program.value)


def test_an_error_of_a_table_inside_a_file_names_the_file() -> None:
    """A table is not built by its class's own `__init__`, whose error would name the class."""
    with pytest.raises(ConfigError, match=r"^k\.toml: ledger\.linger_ms = -1"):
        parse_settings(RuntimeConfig, {"ledger": {"linger_ms": -1}}, "k.toml")
