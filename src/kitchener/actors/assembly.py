"""Builds the components of one agent class's supervisor, and connects them to the resources of its runtime."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
from anyio.abc import TaskGroup

from kitchener.actors.admission.admission import Admission, TurnLimiter
from kitchener.actors.admission.content import ContentIntake
from kitchener.actors.admission.content_checks import ContentChecks
from kitchener.actors.admission.idempotency import IdempotencyKeys
from kitchener.actors.admission.outside_entries import OutsideEntries
from kitchener.actors.admission.requests import RequestChecks
from kitchener.actors.approval.answering import Approvals
from kitchener.actors.attention.retriever import AttentionRetriever
from kitchener.actors.attention.templates import resolve_template
from kitchener.actors.authority.authority import ContextAuthority, ruleset_of
from kitchener.actors.authority.comparing import Comparing
from kitchener.actors.consolidation.background import BackgroundJobs
from kitchener.actors.consolidation.consolidator import Consolidator
from kitchener.actors.erasure import ErasureGuard
from kitchener.actors.intent_calls import IntentCalls
from kitchener.actors.policy_identity import policy_identity
from kitchener.actors.sessions.active_text import ActiveText
from kitchener.actors.sessions.context_provider import SessionContext
from kitchener.actors.sessions.directory import SessionDirectory
from kitchener.actors.sessions.item_tool import ContextItems
from kitchener.actors.sources import CallersSources, RequestSources
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.turn.present_tools import PresentTools
from kitchener.actors.turn.runner import TurnRunner
from kitchener.actors.turn.services import DegradedCall, TurnConstants, TurnServices
from kitchener.actors.turn_memory import LongTermMemory, TurnMemory
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.actors.work.quality import QualityGate
from kitchener.clock import Clock, SystemClock
from kitchener.config import SIGNAL_KINDS, HO2Config, LimitsConfig
from kitchener.errors import CallerError
from kitchener.ids import IdSource, RandomIds
from kitchener.ledger import LateLedgers, LedgerGroup
from kitchener.media.content_store import ContentStore
from kitchener.records.events import POLICY_VERSION
from kitchener.records.turn import UpdateListener
from kitchener.records.work_order import Constraints, DirectCall, HO1ExecutorProtocol
from kitchener.signing import Signer

MediaTypesOf = Callable[[str | None, str | None, tuple[str, ...]], tuple[str, ...]]


def _text_only(provider_id: str | None, model_id: str | None, domain_tags: tuple[str, ...]) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class ComponentKinds:
    """The classes of the components of an agent class. Telemetry has its own, which also tell what they do."""

    runner: Callable[..., TurnRunner] = TurnRunner
    turn_memory: Callable[..., TurnMemory] = TurnMemory
    consolidator: Callable[..., Consolidator] = Consolidator
    tools: Callable[..., ToolRegistry] = ToolRegistry
    ledgers: Callable[..., LateLedgers] = LateLedgers


@dataclass(slots=True)
class SharedResources:
    """The resources that a runtime shares with its supervisors. A supervisor assembled by hand uses the defaults.

    Attributes:
        limits: the limits of the process
        limiter: limits the running turns of all supervisors of the runtime; None: the supervisor makes its own
        active_text: bounds the text of all active sessions of the runtime; None: the supervisor makes its own
        listeners: listeners for streamed text by work order id; shared with the executor
        tasks: the task group of streamed turns; None without a runtime
        background: runs consolidations after the reply; None without a runtime
        is_open: whether the ledgers are open
        wait_open: returns when the ledgers are open; called while `is_open` is False
        signer: signs projections; None: no key is configured
        ruleset_hash: identity of the policy; None: computed from the settings. A replay lifts some limits, so it passes the
            identity of the original settings
        sources: what shapes requests; None: read from the settings and the tools. A replay passes those of the original
            settings, or recorded ones
        policy_version: version of the rules that turns follow; a replay passes the recorded one
        store: has the bytes of images and files; None: messages cannot bring any
        media_types: the types of content that a provider, a model and domain tags take; a replay passes the recorded ones
        comparing: compares messages with earlier turns by meaning; None: their words alone count. A replay passes the recorded
            scores
        kinds: the classes of the components
    """

    limits: LimitsConfig = field(default_factory=LimitsConfig)
    limiter: TurnLimiter | None = None
    active_text: ActiveText | None = None
    listeners: dict[str, UpdateListener] = field(default_factory=dict)
    tasks: TaskGroup | None = None
    background: BackgroundJobs | None = None
    is_open: bool = True
    wait_open: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
    signer: Signer | None = None
    ruleset_hash: str | None = None
    sources: RequestSources | None = None
    policy_version: int = POLICY_VERSION
    store: ContentStore | None = None
    media_types: MediaTypesOf = _text_only
    comparing: Comparing | None = None
    kinds: ComponentKinds = field(default_factory=ComponentKinds)


@dataclass(frozen=True, slots=True)
class Components:
    """The components of one supervisor."""

    sessions: SessionDirectory
    admission: Admission
    limiter: TurnLimiter
    keys: IdempotencyKeys
    intents: IntentCalls
    attention: AttentionRetriever
    runner: TurnRunner
    consolidator: Consolidator | None
    """Runs consolidations; None if long-term memory is off."""
    background: BackgroundJobs | None
    """Runs automatic consolidations; None if `consolidation` is "manual"."""
    erasure: ErasureGuard
    outside: OutsideEntries
    authority: ContextAuthority | None
    """Decides what a model sees; None if `context_mode` is "off"."""
    sources: RequestSources
    """What shapes requests. Recorded before the first turn."""
    content: ContentIntake
    """Takes images and files of messages."""
    content_checks: ContentChecks
    """Checks a message before there is a session for it, by the rules for all arguments."""
    approvals: Approvals
    """Takes answers to tool calls that wait for a person."""


def assemble(  # noqa: PLR0913 - the arguments of `HO2Supervisor`, which documents them
    *,
    agent_class: str,
    ho1_executor: HO1ExecutorProtocol,
    ledgers: LedgerGroup,
    token_budgeter: TokenBudgeter,
    config: HO2Config,
    ho3_memory: LongTermMemory | None,
    attention: AttentionRetriever | None,
    degraded_call: DegradedCall | None,
    direct_call: DirectCall | None,
    tools: ToolRegistry | None,
    context_items: ContextItems | None,
    clock: Clock | None,
    ids: IdSource | None,
    host: SharedResources,
) -> Components:
    """Builds the components of a supervisor.

    Raises:
        CallerError: commits of `ledgers` leave out the memory's ledgers, or automatic consolidations have no runtime
    """
    clock, limits, tools = clock or SystemClock(), host.limits, tools or ToolRegistry()
    memory = ho3_memory if config.ho3_enabled else None
    ruleset_hash, sources = _policy(config, memory, tools, host)
    authority = _authority(config, ledgers, host, ruleset_hash, sources)
    sessions = SessionDirectory(
        agent_class=agent_class,
        ledgers=ledgers,
        config=config,
        clock=clock,
        ids=ids or RandomIds(config.session_id_digits),
        max_active=limits.max_active_sessions,
        text=(text := host.active_text or ActiveText(limits.max_active_chars)),
        authority=authority,
        memory=memory,
    )
    constants = TurnConstants(config, tools, sources, ruleset_hash, host.policy_version)
    content = _content(config, host, constants.synthesize)
    if context_items is not None:
        context_items.bind(sessions.thread)
    services = TurnServices(
        config=config,
        ledgers=ledgers,
        executor=ho1_executor,
        budgeter=token_budgeter,
        attention=attention or _attention(agent_class, config, sessions, sources, host.policy_version),
        quality=QualityGate(config),
        clock=clock,
        degraded_call=degraded_call,
        direct_call=direct_call,
        listeners=host.listeners,
        constants=constants,
        content=content,
        record_source=CallersSources(ledgers, is_recording=host.sources is None).record,
        authority=authority,
        memory=_turn_memory(agent_class, config, ledgers, memory, host) if memory is not None else None,
    )
    limiter = host.limiter or TurnLimiter(limits.max_running_turns, limits.max_waiting_turns)
    admission = Admission(config, limiter, text, content)
    consolidator = host.kinds.consolidator(agent_class, services, memory, limits.abort_grace_s) if memory is not None else None
    return Components(
        sessions=sessions,
        admission=admission,
        limiter=limiter,
        keys=IdempotencyKeys(agent_class, ledgers),
        intents=IntentCalls(sessions, admission, authority),
        attention=services.attention,
        runner=host.kinds.runner(_present_tools(services, tools, sources, host), sessions, limiter, limits.abort_grace_s),
        consolidator=consolidator,
        background=_background(config, host),
        erasure=ErasureGuard(sessions, admission, consolidator, authority, limits),
        outside=OutsideEntries(sessions, admission, authority),
        authority=authority,
        sources=sources,
        content=content,
        content_checks=ContentChecks(_checks(config, limits, tools), content, ledgers),
        approvals=Approvals(sessions, admission, ledgers, tools, is_recording=host.sources is None),
    )


def _policy(
    config: HO2Config, memory: LongTermMemory | None, tools: ToolRegistry, host: SharedResources
) -> tuple[str, RequestSources]:
    """Returns the identity of the policy, and what shapes requests."""
    memory_config = memory.config if memory is not None else None
    sources = host.sources or RequestSources.read(config, memory_config, tools)
    return host.ruleset_hash or policy_identity(config, memory_config), sources


def _present_tools(services: TurnServices, tools: ToolRegistry, sources: RequestSources, host: SharedResources) -> PresentTools:
    return PresentTools(services, tools, sources, is_recording=host.sources is None)


def _authority(
    config: HO2Config, ledgers: LedgerGroup, host: SharedResources, ruleset_hash: str, sources: RequestSources
) -> ContextAuthority | None:
    if config.context_mode == "off":
        return None
    ruleset = ruleset_of(config, ruleset_hash, host.policy_version)
    if ruleset.is_chat and not sources.shows_history:
        ruleset = replace(ruleset, prompt_layout="block")
    return ContextAuthority(config, ledgers, host.signer, ruleset=ruleset, comparing=host.comparing)


def _checks(config: HO2Config, limits: LimitsConfig, tools: ToolRegistry) -> RequestChecks:
    return RequestChecks(limits, by_model=config.verify_with_model, tools=tools, client_tools=config.client_tools)


def _content(config: HO2Config, host: SharedResources, reply: Constraints) -> ContentIntake:
    """Takes images and files that the provider takes to which a reply goes first."""
    media_types = partial(host.media_types, reply.provider_id, reply.model_id, reply.domain_tags)
    return ContentIntake(config, host.limits, host.store, media_types)


def _attention(
    agent_class: str, config: HO2Config, sessions: SessionDirectory, sources: RequestSources, policy_version: int
) -> AttentionRetriever:
    template = resolve_template(sources.templates, agent_class)
    is_chat = policy_version > 5 and config.prompt_layout == "chat" and sources.shows_history
    return AttentionRetriever(SessionContext(sessions, config, is_chat=is_chat), config, template, is_chat=is_chat)


def _turn_memory(
    agent_class: str, config: HO2Config, ledgers: LedgerGroup, memory: LongTermMemory, host: SharedResources
) -> TurnMemory:
    if not ledgers.covers(memory.ledgers):
        raise CallerError(
            f"the ledgers of {agent_class!r} are committed without those of its memory: Ledgers(…, also=memory.ledgers)"
        )
    kinds = frozenset((*SIGNAL_KINDS, *memory.config.custom_kinds))
    return host.kinds.turn_memory(memory, ledgers, agent_class, config, kinds)


def _background(config: HO2Config, host: SharedResources) -> BackgroundJobs | None:
    if config.consolidation == "auto" and host.background is None:
        raise CallerError('consolidation = "auto" needs a runtime (open_runtime); by hand there is run_consolidation')
    return None if config.consolidation == "manual" else host.background
