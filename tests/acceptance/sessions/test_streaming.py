"""A turn is streamed as it happens, and the text shown at its end is the reply in the ledger."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import tool
from kitchener.errors import CallerError, ProviderError, SessionBusy, SessionEnded, TurnReplaced, TurnTimeout
from kitchener.model_usage import Usage
from kitchener.records import events
from kitchener.records.prompt import PromptRequest, PromptResponse, TextPiece
from kitchener.records.turn import (
    TextDelta,
    TextRetracted,
    ToolRan,
    TurnCompleted,
    TurnResult,
    TurnUpdate,
    WorkOrderFinished,
    WorkOrderPlanned,
)
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.conftest import OpenRuntime
from tests.acceptance.stack import QUESTION, Hold, Stack, echo, open_scripted, outcome, read_all


def shown(updates: Sequence[TurnUpdate]) -> str:
    """The text in front of a reader who obeys every update."""
    text: dict[str, str] = {}
    for update in updates:
        if isinstance(update, TextDelta):
            text[update.wo_id] = text.get(update.wo_id, "") + update.text
        elif isinstance(update, TextRetracted):
            text.pop(update.wo_id, None)
    return "".join(text.values())


async def told(runtime: Runtime, message: str = "hello", **options: Any) -> list[TurnUpdate]:
    """All updates of a turn."""
    with anyio.fail_after(10):
        return [update async for update in runtime.supervisor().stream_turn(message, **options)]


def result_of(updates: Sequence[TurnUpdate]) -> TurnResult:
    """The result that the last update brings."""
    assert isinstance(updates[-1], TurnCompleted)
    return updates[-1].result


async def test_a_stream_ends_with_the_result_that_stands_in_the_ledger(scripted: OpenRuntime) -> None:
    """Planned, finished, planned, text, finished, completed; the text adds up to the reply."""
    async with scripted(ScriptedProvider.replies("A reply of several words.")) as runtime:
        updates = await told(runtime)
        (completed,) = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_COMPLETED)
    result = result_of(updates)
    assert TurnResult.from_payload(completed.payload) == result
    assert shown(updates) == result.response == "A reply of several words."
    ids = [wo["wo_id"] for wo in result.wo_chain_summary]
    steps = [update for update in updates if not isinstance(update, TextDelta)]
    assert steps == [
        WorkOrderPlanned(ids[0], "classify"),
        WorkOrderFinished(ids[0], "classify", "completed"),
        WorkOrderPlanned(ids[1], "synthesize"),
        WorkOrderFinished(ids[1], "synthesize", "completed"),
        TurnCompleted(result),
    ]
    deltas = [update for update in updates if isinstance(update, TextDelta)]
    assert len(deltas) > 1
    assert {update.wo_id for update in deltas} == {ids[1]}


async def test_a_rejected_reply_is_taken_back(scripted: OpenRuntime) -> None:
    """A verifier rejects the first reply after it was shown: it is retracted before the second is told."""
    verdicts = ["reject", "accept"]
    replies = ["The first reply.", "The second reply."]

    def answer(request: PromptRequest) -> Any:
        if request.wo_type == "verify":
            return {"decision": verdicts.pop(0), "reason": "scripted"}
        return {"response_text": replies.pop(0)} if request.wo_type == "synthesize" else QUESTION

    async with scripted(ScriptedProvider(answer), verify_with_model=True) as runtime:
        updates = await told(runtime)
    result = result_of(updates)
    first = next(wo["wo_id"] for wo in result.wo_chain_summary if wo["wo_type"] == "synthesize")
    cut = updates.index(TextRetracted(first))
    assert shown(updates[:cut]) == "The first reply."
    assert shown(updates) == result.response == "The second reply."


class Breaking:
    """A provider whose first stream of a reply breaks in the middle."""

    def __init__(self, error: Exception) -> None:
        self._error: Exception | None = error

    async def complete(self, request: PromptRequest) -> PromptResponse:
        text = '{"speech_act": "question"}' if request.wo_type == "classify" else "It works now."
        return PromptResponse(provider_id="scripted", model_id="m", text=text, usage=Usage(1, 1))

    async def stream(self, request: PromptRequest) -> AsyncIterator[TextPiece | PromptResponse]:
        if self._error is not None:
            error, self._error = self._error, None
            yield TextPiece(1, "It breaks ")
            yield TextPiece(1, "off")
            raise error
        response = await self.complete(request)
        yield TextPiece(1, response.text)
        yield response


async def test_text_of_a_failed_attempt_is_taken_back(tmp_path: Path) -> None:
    """The provider breaks off in the middle of the reply: what was shown is void, the next attempt's text is the reply."""
    provider = Breaking(ProviderError("scripted", "connection", "broken pipe", output_begun=True))
    async with open_scripted(tmp_path, provider) as runtime:  # type: ignore[arg-type]  # any provider will do
        updates = await told(runtime)
        attempts = await read_all(runtime.ledgers().ho1m, entry_type=events.ATTEMPT_FAILED)
    assert any(isinstance(update, TextRetracted) for update in updates)
    assert shown(updates) == result_of(updates).response == "It works now."
    assert [entry.payload["output_begun"] for entry in attempts] == [True]


@pytest.mark.parametrize(
    "error", [ProviderError("scripted", "refused", "no"), RuntimeError("a bug in the provider"), ValueError("another")]
)
async def test_nothing_stays_shown_of_a_reply_that_never_came(tmp_path: Path, error: Exception) -> None:
    """The reply breaks off for good: what was shown of it is taken back, and the turn completes with an error."""
    async with open_scripted(tmp_path, Breaking(error)) as runtime:  # type: ignore[arg-type]  # any provider will do
        updates = await told(runtime)
    result = result_of(updates)
    assert shown(updates) in ("", result.response)
    assert "It breaks off" not in result.response


async def test_tools_are_told_when_they_ran(scripted: OpenRuntime) -> None:
    """Each tool of the reply's loop is told, with whether it failed, and the reply's text is the last answer's."""

    @tool(read_only=True)
    async def look(where: str) -> str:
        """Looks somewhere."""
        if where == "there":
            raise LookupError("nothing there")
        return "a chair"

    script: list[Any] = [
        QUESTION,
        use_tool("look", where="here"),
        use_tool("look", where="there"),
        {"response_text": "A chair."},
    ]
    async with scripted(ScriptedProvider(script), tools=[look]) as runtime:
        updates = await told(runtime)
    ran = [(update.tool_id, update.is_error) for update in updates if isinstance(update, ToolRan)]
    assert ran == [("look", False), ("look", True)]
    assert shown(updates) == result_of(updates).response == "A chair."


async def test_leaving_a_stream_cancels_its_turn(scripted: OpenRuntime) -> None:
    """A reader who goes away in the middle: the turn is aborted as cancelled, and the session takes the next one."""
    hold = Hold("hello", wo_type="synthesize")
    async with scripted(ScriptedProvider(echo, gate=hold)) as runtime:
        supervisor, ledger = runtime.supervisor(), runtime.ledgers().ho2m
        session_id = await supervisor.start_session()
        with anyio.fail_after(10):
            async with aclosing(supervisor.stream_turn("hello", session_id=session_id)) as stream:
                async for update in stream:
                    if isinstance(update, WorkOrderPlanned) and update.wo_type == "synthesize":
                        break
            result = await supervisor.handle_turn("next", session_id=session_id)
        assert result.response == "echo: next"
        (aborted,) = await read_all(ledger, session_id=session_id, entry_type=events.TURN_ABORTED)
        assert aborted.payload["reason"] == "cancelled"


async def test_cancelling_the_reader_cancels_its_turn(scripted: OpenRuntime) -> None:
    """The reader's task is cancelled: so is the turn, within the runtime's own task."""
    hold = Hold("hello")
    async with scripted(ScriptedProvider(echo, gate=hold)) as runtime:
        session_id = await runtime.supervisor().start_session()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:

                async def read() -> None:
                    await told(runtime, session_id=session_id)

                tasks.start_soon(read)
                await hold.arrived["hello"].wait()
                tasks.cancel_scope.cancel()
            result = await runtime.supervisor().handle_turn("next", session_id=session_id)
        assert result.turn_id.endswith("-000002")
        (aborted,) = await read_all(runtime.ledgers().ho2m, session_id=session_id, entry_type=events.TURN_ABORTED)
        assert aborted.payload["reason"] == "cancelled"


async def test_a_stream_raises_what_handle_turn_would(scripted: OpenRuntime) -> None:
    """Busy, ended, late: the reader gets the same error that a plain call gets."""
    hold = Hold("held")
    async with scripted(ScriptedProvider(echo, gate=hold), overlap_policy="reject") as runtime:
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:

                async def run() -> None:
                    await supervisor.handle_turn("held", session_id=session_id)

                tasks.start_soon(run)
                await hold.arrived["held"].wait()
                with pytest.raises(SessionBusy):
                    await told(runtime, session_id=session_id)
                hold.released["held"].set()
        hold.released["held"] = anyio.Event()
        with pytest.raises(TurnTimeout):
            await told(runtime, "held", session_id=session_id, deadline=0.05)
        await supervisor.end_session(session_id)
        with pytest.raises(SessionEnded):
            await told(runtime, session_id=session_id)


async def test_a_replaced_stream_ends_with_turn_replaced(scripted: OpenRuntime) -> None:
    """A newer message replaces a streamed turn: its reader is told so."""
    hold = Hold("one")
    async with scripted(ScriptedProvider(echo, gate=hold), overlap_policy="replace") as runtime:
        session_id = await runtime.supervisor().start_session()
        caught: list[Exception] = []

        async def read() -> None:
            try:
                await told(runtime, "one", session_id=session_id)
            except TurnReplaced as error:
                caught.append(error)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await hold.arrived["one"].wait()
                assert shown(await told(runtime, "two", session_id=session_id)) == "echo: two"
        assert len(caught) == 1


async def test_a_slow_reader_holds_the_turn_back_and_loses_nothing(scripted: OpenRuntime) -> None:
    """With a buffer of one update a reader who stops reading stops the turn; when it goes on, every update comes."""
    reply = " ".join(f"word{n}" for n in range(60))
    async with scripted(ScriptedProvider.replies(reply), limits={"stream_buffer": 1}) as runtime:
        updates: list[TurnUpdate] = []
        with anyio.fail_after(10):
            async for update in runtime.supervisor().stream_turn("hello"):
                updates.append(update)
                if len(updates) == 10:  # in the middle of the text
                    await anyio.wait_all_tasks_blocked()
                    assert await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_COMPLETED) == []
        assert shown(updates) == result_of(updates).response == reply


async def test_a_stream_answers_a_repeated_key_from_the_ledger(runtime: Runtime) -> None:
    """The finished turn of a key is told in one update: its result."""
    first = await runtime.supervisor().handle_turn("hello", subject_id="ada", idempotency_key="k1")
    assert await told(runtime, subject_id="ada", idempotency_key="k1") == [TurnCompleted(first)]


async def test_streaming_needs_a_runtime(stack: Stack) -> None:
    """A supervisor assembled by hand has no task group for it, and says what has."""
    with pytest.raises(CallerError, match="open_runtime"):
        [update async for update in stack.supervisor.stream_turn("hello")]
    result = await outcome(stack.supervisor.handle_turn("hello"))
    assert isinstance(result, TurnResult)
