"""What is about a message is recalled from other sessions; what only has a common word in it is not."""

from pathlib import Path

import pytest

from kitchener import Runtime, replay_session
from kitchener.actors.authority.ranking import TurnWords
from kitchener.context import estimator, evidence_item
from kitchener.context.lexical.turn_index import LexicalIndex, LexicalTurn
from kitchener.records.ref import Ref
from tests.acceptance.replies.content_kit import ADA, BO, config, model, replies, running
from tests.shared.event_loops import ON_ASYNCIO

TALK = tuple(
    f"{name} had {what} {when} in town"
    for name in ("Hilda", "Oskar", "Petra", "Ruben", "Selma", "Timo", "Ursula", "Viktor")
    for what, when in (("pancakes", "this time"), ("a bicycle", "last week"), ("visitors", "a long time"), ("rain", "all day"))
)
SUM = "What is 17 times 23?"
AGED = "My sister is 23"


async def tell(runtime: Runtime, subject: str, *messages: str) -> None:
    """Says something in a session of its own."""
    session_id = await runtime.supervisor().start_session(subject_id=subject)
    for message in messages:
        await runtime.supervisor().handle_turn(message, session_id=session_id)


@ON_ASYNCIO
async def test_a_message_about_nothing_that_was_said_shows_nothing_of_other_sessions(tmp_path: Path) -> None:
    """Two subjects with the same long history, of whom one spoke about the sum, and the other one of a number in it.

    A related message shows what it is about.
    """
    settings, provider = config(tmp_path, recall_scope="subject"), model()
    seen, sessions = dict[tuple[str, str], str](), list[str]()
    async with running(settings, provider) as runtime:
        await tell(runtime, ADA, *TALK, AGED)
        await tell(runtime, BO, *TALK, "My teacher asked for 17 times 23")
        for subject in (ADA, BO):
            for message in (SUM, "Who had the pancakes, Selma?"):
                sessions.append((await runtime.supervisor().handle_turn(message, subject_id=subject)).session_id)
                seen[subject, message] = "\n".join(each.content for each in replies(provider)[-1].messages)
    assert not [text for text in (*TALK, AGED) if text in seen[ADA, SUM]]
    assert "My teacher asked for 17 times 23" in seen[BO, SUM]
    for subject in (ADA, BO):
        assert "Selma had pancakes this time" in seen[subject, "Who had the pancakes, Selma?"]
    for session_id in sessions:
        assert (await replay_session(session_id, config=settings)).divergence is None


def about(question: str, *texts: str) -> list[str]:
    """Those of some texts and of `TALK` that are about a question, best first."""
    words, estimate = TurnWords(4_096, 150), estimator("chars/4")
    for number, text in enumerate((*TALK, *texts)):
        ref = Ref("HO2M", f"E-{number}", "")
        words.note(evidence_item(str(number), ref, "2026-02-18T09:00:00+00:00", text, estimate, session_id="SES-1"))
    ranked = words.rank(question, 10, len(words.turns))
    return [words.turns[number].text for number, is_related in words.matched(ranked) if is_related]


def test_a_long_message_is_about_what_it_shares_a_few_words_with() -> None:
    """A text need not have a share of all words of a long message, only as many as a short one would ask for."""
    essay = " ".join(f"subject{number}" for number in range(18))
    boat = "The varnish of the wooden dinghy peels near the rudder and the anchor"
    assert about(f"varnish dinghy rudder anchor {essay}", boat)[:1] == [boat]
    assert about(f"time town {essay}", boat) == []


@pytest.mark.parametrize("question", ["What happened on 18 February 2026 in town?", "town", "time in town"])
def test_a_day_and_a_message_of_known_words_are_about_something(question: str) -> None:
    assert about(question)


def test_without_turns_or_words_nothing_is_about_a_message() -> None:
    turns = [LexicalTurn(text, "s") for text in TALK]
    for question in ("", "?!", "and the of", "zzz"):
        ranked = LexicalIndex(turns).rank(question)
        assert not ranked.matched, question
    assert LexicalIndex([]).rank("town").order == []
