"""`kitchener replay`: exit codes, texts for people and JSON for programs."""

import shutil
from pathlib import Path

import pytest

from kitchener.sealing import Keyring
from tests.cli.conftest import Cli
from tests.cli.shared.commands import write_messages

SETTINGS = '[agents.ADMIN]\ncontext_mode = "enforce"\n[agents."RESIDENT:bo"]\ncontext_mode = "enforce"\n'


@pytest.fixture
def recorded(cli: Cli, tmp_path: Path) -> Cli:
    """The command line, beside two sessions of ADMIN and one of another class."""
    (tmp_path / "kitchener.toml").write_text(SETTINGS, encoding="utf-8")
    mine = write_messages(tmp_path / "mine.txt", ("one", "hello"), ("one", "which packages?"), ("two", "hello"))
    theirs = write_messages(tmp_path / "theirs.txt", ("three", "good morning"))
    assert cli("run", mine, "-o", "mine.out").code == 0
    assert cli("run", theirs, "-o", "theirs.out", "--agent", "RESIDENT:bo").code == 0
    return cli


def sessions(cli: Cli, *options: str) -> list[str]:
    return [each["session_id"] for each in cli("session", "list", "--json", *options).json]


def test_all_sessions_of_all_classes(recorded: Cli) -> None:
    """One line for each, and one for all of them."""
    outcome = recorded("replay", "--all")
    assert (outcome.code, outcome.err) == (0, "")
    *lines, last = outcome.out.splitlines()
    assert len(lines) == 3
    assert all(" identical, " in line for line in lines)
    assert last == "3 sessions, 4 turns identical, 0 sessions diverged"
    assert recorded("replay", "--all", "--json").json["ok"] is True


def test_all_sessions_of_one_class(recorded: Cli) -> None:
    """Regression: `--agent` was passed over, and the sessions of all classes were replayed."""
    theirs = sessions(recorded, "--agent", "RESIDENT:bo")
    found = recorded("replay", "--all", "--agent", "RESIDENT:bo", "--json").json["sessions"]
    assert [each["session_id"] for each in found] == theirs


def test_one_session_wherever_it_is(recorded: Cli) -> None:
    """Its agent class is found by itself."""
    (theirs,) = sessions(recorded, "--agent", "RESIDENT:bo")
    outcome = recorded("replay", "--session", theirs)
    assert (outcome.code, outcome.out) == (0, f"{theirs}  identical, 1 turn\n")
    (found,) = recorded("replay", "--session", theirs, "--json").json["sessions"]
    assert (found["agent_class"], found["identical"], len(found["turns"])) == ("RESIDENT:bo", True, 1)


def test_divergence_exits_with_5(recorded: Cli, tmp_path: Path) -> None:
    """Turn, entry, field, both values, where it stems from, and the policy up front."""
    (tmp_path / "kitchener.toml").write_text(SETTINGS + 'standing_rules = ["Be kind."]\n', encoding="utf-8")
    (theirs,) = sessions(recorded, "--agent", "RESIDENT:bo")
    outcome = recorded("replay", "--session", theirs)
    assert (outcome.code, outcome.err) == (5, "")
    text = outcome.out.splitlines()
    assert text[0].startswith(f"{theirs}  was recorded under another policy: from T-{theirs[4:]}-000001 on")
    assert text[1] == f"{theirs}  changed since: standing_rules of RESIDENT:bo"
    text = text[text.index(f"{theirs}  diverged after 0 turns") :]
    assert text[1].startswith(f"first divergence: T-{theirs[4:]}-000001, PROJECTION_COMPUTED T-{theirs[4:]}-000001 (E-")
    assert text[2:5] == ["  field       visible", "  - recorded, + recomputed", "    + INV-1"]
    assert text[-1].startswith("  stems from  the Context Authority's projection")
    told = recorded("replay", "--all", "--json")
    assert told.code == 5
    assert [each["identical"] for each in told.json["sessions"]] == [True, True, False]


def test_policy_that_decides_alike(recorded: Cli, tmp_path: Path) -> None:
    """Told in any case; with --same-policy it fails, so that a pipeline sees it."""
    same = recorded("replay", "--all", "--same-policy")
    assert (same.code, "another policy" in same.out) == (0, False)
    changed = SETTINGS.replace("[agents.ADMIN]\n", "[agents.ADMIN]\nrecalled_turns = 49\n")
    (tmp_path / "kitchener.toml").write_text(changed, encoding="utf-8")
    outcome = recorded("replay", "--all")
    assert outcome.code == 0
    last = "3 sessions, 4 turns identical, 0 sessions diverged, 2 sessions recorded under another policy"
    assert outcome.out.splitlines()[-1] == last
    strict = recorded("replay", "--all", "--same-policy")
    assert (strict.code, strict.out) == (5, outcome.out)
    told = recorded("replay", "--all", "--same-policy", "--json")
    assert (told.code, told.json["ok"]) == (5, False)
    assert [each["policy"] is None for each in told.json["sessions"]] == [False, False, True]


def test_damage_exits_with_6(recorded: Cli, tmp_path: Path) -> None:
    """Whatever is replayed, the ledgers it reads are verified first."""
    ledger = tmp_path / ".kitchener" / "HO1" / "ADMIN" / "ho1m.jsonl"
    data = ledger.read_bytes()
    ledger.write_bytes(data.replace(b'"v":1', b'"v":2', 1))
    outcome = recorded("replay", "--session", sessions(recorded)[-1])
    assert outcome.code == 6
    assert "ho1m.jsonl" in outcome.err


@pytest.mark.parametrize("name", ["HO1/ADMIN/ho1m.jsonl", "HO2/ADMIN/context.jsonl"])
def test_a_missing_ledger_exits_with_6(recorded: Cli, tmp_path: Path, name: str) -> None:
    """Nothing can be compared, so nothing diverged; also without an index, which would know of the ledger."""
    root = tmp_path / ".kitchener"
    (root / name).unlink()
    shutil.rmtree(root / "index")
    for chosen in (("--all",), ("last", "--agent", "ADMIN"), ("--all", "--with-config", "kitchener.toml")):
        outcome = recorded("replay", *chosen)
        assert outcome.code == 6, outcome.out
        assert "identical" not in outcome.out
        ledger_id = "HO1M:ADMIN" if "ho1m" in name else "CONTEXT:ADMIN"
        assert f"{root / name}: line 1 (byte 0): file: expected the ledger {ledger_id}, of which turn T-" in outcome.err
        assert outcome.err.count("\n") == 1
    assert recorded("replay", "--all", "--agent", "RESIDENT:bo").code == 0


@pytest.mark.parametrize("name", ["signals.jsonl", "overlays.jsonl"])
def test_a_missing_ledger_of_the_memory_exits_with_6(cli: Cli, tmp_path: Path, name: str) -> None:
    """Of both, because a memory of which one half is gone is none, even if that half was empty."""
    (tmp_path / "kitchener.toml").write_text("[agents.ADMIN]\nho3_enabled = true\n", encoding="utf-8")
    messages = write_messages(tmp_path / "mine.txt", ("one", "hello"))
    assert cli("run", messages, "-o", "mine.out").code == 0
    assert cli("replay", "--all").code == 0
    (missing,) = (tmp_path / ".kitchener").rglob(name)
    missing.unlink()
    outcome = cli("replay", "last")
    assert (outcome.code, outcome.out) == (6, "")
    assert f"{name}: line 1 (byte 0): file: expected the ledger {name[:-6].upper()}, of which turn T-" in outcome.err


def test_sessions_whose_key_is_missing_exit_with_1(recorded: Cli, tmp_path: Path) -> None:
    """Regression: without the keys nothing was replayed, and exit code 0 said that all was identical."""
    shutil.move(tmp_path / ".kitchener.keys", tmp_path / "elsewhere")
    outcome = recorded("replay", "--all")
    assert (outcome.code, outcome.err) == (1, "")
    *lines, last = outcome.out.splitlines()
    assert last == "3 sessions, 0 turns identical, 0 sessions diverged, 3 sessions not readable without the missing keys"
    verdicts = [line.partition("  ")[2] for line in lines if "not readable" not in line]
    assert sorted(verdicts) == [
        "not all compared, 0 turns identical, 1 skipped (1 unreadable)",
        "not all compared, 0 turns identical, 1 skipped (1 unreadable)",
        "not all compared, 0 turns identical, 2 skipped (2 unreadable)",
    ]
    told = recorded("replay", "--all", "--json")
    assert (told.code, told.json["ok"]) == (1, False)
    assert [each["identical"] for each in told.json["sessions"]] == [False] * 3
    assert recorded("replay", "last", "--same-policy").code == 1
    shutil.move(tmp_path / "elsewhere", tmp_path / ".kitchener.keys")
    assert recorded("replay", "--all").code == 0


def test_a_divergence_counts_before_a_missing_key(recorded: Cli, tmp_path: Path) -> None:
    (tmp_path / "kitchener.toml").write_text(SETTINGS + 'standing_rules = ["Be kind."]\n', encoding="utf-8")
    newest, _ = sessions(recorded, "--agent", "ADMIN")
    (mine,) = [each for each in recorded("session", "list", "--json").json if each["session_id"] == newest]
    keyring = Keyring(tmp_path / ".kitchener.keys")
    keyring.destroy(mine["subject_id"])
    outcome = recorded("replay", "--all")
    assert outcome.code == 5
    assert "1 session diverged" in outcome.out


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--all", "--session", "SES-0a1b2c3d"),
        ("--session", "none"),
        ("--all", "--tool", "x"),
        ("--all", "--same-policy", "--with-config", "x"),
        ("last", "--nested", "--with-config", "kitchener.toml"),
    ],
)
def test_wrong_usage(recorded: Cli, arguments: tuple[str, ...]) -> None:
    """One line, and nothing is done."""
    outcome = recorded("replay", *arguments)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)


def test_unknown_session(recorded: Cli) -> None:
    """A negative answer, no mistake."""
    outcome = recorded("replay", "--session", "SES-00000000")
    assert outcome.code == 1
    assert "is not known to agent classes 'ADMIN', 'RESIDENT:bo'; `kitchener session list` lists the sessions" in outcome.err


def test_nothing_recorded(cli: Cli) -> None:
    """No sessions are no failure."""
    outcome = cli("replay", "--all")
    assert (outcome.code, outcome.out) == (0, "0 sessions, 0 turns identical, 0 sessions diverged\n")


def test_another_policy(recorded: Cli, tmp_path: Path) -> None:
    """What would have been shown under other settings, by turn, with one line for all sessions; nothing is written."""
    other = tmp_path / "other.toml"
    other.write_text('[agents.ADMIN]\ncontext_mode = "enforce"\nstanding_rules = ["Be kind."]\n', encoding="utf-8")
    outcome = recorded("replay", "--session", sessions(recorded)[0], "--with-config", other)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0].endswith("turns would have been shown something else")
    assert "    + INV-1" in lines
    assert lines[-1].startswith("1 session: 1 changed, 0 unchanged; ")
    told = recorded("replay", "--all", "--with-config", other, "--json").json
    assert told["summary"]["sessions"] == len(told["sessions"]) == 3
    assert told["sessions"][0]["turns"][0]["came_in"] == ["INV-1"]
    assert recorded("replay", "--all").code == 0


def test_with_another_policy_all_sessions_are_counted_and_those_that_change_are_printed(recorded: Cli, tmp_path: Path) -> None:
    """As `diff -rq` and `pytest -q` do. One session that is named is told whether it changes or not; JSON has every session."""
    other = tmp_path / "other.toml"
    other.write_text(SETTINGS + 'standing_rules = ["Be kind."]\n', encoding="utf-8")  # of RESIDENT:bo alone
    (theirs,), mine = sessions(recorded, "--agent", "RESIDENT:bo"), sessions(recorded)
    outcome = recorded("replay", "--all", "--with-config", other)
    assert (outcome.code, outcome.err) == (0, "")
    first, *_, last = outcome.out.splitlines()
    assert first == f"{theirs}  1 of 1 turn would have been shown something else"
    assert not any(each in outcome.out for each in mine)
    assert last.startswith("3 sessions: 1 changed, 2 unchanged; 1 of 4 turns differs: 1 item more, 0 fewer; ")
    told = recorded("replay", "--all", "--with-config", other, "--json").json
    assert {each["session_id"] for each in told["sessions"]} == {theirs, *mine}
    counts = [told["summary"][f"sessions_{each}"] for each in ("changed", "unchanged", "not_comparable")]
    assert counts == [1, 2, 0]
    named = recorded("replay", mine[0], "--with-config", other).out.splitlines()
    assert named[0].startswith(f"{mine[0]}  0 of ")
    same = recorded("replay", "--all", "--with-config", "kitchener.toml")
    assert same.out.startswith("3 sessions: 0 changed, 3 unchanged; 0 of 4 turns differ: ")
    assert same.out.count("\n") == 1


def test_another_policy_that_is_not_there(recorded: Cli, tmp_path: Path) -> None:
    """A mistake in the command line."""
    assert recorded("replay", "--all", "--with-config", "none.toml").code == 2
