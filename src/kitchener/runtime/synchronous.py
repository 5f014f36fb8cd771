"""Runs a runtime in a thread of its own, so that a script or a notebook can use it without an event loop.

`open_runtime` does all the work, in the thread of `loop_thread`; this module only waits for it. Explained in `docs/runtime.md`.
"""

import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Literal, NoReturn, Self, TypeVar, get_args

import anyio

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.turn.services import DegradedCall
from kitchener.clock import Clock
from kitchener.config import DEFAULT_AGENT, RuntimeConfig
from kitchener.errors import CallerError, ConfigError, UnknownSession
from kitchener.ids import IdSource, split_approval_id
from kitchener.plain_names import quoted
from kitchener.records.embedding import EmbeddingProvider
from kitchener.records.entries import ApprovalScope, Json
from kitchener.records.parts import FilePart
from kitchener.records.prompt import Provider
from kitchener.records.tools.client_tools import ClientOutput, ClientTool
from kitchener.records.turn import OutputT, TurnResult
from kitchener.runtime.loops.loop_thread import LoopThread
from kitchener.runtime.queries.approval_list import ApprovalInfo
from kitchener.runtime.runtime import Runtime, open_runtime
from kitchener.telemetry.port import Telemetry

T = TypeVar("T")
Backend = Literal["asyncio", "trio"]
"""The event loop of the thread."""


class SyncRuntime:
    """One conversation with one agent class, from code without `async`; made by `open_sync`. Closed by `close`, by the end of
    its `with` block, or at the latest when the interpreter exits."""

    def __init__(self, thread: LoopThread[Runtime], agent_class: str, subject_id: str | None) -> None:
        self.runtime: Runtime = thread.held
        """The runtime. Call its coroutine functions with `call`."""
        self.session_id: str | None = None
        """The session of the conversation; None before the first message. Can be set to another session; None: a new one."""
        self._thread, self._agent_class, self._subject_id = thread, agent_class, subject_id
        self._beginning: anyio.Lock | None = None

    def close(self) -> None:
        """Closes the runtime in order, and returns when it is closed. Later calls have no effect.

        Raises:
            ActorStopped: an actor failed too often; its last failure is the cause
        """
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        thread: LoopThread[Runtime] | None = getattr(self, "_thread", None)  # None: `__init__` failed
        if thread is not None and not (thread.is_closed or thread.is_of_parent):
            warnings.warn("a runtime of `open_sync` was not closed", ResourceWarning, stacklevel=1, source=self)
            thread.close()

    def __reduce__(self) -> NoReturn:
        raise CallerError(
            "a runtime cannot be sent to another process, because one process writes its ledgers: open one there with another"
            " `root`, or let `kitchener serve` answer both processes"
        )

    def ask(  # noqa: PLR0913  as `handle_turn`
        self,
        message: str,
        *,
        idempotency_key: str | None = None,
        memory: bool = True,
        deadline: float | None = None,
        acceptance: Sequence[str] = (),
        parts: Sequence[FilePart] = (),
        speaker: str | None = None,
        output: type[OutputT] | Mapping[str, object] | None = None,
        tool_choice: str = "auto",
        client_tools: Sequence[ClientTool] = (),
    ) -> TurnResult[OutputT]:
        """Sends a message of the conversation and returns the result when its record is durable.

        Ctrl-C cancels the turn, waits until the abort is recorded, and raises KeyboardInterrupt. The conversation stays usable.

        Args:
            message: the text
            idempotency_key: messages with the same key run only one turn
            memory: False: this turn neither reads nor writes long-term memory
            deadline: seconds from now for the whole call; None: the agent class's `turn_deadline_s`
            acceptance: criteria that the reply must meet, besides those of the agent class, as for `handle_turn`
            parts: images and files of the message, see `ImagePart` and `FilePart`
            speaker: the name of the person who wrote the message, in a conversation of several people; None: the subject
            output: a pydantic model, or a JSON schema of an object, that the reply must fit; None: the reply is text
            tool_choice: what the model must call first: `none`, `required` or the name of a tool; `auto`: it chooses
            client_tools: tools that the caller runs; `answer_client_calls` takes their outputs

        Raises:
            CallerError, Overloaded, TurnTimeout, TurnReplaced, LedgerError, ActorStopped: as `HO2Supervisor.handle_turn`
        """

        async def turn() -> TurnResult[OutputT]:
            supervisor = self._supervisor()
            if self._beginning is None:
                self._beginning = anyio.Lock()  # of the event loop here; there may be another one where the object was made
            async with self._beginning:  # several threads may ask at once: one session begins
                if self.session_id is None:
                    self.session_id = await supervisor.start_session(subject_id=self._subject_id)
            return await supervisor.handle_turn(
                message,
                session_id=self.session_id,
                subject_id=self._subject_id,
                idempotency_key=idempotency_key,
                memory=memory,
                deadline=deadline,
                acceptance=acceptance,
                parts=parts,
                speaker=speaker,
                output=output,
                tool_choice=tool_choice,
                client_tools=client_tools,
            )

        return self.call(turn)

    def pending_approvals(self) -> list[ApprovalInfo]:
        """The tool calls of the conversation, and of the agents that it asked, that wait for a person, oldest first; before it
        has begun, those of its subject."""
        session_id, subject_id = self.session_id, self._subject_id
        if session_id is None and subject_id is None:
            return []
        return self.call(
            partial(self.runtime.pending_approvals, self._agent_class, session_id=session_id, subject_id=subject_id)
        )

    def approve(
        self,
        approval_id: str,
        *,
        arguments: Mapping[str, object] | None = None,
        answer: Json = None,
        scope: ApprovalScope = "once",
        answered_by: str | None = None,
        message: str | None = None,
    ) -> TurnResult | None:
        """Approves a waiting tool call, and returns the result of the continued turn, as `HO2Supervisor.approve`."""

        async def approved() -> TurnResult | None:
            supervisor = await self._answering(approval_id)
            return await supervisor.approve(
                approval_id, arguments=arguments, answer=answer, scope=scope, answered_by=answered_by, message=message
            )

        return self.call(approved)

    def deny(self, approval_id: str, reason: str | None = None, *, answered_by: str | None = None) -> TurnResult | None:
        """Denies a waiting tool call, and returns the result of the continued turn, as `HO2Supervisor.deny`."""

        async def denied() -> TurnResult | None:
            supervisor = await self._answering(approval_id)
            return await supervisor.deny(approval_id, reason, answered_by=answered_by)

        return self.call(denied)

    def answer_client_calls(self, outputs: Mapping[str, ClientOutput | Json]) -> TurnResult | None:
        """Records the outputs of a turn's `client_calls`, and returns the result of the continued turn, as
        `HO2Supervisor.answer_client_calls`."""

        async def answered() -> TurnResult | None:
            return await self._supervisor().answer_client_calls(outputs)

        return self.call(answered)

    async def _answering(self, approval_id: str) -> HO2Supervisor:
        """The supervisor that takes the answer to a request: the conversation's, or an agent's that it asked."""
        session_id = split_approval_id(approval_id)[0]
        classes = dict.fromkeys((self._agent_class, *self.runtime.config.class_names))
        for agent_class in classes if session_id != self.session_id else ():
            supervisor = self.runtime.supervisor(agent_class)
            with suppress(UnknownSession):
                await supervisor.session(session_id)
                return supervisor
        return self._supervisor()

    def _supervisor(self) -> HO2Supervisor:
        """The supervisor of the conversation, for the runtime's own thread: its agent class may have to be opened."""
        return self.runtime.supervisor(self._agent_class)

    def call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Runs a coroutine function, such as `runtime.supervisor().end_session`, and returns its result. Ctrl-C cancels it.

        Raises:
            RuntimeClosed: the runtime was closed
            CallerError: this process was forked from the one that opened the runtime, or the call comes from its event loop
        """
        return self._thread.call(function, *args)


def open_sync(  # noqa: PLR0913  as `open_runtime`
    config: RuntimeConfig | str | Path | None = None,
    *,
    root: str | Path | None = None,
    tools: Sequence[Callable[..., object]] = (),
    providers: Mapping[str, Provider] | None = None,
    degraded_call: DegradedCall | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    admin_socket: bool | None = None,
    embeddings: EmbeddingProvider | None = None,
    telemetry: Telemetry | None = None,
    lock_wait_s: float = 0.0,
    agent_class: str = DEFAULT_AGENT,
    subject_id: str | None = None,
    backend: Backend = "asyncio",
) -> SyncRuntime:
    """Starts a Kitchener in a thread of its own. Use it in a `with` block, which closes it, or call `close`.

    The first arguments are those of `open_runtime`.

    Args:
        agent_class: the agent class of the conversation
        subject_id: the subject of the conversation; None: an anonymous subject of each session
        backend: the event loop of the thread

    Raises:
        ConfigError, LedgerError, SigningError, ActorStopped: as `open_runtime`
    """
    _check_backend(backend)
    opened = open_runtime(
        config,
        root=root,
        tools=tools,
        providers=providers,
        degraded_call=degraded_call,
        clock=clock,
        ids=ids,
        admin_socket=admin_socket,
        embeddings=embeddings,
        telemetry=telemetry,
        lock_wait_s=lock_wait_s,
    )
    return SyncRuntime(LoopThread(opened, backend, "kitchener"), agent_class, subject_id)


def _check_backend(backend: object) -> None:
    """Raises ConfigError unless there is such an event loop."""
    if backend not in get_args(Backend):
        raise ConfigError("argument backend", "", quoted(backend), f"expected {' or '.join(map(repr, get_args(Backend)))}")
    if backend == "trio" and find_spec("trio") is None:
        raise ConfigError("argument backend", "", quoted(backend), "the package is not installed: pip install trio")
