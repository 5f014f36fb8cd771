"""Defines operations, and the interface of the root that they change, with or without a running process.

`operations.py` has the operations; `listener.py` and `administration.py` run them.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.clock import Clock
from kitchener.config import RuntimeConfig
from kitchener.errors import CallerError
from kitchener.ledger import LedgerEntry
from kitchener.memory import HO3Memory
from kitchener.plain_names import quoted
from kitchener.runtime.admin.runtime_statistics import RuntimeStatistics
from kitchener.runtime.erasure import ErasureReport
from kitchener.runtime.portable.conversations import ConversationsImport
from kitchener.runtime.portable.importer import SessionImport

R = TypeVar("R")


class AdminRoot(Protocol):
    """A root that operations change, with or without a running process."""

    @property
    def directory(self) -> Path:
        """The directory of the ledgers."""
        ...

    @property
    def clock(self) -> Clock:
        """The time of day."""
        ...

    def open_supervisor(self, agent_class: str) -> AbstractAsyncContextManager[HO2Supervisor]:
        """Yields the supervisor of an agent class."""
        ...

    def open_memory(self, agent_class: str) -> AbstractAsyncContextManager[HO3Memory]:
        """Yields the memory as an agent class uses it."""
        ...

    async def append(self, agent_class: str, session_id: str, ledger_id: str, entries: Sequence[LedgerEntry]) -> None:
        """Appends entries about a session to the supervisor's ledger. Durable when it returns.

        Args:
            agent_class: the agent class of the ledger
            session_id: the session; "": entries of another program that name no session
            ledger_id: the ledger's id
            entries: the entries, with complete payloads
        """
        ...

    async def erase_subject(self, subject_id: str) -> ErasureReport:
        """Erases a subject; see `Runtime.erase_subject`."""
        ...

    async def import_session(self, folder: Path, public_key: str | None) -> SessionImport:
        """Adds an exported session; see `import_session`."""
        ...

    async def clean_content(self) -> tuple[Path, ...]:
        """Removes the stored images and files that no entry names, and returns them."""
        ...

    async def import_conversations(
        self, file: Path, subject_id: str, agent_class: str, *, dry_run: bool
    ) -> ConversationsImport:
        """Adds conversations of other programs; see `import_conversations`."""
        ...

    def statistics(self) -> RuntimeStatistics:
        """The present state of the queues; see `Runtime.statistics`."""
        ...


class Operation(BaseModel, Generic[R]):
    """One operation with its arguments."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")
    op: ClassVar[str]
    """The operation's name in a request."""
    result: ClassVar[TypeAdapter[Any]]
    """Converts what the operation returns to JSON types and back."""
    is_read_only: ClassVar[bool] = False
    """Whether it may run in parallel with others, because it changes nothing."""
    is_turn: ClassVar[bool] = False
    """Whether it runs a turn, which waits only for its session and has its own deadline."""

    # Not `__init__`, whose arguments type checkers derive from the fields.
    def __new__(cls, **given: object) -> Self:
        """Raises CallerError for a text that is not Unicode, because a command line can contain any bytes."""
        for name, value in given.items():
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, str) and each.encode(errors="replace").decode() != each:
                    raise CallerError(f"{name} = {quoted(each)}: is not Unicode text")
        return super().__new__(cls)

    def deadline_s(self, config: RuntimeConfig) -> float:
        """How long a command waits for the operation, seconds."""
        return config.admin.deadline_s

    async def run(self, root: AdminRoot) -> R:
        """Carries out the operation."""
        raise AssertionError(f"{type(self).__name__} has no run")

    def encoded(self, result: R) -> object:
        """The result of `run` as JSON types."""
        return self.result.dump_python(result, mode="json")

    def decoded(self, value: object) -> R:
        """The result of `run`, read from JSON types."""
        found: R = self.result.validate_python(value)
        return found
