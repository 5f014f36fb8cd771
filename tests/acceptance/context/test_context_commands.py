"""What stops `kitchener context project`: threads between which nobody decided, and a life that cannot have been."""

from pathlib import Path

import pytest

from tests.cli.commands import read_lines
from tests.cli.conftest import Cli, cli
from tests.cli.context.contexts import CONTEXT, HO2M, append, completed, declared, superseded

__all__ = ["cli"]

SESSION = "SES-0000beef"


def test_competing_intents_block_projection(cli: Cli) -> None:
    append(HO2M, declared("INT-1"), declared("INT-2"), completed("T-1", "INT-1"), completed("T-2", "INT-2"))
    outcome = cli("context", "project", "--session", SESSION, "--json")
    assert outcome.code == 3
    assert outcome.json["active_intent"] is None
    assert (outcome.json["eligible"], outcome.json["visible"], outcome.json["suppressed"]) == ([], [], [])
    assert [flag["kind"] for flag in outcome.json["flags"]] == ["COMPETING_INTENTS"]
    assert [line["entry"]["entry_type"] for line in read_lines(CONTEXT)] == ["CONFLICT_FLAG"]
    newest = cli("context", "project", "--session", SESSION, "--conflict-policy", "most_recent_wins", "--json")
    assert (newest.code, newest.json["active_intent"]) == (0, "INT-2")
    assert [each["entity_id"] for each in newest.json["visible"]] == ["INT-2", "T-2"]
    assert [flag["kind"] for flag in newest.json["flags"]] == ["COMPETING_INTENTS"]


@pytest.mark.parametrize("links", [[("INT-1", "INT-1")], [("INT-1", "INT-2"), ("INT-2", "INT-1")]])
def test_supersession_cycle_is_invalid_lifecycle(cli: Cli, tmp_path: Path, links: list[tuple[str, str]]) -> None:
    append(HO2M, declared("INT-1"), declared("INT-2"), *[superseded(*link) for link in links])
    outcome = cli("context", "project", "--session", SESSION, "--dry-run", "--json")
    assert outcome.code == 4
    assert (outcome.json["active_intent"], outcome.json["eligible"]) == (None, [])
    assert [flag["kind"] for flag in outcome.json["flags"]] == ["INVALID_LIFECYCLE"]
    assert not (tmp_path / CONTEXT).exists()
