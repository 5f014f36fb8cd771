"""`context explain`, its page, `session show` and the folders of sessions say who allowed what (docs/approval.md)."""

from pathlib import Path

import pytest

from tests.cli.approval.test_approval import DESK, SETTINGS, notes
from tests.cli.conftest import Cli
from tests.cli.shared.commands import read_lines, write_messages


@pytest.fixture
def waiting(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A request of each of two subjects. Returns their ids."""
    (tmp_path / "desk_of_cli.py").write_text(DESK)
    (tmp_path / "kitchener.toml").write_text(SETTINGS + 'context_mode = "enforce"\n')
    monkeypatch.syspath_prepend(tmp_path)
    messages = write_messages(tmp_path / "in", ("a", 'write a note "milk"'), ("b", 'write a note "bread"'))
    assert cli("run", messages, "--output", "out").code == 0
    found = {each["conversation"]: each["pending_approval"][0] for each in read_lines(tmp_path / "out")}
    return found["a"], found["b"]


def turns_of(approval_id: str) -> tuple[str, str]:
    """The turn that asked in a session's first message, and the one that goes on."""
    digits = approval_id.removeprefix("WO-SES-").partition("-")[0]
    return f"T-{digits}-000001", f"T-{digits}-000002"


def test_both_turns_say_who_allowed_what_by_which_rule(cli: Cli, waiting: tuple[str, str]) -> None:
    mine, other = waiting
    asked, resumed = turns_of(mine)
    before = cli("context", "explain", asked).out
    assert "by rule 'tool'" in before
    assert "nobody has answered yet" in before
    assert cli("approval", "approve", mine, "--by", "carol", "--message", "go on").code == 0
    for turn in (asked, resumed):
        told = cli("context", "explain", turn)
        assert f"{mine}, write_note" in told.out
        assert "approved by carol at " in told.out
        assert other not in told.out
    assert f"continued by {resumed}" in cli("context", "explain", asked).out
    assert f"continues {asked}" in cli("context", "explain", resumed).out
    found = cli("context", "explain", resumed, "--json").json["approvals"]
    assert (found["continues"], found["asked"]) == (asked, [])
    (request,) = found["answered"]
    assert (request["rule"], request["decision"], request["given_answered_by"]) == ("tool", "approved", "carol")
    still = cli("context", "explain", turns_of(other)[0], "--json").json["approvals"]["asked"]
    assert [each["status"] for each in still] == ["waiting"]


def test_a_call_that_a_grant_allowed_names_it(cli: Cli, waiting: tuple[str, str], tmp_path: Path) -> None:
    mine, other = waiting
    assert cli("approval", "approve", mine, "--scope", "session", "--by", "carol").code == 0
    assert cli("approval", "deny", other, "--by", "dan").code == 0
    before = [("a", 'write a note "milk"'), ("b", 'write a note "bread"')]
    again = write_messages(tmp_path / "again", *before, ("a", 'write a note "eggs"'), ("b", "hello there"))
    assert cli("run", again, "--output", "out2").code == 0
    newest = {each["conversation"]: each["turn_id"] for each in read_lines(tmp_path / "out2") if each["ordinal"] == 2}
    mine_turn, other_turn = newest["a"], newest["b"]
    assert notes(tmp_path) == ["milk", "eggs"]
    told = cli("context", "explain", mine_turn).out
    assert f"write_note could run without approval: {mine} approved by carol" in told
    assert cli("context", "explain", other_turn, "--json").json["approvals"] is None
    assert "denied by dan" in cli("session", "show", other.rpartition("-")[0].removeprefix("WO-")).out


def test_session_show_ends_the_deferred_work_order_in_its_turn(cli: Cli, waiting: tuple[str, str]) -> None:
    """Regression: the turn that went on had a work order of an unknown type."""
    mine, _ = waiting
    session_id = mine.rpartition("-")[0].removeprefix("WO-")
    assert cli("approval", "approve", mine, "--by", "carol").code == 0
    shown = cli("session", "show", session_id)
    assert "approved by carol" in shown.out
    first, second = cli("session", "show", session_id, "--json").json["turns"]
    wo_id = mine.rpartition(".")[0]
    assert [each["state"] for each in first["work_orders"] if each["wo_id"] == wo_id] == ["abandoned"]
    assert [each["wo_type"] for each in second["work_orders"]] == ["synthesize"]
    assert second["approvals"]["continues"] == first["turn_id"]


def test_the_page_of_a_turn_names_the_person(cli: Cli, waiting: tuple[str, str], tmp_path: Path) -> None:
    mine, _ = waiting
    assert cli("approval", "approve", mine, "--by", "carol").code == 0
    assert cli("context", "explain", turns_of(mine)[1], "--html", "--out", "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "approved by carol" in page
    assert mine in page


def test_the_proof_of_a_turn_brings_along_who_allowed_what(cli: Cli, waiting: tuple[str, str], tmp_path: Path) -> None:
    """Also the part of the tool loop that the turn before it made, and nothing of the other subject's."""
    mine, other = waiting
    for each in waiting:
        assert cli("approval", "approve", each, "--by", "carol").code == 0
    for turn in turns_of(mine):
        assert cli("ledger", "proof", turn, "--out", "bundle.json").code == 0
        bundle = (tmp_path / "bundle.json").read_text()
        assert mine in bundle
        assert (bundle.count("APPROVAL_REQUESTED"), bundle.count("APPROVAL_RESOLVED")) == (1, 1)
        assert other not in bundle
        told = cli("ledger", "verify", "bundle.json")
        assert told.code == 0
        assert "lead out" not in told.out
