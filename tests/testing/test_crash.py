"""`kitchener.testing.crash_test`, pointed at an agent as users have them: docs/survival.md."""

from pathlib import Path
from typing import Any, Literal

import pytest

from kitchener import CallerError
from kitchener.testing import CrashReport, crash_test
from tests.testing.crashing_agent import MESSAGES, broken, each_order_at_most_twice, forgetful, never_content, shop, unsafe


@pytest.mark.timeout(180)
@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.soak)])
def test_an_agent_with_a_tool_keeps_its_promises_wherever_it_is_killed(backend: Literal["asyncio", "trio"]) -> None:
    report = crash_test(shop, MESSAGES, kills=4, check=each_order_at_most_twice, backend=backend)
    assert report.places > 100
    assert report.kills + report.outlived >= 4
    assert report.kills >= 3
    assert report.in_recovery > 0
    assert report.acknowledged > 0
    assert report.aborted + report.outcome_unknown > 0, "some were killed in the middle of a turn"
    assert report.violations == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("build", "check", "expected"),
    [
        pytest.param(shop, never_content, r"whole: 5 acknowledged, and still not content", marks=pytest.mark.soak),
        (forgetful, None, r"kill-\d+-at-\d+: message 0 of SES-0000000[12] has 2 completed turns"),
        (
            unsafe,
            never_content,
            r"whole: a ledger does not verify: .*ho1m\.jsonl.*whole: 5 acknowledged, and still not content",
        ),
        (broken, None, r"whole: a process failed: .*ValueError: no such agent"),
    ],
)
def test_a_broken_promise_is_named_and_its_ledgers_are_kept(build: Any, check: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=f"(?s){expected}"):
        crash_test(build, MESSAGES, kills=4, check=check, root=tmp_path)
    assert list(tmp_path.iterdir()), "the directory is kept"


def test_an_argument_that_is_wrong_is_named(tmp_path: Path) -> None:
    def local(root: Path) -> Any:
        return shop(root)

    for build in (local, lambda root: shop(root)):
        with pytest.raises(CallerError, match=r"build = .*: expected a function at the top of a module"):
            crash_test(build, ["hello"], root=tmp_path)
    with pytest.raises(CallerError, match="kills = 0: expected at least 1"):
        crash_test(shop, ["hello"], kills=0)
    with pytest.raises(CallerError, match="messages are empty"):
        crash_test(shop, [])


def test_a_report_starts_without_anything() -> None:
    assert CrashReport().violations == []
