"""Reads the JSON files of attention templates and chooses the template of an agent class.

A template sets the limits of gathering for its agent classes. Templates ship with the package; a user's directory can override
or add templates by id. Where a directory has a manifest with the hash of each file, its files are checked against it. The
template with the most specific `applies_to` applies; `ATT-DEFAULT-001` applies if no other does.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kitchener.actors.manifest import MANIFEST, write_hashes
from kitchener.canonical import digest, parse_json
from kitchener.config.shown import described_key
from kitchener.errors import ConfigError
from kitchener.plain_names import shown_path
from kitchener.small_files import is_directory, read_regular

SETTING: Final = "attention_templates"
"""The setting of an agent class that names a directory of templates, as the source of errors about the directory."""
_MAX_BYTES: Final = 65_536
"""Largest template file, bytes. The shipped templates have about 200 bytes."""


class _TemplateModel(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")


class AppliesTo(_TemplateModel):
    """The agent classes of a template."""

    agent_class: tuple[str, ...] = Field(min_length=1)
    """Agent classes; `RESIDENT:*` means every resident, `*` every agent class."""


class TemplateBudget(_TemplateModel):
    """Limits of gathering; the agent's own configuration may set tighter ones."""

    max_context_tokens: int = Field(ge=1)
    """Most tokens of gathered context."""
    max_queries: int = Field(ge=1)
    """Most reads from the provider."""
    timeout_ms: int = Field(ge=1)
    """Longest time for the reads, milliseconds."""


class AttentionTemplate(_TemplateModel):
    """The contents of one template file."""

    template_id: str = Field(pattern=r"^ATT-[A-Z0-9-]+$")
    """The template's id. In a user's directory, a template with the id of a shipped one replaces it."""
    applies_to: AppliesTo
    """The agent classes that use the template."""
    budget: TemplateBudget
    """Limits of gathering."""


def load_templates(directory: str | None = None) -> tuple[AttentionTemplate, ...]:
    """Loads the shipped templates, and those of `directory`, which override by id.

    Args:
        directory: the user's `*.json` templates; None: only the shipped ones

    Raises:
        ConfigError: the directory or a file in it is invalid, or differs from its manifest; names the file and the field
    """
    found = dict(_shipped())
    if directory is not None:
        folder = Path(directory)
        if not is_directory(folder):
            shown = repr(shown_path(directory))
            raise ConfigError(SETTING, "", shown, "expected a directory of ATT-*.json files")
        found |= _read_folder(folder)
    return tuple(found[key] for key in sorted(found))


@cache
def _shipped() -> Mapping[str, AttentionTemplate]:
    """The templates of the package by id. Cached, because installed files do not change under a running process."""
    return _read_folder(files("kitchener.actors").joinpath("assets", "attention"))


def write_manifest(directory: str) -> None:
    """Writes `manifest.json` with the hash of every template in `directory`. Call it after each intended edit."""
    write_hashes(Path(directory), {each.name: _read(each) for each in _templates_in(Path(directory))})


def _templates_in(folder: Traversable) -> list[Traversable]:
    found = [each for each in folder.iterdir() if each.name.endswith(".json") and each.name != MANIFEST]
    return sorted(found, key=lambda each: each.name)


def _read_folder(folder: Traversable) -> dict[str, AttentionTemplate]:
    """The templates of a directory by id, each checked against the directory's manifest if there is one."""
    manifest = folder.joinpath(MANIFEST)
    contents = {each: _read(each) for each in _templates_in(folder)}
    if manifest.is_file():
        _check(manifest, {each.name: digest(data) for each, data in contents.items()})
    return {each.template_id: each for each in (_parse(str(file), data) for file, data in contents.items())}


def _check(manifest: Traversable, found: Mapping[str, str]) -> None:
    try:
        expected = parse_json(_read(manifest).decode("utf-8", "replace"))
    except ValueError as error:
        raise ConfigError(str(manifest), "", "", f"is not JSON: {error}") from None
    if not isinstance(expected, dict):
        raise ConfigError(str(manifest), "", "", "expected an object with the hash of each template")
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            problem = "is missing" if name not in found else "is not listed" if name not in expected else "has changed"
            raise ConfigError(
                str(manifest),
                described_key(name),
                "",
                f"{problem}; if this is intended, write the manifest again with `write_manifest`",
            )


def resolve_template(templates: Sequence[AttentionTemplate], agent_class: str) -> AttentionTemplate:
    """Returns the template of an agent class: one that names it, else one for `RESIDENT:*`, else one for `*`.

    If several match equally, the one with the lowest id applies.
    """
    for wanted in (agent_class, f"{agent_class.split(':', 1)[0]}:*", "*"):
        for template in templates:
            if wanted in template.applies_to.agent_class:
                return template
    raise ConfigError(SETTING, "applies_to", agent_class, "no template serves this agent class")


def _read(path: Traversable) -> bytes:
    try:
        data = read_regular(path, _MAX_BYTES + 1) if isinstance(path, Path) else path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), "", "", f"cannot be read: {error.strerror or error}") from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(str(path), "", "", f"is larger than {_MAX_BYTES:,} bytes, so it is no attention template")
    return data


def _parse(source: str, data: bytes) -> AttentionTemplate:
    try:
        return AttentionTemplate.model_validate_json(data)
    except ValidationError as error:
        # The error quotes nothing from the file, because a wrong path may point to a file with secrets.
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(described_key(str(part)) for part in first["loc"])
        raise ConfigError(source, key, "", _unknown(key) if first["type"] == "extra_forbidden" else first["msg"]) from None


_REMOVED: Final = ("pipeline", "fallback", "applies_to.tier")
"""Fields of earlier templates, each with only one allowed value."""


def _unknown(key: str) -> str:
    if key in _REMOVED:
        return "is no longer a field of templates, because it had only one allowed value; remove it"
    return "is not a field of templates; remove it"
