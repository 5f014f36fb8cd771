"""Selects the learned lines of a turn from artifacts, the turn's labels, a token budget and a moment. Pure.

Imports only the standard library and accepts any mappings, so that anyone can copy and check it. Uses the artifacts' numbers
and labels, and ignores what their lines mean. Explained in `docs/memory.md`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, Protocol, TypeVar


class ArtifactFields(Protocol):
    """The fields of an artifact by name, such as an `Overlay` or a plain mapping."""

    def get(self, name: str, /) -> object:
        """The value of a field; None: it has none."""
        ...


Artifact = TypeVar("Artifact", bound=ArtifactFields)

FRESH_HOURS: Final = 24.0
"""Age in hours up to which an artifact has its full weight."""
FADED_HOURS: Final = 168.0
"""Age in hours from which an artifact has `FADED_SHARE` of its weight; between the two ages the share falls linearly."""
FADED_SHARE: Final = 0.5
CHARS_PER_TOKEN: Final = 4
"""Estimated characters per token, for the budget."""
_DIMENSIONS: Final = ("domain", "task")
_GLOBAL: Final[Literal["agent", "global"]] = "global"
"""The scope of an artifact that concerns every turn, whatever the labels of the turn are."""


def select_biases(
    artifacts: Sequence[Artifact],
    turn_labels: Mapping[str, str | Collection[str]] | None,
    ho3_bias_budget: float,
    as_of_ts: datetime | str,
) -> list[Artifact]:
    """The artifacts whose lines the model sees, best first; the returned objects are the given ones.

    Ranks the enabled, unexpired artifacts in the turn's scope by weight, `decay_modifier` and recency. Returns the longest
    prefix of that ranking that fits the budget.

    Args:
        artifacts: what `read_active_biases` returns, or mappings, in the current format or the older one without labels
        turn_labels: the turn's `domain` and `task`, each one label or several; None or empty: the turn has none
        ho3_bias_budget: tokens for all lines together, at four characters per token
        as_of_ts: the moment of the turn, an aware datetime or ISO text with a zone

    Raises:
        ValueError: a timestamp has no zone, or is not a timestamp
    """
    as_of = parse_time(as_of_ts)
    wanted = {name: _label_set(turn_labels.get(name)) for name in _DIMENSIONS} if turn_labels else {}
    wanted = {name: labels for name, labels in wanted.items() if labels}
    concerned = [each for each in artifacts if _is_alive(each, as_of) and _is_in_scope(each, wanted)]
    concerned.sort(key=lambda each: (-score(each, as_of), _id_of(each)))
    chosen: list[Artifact] = []
    room = ho3_bias_budget * CHARS_PER_TOKEN
    for each in concerned:
        room -= len(line_of(each))
        if room < 0:
            break
        chosen.append(each)
    return chosen


def score(artifact: ArtifactFields, as_of: datetime) -> float:
    """The rank of an artifact: weight × `decay_modifier` × recency, to 12 significant digits."""
    value = weight_of(artifact) * _number(artifact.get("decay_modifier"), 1.0) * _recency(artifact, as_of)
    return float(f"{value:.12g}")  # so that rounding in the last bits never decides a ranking


def weight_of(artifact: ArtifactFields) -> float:
    """The artifact's weight, 0 to 1; the older format calls it `salience_weight`."""
    weight = artifact.get("weight")
    return _number(artifact.get("salience_weight") if weight is None else weight, 0.0)


def line_of(artifact: ArtifactFields) -> str:
    """The line that the model sees: `context_line`, or `content.bias` in the older format."""
    line = artifact.get("context_line")
    if line is None:
        content = artifact.get("content")
        line = content.get("bias") if isinstance(content, Mapping) else None
    return "" if line is None else str(line)


def parse_time(value: object) -> datetime:
    """Converts ISO text to an aware datetime, and returns an aware datetime as it is.

    Raises:
        ValueError: the value is not a time, or has no zone
    """
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(found, datetime) or found.tzinfo is None:
        raise ValueError(f"timestamp {value!s} has no zone: expected UTC or an offset, such as 2026-02-18T10:30:00+00:00")
    return found


def _number(value: object, absent: float) -> float:
    if value is None:
        return absent
    if not isinstance(value, int | float | str):
        raise TypeError(f"expected a number, found {value!r:.80}")
    return float(value)


def _is_alive(artifact: ArtifactFields, as_of: datetime) -> bool:
    enabled, expires = artifact.get("enabled"), artifact.get("expires_at_event_ts")
    return (enabled is None or bool(enabled)) and (expires is None or as_of < parse_time(expires))


def _is_in_scope(artifact: ArtifactFields, wanted: Mapping[str, frozenset[str]]) -> bool:
    if artifact.get("scope") == _GLOBAL:
        return True
    labels = artifact.get("labels")
    if not isinstance(labels, Mapping):
        return not wanted  # the older format has no labels
    return any(not _label_set(labels.get(name)).isdisjoint(found) for name, found in wanted.items())


def _recency(artifact: ArtifactFields, as_of: datetime) -> float:
    since = artifact.get("consolidation_event_ts") or artifact.get("created_at")
    if since is None:
        return FADED_SHARE
    hours = (as_of - parse_time(since)).total_seconds() / 3_600
    if hours <= FRESH_HOURS:
        return 1.0
    if hours >= FADED_HOURS:
        return FADED_SHARE
    return 1.0 - (1.0 - FADED_SHARE) * (hours - FRESH_HOURS) / (FADED_HOURS - FRESH_HOURS)


def _label_set(labels: object) -> frozenset[str]:
    if isinstance(labels, str):
        return frozenset((labels,))
    return frozenset(labels) if isinstance(labels, Iterable) else frozenset()


def _id_of(artifact: ArtifactFields) -> str:
    return str(artifact.get("artifact_id") or artifact.get("overlay_id") or "")
