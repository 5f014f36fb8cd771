"""`kitchener chat`, through a pipe and on a terminal (docs/commands.md)."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from tests.cli.chat.terminal import Terminal
from tests.cli.conftest import Cli
from tests.cli.memory.gates import ASK, Gate
from tests.cli.shared.commands import finish, start, write_messages
from tests.gateway.shared.fake_server import completion, fake_server, hang


def write_settings(directory: Path, address: str, of_agent: str = "") -> None:
    """Settings of an agent that asks an endpoint for its replies only."""
    provider = f'[router]\ndefault_provider = "it"\n[router.providers.it]\nbase_url = "{address}"\nmodel = "m"\n'
    text = f'{provider}[agents.ADMIN]\nclassify = "rules"\n{of_agent}\n'
    (directory / "kitchener.toml").write_text(text, encoding="utf-8")


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
        _, session, cost, in_all = outcome.out.splitlines()
        assert session == f"{row['session_id']} of RESIDENT:bo; continue with: kitchener chat --session {row['session_id']}"
        assert cost.startswith("1 turn in this chat: ")
        assert in_all.startswith("2 turns in this session: ")
        earlier, now = (each.partition(": ")[2] for each in (cost, in_all))
        assert earlier != now
        assert cli("session", "show", row["session_id"]).out.splitlines()[-1] == f"in all: {now}"
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

    def test_a_reply_that_was_cut_is_told_beside_its_text_and_is_no_failure(self, cli: Cli, tmp_path: Path) -> None:
        cut = completion("The three reasons are", finish_reason="length")
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_server(cut)) as server:
            write_settings(tmp_path, server.url)
            outcome = cli("chat", stdin=b"why?\n")
        assert (outcome.code, outcome.out) == (0, "The three reasons are\n")
        told = "the reply was cut at the model's limit of output tokens"
        assert told in outcome.err
        (turn,) = cli("session", "show", "last", "--json").json["turns"]
        assert (turn["state"], turn["error"], turn["truncated"]) == ("completed", None, True)
        assert f"\n  ! {told}" in cli("session", "show", "last").out
        assert f"\n  completed; {told}" in cli("context", "explain", "last").out

    def test_a_turn_that_passed_its_deadline_is_one_of_the_turns_of_a_chat(self, cli: Cli, tmp_path: Path) -> None:
        """Regression: "0 turns in this chat" had tokens, where the model had classified the message."""
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_server(hang())) as server:
            write_settings(tmp_path, server.url, "turn_deadline_s = 0.3")
            outcome = cli("chat", stdin=b"hello\n/cost\n")
        assert outcome.code == 1
        assert "passed its deadline" in outcome.err
        assert outcome.out.startswith("1 turn in this chat, 1 cut off: ")

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

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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
        terminal.read_until("no such command: /nonsense; /help lists them. To begin a message with /, type //")
        terminal.type("/help")
        terminal.read_until("/quit")
        terminal.type("/quit")
        terminal.read_until("continue with: kitchener chat --session SES-")
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
        terminal.read_until("press Ctrl-C again to quit")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.finish() == 130

    def test_a_turn_whose_terminal_is_closed_ends_on_record(
        self, terminal: Terminal, gate: Gate, cli: Cli, tmp_path: Path
    ) -> None:
        """It may finish within the time for that, although nobody reads its reply."""
        terminal.read_until("> ")
        terminal.type(ASK)
        gate.wait_until_reached(terminal.process)
        terminal.hang_up()
        gate.let_pass()
        assert terminal.process.wait(30) == 130
        (row,) = cli("session", "list", "--json").json
        (turn,) = cli("session", "show", row["session_id"], "--json").json["turns"]
        assert turn["state"] == "completed"


@pytest.fixture
def colourful(gate: Gate, tmp_path: Path) -> Iterator[Terminal]:
    """A terminal of 40 columns that can rewrite a line and has colours."""
    terminal = Terminal(tmp_path, columns=40, TERM="xterm")
    yield terminal
    terminal.close()


class TestColourfulTerminal:
    def test_the_first_lines_say_who_answers_where_it_is_recorded_and_how_to_get_help(
        self, colourful: Terminal, tmp_path: Path
    ) -> None:
        banner = colourful.read_until("you> ")
        for words in ("agent ADMIN", "model offline-rules-1 of offline", str(tmp_path / ".kitchener"), "/help lists"):
            assert words in banner
        assert "kitchener init --provider" in banner

    def test_the_work_order_and_the_seconds_are_shown_until_there_is_text(self, colourful: Terminal, gate: Gate) -> None:
        colourful.read_until("you> ")
        colourful.type(ASK)
        gate.wait_until_reached(colourful.process)
        colourful.read_until("using a tool (tool_call)")
        colourful.read_until(" · 1 s")
        gate.let_pass()
        colourful.read_until("writing the reply (synthesize)")
        # The status line is gone before the speaker's name stands in its place.
        assert colourful.read_until("ADMIN> ").endswith("\r\x1b[K\x1b[1;32m")
        colourful.type("/quit")
        assert colourful.finish() == 0

    def test_speakers_have_names_and_colours_and_long_lines_break_at_blanks(self, colourful: Terminal) -> None:
        assert colourful.read_until("you> ").endswith("\x1b[1;36m")
        colourful.type("hello")
        colourful.read_until("ADMIN> \x1b[0m")
        reply = colourful.read_until("\x1b[2m").splitlines()
        assert len(reply) > 2
        assert len("ADMIN> ") + len(reply[0]) <= 40
        assert all(len(line) <= 40 for line in reply)
        assert " ".join(reply).split()[-4:] == ["provider", "for", "real", "answers."]

    def test_a_cancelled_turn_and_its_calls_are_part_of_the_cost(self, colourful: Terminal, gate: Gate) -> None:
        colourful.read_until("you> ")
        colourful.type(ASK)
        gate.wait_until_reached(colourful.process)
        colourful.process.send_signal(signal.SIGINT)
        colourful.read_until("(turn cancelled)")
        gate.let_pass()
        colourful.type("/cost")
        colourful.read_until("1 turn in this chat, 1 cancelled: ")
        assert not colourful.read_until(" tokens in").startswith("0")
        colourful.read_until("cost 0.00")
        colourful.type("/quit")
        assert colourful.finish() == 0

    def test_no_color_leaves_names_and_wrapping_without_colours(self, gate: Gate, tmp_path: Path) -> None:
        terminal = Terminal(tmp_path, columns=40, TERM="xterm", NO_COLOR="1")
        try:
            terminal.read_until("you> ")
            terminal.type("hello")
            terminal.read_until("ADMIN> ")
            terminal.read_until("2 model calls")
            terminal.type("/quit")
            assert terminal.finish() == 0
            assert "\x1b[1;" not in terminal.seen
        finally:
            terminal.close()

    def test_escapes_in_a_reply_are_text_also_where_colours_are_shown(self, colourful: Terminal) -> None:
        colourful.read_until("you> ")
        colourful.type("hello \x1b\x07there 🏴")
        colourful.read_until("ADMIN> \x1b[0m")
        assert "\x07" not in colourful.read_until("model calls")


def test_a_dumb_terminal_gets_neither_colours_nor_rewritten_lines(terminal: Terminal) -> None:
    before = terminal.read_until("you> ")
    terminal.type("hello")
    before += terminal.read_until("model calls")
    assert "\x1b" not in before
    assert "ADMIN> Hello! I am" in before


def test_cost_counts_money_by_the_configured_prices(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "kitchener.toml").write_text(
        "[router.prices.offline-rules-1]\ninput_per_million = 1000000.0\noutput_per_million = 0.0\n"
    )
    outcome = cli("chat", stdin=b"hello\n/cost\n")
    assert outcome.code == 0
    used = outcome.out.splitlines()[-1]
    tokens = used.partition(": ")[2].partition(" tokens in")[0]
    assert used.endswith(f"; cost {tokens}.00")


@pytest.mark.parametrize(
    ("question", "setting"), [("/why", "context_mode"), ("/intents", "context_mode"), ("/memory", "ho3_enabled")]
)
def test_what_is_off_says_how_it_is_turned_on(cli: Cli, question: str, setting: str) -> None:
    answer = cli("chat", stdin=f"hello\n{question}\n".encode()).out
    assert f"`{setting} = " in answer
    assert "as `kitchener init` writes it" in answer


def test_leaving_says_that_something_is_still_learned(tmp_path: Path) -> None:
    """Regression: a chat with a slow model ended up to ten seconds after `/quit`, without a word."""
    memory = "ho3_enabled = true\n[memory]\ngate_count_threshold = 1\ngate_session_threshold = 1\n"
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(fake_server(completion("Fine."), hang())) as server,
    ):
        write_settings(tmp_path, server.url, f"{memory}[limits]\nshutdown_grace_s = 0.5")
        terminal = Terminal(tmp_path)
        try:
            terminal.read_until("you> ")
            terminal.type("find me a hotel in Oslo")
            terminal.read_until("1 model call")
            terminal.type("/quit")
            terminal.read_until("(still learning from what was said, for at most 0.5 s; Ctrl-C leaves at once)")
            assert terminal.finish() == 0
        finally:
            terminal.close()
