"""Turns the section of one ledger in a bundle into verified entries: the ledger recorded each of them, up to a head.

A section has one of two forms. One has a row for every entry up to the head, which the chain links. The other has rows of some
entries only, and the hashes that lead from them to the root of the Merkle tree in the head (`format.tree`).
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, NotRequired, TypedDict

import orjson

from kitchener.canonical import canonical_bytes, digest
from kitchener.ledger.format.checks import check_body, is_moment
from kitchener.ledger.format.lines import NO_HASH, BadLine, EntryBody, Line, chain_hash, entry_id_of, other_bytes, split_line
from kitchener.ledger.format.tree import hash_bytes, leaf_of, leaf_of_segment, root_between, tree_hash
from kitchener.ledger.verify.checkpoint import Checkpoint, read_head
from kitchener.records import events
from kitchener.records.ref import Ref, refs_in
from kitchener.signing import signer_id

CHAIN_FIELDS: Final = ["before", "head", "ledger_id", "rows"]
"""The fields of a section with a row for every entry."""
TREE_FIELDS: Final = ["head", "ledger_id", "path", "rows", "segments"]
"""The fields of a section with the rows of some entries."""
_ENVELOPE: Final = ("ledger_id", "seq", "entry_id", "batch", "entry_hash", "chain_hash")
_NUMBER: Final = rb"([1-9][0-9]{0,15})"
_HASH: Final = rb'"sha256:([0-9a-f]{64})"'
_BEFORE = re.compile(rb'\{"batch":\[N,N,N\],"chain_hash":H,"seq":N\}'.replace(b"N", _NUMBER).replace(b"H", _HASH))
_TREE_HEAD = re.compile(
    rb'\{"chain_hash":H,"ledger_id":"[ !#-\[\]-{}~]+","segments":N,"seq":N,"tree":H\}'.replace(b"N", _NUMBER).replace(
        b"H", _HASH
    )
)
_PATH = re.compile(rb"\[(?:H(?:,H)*)?\]".replace(b"H", b'"sha256:[0-9a-f]{64}"'))
_SEGMENTS = re.compile(rb"\[S(?:,S)*\]".replace(b"S", rb"\[N,N,N\]").replace(b"N", b"[1-9][0-9]{0,15}"))
_ENTRY_ID = re.compile(r"(E-[0-9]{4}-[0-9]{2}-[0-9]{2}-([0-9]{12,16}))(?:\.[0-9]{2})?")
"""The entry id in a reference; a reference to a piece of an entry has two more digits."""


class BundleFault(Exception):
    """A fault of a bundle and its place: ledger and entry number, or a part of the bundle.

    `field` is the part of a line, as in a `BadLine`, a field of the bundle, or one of an entry.
    """

    def __init__(self, where: str, field: str, expected: str, found: str) -> None:
        self.where, self.field, self.expected, self.found = where, field, expected, found
        super().__init__(f"{where}: {field}: expected {expected}, found {found}")


class Entry(NamedTuple):
    """One row of a bundle."""

    where: str
    """Ledger and number, for messages."""
    line: Line
    """The entry's line in its ledger; the body is an empty object if the bundle withholds it."""
    fields: EntryBody
    """The decoded body; empty if the bundle withholds it."""
    leaf: bytes
    """The line's leaf in the Merkle tree of its segment."""


class LedgerSection(TypedDict):
    """One ledger in a bundle, with either `before`, or `path` and `segments`; `check_section` checks the values."""

    before: NotRequired[object]
    head: dict[str, object]
    ledger_id: str
    path: NotRequired[list[str]]
    rows: list[object]
    segments: NotRequired[list[list[int]]]


class CheckedSection(NamedTuple):
    """The section of one ledger, all of it verified."""

    ledger_id: str
    entries: dict[int, Entry]
    """The entries of the rows, by number."""
    head: Checkpoint | None
    """The signed head; None: it is not signed."""
    seq: int
    """Number of the head's entry."""
    chain_hash: str
    """Chain hash of that entry, `sha256:…`."""
    told: str
    """A sentence that says who signed the head."""
    is_tree: bool
    """Whether the section has rows of some entries only."""

    def shown(self) -> list[Entry]:
        """The entries with a body, ascending."""
        return [entry for entry in self.entries.values() if entry.fields]

    def covers(self, seq: int) -> bool:
        """Whether an entry is between the first row and the head."""
        return next(iter(self.entries)) <= seq <= self.seq

    def withheld(self) -> Iterator[tuple[str, str, int]]:
        """First and last of each run of entries without a body, from the first row to the head, and their number.

        Names them by their ids, and in a section with rows of some entries by their numbers.
        """
        rows = list(self.entries.values())
        ends = [entry.line.seq for entry in rows if entry.fields] + [self.seq + 1]
        after = rows[0].line.seq
        for end in ends:
            if after < end:
                first, last = (self._name(each) for each in (after, end - 1))
                yield first, last, end - after
            after = end + 1

    def _name(self, seq: int) -> str:
        return str(seq) if self.is_tree else self.entries[seq].line.entry_id


def check_section(section: LedgerSection, public_key: str | None, fields: Sequence[Sequence[str]]) -> CheckedSection:
    """Verifies the section of one ledger.

    Args:
        section: the section
        public_key: the key that must have signed the head; None: the head's own key, and it need not be signed
        fields: the forms that are allowed, each by its fields

    Raises:
        BundleFault: the section differs from what was written
        SigningError: the head is signed, and `cryptography` cannot be imported
    """
    if not isinstance(section, dict) or sorted(section) not in fields:
        found = other_bytes(len(canonical_bytes(section)))
        raise BundleFault("bundle", "ledgers", " or ".join(", ".join(each) for each in fields), found)
    is_tree = "path" in section
    entries = _check_rows(section, None if is_tree else _before(section))
    last = entries[-1].line
    due = {"chain_hash": f"sha256:{last.chain_hash}", "ledger_id": last.ledger_id, "seq": last.seq}
    head = section["head"]
    if is_tree:
        due = _check_tree_head(last, head)
    signed, told = _check_head(head, due, public_key)
    if is_tree:
        _check_tree(section, entries)
    by_seq = {entry.line.seq: entry for entry in entries}
    return CheckedSection(last.ledger_id, by_seq, signed, _number(due["seq"]), str(due["chain_hash"]), told, is_tree)


def references(fields: EntryBody) -> Iterator[tuple[str, Ref, str, int]]:
    """The references of an entry: the field's name, the reference, id and number of the entry that it leads to.

    Ignores fields without references. The number is 0 if the reference has no entry id.
    """
    entry_type = fields["entry_type"]
    for name in events.REF_FIELDS.get(entry_type, ()) if isinstance(entry_type, str) else ():
        for field, ref in refs_in(fields["payload"].get(name), name):
            named = _ENTRY_ID.fullmatch(ref.entry_id)
            yield (field, ref, named[1], int(named[2])) if named is not None else (field, ref, ref.entry_id, 0)


class _At(NamedTuple):
    """The entry before a row."""

    seq: int
    batch: tuple[int, int, int]
    chain: str


_START: Final = _At(0, (0, 1, 1), NO_HASH)


def _check_rows(section: LedgerSection, before: _At | None) -> list[Entry]:
    """The entries of one ledger. Values that follow from the row before are compared with it.

    Args:
        section: the ledger's section
        before: the entry before the first row, and no row may be missing; None: rows of some entries, ascending
    """
    rows, ledger = section["rows"], section["ledger_id"]
    if not isinstance(rows, list) or not rows:
        raise BundleFault(str(ledger), "rows", "rows of entries", "none")
    entries, moment, is_tree, at = list[Entry](), "", before is None, before or _START
    for row in rows:
        entry = _read_row(ledger, row, at.seq + 1)
        line, fields, where = entry.line, entry.fields, entry.where
        # For an entry without a body, only the day is known.
        time = fields["timestamp"][:26] if fields else line.entry_id[2:12]
        if time < moment[: len(time)]:
            raise BundleFault(where, "timestamp", f"not before {moment}", time)
        same(where, "entry_id", entry_id_of(time[:10], line.seq), line.entry_id)
        if is_tree and line.seq > at.seq + 1:
            require(line.batch[1] <= line.batch[2], where, "batch", "a place in its commit", str([*line.batch]))
        else:
            _check_link(entry, at)
        entries.append(entry)
        at, moment = _At(line.seq, line.batch, line.chain_hash), max(moment, time)
    require(is_tree or at.batch[1] == at.batch[2], where, "batch", "the end of a commit", str([*at.batch]))
    return entries


def _check_link(entry: Entry, at: _At) -> None:
    """Compares an entry with the values that follow from the entry before it."""
    line, (number, place, size) = entry.line, at.batch
    batch = (number + 1, 1, line.batch[2]) if place == size else (number, place + 1, size)
    same(entry.where, "seq", at.seq + 1, line.seq)
    same(entry.where, "batch", [*batch], [*line.batch])
    chain = chain_hash(at.chain, line.ledger_id, line.seq, line.entry_id, line.entry_hash)
    same(entry.where, "chain_hash", f"sha256:{chain}", f"sha256:{line.chain_hash}")


def _before(section: LedgerSection) -> _At:
    """The entry before the first row."""
    if section["before"] is None:
        return _START
    text = canonical_bytes(section["before"])
    found = _BEFORE.fullmatch(text)
    if found is None:
        raise BundleFault(str(section["ledger_id"]), "before", "batch, chain_hash and seq of an entry", other_bytes(len(text)))
    return _At(int(found[5]), (int(found[1]), int(found[2]), int(found[3])), found[4].decode())


def _read_row(ledger_id: str, row: object, due: int) -> Entry:
    """The line that a row stands for, and the fields of its body; no fields if the row has no body."""
    line, link, is_shown = None, b"", isinstance(row, list) and len(row) == len(_ENVELOPE)
    if isinstance(row, list) and len(row) in (len(_ENVELOPE) - 1, len(_ENVELOPE)) and isinstance(row[-1], str):
        envelope = zip(_ENVELOPE, [ledger_id, *row], strict=False)
        link = b",".join(b'"%s":%s' % (name.encode(), canonical_bytes(value)) for name, value in envelope)
        line = split_line(b'{%s,"entry":%s}' % (link, row[-1].encode() if is_shown else b"{}"))
    if line is None:
        expected = "seq, entry_id, batch, entry_hash, chain_hash, and a body"
        raise BundleFault(f"{ledger_id} entry {due}", "row", expected, other_bytes(len(canonical_bytes(row))))
    where = f"{ledger_id} entry {line.seq}"
    return Entry(where, line, _body(where, line) if is_shown else {}, leaf_of(b"{%s}" % link))


def _body(where: str, line: Line) -> EntryBody:
    same(where, "entry_hash", f"sha256:{line.entry_hash}", digest(line.body))
    try:
        fields: EntryBody = orjson.loads(line.body)
        check_body(fields, line.body)
    except orjson.JSONDecodeError as error:
        raise BundleFault(where, "entry", "canonical JSON", f"{other_bytes(len(line.body))} ({error})") from error
    except BadLine as fault:
        raise BundleFault(where, fault.field, fault.expected, fault.found) from fault
    stamp = fields["timestamp"]
    if not isinstance(stamp, str) or not is_moment(stamp.encode()):
        raise BundleFault(where, "timestamp", "UTC with microseconds", other_bytes(len(canonical_bytes(stamp))))
    return fields


def _check_tree_head(last: Line, head: object) -> dict[str, object]:
    """The fields that a head with a tree must have: from the last row, or else as given. Checks no signature."""
    where, text = f"{last.ledger_id} head", canonical_bytes(head)
    signed = read_head(head)
    is_one = (
        signed.tree is not None and signed.frontier is None if signed is not None else _TREE_HEAD.fullmatch(text) is not None
    )
    if not is_one or not isinstance(head, dict):
        raise BundleFault(where, "form", "a head with `segments` and `tree`", other_bytes(len(text)))
    require(head["seq"] >= last.seq, where, "seq", f"at least {last.seq}", str(head["seq"]))
    if head["seq"] > last.seq:
        return {**_unsigned(head), "ledger_id": last.ledger_id}
    require(last.batch[1] == last.batch[2], where, "batch", "the end of a commit", str([*last.batch]))
    return {**_unsigned(head), "ledger_id": last.ledger_id, "chain_hash": f"sha256:{last.chain_hash}"}


def _unsigned(head: Mapping[str, object]) -> dict[str, object]:
    return {name: head[name] for name in ("chain_hash", "ledger_id", "segments", "seq", "tree")}


def _check_head(head: object, due: Mapping[str, object], public_key: str | None) -> tuple[Checkpoint | None, str]:
    """The signed head, None if it is not signed, and a sentence that says who signed it.

    Args:
        head: the head
        due: the fields that it must have
        public_key: the key that must have signed it; None: its own
    """
    where, signed = f"{due['ledger_id']} head", read_head(head)
    is_one = signed.frontier is None if signed is not None else isinstance(head, dict) and head.keys() == due.keys()
    if not is_one or not isinstance(head, dict):
        raise BundleFault(where, "form", f"a signed head, or {', '.join(due)}", other_bytes(len(canonical_bytes(head))))
    for name, value in due.items():
        same(where, name, value, head[name])
    told = f"{due['ledger_id']} up to entry {due['seq']}"
    if signed is None:
        if public_key is not None:
            raise BundleFault(where, "sig", f"a signature by {signer_id(public_key)}", "none")
        return None, f"{told}: nobody, its head is not signed"
    problem = signed.problem(public_key)
    if problem is not None:
        raise BundleFault(where, problem.field, problem.expected, problem.found)
    which = "the given key" if public_key is not None else "a key that the bundle itself names"
    return signed, f"{told}: {signed.signer} ({which}), on {signed.timestamp}"


def _check_tree(section: LedgerSection, entries: Sequence[Entry]) -> None:
    """Compares the root of the head's tree with the one computed from the rows and the hashes beside their paths."""
    head, ledger_id = section["head"], entries[0].line.ledger_id
    bounds, leaves = _bounds(section, ledger_id), {entry.line.seq: entry.leaf for entry in entries}
    if _PATH.fullmatch(canonical_bytes(section["path"])) is None:
        raise BundleFault(ledger_id, "path", "a list of hashes", other_bytes(len(canonical_bytes(section["path"]))))
    seqs, taken = [*leaves], set[int]()
    path, used = section["path"], 0

    def given(_low: int, _high: int) -> bytes:
        nonlocal used
        require(used < len(path), ledger_id, "path", "a hash beside every path", f"only {len(path)}")
        used += 1
        return hash_bytes(path[used - 1])

    def root_of_segment(number: int) -> bytes:
        first, last = bounds[number]
        rows = seqs[bisect_left(seqs, first) : bisect_right(seqs, last)]
        require(bool(rows), ledger_id, "segments", "segments with rows", f"segment {number} without")
        taken.update(rows)
        return leaf_of_segment(ledger_id, first, last, root_between(first, last + 1, rows, given, leaves.__getitem__))

    root = root_between(1, _number(head["segments"]) + 1, [*bounds], given, root_of_segment)
    same(ledger_id, "segments", len(seqs), len(taken))  # each row is in one of them
    same(ledger_id, "path", used, len(path))
    seq, count = _number(head["seq"]), _number(head["segments"])
    same(f"{ledger_id} head", "tree", tree_hash(ledger_id, seq, str(head["chain_hash"]), count, root), head["tree"])


def _bounds(section: LedgerSection, ledger_id: str) -> dict[int, tuple[int, int]]:
    """Numbers of the first and last entry of each segment that has rows, by the segment's number, ascending."""
    text = canonical_bytes(section["segments"])
    if _SEGMENTS.fullmatch(text) is None:
        raise BundleFault(ledger_id, "segments", "number, first and last entry of segments", other_bytes(len(text)))
    count, end = _number(section["head"]["segments"]), _number(section["head"]["seq"])
    found, before, after = dict[int, tuple[int, int]](), 0, 0
    for number, first, last in section["segments"]:
        # The first segment begins with entry 1, the last ends with the head's entry, and each begins where the one before ends.
        is_next, is_last = number == before + 1, number == count
        fits = before < number <= count and first <= last <= end and (last == end) == is_last
        fits = fits and (first == after + 1 if is_next else first > after + 1)
        require(fits, ledger_id, "segments", f"segments of {end} entries in order", str([number, first, last]))
        found[number], before, after = (first, last), number, last
    return found


def _number(value: object) -> int:
    """A number whose form was checked."""
    return value if isinstance(value, int) else 0


def require(is_so: bool, where: str, field: str, expected: str, found: str) -> None:
    """Raises BundleFault unless `is_so`."""
    if not is_so:
        raise BundleFault(where, field, expected, found)


def same(where: str, field: str, expected: object, found: object) -> None:
    """Raises BundleFault unless both are equal and of the same type."""
    if type(expected) is not type(found) or expected != found:
        raise BundleFault(where, field, str(expected), str(found))
