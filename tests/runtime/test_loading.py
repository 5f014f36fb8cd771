"""Settings out of files, variables and arguments (docs/configuration.md)."""

import json
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kitchener.cli.options import Options
from kitchener.clock import SystemClock
from kitchener.config import HO2Config, RouterConfig, RuntimeConfig
from kitchener.config.settings_parser import parse_settings
from kitchener.errors import ConfigError
from kitchener.runtime import open_runtime
from kitchener.runtime.loading import EMBEDDED, load_config
from kitchener.runtime.root_layout import settings_of

_PROVIDER = '[router.providers.p]\nbase_url = "http://127.0.0.1:1/v1"\n'
_SERVER = "[mcp.m]\n"
_CLIENT = '[serve.clients.c]\nrights = ["act_for"]\n'
REFERENCES = {
    "ProviderConfig.api_key": (f'{_PROVIDER}api_key = "file:keys/one"', "router.providers.p.api_key"),
    "ProviderConfig.headers": (f'{_PROVIDER}headers = {{ api-key = "file:keys/one" }}', "router.providers.p.headers.api-key"),
    "ProviderConfig.query": (f'{_PROVIDER}query = {{ sig = "file:keys/one" }}', "router.providers.p.query.sig"),
    "EmbeddingsConfig.api_key": ('[embeddings]\napi_key = "file:keys/one"', "embeddings.api_key"),
    "McpServerConfig.token": (f'{_SERVER}url = "http://127.0.0.1:1/mcp"\ntoken = "file:keys/one"', "mcp.m.token"),
    "McpServerConfig.headers": (
        f'{_SERVER}url = "http://127.0.0.1:1/mcp"\nheaders = {{ key = "file:keys/one" }}',
        "mcp.m.headers.key",
    ),
    "McpServerConfig.env": (f'{_SERVER}command = "x"\nenv = {{ KEY = "file:keys/one" }}', "mcp.m.env.KEY"),
    "ServeClientConfig.key": (f'{_CLIENT}key = "file:keys/one"', "serve.clients.c.key"),
    "ServeClientConfig.subject_secret": (
        f'{_CLIENT}key = "env:A_KEY"\nsubject_secret = "file:keys/one"',
        "serve.clients.c.subject_secret",
    ),
}
"""Settings that take a reference to a secret: a file with one, and where it stands."""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_file(text: str, name: str = "kitchener.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def refused(path: Path | None = None, **given: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ=given.pop("environ", {}), **given)
    return caught.value


class TestSources:
    def test_with_nothing_the_defaults_hold_and_ledgers_go_below_the_current_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        loaded = load_config(environ={})
        assert loaded.source == EMBEDDED
        assert loaded.config == RuntimeConfig(plane_root=str(tmp_path / ".kitchener"))
        assert loaded.base_dir == tmp_path

    def test_a_variable_goes_above_the_file_and_an_argument_above_both(self, write: Any) -> None:
        path = write("[ledger]\ndurability = 'none'\nlinger_ms = 1.0\nmax_entry_bytes = 2048")
        environ = {"KITCHENER_LEDGER__DURABILITY": "os", "KITCHENER_LEDGER__LINGER_MS": "2"}
        ledger = load_config(path, environ=environ, overrides={"ledger": {"linger_ms": 3.0}}).config.ledger
        assert (ledger.durability, ledger.linger_ms, ledger.max_entry_bytes) == ("os", 3.0, 2048)

    def test_the_root_argument_goes_above_everything(self, write: Any, tmp_path: Path) -> None:
        path = write('plane_root = "a"')
        environ = {"KITCHENER_PLANE_ROOT": "b"}
        loaded = load_config(path, root=tmp_path / "c", environ=environ, overrides={"plane_root": "d"})
        assert loaded.config.plane_root == str(tmp_path / "c")

    def test_variables_without_the_prefix_are_nobodys_business(self) -> None:
        assert load_config(environ={"PATH": "/bin", "KITCHEN": "x"}).config.agents == {}

    def test_a_byte_order_mark_is_passed_over(self, write: Any) -> None:
        assert load_config(write("\ufeffplane_root = '/x'"), environ={}).config.plane_root == "/x"

    def test_another_encoding_is_named(self, write: Any) -> None:
        path = write("")
        path.write_bytes(b"plane_root = '\xff'")
        assert "is not UTF-8 text (byte 14)" in str(refused(path))


class TestPaths:
    def test_relative_paths_in_a_file_are_relative_to_its_directory(self, write: Any, tmp_path: Path) -> None:
        path = write(
            """
            plane_root = "data"
            [ledger]
            keyring = "../keys"
            [router.providers.p]
            kind = "openai_compatible"
            base_url = "http://127.0.0.1:1/v1"
            api_key = "file:secret"
            ca_file = "authorities.pem"
            [agents.ADMIN]
            prompt_dir = "prompts"
            ho2m_path = "elsewhere/ho2m.jsonl"
            """,
            "conf/kitchener.toml",
        )
        config = load_config(path, environ={}).config
        conf = tmp_path / "conf"
        assert config.plane_root == str(conf / "data")
        assert config.ledger.keyring == str(tmp_path / "keys")
        assert config.router.providers["p"].api_key == f"file:{conf / 'secret'}"
        assert config.router.providers["p"].ca_file == str(conf / "authorities.pem")
        assert config.agents["ADMIN"].prompt_dir == str(conf / "prompts")
        assert config.agents["ADMIN"].ho2m_path == str(conf / "elsewhere/ho2m.jsonl")

    @pytest.mark.parametrize("setting", sorted(REFERENCES))
    def test_a_relative_file_of_a_secret_is_relative_to_the_settings(self, write: Any, tmp_path: Path, setting: str) -> None:
        """Regression: those of headers, embeddings and signed subjects were looked for in the current directory."""
        table, at = REFERENCES[setting]
        value: Any = load_config(write(table, "conf/kitchener.toml"), environ={}).config.model_dump()
        for part in at.split("."):
            value = value[part]
        assert value == f"file:{tmp_path / 'conf' / 'keys' / 'one'}"

    def test_these_are_all_settings_that_take_a_reference(self) -> None:
        schema = RuntimeConfig.model_json_schema()
        found = {
            f"{name}.{setting}"
            for name, each in schema["$defs"].items()
            for setting, said in each.get("properties", {}).items()
            if "eference to" in said.get("description", "") or "`file:/path`" in said.get("description", "")
        }
        assert found | {"ProviderConfig.query"} == set(REFERENCES)

    def test_a_relative_path_in_a_variable_is_relative_to_the_current_directory(
        self, write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        path = write("", "conf/kitchener.toml")
        config = load_config(path, environ={"KITCHENER_PLANE_ROOT": "data"}).config
        assert config.plane_root == str(tmp_path / "data")

    def test_the_home_directory_is_expanded(self, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/home/ada")
        assert load_config(write('plane_root = "~/agents"'), environ={}).config.plane_root == "/home/ada/agents"


class TestEnvironment:
    @pytest.mark.parametrize(
        ("name", "text", "found"),
        [
            ("AGENTS__ADMIN__TURN_BUDGET", "500", lambda c: c.agents["ADMIN"].turn_budget == 500),
            ("AGENTS__ADMIN__INSTRUCTIONS", "500", lambda c: c.agents["ADMIN"].instructions == "500"),
            ("AGENTS__ADMIN__STANDING_RULES", '["a", "b"]', lambda c: c.agents["ADMIN"].standing_rules == ("a", "b")),
            ("AGENTS__RESIDENT:Bo__VERIFY_WITH_MODEL", "true", lambda c: c.agents["RESIDENT:Bo"].verify_with_model),
            ("AGENTS__ADMIN__BUDGET_CEILING", "null", lambda c: c.agents["ADMIN"].budget_ceiling is None),
            ("ROUTER__PROVIDERS__LOCAL__KIND", "offline", lambda c: c.router.providers["local"].kind == "offline"),
            ("LEDGER", '{"linger_ms": 0}', lambda c: c.ledger.linger_ms == 0),
        ],
    )
    def test_a_variable_is_read_as_the_type_of_its_setting(self, name: str, text: str, found: Any) -> None:
        assert found(load_config(environ={f"KITCHENER_{name}": text}).config)

    def test_a_table_of_the_file_is_found_whatever_its_case(self, write: Any) -> None:
        path = write('[router.providers.Local]\nkind = "offline"')
        router = load_config(path, environ={"KITCHENER_ROUTER__PROVIDERS__LOCAL__TIMEOUT_S": "5"}).config.router
        assert router.providers["Local"].timeout_s == 5.0

    def test_a_wrong_value_names_the_variable_and_not_the_file(self, write: Any) -> None:
        error = refused(write(""), environ={"KITCHENER_LIMITS__MAX_RUNNING_TURNS": "many"})
        assert error.source == "environment variable KITCHENER_LIMITS__MAX_RUNNING_TURNS"
        assert (error.key, error.value, error.expected) == ("limits.max_running_turns", '"many"', "must be a valid integer")

    @pytest.mark.parametrize("name", ["KITCHENER_CONFIG", "KITCHENER_LEDGER__DURABILTY", "KITCHENER_LEDGER__DURABILITY__X"])
    def test_a_variable_that_sets_nothing_is_an_error(self, name: str) -> None:
        error = refused(environ={name: "s3cret"})
        assert error.source == f"environment variable {name}"
        assert "is no setting" in error.expected
        assert "s3cret" not in str(error)


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "key", "value", "expected"),
        [
            ("[ledger]\ndurabilty = 'os'", "ledger.durabilty", "", "unknown key; the closest known one is 'durability'"),
            ("[leger]", "leger", "", "unknown key; the closest known one is 'ledger'"),
            ("[x]", "x", "", "unknown key; `kitchener config schema` lists the known ones"),
            ("[ledger]\ndurability = 'disk'", "ledger.durability", '"disk"', "must be 'fsync', 'os' or 'none'"),
            (
                "[limits]\nsession_queue = 1",
                "limits.session_queue",
                "",
                "unknown key; 'session_queue' is a setting of [agents.<name>]",
            ),
            (
                "[agents.ADMIN]\nsystem_prompt = 'x'",
                "agents.ADMIN.system_prompt",
                "",
                "unknown key; it is called 'instructions'",
            ),
            ("[agents.ADMIN]\nPersona = 'x'", "agents.ADMIN.Persona", "", "unknown key; it is called 'instructions' here"),
            (
                "[router]\ntemperature = 1",
                "router.temperature",
                "",
                "unknown key; 'temperature' is a setting of [agents.<name>]",
            ),
            ("temperature = 1", "temperature", "", "unknown key; 'temperature' is a setting of [agents.<name>]"),
            ("[limits]\nexecutor_concurrency = 0", "limits.executor_concurrency", "0", "must be greater than or equal to 1"),
            ("[limits]\nexecutor_concurrency = true", "limits.executor_concurrency", "true", "must be a valid integer"),
            ("[limits]\nexecutor_concurrency = '9'", "limits.executor_concurrency", '"9"', "must be a valid integer"),
            ("[ledger]\nlinger_ms = nan", "ledger.linger_ms", "NaN", "must be a finite number"),
            ("[ledger]\nlinger_ms = inf", "ledger.linger_ms", "Infinity", "must be a finite number"),
            ("ledger = 5", "ledger", "5", "must be an object"),
            ("[agents.ADMIN]\ntools = ['a', 1]", "agents.ADMIN.tools[1]", "1", "must be a valid string"),
            ("[router.domain_tag_routes.x]", "router.domain_tag_routes.x.provider_id", "", "is required"),
            (
                "[agents.'RESIDENT:bo']\nturn_budget = -1",
                'agents."RESIDENT:bo".turn_budget',
                "-1",
                "must be greater than or equal to 1",
            ),
        ],
    )
    def test_a_wrong_setting_names_file_key_value_and_what_was_expected(
        self, write: Any, text: str, key: str, value: str, expected: str
    ) -> None:
        path = write(text)
        error = refused(path)
        assert (error.source, error.key, error.value) == (str(path), key, value)
        assert error.expected.startswith(expected)

    def test_a_syntax_error_names_file_line_and_column(self, write: Any) -> None:
        path = write("plane_root = 'a'\n[ledger\n")
        assert refused(path).source == str(path)
        assert "line 2, column 8" in str(refused(path))

    def test_an_unquoted_agent_class_gets_a_hint(self, write: Any) -> None:
        assert 'write [agents."RESIDENT:bo"]' in str(refused(write("[agents.RESIDENT:bo]\n")))

    def test_a_missing_file_and_a_directory_are_named(self, tmp_path: Path) -> None:
        assert str(refused(tmp_path / "no.toml")) == f"{tmp_path / 'no.toml'}: cannot be read: No such file or directory"
        assert "Is a directory" in str(refused(tmp_path))

    def test_no_secret_is_shown(self, write: Any) -> None:
        for text in (
            "[router.providers.p]\napi_kye = 'sk-s3cret'",
            "[router.providers.p]\napi_key = ['sk-s3cret']",
            "[router.providers.p]\napi_key = 's3cret'\nbase_url = 5",
        ):
            assert "s3cret" not in str(refused(write(text)))

    def test_a_long_value_is_shortened(self) -> None:
        with pytest.raises(ConfigError) as caught:
            parse_settings(HO2Config, {"overlap_policy": "x" * 1_000}, "argument")
        assert len(caught.value.value) < 80


class TestAgents:
    def test_a_table_is_named_after_its_class(self, write: Any) -> None:
        agents = load_config(write('[agents.ADMIN]\n[agents."RESIDENT:bo"]\ninstructions = "x"'), environ={}).config.agents
        assert {name: agent.agent_class for name, agent in agents.items()} == {
            "ADMIN": "ADMIN",
            "RESIDENT:bo": "RESIDENT:bo",
        }

    @pytest.mark.parametrize("name", ["..", "RESIDENT:", "RESIDENT:a/b", "USER:x"])
    def test_another_class_is_refused(self, write: Any, name: str) -> None:
        error = refused(write(f"[agents.'{name}']"))
        assert error.key in (f'agents."{name}"', f"agents.{name}")
        assert "no such agent class" in error.expected

    def test_a_table_cannot_name_another_class_than_its_own(self, write: Any) -> None:
        error = refused(write('[agents."RESIDENT:bo"]\nagent_class = "ADMIN"'))
        assert (error.key, error.value) == ('agents."RESIDENT:bo".agent_class', "'ADMIN'")


class TestRouterFile:
    ROUTER: ClassVar[dict[str, Any]] = {
        "default_provider": "local",
        "providers": {"local": {"base_url": "http://127.0.0.1:1/v1", "model": "m"}},
        "domain_tag_routes": {"quick": {"provider_id": "local"}},
    }

    def test_the_router_may_stand_in_a_file_of_its_own(self, write: Any) -> None:
        write(json.dumps(self.ROUTER), "conf/router_config.json")
        path = write('[router]\nfile = "conf/router_config.json"')
        router = load_config(path, environ={}).config.router
        assert router == parse_settings(RouterConfig, self.ROUTER, "here")

    def test_json_and_toml_give_the_same_router(self, write: Any) -> None:
        as_json = write(json.dumps(self.ROUTER), "router.json")
        as_toml = write(
            """
            default_provider = "local"
            [providers.local]
            base_url = "http://127.0.0.1:1/v1"
            model = "m"
            [domain_tag_routes.quick]
            provider_id = "local"
            """,
            "router.toml",
        )
        assert RouterConfig.from_config_file(as_json) == RouterConfig.from_config_file(as_toml)

    @pytest.mark.parametrize(
        ("text", "key", "expected"),
        [
            ('{"domain_tag_routs": {}}', "domain_tag_routs", "unknown key; the closest known one is 'domain_tag_routes'"),
            ('{"default_provider": "x"}', "default_provider", "no such provider; there are: offline"),
            ('{"domain_tag_routes": {"a.b": {"provider_id": "x"}}}', 'domain_tag_routes."a.b".provider_id', "no such provider"),
            ('{"fallbacks": {"offline": ["x"]}}', "fallbacks.offline[0]", "no such provider"),
            ('{"providers": {"p": {"timeout_s": 0}}}', "providers.p.timeout_s", "must be greater than 0"),
            ('{"providers": {"p": {"timeout_s": 1e99}}}', "providers.p.timeout_s", "must be less than or equal to 86400"),
            ('{"a" 1}', "", "line 1, column 6: not valid JSON"),
            ("[]", "", "must hold one JSON object"),
        ],
    )
    def test_what_is_wrong_in_it_is_named_by_key(self, write: Any, text: str, key: str, expected: str) -> None:
        path = write(text, "router.json")
        with pytest.raises(ConfigError) as caught:
            RouterConfig.from_config_file(path)
        assert (caught.value.source, caught.value.key) == (str(path), key)
        assert caught.value.expected.startswith(expected)

    def test_a_provider_that_the_program_gives_may_be_named(self, write: Any) -> None:
        path = write('{"default_provider": "mine"}', "router.json")
        assert RouterConfig.from_config_file(path, given=["mine"]).default_provider == "mine"

    def test_an_error_in_it_names_that_file(self, write: Any, tmp_path: Path) -> None:
        write('{"default_providr": "x"}', "router.json")
        assert refused(write('[router]\nfile = "router.json"')).source == str(tmp_path / "router.json")

    def test_it_stands_alone(self, write: Any) -> None:
        write("{}", "router.json")
        error = refused(write('[router]\nfile = "router.json"\ndefault_model = "m"'))
        assert error.key == "router.file"
        assert "default_model" in error.expected
        assert refused(write("[router]\nfile = 5")).expected == "must be the path of a JSON or TOML file"


class TestLookUp:
    """A program and a command that name no file find the same one."""

    async def test_a_file_in_the_current_directory_is_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "kitchener.toml").write_text('plane_root = "here"\n[agents.ADMIN]\ninstructions = "x"', encoding="utf-8")
        (tmp_path / "other.toml").write_text('plane_root = "there"', encoding="utf-8")
        for config, root, instructions in (
            (None, "here", "x"),
            ("other.toml", "there", ""),
            (RuntimeConfig(), ".kitchener", ""),
        ):
            async with open_runtime(config) as runtime:
                assert runtime.root == tmp_path / root
                assert runtime.supervisor().config.instructions == instructions
        assert Options().load() == load_config(None)
        assert load_config(None).source == "kitchener.toml"

    async def test_a_file_that_is_wrong_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "kitchener.toml").write_text("plane_rot = 1", encoding="utf-8")
        with pytest.raises(ConfigError, match=r"kitchener\.toml: plane_rot"):
            async with open_runtime():
                raise AssertionError("it opened")

    @pytest.mark.parametrize(
        ("settings", "told"),
        [
            (
                '[router.providers.it]\nkind = "model"\nmodel = "groq:x"\napi_key = "env:HOME"',
                r"^kitchener\.toml: router\.providers\.it: needs the extra `models`",
            ),
            ('[embeddings]\nkind = "static"', r"^kitchener\.toml: embeddings\.kind = 'static': needs the extra `embeddings`"),
        ],
    )
    async def test_a_file_whose_provider_cannot_be_opened_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, told: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delitem(sys.modules, "pydantic_ai.providers.groq", raising=False)
        for package in ("groq", "safetensors.numpy"):  # as if it were not installed
            monkeypatch.setitem(sys.modules, package, None)
        Path("kitchener.toml").write_text(settings, encoding="utf-8")
        with pytest.raises(ConfigError, match=told):
            async with open_runtime():
                raise AssertionError("it opened")
        with pytest.raises(ConfigError, match=r"^RuntimeConfig: "):
            async with open_runtime(load_config(environ={}).config):
                raise AssertionError("it opened")

    async def test_without_a_file_the_defaults_are_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        async with open_runtime() as runtime:
            assert runtime.root == tmp_path / ".kitchener"
        assert load_config().source == EMBEDDED


@pytest.mark.parametrize(
    ("root", "problem"),
    [
        ("", "= \"\": must name a directory; '.' is the current one"),
        (3, "is int: expected a path, as str or Path"),
        (b"root", "is bytes: expected a path"),
        (True, "is bool: expected a path"),
        ("a\0b", "must not hold a character NUL"),
        ("y" * 300, "is longer than a path may be; name another directory"),
    ],
)
@pytest.mark.parametrize("config", [None, RuntimeConfig()])
def test_a_root_that_is_no_path_is_refused(
    root: Any, problem: str, config: RuntimeConfig | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It became the name of a directory, and `os.environ.get("ROOT", "")` the current directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(problem)):
        settings_of(config, root)


def test_settings_that_are_loaded_already_are_not_loaded_again() -> None:
    """Regression: the error expected the path of a file, or what it had got."""
    settings: Any = RuntimeConfig()
    with pytest.raises(ConfigError, match="argument path: is a `RuntimeConfig`, which is loaded already"):
        load_config(settings)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"config": 3}, "argument config: is int: expected the path of a settings file, or a `RuntimeConfig`"),
        ({"config": {"plane_root": "root"}}, "argument config: is dict: expected the path"),
        ({"providers": ["mine"]}, "argument providers: is list: expected objects by the ids of providers"),
        ({"clock": 3}, "argument clock: is int: expected an object with `time_us`"),
        ({"clock": SystemClock}, "argument clock: is the class SystemClock: expected an object with `time_us`"),
        ({"ids": "x"}, "argument ids: is str: expected an object with `session_id`"),
        ({"embeddings": 3}, "argument embeddings: is int: expected an object with `embed`"),
        ({"telemetry": True}, "argument telemetry: is bool: expected an object with `caller`"),
        ({"degraded_call": 3}, "argument degraded_call: is int: expected a function"),
        ({"config": ""}, 'argument config = "": must name a settings file; leave it out for ./kitchener.toml'),
        ({"providers": []}, "argument providers: is list: expected objects by the ids of providers"),
        ({"clock": 0}, "argument clock: is int: expected an object with `time_us`"),
        ({"admin_socket": "no"}, "argument admin_socket: is str: expected True, False or None"),
        ({"tools": 5}, "argument tools: is int: expected a list of functions marked with `@tool`"),
        ({"tools": None}, "argument tools: is NoneType: expected a list of functions"),
        ({"tools": print}, "argument tools: is builtin_function_or_method: expected a list of functions"),
        ({"tools": "my_bot.tools:x"}, "argument tools: is str: expected a list of functions"),
    ],
)
async def test_an_argument_of_another_type_is_named(
    given: dict[str, Any], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a `TypeError` or an `AttributeError` named none."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(problem)):
        async with open_runtime(**given):
            raise AssertionError("it opened")
    assert not (tmp_path / ".kitchener").exists()


def test_an_empty_plane_root_is_refused(write: Any) -> None:
    with pytest.raises(ConfigError, match="plane_root"):
        load_config(write('plane_root = ""'))
    with pytest.raises(ConfigError, match=r"RuntimeConfig: plane_root"):
        RuntimeConfig(plane_root="")


def test_a_root_may_begin_with_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file it always could; as an argument beside a `RuntimeConfig`, and in one, it named a directory `~`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for settings in (settings_of(RuntimeConfig(), "~/bot"), settings_of(RuntimeConfig(plane_root="~/bot"), None)):
        assert settings.plane_root == str(tmp_path / "bot")
