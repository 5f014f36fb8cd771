"""Turns the result of a replay into text and JSON: identical, or the first divergence in the form of a failed test."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final, TypeGuard

import orjson

from kitchener.plain_names import counted
from kitchener.records.entries import NestedTurn
from kitchener.replaying.on_record.recorded_sources import SourceChange
from kitchener.replaying.on_record.turn_tape import AS_ERASED

_SHOWN: Final = 600
"""Characters of a value that a text shows."""
_ROWS: Final = 40
"""Rows of a list that a text shows."""


def erased_in(skipped: Mapping[str, str]) -> int:
    """Number of turns that are skipped because their subject was erased."""
    return sum(why == AS_ERASED for why in skipped.values())


def lacking_a_key(skipped: Mapping[str, str]) -> dict[str, str]:
    """Why turns are skipped that seem erased but only lack their key."""
    return {turn: "unreadable" if each == AS_ERASED else each for turn, each in skipped.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDivergence:
    """The first difference between a replay and the record."""

    turn_id: str | None
    """The turn, or the work order of a consolidation; None: before the first turn."""
    field: str
    """Path of the field in the entry's payload, such as `request_hash`; `entry`: another entry was written, or none."""
    recorded: object
    """The recorded value as JSON types; None: nothing is recorded."""
    recomputed: object
    """What the replay computed for the field, as JSON types; None: nothing."""
    stems_from: str
    """Where the value comes from, and what probably changed."""
    entry_type: str
    """The entry that holds the field."""
    entity_id: str
    """What the entry is about: a work order, a turn, an intent, a signal."""
    entry_id: str | None = None
    """The recorded entry; None: there is none."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    def text(self) -> str:
        """The divergence for a reader, on several lines."""
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
    """A turn was recorded with other settings or policy code than the replay uses."""

    turn_id: str
    """The first such turn."""
    recorded: str
    """Its `ruleset_hash`."""
    now: str
    """The `ruleset_hash` of the current settings and code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The result of a session's replay."""

    session_id: str
    agent_class: str
    turns: tuple[str, ...] = ()
    """Ids of the turns that replayed identically."""
    consolidations: tuple[str, ...] = ()
    """Work orders of the consolidations that replayed identically."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Turns that are not replayed and why: `aborted: <reason>`, `open` (it runs, or a crash cut it off), `erased`,
    `unreadable`."""
    unreadable: str = ""
    """Why turns are skipped as `unreadable`: a key is missing. "": there are none."""
    divergence: ReplayDivergence | None = None
    """The first divergence; None: the replay is identical."""
    policy: PolicyChange | None = None
    """The first turn that was recorded under another policy; None: there is none."""
    changes: tuple[SourceChange, ...] = ()
    """The sources that differ from those of the first turn with another configuration, with diffs of the texts."""
    visible: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Ids of the turns, intents, rules and learned lines that the model was shown, by id of an identical turn."""
    nested_turns: tuple[NestedTurn, ...] = ()
    """The turns that its tools ran in other sessions, which are replayed separately."""

    def then(self, later: "ReplayReport") -> "ReplayReport":
        """The report of the imported turns of a session, with that of the turns after the import."""
        return replace(
            later,
            turns=(*self.turns, *later.turns),
            skipped={**self.skipped, **later.skipped},
            unreadable=self.unreadable or later.unreadable,
            policy=self.policy or later.policy,
            visible={**self.visible, **later.visible},
            nested_turns=(*self.nested_turns, *later.nested_turns),
        )

    def without_key(self, why: str) -> "ReplayReport":
        """The report if seemingly erased turns only lack their key, for this reason; "": they are erased."""
        if not why:
            return self
        return replace(self, skipped=lacking_a_key(self.skipped), unreadable=why)

    @property
    def erased(self) -> int:
        """Number of turns that cannot be replayed because their subject was erased."""
        return erased_in(self.skipped)

    @property
    def is_identical(self) -> bool:
        """Whether every decision of every replayed turn equals the recorded one, and no key is missing to replay a turn."""
        return self.divergence is None and not self.unreadable

    @property
    def is_of_memory(self) -> bool:
        """Whether it reports consolidations, which belong to no conversation."""
        return self.session_id.startswith("CONS-")

    def as_json(self) -> dict[str, object]:
        policy = self.policy
        return {
            "session_id": self.session_id,
            "agent_class": self.agent_class,
            "identical": self.is_identical,
            "turns": list(self.turns),
            "consolidations": list(self.consolidations),
            "skipped": dict(self.skipped),
            "erased": self.erased,
            "unreadable": self.unreadable or None,
            "divergence": self.divergence.as_json() if self.divergence is not None else None,
            "policy": None if policy is None else asdict(policy),
            "changes": [asdict(each) for each in self.changes],
            "nested_turns": list(self.nested_turns),
            "visible": {turn: list(items) for turn, items in self.visible.items()},
        }

    def text(self, told: set[SourceChange] | None = None) -> str:
        """The report for a reader: one line if everything is identical.

        Args:
            told: the changes that earlier reports have shown, whose diffs are left out; this report's are added
        """
        told = set() if told is None else told
        skipped = f", {len(self.skipped)} skipped ({_counts(self.skipped.values())})" if self.skipped else ""
        what, done = ("consolidation", self.consolidations) if self.is_of_memory else ("turn", self.turns)
        turns = counted(len(done), what)
        rows = []
        if self.policy is not None:
            rows.append(
                f"{self.session_id}  was recorded under another policy: from {self.policy.turn_id} on its ruleset_hash is"
                f" {self.policy.recorded}, now {self.policy.now}"
            )
        if self.nested_turns:
            sessions = dict.fromkeys(f"{each['session_id']} of {each['agent_class']}" for each in self.nested_turns)
            rows.append(f"{self.session_id}  its tools ran turns in {', '.join(sessions)}; --nested replays these too")
        if self.unreadable:
            rows.append(f"{self.session_id}  not readable: {self.unreadable}")
        for each in self.changes:
            rows.append(f"{self.session_id}  changed since: {each.name}{', as above' if each in told else ''}")
            rows += [] if each in told else _shown_diff(each.diff)
        told.update(self.changes)
        if self.divergence is not None:
            return "\n".join([*rows, f"{self.session_id}  diverged after {turns}{skipped}", self.divergence.text()])
        verdict = f"not all compared, {turns} identical" if self.unreadable else f"identical, {turns}"
        return "\n".join([*rows, f"{self.session_id}  {verdict}{skipped}"])


def _counts(reasons: Iterable[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(Counter(reasons).items()))


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _shown_diff(diff: str) -> list[str]:
    lines = diff.splitlines()
    rest = [f"… and {counted(len(lines) - _ROWS, 'more line')}; --json has them all"] if len(lines) > _ROWS else []
    return [f"    {_shown(line)}" for line in [*lines[:_ROWS], *rest]]


def _is_list_of_text(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _list_diff(recorded: list[str], recomputed: list[str]) -> list[str]:
    """A diff of two lists: `-` is recorded only, `+` is recomputed only."""
    gone, new = set(recorded) - set(recomputed), set(recomputed) - set(recorded)
    if not gone and not new:
        return [f"  recorded    {', '.join(recorded)}", f"  recomputed  {', '.join(recomputed)}"]
    rows = [f"    - {each}" for each in recorded if each in gone] + [f"    + {each}" for each in recomputed if each in new]
    rest = [f"    … {len(rows) - _ROWS} more"] if len(rows) > _ROWS else []
    return ["  - recorded, + recomputed", *rows[:_ROWS], *rest]
