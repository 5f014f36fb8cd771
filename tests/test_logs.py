"""What Kitchener logs, where it goes, and that it goes nowhere until asked (docs/runtime.md)."""

import ast
import json
import logging
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kitchener import RuntimeConfig, open_runtime
from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ProviderError
from kitchener.logs import JsonLogLines, LogLines, get_logger
from kitchener.records.prompt import PromptRequest
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo, open_scripted
from tests.cli.shared.commands import finish, start, start_program
from tests.replay.shared.recorded_sessions import TOOLS
from tests.shared.logs import captured_logs

SOURCES = Path(__file__).parents[1] / "src" / "kitchener"
FAILING = """
import anyio
from kitchener import RuntimeConfig, open_runtime
from kitchener.config import RouterConfig

class Broken:
    async def complete(self, request):
        raise ValueError("a bug")

async def main():
    config = RuntimeConfig(plane_root="plane", router=RouterConfig(default_provider="broken"))
    async with open_runtime(config, providers={"broken": Broken()}) as runtime:
        result = await runtime.supervisor().handle_turn("hello")
        assert result.error is not None

anyio.run(main)
"""


def test_a_library_writes_nothing_by_itself(tmp_path: Path) -> None:
    """Neither when it is loaded, which is why this one has an interpreter of its own."""
    run = subprocess.run([sys.executable, "-c", FAILING], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "")


def test_a_handler_of_the_root_logger_gets_the_events(tmp_path: Path) -> None:
    asked = "import logging\nlogging.basicConfig(format='%(name)s %(levelname)s %(message)s %(provider_id)s')\n"
    run = finish(start_program(asked + FAILING, cwd=tmp_path))
    assert run.code == 0
    assert "kitchener.gateway.provider_faults ERROR provider failed broken" in run.err
    assert run.out == ""


def test_a_handler_that_raises_costs_its_line_and_no_turn(tmp_path: Path) -> None:
    """Regression: it ended the worker that logged, and with it the runtime."""
    asked = (
        "import logging\nclass Broken(logging.Handler):\n    def emit(self, record):\n"
        "        raise OSError('the words of a user')\nlogging.getLogger().addHandler(Broken())\n"
    )
    run = finish(start_program(asked + FAILING, cwd=tmp_path))
    assert run.code == 0
    told = "kitchener.gateway.provider_faults: a log handler raised OSError at <string>:4 in Broken.emit"
    assert any(
        line.startswith(told) and line.endswith("so this is not logged: provider failed") for line in run.err.splitlines()
    )
    assert "the words of a user" not in run.err


def test_a_program_shows_the_fields_of_events_with_a_formatter(tmp_path: Path) -> None:
    """With the standard formatter a line says that a provider failed, and not which (docs/runtime.md)."""
    asked = (
        "import logging\nfrom kitchener.logs import LogLines\nhandler = logging.StreamHandler()\n"
        "handler.setFormatter(LogLines('%(name)s: %(message)s'))\nlogging.basicConfig(handlers=[handler])\n"
    )
    run = finish(start_program(asked + FAILING, cwd=tmp_path))
    assert run.code == 0
    failed = next(line for line in run.err.splitlines() if "provider failed" in line)
    assert failed.startswith("[error] kitchener.gateway.provider_faults: provider failed provider_id=broken error=ValueError")
    assert "session_id=SES-" in failed


async def test_what_becomes_of_a_provider_is_logged_once(tmp_path: Path) -> None:
    down, secret = [True], "the words of the user"

    def answer(request: PromptRequest) -> Any:
        if down[0]:
            raise ProviderError("scripted", "connection", f"no route to {secret}")
        return echo(request)

    limits = ProviderConfig(kind="offline", max_retries=0, breaker_failures=2, breaker_reset_s=1e-6)
    router = RouterConfig(default_provider="scripted", providers={"scripted": limits})
    config = RuntimeConfig(plane_root=str(tmp_path), router=router)
    with captured_logs() as logs:
        async with open_runtime(config, providers={"scripted": ScriptedProvider(answer)}) as runtime:
            for down[0] in (True, True, True, False, False):
                for subject in ("ada", "bo"):
                    await runtime.supervisor().handle_turn(secret, subject_id=subject)
    told = [(each["event"], each["log_level"]) for each in logs if each["logger"] == "kitchener.gateway.guarded_provider"]
    assert told == [
        ("provider does not answer", "warning"),
        ("circuit breaker opened", "warning"),
        ("circuit breaker closed", "warning"),
        ("provider answers again", "warning"),
    ]
    first = next(each for each in logs if each["event"] == "provider does not answer")
    assert (first["provider_id"], first["reason"]) == ("scripted", "connection")
    assert secret not in repr(logs)


async def test_a_tool_that_no_class_may_use_is_logged(tmp_path: Path) -> None:
    with captured_logs() as logs:
        async with open_scripted(tmp_path, tools=TOOLS, admin_tools=("break_down",)):
            pass
    (line,) = [each for each in logs if "setting `tools`" in each["event"]]
    assert line["tools"] == ["list_packages"]


async def test_what_is_logged_after_a_turn_has_no_ids_of_it(tmp_path: Path) -> None:
    with captured_logs() as logs:
        async with open_scripted(tmp_path / "one") as runtime:
            await runtime.supervisor().handle_turn("hello")
            async with open_scripted(tmp_path / "two", tools=TOOLS, admin_tools=("break_down",)):
                pass
    (line,) = [each for each in logs if "setting `tools`" in each["event"]]
    assert not {"session_id", "turn_id", "wo_id"} & line.keys()


def test_no_record_is_made_that_no_handler_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    logger = logging.getLogger("kitchener.of_a_test")
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handle", lambda record: made.append(record.getMessage()))
    get_logger(logger.name).error("nobody reads this")
    assert made == []
    logger.addHandler(logging.StreamHandler())
    get_logger(logger.name).info("too low: the root logger stands at WARNING")
    get_logger(logger.name).error("read")
    logger.handlers.clear()
    assert made == ["read"]


def test_further_fields_are_asked_for_only_where_somebody_reads_and_never_replace_an_events_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def fields() -> dict[str, str]:
        asked.append("once")
        return {"turn_id": "T-1", "wo_id": "WO-1"}

    monkeypatch.setattr("kitchener.logs.FIELDS", [fields])
    monkeypatch.setattr(logging.getLogger("kitchener.of_another_test"), "propagate", False)
    get_logger("kitchener.of_another_test").error("nobody reads this")
    assert asked == []
    with captured_logs() as logs:
        get_logger("kitchener.of_a_third_test").error("read", wo_id="WO-2")
    assert (logs[0]["turn_id"], logs[0]["wo_id"], asked) == ("T-1", "WO-2", ["once"])


@cache
def log_calls() -> list[tuple[str, ast.Call]]:
    """Each call of the source that logs an event, with its place."""
    return [
        (f"{path.name}:{node.lineno}", node)
        for path in SOURCES.rglob("*.py")
        if "_log." in (text := path.read_text(encoding="utf-8")) or "logger." in text  # a tree takes long to walk
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("_log.", "logger."))
    ]


def test_no_field_of_an_event_has_a_name_of_the_record() -> None:
    """`logging` refuses them, and that only when somebody reads."""
    reserved = {*logging.makeLogRecord({}).__dict__, "message", "asctime"}
    for place, call in log_calls():
        fields = {each.arg for each in call.keywords}
        assert not fields & reserved - {"exc_info", "stack_info"}, place


SAID = {"answer", "arguments", "content", "message", "prompt", "reply", "response", "result", "text", "user_message"}
"""Names of what somebody said, or what a tool was given or returned."""


def test_no_event_has_what_was_said() -> None:
    """Neither as a field, nor inside the expression that is the value of one."""
    found = []
    for place, call in log_calls():
        values = [each for given in (*call.args, *call.keywords) for each in ast.walk(given)]
        used = {each.attr for each in values if isinstance(each, ast.Attribute)}
        used |= {each.id for each in values if isinstance(each, ast.Name)} | {str(each.arg) for each in call.keywords}
        found += [f"{place}: {name}" for name in used & SAID]
    assert found == []


def test_only_one_module_makes_loggers() -> None:
    named = {path.name for path in SOURCES.rglob("*.py") if "structlog.get_logger" in path.read_text(encoding="utf-8")}
    assert named == set()


def test_a_command_shows_as_much_as_is_asked_for(tmp_path: Path) -> None:
    provider = '[router.providers.p]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\nmax_retries = 0\n'
    (tmp_path / "kitchener.toml").write_text(f'[router]\ndefault_provider = "p"\n{provider}', encoding="utf-8")
    shown = {}
    for level in ("warning", "error"):
        done = finish(start("chat", "--root", "r", "--log-level", level, cwd=tmp_path), "hi\n")
        shown[level] = done.err
        assert "provider_id" not in done.out
    assert "[warning] provider does not answer provider_id=p reason=connection session_id=SES-" in shown["warning"]
    assert "provider does not answer" not in shown["error"]


def test_a_field_of_several_lines_stays_on_the_line_of_its_event() -> None:
    """Otherwise a file's name, or what a provider says, could look like an event of Kitchener."""
    record = logging.makeLogRecord(
        {"msg": "index not written", "path": "a\n[error] ledger damaged\u2028x", "levelname": "WARNING"}
    )
    assert LogLines("%(message)s").format(record).splitlines() == [
        "[warning] index not written path=a\\n[error] ledger damaged\\nx"
    ]


def test_a_json_line_has_its_time_and_takes_whatever_an_event_says() -> None:
    """Text that is no Unicode, a field named like one of every line, and a value that JSON does not know."""
    record = logging.makeLogRecord(
        {
            "name": "kitchener.ledger",
            "msg": "index not written\n{}",
            "levelname": "WARNING",
            "created": 1_700_000_000.5,
            "path": "a\n\udc80\u2028",
            "time": "never",
            "place": Path("x"),
        }
    )
    (line,) = JsonLogLines().format(record).splitlines()
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.500+00:00",
        "level": "warning",
        "logger": "kitchener.ledger",
        "event": "index not written\n{}",
        "path": "a\n\udc80\u2028",
        "place": "x",
    }
    assert list(json.loads(line))[:4] == ["time", "level", "logger", "event"]


def test_an_exception_of_another_library_is_on_the_same_json_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        failed = logging.makeLogRecord({"msg": "it failed", "levelname": "ERROR", "exc_info": sys.exc_info()})
    (line,) = JsonLogLines().format(failed).splitlines()
    assert json.loads(line)["traceback"].endswith("ValueError: broken")
