"""The built-in model: the same rules each time, from variables alone, honest about being rules."""

from importlib import resources
from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.gateway.providers.offline.message import choose_tool, classify
from kitchener.gateway.providers.offline.model import OfflineProvider
from kitchener.gateway.providers.offline.replies import consolidate, minimal, relevant_line
from kitchener.gateway.providers.offline.words import words_of
from kitchener.records.prompt import Message, PromptResponse, TextPiece, ToolSpec
from tests.gateway.asking import as_type, ask

CONTRACTS = resources.files("kitchener") / "actors" / "assets" / "prompts"
TEXT = {"type": "string"}


def takes(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


TOOLS = [
    {"tool_id": "list_packages", "description": "List the installed Python packages", "parameters": takes()},
    {"tool_id": "read_file", "description": "Read a text file", "parameters": takes("path", path=TEXT)},
    {"tool_id": "get_weather", "description": "Current weather of a city", "parameters": takes("city", city=TEXT)},
    {"tool_id": "addNumbers", "description": "Add two numbers", "parameters": takes("a", a={"type": "number"})},
    {"tool_id": "copy_file", "description": "Copy a file", "parameters": takes("source", "to", source=TEXT, to=TEXT)},
]


def schema_of(contract_id: str) -> dict[str, Any]:
    schema: dict[str, Any] = orjson.loads((CONTRACTS / f"{contract_id}.json").read_bytes())["output_schema"]
    return schema


async def reply_to(message: str, *results: dict[str, Any], context: str = "", **fields: Any) -> str:
    """What it replies after having classified the message itself."""
    classification = classify({"user_message": message})
    variables = {
        "user_message": message,
        "assembled_context": {"context_text": context, "context_hash": "", "fragments": [], **fields},
        "prior_results": [classification, *results],
        "instructions": "",
    }
    return (await OfflineProvider().complete(ask(message, variables=variables))).text


# --- classify -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "act"),
    [
        ("hello", "greeting"),
        ("Good morning!", "greeting"),
        ("hi, how are you?", "greeting"),
        ("Hi, can you list the packages?", "command"),
        ("thanks a lot!", "thanks"),
        ("that's all, thanks", "thanks"),
        ("thanks, which flights are there?", "question"),
        ("bye", "farewell"),
        ("See you tomorrow", "farewell"),
        ("What is the capital of France?", "question"),
        ("is it raining", "question"),
        ("you like tea?", "question"),
        ("List the packages", "command"),
        ("please read notes.txt", "command"),
        ("I need a flight to Oslo", "command"),
        ("could you tell me where the station is", "question"),
        ("My dog is called Rex.", "statement"),
        ("Sounds great, can you find me a room?", "command"),
        ("I fly home on Monday. Could you please find me a hotel?", "command"),
        ("Yes, play it in the kitchen", "command"),
        ("Thanks! What does it cost?", "question"),
        ("", "statement"),
    ],
)
def test_speech_acts(message: str, act: str) -> None:
    assert classify({"user_message": message})["speech_act"] == act


def test_labels_come_from_a_table_of_words_and_objectives_without_politeness() -> None:
    answer = classify({"user_message": "Hello, could you please plan a trip to Rome with cheap hotels?"})
    assert answer["labels"] == {"domain": "travel", "task": "planning"}
    assert answer["candidate_objective"] == "plan a trip to Rome with cheap hotels"
    assert classify({"user_message": "hello"})["labels"] == {}
    assert "candidate_objective" not in classify({"user_message": "hello"})
    assert len(classify({"user_message": "please explain " + "why " * 50 + "trains run"})["candidate_objective"]) <= 121


def test_a_vocabulary_bounds_the_labels_and_its_own_words_count() -> None:
    message = "Deploy the kubernetes cluster and book a hotel"
    vocabulary = {"domain": ["kubernetes", "travel_booking"], "task": ["planning"]}
    assert classify({"user_message": message, "labels_vocabulary": vocabulary})["labels"] == {"domain": "kubernetes"}
    assert classify({"user_message": message, "labels_vocabulary": {}})["labels"]["domain"] == "software"


@pytest.mark.parametrize(
    ("message", "relation"),
    [
        ("And which hotels are near the station?", "continue"),
        ("make it cheaper", "continue"),
        ("Yes", "continue"),
        ("By the way, what is a monad?", "switch"),
        ("Now I want to talk about dinner", "switch"),
        ("Write a unit test for the parser function", "switch"),
        ("That's all, thank you", "close"),
        ("never mind", "close"),
        ("bye", "close"),
        ("hello", "unclear"),
        ("thanks", "continue"),
    ],
)
def test_relation_to_the_active_objective(message: str, relation: str) -> None:
    recent = [{"user": "I want to go to Oslo", "assistant": "Which hotel do you like?"}]
    variables = {"user_message": message, "active_objective": "plan a trip to Oslo", "recent_turns": recent}
    assert classify(variables)["intent_relation"] == relation


def test_without_an_objective_a_request_begins_one() -> None:
    assert classify({"user_message": "plan a trip"})["intent_relation"] == "switch"
    assert classify({"user_message": "hello", "active_objective": None})["intent_relation"] == "unclear"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("which packages are installed?", ("list_packages", {})),
        ("List packages", ("list_packages", {})),
        ("read the file notes.txt", ("read_file", {"path": "notes.txt"})),
        ("please read this file: /etc/hosts", ("read_file", {"path": "/etc/hosts"})),
        ('read the file "my notes"', ("read_file", {"path": "my notes"})),
        ("what is the weather in Paris?", ("get_weather", {"city": "Paris"})),
        ("copy the file 'a b' to 'c'", ("copy_file", {"source": "a b", "to": "c"})),
        ("what is the weather like?", None),
        ("read the file", None),
        ("copy the file a.txt", None),
        ("delete the file a.txt", None),
        ("could you please delete the file a.txt?", None),
        ("show me the file a.txt", ("read_file", {"path": "a.txt"})),
        ("add the numbers 2 and 3", None),
        ("tell me a story", None),
    ],
)
def test_a_tool_is_requested_only_if_the_message_plainly_asks_and_gives_its_arguments(
    message: str, expected: tuple[str, dict[str, Any]] | None
) -> None:
    """Nothing is made up: without a text for a required argument, or where that is a number, there is no request."""
    answer = classify({"user_message": message, "tools": TOOLS})
    wanted = None if expected is None else {"tool_id": expected[0], "arguments": expected[1]}
    assert answer.get("tool_request") == wanted


def test_a_statement_asks_for_no_tool() -> None:
    assert "tool_request" not in classify({"user_message": "My packages are installed.", "tools": TOOLS})


@given(message=st.text(max_size=200), objective=st.none() | st.text(max_size=50), with_tools=st.booleans())
def test_any_message_gets_a_classification_by_the_contract(message: str, objective: str | None, with_tools: bool) -> None:
    answer = classify({"user_message": message, "active_objective": objective, "tools": TOOLS if with_tools else []})
    jsonschema_rs.validate(schema_of("PRC-CLASSIFY-001"), answer)


@given(message=st.text(alphabet=st.sampled_from("ab ./'\"`?-listread_filepackages"), max_size=80))
def test_what_a_tool_is_asked_for_was_in_the_message(message: str) -> None:
    found = choose_tool(message, words_of(message), TOOLS)
    if found is not None:
        assert all(value in message for value in found[1].values())


# --- synthesize ---------------------------------------------------------------------------------------------------------


async def test_it_says_that_it_is_a_set_of_rules() -> None:
    for message in ("hello", "What is the capital of France?"):
        reply = await reply_to(message)
        assert "offline model" in reply
        assert "fixed rules" in reply


async def test_small_talk_is_answered_in_kind() -> None:
    assert await reply_to("thanks!") == "You are welcome."
    assert await reply_to("bye") == "Goodbye!"
    assert await reply_to("ok") == "All right."


async def test_a_question_is_answered_from_the_context_if_a_line_is_about_it() -> None:
    context = "user: My dog is called Rex.\nassistant: noted\nuser: What is my dog called\nuser: I fly to Oslo"
    reply = await reply_to("What is my dog called?", context=context)
    assert reply.startswith("From our conversation: “user: My dog is called Rex”.")
    assert "Oslo" not in reply


async def test_it_never_quotes_its_own_boilerplate_so_quotes_do_not_nest() -> None:
    context = "user: My dog is called Rex."
    for _ in range(3):
        reply = await reply_to("What is my dog called?", context=context)
        context += f"\nassistant: {reply}"
    assert reply.count("From our conversation") == 1


def test_of_equally_fitting_lines_the_latest_is_quoted() -> None:
    assert relevant_line("which city?", "my city is Rome\nmy city is Oslo") == "my city is Oslo"
    assert relevant_line("which city?", "nothing of that kind") == ""
    assert len(relevant_line("city", "city " * 200)) <= 241


async def test_learned_lines_are_kept_in_mind() -> None:
    reply = await reply_to("Where shall I go?", ho3_biases=["Prefers trains.", "Likes Oslo."])
    assert reply.endswith("(I keep in mind: Prefers trains; Likes Oslo.)")
    told = await reply_to("do it", {"tool_id": "t", "result": "done"}, ho3_biases=["Prefers trains."])
    assert told == "t: done\n\n(I keep in mind: Prefers trains.)"
    assert "keep in mind" not in await reply_to("Where shall I go?")


async def test_what_is_kept_in_mind_is_one_bounded_line_and_is_never_quoted() -> None:
    reply = await reply_to("Where shall I go?", ho3_biases=["Likes\n\x07Oslo. ", "", *[f"line {n}" for n in range(99)]])
    *_, kept = reply.split("Configure a provider for real answers. ")
    assert kept.startswith("(I keep in mind: Likes Oslo; line 0;")
    assert len(kept) <= 200
    assert kept.isprintable()
    assert len(await reply_to("do it", {"tool_id": "t", "result": "x"}, ho3_biases=["word " * 99])) <= 200
    assert relevant_line("where are trains?", "(I keep in mind: Prefers trains.)") == ""


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"tool_id": "t", "result": ["a", {"b": 1}]}, 'Here is what t returned:\n- a\n- {"b":1}'),
        ({"tool_id": "t", "result": {"name": "x", "sizes": [1, 2]}}, "Here is what t returned:\nname: x\nsizes: [1,2]"),
        ({"tool_id": "t", "result": "one line"}, "t: one line"),
        ({"tool_id": "t", "result": "two\nlines"}, "Here is what t returned:\ntwo\nlines"),
        ({"tool_id": "t", "result": 3.5}, "t: 3.5"),
        ({"tool_id": "t", "result": {"result": [1]}}, "Here is what t returned:\n- 1"),
        ({"tool_id": "t", "result": []}, "t ran and returned nothing."),
        ({"tool_id": "t", "error": "no such file"}, "t failed: no such file"),
        ({"tool_id": "t", "error": {"kind": "TIMEOUT"}}, 't failed: {"kind":"TIMEOUT"}'),
    ],
)
async def test_tool_results_are_told_readably(result: dict[str, Any], expected: str) -> None:
    assert await reply_to("do it", result) == expected


async def test_long_results_are_shortened_and_say_so() -> None:
    reply = await reply_to("do it", {"tool_id": "t", "result": [f"item {n}" for n in range(100)]})
    assert reply.endswith("- item 29\n… and 70 more")
    assert len(await reply_to("do it", {"tool_id": "t", "result": "x" * 10_000})) <= 2_000


async def test_in_the_tool_loop_it_asks_for_a_tool_once_and_then_tells_the_result() -> None:
    tools = tuple(ToolSpec(tool["tool_id"], tool["description"], tool["parameters"]) for tool in TOOLS)  # type: ignore[arg-type]
    request = ask("which packages are installed?", tools=tools)
    provider = OfflineProvider()
    first = await provider.complete(request)
    (use,) = first.tool_uses
    assert (use.tool_id, first.finish_reason, first.text) == ("list_packages", "tool_use", "")
    messages = (
        *request.messages,
        Message("assistant", "", tool_uses=(use,)),
        Message("tool", '["anyio","orjson"]', tool_use_id=use.use_id, tool_id=use.tool_id),
    )
    second = await provider.complete(request._replace(messages=messages, call=2))
    assert second.tool_uses == ()
    assert second.text == "Here is what list_packages returned:\n- anyio\n- orjson"
    failed = messages[-1]._replace(content='{"error": "no package manager"}')
    third = await provider.complete(request._replace(messages=(*messages[:-1], failed), call=2))
    assert third.text == "list_packages failed: no package manager"


# --- verify and consolidate ---------------------------------------------------------------------------------------------


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
    variables = {"response_text": response, "acceptance": acceptance, "user_message": "what does it cost?"}
    request = as_type(ask(variables=variables, output_schema=schema_of("PRC-VERIFY-001")), "verify")
    answer = (await OfflineProvider().complete(request)).structured
    jsonschema_rs.validate(schema_of("PRC-VERIFY-001"), answer)
    assert answer is not None
    assert answer["decision"] == decision


@given(
    signal_id=st.sampled_from(["domain:travel", "task:planning", "tool:read_file", "intent:tool_query", "outcome:failed", "x"]),
    count=st.integers(1, 10_000),
    sessions=st.integers(1, 500),
)
async def test_lessons_follow_the_contract(signal_id: str, count: int, sessions: int) -> None:
    variables = {"signal_id": signal_id, "count": count, "session_count": sessions}
    schema = schema_of("PRC-CONSOLIDATE-001")
    answer = (
        await OfflineProvider().complete(as_type(ask(variables=variables, output_schema=schema), "consolidate"))
    ).structured
    jsonschema_rs.validate(schema, answer)
    assert answer is not None
    kind, _, value = signal_id.partition(":")
    assert answer["labels"] == {each: [value] if kind == each else [] for each in ("domain", "task")}
    assert (value or signal_id).replace("_", " ") in answer["bias"]


def lesson(signal_id: str, *co_signals: list[str]) -> dict[str, Any]:
    events = [{"event_id": f"EVT-{n}", "co_signals": each} for n, each in enumerate(co_signals)]
    return consolidate({"signal_id": signal_id, "count": 5, "session_count": 3, "recent_events": events})


def test_labels_of_a_lesson_are_those_that_came_with_most_of_its_events() -> None:
    """With exactly half of the events a label is not usual; one that an event repeats counts once."""
    found = lesson(
        "tool:list_packages",
        ["domain:system", "task:lookup", "intent:question"],
        ["domain:system", "task:lookup", "outcome:success"],
        ["domain:system", "domain:travel"],
        ["domain:travel", "domain:travel", "domain:food"],
    )
    assert found["labels"] == {"domain": ["system"], "task": []}
    assert found["context_line"] == "Requests often need the tool list packages (mostly system)."
    assert lesson("tool:t", ["domain:b", "domain:a"], ["domain:a", "domain:b"])["labels"]["domain"] == ["a", "b"]
    assert lesson("tool:t")["labels"] == lesson("tool:t", [], ["domain:a"])["labels"] == {"domain": [], "task": []}


def test_a_label_is_its_own_lesson_and_is_not_widened_by_what_came_with_it() -> None:
    """A lesson speaks where one of its labels is met, so a second one would make it speak of travel at any booking."""
    assert lesson("domain:travel", ["task:booking"], ["task:booking"])["labels"] == {"domain": ["travel"], "task": []}


@pytest.mark.parametrize(
    ("signal_id", "line"),
    [
        ("domain:travel", "Often talks about travel."),
        ("task:booking", "Often asks for help with booking."),
        ("tool:read_file", "Requests often need the tool read file."),
        ("intent:question", "Mostly asks questions: answer first, explain after."),
        ("intent:feedback", "Messages are often of the kind feedback."),
        ("outcome:failed", "Turns often fail: say early what cannot be done."),
        ("mood:happy", "Recurring signal: mood:happy."),
    ],
)
def test_the_line_of_a_lesson_differs_by_its_kind(signal_id: str, line: str) -> None:
    assert lesson(signal_id)["context_line"] == line


@given(signal_id=st.text(min_size=1), events=st.lists(st.fixed_dictionaries({"co_signals": st.lists(st.text())}), max_size=4))
def test_a_lesson_is_one_short_line_whatever_the_signal(signal_id: str, events: list[dict[str, Any]]) -> None:
    found = consolidate({"signal_id": signal_id, "count": 1, "session_count": 1, "recent_events": events})
    jsonschema_rs.validate(schema_of("PRC-CONSOLIDATE-001"), found)
    assert len(found["context_line"]) <= 160
    assert found["context_line"].isprintable()


# --- schemas ------------------------------------------------------------------------------------------------------------

SCHEMAS: list[dict[str, Any]] = [
    takes("a", "b", a=TEXT, b={"type": "integer", "minimum": 3}),
    takes("a", a={"enum": ["x", "y"]}),
    takes("a", a={"const": 7}),
    takes("a", a={"type": "array", "items": takes("b", b={"type": "boolean"}), "minItems": 2}),
    takes("a", a={"type": ["null", "string"]}),
    takes("a", a={"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]}),
    takes("a", a={"type": "string", "minLength": 4}),
    takes("a", a={"type": "number", "maximum": -5}),
    {"allOf": [takes("a", a=TEXT), takes("b", b={"type": "null"})]},
    {**takes("a", a={"$ref": "#/$defs/thing"}), "$defs": {"thing": takes("c", c=TEXT)}},
]


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_an_unknown_contract_gets_a_minimal_object_by_its_schema(schema: dict[str, Any]) -> None:
    request = as_type(ask(output_schema=schema), "tool_call")
    answer = (await OfflineProvider().complete(request)).structured
    jsonschema_rs.validate(schema, answer)


def test_a_schema_that_contains_itself_comes_to_an_end() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": takes("next", next={"$ref": "#/$defs/a"})}}
    assert minimal(schema) is not None


@pytest.mark.parametrize(
    "schema",
    [
        {**takes("verdict", verdict=TEXT), "additionalProperties": False},
        takes("speech_act", "score", speech_act={"enum": ["ask", "statement"]}, score={"type": "number"}),
        takes("speech_act", speech_act={"enum": ["ask", "tell"]}),
    ],
)
async def test_a_contract_of_the_users_own_with_another_schema_is_met(schema: dict[str, Any]) -> None:
    """For the same kind of work order: what the schema demands is there, what it forbids is not."""
    provider = OfflineProvider()
    for _ in range(2):
        request = as_type(ask("hello there", output_schema=schema), "classify")
        answer = (await provider.complete(request)).structured
        jsonschema_rs.validate(schema, answer)


# --- the provider -------------------------------------------------------------------------------------------------------


async def test_with_a_schema_the_text_is_the_object_and_without_one_it_is_the_reply() -> None:
    request = ask("thanks!", variables={"user_message": "thanks!", "prior_results": [{"speech_act": "thanks"}]})
    plain = await OfflineProvider().complete(request)
    by_schema = await OfflineProvider().complete(request._replace(output_schema=schema_of("PRC-SYNTHESIZE-001")))
    assert plain.text == "You are welcome."
    assert plain.structured == by_schema.structured == orjson.loads(by_schema.text) == {"response_text": "You are welcome."}


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
