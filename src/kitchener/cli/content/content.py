"""`kitchener content`: checks the stored images and files, saves one as a file, and removes those that no entry names."""

from functools import partial
from pathlib import Path
from typing import Annotated

import anyio.to_thread
from cyclopts import App, Parameter

from kitchener.cli.exits import DAMAGED, OK
from kitchener.cli.options import NO_OPTIONS, OUTPUT_NAMES, JsonFlag, Options
from kitchener.cli.terminal.output import print_json, print_text
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.cli.terminal.written_files import check_output, write_output
from kitchener.errors import NotOnRecord, PartDamaged
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.media.content_store import ContentStore
from kitchener.plain_names import counted, quoted
from kitchener.records.entries import ERASED
from kitchener.runtime.admin.operations import CleanContent
from kitchener.runtime.administration import administer
from kitchener.runtime.content_integrity import ContentReport, check_content, recorded_parts

app = App(name="content", help="Check and save the images and files of messages.")


@app.command
def check(*, options: Options = NO_OPTIONS, json: JsonFlag = False) -> int:
    """Check every stored image and file against the entry that names it.

    Needs no keys. Also counts the files that no entry names: a crash can leave one, and `kitchener content clean` removes
    them. Exits with 6 if a file is missing or was changed. Works while a server runs.

    For example:

        kitchener content check
        kitchener content check --root ./ledgers --json
    """
    return run_to_end(partial(_check, options, is_json=json))


@app.command
def save(
    part: Annotated[str, Parameter(name="PART", help="A turn and a number, such as T-0a1b2c3d-000001.1.")],
    /,
    *,
    output: Annotated[Path, Parameter(name=OUTPUT_NAMES, help="The file to write, for its owner only.")],
    options: Options = NO_OPTIONS,
    json: JsonFlag = False,
) -> int:
    """Save an image or a file of a message.

    Needs the subject's key where content is sealed. Works while a server runs.

    For example:

        kitchener content save T-0a1b2c3d-000001.1 --out report.png
        kitchener content save T-0a1b2c3d-000001.2 -o notes.md --json
    """
    return run_to_end(partial(_save, options, part, output, is_json=json))


@app.command
def clean(*, options: Options = NO_OPTIONS, json: JsonFlag = False) -> int:
    """Remove the stored files that no entry names.

    While a server runs, it makes the change.

    For example:

        kitchener content clean
        kitchener content clean --json
    """
    return run_to_end(partial(_clean, options, is_json=json))


async def _check(options: Options, *, is_json: bool) -> int:
    report = await check_content(options.load_recorded().config)
    if is_json:
        faults = [each._asdict() for each in report.faults]
        print_json({"ok": not faults, "parts": report.parts, "faults": faults, "orphans": list(map(str, report.orphans))})
    else:
        for line in content_lines(report):
            print_text(line)
    return DAMAGED if report.faults else OK


def content_lines(report: ContentReport) -> list[str]:
    """The report as text: a line for each fault and one for the rest."""
    lines = [f"damaged  {each.path}: {each.part_id}: {each.problem}" for each in report.faults]
    fine = report.parts - len(report.faults)
    if fine or not lines:
        lines.append(f"ok       {counted(fine, 'image or file', 'images and files')} of messages")
    if report.orphans:
        lines.append(
            f"unused   {counted(len(report.orphans), 'file')} that no entry names; `kitchener content clean` removes them"
        )
    return lines


async def _save(options: Options, part_id: str, output: Path, *, is_json: bool) -> int:
    config = options.load_recorded().config
    check_output(output, Path(config.plane_root))
    async for each in recorded_parts(config):
        if each.part_id == part_id:
            break
    else:
        raise NotOnRecord(f"{quoted(part_id)} is no image or file on record; `kitchener session show` names those of its turns")
    store, part = ContentStore(config.plane_root, LedgerPaths(config).sealer()), each.part
    if part.name == ERASED:
        path = str(store.path(each.subject_id, part.content_hash))
        raise PartDamaged(path, part.content_hash, "its key is not here, or was destroyed with its subject")
    data = await anyio.to_thread.run_sync(store.get, each.subject_id, part.content_hash)
    await anyio.to_thread.run_sync(write_output, output, lambda file: file.write(data))
    if is_json:
        print_json({"part_id": part_id, "name": part.name, "media_type": part.media_type, "size": len(data)})
    else:
        print_text(f"{part.described}, saved as {output}")
    return OK


async def _clean(options: Options, *, is_json: bool) -> int:
    removed = await administer(options.load(), CleanContent())
    if is_json:
        print_json({"removed": list(map(str, removed))})
    else:
        print_text(f"removed {counted(len(removed), 'file')} that no entry named")
    return OK
