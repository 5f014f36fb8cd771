"""The memory of any root: empty, damaged, held, shown by other commands (docs/commands.md)."""

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.memory.memories import OVERLAYS, SIGNALS, is_one_line, learned
from tests.cli.shared.commands import finish, read_lines, start

READING = (["signals"], ["biases"], ["export"])


class TestAnyRoot:
    def test_nothing_was_learned_yet(self, cli: Cli, tmp_path: Path) -> None:
        """Reading makes no file, and says how memory is turned on."""
        for command in ("signals", "biases"):
            outcome = cli("memory", command)
            assert (outcome.code, outcome.err) == (0, "")
            assert outcome.out == (
                "nothing learned yet by ADMIN\n"
                "long-term memory of ADMIN is off; `ho3_enabled = true` below [agents.ADMIN] of kitchener.toml turns it on, as"
                " `kitchener init` writes it\n"
            )
            found = cli("memory", command, "--subject", "ada", "--json").json
            assert (found["enabled"], found["subject_id"], found[command], found["as_of"]) == (False, "ada", [], None)
        assert cli("memory", "export").out == ""
        for command in ("explain ART-000000000000", "deactivate ART-000000000000 --reason x", "quarantine intent:x --reason x"):
            assert is_one_line(cli("memory", *command.split()), 1)
        assert list(tmp_path.iterdir()) == []

    def test_where_memory_is_on_no_advice_is_given(self, taught: Cli) -> None:
        assert taught("memory", "biases", "--subject", "eve").out == "nothing learned yet about 'eve' by ADMIN\n"
        Path("empty").mkdir()
        assert taught("memory", "signals", "--root", "empty").out == "nothing learned yet by ADMIN\n"

    def test_a_class_that_no_longer_learns_still_shows_what_it_has(self, taught: Cli, tmp_path: Path) -> None:
        (tmp_path / "kitchener.toml").write_text("", encoding="utf-8")
        found = taught("memory", "biases", "--subject", "ada", "--json").json
        assert (found["enabled"], len(found["biases"])) == (False, 2)

    @pytest.mark.parametrize("command", READING)
    def test_a_damaged_ledger_is_refused(self, taught: Cli, tmp_path: Path, command: list[str]) -> None:
        path = tmp_path / SIGNALS
        data = bytearray(path.read_bytes())
        data[data.index(b"intent:question")] ^= 1
        path.write_bytes(data)
        shutil.rmtree(tmp_path / ".kitchener/index")
        outcome = taught("memory", *command)
        assert is_one_line(outcome, 6)
        assert f"{path}: line " in outcome.err

    def test_a_held_memory_stops_writers_with_its_holder_and_no_reader(self, taught: Cli, tmp_path: Path) -> None:
        """Exit code 7 names the process, where that process takes no commands."""
        artifact = learned(taught)["intent:question"]["artifact_id"]
        taught("memory", "export", "-o", "x")
        with Path("kitchener.toml").open("a", encoding="utf-8") as settings:
            settings.write("[admin]\nsocket = false\n")
        process = start("chat", "--subject", "dan", cwd=tmp_path)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("hello\n")
        process.stdin.flush()
        process.stdout.readline()
        for command in (
            ["deactivate", artifact, "--subject", "ada", "--reason", "x"],
            ["quarantine", "intent:question", "--subject", "ada", "--reason", "x"],
            ["import", "x"],
        ):
            outcome = taught("memory", *command)
            assert is_one_line(outcome, 7)
            assert f"process {process.pid}" in outcome.err
        assert taught("memory", "signals", "--subject", "dan", "--json").json["signals"][0]["signal_id"] == "intent:greeting"
        assert taught("memory", "explain", artifact, "--subject", "ada").code == 0
        assert finish(process).code == 0
        assert learned(taught)["intent:question"]["state"] == "speaks"


class TestBeside:
    """What other commands say of the memory."""

    def test_the_chat_shows_what_recurs_for_who_is_talking(self, taught: Cli) -> None:
        outcome = taught("chat", "--subject", "ada", stdin=b"/memory\n")
        assert (outcome.code, outcome.err) == (0, "")
        lines = {
            "domain:software": "Often talks about software.",
            "intent:question": "Most messages are of this kind: question.",
        }
        heaviest = sorted(learned(taught).values(), key=lambda each: (-each["weight_now"], each["artifact_id"]))
        assert sorted(each["signal_id"] for each in heaviest) == sorted(lines)
        assert outcome.out.splitlines() == [
            "what recurs for ada (ADMIN):",
            "  domain:software  ████████ learned from within the last 87,600 h",
            "  intent:question  ████████ learned from within the last 87,600 h",
            "  task:lookup      ██████░░ 4/5 events, 4/3 sessions",
            "what was learned:",
            *(f"  {each['artifact_id']}  {lines[each['signal_id']]}" for each in heaviest),
        ]

    def test_the_chat_knows_whose_session_it_goes_on_with(self, taught: Cli) -> None:
        session = taught("session", "list", "--agent", "RESIDENT:solo", "--json").json[0]["session_id"]
        outcome = taught("chat", "--session", session, stdin=b"/memory\n")
        assert outcome.out.startswith("what recurs for cy (RESIDENT:solo):\n")

    def test_the_chat_of_nobody_in_particular_has_a_memory_of_its_own(self, taught: Cli) -> None:
        outcome = taught("chat", stdin=b"/memory\nhello\n/memory\n")
        first, _, second, *signals, title, last = outcome.out.splitlines()
        assert first == "nothing learned yet"
        assert second.startswith("what recurs for anon-SES-")
        assert signals == ["  intent:greeting  ██░░░░░░ 1/5 events, 1/3 sessions"]
        assert (title, last) == ("what was learned:", "  nothing yet")

    def test_the_chat_says_how_memory_is_turned_on(self, taught: Cli, tmp_path: Path) -> None:
        with (tmp_path / "kitchener.toml").open("a", encoding="utf-8") as settings:
            settings.write('\n[agents."RESIDENT:other"]\ncontext_budget = 2000\n')
        outcome = taught("chat", "--agent", "RESIDENT:other", stdin=b"/memory\n")
        table = '[agents."RESIDENT:other"]'
        setting = f"`ho3_enabled = true` below {table} of kitchener.toml"
        expected = f"long-term memory of RESIDENT:other is off; {setting} turns it on, as `kitchener init` writes it\n"
        assert (outcome.code, outcome.out) == (0, expected)

    def test_verify_and_doctor_look_at_the_memorys_ledgers(self, taught: Cli, tmp_path: Path) -> None:
        by_id = {each["ledger_id"]: each for each in taught("ledger", "verify", "--json").json["ledgers"]}
        found = {each["what"]: each for each in taught("doctor", "--json").json["findings"]}
        for name, place in (("signals", SIGNALS), ("overlays", OVERLAYS)):
            lines = read_lines(tmp_path / place)
            assert (
                by_id[name.upper()] | {"entries": len(lines), "ok": True, "path": str(tmp_path / place)} == by_id[name.upper()]
            )
            assert f"{len(lines):,} entries" in found[f"{name} ADMIN"]["detail"]
        assert "signals RESIDENT:solo" not in found
        path = tmp_path / OVERLAYS
        path.write_bytes(path.read_bytes().replace(b"topic_affinity", b"topic_infinity"))
        outcome = taught("ledger", "verify")
        assert outcome.code == 6
        assert f"damaged  {path}: line " in outcome.out

    def test_a_memory_kept_elsewhere_is_looked_at_too(self, cli: Cli, tmp_path: Path) -> None:
        settings = '[memory]\nmemory_dir = "learned"\n[agents.ADMIN]\nho3_enabled = true\n'
        (tmp_path / "kitchener.toml").write_text(settings, encoding="utf-8")
        cli("chat", "--subject", "ada", stdin=b"hello\n")
        paths = {each["path"] for each in cli("ledger", "verify", "--json").json["ledgers"]}
        assert {str(tmp_path / "learned/signals.jsonl"), str(tmp_path / "learned/overlays.jsonl")} <= paths
        assert cli("memory", "signals", "--json").json["subject_id"] == "ada"
        assert [each["what"] for each in cli("doctor", "--json").json["findings"]].count("signals ADMIN") == 1

    @pytest.mark.parametrize(("name", "entry_type"), [("signals", "HO3_SIGNAL"), ("overlays", "HO3_OVERLAY")])
    def test_tail_reads_the_memorys_ledgers(self, taught: Cli, tmp_path: Path, name: str, entry_type: str) -> None:
        entries = taught("ledger", "tail", "--ledger", name, "-n", "2", "--type", entry_type, "--json").json
        stored = read_lines(tmp_path / SIGNALS.with_name(f"{name}.jsonl"))
        assert [each["entry_hash"] for each in entries] == [line["entry_hash"] for line in stored[-2:]]

    def test_what_init_writes_learns(self, cli: Cli) -> None:
        cli("init")
        cli("chat", "--subject", "ada", stdin=b"hello\n")
        assert cli("memory", "signals", "--json").json["signals"][0]["signal_id"] == "intent:greeting"
