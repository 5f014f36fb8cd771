"""`kitchener context`: shows what the model sees or saw, and why. Only `project` writes, and only its decisions."""

import webbrowser
from pathlib import Path
from typing import Annotated

import anyio
import anyio.to_thread
from cyclopts import App, Parameter

from kitchener.choices import ConflictPolicy
from kitchener.cli.context.project import ProjectionPreview, ProjectOptions, project_session, record
from kitchener.cli.context.shadow import read_shadow
from kitchener.cli.context.shown_requests import prompt_lines, prompts_json
from kitchener.cli.context.text import conflict_lines, flag_lines, invalid_lines, projected_lines
from kitchener.cli.context.turn_page.page_file import write_page
from kitchener.cli.context.turn_page.turn_page import read_page
from kitchener.cli.context.why import diff_lines, entry_lines, turn_lines
from kitchener.cli.exits import BLOCKED, INVALID, NEGATIVE, OK
from kitchener.cli.options import NO_OPTIONS, OUTPUT_NAMES, JsonFlag, Options, SessionChoice, TurnArgument, whole_number
from kitchener.cli.terminal.log_lines import nothing_logged
from kitchener.cli.terminal.output import print_json, print_text, say
from kitchener.cli.terminal.written_files import check_output
from kitchener.errors import CallerError, LedgerLocked
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.turn_views.recorded_session import find_past, read_past
from kitchener.inspection.turn_views.recorded_turn import TurnView, read_turn
from kitchener.inspection.turn_views.turn_reasons import diff_json, view_json
from kitchener.memory.timestamps import us_of
from kitchener.replaying import read_prompts
from kitchener.times import iso_of

app = App(name="context", help="Show what the model sees, and why.")


@app.command
def project(  # noqa: PLR0913  options of a command, all by keyword
    session: Annotated[
        SessionChoice, Parameter(help="A session id, or `last`. Default: the session that declared `--intent`.")
    ] = None,
    *,
    options: Options = NO_OPTIONS,
    intent: Annotated[str | None, Parameter(help="Project this intent in place of the active one.")] = None,
    budget: Annotated[int | None, whole_number("Tokens. Overrides `context_budget`.", at_least=0)] = None,
    as_of: Annotated[str | None, Parameter(help="Use only what was on record at this time: ISO time with a zone.")] = None,
    conflict_policy: Annotated[
        ConflictPolicy | None, Parameter(help="If several intents are live: stop, or take the one declared last.")
    ] = None,
    message: Annotated[
        str | None, Parameter(help="Rank turns by their similarity to this message. Default: newest first.")
    ] = None,
    ledger: Annotated[
        Path | None, Parameter(help="Read this supervisor's ledger instead of those under the root. Writes nothing.")
    ] = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Print the decision without recording it.")] = False,
    json: JsonFlag = False,
) -> int:
    """Show which intents, work orders and turns the model would see in a session's next turn, and why.

    Appends the decision to the context ledger, unless `--dry-run` is given. While a server or another process has the root
    open, it shows the decision and appends nothing. Several intents that compete block the projection until one of them is
    kept, even with `--intent`: the command then appends only the flag, and exits with 3. It exits with 4 if an entry cannot
    follow the entries before it.

    For example:

        kitchener context project last
        kitchener context project --intent INT-0a1b2c3d4e5f6071 --budget 2400
        kitchener context project SES-0a1b2c3d --budget 300 --dry-run --json
        kitchener context project SES-0a1b2c3d --as-of 2026-02-18T10:30:00+00:00
    """
    if session is None and intent is None:
        raise CallerError("expected SESSION or --intent: name the session, or an intent that it declared")
    moment = iso_of(us_of(as_of, "--as-of")) if as_of is not None else None
    chosen = ProjectOptions(intent, budget, conflict_policy, message)
    return anyio.run(_project, options, session, ledger, moment, chosen, dry_run, json)


@app.command
def explain(  # noqa: PLR0913  options of a command, all by keyword
    turn: TurnArgument,
    *,
    options: Options = NO_OPTIONS,
    entry: Annotated[str | None, Parameter(help="Only this entry, intent, work order, turn, rule or learned line.")] = None,
    prompt: Annotated[bool, Parameter(negative="", help="Show what the models were asked, word for word.")] = False,
    call: Annotated[int | None, whole_number("With --prompt: only this request of the turn, from 1.")] = None,
    html: Annotated[bool, Parameter(negative="", help="Write everything, and what changed since, to one HTML file.")] = False,
    output: Annotated[
        Path | None, Parameter(name=OUTPUT_NAMES, help="With --html: the file. Default: `./<turn>.html`.")
    ] = None,
    open_: Annotated[bool, Parameter(name="--open", negative="", help="With --html: show the file in a browser.")] = False,
    json: JsonFlag = False,
) -> int:
    """Show what the model saw in a turn, what was left out, and why.

    Each item is visible, suppressed, unreachable or not live. With --entry, explain one item in full.

    With --prompt, show each request to a model instead: its messages, the tools offered, its limits, and its tokens by part.
    The requests are rebuilt from the ledgers, under the recorded settings, and checked by their recorded hashes. TURN may then
    also be the work order of a consolidation. Exits with 1 if a request cannot be shown or has another hash.

    With --html, write one file that needs nothing else: the turn, its budget, what was shown and left out and why, the
    requests word for word, tools, learned lines, and the differences from the turn before. Only its owner can read the file.
    Works while a server runs.

    For example:

        kitchener context explain last --html
        kitchener context explain T-0a1b2c3d-000002 --html --out turn.html --open
        kitchener context explain T-0a1b2c3d-000002 --prompt
        kitchener context explain T-0a1b2c3d-000002 --prompt --call 2 --json
        kitchener context explain last
        kitchener context explain T-0a1b2c3d-000002 --entry T-0a1b2c3d-000001
        kitchener context explain T-0a1b2c3d-000002 --entry E-2026-02-18-000000000007 --json
    """

    if call is not None and not prompt:
        raise CallerError("--call: expected --prompt too, which shows the requests of a turn")
    if prompt and entry is not None:
        raise CallerError("--prompt shows whole requests and --entry one item; leave one out")
    if html and (prompt or entry is not None):
        raise CallerError("--html writes everything; leave out --prompt and --entry")
    if not html and (output is not None or open_):
        raise CallerError("--out and --open: expected --html too, which writes a file")
    if html:
        return anyio.run(_html, options, turn, output, open_, json)
    return anyio.run(_prompt, options, turn, call, json) if prompt else anyio.run(_explain, options, turn, entry, json)


@app.command
def diff(
    before: Annotated[TurnArgument, Parameter(name="BEFORE")],
    after: Annotated[TurnArgument, Parameter(name="AFTER", help="Another turn id, or `last`.")],
    /,
    *,
    options: Options = NO_OPTIONS,
    json: JsonFlag = False,
) -> int:
    """Compare what the model saw in two turns, and explain the differences.

    Works while a server runs.

    For example:

        kitchener context diff T-0a1b2c3d-000001 last
    """

    async def work() -> int:
        first, second = await _view(options, before), await _view(options, after)
        if json:
            print_json(diff_json(first, second))
        else:
            print_text("\n".join(diff_lines(first, second)))
        return OK

    return anyio.run(work)


@app.command
def shadow(
    session: Annotated[SessionChoice, Parameter(help="Only this session, or `last`. Default: all of the agent class.")] = None,
    *,
    options: Options = NO_OPTIONS,
    json: JsonFlag = False,
) -> int:
    """Compare what `context_mode = "shadow"` would have shown with what attention showed.

    Prints every turn of a session, or the ten turns of all sessions that differ most, and a summary. Exits with 1 if nothing
    was decided in shadow. Works while a server runs.

    For example:

        kitchener context shadow SES-0a1b2c3d
        kitchener context shadow --json
    """

    async def work() -> int:
        report = await read_shadow(options.paths(), options.first_agent if session else options.agent, session)
        if json:
            print_json(report.as_json())
            if not report.turns:
                say("\n".join(report.lines()))
        else:
            print_text("\n".join(report.lines()))
        return OK if report.turns else NEGATIVE

    return anyio.run(work)


async def _view(options: Options, turn: str) -> TurnView:
    paths = options.paths()
    return await read_turn(paths, options.first_agent, turn)


async def _html(options: Options, turn: str, output: Path | None, is_opened: bool, is_json: bool) -> int:
    paths = LedgerPaths(options.load_importing(reads=True).config)
    path = output if output is not None else Path(f"{turn}.html")
    check_output(path, paths.root)
    page = await read_page(paths, options.first_agent, turn)
    size = await anyio.to_thread.run_sync(write_page, page, path)
    if is_json:
        print_json({"turn_id": turn, "path": str(path), "bytes": size, "problem": page.prompts.problem})
    else:
        print_text(f"wrote {path}, {size:,} bytes")
    if is_opened and not await anyio.to_thread.run_sync(webbrowser.open, path.absolute().as_uri()):
        say(f"kitchener: no browser was found; open {path} in one")
    return OK


async def _explain(options: Options, turn: str, entry: str | None, is_json: bool) -> int:
    view = await _view(options, turn)
    if entry is not None:
        found = view.explain(entry) if view.projection is not None else None
        lines = entry_lines(view, found) if found is not None else turn_lines(view)
        answers = [found] if found is not None else []
    else:
        lines, answers = turn_lines(view), view.explain_all() if is_json else []
    if is_json:
        print_json(view_json(view, answers))
    else:
        print_text("\n".join(lines))
    return OK


async def _prompt(options: Options, turn: str, call: int | None, is_json: bool) -> int:
    # Turns of earlier versions are rebuilt with the tools of the present settings.
    config = options.load_importing(reads=True).config
    with nothing_logged():  # the turn was logged when it ran; one that was cut off ends here as a failure of HO1
        found = await read_prompts(turn, config=config)
    if is_json:
        print_json(prompts_json(found, call))
    else:
        print_text("\n".join(prompt_lines(found, call)))
    return OK if found.problem is None else NEGATIVE


async def _project(
    options: Options,
    session: str | None,
    ledger: Path | None,
    as_of: str | None,
    chosen: ProjectOptions,
    is_dry: bool,
    is_json: bool,
) -> int:
    paths = options.paths()
    if session is not None:
        past = await read_past(paths, session, options.first_agent, ledger)
    else:
        past = await find_past(paths, chosen.intent_id or "", options.first_agent, ledger)
    projected = await project_session(paths, past if as_of is None else past.as_of(as_of), chosen, as_of)
    note = "dry run: nothing was recorded" if is_dry else await _recorded(paths, projected, is_given=ledger is not None)
    if is_json:
        print_json(projected.as_json())
        if not is_dry and note.startswith("dry run"):
            say(f"kitchener: {note}")
    else:
        print_text("\n".join([*_lines(projected), note]))
    if projected.resolution.blocked_by is None:
        return OK
    return BLOCKED if projected.resolution.blocked_by == "COMPETING_INTENTS" else INVALID


def _lines(projected: ProjectionPreview) -> list[str]:
    resolution, state, session_id = projected.resolution, projected.state, projected.past.session_id
    if resolution.blocked_by == "COMPETING_INTENTS":
        return [*conflict_lines(state, resolution.competing, session_id), *flag_lines(resolution.flags)]
    if resolution.blocked_by is not None:
        return [*invalid_lines(state, session_id), "active intent: none; nothing is eligible"]
    return list(projected_lines(projected))


async def _recorded(paths: LedgerPaths, projected: ProjectionPreview, *, is_given: bool) -> str:
    """Records the decision if no other process writes, and returns a sentence that says whether it did, and why not."""
    if is_given:
        return "dry run: nothing was recorded, since a ledger was given"
    try:
        ref = await record(paths, projected)
    except LedgerLocked as locked:
        return f"dry run: nothing was recorded, since {locked}"
    if ref is None:
        return f"recorded: the flags, on {projected.past.context_path.name}"
    return f"recorded: {ref.ledger_id} {ref.entry_id} {ref.entry_hash}"
