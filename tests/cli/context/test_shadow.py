"""`kitchener context shadow`: the shadow's decisions beside what attention showed (docs/commands.md)."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.context.contexts import CONTEXT, HO2M, TALK, configure, talk, turn
from tests.cli.shared.commands import read_lines

CLASSIFIED = {"context_mode": '"shadow"', "intent_mode": '"classified"', "context_budget": "40"}
"""Under this budget the shadow shows no turn, so that it differs from attention."""
SWITCHES = TALK[0], TALK[1], TALK[3]
"""Each of these messages names a goal of its own. TALK[2] does not, so it continues whatever is active."""
BRIDGE = {"context_mode": '"shadow"', "intent_mode": '"bridge"'}


def shadow(cli: Cli, *arguments: str) -> Any:
    outcome = cli("context", "shadow", *arguments, "--json")
    assert outcome.code == 0
    return outcome.json


class TestOneSession:
    def test_every_turn_and_a_summary(self, cli: Cli) -> None:
        configure(**CLASSIFIED)
        session = talk(cli, *SWITCHES)
        found = shadow(cli, "--session", session)
        assert [each["turn_id"] for each in found["turns"]] == [turn(session, n) for n in (1, 2, 3)]
        first, second, third = found["turns"]
        assert (first["actions"], second["actions"], third["actions"]) == (["DECLARE"], ["SUPERSEDE"], ["SUPERSEDE"])
        assert (third["message"], third["objective"]) == (TALK[3], TALK[3].removesuffix("."))
        assert [each["both"] for each in found["turns"]] == [["INV-1"]] * 3
        assert [each["only_shadow"] for each in found["turns"]] == [[]] * 3
        assert third["only_attention"] == [turn(session, 1), turn(session, 2)]
        projected = [line["entry"]["payload"] for line in read_lines(CONTEXT) if "visible_refs" in line["entry"]["payload"]]
        assert [each["shadow_tokens"] for each in found["turns"]] == [each["tokens_used"] for each in projected]
        summary = found["summary"]
        assert (summary["turns"], summary["comparable"], summary["alike"], summary["share_alike"]) == (3, 3, 1, 0.333)
        assert (summary["mean_only_shadow"], summary["mean_only_attention"]) == (0, 1)
        assert summary["intents"] == {"declared": 3, "switched": 2, "closed": 0}

    def test_a_bare_follow_up_continues(self, cli: Cli) -> None:
        configure(**CLASSIFIED)
        session = talk(cli, *SWITCHES, TALK[2])
        found = shadow(cli, "--session", session)
        assert [each["actions"] for each in found["turns"]] == [["DECLARE"], ["SUPERSEDE"], ["SUPERSEDE"], ["CONTINUE"]]
        assert found["turns"][3]["objective"] == found["turns"][2]["objective"]

    def test_it_reads_well(self, cli: Cli) -> None:
        configure(**CLASSIFIED)
        session = talk(cli, *SWITCHES)
        text = cli("context", "shadow", "--session", session).out
        assert f"turn {turn(session, 3)}  “{TALK[3]}”\n  shadow: SUPERSEDE, " in text
        assert f"  only attention  {turn(session, 1)}, {turn(session, 2)}\n" in text
        assert "  shown alike       1 of 3 turns (33%)\n" in text
        assert "  shadow's intents  3 declared, 2 switched, 0 closed\n" in text
        assert text.endswith("so the shadow may switch intents more often than enforce would.\n")

    def test_long_sessions_are_recorded_as_changes_and_read_all_the_same(self, cli: Cli) -> None:
        configure(**BRIDGE, context_budget="100000", newest_turns="100")
        session = talk(cli, *[f"question number {n}?" for n in range(1, 41)])
        payloads = [line["entry"]["payload"] for line in read_lines(CONTEXT)]
        assert any(isinstance(each.get("eligible_refs"), dict) for each in payloads)
        last = shadow(cli, "--session", session)["turns"][-1]
        earlier = [turn(session, n) for n in range(1, 40)]
        assert sorted({*last["both"], *last["only_shadow"]}) == sorted(["INV-1", *earlier])
        assert last["actions"] == ["CONTINUE"]
        assert "… and " in cli("context", "shadow", "--session", session).out

    def test_learned_lines_and_recalled_turns_have_their_names(self, cli: Cli) -> None:
        configure(**BRIDGE, ho3_enabled="true", recall_scope='"subject"')
        with Path("kitchener.toml").open("a", encoding="utf-8") as file:
            file.write("[memory]\ngate_count_threshold = 1\ngate_session_threshold = 1\n")
        before = talk(cli, *TALK[:2])
        session = talk(cli, TALK[0])
        (found,) = shadow(cli, "--session", session)["turns"]
        assert found["both"][0] == "INV-1"
        assert [each[:4] for each in found["both"][1:]] == ["ART-"] * (len(found["both"]) - 1) != []
        assert set(found["only_shadow"]) == {turn(before, 1), turn(before, 2)}

    def test_a_turn_that_somebody_only_looked_at_is_no_turn(self, cli: Cli) -> None:
        configure(**BRIDGE)
        session = talk(cli, *TALK[:2])
        before = shadow(cli, "--session", session)
        assert cli("context", "project", "--session", session).code == 0
        assert shadow(cli, "--session", session) == before


class TestAllSessions:
    def test_the_ten_turns_that_differ_most(self, cli: Cli) -> None:
        configure(**CLASSIFIED)
        long, short = talk(cli, *TALK, *TALK, *TALK), talk(cli, *TALK[:2])
        ones = [shadow(cli, "--session", each) for each in (long, short)]
        found = shadow(cli)
        everything = [each for one in ones for each in one["turns"]]
        everything.sort(key=lambda each: (-len(each["only_shadow"] + each["only_attention"]), each["turn_id"]))
        assert found["turns"] == everything[:10]
        assert (found["summary"]["sessions"], found["summary"]["turns"]) == (2, 17)
        assert found["summary"]["intents"]["declared"] == sum(one["summary"]["intents"]["declared"] for one in ones)
        assert cli("context", "shadow").out.startswith("turns of ADMIN that differ most: 10\n")


def test_it_explains_itself_with_an_example(cli: Cli) -> None:
    assert "kitchener context shadow SES-" in cli("context", "shadow", "--help").out.split("For example:")[1]


@pytest.mark.parametrize("mode", ["off", "enforce"])
def test_without_a_shadow_it_says_how_to_get_one(cli: Cli, mode: str) -> None:
    configure(context_mode=f'"{mode}"')
    session = talk(cli, TALK[0])
    for arguments in (["--session", session], []):
        outcome = cli("context", "shadow", *arguments)
        assert outcome.code == 1
        assert '`context_mode = "shadow"` below [agents.ADMIN] of kitchener.toml turns it on' in outcome.out
        outcome = cli("context", "shadow", *arguments, "--json")
        assert (outcome.code, outcome.json["summary"]["turns"], outcome.json["turns"]) == (1, 0, [])
        assert "turns it on" in outcome.err


def test_an_unknown_session_is_said(cli: Cli) -> None:
    outcome = cli("context", "shadow", "--session", "SES-00000000")
    assert (outcome.code, outcome.out) == (1, "")
    assert "session 'SES-00000000' is not known" in outcome.err


@pytest.mark.parametrize("arguments", [[], ["--session", "{}"]])
@pytest.mark.parametrize(("path", "word"), [(HO2M, b"fragment_refs"), (CONTEXT, b"visible_refs")])
def test_a_damaged_ledger_is_refused(cli: Cli, tmp_path: Path, arguments: list[str], path: Path, word: bytes) -> None:
    configure(**CLASSIFIED)
    session = talk(cli, *TALK[:2])
    data = bytearray((tmp_path / path).read_bytes())
    data[data.index(word)] ^= 1
    (tmp_path / path).write_bytes(data)
    for index in (tmp_path / ".kitchener/index").iterdir():
        index.unlink()
    outcome = cli("context", "shadow", *(each.format(session) for each in arguments))
    assert (outcome.code, outcome.out) == (6, "")
    assert outcome.err.startswith(f"kitchener: {tmp_path / path}: line ")
