"""What the ledgers tell of a prompt's beginning is what a provider received."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from kitchener import tool
from kitchener.gateway.providers.offline import OfflineProvider
from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.records.tools.client_tools import ClientTool
from kitchener.runtime.root_layout import open_readers, sealer_of
from kitchener.testing import ScriptedProvider
from kitchener.tuning import BreakCause, read_prefixes, session_breaks
from tests.acceptance.stack import open_scripted, scripted_config

WORDS = "It is on the north side of the harbour, a short walk from the station, and it opens at nine every day but Monday. "
TALK = (
    "Hello!",
    "Find me a hotel near the harbour, please.",
    "How much is a room there?",
    "Is breakfast part of that?",
    "Thanks!",
    "Now something else: book me a taxi to the airport.",
    "When does it arrive?",
    "Could it come earlier?",
)
LONG = tuple(f"And what about place number {n}? I would like to know all of it." for n in range(14))


@tool(read_only=True)
def timetable(place: str) -> str:
    """Gives the times of a place."""
    return f"{place}: nine to five"


class Model:
    """Classifies as the offline model does, gives replies of a natural length, and keeps the requests for replies."""

    def __init__(self) -> None:
        self.asked: list[PromptRequest] = []
        self._rules = OfflineProvider()

    async def answer(self, request: PromptRequest) -> PromptResponse | Mapping[str, object] | str:
        if request.wo_type == "classify":
            return await self._rules.complete(request)
        self.asked.append(request)
        reply = WORDS * 2
        return {"response_text": reply} if request.output_schema is not None else reply


async def talk(root: Path, llm: Model, said: tuple[str, ...], session_id: str | None = None, **settings: Any) -> str:
    async with open_scripted(root, ScriptedProvider(llm.answer), tools=[timetable], **settings) as runtime:
        supervisor = runtime.supervisor()
        session_id = session_id or await supervisor.start_session(subject_id="ada")
        for message in said:
            result = await supervisor.handle_turn(message, session_id=session_id)
            assert result.error is None
    return session_id


async def breaks_of(root: Path, session_id: str, **settings: Any) -> list[tuple[BreakCause, ...]]:
    config = scripted_config(root, **settings)
    async with open_readers(config, "ADMIN", sealer=sealer_of(config)) as readers:
        return list(session_breaks(await read_prefixes(readers, session_id)).values())


def goes_on(before: PromptRequest, now: PromptRequest) -> bool:
    """Whether a request begins with all messages of the one before but its last, after the same tools."""
    stable = before.messages[:-1]
    return before.tools == now.tools and now.messages[: len(stable)] == stable


@pytest.mark.parametrize("said", [TALK, LONG], ids=["intents", "evictions"])
@pytest.mark.parametrize("intent_mode", ["bridge", "classified"])
async def test_a_break_is_on_record_exactly_where_the_request_begins_differently(
    said: tuple[str, ...], intent_mode: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"context_mode": "enforce", "intent_mode": intent_mode, "context_budget": 600}
    model = Model()
    found = await breaks_of(tmp_path / "root", await talk(tmp_path / "root", model, said, **settings), **settings)
    assert [causes == () for causes in found] == [goes_on(*pair) for pair in pairwise(model.asked)]
    if said is LONG:
        assert () in found[found.index(("evicted",)) :], "between two evictions messages are only appended"


async def test_changed_settings_are_told_by_what_they_changed(tmp_path: Path) -> None:
    """A setting that no prompt has, such as a deadline, breaks nothing."""
    base: dict[str, Any] = {"context_mode": "enforce", "instructions": "Be brief."}
    changes: list[dict[str, Any]] = [
        {},
        {"turn_deadline_s": 60.0},
        {"instructions": "Be kind."},
        {"standing_rules": ("Never guess.",)},
        {"model": "scripted-2"},
        {"admin_tools": ()},
        {"prompt_layout": "block"},
    ]
    model, session_id, settings = Model(), None, base
    for changed in changes:
        settings = {**settings, **changed}
        session_id = await talk(tmp_path / "root", model, ("Where is it?",), session_id, **settings)
    assert session_id is not None
    assert await breaks_of(tmp_path / "root", session_id) == [
        (),
        ("instructions",),
        ("instructions",),
        ("model",),
        ("tools",),
        ("layout",),
    ]


async def test_sealed_sources_whose_key_is_not_at_hand_tell_only_that_something_changed(tmp_path: Path) -> None:
    """The hash of the configuration is not sealed; which part of it changed cannot be read."""
    model = Model()
    session_id = await talk(tmp_path / "root", model, ("Where is it?",), instructions="Be brief.")
    await talk(tmp_path / "root", model, ("Where is it?",), session_id, instructions="Be brief.", turn_deadline_s=60.0)
    assert await breaks_of(tmp_path / "root", session_id) == [()]
    async with open_readers(scripted_config(tmp_path / "root"), "ADMIN") as readers:
        assert list(session_breaks(await read_prefixes(readers, session_id)).values()) == [("settings",)]


async def test_without_a_projection_what_comes_before_the_history_is_compared(tmp_path: Path) -> None:
    model = Model()
    session_id = await talk(tmp_path / "root", model, ("Where is it?",) * 2, instructions="Be brief.")
    await talk(tmp_path / "root", model, ("Where is it?",), session_id, instructions="Be kind.")
    assert await breaks_of(tmp_path / "root", session_id) == [(), ("instructions",)]
    async with open_readers(scripted_config(tmp_path / "root"), "ADMIN") as readers:
        assert await read_prefixes({"ho2m": readers["ho2m"]}, session_id) == []


class Trip(BaseModel):
    city: str


def trip_or_text(request: PromptRequest) -> Mapping[str, object] | str:
    return {"city": "Oslo"} if request.output_schema is not None else "In Oslo."


async def test_another_form_of_the_reply_and_other_tools_of_the_caller_are_told(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = [{}, {"output": Trip}, {"output": Trip}, {}, {"client_tools": [ClientTool("look")]}]
    settings: dict[str, Any] = {"context_mode": "enforce", "classify": "off"}
    async with open_scripted(tmp_path, ScriptedProvider(trip_or_text), tools=[timetable], **settings) as runtime:
        session_id = await runtime.supervisor().start_session(subject_id="ada")
        for options in said:
            result = await runtime.supervisor().handle_turn("Where is it?", session_id=session_id, **options)
            assert result.error is None
    assert await breaks_of(tmp_path, session_id, **settings) == [("output",), (), ("output",), ("tools",)]


async def test_messages_of_all_intents_are_evicted_only_where_there_is_no_room(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"context_mode": "enforce", "intent_mode": "classified", "context_budget": 1_000}
    found = await breaks_of(tmp_path, await talk(tmp_path, Model(), TALK * 6, **settings), **settings)
    assert {each for causes in found for each in causes} - {"tools"} == {"evicted"}


async def test_messages_of_another_intent_leave_although_there_is_room(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"context_mode": "enforce", "intent_mode": "classified", "recent_turns": 2}
    found = await breaks_of(tmp_path, await talk(tmp_path, Model(), TALK * 2, **settings), **settings)
    causes = {each for causes in found for each in causes}
    assert "left" in causes
    assert "evicted" not in causes
