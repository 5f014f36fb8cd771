"""`kitchener chat`, through a pipe and on a terminal (docs/commands.md)."""

import contextlib
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import COMMAND, environment, finish, start, write_messages
from tests.cli.conftest import Cli
from tests.cli.memory.gates import ASK, Gate


class TestPipe:
    def test_each_line_is_a_message_and_replies_are_plain_text(self, cli: Cli, tmp_path: Path) -> None:
        outcome = finish(start("chat", "--subject", "ada", cwd=tmp_path), "hello\n\n//etc is a directory\nbye")
        assert (outcome.code, outcome.err) == (0, "")
        (row,) = cli("session", "list", "--json").json
        assert (row["subject_id"], row["turns"]) == ("ada", 3)
        turns = cli("session", "show", row["session_id"], "--json").json["turns"]
        assert [each["message"] for each in turns] == ["hello", "/etc is a directory", "bye"]
        assert outcome.out == "".join(f"{each['response']}\n" for each in turns)

    def test_a_session_is_gone_on_with_also_one_of_another_class(self, cli: Cli, tmp_path: Path) -> None:
        cli("run", write_messages(tmp_path / "in", ("a", "hello")), "--agent", "RESIDENT:bo")
        (row,) = cli("session", "list", "--agent", "RESIDENT:bo", "--json").json
        outcome = finish(
            start("chat", "--session", row["session_id"], cwd=tmp_path), "thanks\n/session\n/cost\n/quit\nnot run\n"
        )
        assert outcome.code == 0
        _, session, cost = outcome.out.splitlines()
        assert session == f"{row['session_id']} of RESIDENT:bo; come back with: kitchener chat --session {row['session_id']}"
        assert cost.startswith("1 turn in this chat: ")
        assert cli("session", "list", "--agent", "RESIDENT:bo", "--json").json[0]["turns"] == 2

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (["--session", "SES-00000000"], 1, "is not known"),
            (["--session", "x"], 2, "is not a session id"),
            (["--session", "{}", "--subject", "eve"], 2, "does not belong to subject 'eve'"),
        ],
    )
    def test_a_session_that_cannot_be_gone_on_with_is_refused(
        self, cli: Cli, tmp_path: Path, arguments: list[str], code: int, words: str
    ) -> None:
        cli("run", write_messages(tmp_path / "in", ("a", "hello")))
        (row,) = cli("session", "list", "--json").json
        outcome = cli("chat", *(each.format(row["session_id"]) for each in arguments), stdin=b"hello\n")
        assert (outcome.code, outcome.out) == (code, "")
        assert words in outcome.err
        assert outcome.err.count("\n") == 1

    def test_a_provider_that_is_down_is_told_and_the_exit_code_says_so(self, cli: Cli, tmp_path: Path) -> None:
        provider = '[router.providers.it]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\nbackoff_initial_s = 1e-6'
        (tmp_path / "kitchener.toml").write_text(f'[router]\ndefault_provider = "it"\n{provider}', encoding="utf-8")
        outcome = cli("chat", stdin=b"hi\n")
        assert outcome.code == 1
        assert "PROVIDER: " in outcome.err
        assert "it connection" in outcome.err, "the failed attempts are named"

    def test_input_that_is_not_text_is_a_mistake(self, cli: Cli) -> None:
        outcome = cli("chat", stdin=b"hello\n\xff\n")
        assert (outcome.code, outcome.out.count("\n")) == (2, 1)
        assert outcome.err.startswith("kitchener: the input is not UTF-8 text")

    def test_a_message_that_is_too_long_is_told_and_the_next_one_answered(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "kitchener.toml").write_text("[limits]\nmax_message_chars = 10\n", encoding="utf-8")
        outcome = cli("chat", stdin=b"hello, how are you?\nhello\n")
        assert (outcome.code, outcome.out.count("\n")) == (1, 1)
        assert "max_message_chars = 10" in outcome.err

    def test_an_endless_line_and_a_line_end_of_another_system_are_read(self, cli: Cli) -> None:
        cli("chat", stdin=b"x" * 90_000 + b"\r\nhello\r\n")
        (row,) = cli("session", "list", "--json").json
        turns = cli("session", "show", row["session_id"], "--json").json["turns"]
        assert [each["message"] for each in turns] == ["x" * 90_000, "hello"]

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_interrupt_while_it_waits_for_a_line_leaves_in_order(self, tmp_path: Path, number: signal.Signals) -> None:
        process = start("chat", cwd=tmp_path)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith("Hello!")
        process.send_signal(number)
        process.wait(30)
        outcome = finish(process)
        assert (outcome.code, outcome.err) == (130, "")
        assert finish(start("ledger", "verify", cwd=tmp_path)).code == 0

    def test_an_interrupt_in_a_turn_aborts_it_on_record(self, cli: Cli, tmp_path: Path) -> None:
        gate = Gate(tmp_path)
        process = start("chat", cwd=tmp_path)
        assert process.stdin is not None
        process.stdin.write(f"{ASK}\n")
        process.stdin.flush()
        gate.wait_until_reached(process)
        process.send_signal(signal.SIGINT)
        outcome = finish(process)
        assert (outcome.code, outcome.out) == (130, "")
        assert "Traceback" not in outcome.err
        (row,) = cli("session", "list", "--json").json
        (turn,) = cli("session", "show", row["session_id"], "--json").json["turns"]
        assert turn["state"] in ("aborted: cancelled", "aborted: shutdown")


class Terminal:
    """A chat on a terminal of its own."""

    def __init__(self, cwd: Path) -> None:
        self._main, other = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, "chat"], cwd=cwd, env=environment(), stdin=other, stdout=other, stderr=other, start_new_session=True
        )
        os.close(other)
        self.seen = ""

    def read_until(self, words: str) -> str:
        """What appeared up to `words`; a test that waits for what never comes is ended by its time limit."""
        while words not in self.seen:
            try:
                data = os.read(self._main, 65_536)
            except OSError:  # the other side is closed
                data = b""
            if not data:
                raise AssertionError(f"{words!r} did not appear in {self.seen!r}")
            self.seen += data.decode(errors="replace")
        before, _, self.seen = self.seen.partition(words)
        return before

    def type(self, text: str) -> None:
        """Types a line."""
        os.write(self._main, f"{text}\n".encode())

    def finish(self) -> int:
        """The exit code, after the rest of the output was read."""
        with contextlib.suppress(OSError):
            while data := os.read(self._main, 65_536):
                self.seen += data.decode(errors="replace")
        return self.process.wait(30)

    def close(self) -> None:
        """Ends what is still running."""
        self.process.kill()
        self.process.wait()
        os.close(self._main)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


@pytest.fixture
def terminal(gate: Gate, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


class TestTerminal:
    def test_replies_costs_and_the_way_back_are_shown(self, terminal: Terminal) -> None:
        terminal.read_until("> ")
        terminal.type("hello")
        terminal.read_until("Hello! I am")
        terminal.read_until("2 model calls · ")
        terminal.type("/nonsense")
        terminal.read_until("no such command: /nonsense; /help lists them")
        terminal.type("/help")
        terminal.read_until("/quit")
        terminal.type("/quit")
        terminal.read_until("come back with: kitchener chat --session SES-")
        assert terminal.finish() == 0

    def test_ctrl_c_at_the_prompt_leaves(self, terminal: Terminal) -> None:
        terminal.read_until("> ")
        terminal.type("/session")
        terminal.read_until("no session yet")
        terminal.read_until("> ")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.finish() == 0

    def test_ctrl_c_in_a_turn_cancels_it_and_the_chat_goes_on(self, terminal: Terminal, gate: Gate) -> None:
        terminal.read_until("> ")
        terminal.type(ASK)
        gate.wait_until_reached(terminal.process)
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("(turn cancelled)")
        gate.let_pass()
        terminal.type("hello")
        terminal.read_until("Hello! I am")
        terminal.type("/quit")
        assert terminal.finish() == 0

    def test_ctrl_c_twice_in_a_turn_leaves(self, terminal: Terminal, gate: Gate) -> None:
        terminal.read_until("> ")
        terminal.type(ASK)
        gate.wait_until_reached(terminal.process)
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("Ctrl-C again leaves")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.finish() == 130
