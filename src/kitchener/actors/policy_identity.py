"""Hashes everything that decides into one policy identity, which is recorded with each turn and each projection.

It covers the settings that decide, the hashes of prompt contracts, packs and attention templates, and the code of the policy
modules. Code is hashed by top-level definition, without imports, annotations, comments, docstrings, positions or file names. So
moving or documenting code keeps the identity, and changing one comparison changes it. The value is the same on every supported
Python. Parsing the code takes nearly half as many instructions as all of `kitchener config schema` (`valgrind
--tool=cachegrind`: 1.3 and 2.7 billion), so its hash is kept beside Python's compiled files. Explained in `docs/replay.md`.
"""

import ast
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, Final

from kitchener.actors.attention.templates import AttentionTemplate, load_templates
from kitchener.actors.executor.prompt_files import sources_digest
from kitchener.canonical import canonical_digest, digest, parse_json
from kitchener.config import HO2Config, HO3MemoryConfig
from kitchener.config.settings_parser import without_secrets
from kitchener.small_files import read_regular, replacing

POLICY_PACKAGES: Final = ("kitchener.context",)
"""Packages whose modules all count as policy code."""
POLICY_MODULES: Final = (
    "kitchener.actors.approval.wording",
    "kitchener.actors.executor.answers",
    "kitchener.actors.work.budget",
    "kitchener.actors.work.plan",
    "kitchener.actors.work.turn_signals",
    "kitchener.actors.consolidation.lesson",
    "kitchener.actors.executor.packs",
    "kitchener.actors.work.quality",
    "kitchener.actors.authority.ranking",
    "kitchener.actors.sessions.pending_approvals",
    "kitchener.actors.sessions.session_state",
    "kitchener.actors.tools.approval_policy",
    "kitchener.canonical",
    "kitchener.choices",
    "kitchener.criteria",
    "kitchener.gateway.routing",
    "kitchener.ids",
    "kitchener.mcp.call_results",
    "kitchener.mcp.definitions",
    "kitchener.media.media_types",
    "kitchener.memory.bias",
    "kitchener.memory.gate",
    "kitchener.memory.learned_lines",
    "kitchener.memory.timestamps",
    "kitchener.memory.overlays",
    "kitchener.memory.signals",
    "kitchener.memory.subject_memory",
    "kitchener.records.entries.common",
    "kitchener.records.spoken",
    "kitchener.records.tokens",
    "kitchener.times",
)
"""Single modules that count as policy code."""

LOCATIONS: Final = frozenset(("ho2m_path", "ho1m_path", "ho3_memory_dir", "memory_dir", "prompt_dir", "attention_templates"))
"""Settings that say where files are. The files of a directory count by hash instead."""
NOT_POLICY: Final = (LOCATIONS - {"memory_dir"}) | {"session_queue", "idle_passivate_s", "session_id_digits"}
"""Settings that decide nothing: where files are, and how long something waits. Records of earlier versions name
`session_id_digits`."""

DERIVED: Final = ("consolidation_backoff_s",)
"""Values that were settings and now follow from one. They stay on record and in the identity, which is thus as it was."""

MAX_IDENTITIES: Final = 64
"""Most identities that a process caches. Another runtime or replay with the same settings need not compute its own."""

_UNSEEN: Final = frozenset(("annotation", "returns", "type_comment", "type_params", "ctx", "kind"))
"""Fields of a syntax tree that do not affect what the code decides."""
_IMPORTS: Final = (ast.Import, ast.ImportFrom)
_MAX_KEPT_BYTES: Final = 1_024
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")


def policy_identity(config: HO2Config, memory: HO3MemoryConfig | None) -> str:
    """Returns the `ruleset_hash` of turns and projections under these settings.

    It reads prompt and template files, so call it at start.

    Args:
        config: the settings of the agent class
        memory: the settings of its long-term memory; None: its turns use no memory

    Raises:
        PromptError, ConfigError: a file of `prompt_dir` or `attention_templates` is invalid
    """
    settings = {key: value for key, value in settings_on_record(config, memory).items() if key not in NOT_POLICY}
    return _identity(json.dumps(settings), sources_digest(config.prompt_dir), load_templates(config.attention_templates))


@lru_cache(maxsize=MAX_IDENTITIES)
def _identity(settings: str, prompts: str, templates: tuple[AttentionTemplate, ...]) -> str:
    """The identity of these settings (JSON), prompts (their hash) and templates."""
    shapes = [template.model_dump(mode="json") for template in templates]
    return canonical_digest(
        {
            "settings": json.loads(settings),
            "prompts": prompts,
            "attention_templates": canonical_digest(shapes, at="attention_templates"),
            "code": policy_code(),
        }
    )


def settings_on_record(config: HO2Config, memory: HO3MemoryConfig | None) -> dict[str, object]:
    """Returns all settings of an agent class as JSON types, without secrets.

    Args:
        config: the settings of the agent class
        memory: the settings of its long-term memory; None: its turns use no memory
    """
    settings: dict[str, object] = without_secrets(config) | {name: getattr(config, name) for name in DERIVED}
    if memory is not None and config.ho3_enabled:
        settings["memory"] = without_secrets(memory)
    return settings


@cache
def policy_code() -> str:
    """Returns the hash of the installed policy code. Cached, because imported code does not change either."""
    return kept_code_hash(tuple(_sources()), code_hash, beside=__file__)


def kept_code_hash(sources: Sequence[str], compute: Callable[[Sequence[str]], str], *, beside: str) -> str:
    """Returns what `compute` returns for the sources, from the cache if an earlier process computed it for the same sources.

    The key is a digest of all the text from which the hash is computed, so an edit takes effect at once. Anyone who can change
    the cache can also change the compiled code beside it. Nothing is cached where Python writes no compiled files: in a
    read-only folder, or if the environment forbids it.

    Args:
        sources: the texts of modules
        compute: turns them into a hash, which depends on nothing but them and its own module
        beside: the source file of that module; the hash is cached beside the module's compiled file
    """
    file = Path(cache_from_source(beside)).with_suffix(".code.json")
    key = digest(json.dumps([Path(beside).read_text(encoding="utf-8"), *sources]).encode())
    known = _kept_code(file, key)
    if known is None:
        known = compute(sources)
        if not sys.dont_write_bytecode:
            with suppress(OSError), replacing(file, 0o666) as draft:  # atomically: several processes may start at once
                draft.write(json.dumps({"sources": key, "code": known}).encode())
    return known


def _kept_code(file: Path, key: str) -> str | None:
    try:
        kept = parse_json(read_regular(file, _MAX_KEPT_BYTES).decode("utf-8", "replace"))
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict) or kept.get("sources") != key:
        return None
    code = kept.get("code")
    return code if isinstance(code, str) and _HASH.fullmatch(code) else None


def code_hash(sources: Iterable[str]) -> str:
    """Returns one hash over all definitions in these module texts. It does not depend on the module of a definition."""
    return canonical_digest(sorted({each for source in sources for each in definition_hashes(source)}))


def definition_hashes(source: str) -> frozenset[str]:
    """Returns the hashes of a module's top-level definitions."""
    return frozenset(digest(_text(each).encode("ascii")) for each in ast.parse(source).body if _decides(each))


def _sources() -> Iterator[str]:
    for package in POLICY_PACKAGES:
        yield from _modules(files(package))
    for module in POLICY_MODULES:
        package, _, name = module.rpartition(".")
        yield files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")


def _modules(folder: Traversable) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _modules(entry)
        elif entry.name.endswith(".py"):
            yield entry.read_text(encoding="utf-8")


def _decides(statement: ast.AST) -> bool:
    """False for imports, docstrings and lists of exported names."""
    if isinstance(statement, ast.Expr):
        return not (isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str))
    if isinstance(statement, ast.Assign):
        return not (isinstance(statement.targets[0], ast.Name) and statement.targets[0].id == "__all__")
    return not isinstance(statement, _IMPORTS)


def _text(node: Any) -> str:
    """Converts a syntax tree to text. `ast.dump` is unsuitable, because its output differs between versions of Python."""
    if isinstance(node, ast.JoinedStr):  # Python 3.12 puts an empty text into some f-strings, others do not
        node = ast.JoinedStr([each for each in node.values if not (isinstance(each, ast.Constant) and each.value == "")])
    if isinstance(node, ast.AST):
        fields = (
            f" {name}={_text(value)}"
            for name, value in ast.iter_fields(node)
            if name not in _UNSEEN and value is not None and value != []
        )
        return f"({type(node).__name__}{''.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(_text(each) for each in node if not isinstance(each, ast.stmt) or _decides(each))}]"
    return ascii(node)


__all__ = ["policy_identity"]
