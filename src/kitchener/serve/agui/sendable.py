"""Makes what models and tools write fit to be sent: numbers and characters that the fast way refuses are no reason to fail."""

import json

import orjson


def as_json(value: object) -> bytes:
    """A value as JSON."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(plain(value)) if isinstance(value, str) else json.dumps(value).encode()


def plain(text: str) -> str:
    """A text that can be sent: halves of characters are replaced."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def can_be_sent(value: object) -> bool:
    """Whether a value can be sent in an event. More can be read than written: nesting has a lower limit."""
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True
