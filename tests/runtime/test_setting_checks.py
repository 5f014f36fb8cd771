"""Checks of settings that were read: what they refer to must exist (docs/configuration.md)."""

from pathlib import Path
from typing import Any

import pytest

from kitchener.config import HO2Config, ProviderConfig, RouterConfig, RuntimeConfig
from kitchener.errors import ConfigError
from kitchener.runtime.setting_checks import check_config


def test_settings_made_by_hand_may_leave_the_class_to_the_key() -> None:
    check_config(RuntimeConfig(agents={"RESIDENT:bo": HO2Config()}))
    with pytest.raises(ConfigError, match=r"must be 'RESIDENT:bo'"):
        check_config(RuntimeConfig(agents={"RESIDENT:bo": HO2Config(agent_class="ADMIN")}))


class TestReferences:
    @staticmethod
    def config(**provider: Any) -> RuntimeConfig:
        settings = {"kind": "openai_compatible", "base_url": "http://127.0.0.1:1/v1", "model": "m", **provider}
        return RuntimeConfig(router=RouterConfig(providers={"p": ProviderConfig(**settings)}))

    def test_a_route_to_no_provider_is_found(self) -> None:
        with pytest.raises(ConfigError, match=r"kitchener\.toml: router\.default_provider = 'nobody'"):
            check_config(RuntimeConfig(router=RouterConfig(default_provider="nobody")), source="kitchener.toml")

    def test_a_key_that_is_not_set_is_found_and_one_that_is_set_is_not_shown(self) -> None:
        config = self.config(api_key="env:NO_SUCH_KEY")
        with pytest.raises(ConfigError) as caught:
            check_config(config, environ={"NO_SUCH_KEY": ""})
        assert caught.value.key == "router.providers.p.api_key"
        assert caught.value.expected == "environment variable NO_SUCH_KEY is not set"
        check_config(config, environ={"NO_SUCH_KEY": "s3cret"})

    @pytest.mark.parametrize("table", ["headers", "query"])
    def test_a_secret_of_a_header_or_parameter_that_is_not_set_is_found_too(self, table: str) -> None:
        """Regression: it was found when the provider was opened, by an error that did not name the file."""
        config = self.config(**{table: {"api-key": "env:NO_SUCH_KEY", "api-version": "2026-01-01"}})
        with pytest.raises(ConfigError, match=rf"^kitchener\.toml: router\.providers\.p\.{table}\.api-key = .* is not set"):
            check_config(config, source="kitchener.toml", environ={})
        check_config(config, environ={"NO_SUCH_KEY": "s3cret"})

    def test_a_key_file_must_be_there_and_hold_something(self, tmp_path: Path) -> None:
        config = self.config(api_key=f"file:{tmp_path / 'key'}")
        with pytest.raises(ConfigError, match="No such file"):
            check_config(config, environ={})
        (tmp_path / "key").write_text("\n")
        with pytest.raises(ConfigError, match="the file is empty"):
            check_config(config, environ={})
        (tmp_path / "key").write_text("s3cret\n")
        check_config(config, environ={})

    def test_a_key_in_place_of_a_reference_is_refused_and_not_shown(self) -> None:
        with pytest.raises(ConfigError, match="must be a reference") as caught:
            check_config(self.config(api_key="sk-s3cret"), environ={})
        assert "s3cret" not in str(caught.value)

    def test_no_key_is_asked_for_where_it_is_not_used(self) -> None:
        config = self.config(api_key="env:NO_SUCH_KEY")
        check_config(config, given=["p"], environ={})
        forbidden = config.model_copy(update={"router": config.router.model_copy(update={"allow_model_calls": False})})
        check_config(forbidden, environ={})
