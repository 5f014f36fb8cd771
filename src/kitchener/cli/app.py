"""Runs the `kitchener` command line: finds the subcommand, sets the exit code, and reports a user's error in one line.

Each subcommand is imported when it runs, so that `kitchener --version` does not load a runtime. Explained in
`docs/commands.md`.
"""

import gc
import importlib.metadata
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Final, NoReturn, TextIO, cast

import structlog
from cyclopts import App, CycloptsError, Group, Parameter

from kitchener.cli.exits import DAMAGED, INTERRUPTED, INVALID, LOCKED, NEGATIVE, OK, USAGE, CommandFailed
from kitchener.cli.terminal.log_lines import show_logs
from kitchener.cli.terminal.output import (
    OutputFailed,
    StandardError,
    begin_command,
    discard_output,
    file_problem,
    flush_output,
    print_json_failure,
    say,
    say_traceback,
)
from kitchener.cli.usage import usage_line
from kitchener.errors import (
    AdminRefused,
    AdminUnavailable,
    ApprovalAnswered,
    ApprovalVoid,
    CallerError,
    ConfigError,
    FolderDamaged,
    InvalidLifecycle,
    KitchenerError,
    LedgerDamaged,
    LedgerDiskError,
    LedgerLocked,
    LedgerPathError,
    NotOnRecord,
    PartDamaged,
    PromptError,
    SessionEnded,
    SigningError,
    SubjectErased,
    ToolError,
    UnknownApproval,
    UnknownArtifact,
    UnknownSession,
    UnknownSubject,
)
from kitchener.errors.nested import first_error

# The first matching class decides, so subclasses stand before their base classes.
_EXIT_CODES: Final = (
    ((LedgerDamaged, FolderDamaged, PartDamaged), DAMAGED),
    ((LedgerLocked, AdminUnavailable), LOCKED),
    (LedgerDiskError, NEGATIVE),
    (InvalidLifecycle, INVALID),
    ((NotOnRecord, UnknownSession, SessionEnded, SubjectErased, UnknownSubject, UnknownArtifact), NEGATIVE),
    ((UnknownApproval, ApprovalAnswered, ApprovalVoid), NEGATIVE),
    ((ConfigError, CallerError, LedgerPathError, PromptError, SigningError, ToolError), USAGE),
)

_INTERRUPTED: Final = CommandFailed(INTERRUPTED, "interrupted", "interrupted")

_LINGER_S: Final = 1.0
"""Longest wait for other threads to end after a command, seconds."""

_HELP = """Run LLM agents and record every decision.

Start with `kitchener chat`: it needs no settings, no network and no key. `kitchener COMMAND --help` explains a command with
examples.

Exit codes: 0 success, 1 negative answer, 2 wrong usage or settings, 3 several intents compete, 4 an entry contradicts earlier
ones, 5 a replay differs from the record, 6 a ledger is damaged, 7 another process has the ledgers, 130 interrupted.
"""


def _version() -> str:
    return importlib.metadata.version("kitchener")


_START, _CONVERSATIONS, _LEARNING, _RECORD, _MACHINE, _OPTIONS = map(
    Group.create_ordered,
    ("Start", "Conversations", "Memory, models and tools", "The record", "Settings and this machine", "Options"),
)
"""The headings of the list of commands, in order."""
_COMMANDS: Final = (
    ("init", "config.init:init", _START, "Write a `kitchener.toml` with the settings that matter."),
    ("chat", "chat.chat:chat", _START, "Talk to an agent."),
    ("run", "run.run:run", _START, "Run the conversations of a file."),
    ("serve", "serve.serve_command:serve", _START, "Serve the agents over HTTP, for chat clients and programs."),
    ("context", "context.context:app", _CONVERSATIONS, "Show what the model sees, and why."),
    ("intent", "intent.intent:app", _CONVERSATIONS, "List and change the intents of sessions."),
    ("session", "session.session:app", _CONVERSATIONS, "List, show, end, repair and move sessions."),
    ("approval", "approval.approval:app", _CONVERSATIONS, "Allow or refuse tool calls that wait for a person."),
    ("content", "content.content:app", _CONVERSATIONS, "Check and save the images and files of messages."),
    ("subject", "session.subject:app", _CONVERSATIONS, "Erase what a person said."),
    ("memory", "memory.memory:app", _LEARNING, "Show what was learned about subjects, and withdraw it."),
    ("gateway", "gateway:app", _LEARNING, "Show what model calls cost, and where other settings would have routed them."),
    ("mcp", "mcp.mcp:app", _LEARNING, "List MCP servers and their tools, and check what changed."),
    ("ledger", "ledger.ledger:app", _RECORD, "Verify ledgers, look into them, sign their heads and prove what they say."),
    ("audit", "audit.audit:app", _RECORD, "Look for data of one subject in the record of another."),
    ("replay", "replay:replay", _RECORD, "Run recorded turns again, and report where they differ from the record."),
    ("config", "config.config:app", _MACHINE, "Check and show settings."),
    ("doctor", "config.doctor:doctor", _MACHINE, "Check this machine, the settings and the ledgers."),
    (
        "completion",
        "shell_completion:completion",
        _MACHINE,
        "Print a script with which a shell completes commands and options.",
    ),
)


def _shown_default(value: object) -> str | None:
    """A default as a help text shows it; None: the help text shows none, as for a switch that is off or an empty list."""
    return None if value in (None, False, ()) else str(value)


def build_app(*, is_listing: bool) -> App:
    """The command line.

    Args:
        is_listing: True: only the list of commands is needed, so their modules need not be loaded. False: each command has its
            own help text, which the short text in the list must not replace
    """
    app = App(
        name="kitchener",
        help=_HELP,
        help_format="markdown",
        version=_version,
        version_format="plaintext",
        default_parameter=Parameter(show_default=_shown_default),
    )
    for flag in ("--help", "--version"):
        app[flag].group = _OPTIONS
    for name, place, group, summary in _COMMANDS:
        app.command(f"kitchener.cli.{place}", name=name, group=group, **({"help": summary} if is_listing else {}))
    return app


def invoke(tokens: Sequence[str]) -> int:
    """Runs one command line and returns its exit code.

    Reports a user's error in one line on standard error, and with `--json` also as an object on standard output.
    """
    begin_command()
    try:
        code = _run_command(tokens)
        if code == INTERRUPTED:
            _print_failure(tokens, _INTERRUPTED)
        return code
    except (CycloptsError, KeyboardInterrupt, CommandFailed, KitchenerError, OSError, ExceptionGroup) as error:
        first = first_error(error)
        if isinstance(first, BrokenPipeError | OutputFailed):
            discard_output()
        if isinstance(first, BrokenPipeError):  # its reader has gone, as that of `head` does
            return NEGATIVE
        failed = _failure_of(error)
    say(f"kitchener: {failed}")
    _print_failure(tokens, failed)
    return failed.code


def _run_command(tokens: Sequence[str]) -> int:
    """Finds the command that a line names, runs it and returns its exit code. Raises what the command raises."""
    app = build_app(is_listing=not tokens or tokens[0] in ("--help", "-h"))
    command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    # Only commands that loaded this module take ids. It imports the ledgers, which a help text need not load.
    if (options := sys.modules.get("kitchener.cli.options")) is not None:
        options.resolve_ids(command, bound.arguments)
    if not gc.isenabled():  # in a separate process, in which the modules imported so far stay
        gc.freeze()
        gc.enable()
    code = command(*bound.args, **bound.kwargs)
    return code if isinstance(code, int) else OK


def _failure_of(error: BaseException) -> CommandFailed:
    """Returns a failure that a user can mend. Any other error is a bug and is raised."""
    match first := first_error(error):
        case CommandFailed():
            return first
        case CycloptsError():
            return CommandFailed(USAGE, "usage", usage_line(first))
        case KeyboardInterrupt():
            return _INTERRUPTED
        case KitchenerError():
            kind = first.error_class if isinstance(first, AdminRefused) else type(first)
            code = next((code for kinds, code in _EXIT_CODES if issubclass(kind, kinds)), _code_of(first.__cause__))
            return CommandFailed(code, kind.__name__, str(first))
        case OutputFailed():
            return CommandFailed(NEGATIVE, "output", f"standard output takes nothing more: {first.strerror}")
        case OSError() if first.filename is not None:
            return CommandFailed(_code_of(first), "file", file_problem(first))
    raise error


def _code_of(error: BaseException | None) -> int:
    """The exit code of an error whose class decides nothing. A missing permission has the same one for each kind of file."""
    return USAGE if isinstance(error, PermissionError) else NEGATIVE


def _print_failure(tokens: Sequence[str], failed: CommandFailed) -> None:
    """Prints the error object of a command line with `--json`. Looks at the words of the line, because it may be wrong."""
    if "--json" in takewhile("--".__ne__, tokens):
        try:
            print_json_failure(failed.kind, str(failed))
        except (BrokenPipeError, OutputFailed):
            discard_output()


def run(tokens: Sequence[str]) -> NoReturn:
    """Runs one command line and ends the process with its exit code."""
    # Standard output belongs to the commands, so logs go elsewhere, even those of a tool that uses structlog's default. Log
    # lines have no values of variables, and no colours, because escapes could also come from a message.
    rendered = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[*structlog.get_config()["processors"][:-1], rendered],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, StandardError())),
        cache_logger_on_first_use=True,
    )
    show_logs()
    sys.excepthook = lambda _, error, __: say_traceback(error)
    threading.excepthook = lambda failed: say_traceback(failed.exc_value) if failed.exc_value is not None else None
    try:
        code = invoke(tokens)
    except Exception as error:  # noqa: BLE001  reports a bug at once, even if a thread hangs
        say_traceback(error)
        code = NEGATIVE
        _print_failure(tokens, CommandFailed(code, "bug", "standard error has the traceback; please report it"))
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Ends the process after everything is committed and closed, even if a tool hangs in its thread.

    The interpreter would wait for that thread forever.
    """
    running = () if code == INTERRUPTED else _running_threads()
    if running:
        say(f"kitchener: everything is closed; ending the process although this still runs: {', '.join(running)}")
    if running or code == INTERRUPTED:
        flush_output()
        os._exit(code)
    flush_output()
    sys.exit(code)


def _running_threads() -> tuple[str, ...]:
    """Names of the threads that the interpreter would wait for and that do not end within `_LINGER_S`."""
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread() and not thread.daemon]
    until = time.monotonic() + _LINGER_S
    for thread in others:
        thread.join(max(0.0, until - time.monotonic()))
    return tuple(sorted({thread.name for thread in others if thread.is_alive()}))
