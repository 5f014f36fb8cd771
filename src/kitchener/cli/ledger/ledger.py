"""`kitchener ledger`: verifies ledgers, prints their newest entries, and accepts a restored backup as a ledger's new end.

`proof.py` has the commands that sign and prove.
"""

import difflib
import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, Final, get_args

import anyio
import anyio.from_thread
import anyio.to_thread
from cyclopts import App, Parameter

from kitchener.cli.config.live_queues import read_queues
from kitchener.cli.content.content import content_lines
from kitchener.cli.exits import DAMAGED, NEGATIVE, OK, USAGE
from kitchener.cli.ledger.exported_session import verify_folder
from kitchener.cli.ledger.proof import PublicKey, checkpoint, is_bundle, key, proof, public_key_of, verify_proof
from kitchener.cli.options import NO_OPTIONS, JsonFlag, Options, SessionChoice, whole_number
from kitchener.cli.terminal.output import json_text, print_json, print_text, say, say_instead
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.clock import SystemClock
from kitchener.errors import CallerError, KitchenerError, LedgerDamaged, LedgerLocked, LedgerPathError, NotOnRecord
from kitchener.inspection.ledger_files import FilesBelow, LedgerPaths, ledgers_below, lost_below
from kitchener.inspection.shown_text import one_line
from kitchener.ledger import Checkpoint, StoredEntry, VerifyReport, verify_ledger
from kitchener.ledger.accept_head import LEDGER_HEAD_ACCEPTED, AcceptedHead
from kitchener.ledger.accept_head import accept_head as accept_head_of
from kitchener.ledger.index.index_dirs import index_dirs_near
from kitchener.ledger.verify.checkpoint import sign_ledger
from kitchener.ledger.verify.verification import unreadable
from kitchener.plain_names import counted, quoted
from kitchener.records import events
from kitchener.runtime.content_integrity import check_content
from kitchener.runtime.portable.folder import folder_at
from kitchener.runtime.root_layout import LedgerName
from kitchener.signing import load_signer
from kitchener.small_files import is_directory, is_file
from kitchener.times import iso_of

app = App(name="ledger", help="Verify ledgers, look into them, sign their heads and prove what they say.")
for command in (checkpoint, key, proof):
    app.command(command)
_VERIFIED: Final = "One ledger file, a directory of them, a bundle, or the folder of an exported session."
_PAYLOAD_WIDTH = 90
_TYPE_CHARS: Final = 80
_LIKE_ENOUGH: Final = 0.6
"""Least similarity of two entry types, 0 to 1, for one to be suggested instead of the other."""
_ENTRY_ID: Final = re.compile(r"E-([0-9]{4}-[0-9]{2}-[0-9]{2})-([0-9]{12,16})")
_ENTRY_FIELDS = ("seq", "entry_id", "entry_hash", "entry_type", "entity_id", "timestamp", "payload")


@app.command
def verify(
    path: Annotated[Path | None, Parameter(name="PATH", help=_VERIFIED)] = None,
    /,
    *,
    options: Options = NO_OPTIONS,
    public_key: PublicKey = None,
    jobs: Annotated[int | None, whole_number("Processes. Default: one a core if ledgers are long.")] = None,
    json: JsonFlag = False,
) -> int:
    """Verify every ledger under the root, or what PATH names: recompute every hash.

    Checks signed heads too, and for a root the stored images and files. Prints the first fault of each file: file, line, byte
    offset, field, and the expected and found values. Names other `*.jsonl` files, such as an export, and skips them. Exits with
    6 if there is a fault, with 2 if a ledger may not be read, and with 1 if PATH is a directory without a ledger; a root
    without one is new. Changes nothing. Works while a server runs.

    For example:

        kitchener ledger verify
        kitchener ledger verify .kitchener/HO2/ADMIN/ho2m.jsonl --json
        kitchener ledger verify ada-session
        kitchener ledger verify --public-key 3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c
    """
    trusted = public_key_of(public_key)
    if path is not None and is_bundle(path):
        return verify_proof(path, trusted, is_json=json)
    if path is not None and (folder := folder_at(path)) is not None:
        return verify_folder(folder, trusted, is_json=json)
    return run_to_end(partial(_verify, options, path, trusted, jobs, is_json=json))


@app.command
def tail(
    session: Annotated[
        SessionChoice, Parameter(help="Only entries of this session, whatever its agent class. `last`: the newest session.")
    ] = None,
    *,
    options: Options = NO_OPTIONS,
    ledger: Annotated[LedgerName, Parameter(help="Which ledger of the agent class.")] = "ho2m",
    lines: Annotated[int, whole_number("Number of entries.", name=("--lines", "-n"))] = 10,
    entry_type: Annotated[
        str | None, Parameter(name="--type", help="Only entries of this type, such as turn_completed.")
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Print the newest entries of a ledger, oldest first.

    Works while a server runs.

    For example:

        kitchener ledger tail
        kitchener ledger tail --ledger ho1m -n 3 --type llm_call --json
        kitchener ledger tail last
    """
    entries = anyio.run(_newest, options, ledger, lines, session, entry_type)
    if json:
        print_json([_as_json(entry) for entry in entries])
    else:
        for entry in entries:
            payload = {key: value for key, value in entry.payload.items() if key not in ("v", "session_id", "subject_id")}
            print_text(f"{entry.seq:>8}  {entry.timestamp[:23]}  {entry.entry_type:<17}  {entry.entity_id}")
            print_text(f"          {one_line(str(payload), _PAYLOAD_WIDTH)}")
    return OK


@app.command
def show(
    entry: Annotated[str, Parameter(help="An entry id, such as E-2026-02-18-000000000007.")],
    *,
    options: Options = NO_OPTIONS,
    ledger: Annotated[LedgerName | None, Parameter(help="Only this ledger of the agent class. Default: all.")] = None,
    json: JsonFlag = False,
) -> int:
    """Show whole entries by their id.

    Ledgers number their entries on their own, so several may have an entry with this id. Without --agent, looks into the
    ledgers of all agent classes. Works while a server runs.

    For example:

        kitchener ledger show E-2026-02-18-000000000007
        kitchener ledger show E-2026-02-18-000000000007 --ledger ho1m --json
    """
    return run_to_end(partial(_show, options, entry, ledger, is_json=json))


@app.command
def accept_head(
    path: Annotated[Path | None, Parameter(name="PATH", help="One ledger file. Default: all under the root.")] = None,
    /,
    *,
    options: Options = NO_OPTIONS,
    reason: Annotated[str | None, Parameter(help="The reason; it is recorded.")] = None,
    json: JsonFlag = False,
) -> int:
    """After restoring a backup: accept the ledger's present end, although its index or signed head names later entries.

    Verifies everything first. A `LEDGER_HEAD_ACCEPTED` entry records what is missing and why. Then the index is deleted; the
    next opening rebuilds it. A signed head that names a missing entry is renamed. With a signing key, the new head is signed.
    Exits with 1 if nothing is missing, and changes nothing then. Exits with 6 if a ledger is damaged. While a
    server runs, the ledgers that it has open stay as they are: nothing is missing there, or it would not have opened them.

    For example:

        kitchener ledger accept-head --reason "restored the backup of Monday"
        kitchener ledger accept-head .kitchener/HO2/ADMIN/ho2m.jsonl --reason "disk replaced" --json
    """
    if not (reason and reason.strip()):
        raise CallerError("--reason is missing: the ledger records it with the missing entries")
    if path is not None and not is_file(path):
        raise LedgerPathError(str(path), "no such file")
    config = options.load().config
    key = config.ledger.signing_key
    signer = load_signer(key) if key is not None else None
    found: list[tuple[AcceptedHead, Checkpoint | None]] = []
    faults: list[LedgerDamaged] = []
    open_elsewhere: list[LedgerLocked] = []
    for file in [path] if path is not None else LedgerPaths(config).ledgers():
        try:
            accepted = accept_head_of(file, reason, index_dirs=index_dirs_near(file), config=config.ledger, clock=SystemClock())
            if accepted is not None:
                signed = sign_ledger(file, signer, iso_of(SystemClock().time_us())) if signer is not None else None
                found.append((accepted, signed))
        except LedgerDamaged as fault:
            faults.append(fault)
        except LedgerLocked as error:
            if anyio.run(read_queues, config)[0] is None:
                raise  # the holder is not a runtime, so it is unknown whether it checked the ledger's end
            open_elsewhere.append(error)
    _print_accepted(found, faults, open_elsewhere, is_json=json)
    if faults:
        return DAMAGED
    return OK if found else NEGATIVE


def _print_accepted(
    found: list[tuple[AcceptedHead, Checkpoint | None]],
    faults: list[LedgerDamaged],
    open_elsewhere: list[LedgerLocked],
    *,
    is_json: bool,
) -> None:
    if is_json:
        rows = [each.as_json() | {"checkpoint": signed.as_json() if signed is not None else None} for each, signed in found]
        open_paths = [each.path for each in open_elsewhere]
        print_json({"accepted": rows, "faults": [str(fault) for fault in faults], "open": open_paths})
        return
    for each, signed in found:
        gone = f"{each.record['missing_from']:,} to {each.record['missing_to']:,} are missing"
        print_text(f"accepted  {each.path}: ends with entry {each.record['seq']:,}; {gone}, which is recorded")
        if each.set_aside is not None:
            print_text(f"          the signed head of a missing entry is now {each.set_aside}")
        if signed is not None:
            print_text(f"          entry {signed.seq:,} signed by {signed.signer}")
    for fault in faults:
        print_text(f"damaged   {fault!s}")
    for held in open_elsewhere:
        print_text(f"open      {held.path}: nothing is missing there, since {held.holder} opened it")
    if not found and not faults:
        print_text("nothing is missing, so nothing was changed")


async def _verify(options: Options, path: Path | None, public_key: str | None, jobs: int | None, *, is_json: bool) -> int:
    files, others = _files(options, path)
    reports, unread = list[VerifyReport](), list[LedgerPathError]()
    for number, file in enumerate(files, 1):
        progress = _Progress(f"{number}/{len(files)}  {file}")
        try:
            report = await verify_ledger(file, jobs=jobs, progress=progress, public_key=public_key)
        except LedgerPathError as error:
            progress.clear()
            if isinstance(error.__cause__, PermissionError):  # that says nothing about the ledger
                unread.append(error)
                continue
            report = unreadable(file, error)
        progress.clear()
        reports.append(report)
        if not is_json:
            print_text(_line(report))
    is_fine = all(report.ok for report in reports)
    content = await check_content(options.load().config) if path is None and is_fine and not unread else None
    is_fine = is_fine and not (content is not None and content.faults)
    code = DAMAGED if not is_fine else USAGE if unread else _code_for(len(reports), path)
    if is_json:
        faults = [each._asdict() for each in content.faults] if content is not None else []
        told = {"ledgers": [_report_as_json(report) for report in reports], "skipped": list(map(str, others))}
        problems = [{"path": each.path, "problem": each.problem} for each in unread]
        print_json({"ok": code == OK, **told, "unread": problems, "content_faults": faults})
        return code
    for denied in unread:
        print_text(f"unread   {denied}")
    for each in others:
        print_text(f"skipped  {each}: not a ledger, because it does not begin like one")
    if not reports and not unread:
        print_text("no ledgers yet" if path is None else f"no ledgers in {path}")
    elif content is not None and (content.parts or content.orphans):
        print_text("\n".join(content_lines(content)))
    return code


def _code_for(ledgers: int, path: Path | None) -> int:
    # A directory that the user names should contain ledgers; a new root has none yet.
    return OK if ledgers or path is None else NEGATIVE


def _files(options: Options, path: Path | None) -> FilesBelow:
    """The chosen ledgers, and the other files beside them. A file that the user names counts as a ledger.

    A ledger whose file is gone counts, too, if what is left shows that it was there.
    """
    if path is None:
        paths = options.paths()
        ledgers = sorted({*paths.ledgers(), *paths.lost()})
        return FilesBelow(ledgers, [each for each in ledgers_below(paths.root).others if each not in ledgers])
    if not os.path.lexists(path):
        raise LedgerPathError(str(path), "no such file")
    if not is_directory(path):
        return FilesBelow([path], [])
    found = ledgers_below(path)
    return found._replace(ledgers=sorted([*found.ledgers, *lost_below(path)]))


def _line(report: VerifyReport) -> str:
    if report.fault is None:
        held = report.checkpoint
        signed = f"; entry {held.seq:,} signed by {held.signer}" if held is not None else ""
        entries = counted(report.entries, "entry", "entries")
        return f"ok       {report.path}: {entries}, head {report.head}, {report.seconds:.2f} s{signed}"
    return f"damaged  {report.fault!s}"


def _report_as_json(report: VerifyReport) -> dict[str, object]:
    fault, names = report.fault, ("path", "ledger_id", "ok", "entries", "batches", "head")
    return {
        **{name: getattr(report, name) for name in names},
        "seconds": round(report.seconds, 3),
        "checkpoint": report.checkpoint.as_json() if report.checkpoint is not None else None,
        "fault": fault and {name: getattr(fault, name) for name in ("line", "offset", "field", "expected", "found")},
    }


class _Progress:
    """Shows the progress of one file's verification, if standard error is a terminal. Called in a worker thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_shown = sys.stderr.isatty()
        self._percent = -1

    def __call__(self, done: int, size: int) -> None:
        """Shows the percentage if it changed. Ends the verification if the command was interrupted."""
        anyio.from_thread.check_cancelled()
        percent = 100 * done // max(1, size)
        if self._is_shown and percent != self._percent:
            self._percent = percent
            say_instead(f"verifying {percent:>3} %  {self._name}")

    def clear(self) -> None:
        if self._percent >= 0:
            say_instead("")


async def _show(options: Options, entry_id: str, ledger: LedgerName | None, *, is_json: bool) -> int:
    number = _number_of(entry_id)
    if number is None:
        raise CallerError(f"{quoted(entry_id)} is not an entry id: expected one such as E-2026-02-18-000000000007")
    found = await _entries(options, entry_id, number, ledger)
    if not found:
        raise NotOnRecord(f"entry {entry_id!r} is in no ledger here; `kitchener ledger tail` shows the newest entries")
    if is_json:
        print_json([{"ledger_id": each.ledger_id, **_as_json(each)} for each in found])
    else:
        print_text("\n\n".join("\n".join(_entry_lines(each)) for each in found))
    return OK


def _number_of(entry_id: str) -> int | None:
    """The number in an entry id; None: the id is invalid, for example because its date does not exist."""
    named = _ENTRY_ID.fullmatch(entry_id)
    try:
        return int(named[2]) if named is not None and date.fromisoformat(named[1]) else None
    except ValueError:
        return None


async def _entries(options: Options, entry_id: str, number: int, ledger: LedgerName | None) -> list[StoredEntry]:
    """The entries with this id. Each ledger numbers its own entries, so several ledgers may have one."""
    paths, seen, found = options.paths(), set[Path](), list[StoredEntry]()
    classes = [options.agent] if options.named_agent is not None else sorted({options.first_agent, *paths.agent_classes()})
    names: tuple[LedgerName, ...] = get_args(LedgerName) if ledger is None else (ledger,)
    for agent_class, name in ((agent_class, name) for agent_class in classes for name in names):
        path = paths.ledger(agent_class, name)
        if path in seen:  # agent classes may share a memory
            continue
        seen.add(path)
        async with paths.reader(agent_class, name) as reader:
            entry = await reader.get(number) if reader is not None else None
            found += [entry] if entry is not None and entry.entry_id == entry_id else []
    return found


def _entry_lines(entry: StoredEntry) -> Iterator[str]:
    yield f"{entry.ledger_id}  {entry.entry_id}  {entry.entry_type} of {entry.entity_id}  {entry.timestamp}"
    yield f"  hash {entry.entry_hash}"
    for line in json_text(entry.payload).splitlines():
        yield f"  {line}"


def _types(given: str) -> tuple[str, ...]:
    """The type as typed, and in Kitchener's spelling, because another program's ledger may have other types."""
    return given, given.upper().replace("-", "_")


def check_type(given: str) -> None:
    """Checks that Kitchener writes entries of this type.

    Raises:
        CallerError: it does not; the error names similar types
    """
    known = [LEDGER_HEAD_ACCEPTED, *(value for name, value in vars(events).items() if name == value)]
    meant = _types(given)[1][:_TYPE_CHARS]
    if meant not in known:
        likely = [each for each in known if meant and each.startswith(meant)]
        likely = likely or difflib.get_close_matches(meant, known, n=3, cutoff=_LIKE_ENOUGH)
        hint = f"did you mean {' or '.join(likely)}?" if likely else f"there are: {', '.join(sorted(known))}"
        raise CallerError(f"--type: Kitchener writes no entries of type {quoted(given)}; {hint}")


async def _newest(
    options: Options, ledger: LedgerName, lines: int, session: str | None, entry_type: str | None
) -> list[StoredEntry]:
    places = options.paths()
    agent_class = await options.class_of(session, places)
    async with places.reader(agent_class, ledger) as reader:
        if reader is None:
            raise KitchenerError(f"{places.ledger(agent_class, ledger)}: this ledger does not exist yet")
        if entry_type is None:
            return await reader.last(session_id=session, limit=lines)
        newest: deque[StoredEntry] = deque(maxlen=lines)
        async for entry in reader.read(session_id=session, entry_type=_types(entry_type)):
            newest.append(entry)
        if not newest:
            check_type(entry_type)
            others = ", ".join(each for each in get_args(LedgerName) if each != ledger)
            say(f"kitchener: no entry of this type in {ledger}; --ledger chooses another one: {others}")
        return list(newest)


def _as_json(entry: StoredEntry) -> dict[str, object]:
    return {name: getattr(entry, name) for name in _ENTRY_FIELDS}
