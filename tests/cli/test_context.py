"""`kitchener context`, `/why` in a chat (docs/commands.md)."""

from pathlib import Path
from typing import Any

import pytest

from kitchener.cli.main import build_app
from tests.cli.commands import finish, read_lines, start
from tests.cli.conftest import Cli
from tests.cli.contexts import CONTEXT, HO2M, TALK, append, completed, configure, declared, intents, talk, turn
from tests.cli.gates import ASK, Gate

LEAVES = ["context project", "context explain", "context diff", "session repair"]
LEAVES += [f"intent {name}" for name in ("list", "declare", "fork", "close", "abandon", "reopen")]
NO_COST = {"input_tokens": 0, "output_tokens": 0, "llm_calls": 0, "tool_calls": 0}
KEYS = {
    "active_intent",
    "eligible",
    "visible",
    "suppressed",
    "flags",
    "token_budget",
    "tokens_used",
    "ruleset_hash",
}


@pytest.fixture
def session(cli: Cli) -> str:
    """A session of five turns under two intents, with room for about two turns."""
    configure(context_budget="200")
    return talk(cli, *TALK)


def decisions() -> list[str]:
    """The types of the entries on the ledger of decisions."""
    return [line["entry"]["entry_type"] for line in read_lines(CONTEXT)]


def verdicts(outcome: Any) -> dict[str, str]:
    return {each["entity_id"]: each["verdict"] for each in outcome.json["explanations"]}


@pytest.mark.parametrize("command", LEAVES)
def test_every_command_explains_itself_with_an_example(cli: Cli, command: str) -> None:
    outcome = cli(*command.split(), "--help")
    assert outcome.code == 0
    assert f"kitchener {command}" in outcome.out.split("For example:")[1]


@pytest.mark.parametrize("command", ["context", "intent", "session"])
def test_the_list_says_of_a_command_what_its_own_help_says_first(cli: Cli, command: str) -> None:
    listed = build_app(is_listing=True)[command].help
    assert listed == build_app(is_listing=False)[command].help.strip().splitlines()[0]
    assert f" {command} " in cli("--help").out


class TestProject:
    def test_it_says_what_is_visible_and_what_is_not(self, cli: Cli, session: str) -> None:
        outcome = cli("context", "project", "--session", session, "--dry-run", "--json")
        assert outcome.code == 0
        found = outcome.json
        assert found.keys() == KEYS
        active = intents(cli, session)[1]["intent_id"]
        assert found["active_intent"] == active
        assert [each["entity_id"] for each in found["eligible"]] == ["INV-1", active, turn(session, 4), turn(session, 5)]
        assert found["eligible"][1]["reasons"] == ["DEFINES_INTENT"]
        assert [each["entity_id"] for each in found["visible"]] == ["INV-1", active, turn(session, 5)]
        assert {each["form"] for each in found["visible"]} == {"FULL"}
        (left_out,) = found["suppressed"]
        assert left_out.keys() == {"entity_id", "form", "tokens", "reason"}
        assert (left_out["entity_id"], left_out["form"], left_out["reason"]) == (turn(session, 4), "STUB", "BUDGET_EVICTION")
        assert found["token_budget"] == 200
        assert found["tokens_used"] == sum(each["tokens"] for each in (*found["visible"], left_out)) <= 200
        text = cli("context", "project", "--session", session, "--dry-run").out
        assert f"active intent: {active}  “By the way, I also need a hotel in Oslo for the weekend”\n" in text
        assert f"visible: 3 items, {found['tokens_used']} of 200 tokens\n" in text
        assert "BUDGET_EVICTION, " in text
        assert text.endswith("dry run: nothing was recorded\n")

    def test_it_puts_the_decision_on_record_unless_told_not_to(self, cli: Cli, session: str) -> None:
        before = decisions()
        assert cli("context", "project", "--session", session, "--dry-run").code == 0
        assert decisions() == before
        text = cli("context", "project", "--session", session).out
        assert decisions() == [*before, "PROJECTION_COMPUTED"]
        line = read_lines(CONTEXT)[-1]
        assert f"recorded: CONTEXT:ADMIN {line['entry_id']} {line['entry_hash']}\n" in text
        payload = line["entry"]["payload"]
        assert (payload["turn_id"], payload["session_id"], payload["subject_id"]) == (None, session, "ada")
        assert cli("ledger", "verify").code == 0
        cli("chat", "--session", session, stdin=b"and the nearest one?\n")  # a turn goes on from it
        assert cli("context", "explain", "--turn", turn(session, 6), "--json").json["is_exact"] is True

    def test_budget_message_intent_and_moment_can_be_chosen(self, cli: Cli, session: str) -> None:
        def visible(*arguments: str) -> list[str]:
            outcome = cli("context", "project", "--session", session, "--dry-run", "--json", *arguments)
            assert outcome.code == 0
            return [each["entity_id"] for each in outcome.json["visible"]]

        first, second = (each["intent_id"] for each in intents(cli, session))
        everything = ["INV-1", second, turn(session, 4), turn(session, 5)]
        assert visible("--budget", "2000") == everything
        assert visible("--budget", "2000", "--message", "the hotel in Oslo") == everything
        assert visible("--budget", "0") == ["INV-1", second]  # what must be shown
        assert visible("--budget", "2000", "--intent", second) == everything
        assert visible("--intent", first) == ["INV-1"]  # it gave way, so nothing of it is live
        moment = next(line for line in read_lines(HO2M) if line["entry"]["entry_type"] == "INTENT_SUPERSEDED")
        just_before = moment["entry"]["timestamp"].replace("+00:00", "Z")
        as_of = cli("context", "project", "--session", session, "--as-of", just_before, "--dry-run", "--json").json
        assert as_of["active_intent"] == second
        started = next(line for line in read_lines(HO2M) if line["entry"]["entity_id"] == turn(session, 4))
        as_of = cli("context", "project", "--session", session, "--as-of", started["entry"]["timestamp"], "--json").json
        assert as_of["active_intent"] == first

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--session", "SES-00000000"], "session 'SES-00000000' is not known"),
            (["--session", "nonsense"], "session 'nonsense' is not known"),
            (["--session", "{}", "--intent", "INT-0"], "--intent 'INT-0': no intent of session"),
            (["--session", "{}", "--budget", "-1"], "--budget"),
            (["--session", "{}", "--budget", "much"], "--budget"),
            (["--session", "{}", "--as-of", "2026-02-18T10:30:00"], "ISO text with a zone"),
            (["--session", "{}", "--conflict-policy", "guess"], "--conflict-policy"),
            (["--session", "{}", "--ledger", "no.jsonl"], "no.jsonl: there is no such ledger"),
            ([], "--session"),
        ],
    )
    def test_a_mistake_gives_one_line_and_exit_code_2(self, cli: Cli, session: str, arguments: list[str], words: str) -> None:
        outcome = cli("context", "project", *(each.format(session) for each in arguments))
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.count("\n") == 1
        assert words in outcome.err

    def test_competing_intents_are_numbered_with_the_way_out(self, cli: Cli, session: str) -> None:
        cli("intent", "declare", "compare prices", "--session", session)
        outcome = cli("context", "project", "--session", session)
        assert outcome.code == 3
        assert "\n  1. INT-" in outcome.out
        assert "\n  2. INT-" in outcome.out
        assert f"kitchener chat --session {session}, then /intents keep N" in outcome.out
        assert "flag COMPETING_INTENTS: " in outcome.out
        assert decisions()[-1] == "CONFLICT_FLAG"

    def test_an_impossible_entry_is_shown_with_its_remedy(self, cli: Cli, session: str) -> None:
        (entry_id,) = append(HO2M, ("INTENT_CLOSED", "INT-0", {"session_id": session, "intent_id": "INT-0", "outcome": "x"}))
        outcome = cli("context", "project", "--session", session)
        assert outcome.code == 4
        assert f"    --> HO2M:ADMIN {entry_id}" in outcome.out
        assert "= intent INT-0 was never declared" in outcome.out
        assert f"remedy: kitchener session repair {session} --void {entry_id} --reason TEXT" in outcome.out

    def test_a_ledger_of_another_program_is_read_with_the_least_it_may_hold(self, cli: Cli, tmp_path: Path) -> None:
        path = tmp_path / "theirs" / "a" / "b" / "book.jsonl"
        append(
            path,
            ("NOTE", "n", {"v": "theirs", "whatever": [1, 2]}),
            declared("INT-1", v="theirs"),
            ("WO_OPENED", "WO-1", {"wo_id": "WO-1", "intent_id": "INT-1", "targets": ["a"], "acceptance": ["b"]}),
            ("WO_OPENED", "WO-2", {"wo_id": "WO-2", "intent_id": "INT-1"}),
            ("WO_CLOSED", "WO-2", {"wo_id": "WO-2", "result": "failed", "evidence_refs": []}),
            completed("T-1", "INT-1"),
            completed("T-2", "INT-1", session_id="SES-0000beef"),
            completed("T-3", "INT-1", session_id="SES-0000cafe"),
        )
        lines = path.read_bytes()
        outcome = cli("context", "project", "--session", "SES-0000beef", "--ledger", path, "--json")
        assert outcome.code == 0
        assert outcome.json["active_intent"] == "INT-1"
        found = {each["entity_id"]: each["reasons"] for each in outcome.json["eligible"]}
        assert list(found) == ["INT-1", "WO-2", "WO-1", "T-1", "T-2"]
        assert found["WO-2"] == ["FAILED_WO", "REACHABLE_FROM_INTENT"]
        assert "since a ledger was given" in outcome.err
        assert path.read_bytes() == lines
        (tmp_path / HO2M).parent.mkdir(parents=True)
        (tmp_path / HO2M).write_bytes(lines)
        under_root = cli("context", "project", "--session", "SES-0000beef", "--json")
        assert under_root.json == outcome.json
        assert decisions() == ["PROJECTION_COMPUTED"]

    def test_failed_work_orders_beyond_the_limit_count_as_one(self, cli: Cli) -> None:
        lives = [
            entry
            for n in range(8)
            for entry in (
                ("WO_OPENED", f"WO-{n}", {"wo_id": f"WO-{n}", "intent_id": "INT-1"}),
                ("WO_CLOSED", f"WO-{n}", {"wo_id": f"WO-{n}", "result": "failed"}),
            )
        ]
        append(HO2M, declared("INT-1"), *lives)
        found = cli("context", "project", "--session", "SES-0000beef", "--dry-run", "--json").json
        assert len(found["visible"]) == 1 + 5
        assert [each["entity_id"] for each in found["suppressed"]] == ["WO-0", "WO-1", "WO-2"]
        assert found["tokens_used"] == sum(each["tokens"] for each in (*found["visible"], *found["suppressed"]))
        assert "3 earlier work orders failed" in cli("context", "project", "--session", "SES-0000beef", "--dry-run").out

    def test_without_intents_it_says_how_to_get_some(self, cli: Cli) -> None:
        session = talk(cli, "hello")
        outcome = cli("context", "project", "--session", session)
        assert outcome.code == 0
        assert 'context_mode = "enforce"` below [agents.ADMIN] of kitchener.toml turns the Context Authority on' in outcome.out

    def test_a_shadow_is_projected_from_its_own_decisions(self, cli: Cli) -> None:
        configure(context_mode='"shadow"', intent_mode='"bridge"')
        session = talk(cli, "hello", "which python packages are installed?")
        found = cli("context", "project", "--session", session, "--json").json
        assert found["active_intent"] is not None
        assert [each["entity_id"] for each in found["visible"]][-2:] == [turn(session, 1), turn(session, 2)]
        view = cli("context", "explain", "--turn", turn(session, 2), "--json").json
        assert (view["mode"], view["is_exact"]) == ("shadow", True)
        assert "shadow: this was decided beside the turn" in cli("context", "explain", "--turn", turn(session, 2)).out


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

    def test_what_did_not_fit_says_how_many_tokens_were_missing(self, cli: Cli, session: str) -> None:
        configure(context_budget="160")
        cli("chat", "--session", session, stdin=b"and a room with a view?\n")
        arguments = ("context", "explain", "--turn", turn(session, 6), "--entry", turn(session, 4))
        (found,) = cli(*arguments, "--json").json["explanations"]
        assert (found["verdict"], found["suppressed_by"]) == ("suppressed", "BUDGET_EVICTION")
        assert found["short_by"] > 0
        text = cli(*arguments).out
        assert f"suppressed: {turn(session, 4)} (turn)\n  --> HO2M:ADMIN E-" in text
        assert "   | user: By the way, I also need a hotel in Oslo for the weekend.\n" in text
        assert f"was {found['short_by']} short of the budget of 160 tokens" in text
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
        assert "it belongs to INT-P, which is neither the active intent nor above it" in text
        text = cli(*view, impossible).out
        assert "invalid: INT-0" in text
        assert f"kitchener session repair {session} --void {impossible}" in text
        late = cli("context", "explain", "--turn", turn(session, 2), "--entry", turn(session, 4))
        assert "was not there yet: TURN_STARTED in E-" in late.out
        dispatched = next(line for line in read_lines(HO2M) if line["entry"]["entry_type"] == "WO_DISPATCHED")
        assert "is a WO_DISPATCHED, which says nothing about context" in cli(*view, dispatched["entry_id"]).out

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--turn", "T-1"], "'T-1' is not a turn id"),
            (["--turn", "{}-000099"], "is not on record"),
            (["--turn", "T-00000000-000001"], "session 'SES-00000000' is not known"),
            (["--turn", "{}-000002", "--entry", "E-none"], "--entry 'E-none': no entry, intent, work order"),
        ],
    )
    def test_what_is_not_on_record_is_a_mistake(self, cli: Cli, session: str, arguments: list[str], words: str) -> None:
        outcome = cli("context", "explain", *(each.format(f"T-{session[4:]}") for each in arguments))
        assert (outcome.code, outcome.out) == (2, "")
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

    def test_a_turn_that_asked_which_thread_says_so(self, cli: Cli, session: str) -> None:
        cli("intent", "declare", "compare prices", "--session", session)
        cli("chat", "--session", session, stdin=b"and now?\n2\n")
        text = cli("context", "explain", "--turn", turn(session, 6)).out
        assert "nothing was projected: it was answered without a model: CONFLICT: 2 intents are live" in text
        text = cli("context", "explain", "--turn", turn(session, 7)).out
        assert "its message settled which thread goes on" in text

    def test_after_the_settings_changed_the_record_still_counts(self, cli: Cli, session: str) -> None:
        before = verdicts(cli("context", "explain", "--turn", turn(session, 3), "--json"))
        configure(context_budget="20", standing_rules='["Be brief."]')
        outcome = cli("context", "explain", "--turn", turn(session, 3), "--json")
        assert outcome.json["is_exact"] is False
        assert verdicts(outcome) == before
        assert (
            "the settings or the estimate of tokens have changed since"
            in cli("context", "explain", "--turn", turn(session, 3)).out
        )

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
        assert [each["entity_id"] for each in found["came_in"]] == [second, turn(session, 4)]
        assert [each["entity_id"] for each in found["went_out"]] == [first, turn(session, 2)]
        assert all("was not there yet" in each["why"] for each in found["came_in"])
        assert all(f"{first}" in each["why"] and "not live" in each["why"] for each in found["went_out"])
        assert found["notes"] == [f"intent: {first} before, {second} after"]
        text = cli("context", "diff", turn(session, 3), turn(session, 5)).out
        assert f"came in: 2\n  + {second} (intent)\n      before: {second} was not there yet" in text
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
        assert "visible: 3 items, " in outcome.out
        assert "user: " not in outcome.out.split("visible: ")[1]
        assert "= more: kitchener context explain --turn T-" in outcome.out

    def test_why_says_how_to_turn_it_on(self, cli: Cli) -> None:
        outcome = cli("chat", stdin=b"hello\n/why\n/intents\n/intents keep 1\n/intents nonsense\n")
        assert outcome.code == 0
        assert outcome.out.count("turns the Context Authority on") == 3
        assert "/intents keep N goes on with the N-th" in outcome.out

    def test_a_conflict_is_settled_by_number(self, cli: Cli, session: str) -> None:
        cli("intent", "declare", "compare prices", "--session", session)
        outcome = cli(
            "chat", "--session", session, stdin=b"/intents\n/intents keep 3\n/intents keep 2\n/intents\n/intents keep 1\n"
        )
        assert outcome.code == 0
        assert "2 threads compete" in outcome.out
        assert "expected a number from 1 to 2" in outcome.out
        assert "we go on with INT-" in outcome.out
        assert "“compare prices”" in outcome.out.split("active: ")[1].splitlines()[0]
        assert "no intents compete" in outcome.out
        assert [each["status"] for each in intents(cli, session)] == ["superseded", "superseded", "active"]


def test_reading_works_beside_a_running_process_and_writing_names_it(cli: Cli, tmp_path: Path) -> None:
    configure()
    session = talk(cli, *TALK[:2])
    append(HO2M, ("INTENT_CLOSED", "INT-0", {"session_id": session, "intent_id": "INT-0"}))
    gate = Gate(tmp_path)
    process = start("chat", cwd=tmp_path)
    try:
        assert process.stdin is not None
        process.stdin.write(f"{ASK}\n")
        process.stdin.flush()
        gate.wait_until_reached(process)
        before = decisions()
        beside = cli("context", "project", "--session", session, "--intent", intents(cli, session)[0]["intent_id"])
        assert beside.code == 4
        assert f"dry run: nothing was recorded, since {tmp_path / CONTEXT} is in use by process {process.pid}" in beside.out
        beside = cli("context", "project", "--session", session, "--json")
        assert (beside.code, beside.json.keys()) == (4, KEYS)
        assert f"in use by process {process.pid}" in beside.err
        assert decisions() == before
        assert cli("context", "explain", "--turn", turn(session, 2)).code == 0
        assert cli("session", "repair", session).code == 4
        intent = intents(cli, session)[0]["intent_id"]
        for command in (
            ("intent", "close", intent),
            ("intent", "declare", "more", "--session", session),
            ("session", "repair", session, "--all", "--reason", "a test"),
        ):
            locked = cli(*command)
            assert (locked.code, locked.out) == (7, "")
            assert f"in use by process {process.pid}" in locked.err
    finally:
        gate.let_pass()
    assert finish(process).code == 0


@pytest.mark.parametrize(
    "command",
    [
        ["context", "project", "--session", "{}"],
        ["context", "explain", "--turn", "{}"],
        ["intent", "list"],
        ["session", "repair", "{}"],
    ],
)
def test_a_damaged_ledger_is_refused(cli: Cli, session: str, tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / HO2M
    data = bytearray(path.read_bytes())
    data[data.index(b"INTENT_DECLARED")] ^= 1
    path.write_bytes(data)
    for index in (tmp_path / ".kitchener/index").iterdir():
        index.unlink()
    named = turn(session, 2) if command[1] == "explain" else session
    outcome = cli(*(each.format(named) for each in command))
    assert (outcome.code, outcome.out) == (6, "")
    assert outcome.err.startswith(f"kitchener: {path}: line ")
