"""Measures the Context Authority: an event, a turn's decision, and whether either grows with the session.

python benchmarks/projection.py
python benchmarks/projection.py --turns 20 700 5000 --json
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kitchener.canonical import canonical_bytes
from kitchener.context import (
    ContextState,
    Item,
    Projector,
    Ruleset,
    SourceEvent,
    base_of,
    estimator,
    make_event,
    projection_payload,
    render,
    resolve_active,
)
from kitchener.records.ref import Ref

WORDS = [
    "the",
    "package",
    "server",
    "answers",
    "slowly",
    "since",
    "its",
    "last",
    "change",
    "of",
    "cache",
    "and",
    "log",
    "nobody",
    "has",
]
ROUNDS = 300


class Journal:
    """Gives every event its place in a ledger."""

    def __init__(self) -> None:
        self._count = 0

    def event(self, entry_type: str, entity_id: str, payload: dict[str, Any]) -> SourceEvent:
        self._count += 1
        n = self._count
        timestamp = f"2026-02-{1 + n // 86_400:02d}T{n // 3_600 % 24:02d}:{n // 60 % 60:02d}:{n % 60:02d}.000000+00:00"
        ref = Ref("HO2M:ADMIN", f"E-2026-02-18-{n:012d}", f"sha256:{n:064x}")
        event = make_event(entry_type, entity_id, timestamp, payload, ref)
        assert event is not None
        return event


def turn_events(journal: Journal, n: int) -> Iterable[SourceEvent]:
    """What a supervisor writes in a turn, as far as it matters here."""
    turn, words = f"T-00000001-{n:06d}", [WORDS[(n * 7 + k) % len(WORDS)] for k in range(12 + n % 40)]
    yield journal.event("TURN_STARTED", turn, {"turn_id": turn, "user_message": " ".join(words)})
    for k in range(2):
        wo = f"WO-SES-00000001-{2 * n + k:03d}"
        yield journal.event("WO_PLANNED", wo, {"wo_id": wo, "intent_id": "INT-1", "wo_type": "synthesize"})
        yield journal.event("WO_COMPLETED", wo, {"wo_id": wo})
    answer = {"turn_id": turn, "intent_id": "INT-1", "response": " ".join(reversed(words)), "quality_gate_passed": True}
    yield journal.event("TURN_COMPLETED", turn, answer)


class Given(NamedTuple):
    """A ranking that costs nothing and names everything: what is measured is the projection."""

    admits_all: bool = False

    def rank(self, message: str, items: Sequence[Item]) -> Iterable[int]:
        """All places."""
        return range(len(items))

    def grade(self, message: str, items: Sequence[Item]) -> Iterable[tuple[int, float]]:
        """None: no chat messages are shown."""
        return ()


def timed(action: Callable[[], Any]) -> dict[str, float]:
    """Median and 95th percentile of CPU time, microseconds."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    times.sort()
    return {"p50_us": round(times[ROUNDS // 2] * 1e6, 1), "p95_us": round(times[ROUNDS * 95 // 100] * 1e6, 1)}


def measure(turns: int) -> dict[str, Any]:
    """The figures of a session of so many completed turns."""
    journal, estimate = Journal(), estimator("utf8/3")
    state = ContextState(estimate, "SES-00000001")
    declared = {"intent_id": "INT-1", "scope": "SESSION", "objective": "find out why the package server is slow"}
    history = [journal.event("INTENT_DECLARED", "INT-1", declared)]
    for n in range(1, turns + 1):
        history += turn_events(journal, n)
    began = time.perf_counter()
    for event in history:
        state.apply(event)
    apply_us = (time.perf_counter() - began) / len(history) * 1e6

    rules = ("Answer in the language of the question.", "Never show a password.")
    results: dict[str, Any] = {"turns": turns, "apply_us": round(apply_us, 2)}
    message = "is the cache of the package server slow"
    for admission, ranking in (("newest_first", None), ("lexical", Given())):
        ruleset = Ruleset(admission=admission, standing_rules=rules)  # type: ignore[arg-type]  # a literal, through a loop
        projector = Projector(ruleset)

        def project(projector: Projector = projector, ruleset: Ruleset = ruleset, ranking: Given | None = ranking) -> Any:
            return projector.project(state, resolve_active(state, ruleset), message=message, ranking=ranking)

        results[f"project_{admission}"] = timed(project)
    newest = Projector(Ruleset(admission="newest_first", standing_rules=rules))
    base = base_of(newest.project(state, resolve_active(state, newest.ruleset)), Ref("CONTEXT:ADMIN", "E-1", "sha256:0"))
    for event in turn_events(journal, turns + 1):
        state.apply(event)
    sizes = []

    def whole_turn() -> None:
        projection = newest.project(state, resolve_active(state, newest.ruleset), message=message)
        rendering = render(projection, estimate)
        payload = projection_payload(
            projection, rendering, timestamp="2026-02-18T09:00:00.000000+00:00", turn_id="T-1", bases=(base,)
        )
        sizes.append(len(canonical_bytes(payload)))

    results["project_render_and_encode"] = timed(whole_turn)
    results["payload_bytes"] = sizes[-1]
    return results


def main() -> None:
    """Prints the figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--turns", type=int, nargs="+", default=[20, 700, 2_000])
    arguments.add_argument("--json", action="store_true", help="one JSON object")
    options = arguments.parse_args()
    gc.freeze()
    results = [measure(turns) for turns in options.turns]
    if options.json:
        print(json.dumps({"projection": results}))
        return
    for each in results:
        print(f"{each.pop('turns')} completed turns")
        for key, value in each.items():
            print(f"  {key:26} {value}")


if __name__ == "__main__":
    main()
