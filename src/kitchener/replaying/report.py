"""Describes the result of a replay: identical, or the first divergence, worded like a failed test."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeGuard

import orjson

_SHOWN: Final = 600
"""Characters of a value that a text shows."""
_ROWS: Final = 40
"""Rows of a list that a text shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDivergence:
    """The first place where a replay is not what was recorded."""

    turn_id: str | None
    """The turn, or the work order of a consolidation; None: before the first turn."""
    field: str
    """What differs, as a path in the entry's payload, e.g. `request_hash`; `entry`: another entry was written, or none."""
    recorded: object
    """What the ledger has, as JSON types; None: nothing."""
    recomputed: object
    """What came out now."""
    stems_from: str
    """Where this value comes from, and what is likely to have changed."""
    entry_type: str
    """The entry that holds the field."""
    entity_id: str
    """What the entry is about: a work order, a turn, an intent, a signal."""
    entry_id: str | None = None
    """The recorded entry; None: there is none."""

    def as_json(self) -> dict[str, object]:
        """Everything, as JSON types."""
        return {
            "turn_id": self.turn_id,
            "field": self.field,
            "recorded": self.recorded,
            "recomputed": self.recomputed,
            "stems_from": self.stems_from,
            "entry_type": self.entry_type,
            "entity_id": self.entity_id,
            "entry_id": self.entry_id,
        }

    def text(self) -> str:
        """For a reader, some lines long."""
        where = f"{self.entry_type} {self.entity_id}" + (f" ({self.entry_id})" if self.entry_id else "")
        rows = [f"first divergence: {self.turn_id or 'before the first turn'}, {where}", f"  field       {self.field}"]
        recorded, recomputed = self.recorded, self.recomputed
        if _is_list_of_text(recorded) and _is_list_of_text(recomputed):
            rows += _list_diff(recorded, recomputed)
        else:
            rows += [f"  recorded    {_shown(self.recorded)}", f"  recomputed  {_shown(self.recomputed)}"]
        return "\n".join([*rows, f"  stems from  {self.stems_from}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """A turn was recorded under other settings, or by other code of policy, than the one it is replayed with."""

    turn_id: str
    """The first such turn."""
    recorded: str
    """Its `ruleset_hash`."""
    now: str
    """That of the settings and the code at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What became of a session's replay."""

    session_id: str
    agent_class: str
    turns: tuple[str, ...] = ()
    """Ids of the turns that came out identical."""
    consolidations: tuple[str, ...] = ()
    """Work orders of the consolidations that came out identical."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Turns that are not replayed and why: `aborted: <reason>`, `open` (it runs, or a crash cut it off), `erased`."""
    divergence: ReplayDivergence | None = None
    """The first one; None: identical."""
    policy: PolicyChange | None = None
    """The first turn that was recorded under another policy; None: all under this one."""
    visible: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the model was shown in each turn that came out identical: ids of turns, intents, rules, learned lines."""

    @property
    def erased(self) -> int:
        """Turns that cannot be replayed because their subject was erased."""
        return sum(why == "erased" for why in self.skipped.values())

    @property
    def is_identical(self) -> bool:
        """Whether every decision of every turn came out as it was recorded."""
        return self.divergence is None

    @property
    def is_of_memory(self) -> bool:
        """Whether it is about consolidations, which belong to no conversation."""
        return self.session_id.startswith("CONS-")

    def as_json(self) -> dict[str, object]:
        """Everything, as JSON types."""
        policy = self.policy
        return {
            "session_id": self.session_id,
            "agent_class": self.agent_class,
            "identical": self.is_identical,
            "turns": list(self.turns),
            "consolidations": list(self.consolidations),
            "skipped": dict(self.skipped),
            "erased": self.erased,
            "divergence": self.divergence.as_json() if self.divergence is not None else None,
            "policy": None if policy is None else {"turn_id": policy.turn_id, "recorded": policy.recorded, "now": policy.now},
            "visible": {turn: list(items) for turn, items in self.visible.items()},
        }

    def text(self) -> str:
        """For a reader: one line where all is well."""
        skipped = f", {len(self.skipped)} skipped ({_counts(self.skipped.values())})" if self.skipped else ""
        what, done = ("consolidation", self.consolidations) if self.is_of_memory else ("turn", self.turns)
        turns = f"{len(done)} {what}{'' if len(done) == 1 else 's'}"
        rows = []
        if self.policy is not None:
            rows.append(
                f"{self.session_id}  was recorded under another policy: from {self.policy.turn_id} on its ruleset_hash is"
                f" {self.policy.recorded}, now {self.policy.now}"
            )
        if self.divergence is None:
            return "\n".join([*rows, f"{self.session_id}  identical, {turns}{skipped}"])
        return "\n".join([*rows, f"{self.session_id}  diverged after {turns}{skipped}", self.divergence.text()])


def _counts(reasons: Iterable[str]) -> str:
    found: dict[str, int] = {}
    for each in reasons:
        found[each] = found.get(each, 0) + 1
    return ", ".join(f"{count} {reason}" for reason, count in sorted(found.items()))


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _is_list_of_text(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _list_diff(recorded: list[str], recomputed: list[str]) -> list[str]:
    """Both lists in one: `-` was recorded only, `+` came out only."""
    gone, new = set(recorded) - set(recomputed), set(recomputed) - set(recorded)
    if not gone and not new:
        return [f"  recorded    {', '.join(recorded)}", f"  recomputed  {', '.join(recomputed)}"]
    rows = [f"    - {each}" for each in recorded if each in gone] + [f"    + {each}" for each in recomputed if each in new]
    rest = [f"    … {len(rows) - _ROWS} more"] if len(rows) > _ROWS else []
    return ["  - recorded, + recomputed", *rows[:_ROWS], *rest]
