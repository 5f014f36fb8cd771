"""What a supervisor is put together from beside its own parts: what a runtime lends it, its memory, its policy's hashes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from anyio.abc import TaskGroup

from kitchener.actors.admission import TurnLimiter
from kitchener.actors.consolidation import Afterwards
from kitchener.actors.policy_code import policy_code
from kitchener.actors.remembering import LongTermMemory, TurnMemory
from kitchener.canonical import canonical_digest
from kitchener.config import SIGNAL_KINDS, HO2Config, LimitsConfig, without_secrets
from kitchener.errors import CallerError
from kitchener.ledger import LedgerClient, Ledgers
from kitchener.records.turn import UpdateListener
from kitchener.signing import Signer

_NOT_POLICY = frozenset(
    """ho2m_path ho1m_path ho3_memory_dir prompt_dir attention_templates session_queue idle_passivate_s session_id_digits
    consolidation_queue""".split()  # noqa: SIM905
)
"""Settings that change where things are or how long they wait, never what a turn decides."""


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
    """

    limits: LimitsConfig = field(default_factory=LimitsConfig)
    limiter: TurnLimiter | None = None
    listeners: dict[str, UpdateListener] = field(default_factory=dict)
    tasks: TaskGroup | None = None
    afterwards: Afterwards | None = None
    ready: Callable[[], Awaitable[None]] | None = None
    signer: Signer | None = None


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


def policy_hashes(config: HO2Config, memory: LongTermMemory | None) -> tuple[str, str]:
    """The hashes of the whole configuration, and of what decides: settings, and the code that goes by them."""
    settings: dict[str, Any] = without_secrets(config)
    if memory is not None and config.ho3_enabled:
        settings["memory"] = without_secrets(memory.config)
    policy = {key: value for key, value in settings.items() if key not in _NOT_POLICY} | {"code": policy_code()}
    return canonical_digest(settings), canonical_digest(policy)
