"""`kitchener ledger verify FOLDER`: verifies the folder of an exported session, without a root and without its settings.

`docs/sessions.md` explains the folder. `runtime/portable/folder.py` makes the checks, which an import makes, too.
"""

from collections.abc import Mapping
from pathlib import Path

from kitchener.cli.exits import DAMAGED, OK
from kitchener.cli.terminal.output import print_json, print_text
from kitchener.errors import FolderDamaged
from kitchener.ledger.bundles.bundle_check import VerifiedSection
from kitchener.plain_names import counted
from kitchener.runtime.portable.folder import SessionFolder, read_folder


def verify_folder(path: Path, public_key: str | None, *, is_json: bool) -> int:
    """Verifies a folder, prints the findings and returns the exit code. With a public key, every head must be signed by it."""
    try:
        folder = read_folder(path, public_key=public_key)
    except FolderDamaged as fault:
        if is_json:
            print_json({"path": str(path), "ok": False, "fault": str(fault)})
        else:
            print_text(f"damaged  {fault!s}")
        return DAMAGED
    if is_json:
        print_json(_as_json(path, folder))
        return OK
    manifest = folder.manifest
    entries = counted(folder.count, "entry", "entries")
    print_text(
        f"ok       {path}: {entries} of session {manifest.session_id} of {manifest.subject_id!r}"
        f" ({manifest.agent_class}), {counted(manifest.turns, 'completed turn')}, exported {manifest.exported_at}"
    )
    for section in folder.sections.values():
        print_text(f"         {section.ledger_id}: {counted(len(section.lines), 'entry', 'entries')}; {_vouched(section)}")
    if folder.key_file is not None:
        print_text(f"         the key of {manifest.subject_id!r} is in it: anybody with the folder can read all that they said")
    return OK


def _vouched(section: VerifiedSection) -> str:
    head = f"up to entry {section.seq:,}, head {section.chain_hash}"
    return f"{head}, signed by {section.signer}" if section.signer is not None else f"{head}, NOT signed"


def _as_json(path: Path, folder: SessionFolder) -> Mapping[str, object]:
    manifest = folder.manifest
    return {
        "path": str(path),
        "ok": True,
        "session_id": manifest.session_id,
        "subject_id": manifest.subject_id,
        "agent_class": manifest.agent_class,
        "exported_at": manifest.exported_at,
        "turns": manifest.turns,
        "entries": folder.count,
        "signed": folder.is_signed,
        "has_key": folder.key_file is not None,
        "heads": [
            {
                "ledger_id": section.ledger_id,
                "entries": len(section.lines),
                "seq": section.seq,
                "chain_hash": section.chain_hash,
            }
            | {"signer": section.signer}
            for section in folder.sections.values()
        ],
        "fault": None,
    }
