"""The command line as a whole: versions, help, mistakes (docs/commands.md)."""

import importlib.metadata
import inspect
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from cyclopts import Parameter

from kitchener.cli.app import build_app
from tests.cli.conftest import Cli
from tests.cli.shared.command_list import every_command, examples_of
from tests.cli.shared.commands import finish, start, start_program, write_messages

LEAVES = [
    "init",
    "chat",
    "run",
    "doctor",
    "completion",
    "session list",
    "session show",
    "session end",
    "memory signals",
    "memory biases",
    "memory explain",
    "memory deactivate",
    "memory quarantine",
    "memory import",
    "memory export",
    "ledger verify",
    "ledger tail",
    "config check",
    "config show",
    "config schema",
]


def test_the_version_is_the_packages(cli: Cli) -> None:
    outcome = cli("--version")
    assert (outcome.code, outcome.out.strip()) == (0, importlib.metadata.version("kitchener"))


def test_the_module_is_the_command(tmp_path: Path) -> None:
    outcome = finish(start("config", "show", "--json", cwd=tmp_path))
    assert outcome.code == 0
    assert outcome.json["plane_root"] == str(tmp_path / ".kitchener")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_the_list_of_commands_names_them_all_and_the_exit_codes(cli: Cli, arguments: list[str]) -> None:
    text = cli(*arguments).out
    for command in LEAVES:
        assert f" {command.split()[0]} " in text
    assert "130 interrupted" in " ".join(text.split())


@pytest.mark.parametrize("command", LEAVES)
def test_every_command_explains_itself_with_an_example(cli: Cli, command: str) -> None:
    outcome = cli(*command.split(), "--help")
    assert outcome.code == 0
    assert f"kitchener {command}" in outcome.out.split("For example:")[1]


@pytest.mark.parametrize(("command", "function"), list(every_command()))
def test_no_help_text_speaks_of_the_locks_of_the_code(command: str, function: Callable[..., object]) -> None:
    """It says whether the command works while a server runs: `tests/runtime/admin/test_commands.py` asks each for that."""
    assert re.search(r"takes?\s+no\s+lock", function.__doc__ or "", re.IGNORECASE) is None, command


def test_the_list_says_of_a_command_what_its_own_help_says_first() -> None:
    """The list comes last here: a group is one object, and the list gives it another text."""
    app = build_app(is_listing=False)
    own = {each: app[each].help.strip().splitlines()[0] for each in app if not each.startswith("-")}
    app = build_app(is_listing=True)
    assert {each: app[each].help for each in own} == own


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], "Unknown command"),
        (["session", "list", "--agnt", "ADMIN"], "--agnt"),
        (["session", "show"], "SESSION"),
        (["run", "x.jsonl", "--concurrency", "0"], "--concurrency"),
        (["session", "list", "--agent", "THE BOSS"], "1 to 64 letters, digits"),
        (["session", "list", "--config", "no.toml"], "--config = 'no.toml': cannot be read: No such file"),
        (["session", "show", "SES-x"], "is not a session id"),
        (["run", "no.jsonl"], "IN.jsonl = 'no.jsonl': cannot be read: No such file"),
        (["memory", "explain"], "ARTIFACT"),
        (["memory", "deactivate", "ART-0a1b2c3d4e5f"], "--reason"),
        (["memory", "quarantine", "intent:question"], "--reason"),
        (["memory", "signals", "--min-count", "-1"], "--min-count"),
        (["memory", "import", "no.jsonl"], "FILE = 'no.jsonl': cannot be read: No such file"),
        (["replay", "--all", "--with-config", "no.toml"], "--with-config = 'no.toml': cannot be read: No such file"),
        (["gateway", "what-if", "--with-config", "no.toml"], "--with-config = 'no.toml': cannot be read: No such file"),
        (["run", "no.jsonl", "--output-schema", "no.json"], "--output-schema = 'no.json': cannot be read: No such file"),
    ],
)
def test_a_mistake_gives_one_line_and_exit_code_2(cli: Cli, arguments: list[str], words: str) -> None:
    outcome = cli(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("kitchener: ")
    assert outcome.err.count("\n") == 1
    assert words in outcome.err


@pytest.mark.parametrize(
    "command",
    ["config schema", "replay --all", "replay --all --with-config kitchener.toml", "ledger verify", "session list", "run in"],
)
def test_a_reader_that_goes_away_is_no_traceback(cli: Cli, tmp_path: Path, command: str) -> None:
    """Also of a command whose work runs in a task group, which wraps the error."""
    (tmp_path / "kitchener.toml").write_text("", encoding="utf-8")
    assert cli("run", write_messages(tmp_path / "in", ("a", "hello"), ("b", "hello"))).code == 0
    read, write = os.pipe()
    os.close(read)
    process = start(*command.split(), cwd=tmp_path, stdout=write)
    os.close(write)
    outcome = finish(process)
    assert (outcome.code, outcome.err) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("session list --agnt x", "Did you mean --agent? (kitchener session list --help)"),
        ("session lst", "(kitchener session --help)"),
        ("session show", "kitchener: the argument SESSION is missing (kitchener session show --help)"),
        ("run", "kitchener: the argument IN.jsonl is missing (kitchener run --help)"),
        ("session list extra 'one more'", "kitchener: unexpected: 'extra' 'one more' (kitchener session list --help)"),
        ("context explain last --turn T-1", "TURN is given twice: by --turn and as 'last' (kitchener context explain --help)"),
        ("memory bisect last --bad=T-1", "TURN is given twice: by --bad and as 'last' (kitchener memory bisect --help)"),
        ("memory deactivate ART-1", "the option --reason is missing; it is required (kitchener memory deactivate --help)"),
        ("chat --config", "kitchener: --config needs a value (kitchener chat --help)"),
        ("chat --config --root x", "kitchener: --config needs a value (kitchener chat --help)"),
        ("nope", "(kitchener --help)"),
    ],
)
def test_a_mistake_names_the_help_of_its_subcommand(cli: Cli, arguments: str, words: str) -> None:
    outcome = cli(*shlex.split(arguments))
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
    assert outcome.err.endswith(f"{words}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("sesion list", "Unknown command 'sesion'; did you mean session? Commands: approval, audit, chat, "),
        ("memory explian", "Unknown command 'explian'; did you mean explain? Commands: biases, bisect, "),
        ("memory list", "Unknown command 'list'. Commands: biases, bisect, "),
        ("help", "Unknown command 'help'; did you mean --help? Commands: approval, "),
        ("--versoin", "Unknown option '--versoin'; did you mean --version? Commands: approval, "),
        ("''", "Unknown command ''. Commands: approval, "),
    ],
)
def test_a_command_is_suggested_only_for_a_word_like_it_and_all_are_listed(cli: Cli, arguments: str, words: str) -> None:
    outcome = cli(*shlex.split(arguments))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"kitchener: {words}")
    app = build_app(is_listing=False)
    listed = app["memory"] if arguments.startswith("memory") else app
    assert all(each in outcome.err for each in listed if not each.startswith("-"))


@pytest.mark.parametrize("command", ["run", "session repair", "ledger tail", "init", "chat"])
def test_a_help_text_names_no_default_that_says_nothing(cli: Cli, command: str) -> None:
    text = " ".join(cli(*command.split(), "--help").out.replace("│", " ").split())
    assert "[default: False]" not in text
    assert "[default: ()]" not in text
    assert ("[default: 10]" in text) == (command == "ledger tail")


def test_bash_completes_commands_options_and_values(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(cli("completion", "bash").out)
    for typed, expected in (("session l", "list"), ("session list --g", "--grep"), ("completion ", "bash zsh fish")):
        words = ["kitchener", *typed.split(" ")]
        program = f'source {script}; COMP_CWORD={len(words) - 1}; COMP_WORDS=("$@"); _kitchener; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", program, "bash", *words], capture_output=True, text=True, check=True)
        assert (done.stdout.strip(), done.stderr) == (expected, "")


@pytest.mark.parametrize(("shell", "words"), [("zsh", "#compdef kitchener"), ("fish", "complete -c kitchener")])
def test_scripts_of_other_shells_name_every_command(cli: Cli, shell: str, words: str) -> None:
    outcome = cli("completion", shell)
    assert (outcome.code, outcome.err) == (0, "")
    assert words in outcome.out
    assert all(command.split()[-1] in outcome.out for command in LEAVES)


def takes_number(hint: object) -> bool:
    return hint is int or any(map(takes_number, get_args(hint)))


def numbers() -> Iterator[tuple[list[str], str]]:
    """Each option of a command that takes a number: a command line of the command's help text, and the option's name."""
    for name, function in every_command():
        for parameter, hint in get_type_hints(function, include_extras=True).items():
            if parameter != "return" and takes_number(hint):
                yield examples_of(name, function)[0], f"--{parameter.replace('_', '-')}"


@pytest.mark.parametrize("number", ["-1", "1" * 400, "1.5", "many", ""])
@pytest.mark.parametrize(("words", "option"), list(numbers()))
def test_an_option_that_takes_a_number_names_a_wrong_one(cli: Cli, words: list[str], option: str, number: str) -> None:
    """Regression: the number of entries or sessions could be too large for the machine, which was a traceback."""
    outcome = cli(*words, option, number)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert f" {option}" in outcome.err
    assert len(outcome.err) < 400


@pytest.mark.parametrize("words", [("session", "show"), (), ("config", "check")], ids=["an id", "a command", "too much"])
def test_a_command_shows_that_a_long_word_was_cut(cli: Cli, words: tuple[str, ...]) -> None:
    outcome = cli(*words, "z" * 100)
    assert f"'{'z' * 78}…" in outcome.err
    assert "z" * 79 not in outcome.err


def texts() -> Iterator[tuple[list[str], str]]:
    """Each option of a command that takes a text: a command line of the command's help text, and the option's name.

    `init` takes no ids, so it does without what checks them; its options say what they expect.
    """
    for name, function in every_command():
        hints, words = get_type_hints(function, include_extras=True), (examples_of(name, function) or [[]])[0]
        for parameter in inspect.signature(function).parameters.values() if name != "init" else ():
            kinds = get_args(hints[parameter.name])[:1]
            names = [each.name for each in get_args(hints[parameter.name]) if isinstance(each, Parameter) and each.name]
            option = next(iter(names[-1])) if names else f"--{parameter.name.replace('_', '-')}"
            if parameter.kind is parameter.KEYWORD_ONLY and kinds in ((str,), (str | None,)) and option not in words:
                yield words, option


@pytest.mark.parametrize(("words", "option"), list(texts()))
def test_an_empty_option_is_named(cli: Cli, words: list[str], option: str) -> None:
    """As an argument is: a shell variable may be unset. An empty subject listed nobody's sessions, or failed each message."""
    outcome = cli(*words, option, "")
    assert outcome.code == 2
    assert outcome.err == f"kitchener: {option} is empty, perhaps because a shell variable is not set; give a value\n"


@pytest.mark.parametrize(
    "command", ["config schema", "session list", "session list --json", "doctor", "run in", "replay --all"]
)
def test_a_full_disk_under_standard_output_is_one_line(cli: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "kitchener.toml").write_text("", encoding="utf-8")
    assert cli("run", write_messages(tmp_path / "in", ("a", "hello"), ("b", "hello"))).code == 0
    with open("/dev/full", "wb") as full:
        outcome = finish(start(*command.split(), cwd=tmp_path, stdout=full.fileno()))
    assert (outcome.code, outcome.out) == (1, "")
    told = [line for line in outcome.err.splitlines() if line.startswith("kitchener: ")]
    assert told == ["kitchener: standard output takes nothing more: No space left on device"]
    assert "Traceback" not in outcome.err
    assert "Exception ignored" not in outcome.err


def test_a_full_disk_under_standard_error_changes_no_answer(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "kitchener.toml").write_text("", encoding="utf-8")
    expected = cli("session", "show", "SES-nowhere", "--json")
    with open("/dev/full", "wb") as full:
        outcome = finish(start("session", "show", "SES-nowhere", "--json", cwd=tmp_path, stderr=full.fileno()))
    assert (outcome.code, outcome.out) == (expected.code, expected.out)
    assert outcome.code != 0


CLOSED = """
import os, sys
for number in sys.argv[1].split(","):
    os.close(int(number))
os.execv(sys.executable, [sys.executable, "-m", "kitchener", *sys.argv[2:]])
"""


@pytest.mark.parametrize("closed", ["0", "1", "2", "1,2", "0,1,2"])
def test_a_closed_standard_stream_is_the_null_device(cli: Cli, tmp_path: Path, closed: str) -> None:
    """As a program that starts in the background may leave it."""
    (tmp_path / "kitchener.toml").write_text("", encoding="utf-8")
    write_messages(tmp_path / "in", ("a", "hello"), ("b", "hello"))
    outcome = finish(start_program(CLOSED, closed, "run", "in", cwd=tmp_path))
    assert (outcome.code, "Traceback" in outcome.err) == (0, False)
    assert len(outcome.out.splitlines()) == (0 if "1" in closed else 1)
    verified = cli("ledger", "verify", "--json")
    assert verified.code == 0
    assert cli("replay", "--all", "--json").code == 0
