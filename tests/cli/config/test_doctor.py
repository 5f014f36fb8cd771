"""`kitchener doctor` (docs/commands.md)."""

from pathlib import Path

from tests.cli.conftest import Cli


def test_the_settings_file_is_named_with_its_folder(cli: Cli, tmp_path: Path) -> None:
    assert f"no kitchener.toml in {tmp_path}" in cli("doctor").out
    assert cli("init").code == 0
    assert f"kitchener.toml (in {tmp_path})" in cli("doctor").out
    assert cli("init", "other").code == 0
    assert f"other/kitchener.toml (in {tmp_path / 'other'})" in cli("doctor", "--config", "other/kitchener.toml").out
