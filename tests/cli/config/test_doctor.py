"""`kitchener doctor` (docs/commands.md)."""

from pathlib import Path

from anyio.from_thread import start_blocking_portal

from tests.cli.conftest import Cli
from tests.gateway.fake_server import fake_server


def test_the_settings_file_is_named_with_its_folder(cli: Cli, tmp_path: Path) -> None:
    assert f"no kitchener.toml in {tmp_path}" in cli("doctor").out
    assert cli("init").code == 0
    assert f"kitchener.toml (in {tmp_path})" in cli("doctor").out
    assert cli("init", "other").code == 0
    assert f"other/kitchener.toml (in {tmp_path / 'other'})" in cli("doctor", "--config", "other/kitchener.toml").out


def _settings(address: str) -> str:
    provider = f'[router.providers.it]\nbase_url = "{address}"\nmodel = "m"'
    return f'[router]\ndefault_provider = "it"\n{provider}\n'


def test_a_probe_tells_a_dead_port_from_a_provider_that_answers(cli: Cli, tmp_path: Path) -> None:
    settings = tmp_path / "kitchener.toml"
    settings.write_text(_settings("http://127.0.0.1:9/v1"), encoding="utf-8")
    assert cli("doctor").code == 0, "without --probe no provider is called"
    outcome = cli("doctor", "--probe", "--json")
    assert outcome.code == 1
    (found,) = [each for each in outcome.json["findings"] if each["what"] == "probe it"]
    assert found["state"] == "fail"
    assert found["detail"].startswith("connection: ")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_server()) as server:
        settings.write_text(_settings(server.url), encoding="utf-8")
        outcome = cli("doctor", "--probe")
    assert outcome.code == 0
    assert [line for line in outcome.out.splitlines() if line.startswith("ok    probe it")]


def test_a_probe_of_the_offline_provider_asks_nobody(cli: Cli) -> None:
    outcome = cli("doctor", "--probe")
    assert outcome.code == 0
    assert "ok    probe" not in outcome.out


def test_a_provider_that_a_runtime_cannot_open_fails(cli: Cli) -> None:
    """Regression: it was told as ok, and the first chat failed."""
    Path("kitchener.toml").write_text(
        '[router]\ndefault_provider = "it"\n[router.providers.it]\nkind = "model"\nmodel = "nosuch:big"\n', encoding="utf-8"
    )
    outcome = cli("doctor", "--json")
    (found,) = [each for each in outcome.json["findings"] if each["what"] == "provider it"]
    assert (outcome.code, found["state"]) == (1, "fail")
    assert "nosuch" in found["detail"]
