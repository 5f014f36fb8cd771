"""Attention templates: which material is gathered for an agent class, and within which bounds. JSON files, read once.

The shipped ones stand beside this module; a directory of own ones is laid over them by id. The most specific `applies_to`
serves an agent class; `ATT-DEFAULT-001` serves where nothing else does.
"""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kitchener.config import described, described_key
from kitchener.errors import ConfigError
from kitchener.small_files import read_regular

_MAX_BYTES: Final = 65_536
"""Largest template, bytes. The shipped ones have 600."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class AppliesTo(_Part):
    """Whom a template serves."""

    agent_class: tuple[str, ...] = Field(min_length=1)
    """Agent classes; `RESIDENT:*` is every resident, `*` everybody."""
    tier: tuple[Literal["ho2"], ...] = ("ho2",)
    """Tiers; only HO2 gathers context."""


class Pipeline(_Part):
    """What is gathered and how it is laid out."""

    tier_select: tuple[Literal["ho2m"], ...] = ("ho2m",)
    """Ledgers that are read."""
    registry_scan: tuple[Literal["standing_rules"], ...] = ("standing_rules",)
    """Configured material that is added."""
    structuring: Literal["chronological"] = "chronological"
    """Order of the gathered turns in the text."""


class TemplateBudget(_Part):
    """Bounds; the agent's own configuration may be tighter."""

    max_context_tokens: int = Field(ge=1)
    """Tokens of gathered context."""
    max_queries: int = Field(ge=1)
    """Reads."""
    timeout_ms: int = Field(ge=1)
    """Milliseconds."""


class Fallback(_Part):
    """What happens when gathering comes up short. Attention fails open, so there is one way each."""

    on_timeout: Literal["return_partial"] = "return_partial"
    """Past the time: what was found is used."""
    on_empty: Literal["proceed_empty"] = "proceed_empty"
    """Nothing found: the turn goes on without."""


class AttentionTemplate(_Part):
    """One template."""

    template_id: str = Field(pattern=r"^ATT-[A-Z0-9-]+$")
    """Its id; a file of the same id in an own directory replaces the shipped one."""
    applies_to: AppliesTo
    """Whom it serves."""
    pipeline: Pipeline
    """What is gathered."""
    budget: TemplateBudget
    """Within which bounds."""
    fallback: Fallback = Field(default_factory=Fallback)
    """What happens otherwise."""


def load_templates(directory: str | None = None) -> tuple[AttentionTemplate, ...]:
    """The shipped templates with those of a directory laid over them, by id.

    Raises:
        ConfigError: the directory or a file in it is not right; names the file and the field
    """
    shipped = files("kitchener.actors").joinpath("assets", "attention")
    found = {t.template_id: t for t in (_parse(f.name, f.read_bytes()) for f in shipped.iterdir() if f.name.endswith(".json"))}
    if directory is not None:
        folder = Path(directory)
        if not folder.is_dir():
            raise ConfigError("attention_templates", "", described(directory), "expected a directory of ATT-*.json files")
        for path in sorted(folder.glob("*.json")):
            template = _parse(str(path), _read(path))
            found[template.template_id] = template
    return tuple(found[key] for key in sorted(found))


def resolve_template(templates: Sequence[AttentionTemplate], agent_class: str) -> AttentionTemplate:
    """The template that serves an agent class: named exactly, else by `RESIDENT:*`, else by `*`; ties by id."""
    for wanted in (agent_class, f"{agent_class.split(':', 1)[0]}:*", "*"):
        for template in templates:
            if wanted in template.applies_to.agent_class:
                return template
    raise ConfigError("attention_templates", "applies_to", agent_class, "no template serves this agent class")


def _read(path: Path) -> bytes:
    try:
        data = read_regular(path, _MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(str(path), "", "", f"cannot be read: {error.strerror or error}") from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(str(path), "", "", f"is larger than {_MAX_BYTES:,} bytes, so it is no attention template")
    return data


def _parse(source: str, data: bytes) -> AttentionTemplate:
    try:
        return AttentionTemplate.model_validate_json(data)
    except ValidationError as error:
        # Whatever the file is, nothing of its words is shown: a wrong path may lead to somebody's secrets.
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(described_key(str(part)) for part in first["loc"])
        raise ConfigError(source, key, "", first["msg"]) from None
