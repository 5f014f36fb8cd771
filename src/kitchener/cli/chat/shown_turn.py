"""Shows a turn as it happens: its activity while the model is silent, then the reply under its speaker's name."""

import shutil
from collections.abc import Mapping
from typing import Final

from kitchener.cli.terminal.output import print_text
from kitchener.cli.terminal.status_line import StatusLine
from kitchener.cli.terminal.word_wrap import WordWrap
from kitchener.inspection.shown_text import harmless
from kitchener.inspection.turn_views.turn_end import CUT
from kitchener.plain_names import cut_to
from kitchener.records.entries import WorkOrderType
from kitchener.records.turn import (
    TextDelta,
    TextRetracted,
    ToolProgress,
    ToolRan,
    TurnResult,
    TurnUpdate,
    WorkOrderPlanned,
)

_WIDEST: Final = 100
"""Most cells in a line of a reply, because longer lines are hard to read."""
_PROGRESS_CELLS: Final = 60
"""Most characters of a tool's own words on the status line."""
_DOING: Final[Mapping[WorkOrderType, str]] = {
    "classify": "reading the message",
    "tool_call": "using a tool",
    "synthesize": "writing the reply",
    "verify": "checking the reply",
    "consolidate": "learning",
}


class ShownTurn:
    """One turn on a terminal.

    Args:
        speaker: the name of the replying agent
        status: shows the activity while there is no text
    """

    def __init__(self, speaker: str, status: StatusLine) -> None:
        self._label, self._status = f"{speaker}> ", status
        self._said: list[str] = []
        self._lines: WordWrap | None = None
        status.begin()
        status.show("starting")

    def take(self, update: TurnUpdate) -> None:
        """Shows the next update."""
        if isinstance(update, WorkOrderPlanned):
            self._doing(update.wo_type)
        elif isinstance(update, TextDelta):
            self._say(update.text)
        elif isinstance(update, TextRetracted):
            if self._said:
                self._end_line()
                print_text("(withdrawn, another attempt follows)", style="pale")
            self._said.clear()
        elif isinstance(update, ToolProgress) and self._lines is None:
            self._status.show(_progress(update))
        elif isinstance(update, ToolRan):
            print_text(f"({update.tool_id}{' failed' if update.is_error else ''})", style="pale")

    def finish(self, result: TurnResult) -> None:
        """Shows the reply of the completed turn, unless this text is already shown."""
        self._status.clear()
        is_shown = "".join(self._said).strip() == result.response.strip()
        self._end_line()
        if not is_shown:
            self._say(result.response)
            self._end_line()
        if result.truncated:
            print_text(f"({CUT})", style="pale")

    def break_off(self) -> None:
        """Ends the line of a turn that failed."""
        self._status.clear()
        self._end_line()

    def _doing(self, wo_type: WorkOrderType) -> None:
        if self._lines is None:
            self._status.show(f"{_DOING[wo_type]} ({wo_type})")

    def _say(self, text: str) -> None:
        self._status.clear()
        if self._lines is None:
            self._lines = WordWrap(min(_WIDEST, shutil.get_terminal_size().columns), len(self._label))
            print_text(self._label, end="", style="agent")
        self._said.append(text)
        # `harmless` comes first, because it changes the text that is counted.
        print_text(self._lines.add(harmless(text)), end="")

    def _end_line(self) -> None:
        if self._lines is not None:
            print_text(self._lines.end())
        self._lines = None


def _progress(update: ToolProgress) -> str:
    """The progress of a tool in one short line."""
    done = "" if update.value is None else f" {update.value:g}"
    if update.value is not None and update.total:
        done = f" {max(0.0, min(1.0, update.value / update.total)):.0%}"
    said = "" if update.message is None else f": {cut_to(' '.join(harmless(update.message).split()), _PROGRESS_CELLS)}"
    return f"{update.tool_id}{done}{said}"
