"""`kitchener run`: conversations out of a file (docs/commands.md)."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from kitchener.cli.run.run import speed_text
from tests.cli.conftest import Cli
from tests.cli.memory.gates import ASK, Gate
from tests.cli.shared.commands import finish, read_lines, start, write_messages
from tests.gateway.shared.fake_server import completion, fake_server

MIXED = (("a", "hello"), ("b", "what is the time?"), ("a", "thanks"), ("c", "hello"), ("b", "and the weather?"), ("a", "bye"))


def turns_on_record(root: Path) -> list[Any]:
    entries = (line["entry"] for line in read_lines(root / "HO2" / "ADMIN" / "ho2m.jsonl"))
    return [entry["payload"] for entry in entries if entry["entry_type"] == "TURN_COMPLETED"]


class TestResults:
    def test_they_stand_in_the_order_of_the_input_with_one_session_a_conversation(self, cli: Cli, tmp_path: Path) -> None:
        path = write_messages(tmp_path / "in", *MIXED)
        outcome = cli("run", path, "-o", "out", "--concurrency", "2")
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.startswith("6 turns in ")
        results = read_lines(tmp_path / "out")
        assert [each["conversation"] for each in results] == [name for name, _ in MIXED]
        assert [each["ordinal"] for each in results] == [1, 1, 2, 1, 2, 3]
        assert len({(each["conversation"], each["session_id"]) for each in results}) == 3
        assert len({each["turn_id"] for each in results}) == 6
        assert all(each["response"] and each["error"] is None for each in results)
        assert [list(each) for each in results] == [list(results[0])] * 6

    def test_a_reply_that_was_cut_off_says_so_also_when_the_run_is_repeated(self, cli: Cli, tmp_path: Path) -> None:
        path = write_messages(tmp_path / "in", ("a", "hello"), ("a", "thanks"))
        answers = (completion("The three reasons", finish_reason="length"), completion("There are three reasons."))
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_server(*answers)) as server:
            provider = f'[router.providers.it]\nbase_url = "{server.url}"\nmodel = "m"\n'
            settings = f'[router]\ndefault_provider = "it"\n{provider}[agents.ADMIN]\nclassify = "off"\n'
            (tmp_path / "kitchener.toml").write_text(settings, encoding="utf-8")
            assert cli("run", path, "-o", "first").code == 0
        assert cli("run", path, "-o", "second").code == 0
        for name in ("first", "second"):
            cut, whole = read_lines(tmp_path / name)
            assert (cut["response"], cut["truncated"], cut["error"]) == ("The three reasons", True, None)
            assert "truncated" not in whole

    def test_the_ledger_holds_name_subject_key_and_order(self, cli: Cli, tmp_path: Path) -> None:
        cli("run", write_messages(tmp_path / "in", *MIXED))
        sessions = cli("session", "list", "--json").json
        assert {(each["external_id"], each["subject_id"], each["turns"]) for each in sessions} == {
            ("a", "of a", 3),
            ("b", "of b", 2),
            ("c", "of c", 1),
        }
        session_id = next(each["session_id"] for each in sessions if each["external_id"] == "a")
        started = cli("ledger", "tail", "-n", "9", "--session", session_id, "--type", "TURN_STARTED", "--json").json
        assert [(each["payload"]["idempotency_key"], each["payload"]["user_message"]) for each in started] == [
            ("run:a:1", "hello"),
            ("run:a:2", "thanks"),
            ("run:a:3", "bye"),
        ]

    def test_a_second_run_does_nothing_and_writes_the_same_file(self, cli: Cli, tmp_path: Path) -> None:
        path = write_messages(tmp_path / "in", *MIXED)
        cli("run", path, "-o", "first")
        outcome = cli("run", path, "-o", "second")
        assert outcome.out == "nothing left to do: all 6 turns were done before\n"
        assert (tmp_path / "second").read_bytes() == (tmp_path / "first").read_bytes()
        assert len(turns_on_record(tmp_path / ".kitchener")) == 6

    def test_the_first_failure_is_told_also_where_no_results_are_kept(self, cli: Cli, tmp_path: Path) -> None:
        """Regression: the command said that messages failed, and nothing said why."""
        path = write_messages(tmp_path / "in", ("a", "hello"), ("a", "thanks"))
        (tmp_path / "empty.png").touch()
        outcome = cli("run", path, "--attach", "empty.png")
        assert (outcome.code, outcome.out.endswith(", 2 failed\n")) == (1, True)
        assert outcome.err == (
            "kitchener: conversation 'a', message 1: InvalidPart: part 1 is empty: expected an image or a file of 1 to"
            " 16,777,216 bytes\n"
        )

    def test_a_file_without_messages_is_called_that(self, cli: Cli, tmp_path: Path) -> None:
        outcome = cli("run", write_messages(tmp_path / "in"))
        assert (outcome.code, outcome.out) == (0, "nothing to do: the file has no messages\n")

    def test_a_schema_that_is_no_object_is_refused_in_one_sentence(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "schema.json").write_text("[]", encoding="utf-8")
        outcome = cli("run", write_messages(tmp_path / "in", ("a", "hello")), "--output-schema", "schema.json")
        expected = "kitchener: --output-schema = 'schema.json': expected a JSON schema, which is an object\n"
        assert (outcome.code, outcome.err) == (2, expected)

    def test_with_a_schema_each_result_has_an_object(self, cli: Cli, tmp_path: Path) -> None:
        """A run of the same file goes on with the objects on record; another schema is another message of the same key."""
        path = write_messages(tmp_path / "in", ("a", "hello"), ("b", "thanks"))
        schema = {
            "type": "object",
            "required": ["answer", "n"],
            "properties": {"answer": {"type": "string"}, "n": {"type": "integer"}},
        }
        (tmp_path / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
        assert cli("run", path, "-o", "first", "--output-schema", "schema.json").code == 0
        results = read_lines(tmp_path / "first")
        assert [each["output"].keys() for each in results] == [{"answer", "n"}] * 2
        assert [json.loads(each["response"]) for each in results] == [each["output"] for each in results]
        again = cli("run", path, "-o", "second", "--output-schema", "schema.json")
        assert again.out.startswith("nothing left to do")
        assert (tmp_path / "second").read_bytes() == (tmp_path / "first").read_bytes()
        (tmp_path / "schema.json").write_text('{"type": "object", "title": "other"}', encoding="utf-8")
        other = cli("run", path, "-o", "third", "--output-schema", "schema.json", "--json")
        assert (other.code, other.json["failed"]) == (1, 2)
        assert {each["error"]["kind"] for each in read_lines(tmp_path / "third")} == {"IdempotencyConflict"}

    @pytest.mark.parametrize("text", ["[]", "{", '{"type": "array"}', "\ud800"])
    def test_what_is_no_schema_is_refused(self, cli: Cli, tmp_path: Path, text: str) -> None:
        path = write_messages(tmp_path / "in", ("a", "hello"))
        (tmp_path / "schema.json").write_bytes(text.encode(errors="surrogatepass"))
        outcome = cli("run", path, "--output-schema", "schema.json")
        assert outcome.code == 2
        assert "--output-schema" in outcome.err
        assert not (tmp_path / ".kitchener").exists()

    def test_a_longer_input_runs_what_is_new(self, cli: Cli, tmp_path: Path) -> None:
        cli("run", write_messages(tmp_path / "in", *MIXED[:3]))
        outcome = cli("run", write_messages(tmp_path / "in", *MIXED), "--json")
        summary = outcome.json
        assert (summary["turns"], summary["done_before"], summary["failed"]) == (3, 3, 0)
        assert summary["seconds"] > 0

    def test_another_agent_class_has_its_own_sessions(self, cli: Cli, tmp_path: Path) -> None:
        path = write_messages(tmp_path / "in", ("a", "hello"))
        cli("run", path)
        assert cli("run", path, "--agent", "RESIDENT:bo", "--json").json["turns"] == 1
        assert (tmp_path / ".kitchener" / "HO2" / "RESIDENT%3Abo" / "ho2m.jsonl").stat().st_size > 0

    def test_a_file_is_replaced_whole_or_not_at_all(self, cli: Cli, tmp_path: Path) -> None:
        path = write_messages(tmp_path / "in", ("a", "hello"))
        (tmp_path / "out").write_text("old")
        os.chmod(tmp_path / "in", 0o600)
        cli("run", path, "-o", "out")
        assert len(read_lines(tmp_path / "out")) == 1
        assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600
        assert sorted(each.name for each in tmp_path.iterdir()) == [".kitchener", ".kitchener.keys", "in", "out"]

    def test_a_subject_may_be_left_out_and_blank_lines_are_passed_over(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "in").write_text('\n{"conversation": "a", "message": "hello"}\n\n{"conversation": "a", "message": "bye"}')
        assert cli("run", "in", "-o", "out").code == 0
        assert [each["ordinal"] for each in read_lines(tmp_path / "out")] == [1, 2]
        (session,) = cli("session", "list", "--json").json
        assert session["subject_id"] == f"anon-{session['session_id']}"

    def test_input_may_come_through_a_pipe(self, tmp_path: Path) -> None:
        text = write_messages(tmp_path / "in", *MIXED).read_text()
        outcome = finish(start("run", "/dev/stdin", "--json", cwd=tmp_path), text)
        assert outcome.json["turns"] == 6


class TestFailures:
    def test_a_changed_message_is_refused_and_ends_its_conversation_only(self, cli: Cli, tmp_path: Path) -> None:
        cli("run", write_messages(tmp_path / "in", ("a", "hello"), ("b", "hello")))
        changed = write_messages(tmp_path / "in", ("a", "good morning"), ("b", "hello"), ("a", "thanks"), ("b", "thanks"))
        outcome = cli("run", changed, "-o", "out", "--json")
        assert outcome.code == 1
        assert {key: outcome.json[key] for key in ("turns", "done_before", "failed")} == {
            "turns": 1,
            "done_before": 1,
            "failed": 2,
        }
        first, done, second, new = read_lines(tmp_path / "out")
        assert first["error"]["kind"] == "IdempotencyConflict"
        assert (first["turn_id"], first["response"]) == (None, None)
        assert second["error"]["kind"] == "NOT_RUN"
        assert (done["error"], new["error"]) == (None, None)

    def test_a_conversation_of_the_same_name_by_another_subject_is_another_one(self, cli: Cli, tmp_path: Path) -> None:
        cli("run", write_messages(tmp_path / "in", ("a", "hello")), "-o", "first")
        (tmp_path / "in").write_text('{"conversation": "a", "subject_id": "eve", "message": "hello"}\n')
        assert cli("run", "in", "-o", "out").code == 0
        (before,), (result,) = read_lines(tmp_path / "first"), read_lines(tmp_path / "out")
        assert result["session_id"] != before["session_id"]
        assert cli("run", "in").out.startswith("nothing left to do")

    def test_an_ended_session_gives_what_it_has_and_takes_no_more(self, cli: Cli, tmp_path: Path) -> None:
        cli("run", write_messages(tmp_path / "in", ("a", "hello")))
        (session,) = cli("session", "list", "--json").json
        cli("session", "end", session["session_id"])
        assert cli("run", "in").out.startswith("nothing left to do")
        outcome = cli("run", write_messages(tmp_path / "in", ("a", "hello"), ("a", "bye")), "-o", "out")
        assert outcome.code == 1
        assert [each["error"] and each["error"]["kind"] for each in read_lines(tmp_path / "out")] == [None, "SessionEnded"]

    def test_a_message_in_place_of_the_file_is_told_what_to_type(self, cli: Cli) -> None:
        outcome = cli("run", "hello")
        assert outcome.code == 2
        assert '`run` takes a file of messages. To send one message, type: echo "hello" | kitchener chat' in outcome.err
        assert "takes a file" not in cli("run", "dialogues.jsonl").err

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ('{"conversation": "a"', "expected one JSON object ("),
            ("[]", "expected one JSON object"),
            ('{"conversation": "a", "message": "x", "subject": "s"}', "not 'subject'"),
            ('{"message": "x"}', "expected `conversation`, a text that is not empty"),
            ('{"conversation": "a", "message": 5}', "expected `message`, a text that is not empty"),
            ('{"conversation": "a", "message": " "}', "expected `message`, a text that is not empty"),
            ('{"conversation": "a", "message": "x", "subject_id": ""}', "expected `subject_id` to be a text"),
            ('{"conversation": "ok", "message": "x", "subject_id": "eve"}', "expected subject_id 'of ok'"),
            ('{"conversation": "a", "message": "' + 100_001 * "x" + '"}', "at most max_message_chars = 100000, not 100001"),
            ('{"conversation": "a", "message": "\\ud800"}', "expected one JSON object ("),
        ],
    )
    def test_a_wrong_line_is_named_before_anything_runs(self, cli: Cli, tmp_path: Path, line: str, expected: str) -> None:
        path = write_messages(tmp_path / "in", ("ok", "hello"))
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
        outcome = cli("run", path, "-o", "out")
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith(f"kitchener: {path}:2: ")
        assert expected in outcome.err
        assert sorted(each.name for each in tmp_path.iterdir()) == ["in"]

    @pytest.mark.parametrize(
        ("output", "expected"),
        [
            ("in", "is the input file"),
            (".kitchener/out.jsonl", "which is for ledgers; choose another place"),
            ("no/out", "a directory that exists"),
            (".", "must be a file"),
        ],
    )
    def test_a_place_where_results_cannot_go_is_named_before_anything_runs(
        self, cli: Cli, tmp_path: Path, output: str, expected: str
    ) -> None:
        path = write_messages(tmp_path / "in", ("a", "hello"))
        outcome = cli("run", path, "-o", output)
        assert outcome.code == 2
        assert expected in outcome.err
        assert not (tmp_path / ".kitchener").exists()


@pytest.mark.parametrize(("name", "problem"), [("gone.png", "No such file or directory"), (".", "is not a regular file")])
def test_an_attachment_that_cannot_be_read_is_named_before_anything_runs(
    cli: Cli, tmp_path: Path, name: str, problem: str
) -> None:
    """Regression: each conversation failed."""
    outcome = cli("run", write_messages(tmp_path / "in", ("a", "hello")), "--attach", name)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"kitchener: --attach = {name!r}: cannot be read: {problem}\n"
    assert not (tmp_path / ".kitchener").exists()


class TestInterruption:
    MESSAGES = (("a", "hello"), ("b", "hello"), ("a", ASK), ("b", "thanks"), ("a", "bye"), ("b", "bye"))

    def check_resumed(self, tmp_path: Path) -> None:
        """Runs again without the gate: every turn is there once, and the file in order."""
        outcome = finish(start("run", "in", "-o", "out", "--json", cwd=tmp_path))
        assert outcome.code == 0
        assert (outcome.json["turns"] + outcome.json["done_before"], outcome.json["failed"]) == (6, 0)
        assert 0 < outcome.json["done_before"] < 6
        results = read_lines(tmp_path / "out")
        assert [each["ordinal"] for each in results] == [1, 1, 2, 2, 3, 3]
        done = [payload["turn_id"] for payload in turns_on_record(tmp_path / ".kitchener")]
        assert sorted(done) == sorted(each["turn_id"] for each in results)

    def test_a_run_that_was_killed_in_the_middle_of_a_turn_is_resumed_without_repeating_one(self, tmp_path: Path) -> None:
        gate = Gate(tmp_path)
        write_messages(tmp_path / "in", *self.MESSAGES)
        process = start("run", "in", "-o", "out", "--concurrency", "1", cwd=tmp_path)
        gate.wait_until_reached(process)
        process.kill()
        assert finish(process).code == -signal.SIGKILL
        assert not (tmp_path / "out").exists()
        gate.remove()
        self.check_resumed(tmp_path)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_run_that_was_interrupted_ends_in_order_and_is_resumed(self, tmp_path: Path, number: signal.Signals) -> None:
        gate = Gate(tmp_path)
        write_messages(tmp_path / "in", *self.MESSAGES)
        process = start("run", "in", "-o", "out", "--concurrency", "1", "--json", cwd=tmp_path)
        gate.wait_until_reached(process)
        process.send_signal(number)
        outcome = finish(process)
        assert outcome.code == 130
        assert "interrupted after " in outcome.err
        assert outcome.json["error"]["kind"] == "interrupted"
        assert outcome.json["error"]["message"].startswith("interrupted after ")
        assert "Traceback" not in outcome.err
        assert not (tmp_path / "out").exists()
        verified = finish(start("ledger", "verify", cwd=tmp_path))
        assert verified.code == 0
        gate.remove()
        self.check_resumed(tmp_path)

    def test_a_second_interrupt_ends_a_run_at_once(self, tmp_path: Path) -> None:
        gate = Gate(tmp_path, shutdown_grace_s=3_600)
        write_messages(tmp_path / "in", *self.MESSAGES)
        process = start("run", "in", "-o", "out", "--concurrency", "1", cwd=tmp_path)
        gate.wait_until_reached(process)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "interrupt again to stop at once" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert finish(process).code == 130
        gate.remove()
        self.check_resumed(tmp_path)


def test_results_that_are_larger_than_memory_buffers_keep_their_order(cli: Cli, tmp_path: Path) -> None:
    """Lines are found again by their byte offsets, also behind characters of several bytes and in long conversations."""
    messages = [("é" * (1 + n % 7), f"hello number {n} " + "ü" * (n % 50)) for n in range(120)]
    cli("run", write_messages(tmp_path / "in", *messages), "-o", "out", "--concurrency", "5")
    results = read_lines(tmp_path / "out")
    assert [each["conversation"] for each in results] == [name for name, _ in messages]
    stored = {}
    for line in read_lines(tmp_path / ".kitchener/HO2/ADMIN/ho2m.jsonl"):
        if line["entry"]["entry_type"] == "TURN_STARTED":
            payload = line["entry"]["payload"]
            stored[payload["turn_id"]] = payload["user_message"]
    assert [stored[each["turn_id"]] for each in results] == [text for _, text in messages]


@pytest.mark.parametrize(
    ("turns_per_s", "told"), [(0.1324, "0.13"), (2.96, "3"), (9.44, "9.4"), (41.7, "42"), (1234.5, "1,234")]
)
def test_the_speed_of_a_slow_model_is_not_nothing(turns_per_s: float, told: str) -> None:
    """Regression: "4 turns in 30.2 s (0 a second)"."""
    assert speed_text(turns_per_s) == told
