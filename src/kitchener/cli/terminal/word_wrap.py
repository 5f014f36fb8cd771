"""Breaks text that comes in pieces into lines at blanks. This module knows no terminal."""

import re
from typing import Final

from rich.cells import cell_len

_RUNS: Final = re.compile(r"\n|[^\S\n]+|\S+")
_FENCE: Final = "```"


class WordWrap:
    """Wraps text at blanks. Words longer than a line and lines between ``` stay whole, so that they can be copied.

    Args:
        width: cells of a line
        column: cells of the first line that are already used
    """

    def __init__(self, width: int, column: int = 0) -> None:
        self._width, self._column = width, column
        self._gap = ""
        self._word: list[str] = []
        self._size = 0
        self._is_within_word = False
        self._is_at_line_start = True
        self._is_code = False

    def add(self, piece: str) -> str:
        """Adds the next piece of the text. Returns what can be shown: all but the last word, which may be incomplete."""
        shown: list[str] = []
        for run in _RUNS.findall(piece):
            if not run.isspace():
                self._word.append(run)
                self._size += len(run)
                if self._size > self._width:
                    shown.append(self._flush())
                    self._is_within_word = True
                continue
            shown.append(self._flush())
            self._is_within_word = False
            if run == "\n":
                shown.append(run)
                self._gap, self._column, self._is_at_line_start = "", 0, True
            else:
                self._gap += run
        return "".join(shown)

    def end(self) -> str:
        """Returns the rest of the text."""
        return self._flush()

    def _flush(self) -> str:
        word = "".join(self._word)
        if not word:
            return ""
        self._word, self._size = [], 0
        if self._is_at_line_start and word.startswith(_FENCE):
            self._is_code = not self._is_code
        self._is_at_line_start = False
        gap, self._gap = self._gap, ""
        cells = cell_len(word)
        is_whole = self._is_code or self._is_within_word or not self._column
        if not is_whole and self._column + len(gap) + cells > self._width:
            self._column = cells
            return f"\n{word}"
        self._column += len(gap) + cells
        return gap + word
