"""Takes API keys out of whatever an endpoint says: texts, values, and texts that come in pieces.

A key is found as it was sent. Encoded forms of it (base64, URL escapes, reversed) are not looked for: an endpoint that wants
to tell its key can always do so. Neighbours: `http_client.py` notes the keys that go out, `models.py` cleans what comes back.
"""

import re
from typing import Any, Final

MIN_SECRET_CHARS: Final = 8
"""Shorter keys are taken for placeholders ("none", "EMPTY") and not looked for: their removal would garble ordinary words."""
MAX_SECRETS: Final = 4
"""Keys that are remembered; a vendor's library may renew its own."""
MASK: Final = "***"


class Redaction:
    """The keys of one provider, and how to leave them out.

    Args:
        secret: the configured key; None: none is configured
    """

    def __init__(self, secret: str | None = None) -> None:
        self._secrets: list[str] = []
        self._pattern: re.Pattern[str] | None = None
        if secret is not None:
            self.note(secret)

    def note(self, secret: str) -> None:
        """This key went out, too."""
        if len(secret) < MIN_SECRET_CHARS or secret in self._secrets:
            return
        kept = [*self._secrets[:1], *self._secrets[1:][2 - MAX_SECRETS :], secret]
        self._secrets = kept
        # The longest first, where one begins like another.
        self._pattern = re.compile("|".join(re.escape(each) for each in sorted(kept, key=len, reverse=True)))

    def is_in(self, text: str) -> bool:
        """Whether a key stands in the text."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def text(self, text: str) -> str:
        """The text with `***` for each key."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def value(self, value: Any) -> Any:
        """A JSON value with `***` for each key in its texts and names. Its depth has been checked before."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(name): self.value(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self.value(each) for each in value]
        return value

    def split(self, text: str) -> tuple[str, str]:
        """The text so far without keys, and its end where that may be the beginning of a key and has to wait."""
        if self._pattern is None:
            return text, ""
        clean, after = [], 0
        for found in self._pattern.finditer(text):
            if found.end() == len(text) and any(each != found[0] and each.startswith(found[0]) for each in self._secrets):
                break
            clean += [text[after : found.start()], MASK]
            after = found.end()
        waits_from = len(text) - self._begun(text[after:])
        return "".join((*clean, text[after:waits_from])), text[waits_from:]

    def _begun(self, text: str) -> int:
        """How many characters at the end of the text could be the beginning of a key."""
        for length in range(min(max(map(len, self._secrets)) - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(len(each) > length and each.startswith(end) for each in self._secrets):
                return length
        return 0


class RedactedPieces:
    """A text that comes in pieces, with the keys left out although one may stand across several pieces.

    The pieces that come out, put together, are what `Redaction.text` makes of those that went in.
    """

    def __init__(self, redaction: Redaction) -> None:
        self._redaction, self._waiting = redaction, ""

    def take(self, piece: str) -> str:
        """What may be shown now; "" where all of it may yet turn out to be a key."""
        shown, self._waiting = self._redaction.split(self._waiting + piece)
        return shown

    def rest(self) -> str:
        """What was held back, once the text has ended."""
        waiting, self._waiting = self._waiting, ""
        return self._redaction.text(waiting)
