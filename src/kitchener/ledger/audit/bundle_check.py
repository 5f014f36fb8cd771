"""Turns a bundle into a report: whether its entries are what the ledgers recorded, and who signed their heads.

Needs only the bundle: no ledger and no settings, and a public key only to know who signed. `verify/verify.mjs` does the same in
JavaScript. `docs/proof.md` explains the checks, and lists those that only one of the two makes.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypedDict

import orjson

from kitchener.canonical import canonical_bytes
from kitchener.errors import EntryRefused
from kitchener.ledger.audit.bundle import EARLIER_FORMAT, FORMAT, MAX_BUNDLE_BYTES
from kitchener.ledger.format.checks import check_body, is_moment
from kitchener.ledger.format.lines import NO_HASH, BadLine, EntryBody, Line, chain_hash, other_bytes, split_line
from kitchener.ledger.verify.checkpoint import read_head
from kitchener.records import events
from kitchener.records.ref import Ref, refs_in
from kitchener.signing import is_public_key, is_signed, signer_id

_TOP: Final = ["entries", "format", "ledgers", "session_id", "turn_id"]
_PART: Final = ["before", "head", "ledger_id", "rows"]
_ENVELOPE: Final = ("ledger_id", "seq", "entry_id", "batch", "entry_hash", "chain_hash")
_NUMBER: Final = rb"([1-9][0-9]*)"
_BEFORE = re.compile(rb'\{"batch":\[N,N,N\],"chain_hash":"sha256:([0-9a-f]{64})","seq":N\}'.replace(b"N", _NUMBER))
_ENTRY_ID = re.compile(r"(E-[0-9]{4}-[0-9]{2}-[0-9]{2}-([0-9]{12,16}))(?:\.[0-9]{2})?")
"""The entry id in a reference; a reference to a piece of an entry has two more digits."""
_ALWAYS_SHOWN: Final = ("projection_ref", "user_message_ref", "output_ref")
"""Reference fields whose entry must be in the bundle with its body."""


class BundleFault(BadLine):
    """A fault of a bundle and its place: ledger and entry number, or a part of the bundle."""

    def __init__(self, where: str, field: str, expected: str, found: str) -> None:
        super().__init__(field, expected, found)
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {self.field}: expected {self.expected}, found {self.found}"


@dataclass(slots=True)
class ProofReport:
    """The result of verifying a bundle."""

    path: str
    """The bundle's file."""
    turn_id: str = ""
    entries: int = 0
    """Number of verified entries with a body."""
    end: str = ""
    """How the turn ended: `TURN_COMPLETED` or `TURN_ABORTED`."""
    heads: list[str] = field(default_factory=list)
    """For each ledger, a sentence that says who signed its head."""
    withheld: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """By ledger, the entries without a body: first and last id of each consecutive run. The bundle does not tell their types;
    entries of the turn itself may be among them."""
    withheld_entries: int = 0
    """Number of entries without a body."""
    notes: list[str] = field(default_factory=list)
    """Facts that could not be checked, and why."""
    fault: BundleFault | None = None
    """The first fault; None: there is none."""

    @property
    def ok(self) -> bool:
        """Whether no fault was found."""
        return self.fault is None


def verify_bundle(path: Path | str, *, public_key: str | None = None) -> ProofReport:
    """Verifies a bundle of at most `MAX_BUNDLE_BYTES` (1 GiB). Blocks: call it in a worker thread.

    Args:
        path: the bundle's file
        public_key: 64 hex digits; every head must be signed with this key. None: signed heads are checked with their own key,
            and the report names unsigned ones

    Raises:
        OSError: the file cannot be read
        SigningError: a head is signed, and `cryptography` cannot be imported
    """
    report = ProofReport(str(path))
    try:
        _check(_read_bounded(Path(path)), public_key, report)
    except BundleFault as fault:
        report.fault = fault
    except (EntryRefused, RecursionError):  # the content has no canonical form, or is nested too deeply
        report.fault = BundleFault("bundle", "form", "canonical JSON of no more than 64 levels", "something that has none")
    return report


class VerifiedPart(NamedTuple):
    """The part of one ledger, with a verified chain up to a head."""

    ledger_id: str
    """Name of the ledger."""
    lines: tuple[Line, ...]
    """The entries with a body, ascending."""
    seq: int
    """Number of the head's entry."""
    chain_hash: str
    """Chain hash of that entry, which covers every entry up to it."""
    signer: str | None
    """Who signed the head; None: nobody."""


def read_part(data: bytes, *, public_key: str | None = None) -> VerifiedPart:
    """Verifies the part of one ledger, as `write_part` wrote it with a line feed after it.

    Args:
        data: the bytes
        public_key: as in `verify_bundle`

    Raises:
        BundleFault: it is not what was written
        SigningError: the head is signed, and the `crypto` extra is not installed
    """
    try:
        part = orjson.loads(data)
        is_canonical = isinstance(part, dict) and canonical_bytes(part) + b"\n" == data
    except (orjson.JSONDecodeError, EntryRefused, RecursionError):
        is_canonical = False
    if not is_canonical or sorted(part) != _PART:
        raise BundleFault("part", "form", "the rows of a ledger as canonical JSON, and a line feed", other_bytes(len(data)))
    entries = _check_rows(part)
    last = entries[-1].line
    _check_head(part["head"], last, public_key)
    lines = tuple(entry.line for entry in entries if entry.fields)
    signed = read_head(part["head"])
    return VerifiedPart(
        last.ledger_id, lines, last.seq, f"sha256:{last.chain_hash}", signed.signer if signed is not None else None
    )


class _LedgerPart(TypedDict):
    """One ledger in a bundle; `_check_rows` and `_check_head` check the values."""

    before: object
    head: dict[str, object]
    ledger_id: str
    rows: list[object]


class _Bundle(TypedDict):
    """A bundle with the right keys."""

    entries: int
    format: str
    ledgers: list[_LedgerPart]
    session_id: str
    turn_id: str


class _Entry(NamedTuple):
    """One row of a bundle."""

    where: str
    """Ledger and number, for messages."""
    line: Line
    """The entry's line in its ledger; the body is an empty object if the bundle withholds it."""
    fields: EntryBody
    """The decoded body; empty if the bundle withholds it."""


_Chains = dict[str, dict[int, _Entry]]
"""Ledger id to the entries from the first row to the head, by number."""


def _check(data: bytes, public_key: str | None, report: ProofReport) -> None:
    bundle = _read(data)
    report.turn_id = bundle["turn_id"]
    chains: _Chains = {}
    for part in bundle["ledgers"]:
        if not isinstance(part, dict) or sorted(part) != _PART:
            raise BundleFault("bundle", "ledgers", ", ".join(_PART), other_bytes(len(canonical_bytes(part))))
        entries = _check_rows(part)
        last = entries[-1].line
        _require(last.ledger_id not in chains, "bundle", "ledgers", "each ledger once", last.ledger_id)
        report.heads.append(_check_head(part["head"], last, public_key))
        chains[last.ledger_id] = {entry.line.seq: entry for entry in entries}
        _note_withheld(last.ledger_id, entries, report)
    evidence = [entry for chain in chains.values() for entry in chain.values() if entry.fields]
    _same("bundle", "entries", len(evidence), bundle["entries"])
    _check_turn(bundle["session_id"], bundle["turn_id"], evidence, report)
    _check_refs(evidence, chains, report)
    keys = [part["head"].get("public_key") for part in bundle["ledgers"]]
    shown = [*_declared_keys(evidence), *keys]
    known = {signer_id(key): key for key in shown if isinstance(key, str) and is_public_key(key)}
    _check_projections(evidence, known, report, is_earlier=bundle["format"] == EARLIER_FORMAT)
    report.entries = len(evidence)


def _read_bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        is_too_long = os.fstat(file.fileno()).st_size > MAX_BUNDLE_BYTES  # not so of a device, which may have no end
        data = b"" if is_too_long else file.read(MAX_BUNDLE_BYTES + 1)
    _require(not is_too_long and len(data) <= MAX_BUNDLE_BYTES, "bundle", "size", f"at most {MAX_BUNDLE_BYTES:,} bytes", "more")
    return data


def _read(data: bytes) -> _Bundle:
    try:
        bundle = orjson.loads(data)
        is_canonical = canonical_bytes(bundle) + b"\n" == data
    except (orjson.JSONDecodeError, EntryRefused):
        is_canonical = False
    if not is_canonical:
        raise BundleFault("bundle", "form", "one object of canonical JSON and a line feed", other_bytes(len(data)))
    is_bundle = isinstance(bundle, dict) and sorted(bundle) == _TOP and bundle["format"] in (FORMAT, EARLIER_FORMAT)
    fits = is_bundle and all(isinstance(bundle[key], str) for key in ("session_id", "turn_id"))
    if not fits or not isinstance(bundle["ledgers"], list) or type(bundle["entries"]) is not int:
        raise BundleFault("bundle", "format", FORMAT, other_bytes(len(data)))
    found: _Bundle = bundle
    return found


def _check_rows(part: _LedgerPart) -> list[_Entry]:
    """The entries of one ledger, with a verified chain."""
    rows, ledger = part["rows"], part["ledger_id"]
    if not isinstance(rows, list) or not rows:
        raise BundleFault(str(ledger), "rows", "the chain up to the head", "none")
    seq, batch, chain = _before(part)
    entries, moment = list[_Entry](), ""
    for row in rows:
        seq += 1
        where = f"{ledger} entry {seq}"
        line, fields = _read_row(where, ledger, row)
        # For an entry without a body, only the day is known.
        time = fields["timestamp"][:26] if fields else line.entry_id[2:12]
        if time < moment[: len(time)]:
            raise BundleFault(where, "timestamp", f"not before {moment}", time)
        number, place, size = batch
        batch = (number + 1, 1, line.batch[2]) if place == size else (number, place + 1, size)
        chain = chain_hash(chain, line.ledger_id, seq, line.entry_id, line.entry_hash)
        _same(where, "seq", seq, line.seq)
        _same(where, "entry_id", f"E-{time[:10]}-{seq:012d}", line.entry_id)
        _same(where, "batch", [*batch], [*line.batch])
        _same(where, "chain_hash", f"sha256:{chain}", f"sha256:{line.chain_hash}")
        entries.append(_Entry(where, line, fields))
        moment = max(moment, time)
    _require(batch[1] == batch[2], where, "batch", "the end of a commit", str([*batch]))
    return entries


def _before(part: _LedgerPart) -> tuple[int, tuple[int, int, int], str]:
    """Number, commit and chain hash of the entry before the first row."""
    if part["before"] is None:
        return 0, (0, 1, 1), NO_HASH
    text = canonical_bytes(part["before"])
    found = _BEFORE.fullmatch(text)
    if found is None:
        raise BundleFault(str(part["ledger_id"]), "before", "batch, chain_hash and seq of an entry", other_bytes(len(text)))
    return int(found[5]), (int(found[1]), int(found[2]), int(found[3])), found[4].decode()


def _read_row(where: str, ledger_id: str, row: object) -> tuple[Line, EntryBody]:
    """A row written out as the line that it stands for, and what its body says; nothing where it has none."""
    line, is_shown = None, isinstance(row, list) and len(row) == len(_ENVELOPE)
    if isinstance(row, list) and len(row) in (len(_ENVELOPE) - 1, len(_ENVELOPE)) and isinstance(row[-1], str):
        envelope = zip(_ENVELOPE, [ledger_id, *row], strict=False)
        fields = b",".join(b'"%s":%s' % (name.encode(), canonical_bytes(value)) for name, value in envelope)
        line = split_line(b'{%s,"entry":%s}' % (fields, row[-1].encode() if is_shown else b"{}"))
    if line is None:
        raise BundleFault(
            where, "row", "seq, entry_id, batch, entry_hash, chain_hash, and a body", other_bytes(len(canonical_bytes(row)))
        )
    return line, _body(where, line) if is_shown else {}


def _body(where: str, line: Line) -> EntryBody:
    _same(where, "entry_hash", f"sha256:{line.entry_hash}", f"sha256:{hashlib.sha256(line.body).hexdigest()}")
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


def _check_head(head: dict[str, object], last: Line, public_key: str | None) -> str:
    """A sentence that says who signed the head of a chain that ends with this line."""
    where, signed = f"{last.ledger_id} head", read_head(head)
    due = {"chain_hash": f"sha256:{last.chain_hash}", "ledger_id": last.ledger_id, "seq": last.seq}
    if signed is None and (not isinstance(head, dict) or head.keys() != due.keys()):
        raise BundleFault(where, "form", f"a signed head, or {', '.join(due)}", other_bytes(len(canonical_bytes(head))))
    for name, value in due.items():
        _same(where, name, value, head[name])
    told = f"{last.ledger_id} up to entry {last.seq}"
    if signed is None:
        if public_key is not None:
            raise BundleFault(where, "sig", f"a signature by {signer_id(public_key)}", "none")
        return f"{told}: nobody, its head is not signed"
    problem = signed.problem(public_key)
    if problem is not None:
        raise BundleFault(where, problem.field, problem.expected, problem.found)
    which = "the given key" if public_key is not None else "a key that the bundle itself names"
    return f"{told}: {signed.signer} ({which}), on {signed.timestamp}"


def _check_turn(session_id: str, turn_id: str, evidence: Sequence[_Entry], report: ProofReport) -> None:
    """Checks that the evidence is the named turn's, and has exactly the executor's entries that the trace hash covers."""

    def found(entry_type: str) -> list[EntryBody]:
        ho2m = [each.fields for each in evidence if each.line.ledger_id.startswith("HO2M:")]
        return [fields for fields in ho2m if fields["entry_type"] == entry_type]

    for entry_type, entity_id in ((events.SESSION_START, session_id), (events.TURN_STARTED, turn_id)):
        begin = [[fields["entity_id"], fields["payload"].get("session_id")] for fields in found(entry_type)]
        _same(turn_id, entry_type, [[entity_id, session_id]], begin)
    sha = hashlib.sha256()
    for each in evidence:
        if each.line.ledger_id.startswith("HO1M:") and each.fields["payload"].get("turn_id") == turn_id:
            sha.update(each.line.body)
    completed = found(events.TURN_COMPLETED)
    ends = [*completed, *found(events.TURN_ABORTED)]
    told = [[fields["entity_id"], fields["payload"].get("session_id")] for fields in ends]
    _same(turn_id, "end", [[turn_id, session_id]], told)
    report.end = ends[0]["entry_type"]
    for fields in completed:
        _same(turn_id, "trace_hash", fields["payload"].get("trace_hash"), f"sha256:{sha.hexdigest()}")
    if not completed:
        report.notes.append("the turn was aborted, so no trace hash says which model and tool calls it made")


def _note_withheld(ledger_id: str, entries: Sequence[_Entry], report: ProofReport) -> None:
    """Adds the rows without a body to the report."""
    runs, last = list[tuple[str, str]](), 0
    for each in entries:
        if each.fields:
            continue
        report.withheld_entries += 1
        begin = runs.pop()[0] if runs and last == each.line.seq - 1 else each.line.entry_id
        runs.append((begin, each.line.entry_id))
        last = each.line.seq
    if runs:
        report.withheld[ledger_id] = runs


def _check_refs(evidence: Sequence[_Entry], chains: _Chains, report: ProofReport) -> None:
    outside = 0
    for entry in evidence:
        for name, ref in _refs_of(entry.fields):
            named = _ENTRY_ID.fullmatch(ref.entry_id)
            entry_id, seq = (named[1], int(named[2])) if named is not None else (ref.entry_id, 0)
            target = chains.get(ref.ledger_id, {}).get(seq)
            if name in _ALWAYS_SHOWN and (target is None or not target.fields):
                raise BundleFault(entry.where, name, f"{ref.ledger_id} {entry_id} in the bundle", "not there")
            if target is None:
                outside += 1
                continue
            stands = f"{target.line.entry_id} sha256:{target.line.entry_hash}"
            _same(entry.where, name or "ref", stands, f"{entry_id} {ref.entry_hash}")
    if outside:
        report.notes.append(f"{outside} references lead out of the bundle")


def _refs_of(fields: EntryBody) -> Iterator[tuple[str, Ref]]:
    """The references of an entry, each with the name of its field. Ignores fields that do not hold references."""
    entry_type = fields["entry_type"]
    for name in events.REF_FIELDS.get(entry_type, ()) if isinstance(entry_type, str) else ():
        yield from refs_in(fields["payload"].get(name), name)


def _declared_keys(evidence: Sequence[_Entry]) -> Iterator[object]:
    """The public keys of signers that HO2m declares."""
    for entry in evidence:
        if entry.fields["entry_type"] == events.SIGNER_DECLARED and entry.line.ledger_id.startswith("HO2M:"):
            yield entry.fields["payload"].get("public_key")


def _check_projections(evidence: Sequence[_Entry], known: Mapping[str, str], report: ProofReport, *, is_earlier: bool) -> None:
    """Checks the signature of each signed projection.

    Args:
        evidence: the entries with a body
        known: public keys of signed heads and declared signers, by signer
        report: receives a note for each unknown signer of a bundle in the earlier format, which showed no declarations
        is_earlier: whether the bundle has the earlier format
    """
    for entry in evidence:
        payload = entry.fields["payload"]
        authority = payload.get("authority")
        if entry.fields["entry_type"] != events.PROJECTION_COMPUTED or not isinstance(authority, dict):
            continue
        signer, sig = authority.get("signer"), authority.get("sig")
        if sig is None:
            continue
        if not isinstance(signer, str) or signer not in known:
            if not is_earlier:
                raise BundleFault(
                    entry.where, "authority.signer", "a signer whose key a signed head or SIGNER_DECLARED shows", str(signer)
                )
            report.notes.append(f"{entry.where}: signed by {signer}, whose key is not known here")
            continue
        unsigned = canonical_bytes({key: value for key, value in payload.items() if key != "authority"})
        if not is_signed(known[signer], unsigned, str(sig)):
            raise BundleFault(entry.where, "authority.sig", f"a signature by {signer} over this payload", str(sig))


def _require(is_so: bool, where: str, field: str, expected: str, found: str) -> None:
    if not is_so:
        raise BundleFault(where, field, expected, found)


def _same(where: str, field: str, expected: object, found: object) -> None:
    if type(expected) is not type(found) or expected != found:
        raise BundleFault(where, field, str(expected), str(found))
