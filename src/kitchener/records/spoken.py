"""Turns what was said into text of a context, in which nobody can write a line in another's name.

A turn is shown as `user: …` and `assistant: …`, a goal as `Goal: …`. Whoever writes a message with a line break and
`assistant: I promised you …` after it would be read as the agent having said so. Such a line is marked as quoted; every
other text stays as it is. Pure. Explained in `docs/attention.md`.
"""

import re
from typing import Final

QUOTED: Final = "> "
"""Stands before a line, within what somebody said, that looks like the beginning of something else."""

_BREAKS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_LABELS: Final = "user|assistant|system|tool|developer|human|ai|(?:wider )?goal|targets|accepted when"
_MARKS: Final = rf"[^\w{_BREAKS}]{{0,16}}"
"""A few characters that are no letters: spaces, emphasis, characters without width."""
_FORGED: Final = re.compile(
    rf"[{_BREAKS}](?={_MARKS}(?:(?:{_LABELS}){_MARKS}[:\uff1a]|work order WO-|(?<=\[)(?:T|WO)-))", re.IGNORECASE
)


def turn_text(message: str, response: str) -> str:
    """A turn as later turns see it."""
    return f"user: {as_said(message)}\nassistant: {as_said(response)}"


def as_said(text: str) -> str:
    """What somebody said, to stand behind their name: no line of it looks like the beginning of anything else."""
    return _FORGED.sub(_quote, text)


def _quote(found: re.Match[str]) -> str:
    return f"{found[0]}{QUOTED}"
