"""A reply as it is being made: what a listener is told adds up to the reply. See docs/work-orders.md."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kitchener.actors.executor.answers import UnreadableAnswer, read_answer
from kitchener.actors.executor.reply_stream import OuterBlanks, ReplyText
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.tool import tool
from kitchener.errors import ExecutorError, ProviderError
from kitchener.records.prompt import StreamItem, ToolUse
from kitchener.records.turn import TextDelta, TextRetracted, ToolRan, ToolStarted, TurnUpdate
from tests.actors.executor.executor_kit import Answer, Streamed, open_bench, response, work_order
from tests.shared.event_loops import ON_TRIO
from tests.shared.property_examples import examples

WO_ID = "WO-SES-0000000a-001"


def shown(updates: list[TurnUpdate]) -> str:
    """What a reader sees in the end."""
    text = ""
    for update in updates:
        if isinstance(update, TextRetracted):
            text = ""
        elif isinstance(update, TextDelta):
            text += update.text
    return text


async def watch(path: Path, *answers: Answer, **limits: Any) -> tuple[Any, list[TurnUpdate], Any]:
    """Runs a synthesize work order with a listener: the work order, the updates, the gateway."""
    updates: list[TurnUpdate] = []

    async def listen(update: TurnUpdate) -> None:
        updates.append(update)

    @tool(read_only=True)
    async def look() -> str:
        """Looks."""
        return "seen"

    async with open_bench(path, *answers, tools=ToolRegistry([look])) as bench:
        bench.listeners[WO_ID] = listen
        done = await bench.executor.execute(work_order("synthesize", **limits))
    return done, updates, bench.gateway


async def test_the_reply_streams_out_of_its_json(tmp_path: Path) -> None:
    pieces = ['{"respo', 'nse_text": "He', "llo\\", "nWor", 'ld", "completes_intent": false}']
    done, updates, gateway = await watch(tmp_path, Streamed(pieces))
    assert done.output_result == {"response_text": "Hello\nWorld", "completes_intent": False}
    assert updates == [TextDelta(WO_ID, 1, text) for text in ("He", "llo", "\nWor", "ld")]
    assert gateway.requests[0].restart_streams
    assert gateway.closed_streams == 1


async def test_plain_text_streams_as_it_is(tmp_path: Path) -> None:
    done, updates, _ = await watch(tmp_path, Streamed(["Hel", "lo ", "`there`"]))
    assert done.output_result == {"response_text": "Hello `there`"}
    assert updates == [TextDelta(WO_ID, 1, text) for text in ("Hel", "lo ", "`there`")]


async def test_a_gateway_that_cannot_stream_gives_the_reply_at_once(tmp_path: Path) -> None:
    done, updates, _ = await watch(tmp_path, '{"response_text": "Hello"}')
    assert done.state == "completed"
    assert updates == [TextDelta(WO_ID, 1, "Hello")]


async def test_a_restart_voids_what_was_told(tmp_path: Path) -> None:
    done, updates, _ = await watch(tmp_path, Streamed(['{"response_text": "Wro', 2, '{"response_text": "Right"}']))
    assert done.output_result == {"response_text": "Right"}
    assert updates == [TextDelta(WO_ID, 1, "Wro"), TextRetracted(WO_ID), TextDelta(WO_ID, 2, "Right")]


async def test_text_before_a_tool_is_no_reply(tmp_path: Path) -> None:
    asked = Streamed(["Let me look."], (ToolUse("u1", "look", {}),))
    done, updates, _ = await watch(tmp_path, asked, Streamed(["Seen."]), allowed_tools=("look",), turn_limit=1)
    assert done.output_result == {"response_text": "Seen."}
    assert updates == [
        TextDelta(WO_ID, 1, "Let me look."),
        ToolStarted(WO_ID, "look", 1, {}),
        ToolRan(WO_ID, "look", 1, {}, "seen"),
        TextRetracted(WO_ID),
        TextDelta(WO_ID, 1, "Seen."),
    ]


async def test_a_failed_tool_is_told_as_such(tmp_path: Path) -> None:
    _, updates, _ = await watch(tmp_path, ToolUse("u1", "nope", {}), "Hi.", allowed_tools=("look",), turn_limit=1)
    refusal = "tool 'nope' is not allowed here; allowed are ['look']"
    assert updates == [ToolRan(WO_ID, "nope", 1, {}, None, refusal), TextDelta(WO_ID, 1, "Hi.")]


async def test_a_repaired_answer_replaces_the_first(tmp_path: Path) -> None:
    broken = Streamed(['{"response_text": "Hel'])
    done, updates, _ = await watch(tmp_path, broken, Streamed(['{"response_text": "Hello"}']))
    assert done.output_result == {"response_text": "Hello"}
    assert updates == [TextDelta(WO_ID, 1, "Hel"), TextRetracted(WO_ID), TextDelta(WO_ID, 1, "Hello")]


async def test_a_reply_that_turns_out_to_be_another_is_told_anew(tmp_path: Path) -> None:
    """Of two equal keys the last one counts, which nobody can know while the first one streams."""
    done, updates, _ = await watch(tmp_path, Streamed(['{"response_text": "one"', ', "response_text": "two"}']))
    assert done.output_result == {"response_text": "two"}
    assert updates == [TextDelta(WO_ID, 1, "one"), TextRetracted(WO_ID), TextDelta(WO_ID, 1, "two")]


async def test_a_failed_work_order_takes_back_what_was_told(tmp_path: Path) -> None:
    broken = Streamed(['{"response_text": "Hel'])
    failure = ProviderError("scripted", "connection", "gone")
    done, updates, _ = await watch(tmp_path, broken, failure)
    assert done.error.reason == "PROVIDER"
    assert updates == [TextDelta(WO_ID, 1, "Hel"), TextRetracted(WO_ID)]


async def test_classification_is_never_streamed(tmp_path: Path) -> None:
    updates: list[TurnUpdate] = []

    async def listen(update: TurnUpdate) -> None:
        updates.append(update)

    async with open_bench(tmp_path, '{"speech_act": "greeting"}') as bench:
        bench.listeners[WO_ID] = listen
        done = await bench.executor.execute(work_order("classify"))
        assert not bench.gateway.requests[0].restart_streams
    assert done.state == "completed"
    assert updates == []


async def test_a_stream_without_a_response_is_a_bug_of_the_gateway(tmp_path: Path) -> None:
    async def listen(update: TurnUpdate) -> None:
        return None

    async def silent(request: Any, *, on_attempt: Any) -> Any:
        for item in list[StreamItem]():
            yield item

    async with open_bench(tmp_path) as bench:
        bench.listeners[WO_ID] = listen
        bench.gateway.stream = silent  # type: ignore[method-assign]
        with pytest.raises(ExecutorError, match="ended without a response"):
            await bench.executor.execute(work_order("synthesize"))


async def test_a_cancelled_listener_closes_the_stream(tmp_path: Path) -> None:
    begun = anyio.Event()

    async def hang(update: TurnUpdate) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with open_bench(tmp_path, Streamed(["Hello", "there"])) as bench:
        bench.listeners[WO_ID] = hang
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(bench.executor.execute, work_order("synthesize"))
                await begun.wait()
                tasks.cancel_scope.cancel()
        assert bench.gateway.closed_streams == 1


def in_pieces(text: str, cuts: list[int]) -> list[str]:
    """The text, cut at these places."""
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(places)]


REPLIES = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.text(
    st.sampled_from('ab"\\/\n\t\u0000\u20ac\U0001f600{}[],:'), max_size=40
)
CUTS = st.lists(st.integers(0, 200), max_size=30)
OTHERS = st.dictionaries(
    st.text(st.sampled_from('abc"\\{}:'), max_size=6).filter(lambda key: key != "response_text"),
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | REPLIES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("response_text"), inner, max_size=1),
        max_leaves=5,
    ),
    max_size=3,
)


@given(
    reply=REPLIES,
    before=OTHERS,
    after=OTHERS,
    cuts=CUTS,
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
    fenced=st.booleans(),
)
@example(reply="\U0001f600", before={}, after={}, cuts=list(range(60)), ascii_only=True, indent=None, fenced=False)
@example(reply='"\\', before={"a": "response_text"}, after={}, cuts=[1], ascii_only=True, indent=None, fenced=True)
def test_pieces_of_a_json_answer_add_up_to_its_reply(
    reply: str,
    before: dict[str, Any],
    after: dict[str, Any],
    cuts: list[int],
    ascii_only: bool,
    indent: int | None,
    fenced: bool,
) -> None:
    """However the answer is cut, escapes and surrogate pairs included."""
    answer = json.dumps({**before, "response_text": reply, **after}, ensure_ascii=ascii_only, indent=indent)
    if fenced:
        answer = f"```json\n{answer}\n```"
    found = ReplyText(is_object=True)
    pieces = [found.feed(piece) for piece in in_pieces(answer, cuts)]
    assert "".join(pieces) == found.given == reply


@given(
    before=st.text(" \n\t", max_size=3),
    value=st.dictionaries(st.text(max_size=3), st.text("} \n", max_size=3), max_size=3),
    after=st.text(" \n\t", max_size=3),
    indent=st.sampled_from([None, 1]),
    cuts=CUTS,
)
def test_blanks_around_an_object_are_left_out_however_it_is_cut(
    before: str, value: dict[str, str], after: str, indent: int | None, cuts: list[int]
) -> None:
    blanks, text = OuterBlanks(), json.dumps(value, indent=indent)
    assert "".join([blanks.without(piece) for piece in in_pieces(before + text + after, cuts)]) == text


@given(text=st.text(max_size=60) | REPLIES, cuts=CUTS)
def test_pieces_of_any_answer_never_contradict_the_reply(text: str, cuts: list[int]) -> None:
    """What was given out is a beginning of the reply, unless the answer is broken; a listener is then told so."""
    found = ReplyText(is_object=True)
    for piece in in_pieces(text, cuts):
        found.feed(piece)
    output = read_answer(response(text), plain_text=True)
    if not isinstance(output, UnreadableAnswer) and "response_text" in output:
        assert str(output["response_text"]).startswith(found.given)
    else:
        assert "{" in text


@settings(max_examples=examples(few=8, many=200))  # the pieces are tried far more often above, without an executor
@given(reply=REPLIES, cuts=CUTS)
@ON_TRIO
async def test_what_a_listener_is_told_adds_up_to_the_reply(
    tmp_path_factory: pytest.TempPathFactory, reply: str, cuts: list[int]
) -> None:
    answer = Streamed(in_pieces(json.dumps({"response_text": reply}), cuts))
    done, updates, _ = await watch(tmp_path_factory.mktemp("stream"), answer)
    assert done.output_result == {"response_text": reply}
    assert shown(updates) == reply


@pytest.mark.parametrize(
    "text",
    [
        '{"response_text": "bad \\x escape"}',
        '{"response_text": "lone \\ud800 half"}',
        '{"response_text": "lone \\udc00 half"}',
        '{"response_text": "two \\ud800\\u0041 halves"}',
    ],
)
def test_a_broken_escape_ends_what_is_given_out(text: str) -> None:
    found = ReplyText(is_object=True)
    for piece in in_pieces(text, list(range(len(text)))):
        found.feed(piece)
    assert found.given == text.partition('"response_text": "')[2].partition("\\")[0]
