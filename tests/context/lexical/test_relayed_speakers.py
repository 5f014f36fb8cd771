"""A name before what is said is its speaker, in a talk that a program relays; a heading before a message is none."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.actors.authority.ranking import TurnWords
from kitchener.context import evidence_item
from kitchener.context.lexical.relayed_speakers import MAX_NAMES, RelayedNames, name_before
from tests.context.history import ESTIMATE, entry_ref

EARLIER = "2026-02-10T09:00:00.000000+00:00"


def speakers(*texts: str, session: str = "s", side: str = "user") -> list[str | None]:
    names = RelayedNames()
    return [names.speaker(session, side, text) for text in texts]


def test_a_name_counts_from_its_second_message() -> None:
    assert speakers("Ada: hello", "Ada: and now?", "Ada: well") == [None, "Ada", "Ada"]


def test_several_may_speak_on_one_side() -> None:
    assert speakers("Ada: one", "Bo: two", "Ada: three", "Bo: four") == [None, None, "Ada", "Bo"]


def test_a_heading_before_few_messages_is_no_name() -> None:
    texts = ["hello", "how are you?", "Recipe: eggs", "thanks", "so", "Recipe: flour", "well", "Recipe: milk"]
    assert speakers(*texts) == [None] * 8


def test_a_known_name_counts_in_the_first_message_of_a_session() -> None:
    names = RelayedNames()
    told = [names.speaker(session, "user", "Ada: hello") for session in ("one", "one", "two")]
    assert told == [None, "Ada", "Ada"]


def test_so_many_names_at_most() -> None:
    texts = [f"Ada{number}: hello" for number in range(MAX_NAMES + 1)]
    assert speakers(*texts, *texts)[-2:] == [f"Ada{MAX_NAMES - 1}", None]


def test_each_side_and_each_session_is_judged_alone() -> None:
    names = RelayedNames()
    for session in ("one", "two"):
        for _ in range(3):
            names.speaker(session, "user", "Ada: hello")
            assert names.speaker(session, "assistant", "hello") is None
    assert names.speaker("one", "assistant", "Ada: hello") is None  # one of four
    assert names.speaker("three", "assistant", "Ada: hello") == "Ada"


@pytest.mark.parametrize("name", ["Ada", "Ada Lovelace", "Jean-Luc", "O'Neil", "Dr. Ada B. Byron", "Émile", "Ада", "李明"])
def test_names_of_any_script(name: str) -> None:
    assert name_before(f"{name}: hello") == name if name.count(" ") < 3 else name_before(f"{name}: hello") is None


@pytest.mark.parametrize(
    "text", ["", "hello", "see: that", "12: noon", "Ada:hello", "Ada and I: hello", "So I said\nAda: hello", "A" * 99 + ": b"]
)
def test_what_is_no_name(text: str) -> None:
    assert name_before(text) is None


@given(st.text(max_size=80))
def test_a_name_is_the_start_of_its_text(text: str) -> None:
    name = name_before(text)
    assert name is None or text.startswith(f"{name}: ")


def order(messages: Sequence[str], question: str, *, reads_names: bool) -> list[str]:
    """The messages as they rank, each said in a session of its own."""
    words = TurnWords(1_024, 200, 1.3, reads_names=reads_names)
    for number, text in enumerate(messages):
        session_id = f"SES-{number}"
        words.note(
            evidence_item(f"T-{number}", entry_ref(number + 1), EARLIER, f"user: {text}", ESTIMATE, session_id=session_id)
        )
    return [words.said(number) for number in words.rank(question, 10, len(messages)).numbers]


def test_what_a_named_speaker_said_ranks_first() -> None:
    """Ada is named in both; what she says herself is what is asked for."""
    messages = ["Ada: hello", "Bo: hello", "Ada: the flute is mine", "Bo: Ada, the flute of Ada"]
    assert order(messages, "What did Ada say of a flute?", reads_names=True)[0] == "Ada: the flute is mine"
    assert order(messages, "What did Ada say of a flute?", reads_names=False)[0] == "Bo: Ada, the flute of Ada"


def test_an_index_that_was_released_ranks_the_same() -> None:
    words = TurnWords(1_024, 200, 1.3, reads_names=True)
    for number, text in enumerate(["Ada: hello", "Bo: hello", "Ada: the flute is mine", "Bo: Ada, the flute of Ada"]):
        words.note(evidence_item(f"T-{number}", entry_ref(number + 1), EARLIER, f"user: {text}", ESTIMATE, session_id="s"))
    first = words.rank("What did Ada say of a flute?", 10, 4)
    words.release()
    assert words.rank("What did Ada say of a flute?", 10, 4) == first
