"""Connects a supervisor to the resources of its runtime and to its long-term memory."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from anyio.abc import TaskGroup

from kitchener.actors.consolidation.consolidator import Afterwards
from kitchener.actors.sessions.admission import TurnLimiter
from kitchener.actors.turn_memory import LongTermMemory, TurnMemory
from kitchener.config import SIGNAL_KINDS, HO2Config, LimitsConfig
from kitchener.errors import CallerError
from kitchener.ledger import LedgerGroup
from kitchener.records.turn import UpdateListener
from kitchener.signing import Signer


@dataclass(slots=True)
class Host:
    """The resources that a runtime shares with its supervisors. A supervisor assembled by hand uses the defaults.

    Attributes:
        limits: the limits of the process
        limiter: limits the running turns of all supervisors of the runtime; None: the supervisor makes its own
        listeners: listeners for streamed text by work order id; shared with the executor
        tasks: the task group of streamed turns; None without a runtime
        afterwards: runs consolidations after the reply; None without a runtime
        ready: waits until the ledgers are open; None: they are open
        signer: signs projections; None: no key is configured
        ruleset_hash: identity of the policy; None: computed from the settings. A replay lifts some limits, so it passes the
            identity of the original settings
    """

    limits: LimitsConfig = field(default_factory=LimitsConfig)
    limiter: TurnLimiter | None = None
    listeners: dict[str, UpdateListener] = field(default_factory=dict)
    tasks: TaskGroup | None = None
    afterwards: Afterwards | None = None
    ready: Callable[[], Awaitable[None]] | None = None
    signer: Signer | None = None
    ruleset_hash: str | None = None


def turn_memory(agent_class: str, config: HO2Config, ledgers: LedgerGroup, memory: LongTermMemory | None) -> TurnMemory | None:
    """Returns the memory operations for turns; None if memory is off.

    Raises:
        CallerError: commits of `ledgers` do not include the memory's ledgers
    """
    if memory is None or not config.ho3_enabled:
        return None
    if not ledgers.covers(memory.ledgers):
        raise CallerError(
            f"the ledgers of {agent_class!r} are committed without those of its memory: Ledgers(…, also=memory.ledgers)"
        )
    return TurnMemory(memory, ledgers, agent_class, config, frozenset((*SIGNAL_KINDS, *memory.config.custom_kinds)))


def afterwards_of(config: HO2Config, host: Host) -> Afterwards | None:
    """Returns what runs automatic consolidations; None if `consolidation` is "manual".

    Raises:
        CallerError: `consolidation` is "auto" and there is no runtime
    """
    if config.consolidation == "auto" and host.afterwards is None:
        raise CallerError('consolidation = "auto" needs a runtime (open_runtime); by hand there is run_consolidation')
    return None if config.consolidation == "manual" else host.afterwards
