"""Reads entries of the signals ledger, whichever version wrote them: the events, their signals and their turn. Pure."""

from collections.abc import Mapping

from kitchener.ledger import StoredEntry
from kitchener.records.entries import SignalPayload, payload_as
from kitchener.records.events import read_payload


def seen_in(entry: StoredEntry) -> SignalPayload:
    """What an `HO3_SIGNAL` says, in the current shape and in words."""
    return payload_as(SignalPayload, read_payload(entry.entry_type, entry.payload))


def stored_signals(entry: StoredEntry) -> Mapping[str, str]:
    """The event ids of an `HO3_SIGNAL` with their signals in the form that the ledger stores."""
    keyed = {name: value for name, value in entry.payload.items() if name != "words"}
    return payload_as(SignalPayload, read_payload(entry.entry_type, keyed))["signals"]


def turn_of_signals(entry: StoredEntry) -> str | None:
    """The turn that gave the signals of an entry; None: it names none, or its metadata is sealed and cannot be opened."""
    return seen_in(entry).get("turn_id")
