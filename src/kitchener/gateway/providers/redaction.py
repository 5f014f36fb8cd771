"""Removes API keys from an endpoint's answers: from texts, JSON values and streamed texts.

A key is found only in the form in which it was sent, not in base64, with URL escapes or reversed. An endpoint that wants to
reveal its key can always do so. `http_client.py` notes the keys that are sent; `models.py` redacts the answers.
"""

import re
from typing import Any, Final

MIN_SECRET_CHARS: Final = 8
"""Shorter keys count as placeholders ("none", "EMPTY") and are not removed, because that would garble ordinary words."""
MAX_SECRETS: Final = 4
"""Most keys remembered beside further configured ones; a vendor's library may renew its key."""
MASK: Final = "***"


class Redaction:
    """Removes the keys of one provider from texts and values.

    Args:
        secrets: the configured keys, which are never forgotten
    """

    def __init__(self, *secrets: str | None) -> None:
        self._secrets: list[str] = []
        self._pattern: re.Pattern[str] | None = None
        self._configured = 1
        for each in secrets:
            if each is not None:
                self._configured = max(1, len(self._secrets) + 1)
                self.note(each)

    def note(self, secret: str) -> None:
        """Remembers a key that was sent. Ignores keys shorter than `MIN_SECRET_CHARS`."""
        if len(secret) < MIN_SECRET_CHARS or secret in self._secrets:
            return
        first = self._configured
        kept = [*self._secrets[:first], *self._secrets[first:][2 - MAX_SECRETS :], secret]
        self._secrets = kept
        # Longest first, because one key may be a prefix of another.
        self._pattern = re.compile("|".join(re.escape(each) for each in sorted(kept, key=len, reverse=True)))

    def is_in(self, text: str) -> bool:
        """Whether the text contains a key."""
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
        """Returns the text without keys, and the end of the text that may be the beginning of a key and must wait."""
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
        longest = 0
        for secret in self._secrets:
            at = text.find(secret[0], max(0, len(text) - len(secret) + 1))
            while at >= 0 and not secret.startswith(text[at:]):
                at = text.find(secret[0], at + 1)
            if at >= 0:
                longest = max(longest, len(text) - at)
        return longest


class RedactedPieces:
    """Removes keys from a streamed text, including keys that span several pieces.

    The returned pieces together equal `Redaction.text` of the whole text.
    """

    def __init__(self, redaction: Redaction) -> None:
        self._redaction, self._waiting = redaction, ""

    def take(self, piece: str) -> str:
        """Returns the text that can be shown now; "" if all of it may still be the beginning of a key."""
        shown, self._waiting = self._redaction.split(self._waiting + piece)
        return shown

    def rest(self) -> str:
        """Returns the held-back text after the last piece."""
        waiting, self._waiting = self._waiting, ""
        return self._redaction.text(waiting)
