"""The files in `operations` fit the settings, the server and each other (docs/operations.md)."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kitchener.cli.app import invoke
from kitchener.config import HO2Config, LimitsConfig, RuntimeConfig, ServeConfig
from kitchener.runtime.loading import load_config

ROOT = Path(__file__).parents[2]
OPERATIONS = ROOT / "operations"
COMMAND = re.compile(r"(doctor|replay|serve)\b|(config|session|memory|ledger|mcp|approval) [a-z-]+")
"""A command and, where there are several of one noun, its verb."""
CREDENTIALS = "/run/credentials/kitchener.service/"


def unit(name: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names of settings have capitals
    parser.read(OPERATIONS / name)
    return parser


def settings(folder: Path) -> RuntimeConfig:
    """The example's settings, with a key where each credential is."""
    text = (OPERATIONS / "kitchener.toml").read_text()
    for name in ("front_end.key", "prometheus.key", "model.key"):
        (folder / name).write_text(f"a-long-key-of-{name}")
    (folder / "kitchener.toml").write_text(text.replace(CREDENTIALS, f"{folder}/").replace("/var/lib/kitchener", str(folder)))
    return load_config(folder / "kitchener.toml").config


def of_nginx(name: str) -> list[str]:
    return re.findall(rf"^\s*{name}\s+([^;]+);", (OPERATIONS / "nginx.conf").read_text(), re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not on this machine")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for name in ("kitchener.service", "kitchener.socket"):
        text = (OPERATIONS / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/kitchener/bin/kitchener", str(Path("/bin/true").resolve())))
    found = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "kitchener.socket", tmp_path / "kitchener.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in found.stderr.splitlines() if "kitchener" in line] == []
    assert found.returncode == 0


def test_the_service_waits_longer_than_a_drain_takes_and_passes_every_key_of_the_settings() -> None:
    service, limits = unit("kitchener.service")["Service"], LimitsConfig()
    assert int(service["TimeoutStopSec"]) > 2 * (limits.shutdown_grace_s + limits.abort_grace_s)
    passed = set(re.findall(r"^LoadCredential=([^:]+):", (OPERATIONS / "kitchener.service").read_text(), re.MULTILINE))
    assert passed == set(re.findall(rf"file:{CREDENTIALS}([\w.]+)", (OPERATIONS / "kitchener.toml").read_text()))
    assert unit("kitchener.socket")["Socket"]["ListenStream"] == "127.0.0.1:8321"


def test_the_settings_are_valid_and_lie_where_the_service_may_write(tmp_path: Path) -> None:
    config = settings(tmp_path)
    assert (config.serve.clients["prometheus"].rights, config.serve.lock_wait_s) == (("operate",), 60)
    assert Path(config.plane_root) == tmp_path / "root"
    assert unit("kitchener.service")["Service"]["StateDirectory"] == "kitchener"


def test_the_proxies_pass_events_on_at_once_and_wait_as_long_as_the_server_does(tmp_path: Path) -> None:
    config, agent, caddy = settings(tmp_path), HO2Config(), (OPERATIONS / "Caddyfile").read_text()
    longest = agent.turn_deadline_s + agent.admission_deadline_s
    (name,) = of_nginx("server_name")
    assert name in config.serve.allowed_hosts
    assert caddy.splitlines()[1] == f"{name} {{"
    assert (of_nginx("proxy_buffering"), "flush_interval -1" in caddy) == (["off"], True)
    for limit in (*of_nginx("proxy_read_timeout"), *re.findall(r"response_header_timeout (\w+)", caddy)):
        assert int(limit.removesuffix("s")) > longest
    assert int(of_nginx("client_max_body_size")[0].removesuffix("m")) * 1_048_576 == ServeConfig().max_request_bytes
    assert "max_size 16MiB" in caddy
    address = f"{ServeConfig().host}:{ServeConfig().port}"
    assert {each.split()[0] for each in of_nginx("server") if ":" in each} == {address}
    assert f"reverse_proxy {address} {{" in caddy


def test_the_container_serves_the_port_of_the_settings_as_nobody_special() -> None:
    lines = (OPERATIONS / "Dockerfile").read_text().splitlines()
    assert f"EXPOSE {ServeConfig().port}" in lines
    assert "USER kitchener" in lines
    assert lines[lines.index("FROM ${BASE}") - 1].startswith("ARG BASE=python:3.")
    (package,) = [line.removeprefix("ARG PACKAGE=") for line in lines if line.startswith("ARG PACKAGE=")]
    assert f"!{package}" in (OPERATIONS / "Dockerfile.dockerignore").read_text().splitlines(), "the builder is sent the wheel"
    assert f":{ServeConfig().port}/readyz" in next(line for line in lines if "urlopen" in line)


def test_every_command_that_operators_are_told_to_run_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    """In the page and in the alerts, with the options that they name."""
    told = (ROOT / "docs/operations.md").read_text() + (OPERATIONS / "alerts.yaml").read_text()
    found = re.findall(r"(?:\bkitchener|^run|&& run) ((?:[a-z][a-z-]* )*[a-z][a-z-]*)((?: --[a-z-]+)*)", told, re.MULTILINE)
    commands = {(COMMAND.match(words), options) for words, options in found}
    known = {(*matched[0].split(), *options.split()) for matched, options in commands if matched is not None}
    assert {("config", "check"), ("ledger", "accept-head", "--reason"), ("approval", "list"), ("doctor", "--probe")} <= known
    for each in sorted(known):
        words, options = [word for word in each if word[0] != "-"], [word for word in each if word[0] == "-"]
        assert invoke([*words, "--help"]) == 0, each
        shown = capsys.readouterr().out
        assert [option for option in options if option not in shown] == [], each


def test_the_page_names_every_file() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    assert [path.name for path in OPERATIONS.iterdir() if f"operations/{path.name}" not in page] == []
