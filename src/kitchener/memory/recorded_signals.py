"""Turns entries of the signals ledger, of any version, into their events, signals and turn. Pure."""

from collections.abc import Mapping

from kitchener.ledger import StoredEntry
from kitchener.records.entries import SignalPayload, payload_as
from kitchener.records.events import read_as, read_payload


def seen_in(entry: StoredEntry) -> SignalPayload:
    """The payload of an `HO3_SIGNAL`, in the current shape and in words."""
    return read_as(SignalPayload, entry)


def stored_signals(entry: StoredEntry) -> Mapping[str, str]:
    """The event ids of an `HO3_SIGNAL` with their signals in the form that the ledger stores."""
    keyed = {name: value for name, value in entry.payload.items() if name != "words"}
    return payload_as(SignalPayload, read_payload(entry.entry_type, keyed))["signals"]


def turn_of_signals(entry: StoredEntry) -> str | None:
    """The turn of an entry's signals; None: the entry names none, or its metadata is sealed and cannot be decrypted."""
    return seen_in(entry).get("turn_id")
