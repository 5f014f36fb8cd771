"""Which learned lines speak in a turn: a pure choice by labels, rank and budget (docs/memory.md)."""

from itertools import permutations
from typing import Any

from kitchener.memory import select_biases
from tests.memory.shared.kit import at

FILES = {"domain": "files"}


def line(name: str, **changes: Any) -> dict[str, Any]:
    """An artifact about files, a hundred characters long."""
    return {
        "artifact_id": f"ART-{name}",
        "weight": 0.5,
        "decay_modifier": 1.0,
        "labels": {"domain": ["files"], "task": []},
        "scope": "agent",
        "context_line": "x" * 100,
        "enabled": True,
        "expires_at_event_ts": None,
        "consolidation_event_ts": at(),
        **changes,
    }


def older(name: str, **changes: Any) -> dict[str, Any]:
    """An artifact of the older shape."""
    shape = {"overlay_id": f"OVL-{name}", "salience_weight": 0.5, "decay_modifier": 1.0, "created_at": at()}
    return {**shape, "content": {"bias": "y" * 100, "category": "brevity"}, **changes}


def chosen(*artifacts: dict[str, Any], labels: Any = FILES, budget: float = 1_000, as_of: str = at()) -> list[str]:
    """The names of those that are chosen, best first; they are the very objects that were given."""
    found = select_biases(artifacts, labels, budget, as_of)
    assert all(any(each is given for given in artifacts) for each in found)
    return [(each.get("artifact_id") or each["overlay_id"])[4:] for each in found]


def test_filter_disabled() -> None:
    assert chosen(line("a", enabled=False), line("b")) == ["b"]


def test_filter_expired() -> None:
    assert chosen(line("a", expires_at_event_ts=at(1)), as_of=at(1)) == []
    assert chosen(line("a", expires_at_event_ts=at(1)), as_of=at(2)) == []


def test_filter_not_expired() -> None:
    assert chosen(line("a", expires_at_event_ts=at(1)), line("b"), as_of=at(0.999)) == ["a", "b"]


def test_scope_match_domain() -> None:
    artifact = line("a", labels={"domain": ["files", "docs"], "task": ["edit"]})
    assert chosen(artifact, labels={"domain": "docs", "task": "inspect"}) == ["a"]
    assert chosen(artifact, labels={"domain": ["other", "files"]}) == ["a"]


def test_scope_match_task() -> None:
    artifact = line("a", labels={"domain": ["docs"], "task": ["edit"]})
    assert chosen(artifact, labels={"domain": "files", "task": ["edit"]}) == ["a"]
    assert chosen(artifact, labels={"task": "edit"}) == ["a"]


def test_scope_no_match() -> None:
    assert chosen(line("a"), labels={"domain": "docs", "task": "files"}) == [], "a domain is no task"
    assert chosen(line("a", labels={"domain": [], "task": []})) == []
    assert chosen(line("a", labels={"domain": ["file"]})) == [], "labels are compared whole"


def test_scope_global_always_included() -> None:
    everywhere = line("a", scope="global")
    any_labels: list[Any] = [{"domain": "docs"}, {"domain": "files"}, {}, None]
    for labels in any_labels:
        assert chosen(everywhere, labels=labels) == ["a"]


def test_rank_by_weight() -> None:
    assert chosen(line("a", weight=0.2), line("b", weight=0.9), line("c", weight=0.5)) == ["b", "c", "a"]


def test_budget_limit() -> None:
    three = [line("a", weight=0.9), line("b", weight=0.8), line("c", weight=0.7)]
    assert chosen(*three, budget=75) == ["a", "b", "c"]
    assert chosen(*three, budget=74.99) == ["a", "b"]
    assert chosen(*three, budget=50) == ["a", "b"]
    assert chosen(*three, line("d", weight=0.1, context_line="z"), budget=51) == ["a", "b"], "a prefix, nothing squeezed in"
    assert chosen(*three, budget=0) == []


def test_empty_turn_labels_global_only() -> None:
    artifacts = (line("a"), line("b", scope="global"), line("c", labels={"domain": [], "task": []}))
    nothing: list[Any] = [{}, None, {"domain": []}, {"domain": [], "task": ()}]
    for labels in nothing:
        assert chosen(*artifacts, labels=labels) == ["b"]


def test_deterministic() -> None:
    artifacts = [line("c"), line("a"), line("b", weight=0.7), older("d")]
    runs = {tuple(chosen(*order, budget=60)) for order in permutations(artifacts)}
    assert runs == {("b", "a")}, "ties go by id, whatever the order they come in"


def test_backward_compat_no_labels_field() -> None:
    assert chosen(older("a"), labels={}) == ["a"]
    assert chosen(older("a", labels=None), labels=None) == ["a"]
    assert chosen(older("a")) == [], "it never said what it is about"
    assert chosen(older("a", salience_weight=0.4), line("b", scope="global", weight=0.5), labels={}) == ["b", "a"]
    assert chosen(older("a"), labels={}, budget=24.9) == [], "its content.bias is what it says"
