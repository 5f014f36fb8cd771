"""Collects the sources of an agent class's requests to models, records each once by its hash, and reads them back.

The sources are the settings, prompt contracts and packs, attention templates, and tools. Each turn names its configuration by
`config_hash`, and the configuration names the others. So a request can be rebuilt from the ledgers, even after an edit of a
source. Explained in `docs/prompts.md`.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from kitchener.actors.attention.templates import AttentionTemplate, load_templates
from kitchener.actors.executor.packs import shows_history
from kitchener.actors.executor.prompt_files import prompt_sources
from kitchener.actors.executor.reply_contract import direct_contract_of
from kitchener.actors.policy_identity import LOCATIONS, settings_on_record
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.canonical import canonical_bytes, digest
from kitchener.config import HO2Config, HO3MemoryConfig
from kitchener.config.shown import described
from kitchener.criteria import criterion_problem
from kitchener.errors import KitchenerError, LedgerError, PromptError
from kitchener.ids import OPERATOR
from kitchener.ledger import Ledger, LedgerEntry, LedgerGroup, LedgerReader, ReadableLedger, StoredEntry
from kitchener.records import events
from kitchener.records.entries import (
    ConfigurationSource,
    NamedSource,
    SourceKind,
    SourceRecordedPayload,
    ToolDefinition,
)
from kitchener.records.index_keys import source_index_key
from kitchener.records.output_schema import OutputSchema
from kitchener.records.tools.client_tools import ClientToolset
from kitchener.schemas.json_schema import ordered_json

_ENTRY_FIELDS_BYTES: Final = 900
"""Bytes of an entry that are reserved for its other fields and for the seal."""
_CHAR_BYTES: Final = 8
"""Most bytes of one character in an entry: six as a JSON escape, and a third more if it is sealed."""
_SHORTEST_PIECE: Final = 16
_REMEMBERED: Final = 256
_NO_FIELDS: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType({})


class SourcesSealed(KitchenerError):
    """The recorded sources are sealed, and their key is gone or not configured."""


class Source(NamedTuple):
    """One text that shapes requests."""

    kind: SourceKind
    name: str
    """The id of the pack, contract, template or tool; the agent class of a configuration."""
    text: str
    hash: str
    """`sha256:` of the text as UTF-8."""


@dataclass(frozen=True, slots=True)
class RequestSources:
    """All sources of an agent class's requests."""

    config_hash: str
    """The hash of the configuration, which names all other sources."""
    templates: tuple[AttentionTemplate, ...]
    """The attention templates, parsed."""
    texts: tuple[Source, ...]
    """Every source, the configuration last."""
    acceptance: tuple[str, ...] = ()
    """The acceptance criteria in the contract of replies."""
    shows_history: bool = True
    """Whether the pack of replies has a place for chat messages of earlier turns."""

    @classmethod
    def read(
        cls,
        config: HO2Config,
        memory: HO3MemoryConfig | None,
        tools: ToolRegistry,
        request_fields: Mapping[str, Mapping[str, object]] = _NO_FIELDS,
    ) -> "RequestSources":
        """Collects the sources. It reads prompt and template files, so call it at start.

        Args:
            config: the settings of the agent class
            memory: the settings of its long-term memory; None: its turns use no memory
            tools: its tools
            request_fields: the fields that the settings of providers add to requests, by provider

        Raises:
            PromptError, ConfigError: a file of `prompt_dir` or `attention_templates` is invalid
        """
        templates = load_templates(config.attention_templates)
        prompts = list(_prompts_of(config))
        shapes = [_json("attention_template", each.template_id, each.model_dump(mode="json")) for each in templates]
        configuration: ConfigurationSource = {
            "settings": _without_locations(settings_on_record(config, memory)),
            "prompts": _named(prompts),
            "attention_templates": _named(shapes),
            "tools": [],
        }
        if request_fields:
            configuration["request_fields"] = request_fields
        config_hash, texts = _with_tools(config.agent_class, configuration, (*prompts, *shapes), tools)
        acceptance = _reply_criteria(config, prompts)
        shows = has_history(config.synthesize_contract_id, {each.name: each.text for each in prompts})
        return cls(config_hash, templates, texts, acceptance, shows)

    def with_tools(self, tools: ToolRegistry) -> "RequestSources":
        """The sources with the present tools. Reads no file."""
        *others, whole = self.texts
        kept = [each for each in others if each.kind != "tool"]
        config_hash, texts = _with_tools(whole.name, json.loads(whole.text), kept, tools)
        return replace(self, config_hash=config_hash, texts=texts)

    async def record(self, ho2m: Ledger) -> None:
        """Writes `SOURCE_RECORDED` for each source that the ledger lacks. A crash leaves all of them or none.

        Call it before the first turn. It asks the index for one key if nothing has changed.

        Args:
            ho2m: the ledger of the agent class's supervisor
        """
        if not await ho2m.known_keys([source_index_key(self.config_hash)]):
            await record_sources(ho2m, self.texts)


def has_history(contract_id: str, prompts: Mapping[str, str]) -> bool:
    """Whether the pack of a contract has a place for chat messages of earlier turns.

    Args:
        contract_id: the contract
        prompts: the texts of contracts and packs, by id
    """
    contract = prompts.get(contract_id)
    pack = prompts.get(str(json.loads(contract).get("prompt_pack_id"))) if contract is not None else None
    return pack is not None and shows_history(pack)


class CallersSources:
    """Records the sources that callers bring with a request: schemas of objects, and definitions of the caller's tools.

    Args:
        ledgers: the ledgers of the agent class
        is_recording: False: a replay, which finds these sources on record
    """

    def __init__(self, ledgers: LedgerGroup, *, is_recording: bool = True) -> None:
        self._ledgers, self._is_recording = ledgers, is_recording
        self._known: OrderedDict[str, None] = OrderedDict()

    async def record(self, source: Source) -> None:
        """Writes `SOURCE_RECORDED` for a source that the ledger lacks. Call it before the turn that names it."""
        if not self._is_recording or source.hash in self._known:
            return
        await record_sources(self._ledgers.ho2m, [source])
        if len(self._known) >= _REMEMBERED:
            self._known.popitem(last=False)
        self._known[source.hash] = None


def source_of_output(output: OutputSchema) -> Source:
    """The schema of an object that a caller wants, as a source."""
    return Source("output_schema", output.name, output.text, output.hash)


def source_of_client_tools(tools: ClientToolset) -> Source:
    """The definitions of a caller's tools as one source."""
    return Source("client_tools", "client_tools", tools.text, tools.hash)


async def read_client_tools(ho2m: ReadableLedger, tools_hash: str) -> ClientToolset | None:
    """Returns recorded definitions of a caller's tools; None: they are not on record.

    Raises:
        SourcesSealed: they are sealed, and the key is gone or not configured
        LedgerError: the text is not whole, or has another hash
    """
    source = await read_source(ho2m, "client_tools", tools_hash)
    return ClientToolset.from_text(source.text) if source is not None else None


async def record_sources(ho2m: Ledger, sources: Iterable[Source]) -> None:
    """Writes `SOURCE_RECORDED` for each source that the ledger lacks. A crash leaves all of them or none.

    Args:
        ho2m: the ledger of the agent class's supervisor
        sources: each configuration with all sources that it names
    """
    keys = {source_index_key(each.hash): each for each in sources}
    known = await ho2m.known_keys(keys)
    limit = max(_SHORTEST_PIECE, (ho2m.config.max_entry_bytes - _ENTRY_FIELDS_BYTES) // _CHAR_BYTES)
    new = [entry for key, each in keys.items() if key not in known for entry in _entries(each, limit)]
    await ho2m.write_all(new)


async def read_texts(ho2m: LedgerReader, config_hash: str) -> list[Source]:
    """Returns a recorded configuration and all sources that it names; empty if the ledger lacks one of them.

    Raises:
        SourcesSealed: they are sealed, and the key is gone or not configured
        LedgerError: a text is not whole, or has another hash
    """
    whole = await read_source(ho2m, "configuration", config_hash)
    if whole is None:
        return []
    named = [(kind, each["hash"]) for each, kind in named_sources(json.loads(whole.text))]
    entries = await ho2m.of_keys(source_index_key(source_hash) for _, source_hash in named)
    found = [_source_of(entries[source_index_key(source_hash)], kind, source_hash) for kind, source_hash in named]
    return [whole, *known] if len(known := [each for each in found if each is not None]) == len(named) else []


def named_sources(configuration: ConfigurationSource) -> Iterator[tuple[NamedSource, SourceKind]]:
    """The sources that a configuration names, with their kinds."""
    yield from ((each, "prompt_pack" if each["name"].startswith("PRM-") else "contract") for each in configuration["prompts"])
    yield from ((each, "attention_template") for each in configuration["attention_templates"])
    yield from ((each, "tool") for each in configuration["tools"])


async def read_source(ho2m: ReadableLedger, kind: SourceKind, source_hash: str) -> Source | None:
    """Returns a recorded source; None: it is not on record.

    Raises:
        SourcesSealed: it is sealed, and the key is gone or not configured
        LedgerError: the text is not whole, or has another hash
    """
    return _source_of([each async for each in ho2m.read(key=source_index_key(source_hash))], kind, source_hash)


def _source_of(entries: Iterable[StoredEntry], kind: SourceKind, source_hash: str) -> Source | None:
    """The source that was recorded in these entries; None: there are none. Raises as `read_source`."""
    pieces: dict[int, str] = {}
    name, parts = "", 0
    for entry in entries:
        payload = events.read_as(SourceRecordedPayload, entry)
        if not isinstance(payload["text"], str):
            raise SourcesSealed(f"the source {payload['name']} ({source_hash}) is sealed, and its key is not at hand")
        pieces[payload["part"]] = payload["text"]
        name, parts = payload["name"], payload["parts"]
    return Source(kind, name, _joined_text(pieces, source_hash, parts), source_hash) if pieces else None


def _entries(source: Source, limit: int) -> Iterator[LedgerEntry]:
    pieces = [source.text[at : at + limit] for at in range(0, len(source.text), limit)]
    for part, piece in enumerate(pieces, 1):
        payload: SourceRecordedPayload = {
            "v": events.VERSION,
            "subject_id": OPERATOR,  # whose key seals the text, if content is sealed
            "kind": source.kind,
            "name": source.name,
            "hash": source.hash,
            "text": piece,
            "part": part,
            "parts": len(pieces),
        }
        yield LedgerEntry(events.SOURCE_RECORDED, source.hash, dict(payload))


def _with_tools(
    agent_class: str, configuration: ConfigurationSource, others: Iterable[Source], tools: ToolRegistry
) -> tuple[str, tuple[Source, ...]]:
    """The hash of a configuration with these tools, and all its sources, the configuration last."""
    offered = [_of_tool(each) for each in tools.definitions()]
    whole = _json("configuration", agent_class, {**configuration, "tools": _named(offered)})
    unique = {each.hash: each for each in (*others, *offered, whole)}
    return whole.hash, tuple(unique.values())


def _prompts_of(config: HO2Config) -> Iterator[Source]:
    """The contracts that the class uses, each with its pack."""
    found = prompt_sources(config.prompt_dir)
    used = (
        config.classify_contract_id,
        config.synthesize_contract_id,
        config.verify_contract_id,
        config.consolidation_contract_id,
        direct_contract_of(config),
    )
    for contract_id in dict.fromkeys(used):
        contract = found.get(contract_id)
        pack_id = json.loads(contract.text).get("prompt_pack_id") if contract is not None else None
        pack = found.get(str(pack_id))
        if contract is not None and pack is not None:  # otherwise the first call says which file is missing
            yield Source("contract", contract_id, contract.text, contract.hash)
            yield Source("prompt_pack", str(pack_id), pack.text, pack.hash)


def _reply_criteria(config: HO2Config, prompts: Iterable[Source]) -> tuple[str, ...]:
    """The acceptance criteria in the contract of replies.

    Raises:
        PromptError: another contract has criteria, or a criterion is a statement and no model verifies replies
    """
    found = {each.name: criteria_of(each.text) for each in prompts if each.kind == "contract"}
    criteria = found.pop(config.synthesize_contract_id, ())
    if name := next((name for name, others in found.items() if others), None):
        raise PromptError(f"{name}: acceptance: expected none, because the gate judges replies only, found {list(found[name])}")
    for each in criteria:
        if (problem := criterion_problem(each, by_model=config.verify_with_model)) is not None:
            raise PromptError(f"{config.synthesize_contract_id}: acceptance: {problem}; found {described(each)}")
    return criteria


def criteria_of(contract: str) -> tuple[str, ...]:
    """The acceptance criteria in the text of a contract."""
    return tuple(json.loads(contract).get("acceptance", ()))


def _json(kind: SourceKind, name: str, value: object) -> Source:
    return _canonical_source(kind, name, json.dumps(value))


@lru_cache(maxsize=_REMEMBERED)
def _canonical_source(kind: SourceKind, name: str, text: str) -> Source:
    """A source from any JSON text of its value. Cached, because most runtimes of a process have the same settings."""
    data = canonical_bytes(json.loads(text), at=kind)
    return Source(kind, name, data.decode(), digest(data))


def _of_tool(definition: ToolDefinition) -> Source:
    """A tool's definition as a source. Keeps the order of the schema's keys, because a model reads them in this order."""
    ordered = {**json.loads(canonical_bytes(definition, at="tool")), "parameters": dict(definition["parameters"])}
    text = ordered_json(ordered)
    return Source("tool", definition["tool_id"], text, digest(text.encode()))


def _named(sources: list[Source]) -> list[NamedSource]:
    return [{"name": name, "hash": source_hash} for name, source_hash in {each.name: each.hash for each in sources}.items()]


def _without_locations(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings without paths, because moving a root or a folder of prompts changes no request."""
    return {
        key: _without_locations(value) if key == "memory" and isinstance(value, dict) else value
        for key, value in settings.items()
        if key not in LOCATIONS
    }


def _joined_text(pieces: Mapping[int, str], source_hash: str, parts: int) -> str:
    """Joins the recorded pieces of a source's text, given by number.

    Raises:
        LedgerError: a piece is missing, or the text has another hash
    """
    text = "".join(pieces.get(part, "") for part in range(1, parts + 1))
    if len(pieces) != parts or digest(text.encode()) != source_hash:
        raise LedgerError(f"the recorded source {source_hash} is not whole; `kitchener ledger verify` says more")
    return text
