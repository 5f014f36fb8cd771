"""A work order is validated once and moves only along the table of legal transitions. See docs/work-orders.md."""

import ast
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from kitchener.errors import InvalidTransition
from kitchener.records.entries import WorkOrderState
from kitchener.records.ref import Ref
from kitchener.records.work_order import TRANSITIONS, Constraints, Cost, WorkOrder, WorkOrderError

SOURCES = Path(__file__).parents[2] / "src"
AT = "2026-01-01T00:00:00.000000+00:00"
REF = Ref("HO2M:ADMIN", "E-2026-01-01-000000000001", "sha256:" + "1" * 64)
ERROR = WorkOrderError(reason="TOOL", detail="broke")
COST = Cost(input_tokens=1, tool_ids_used=("look",))
OUTPUT: dict[str, Any] = {"response_text": "Hi."}

LEGAL: Mapping[str, frozenset[str]] = {
    "planned": frozenset({"dispatched", "abandoned"}),
    "dispatched": frozenset({"executing", "failed", "abandoned"}),
    "executing": frozenset({"completed", "failed", "deferred", "abandoned"}),
    "deferred": frozenset({"executing", "failed", "abandoned"}),
    "completed": frozenset({"failed"}),
    "failed": frozenset({"superseded", "abandoned"}),
    "superseded": frozenset(),
    "abandoned": frozenset(),
}
"""Written out a second time, so that a slip in the table shows."""

PATHS: Mapping[str, tuple[str, ...]] = {
    "planned": (),
    "dispatched": ("dispatched",),
    "executing": ("dispatched", "executing"),
    "deferred": ("dispatched", "executing", "deferred"),
    "completed": ("dispatched", "executing", "completed"),
    "failed": ("dispatched", "failed"),
    "superseded": ("dispatched", "failed", "superseded"),
    "abandoned": ("abandoned",),
}
MOVES: Mapping[str, Callable[[WorkOrder], WorkOrder]] = {
    "dispatched": lambda wo: wo.dispatched(REF),
    "executing": WorkOrder.executing,
    "completed": lambda wo: wo.completed(OUTPUT, COST, AT),
    "failed": lambda wo: wo.failed(ERROR, COST, AT),
    "deferred": WorkOrder.deferred,
    "superseded": WorkOrder.superseded,
    "abandoned": WorkOrder.abandoned,
}


def planned(**fields: Any) -> WorkOrder:
    return WorkOrder.create(
        session_id="SES-0000000a", number=7, turn_id="T-0000000a-000001", wo_type="synthesize", created_at=AT, **fields
    )


def in_state(state: str) -> WorkOrder:
    wo = planned()
    for step in PATHS[state]:
        wo = MOVES[step](wo)
    assert wo.state == state
    return wo


def test_the_table_covers_every_state() -> None:
    assert set(TRANSITIONS) == set(LEGAL) == set(get_args(WorkOrderState))


@pytest.mark.parametrize("source", LEGAL)
@pytest.mark.parametrize("target", MOVES)
def test_only_legal_transitions_are_made(source: str, target: str) -> None:
    wo = in_state(source)
    if target in LEGAL[source]:
        moved = MOVES[target](wo)
        assert moved.state == target
        assert wo.state == source
    else:
        with pytest.raises(InvalidTransition) as caught:
            MOVES[target](wo)
        assert (caught.value.wo_id, caught.value.state, caught.value.to) == (wo.wo_id, source, target)
        assert str(caught.value) == f"work order {wo.wo_id} cannot go from {source!r} to {target!r}"


@given(steps=st.lists(st.sampled_from(sorted(MOVES)), max_size=12))
def test_no_walk_leaves_the_table(steps: list[str]) -> None:
    """Whatever is tried in whatever order: the state is the last legal step, and nothing but state, results and refs change."""
    first = wo = planned()
    for step in steps:
        expected = step if step in LEGAL[wo.state] else wo.state
        try:
            wo = MOVES[step](wo)
        except InvalidTransition:
            assert expected == wo.state
        assert wo.state == expected
    changed = {"state", "planned_ref", "output_result", "error", "cost", "completed_at"}
    kept = [field.name for field in fields(WorkOrder) if field.name not in changed]
    assert [getattr(wo, name) for name in kept] == [getattr(first, name) for name in kept]
    assert (first.state, first.error, first.output_result) == ("planned", None, None)


@given(steps=st.lists(st.sampled_from(sorted(MOVES)), max_size=12))
def test_results_stand_only_where_they_were_given(steps: list[str]) -> None:
    wo = planned()
    for step in steps:
        if step in LEGAL[wo.state]:
            wo = MOVES[step](wo)
    if wo.output_result is not None:
        assert wo.state in ("completed", "failed", "superseded", "abandoned")
    if wo.state in ("failed", "superseded"):
        assert wo.error == ERROR
    if wo.state in ("planned", "dispatched", "executing", "deferred"):
        assert (wo.output_result, wo.error, wo.completed_at) == (None, None, None)


def test_what_a_state_brings_with_it() -> None:
    assert in_state("dispatched").planned_ref == REF
    completed = in_state("completed")
    assert (completed.output_result, completed.cost, completed.completed_at) == (OUTPUT, COST, AT)
    failed = in_state("failed")
    assert (failed.error, failed.cost, failed.completed_at) == (ERROR, COST, AT)
    rejected = completed.failed(ERROR)
    assert (rejected.output_result, rejected.cost, rejected.completed_at) == (OUTPUT, COST, AT)
    assert in_state("executing").deferred(COST).cost == COST


def test_ids_are_derived_from_session_and_number() -> None:
    wo = planned()
    assert wo.wo_id == "WO-SES-0000000a-007"
    assert wo.subject_id == "anon-SES-0000000a"
    assert planned(subject_id="ada").subject_id == "ada"
    assert (wo.tier_target, wo.state, wo.constraints, wo.cost) == ("HO1", "planned", Constraints(), Cost())


@pytest.mark.parametrize(
    "wrong",
    [
        {"wo_type": "think"},
        {"tier_target": "HO2"},
        {"input_context": "text"},
        {"prior_results": [1]},
        {"constraints": {"token_budget": 0}},
        {"constraints": {"turn_limit": -1}},
        {"constraints": {"timeout_ms": 0}},
        {"constraints": {"temperature": 2.5}},
        {"constraints": {"max_tokens": 0}},
        {"constraints": {"more": 1}},
        {"targets": "all"},
        {"state": "sleeping"},
        {"more": 1},
    ],
)
def test_it_is_validated_when_it_is_created(wrong: dict[str, Any]) -> None:
    given_fields: dict[str, Any] = {"wo_type": "synthesize", **wrong}
    with pytest.raises(ValidationError):
        WorkOrder.create(session_id="SES-0000000a", number=1, turn_id="T-0000000a-000001", created_at=AT, **given_fields)


@pytest.mark.parametrize("field", ["state", "output_result", "cost"])
def test_it_cannot_be_changed_in_place(field: str) -> None:
    wo = planned()
    with pytest.raises(FrozenInstanceError):
        setattr(wo, field, None)


def test_it_reads_back_from_its_own_json() -> None:
    wo = in_state("completed")
    shape = TypeAdapter(WorkOrder)
    assert shape.validate_json(shape.dump_json(wo)) == wo


def test_copies_change_fields_that_there_are() -> None:
    """A misspelt name would be set and never read, and type checkers do not see it. What a move sets is seen on its result."""
    for state in PATHS:
        assert vars(in_state(state)).keys() == {field.name for field in fields(WorkOrder)}
    known = {field.name for record in (WorkOrder, Constraints, Cost) for field in fields(record)}
    changed: dict[str, str] = {}
    for path in SOURCES.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "replaced(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "replaced":
                changed |= {keyword.arg: f"{path.name}:{node.lineno}" for keyword in node.keywords if keyword.arg is not None}
    assert {name: place for name, place in changed.items() if name not in known} == {}
    assert len(changed) > 20
