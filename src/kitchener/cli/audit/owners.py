"""Turns the entries of all ledgers under a root into the owners of entries, sessions, intents, events and artifacts.

An owner is a memory namespace: an agent class and a subject. This module does not know what may refer to what; `audit.py` does.
"""

import re
from array import array
from typing import Final, NamedTuple
from urllib.parse import unquote

from kitchener.ids import OPERATOR, memory_namespace, session_of_turn, split_namespace
from kitchener.ledger import StoredEntry
from kitchener.ledger.format.imported import ImportedEntry, innermost
from kitchener.memory.recorded_signals import stored_signals
from kitchener.records import events
from kitchener.records.entries import Payload
from kitchener.records.ref import Ref

NOBODY: Final = 0
"""The number of the owner of entries that name no subject."""
_ENTRY_ID: Final = re.compile(r"E-\d{4}-\d\d-\d\d-(\d{12,})(?:\.\d\d)?")
_MEMORY: Final = ("SIGNALS", "OVERLAYS")


class Owned(NamedTuple):
    """One entry with its owner."""

    entry: StoredEntry
    payload: Payload
    """The payload in its present form."""
    agent_class: str
    """The agent class whose ledger or memory has the entry."""
    owner: int


def _name_of(ref: Ref) -> str:
    return f"{ref.entry_id[:28]} {ref.entry_hash}"


class Owners:
    """The owner of each item. Owners are numbers here; `names` has their namespaces."""

    def __init__(self) -> None:
        self.names = [""]
        """The namespace of each owner, by number; number 0 is `NOBODY`."""
        self._numbers: dict[str, int] = {"": NOBODY}
        self._entries: dict[str, list[array[int]]] = {}
        """By ledger id: the owners of its entries, by entry number, once for each ledger with this id. Ledgers of separate
        memories have equal ids."""
        self._things: dict[tuple[str, str], set[int]] = {}
        """The owners of sessions and intents, by class and id, and of events and artifacts, by id."""

    def owned(self, entry: StoredEntry) -> Owned:
        """An entry with its owner.

        Raises:
            EventVersionError: a newer version of Kitchener wrote it
        """
        payload = events.read_payload(entry.entry_type, entry.payload)
        told = innermost(entry).payload if entry.entry_type == events.CONTEXT_IMPORTED else payload
        namespace, subject_id = told.get("namespace"), payload.get("subject_id")
        if subject_id == OPERATOR:  # configured items, which turns of every subject may show
            return Owned(entry, payload, "", NOBODY)
        if entry.ledger_id in _MEMORY and isinstance(namespace, str):
            return Owned(entry, payload, split_namespace(namespace)[0] or "", self._number(namespace))
        agent_class = unquote(entry.ledger_id.partition(":")[2])
        owner = self.number(agent_class, subject_id) if isinstance(subject_id, str) else NOBODY
        return Owned(entry, payload, agent_class, owner)

    def number(self, agent_class: str | None, subject_id: str) -> int:
        """The number of a subject of an agent class as an owner."""
        return self._number(memory_namespace(agent_class, subject_id) if agent_class else subject_id)

    def note(self, owned: Owned) -> None:
        """Adds one entry. The entries of a ledger must come in order, without gaps."""
        entry, payload, agent_class, owner = owned
        ledgers = self._entries.setdefault(entry.ledger_id, [])
        if entry.seq == 1:
            ledgers.append(array("I", [NOBODY]))
        ledgers[-1].append(owner)
        if entry.entry_type == events.CONTEXT_IMPORTED or isinstance(entry, ImportedEntry):
            self._add("imported", _name_of(innermost(entry).ref), owner)
        if entry.entry_type == events.SESSION_START:
            self._add(f"session {agent_class}", entry.entity_id, owner)
        elif entry.entry_type == events.INTENT_DECLARED:
            self._add(f"intent {agent_class}", entry.entity_id, owner)
        elif entry.entry_type == events.HO3_SIGNAL:
            for event_id in stored_signals(entry):
                self._add("event", event_id, owner)
        elif entry.entry_type == events.HO3_OVERLAY:
            for name in ("artifact_id", "overlay_id"):
                self._add("artifact", str(payload.get(name)), owner)

    def of_ref(self, ref: Ref) -> set[int]:
        """The owner of the entry that a reference names; empty: there is no such entry."""
        if imported := self._things.get(("imported", _name_of(ref))):
            return imported
        named = _ENTRY_ID.fullmatch(ref.entry_id)
        seq = int(named[1]) if named is not None else 0
        return {ledger[seq] for ledger in self._entries.get(ref.ledger_id, ()) if 0 < seq < len(ledger)}

    def of_session(self, agent_class: str, session_id: object) -> set[int]:
        """The owner of a session; empty: its start is not on record, as for the pseudo-session of a consolidation."""
        return self._things.get((f"session {agent_class}", str(session_id)), set())

    def of_turn(self, agent_class: str, turn_id: object) -> set[int]:
        """The owner of the session that a turn belongs to."""
        return self.of_session(agent_class, session_of_turn(turn_id)) if isinstance(turn_id, str) else set()

    def of_intent(self, agent_class: str, intent_id: object) -> set[int]:
        """Whose words an intent holds; empty: it is not on record."""
        return self._things.get((f"intent {agent_class}", str(intent_id)), set())

    def of_event(self, event_id: str) -> set[int]:
        """The owners of a signal's event."""
        return self._things.get(("event", event_id), set())

    def of_artifact(self, artifact_id: str) -> set[int]:
        """The owners of an artifact. There may be several, because two subjects may have equal artifacts."""
        return self._things.get(("artifact", artifact_id), set())

    def _add(self, kind: str, name: str, owner: int) -> None:
        self._things.setdefault((kind, name), set()).add(owner)

    def _number(self, namespace: str) -> int:
        number = self._numbers.get(namespace)
        if number is None:
            number = self._numbers[namespace] = len(self.names)
            self.names.append(namespace)
        return number
