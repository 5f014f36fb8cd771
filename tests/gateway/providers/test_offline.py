"""The offline model: the same answer each time, from variables alone, honest about being rules (docs/gateway.md)."""

from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.gateway.providers import OfflineProvider
from kitchener.records.prompt import Message, PromptResponse, TextPiece, ToolSpec
from tests.gateway.shared.gateway_kit import as_type, ask, schema_of

LIST_PACKAGES = ToolSpec("list_packages", "List the installed Python packages", {"type": "object"})


async def answer_to(wo_type: str, **variables: Any) -> dict[str, Any]:
    """Its answer to work of this type, which has the form of the contract."""
    schema = schema_of(f"PRC-{wo_type.upper()}-001")
    answer = (await OfflineProvider().complete(as_type(ask(variables=variables, output_schema=schema), wo_type))).structured
    jsonschema_rs.validate(schema, answer)
    assert answer is not None
    return answer


async def reply_to(message: str, *results: dict[str, Any], context: str = "", **fields: Any) -> str:
    """What it replies after it has classified the message itself."""
    variables = {
        "user_message": message,
        "assembled_context": {"context_text": context, "context_hash": "", "fragments": [], **fields},
        "prior_results": [await answer_to("classify", user_message=message), *results],
        "instructions": "",
    }
    return (await OfflineProvider().complete(ask(message, variables=variables))).text


# --- synthesize ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", ["hello", "What is the capital of France?"])
async def test_it_says_that_it_is_a_set_of_rules(message: str) -> None:
    reply = await reply_to(message)
    assert "offline model" in reply
    assert "fixed rules" in reply


async def test_small_talk_is_answered_in_kind() -> None:
    assert await reply_to("thanks!") == "You are welcome."
    assert await reply_to("bye") == "Goodbye!"
    assert await reply_to("ok") == "All right."


async def test_it_says_what_it_understood() -> None:
    assert "I understood: “plan a trip to Rome”." in await reply_to("please plan a trip to Rome")


async def test_a_question_is_answered_from_the_context_if_a_line_is_about_it() -> None:
    context = "user: My dog is called Rex.\nassistant: noted\nuser: What is my dog called?\nuser: I fly to Oslo"
    reply = await reply_to("What is my dog called?", context=context)
    assert reply.startswith("From our conversation: “user: My dog is called Rex”.")
    assert "Oslo" not in reply


async def test_it_never_quotes_itself_so_quotes_do_not_nest() -> None:
    context = "user: My dog is called Rex."
    for _ in range(3):
        reply = await reply_to("What is my dog called?", context=context)
        context += f"\nassistant: {reply}"
    assert reply.count("From our conversation") == 1


async def test_it_quotes_no_goal_which_repeats_the_message() -> None:
    assert "From our conversation" not in await reply_to("I like trains", context="Goal: I like trains")


async def test_of_equally_fitting_lines_the_latest_is_quoted_and_a_long_one_is_shortened() -> None:
    assert "“my city is Oslo”" in await reply_to("which city?", context="my city is Rome\nmy city is Oslo")
    assert "From our conversation" not in await reply_to("which city?", context="nothing of that kind")
    assert len(await reply_to("city?", context="city " * 200)) < 600


async def test_learned_lines_are_repeated_at_a_bounded_length() -> None:
    reply = await reply_to("Where shall I go?", ho3_biases=["Prefers trains.", "Likes Oslo."])
    assert reply.endswith("(I keep in mind: Prefers trains. Likes Oslo.)")
    told = await reply_to("do it", {"tool_id": "t", "result": "done"}, ho3_biases=["Prefers trains."])
    assert told == "t: done\n\n(I keep in mind: Prefers trains.)"
    assert "keep in mind" not in await reply_to("Where shall I go?")
    assert len(await reply_to("do it", {"tool_id": "t", "result": "x"}, ho3_biases=["word " * 99])) < 300


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"tool_id": "t", "result": ["a", {"b": 1}]}, 't:\n- a\n- {"b":1}'),
        ({"tool_id": "t", "result": {"name": "x", "sizes": [1, 2]}}, 't: {"name":"x","sizes":[1,2]}'),
        ({"tool_id": "t", "result": "two\nlines"}, "t: two\nlines"),
        ({"tool_id": "t", "result": 3.5}, "t: 3.5"),
        ({"tool_id": "t", "result": {"result": [1]}}, "t:\n- 1"),
        ({"tool_id": "t", "error": "no such file"}, "t failed: no such file"),
        ({"tool_id": "t", "error": {"kind": "TIMEOUT"}}, 't failed: {"kind":"TIMEOUT"}'),
    ],
)
async def test_it_reports_tool_results(result: dict[str, Any], expected: str) -> None:
    assert await reply_to("do it", result) == expected


async def test_long_results_are_shortened() -> None:
    assert len(await reply_to("do it", {"tool_id": "t", "result": "x" * 10_000})) <= 2_000


async def test_in_the_tool_loop_it_asks_for_a_tool_once_and_then_reports_the_result() -> None:
    request = ask("which packages are installed?", tools=(LIST_PACKAGES,))
    provider = OfflineProvider()
    first = await provider.complete(request)
    (use,) = first.tool_uses
    assert (use.tool_id, first.finish_reason, first.text) == ("list_packages", "tool_use", "")
    messages = (
        *request.messages,
        Message("assistant", "", tool_uses=(use,)),
        Message("tool", '{"result": ["anyio","orjson"]}', tool_use_id=use.use_id, tool_id=use.tool_id),
    )
    second = await provider.complete(request._replace(messages=messages, call=2))
    assert second.tool_uses == ()
    assert second.text == "list_packages:\n- anyio\n- orjson"
    failed = messages[-1]._replace(content='{"error": "no package manager"}')
    third = await provider.complete(request._replace(messages=(*messages[:-1], failed), call=2))
    assert third.text == "list_packages failed: no package manager"


# --- the other kinds of work --------------------------------------------------------------------------------------------


async def test_it_classifies_by_the_rules_with_everything_that_the_contract_passes() -> None:
    answer = await answer_to(
        "classify",
        user_message="Back to the kubernetes packages we discussed earlier. Which packages are installed?",
        active_objective="find a hotel in Oslo",
        prior_intent_id="INT-1",
        recent_turns=[{"user": "Find a hotel in Oslo", "assistant": "There is the Fjord Hotel."}],
        labels_vocabulary={"domain": ["kubernetes"], "task": []},
        tools=[{"tool_id": "list_packages", "description": "List the installed packages", "parameters": {}}],
    )
    assert (answer["intent_relation"], answer["labels"]["domain"]) == ("switch", "kubernetes")
    assert answer["intent"] == {"action": "supersede", "prior_intent_id": "INT-1"}
    assert answer["tool_request"] == {"tool_id": "list_packages", "arguments": {}}


@pytest.mark.parametrize(
    ("response", "acceptance", "decision"),
    [
        ("something", [], "accept"),
        ("  ", [], "reject"),
        ("The price is 3 euros.", ["names a price"], "accept"),
        ("I do not know.", ["names a price"], "reject"),
    ],
)
async def test_verdicts(response: str, acceptance: list[str], decision: str) -> None:
    answer = await answer_to("verify", response_text=response, acceptance=acceptance, user_message="what does it cost?")
    assert answer["decision"] == decision


async def lesson(signal_id: str, *co_signals: list[str], count: int = 5, sessions: int = 3) -> dict[str, Any]:
    events = [{"event_id": f"EVT-{n}", "co_signals": each} for n, each in enumerate(co_signals)]
    return await answer_to("consolidate", signal_id=signal_id, count=count, session_count=sessions, recent_events=events)


@given(signal_id=st.text(min_size=1), count=st.integers(1, 10_000), sessions=st.integers(1, 500))
async def test_lessons_follow_the_contract_whatever_the_signal(signal_id: str, count: int, sessions: int) -> None:
    found = await lesson(signal_id, ["domain:a", signal_id], count=count, sessions=sessions)
    assert found["salience_weight"] > 0.3


async def test_labels_of_a_lesson_are_those_that_came_with_most_of_its_events() -> None:
    """With exactly half of the events a label is not usual; one that an event repeats counts once."""
    found = await lesson(
        "tool:list_packages",
        ["domain:system", "task:lookup", "intent:question"],
        ["domain:system", "task:lookup", "outcome:success"],
        ["domain:system", "domain:travel"],
        ["domain:travel", "domain:travel", "domain:food"],
    )
    assert found["labels"] == {"domain": ["system"], "task": []}
    both = await lesson("tool:t", ["domain:b", "domain:a"], ["domain:a", "domain:b"])
    assert both["labels"]["domain"] == ["a", "b"]
    assert (await lesson("tool:t"))["labels"] == {"domain": [], "task": []}


async def test_a_label_is_its_own_lesson_and_is_not_widened_by_what_came_with_it() -> None:
    """A lesson speaks where one of its labels is met, so a second one would make it speak of travel at any booking."""
    found = await lesson("domain:travel", ["task:booking"], ["task:booking"])
    assert found["labels"] == {"domain": ["travel"], "task": []}


@pytest.mark.parametrize(
    ("signal_id", "line"),
    [
        ("domain:travel", "Often talks about travel."),
        ("task:booking", "Often asks for help with booking."),
        ("tool:read_file", "Requests often need the tool read file."),
        ("intent:feedback", "Most messages are of this kind: feedback."),
        ("outcome:failed", "Turns often end with this outcome: failed."),
        ("mood:happy", "A signal recurs: happy."),
        ("x", "A signal recurs: x."),
    ],
)
async def test_the_line_of_a_lesson_differs_by_its_kind(signal_id: str, line: str) -> None:
    assert (await lesson(signal_id))["context_line"] == line


# --- the provider -------------------------------------------------------------------------------------------------------


async def test_with_a_schema_the_text_is_the_object_and_without_one_it_is_the_reply() -> None:
    request = ask("thanks!", variables={"user_message": "thanks!", "prior_results": [{"speech_act": "thanks"}]})
    plain = await OfflineProvider().complete(request)
    by_schema = await OfflineProvider().complete(request._replace(output_schema=schema_of("PRC-SYNTHESIZE-001")))
    assert plain.text == "You are welcome."
    assert plain.structured is None
    assert by_schema.structured == orjson.loads(by_schema.text) == {"response_text": "You are welcome."}


async def test_the_same_request_gets_the_same_answer_and_the_wording_of_prompts_does_not_matter() -> None:
    request = as_type(ask("plan a trip to Rome"), "classify")
    other_pack = request._replace(messages=(Message("user", "ganz anders"),))
    answers = [await OfflineProvider().complete(each) for each in (request, request, other_pack)]
    assert answers[0] == answers[1]
    assert answers[0].structured == answers[2].structured
    assert answers[0].model_id == "offline-rules-1"


async def test_tokens_are_a_third_of_the_bytes() -> None:
    response = await OfflineProvider().complete(ask("größer", messages=(Message("user", "größer"),)))
    assert response.usage.input_tokens == 3
    assert response.usage.output_tokens == -(-len(response.text.encode()) // 3)


async def test_a_stream_is_the_answer_word_by_word() -> None:
    provider = OfflineProvider()
    items = [item async for item in provider.stream(ask("What now, old friend?"))]
    response = items[-1]
    assert isinstance(response, PromptResponse)
    assert "".join(item.text for item in items if isinstance(item, TextPiece)) == response.text
    assert len(items) > 3
