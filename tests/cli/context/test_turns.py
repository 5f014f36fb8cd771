"""`kitchener context explain` and `diff`, `/why` and `/intents` in a chat (docs/commands.md)."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.testing import ScriptedProvider
from tests.acceptance.context.test_tool_results import TOOLS, model
from tests.acceptance.stack import open_scripted
from tests.cli.conftest import Cli
from tests.cli.context.contexts import HO2M, TALK, append, completed, configure, declared, intents, talk, turn
from tests.cli.shared.commands import read_lines

NO_COST = {"input_tokens": 0, "output_tokens": 0, "llm_calls": 0, "tool_calls": 0}


def verdicts(outcome: Any) -> dict[str, str]:
    return {each["entity_id"]: each["verdict"] for each in outcome.json["explanations"]}


def both(turn_id: str) -> list[str]:
    """A turn's message and its reply."""
    return [f"{turn_id}.message", turn_id]


class TestExplain:
    def test_it_goes_through_everything_there_was(self, cli: Cli, session: str) -> None:
        outcome = cli("context", "explain", "--turn", turn(session, 5), "--json")
        assert outcome.code == 0
        view, (first, second) = outcome.json, intents(cli, session)
        assert (view["turn_id"], view["session_id"], view["mode"]) == (turn(session, 5), session, "enforce")
        assert (view["intent_id"], view["token_budget"], view["is_exact"]) == (second["intent_id"], 200, True)
        found = verdicts(outcome)
        assert [found[name] for name in ("INV-1", second["intent_id"], turn(session, 4))] == ["visible"] * 3
        assert [found[name] for name in (first["intent_id"], turn(session, 1), turn(session, 3))] == ["not_live"] * 3
        assert turn(session, 5) not in found
        text = cli("context", "explain", "--turn", turn(session, 5)).out
        assert f"turn {turn(session, 5)}  " in text
        assert "“which hotels are near the station?”\n" in text
        assert f"{turn(session, 1)} is not live: its intent {first['intent_id']} was superseded by INTENT_SUPERSEDED" in text
        assert "work orders that ended before" in text
        assert "  1 work order that ended before; " in cli("context", "explain", "--turn", turn(session, 1)).out

    def test_what_did_not_fit_says_how_many_tokens_were_missing(self, cli: Cli, session: str) -> None:
        configure(context_budget="160", prompt_layout='"block"')
        cli("chat", "--session", session, stdin=b"and a room with a view?\n")
        arguments = ("context", "explain", "--turn", turn(session, 6), "--entry", turn(session, 4))
        (found,) = cli(*arguments, "--json").json["explanations"]
        assert (found["verdict"], found["suppressed_by"]) == ("suppressed", "BUDGET_EVICTION")
        assert found["short_by"] > 0
        text = cli(*arguments).out
        assert f"suppressed: {turn(session, 4)} (turn)\n  --> HO2M:ADMIN E-" in text
        assert "   | assistant: " in text
        message = cli(*arguments[:-1], f"{turn(session, 4)}.message").out
        assert "   | user: By the way, I also need a hotel in Oslo for the weekend.\n" in message
        assert f"its message, {turn(session, 4)}.message, is " in text
        assert f"{found['short_by']} more than were left of the budget of 160 tokens" in text
        assert f"= help: with context_budget = {160 + found['short_by']} it would have been shown in full" in text

    def test_what_is_dead_says_since_when_and_how_to_bring_it_back(self, cli: Cli, session: str) -> None:
        first = intents(cli, session)[0]
        ended = next(line for line in read_lines(HO2M) if line["entry"]["entry_type"] == "INTENT_SUPERSEDED")
        for name in (first["intent_id"], ended["entry_id"], turn(session, 2)):
            outcome = cli("context", "explain", "--turn", turn(session, 5), "--entry", name)
            assert outcome.code == 0
            assert f"--> HO2M:ADMIN {ended['entry_id']}  INTENT_SUPERSEDED" in outcome.out
            assert f"kitchener intent reopen {first['intent_id']} --session {session}" in outcome.out

    def test_what_is_unreachable_impossible_or_not_there_yet_says_so(self, cli: Cli, session: str) -> None:
        one = {"session_id": session}
        reached = declared("INT-P", scope="PROJECT", **one)
        wrong = ("INTENT_CLOSED", "INT-0", {**one, "intent_id": "INT-0"})
        *_, impossible = append(HO2M, reached, completed("T-p", "INT-P", **one, cost_summary=NO_COST), wrong)
        cli("chat", "--session", session, stdin=b"and a room with a view?\n")
        view = ("context", "explain", "--turn", turn(session, 6), "--entry")
        text = cli(*view, "T-p").out
        assert "unreachable: T-p (turn)" in text
        assert "it belongs to INT-P, which is neither the active intent nor an ancestor of it; it was not recalled, or" in text
        text = cli(*view, impossible).out
        assert "invalid: INT-0" in text
        assert f"kitchener session repair {session} --void {impossible}" in text
        late = cli("context", "explain", "--turn", turn(session, 2), "--entry", turn(session, 4))
        assert "did not exist yet: TURN_STARTED in E-" in late.out
        dispatched = next(line for line in read_lines(HO2M) if line["entry"]["entry_type"] == "WO_DISPATCHED")
        assert "is a WO_DISPATCHED, which says nothing about context" in cli(*view, dispatched["entry_id"]).out

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--turn", "{}-000099"], "is not on record"),
            (["--turn", "T-00000000-000001"], "session 'SES-00000000' is not known"),
            (["--turn", "{}-000002", "--entry", "E-none"], "--entry 'E-none': no entry, intent, work order"),
        ],
    )
    def test_what_is_not_on_record_is_said(self, cli: Cli, session: str, arguments: list[str], words: str) -> None:
        outcome = cli("context", "explain", *(each.format(f"T-{session[4:]}") for each in arguments))
        assert (outcome.code, outcome.out) == (1, "")
        assert words in outcome.err

    def test_a_turn_without_the_authority_says_what_chose_instead(self, cli: Cli) -> None:
        session = talk(cli, "hello", "hello again")
        outcome = cli("context", "explain", "--turn", turn(session, 2))
        assert outcome.code == 0
        assert "context_mode was off, so attention chose what the model saw" in outcome.out
        assert f"attention showed {turn(session, 1)}" in outcome.out
        assert "turns the Context Authority on" in outcome.out
        view = cli("context", "explain", "--turn", turn(session, 2), "--entry", turn(session, 1), "--json").json
        assert (view["mode"], view["explanations"], view["gathered"]) == ("off", [], [turn(session, 1)])

    def test_a_tools_result_of_an_earlier_turn_is_explained(self, cli: Cli) -> None:
        configure(context_budget="60", standing_rules="[]")
        settings: dict[str, Any] = {"context_mode": "enforce", "intent_mode": "classified", "context_budget": 60}
        session, result = "SES-0000000a", "WO-SES-0000000a-002.1"

        async def record() -> None:
            async with open_scripted(Path(".kitchener"), ScriptedProvider(model), tools=TOOLS, **settings) as runtime:
                await runtime.supervisor().start_session(session, subject_id="ada")
                for message in ("use door_code", "what a day", "use list_sizes", "what a night"):
                    await runtime.supervisor().handle_turn(message, session_id=session)

        anyio.run(record)
        outcome = cli("context", "explain", "--turn", turn(session, 2), "--entry", result, "--json")
        (found,) = outcome.json["explanations"]
        assert outcome.json["is_exact"] is True
        assert (found["verdict"], found["reasons"]) == ("visible", ["TOOL_RESULT", "REACHABLE_FROM_INTENT"])
        text = cli("context", "explain", "--turn", turn(session, 2), "--entry", result).out
        assert f"visible: {result} (tool_result)" in text
        assert "4711" in text
        table = cli("context", "explain", "--turn", turn(session, 2)).out
        assert "a tool's result that no reply has repeated" in table
        (found,) = cli("context", "explain", "--turn", turn(session, 4), "--entry", "WO-SES-0000000a-006.1", "--json").json[
            "explanations"
        ]
        assert (found["verdict"], found["suppressed_by"]) == ("suppressed", "BUDGET_EVICTION")
        assert found["short_by"] > 0
        assert result in cli("context", "diff", turn(session, 1), turn(session, 2)).out
        configure(context_budget="600", standing_rules="[]")
        listed = cli("context", "project", "--session", session, "--json").json["visible"]
        assert {result, "WO-SES-0000000a-006.1"} <= {each["entity_id"] for each in listed}

    def test_a_turn_that_asked_which_thread_says_so(self, cli: Cli, session: str) -> None:
        cli("intent", "declare", "compare prices", "--session", session)
        cli("chat", "--session", session, stdin=b"and now?\n2\n")
        text = cli("context", "explain", "--turn", turn(session, 6)).out
        assert "nothing was projected: it was answered without a model: CONFLICT: 2 intents are live" in text
        text = cli("context", "explain", "--turn", turn(session, 7)).out
        assert "its message chose the thread that continues" in text

    def test_after_the_settings_changed_the_record_still_counts(self, cli: Cli, session: str) -> None:
        before = verdicts(cli("context", "explain", "--turn", turn(session, 3), "--json"))
        configure(context_budget="20", standing_rules='["Be brief."]')
        outcome = cli("context", "explain", "--turn", turn(session, 3), "--json")
        assert outcome.json["is_exact"] is False
        assert verdicts(outcome) == before
        assert "  settings have changed since" in cli("context", "explain", "--turn", turn(session, 3)).out
        assert "also: settings have changed since" in cli("context", "diff", turn(session, 3), turn(session, 5)).out

    def test_a_long_session_is_read_along_its_recorded_changes(self, cli: Cli) -> None:
        configure(context_budget="200", intent_mode='"bridge"', admission='"newest_first"')
        session = talk(cli, *[f"message {n}" for n in range(24)])
        outcome = cli("context", "explain", "--turn", turn(session, 24), "--json")
        assert outcome.json["is_exact"] is True
        assert len(outcome.json["explanations"]) >= 2 + 23
        text = cli("context", "explain", "--turn", turn(session, 24)).out
        assert "more; --json lists them all" in text

    def test_recalled_turns_and_learned_lines_are_explained(self, cli: Cli) -> None:
        configure(ho3_enabled="true", recall_scope='"subject"')
        with Path("kitchener.toml").open("a", encoding="utf-8") as file:
            file.write("[memory]\ngate_count_threshold = 1\ngate_session_threshold = 1\n")
        talk(cli, "which python packages are installed on the system?", "and which version is anyio?")
        session = talk(cli, "which python packages are installed on the system?")
        outcome = cli("context", "explain", "--turn", turn(session, 1), "--json")
        assert outcome.json["is_exact"] is True
        reasons = [reason for each in outcome.json["explanations"] for reason in each["reasons"]]
        assert {"HO3_BIAS", "RECALLED"} <= set(reasons)
        text = cli("chat", "--session", session, stdin=b"and pip?\n/why\n").out
        assert "learned line shown: ART-" in text


class TestDiff:
    def test_it_says_what_came_in_what_went_out_and_why(self, cli: Cli, session: str) -> None:
        first, second = (each["intent_id"] for each in intents(cli, session))
        found = cli("context", "diff", turn(session, 3), turn(session, 5), "--json").json
        assert (found["before"], found["after"]) == (turn(session, 3), turn(session, 5))
        assert [each["entity_id"] for each in found["came_in"]] == [second, *both(turn(session, 4))]
        assert [each["entity_id"] for each in found["went_out"]] == [first, *both(turn(session, 1)), *both(turn(session, 2))]
        assert all("did not exist yet" in each["why"] for each in found["came_in"])
        gone = [each["why"] for each in found["went_out"] if each["entity_id"] != turn(session, 1)]
        assert [why for why in gone if first not in why or "not live" not in why] == []
        assert found["notes"] == [f"intent: {first} before, {second} after"]
        text = cli("context", "diff", turn(session, 3), turn(session, 5)).out
        assert f"came in: 3\n  + {second} (intent)\n      before: {second} did not exist yet" in text
        assert f"  - {first} (intent)\n      after: {first} is not live: superseded by" in text

    def test_a_turn_without_projection_is_said_to_have_none(self, cli: Cli) -> None:
        session = talk(cli, "hello", "hello")
        outcome = cli("context", "diff", turn(session, 1), turn(session, 2))
        assert outcome.code == 0
        assert f"{turn(session, 1)} cannot be compared: context_mode was off" in outcome.out

    def test_turns_of_different_sessions_are_not_compared(self, cli: Cli, session: str) -> None:
        other = talk(cli, "hello")
        outcome = cli("context", "diff", turn(session, 1), turn(other, 1))
        assert outcome.code == 2
        assert "belong to different sessions" in outcome.err


class TestChat:
    def test_why_shows_the_last_replys_context(self, cli: Cli) -> None:
        configure()
        outcome = cli("chat", stdin="/why\n{}\n{}\n/why\n".format(*TALK).encode())
        assert outcome.code == 0
        assert "no session yet" in outcome.out
        assert "visible: 4 items, " in outcome.out
        assert "user: " not in outcome.out.split("visible: ")[1]
        assert "= more: kitchener context explain T-" in outcome.out

    def test_why_says_how_to_turn_it_on(self, cli: Cli) -> None:
        outcome = cli("chat", stdin=b"hello\n/why\n/intents\n/intents keep 1\n/intents nonsense\n")
        assert outcome.code == 0
        assert outcome.out.count("turns the Context Authority on") == 3
        assert "/intents keep N continues the N-th" in outcome.out

    def test_a_conflict_is_settled_by_number(self, cli: Cli, session: str) -> None:
        cli("intent", "declare", "compare prices", "--session", session)
        outcome = cli(
            "chat", "--session", session, stdin=b"/intents\n/intents keep 3\n/intents keep 2\n/intents\n/intents keep 1\n"
        )
        assert outcome.code == 0
        assert "2 threads compete" in outcome.out
        assert "expected a number from 1 to 2" in outcome.out
        assert "continuing with INT-" in outcome.out
        assert "“compare prices”" in outcome.out.split("active: ")[1].splitlines()[0]
        assert "no intents compete" in outcome.out
        assert [each["status"] for each in intents(cli, session)] == ["superseded", "superseded", "active"]


class TestSharedIntents:
    """A goal of the subject that another session declared (docs/context.md), through the real commands."""

    @staticmethod
    def explained(cli: Cli, session: str, number: int) -> dict[str, str]:
        found = cli("context", "explain", "--turn", turn(session, number), "--json").json["explanations"]
        return {each["entity_id"]: f"{each['verdict']}: {each['text']}" for each in found}

    def test_it_is_shown_above_this_sessions_own_intent(self, cli: Cli) -> None:
        configure(intent_mode='"bridge"')
        first = talk(cli, "hello")
        project = cli("intent", "declare", "open the shop", "--session", first, "--scope", "PROJECT", "--json").json[
            "intent_id"
        ]
        session = talk(cli, "which lamps are there?")
        (own,) = [each["intent_id"] for each in intents(cli, session) if each["scope"] == "SESSION"]
        assert cli("intent", "close", own, "--session", session).code == 0
        below = cli("intent", "declare", "compare lamps", "--session", session, "--parent", project)
        assert below.code == 0
        assert cli("chat", "--session", session, stdin=b"what do they cost?\n").code == 0
        text = cli("context", "explain", "--turn", turn(session, 2)).out
        assert "“compare lamps”" in text
        assert "Wider goal: open the shop" in text
        assert self.explained(cli, session, 2)[project].startswith(f"visible: {project} is visible")

        assert cli("intent", "close", project, "--session", first).code == 0
        assert cli("chat", "--session", session, stdin=b"and now?\n").code == 0
        said = self.explained(cli, session, 3)[project]
        assert said.startswith(f"not_live: {project} (PROJECT, of {first}) is not live: closed by INTENT_CLOSED in E-")
        assert "Wider goal" not in cli("context", "explain", "--turn", turn(session, 3)).out

    def test_where_no_intent_hangs_below_it_the_reader_learns_whose_it_is(self, cli: Cli) -> None:
        configure()
        first = talk(cli, "hello")
        shared = cli("intent", "declare", "be brief", "--session", first, "--scope", "GLOBAL", "--json").json["intent_id"]
        session = talk(cli, "which lamps are there?", "what do they cost?")
        said = self.explained(cli, session, 2)[shared]
        assert said.startswith(f"unreachable: {shared} (GLOBAL, of {first}) is unreachable from INT-")
        assert said.endswith("it is neither the active intent nor an ancestor of it")
        own = cli("context", "explain", "--turn", turn(first, 1), "--entry", shared)
        assert f"of {first}" not in own.out, "in its own session there is nothing to say about that"


def test_who_closed_an_intent_is_told(cli: Cli) -> None:
    """A message that takes leave, or a person: `intent list`, `explain`, `/why` and `/intents` name them."""
    configure()
    session = talk(cli, TALK[0], "that is all, goodbye", TALK[3])
    first, second = intents(cli, session)
    assert (first["closed_by"], second["closed_by"]) == ("classification", None)
    assert cli("intent", "close", second["intent_id"], "--session", session).code == 0
    assert [each["closed_by"] for each in intents(cli, session)] == ["classification", "user"]
    by_message = "by the classification of the user's message"
    text = cli("context", "explain", "--turn", turn(session, 2)).out
    assert f"closed after the reply: {first['intent_id']}, {by_message}" in text
    found = cli("context", "explain", "--turn", turn(session, 3), "--entry", first["intent_id"]).out
    assert f"closed {by_message}" in found
    chat = cli("chat", "--session", session, stdin=b"which bridges are there?\n/why\n/intents\n").out
    assert by_message in chat
    assert "by a call of the user or the program" in chat
