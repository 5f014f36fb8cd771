"""`kitchener chat`: one conversation, from a terminal or a pipe."""

import contextlib
import importlib.metadata
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Final

import anyio
from cyclopts import Parameter

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.work.plan import model_choice, tags_for
from kitchener.cli.chat.approval_prompt import ApprovalPrompt
from kitchener.cli.chat.shown_turn import ShownTurn
from kitchener.cli.chat.slash_commands import ChatContext, ChatMemory, is_about_context
from kitchener.cli.exits import INTERRUPTED, NEGATIVE, OK
from kitchener.cli.options import NO_OPTIONS, Options, SessionChoice, listens
from kitchener.cli.terminal.log_lines import LogLevel, logged_from
from kitchener.cli.terminal.output import discard_output, is_interactive, print_text, say
from kitchener.cli.terminal.status_line import StatusLine
from kitchener.cli.terminal.stop_signals import on_signal
from kitchener.cli.terminal.typed_lines import TypedLines, terminal_kept
from kitchener.clock import SystemClock
from kitchener.config import RuntimeConfig
from kitchener.errors import (
    ApprovalVoid,
    KitchenerError,
    LedgerError,
    RuntimeClosed,
    SessionEnded,
    SessionMismatch,
    TurnOverloaded,
    TurnTimeout,
    UnknownSession,
)
from kitchener.gateway.routing import plan_route
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.spending import Spending, in_all, read_spending, used_text
from kitchener.inspection.turn_views.turn_end import CUT
from kitchener.plain_names import counted, shown_path
from kitchener.records.parts import FilePart
from kitchener.records.turn import TurnCompleted, TurnResult
from kitchener.runtime import open_runtime, tune_gc
from kitchener.runtime.root_layout import agent_of
from kitchener.small_files import open_regular
from kitchener.times import iso_of
from kitchener.tuning import OWN_MODELS

_HELP: Final = """\
/memory    what recurs, how near it is to being learned, and what was learned
/cost      what this chat and its session have used, also in cancelled turns, and what that costs
/session   which session this is, and how to continue it
/why       what the last reply saw, and what was left out
/prompt    what the models were asked for it, word for word; `/prompt N` only the N-th request
/intents   the threads of this session; `/intents keep N` chooses the one to continue
/approvals the tool calls that wait for you; asks about each
/attach    `/attach PATH` sends an image or a file with the next message
/help      this list
/quit      leave (so does the end of the input)
A line that begins with // is a message that begins with /. Ctrl-C cancels the running turn; at the prompt it leaves."""


def chat(
    session: Annotated[SessionChoice, Parameter(help="Continue this session. `last`: the newest. Default: a new one.")] = None,
    *,
    options: Options = NO_OPTIONS,
    subject: Annotated[str | None, Parameter(help="The subject. Default: anonymous.")] = None,
    log_level: LogLevel = None,
) -> int:
    """Talk to an agent.

    On a terminal the reply appears as the model writes it, and text that is withdrawn is marked. From a pipe, each line is a
    message and standard output gets plain replies. `/help` lists the commands of the chat. Exits with 1 if a turn failed,
    and with 7 if a server or another process has the root open.

    For example:

        kitchener chat
        kitchener chat --subject ada --root ./ledgers
        echo "hello" | kitchener chat
        kitchener chat last
        kitchener chat SES-0a1b2c3d
    """
    with terminal_kept(), logged_from(log_level):
        return anyio.run(_chat, options, session, subject)


async def _chat(options: Options, session_id: str | None, subject_id: str | None) -> int:
    loaded = options.load_checked()
    paths = LedgerPaths(loaded.config)
    agent_class = await options.class_of(session_id, paths)
    async with open_runtime(loaded, admin_socket=listens(loaded.config)) as runtime:
        tune_gc()
        talk = _ChatLoop(
            supervisor=runtime.supervisor(agent_class),
            memory=ChatMemory.of(runtime, paths, agent_class),
            session_id=session_id,
            subject_id=subject_id,
            resume=f"kitchener chat{options.as_text()} --session",
            grace_s=loaded.config.limits.shutdown_grace_s,
            context=ChatContext(paths, runtime.supervisor(agent_class)),
            approvals=ApprovalPrompt(runtime, agent_class),
            answer_with=f"kitchener approval approve{options.as_text()}",
            commit=lambda: runtime.ledgers(agent_class).commit(),
        )
        if talk.is_interactive:
            for line in _banner_lines(loaded.config, agent_class):
                print_text(line, style="pale")
        if session_id is not None and await talk.approvals.read(session_id):
            if talk.is_interactive:
                print_text(talk.approvals.overview)
            else:
                talk.approvals.forget()
        await talk.run()
        if talk.is_interactive and runtime.statistics()["pending_consolidations"]:
            print_text(
                f"(still learning from what was said, for at most {talk.grace_s:g} s; Ctrl-C leaves at once)", style="pale"
            )
    return talk.exit_code


@dataclass(slots=True)
class _ChatLoop:
    """One chat: reads lines, runs turns, and handles interrupts."""

    supervisor: HO2Supervisor
    memory: ChatMemory
    session_id: str | None
    subject_id: str | None
    resume: str
    """The command that continues the session, without the session's id."""
    grace_s: float
    """How long the running turn may take to end after a termination, seconds."""
    context: ChatContext
    approvals: ApprovalPrompt
    answer_with: str
    """The command that answers a request, without the request's id."""
    commit: Callable[[], Awaitable[None]]
    """Commits the record, because the commands of the chat read it from the files."""
    is_interactive: bool = field(default_factory=is_interactive)
    exit_code: int = OK
    turns: int = 0
    """Completed turns."""
    cancelled: int = 0
    """Turns that Ctrl-C cancelled."""
    cut_off: int = 0
    """Turns that passed their deadline."""
    began: str = field(default_factory=lambda: iso_of(SystemClock().time_us()))
    """When the chat began, ISO time as ledgers write it."""
    status: StatusLine = field(default_factory=StatusLine)
    attached: list[FilePart] = field(default_factory=list)
    """Files that are sent with the next message."""
    is_continued: bool = field(init=False)
    """Whether the chat continues a session that began before it."""
    _everything: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _turn: anyio.CancelScope | None = None
    _was_cancelled: bool = False
    """Whether the last message's turn was cancelled."""

    def __post_init__(self) -> None:
        self.is_continued = self.session_id is not None

    async def run(self) -> None:
        """Handles lines until the input ends, `/quit`, or an interrupt."""
        lines = TypedLines("you> " if self.is_interactive else None)
        with contextlib.closing(lines), self._everything:
            async with on_signal(self._on_signal), anyio.create_task_group() as tasks:
                tasks.start_soon(self.status.run)
                while not self._everything.cancel_called and (line := await lines.next()) is not None:
                    if not await self._take(line):
                        break
                tasks.cancel_scope.cancel()
        if self.is_interactive and self.session_id is not None:
            print_text(f"continue with: {self.resume} {self.session_id}", style="pale")

    async def _take(self, line: str) -> bool:
        """Handles one line. Returns False if the chat must end."""
        word = line.strip()
        if word in (asked := {"/memory": self._known, "/cost": self._cost, "/approvals": self._waiting}):
            await self._shown(asked[word]())
        elif word == "/session":
            print_text(self._session())
        elif is_about_context(word):
            await self._shown(self.context.text(word, self.session_id))
        elif word.split(maxsplit=1)[:1] == ["/attach"]:
            self._attach(word.removeprefix("/attach").strip())
        elif word == "/help":
            print_text(_HELP)
        elif word == "/quit":
            return False
        elif self.is_interactive and word.startswith("/") and not word.startswith("//"):
            print_text(f"no such command: {word.split()[0]}; /help lists them. To begin a message with /, type //")
        elif self.approvals.is_answer(word):
            await self._turned(partial(self._answer, word))
        elif word:
            self.approvals.forget()
            await self._turned(partial(self._stream, line[1:] if word.startswith("//") else line))
        return True

    def _attach(self, path: str) -> None:
        """Keeps an image or a file for the next message, which reads it."""
        if problem := _unreadable(path):
            say(f"kitchener: /attach {problem}")
            self.exit_code = self.exit_code or NEGATIVE
            return
        self.attached.append(FilePart(path))
        if self.is_interactive:
            print_text(f"{counted(len(self.attached), 'file')} will be sent with the next message", style="pale")

    async def _answer(self, word: str) -> TurnResult | None:
        """Records the person's answer about a waiting call, and shows the continued turn."""
        shown = ShownTurn(self.approvals.asker, self.status)
        try:
            result = await self.approvals.take(word)
            if result is not None:
                shown.finish(result)
                self._tell_problem(result)
        except ApprovalVoid as error:
            shown.break_off()
            if isinstance(error.result, TurnResult):
                shown.finish(error.result)
            raise
        finally:
            shown.break_off()
        return result

    async def _turned(self, run: Callable[[], Awaitable[TurnResult | None]]) -> None:
        """Runs one turn and shows its failure. The chat continues unless the session or the ledger accepts no more."""
        began = anyio.current_time()
        try:
            if self.session_id is None:
                self.session_id = await self.supervisor.start_session(subject_id=self.subject_id)
            with anyio.CancelScope() as self._turn:
                result = await run()
                if result is not None:
                    self._count(result, anyio.current_time() - began)
                    if self.is_interactive and _may_wait(result):
                        await self.approvals.read_new(self.session_id)
        except (LedgerError, RuntimeClosed, UnknownSession, SessionEnded, SessionMismatch):
            raise  # no later message of this chat can succeed either
        except KitchenerError as error:
            self.cut_off += isinstance(error, TurnTimeout | TurnOverloaded)
            say(f"kitchener: {error}")
            self.exit_code = self.exit_code or NEGATIVE
        finally:
            self._was_cancelled = self._turn is not None and self._turn.cancel_called
            self.cancelled += self._was_cancelled
            self._turn = None
        if self._was_cancelled and self.is_interactive and not self._everything.cancel_called:
            print_text("(turn cancelled)", style="pale")
        self.approvals.ask()

    async def _shown(self, answer: Awaitable[str]) -> None:
        """Shows the answer to the person's question. A failure to answer does not end the chat."""
        try:
            print_text(await answer)
        except KitchenerError as error:
            say(f"kitchener: {error}")
            self.exit_code = self.exit_code or NEGATIVE

    async def _known(self) -> str:
        """The subject's profile in memory, as text."""
        subject_id = self.subject_id
        if self.session_id is not None:
            subject_id = (await self.supervisor.session(self.session_id)).subject_id
        return await self.memory.text(subject_id)

    async def _stream(self, message: str) -> TurnResult:
        """Shows the turn as it happens. A pipe gets only the final reply, because text in a pipe cannot be withdrawn."""
        result, parts, self.attached = None, self.attached, []
        shown = ShownTurn(self.supervisor.agent_class, self.status) if self.is_interactive else None
        try:
            turn = self.supervisor.stream_turn(message, session_id=self.session_id, subject_id=self.subject_id, parts=parts)
            async for update in turn:
                if isinstance(update, TurnCompleted):
                    result = update.result
                elif shown is not None:
                    shown.take(update)
            if result is None:
                raise RuntimeClosed("the turn ended without a result, because the runtime is closing")
            if shown is not None:
                shown.finish(result)
        except KitchenerError:
            if shown is not None:
                shown.break_off()
            raise
        finally:
            self.status.clear()
        if shown is None:
            print_text(result.response)
            for waiting in await self.approvals.read_new(result.session_id) if _may_wait(result) else ():
                say(f"kitchener: a tool call waits: {self.answer_with} {waiting.approval_id}")
            self.approvals.forget()  # every line is a message
        self._tell_problem(result)
        return result

    def _tell_problem(self, result: TurnResult) -> None:
        """Shows the error of a turn that could not do what was asked, and through a pipe also that a reply was cut."""
        if result.error is not None:
            say(f"kitchener: {result.turn_id}: {result.error.kind}: {result.error.message}")
            self.exit_code = self.exit_code or NEGATIVE
        elif result.truncated and not self.is_interactive:
            say(f"kitchener: {result.turn_id}: the reply was {CUT}")

    def _count(self, result: TurnResult, seconds: float) -> None:
        self.turns += 1
        if self.is_interactive:
            print_text(f"{used_text(result.cost_summary)} · {seconds:.1f} s", style="pale")

    async def _waiting(self) -> str:
        if self.session_id is None or not await self.approvals.read(self.session_id):
            return "no tool call of this session is waiting"
        return self.approvals.overview

    async def _cost(self) -> str:
        turns = counted(self.turns + self.cancelled + self.cut_off, "turn")
        ended = f", {self.cancelled} cancelled" if self.cancelled else ""
        ended += f", {self.cut_off} cut off" if self.cut_off else ""
        if self.session_id is not None and ended:  # the record of such a turn may not be committed yet
            await self.commit()
        told = f"{turns} in this chat{ended}: {await self._spent(self.began)}"
        if not self.is_continued or self.session_id is None:
            return told
        in_session = counted(await self.context.count_turns(self.session_id), "turn")
        return f"{told}\n{in_session} in this session: {await self._spent()}"

    async def _spent(self, since: str = "") -> str:
        """What the session has used from a time on, ISO time; "": from its beginning on."""
        if self.session_id is None:
            return Spending().text()
        spent = await read_spending(self.context.paths, self.supervisor.agent_class, self.session_id, since)
        return in_all(spent.values()).text()

    def _session(self) -> str:
        if self.session_id is None:
            return "no session yet; it starts with your first message"
        return f"{self.session_id} of {self.supervisor.agent_class}; continue with: {self.resume} {self.session_id}"

    def _on_signal(self, number: signal.Signals) -> bool:
        """Cancels the running turn after a first Ctrl-C; any other signal ends the chat. True: handles further signals, too."""
        if number != signal.SIGINT:
            self.exit_code = INTERRUPTED
            if number == signal.SIGHUP and self.is_interactive:
                discard_output()  # its terminal has gone; the turn's reply is on record
            if self._turn is None:
                self._everything.cancel()
            else:
                self._everything.deadline = anyio.current_time() + self.grace_s
            return False
        if self._turn is not None and self.is_interactive and not self._turn.cancel_called:
            self._turn.cancel()
            self.status.clear()
            print_text("\n(cancelling; press Ctrl-C again to quit)", style="pale")
            return True
        if self._turn is not None or self._was_cancelled or not self.is_interactive:
            self.exit_code = INTERRUPTED
        elif sys.stdout.isatty():
            print_text()
        self._everything.cancel()
        return False


def _may_wait(result: TurnResult) -> bool:
    """Whether a call of the turn, or of an agent that it asked, may wait for a person."""
    return bool(result.pending_approval) or "nested" in result.cost_summary


def _banner_lines(config: RuntimeConfig, agent_class: str) -> Iterator[str]:
    """The first lines of a chat on a terminal."""
    agent = agent_of(config, agent_class)
    choice = model_choice(agent, "synthesis")
    first = plan_route(choice.provider, choice.model, tags_for(agent, "synthesize"), config.router).candidates[0]
    model = first.model_id or OWN_MODELS.get(first.provider_id, "its own model")
    version = importlib.metadata.version("kitchener")
    yield f"Kitchener {version} · agent {agent_class} · model {model} of {first.provider_id}"
    yield f"Ledgers in {shown_path(config.plane_root)}"
    if first.provider_id in OWN_MODELS:
        yield "This model follows fixed rules, without a network. For a real one: kitchener init --provider openai --model NAME"
    yield "/help lists the commands. Ctrl-C cancels a turn; at the prompt, it quits."


def _unreadable(path: str) -> str:
    """Why a path cannot be attached; "": it can. Does not wait, even for a named pipe."""
    if not path:
        return "needs the path of an image or a file"
    try:
        open_regular(path).close()
    except FileNotFoundError:
        return f"{path!r}: no such file"
    except OSError as error:
        return f"{path!r}: cannot be read: {error.strerror}"
    except ValueError:  # it holds a null character
        return f"{path!r}: no such file"
    return ""
