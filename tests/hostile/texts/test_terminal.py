"""What a user, a model, a tool, a provider or a file says reaches the terminal as text only (docs/commands.md)."""

import ast
import json
import os
import pty
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.conftest import Cli, cli, memory_root, taught  # noqa: F401  the fixtures
from tests.cli.shared.commands import Outcome, finish, start, start_program
from tests.shared.sampled_tables import sampled

HOSTILE: Final = {
    "colour": "\x1b[31mred",
    "clear": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;b3duZWQ=\x1b\\",
    "link": "\x1b]8;;http://127.0.0.1/\x1b\\here\x1b]8;;\x1b\\",
    "C1": "\x9b31m\x90\x9d",
    "carriage return": "all is well\rkitchener: ok",
    "backspace": "no\b\byes",
    "delete": "\x7f",
    "override": "\u202eevil\u202c \u2066x\u2069",
    "invisible": "a\u200bb\u2060c\ufeffd\xad",
    "lines": "\u2028forged\u2029",
    "tags": "\U000e0041\U000e007f",
    "tags without an end": "\U0001f3f4\U000e0067\U000e0062",
    "too many tags": "\U0001f3f4" + "\U000e0061" * 7 + "\U000e007f",
    "tags behind another": "\U0001f600\U000e0067\U000e0062\U000e0065\U000e007f",
}
EVERYTHING: Final = " ".join(HOSTILE.values())
FORBIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u180e\u200b\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)


def check_harmless(outcome: Outcome, command: Any) -> None:
    for text in (outcome.out, outcome.err):
        found = FORBIDDEN.search(text)
        assert found is None, f"{command}: {text[max(0, found.start() - 80) : found.end() + 80]!r}"
    assert "Traceback" not in outcome.err


@contextmanager
def misbehaving_model(answer: Any) -> Iterator[str]:
    """An endpoint on this machine; `answer` gives status and body for the text of each request."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, value = answer(request)
            streams = status == 200 and request.get("stream", False)
            body = streamed(value) if streams else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream" if streams else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def streamed(whole: dict[str, Any]) -> bytes:
    """An answer as a stream of single characters, so that every escape comes in pieces."""
    message, end = whole["choices"][0]["message"], {"delta": {}, "finish_reason": whole["choices"][0]["finish_reason"]}
    deltas = [{"content": each} for each in message["content"] or ""]
    deltas += [{"tool_calls": [{"index": 0, **call}]} for call in message.get("tool_calls", ())]
    pieces = [*({"delta": {"role": "assistant", **each}, "finish_reason": None} for each in deltas), end]
    chunks = [{**whole, "object": "chat.completion.chunk", "choices": [{"index": 0, **each}]} for each in pieces]
    return "".join(f"data: {json.dumps(each)}\n\n" for each in chunks).encode() + b"data: [DONE]\n\n"


def completion(content: str | None, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **more}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if more else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "\x1b[31mm", "choices": [choice], "usage": usage}


def write_settings(url: str) -> None:
    provider = f'[router]\ndefault_provider = "p"\n[router.providers.p]\nbase_url = "{url}"\nmodel = "m"\nmax_retries = 0\n'
    agent = '[agents.ADMIN]\nho3_enabled = true\ncontext_mode = "enforce"\n'
    Path("kitchener.toml").write_text(provider + agent, encoding="utf-8")


LOOKS: Final = (
    ("session", "list"),
    ("session", "show", "SESSION"),
    ("intent", "list"),
    ("intent", "list", "--session", "SESSION"),
    ("context", "project", "--session", "SESSION", "--dry-run"),
    ("context", "project", "--session", "SESSION", "--dry-run", "--message", EVERYTHING.replace("\x00", "")),
    ("context", "explain", "--turn", "TURN"),
    ("context", "shadow"),
    ("memory", "signals"),
    ("memory", "biases", "--all"),
    ("memory", "tune"),
    ("gateway", "what-if", "--with-config", "kitchener.toml"),
    ("ledger", "tail"),
    ("ledger", "tail", "--ledger", "ho1m"),
    ("ledger", "tail", "--ledger", "context"),
    ("ledger", "tail", "--ledger", "signals"),
    ("ledger", "verify"),
    ("ledger", "proof", "TURN"),
    ("replay", "--all"),
    ("config", "show"),
    ("config", "check"),
    ("doctor",),
    ("session", "end", "SESSION"),
)


def look_everywhere(cli: Cli, sessions: int) -> int:  # noqa: F811
    """Runs every command that shows what is on record of so many sessions and their first turns; how many found something.

    Each shows it as text, and where there are several sessions as JSON too; of one session every other command does.
    """
    places = []
    for row in cli("session", "list", "--json").json[:sessions]:
        turns = cli("session", "show", row["session_id"], "--json").json["turns"]
        places.append({"SESSION": row["session_id"], "TURN": turns[0]["turn_id"]})
    commands = dict.fromkeys(tuple(place.get(each, each) for each in look) for look in LOOKS for place in places)
    found = 0
    for at, command in enumerate(commands):
        for json_too in ((), ("--json",)) if sessions > 1 or at % 2 else ((),):
            outcome = cli(*command, *json_too)
            check_harmless(outcome, (*command, *json_too))
            assert outcome.code != 2 or "json" in outcome.err.lower(), (command, outcome.err)
            found += outcome.code == 0
    return found


def test_a_reply_through_a_pipe_is_text(cli: Cli) -> None:  # noqa: F811
    def answer(request: dict[str, Any]) -> Any:
        asked = json.dumps(request)
        last = max(HOSTILE, key=lambda each: asked.rfind(f"say {each}!"))
        return 200, completion(f"hello {HOSTILE[last]} bye")

    with misbehaving_model(answer) as url:
        write_settings(url)
        outcome = cli("chat", stdin="".join(f"say {each}!\n" for each in HOSTILE).encode())
    check_harmless(outcome, "chat")
    assert outcome.out.count("hello ") == outcome.out.count(" bye\n") == len(HOSTILE)
    assert "hello �[31mred bye\n" in outcome.out
    assert "hello no��yes bye\n" in outcome.out


NEWEST: Final = pytest.mark.parametrize("sessions", [1, pytest.param(3, marks=pytest.mark.soak)])
"""Of so many sessions every command is asked."""


@NEWEST
def test_what_a_model_a_user_and_a_file_said_is_text_in_every_command(cli: Cli, tmp_path: Path, sessions: int) -> None:  # noqa: F811
    calls = [{"id": "\x1b[31mc", "type": "function", "function": {"name": "\x1b[31mtool\u202e", "arguments": "{}"}}]
    answers = iter([completion(EVERYTHING), completion(None, tool_calls=calls)] * 100)
    lines = [{"conversation": f"{n} [red]", "subject_id": "bo", "message": f"hello {EVERYTHING}"} for n in range(2)]
    (tmp_path / "in").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    with misbehaving_model(lambda _: (200, next(answers))) as url:
        write_settings(url)
        outcome = cli("run", "in", "-o", "out\x1b[31m.jsonl")
        check_harmless(outcome, "run")
        assert "2 turns in" in outcome.out, next(tmp_path.glob("out*")).read_text()
        check_harmless(cli("run", "in", "--json"), "run --json")
        assert look_everywhere(cli, sessions) > 20


@NEWEST
def test_the_error_of_a_provider_is_text(cli: Cli, sessions: int) -> None:  # noqa: F811
    for status in (400, 401, 500):
        error = {"error": {"message": EVERYTHING, "type": EVERYTHING, "code": EVERYTHING}}
        with misbehaving_model(lambda _, status=status, error=error: (status, error)) as url:
            write_settings(url)
            outcome = cli("chat", stdin=b"hello\n")
            check_harmless(outcome, status)
            assert "kitchener: T-" in outcome.err, outcome
    assert look_everywhere(cli, sessions) > 20


@pytest.mark.parametrize(
    "command",
    [
        ("chat", "--session", EVERYTHING),
        ("chat", "--agent", f"RESIDENT:{EVERYTHING}"),
        ("chat", "--config", EVERYTHING),
        ("session", "show", EVERYTHING),
        ("session", "list", "--root", f"x{EVERYTHING}"),
        ("context", "explain", "--turn", EVERYTHING),
        ("memory", "explain", EVERYTHING),
        ("memory", "deactivate", EVERYTHING, "--reason", EVERYTHING),
        ("memory", "biases", "--subject", EVERYTHING),
        ("memory", "import", EVERYTHING),
        ("ledger", "verify", EVERYTHING),
        ("ledger", "proof", EVERYTHING),
        ("subject", "erase", EVERYTHING, "--yes"),
        ("init", f"x{EVERYTHING}"),
        ("config", f"--{EVERYTHING}"),
        (EVERYTHING,),
        ("run", EVERYTHING),
        ("run", "in", "-o", EVERYTHING),
        ("chat", "--config", "[red]x[/red] [link=http://127.0.0.1/]y[/link]"),
    ],
    ids=lambda command: " ".join(command)[:20].encode("ascii", "replace").decode() if isinstance(command, tuple) else None,
)
def test_what_is_typed_or_found_as_a_name_comes_back_as_text(cli: Cli, command: tuple[str, ...]) -> None:  # noqa: F811
    Path("in").write_text("")
    outcome = cli(*command)
    check_harmless(outcome, command)


FIELDS: Final = ("subject_id", "artifact_id", "signal_id", "context_line", "agent_class")
LEARNED: Final = ("export", "biases --all --json", "signals", "biases --all", "signals --json")
"""Commands that show what was imported; the ones in `make test` show the field in the same place of `FIELDS`, if any does."""


@pytest.mark.parametrize(("field", "command"), sampled(FIELDS, LEARNED))
def test_an_import_that_is_refused_or_taken_is_told_as_text(
    taught: Cli,  # noqa: F811
    tmp_path: Path,
    field: str,
    command: str,
) -> None:
    exported = taught("memory", "export").out.splitlines()
    records = [{**json.loads(line), field: f"x{EVERYTHING}"} for line in exported]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    check_harmless(taught("memory", "import", "in.jsonl"), "import")
    check_harmless(taught("memory", *command.split()), command)


def test_json_says_exactly_what_was_said(cli: Cli) -> None:  # noqa: F811
    with misbehaving_model(lambda _: (200, completion(EVERYTHING))) as url:
        write_settings(url)
        cli("chat", stdin=b"hello\n")
    (row,) = cli("session", "list", "--json").json
    outcome = cli("session", "show", row["session_id"], "--json")
    check_harmless(outcome, "session show --json")
    assert outcome.json["turns"][0]["response"].strip() == EVERYTHING.strip()


def test_a_name_that_is_no_text_is_shown_all_the_same(cli: Cli) -> None:  # noqa: F811
    name = os.fsdecode(b"no\xfftext")
    for command in (("config", "check", "--config", name), ("config", "check", "--json", "--config", name)):
        outcome = cli(*command)
        assert outcome.code == 2
        check_harmless(outcome, command)


def test_emoji_and_scripts_that_need_joiners_stay_as_they_are(cli: Cli) -> None:  # noqa: F811
    scotland = "\U0001f3f4" + "".join(chr(0xE0000 + ord(each)) for each in "gbsct") + "\U000e007f"
    text = f"👩\u200d👩\u200d👧 ❤\ufe0f {scotland} \u0645\u06cc\u200c\u062e 日本 \u061c\u0633\u0639\u0631 5\u200e שלום!\u200f"
    with misbehaving_model(lambda _: (200, completion(text))) as url:
        write_settings(url)
        assert cli("chat", stdin=b"hello\n").out == f"{text}\n"


def on_a_terminal(arguments: tuple[str, ...], typed: str, cwd: Path) -> str:
    """What a terminal gets of a command that somebody types into."""
    ours, theirs = pty.openpty()
    process = start(*arguments, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = b""
    try:
        while piece := os.read(ours, 65_536):
            shown += piece
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    process.wait(30)
    return shown.decode()


def test_a_reply_on_a_terminal_is_text_also_where_an_escape_comes_in_two_pieces(
    cli: Cli,  # noqa: F811
    tmp_path: Path,
) -> None:
    with misbehaving_model(lambda _: (200, completion(f"one {EVERYTHING} two"))) as url:
        write_settings(url)
        shown = on_a_terminal(("chat",), "hello\n/why\n/session\n/quit\n", tmp_path)
    assert " two" in shown
    # What the line editor and the terminal add themselves is not the reply's.
    own = re.sub(r"\x1b\[\?2004[hl]|\r\n|\r(?=> |$)|\r", "", shown)
    assert FORBIDDEN.search(own) is None, own


def test_a_bug_is_told_with_its_traceback_and_without_escapes(tmp_path: Path) -> None:
    program = (
        "import importlib.metadata, kitchener.cli.app as c\n"
        "def broken(*a, **k):\n    secret = 'a value of a variable'\n    raise ValueError('\\x1b[31m\\u202e bug')\n"
        "importlib.metadata.version = broken\nc.run(['doctor'])\n"
    )
    run = finish(start_program(program, cwd=tmp_path))
    told = run.err
    assert "ValueError: �[31m� bug" in told
    assert "Traceback" in told
    assert FORBIDDEN.search(told) is None
    assert run.code == 1


def test_a_log_line_is_text(tmp_path: Path) -> None:
    program = (
        "import logging, structlog, kitchener.cli.app as c\n"
        "def invoke(tokens):\n"
        "    key = 'the value of a variable'\n"
        "    structlog.get_logger().warning('told \\x1b[31m', name='\\x1b]0;x\\x07\\u202e')\n"
        "    logging.getLogger('vendor').warning('vendor \\x1b[31m %s', '\\u202e')\n"
        "    try:\n        raise ValueError('\\x1b[2J')\n"
        "    except ValueError:\n        structlog.get_logger().exception('failed')\n"
        "    return 0\n"
        "c.invoke = invoke\nc.run([])\n"
    )
    run = finish(start_program(program, cwd=tmp_path))
    told = run.err
    assert FORBIDDEN.search(told) is None, told
    assert "told " in told
    assert "vendor " in told
    assert "ValueError" in told
    assert "the value of a variable'" not in told.replace("key = 'the value of a variable'", "")
    assert run.out == ""


def test_one_module_of_the_commands_writes_to_the_terminal() -> None:
    commands = Path(__file__).resolve().parents[3] / "src" / "kitchener" / "cli"
    allowed = {
        ("typed_lines.py", "input"),
        ("main.py", "os.write"),
    }  # both constant texts
    for path in sorted(commands.rglob("*.py")):
        calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
        for called in (ast.unparse(node.func) for node in calls):
            writes = called in ("print", "input", "os.write") or re.search(r"std(out|err)\b.*\.write|console.*\.print", called)
            assert path.name == "output.py" or not writes or (path.name, called) in allowed, f"{path.name}: {called}"
