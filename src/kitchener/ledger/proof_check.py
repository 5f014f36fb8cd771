"""Verifies bundles: is what one turn's evidence says what was on record, and who says so.

Needs nothing but the bundle: no ledger, no settings, and a public key only to know who signed. `verify/verify.mjs` does the
same in another language and gives the same verdicts. Explained in `docs/proof.md`.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from kitchener.canonical import canonical_bytes
from kitchener.errors import EntryRefused
from kitchener.ledger.chain import NO_HASH, BadLine, Line, chain_hash, shown, split_line
from kitchener.ledger.checkpoint import Checkpoint, read_head
from kitchener.ledger.proof import FORMAT
from kitchener.ledger.verifier import check_body, is_moment
from kitchener.records import events
from kitchener.signing import is_signed, signer_id

_TOP: Final = ("entries", "format", "ledgers", "session_id", "turn_id")
_PART: Final = ("before", "head", "ledger_id", "lines", "rows")
_REF: Final = {"ledger_id", "entry_id", "entry_hash"}
_ENTRY_ID = re.compile(r"E-([0-9]{4}-[0-9]{2}-[0-9]{2})-([0-9]{12,})")
_PIECE = re.compile(r"(.*)\.[0-9]{2}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_ALWAYS_SHOWN: Final = ("projection_ref", "user_message_ref", "output_ref")
"""Fields whose entry has to be in the bundle, and not only in its chain."""


class Misfit(BadLine):
    """What is wrong with a bundle, and where: ledger and entry number, or a part of the bundle."""

    def __init__(self, where: str, field: str, expected: str, found: str) -> None:
        super().__init__(field, expected, found)
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {self.field}: expected {self.expected}, found {self.found}"


@dataclass(slots=True)
class ProofReport:
    """What verifying a bundle found."""

    path: str
    """The file."""
    turn_id: str = ""
    entries: int = 0
    """Entries that it shows and that are right."""
    heads: list[str] = field(default_factory=list)
    """For each ledger, who vouches for it."""
    notes: list[str] = field(default_factory=list)
    """What could not be checked, and why."""
    fault: Misfit | None = None
    """The first thing that is wrong; None: nothing."""

    @property
    def ok(self) -> bool:
        """Whether all of it is right."""
        return self.fault is None


def verify_bundle(path: Path | str, *, public_key: str | None = None) -> ProofReport:
    """Checks a bundle. Blocks: call it in a worker thread.

    Args:
        path: its file
        public_key: every head must be signed with this key, 64 hex digits; None: signed heads are checked with the key that
            they name themselves, and unsigned ones are told in the report

    Raises:
        OSError: it cannot be read
        SigningError: a head is signed, and the `crypto` extra is not installed
    """
    report = ProofReport(str(path))
    try:
        _check(Path(path).read_bytes(), public_key, report)
    except Misfit as fault:
        report.fault = fault
    except RecursionError:
        report.fault = Misfit("bundle", "form", "no more than 64 levels", "more")
    return report


def _check(data: bytes, public_key: str | None, report: ProofReport) -> None:
    bundle = _read(data)
    report.turn_id = bundle["turn_id"]
    parts = [_PartCheck(each, public_key) for each in bundle["ledgers"]]
    ids = [part.ledger_id for part in parts]
    _require(len(set(ids)) == len(ids), "bundle", "ledgers", "each ledger once", ", ".join(ids))
    for part in parts:
        report.heads.append(part.check())
    shown_entries = sum(len(part.bodies) for part in parts)
    _same("bundle", "entries", shown_entries, bundle["entries"])
    _check_turn(bundle["session_id"], bundle["turn_id"], parts, report)
    _check_refs(parts, report)
    _check_projections(parts, public_key, report)
    report.entries = shown_entries


def _read(data: bytes) -> dict[str, Any]:
    try:
        bundle = orjson.loads(data)
        is_canonical = canonical_bytes(bundle) + b"\n" == data
    except (orjson.JSONDecodeError, EntryRefused):
        is_canonical = False
    if not is_canonical:
        raise Misfit("bundle", "form", "one object of canonical JSON and a line feed", shown(data))
    is_bundle = isinstance(bundle, dict) and tuple(sorted(bundle)) == _TOP and bundle["format"] == FORMAT
    fits = is_bundle and all(isinstance(bundle[key], str) for key in ("session_id", "turn_id"))
    if not fits or not isinstance(bundle["ledgers"], list) or type(bundle["entries"]) is not int:
        raise Misfit("bundle", "format", FORMAT, shown(data))
    found: dict[str, Any] = bundle
    return found


class _PartCheck:
    """One ledger's part of a bundle."""

    def __init__(self, part: Any, public_key: str | None) -> None:
        if not isinstance(part, dict) or tuple(sorted(part)) != _PART or not isinstance(part["ledger_id"], str):
            raise Misfit("bundle", "ledgers", ", ".join(_PART), shown(canonical_bytes(part)))
        self.ledger_id: str = part["ledger_id"]
        self.checkpoint: Checkpoint | None = None
        self.bodies: dict[int, tuple[bytes, dict[str, Any]]] = {}
        """Stored bytes and content of the entries it shows, by number."""
        self.rows: dict[int, list[Any]] = {}
        self._part, self._public_key = part, public_key

    def check(self) -> str:
        """Who vouches for it; raises Misfit where anything is wrong."""
        seq, chain, vouches = self._check_head()
        self._check_rows(seq, chain)
        self._check_lines()
        return vouches

    def _check_head(self) -> tuple[int, str, str]:
        head, where = self._part["head"], f"{self.ledger_id} head"
        signed = read_head(head)
        if signed is None:
            names = sorted(head) if isinstance(head, dict) else []
            _same(where, "form", ["chain_hash", "ledger_id", "seq"], names)
            _same(where, "ledger_id", self.ledger_id, head["ledger_id"])
            if self._public_key is not None:
                raise Misfit(where, "sig", f"a signature by {signer_id(self._public_key)}", "none")
            return (
                head["seq"],
                head["chain_hash"],
                f"{self.ledger_id} up to entry {head['seq']}: nobody, its head is not signed",
            )
        _same(where, "ledger_id", self.ledger_id, signed.ledger_id)
        problem = signed.problem(self._public_key)
        if problem is not None:
            raise Misfit(where, problem.field, problem.expected, problem.found)
        self.checkpoint = signed
        which = "the given key" if self._public_key is not None else "a key that the bundle itself names"
        vouches = f"{self.ledger_id} up to entry {signed.seq}: {signed.signer} ({which}), on {signed.timestamp}"
        return signed.seq, signed.chain_hash, vouches

    def _check_rows(self, head_seq: int, head_chain: str) -> None:
        before, rows = self._part["before"], self._part["rows"]
        seq, chain, batch, day = 0, f"sha256:{NO_HASH}", [0, 1, 1], ""
        if before is not None:
            is_one = isinstance(before, dict) and sorted(before) == ["batch", "chain_hash", "seq"]
            if (
                not is_one
                or type(before["seq"]) is not int
                or not _is_hash(before["chain_hash"])
                or not _is_batch(before["batch"])
            ):
                raise Misfit(self.ledger_id, "before", "batch, chain_hash, seq", shown(canonical_bytes(before)))
            seq, chain, batch = before["seq"], before["chain_hash"], before["batch"]
        if not isinstance(rows, list) or not rows:
            raise Misfit(self.ledger_id, "rows", "the chain up to the head", "none")
        for row in rows:
            seq += 1
            where = f"{self.ledger_id} row {seq}"
            day = self._check_row(where, row, seq, day)
            is_new = batch[1] == batch[2]
            _same(where, "batch", [batch[0] + 1, 1, row[2][2]] if is_new else [batch[0], batch[1] + 1, batch[2]], row[2])
            batch = row[2]
            chain = f"sha256:{chain_hash(chain[7:], self.ledger_id, seq, row[1], row[3][7:])}"
            _same(where, "chain_hash", chain, row[4])
            self.rows[seq] = row
        _same(f"{self.ledger_id} head", "seq", seq, head_seq)
        _same(f"{self.ledger_id} head", "chain_hash", chain, head_chain)
        _same(
            f"{self.ledger_id} row {seq}",
            "batch",
            "the end of a commit",
            "the end of a commit" if batch[1] == batch[2] else batch,
        )

    def _check_row(self, where: str, row: Any, seq: int, day: str) -> str:
        """The day of a row that has the form of one."""
        is_row = isinstance(row, list) and len(row) == 5 and _is_batch(row[2]) and _is_hash(row[3]) and _is_hash(row[4])
        if not is_row or type(row[0]) is not int or not isinstance(row[1], str):
            raise Misfit(where, "form", "seq, entry_id, batch, entry_hash, chain_hash", shown(canonical_bytes(row)))
        _same(where, "seq", seq, row[0])
        found = _ENTRY_ID.fullmatch(row[1])
        if found is None or found[2] != f"{seq:012d}" or found[1] < day:
            raise Misfit(where, "entry_id", f"E-(date from {day or 'any'} on)-{seq:012d}", row[1])
        return found[1]

    def _check_lines(self) -> None:
        lines, last, stamp = self._part["lines"], 0, ""
        if not isinstance(lines, list) or not all(isinstance(each, str) for each in lines):
            raise Misfit(self.ledger_id, "lines", "lines of the ledger", "something else")
        for text in lines:
            raw = text.encode()
            line = split_line(raw)
            if line is None:
                raise Misfit(f"{self.ledger_id} line after entry {last}", "framing", "a line of a ledger", shown(raw))
            where = f"{self.ledger_id} entry {line.seq}"
            if line.seq <= last or line.seq not in self.rows:
                raise Misfit(where, "seq", f"an entry of the chain, after {last}", str(line.seq))
            last = line.seq
            fields = self._check_line(where, line)
            if fields["timestamp"][:26] < stamp[:26]:
                raise Misfit(where, "timestamp", f"not before {stamp}", fields["timestamp"])
            stamp = fields["timestamp"]
            self.bodies[line.seq] = line.body, fields

    def _check_line(self, where: str, line: Line) -> dict[str, Any]:
        row = self.rows[line.seq]
        _same(where, "ledger_id", self.ledger_id, line.ledger_id)
        _same(where, "entry_hash", f"sha256:{line.entry_hash}", f"sha256:{hashlib.sha256(line.body).hexdigest()}")
        _same(where, "entry_id", row[1], line.entry_id)
        _same(where, "batch", row[2], [*line.batch])
        _same(where, "entry_hash", row[3], f"sha256:{line.entry_hash}")
        _same(where, "chain_hash", row[4], f"sha256:{line.chain_hash}")
        fields = _body(where, line.body)
        _same(where, "entry_id", f"E-{fields['timestamp'][:10]}-{line.seq:012d}", line.entry_id)
        return fields


def _body(where: str, body: bytes) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = orjson.loads(body)
        check_body(fields, body)
    except orjson.JSONDecodeError as error:
        raise Misfit(where, "entry", "canonical JSON", f"{shown(body)} ({error})") from error
    except BadLine as fault:
        raise Misfit(where, fault.field, fault.expected, fault.found) from fault
    stamp = fields["timestamp"]
    if not isinstance(stamp, str) or not is_moment(stamp.encode()):
        raise Misfit(where, "timestamp", "UTC with microseconds", shown(canonical_bytes(stamp)))
    return fields


def _check_turn(session_id: str, turn_id: str, parts: Sequence[_PartCheck], report: ProofReport) -> None:
    """Whether it is the evidence of the turn it names, with the very entries of the executor that the turn was hashed over."""
    ho2m = [fields for part in parts if part.ledger_id.startswith("HO2M:") for _, fields in part.bodies.values()]
    for entry_type, entity_id in ((events.SESSION_START, session_id), (events.TURN_STARTED, turn_id)):
        found = [each for each in ho2m if (each["entry_type"], each["entity_id"]) == (entry_type, entity_id)]
        _require(len(found) == 1, turn_id, entry_type, f"one about {entity_id}", str(len(found)))
        _same(turn_id, f"{entry_type} session_id", session_id, found[0]["payload"].get("session_id"))
    ends = [each["payload"] for each in ho2m if (each["entry_type"], each["entity_id"]) == (events.TURN_COMPLETED, turn_id)]
    if not ends:
        report.notes.append("the turn was not completed, so no trace hash is on record")
        return
    sha = hashlib.sha256()
    for part in parts:
        for body, fields in part.bodies.values() if part.ledger_id.startswith("HO1M:") else ():
            if fields["payload"].get("turn_id") == turn_id:
                sha.update(body)
    _same(turn_id, "trace_hash", ends[0].get("trace_hash"), f"sha256:{sha.hexdigest()}")


def _check_refs(parts: Sequence[_PartCheck], report: ProofReport) -> None:
    by_id, outside = {part.ledger_id: part for part in parts}, 0
    for part in parts:
        for seq, (_, fields) in part.bodies.items():
            for name, ref in _refs(fields["payload"], ""):
                target = by_id.get(ref["ledger_id"])
                piece = _PIECE.fullmatch(ref["entry_id"])
                entry_id = piece[1] if piece is not None else ref["entry_id"]
                named = _ENTRY_ID.fullmatch(entry_id)
                number = int(named[2]) if named is not None else 0
                where = f"{part.ledger_id} entry {seq}"
                if name in _ALWAYS_SHOWN and (target is None or number not in target.bodies):
                    raise Misfit(where, name, f"{ref['ledger_id']} {entry_id} in the bundle", "not there")
                if target is None or number not in target.rows:
                    outside += 1
                    continue
                row = target.rows[number]
                _same(where, name or "ref", f"{row[1]} {row[3]}", f"{entry_id} {ref['entry_hash']}")
    if outside:
        report.notes.append(f"{outside} references lead out of the bundle")


def _refs(value: Any, name: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Every reference in a payload, and the field it stands in."""
    if isinstance(value, list):
        for item in value:
            yield from _refs(item, name)
    elif isinstance(value, dict):
        if set(value) == _REF and all(isinstance(each, str) for each in value.values()):
            yield name, value
        else:
            for key, item in value.items():
                yield from _refs(item, key)


def _check_projections(parts: Sequence[_PartCheck], public_key: str | None, report: ProofReport) -> None:
    keys = [part.checkpoint.public_key for part in parts if part.checkpoint is not None]
    known = {signer_id(key): key for key in ([public_key] if public_key is not None else keys)}
    for part in parts:
        for seq, (_, fields) in part.bodies.items():
            payload, authority = fields["payload"], fields["payload"].get("authority")
            if not isinstance(authority, dict) or authority.get("sig") is None:
                continue
            where, signer = f"{part.ledger_id} entry {seq}", authority.get("signer")
            if not isinstance(signer, str) or signer not in known:
                report.notes.append(f"{where}: signed by {signer}, whose key is not known here")
                continue
            unsigned = canonical_bytes({key: value for key, value in payload.items() if key != "authority"})
            if not is_signed(known[signer], unsigned, str(authority["sig"])):
                raise Misfit(where, "authority.sig", f"a signature by {signer} over this payload", str(authority["sig"]))


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _is_batch(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(_is_count, value)) and bool(value[1] <= value[2])


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _require(is_so: bool, where: str, field: str, expected: str, found: str) -> None:
    if not is_so:
        raise Misfit(where, field, expected, found)


def _same(where: str, field: str, expected: Any, found: Any) -> None:
    if type(expected) is not type(found) or expected != found:
        raise Misfit(where, field, str(expected), str(found))
