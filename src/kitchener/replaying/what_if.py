"""Runs recorded turns again under another policy, without a model call, and reports what the model would have been shown.

Each turn gets the recorded past, message, classification and reply; see `reruns.py`. If the recorded session has no
intents, the intents that the other policy creates accumulate from turn to turn. Explained in `docs/replay.md`.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypedDict

from kitchener.config import RuntimeConfig
from kitchener.plain_names import counted
from kitchener.replaying.on_record.turn_tape import AS_ERASED
from kitchener.replaying.report import erased_in, lacking_a_key
from kitchener.replaying.reruns import Rerun, ShownContext
from kitchener.replaying.session_replay import Replays, open_replays
from kitchener.runtime.root_layout import agent_of

_PATHS: Final = ("ho2m_path", "ho1m_path", "ho3_memory_dir")
"""Settings of the places of recorded sessions; the other policy reads from the same places."""
_HAPPENED: Final = ("approval", "client_tools_trusted", "max_client_calls")
"""Settings that decide what a person or a client is asked. The answers are recorded, so the other policy keeps them."""


@dataclass(frozen=True, slots=True)
class TurnDiff:
    """One turn under both policies."""

    turn_id: str
    recorded: ShownContext
    other: ShownContext

    @property
    def came_in(self) -> tuple[str, ...]:
        """Items shown under the other policy only."""
        return tuple(each for each in self.other.items if each not in self.recorded.items)

    @property
    def went_out(self) -> tuple[str, ...]:
        """Items shown under the recorded policy only."""
        return tuple(each for each in self.recorded.items if each not in self.other.items)

    @property
    def is_same(self) -> bool:
        """Whether the model would be shown the same items and text."""
        return self.recorded.items == self.other.items and self.recorded.text == self.other.text

    def as_json(self) -> dict[str, object]:
        """Everything but the texts, as JSON types."""
        return {
            "turn_id": self.turn_id,
            "same": self.is_same,
            "came_in": list(self.came_in),
            "went_out": list(self.went_out),
            **{name: _as_json(shown) for name, shown in (("recorded", self.recorded), ("other", self.other))},
        }

    def text(self) -> str:
        """The difference for a reader: one line, and one for each item that differs."""
        before, after = self.recorded, self.other
        line = (
            f"  {self.turn_id}  {len(before.items)} → {len(after.items)} items, {before.tokens} → {after.tokens} tokens,"
            f" prefix {before.prefix_tokens} → {after.prefix_tokens}"
        )
        return "\n".join([line, *(f"    - {each}" for each in self.went_out), *(f"    + {each}" for each in self.came_in)])


@dataclass(frozen=True, slots=True)
class WhatIfReport:
    """A session under another policy."""

    session_id: str
    agent_class: str
    turns: tuple[TurnDiff, ...] = field(default_factory=tuple)
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Turns that cannot be compared, with the reason as in `ReplayReport`."""
    unreadable: str = ""
    """Why turns are skipped as `unreadable`: a key is missing. "": there are none."""

    @property
    def erased(self) -> int:
        """Number of turns that cannot be read because their subject was erased."""
        return erased_in(self.skipped)

    @property
    def changed(self) -> tuple[TurnDiff, ...]:
        """The turns in which the model would be shown something else."""
        return tuple(each for each in self.turns if not each.is_same)

    @property
    def is_comparable(self) -> bool:
        """Whether at least one turn was compared. The turns of an erased subject cannot be."""
        return bool(self.turns)

    def as_json(self) -> dict[str, object]:
        return {
            "session_id": self.session_id,
            "agent_class": self.agent_class,
            "turns": [each.as_json() for each in self.turns],
            "skipped": dict(self.skipped),
            "erased": self.erased,
            "unreadable": self.unreadable or None,
            "summary": summary_of([self]),
        }

    def text(self) -> str:
        """The report for a reader: the turns that differ."""
        if self.unreadable:
            return f"{self.session_id}  not readable: {self.unreadable}"
        if self.erased and not self.turns:
            return f"{self.session_id}  {_of_erased(self.erased)}"
        head = (
            f"{self.session_id}  {len(self.changed)} of {counted(len(self.turns), 'turn')} would have been shown something else"
        )
        if self.erased:
            head += f"; {_of_erased(self.erased)}"
        return "\n".join([head, *(each.text() for each in self.changed)])


class TokenSums(TypedDict):
    """Estimated tokens of the contexts of all turns."""

    tokens: int
    prefix_tokens: int
    """Tokens at the start of a context that equal the start of the context before it."""


class WhatIfSummary(TypedDict):
    """The sums over all turns, as `--json` prints them."""

    sessions: int
    sessions_changed: int
    """Sessions with a turn in which the model would have been shown something else."""
    sessions_unchanged: int
    sessions_not_comparable: int
    """Sessions without a turn that could be compared."""
    turns: int
    changed: int
    """Turns in which the model would have been shown something else."""
    erased: int
    came_in: int
    """Items shown under the other policy only."""
    went_out: int
    """Items shown as recorded only."""
    recorded: TokenSums
    other: TokenSums


def summary_of(reports: Sequence[WhatIfReport]) -> WhatIfSummary:
    """Sums over the reports of several sessions."""
    turns = [each for report in reports for each in report.turns]
    return {
        "sessions": len(reports),
        "sessions_changed": sum(bool(report.changed) for report in reports),
        "sessions_unchanged": sum(report.is_comparable and not report.changed for report in reports),
        "sessions_not_comparable": sum(not report.is_comparable for report in reports),
        "turns": len(turns),
        "changed": sum(not each.is_same for each in turns),
        "erased": sum(report.erased for report in reports),
        "came_in": sum(len(each.came_in) for each in turns),
        "went_out": sum(len(each.went_out) for each in turns),
        "recorded": _token_sums(each.recorded for each in turns),
        "other": _token_sums(each.other for each in turns),
    }


def _token_sums(shown: Iterable[ShownContext]) -> TokenSums:
    found = list(shown)
    return {"tokens": sum(each.tokens for each in found), "prefix_tokens": sum(each.prefix_tokens for each in found)}


def summary_text(reports: Sequence[WhatIfReport]) -> str:
    """The sums for a reader, on one line."""
    found = summary_of(reports)
    before, after = found["recorded"], found["other"]
    sessions = f"{found['sessions_changed']:,} changed, {found['sessions_unchanged']:,} unchanged"
    if found["sessions_not_comparable"]:
        sessions += f", {found['sessions_not_comparable']:,} not comparable"
    differ = f"{counted(found['turns'], 'turn')} {'differs' if found['changed'] == 1 else 'differ'}"
    return (
        f"{counted(found['sessions'], 'session')}: {sessions}; {found['changed']:,} of {differ}:"
        f" {counted(found['came_in'], 'item')} more, {found['went_out']:,} fewer;"
        f" context {before['tokens']:,} → {after['tokens']:,} tokens,"
        f" beginning shared with the turn before {before['prefix_tokens']:,} → {after['prefix_tokens']:,}"
        + (f"; {_of_erased(found['erased'])}" if found["erased"] else "")
    )


class WhatIf:
    """Compares policies over recorded sessions; made by `open_what_if`."""

    def __init__(self, recorded: Replays, other: Replays) -> None:
        self._recorded, self._other = recorded, other

    async def sessions(self) -> list[str]:
        """The sessions on record, oldest first."""
        return await self._recorded.sessions()

    async def compare(self, session_id: str) -> WhatIfReport:
        """Compares one session under both policies.

        Raises:
            UnknownSession: it is not on record
        """
        tape = await self._recorded.tape_of(session_id)
        skipped = {turn.turn_id: turn.skipped_as for turn in tape.turns if not turn.is_replayable}
        missing = await self._recorded.recorded.missing_key(session_id) if AS_ERASED in skipped.values() else ""
        if missing:
            return WhatIfReport(session_id, self._recorded.agent_class, (), lacking_a_key(skipped), missing)
        before, after = await self._views(self._recorded, session_id), await self._views(self._other, session_id)
        turns = tuple(TurnDiff(turn_id, before[turn_id], after[turn_id]) for turn_id in before)
        return WhatIfReport(session_id, self._recorded.agent_class, turns, skipped)

    async def _views(self, replays: Replays, session_id: str) -> dict[str, ShownContext]:
        tape = await replays.tape_of(session_id)
        return await Rerun(replays, tape, is_other=replays is self._other).views()


@asynccontextmanager
async def open_what_if(
    settings: RuntimeConfig, other: RuntimeConfig, agent_class: str, *, tools: Sequence[Callable[..., object]] = ()
) -> AsyncIterator[WhatIf]:
    """Compares the policy of `settings` with another one, over recorded sessions.

    Args:
        settings: the current policy, and where the sessions are
        other: the other policy
        agent_class: the agent class
        tools: the tools that were passed to `open_runtime`

    Raises:
        LedgerDamaged: a ledger does not verify
        ConfigError, PromptError, ToolError: the settings, prompts or tools of the agent class are wrong
    """
    mine, theirs = agent_of(settings, agent_class), agent_of(other, agent_class)
    agent = theirs.model_copy(update={name: getattr(mine, name) for name in (*_PATHS, *_HAPPENED)})
    memory = other.memory.model_copy(update={"memory_dir": settings.memory.memory_dir})
    moved = {"plane_root": settings.plane_root, "ledger": settings.ledger, "memory": memory}
    other = other.model_copy(update={**moved, "agents": {**other.agents, agent_class: agent}})
    async with (
        open_replays(settings, agent_class, tools=tools) as recorded,
        open_replays(other, agent_class, tools=tools, verify=False) as replays,
    ):
        yield WhatIf(recorded, replays)


def _of_erased(count: int) -> str:
    return f"{counted(count, 'turn')} erased with their subject, so not comparable"


def _as_json(shown: ShownContext) -> dict[str, object]:
    return {
        "items": list(shown.items),
        "suppressed": list(shown.suppressed),
        "tokens": shown.tokens,
        "prefix_tokens": shown.prefix_tokens,
    }
