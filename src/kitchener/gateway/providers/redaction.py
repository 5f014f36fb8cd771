"""Removes API keys from an endpoint's answers: from texts, JSON values and streamed texts.

A key is found as it was sent, as addresses escape it and as JSON escapes it, because endpoints and HTTP clients quote the
address of a request; not reversed or encrypted. An endpoint that wants to reveal its key can always do so. `sent_values.py`
and `http_client.py` note the keys that are sent.
"""

import json
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote, urlsplit

from kitchener.plain_names import without_halves

MIN_SECRET_CHARS: Final = 8
"""Shorter keys count as placeholders ("none", "EMPTY") and are not removed, because that would garble ordinary words."""
MAX_SECRETS: Final = 4
"""Most keys remembered beside further configured ones; a vendor's library may renew its key."""
MASK: Final = "***"

_LEFT_IN_QUERY: Final = "?/:@!$'()*,"
"""What yarl, which writes the addresses that we send, leaves in a query besides letters, digits and `-._~`."""
_ESCAPED: Final = re.compile("%[0-9A-F]{2}")


class Redaction:
    """Removes the keys of one provider from texts and values.

    Args:
        secrets: the configured keys, which are never forgotten
    """

    def __init__(self, *secrets: str | None) -> None:
        self._secrets: list[str] = []
        self._spellings: tuple[str, ...] = ()
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
        found = {spelling for each in kept for spelling in _spellings(each)}
        self._spellings = tuple(sorted(found, key=lambda each: (-len(each), each)))
        self._pattern = re.compile("|".join(map(re.escape, self._spellings)))

    def note_login(self, address: str) -> None:
        """Remembers for ever the password in a configured address, if it has one, and what the header for it has."""
        try:
            parts = urlsplit(address)
        except ValueError:  # brackets that hold no IPv6 address; it is refused elsewhere
            return
        if parts.password is not None:
            password = unquote(parts.password)
            self.note(parts.password)
            self.note(password)
            self.note(b64encode(f"{unquote(parts.username or '')}:{password}".encode()).decode())
            self._configured = max(1, len(self._secrets))

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
            if found.end() == len(text) and any(each != found[0] and each.startswith(found[0]) for each in self._spellings):
                break
            clean += [text[after : found.start()], MASK]
            after = found.end()
        waits_from = len(text) - self._begun(text[after:])
        return "".join((*clean, text[after:waits_from])), text[waits_from:]

    def _begun(self, text: str) -> int:
        """How many characters at the end of the text could be the beginning of a key."""
        longest = 0
        for secret in self._spellings:
            at = text.find(secret[0], max(0, len(text) - len(secret) + 1))
            while at >= 0 and not secret.startswith(text[at:]):
                at = text.find(secret[0], at + 1)
            if at >= 0:
                longest = max(longest, len(text) - at)
        return longest


class RedactedPieces:
    """Removes keys from a streamed text, including keys that span several pieces, and joins characters that pieces divide.

    The returned pieces together equal `Redaction.text` of the whole text, with `U+FFFD` for half a character.
    """

    def __init__(self, redaction: Redaction) -> None:
        self._redaction, self._waiting, self._half = redaction, "", ""

    def take(self, piece: str) -> str:
        """Returns the text that can be shown now; "" if all of it may be the beginning of a key or of a character."""
        if self._half or not piece.isascii():
            piece = self._half + piece
            self._half = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""  # the next piece may have the other half
            piece = without_halves(piece.removesuffix(self._half) if self._half else piece)
        shown, self._waiting = self._redaction.split(self._waiting + piece)
        return shown

    def rest(self) -> str:
        """Returns the held-back text after the last piece."""
        waiting = self._waiting + without_halves(self._half)
        self._waiting = self._half = ""
        return self._redaction.text(waiting)


def password_in(credentials: str) -> str | None:
    """Returns the password in the value of a header of the scheme Basic; None: it holds none."""
    scheme, _, coded = credentials.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return b64decode(coded, validate=True).decode().partition(":")[2] or None
    except (NotBase64, UnicodeDecodeError):
        return None


def _spellings(secret: str) -> Iterator[str]:
    """The secret as it was sent, and as addresses and JSON write it."""
    yield secret
    for left in ("", "/", _LEFT_IN_QUERY):
        for escape in (quote, quote_plus):
            escaped = escape(secret, safe=left, errors="replace")
            yield escaped
            yield _ESCAPED.sub(lambda found: found[0].lower(), escaped)
    for is_ascii in (False, True):
        in_json = json.dumps(secret, ensure_ascii=is_ascii)[1:-1]
        yield in_json
        yield in_json.replace("/", "\\/")  # as PHP writes it
