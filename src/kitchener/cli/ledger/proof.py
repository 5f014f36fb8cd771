"""`kitchener ledger key`, `checkpoint` and `proof`: sign the heads of ledgers, and hand out what one turn rests on.

They take no lock and work beside a running process. Explained in `docs/proof.md`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import anyio
from cyclopts import Parameter
from cyclopts.validators import Number

from kitchener.cli.exits import DAMAGED, OK
from kitchener.cli.ledger.proof_entries import evidence_of
from kitchener.cli.options import Json, Options, Places
from kitchener.cli.terminal.output import print_json, print_text, say
from kitchener.cli.terminal.written_files import check_output, write_whole
from kitchener.clock import SystemClock, iso
from kitchener.errors import ConfigError, LedgerDamaged, LedgerError, LedgerPathError, SigningError
from kitchener.ids import session_of_turn
from kitchener.ledger import Checkpoint
from kitchener.ledger.audit.bundle import MAX_BUNDLE_BYTES, Part, Wanted, write_bundle
from kitchener.ledger.audit.bundle_check import Misfit, ProofReport, verify_bundle
from kitchener.ledger.verify.checkpoint import sign_ledger
from kitchener.signing import Signer, is_public_key, load_signer, make_key

PublicKey = Annotated[
    str | None,
    Parameter(help="Whose signatures count: 64 hex digits, as `kitchener ledger key` prints them. Then one is required."),
]
_EVERYTHING = Options()
_BUNDLE_BEGINS = b'{"entries":'
_MIB = 1_048_576
_RUNS = 20
"""Groups of withheld entries that are told for each ledger."""


def key(
    *,
    options: Options = _EVERYTHING,
    new: Annotated[Path | None, Parameter(help="Make a key in this file, which must not be there yet.")] = None,
    json: Json = False,
) -> int:
    """Show the public half of the signing key, or make a key.

    Give the public key to whoever shall check signatures. The file itself is private: who has it can sign.

    For example:

        kitchener ledger key --new keys/signing.pem
        kitchener ledger key --json
    """
    path = new if new is not None else _key_file(options)
    signer = make_key(path) if new is not None else load_signer(path)
    facts = {"path": str(path), "signer": signer.signer, "public_key": signer.public_key}
    if json:
        print_json(facts)
        return OK
    print_text(f"{'made' if new is not None else 'key'}         {path}")
    print_text(f"signer      {signer.signer}\npublic key  {signer.public_key}")
    if new is not None:
        print_text(f'\nUse it in kitchener.toml:\n\n[ledger]\nsigning_key = "{path}"')
    return OK


def checkpoint(*, options: Options = _EVERYTHING, json: Json = False) -> int:
    """Sign the head of every ledger under the root with the configured key.

    What comes after the last signed head is verified first, and that head must be in the chain; otherwise nothing is signed for
    that ledger and the exit code is 6. The head is kept beside the ledger, in `<file>.checkpoint`; keep a copy elsewhere.

    For example:

        kitchener ledger checkpoint
        kitchener ledger checkpoint --json
    """
    signer = load_signer(_key_file(options))
    heads: list[tuple[Path, Checkpoint]] = []
    faults: list[LedgerError] = []
    for path in Places(options.load().config).ledgers():
        try:
            head = sign_ledger(path, signer, iso(SystemClock().time_us()))
        except (LedgerDamaged, LedgerPathError) as fault:
            faults.append(fault)
            continue
        if head is not None:
            heads.append((path, head))
    _tell_heads(signer, heads, faults, is_json=json)
    return DAMAGED if faults else OK


def proof(
    turn: Annotated[str, Parameter(name="TURN", help="A turn id, such as T-0a1b2c3d-000001.")],
    /,
    *,
    options: Options = _EVERYTHING,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"), help="The bundle; else `./<turn>.proof.json`.")] = None,
    max_mib: Annotated[
        int, Parameter(validator=Number(gte=1, lte=MAX_BUNDLE_BYTES // _MIB), help="How large the bundle may become, MiB.")
    ] = 64,
    json: Json = False,
) -> int:
    """Write the evidence of one turn as a bundle that anybody can verify without Kitchener and without the ledgers.

    It holds the turn's own entries as they are stored (what is sealed stays sealed) and, of all others up to the head, numbers
    and hashes only. Where a head is not signed, the bundle proves no more than that it is whole, and says so.

    For example:

        kitchener ledger checkpoint
        kitchener ledger proof T-0a1b2c3d-000001 -o evidence.json
        node verify/verify.mjs evidence.json
    """
    path = output if output is not None else Path(f"{turn}.proof.json")
    check_output(path)
    wanted = anyio.run(evidence_of, options, turn)
    try:
        parts = _write(path, turn, wanted, max_mib * _MIB)
    except Misfit as fault:
        say(f"kitchener: {fault!s}; `kitchener ledger verify` says more, no bundle was written")
        return DAMAGED
    _tell_parts(turn, path, parts, is_json=json)
    return OK


def is_bundle(path: Path) -> bool:
    """Whether a file is a bundle, by how it begins."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_BUNDLE_BEGINS)) == _BUNDLE_BEGINS


def public_key_of(text: str | None) -> str | None:
    """The key of `--public-key`; raises ConfigError where it is none."""
    if text is None or is_public_key(text):
        return text
    raise ConfigError(
        "--public-key", "", repr(text[:80]), "must be 64 lower-case hex digits; `kitchener ledger key` prints them"
    )


def verify_proof(path: Path, public_key: str | None, *, is_json: bool) -> int:
    """Verifies a bundle, prints what was found and returns the exit code."""
    report = verify_bundle(path, public_key=public_key)
    if is_json:
        print_json(_proof_as_json(report))
    elif report.fault is not None:
        print_text(f"damaged  {path}: {report.fault!s}")
    else:
        print_text(f"ok       {path}: {report.entries:,} entries of turn {report.turn_id}, {report.end}")
        for line in report.heads:
            print_text(f"         vouched for: {line}")
        for ledger_id, runs in report.withheld.items():
            print_text(f"         withheld: {ledger_id}: {_told_runs(runs)}")
        for note in report.notes:
            print_text(f"         note: {note}")
    return OK if report.ok else DAMAGED


def _proof_as_json(report: ProofReport) -> dict[str, Any]:
    fault = report.fault
    told = {"where": fault.where, "field": fault.field, "expected": fault.expected, "found": fault.found} if fault else None
    return {
        "path": report.path,
        "ok": report.ok,
        "turn_id": report.turn_id,
        "entries": report.entries,
        "end": report.end,
        "heads": report.heads,
        "withheld": report.withheld,
        "withheld_entries": report.withheld_entries,
        "notes": report.notes,
        "fault": told,
    }


def _told_runs(runs: Sequence[tuple[str, str]]) -> str:
    """Entry ids of neighbours, the first so many of them."""
    told = ", ".join(first if first == last else f"{first} to {last}" for first, last in runs[:_RUNS])
    return told if len(runs) <= _RUNS else f"{told} and {len(runs) - _RUNS:,} more (--json lists all)"


def _key_file(options: Options) -> Path:
    path = options.load().config.ledger.signing_key
    if path is None:
        raise SigningError(
            "no key to sign with: make one with `kitchener ledger key --new PATH` and set signing_key in [ledger]"
        )
    return Path(path)


def _tell_heads(signer: Signer, heads: list[tuple[Path, Checkpoint]], faults: list[LedgerError], *, is_json: bool) -> None:
    if is_json:
        signed = [{"path": str(path), **head.as_json()} for path, head in heads]
        print_json({"ok": not faults, "signer": signer.signer, "heads": signed, "faults": [str(fault) for fault in faults]})
        return
    for path, head in heads:
        print_text(f"signed   {path}: entry {head.seq:,}, head {head.chain_hash}, by {head.signer}")
    for fault in faults:
        print_text(f"damaged  {fault!s}")
    if not heads and not faults:
        print_text("no entries yet, nothing to sign")


def _write(path: Path, turn_id: str, wanted: list[Wanted], max_bytes: int) -> list[Part]:
    """Writes the bundle, whole or not at all, and only if it verifies; nobody but its owner can read it."""
    session_id = str(session_of_turn(turn_id))

    def fill(file: IO[bytes]) -> list[Part]:
        parts = write_bundle(file.write, turn_id, session_id, wanted, max_bytes=max_bytes)
        file.flush()
        report = verify_bundle(file.name)
        if report.fault is not None:
            raise report.fault
        return parts

    return write_whole(path, fill)


def _tell_parts(turn_id: str, path: Path, parts: list[Part], *, is_json: bool) -> None:
    size, entries = path.stat().st_size, sum(part.entries for part in parts)
    is_signed = all(part.checkpoint is not None for part in parts)
    if is_json:
        facts = {"turn_id": turn_id, "path": str(path), "bytes": size, "entries": entries, "signed": is_signed}
        print_json({**facts, "ledgers": [part.as_json() for part in parts]})
        return
    print_text(f"{turn_id}: {entries} entries of {len(parts)} ledgers, {size:,} bytes, in {path}")
    for part in parts:
        by = f"signed by {part.checkpoint.signer}" if part.checkpoint is not None else "NOT signed"
        print_text(f"  {part.ledger_id:<16} {part.entries:>4} entries from {part.first:,} on, head {part.head_seq:,} {by}")
    if not is_signed:
        print_text(
            "Without a signature it proves only that it is whole: `kitchener ledger checkpoint` signs, then write it again."
        )
