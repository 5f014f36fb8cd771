"""What a tool reports while it runs is the status line's text, on one line and harmless."""

import pytest

from kitchener.cli.chat.shown_turn import ShownTurn
from kitchener.cli.terminal.status_line import StatusLine
from kitchener.records.turn import TextDelta, ToolProgress


class KeptLine(StatusLine):
    """A status line that keeps what it would show."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []

    def show(self, text: str) -> None:
        self.shown.append(text)


@pytest.mark.parametrize(
    ("value", "total", "message", "text"),
    [
        (None, None, None, "copy"),
        (3, None, None, "copy 3"),
        (1, 4, "file\n\x1b[31mtwo", "copy 25%: file \ufffd[31mtwo"),
        (9, 4, None, "copy 100%"),
        (1, 0, None, "copy 1"),
        (0.5, None, "x" * 500, f"copy 0.5: {'x' * 59}…"),
    ],
)
async def test_progress_is_one_short_line(value: float | None, total: float | None, message: str | None, text: str) -> None:
    status = KeptLine()
    ShownTurn("ADMIN", status).take(ToolProgress("WO-1", "copy", 1, value, total, message))
    (*_, last) = status.shown
    assert last == text


async def test_progress_does_not_write_into_a_reply_that_has_begun() -> None:
    status = KeptLine()
    shown = ShownTurn("ADMIN", status)
    shown.take(TextDelta("WO-1", 1, "Let me look. "))
    before = list(status.shown)
    shown.take(ToolProgress("WO-1", "copy", 1, 1))
    assert status.shown == before
