"""With `--json`, each command prints one JSON value, whatever happens (docs/commands.md)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from kitchener.cli import app
from kitchener.cli.options import JsonFlag
from kitchener.cli.terminal.output import print_json
from kitchener.errors import KitchenerError
from tests.cli.conftest import Cli
from tests.cli.shared.command_list import every_command, examples_of
from tests.cli.shared.commands import Outcome, finish, start_program


def commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The commands that have `--json`."""
    for name, function in every_command():
        if JsonFlag in get_type_hints(function, include_extras=True).values():
            yield name, function


def examples() -> Iterator[Any]:
    """The command lines in their help texts, with `--json`: `make test` runs the first of each command, `make soak` all."""
    for name, function in commands():
        found = examples_of(name, function)
        assert found, name
        for at, words in enumerate(found):
            line = words if "--json" in words else [*words, "--json"]
            yield pytest.param(line, id=" ".join(line), marks=[pytest.mark.soak] if at else [])


EXAMPLES = list(examples())


def error_in(outcome: Outcome) -> dict[str, str]:
    """The error object of a command that failed, which says what standard error says."""
    told = outcome.json
    assert set(told) == {"error"}
    error: dict[str, str] = told["error"]
    assert set(error) == {"kind", "message"}
    assert outcome.err == f"kitchener: {error['message']}\n"
    return error


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_a_wrong_command_line_is_an_error_object(cli: Cli, name: str) -> None:
    outcome = cli(*name.split(), "--json", "--no-such-option")
    assert outcome.code == 2
    assert error_in(outcome)["kind"] == "usage"


@pytest.mark.parametrize("words", EXAMPLES)
def test_settings_that_cannot_be_read_are_an_error_object(cli: Cli, words: list[str]) -> None:
    Path("kitchener.toml").write_text("[router", encoding="utf-8")
    Path("other.toml").write_text("[router", encoding="utf-8")
    outcome = cli(*words)
    if words[0] == "doctor" or words[:2] == ["config", "check"]:  # they answer whether the settings are right
        assert outcome.code
        assert outcome.json["ok"] is False
    elif words[:2] in (["config", "schema"], ["ledger", "key"]) and not outcome.code:  # they need none
        assert "error" not in outcome.json
    else:
        assert outcome.code
        assert error_in(outcome)["kind"]


@pytest.mark.parametrize("words", EXAMPLES)
def test_a_new_root_gives_an_answer_or_an_error_object(cli: Cli, words: list[str]) -> None:
    outcome = cli(*words)
    told = outcome.json
    if isinstance(told, dict) and "error" in told:
        assert outcome.code
        error_in(outcome)


def test_the_kind_is_the_class_of_the_error(cli: Cli) -> None:
    assert error_in(cli("session", "show", "SES-00000000", "--json"))["kind"] == "UnknownSession"
    assert error_in(cli("session", "show", "last", "--json"))["kind"] == "NotOnRecord"
    assert error_in(cli("session", "show", "SES-x", "--json"))["kind"] == "CallerError"


def test_without_json_standard_output_is_empty(cli: Cli) -> None:
    for words in (["session", "show", "SES-00000000"], ["session", "show", "--", "--json"]):
        outcome = cli(*words)
        assert outcome.code
        assert outcome.out == ""


def test_a_command_without_json_says_so_as_an_object(cli: Cli) -> None:
    error = error_in(cli("memory", "export", "--json"))
    assert error["kind"] == "usage"
    assert "--json" in error["message"]


def test_a_value_that_was_printed_is_not_followed_by_an_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer_and_fail(*, is_listing: bool) -> None:
        print_json({"answer": 1})
        raise KitchenerError("too late")

    monkeypatch.setattr(app, "build_app", answer_and_fail)
    outcome = cli("doctor", "--json")
    assert (outcome.code, outcome.json, outcome.err) == (1, {"answer": 1}, "kitchener: too late\n")


def test_a_bug_is_an_error_object() -> None:
    program = (
        "import sys\n"
        "from kitchener.cli import app\n"
        "def fail(*, is_listing): raise RuntimeError('a bug')\n"
        "app.build_app = fail\n"
        "app.run(['doctor', '--json'])\n"
    )
    outcome = finish(start_program(program))
    assert outcome.code == 1
    assert outcome.json["error"]["kind"] == "bug"
    assert "RuntimeError: a bug" in outcome.err
