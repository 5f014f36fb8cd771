"""`kitchener context project`, and what holds for all commands about context (docs/commands.md)."""

from pathlib import Path

import pytest

from kitchener.canonical import canonical_bytes
from kitchener.cli.app import build_app
from kitchener.context import estimator
from kitchener.context.fold.items import SEPARATOR
from kitchener.context.projection.days import heading_of_today
from kitchener.signing import is_signed, make_key
from tests.cli.conftest import Cli
from tests.cli.context.contexts import CONTEXT, HO2M, TALK, append, completed, configure, declared, intents, talk, turn
from tests.cli.memory.gates import ASK, Gate
from tests.cli.shared.commands import finish, read_lines, start

LEAVES = ["context project", "context explain", "context diff", "session repair"]
LEAVES += [f"intent {name}" for name in ("list", "declare", "fork", "close", "abandon", "reopen")]
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


DATE_TOKENS = estimator("utf8/3")(heading_of_today("2026-02-20") + SEPARATOR)
"""What the date of the running turn takes, which is always shown and no item."""


def both(session_id: str, number: int) -> tuple[str, str]:
    """The items of a session's n-th turn: its message and its reply."""
    return (f"{turn(session_id, number)}.message", turn(session_id, number))


def decisions() -> list[str]:
    """The types of the entries on the ledger of decisions."""
    return [line["entry"]["entry_type"] for line in read_lines(CONTEXT)]


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
    def test_what_it_records_is_signed_where_a_key_is_configured(self, cli: Cli, session: str) -> None:
        assert cli("context", "project", "--session", session).code == 0
        assert read_lines(CONTEXT)[-1]["entry"]["payload"]["authority"] == {"tier": "HO2", "signer": None, "sig": None}
        signer = make_key(Path("signing.pem"))
        settings = Path("kitchener.toml")
        settings.write_text(f'{settings.read_text()}\n[ledger]\nsigning_key = "signing.pem"\n')
        assert cli("context", "project", "--session", session).code == 0
        payload = read_lines(CONTEXT)[-1]["entry"]["payload"]
        authority = payload.pop("authority")
        assert authority["signer"] == signer.signer
        assert is_signed(signer.public_key, canonical_bytes(payload), authority["sig"])

    def test_it_says_what_is_visible_and_what_is_not(self, cli: Cli, session: str) -> None:
        outcome = cli("context", "project", "--session", session, "--dry-run", "--json")
        assert outcome.code == 0
        found = outcome.json
        assert found.keys() == KEYS
        active = intents(cli, session)[1]["intent_id"]
        assert found["active_intent"] == active
        assert [each["entity_id"] for each in found["eligible"]] == ["INV-1", active, *both(session, 4), *both(session, 5)]
        assert found["eligible"][1]["reasons"] == ["DEFINES_INTENT"]
        message_of_4, reply_of_4 = both(session, 4)
        assert [each["entity_id"] for each in found["visible"]] == ["INV-1", active, message_of_4, *both(session, 5)]
        assert {each["form"] for each in found["visible"]} == {"FULL"}
        (left_out,) = found["suppressed"]
        assert left_out.keys() == {"entity_id", "form", "tokens", "reason"}
        assert (left_out["entity_id"], left_out["form"], left_out["reason"]) == (reply_of_4, "STUB", "BUDGET_EVICTION")
        assert found["token_budget"] == 200
        assert found["tokens_used"] == sum(each["tokens"] for each in (*found["visible"], left_out)) + DATE_TOKENS <= 200
        text = cli("context", "project", "--session", session, "--dry-run").out
        assert f"active intent: {active}  “By the way, I also need a hotel in Oslo for the weekend”\n" in text
        assert f"visible: 5 items, {found['tokens_used']} of 200 tokens\n" in text
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
        everything = ["INV-1", second, *both(session, 4), *both(session, 5)]
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
            (["--session", "nonsense"], "'nonsense' is not a session id"),
            (["--session", "{}", "--intent", "INT-0"], "--intent 'INT-0': no intent of session"),
            (["--session", "{}", "--budget", "-1"], "--budget"),
            (["--session", "{}", "--budget", "much"], "--budget"),
            (["--session", "{}", "--as-of", "2026-02-18T10:30:00"], "ISO text with a zone"),
            (["--session", "{}", "--conflict-policy", "guess"], "--conflict-policy"),
            (["--session", "{}", "--ledger", "no.jsonl"], "no.jsonl: there is no such ledger"),
            ([], "expected SESSION or --intent"),
        ],
    )
    def test_a_mistake_gives_one_line_and_its_exit_code(self, cli: Cli, session: str, arguments: list[str], words: str) -> None:
        outcome = cli("context", "project", *(each.format(session) for each in arguments))
        is_unknown = "is not known" in words or "no intent of session" in words
        assert (outcome.code, outcome.out) == (1 if is_unknown else 2, "")
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
        assert found["tokens_used"] == sum(each["tokens"] for each in (*found["visible"], *found["suppressed"])) + DATE_TOKENS
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
        assert [each["entity_id"] for each in found["visible"]][-4:] == [*both(session, 1), *both(session, 2)]
        view = cli("context", "explain", "--turn", turn(session, 2), "--json").json
        assert (view["mode"], view["is_exact"]) == ("shadow", True)
        assert "shadow: this was decided beside the turn" in cli("context", "explain", "--turn", turn(session, 2)).out


@pytest.mark.parametrize("listens", [False, True], ids=["deaf", "listening"])
def test_reading_works_beside_a_running_process_and_writing_names_it(cli: Cli, tmp_path: Path, listens: bool) -> None:
    """A process that does not take commands is named. One that does answers as the command does alone (docs/runtime.md)."""
    configure()
    session = talk(cli, *TALK[:2])
    append(HO2M, ("INTENT_CLOSED", "INT-0", {"session_id": session, "intent_id": "INT-0"}))
    gate = Gate(tmp_path)  # writes settings without intents
    with Path("kitchener.toml").open("a", encoding="utf-8") as settings:
        settings.write(f"[admin]\nsocket = {str(listens).lower()}\n")
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
        changes = (("intent", "close", intent), ("intent", "declare", "more", "--session", session))
        repair = ("session", "repair", session, "--all", "--reason", "a test")
        if listens:
            refused = [cli(*each) for each in changes]
            assert [(each.code, each.out) for each in refused] == [(2, "")] * 2
            assert all("intents need context_mode" in each.err for each in refused)
            assert cli(*repair).code == 0
        for each in () if listens else (*changes, repair):
            locked = cli(*each)
            assert (locked.code, locked.out) == (7, "")
            assert f"in use by process {process.pid}" in locked.err
    finally:
        gate.let_pass()
        ended = finish(process)
    assert ended.code == 0
    if listens:
        assert [cli(*each) for each in changes] == refused, "it says the same where no process runs"
        assert cli("session", "repair", session).code == 0, "nothing is left to repair"


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


def test_a_projection_has_the_learned_lines_that_every_turn_is_shown(cli: Cli) -> None:
    """Regression: it left them out, and promised turns more room than they got. Another subject's are not there."""
    configure(ho3_enabled="true")
    with Path("kitchener.toml").open("a", encoding="utf-8") as file:
        file.write("[memory]\ngate_count_threshold = 2\ngate_session_threshold = 1\n")
    session_id = talk(cli, "hello", "hello", "hello")
    shown = cli("context", "project", session_id, "--dry-run", "--json").json
    learned = {each["entity_id"] for each in shown["visible"] if each["entity_id"].startswith("ART-")}
    assert learned
    cli("chat", session_id, stdin=b"and is trio there?\n")
    told = cli("context", "explain", "last", "--json").json["explanations"]
    assert learned <= {each["entity_id"] for each in told if each["verdict"] == "visible"}
    assert cli("chat", "--subject", "bo", stdin=b"hello\n").code == 0
    others = cli("context", "project", "last", "--dry-run", "--json").json["visible"]
    assert learned.isdisjoint(each["entity_id"] for each in others)
