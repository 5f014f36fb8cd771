"""Payloads about what shapes the requests to models, besides the conversation itself."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

from kitchener.records.entries.common import CommonPayload, SealedText

SourceKind = Literal["configuration", "prompt_pack", "contract", "attention_template", "tool", "output_schema", "client_tools"]


class SourceRecordedPayload(CommonPayload):
    """`SOURCE_RECORDED`: the text of one source, written once for each ledger and hash, before its first use."""

    kind: SourceKind
    name: str
    """The id of the pack, contract, template or tool; the agent class of a configuration; the name of a model or schema;
    `client_tools` for the tools that a caller runs."""
    hash: str
    """`sha256:` of the whole text as UTF-8."""
    text: SealedText
    """The text, or a piece of it; JSON for all kinds but prompt packs."""
    part: int
    """Number of the piece, from 1."""
    parts: int
    """Number of pieces. A text has several where one entry cannot hold it."""


class ToolTraitsMapping(TypedDict):
    """What is believed about a tool's effects."""

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool
    trusted: bool
    """Whether its results are trusted."""


class ToolDefinition(TypedDict):
    """A tool as the source of a request: what the model is told of it, and what the turn decides by."""

    tool_id: str
    description: str
    parameters: Mapping[str, object]
    """JSON schema of the arguments."""
    read_only: bool
    acceptance: Sequence[str]
    built_in: bool
    """Whether Kitchener brings it along, so that the tools of a class do not list it."""
    closes_intent: NotRequired[bool]
    """Absent: False."""
    source: NotRequired[str]
    """Where it and its results come from, such as `mcp:files`. Absent: a function of the process, `tool:<tool_id>`."""
    traits: NotRequired[ToolTraitsMapping]
    """Absent: those of a trusted function that says only whether it is read-only."""
    policy_name: NotRequired[str]
    """Its name in rules of approval. Absent: its `tool_id`."""
    requires_approval: NotRequired[bool]
    """Whether its author wants each call approved by a person. Absent: False."""


class NamedSource(TypedDict):
    """A source that a configuration names."""

    name: str
    hash: str


class ConfigurationSource(TypedDict):
    """The text of a source of kind `configuration`: all that an agent class's requests are made from."""

    settings: Mapping[str, object]
    """The settings of the agent class, and of its memory under `memory`, without paths. Secrets are references."""
    prompts: Sequence[NamedSource]
    """The contracts that the class uses, and their prompt packs."""
    attention_templates: Sequence[NamedSource]
    tools: Sequence[NamedSource]
    """In the order in which they are offered."""
    request_fields: NotRequired[Mapping[str, Mapping[str, object]]]
    """The fields that the settings of providers add to requests, by provider; absent: none do."""
