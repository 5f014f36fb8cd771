"""References: the triple by which entries and results name one entry of a ledger."""

from collections.abc import Iterator
from typing import NamedTuple, TypedDict, TypeGuard, final


class RefMapping(TypedDict):
    """A `Ref` as a JSON object in a payload."""

    ledger_id: str
    entry_id: str
    entry_hash: str


@final
class ListedRefMapping(TypedDict):
    """A member of a list of references in a payload."""

    ref: RefMapping


@final
class RefGroup(TypedDict):
    """References to entries of one ledger in a payload. Long lists of references are written so, because this is shorter."""

    ledger_id: str
    entries: list[list[str]]
    """The id and the hash of each entry of the group."""


class Ref(NamedTuple):
    """The triple that names an entry: ledger id, entry id, and the hash of the entry's body."""

    ledger_id: str
    entry_id: str
    entry_hash: str

    @property
    def seq(self) -> int:
        """The entry's number in its ledger, which ends its id. Raises ValueError for an id of another form."""
        return int(self.entry_id.rpartition("-")[2])

    def as_mapping(self) -> RefMapping:
        """The triple as a JSON object."""
        return {"ledger_id": self.ledger_id, "entry_id": self.entry_id, "entry_hash": self.entry_hash}

    def as_listed(self) -> ListedRefMapping:
        """The triple as a member of a list of references."""
        return {"ref": self.as_mapping()}

    @classmethod
    def from_mapping(cls, mapping: RefMapping) -> "Ref":
        """Reads the triple from a payload that was read back; raises KeyError if a part is missing."""
        return cls(mapping["ledger_id"], mapping["entry_id"], mapping["entry_hash"])

    @classmethod
    def from_listed(cls, listed: ListedRefMapping) -> "Ref":
        """Reads the triple from a member of a list of references; raises KeyError if a part is missing."""
        return cls.from_mapping(listed["ref"])


def refs_in(value: object, name: str) -> Iterator[tuple[str, Ref]]:
    """The references inside a field that was read back, each with the name of the innermost field that holds it.

    Args:
        value: the field's value
        name: the field's name
    """
    if isinstance(value, list):
        for item in value:
            yield from refs_in(item, name)
    elif isinstance(value, dict):
        if value.keys() == set(Ref._fields) and all(isinstance(each, str) for each in value.values()):
            yield name, Ref(**value)
        elif _is_group(value):
            yield from ((name, ref) for ref in refs_of(value))
        else:
            for key, item in value.items():
                yield from refs_in(item, key)


def refs_of(group: RefGroup) -> Iterator[Ref]:
    """The references of a group."""
    return (Ref(group["ledger_id"], entry_id, entry_hash) for entry_id, entry_hash in group["entries"])


def _is_group(value: dict[str, object]) -> TypeGuard[RefGroup]:
    entries = value.get("entries")
    return (
        isinstance(value.get("ledger_id"), str)
        and isinstance(entries, list)
        and all(isinstance(each, list) and len(each) == 2 and all(isinstance(part, str) for part in each) for each in entries)
    )
