"""The components of a runtime that all its agent classes share, and the arguments of `open_runtime` that are among them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from kitchener.actors.admission.admission import TurnLimiter
from kitchener.actors.sessions.active_text import ActiveText
from kitchener.actors.similarity.embedding_comparer import EmbeddingComparer
from kitchener.actors.turn.services import DegradedCall
from kitchener.clock import Clock
from kitchener.config import RuntimeConfig
from kitchener.errors import ConfigError, LedgerWriteError
from kitchener.gateway import LLMGateway
from kitchener.ids import IdSource
from kitchener.lanes.own_loop import OwnLoop
from kitchener.media.content_store import ContentStore
from kitchener.memory import HO3Memory
from kitchener.records.embedding import EmbeddingProvider
from kitchener.records.prompt import PromptGateway, Provider
from kitchener.runtime.tools.connected_servers import McpServers
from kitchener.sealing import Sealer
from kitchener.signing import Signer
from kitchener.telemetry.port import Telemetry


@dataclass(frozen=True, slots=True)
class RuntimeArguments:
    """The arguments of `open_runtime` that are not settings."""

    tools: tuple[Callable[..., object], ...]
    providers: Mapping[str, Provider]
    degraded_call: DegradedCall | None
    clock: Clock
    ids: IdSource | None
    admin_socket: bool | None = None
    embeddings: EmbeddingProvider | None = None
    telemetry: Telemetry | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.providers, Mapping):
            raise _misfit("providers", self.providers, "objects by the ids of providers, {'mine': MyProvider()}")
        for name, method in (("clock", "time_us"), ("ids", "session_id"), ("embeddings", "embed"), ("telemetry", "caller")):
            given = getattr(self, name)
            if given is not None and (isinstance(given, type) or not callable(getattr(given, method, None))):
                raise _misfit(name, given, f"an object with `{method}`")
        if self.degraded_call is not None and not callable(self.degraded_call):
            raise _misfit("degraded_call", self.degraded_call, "a function")
        if self.admin_socket is not None and type(self.admin_socket) is not bool:
            raise _misfit("admin_socket", self.admin_socket, "True, False or None")


def checked_tools(tools: Iterable[Callable[..., object]]) -> tuple[Callable[..., object], ...]:
    """The argument `tools` of `open_runtime` as a tuple. Raises ConfigError if it is no list, such as a single function."""
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable):
        raise _misfit("tools", tools, "a list of functions marked with `@tool`, [list_packages]")
    return tuple(tools)


def _misfit(name: str, given: object, expected: str) -> ConfigError:
    """The error about an argument of `open_runtime`, by its type: it may hold secrets."""
    found = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
    return ConfigError(f"argument {name}", "", "", f"is {found}: expected {expected}")


class WriteFailure:
    """The first failed commit of a runtime, after which its ledgers accept no entries. Tasks can wait for it."""

    def __init__(self) -> None:
        self.error: LedgerWriteError | None = None
        self._noted = anyio.Event()

    def note(self, error: LedgerWriteError) -> None:
        """Records that a commit failed. Only the first failure counts, because the others follow from it."""
        if self.error is None:
            self.error = error
            self._noted.set()

    async def wait(self) -> LedgerWriteError:
        """Returns the failure as soon as there is one."""
        await self._noted.wait()
        assert self.error is not None
        return self.error


@dataclass(frozen=True, slots=True)
class RuntimeComponents:
    """The components of a runtime that all agent classes share."""

    config: RuntimeConfig
    source: str
    """Where the settings come from, for errors."""
    injected: RuntimeArguments
    gateway: LLMGateway
    models: PromptGateway
    """The gateway that executors call, with the limits of `[spending]` if there are any."""
    limiter: TurnLimiter
    active_text: ActiveText
    sealer: Sealer | None
    signer: Signer | None
    content: ContentStore
    embeddings: EmbeddingComparer | None
    memories: Mapping[str, HO3Memory]
    """Agent class to its long-term memory. Classes without a memory are missing."""
    servers: McpServers
    telemetry: Telemetry | None
    tasks: TaskGroup
    scope: anyio.CancelScope
    loop: OwnLoop = field(default_factory=OwnLoop)
    write_failure: WriteFailure = field(default_factory=WriteFailure)
    opening_memory: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while a memory that no agent class uses is open."""
