"""A session that begins with what was said elsewhere (`Runtime.begin_from`, docs/sessions.md)."""

from pathlib import Path

import pytest

from kitchener.errors import CallerError, InvalidMessage
from kitchener.runtime.portable.conversation_file import SpokenConversation, SpokenMessage
from tests.acceptance.stack import open_scripted

EARLIER = SpokenConversation(
    "chat", "a title", (SpokenMessage("user", "one", None, ""), SpokenMessage("assistant", "eins", None, ""))
)


async def test_it_knows_what_was_said_and_belongs_to_its_subject(tmp_path: Path) -> None:
    async with open_scripted(tmp_path / "root") as runtime:
        supervisor = runtime.supervisor()
        adas = await runtime.begin_from(EARLIER, subject_id="ada")
        bobs = await runtime.begin_from(EARLIER, subject_id="bob")
        await supervisor.handle_turn("two", session_id=adas, subject_id="ada")
        session = await supervisor.session(adas)
        assert [(each.user_message, each.response) async for each in session.read_history()] == [
            ("one", "eins"),
            ("two", "echo: two"),
        ]
        assert await supervisor.find_external("chat", subject_id="ada") == adas != bobs


async def test_the_same_conversation_is_the_same_session_unless_its_title_differs(tmp_path: Path) -> None:
    async with open_scripted(tmp_path / "root") as runtime:
        first = await runtime.begin_from(EARLIER, subject_id="ada")
        assert await runtime.begin_from(EARLIER, subject_id="ada") == first
        assert await runtime.begin_from(EARLIER._replace(title="another"), subject_id="ada") != first


@pytest.mark.parametrize("text", ["", "  ", "x" * 100])
async def test_a_message_that_cannot_be_recorded_begins_nothing(tmp_path: Path, text: str) -> None:
    async with open_scripted(tmp_path / "root", limits={"max_message_chars": 99}) as runtime:
        wrong = EARLIER._replace(messages=(*EARLIER.messages, SpokenMessage("user", text, None, "")))
        with pytest.raises(InvalidMessage, match="message 3"):
            await runtime.begin_from(wrong, subject_id="ada")
        with pytest.raises(CallerError):
            await runtime.begin_from(EARLIER, subject_id="kitchener-operator")
        assert await runtime.sessions() == []


async def test_the_longest_conversation_that_may_begin_a_session_goes_on(tmp_path: Path) -> None:
    """Regression: the first turn names each message in one entry, and with too many every turn failed with EntryTooLarge."""
    said = tuple(SpokenMessage("assistant" if each % 2 else "user", f"{each}", None, "") for each in range(65))
    async with open_scripted(tmp_path / "root", context_mode="enforce", ledger={"max_entry_bytes": 16_384}) as runtime:
        with pytest.raises(InvalidMessage, match="65 messages: expected at most 64"):
            await runtime.begin_from(EARLIER._replace(messages=said), subject_id="ada")
        begun = await runtime.begin_from(EARLIER._replace(messages=said[:64]), subject_id="ada")
        assert (await runtime.supervisor().handle_turn("go on", session_id=begun, subject_id="ada")).error is None
