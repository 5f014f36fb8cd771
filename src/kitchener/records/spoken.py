"""Turns a message into text for a context, and marks lines that imitate another speaker.

A context shows a turn as `user: …` and `assistant: …`, and a goal as `Goal: …`. A message that contains a line break and then
`assistant: I promised you …` would read as words of the agent. Such a line is marked as quoted; all other text stays
unchanged. Pure. Explained in `docs/attention.md`.
"""

import re
from typing import Final

QUOTED: Final = "> "
"""Prefix of a line in a message that looks like the start of another speaker's text."""

USER_LABEL: Final = "user: "
ASSISTANT_LABEL: Final = "assistant: "
_BREAKS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_LABELS: Final = "user|assistant|system|tool|developer|human|ai|(?:wider )?goal|targets|accepted when"
_MARKS: Final = rf"[^\w{_BREAKS}]{{0,16}}"
"""Up to 16 characters that are not letters: spaces, emphasis, zero-width characters."""
_FORGED: Final = re.compile(
    rf"[{_BREAKS}](?={_MARKS}(?:(?:{_LABELS}){_MARKS}[:\uff1a]|work order WO-|(?<=\[)(?:T|WO)-))", re.IGNORECASE
)
_DAYS: Final = r"today|undated|(?:mon|tue|wed|thu|fri|sat|sun)\b|\d{4}-"
_DATED: Final = re.compile(rf"[{_BREAKS}](?={_MARKS}(?<=\[)(?:{_DAYS}))", re.IGNORECASE)
"""A line that looks like the heading of a day, under which messages and replies stand."""


def turn_text(message: str, response: str) -> str:
    """A turn's message and response as later turns see them."""
    return f"{USER_LABEL}{as_said(message)}\n{ASSISTANT_LABEL}{as_said(response)}"


def message_text(message: str) -> str:
    """A message as later turns see it, apart from its reply and under the date of its day."""
    return f"{USER_LABEL}{_DATED.sub(_quote, as_said(message))}"


def reply_text(response: str) -> str:
    """A reply as later turns see it, apart from its message and under the date of its day."""
    return f"{ASSISTANT_LABEL}{_DATED.sub(_quote, as_said(response))}"


def as_said(text: str) -> str:
    """A message as text to follow its speaker's label, with every imitating line marked."""
    return _FORGED.sub(_quote, text)


def _quote(found: re.Match[str]) -> str:
    return f"{found[0]}{QUOTED}"
