"""A key that stands in a wrong place is not shown: by no command, no error, no `--json`, no log (docs/configuration.md)."""

import json
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from kitchener.config import ProviderConfig
from kitchener.errors import ConfigError
from kitchener.runtime import open_runtime
from tests.cli.conftest import Cli, cli  # noqa: F401  the fixture
from tests.shared.sampled_tables import sampled

KEY: Final = "sk-proj-T3BlbkFJ0123456789abcdef"
TOKEN: Final = "16c7e42f292c6912e7710c838347ae178b4a1f00"
"""Forty hex digits: it could be the name of a variable."""
ACCESS_ID: Final = "AKIAIOSFODNN7EXAMPLE"
"""Upper case, as the names of variables are."""
LOCAL: Final = 'base_url = "http://127.0.0.1:1/v1"\nmodel = "m"\n'

CHECK: Final = ("config", "check")
COMMANDS: Final = (
    ("config", "check", "--json"),
    ("config", "show"),
    ("config", "show", "--json"),
    ("doctor",),
    ("doctor", "--json"),
    ("chat",),
    ("gateway", "what-if", "--with-config", "kitchener.toml"),
)
OPENING: Final = (("ledger", "checkpoint"), ("ledger", "key"), ("subject", "erase", "ada", "--yes"))
"""Commands that open what the settings name."""
Command: TypeAlias = tuple[str, ...]


def provider(text: str) -> str:
    return f"[router.providers.p]\n{text}"


MISPLACED: Final = {
    "the key itself": provider(f'{LOCAL}api_key = "{KEY}"'),
    "a key as a list": provider(f'{LOCAL}api_key = ["{KEY}"]'),
    "the key after env:": provider(f'{LOCAL}api_key = "env:{KEY}"'),
    "hex digits after env:": provider(f'{LOCAL}api_key = "env:{TOKEN}"'),
    "hex digits that begin with a letter": provider(f'{LOCAL}api_key = "env:f{TOKEN}"'),
    "an access id after env:": provider(f'{LOCAL}api_key = "env:{ACCESS_ID}"'),
    "the key after file:": provider(f'{LOCAL}api_key = "file:{KEY}"'),
    "another kind of reference": provider(f'{LOCAL}api_key = "vault:{KEY}"'),
    "Bearer": provider(f'{LOCAL}api_key = "Bearer {KEY}"'),
    "as the address": provider(f'base_url = "{KEY}"\nmodel = "m"'),
    "as the address's user": provider(f'base_url = "http://{KEY}@127.0.0.1:1/v1"\nmodel = "m"'),
    "as the address's password": provider(f'base_url = "http://me:{KEY}/x@127.0.0.1:1/v1"\nmodel = "m"'),
    "as the address's port": provider(f'base_url = "http://127.0.0.1:{KEY}/v1"\nmodel = "m"'),
    "in the address's query": provider(f'base_url = "http://127.0.0.1:1/v1?api_key={KEY}"\nmodel = "m"'),
    "in the address's fragment": provider(f'base_url = "http://127.0.0.1:1/v1#{KEY}"\nmodel = "m"'),
    "in an address without its scheme": provider(f'base_url = "127.0.0.1:1/v1?key={KEY}"\nmodel = "m"'),
    "in an address with a blank": provider(f'base_url = "http://127.0.0.1:1/ {KEY}"\nmodel = "m"'),
    "under a misspelt name": provider(f'{LOCAL}apikey = "{KEY}"'),
    "as a name": provider(f'{LOCAL}{KEY} = "x"'),
    "as a quoted name": provider(f'{LOCAL}"{TOKEN}" = "x"'),
    "twice as a name": f'"{KEY}" = 1\n"{KEY}" = 2',
    "as a table": f"[{KEY}]\nx = 1",
    "as two tables": f"[{KEY}]\nx = 1\n[{KEY}]",
    "as the kind": provider(f'kind = "{KEY}"'),
    "as the model of a vendor": provider(f'kind = "model"\nmodel = "{KEY}"'),
    "as a number's value": provider(f'{LOCAL}max_concurrency = "{KEY}"'),
    "as the default provider": f'[router]\ndefault_provider = "{KEY}"',
    "as a fallback": f'[router.fallbacks]\noffline = ["{KEY}"]',
    "as who has a fallback": f'[router.fallbacks]\n"{KEY}" = ["offline"]',
    "as the tag of a route": f'[router.domain_tag_routes."{KEY}"]\nprovider_id = "nobody"',
    "as the name of a model with a price": f'[router.prices."{KEY}"]\ninput_per_million = "much"',
    "as the name of a provider": f'[router.providers."{KEY}"]\nkind = "openai_compatible"',
    "as the name of a provider beside a mistake": f'[router]\ndefault_provider = "x"\n[router.providers."{KEY}"]\n{LOCAL}',
    "as a kind of gate": f'[memory.gate_overrides."{KEY}"]\ncount = 0',
    "as the router's file": f'[router]\nfile = "{KEY}"',
    "in the path of the router's file": f'[router]\nfile = "/nowhere/{KEY}.json"',
    "after a semicolon in the address": provider(f'base_url = "http://127.0.0.1:1/v1;{KEY}"\nmodel = "m"'),
    "as a route": f'[router.domain_tag_routes.x]\nprovider_id = "{KEY}"',
    "as the router": f'router = "{KEY}"',
    "as the router's file beside others": f'[router]\nfile = "{KEY}"\ndefault_model = "m"',
    "as a choice": f'[ledger]\ndurability = "{KEY}"',
    "as a class": f'[agents."{KEY}"]',
    "as a class's own name": f'[agents.ADMIN]\nagent_class = "{KEY}"',
    "as a broken text": f'x = "{KEY}',
    "as no text": f"x = {KEY}",
    "as a kind of signal": f'[memory]\ncustom_kinds = ["{KEY}"]',
}

RIGHT: Final = ("as a class",)
"""Where a key is a possible value, so that nothing is wrong with the settings."""


@pytest.mark.parametrize(("where", "command"), sampled(MISPLACED, COMMANDS))
def test_no_command_shows_a_key_that_stands_in_a_wrong_place(cli: Cli, where: str, command: Command) -> None:  # noqa: F811
    Path("kitchener.toml").write_text(MISPLACED[where], encoding="utf-8")
    for each in (command, CHECK):
        outcome = cli(*each)
        said = outcome.out + outcome.err
        for secret in (KEY, TOKEN, ACCESS_ID):
            assert secret not in said, f"{each}: {said}"
            assert secret[:12] not in said, f"{each}: {said}"
        assert "Traceback" not in said
    assert outcome.code == (0 if where in RIGHT else 2)


LEADS_NOWHERE: Final = {
    "prompt_dir": f'[agents.ADMIN]\nprompt_dir = "{KEY}"',
    "a path in prompt_dir": f'[agents.ADMIN]\nprompt_dir = "/nowhere/{KEY}/prompts"',
    "attention_templates": f'[agents.ADMIN]\nattention_templates = "{KEY}"',
    "signing_key": f'[ledger]\nsigning_key = "{KEY}"',
    "keyring": f'[ledger]\nkeyring = "/proc/{KEY}"',
    "tools": f'[agents.ADMIN]\ntools = ["{KEY}:{KEY}"]',
    "tools without a module": f'[agents.ADMIN]\ntools = [":{KEY}"]',
    "an attribute of a module": f'[agents.ADMIN]\ntools = ["json:{KEY}"]',
}


@pytest.mark.parametrize(("where", "command"), sampled(LEADS_NOWHERE, (*COMMANDS, *OPENING)))
def test_a_key_in_place_of_a_path_or_a_tool_is_not_shown(cli: Cli, where: str, command: Command) -> None:  # noqa: F811
    """What is there is known when it is opened, so `config check` takes these settings."""
    Path("kitchener.toml").write_text(LEADS_NOWHERE[where], encoding="utf-8")
    for each in (command, ("chat",)):
        outcome = cli(*each, stdin=b"hello\n")
        said = outcome.out + outcome.err
        assert KEY[:12] not in said, f"{each}: {said}"
        assert "Traceback" not in said
    assert outcome.code in (1, 2)


def test_a_key_that_names_a_provider_is_not_listed(cli: Cli) -> None:  # noqa: F811
    tables = [f'[router.providers."{name}"]\n{LOCAL}' for name in (KEY, KEY[::-1], "local-2")]
    prices = f'[router.prices."{KEY}"]\ninput_per_million = 1.0\noutput_per_million = 1.0\n'
    Path("kitchener.toml").write_text("".join([*tables, prices]), encoding="utf-8")
    for command in (*COMMANDS, CHECK):
        outcome = cli(*command)
        assert KEY[:12] not in outcome.out + outcome.err, command
        assert KEY[::-1][:12] not in outcome.out + outcome.err, command
    assert len(json.loads(cli("config", "show", "--json").out)["router"]["providers"]) == 3
    assert "local-2" in cli("config", "check").out


def test_what_a_person_typed_is_still_shown(cli: Cli) -> None:  # noqa: F811
    for text, told in (
        ('[router]\nfile = "settings/router-2.json"', "settings/router-2.json"),
        ('[router.fallbacks]\nmy-gpt4o = ["offline"]', "router.fallbacks.my-gpt4o"),
        ('[router.prices."openai:gpt-4o-2024-08-06"]\ninput_per_million = "x"', "gpt-4o-2024-08-06"),
        (provider('base_url = "http://127.0.0.1:65536/v1"\nmodel = "m"'), "must name a port between 1 and 65535"),
        (provider('base_url = "http://127.0.0.1:0/v1"\nmodel = "m"'), "must name a port between 1 and 65535"),
    ):
        Path("kitchener.toml").write_text(text, encoding="utf-8")
        assert told in cli("config", "check").err
    for text, told in (
        ('[agents.ADMIN]\nprompt_dir = "my_prompts/v2"', "my_prompts/v2': expected a directory"),
        ('[ledger]\nsigning_key = "keys/signing.pem"', "keys/signing.pem"),
        ('[agents.ADMIN]\ntools = ["my_bot.tools:list_packages"]', "my_bot.tools:list_packages"),
    ):
        Path("kitchener.toml").write_text(text, encoding="utf-8")
        assert told in cli("chat", stdin=b"hello\n").err


VARIABLES: Final = ("ROUTER__PROVIDERS__P__API_KEY", "LEDGER__DURABILITY", "LIMITS__MAX_RUNNING_TURNS", "ROUTER")


@pytest.mark.parametrize(("name", "command"), sampled(VARIABLES, COMMANDS))
def test_no_command_shows_a_key_that_a_variable_brings(
    cli: Cli,  # noqa: F811
    name: str,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("kitchener.toml").write_text(provider(LOCAL), encoding="utf-8")
    monkeypatch.setenv(f"KITCHENER_{name}", KEY)
    for each in (command, CHECK):
        outcome = cli(*each)
        assert KEY[:12] not in outcome.out + outcome.err, each
    assert outcome.code == 2


def test_a_reference_that_leads_somewhere_is_shown_and_what_it_leads_to_is_not(
    cli: Cli,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "key").write_text(KEY)
    monkeypatch.setenv("OPENAI_API_KEY", TOKEN)
    tables = "".join(
        f'[router.providers.{name}]\n{LOCAL}api_key = "{reference}"\n'
        for name, reference in (("a", "env:OPENAI_API_KEY"), ("b", "file:key"))
    )
    Path("kitchener.toml").write_text(tables, encoding="utf-8")
    for command in (("doctor",), ("config", "show")):
        outcome = cli(*command)
        assert outcome.code == 0
        assert "env:OPENAI_API_KEY" in outcome.out
        assert f"file:{tmp_path / 'key'}" in outcome.out
        assert "http://127.0.0.1:1/v1" in outcome.out
        assert KEY not in outcome.out
        assert TOKEN not in outcome.out


def test_an_error_still_says_which_setting_it_is_and_what_belongs_there(cli: Cli) -> None:  # noqa: F811
    Path("kitchener.toml").write_text(provider(f'{LOCAL}api_key = "{KEY}"'), encoding="utf-8")
    expected = "kitchener.toml: router.providers.p.api_key: must be a reference, `env:NAME` or `file:/path`"
    assert expected in cli("config", "check").err
    assert expected in cli("doctor").out


FOREIGN: Final = {
    "object": json.dumps({KEY: KEY, "token": KEY}),
    "wrong types": json.dumps({"template_id": KEY, "applies_to": KEY}),
    "a list": json.dumps([KEY]),
    "no JSON": f"{KEY}\n",
    "another encoding": f"{KEY}\xff",
}


@pytest.mark.parametrize(("content", "setting"), sampled(FOREIGN, ("attention_templates", "prompt_dir")))
def test_a_setting_that_points_to_somebody_elses_files_shows_nothing_of_them(
    cli: Cli,  # noqa: F811
    tmp_path: Path,
    content: str,
    setting: str,
) -> None:
    (tmp_path / "foreign").mkdir()
    for name in ("a.json", "manifest.json", "ATT-X.json"):
        (tmp_path / "foreign" / name).write_text(FOREIGN[content], encoding="latin-1")
    Path("kitchener.toml").write_text(f'[agents.ADMIN]\n{setting} = "foreign"\n', encoding="utf-8")
    for command in (("chat",), ("config", "check"), ("doctor",)):
        outcome = cli(*command, stdin=b"hello\n")
        assert KEY[:12] not in outcome.out + outcome.err
        assert "Traceback" not in outcome.err
    assert cli("chat", stdin=b"hello\n").code == 2


@pytest.mark.parametrize("setting", ["ledger.signing_key", "ledger.keyring", "agents.ADMIN.tools", "memory.memory_dir"])
def test_nor_does_a_path_to_a_file_that_is_something_else(cli: Cli, tmp_path: Path, setting: str) -> None:  # noqa: F811
    (tmp_path / "foreign").write_text(f"{KEY}\n")
    (tmp_path / "foreign").chmod(0o600)
    table, _, key = setting.rpartition(".")
    value = f'["{KEY}"]' if key == "tools" else '"foreign"'
    Path("kitchener.toml").write_text(f"[{table}]\n{key} = {value}\n", encoding="utf-8")
    for command in (("chat",), ("config", "check"), ("doctor",), ("ledger", "checkpoint")):
        outcome = cli(*command, stdin=b"hello\n")
        assert KEY[:12] not in outcome.out + outcome.err, f"{command}: {outcome.err}"
        assert "Traceback" not in outcome.err


ROUTERS: Final = {
    "key and value": f'{{"{KEY}": "{KEY}"}}',
    "a list": f'["{KEY}"]',
    "no JSON": KEY,
    "a provider": f'{{"providers": {{"p": "{KEY}"}}}}',
}


@pytest.mark.parametrize(("content", "command"), sampled(ROUTERS, COMMANDS))
def test_a_router_file_that_is_something_else_is_not_shown(cli: Cli, content: str, command: Command) -> None:  # noqa: F811
    Path("router.json").write_text(ROUTERS[content], encoding="utf-8")
    Path("kitchener.toml").write_text('[router]\nfile = "router.json"\n', encoding="utf-8")
    for each in (command, CHECK):
        outcome = cli(*each)
        assert KEY[:12] not in outcome.out + outcome.err
    assert "router.json" in outcome.err


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # settings are checked without waiting
async def test_no_error_of_the_api_and_nothing_behind_it_holds_the_key(tmp_path: Path) -> None:
    for given in ({"api_key": KEY}, {"api_key": f"env:{KEY}"}, {"base_url": f"http://127.0.0.1:1/?api_key={KEY}"}):
        provider = {"base_url": "http://127.0.0.1:1/v1", "model": "m", **given}
        (tmp_path / "kitchener.json").write_text(json.dumps({"router": {"providers": {"p": provider}}}))
        with pytest.raises(ConfigError) as caught:
            async with open_runtime(tmp_path / "kitchener.json", root=tmp_path / "root"):
                pass
        error: BaseException | None = caught.value
        while error is not None:
            assert KEY not in f"{error!s}{error!r}{vars(error)}"
            error = error.__cause__


def test_settings_made_by_hand_do_not_quote_what_is_wrong_with_them() -> None:
    with pytest.raises(ValueError, match="api_key") as caught:
        ProviderConfig.model_validate({"api_key": [KEY]})
    assert KEY not in str(caught.value)
    with pytest.raises(ConfigError, match="api_key") as told:
        ProviderConfig(api_key=[KEY])  # type: ignore[arg-type]
    assert KEY not in str(told.value)
