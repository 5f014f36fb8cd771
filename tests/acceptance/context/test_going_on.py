"""A conversation continues: replies close nothing, messages reopen intents that messages closed, and the newest turns stay
visible."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from kitchener import tool
from kitchener.cli.config.init import settings_text
from kitchener.config import HO2Config
from kitchener.records import events
from kitchener.records.prompt import PromptRequest, ToolUse
from kitchener.replaying import replay_session
from kitchener.runtime.loading import load_config
from kitchener.testing import FakeClock, ScriptedProvider
from tests.acceptance.context.context_kit import ENFORCE, SID, Talk, actions, parts_of, talk, talking
from tests.acceptance.stack import open_scripted, scripted_config
from tests.shared.payloads import payload_of

REOPEN: Final[Mapping[str, Any]] = {**ENFORCE, "continue_after_close": "reopen"}


async def check_replay(root: Path, **settings: Any) -> None:
    """The session replays as it was."""
    report = await replay_session(SID, config=scripted_config(root, **settings))
    assert report.is_identical, report.text()


async def test_message_that_continues_reopens_what_a_message_closed(tmp_path: Path) -> None:
    async with talking(tmp_path, **REOPEN) as ada:
        first = await ada.say("apples", "[close] that is all")
        again = await ada.say("and the red ones?")
        assert again.intent_id == first.intent_id
        assert "echo: apples" in ada.text()
        assert actions(await ada.intents()) == ["DECLARED", "CLOSED", "REOPENED"]
        assert (await ada.intents())[1].payload["closed_by"] == "classification"
        assert await ada.kept() == (await ada.state()).snapshot()
    await check_replay(tmp_path, **REOPEN)


@pytest.mark.parametrize("ending", ["close", "abandon"])
async def test_what_the_user_ended_is_not_reopened(tmp_path: Path, ending: str) -> None:
    async with talking(tmp_path, **REOPEN) as ada:
        first = (await ada.say("apples")).intent_id
        assert first is not None
        await (ada.supervisor.close_intent if ending == "close" else ada.supervisor.abandon_intent)(SID, first, "enough")
        assert (await ada.say("and now?")).intent_id != first
        assert "apples" not in ada.text()


async def test_newest_turns_are_shown_whatever_their_intent(tmp_path: Path) -> None:
    """They are never eligible, which the record says, and those of another subject are not among them."""
    settings = {**ENFORCE, "recent_turns": 3}
    async with talking(tmp_path, **settings) as ada:
        await ada.start("SES-0000000c", "eve")
        await ada.say("the secret of eve", session_id="SES-0000000c")
        await ada.say("one", "two", "three", "four", "[switch] museums")
        assert [each in ada.text() for each in ("echo: one", "echo: two", "echo: three", "echo: four")] == [False, *[True] * 3]
        assert "eve" not in ada.text()
        shown = await ada.lists()
        recent = {key.partition("/")[2] for key, why in shown.reasons.items() if why == ("RECENT",)}
        assert len(recent) == 6  # a message and a reply each
        assert not recent & {ref.entry_id for ref in shown.eligible}
        await ada.say("a b", "c d", "e f")
        assert "echo: four" not in ada.text(), "three newer ones belong to the intent"
        assert await ada.kept() == (await ada.state()).snapshot()
    await check_replay(tmp_path, **settings)


async def test_newest_turns_keep_to_the_budget(tmp_path: Path) -> None:
    settings = {**ENFORCE, "recent_turns": 6, "context_budget": 120}
    async with talking(tmp_path, **settings) as ada:
        await ada.say(*[f"{n} {'word ' * 30}" for n in range(7)], "[switch] museums")
        shown = (await ada.decisions(events.PROJECTION_COMPUTED))[-1]
        assert payload_of(shown)["tokens_used"] <= 120
        assert {reason for _, reason in (await ada.lists()).suppressed} == {"BUDGET_EVICTION"}
    await check_replay(tmp_path, **settings)


@tool(closes_intent=True)
def book(hotel: str) -> str:
    """Books a hotel."""
    if hotel == "none":
        raise ValueError("there is none")
    return f"booked {hotel}"


def booking(request: PromptRequest) -> Any:
    """Calls the tool if the message says so."""
    word, text = parts_of(request.variables["user_message"])
    if request.wo_type == "synthesize" and word == "book" and not any(each.role == "tool" for each in request.messages):
        return (ToolUse("use-1", "book", {"hotel": text}),)
    return talk(request)


async def test_tool_whose_declaration_permits_it_closes_the_intent(tmp_path: Path) -> None:
    """A call that failed closes nothing, and what a tool closed no message reopens."""
    provider, clock = ScriptedProvider(booking), FakeClock()
    async with open_scripted(tmp_path, provider, clock=clock, tools=[book], **REOPEN) as runtime:
        ada = Talk(runtime, provider, clock)
        await ada.start()
        await ada.say("hotels", "[book] none")
        assert actions(await ada.intents()) == ["DECLARED"]
        first = await ada.say("[book] Fjord")
        assert actions(await ada.intents()) == ["DECLARED", "CLOSED"]
        assert (await ada.intents())[-1].payload["closed_by"] == "tool"
        assert (await ada.say("and now?")).intent_id != first.intent_id
    report = await replay_session(SID, config=scripted_config(tmp_path, tools=("*",), **REOPEN), tools=[book])
    assert report.is_identical, report.text()


async def test_file_that_init_writes_lets_a_conversation_go_on(tmp_path: Path) -> None:
    """Its bot forgets nothing when a model says that a goal is reached, or a message is taken for the last one."""
    (tmp_path / "kitchener.toml").write_text(settings_text())
    agent: HO2Config = load_config(tmp_path / "kitchener.toml").config.agents["ADMIN"]
    settings = {name: getattr(agent, name) for name in agent.model_fields_set - {"tools", "agent_class", "ho3_enabled"}}
    async with talking(tmp_path, **settings) as ada:
        first = await ada.say("apples", "[done] all eaten", "[close] that is all")
        assert (await ada.say("and then?")).intent_id == first.intent_id
        assert "echo: apples" in ada.text()
        assert "echo: all eaten" in ada.text()
