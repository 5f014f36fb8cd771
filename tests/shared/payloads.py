"""The payloads of entries, for tests that look into them by the names of fields."""

from typing import Any

from kitchener.ledger import StoredEntry


def payload_of(entry: StoredEntry) -> dict[str, Any]:
    """The payload of an entry. Its values are of any type here: what they are is what the test is about."""
    return entry.payload
