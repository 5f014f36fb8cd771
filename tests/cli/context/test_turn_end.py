"""A turn that failed is shown with the attempts at its model that failed, wherever a command shows it (docs/turn.md)."""

from pathlib import Path

import anyio
import pytest

from kitchener import TurnTimeout
from kitchener.runtime import open_runtime
from tests.acceptance.stack import Hold, failing_then_held
from tests.cli.conftest import Cli
from tests.cli.context.contexts import turn

ATTEMPTS = "attempt 1 at provider 'scripted' failed: timeout; attempt 2 at provider 'scripted' "
SETTINGS = """
[agents.ADMIN]
context_mode = "enforce"
intent_mode = "classified"
turn_deadline_s = 2
[router]
default_provider = "scripted"
[router.providers.scripted]
kind = "offline"
backoff_initial_s = 1e-6
"""


async def run_into_its_deadline(settings: Path) -> str:
    """A turn whose reply fails once and is then never given. Returns its session."""
    hold = Hold("slow")
    async with open_runtime(settings, providers={"scripted": failing_then_held(hold)}) as runtime:
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session()
        with anyio.fail_after(30), pytest.raises(TurnTimeout) as caught:
            await supervisor.handle_turn("slow", session_id=session_id)
        assert caught.value.waited_for.startswith(ATTEMPTS)
    return session_id


@pytest.fixture
def late(cli: Cli) -> str:
    """The only turn of a session, which passed its deadline."""
    path = Path("kitchener.toml")
    path.write_text(SETTINGS, encoding="utf-8")
    return turn(anyio.run(run_into_its_deadline, path), 1)


def test_an_aborted_turn_names_its_last_failed_attempts_wherever_it_is_shown(cli: Cli, late: str, tmp_path: Path) -> None:
    told = f"aborted: timeout; {ATTEMPTS}"
    assert f"\n  {told}" in cli("context", "explain", late).out
    view = cli("context", "explain", late, "--json").json
    assert view["outcome"].startswith(told)
    assert view["waited_for"].startswith(ATTEMPTS)
    assert view["error"] is None
    assert cli("context", "explain", late, "--html", "--out", "turn.html").code == 0
    page = (tmp_path / "turn.html").read_text(encoding="utf-8")
    assert '<dd dir="auto">aborted: timeout; attempt 1 at provider &#39;scripted&#39; failed: timeout; ' in page
    session = cli("session", "show", "last")
    assert f"{late}  " in session.out
    assert f"\n  ! {ATTEMPTS}" in session.out
    (shown,) = cli("session", "show", "last", "--json").json["turns"]
    assert (shown["state"], shown["waited_for"]) == ("aborted: timeout", view["waited_for"])


@pytest.mark.parametrize("shown", [["--prompt"], ["--html", "--out", "turn.html"]])
def test_the_requests_of_an_aborted_turn_are_shown_without_an_error_in_the_log(
    cli: Cli, late: str, shown: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: "executor failed … error=Diverged at tape.py", where nothing had failed."""
    caplog.clear()
    assert cli("context", "explain", late, *shown).code == 0
    assert caplog.text == ""


def test_why_explains_the_newest_turn_also_if_it_failed(cli: Cli, late: str) -> None:
    """Regression: it explained the reply before, as if that were the answer."""
    session_id = f"SES-{late.split('-')[1]}"
    said = cli("chat", "--session", session_id, stdin=b"/why\n").out
    assert f"turn {late}  " in said
    assert f"  aborted: timeout; {ATTEMPTS}" in said


def test_a_turn_without_an_answer_is_explained_with_its_error(cli: Cli) -> None:
    text = SETTINGS.replace('kind = "offline"', 'base_url = "http://127.0.0.1:9/v1"\nmodel = "m"').replace("_s = 2", "_s = 60")
    Path("kitchener.toml").write_text(text, encoding="utf-8")
    assert cli("chat", stdin=b"hi\n").code == 1
    told = "completed with an apology: PROVIDER: provider 'scripted': connection: "
    view = cli("context", "explain", "last", "--json").json
    assert view["outcome"].startswith(told)
    assert "(attempts: 1 scripted connection, 2 scripted connection" in view["error"]["message"]
    assert f"\n  {told}" in cli("context", "explain", "last").out
