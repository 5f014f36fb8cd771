"""Defines the settings of agent classes and of ledgers, and the whole of `kitchener.toml`: meaning, unit and default of each.

Each class is a table of `kitchener.toml`; the table of an agent class is so long that it is made of several groups. `kitchener
config schema` and the file of `kitchener init` show the docstrings here. The name of a duration contains its unit.
`kitchener.runtime.loading` reads the values from file, environment and arguments.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from kitchener.choices import (
    AdmissionOrder,
    ConflictPolicy,
    ContextMode,
    ContinueAfterClose,
    IntentMode,
    InvalidLifecyclePolicy,
    LabelKind,
    OverlapPolicy,
    PromptLayout,
    RecallScope,
    RepeatedFailurePolicy,
    SharedIntentPolicy,
    UnclearPolicy,
)
from kitchener.config.admin_socket import AdminConfig
from kitchener.config.approval import ApprovalConfig
from kitchener.config.embeddings import EmbeddingsConfig
from kitchener.config.limits import LimitsConfig, ToolLimits
from kitchener.config.mcp_servers import McpLabel, McpServerConfig
from kitchener.config.memory import HO3MemoryConfig
from kitchener.config.router import RouterConfig
from kitchener.config.serve import ServeConfig
from kitchener.config.settings_parser import Name, Positive, Seconds, Settings, TokenCount, inheriting
from kitchener.config.spending import SpendingConfig
from kitchener.criteria import MAX_CRITERIA, criterion_problem


def _known_criterion(criterion: str) -> str:
    problem = criterion_problem(criterion, by_model=True)
    if problem is not None:
        raise ValueError(problem)
    return criterion


Criterion = Annotated[str, AfterValidator(_known_criterion)]


INHERITED: Final = "default"
"""The table of `[agents]` that all classes inherit; no class has this name."""
DEFAULT_AGENT: Final = "ADMIN"
"""The agent class that is meant where none is named, and the only one where none is configured."""


class LedgerConfig(Settings):
    """`[ledger]`: how entries become durable."""

    gone_keys: ClassVar[Mapping[str, str]] = {
        "batch_turns": "was removed: a commit round starts when 128 callers wait for it, or as many as there are running turns",
        "linger_per_turn_ms": "was removed: the wait grows by a hundredth of `linger_ms` for each running turn",
    }

    durability: Literal["fsync", "os", "none"] = "fsync"
    """What a reply waits for. `fsync`: its records are on disk. `os`: the operating system has them; a crash of the process
    loses nothing, a power failure may. `none`: nothing."""
    linger_ms: Annotated[float, Field(ge=0, le=1_000, allow_inf_nan=False)] = 25.0
    """Longest time that a commit round waits for more callers to share its fsync, milliseconds. The wait grows with load, by a
    hundredth of this for each running turn; a turn that runs alone never waits. A round without a waiting caller, such
    as one for the start of a turn, waits up to the whole time for a caller to join it. 0: no wait."""
    max_pending_entries: Positive = 100_000
    """Entries of one ledger that may wait for a commit. Writers wait while there are more."""
    max_entry_bytes: Annotated[int, Field(ge=1_024, le=64 * 1_048_576)] = 1_048_576
    """Largest entry, bytes of its line. A larger one is refused before anything is written."""
    segment_bytes: Annotated[int, Field(ge=1_048_576, le=1_099_511_627_776)] = 64 * 1_048_576
    """Size at which a ledger's file is finished and a new one begins, bytes."""
    max_clock_jump_s: Seconds = 3_600.0
    """Largest step ahead that the clock may make between two entries, seconds. A larger one is refused, because one entry dated
    2099 would hold back the time of all later ones."""
    accept_clock_jump: bool = False
    """Whether to open and write although the clock jumped or the last entry lies in the future. Turn it on for one
    repair only."""
    verify_on_open: Literal["checkpoint", "full"] = "checkpoint"
    """What is verified when a ledger opens. `checkpoint`: the entries after the last write of the index. `full`: every hash."""
    seal: bool = True
    """Whether what subjects say, and what is answered and learned, is stored encrypted under a key per subject, so that a
    subject can be erased. False: in plain text, for good. What was sealed before stays readable."""
    keyring: str | None = None
    """Directory of the subjects' keys. Back it up, apart from the ledgers: without it, what is sealed is unreadable. None:
    beside `plane_root`, with `.keys` after its name."""
    signing_key: str | None = None
    """File of the Ed25519 key that signs the heads of ledgers and projections; `kitchener ledger key --new PATH` makes one.
    None: nothing is signed."""


class TelemetryConfig(Settings):
    """`[telemetry]`: spans and metrics for OpenTelemetry. Where they go, and whether they have content, the program's
    OpenTelemetry and its environment variables say."""

    traces: bool = False
    """Whether turns, model calls, tools, memory operations and commits are told to OpenTelemetry. It needs the extra `otel`;
    without an SDK in the program, nothing is recorded."""


class PersonaConfig(Settings):
    """Persona: who the agent is, and where its own files are."""

    agent_class: str = DEFAULT_AGENT
    """Name of the class: 1 to 64 letters, digits, `.`, `_` or `-`, or `RESIDENT:<name>`. In a file, the name of the table."""
    instructions: str = ""
    """Persona and task of the agent. The model sees them as instructions."""
    standing_rules: tuple[str, ...] = ()
    """Rules that hold in every turn. The model sees them as instructions."""
    tools: tuple[str, ...] | None = None
    """Tools of this class: names of tools given to `open_runtime`, `*` for all of those, `module:attribute` to import,
    `agent:CLASS` to ask another class, `mcp:LABEL` for the tools of a server of `[mcp]`, or `mcp:LABEL.TOOL` for one or, with
    `*`, for some. None: no tools."""
    prompt_dir: str | None = None
    """Directory of prompt packs and contracts, with their manifest, that replace shipped ones by id. None: the shipped ones."""
    attention_templates: str | None = None
    """Directory of attention templates. None: the shipped ones."""
    ho2m_path: str | None = None
    """File of the supervisor's ledger. None: under `plane_root`."""
    ho1m_path: str | None = None
    """File of the executor's ledger. None: under `plane_root`."""


ModelTask = Literal["classification", "synthesis", "verification", "consolidation"]
"""A type of work order that asks a model, as settings and domain tags name it."""


class ModelChoice(Settings):
    """`[agents.<class>.models.<type>]`: the provider and model of one type of work order."""

    provider: Name | None = None
    """Provider to ask, whatever the routes say. None: the class's provider."""
    model: Name | None = None
    """Model to ask for, whatever the routes say. None: the class's model, if its provider is the same."""


class ModelsConfig(Settings):
    """Models: which of them do the work of this class, and how they answer."""

    provider: Name | None = None
    """Provider that this class asks, whatever the routes say. None: the one that the routes give."""
    model: Name | None = None
    """Model that this class asks for, whatever the routes say. None: the model of the route or of the provider."""
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    """Sampling temperature of replies, 0 to 2. None: the contract's. A retry of a rejected reply uses 0."""
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Longest reply, tokens. None: the contract's."""
    domain_tags: tuple[Name, ...] = ()
    """Tags of all work orders of this class, for `[router.domain_tag_routes]`. They come before the tag of the type."""
    models: dict[ModelTask, ModelChoice] = Field(default_factory=dict)
    """Provider and model of a type of work order: classification, synthesis, verification or consolidation."""


class TurnConfig(Settings):
    """Turn: what one turn may use, and which work orders it plans."""

    budget_ceiling: Positive | None = None
    """Tokens that a session may use over its life. None: no ceiling."""
    turn_budget: Positive = 100_000
    """Tokens that a turn may use, over all its model calls: output, and input that no provider's cache served. A turn that runs
    out makes one last call, which may call no tool."""
    reply_reserve: Positive = 800
    """Tokens kept free for the reply."""
    token_estimator: Literal["utf8/3", "chars/4"] = "utf8/3"
    """How tokens are estimated before a provider has counted them: bytes of UTF-8 by 3, or characters by 4."""
    max_wo_chain_length: Annotated[int, Field(ge=2, le=100)] = 10
    """Work orders of one turn, retries included."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Retries of a rejected reply before the turn escalates."""
    classify: Literal["model", "rules", "off"] = "model"
    """Who classifies messages. `model`: a model, which may request a tool. `rules`: fixed rules for English, without a model
    call; tools are offered to the reply. `off`: nobody; each message has no labels and continues the intent."""
    classify_contract_id: Name = "PRC-CLASSIFY-001"
    """Contract of classify work orders."""
    synthesize_contract_id: Name = "PRC-SYNTHESIZE-002"
    """Contract of synthesize work orders."""
    verify_contract_id: Name = "PRC-VERIFY-001"
    """Contract of verify work orders."""
    acceptance: Annotated[tuple[Criterion, ...], Field(max_length=MAX_CRITERIA)] = ()
    """Criteria that every reply must meet: `min_chars:N`, `max_chars:N`, `contains:TEXT`, `not_contains:TEXT`; with
    `verify_with_model` also statements that a model can judge, such as `names the price`."""
    verify_with_model: bool = False
    """Whether a model judges each reply, besides the fixed checks. It costs one model call for each reply."""
    labels_vocabulary: dict[LabelKind, tuple[Name, ...]] = Field(default_factory=dict)
    """Labels that classification may give; any other counts as none. Empty: the model chooses."""

    @model_validator(mode="after")
    def _check_acceptance(self) -> Self:
        for each in self.acceptance if not self.verify_with_model else ():
            if (problem := criterion_problem(each)) is not None:
                raise ValueError(f"acceptance: {problem}")
        return self


class ToolsConfig(Settings):
    """Tools: how often and how long they run in one reply, and how much of their results the model is shown."""

    tool_turn_limit: Annotated[int, Field(ge=0, le=100)] = 8
    """Rounds of tool calls in one reply."""
    parallel_tools: Annotated[int, Field(ge=1, le=32)] = 4
    """Tools that run side by side, where the model calls several read-only tools one after another. 1: one by one."""
    tool_timeout_s: Seconds = 30.0
    """Longest run of a tool that sets no limit of its own, seconds."""
    reply_reserve_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 10.0
    """Seconds before the turn's deadline at which its tools are stopped, so that the model can still reply; at most a quarter
    of the time that is left when a tool starts."""
    max_tool_calls: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Tool calls of one reply. A further one is refused, and the model then replies."""
    max_equal_calls: Annotated[int, Field(ge=1, le=1_000)] = 3
    """Calls of one tool with the same arguments in one reply. A further one is refused once, and the model is told to use the
    results that it has; after the next such call, it replies without calls."""
    tool_result_max_bytes: Positive = 65_536
    """Largest tool result, bytes of its JSON. A larger one is cut and marked as cut."""
    result_page_tokens: Annotated[int, Field(ge=100, le=1_000_000)] = 8_000
    """Tokens of one tool result that the model is shown at once. Of a longer one it is shown the beginning, and reads the rest
    page by page with the built-in tool `read_context_item`."""
    tool_limits: dict[Name, ToolLimits] = Field(default_factory=dict)
    """Limits of single tools, by name or pattern such as `fs.*`. The first one that fits a tool counts, before what its author
    has set."""
    results_budget: Positive = 40_000
    """Tokens of tool results that the model is shown while it writes one reply. What goes beyond is cut and marked as cut, and
    the model then replies without further tools."""
    client_tools: Literal["allow", "refuse"] = "allow"
    """Whether a message may bring tools that its caller runs. `refuse`: such a message is refused."""
    client_tools_trusted: bool = False
    """Whether what callers return from tools of their own may be followed as if the user had written it. False: it is data,
    marked as such, after which `approval.after_untrusted` holds."""
    max_client_calls: Annotated[int, Field(ge=0, le=10_000)] = 64
    """Calls of callers' tools of one session that may wait for their outputs. A further one is refused, and the model is
    told."""
    approval: ApprovalConfig = Field(default_factory=ApprovalConfig)
    """Which tools wait for a person, and which are not offered."""


class SessionConfig(Settings):
    """Session: what happens to messages that arrive, and how long they wait."""

    overlap_policy: OverlapPolicy = "queue"
    """What happens to a message that arrives while its session is busy. `queue`: it waits. `reject`: it is refused. `replace`:
    it cancels the running turn."""
    session_queue: Positive = 8
    """Messages that may wait for one session. A further message is refused. Also how often the start of a turn is written
    again, where messages were refused while it was written."""
    turn_deadline_s: Seconds = 120.0
    """Longest turn, seconds, where the call names no deadline."""
    admission_deadline_s: Seconds = 30.0
    """Longest wait of a message for its session and for a free turn, seconds."""
    idle_passivate_s: Seconds = 300.0
    """Idle time after which a session leaves memory, seconds. It returns from the ledger with its next message."""


class AttentionConfig(Settings):
    """Attention: what is gathered for a turn, and for its classification, from the ledgers."""

    attention_budget_tokens: Positive = 10_000
    """Tokens of context gathered for one turn."""
    attention_budget_queries: Positive = 20
    """Reads that gathering may make in one turn."""
    attention_timeout_ms: Positive = 5_000
    """Longest gathering, milliseconds. The turn then uses what was found."""
    attention_window_turns: Annotated[int, Field(ge=1, le=1_000)] = 32
    """Newest turns of the session in which gathering looks for words of the message."""
    attention_matches: Annotated[int, Field(ge=0, le=100)] = 4
    """Turns that share words with the message, gathered besides the newest ones."""
    recent_turns: Annotated[int, Field(ge=0, le=100)] | None = None
    """Newest turns of the session that are always gathered. The Context Authority shows them whatever their intent, if they fit
    `context_budget`. Unset: 12, and as chat messages all that have room, so that no change of intent removes one."""
    recalled_results: Annotated[int, Field(ge=0, le=100)] = 6
    """Newest results of tools of the session that later turns may see, if no reply has repeated them. 0: none."""
    result_tokens: Annotated[int, Field(ge=64, le=4_000)] = 120
    """Tokens of one such result. Of a longer one, the beginning and what matches the message are shown."""
    recent_parts: Annotated[int, Field(ge=0, le=100)] = 4
    """Newest images and files of an intent's turns that the Context Authority shows again with their turns, if they fit
    `context_budget` and the model takes them. All others are mentioned by name and size. 0: none."""
    classify_recent_turns: Annotated[int, Field(ge=0, le=100)] = 3
    """Newest turns of the session that classification sees."""
    ranking_postings: Annotated[int, Field(ge=1, le=1_000_000)] = 4_096
    """Postings (a word in a turn) that lexical admission reads in one turn, the newest of each word first. It bounds the time
    that a long history takes."""

    @property
    def gathered_turns(self) -> int:
        """`recent_turns`, or its default where turns are no chat messages of the Context Authority."""
        return 12 if self.recent_turns is None else self.recent_turns


class LearningConfig(Settings):
    """Long-term memory: what this class learns from its subjects' turns, and is shown of it."""

    ho3_enabled: bool = False
    """Whether this class uses long-term memory: it learns from its subjects' turns, and the model sees what was learned."""
    ho3_memory_dir: str | None = None
    """Directory of the memory's ledgers. None: the directory of `[memory]`."""
    ho3_gate_count_threshold: Positive = 5
    """Overrides `[memory] gate_count_threshold` for this class. Without it, the value of `[memory]` holds."""
    ho3_gate_session_threshold: Positive = 3
    """Overrides `[memory] gate_session_threshold` for this class. Without it, the value of `[memory]` holds."""
    ho3_gate_window_hours: Annotated[int, Field(ge=1, le=87_600)] = 168
    """Overrides `[memory] gate_window_hours` for this class. Without it, the value of `[memory]` holds."""
    ho3_bias_budget: TokenCount = 2_000
    """Tokens of learned lines shown in one turn, four characters to the token."""
    consolidation: Literal["auto", "manual"] | None = None
    """Who starts consolidation. `auto`: the runtime, after the reply. `manual`: the program, by `run_consolidation`. None:
    `auto` under a runtime, `manual` for a supervisor assembled by hand."""
    consolidation_contract_id: Name = "PRC-CONSOLIDATE-001"
    """Contract of consolidate work orders."""
    consolidation_budget: Positive = 4_000
    """Tokens that one consolidation may use."""
    consolidation_deadline_s: Seconds = 120.0
    """Longest consolidation, seconds, including its wait to run. After a failed one its signal waits half of this; the wait
    doubles with each further failure, up to 30 times this."""

    @property
    def consolidation_backoff_s(self) -> float:
        """Wait after a signal's first failed consolidation, seconds."""
        return self.consolidation_deadline_s / 2


class IntentConfig(Settings):
    """Intents: which are live, and what becomes of one."""

    intent_mode: IntentMode = "bridge"
    """`bridge`: one intent for each session. `classified`: messages continue, switch or close intents, as their
    classification suggests."""
    intent_conflict_policy: ConflictPolicy = "block"
    """What to do when several intents are live. `block`: ask the user which one. `most_recent_wins`: take the newest one."""
    unclear_policy: UnclearPolicy = "continue_and_flag"
    """What to do with a message whose relation to the active intent is unclear: continue the intent, with or without a flag,
    declare a new one, or ask the user."""
    shared_intent_policy: SharedIntentPolicy = "parent"
    """What a shared intent may be in the session that declared it. `parent`: only the parent of that session's own intents.
    `active`: also the active intent, while the session has no live intent of its own; a message may then close it for all."""
    intent_min_confidence: Annotated[float, Field(ge=0, le=1)] = 0.6
    """Confidence of the classifier below which a relation counts as unclear."""
    intent_max_failures: Positive = 3
    """Failed turns of one intent in a row from which `repeated_failure_policy` applies."""
    repeated_failure_policy: RepeatedFailurePolicy = "flag"
    """What to do after repeated failures. `flag`: record a flag for a person. `defer`: also defer the intent, until a message
    continues it; only with `intent_mode = "classified"`."""
    continue_after_close: ContinueAfterClose = "declare"
    """What a message that continues does, if the classification of an earlier one closed the last intent. `declare`: begin a
    new intent. `reopen`: continue the closed one with its turns. An intent that ended in any other way stays as it is."""
    invalid_lifecycle_policy: InvalidLifecyclePolicy = "ignore_event"
    """What to do with a life-cycle event that contradicts earlier ones. `ignore_event`: leave it out and flag it.
    `block`: show nothing until the event is voided."""


class ContextConfig(Settings):
    """Context: what of a session's past the model sees."""

    context_mode: ContextMode = "off"
    """Who decides what the model sees. `off`: attention alone. `enforce`: the Context Authority, by intents and a token budget.
    `shadow`: attention, while the Authority records what it would have shown."""
    context_budget: TokenCount = 4_000
    """Tokens of context that the Authority shows in one turn. In chat layout, seven tenths of them are for chat messages, most
    of which a provider's cache serves."""
    recall_scope: RecallScope | None = None
    """Where recalled turns may come from. `intent`: none are recalled. `session`: other intents of the session. `subject`: also
    other sessions of the subject. None: `subject` with long-term memory (`ho3_enabled`), otherwise `intent`."""
    recalled_turns: Annotated[int, Field(ge=0, le=1_000)] = 100
    """Recalled turns that may compete for the budget, best matches first, up to as many as would fill it."""
    admission: AdmissionOrder = "lexical"
    """Which turns are shown when not all fit: those that match the message best, or the newest."""
    excerpt_tokens: Annotated[int, Field(ge=32, le=100_000)] = 200
    """Tokens of a message or a reply above which the Authority shows an excerpt: what matches the turn's message, or the
    beginning. If all turns fit `context_budget`, they are shown whole."""
    prompt_layout: PromptLayout = "chat"
    """How a session's past reaches the model. `chat`: as chat messages, which a provider's cache can serve again in the next
    turn. `block`: as one text beside the message."""
    evict_to: Annotated[float, Field(ge=0.1, le=0.95)] = 0.4
    """Share of their room to which the shown chat messages shrink, in whole turns, when they fill it. A smaller share changes
    the beginning of the prompt less often."""
    speaker_weight: Annotated[float, Field(ge=1, le=10)] = 1.3
    """Factor of the rank of what a speaker said whom the message names, in conversations of several people. 1: none."""
    newest_turns: Annotated[int, Field(ge=0, le=100)] = 3
    """Newest turns that lexical admission takes before the best matches, with `prompt_layout = "block"`. As many of a closed
    intent are shown to a message without an intent."""
    max_stubs: Annotated[int, Field(ge=0, le=1_000)] = 20
    """Items that do not fit and are mentioned by a stub."""
    max_failed_items: Annotated[int, Field(ge=0, le=1_000)] = 5
    """Failed work orders shown in full. Further ones share one stub with their number."""


# The last base comes first in the order of fields.
class HO2Config(
    IntentConfig,
    ContextConfig,
    LearningConfig,
    AttentionConfig,
    SessionConfig,
    ToolsConfig,
    TurnConfig,
    ModelsConfig,
    PersonaConfig,
):
    """`[agents.<class>]`: one agent class, its persona, tools, budgets and policies."""

    gone_keys: ClassVar[Mapping[str, str]] = {
        "consolidation_queue": "was removed: 500 consolidations wait for each that `[limits] background_concurrency` lets run",
        "consolidation_recent_events": "was removed: a consolidation shows the model the 20 newest events",
        "consolidation_message_chars": "was removed: a consolidation shows the model the first 500 characters of a message",
        "consolidation_backoff_max_s": "was removed: the longest wait is 30 times `consolidation_deadline_s`",
        "session_id_digits": "was removed: a session id has 8 digits; `open_runtime(ids=RandomIds(32))` makes longer ones",
        "consolidation_backoff_s": "was removed: the first wait is half of `consolidation_deadline_s`",
    }


class RuntimeConfig(Settings):
    """The whole of `kitchener.toml`."""

    plane_root: str = Field(default=".kitchener", min_length=1)
    """Directory of all ledgers and their indexes. A relative path starts at the file's directory, without a file at the current
    one."""
    ledger: LedgerConfig = Field(default_factory=LedgerConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    admin: AdminConfig = Field(default_factory=AdminConfig)
    memory: HO3MemoryConfig = Field(default_factory=HO3MemoryConfig)
    embeddings: EmbeddingsConfig = Field(default_factory=EmbeddingsConfig)
    mcp: dict[McpLabel, McpServerConfig] = Field(default_factory=dict)
    """`[mcp.<label>]`: MCP servers, whose tools the setting `tools` of a class names. Where no class has a table, every class
    has the tools of all servers."""
    spending: SpendingConfig = Field(default_factory=SpendingConfig)
    serve: ServeConfig = Field(default_factory=ServeConfig)
    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig)
    router: RouterConfig = Field(default_factory=RouterConfig)
    """`[router]`, or `router = {file = "router_config.json"}`."""
    agents: dict[str, HO2Config] = Field(default_factory=dict)
    """`[agents.<class>]`. `[agents.default]` is inherited by all classes and is none itself. Where any class has a table, the
    others cannot be used. Otherwise every class has the defaults, and all tools given to `open_runtime`."""

    @property
    def classes(self) -> dict[str, HO2Config]:
        """The configured agent classes: `agents` without `default`."""
        return {name: agent for name, agent in self.agents.items() if name != INHERITED}

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the configured agent classes; if there are none, of the default one."""
        return tuple(self.classes) or (DEFAULT_AGENT,)

    @model_validator(mode="after")
    def _inherit(self) -> Self:
        if (default := self.agents.get(INHERITED)) is not None:
            for name, agent in self.classes.items():
                self.agents[name] = inheriting(agent, default, name)
        return self
