"""`kitchener session export` and `import`: move a session to another root as a folder."""

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kitchener.cli.exits import OK
from kitchener.cli.ledger.proof import PublicKey, public_key_of
from kitchener.cli.options import NO_OPTIONS, OUTPUT_NAMES, JsonFlag, Options, SessionArgument
from kitchener.cli.terminal.output import print_json, print_text
from kitchener.cli.terminal.progress import progress_bar
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.cli.terminal.written_files import check_outside
from kitchener.errors import CallerError
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.plain_names import counted
from kitchener.runtime.admin.operations import ImportConversations, ImportSession
from kitchener.runtime.administration import administer
from kitchener.runtime.portable.conversations import ConversationsImport
from kitchener.runtime.portable.exporter import SessionExport, export_session
from kitchener.runtime.portable.importer import SessionImport
from kitchener.small_files import is_directory, is_there


def export(
    session: SessionArgument,
    *,
    out: Annotated[Path, Parameter(name=OUTPUT_NAMES, help="The folder. It must not exist.")],
    options: Options = NO_OPTIONS,
    with_keys: Annotated[
        bool, Parameter(negative="", help="Add the subject's key. Anybody with this key can read everything.")
    ] = False,
    json: JsonFlag = False,
) -> int:
    """Write a session as a folder that `kitchener session import` adds to another root.

    The folder has the session's entries, the entries of its subject's other sessions and memory that its turns could read, and
    the hash chains of both. Verifies the ledgers before and the folder afterwards. Sealed content stays sealed. Works while a
    server runs.

    For example:

        kitchener session export SES-0a1b2c3d --out ada-session
        kitchener session export SES-0a1b2c3d --out ada-session --with-keys --json
    """
    return run_to_end(partial(_export, options, session, out, with_keys=with_keys, is_json=json))


def import_(
    path: Annotated[
        Path,
        Parameter(name="PATH", help="A folder that `kitchener session export` wrote, or a file of conversations (JSON lines)."),
    ],
    /,
    *,
    options: Options = NO_OPTIONS,
    public_key: PublicKey = None,
    subject: Annotated[str | None, Parameter(help="The subject of the conversations. Required for a file.")] = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Only check the file, and show what would be added.")] = False,
    json: JsonFlag = False,
) -> int:
    """Add an exported session to this root, or conversations of another program.

    The session of a folder keeps its id, subject, intents and turn numbers. Verifies the whole folder before it writes
    anything; exits with 6 if a byte was changed.

    A file has JSON lines: {"session", "title", "messages": [{"role", "content", "speaker", "time"}]}, or a line for each
    message with its "session". Each conversation becomes a session, which later turns can recall, with its times and speakers.
    Checks the whole file before it writes anything.

    Existing sessions are not written again. If the import is interrupted, run it again. While a server runs, it makes the
    change.

    For example:

        kitchener session import ada-session
        kitchener session import ada-session --root elsewhere --json
        kitchener session import chats.jsonl --subject ada --dry-run
        kitchener session import chats.jsonl --subject ada --agent SUPPORT
    """
    if not is_there(path):
        raise CallerError(f"{path}: expected the folder of an exported session, or a file of conversations; it does not exist")
    if is_directory(path):
        if subject is not None or dry_run:
            raise CallerError(f"{path} is a folder: --subject and --dry-run are for a file of conversations")
        return run_to_end(partial(_import, options, path.absolute(), public_key_of(public_key), is_json=json))
    if subject is None or public_key is not None:
        raise CallerError(f"{path} is not a folder: a file of conversations needs --subject, and takes no --public-key")
    return run_to_end(partial(_import_file, options, path.absolute(), subject, dry_run=dry_run, is_json=json))


async def _export(options: Options, session_id: str, out: Path, *, with_keys: bool, is_json: bool) -> int:
    config = options.load_recorded().config
    check_outside(out, Path(config.plane_root))
    agent_class = await options.class_of(session_id, LedgerPaths(config))
    async with progress_bar("ledgers", None) as steps:
        made = await export_session(
            session_id, out, config=config, agent_class=agent_class, with_key=with_keys, on_step=steps.add
        )
    if is_json:
        print_json(made.as_json())
    else:
        print_text(_exported(made))
    return OK


async def _import(options: Options, folder: Path, public_key: str | None, *, is_json: bool) -> int:
    async with progress_bar("ledgers", None) as steps:
        made = await administer(options.load(), ImportSession(folder=folder, public_key=public_key))
        steps.add()
    if is_json:
        print_json(made.as_json())
    else:
        print_text(_imported(made))
    return OK


async def _import_file(options: Options, file: Path, subject_id: str, *, dry_run: bool, is_json: bool) -> int:
    config = options.load().config
    agent_class = options.first_agent or options.agent
    asked = ImportConversations(file=file, subject_id=subject_id, agent_class=agent_class, dry_run=dry_run)
    async with progress_bar("files", 1) as steps:
        made = await administer(config, asked)
        steps.add()
    if is_json:
        print_json(made.as_json())
    else:
        print_text(_imported_file(made))
    return OK


def _imported_file(made: ConversationsImport) -> str:
    news = [each for each in made.conversations if not each.was_there]
    verb = "would import" if made.is_dry_run else "imported"
    messages = counted(sum(each.messages for each in news), "message")
    lines = [f"{verb} {counted(len(news), 'conversation')} with {messages} for {made.subject_id} ({made.agent_class})"]
    if there := len(made.conversations) - len(news):
        lines.append(f"{counted(there, 'conversation')} of the file {'is' if there == 1 else 'are'} already there")
    shown = [f"  {each.session_id}  {counted(each.messages, 'message')}" for each in news]
    more = [f"  and {len(shown) - _AT_MOST} more; --json has them all"] if len(shown) > _AT_MOST else []
    return "\n".join([*lines, *shown[:_AT_MOST], *more])


_AT_MOST = 20


def _exported(made: SessionExport) -> str:
    lines = [f"{made.session_id}: {counted(made.turns, 'turn')}, {counted(made.entries, 'entry', 'entries')}, in {made.path}"]
    if made.context_entries:
        others = counted(made.context_entries, "entry is", "entries are")
        lines.append(f"{others} from the memory and the other sessions of {made.subject_id!r}: its turns could read them")
    if made.has_key:
        lines.append(f"The folder has the key of {made.subject_id!r}: anybody with the folder can read all that they said.")
    elif made.key_id is not None:
        lines.append("Its content is sealed, and the folder has no key: --with-keys adds it.")
    if not made.has_sources:
        hint = "sealed; --with-keys adds them" if made.key_id is not None and not made.has_key else "not on record"
        lines.append(f"The instructions, prompts and tools of its turns are not in the folder: they are {hint}.")
    if not made.is_signed:
        lines.append(
            "Not every head is signed, so the folder proves only that it is complete. Sign with `kitchener ledger checkpoint`,"
            " then export the session again."
        )
    return "\n".join(lines)


def _imported(made: SessionImport) -> str:
    what = f"{made.session_id}: {counted(made.turns, 'turn')}, {counted(made.entries, 'entry', 'entries')}"
    lines = [f"{what} already exist here; nothing was written" if made.was_there else f"imported {what}"]
    if not made.is_readable:
        lines.append(
            f"Its content is sealed, and the key of {made.subject_id!r} is not here, so nobody can read it: export the session"
            " with --with-keys and import that folder too."
        )
    if not made.is_signed:
        lines.append("Not every head in the folder was signed, so it proved only that it is complete, not who wrote it.")
    return "\n".join(lines)
