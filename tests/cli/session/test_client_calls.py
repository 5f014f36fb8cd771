"""What the commands say of calls that the client of a turn makes (docs/tools.md, docs/commands.md)."""

from pathlib import Path

import anyio
import pytest

from kitchener import ClientOutput
from kitchener.testing import FakeClock
from tests.acceptance.approval.kit import Desk, open_desk
from tests.acceptance.client_tools.kit import PARIS, WEATHER, model
from tests.cli.conftest import Cli

CALL = '[asked the client to run get_weather {"place":"Paris"}]'


@pytest.fixture
def session(tmp_path: Path) -> str:
    """A session whose client gave the output of one call, says that the next one failed, and owes the last one."""

    async def talk() -> str:
        async with open_desk(tmp_path / ".kitchener", Desk(), model([PARIS]), context_mode="enforce") as runtime:
            supervisor = runtime.supervisor()
            first = await supervisor.handle_turn("Is it sunny?", subject_id="ada", client_tools=[WEATHER])
            await supervisor.answer_client_calls({first.client_calls[0].call_id: "sun"})
            for message, answers in (("And now?", True), ("And later?", False)):
                asked = await supervisor.handle_turn(
                    message, session_id=first.session_id, subject_id="ada", client_tools=[WEATHER]
                )
                if answers:
                    failed = ClientOutput(error="no network")
                    await supervisor.answer_client_calls({asked.client_calls[0].call_id: failed})
            return first.session_id

    return anyio.run(talk)


def test_a_reply_without_words_says_what_it_asked_of_the_client(cli: Cli, session: str) -> None:
    """Regression: a bare `<` stood in its place."""
    shown = cli("session", "show", session).out
    assert shown.count(f"  < {CALL}\n") == 3
    assert "  < \n" not in shown
    assert shown.count("  < done: ") == 2
    first = f"T-{session[4:]}-000001"
    assert cli("context", "explain", first, "--html", "--out", "page.html").code == 0
    assert "asked the client to run get_weather" in Path("page.html").read_text()


def test_a_work_order_that_another_turn_went_on_with_is_answered_and_not_abandoned(cli: Cli, session: str) -> None:
    work_orders = [each for turn in cli("session", "show", session, "--json").json["turns"] for each in turn["work_orders"]]
    states = [(each["state"], each["reason"]) for each in work_orders if each["wo_type"] == "synthesize"]
    assert states == [
        ("abandoned", "answered"),
        ("completed", None),
        ("abandoned", "answered"),
        ("completed", None),
        ("deferred", None),
    ]
    shown = cli("session", "show", session).out
    assert "abandoned" not in shown
    assert shown.count("  synthesize  answered  ") == 2
    assert shown.count("  synthesize  deferred  ") == 1


def test_what_became_of_each_call_is_told(cli: Cli, session: str) -> None:
    shown = cli("session", "show", session).out
    assert "      returned by the client at " in shown
    assert shown.count(" – no network\n") == 2
    assert shown.count("      the client has given no output yet\n") == 1
    assert "nobody" not in shown
    newest = cli("context", "explain", "last").out
    assert "the client has given no output yet" in newest


def test_the_list_of_approvals_says_that_a_call_waits_which_nobody_approves(cli: Cli, session: str) -> None:
    listed = cli("approval", "list")
    assert (listed.code, listed.out) == (0, "no tool call is waiting for a person\n")
    assert listed.err == f"kitchener: 1 call waits for its client, which nobody approves: kitchener session show {session}\n"
    assert cli("approval", "list", "--json").json == []
    assert cli("session", "end", session).code == 0
    assert cli("approval", "list").err == ""


def test_an_expired_call_is_the_clients(cli: Cli, tmp_path: Path) -> None:
    async def ask() -> str:
        settings = {"approval": {"expires_s": 1}}
        async with open_desk(tmp_path / ".kitchener", Desk(), model([PARIS]), clock=FakeClock(), **settings) as runtime:
            return (await runtime.supervisor().handle_turn("Is it late?", client_tools=[WEATHER])).session_id

    assert "the client gave no output in time" in cli("session", "show", anyio.run(ask)).out
