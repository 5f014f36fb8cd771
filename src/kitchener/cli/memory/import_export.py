"""Exports learned lines as JSON lines, and imports them.

An exported line has the overlay, its subject, the events from which it was learned, and its history. An imported line is in the
older flat format, or is converted to it without its sources. All lines are checked before any is written.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from kitchener.canonical import canonical_bytes
from kitchener.cli.memory.agent_memory import AgentMemory, signal_kinds
from kitchener.errors import CallerError, ConfigError, EntryRefused, KitchenerError
from kitchener.ids import check_subject_id
from kitchener.memory import MemoryReader, Overlay
from kitchener.memory.overlays import parse_older
from kitchener.memory.reader import record_facts
from kitchener.memory.signals import normalise
from kitchener.plain_names import quoted, shown_path
from kitchener.runtime.admin.operations import ImportOverlays
from kitchener.runtime.administration import administer

_OLDER: Final = (
    "overlay_id",
    "signal_id",
    "decay_modifier",
    "source_event_ids",
    "window_start",
    "window_end",
    "created_at",
)
"""Fields of an exported line that an import keeps, besides text and weight."""
_ENVELOPE: Final = 4_096
"""Bytes of an entry that are reserved for its other fields."""
_EXPORTED: Final = ("reason", "superseded_by", "target", "block_signal", "event_ts")
"""Fields of an artifact's entries that an exported line has."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of importing one file."""

    taken: dict[str, list[str]]
    """Ids of the written overlays, by subject, in alphabetical order of the subjects."""
    known: int
    """Number of lines that were known already."""


async def exported(place: AgentMemory, reader: MemoryReader, subjects: Iterable[str]) -> list[dict[str, object]]:
    """One JSON value for each artifact of the subjects, in the order in which they were learned."""
    found = []
    for subject_id in subjects:
        namespace = place.namespace(subject_id)
        subject, cut = await reader.snapshot(namespace=namespace)
        for overlay in subject.overlays(cut):
            records = await reader.read_records(overlay.key, namespace=namespace)
            found.append(
                {
                    "agent_class": place.agent_class,
                    "subject_id": subject_id,
                    **overlay.model_dump(mode="json", exclude_none=True),
                    "source_events": [each._asdict() for each in subject.recorded(overlay.source_event_ids, cut)],
                    "records": [record_facts(each, *_EXPORTED) for each in records],
                }
            )
    return found


def read_import(path: Path, place: AgentMemory, subject_id: str | None) -> dict[str, list[dict[str, object]]]:
    """The overlays of a file by subject, each checked.

    Args:
        path: a file of JSON lines
        place: the memory that receives them
        subject_id: the subject of all lines; None: each line names its subject

    Raises:
        ConfigError: a line is wrong; names file, line and what was expected
    """
    found: dict[str, list[dict[str, object]]] = {}
    for number, line in _lines(path):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise _bad(path, number, f"is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise _bad(path, number, "expected an object with the fields of an overlay")
        owner = _owner(path, number, record, subject_id, place.agent_class)
        record = _older(record)
        try:
            _check(record, place)
        except KitchenerError as error:
            raise _bad(path, number, str(error).removesuffix("; nothing was written")) from error
        found.setdefault(owner, []).append(record)
    return found


async def imported(place: AgentMemory, overlays: dict[str, list[dict[str, object]]]) -> ImportResult:
    """Writes checked overlays, except those that are known already."""
    for subject_id in overlays:
        place.namespace(subject_id)
    taken = await administer(place.paths.config, ImportOverlays(agent_class=place.agent_class, overlays=overlays))
    lines = sum(map(len, overlays.values()))
    return ImportResult(taken, lines - sum(map(len, taken.values())))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ConfigError(shown_path(str(path)), "", "", f"cannot be read: {error.strerror or error}") from error


def _older(record: Mapping[str, object]) -> dict[str, object]:
    """An exported line in the older flat format. Outside its root it has no sources and thus no identity, and can only fade."""
    if record.get("artifact_id") is None:
        return dict(record)
    held = record.get("content")
    content = {**(held if isinstance(held, Mapping) else {}), "bias": record.get("context_line")}
    weight = record.get("weight", record.get("salience_weight"))
    return {**{name: record[name] for name in _OLDER if name in record}, "content": content, "salience_weight": weight}


def _owner(path: Path, number: int, record: Mapping[str, object], subject_id: str | None, agent_class: str) -> str:
    """The subject of a line. Refuses a line that belongs to another subject or agent class than the caller expects."""
    named, of_class = record.get("subject_id"), record.get("agent_class", agent_class)
    if of_class != agent_class:
        raise _bad(path, number, f"belongs to agent class {of_class!r}, not {agent_class!r}; see --agent")
    if named is None and subject_id is None:
        raise _bad(path, number, "names no subject_id; say with --subject whose it is")
    owner = subject_id if named is None else named
    try:
        check_subject_id(owner)  # an export may have lines that were learned in anonymous sessions
    except CallerError as error:
        raise _bad(path, number, str(error)) from error
    if subject_id is not None and owner != subject_id:
        raise _bad(path, number, f"belongs to subject {quoted(named)}, not {quoted(subject_id)}")
    return str(owner)


def _check(record: Mapping[str, object], place: AgentMemory) -> None:
    """Refuses a line that the memory would refuse, before anything is written, so that all lines are imported or none."""
    overlay: Overlay = parse_older(record, place.config.max_line_chars)
    normalise(overlay.signal_id, signal_kinds(place.config))
    if not overlay.source_event_ids:
        raise EntryRefused("source_event_ids", "expected the events that it was learned from")
    size = len(canonical_bytes(overlay.model_dump(mode="json", exclude_none=True), at="overlay"))
    limit = place.paths.config.ledger.max_entry_bytes
    if size + _ENVELOPE > limit:
        raise EntryRefused("overlay", f"{size} bytes are too many for max_entry_bytes = {limit}")


def _bad(path: Path, number: int, problem: str) -> ConfigError:
    return ConfigError(f"{path}: line {number}", "", "", f"{problem}; nothing was written")
