"""Builds the components of one agent class's supervisor, and connects them to the resources of its runtime."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
from anyio.abc import TaskGroup

from kitchener.actors.admission.admission import Admission, TurnLimiter
from kitchener.actors.admission.content import ContentIntake
from kitchener.actors.admission.content_checks import ContentChecks
from kitchener.actors.admission.idempotency import IdempotencyKeys
from kitchener.actors.admission.outside_entries import OutsideEntries
from kitchener.actors.admission.request_checks import RequestChecks
from kitchener.actors.approval.approvals import Approvals
from kitchener.actors.attention.retriever import AttentionRetriever
from kitchener.actors.attention.templates import resolve_template
from kitchener.actors.authority.agent_ruleset import ruleset_of
from kitchener.actors.authority.authority import ContextAuthority, TurnComparer
from kitchener.actors.consolidation.consolidator import Consolidator
from kitchener.actors.consolidation.triggers import BackgroundJobs, ConsolidationTriggers
from kitchener.actors.erasure_guard import ErasureGuard
from kitchener.actors.intent_calls import IntentCalls
from kitchener.actors.policy_identity import policy_identity
from kitchener.actors.sessions.active_text import ActiveText
from kitchener.actors.sessions.directory import SessionDirectory
from kitchener.actors.sessions.item_tool import ContextItems
from kitchener.actors.sessions.session_context import SessionContext
from kitchener.actors.sources import CallersSources, RequestSources
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.turn.admitted_turns import AdmittedTurns
from kitchener.actors.turn.present_tools import PresentTools
from kitchener.actors.turn.runner import TurnRunner
from kitchener.actors.turn.services import DegradedCall, TurnConstants, TurnServices
from kitchener.actors.turn_memory import LongTermMemory, TurnMemory
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.actors.work.quality import QualityGate
from kitchener.clock import Clock
from kitchener.config import SIGNAL_KINDS, HO2Config, LimitsConfig
from kitchener.errors import CallerError
from kitchener.ids import IdSource, RandomIds
from kitchener.lanes.own_loop import OwnLoop
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
    """The classes of the components of an agent class. Telemetry has its own classes, which also report what they do."""

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
        loop: the event loop from which calls may come; by default the one on which this object is made
        is_open: whether the ledgers are open
        wait_open: returns when the ledgers are open; called while `is_open` is False
        signer: signs projections; None: no key is configured
        ruleset_hash: identity of the policy; None: computed from the settings. A replay lifts some limits, so it passes the
            identity of the original settings
        sources: what shapes requests; None: read from the settings and the tools. A replay passes those of the original
            settings, or recorded ones
        policy_version: version of the rules that turns follow; a replay passes the recorded one
        store: stores images and files; None: messages cannot bring any
        request_fields: the fields that the settings of providers add to requests, by provider, for the record
        media_types: the types of content that a provider, a model and domain tags take; a replay passes the recorded ones
        comparer: compares messages with earlier turns by meaning; None: their words alone count. A replay passes the recorded
            scores
        kinds: the classes of the components
    """

    limits: LimitsConfig = field(default_factory=LimitsConfig)
    limiter: TurnLimiter | None = None
    active_text: ActiveText | None = None
    listeners: dict[str, UpdateListener] = field(default_factory=dict)
    tasks: TaskGroup | None = None
    background: BackgroundJobs | None = None
    loop: OwnLoop = field(default_factory=OwnLoop)
    is_open: bool = True
    wait_open: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
    signer: Signer | None = None
    ruleset_hash: str | None = None
    sources: RequestSources | None = None
    policy_version: int = POLICY_VERSION
    store: ContentStore | None = None
    request_fields: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    media_types: MediaTypesOf = _text_only
    comparer: TurnComparer | None = None
    kinds: ComponentKinds = field(default_factory=ComponentKinds)


@dataclass(frozen=True, slots=True)
class SupervisorArguments:
    """The arguments of one supervisor, documented in `HO2Supervisor`."""

    agent_class: str
    executor: HO1ExecutorProtocol
    ledgers: LedgerGroup
    budgeter: TokenBudgeter
    config: HO2Config
    memory: LongTermMemory | None
    attention: AttentionRetriever | None
    degraded_call: DegradedCall | None
    direct_call: DirectCall | None
    tools: ToolRegistry
    context_items: ContextItems | None
    clock: Clock
    ids: IdSource | None
    host: SharedResources

    @property
    def used_memory(self) -> LongTermMemory | None:
        """The memory; None: there is none, or the settings switch it off."""
        return self.memory if self.config.ho3_enabled else None

    @property
    def is_recording(self) -> bool:
        """Whether the sources of requests are recorded. A replay passes them in, and records nothing."""
        return self.host.sources is None


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy of an agent class, and the sources of its requests."""

    ruleset_hash: str
    version: int
    sources: RequestSources

    @classmethod
    def of(cls, given: SupervisorArguments) -> "Policy":
        """The policy that the settings give. A replay passes the recorded one with the shared resources."""
        memory_config = given.used_memory.config if given.used_memory is not None else None
        return cls(
            given.host.ruleset_hash or policy_identity(given.config, memory_config),
            given.host.policy_version,
            given.host.sources or RequestSources.read(given.config, memory_config, given.tools, given.host.request_fields),
        )


@dataclass(frozen=True, slots=True)
class Components:
    """The components of one supervisor."""

    sessions: SessionDirectory
    admission: Admission
    limiter: TurnLimiter
    keys: IdempotencyKeys
    intents: IntentCalls
    attention: AttentionRetriever
    turns: AdmittedTurns
    consolidations: ConsolidationTriggers
    erasure: ErasureGuard
    outside: OutsideEntries
    authority: ContextAuthority | None
    """Decides what a model sees; None if `context_mode` is "off"."""
    sources: RequestSources
    """The sources of requests. Recorded before the first turn."""
    content: ContentIntake
    """Takes images and files of messages."""
    checks: RequestChecks
    content_checks: ContentChecks
    approvals: Approvals
    """Takes answers to tool calls that wait for a person."""


def assemble(given: SupervisorArguments) -> Components:
    """Builds the components of a supervisor.

    Raises:
        CallerError: commits of the ledgers leave out the memory's ledgers, or automatic consolidations have no runtime
    """
    host, limits, policy = given.host, given.host.limits, Policy.of(given)
    text = host.active_text or ActiveText(limits.max_active_chars)
    limiter = host.limiter or TurnLimiter(limits.max_running_turns, limits.max_waiting_turns)
    authority = _authority(given, policy)
    sessions = _sessions(given, authority, text)
    if given.context_items is not None:
        given.context_items.bind(sessions.thread)
    services = _services(given, policy, sessions, authority)
    admission = Admission(given.config, limiter, text, services.content)
    checks = RequestChecks(
        limits, by_model=given.config.verify_with_model, tools=given.tools, client_tools=given.config.client_tools
    )
    consolidator = _consolidator(given, services)
    tools = PresentTools(services, given.tools, policy.sources, is_recording=given.is_recording)
    runner = host.kinds.runner(tools, sessions, limiter, limits.abort_grace_s)
    approvals = Approvals(sessions, admission, given.ledgers, given.tools, is_recording=given.is_recording)
    return Components(
        sessions=sessions,
        admission=admission,
        limiter=limiter,
        keys=IdempotencyKeys(given.agent_class, given.ledgers),
        intents=IntentCalls(sessions, admission, authority),
        attention=services.attention,
        turns=AdmittedTurns(checks, admission, sessions, approvals, runner),
        consolidations=ConsolidationTriggers(given.agent_class, consolidator, _background(given)),
        erasure=ErasureGuard(sessions, admission, consolidator, authority, limits),
        outside=OutsideEntries(sessions, admission, authority),
        authority=authority,
        sources=policy.sources,
        content=services.content,
        checks=checks,
        content_checks=ContentChecks(checks, services.content, given.ledgers),
        approvals=approvals,
    )


def _sessions(given: SupervisorArguments, authority: ContextAuthority | None, text: ActiveText) -> SessionDirectory:
    return SessionDirectory(
        agent_class=given.agent_class,
        ledgers=given.ledgers,
        config=given.config,
        clock=given.clock,
        ids=given.ids or RandomIds(),
        max_active=given.host.limits.max_active_sessions,
        text=text,
        authority=authority,
        memory=given.used_memory,
    )


def _services(
    given: SupervisorArguments, policy: Policy, sessions: SessionDirectory, authority: ContextAuthority | None
) -> TurnServices:
    constants = TurnConstants(given.config, given.tools, policy.sources, policy.ruleset_hash, policy.version)
    return TurnServices(
        config=given.config,
        ledgers=given.ledgers,
        executor=given.executor,
        budgeter=given.budgeter,
        attention=given.attention or _attention(given, policy, sessions),
        quality=QualityGate(given.config, policy.version),
        clock=given.clock,
        degraded_call=given.degraded_call,
        direct_call=given.direct_call,
        listeners=given.host.listeners,
        constants=constants,
        content=_content(given, constants.steps.synthesize),
        record_source=CallersSources(given.ledgers, is_recording=given.is_recording).record,
        authority=authority,
        memory=_turn_memory(given),
    )


def _authority(given: SupervisorArguments, policy: Policy) -> ContextAuthority | None:
    config, host = given.config, given.host
    if config.context_mode == "off":
        return None
    ruleset = ruleset_of(config, policy.ruleset_hash, policy.version)
    if ruleset.is_chat and not policy.sources.shows_history:
        ruleset = replace(ruleset, prompt_layout="block")
    return ContextAuthority(config, given.ledgers, host.signer, ruleset=ruleset, comparer=host.comparer)


def _content(given: SupervisorArguments, reply: Constraints) -> ContentIntake:
    """Accepts the images and files that the first provider of a reply accepts."""
    host = given.host
    media_types = partial(host.media_types, reply.provider_id, reply.model_id, reply.domain_tags)
    return ContentIntake(given.config, host.limits, host.store, media_types)


def _attention(given: SupervisorArguments, policy: Policy, sessions: SessionDirectory) -> AttentionRetriever:
    config, sources = given.config, policy.sources
    template = resolve_template(sources.templates, given.agent_class)
    is_chat = policy.version > 5 and config.prompt_layout == "chat" and sources.shows_history
    return AttentionRetriever(SessionContext(sessions, config, is_chat=is_chat), config, template, is_chat=is_chat)


def _turn_memory(given: SupervisorArguments) -> TurnMemory | None:
    memory, ledgers, agent_class = given.used_memory, given.ledgers, given.agent_class
    if memory is None:
        return None
    if not ledgers.covers(memory.ledgers):
        raise CallerError(
            f"the ledgers of {agent_class!r} are committed without those of its memory: Ledgers(…, also=memory.ledgers)"
        )
    kinds = frozenset((*SIGNAL_KINDS, *memory.config.custom_kinds))
    return given.host.kinds.turn_memory(memory, ledgers, agent_class, given.config, kinds)


def _consolidator(given: SupervisorArguments, services: TurnServices) -> Consolidator | None:
    if given.used_memory is None:
        return None
    make = given.host.kinds.consolidator
    return make(given.agent_class, services, given.used_memory, given.host.limits.abort_grace_s)


def _background(given: SupervisorArguments) -> BackgroundJobs | None:
    background, mode = given.host.background, given.config.consolidation
    if mode == "auto" and background is None:
        raise CallerError('consolidation = "auto" needs a runtime (open_runtime); by hand there is run_consolidation')
    return None if mode == "manual" else background
