"""Turns recorded sources into the objects that render requests: settings, contracts, packs, templates and tools, by hash.

`kitchener.actors.sources` records them. This module also compares them with the present configuration of an agent class.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from kitchener.actors.attention.templates import AttentionTemplate
from kitchener.actors.executor.prompt_files import PromptSource
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.policy_identity import NOT_POLICY
from kitchener.actors.sources import RequestSources, SourcesSealed, criteria_of, has_history, read_source, read_texts
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.turn_memory import LongTermMemory
from kitchener.config import HO2Config, HO3MemoryConfig
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.records import events
from kitchener.records.entries import ConfigurationSource, SourceKind, ToolDefinition, TurnStartedPayload, payload_as
from kitchener.records.index_keys import source_index_key
from kitchener.records.prompt import ToolSpec
from kitchener.records.tools.runnable_tool import ToolIdentity
from kitchener.records.tools.tool_context import ToolContext
from kitchener.replaying.comparison import line_diff

_KINDS: Final[Mapping[SourceKind, str]] = {
    "prompt_pack": "prompt pack",
    "contract": "contract",
    "attention_template": "attention template",
    "tool": "tool",
}


ArgumentProblem = Callable[[str, Mapping[str, object]], str | None]
"""Returns what was wrong with the arguments of a call of a tool, when it was recorded; None: nothing."""


@dataclass(frozen=True, slots=True)
class SourceChange:
    """A source that differs from the recorded one of a turn."""

    name: str
    """The name of the source, such as `instructions of ADMIN`, `prompt pack PRM-SYNTHESIZE-001` or `tool weather`."""
    diff: str
    """A unified diff from the recorded text to the present one."""


@dataclass(frozen=True, slots=True)
class RecordedSources:
    """All sources of a configuration, as recorded."""

    config_hash: str
    agent_class: str
    settings: Mapping[str, object]
    texts: Mapping[tuple[SourceKind, str], str]
    """The text of each source besides the configuration, by kind and name."""
    hashes: Mapping[tuple[SourceKind, str], str]
    request_fields: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The fields that the settings of providers added to requests, by provider."""

    def agent(self, present: HO2Config) -> HO2Config:
        """The recorded settings of the agent class, with the paths of the present ones."""
        known = {key: value for key, value in self.settings.items() if key in HO2Config.model_fields}
        return HO2Config.model_validate_json(json.dumps(known)).model_copy(
            update={name: getattr(present, name) for name in ("ho2m_path", "ho1m_path", "ho3_memory_dir")}
        )

    def memory(self, present: HO3MemoryConfig) -> HO3MemoryConfig | None:
        """The recorded settings of the memory; None: the class used none."""
        recorded = self.settings.get("memory")
        if not isinstance(recorded, dict):
            return None
        known = {key: value for key, value in recorded.items() if key in HO3MemoryConfig.model_fields}
        found = HO3MemoryConfig.model_validate_json(json.dumps(known))
        return found.model_copy(update={"memory_dir": present.memory_dir})

    def prompts(self) -> PromptLibrary:
        """The recorded contracts and packs, compiled."""
        return PromptLibrary.of(
            {
                name: PromptSource(f"{name} as recorded", self.hashes[kind, name], text)
                for (kind, name), text in self.texts.items()
                if kind in ("prompt_pack", "contract")
            }
        )

    def templates(self) -> tuple[AttentionTemplate, ...]:
        """The recorded attention templates."""
        found = {name: text for (kind, name), text in self.texts.items() if kind == "attention_template"}
        return tuple(AttentionTemplate.model_validate_json(found[name]) for name in sorted(found))

    def tools(self, problem: ArgumentProblem) -> ToolRegistry:
        """The recorded tools, which cannot run; see `DefinedTool`."""
        known = [(each["built_in"], DefinedTool(each, problem)) for each in self.tool_definitions()]
        return ToolRegistry(
            [each for built_in, each in known if not built_in], builtin=[each for built_in, each in known if built_in]
        )

    def tool_definitions(self) -> list[ToolDefinition]:
        """Each recorded tool, as requests described it to models."""
        return [json.loads(text) for (kind, _), text in self.texts.items() if kind == "tool"]

    def for_requests(self) -> RequestSources:
        """The sources as a supervisor takes them, with nothing to record."""
        # Only the contract of replies can carry criteria.
        acceptance = [each for (kind, _), text in self.texts.items() if kind == "contract" for each in criteria_of(text)]
        prompts = {name: text for (kind, name), text in self.texts.items() if kind in ("prompt_pack", "contract")}
        contract_id = str(self.settings.get("synthesize_contract_id", HO2Config().synthesize_contract_id))
        shows = has_history(contract_id, prompts)
        return RequestSources(self.config_hash, self.templates(), (), tuple(acceptance), shows)


class DefinedTool:
    """A tool known by its definition only. It describes itself to a model, and cannot run.

    Args:
        definition: as recorded
        problem: says what its own check found in the arguments of a recorded call
    """

    is_async, timeout_s = True, None

    def __init__(self, definition: ToolDefinition, problem: ArgumentProblem) -> None:
        identity = ToolIdentity.of(definition)
        self.tool_id, self.policy_name, self.source = identity.tool_id, identity.policy_name, identity.source
        self.traits, self.requires_approval = identity.traits, identity.requires_approval
        self.description, self.parameters = definition["description"], definition["parameters"]
        self.spec = ToolSpec(self.tool_id, self.description, self.parameters)
        self.is_read_only, self.acceptance = definition["read_only"], tuple(definition["acceptance"])
        self.closes_intent = definition.get("closes_intent", False)
        self._problem = problem

    def bind(self, arguments: Mapping[str, object]) -> dict[str, object] | str:
        """Returns the arguments, or the problem that the function's own check found in them when the call was recorded."""
        return self._problem(self.tool_id, arguments) or dict(arguments)

    def prepared(self, bound: Mapping[str, object], context: ToolContext) -> Callable[[], object]:
        """Raises RuntimeError, because nothing can be called."""
        raise RuntimeError(f"tool {self.tool_id!r} is known by its definition only")


async def read_sources(ho2m: LedgerReader | None, config_hash: str) -> RecordedSources | None:
    """Returns the sources of a configuration; None: this root does not contain them, like roots of earlier versions.

    Args:
        ho2m: the ledger of the supervisor, with its index keys
        config_hash: as `TURN_STARTED` names it

    Raises:
        SourcesSealed: they are sealed, and the key is gone or not configured
        LedgerError: a text is incomplete, or has another hash
    """
    found = await read_texts(ho2m, config_hash) if ho2m is not None else []
    if not found:
        return None
    whole, *others = found
    configuration: ConfigurationSource = json.loads(whole.text)
    return RecordedSources(
        config_hash,
        whole.name,
        configuration["settings"],
        {(each.kind, each.name): each.text for each in others},
        {(each.kind, each.name): each.hash for each in others},
        configuration.get("request_fields", {}),
    )


async def recorded_outputs(ho2m: LedgerReader | None, entries: Iterable[StoredEntry]) -> dict[str, str]:
    """Returns the sources that callers of some turns brought, by hash; those that cannot be read are left out.

    They are the schemas of the objects that the callers asked for, and the definitions of the tools that they ran.

    Args:
        ho2m: the ledger of the supervisor, with its index keys; None: there is none
        entries: entries of a session
    """
    starts = (payload_as(TurnStartedPayload, each.payload) for each in entries if each.entry_type == events.TURN_STARTED)
    found = dict[str, str]()
    kinds: tuple[Literal["output_schema", "client_tools"], ...] = ("output_schema", "client_tools")
    named = [(kind, each[kind]) for each in starts for kind in kinds if kind in each]
    for kind, wanted in dict.fromkeys(named):
        with suppress(SourcesSealed):
            source = await read_source(ho2m, kind, wanted) if ho2m is not None else None
            found |= {wanted: source.text} if source is not None else {}
    return found


class RecordedConfigurations:
    """Reads the sources of configurations by their hashes, each once.

    Args:
        ho2m: the ledger of the supervisor, with its index keys; None: there is none
    """

    def __init__(self, ho2m: LedgerReader | None) -> None:
        self._ho2m = ho2m
        self._known: dict[str, RecordedSources | None] = {}

    async def of(self, entries: Iterable[StoredEntry]) -> dict[str, RecordedSources]:
        """Returns the sources of the turns that the entries of a session record, where they can be read."""
        starts = (payload_as(TurnStartedPayload, each.payload) for each in entries if each.entry_type == events.TURN_STARTED)
        named = dict.fromkeys(each["config_hash"] for each in starts if each.get("config_hash"))
        for config_hash in named.keys() - self._known:
            self._known[config_hash] = None
            with suppress(SourcesSealed):
                self._known[config_hash] = await read_sources(self._ho2m, config_hash)
        return {each: found for each in named if (found := self._known[each]) is not None}


async def entries_of_sources(ho2m: LedgerReader, config_hash: str, brought: Iterable[str] = ()) -> set[int]:
    """Returns the numbers of the entries with a configuration and the sources that it names; empty if it is not on record.

    Args:
        ho2m: the ledger of the supervisor, with its index keys
        config_hash: as `TURN_STARTED` names it
        brought: hashes of the sources that the caller of the turn brought: the schema of an object, and its tools

    Raises:
        SourcesSealed: they are sealed, and the key is gone or not configured
    """
    keys = {source_index_key(each.hash) for each in await read_texts(ho2m, config_hash)}
    keys |= {source_index_key(each) for each in brought}
    return {entry.seq for entries in (await ho2m.of_keys(keys)).values() for entry in entries}


class PresentSources:
    """The present sources of an agent class's requests, for replays.

    Args:
        agent: the settings of the agent class
        tools: its tools
        given: sources that replace those of the settings; None: those of the settings
        request_fields: the fields that the settings of providers add to requests, by provider
    """

    def __init__(
        self,
        agent: HO2Config,
        tools: ToolRegistry,
        given: RequestSources | None,
        request_fields: Mapping[str, Mapping[str, object]],
    ) -> None:
        self._agent, self._tools, self._request_fields = agent, tools, request_fields
        self._known: dict[bool, RequestSources] = {} if given is None else {True: given, False: given}
        """With and without long-term memory. Their files are read once."""
        self._changes: dict[str, tuple[SourceChange, ...]] = {}

    def of(self, memory: LongTermMemory | None) -> RequestSources:
        """The sources of turns with this memory; None: of turns without memory."""
        is_used = memory is not None
        if is_used not in self._known:
            used = memory.config if memory is not None else None
            self._known[is_used] = RequestSources.read(self._agent, used, self._tools, self._request_fields)
        return self._known[is_used]

    async def changes_since(
        self, ho2m: LedgerReader | None, config_hash: str, memory: LongTermMemory | None
    ) -> tuple[SourceChange, ...]:
        """The differences from a recorded configuration; empty if its sources are not on record.

        Raises:
            SourcesSealed: they are sealed, and the key is gone or not configured
        """
        now = self.of(memory)
        if config_hash not in self._changes:
            then = await read_sources(ho2m, config_hash) if config_hash != now.config_hash else None
            self._changes[config_hash] = changed_sources(then, now) if then is not None else ()
        return self._changes[config_hash]


def changed_sources(recorded: RecordedSources, now: RequestSources) -> tuple[SourceChange, ...]:
    """The differences between the recorded sources and the present ones, each with a diff of its text.

    Settings that decide nothing, such as waiting times, are left out. So are tools of MCP servers if no server runs:
    `kitchener mcp check` compares those.
    """
    present = {(each.kind, each.name): each.text for each in now.texts}
    configuration: ConfigurationSource = json.loads(
        next(text for (kind, _), text in present.items() if kind == "configuration")
    )
    found = list(_changed_settings(recorded.agent_class, recorded.settings, configuration["settings"]))
    found += _changed_fields(recorded.request_fields, configuration.get("request_fields", {}))
    keys = [key for key in (*recorded.texts, *present) if key[0] != "configuration"]
    for kind, name in dict.fromkeys(keys):
        before, after = recorded.texts.get((kind, name)), present.get((kind, name))
        is_unseen = kind == "tool" and after is None and _is_of_server(before)  # a replay starts no server
        old, new = _readable(kind, before), _readable(kind, after)  # the order of a schema's keys decides nothing
        if old != new and not is_unseen:
            found.append(SourceChange(f"{_KINDS[kind]} {name}", line_diff(old, new)))
    return tuple(found)


def _is_of_server(definition: str | None) -> bool:
    return definition is not None and "source" in json.loads(definition)


def _changed_settings(
    agent_class: str, before: Mapping[str, object], after: Mapping[str, object], prefix: str = ""
) -> Iterator[SourceChange]:
    for key in sorted({*before, *after} - NOT_POLICY):
        old, new = before.get(key), after.get(key)
        if key == "memory" and isinstance(old, dict) and isinstance(new, dict):
            yield from _changed_settings(agent_class, old, new, "memory.")
        elif old != new:
            yield SourceChange(f"{prefix}{key} of {agent_class}", line_diff(_as_lines(old), _as_lines(new)))


def _changed_fields(
    before: Mapping[str, Mapping[str, object]], after: Mapping[str, Mapping[str, object]]
) -> Iterator[SourceChange]:
    for provider_id in sorted({*before, *after}):
        old, new = before.get(provider_id), after.get(provider_id)
        if old != new:
            yield SourceChange(f"request fields of provider {provider_id}", line_diff(_as_lines(old), _as_lines(new)))


def _readable(kind: SourceKind, text: str | None) -> list[str]:
    return _as_lines(text if kind == "prompt_pack" or text is None else json.loads(text))


def _as_lines(value: object) -> list[str]:
    if value is None:
        return []
    return (value if isinstance(value, str) else json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)).splitlines()
