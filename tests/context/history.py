"""A session's ledger for tests of the Context Authority: entries in order, one second apart, folded on demand."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import strategies as st

from kitchener.canonical import digest
from kitchener.context import (
    ContextState,
    IntentEvent,
    Item,
    Projection,
    Projector,
    Rendering,
    Resolution,
    Ruleset,
    SourceEvent,
    estimator,
    fold,
    make_event,
    render,
    resolve_active,
)
from kitchener.records.ref import Ref

SESSION = "SES-00000001"
LEDGER = "HO2M:ADMIN"
ESTIMATE = estimator("utf8/3")
NEWEST = Ruleset(admission="newest_first")
CONTEXT_REF = Ref("CONTEXT:ADMIN", "E-2026-02-18-000000000001", digest(b"projection"))


def entry_ref(number: int) -> Ref:
    return Ref(LEDGER, f"E-2026-02-18-{number:012d}", digest(str(number).encode()))


def second(number: int) -> str:
    return f"2026-02-18T09:{number // 60:02d}:{number % 60:02d}.000000+00:00"


def event(number: int, entry_type: str, entity_id: str, payload: dict[str, Any], *, at: int | None = None) -> SourceEvent:
    """The event of entry `number`, at second `at` (its number where none is given)."""
    made = make_event(entry_type, entity_id, second(number if at is None else at), payload, entry_ref(number))
    assert made is not None
    return made


@dataclass
class History:
    """Events in the order in which a supervisor wrote them."""

    events: list[SourceEvent] = field(default_factory=list)

    def add(self, entry_type: str, entity_id: str, **payload: Any) -> SourceEvent:
        self.events.append(event(len(self.events) + 1, entry_type, entity_id, payload))
        return self.events[-1]

    def write(self, events: Iterable[IntentEvent]) -> None:
        for each in events:
            self.add(each.entry_type, each.entity_id, **each.payload)

    def declare(self, intent: str, parent: str | None = None, *, scope: str = "SESSION", **more: Any) -> SourceEvent:
        return self.add("INTENT_DECLARED", intent, parent_intent_id=parent, scope=scope, objective=f"goal {intent}", **more)

    def supersede(self, intent: str, by: str) -> SourceEvent:
        return self.add("INTENT_SUPERSEDED", intent, superseded_by_intent_id=by, reason="switch")

    def close(self, intent: str) -> SourceEvent:
        return self.add("INTENT_CLOSED", intent, outcome="done")

    def open(self, wo: str, intent: str, **more: Any) -> SourceEvent:
        return self.add("WO_PLANNED", wo, intent_id=intent, wo_type="synthesize", **more)

    def fail(self, wo: str, detail: str = "model was down") -> SourceEvent:
        return self.add("WO_FAILED", wo, reason="PROVIDER", error={"reason": "PROVIDER", "detail": detail})

    def turn(self, turn: str, intent: str | None, *, words: int = 2, ok: bool = True) -> SourceEvent:
        self.add("TURN_STARTED", turn, user_message=f"question of {turn}" + " more" * words)
        return self.add("TURN_COMPLETED", turn, intent_id=intent, response=f"answer of {turn}", quality_gate_passed=ok)

    def state(self, session_id: str | None = SESSION) -> ContextState:
        return fold(self.events, ESTIMATE, session_id)

    def resolve(self, ruleset: Ruleset = NEWEST) -> Resolution:
        return resolve_active(self.state(), ruleset)

    def project(self, ruleset: Ruleset = NEWEST, **more: Any) -> Projection:
        state = self.state()
        return Projector(ruleset).project(state, resolve_active(state, ruleset), **more)


def shown(projection: Projection) -> list[str]:
    return [each.item.entity_id for each in projection.visible]


def hidden(projection: Projection) -> dict[str, tuple[str, str | None]]:
    return {each.item.entity_id: (each.form, each.reason) for each in projection.suppressed()}


def text_of(projection: Projection) -> Rendering:
    return render(projection, ESTIMATE)


def by_words(message: str, items: Sequence[Item]) -> list[int]:
    """The order of words in common, the newer first; items without any are left out."""
    words = set(message.split())
    scored = [(len(words.intersection(item.text.split())), n) for n, item in enumerate(items)]
    return [n for score, n in sorted(scored, reverse=True) if score]


class Ranked(NamedTuple):
    """A ranking made of functions."""

    rank: Callable[[str, Sequence[Item]], Iterable[int]]
    grade: Callable[[str, Sequence[Item]], Iterable[tuple[int, float]]] = lambda message, items: ()
    admits_all: bool = False


WORD_RANK = Ranked(by_words)


# --- histories that nobody would write ----------------------------------------------------------------------------------------

_INTENTS = st.sampled_from(["INT-1", "INT-2", "INT-3"])
_WORK = st.sampled_from(["WO-1", "WO-2", "WO-3"])
_TURNS = st.sampled_from(["T-1", "T-2", "T-3", "T-4"])
_TEXT = st.sampled_from(["", "short", "rather longer than short " * 4])


@st.composite
def facts(draw: st.DrawFn) -> tuple[str, str, dict[str, Any]]:
    """Anything that may stand in an entry, likely or not."""
    kind = draw(st.sampled_from(["declare", "declare", "intent", "fork", "open", "open", "work", "turn", "turn", "other"]))
    if kind == "declare":
        parent = draw(st.none() | _INTENTS)
        scope = draw(st.sampled_from(["SESSION", "SESSION", "PROJECT"]))
        more = {"adopts_turns": True} if draw(st.booleans()) else {}
        return "INTENT_DECLARED", draw(_INTENTS), {"parent_intent_id": parent, "scope": scope, "objective": draw(_TEXT), **more}
    if kind == "intent":
        what = [
            "INTENT_SUPERSEDED",
            "INTENT_SUPERSEDED",
            "INTENT_REOPENED",
            "INTENT_CLOSED",
            "INTENT_ABANDONED",
            "INTENT_RETIRED",
            "INTENT_DEFERRED",
        ]
        return draw(st.sampled_from(what)), draw(_INTENTS), {"superseded_by_intent_id": draw(_INTENTS)}
    if kind == "fork":
        children = draw(st.lists(_INTENTS, max_size=2))
        return (
            "INTENT_FORKED",
            draw(_INTENTS),
            {"child_intent_ids": children, "active_child_intent_id": draw(st.none() | _INTENTS)},
        )
    if kind == "open":
        return (
            "WO_PLANNED",
            draw(_WORK),
            {"intent_id": draw(st.none() | _INTENTS), "blocked_by": draw(st.lists(_WORK, max_size=1))},
        )
    if kind == "work":
        what = [
            "WO_COMPLETED",
            "WO_FAILED",
            "WO_FAILED",
            "WO_SUPERSEDED",
            "WO_ABANDONED",
            "WO_DEFERRED",
            "WO_RETIRED",
            "WO_REOPENED",
        ]
        return draw(st.sampled_from(what)), draw(_WORK), {"superseded_by_wo_id": draw(_WORK), "reason": draw(_TEXT)}
    if kind == "turn":
        if draw(st.booleans()):
            return "TURN_STARTED", draw(_TURNS), {"user_message": draw(_TEXT)}
        ok = draw(st.booleans())
        return (
            "TURN_COMPLETED",
            draw(_TURNS),
            {"intent_id": draw(st.none() | _INTENTS), "response": draw(_TEXT), "quality_gate_passed": ok},
        )
    if draw(st.booleans()):
        return "TURN_ABORTED", draw(_TURNS), {"reason": "crash"}
    target = entry_ref(draw(st.integers(1, 12)))
    return "LIFECYCLE_VOIDED", "INT-1", {"ref": target.as_mapping(), "reason": "repair"}


@st.composite
def event_lists(draw: st.DrawFn) -> list[SourceEvent]:
    """Events of one ledger in any order of arrival, some at the same time."""
    parts = draw(st.lists(st.tuples(facts(), st.integers(0, 8)), max_size=24))
    return [event(n, *said, at=at if late else n) for n, (said, at) in enumerate(parts, 1) for late in [at % 3 == 0]]


rulesets = st.builds(
    Ruleset,
    intent_conflict_policy=st.just("most_recent_wins"),
    admission=st.sampled_from(["newest_first", "lexical"]),
    context_budget=st.integers(0, 400),
    max_stubs=st.integers(0, 4),
    max_failed_items=st.integers(0, 2),
    newest_turns=st.integers(0, 2),
    standing_rules=st.sampled_from([(), ("Be brief.",)]),
)
