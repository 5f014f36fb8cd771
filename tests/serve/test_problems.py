"""Errors become the documented answers, and the settings on the page are valid (docs/server.md)."""

import re
from pathlib import Path
from typing import get_args

import pytest

from kitchener import errors
from kitchener.config import RuntimeConfig
from kitchener.config.settings_parser import parse_settings, read_settings_file
from kitchener.errors import (
    KitchenerError,
    LedgerClockError,
    LedgerWriteError,
    Overloaded,
    RuntimeClosed,
    SealingError,
    SessionMismatch,
    TurnOverloaded,
    TurnShutDown,
    TurnTimeout,
    UnknownSession,
)
from kitchener.serve.problems import INTERNAL, STATUS_CODES, ProblemCode, problem_for
from tests.shared.logs import captured_logs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")


def documented() -> dict[str, set[int]]:
    """The codes of the page's table, with their statuses."""
    found: dict[str, set[int]] = {}
    for statuses, codes in re.findall(r"^\| ((?:\d{3}(?:, )?)+) \| (.*) \|$", PAGE, re.MULTILINE):
        for code in re.findall(r"`(\w+)`", codes):
            found.setdefault(code, set()).update(int(each) for each in statuses.split(", "))
    return found


def test_the_page_has_every_status_and_code_that_the_server_answers_with() -> None:
    answered = {(code, status) for _, status, code in STATUS_CODES}
    for path in (ROOT / "src" / "kitchener" / "serve").rglob("*.py"):
        refused = re.findall(r'RequestRefused\(\s*(\d{3}),\s*"(\w+)"', path.read_text(encoding="utf-8"))
        answered |= {(code, int(status)) for status, code in refused}
    known = documented()
    assert {each for each in answered if each[1] not in known.get(each[0], ())} == set()
    assert known.keys() - {code for code, _ in answered} == {"no_such_route"}
    assert known.keys() == set(get_args(ProblemCode))


def test_every_error_of_a_caller_has_a_status_below_500() -> None:
    for name, error in vars(errors).items():
        if not (isinstance(error, type) and issubclass(error, errors.CallerError)):
            continue
        status = next(status for kinds, status, _ in STATUS_CODES if issubclass(error, kinds))
        assert 400 <= status < 500, name


@pytest.mark.parametrize("error", [LedgerWriteError("/srv/root/ho2m.jsonl", "disk full"), ZeroDivisionError("my secret")])
def test_a_failure_of_the_server_is_neither_repeated_to_the_client_nor_logged_word_for_word(error: Exception) -> None:
    with captured_logs() as events:
        problem = problem_for(error)
    assert (problem.status, problem.code) == INTERNAL
    assert str(error) not in problem.message
    (logged,) = events
    assert logged["error"].startswith(type(error).__name__)
    assert str(error) not in str(logged), "the text of an error may have what somebody said"


@pytest.mark.parametrize("error", [LedgerClockError("HO2M:ADMIN: the clock jumped"), SealingError("/keys/batches: disk full")])
def test_a_failure_that_an_operator_can_mend_is_logged_with_its_reason(error: Exception) -> None:
    """Regression: the log named the class alone, and the answer refers to it."""
    with captured_logs() as events:
        problem = problem_for(error)
    assert (problem.status, str(error) in problem.message) == (500, False)
    assert [each["problem"] for each in events] == [str(error)]


def test_a_session_of_somebody_else_looks_as_one_that_is_not_there() -> None:
    found: list[KitchenerError] = [SessionMismatch("SES-0a1b2c3d", "subject", "ada"), UnknownSession("SES-0a1b2c3d", "ADMIN")]
    first, second = map(problem_for, found)
    assert first == second


def test_the_settings_of_the_page_are_right(tmp_path: Path) -> None:
    path = tmp_path / "kitchener.toml"
    found = list[str]()
    for block in re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        path.write_text(block, encoding="utf-8")
        found += parse_settings(RuntimeConfig, read_settings_file(path), str(path)).serve.clients
    assert found == ["ada", "front_end", "open_webui"]


@pytest.mark.parametrize(
    ("error", "may_retry"),
    [
        (Overloaded("the queue of session 'SES-0a1b2c3d'", 8), "true"),
        (TurnOverloaded("the queue of the gateway for provider 'slow'", 8, "T-0a1b2c3d-000001"), "false"),
        (RuntimeClosed("the runtime is shutting down and takes no more turns"), "true"),
        (TurnShutDown("turn T-0a1b2c3d-000001 was aborted: the runtime is shutting down"), "false"),
        (TurnTimeout("T-0a1b2c3d-000001", 30.0), "false"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_clients_are_asked_to_send_again_only_what_has_begun_nothing(error: Exception, may_retry: str) -> None:
    """Regression: the tools of a turn that had waited for room until its deadline ran twice, as the official clients obey."""
    answer = problem_for(error).response()
    assert answer.headers["x-should-retry"] == may_retry
    assert ("retry-after" in answer.headers) == (may_retry == "true")
