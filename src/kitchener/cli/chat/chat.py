"""`kitchener chat`: one conversation, from a terminal or a pipe."""

import contextlib
import signal
import sys
from dataclasses import dataclass, field
from typing import Annotated, Final

import anyio
from cyclopts import Parameter

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.cli.chat.slash_commands import ChatContext, ChatMemory, is_about_context
from kitchener.cli.exits import INTERRUPTED, NEGATIVE, OK
from kitchener.cli.options import LedgerPaths, Options, SessionChoice
from kitchener.cli.terminal.interrupt import on_signal
from kitchener.cli.terminal.log_lines import LogLevel, logged_from
from kitchener.cli.terminal.output import counted, is_interactive, print_text, say
from kitchener.cli.terminal.typed_lines import TypedLines, terminal_kept
from kitchener.errors import KitchenerError, LedgerError, RuntimeClosed, SessionEnded, SessionMismatch, UnknownSession
from kitchener.records.entries import CostSummary
from kitchener.records.turn import TextDelta, TextRetracted, ToolRan, TurnCompleted, TurnResult
from kitchener.runtime import open_runtime, tune_gc

_HELP: Final = """\
/memory   what recurs, how near it is to being learned, and what was learned
/cost     what this chat has used
/session  which session this is, and how to come back to it
/why      what the last reply saw, and what was left out
/prompt   what the models were asked for it, word for word; `/prompt N` only the N-th request
/intents  the threads of this session; `/intents keep N` settles which of several goes on
/help     this list
/quit     leave (so does the end of the input)
A line that begins with // is a message that begins with /. Ctrl-C cancels the running turn; at the prompt it leaves."""

_EVERYTHING = Options()


def chat(
    session: Annotated[
        SessionChoice, Parameter(help="Go on with this session. `last`: the newest. Default: a new one.")
    ] = None,
    *,
    options: Options = _EVERYTHING,
    subject: Annotated[str | None, Parameter(help="The subject. Default: anonymous.")] = None,
    log_level: LogLevel = None,
) -> int:
    """Talk to an agent.

    On a terminal the reply appears as the model writes it, and text that is taken back is marked. From a pipe, each line is a
    message and standard output gets plain replies. `/help` lists the commands of the chat. Exits with 1 if a turn failed.

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
    agent_class = options.agent
    if session_id is not None:
        agent_class = await LedgerPaths(loaded.config).class_of(session_id, agent_class)
    async with open_runtime(loaded.config) as runtime:
        tune_gc()
        talk = _ChatLoop(
            supervisor=runtime.supervisor(agent_class),
            memory=ChatMemory.of(runtime, LedgerPaths(loaded.config), agent_class),
            session_id=session_id,
            subject_id=subject_id,
            resume=f"kitchener chat{options.as_text()} --session",
            grace_s=loaded.config.limits.shutdown_grace_s,
            context=ChatContext(LedgerPaths(loaded.config), runtime.supervisor(agent_class)),
        )
        await talk.run()
    return talk.exit_code


@dataclass(slots=True)
class _ChatLoop:
    """One chat: the loop over lines, the running turn, and what an interrupt does to it."""

    supervisor: HO2Supervisor
    memory: ChatMemory
    session_id: str | None
    subject_id: str | None
    resume: str
    """The command that comes back to the session, up to its id."""
    grace_s: float
    """How long a termination lets the running turn go on, seconds."""
    context: ChatContext
    is_interactive: bool = field(default_factory=is_interactive)
    exit_code: int = OK
    turns: int = 0
    cost: CostSummary = field(default_factory=lambda: CostSummary(input_tokens=0, output_tokens=0, llm_calls=0, tool_calls=0))
    _everything: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _turn: anyio.CancelScope | None = None
    _was_cancelled: bool = False
    """Whether the last message's turn was cancelled."""

    async def run(self) -> None:
        """Until the input ends, `/quit`, or an interrupt."""
        lines = TypedLines("> " if self.is_interactive else None)
        with contextlib.closing(lines), self._everything:
            async with on_signal(self._on_signal):
                while not self._everything.cancel_called and (line := await lines.next()) is not None:
                    if not await self._take(line):
                        break
        if self.is_interactive and self.session_id is not None:
            print_text(f"come back with: {self.resume} {self.session_id}", is_pale=True)

    async def _take(self, line: str) -> bool:
        """Deals with one line; False: leave."""
        word = line.strip()
        if word == "/memory":
            await self._show_memory()
        elif word == "/cost":
            print_text(self._cost())
        elif word == "/session":
            print_text(self._session())
        elif is_about_context(word):
            await self._show_context(word)
        elif word == "/help":
            print_text(_HELP)
        elif word == "/quit":
            return False
        elif self.is_interactive and word.startswith("/") and not word.startswith("//"):
            print_text(f"no such command: {word.split()[0]}; /help lists them")
        elif word:
            await self._say(line[1:] if word.startswith("//") else line)
        return True

    async def _say(self, message: str) -> None:
        """One turn. Its failure is told; the chat goes on unless the session or the ledger takes no more."""
        began = anyio.current_time()
        try:
            if self.session_id is None:
                self.session_id = await self.supervisor.start_session(subject_id=self.subject_id)
            with anyio.CancelScope() as self._turn:
                result = await self._stream(message)
                self._count(result, anyio.current_time() - began)
        except (LedgerError, RuntimeClosed, UnknownSession, SessionEnded, SessionMismatch):
            raise  # no other message of this chat can go better
        except KitchenerError as error:
            say(f"kitchener: {error}")
            self.exit_code = self.exit_code or NEGATIVE
        finally:
            self._was_cancelled = self._turn is not None and self._turn.cancel_called
            self._turn = None
        if self._was_cancelled and self.is_interactive and not self._everything.cancel_called:
            print_text("(turn cancelled)", is_pale=True)

    async def _show_memory(self) -> None:
        """What is known of who is talking; a memory that fails does not end the chat."""
        try:
            subject_id = self.subject_id
            if self.session_id is not None:
                subject_id = (await self.supervisor.session(self.session_id)).subject_id
            print_text(await self.memory.text(subject_id))
        except KitchenerError as error:
            say(f"kitchener: {error}")
            self.exit_code = self.exit_code or NEGATIVE

    async def _stream(self, message: str) -> TurnResult:
        """Shows the turn as it happens. A pipe gets the final reply only, since nothing can be taken back from it."""
        shown, result = "", None
        async for update in self.supervisor.stream_turn(message, session_id=self.session_id, subject_id=self.subject_id):
            if isinstance(update, TurnCompleted):
                result = update.result
            elif not self.is_interactive:
                continue
            elif isinstance(update, TextDelta):
                shown += update.text
                print_text(update.text, end="")
            elif isinstance(update, TextRetracted):
                if shown:
                    print_text("\n(taken back, another attempt follows)", is_pale=True)
                shown = ""
            elif isinstance(update, ToolRan):
                print_text(f"({update.tool_id}{' failed' if update.is_error else ''})", is_pale=True)
        if result is None:
            raise RuntimeClosed("the turn ended without a result, because the runtime is closing")
        self._finish(result, shown)
        return result

    def _finish(self, result: TurnResult, shown: str) -> None:
        if not self.is_interactive:
            print_text(result.response)
        elif shown.strip() == result.response.strip():
            print_text()
        else:
            print_text(("\n" if shown else "") + result.response)
        if result.error is not None:
            say(f"kitchener: {result.turn_id}: {result.error.kind}: {result.error.message}")
            self.exit_code = self.exit_code or NEGATIVE

    def _count(self, result: TurnResult, seconds: float) -> None:
        self.turns += 1
        cost, total = result.cost_summary, self.cost
        self.cost = CostSummary(
            input_tokens=total["input_tokens"] + cost["input_tokens"],
            output_tokens=total["output_tokens"] + cost["output_tokens"],
            llm_calls=total["llm_calls"] + cost["llm_calls"],
            tool_calls=total["tool_calls"] + cost["tool_calls"],
        )
        if self.is_interactive:
            print_text(f"{_cost_text(cost)} · {seconds:.1f} s", is_pale=True)

    def _cost(self) -> str:
        return f"{counted(self.turns, 'turn')} in this chat: {_cost_text(self.cost)}"

    def _session(self) -> str:
        if self.session_id is None:
            return "no session yet; it starts with your first message"
        return f"{self.session_id} of {self.supervisor.agent_class}; come back with: {self.resume} {self.session_id}"

    async def _show_context(self, word: str) -> None:
        """What the last reply saw, or the threads; a question that has no answer does not end the chat."""
        try:
            print_text(await self.context.text(word, self.session_id))
        except KitchenerError as error:
            say(f"kitchener: {error}")
            self.exit_code = self.exit_code or NEGATIVE

    def _on_signal(self, number: signal.Signals) -> bool:
        """Cancels the turn of a person who pressed Ctrl-C once; everything else leaves. True: more signals may come."""
        if number == signal.SIGTERM:
            self.exit_code = INTERRUPTED
            if self._turn is None:
                self._everything.cancel()
            else:
                self._everything.deadline = anyio.current_time() + self.grace_s
            return False
        if self._turn is not None and self.is_interactive and not self._turn.cancel_called:
            self._turn.cancel()
            print_text("\n(cancelling; Ctrl-C again leaves)", is_pale=True)
            return True
        if self._turn is not None or self._was_cancelled or not self.is_interactive:
            self.exit_code = INTERRUPTED
        elif sys.stdout.isatty():
            print_text()
        self._everything.cancel()
        return False


def _cost_text(cost: CostSummary) -> str:
    calls = counted(cost["llm_calls"], "model call")
    tools = f", {counted(cost['tool_calls'], 'tool call')}" if cost["tool_calls"] else ""
    return f"{cost['input_tokens']:,} tokens in, {cost['output_tokens']:,} out, {calls}{tools}"
