"""What a supervisor is put together from beside its own parts: what a runtime lends it, and its memory."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from anyio.abc import TaskGroup

from kitchener.actors.consolidation.consolidator import Afterwards
from kitchener.actors.sessions.admission import TurnLimiter
from kitchener.actors.turn_memory import LongTermMemory, TurnMemory
from kitchener.config import SIGNAL_KINDS, HO2Config, LimitsConfig
from kitchener.errors import CallerError
from kitchener.ledger import LedgerClient, Ledgers
from kitchener.records.turn import UpdateListener
from kitchener.signing import Signer


@dataclass(slots=True)
class Host:
    """What a runtime lends to its supervisors; one assembled by hand works with the defaults.

    Attributes:
        limits: the bounds of the process
        limiter: running turns of all supervisors of the runtime
        listeners: who reads the text of which work order; shared with the executor
        tasks: where streamed turns run; None where there is no runtime
        afterwards: where consolidation runs once the reply is delivered; None where there is no runtime
        ready: waits until the ledgers are open; None where they are
        signer: signs projections; None where no key is configured
        ruleset_hash: identity of the policy; None: that of the settings. A replay, whose settings lift some limits, lends
            the identity of the settings that it was given
    """

    limits: LimitsConfig = field(default_factory=LimitsConfig)
    limiter: TurnLimiter | None = None
    listeners: dict[str, UpdateListener] = field(default_factory=dict)
    tasks: TaskGroup | None = None
    afterwards: Afterwards | None = None
    ready: Callable[[], Awaitable[None]] | None = None
    signer: Signer | None = None
    ruleset_hash: str | None = None


def turn_memory(agent_class: str, config: HO2Config, ledgers: Ledgers, memory: LongTermMemory | None) -> TurnMemory | None:
    """The memory as turns use it; None where it is off."""
    if memory is None or not config.ho3_enabled:
        return None
    own: tuple[LedgerClient, ...] = getattr(memory, "ledgers", ())
    if isinstance(ledgers, Ledgers) and not ledgers.covers(own):
        raise CallerError(
            f"the ledgers of {agent_class!r} are committed without those of its memory: Ledgers(…, also=memory.ledgers)"
        )
    return TurnMemory(memory, ledgers, agent_class, config, frozenset((*SIGNAL_KINDS, *memory.config.custom_kinds)))


def afterwards_of(config: HO2Config, host: Host) -> Afterwards | None:
    """Where consolidation runs by itself; None where the program starts it."""
    if config.consolidation == "auto" and host.afterwards is None:
        raise CallerError('consolidation = "auto" needs a runtime (open_runtime); by hand there is run_consolidation')
    return None if config.consolidation == "manual" else host.afterwards
