"""`kitchener run`: runs the conversations of a file, many at a time, and resumes after an interruption."""

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import anyio
import anyio.to_thread
import orjson
from cyclopts import Parameter

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.cli.exits import INTERRUPTED, NEGATIVE, OK, CommandFailed
from kitchener.cli.options import NO_OPTIONS, OUTPUT_NAMES, JsonFlag, Options, listens, named_argument, whole_number
from kitchener.cli.run.message_files import Conversation, FileMessage, Messages, Results
from kitchener.cli.run.recorded_turns import FinishedTurn, FinishedTurns, read_finished, turn_key
from kitchener.cli.terminal.log_lines import LogLevel, logged_from
from kitchener.cli.terminal.output import print_json, print_text, say
from kitchener.cli.terminal.progress import progress_bar
from kitchener.cli.terminal.stop_signals import on_signal
from kitchener.cli.terminal.written_files import check_output
from kitchener.errors import ConfigError, InvalidOutput, KitchenerError, LedgerError, RuntimeClosed
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.shown_text import one_line
from kitchener.ledger import LedgerReader
from kitchener.plain_names import counted, quoted
from kitchener.records.output_schema import MAX_SCHEMA_CHARS, OutputSchema, output_schema_of
from kitchener.records.parts import FilePart
from kitchener.records.turn import TurnResult
from kitchener.runtime import open_runtime, tune_gc
from kitchener.small_files import open_regular, read_regular

_READ_AT_ONCE: Final = 256
"""Messages of one conversation that are in memory at a time."""


_SHOWN_CHARS: Final = 400
"""Most characters of an error that the command shows. The results have all of it."""


def run(  # noqa: PLR0913  options of a command, all by keyword
    messages: Annotated[Path, Parameter(name="IN.jsonl", help="JSON lines of `{conversation, subject_id, message, parts}`.")],
    /,
    *,
    options: Options = NO_OPTIONS,
    output: Annotated[
        Path | None, Parameter(name=OUTPUT_NAMES, help="File for the results: one line each, in the order of the input.")
    ] = None,
    concurrency: Annotated[int, whole_number("Conversations that run at the same time.", at_most=100_000)] = 32,
    attach: Annotated[
        tuple[Path, ...],
        Parameter(negative="", help="An image or a file for every conversation's first message. May be repeated."),
    ] = (),
    output_schema: Annotated[
        Path | None, Parameter(help="A JSON schema: each reply is an object that fits it, and each result has it as `output`.")
    ] = None,
    retry_failed: Annotated[
        bool, Parameter(negative="", help="Send each message again whose turn ended with an error in an earlier run.")
    ] = False,
    json: JsonFlag = False,
    log_level: LogLevel = None,
) -> int:
    """Run the conversations of a file.

    Keeps the order of messages within a conversation; different conversations may be mixed. Each conversation is one session,
    found by its name. Recorded turns never run again, so to resume an interrupted run, repeat the command. `subject_id` is
    optional, and so is `parts`, a list of paths of images and files.

    With `--retry-failed`, a message whose turn ended with an error is sent again as a new turn, at the end of its conversation.
    The model sees it there, behind the failed turn and the later messages. If that would confuse it, give the conversation
    another name in the file; it then starts anew. Tools that ran in the failed turn may run again.

    A result is `{conversation, ordinal, session_id, turn_id, response, error}`. The file appears when all results are there. If
    a turn cannot run, the rest of its conversation is skipped. Exits with 1 if a result has an error. With `--output-schema`, a
    result also has the object as `output`, or null. One whose tool calls wait for a person has their ids as `pending_approval`.
    Exits with 7 if a server or another process has the root open.

    For example:

        kitchener run dialogues.jsonl -o results.jsonl
        kitchener run dialogues.jsonl --concurrency 200 --root ./ledgers --json
        kitchener run letters.jsonl -o orders.jsonl --output-schema order.schema.json
        kitchener run dialogues.jsonl -o results.jsonl --retry-failed
    """
    with logged_from(log_level):
        command = partial(_run, options, messages, output, concurrency, attach, output_schema)
        return anyio.run(partial(command, retries_failed=retry_failed, is_json=json))


async def _run(
    options: Options,
    path: Path,
    output: Path | None,
    concurrency: int,
    attach: Sequence[Path],
    schema_file: Path | None,
    *,
    retries_failed: bool,
    is_json: bool,
) -> int:
    loaded, asked = options.load_checked(), _output_schema(schema_file)
    config = loaded.config
    if output is not None:
        _check_output(output, path, Path(config.plane_root))
    await anyio.to_thread.run_sync(_check_attached, attach)
    async with contextlib.AsyncExitStack() as stack:
        index = partial(Messages, path, max_chars=config.limits.max_message_chars)
        with named_argument("IN.jsonl", path):
            messages = await anyio.to_thread.run_sync(index)
        stack.callback(messages.close)
        results = None
        if output is not None:
            results = Results(output, len(messages))
            stack.callback(results.close)
        before = await stack.enter_async_context(LedgerPaths(config).reader(options.agent))
        async with open_runtime(loaded, admin_socket=listens(config)) as runtime:
            supervisor = runtime.supervisor(options.agent)
            batch = _FileRun(supervisor, messages, results, before, attach, asked, retries_failed=retries_failed)
            tune_gc()
            began = anyio.current_time()
            await batch.run(concurrency, config.limits.shutdown_grace_s)
            seconds = anyio.current_time() - began
        if not batch.is_complete:
            told = f"interrupted after {counted(batch.turns, 'turn')}; run the same command again to continue"
            raise CommandFailed(INTERRUPTED, "interrupted", told)
        if results is not None:
            await anyio.to_thread.run_sync(results.write)
    _summarise(batch, seconds, is_json=is_json)
    return NEGATIVE if batch.failed else OK


def _check_output(output: Path, path: Path, root: Path) -> None:
    if os.path.realpath(output) == os.path.realpath(path):
        raise ConfigError("--out", "", repr(str(output)), "is the input file; choose another name")
    check_output(output, root)


def _check_attached(paths: Sequence[Path]) -> None:
    """Raises ConfigError unless each file can be read, because otherwise every conversation would fail."""
    for path in paths:
        try:
            open_regular(path).close()
        except OSError as error:
            raise ConfigError("--attach", "", repr(str(path)), f"cannot be read: {error.strerror or error}") from error


def _output_schema(path: Path | None) -> OutputSchema | None:
    """Reads the schema of the objects that replies must be.

    Raises:
        ConfigError: the file is no JSON schema of an object
    """
    if path is None:
        return None
    try:
        schema = orjson.loads(read_regular(path, MAX_SCHEMA_CHARS * 4))
        if not isinstance(schema, dict):
            raise ConfigError("--output-schema", "", repr(str(path)), "expected a JSON schema, which is an object")
        return output_schema_of(schema)
    except OSError as error:
        raise ConfigError("--output-schema", "", repr(str(path)), f"cannot be read: {error.strerror or error}") from error
    except (ValueError, InvalidOutput) as error:
        raise ConfigError("--output-schema", "", repr(str(path)), f"is no JSON schema of an object: {error}") from error


def _summarise(batch: "_FileRun", seconds: float, *, is_json: bool) -> None:
    speed = batch.turns / seconds if seconds > 0 else 0.0
    if is_json:
        print_json(
            {
                "turns": batch.turns,
                "done_before": batch.done_before,
                "retried": batch.retried,
                "failed": batch.failed,
                "failed_turns": batch.failed_turns,
                "waiting": batch.asking,
                "seconds": round(seconds, 3),
                "turns_per_s": round(speed, 1),
            }
        )
    elif not batch.count:
        print_text("nothing to do: the file has no messages")
    elif not batch.turns and not batch.failed:
        done = f"all {batch.done_before:,} turns were" if batch.done_before > 1 else "its one turn was"
        print_text(f"nothing left to do: {done} done before")
    else:
        before = f", {batch.done_before:,} done before" if batch.done_before else ""
        failed = f", {batch.failed:,} failed" if batch.failed else ""
        ran = (
            f"{counted(batch.turns, 'turn')} in {seconds:.1f} s ({speed_text(speed)} a second)"
            if batch.turns
            else "no new turns"
        )
        print_text(f"{ran}{before}{failed}")
        if batch.first_failure:
            say(f"kitchener: {batch.first_failure}")
        if batch.failed_turns:
            whose = "its message" if batch.failed_turns == 1 else "their messages"
            told = f"{counted(batch.failed_turns, 'turn')} ended with an error, in this run or an earlier one"
            print_text(f"{told}; `--retry-failed` sends {whose} again")
        if batch.asking:
            print_text(f"{counted(batch.asking, 'turn')} asked for approval; `kitchener approval list` shows what waits")


def speed_text(speed: float) -> str:
    """A number of turns, with decimals where it is small, as with a real model."""
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"


@dataclass(frozen=True)
class NotRun:
    """The reason why a message got no turn."""

    kind: str
    """The class of the error, or `NOT_RUN` after an earlier message of the conversation failed."""
    message: str
    wo_id: None = None


@dataclass(slots=True)
class _RunningConversation:
    """A conversation while its messages run."""

    conversation: Conversation
    session_id: str | None
    finished: FinishedTurns
    """What earlier runs recorded."""
    failure: NotRun | None
    """Why no later message runs; None: nothing prevents it."""
    retry_failure: NotRun | None = None
    """Why a message could not be sent again. Later messages keep the turns that they have, and get no new ones."""


class _FileRun:
    """Runs the conversations of a file with one supervisor.

    Args:
        supervisor: runs the turns
        messages: the input
        results: stores the results; None: they are not stored
        before: reads the sessions' ledger in its state before this run; None: there was none
        attach: images and files for the first message of each conversation
        asked: the object that each reply must be; None: replies are text
        retries_failed: whether messages whose turn ended with an error are sent again
    """

    def __init__(
        self,
        supervisor: HO2Supervisor,
        messages: Messages,
        results: Results | None,
        before: LedgerReader | None,
        attach: Sequence[Path],
        asked: OutputSchema | None,
        *,
        retries_failed: bool,
    ) -> None:
        self._asked, self._retries_failed = asked, retries_failed
        self._attached = tuple(FilePart(each) for each in attach)
        self._supervisor, self._messages, self._results, self._before = supervisor, messages, results, before
        self._waiting = iter(messages.conversations.values())
        self.turns = 0
        """Turns that ran now."""
        self.done_before = 0
        """Messages whose result is a turn that an earlier run had finished."""
        self.retried = 0
        """The part of `turns` that sent a message again whose turn had ended with an error."""
        self.failed = 0
        """Messages whose result is an error."""
        self.failed_turns = 0
        """The part of `failed` that had a turn, in this run or an earlier one; `--retry-failed` sends them again."""
        self.first_failure = ""
        """The message whose result was the first error, and the error; "": there was none."""
        self.asking = 0
        """Turns that ran now and asked for approval of tool calls."""
        self._over = 0
        self._is_stopping = False

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self._messages)

    @property
    def is_complete(self) -> bool:
        """Whether every message has its result."""
        return self._over == self.count

    async def run(self, concurrency: int, grace_s: float) -> None:
        """Runs until every message has its result. After an interrupt, lets running turns finish for at most `grace_s`."""
        with anyio.CancelScope() as everything:

            def stop(_: signal.Signals) -> bool:
                self._is_stopping = True
                say(f"kitchener: running turns may finish for {grace_s:g} s; interrupt again to stop at once")
                everything.deadline = anyio.current_time() + grace_s
                return False

            bar = progress_bar("turns", len(self._messages), lambda: self._over)
            async with on_signal(stop), bar, anyio.create_task_group() as workers:
                for _ in range(min(concurrency, len(self._messages.conversations))):
                    workers.start_soon(self._work)

    async def _work(self) -> None:
        for conversation in self._waiting:
            if self._is_stopping:
                return
            await self._converse(conversation)

    async def _converse(self, conversation: Conversation) -> None:
        """Runs the messages of one conversation in order. If one cannot run, skips the rest, which depends on it."""
        lines = conversation.lines
        running = await self._session(conversation)
        for first in range(0, len(lines), _READ_AT_ONCE):
            chunk = lines[first : first + _READ_AT_ONCE]
            texts = await anyio.to_thread.run_sync(self._messages.read, chunk)
            for ordinal, (line, message) in enumerate(zip(chunk, texts, strict=True), first + 1):
                if self._is_stopping:
                    return
                if ordinal == 1 and self._attached:
                    message = FileMessage(message.text, (*self._attached, *message.parts))
                outcome = await self._outcome(message, ordinal, running)
                self._note(outcome, conversation, ordinal)
                has_output = self._asked is not None
                self._keep(line, _record(conversation, ordinal, running.session_id, outcome, has_output=has_output))

    async def _outcome(self, message: FileMessage, ordinal: int, running: _RunningConversation) -> TurnResult | NotRun:
        """The result of a message: what an earlier run recorded, or a new turn's."""
        if running.failure is not None:
            return _not_run(running.failure) if ordinal > 1 else running.failure
        name = running.conversation.name
        number, turn = running.finished.last(name, ordinal)
        if turn is not None:
            recorded = await self._recorded(message, running, turn_key(name, ordinal, number), turn)
            if isinstance(recorded, NotRun):
                running.failure = recorded
                return recorded
            if recorded.error is None or not self._retries_failed:
                self.done_before += 1
                return recorded
        if running.retry_failure is not None:
            return _not_run(running.retry_failure)
        outcome = await self._turn(message, running, turn_key(name, ordinal, number + 1))
        if isinstance(outcome, TurnResult):
            self.turns += 1
            self.retried += turn is not None
            self.asking += bool(outcome.pending_approval)
        elif turn is None:
            running.failure = outcome
        else:
            running.retry_failure = outcome
        return outcome

    async def _recorded(
        self, message: FileMessage, running: _RunningConversation, key: str, turn: FinishedTurn
    ) -> TurnResult | NotRun:
        """The result of a finished turn; or why it is none of this message, as when the message in the file was changed."""
        wanted = self._asked.hash if self._asked is not None else None
        if (turn.message, turn.output_schema) == (message.text, wanted) and not message.parts:
            return TurnResult.from_payload(turn.completed)
        return await self._turn(message, running, key)  # the supervisor also compares images and files

    async def _session(self, conversation: Conversation) -> _RunningConversation:
        """Finds or starts the conversation's session, and reads its turns that were recorded before."""
        name, subject_id = conversation.name, conversation.subject_id
        nothing = FinishedTurns({})
        try:
            known = await self._supervisor.find_external(name, subject_id=subject_id)
            if known is None:
                started = await self._supervisor.start_session(subject_id=subject_id, external_id=name)
                return _RunningConversation(conversation, started, nothing, None)
            return _RunningConversation(conversation, known, await read_finished(self._before, known), None)
        except (LedgerError, RuntimeClosed):
            raise
        except KitchenerError as error:
            return _RunningConversation(conversation, None, nothing, NotRun(type(error).__name__, str(error)))

    async def _turn(self, message: FileMessage, running: _RunningConversation, key: str) -> TurnResult | NotRun:
        try:
            return await self._supervisor.handle_turn(
                message.text,
                session_id=running.session_id,
                subject_id=running.conversation.subject_id,
                idempotency_key=key,
                parts=message.parts,
                output=self._asked,  # checked once for all messages
            )
        except (LedgerError, RuntimeClosed):
            raise  # no other conversation can continue either
        except KitchenerError as error:
            return NotRun(type(error).__name__, str(error))

    def _note(self, outcome: TurnResult | NotRun, conversation: Conversation, ordinal: int) -> None:
        """Counts an error, and keeps the first one for people: without a file of results, nothing else tells it."""
        error = outcome.error if isinstance(outcome, TurnResult) else outcome
        if error is not None:
            self.failed += 1
            self.failed_turns += isinstance(outcome, TurnResult)
            where = f"conversation {quoted(conversation.name)}, message {ordinal:,}"
            self.first_failure = self.first_failure or f"{where}: {error.kind}: {one_line(error.message, _SHOWN_CHARS)}"

    def _keep(self, line: int, record: Mapping[str, object]) -> None:
        self._over += 1
        if self._results is not None:
            self._results.add(line, record)


def _not_run(failure: NotRun) -> NotRun:
    """The outcome of a message behind one that could not run."""
    return NotRun("NOT_RUN", f"an earlier message of this conversation failed: {failure.message}")


def _record(
    conversation: Conversation, ordinal: int, session_id: str | None, outcome: TurnResult | NotRun, *, has_output: bool
) -> dict[str, object]:
    """One line of the results."""
    turn, error = (outcome, outcome.error) if isinstance(outcome, TurnResult) else (None, outcome)
    found: dict[str, object] = {
        "conversation": conversation.name,
        "ordinal": ordinal,
        "session_id": session_id,
        "turn_id": turn.turn_id if turn else None,
        "response": turn.response if turn else None,
        "error": asdict(error) if error else None,
    }
    if turn and turn.pending_approval:
        found["pending_approval"] = list(turn.pending_approval)
    if turn and turn.truncated:
        found["truncated"] = True
    if has_output:
        found["output"] = turn.output if turn else None
    return found
