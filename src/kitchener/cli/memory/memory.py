"""`kitchener memory`: shows signals and learned lines, and withdraws them. Explained in `docs/memory.md`."""

from pathlib import Path
from typing import Annotated

import anyio
import anyio.to_thread
import orjson
from cyclopts import App, Parameter

from kitchener.cli.exits import OK
from kitchener.cli.memory.agent_memory import AgentMemory, open_view
from kitchener.cli.memory.bisect import bisect_
from kitchener.cli.memory.changes import deactivated, quarantined
from kitchener.cli.memory.cost import cost_table
from kitchener.cli.memory.explain import AT_MOST, explained
from kitchener.cli.memory.failed_learning import failed_learning
from kitchener.cli.memory.import_export import exported, imported, read_import
from kitchener.cli.memory.tune import tune
from kitchener.cli.options import NO_OPTIONS, OUTPUT_NAMES, JsonFlag, Options, ReasonOption, named_argument, whole_number
from kitchener.cli.terminal.output import print_answer, print_json, print_json_lines, print_table, print_text, say
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.cli.terminal.written_files import check_output, write_output
from kitchener.plain_names import counted

app = App(name="memory", help="Show what was learned about subjects, and withdraw it.")
app.command(tune)
app.command(bisect_, name="bisect")

SubjectChoice = Annotated[str | None, Parameter(help="The subject. Required only if there are several.")]
AsOf = Annotated[str | None, Parameter(name="--as-of", help="Show the state at this time: ISO time with a zone. Default: now.")]
ArtifactArgument = Annotated[str, Parameter(help="An artifact id, such as ART-0a1b2c3d4e5f.")]


@app.command
def signals(
    subject: SubjectChoice = None,
    *,
    options: Options = NO_OPTIONS,
    as_of: AsOf = None,
    min_count: Annotated[int, whole_number("Only signals with at least this many events.", at_least=0)] = 0,
    json: JsonFlag = False,
) -> int:
    """Show a subject's signals, and how close each gate is to opening.

    A gate opens when a signal occurred often enough in enough sessions. Kitchener then learns from it. If that failed, a line
    below the table says why. Works while a server runs.

    For example:

        kitchener memory signals
        kitchener memory signals ada --min-count 2
        kitchener memory signals --as-of 2026-02-18T10:30:00+00:00 --json
    """

    async def work() -> int:
        async with open_view(options, subject, as_of) as seen:
            found = [each for each in seen.signals() if each.gate.count >= min_count]
            open_gates = [each.signal_id for each in found if each.gate.crossed]
            failures = await failed_learning(seen.place, *seen.memory) if seen.memory is not None and open_gates else {}
            failed = {each: failures[each] for each in open_gates if each in failures}
            if json:
                told = {each: failed[each].as_json() for each in failed}
                rows = [each.as_json() | {"failed": told.get(each.signal_id)} for each in found]
                print_json({**seen.as_json(), "signals": rows})
            elif seen.says_whose():
                hours = seen.place.config.gate_window_hours
                if found:
                    columns = ("signal", "count", "sessions", "last_seen", "decay", "gate")
                    print_table(columns, (each.as_row(hours) for each in found))
                    for signal_id, each in failed.items():
                        print_text(each.line(signal_id))
                else:
                    print_text(f"no signals with at least {counted(min_count, 'event')}" if min_count else "no signals")
        return OK

    return anyio.run(work)


@app.command
def biases(
    subject: SubjectChoice = None,
    *,
    options: Options = NO_OPTIONS,
    all_: Annotated[bool, Parameter(name="--all", negative="", help="Also lines that are no longer shown, and why.")] = False,
    as_of: AsOf = None,
    json: JsonFlag = False,
) -> int:
    """Show the learned lines about a subject that are in use.

    Works while a server runs.

    For example:

        kitchener memory biases
        kitchener memory biases ada --all --json
    """

    async def work() -> int:
        async with open_view(options, subject, as_of) as seen:
            everything = list(seen.learned())
            found = [each for each in everything if all_ or each.state == "speaks"]
            if json:
                print_json({**seen.as_json(), "biases": [each.as_json() for each in found]})
            elif seen.says_whose():
                silent = len(everything) - len(found)
                for each in found:
                    print_text("\n".join(each.lines()))
                if not everything:
                    print_text("no learned lines yet; `kitchener memory signals` shows how near each gate is")
                elif silent:
                    print_text(f"{counted(silent, 'line is', 'lines are')} no longer shown; --all shows why")
        return OK

    return anyio.run(work)


@app.command
def explain(
    artifact: ArtifactArgument, subject: SubjectChoice = None, *, options: Options = NO_OPTIONS, json: JsonFlag = False
) -> int:
    """Show where a learned line (an artifact, ART-…) comes from.

    Shows its signals, events and turns, its history, and the turns that were shown it. Works while a server runs.

    For example:

        kitchener memory explain ART-0a1b2c3d4e5f
        kitchener memory explain ART-0a1b2c3d4e5f ada --json
    """

    async def work() -> int:
        found = await explained(AgentMemory.of(options), artifact, subject, turns_at_most=None if json else AT_MOST)
        print_answer(found, is_json=json)
        return OK

    return anyio.run(work)


@app.command
def cost(
    subject: Annotated[SubjectChoice, Parameter(help="Only lines about this subject. Default: all subjects.")] = None,
    *,
    options: Options = NO_OPTIONS,
    json: JsonFlag = False,
) -> int:
    """Show what each learned line cost: the tokens to show it, the turns it influenced, and the tokens to learn it.

    Works while a server runs.

    For example:

        kitchener memory cost
        kitchener memory cost ada --json
    """

    async def work() -> int:
        print_answer(await cost_table(AgentMemory.of(options), subject), is_json=json)
        return OK

    return anyio.run(work)


@app.command
def deactivate(
    artifact: ArtifactArgument,
    subject: SubjectChoice = None,
    *,
    options: Options = NO_OPTIONS,
    reason: ReasonOption,
    block: Annotated[bool, Parameter(negative="", help="Also never learn from its signal again.")] = False,
    json: JsonFlag = False,
) -> int:
    """Stop using a learned line (an artifact, ART-…). It stays on record.

    While a server runs, it makes the change.

    For example:

        kitchener memory deactivate ART-0a1b2c3d4e5f --reason "no longer true"
        kitchener memory deactivate ART-0a1b2c3d4e5f --reason "private" --block
    """

    async def work() -> int:
        change = await deactivated(AgentMemory.of(options), artifact, subject, reason=reason, block=block)
        print_answer(change, is_json=json)
        return OK

    return run_to_end(work)


@app.command
def quarantine(
    target: Annotated[str, Parameter(help="A signal such as tool:read_file, or an event id, EVT-….")],
    subject: SubjectChoice = None,
    *,
    options: Options = NO_OPTIONS,
    reason: ReasonOption,
    json: JsonFlag = False,
) -> int:
    """Stop counting a signal or an event, and deactivate the artifacts that nothing else supports.

    Prints these artifacts and the turns that were shown them. While a server runs, it makes the change.

    For example:

        kitchener memory quarantine tool:read_file ada --reason "a test user"
        kitchener memory quarantine EVT-0a1b2c3d4e5f6a7b --reason "misheard"
    """

    async def work() -> int:
        change = await quarantined(AgentMemory.of(options), target, subject, reason=reason)
        print_answer(change, is_json=json)
        return OK

    return run_to_end(work)


@app.command(name="import")
def import_(
    file: Annotated[Path, Parameter(help="JSON lines: an export, or overlays in the older flat format.")],
    subject: Annotated[SubjectChoice, Parameter(help="The subject of lines that name none.")] = None,
    *,
    options: Options = NO_OPTIONS,
    json: JsonFlag = False,
) -> int:
    """Import lines that were learned elsewhere: all lines of a file, or none.

    Skips known lines. Marks events that are in no ledger here as unverified. While a server runs, it makes the change.

    For example:

        kitchener memory import learned.jsonl
        kitchener memory import older.jsonl ada
    """

    async def work() -> int:
        place = AgentMemory.of(options, may_be_new=True)
        with named_argument("FILE", file):
            overlays = await anyio.to_thread.run_sync(read_import, file, place, subject)
        result = await imported(place, overlays)
        if json:
            taken = [{"subject_id": each, "overlay_ids": ids} for each, ids in result.taken.items()]
            print_json({"agent_class": place.agent_class, "imported": taken, "known": result.known})
        else:
            count = sum(map(len, result.taken.values()))
            names = ", ".join(result.taken)
            known = f"; {result.known} known already" if result.known else ""
            print_text(f"imported {counted(count, 'learned line')}{f' of {names}' if names else ''}{known}")
        return OK

    return run_to_end(work)


@app.command
def export(
    subject: Annotated[SubjectChoice, Parameter(help="Only this subject. Default: all subjects of the agent class.")] = None,
    *,
    options: Options = NO_OPTIONS,
    output: Annotated[Path | None, Parameter(name=OUTPUT_NAMES, help="File to write. Default: standard output.")] = None,
) -> int:
    """Write learned lines as JSON lines, with their sources and history.

    `kitchener memory import` reads these lines. Works while a server runs.

    For example:

        kitchener memory export > learned.jsonl
        kitchener memory export ada -o ada.jsonl
    """

    async def work() -> int:
        place = AgentMemory.of(options)
        if output is not None:
            check_output(output, place.paths.root)
        async with place.reader() as reader:
            lines = []
            if reader is not None:
                chosen = [subject] if subject is not None else [each.subject_id for each in await place.subjects(reader)]
                lines = await exported(place, reader, chosen)
        if not lines:
            whose = f"about {subject!r}" if subject is not None else f"by {place.agent_class}"
            say(f"nothing was learned {whose}, so there is nothing to export")
        if output is None:
            print_json_lines(lines)
        else:
            data = [orjson.dumps(each) + b"\n" for each in lines]
            await anyio.to_thread.run_sync(write_output, output, lambda file: file.writelines(data))
            print_text(f"wrote {counted(len(lines), 'learned line')} to {output}")
        return OK

    return anyio.run(work)
