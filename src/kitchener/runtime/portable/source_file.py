"""Turns the sources of a session's requests into a file of its folder, and such a file into checked sources.

A source is identified by the hash of its text, and a turn names its configuration by hash. So the file contains only texts, and
only those that turns of the folder name. The import records them like the sources of the root's own turns. Explained in
`docs/sessions.md`.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final

import orjson

from kitchener.actors.attention.templates import AttentionTemplate
from kitchener.actors.sources import Source, SourcesSealed, named_sources, read_source, read_texts, source_of_client_tools
from kitchener.canonical import canonical_bytes, digest
from kitchener.errors import FolderDamaged
from kitchener.ledger import LedgerReader
from kitchener.records.entries import Payload, SourceKind, ToolDefinition
from kitchener.records.output_schema import OutputSchema
from kitchener.records.tools.client_tools import ClientToolset
from kitchener.schemas.json_schema import JsonSchema

SOURCES: Final = "sources.json"
"""The file's name."""


def named_by(payload: Payload) -> set[tuple[SourceKind, str]]:
    """The sources that an entry of HO2m names by their hashes: a configuration and the caller's sources."""
    named: tuple[tuple[SourceKind, object], ...] = (
        ("configuration", payload.get("config_hash")),
        ("output_schema", payload.get("output_schema")),
        ("client_tools", payload.get("client_tools")),
    )
    return {(kind, each) for kind, each in named if isinstance(each, str)}


async def sources_to_export(ho2m: LedgerReader, named: Iterable[tuple[SourceKind, str]]) -> bytes | None:
    """The content of the file: each source once. None: no source is on record, or they are sealed.

    Raises:
        LedgerError: a recorded text is incomplete
    """
    found: dict[str, str] = {}
    try:
        for kind, each in sorted(named):
            if kind == "configuration":
                found |= {source.hash: source.text for source in await read_texts(ho2m, each)}
            elif (brought := await read_source(ho2m, kind, each)) is not None:
                found[brought.hash] = brought.text
    except SourcesSealed:
        return None
    return canonical_bytes(found) + b"\n" if found else None


def imported_sources(path: str, data: bytes, named: Iterable[tuple[SourceKind, str]], agent_class: str) -> tuple[Source, ...]:
    """The sources in such a file, with the names and kinds that the configurations give them.

    Args:
        path: the file, for errors
        data: its content
        named: the sources that the folder's turns name
        agent_class: the agent class of the folder's turns

    Raises:
        FolderDamaged: the file has anything but complete configurations of the class that the turns name
    """
    try:
        texts: Mapping[str, str] = orjson.loads(data)
        if canonical_bytes(texts) + b"\n" != data or any(digest(text.encode()) != key for key, text in texts.items()):
            raise ValueError("not texts by their hashes")
        found: dict[str, Source] = {}
        kinds = set[tuple[SourceKind, str]]()
        for kind, source_hash in sorted(each for each in named if each[1] in texts):
            if kind == "output_schema":
                found[source_hash] = _of_output(texts[source_hash])
                continue
            if kind == "client_tools":
                found[source_hash] = _of_client_tools(texts[source_hash])
                continue
            for each in _of_configuration(texts, source_hash, agent_class):
                found[each.hash] = each
                if (each.kind, each.hash) not in kinds:  # a text may be named many times
                    kinds.add((each.kind, each.hash))
                    _check_form(each)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        expected = f"whole configurations of {agent_class}"
        raise FolderDamaged(path, "sources", expected, f"others ({type(error).__name__})") from error
    if unnamed := sorted(texts.keys() - found.keys()):
        raise FolderDamaged(path, "sources", "texts that a turn of the folder names", unnamed[0])
    return tuple(found.values())


def _of_configuration(texts: Mapping[str, str], config_hash: str, agent_class: str) -> list[Source]:
    configuration = json.loads(texts[config_hash])
    if configuration["settings"]["agent_class"] != agent_class:
        raise ValueError("the configuration of another agent class")
    found = [Source("configuration", agent_class, texts[config_hash], config_hash)]
    for named, kind in named_sources(configuration):
        if not isinstance(named["name"], str):
            raise ValueError("a name that is no text")
        found.append(Source(kind, named["name"], texts[named["hash"]], named["hash"]))
    return found


def _of_output(text: str) -> Source:
    """Raises ValueError if a text cannot be the schema of a caller's object."""
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise ValueError("not a schema of an object")
    JsonSchema(schema)
    output = OutputSchema.from_text(text)
    return Source("output_schema", output.name, text, output.hash)


def _of_client_tools(text: str) -> Source:
    """Raises ValueError, KeyError or TypeError if a text cannot be the definitions of a caller's tools."""
    tools = ClientToolset.from_text(text)
    if not all(isinstance(each, str) for tool in tools.tools for each in (tool.name, tool.description)):
        raise ValueError("names and descriptions that are no texts")
    tools.runnable(is_trusted=False)
    return source_of_client_tools(tools)


def _check_form(source: Source) -> None:
    """Raises ValueError or TypeError if a text cannot be a source of its kind."""
    if source.kind in ("prompt_pack", "configuration"):  # a configuration was read to find the sources that it names
        return
    value = json.loads(source.text)
    if source.kind == "attention_template":
        AttentionTemplate.model_validate(value)
    if not isinstance(value, dict) or (source.kind == "tool" and not _has_keys_of_tool(value)):
        raise ValueError(f"not a {source.kind}")


def _has_keys_of_tool(value: Mapping[str, object]) -> bool:
    required = ToolDefinition.__required_keys__
    return required <= value.keys() <= required | ToolDefinition.__optional_keys__
