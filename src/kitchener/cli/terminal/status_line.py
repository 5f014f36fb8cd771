"""Shows on a terminal what happens while nothing is printed: `writing the reply (synthesize) · 12 s`."""

from typing import Final

import anyio

from kitchener.cli.terminal.output import can_rewrite, show_status

_EVERY_S: Final = 0.25


class StatusLine:
    """One line that counts seconds, until it is cleared or something else is printed."""

    def __init__(self) -> None:
        self._text: str | None = None
        self._began = 0.0
        self._is_possible = can_rewrite()

    def begin(self) -> None:
        """Starts counting seconds."""
        self._began = anyio.current_time()

    def show(self, text: str) -> None:
        """Shows this text with the seconds from now on."""
        self._text = text
        self._draw()

    def clear(self) -> None:
        """Removes the line."""
        if self._text is not None and self._is_possible:
            show_status(None)
        self._text = None

    async def run(self) -> None:
        """Updates the seconds until it is cancelled."""
        while self._is_possible:
            self._draw()
            await anyio.sleep(_EVERY_S)

    def _draw(self) -> None:
        if self._text is not None and self._is_possible:
            show_status(f"{self._text} · {anyio.current_time() - self._began:.0f} s")
