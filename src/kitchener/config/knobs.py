"""Defines every setting of every component: its meaning, unit and default.

`kitchener config schema` and the configuration page are generated from the docstrings here. Fields are grouped by their table
in `kitchener.toml`. The name of a duration contains its unit. `kitchener.runtime.loading` reads the values from file,
environment and arguments.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from kitchener.config.parsing import Settings, dotted_key, parse_settings, read_settings_file
from kitchener.config.shown import described_name, described_names
from kitchener.errors import ConfigError

Positive = Annotated[int, Field(ge=1, le=1_000_000_000_000)]
Tokens = Annotated[int, Field(ge=0, le=1_000_000_000_000)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class LedgerConfig(Settings):
    """`[ledger]`: how entries become durable."""

    durability: Literal["fsync", "os", "none"] = "fsync"
    """`fsync`: a reply waits until its records are on disk. `os`: until the operating system has them (a process crash
    loses nothing, a power loss may). `none`: it does not wait."""
    batch_turns: Positive = 128
    """A commit round starts as soon as this many callers wait for it, or everyone who could is waiting."""
    linger_ms: Annotated[float, Field(ge=0, le=1_000, allow_inf_nan=False)] = 25.0
    """The longest that a commit round waits for more callers to share its fsync, milliseconds."""
    linger_per_turn_ms: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 0.25
    """The wait grows with load: this many milliseconds for each turn that is running, up to `linger_ms`."""
    max_pending_entries: Positive = 100_000
    """Entries of one ledger that may wait for a commit; beyond it, writers wait."""
    max_entry_bytes: Annotated[int, Field(ge=1_024, le=64 * 1_048_576)] = 1_048_576
    """Largest entry, bytes of its line; a larger one is refused before anything is written."""
    segment_bytes: Annotated[int, Field(ge=1_048_576, le=1_099_511_627_776)] = 64 * 1_048_576
    """A ledger's file that has grown to this size, bytes, is sealed and put beside it, and a new one is begun."""
    max_clock_jump_s: Seconds = 3_600.0
    """How far the clock may leap ahead between two entries, seconds; one entry dated 2099 would pin all later ones."""
    accept_clock_jump: bool = False
    """Open and write although the clock has jumped or the last entry lies in the future. For one repair, then off again."""
    verify_on_open: Literal["checkpoint", "full"] = "checkpoint"
    """`checkpoint`: verify what came after the index was last written. `full`: recompute every hash on open."""
    keyring: str | None = None
    """Directory of per-subject keys. Set: what subjects said and what was derived from it is stored encrypted. None: plain."""
    signing_key: str | None = None
    """File of the Ed25519 key that signs heads of ledgers and projections; `kitchener ledger key --new PATH` makes one. None:
    nothing is signed."""


class LimitsConfig(Settings):
    """`[limits]`: the bounds of one process. Every queue has a capacity, every wait a deadline."""

    max_running_turns: Positive = 512
    """Turns that run at the same time; others wait, subjects in turn. More of them take more memory and no less CPU; raise it
    where models are slow and many."""
    max_waiting_turns: Positive = 10_000
    """Turns that may wait to run; beyond it a turn is refused as overloaded at once."""
    max_active_sessions: Positive = 20_000
    """Sessions kept in memory; beyond it the longest idle ones are put away (they come back from the ledger)."""
    executor_concurrency: Positive = 1_024
    """Work orders that run at the same time in the interactive lane of one agent class."""
    executor_queue: Positive = 10_000
    """Work orders that may wait for the interactive lane."""
    background_concurrency: Positive = 2
    """Work orders that run at the same time in the background lane of one agent class."""
    background_queue: Positive = 1_000
    """Work orders that may wait for the background lane."""
    gateway_concurrency: Positive = 2_048
    """Model calls in flight over all providers (each provider has its own limit below this)."""
    gateway_queue: Positive = 10_000
    """Model calls that may wait for the gateway."""
    max_nesting: Annotated[int, Field(ge=0, le=16)] = 3
    """How deep turns may nest when a tool sends a message to another session; 0 forbids it."""
    max_agent_classes: Annotated[int, Field(ge=0, le=1_000_000)] = 16
    """Agent classes that are not configured and that one runtime opens on first use; each keeps ledgers and some 14 files open
    until it closes. A further one is refused; configured classes and `ADMIN` do not count."""
    max_restarts: Positive = 100
    """Failures of one actor within `restart_window_s` after which the runtime stops with that error as the cause."""
    restart_window_s: Seconds = 60.0
    """The window of `max_restarts`, seconds."""
    abort_grace_s: Seconds = 5.0
    """How long a cancelled turn may take to stop its work and record its end, seconds."""
    shutdown_grace_s: Seconds = 10.0
    """How long a shutdown waits for running turns before it aborts them, seconds."""
    max_message_chars: Positive = 100_000
    """Longest message a turn takes, characters."""
    stream_buffer: Positive = 256
    """Updates that `stream_turn` holds for a slow reader; then the turn waits for the reader."""


class GateThresholds(Settings):
    """`[memory.gate_overrides.<kind>]`: the gate of one kind of signal."""

    count: Positive
    """Events that open it."""
    sessions: Positive
    """Distinct sessions that open it."""


SIGNAL_KINDS = ("intent", "tool", "domain", "task", "outcome")
"""The kinds of signals that are always known."""


class HO3MemoryConfig(Settings):
    """`[memory]`: what recurs often enough to be learned, and how long it lasts."""

    enabled: bool = False
    """Opens the memory plane although no agent class has `ho3_enabled`, so that the program itself can read and write it."""
    memory_dir: str | None = None
    """Directory of `signals.jsonl` and `overlays.jsonl`; None: `HOT/memory` under `plane_root`."""
    gate_count_threshold: Positive = 5
    """Events of one signal that open its gate."""
    gate_session_threshold: Positive = 3
    """Distinct sessions in which they must have come."""
    gate_window_hours: Annotated[int, Field(ge=1, le=87_600)] = 168
    """Hours for which a signal counts as consolidated after it was."""
    decay_half_life_hours: Annotated[float, Field(gt=0, le=876_000, allow_inf_nan=False)] = 336.0
    """Hours after which a signal, or what was learned from it, counts half."""
    salience_floor: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Weight below which a learned line no longer speaks, after decay."""
    gate_exclude: tuple[Name, ...] = ("outcome:success",)
    """Signals that are counted and never learned from: ordinary success recurs in every turn and would teach nothing."""
    gate_overrides: dict[Name, GateThresholds] = Field(default_factory=dict)
    """Other thresholds for one kind of signals, by kind."""
    custom_kinds: tuple[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")], ...] = ()
    """Kinds of signals beside intent, tool, domain, task and outcome."""
    supersede_on_renewal: bool = True
    """A new artifact of a signal deactivates that signal's earlier ones; else near-duplicates pile up window by window."""
    max_line_chars: Annotated[int, Field(ge=16, le=2_000)] = 240
    """Longest learned line, characters; a longer one is refused."""
    resident_events: Annotated[int, Field(ge=1_000, le=1_000_000_000_000)] = 200_000
    """Signal events of recently used subjects that are kept in memory; beyond it the longest unused subjects are put away."""


class ProviderConfig(Settings):
    """`[router.providers.<id>]`: one place to send model calls to."""

    kind: Literal["offline", "openai_compatible", "model"] = "openai_compatible"
    """`offline`: the built-in rule-based model. `openai_compatible`: any server with a /chat/completions endpoint.
    `model`: a name of the multi-provider library in `model`, e.g. `anthropic:claude-sonnet-4-5`."""
    model: Name | None = None
    """Model to ask for where neither the request nor its route names one."""
    base_url: str | None = None
    """Root of an OpenAI-compatible endpoint, e.g. `http://127.0.0.1:8080/v1`."""
    api_key: str | None = None
    """A reference, never the key itself: `env:OPENAI_API_KEY` or `file:/run/secrets/key`. None: no key is sent."""
    max_concurrency: Positive = 64
    """Calls in flight at this provider; others queue, fairly between subjects."""
    requests_per_minute: Positive | None = None
    """Rate limit; None is none."""
    tokens_per_minute: Positive | None = None
    """Rate limit over estimated input plus reserved output tokens; None is none."""
    timeout_s: Seconds = 60.0
    """Longest single attempt, seconds; the turn's deadline cuts it shorter."""
    max_response_bytes: Annotated[int, Field(ge=1_024, le=1_073_741_824)] = 16 * 1_048_576
    """Longest answer, bytes after decompression; a longer one fails as malformed and its connection is closed. A streamed
    answer takes some 300 bytes for each token."""
    max_retries: Annotated[int, Field(ge=0, le=20)] = 2
    """Further attempts after a failure that a retry can mend (429, 5xx, connection, timeout, malformed answer)."""
    backoff_initial_s: Seconds = 0.5
    """First wait between attempts, seconds; doubles each time, with full jitter. `Retry-After` is honoured above it."""
    backoff_max_s: Seconds = 20.0
    """Longest wait between attempts, seconds."""
    breaker_failures: Positive = 5
    """Failures in a row that open the circuit; then calls fail at once."""
    breaker_reset_s: Seconds = 30.0
    """How long the circuit stays open before one call may try again, seconds."""


class Route(Settings):
    """Where a domain tag's requests go."""

    provider_id: Name
    """A provider of `[router.providers]`."""
    model_id: Name | None = None
    """Model to ask for, unless the request names one; None leaves it to the provider's own."""


class ModelPrice(Settings):
    """`[router.prices."<model>"]`: what a model's tokens cost, in whatever currency all prices are given."""

    input_per_million: Price
    """For a million tokens sent."""
    output_per_million: Price
    """For a million tokens received."""
    cached_per_million: Price | None = None
    """For a million of the sent ones that came from the provider's cache; None: as for the others."""


class RouterConfig(Settings):
    """`[router]`: which provider answers which request. Explicit request, then first matching domain tag, then default."""

    default_provider: Name = "offline"
    """Provider of requests that neither name one nor carry a routed tag."""
    default_model: Name | None = None
    """Model of requests that take the default route and name none; None leaves it to the provider's own."""
    providers: dict[Name, ProviderConfig] = Field(default_factory=lambda: {"offline": ProviderConfig(kind="offline")})
    """The providers by id. `offline` is always there."""
    domain_tag_routes: dict[Name, Route] = Field(default_factory=dict)
    """Route of each domain tag, e.g. `consolidation` to a local model; empty changes nothing."""
    fallbacks: dict[Name, tuple[Name, ...]] = Field(default_factory=dict)
    """Providers to try in order after one is exhausted; never for a caller's error."""
    prices: dict[Name, ModelPrice] = Field(default_factory=dict)
    """What models cost, by the name under which they are asked for; it decides nothing. The built-in model is free."""
    allow_model_calls: bool = True
    """False forbids every provider that is not built in: a switch for test suites."""

    @classmethod
    def from_config_file(cls, path: str | Path, *, given: Collection[str] = ()) -> "RouterConfig":
        """The router's settings out of a JSON or TOML file of their own.

        Args:
            path: a `.json` file; any other name is read as TOML
            given: ids of provider objects that the program itself passes in; routes may name them

        Raises:
            ConfigError: the file cannot be read, a key is unknown, a value impossible, or a route names no provider
        """
        router = parse_settings(cls, read_settings_file(path), str(path))
        known = {"offline", *router.providers, *given}
        for key, provider_id in router.named_providers():
            if provider_id not in known:
                there_are = f"no such provider; there are: {described_names(known)}"
                raise ConfigError(str(path), key, described_name(provider_id), there_are)
        return router

    def named_providers(self) -> Iterator[tuple[str, str]]:
        """Every mention of a provider outside `providers`: the key where it stands, and the id."""
        yield "default_provider", self.default_provider
        for tag, route in self.domain_tag_routes.items():
            yield dotted_key(("domain_tag_routes", tag, "provider_id")), route.provider_id
        for provider_id, others in self.fallbacks.items():
            yield dotted_key(("fallbacks", provider_id)), provider_id
            for number, other in enumerate(others):
                yield dotted_key(("fallbacks", provider_id, number)), other


class HO2Config(Settings):
    """`[agents.<class>]`: one agent class, its persona, tools, budgets and policies."""

    agent_class: str = "ADMIN"
    """`ADMIN` or `RESIDENT:<name>`; taken from the table's name in a file."""
    instructions: str = ""
    """Persona and task of the agent, shown to the model as instructions."""
    standing_rules: tuple[str, ...] = ()
    """Rules that hold in every turn, shown as instructions."""
    tools: tuple[str, ...] | None = None
    """Tools of this class: names of tools given to `open_runtime`, or `module:attribute` to import. None: all given."""
    prompt_dir: str | None = None
    """Directory with own prompt packs, contracts and their manifest; overrides the shipped ones by id."""
    attention_templates: str | None = None
    """Directory with own attention templates; None: the shipped ones."""
    ho2m_path: str | None = None
    """The supervisor's ledger; None: under `plane_root`."""
    ho1m_path: str | None = None
    """The executor's ledger; None: under `plane_root`."""
    budget_ceiling: Positive | None = None
    """Tokens a session may use over its life; None is no ceiling."""
    turn_budget: Positive = 16_000
    """Tokens a turn may use."""
    max_wo_chain_length: Annotated[int, Field(ge=2, le=100)] = 10
    """Work orders of one turn, retries included."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Retries of a rejected synthesis before the turn escalates."""
    tool_turn_limit: Annotated[int, Field(ge=0, le=100)] = 8
    """Rounds of tool use in one synthesis."""
    tool_timeout_s: Seconds = 30.0
    """Longest run of one tool, seconds, unless the tool sets its own."""
    tool_result_max_bytes: Positive = 65_536
    """Largest tool result kept, bytes of its JSON; a longer one is cut and says so."""
    classify_contract_id: Name = "PRC-CLASSIFY-001"
    """Contract of classify work orders."""
    synthesize_contract_id: Name = "PRC-SYNTHESIZE-001"
    """Contract of synthesize work orders."""
    verify_contract_id: Name = "PRC-VERIFY-001"
    """Contract of verify work orders."""
    consolidation_contract_id: Name = "PRC-CONSOLIDATE-001"
    """Contract of consolidate work orders."""
    verify_with_model: bool = False
    """Ask a model for a verdict on each reply, beside the fixed checks."""
    labels_vocabulary: dict[Literal["domain", "task"], tuple[Name, ...]] = Field(default_factory=dict)
    """Labels that classification may give; another one counts as none. Empty leaves the choice to the model."""
    attention_budget_tokens: Positive = 10_000
    """Tokens of gathered context in one turn."""
    attention_budget_queries: Positive = 20
    """Reads that gathering may make in one turn."""
    attention_timeout_ms: Positive = 5_000
    """Longest gathering, milliseconds; what was found until then is used."""
    attention_window_turns: Annotated[int, Field(ge=1, le=1_000)] = 32
    """Newest turns of the session in which lexical matches are looked for."""
    attention_matches: Annotated[int, Field(ge=0, le=100)] = 4
    """Lexically matching turns shown besides the newest ones."""
    recent_turns: Annotated[int, Field(ge=0, le=100)] = 6
    """Newest turns of the session that are always gathered."""
    classify_recent_turns: Annotated[int, Field(ge=0, le=100)] = 3
    """Newest turns that classification sees."""
    reply_reserve: Positive = 800
    """Tokens kept free for the reply."""
    token_estimator: Literal["utf8/3", "chars/4"] = "utf8/3"
    """How tokens are estimated before a provider has counted them."""
    overlap_policy: Literal["queue", "reject", "replace"] = "queue"
    """A message that arrives while its session is busy: waits its turn, is refused, or replaces the running turn."""
    session_queue: Positive = 8
    """Messages that may wait for one session."""
    turn_deadline_s: Seconds = 120.0
    """Longest turn, seconds, unless the call names a deadline."""
    admission_deadline_s: Seconds = 30.0
    """Longest wait for the session and for a turn slot, seconds."""
    idle_passivate_s: Seconds = 300.0
    """A session idle for so long is put away, seconds."""
    session_id_digits: Annotated[int, Field(ge=8, le=32)] = 8
    """Hex digits of new session ids."""
    ho3_enabled: bool = False
    """Whether this class uses long-term memory: learns from its subjects' turns and shows the model what was learned."""
    ho3_memory_dir: str | None = None
    """Directory of the memory's ledgers; None: that of `[memory]`."""
    ho3_gate_count_threshold: Positive = 5
    """As `gate_count_threshold` of `[memory]`, for this class; only where it is set here."""
    ho3_gate_session_threshold: Positive = 3
    """As `gate_session_threshold` of `[memory]`, for this class; only where it is set here."""
    ho3_gate_window_hours: Annotated[int, Field(ge=1, le=87_600)] = 168
    """As `gate_window_hours` of `[memory]`, for this class; only where it is set here."""
    ho3_bias_budget: Tokens = 2_000
    """Tokens of learned lines shown in one turn, four characters to the token."""
    consolidation: Literal["auto", "manual"] | None = None
    """Who starts consolidation. `auto`: the runtime, after the reply. `manual`: the program, by `run_consolidation`. None:
    `auto` under a runtime, `manual` for a supervisor assembled by hand."""
    consolidation_budget: Positive = 4_000
    """Tokens that one consolidation may use."""
    consolidation_deadline_s: Seconds = 120.0
    """Longest consolidation, seconds, its wait for the background lane included."""
    consolidation_recent_events: Annotated[int, Field(ge=1, le=200)] = 20
    """Newest events that a consolidation shows the model, with what the user said."""
    consolidation_message_chars: Positive = 500
    """Longest part of a user's message that a consolidation shows the model, characters."""
    consolidation_queue: Positive = 1_000
    """Consolidations that may wait; a gate that crosses beyond it is found again at its next signal."""
    consolidation_backoff_s: Seconds = 60.0
    """Wait after a consolidation that failed, seconds; doubles with each failure of the same signal."""
    consolidation_backoff_max_s: Seconds = 3_600.0
    """Longest such wait, seconds."""
    context_mode: Literal["off", "shadow", "enforce"] = "off"
    """Who decides what the model sees. `off`: attention alone. `enforce`: the Context Authority. `shadow`: attention, while the
    Authority decides beside it on the context ledger, for comparison."""
    context_budget: Tokens = 2_400
    """Tokens of context that the Authority shows in one turn."""
    intent_mode: Literal["bridge", "classified"] = "bridge"
    """`bridge`: one intent for each session. `classified`: messages continue, switch or close intents, as their
    classification suggests."""
    intent_conflict_policy: Literal["block", "most_recent_wins"] = "block"
    """Several intents are live at once: ask the user which one, or take the one declared last."""
    unclear_policy: Literal["continue_and_flag", "continue", "declare", "ask"] = "continue_and_flag"
    """What to do with a message whose relation to the active intent is unclear."""
    intent_min_confidence: Annotated[float, Field(ge=0, le=1)] = 0.6
    """A relation that is less certain than this counts as unclear."""
    intent_max_failures: Positive = 3
    """Failed turns in a row, of one intent, from which on each is flagged."""
    invalid_lifecycle_policy: Literal["ignore_event", "block"] = "ignore_event"
    """An impossible life-cycle event: left out and flagged, or nothing is shown until it is voided."""
    recall_scope: Literal["intent", "session", "subject"] = "intent"
    """Where recalled turns may come from beyond the active intent: nowhere, the session, the subject's other sessions."""
    recalled_turns: Annotated[int, Field(ge=0, le=1_000)] = 50
    """Best matching turns from beyond the intent that may compete for the context's budget."""
    admission: Literal["lexical", "newest_first"] = "lexical"
    """Which turns are admitted to the context: those that match the message best, or the newest."""
    max_stubs: Annotated[int, Field(ge=0, le=1_000)] = 20
    """Items that are mentioned by a stub when they do not fit."""
    max_failed_items: Annotated[int, Field(ge=0, le=1_000)] = 5
    """Failed work orders that are shown in full; further ones are one counted stub."""
    newest_turns: Annotated[int, Field(ge=0, le=100)] = 3
    """Newest turns that lexical admission takes before the best matching ones."""
    ranking_postings: Annotated[int, Field(ge=1, le=1_000_000)] = 1_024
    """Places of words that lexical admission looks at in one turn, so that a long history costs no more than a short one;
    of words that are in more turns, the newest ones."""


class RuntimeConfig(Settings):
    """The whole of `kitchener.toml`."""

    plane_root: str = ".kitchener"
    """Directory of all ledgers and derived indexes; relative to the file's directory, or to the current one."""
    ledger: LedgerConfig = Field(default_factory=LedgerConfig)
    """`[ledger]`"""
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    """`[limits]`"""
    memory: HO3MemoryConfig = Field(default_factory=HO3MemoryConfig)
    """`[memory]`"""
    router: RouterConfig = Field(default_factory=RouterConfig)
    """`[router]`, or `router = {file = "router_config.json"}`."""
    agents: dict[str, HO2Config] = Field(default_factory=dict)
    """`[agents.<class>]`; a class that is not configured has the defaults."""
