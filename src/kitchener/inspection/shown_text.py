"""Words for a reader: text without characters that could harm a terminal, on one line, numbers, money and times."""

import math
import re
from typing import Final

from kitchener.plain_names import cut_to

INVISIBLE: Final = (
    "\x7f-\x9f"  # DEL and C1, which terminals take for escape sequences of one character
    "\xad\u180e\u200b\u2060-\u2064\ufeff\ufff9-\ufffb"  # take no room, so two different names look alike
    "\u202a-\u202e\u2066-\u206f"  # change the direction of what follows, or its shape
    "\u2028\u2029"  # line ends that only some programs know
    "\ud800-\udfff"  # half a character, which no encoding takes
    "\U000e0000-\U000e007f"  # invisible letters
)
"""Beside C0. Joiners (U+200C, U+200D), variation selectors and the marks U+061C, U+200E and U+200F stay: scripts and emoji need
them, and a mark is a letter without width, which moves no text but its neighbours."""
_FLAG: Final = "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f"
"""A flag of a part of a country, such as Scotland: the one use of invisible letters that is shown."""
_HARMFUL = re.compile(f"({_FLAG})|[\x00-\x08\x0b-\x1f{INVISIBLE}]")
UNREADABLE: Final = "(erased, or sealed without its key)"
"""Stands for text that cannot be opened, where it is not known why."""
_SECONDS: Final = 19
"""Characters of an ISO time up to its seconds."""


def harmless(text: str) -> str:
    """`text` with a `�` for every control character but line feed and tab, and for every one that is invisible or reorders.

    A text that comes in pieces is as harmless as the whole; a flag that is cut in two loses its letters.
    """
    return _HARMFUL.sub(lambda found: found[1] or "�", text.replace("\r\n", "\n"))


def one_line(text: str, width: int) -> str:
    """`text` on one line of at most `width` characters."""
    return cut_to(" ".join(harmless(text).split()), width)


def amount_of_money(amount: float, *, signed: bool = False) -> str:
    """An amount with two decimals, or with as many as show two digits of it."""
    digits = 2 if amount == 0 or abs(amount) >= 1 else min(8, 1 - math.floor(math.log10(abs(amount))))
    return f"{amount:{'+' if signed else ''},.{digits}f}"


def short_time(iso: str) -> str:
    """An ISO time up to its seconds, as `2026-02-18 10:30:00`; other text stays as it is."""
    return iso[:_SECONDS].replace("T", " ") if iso[:1].isdigit() else iso
