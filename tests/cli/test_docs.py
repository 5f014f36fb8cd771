"""The commands and settings in the documentation work as they stand there."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from kitchener.errors import ConfigError
from kitchener.runtime.loading import load_config
from kitchener.runtime.setting_checks import check_config
from tests.cli.conftest import Cli
from tests.cli.shared.command_list import every_command

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("commands.md", "configuration.md")
TURN, INTENT = "T-0a1b2c3d-", "INT-0a1b2c3d4e5f6071"
PLACEHOLDER = "SES-0a1b2c3d"
ARTIFACT = "ART-0a1b2c3d4e5f"
MEMORY = "[agents.ADMIN]\nho3_enabled = true\n[memory]\ngate_count_threshold = 1\ngate_session_threshold = 1\n"
"""So that the few turns of the page are enough to learn from."""


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def newest_session(cli: Cli) -> str:
    sessions = [each["session_id"] for each in cli("session", "list", "--json").json if not each["ended"]]
    return str(sessions[-1])


def with_context_ids(cli: Cli, line: str) -> str:
    """A line with the turns and the first intent of the newest session in place of those of the page."""
    if TURN in line or INTENT in line:
        session = newest_session(cli)
        line = line.replace(TURN, f"T-{session[4:]}-")
        if INTENT in line:
            line = line.replace(INTENT, cli("intent", "list", "--session", session, "--json").json[0]["intent_id"])
    return line


def test_the_table_of_commands_lists_every_command_and_no_other() -> None:
    known = {name for name, _ in every_command()}
    table = (DOCS / "commands.md").read_text(encoding="utf-8").partition("\n\nCommon options")[0]
    listed = set()
    for cell in re.findall(r"^\| (`.+?) \| ", table, re.MULTILINE):
        first, *others = re.findall(r"`([^`]+)`", cell)
        group = first.split()[0]
        for each in (first, *(name if name.startswith(f"{group} ") else f"{group} {name}" for name in others)):
            words = each.split()
            # A command's arguments stand behind its name.
            listed.add(next((name for n in (2, 1) if (name := " ".join(words[:n])) in known), each))
    assert listed == known


def test_the_page_of_settings_lists_every_table_and_every_group(cli: Cli) -> None:
    shown, page = cli("config", "schema").out, (DOCS / "configuration.md").read_text(encoding="utf-8")
    tables = {each.partition(".")[0] for each in re.findall(r"^\[([^\]]+)\]$", shown, re.MULTILINE)}
    groups = set(re.findall(r"^# ([^:]+):", shown, re.MULTILINE))
    assert tables == set(re.findall(r"^\| `\[(\w+)[\].]", page, re.MULTILINE))
    listed = page.partition("| group of `[agents.<class>]` |")[2].partition("\n\n")[0]
    assert groups == set(re.findall(r"^\| ([A-Z][\w -]+) \|", listed, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_every_command_line_runs(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    """In one directory, from the top of the page to its end; ids stand for some that are there."""
    (tmp_path / "dialogues.jsonl").write_text("".join(blocks(page, "json")), encoding="utf-8")
    if page == "commands.md":
        (tmp_path / "kitchener.toml").write_text(MEMORY, encoding="utf-8")
        said = {"role": "user", "content": "hello", "time": "2026-01-05T10:00:00Z"}
        (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": [said]}), encoding="utf-8")
        (tmp_path / "other.toml").write_text(blocks(page, "toml")[0], encoding="utf-8")
        (tmp_path / "letters.jsonl").write_text(
            '{"conversation": "letter", "message": "Two chairs, please."}\n', encoding="utf-8"
        )
        order = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
        (tmp_path / "order.schema.json").write_text(json.dumps(order), encoding="utf-8")
    lines = [line.removeprefix("$ ") for block in blocks(page, "console") for line in block.splitlines()]
    assert len(lines) >= 6
    monkeypatch.setenv("KITCHENER_AGENTS__ADMIN__CONTEXT_MODE", "enforce")  # some lines are about what it decides
    for line in lines:
        line = with_context_ids(cli, line)
        if PLACEHOLDER in line:
            line = line.replace(PLACEHOLDER, newest_session(cli))
        if ARTIFACT in line:
            biases = cli("memory", "biases", "--subject", "ada", "--json").json["biases"]
            line = line.replace(ARTIFACT, biases[0]["artifact_id"])
        feed, _, command = line.rpartition(" | ")
        words = shlex.split(command)
        stdin = subprocess.run(["sh", "-c", feed], stdout=subprocess.PIPE, check=True).stdout if feed else b""
        with monkeypatch.context() as patch:
            while "=" in words[0]:
                patch.setenv(*words.pop(0).split("=", 1))
            assert words[0] == "kitchener"
            outcome = cli(*words[1:], stdin=stdin)
        expected = 1 if "accept-head" in words else 0  # nothing is missing here, which is that command's negative answer
        assert (outcome.code, outcome.err) == (expected, ""), line


@pytest.mark.parametrize("page", PAGES)
def test_every_settings_block_is_right(tmp_path: Path, page: str) -> None:
    (tmp_path / "router_config.json").write_text("{}", encoding="utf-8")
    for number, block in enumerate(blocks(page, "toml")):
        path = tmp_path / f"{number}.toml"
        path.write_text(block, encoding="utf-8")
        check_config(load_config(path, environ={}).config, environ={})


@pytest.mark.parametrize("block", blocks("configuration.md", "python"))
def test_every_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "configuration.md", "exec"), {"__name__": "__main__"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "environ"),
    [
        ("[ledger]\ndurabilty = 'os'", {}),
        ("[limits]\nmax_running_turns = 0", {}),
        ("", {"KITCHENER_LEDGER__LINGER_MS": "soon"}),
        ("\n\n\n\n\n\n[agents.RESIDENT:bo]", {}),
        ("[router.providers.local]\nbase_url = 'http://127.0.0.1:1'\nmodel = 'm'\napi_key = 'env:LOCAL_API_KEY'", {}),
        ("[agents.ADMIN]\ncontext_mode = 'on'", {}),
    ],
)
def test_every_error_that_the_page_shows_is_what_one_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, environ: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kitchener.toml").write_text(settings, encoding="utf-8")
    (shown,) = blocks("configuration.md", "text")
    with pytest.raises(ConfigError) as caught:
        check_config(load_config("kitchener.toml", environ=environ).config, source="kitchener.toml", environ={})
    assert str(caught.value).split("; write [")[0] in shown.splitlines()
