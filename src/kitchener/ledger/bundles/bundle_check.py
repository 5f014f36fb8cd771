"""Turns a bundle into a report: whether the ledgers recorded its entries, and who signed their heads.

Needs only the bundle: no ledger and no settings, and a public key only to know who signed. `verify/verify.mjs` does the same in
JavaScript. `docs/proof.md` explains the checks.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

import orjson
import rfc8785

from kitchener.canonical import canonical_bytes
from kitchener.errors import EntryRefused
from kitchener.ledger.bundles.bundle import EARLIER_FORMAT, FORMAT, MAX_BUNDLE_BYTES
from kitchener.ledger.bundles.bundle_sections import (
    CHAIN_FIELDS,
    TREE_FIELDS,
    BundleFault,
    CheckedSection,
    Entry,
    LedgerSection,
    check_section,
    references,
    require,
    same,
)
from kitchener.ledger.format.lines import EntryBody, Line, other_bytes
from kitchener.records import events
from kitchener.signing import is_public_key, is_signed, signer_id

_TOP: Final = ["entries", "format", "ledgers", "session_id", "turn_id"]
_ALWAYS_SHOWN: Final = ("projection_ref", "user_message_ref", "output_ref")
"""Reference fields whose entry must be in the bundle with its body."""


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
    """By ledger, the entries without a body: first and last of each consecutive run, by id or, where the bundle has rows of
    some entries only, by number. The bundle does not tell their types; entries of the turn itself may be among them."""
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


class VerifiedSection(NamedTuple):
    """The section of one ledger, with a verified chain up to a head."""

    ledger_id: str
    lines: tuple[Line, ...]
    """The entries with a body, ascending."""
    seq: int
    """Number of the head's entry."""
    chain_hash: str
    """Chain hash of that entry, which covers every entry up to it."""
    signer: str | None
    """Who signed the head; None: it is not signed."""


def read_section(data: bytes, *, public_key: str | None = None) -> VerifiedSection:
    """Verifies the section of one ledger, as `write_section` wrote it with a line feed after it.

    Args:
        data: the bytes
        public_key: as in `verify_bundle`

    Raises:
        BundleFault: the section differs from what was written
        SigningError: the head is signed, and `cryptography` cannot be imported
    """
    try:
        section = orjson.loads(data)
        is_canonical = isinstance(section, dict) and canonical_bytes(section) + b"\n" == data
    except (orjson.JSONDecodeError, EntryRefused, RecursionError):
        is_canonical = False
    if not is_canonical or sorted(section) != CHAIN_FIELDS:
        raise BundleFault("section", "form", "the rows of a ledger as canonical JSON, and a line feed", other_bytes(len(data)))
    found = check_section(section, public_key, [CHAIN_FIELDS])
    lines = tuple(entry.line for entry in found.shown())
    signer = found.head.signer if found.head is not None else None
    return VerifiedSection(found.ledger_id, lines, found.seq, found.chain_hash, signer)


class _Bundle(TypedDict):
    """A bundle, read from JSON with the right keys."""

    entries: int
    format: str
    ledgers: list[LedgerSection]
    session_id: str
    turn_id: str


_Sections = dict[str, CheckedSection]
"""Ledger id to its section."""


def _check(data: bytes, public_key: str | None, report: ProofReport) -> None:
    bundle = _read(data)
    report.turn_id = bundle["turn_id"]
    sections: _Sections = {}
    is_earlier = bundle["format"] == EARLIER_FORMAT
    for each in bundle["ledgers"]:
        section = check_section(each, public_key, [CHAIN_FIELDS] if is_earlier else [CHAIN_FIELDS, TREE_FIELDS])
        require(section.ledger_id not in sections, "bundle", "ledgers", "each ledger once", section.ledger_id)
        report.heads.append(section.told)
        sections[section.ledger_id] = section
        _note_withheld(section, report)
    evidence = [entry for section in sections.values() for entry in section.shown()]
    same("bundle", "entries", len(evidence), bundle["entries"])
    _check_turn(bundle["session_id"], bundle["turn_id"], evidence, report)
    _check_refs(evidence, sections, report)
    keys = [*_declared_keys(evidence), *(section.head.public_key for section in sections.values() if section.head is not None)]
    known = {signer_id(key): key for key in keys if isinstance(key, str) and is_public_key(key)}
    _check_projections(evidence, known, report, is_earlier=is_earlier)
    report.entries = len(evidence)


def _read_bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        is_too_long = os.fstat(file.fileno()).st_size > MAX_BUNDLE_BYTES  # a device may have no end
        data = b"" if is_too_long else file.read(MAX_BUNDLE_BYTES + 1)
    require(not is_too_long and len(data) <= MAX_BUNDLE_BYTES, "bundle", "size", f"at most {MAX_BUNDLE_BYTES:,} bytes", "more")
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


def _check_turn(session_id: str, turn_id: str, evidence: Sequence[Entry], report: ProofReport) -> None:
    """Checks that the evidence is the named turn's, and has exactly the executor's entries that the trace hash covers."""

    def found(entry_type: str) -> list[EntryBody]:
        ho2m = [each.fields for each in evidence if each.line.ledger_id.startswith("HO2M:")]
        return [fields for fields in ho2m if fields["entry_type"] == entry_type]

    for entry_type, entity_id in ((events.SESSION_START, session_id), (events.TURN_STARTED, turn_id)):
        begin = [[fields["entity_id"], fields["payload"].get("session_id")] for fields in found(entry_type)]
        same(turn_id, entry_type, [[entity_id, session_id]], begin)
    sha = hashlib.sha256()
    for each in evidence:
        if each.line.ledger_id.startswith("HO1M:") and each.fields["payload"].get("turn_id") == turn_id:
            sha.update(each.line.body)
    completed = found(events.TURN_COMPLETED)
    ends = [*completed, *found(events.TURN_ABORTED)]
    told = [[fields["entity_id"], fields["payload"].get("session_id")] for fields in ends]
    same(turn_id, "end", [[turn_id, session_id]], told)
    report.end = ends[0]["entry_type"]
    for fields in completed:
        same(turn_id, "trace_hash", fields["payload"].get("trace_hash"), f"sha256:{sha.hexdigest()}")
    if not completed:
        report.notes.append("the turn was aborted, so no trace hash says which model and tool calls it made")


def _note_withheld(section: CheckedSection, report: ProofReport) -> None:
    """Adds the entries without a body to the report."""
    for first, last, count in section.withheld():
        report.withheld.setdefault(section.ledger_id, []).append((first, last))
        report.withheld_entries += count


def _check_refs(evidence: Sequence[Entry], sections: _Sections, report: ProofReport) -> None:
    outside = 0
    for entry in evidence:
        for name, ref, entry_id, seq in references(entry.fields):
            section = sections.get(ref.ledger_id)
            target = section.entries.get(seq) if section is not None else None
            is_due = name in _ALWAYS_SHOWN or (section is not None and section.covers(seq))
            if (target is None and is_due) or (target is not None and name in _ALWAYS_SHOWN and not target.fields):
                raise BundleFault(entry.where, name, f"{ref.ledger_id} {entry_id} in the bundle", "not there")
            if target is None:
                outside += 1
                continue
            stands = f"{target.line.entry_id} sha256:{target.line.entry_hash}"
            same(entry.where, name or "ref", stands, f"{entry_id} {ref.entry_hash}")
    if outside:
        report.notes.append(f"{outside} references lead out of the bundle")


def _declared_keys(evidence: Sequence[Entry]) -> Iterator[object]:
    """The public keys of signers that HO2m declares."""
    for entry in evidence:
        if entry.fields["entry_type"] == events.SIGNER_DECLARED and entry.line.ledger_id.startswith("HO2M:"):
            yield entry.fields["payload"].get("public_key")


def _check_projections(evidence: Sequence[Entry], known: Mapping[str, str], report: ProofReport, *, is_earlier: bool) -> None:
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
        # Not `canonical_bytes`, which has the limits of what is written: this payload stands in a body that was checked.
        unsigned: dict[str, Any] = {key: value for key, value in payload.items() if key != "authority"}
        if not is_signed(known[signer], rfc8785.dumps(unsigned), str(sig)):
            raise BundleFault(entry.where, "authority.sig", f"a signature by {signer} over this payload", str(sig))
