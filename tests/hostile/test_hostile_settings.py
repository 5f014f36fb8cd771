"""Settings of any size, depth, number or encoding give a `ConfigError` that names where (docs/configuration.md)."""

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kitchener.config import HO2Config, LimitsConfig, ProviderConfig, RouterConfig, RuntimeConfig, Settings
from kitchener.errors import ConfigError
from kitchener.runtime import open_runtime
from kitchener.runtime.loading import load_config
from kitchener.runtime.setting_checks import check_config
from tests.cli.conftest import Cli, cli  # noqa: F401  the fixture
from tests.cli.shared.commands import finish, start_program
from tests.shared.property_examples import examples

DIGITS: Final = "9" * 5_000
DEEP: Final = 2_000

FILES: Final[dict[str, tuple[str, bytes, str]]] = {
    "a whole number of 5,000 digits": ("toml", f"[limits]\nexecutor_concurrency = {DIGITS}".encode(), "more digits"),
    "the same where nothing belongs": ("toml", f"x = {DIGITS}".encode(), "more digits"),
    "a number of 400 digits": ("toml", f"[limits]\nexecutor_concurrency = {DIGITS[:400]}".encode(), "less than or equal to"),
    "a number of 400 digits for seconds": (
        "toml",
        f"[limits]\nabort_grace_s = {DIGITS[:400]}".encode(),
        "limits.abort_grace_s",
    ),
    "a number of 400 digits for a budget": (
        "toml",
        f"[agents.ADMIN]\ncontext_budget = {DIGITS[:400]}".encode(),
        "context_budget",
    ),
    "a number beyond 64 bits": ("toml", b"[memory]\nresident_events = 99999999999999999999", "memory.resident_events"),
    "an exponent": ("toml", b"[limits]\nabort_grace_s = 1e999", "limits.abort_grace_s"),
    "lists in lists": ("toml", f"x = {'[' * DEEP}{']' * DEEP}".encode(), "nests deeper"),
    "tables in tables": ("toml", f"x = {'{a = ' * DEEP}1{'}' * DEEP}".encode(), "nests deeper"),
    "a key with dots": ("toml", f"{'a.' * DEEP}a = 1".encode(), "nests deeper"),
    "a key with 20,000 dots": ("toml", f"{'a.' * 20_000}a = 1".encode(), "line 1: nests deeper"),
    "a key with quoted dots": ("toml", b"\n" + b'"x" . ' * 5_000 + b"a = 1", "line 2: nests deeper"),
    "a table with dots": ("toml", f"[{'a.' * 20_000}a]\nb = 1".encode(), "nests deeper"),
    "a table in a table with dots": ("toml", f"x = {{a = 1, {'a.' * 20_000}a = 1}}".encode(), "nests deeper"),
    "NUL in a text": ("toml", b'plane_root = "a\\u0000b"', "plane_root: must not hold a character NUL"),
    "NUL in a key": ("toml", b'"a\\u0000b" = 1', "a key with a character NUL"),
    "NUL itself": ("toml", b"plane_root = 'a\0b'", "not valid TOML"),
    "another encoding": ("toml", b"plane_root = '\xff'", "is not UTF-8 text (byte 14)"),
    "UTF-16": ("toml", "plane_root = 'a'".encode("utf-16"), "is not UTF-8 text"),
    "10 MB": ("toml", b"#" * 10_000_000, "is larger than 1,048,576 bytes"),
    "line ends without end": ("toml", b"\n" * 1_000_000 + b"x", "not valid TOML"),
    "a key of 500,000 letters": ("toml", b"a" * 500_000 + b" = 1", "unknown key"),
    "a date": ("toml", b"[limits]\nexecutor_concurrency = 2020-01-01", "limits.executor_concurrency"),
    "JSON of 5,000 digits": ("json", f'{{"limits": {{"executor_concurrency": {DIGITS}}}}}'.encode(), "more digits"),
    "JSON in JSON": ("json", f"{'[' * 200_000}".encode(), "nests deeper"),
    "objects in objects": ("json", b'{"a":' * DEEP + b"1" + b"}" * DEEP, "nests deeper"),
    "half of a pair": ("json", b'{"plane_root": "a\\ud800"}', "plane_root: must not hold"),
    "half of a pair as a key": ("json", b'{"\\ud800": 1}', "a key with"),
    "NaN": ("json", b'{"limits": {"abort_grace_s": NaN}}', "must be a finite number"),
}


@pytest.mark.parametrize("what", FILES)
def test_a_settings_file_that_makes_no_sense_is_named_and_so_is_what_is_wrong(tmp_path: Path, what: str) -> None:
    kind, content, expected = FILES[what]
    path = tmp_path / f"kitchener.{kind}"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        check_config(load_config(path, environ={}).config)
    assert caught.value.source == str(path)
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(path))


@pytest.mark.parametrize("what", FILES)
def test_a_router_of_its_own_is_read_as_carefully(tmp_path: Path, what: str) -> None:
    kind, content, _ = FILES[what]
    (tmp_path / f"router.{kind}").write_bytes(content)
    (tmp_path / "kitchener.toml").write_text(f'[router]\nfile = "router.{kind}"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "kitchener.toml", environ={})
    assert caught.value.source == str(tmp_path / f"router.{kind}")


@pytest.mark.parametrize("what", ["a whole number of 5,000 digits", "a key with 20,000 dots", "NUL in a text", "10 MB"])
def test_commands_tell_it_in_one_line_and_exit_with_2(cli: Cli, what: str) -> None:  # noqa: F811
    Path("kitchener.toml").write_bytes(FILES[what][1])
    for command in (("config", "check"), ("config", "show"), ("chat",), ("session", "list"), ("ledger", "verify")):
        outcome = cli(*command)
        assert outcome.code == 2
        assert outcome.err.count("\n") == 1
    assert cli("doctor").code == 1
    assert cli("config", "check", "--json").json["ok"] is False


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("LIMITS__EXECUTOR_CONCURRENCY", DIGITS, "holds a value that no setting takes"),
        ("LIMITS__EXECUTOR_CONCURRENCY", DIGITS[:400], "limits.executor_concurrency"),
        ("LIMITS", "[" * 100_000, "holds a value that no setting takes"),
        ("LIMITS", '{"a":' * 500 + "1" + "}" * 500, "nests deeper"),
        ("LIMITS", '{"a":' * 100 + "1" + "}" * 100, "nests deeper"),
        ("PLANE_ROOT", os.fsdecode(b"a\xff"), "not UTF-8"),
        ("AGENTS__ADMIN__TOOLS", '["a\\u0000"]', "character NUL"),
        ("A__" * 5_000 + "A", "1", "is no setting"),
        (os.fsdecode(b"LEDGER__\xff"), "1", "not UTF-8"),
        ("AGENTS", "5", "agents"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(name: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        load_config(environ={f"KITCHENER_{name}": text})
    assert "environment variable" in caught.value.source
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # settings are checked without waiting
async def test_nor_does_open_runtime_take_them(tmp_path: Path) -> None:
    for kind, content, _ in FILES.values():
        path = tmp_path / f"kitchener.{kind}"
        path.write_bytes(content)
        with pytest.raises(ConfigError):
            async with open_runtime(path, root=tmp_path / "root"):
                pass
    assert not (tmp_path / "root").exists()


def test_a_table_that_holds_itself_and_a_value_of_no_type_are_refused() -> None:
    endless: dict[str, Any] = {}
    endless["router"] = endless
    for overrides in (endless, {"plane_root": object()}, {"limits": {"executor_concurrency": {1, 2}}}, {"plane_root": "a\0"}):
        with pytest.raises(ConfigError) as caught:
            load_config(environ={}, overrides=overrides)
        assert caught.value.source == "argument"


@pytest.mark.parametrize("model", [LimitsConfig, HO2Config])
def test_every_whole_number_has_a_greatest_value(model: type[LimitsConfig | HO2Config]) -> None:
    for name, schema in model.model_json_schema()["properties"].items():
        kinds = [schema, *schema.get("anyOf", ())]
        for kind in kinds:
            if kind.get("type") == "integer":
                assert kind.get("maximum", 1 << 70) < 1 << 63, name


def test_a_settings_file_without_end_is_not_read_to_its_end() -> None:
    """In a process of its own, so that reading on would not take this one's memory."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_AS, (4_000_000_000, 4_000_000_000))"
    program = f"{limited}\nfrom kitchener.runtime.loading import load_config; load_config('/dev/zero')"
    assert "is larger than 1,048,576 bytes" in finish(start_program(program)).err


@pytest.mark.parametrize(("name", "problem"), [("/dev/zero", "is not a regular file"), ("huge", "is larger than 65,536 bytes")])
def test_a_key_file_without_end_is_not_read_to_its_end(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 1 << 42)  # takes no room
    provider = ProviderConfig(base_url="http://127.0.0.1:1/v1", model="m", api_key=f"file:{tmp_path / name}")
    with pytest.raises(ConfigError, match=rf"router\.providers\.p\.api_key = .*{problem}"):
        check_config(RuntimeConfig(router=RouterConfig(providers={"p": provider})), environ={})


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


def _names(table: str) -> Iterable[str]:
    model = RuntimeConfig.model_fields[table].annotation
    assert isinstance(model, type)
    assert issubclass(model, Settings)
    return model.model_fields


PLACES: Final = st.sampled_from(
    [
        *(
            (table, name)
            for table, field in RuntimeConfig.model_fields.items()
            for name in getattr(field.annotation, "model_fields", ())
        ),
        *(("agents", "ADMIN", name) for name in HO2Config.model_fields),
        ("router", "providers", "p", "base_url"),
        ("router", "providers", "p", "api_key"),
        ("router", "file"),
    ]
)


@settings(max_examples=examples(few=100, many=5_000), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=PLACES, value=JSON)
def test_any_value_anywhere_is_a_setting_or_a_config_error(tmp_path: Path, place: tuple[str, ...], value: Any) -> None:
    tables = value
    for part in reversed(place):
        tables = {part: tables}
    path = tmp_path / "kitchener.json"
    path.write_text(json.dumps(tables))
    with contextlib.suppress(ConfigError):
        check_config(load_config(path, environ={}).config, environ={})
    with contextlib.suppress(ConfigError):
        check_config(load_config(environ={}, overrides=tables).config, environ={})


@settings(max_examples=examples(few=100, many=5_000), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), is_json=st.booleans())
def test_any_bytes_are_a_settings_file_or_a_config_error(tmp_path: Path, data: bytes, is_json: bool) -> None:
    path = tmp_path / f"kitchener.{'json' if is_json else 'toml'}"
    path.write_bytes(data)
    with contextlib.suppress(ConfigError):
        load_config(path, environ={})
