"""`kitchener memory`: what recurs, what was learned, and why (docs/commands.md)."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.memory.memories import DISK, OVERLAYS, PACKAGES, SIGNALS, as_lines, is_one_line, learned
from tests.cli.shared.commands import read_lines, write_messages


class TestSignals:
    def test_each_signal_shows_its_counts_and_how_near_its_gate_is(self, taught: Cli) -> None:
        outcome = taught("memory", "signals", "--subject", "ada")
        assert (outcome.code, outcome.err) == (0, "")
        head, _, *lines = outcome.out.splitlines()
        assert head.startswith("ada (ADMIN), as of ")
        rows = {line.split()[0]: line for line in lines}
        assert list(rows) == ["domain:software", "intent:question", "outcome:success", "task:lookup"]
        assert rows["task:lookup"].endswith("██████░░ 4/5 events, 4/3 sessions")
        assert rows["intent:question"].endswith("████████ learned from within the last 87,600 h")
        assert rows["outcome:success"].endswith("········ counted, never learned from (gate_exclude)")

    def test_json_has_the_numbers(self, taught: Cli) -> None:
        found = taught("memory", "signals", "--subject", "ada", "--json").json
        assert (found["agent_class"], found["subject_id"], found["enabled"]) == ("ADMIN", "ada", True)
        (lookup,) = (each for each in found["signals"] if each["signal_id"] == "task:lookup")
        assert (lookup["count"], lookup["sessions"], len(set(lookup["session_ids"]))) == (4, 4, 4)
        assert 0.99 < lookup["decay"] <= 1
        assert lookup["first_seen"] < lookup["last_seen"] <= found["as_of"]
        assert lookup["gate"] == {
            "state": "below_count",
            "crossed": False,
            "progress": 0.8,
            "count_threshold": 5,
            "session_threshold": 3,
            "already_consolidated": False,
        }

    def test_the_only_subject_of_a_class_needs_no_name(self, taught: Cli) -> None:
        found = taught("memory", "signals", "--agent", "RESIDENT:solo", "--json").json
        assert found["subject_id"] == "cy"
        assert {each["signal_id"]: each["count"] for each in found["signals"]}["intent:question"] == 6

    def test_of_several_subjects_one_is_to_be_chosen(self, taught: Cli) -> None:
        outcome = taught("memory", "signals")
        assert outcome.code == 0
        assert [line.split() for line in outcome.out.splitlines()] == [
            ["subject", "id", "signals", "events", "learned"],
            ["ada", "4", "28", "2"],
            ["bo", "4", "21", "2"],
            ["choose", "one", "with", "--subject"],
        ]
        found = taught("memory", "signals", "--json").json
        assert (found["subject_id"], found["signals"]) == (None, [])
        assert found["subjects"][0] == {"subject_id": "ada", "signals": 4, "events": 28, "learned": 2}

    def test_reading_as_of_a_moment_ignores_what_came_later(self, taught: Cli, tmp_path: Path) -> None:
        """As of Bo's fifth event: the gate had opened with it and nothing had been learned yet."""
        entries = [line["entry"] for line in read_lines(tmp_path / SIGNALS)]
        questions = [
            each
            for each in entries
            if each["payload"]["namespace"] == "ADMIN/bo" and "intent:question" in each["payload"]["signals"].values()
        ]
        fifth = questions[4]["timestamp"]
        found = taught("memory", "signals", "--subject", "bo", "--as-of", fifth, "--json").json
        assert found["as_of"] == fifth
        (question,) = (each for each in found["signals"] if each["signal_id"] == "intent:question")
        assert (question["count"], question["gate"]["state"]) == (5, "crossed")
        assert learned(taught, "bo", "--as-of", fifth) == {}
        text = taught("memory", "signals", "--subject", "bo", "--as-of", fifth).out
        assert "████████ 5/5 events, 3/3 sessions: open, learned from after the next such turn" in text

    def test_rare_signals_can_be_left_out(self, taught: Cli) -> None:
        found = taught("memory", "signals", "--subject", "ada", "--min-count", "5", "--json").json
        assert [each["signal_id"] for each in found["signals"]] == ["domain:software", "intent:question", "outcome:success"]
        assert "no signals with at least 99 events" in taught("memory", "signals", "--subject", "ada", "--min-count", "99").out

    @pytest.mark.parametrize("moment", ["2026-02-18T10:30:00", "yesterday"])
    @pytest.mark.parametrize("command", ["signals", "biases"])
    def test_a_moment_without_a_zone_is_a_mistake_also_without_a_memory(self, cli: Cli, command: str, moment: str) -> None:
        outcome = cli("memory", command, "--as-of", moment)
        assert is_one_line(outcome, 2)
        assert f"--as-of = {moment!r}: expected an aware datetime or ISO text with a zone" in outcome.err


class TestBiases:
    def test_what_speaks_is_shown_with_its_weight_and_source(self, taught: Cli) -> None:
        outcome = taught("memory", "biases", "--subject", "ada")
        assert (outcome.code, outcome.err) == (0, "")
        found = learned(taught)
        assert list(found) == ["intent:question", "domain:software"]
        question, software = found.values()
        assert f"{question['artifact_id']}  Most messages are of this kind: question.\n" in outcome.out
        assert "  interaction_style from intent:question; shown in turns of domain software" in outcome.out
        assert "  topic_affinity from domain:software; shown in turns of domain software\n" in outcome.out
        assert f"  weight {software['weight']:.2f} now, {software['weight']:.2f} when set; learned " in outcome.out
        assert (software["state"], software["why"], software["line"]) == ("speaks", None, "Often talks about software.")
        assert (software["labels"], software["scope"]) == ({"domain": ["software"], "task": []}, "agent")
        assert software["weight_now"] == pytest.approx(software["weight"], abs=0.01)

    def test_what_faded_is_shown_with_all_and_why(self, taught: Cli) -> None:
        far = ("--as-of", "2099-01-01T00:00:00+00:00")
        outcome = taught("memory", "biases", "--subject", "ada", *far)
        assert outcome.out.splitlines()[1:] == ["2 lines are no longer shown; --all shows why"]
        text = taught("memory", "biases", "--subject", "ada", "--all", *far).out
        assert len(re.findall(r"^  faded: its weight \S+ is below salience_floor = 0.05$", text, re.MULTILINE)) == 2
        assert [each["state"] for each in learned(taught, "ada", *far).values()] == ["faded", "faded"]
        assert taught("memory", "biases", "--subject", "ada", *far, "--json").json["biases"] == []

    def test_a_line_cannot_move_the_cursor(self, taught: Cli, tmp_path: Path) -> None:
        older = {
            "overlay_id": "OVL-1",
            "signal_id": "tool:x",
            "salience_weight": 0.5,
            "decay_modifier": 1.0,
            "source_event_ids": ["EVT-1"],
            "content": {"bias": "likes red", "category": "\x1b[2J"},
            "created_at": "2026-02-18T10:30:00+00:00",
        }
        (tmp_path / "older").write_text(as_lines(older), encoding="utf-8")
        assert taught("memory", "import", "older", "--subject", "eve").code == 0
        for command in (["biases", "--all"], ["explain", "OVL-1"], ["signals"]):
            outcome = taught("memory", *command, "--subject", "eve")
            assert (outcome.code, "\x1b" in outcome.out) == (0, False)
        refused = taught("memory", "import", "older", "--subject", "e\x1bve")
        assert (refused.code, "\x1b" in refused.err) == (2, False)
        for command in (["biases", "--all"], ["signals"]):  # an older root may have such an id
            assert "\x1b" not in taught("memory", *command, "--subject", "e\x1bve").out


class TestExplain:
    def test_it_goes_from_the_line_to_what_was_said(self, taught: Cli) -> None:
        artifact = learned(taught)["intent:question"]["artifact_id"]
        outcome = taught("memory", "explain", artifact, "--subject", "ada")
        assert (outcome.code, outcome.err) == (0, "")
        found = taught("memory", "explain", artifact, "--subject", "ada", "--json").json
        lines = outcome.out.splitlines()
        assert lines[0] == f"{artifact}: Most messages are of this kind: question."
        assert "  its gate opened at 5 events in 3 sessions; it needs 5 in 3, 8 in 4 count now (already_consolidated)" in lines
        assert "because of 5 events in 3 sessions:" in lines
        assert lines.count(f"    > {PACKAGES}") == 4
        assert lines.count(f"    > {DISK}") == 4
        for event in found["events"]:
            assert f"    intent:question  {event['event_id']}" in lines
        assert "shown in 3 turns:" in lines

    def test_json_has_events_turns_records_and_who_was_shown_it(self, taught: Cli) -> None:
        artifact = learned(taught)["intent:question"]["artifact_id"]
        found = taught("memory", "explain", artifact, "--subject", "ada", "--json").json
        assert (found["subject_id"], found["source_signal_ids"]) == ("ada", ["intent:question"])
        assert found["gate_snapshot"] == {"count": 5, "sessions": 3}
        assert [each["signal_id"] for each in found["events"]] == ["intent:question"] * 5
        assert found["events"][0]["co_signals"] == ["domain:software", "outcome:success", "task:lookup"]
        assert [each["turn_id"] for each in found["turns"]] == [each["turn_id"] for each in found["events"]]
        for turn in found["turns"]:
            (shown,) = (
                each
                for each in taught("session", "show", turn["session_id"], "--json").json["turns"]
                if each["turn_id"] == turn["turn_id"]
            )
            assert (turn["message"], turn["response"]) == (shown["message"], shown["response"])
        assert [each["entry_type"] for each in found["records"]] == ["HO3_OVERLAY"]
        assert [each["message"] for each in found["shown_in"]] == [DISK, PACKAGES, DISK]
        assert all("I keep in mind: " in each["response"] for each in found["shown_in"])
        assert (found["unknown_event_ids"], found["quarantines"]) == ([], [])

    def test_it_follows_what_became_of_it(self, taught: Cli) -> None:
        artifact = learned(taught)["domain:software"]["artifact_id"]
        about = (artifact, "--subject", "ada")
        event = taught("memory", "explain", *about, "--json").json["events"][0]["event_id"]
        taught("memory", "quarantine", event, "--reason", "misheard")
        taught("memory", "quarantine", "domain:software", "--reason", "a test", "--subject", "ada")
        taught("memory", "deactivate", *about, "--reason", "private", "--block")
        text = taught("memory", "explain", *about).out
        assert f"{event} put in quarantine: misheard\n" in text
        assert f"  domain:software  {event}  (in quarantine)\n" in text
        assert f"deactivated: quarantined ({event})\n" in text
        assert "deactivated: private; its signal is blocked\n" in text
        assert "  deactivated: private, its signal is blocked; weight " in text
        found = taught("memory", "explain", *about, "--json").json
        assert [each["target"] for each in found["quarantines"]] == [event, "domain:software"]
        assert found["gate_now"]["reason"] == "quarantined"

    def test_an_id_that_several_subjects_share_needs_one_of_them(self, taught: Cli) -> None:
        """The same signal in the same window gives the same id for every subject."""
        artifact = learned(taught)["intent:question"]["artifact_id"]
        assert learned(taught, "bo")["intent:question"]["artifact_id"] == artifact
        for command in (["explain", artifact], ["deactivate", artifact, "--reason", "x"]):
            outcome = taught("memory", *command)
            assert is_one_line(outcome, 2)
            assert f"artifact '{artifact}' was learned about 'ada', 'bo'; choose one with --subject" in outcome.err
        assert taught("memory", "explain", artifact, "--subject", "bo", "--json").json["subject_id"] == "bo"
        assert taught("memory", "explain", artifact, "--agent", "RESIDENT:solo", "--json").json["subject_id"] == "cy"

    @pytest.mark.parametrize("command", [["explain"], ["deactivate", "--reason", "x"]])
    def test_an_unknown_artifact_is_said(self, taught: Cli, command: list[str]) -> None:
        Path("desk.toml").write_text("[agents.desk]\n", encoding="utf-8")
        unknown = taught("memory", command[0], "ART-000000000000", *command[1:])
        assert is_one_line(unknown, 1)
        assert "artifact 'ART-000000000000' is not known in 'ADMIN'; `kitchener memory biases` lists" in unknown.err
        artifact = learned(taught)["intent:question"]["artifact_id"]
        for more, words in (
            (["--subject", "eve"], "was not learned about 'eve', but about 'ada', 'bo'"),
            (["--config", "desk.toml", "--agent", "desk"], "was not learned by agent class 'desk'; use --agent ADMIN"),
            (["--agent", "RESIDENT:other"], "is neither configured nor on record; there are: ADMIN, RESIDENT:solo"),
        ):
            outcome = taught("memory", command[0], artifact, *command[1:], *more)
            assert is_one_line(outcome, 1)
            assert words in outcome.err

    def test_of_many_turns_the_first_are_shown_and_json_has_them_all(self, cli: Cli, tmp_path: Path) -> None:
        settings = "[memory]\ngate_count_threshold = 25\ngate_session_threshold = 1\n[agents.ADMIN]\nho3_enabled = true\n"
        (tmp_path / "kitchener.toml").write_text(settings, encoding="utf-8")
        cli("run", write_messages(tmp_path / "in", *[("a", "hello")] * 30))
        artifact = learned(cli, "of a")["intent:greeting"]["artifact_id"]
        turns = len(cli("memory", "explain", artifact, "--json").json["turns"])
        assert turns >= 25
        text = cli("memory", "explain", artifact).out
        assert f"  and {turns - 20} more turns (--json has them all)\n" in text
        assert text.partition("what became of it")[0].count("    > hello\n") == 20

    def test_sealed_text_is_opened_with_its_key_and_said_to_be_sealed_without(self, cli: Cli, tmp_path: Path) -> None:
        settings = "[memory]\ngate_count_threshold = 1\ngate_session_threshold = 1\n[agents.ADMIN]\nho3_enabled = true\n"
        (tmp_path / "kitchener.toml").write_text(f'[ledger]\nkeyring = "keys"\n{settings}', encoding="utf-8")
        cli("run", write_messages(tmp_path / "in", *[("a", "hello")] * 3))
        question = learned(cli, "of a")["intent:greeting"]
        cli("memory", "deactivate", question["artifact_id"], "--reason", "a private reason")
        text = cli("memory", "explain", question["artifact_id"]).out
        assert f"{question['artifact_id']}: {question['line']}\n" in text
        assert "    > hello\n" in text
        assert "deactivated: a private reason\n" in text
        for key in (tmp_path / "keys").rglob("*.key"):
            key.unlink()
        text = cli("memory", "explain", question["artifact_id"]).out
        assert f"{question['artifact_id']}: (erased, or sealed without its key)\n" in text
        assert "deactivated: (erased, or sealed without its key)\n" in text
        assert "a private reason" not in (tmp_path / OVERLAYS).read_text(encoding="utf-8") + text


class TestDeactivate:
    def test_the_line_is_silent_and_on_record(self, taught: Cli) -> None:
        artifact = learned(taught)["intent:question"]["artifact_id"]
        outcome = taught("memory", "deactivate", artifact, "--subject", "ada", "--reason", "no longer true")
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.startswith(
            f"deactivated {artifact} of ada; its signal intent:question may be learned from again later"
        )
        assert "it had been shown in 3 turns:\n" in outcome.out
        assert PACKAGES in outcome.out
        question = learned(taught)["intent:question"]
        assert (question["state"], question["why"]) == ("deactivated", "no longer true")
        assert "1 line is no longer shown; --all shows why" in taught("memory", "biases", "--subject", "ada").out
        assert learned(taught, "bo")["intent:question"]["state"] == "speaks"

    def test_once_more_writes_nothing_but_a_block(self, taught: Cli, tmp_path: Path) -> None:
        """A later record without a block would lift the block."""
        artifact = learned(taught)["intent:question"]["artifact_id"]
        command = ("memory", "deactivate", artifact, "--subject", "ada", "--reason", "x", "--json")
        assert [taught(*command, *more).json["written"] for more in ([], [], ["--block"], ["--block"], [])] == [
            True,
            False,
            True,
            False,
            False,
        ]
        (gate,) = (
            each["gate"]["state"]
            for each in taught("memory", "signals", "--subject", "ada", "--json").json["signals"]
            if each["signal_id"] == "intent:question"
        )
        assert gate == "blocked"
        assert len(read_lines(tmp_path / OVERLAYS)) == 6 + 2

    def test_a_reason_has_to_say_something(self, taught: Cli) -> None:
        artifact = learned(taught)["intent:question"]["artifact_id"]
        for command in (["deactivate", artifact], ["quarantine", "intent:question"]):
            outcome = taught("memory", *command, "--subject", "ada", "--reason", " ")
            assert is_one_line(outcome, 2)
            assert "--reason = ' ': expected a reason" in outcome.err
        assert learned(taught)["intent:question"]["state"] == "speaks"


class TestQuarantine:
    def test_a_signal_takes_what_rests_on_it_and_names_who_was_shown_it(self, taught: Cli) -> None:
        outcome = taught("memory", "quarantine", "domain:software", "--subject", "ada", "--reason", "a test", "--json")
        assert outcome.code == 0
        assert (outcome.json["target"], outcome.json["written"]) == ("domain:software", True)
        (withdrawn,) = outcome.json["deactivated"]
        assert withdrawn["line"] == "Often talks about software."
        assert {each["message"] for each in withdrawn["shown_in"]} == {PACKAGES, DISK}
        assert learned(taught)["domain:software"]["why"] == "quarantined"
        assert learned(taught, "bo")["domain:software"]["state"] == "speaks"
        text = taught("memory", "signals", "--subject", "ada").out
        assert "········ in quarantine, does not count\n" in text
        again = taught("memory", "quarantine", "domain:software", "--subject", "ada", "--reason", "a test")
        assert again.out == "domain:software of ada is in quarantine already; nothing was written\n"

    def test_an_event_is_found_without_its_subject(self, taught: Cli) -> None:
        artifact = learned(taught, "bo")["intent:question"]["artifact_id"]
        event = taught("memory", "explain", artifact, "--subject", "bo", "--json").json["events"][0]["event_id"]
        outcome = taught("memory", "quarantine", event, "--reason", "misheard")
        assert (outcome.code, outcome.err) == (0, "")
        first, second, *_ = outcome.out.splitlines()
        assert first == f"{event} of bo is in quarantine and counts no more; without it these are deactivated:"
        assert second == f"  {artifact}: Most messages are of this kind: question."

    def test_what_supports_nothing_takes_nothing(self, taught: Cli) -> None:
        outcome = taught("memory", "quarantine", "task:lookup", "--agent", "RESIDENT:solo", "--reason", "a test")
        expected = "task:lookup of cy is in quarantine and counts no more; nothing learned lost its support\n"
        assert (outcome.code, outcome.out) == (0, expected)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["intent:question"], "'intent:question' came from 'ada', 'bo'; choose one with --subject"),
            (["intent:question", "--subject", "eve"], "came from 'ada', 'bo'; not 'eve'; nothing was written"),
            (["intent:nothing"], "nobody of agent class 'ADMIN' gave 'intent:nothing'; nothing was written"),
            (["EVT-0000000000000000"], "nobody of agent class 'ADMIN' gave 'EVT-0000000000000000'"),
            (["mood:sad"], "expected kind:value with a kind out of"),
            (["hello"], "expected kind:value with a kind out of"),
        ],
    )
    def test_a_target_that_is_not_one_subjects_is_a_mistake(self, taught: Cli, arguments: list[str], words: str) -> None:
        outcome = taught("memory", "quarantine", *arguments, "--reason", "x")
        is_unknown = "nobody" in words or "not 'eve'" in words
        assert is_one_line(outcome, 1 if is_unknown else 2)
        assert words in outcome.err
