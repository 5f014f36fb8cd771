"""Turns a message into text for a context, and marks lines that imitate another speaker.

A context shows a turn as `user: …` and `assistant: …`, a message of a named speaker as `Ada: …`, and a goal as `Goal: …`. A
message that contains a line break and then `assistant: I promised you …` would read as words of the agent. Such a line is
marked as quoted; all other text stays unchanged. Pure. Explained in `docs/attention.md`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from kitchener.canonical import canonical_bytes
from kitchener.records.entries.common import text_of
from kitchener.records.parts import StoredPart

QUOTED: Final = "> "
"""Prefix of a line in a message that looks like the start of another speaker's text."""

MAX_SPEAKER_CHARS: Final = 64
"""Most characters of a speaker's name."""
_MAX_LABEL: Final = MAX_SPEAKER_CHARS + len(QUOTED) + 2
_APART: Final = dict.fromkeys(map(ord, ":\uff1a[]"), " ")
"""Characters that end a label or begin another."""
USER_LABEL: Final = "user: "
ASSISTANT_LABEL: Final = "assistant: "
RECALLED_LABEL: Final = "AI: "
"""Short for `ASSISTANT_LABEL` where many replies are recalled. `as_said` marks lines that imitate either."""
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
_NAMED: Final = re.compile(
    rf"[{_BREAKS}](?={_MARKS}(?:\w[^{_BREAKS}:\uff1a]{{0,63}}[:\uff1a](?!//)|work order WO-|(?<=\[)(?:T|WO)-))", re.IGNORECASE
)
"""A line that could be a named speaker's: it begins with up to 64 characters and a colon."""


def turn_text(message: str, response: str, speaker: str | None = None) -> str:
    """A turn's message and response as later turns see them."""
    said = f"{USER_LABEL}{as_said(message)}" if speaker is None else said_by(speaker, message)
    return f"{said}\n{ASSISTANT_LABEL}{as_said(response)}"


def message_text(message: str, speaker: str | None = None) -> str:
    """A message as later turns see it, apart from its reply and under its day. Without a speaker it is the user's."""
    return f"{USER_LABEL}{_DATED.sub(_quote, as_said(message))}" if speaker is None else said_by(speaker, message)


def with_attached(message: str, part: StoredPart) -> str:
    """A message and what it brought: the image or file is named at its end."""
    return f"{message}\n[attached: {part.described}]"


def said_by(speaker: str, text: str) -> str:
    """A text of a named speaker, with every line marked that could be another speaker's."""
    return f"{speaker_label(speaker)}{_DATED.sub(_quote, _NAMED.sub(_quote, text))}"


def imported_text(text: str, speaker: str | None, *, is_reply: bool) -> str:
    """A message of an imported conversation as turns see it."""
    if speaker is not None:
        return said_by(speaker, text)
    return reply_text(text) if is_reply else message_text(text)


def speaker_label(speaker: str) -> str:
    """The label of a named speaker, such as `Ada: `. It has one line and no other colon, and imitates no other label."""
    name = " ".join("".join([each if each.isprintable() else " " for each in speaker.translate(_APART)]).split())
    label = f"{name[:MAX_SPEAKER_CHARS].rstrip() or 'user'}: "
    return as_said(f"\n{label}")[1:] if name else label


def label_of(text: str) -> str:
    """The label at the start of what was said; "": it has none, because it was erased."""
    end = text.find(": ", 0, _MAX_LABEL)
    return text[: end + 2] if end > 0 and "\n" not in text[:end] else ""


def speaker_of(label: str) -> str:
    """The speaker that a label names."""
    return label.removesuffix(": ").removeprefix(QUOTED)


def reply_text(response: str) -> str:
    """A reply as later turns see it, apart from its message and under the date of its day."""
    return f"{ASSISTANT_LABEL}{_DATED.sub(_quote, as_said(response))}"


def told_reply(completed: Mapping[str, object]) -> str:
    """The reply in a `TURN_COMPLETED` as later turns show it: with the calls that it left to the client.

    Without them, a reply that only called tools would be empty, which model providers refuse.
    """
    response, calls = text_of(completed.get("response")), completed.get("client_calls")
    if not isinstance(calls, list):
        return response
    lines = [_told_call(each) for each in calls if isinstance(each, Mapping)]
    return "\n".join([response, *lines] if response else lines)


def _told_call(call: Mapping[str, object]) -> str:
    given = canonical_bytes(call.get("arguments")).decode()
    shown = given if len(given) <= _MAX_ARGUMENTS else f"{given[:_MAX_ARGUMENTS]}…"
    return f"[asked the client to run {text_of(call.get('name'))} {shown}]"


def as_said(text: str) -> str:
    """A message as text to follow its speaker's label, with every imitating line marked."""
    return _FORGED.sub(_quote, text)


def _quote(found: re.Match[str]) -> str:
    return f"{found[0]}{QUOTED}"


_MAX_ARGUMENTS: Final = 500
"""Characters of a call's arguments that later turns are told."""
NO_MESSAGE: Final = "[no message]"
"""Stands where a reply follows no message."""
NO_REPLY: Final = "[no reply]"
"""Stands where a message got no reply."""
_REPLY_LINE: Final = f"\n{ASSISTANT_LABEL}"


def spoken_in(text: str) -> tuple[tuple[bool, str], ...]:
    """What the text of a turn, a message or a reply says: each part with whether it is a reply, without the labels."""
    if text.startswith(ASSISTANT_LABEL):
        return ((True, text.removeprefix(ASSISTANT_LABEL)),)
    message, line, reply = text.removeprefix(USER_LABEL).partition(_REPLY_LINE)
    return ((False, message), (True, reply)) if line else ((False, message),)


def as_chat(said: Iterable[tuple[bool, str]]) -> list[str]:
    """What was said as chat messages: the user's and the agent's in turn, the user's first, a reply last.

    Of two messages in a row one is made, so that roles alternate as the templates of chat models require.

    Args:
        said: texts by age, each with whether it is a reply
    """
    messages: list[str] = []
    for is_reply, text in said:
        if is_reply == len(messages) % 2:
            messages.append(text)
        elif messages:
            messages[-1] = f"{messages[-1]}\n\n{text}"
        else:
            messages += (NO_MESSAGE, text)
    if len(messages) % 2:
        messages.append(NO_REPLY)
    return messages
