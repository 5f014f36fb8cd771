"""`kitchener ledger accept-head`: accepts a restored backup as the ledger's new end, and records that."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kitchener.cli.exits import DAMAGED, NEGATIVE, OK
from kitchener.cli.options import JsonFlag, LedgerPaths, Options
from kitchener.cli.terminal.output import print_json, print_text
from kitchener.clock import SystemClock, iso
from kitchener.errors import CallerError, LedgerDamaged, LedgerPathError
from kitchener.ledger import Checkpoint
from kitchener.ledger.audit.accept_head import AcceptedHead
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
    reason: Annotated[str | None, Parameter(help="The reason; it is recorded.")] = None,
    json: JsonFlag = False,
) -> int:
    """After restoring a backup: accept the ledger's present end, although its index or signed head names later entries.

    Verifies everything first. A `LEDGER_HEAD_ACCEPTED` entry records what is missing and why. Then the index is deleted; the
    next opening rebuilds it. A signed head that names a missing entry is renamed. With a signing key, the new head is signed.
    Exits with 1 if nothing is missing, and changes nothing then. Exits with 6 if a ledger is damaged.

    For example:

        kitchener ledger accept-head --reason "restored the backup of Monday"
        kitchener ledger accept-head .kitchener/HO2/ADMIN/ho2m.jsonl --reason "disk replaced" --json
    """
    if not (reason and reason.strip()):
        raise CallerError("--reason is missing: the ledger records it with the missing entries")
    if path is not None and not path.is_file():
        raise LedgerPathError(str(path), "there is no such file")
    config = options.load().config
    key = config.ledger.signing_key
    signer = load_signer(key) if key is not None else None
    found: list[tuple[AcceptedHead, Checkpoint | None]] = []
    faults: list[LedgerDamaged] = []
    for file in [path] if path is not None else LedgerPaths(config).ledgers():
        try:
            accepted = accept(file, reason, index_dirs=index_dirs_of(file), config=config.ledger, clock=SystemClock())
            if accepted is not None:
                signed = sign_ledger(file, signer, iso(SystemClock().time_us())) if signer is not None else None
                found.append((accepted, signed))
        except LedgerDamaged as fault:
            faults.append(fault)
    _print(found, faults, is_json=json)
    if faults:
        return DAMAGED
    return OK if found else NEGATIVE


def _print(found: list[tuple[AcceptedHead, Checkpoint | None]], faults: list[LedgerDamaged], *, is_json: bool) -> None:
    if is_json:
        rows = [each._asdict() | {"checkpoint": signed.as_json() if signed is not None else None} for each, signed in found]
        print_json({"accepted": rows, "faults": [str(fault) for fault in faults]})
        return
    for each, signed in found:
        gone = f"{each.missing_from:,} to {each.missing_to:,} are missing"
        print_text(f"accepted  {each.path}: ends with entry {each.seq:,}; {gone}, which is recorded")
        if each.set_aside is not None:
            print_text(f"          the signed head of a missing entry is now {each.set_aside}")
        if signed is not None:
            print_text(f"          entry {signed.seq:,} signed by {signed.signer}")
    for fault in faults:
        print_text(f"damaged   {fault!s}")
    if not found and not faults:
        print_text("nothing is missing, so nothing was changed")
