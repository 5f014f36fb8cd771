"""How one entry of a ledger is named anywhere else."""

from typing import Any, NamedTuple, TypedDict

import orjson


class RefMapping(TypedDict):
    """A `Ref` as it stands inside a payload."""

    ledger_id: str
    entry_id: str
    entry_hash: str


class Ref(NamedTuple):
    """The triple that names an entry: which ledger, which entry, and the hash of what it says."""

    ledger_id: str
    entry_id: str
    entry_hash: str

    def as_json(self) -> orjson.Fragment:
        """The triple as canonical JSON, to stand inside a payload: ten of them are written in a turn."""
        ledger_id, entry_id, entry_hash = self
        # Its parts are printable ASCII without quotes, which the ledger sees to.
        return orjson.Fragment(f'{{"entry_hash":"{entry_hash}","entry_id":"{entry_id}","ledger_id":"{ledger_id}"}}')

    def as_mapping(self) -> RefMapping:
        """The triple as a JSON object."""
        return {"ledger_id": self.ledger_id, "entry_id": self.entry_id, "entry_hash": self.entry_hash}

    @classmethod
    def from_mapping(cls, mapping: Any) -> "Ref":
        """The triple read back from a payload; raises KeyError where a part is missing."""
        return cls(mapping["ledger_id"], mapping["entry_id"], mapping["entry_hash"])
