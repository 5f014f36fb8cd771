"""Log messages beside a reply that is still written (docs/commands.md, chat)."""

import io
import sys

import pytest

from kitchener.cli.terminal.output import StandardError, begin_command, print_text, say, show_status


class Screen(io.StringIO):
    """A terminal that shows standard output and standard error."""

    def isatty(self) -> bool:
        return True


def shown_on_a_screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A terminal in place of both streams. No fixture, because pytest sets the streams anew after those."""
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen_of_errors := Screen())
    monkeypatch.setattr(screen_of_errors, "write", screen.write)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    begin_command()
    return screen


def test_a_message_within_a_line_of_a_reply_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: "sentence two of my[warning] provider answers again"."""
    screen = shown_on_a_screen(monkeypatch)
    print_text("ADMIN> two of my", end="")
    print_text("", end="")
    StandardError().write("[warning] one\n")
    say("two")
    print_text(" reply.")
    say("three")
    assert screen.getvalue() == "ADMIN> two of my\n[warning] one\ntwo\n reply.\nthree\n"


def test_a_message_replaces_a_status_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = shown_on_a_screen(monkeypatch)
    show_status("writing")
    say("one")
    assert screen.getvalue() == "writing\r\x1b[Kone\n"


def test_a_pipe_gets_the_reply_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = shown_on_a_screen(monkeypatch)
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stdout", piped)
    print_text("two of my", end="")
    say("one")
    print_text(" reply.")
    assert (piped.getvalue(), screen.getvalue()) == ("two of my reply.\n", "one\n")
