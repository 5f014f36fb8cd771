"""`kitchener ledger accept-head`: after a backup was restored, say on record that what is there is the ledger."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kitchener.cli.exits import DAMAGED, NEGATIVE, OK
from kitchener.cli.options import Json, LedgerPaths, Options
from kitchener.cli.terminal.output import print_json, print_text
from kitchener.clock import SystemClock, iso
from kitchener.errors import CallerError, LedgerDamaged, LedgerPathError
from kitchener.ledger import Checkpoint
from kitchener.ledger.audit.accept_head import Accepted
from kitchener.ledger.audit.accept_head import accept_head as accept
from kitchener.ledger.reader import index_dirs_of
from kitchener.ledger.verify.checkpoint import sign_ledger
from kitchener.signing import load_signer

_EVERYTHING = Options()


def accept_head(
    path: Annotated[Path | None, Parameter(name="PATH", help="One ledger file; else all under the root.")] = None,
    /,
    *,
    options: Options = _EVERYTHING,
    reason: Annotated[str | None, Parameter(help="Why; kept on record.")] = None,
    json: Json = False,
) -> int:
    """After restoring a backup: take what is there for the whole ledger, although its index or signed head has seen more.

    Everything is verified first. A `LEDGER_HEAD_ACCEPTED` entry says what is missing and why; then the index is taken away, to
    be made anew at the next opening, and a signed head that names a missing entry is put aside (with a signing key, the new
    head is signed). Exits with 1 where nothing is missing, and then changes nothing; with 6 where a ledger is damaged.

    For example:

        kitchener ledger accept-head --reason "restored the backup of Monday"
        kitchener ledger accept-head .kitchener/HO2/ADMIN/ho2m.jsonl --reason "disk replaced" --json
    """
    if not (reason and reason.strip()):
        raise CallerError("--reason is missing: it is kept on record with what is missing")
    if path is not None and not path.is_file():
        raise LedgerPathError(str(path), "there is no such file")
    config = options.load().config
    key = config.ledger.signing_key
    signer = load_signer(key) if key is not None else None
    found: list[tuple[Accepted, Checkpoint | None]] = []
    faults: list[LedgerDamaged] = []
    for file in [path] if path is not None else LedgerPaths(config).ledgers():
        try:
            accepted = accept(file, reason, index_dirs=index_dirs_of(file), config=config.ledger, clock=SystemClock())
            if accepted is not None:
                signed = sign_ledger(file, signer, iso(SystemClock().time_us())) if signer is not None else None
                found.append((accepted, signed))
        except LedgerDamaged as fault:
            faults.append(fault)
    _tell(found, faults, is_json=json)
    if faults:
        return DAMAGED
    return OK if found else NEGATIVE


def _tell(found: list[tuple[Accepted, Checkpoint | None]], faults: list[LedgerDamaged], *, is_json: bool) -> None:
    if is_json:
        rows = [each._asdict() | {"checkpoint": signed.as_json() if signed is not None else None} for each, signed in found]
        print_json({"accepted": rows, "faults": [str(fault) for fault in faults]})
        return
    for each, signed in found:
        gone = f"{each.missing_from:,} to {each.missing_to:,} are missing"
        print_text(f"accepted  {each.path}: ends with entry {each.seq:,}; {gone}, and that is on record")
        if each.set_aside is not None:
            print_text(f"          the signed head of a missing entry is now {each.set_aside}")
        if signed is not None:
            print_text(f"          entry {signed.seq:,} signed by {signed.signer}")
    for fault in faults:
        print_text(f"damaged   {fault!s}")
    if not found and not faults:
        print_text("nothing is missing, so nothing was changed")
