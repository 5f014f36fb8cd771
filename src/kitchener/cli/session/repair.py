"""`kitchener session repair`: voids entries that cannot follow the entries before them, each with a recorded reason."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from cyclopts import Parameter

from kitchener.cli.context.text import invalid_lines
from kitchener.cli.exits import INVALID, OK
from kitchener.cli.options import NO_OPTIONS, JsonFlag, Options, SessionArgument
from kitchener.cli.terminal.output import print_json, print_text
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.context.fold.lifecycle import InvalidEvent
from kitchener.errors import CallerError, NotOnRecord
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.turn_views.recorded_session import RecordedSession, fold_entries, read_past
from kitchener.runtime.admin.operations import VoidedEntry, VoidEntries
from kitchener.runtime.administration import administer


def repair(
    session: SessionArgument,
    *,
    options: Options = NO_OPTIONS,
    void: Annotated[tuple[str, ...], Parameter(negative="", help="An entry to void. May be repeated.")] = (),
    void_all: Annotated[bool, Parameter(name="--all", negative="", help="Void all invalid entries.")] = False,
    reason: Annotated[
        str | None, Parameter(help="The reason, which is recorded and never encrypted. Required with --void and --all.")
    ] = None,
    json: JsonFlag = False,
) -> int:
    """List a session's invalid life-cycle entries, and void the ones you name.

    Deletes and changes nothing: a `LIFECYCLE_VOIDED` entry says which entry no longer counts. Exits with 4 while invalid
    entries remain. While a server runs, it makes the change.

    For example:

        kitchener session repair SES-0a1b2c3d
        kitchener session repair SES-0a1b2c3d --void E-2026-02-18-000000000007 --reason "written twice"
        kitchener session repair SES-0a1b2c3d --all --reason "a faulty import" --json
    """
    return run_to_end(partial(_repair, options, session, void, is_all=void_all, reason=reason, is_json=json))


async def _repair(
    options: Options, session_id: str, void: Sequence[str], *, is_all: bool, reason: str | None, is_json: bool
) -> int:
    if (void or is_all) and not (reason and reason.strip()):
        raise CallerError("--reason is missing: it is recorded with every voided entry")
    paths = options.paths()
    past = await read_past(paths, session_id, options.first_agent)
    found = _invalid(past)
    chosen = list(found) if is_all else list(dict.fromkeys(void))
    unknown = [name for name in chosen if name not in found]
    if unknown:
        there = f"those are {', '.join(found)}" if found else "there is none"
        raise NotOnRecord(f"--void {unknown[0]!r}: not an invalid entry of session {session_id}; {there}")
    if chosen:
        await _void(paths, past, [found[name] for name in chosen], str(reason))
        past = await read_past(paths, session_id, options.first_agent)
    left = _invalid(past)
    if is_json:
        print_json(
            {
                "session_id": session_id,
                "voided": [_as_json(name, found[name]) for name in chosen],
                "invalid": [_as_json(name, each) for name, each in left.items()],
            }
        )
    else:
        for name in chosen:
            print_text(f"voided {name}: {found[name].problem}")
        print_text("\n".join(_left(past) if left else [f"no invalid entries in {session_id}"]))
    return INVALID if left else OK


def _invalid(past: RecordedSession) -> dict[str, InvalidEvent]:
    state = fold_entries(past.entries, past.config, past.session_id)
    return {ref.entry_id: each for ref, each in state.invalid.items()}


def _left(past: RecordedSession) -> list[str]:
    return list(invalid_lines(fold_entries(past.entries, past.config, past.session_id), past.session_id))


async def _void(paths: LedgerPaths, past: RecordedSession, chosen: Sequence[InvalidEvent], reason: str) -> None:
    """Appends `LIFECYCLE_VOIDED` for each entry, and returns when they are durable."""
    operation = VoidEntries(
        agent_class=past.agent_class,
        session_id=past.session_id,
        subject_id=past.subject_id,
        ledger_id=past.entries[0].ledger_id,
        entries=tuple(VoidedEntry(entity_id=each.event.entity_id, ref=each.event.ref) for each in chosen),
        reason=reason,
    )
    await administer(paths.config, operation)


def _as_json(name: str, found: InvalidEvent) -> dict[str, object]:
    event = found.event
    return {
        "entry_id": name,
        "ref": event.ref.as_mapping(),
        "kind": event.kind,
        "entity_id": event.entity_id,
        "timestamp": event.timestamp,
        "problem": found.problem,
    }
