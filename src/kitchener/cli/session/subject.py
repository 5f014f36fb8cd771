"""`kitchener subject`: `erase` makes everything that a person said unreadable, for good."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated
from urllib.parse import unquote

from cyclopts import App, Parameter

from kitchener.cli.exits import NEGATIVE, OK, CommandFailed
from kitchener.cli.options import NO_OPTIONS, JsonFlag, Options
from kitchener.cli.terminal.output import ask_person, is_interactive, print_json, print_text
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.config import RuntimeConfig
from kitchener.errors import CallerError
from kitchener.ids import check_recorded_subject
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.shown_text import short_time
from kitchener.plain_names import counted
from kitchener.runtime.admin.operations import EraseSubject
from kitchener.runtime.administration import administer
from kitchener.runtime.erasure import ErasureReport, keyring_of

app = App(name="subject", help="Erase what a person said.")


@app.command(name="erase")
def erase_(
    subject: Annotated[str, Parameter(name="ID", help="The `subject_id` of their sessions.")],
    /,
    *,
    options: Options = NO_OPTIONS,
    encoded: Annotated[bool, Parameter(negative="", help="The id is percent-encoded, because it cannot be typed.")] = False,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask. Required without a terminal.")] = False,
    json: JsonFlag = False,
) -> int:
    """Erase a subject: destroy the key that decrypts what they said, in every agent class, for good.

    Ends their sessions, withdraws what was learned from them, and records `SUBJECT_ERASED`. Every ledger still verifies.
    Nothing can restore the text. Requires sealed content. While a server runs, it makes the change, and cancels the
    subject's running turns. If it is interrupted, run it again. Exits with 1 if there is no such subject, or if turns that
    were stored in plain text stay readable.

    For example:

        kitchener subject erase ada
        kitchener subject erase ada --yes --json
        kitchener subject erase --encoded a%00b
    """
    config = options.load_recorded().config
    keyring_of(LedgerPaths(config).sealer())
    subject = unquote(subject) if encoded else subject
    check_recorded_subject(subject)
    if not yes and not _is_wanted(subject):  # asked before the event loop runs, so that an interrupt is one
        raise CommandFailed(NEGATIVE, "declined", "nothing was erased")
    return run_to_end(partial(_erase, config, subject, is_json=json))


async def _erase(config: RuntimeConfig, subject_id: str, *, is_json: bool) -> int:
    report = await administer(config, EraseSubject(subject_id=subject_id))
    if is_json:
        print_json(report.as_json())
    else:
        print_text("\n".join(_lines(report)))
    return NEGATIVE if report.plain_turns else OK


def _is_wanted(subject_id: str) -> bool:
    """Whether the person at the terminal confirms.

    Raises:
        CallerError: there is no terminal to ask at
    """
    if not is_interactive():
        raise CallerError("erasure cannot be undone: run this on a terminal, or pass --yes")
    question = f"Everything that {subject_id!r} said, with every agent class, will be unreadable for good. Erase? [y/N] "
    try:
        return ask_person(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _lines(report: ErasureReport) -> Iterator[str]:
    name = report.subject_id
    counts = f"{counted(report.sessions, 'session')} with {counted(report.turns, 'turn')}"
    lines = f"{counted(report.artifacts, 'learned line')} withdrawn"
    if report.was_erased_before:
        yield f"{name} is erased already, since {short_time(report.erased_at)}: {counts}, {lines}; nothing was left to do"
        return
    yield f"erased {name}: {counts}, {lines}; key {report.key_id} is destroyed"
    if report.plain_turns:
        yield (
            f"{counted(report.plain_turns, 'turn')} of theirs were stored in plain text, before content was sealed, and stay"
            " readable: nothing is ever taken out of a ledger"
        )
