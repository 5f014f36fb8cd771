"""Which work orders a turn needs, and what they add up to; explained in docs/work-orders.md."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from kitchener.actors.work.plan import (
    UNCLASSIFIED,
    ChainPlan,
    ToolRequest,
    constraints_for,
    cost_mapping,
    plan_chain,
    summarize,
    tighter,
    total_cost,
)
from kitchener.config import HO2Config
from kitchener.records.entries import WorkOrderType
from kitchener.records.events import POLICY_VERSION
from kitchener.records.outputs import Classification, RequestedTool
from kitchener.records.work_order import TYPE_TAGS, Constraints, Cost, WorkOrder

LOOK, SEND = "look", "send"
"""A tool without effects, and one with."""
ARGUMENTS = {"where": "there"}


def plan(speech_act: str, request: Any = None, *, allowed: tuple[str, ...] = (LOOK, SEND), room: int = 9) -> ChainPlan:
    classification: Classification = {"speech_act": speech_act}
    if request is not None:
        classification["tool_request"] = request
    return plan_chain(classification, allowed=allowed, read_only={LOOK} & set(allowed), room=room)


def asks_for(tool_id: str) -> RequestedTool:
    return {"tool_id": tool_id, "arguments": ARGUMENTS}


def runs(tool_id: str) -> ChainPlan:
    return ChainPlan(ToolRequest(tool_id, ARGUMENTS), offers_tools=True, offers_items=True)


OFFERS = ChainPlan(None, offers_tools=True, offers_items=True)
SHOWN = ChainPlan(None, offers_tools=True, offers_items=True, tool_choice="none")
"""The model is shown its tools, and may call none."""
PLAIN = ChainPlan(None, offers_tools=False, offers_items=False)
ITEMS_ONLY = ChainPlan(None, offers_tools=False, offers_items=True)
"""An agent without tools may still read in full what its context shows as stubs."""


@pytest.mark.parametrize(
    ("speech_act", "request_for", "expected"),
    [
        ("greeting", None, SHOWN),
        ("greeting", LOOK, SHOWN),
        ("greeting", SEND, SHOWN),
        ("farewell", SEND, SHOWN),
        ("thanks", LOOK, SHOWN),
        ("question", None, OFFERS),
        ("question", LOOK, runs(LOOK)),
        ("question", SEND, OFFERS),  # an effect needs a command
        ("statement", SEND, OFFERS),
        ("command", None, OFFERS),
        ("command", LOOK, runs(LOOK)),
        ("command", SEND, runs(SEND)),
        ("tool_query", SEND, runs(SEND)),
        ("request", SEND, runs(SEND)),
        ("command", "unknown_tool", OFFERS),
        ("", SEND, OFFERS),
        ("COMMAND", SEND, OFFERS),  # labels are compared as they are
    ],
)
def test_a_tool_runs_first_if_the_message_asks_for_it_and_may(
    speech_act: str, request_for: str | None, expected: ChainPlan
) -> None:
    assert plan(speech_act, asks_for(request_for) if request_for is not None else None) == expected


def test_an_agent_without_tools_never_runs_or_offers_any() -> None:
    assert plan("greeting", asks_for(SEND), allowed=()) == SHOWN._replace(offers_tools=False)
    for speech_act in ("question", "command"):
        assert plan(speech_act, asks_for(SEND), allowed=()) == ITEMS_ONLY


@pytest.mark.parametrize("room", [0, 1])
def test_without_room_for_the_tool_and_the_reply_the_tool_does_not_run_first(room: int) -> None:
    assert plan("command", asks_for(SEND), room=room) == OFFERS


def test_with_room_for_just_the_tool_and_the_reply_it_does() -> None:
    assert plan("command", asks_for(SEND), room=2) == runs(SEND)


@pytest.mark.parametrize(
    "request_value",
    ["look", 5, [], {}, {"tool_id": 7, "arguments": {}}, {"arguments": {}}, {"tool_id": SEND, "arguments": [1]}, None],
)
def test_a_request_of_another_shape_is_no_request(request_value: Any) -> None:
    assert plan("command", request_value) == OFFERS


def test_a_caller_who_wants_no_call_has_the_tools_shown() -> None:
    """Also that of a tool which the classification asks for."""
    assert plan("question").choosing("none") == plan("command", asks_for(SEND)).choosing("none") == SHOWN
    assert plan("question", allowed=()).choosing("none") == ITEMS_ONLY._replace(tool_choice="none")
    assert plan("greeting").choosing("required") == OFFERS._replace(tool_choice="required")


@pytest.mark.parametrize("speech_act", ["greeting", "farewell", "thanks"])
def test_up_to_version_11_tools_that_may_not_be_called_were_hidden(speech_act: str) -> None:
    found = plan_chain({"speech_act": speech_act}, allowed=(LOOK,), read_only=(), room=9, policy_version=11)
    assert found == PLAIN
    assert OFFERS.choosing("none", 11) == PLAIN


def test_version_1_offered_no_tool_after_one_that_the_classification_asked_for() -> None:
    asked: Classification = {"speech_act": "command", "tool_request": asks_for(SEND)}
    found = plan_chain(asked, allowed=(SEND,), read_only=(), room=9, policy_version=1)
    assert found == runs(SEND)._replace(offers_tools=False)


def test_a_request_may_leave_its_arguments_out() -> None:
    assert plan("command", {"tool_id": SEND}) == ChainPlan(ToolRequest(SEND, {}), offers_tools=True, offers_items=True)


def test_a_message_that_nothing_could_classify_is_offered_tools() -> None:
    assert plan_chain(UNCLASSIFIED, allowed=(SEND,), read_only=(), room=9) == OFFERS


def test_a_retry_is_tighter_than_what_it_retries() -> None:
    given = Constraints(
        prompt_contract_id="PRC-SYNTHESIZE-001", token_budget=1_000, turn_limit=8, allowed_tools=(LOOK,), domain_tags=("x",)
    )
    first, second = tighter(given, 1), tighter(tighter(given, 1), 2)
    assert (first.temperature, first.token_budget, first.turn_limit, first.allowed_tools) == (0.0, 750, 0, (LOOK,))
    assert (second.temperature, second.token_budget, second.turn_limit, second.allowed_tools) == (0.0, 562, 0, (LOOK,))
    assert first.tool_choice == second.tool_choice == "none"
    before = tighter(tighter(given, 1, 11), 2, 11)
    assert (before.allowed_tools, before.tool_choice) == ((), None)
    assert second.prompt_contract_id == given.prompt_contract_id
    assert second.domain_tags == given.domain_tags


@pytest.mark.parametrize("budget", [1, 100, 255, 256, 257, 341, 342, 16_000])
def test_a_retry_never_has_more_tokens_than_what_it_retries(budget: int) -> None:
    assert 1 <= tighter(Constraints(token_budget=budget), 1).token_budget <= budget


def work_order(number: int, wo_type: WorkOrderType, cost: Cost) -> WorkOrder:
    wo = WorkOrder.create(
        session_id="SES-00000001",
        number=number,
        turn_id="T-00000001-000001",
        wo_type=wo_type,
        created_at="2026-01-01T00:00:00Z",
    )
    return wo.dispatched(None).executing().completed({"response_text": "x"}, cost, "2026-01-01T00:00:01Z")


CHAIN = (
    work_order(1, "classify", Cost(input_tokens=10, output_tokens=1, llm_calls=1, elapsed_ms=5)),
    work_order(2, "tool_call", Cost(tool_calls=2, tool_ids_used=("look", "send"), elapsed_ms=7)),
    work_order(3, "synthesize", Cost(input_tokens=100, output_tokens=20, llm_calls=3, tool_calls=1, tool_ids_used=("look",))),
)


def test_a_chain_costs_what_its_work_orders_cost() -> None:
    counts = {"input_tokens": 110, "output_tokens": 21, "llm_calls": 4, "tool_calls": 3}
    assert total_cost(CHAIN, POLICY_VERSION) == counts
    assert total_cost((), POLICY_VERSION) == dict.fromkeys(counts, 0)
    nested = Cost(input_tokens=50, cached_tokens=40, llm_calls=1)
    cached = work_order(4, "synthesize", Cost(input_tokens=10, cached_tokens=9, nested=nested))
    inner = {"input_tokens": 50, "output_tokens": 0, "cached_tokens": 40, "llm_calls": 1, "tool_calls": 0}
    assert total_cost([cached], 14) == {**inner, "input_tokens": 60, "cached_tokens": 49, "nested": inner}
    assert total_cost([work_order(4, "synthesize", Cost(cached_tokens=9))], 13) == dict.fromkeys(counts, 0)


def test_a_summary_has_every_work_order_in_order() -> None:
    summary = summarize(CHAIN)
    assert [(each["wo_id"], each["wo_type"], each["state"]) for each in summary] == [
        ("WO-SES-00000001-001", "classify", "completed"),
        ("WO-SES-00000001-002", "tool_call", "completed"),
        ("WO-SES-00000001-003", "synthesize", "completed"),
    ]
    assert summary[1]["cost"] == {
        "input_tokens": 0,
        "output_tokens": 0,
        "llm_calls": 0,
        "tool_calls": 2,
        "tool_ids_used": ["look", "send"],
        "elapsed_ms": 7,
    }


def test_a_cost_on_record_reads_back_as_the_same_cost() -> None:
    for wo in CHAIN:
        assert TypeAdapter(Cost).validate_python(cost_mapping(wo.cost)) == wo.cost
    whole = Cost(input_tokens=2, cached_tokens=1, nested=Cost())
    assert cost_mapping(whole).keys() == vars(Cost()).keys()
    assert cost_mapping(Cost()).keys() == vars(Cost()).keys() - {"cached_tokens", "nested"}


def test_each_type_gets_its_tag_and_the_model_of_its_class() -> None:
    """Tags of the class come first, none stands twice, and a type without a choice is left to the routes."""
    models: Any = {"consolidation": {"provider": "local", "model": "small"}, "synthesis": {"model": "large"}}
    config = HO2Config.model_validate({"domain_tags": ["night", "synthesis"], "models": models})
    found = {wo_type: constraints_for(config, wo_type, contract_id="PRC-ANY-001", token_budget=7) for wo_type in TYPE_TAGS}
    assert {wo_type: each.domain_tags[2:] for wo_type, each in found.items()} == {
        "classify": ("classification",),
        "tool_call": ("tool",),
        "synthesize": (),
        "verify": ("verification",),
        "consolidate": ("consolidation",),
    }
    assert {each.domain_tags[:2] for each in found.values()} == {("night", "synthesis")}
    chosen = {wo_type: (each.provider_id, each.model_id) for wo_type, each in found.items() if each.model_id is not None}
    assert chosen == {"synthesize": (None, "large"), "consolidate": ("local", "small")}
