"""A subject's turns that may be recalled: a limit on what is in memory, and the same turns however they are read."""

import gc
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Any
from weakref import ref

import anyio
import pytest

from kitchener import FilePart, ImagePart, replay_session
from kitchener.actors.authority import authority
from kitchener.actors.authority.subject_turns import SubjectTurns, SubjectView
from kitchener.context import Ruleset
from kitchener.runtime import Runtime
from tests.acceptance.replies.content_kit import ADA, BO, PDF, config, model, png, replies, running
from tests.acceptance.stack import open_scripted
from tests.shared.event_loops import ON_ASYNCIO, ON_TRIO


async def talk(runtime: Runtime, sessions: int, turns: int) -> list[int]:
    """Lets ada speak in several sessions; where HO2m ended after each turn."""
    ends = []
    for session in range(sessions):
        session_id = await runtime.supervisor().start_session(subject_id="ada")
        for turn in range(turns):
            await runtime.supervisor().handle_turn(f"{session} {turn} {'word ' * 20}", session_id=session_id)
            ends.append(runtime.ledgers().ho2m.head()[0])
    return ends


def ids(view: SubjectView) -> list[str]:
    """What is in memory of a subject."""
    return [item.entity_id for item in view.words.turns]


async def test_one_subject_has_no_more_in_memory_than_all_may_have_and_keeps_the_same_turns(tmp_path: Path) -> None:
    """Read at once, or as turns complete: the first turns up to the limit are known, and a later view knows no fewer."""
    async with open_scripted(tmp_path) as runtime:
        ends = await talk(runtime, 3, 4)
        ledgers = runtime.ledgers()
        whole = await SubjectTurns(ledgers, len, Ruleset()).of("ada", ends[-1])
        assert whole.known == 12
        size = len(whole.words.turns[0].text)
        limit = 500 + 5 * (size + 250) + size // 2  # a subject and each turn count besides their text

        at_once = await SubjectTurns(ledgers, len, Ruleset(), max_chars=limit).of("ada", ends[-1])
        assert at_once.known == 5
        turns = SubjectTurns(ledgers, len, Ruleset(), max_chars=limit)
        step_by_step = [await turns.of("ada", end) for end in ends]
        assert [view.known for view in step_by_step] == [1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5, 5]
        assert ids(step_by_step[-1]) == ids(at_once) == ids(whole)[:5]
        assert sum(len(item.text) for item in step_by_step[-1].words.turns) <= limit


@ON_ASYNCIO
async def test_subjects_without_turns_are_evicted_too(tmp_path: Path) -> None:
    """A subject takes memory before it says anything, so the number of subjects is bounded by the same limit."""
    async with open_scripted(tmp_path) as runtime:
        (end,) = await talk(runtime, 1, 1)
        turns = SubjectTurns(runtime.ledgers(), len, Ruleset(), max_chars=10_000)
        seen = [ref((await turns.of(f"subject {number}", end)).words) for number in range(100)]
        gc.collect()
        assert 1 < sum(each() is not None for each in seen) <= 20
        assert (await turns.of("ada", end)).known == 1


async def test_a_subject_who_said_much_evicts_nobody_else(tmp_path: Path) -> None:
    """Regression: her turns filled the cache, and whenever she spoke, the turns of all others had to be read again."""
    async with open_scripted(tmp_path) as runtime:
        for subject in ("bo", "cleo"):
            await runtime.supervisor().handle_turn("hello", subject_id=subject)
        ends = await talk(runtime, 3, 4)
        ledgers = runtime.ledgers()
        size = len((await SubjectTurns(ledgers, len, Ruleset()).of("ada", ends[-1])).words.turns[0].text)
        turns = SubjectTurns(ledgers, len, Ruleset(), max_chars=500 + 12 * (size + 250))
        others = {subject: (await turns.of(subject, ends[-1])).words for subject in ("bo", "cleo")}
        for _ in range(3):
            assert (await turns.of("ada", ends[-1])).known == 12  # she is read each time, and all that she said is known
            assert {subject: (await turns.of(subject, ends[-1])).words for subject in others} == others


async def test_an_idle_session_keeps_nothing_that_was_evicted(tmp_path: Path) -> None:
    """Recall across a subject's sessions reads an index that the sessions share; none of them keeps it alive alone."""
    async with open_scripted(tmp_path, context_mode="enforce", recall_scope="subject") as runtime:
        await talk(runtime, 2, 2)
        session_id = await runtime.supervisor().start_session(subject_id="ada")
        await runtime.supervisor().handle_turn("1 1 word", session_id=session_id)
        thread = (await runtime.supervisor().session(session_id)).thread
        assert thread is not None
        assert thread.ranking.words.turns == []


@ON_ASYNCIO
async def test_a_long_history_is_read_in_parts_and_whole(tmp_path: Path) -> None:
    async with open_scripted(tmp_path) as runtime:
        ends = await talk(runtime, 2, 150)
        view = await SubjectTurns(runtime.ledgers(), len, Ruleset()).of("ada", ends[-1])
        assert view.known == 300
        assert [item.place for item in view.words.turns] == sorted(item.place for item in view.words.turns)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[SubjectTurns]:
    """The subjects' turns of each agent class that is opened."""
    found: list[SubjectTurns] = []

    class Noted(SubjectTurns):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self)

    monkeypatch.setattr(authority, "SubjectTurns", Noted)
    return found


def told(view: SubjectView) -> list[tuple[str, ...]]:
    """What of a subject's turns can reach a prompt or a record."""
    return [(item.entity_id, *item.ref, *item.place, item.text, item.stub, item.session_id or "") for item in view.words.turns]


async def test_turns_that_are_handed_over_are_those_that_would_be_read(tmp_path: Path, made: list[SubjectTurns]) -> None:
    """Two sessions of each of two subjects, one turn after the other: in memory is what a new reader finds in HO2m."""
    async with open_scripted(tmp_path, context_mode="enforce", recall_scope="subject") as runtime:
        supervisor = runtime.supervisor()
        (turns,) = made
        sessions = [await supervisor.start_session(subject_id=subject) for subject in ("ada", "bea") * 2]
        for number in range(3):
            for session_id in sessions:
                await supervisor.handle_turn(f"Message {number} of {session_id}.\nassistant: no.", session_id=session_id)
        end = runtime.ledgers().ho2m.position
        for subject in ("ada", "bea"):
            handed = await turns.of(subject, end)
            turns.forget(subject)
            read = await turns.of(subject, end)
            assert handed is not read
            assert told(handed) == told(read)
            assert handed.known == read.known == 12


@ON_TRIO
async def test_a_message_with_an_image_is_recalled_alike_from_memory_and_after_its_eviction(
    tmp_path: Path, made: list[SubjectTurns]
) -> None:
    """Two subjects say the same; the turns of one are evicted before the question. Both see the same, and it replays."""
    settings, provider = config(tmp_path, recall_scope="subject"), model()
    async with running(settings, provider) as runtime:
        supervisor, asked = runtime.supervisor(), list[str]()
        (turns,) = made
        for subject in (ADA, BO):
            await supervisor.handle_turn("hello", subject_id=subject)
            await turns.of(subject, runtime.ledgers().ho2m.position)  # what comes now is handed over
            images = [ImagePart(png(), name="boat.png"), FilePart(PDF, name=f"log of {subject}.pdf")]
            await supervisor.handle_turn("My boat in the harbour", subject_id=subject, parts=images)
        end = runtime.ledgers().ho2m.position
        for subject in (ADA, BO):
            handed = told(await turns.of(subject, end))
            if subject == BO:
                turns.forget(subject)
            assert told(await turns.of(subject, end)) == handed
            result = await supervisor.handle_turn("where is my boat?", subject_id=subject)
            asked.append(result.session_id)
    said = ["\n".join(each.content for each in request.messages) for request in replies(provider)[-2:]]
    hers, his = (re.sub(r"data-[0-9a-f]{16}", "data", text) for text in said)  # a fence's mark depends on what it holds
    assert "log of ada.pdf" in hers
    assert "boat.png" in hers
    assert hers.replace("log of ada", "log of bo") == his
    for session_id in asked:
        assert (await replay_session(session_id, config=settings)).divergence is None


async def test_a_turn_that_completes_during_a_read_is_known_afterwards(tmp_path: Path) -> None:
    """It is not noted twice, and not lost: the next view reads it."""
    async with open_scripted(tmp_path) as runtime:
        (end,) = await talk(runtime, 1, 1)
        turns = SubjectTurns(runtime.ledgers(), len, Ruleset())
        early = turns.of("ada", end)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_await, early)
            tasks.start_soon(_announce_another, runtime, turns)
        last = runtime.ledgers().ho2m.position
        assert (await turns.of("ada", last)).known == 2


async def _await(view: Awaitable[SubjectView]) -> None:
    assert (await view).known == 1


async def _announce_another(runtime: Runtime, turns: SubjectTurns) -> None:
    await talk(runtime, 1, 1)
    turns.completed("ada", "T-unknown", (None, None))


async def test_a_turn_of_a_running_session_costs_no_read_of_its_subject(tmp_path: Path, made: list[SubjectTurns]) -> None:
    """A subject's turns are read once; every later turn of the process is handed over."""
    async with open_scripted(tmp_path, context_mode="enforce", recall_scope="subject") as runtime:
        await talk(runtime, 2, 3)
        (turns,), end = made, runtime.ledgers().ho2m.position
        view = turns.of("ada", end)
        with pytest.raises(StopIteration) as found:  # it ends without waiting for anything
            view.send(None)
        assert found.value.value.known == 12


async def test_during_an_import_a_subjects_turns_are_read(tmp_path: Path) -> None:
    """What an import writes is nowhere handed over, so each view reads up to its position until no import goes on."""
    async with open_scripted(tmp_path) as runtime:
        (end,) = await talk(runtime, 1, 1)
        turns = SubjectTurns(runtime.ledgers(), len, Ruleset())
        assert (await turns.of("ada", end)).known == 1
        with turns.importing("ada"):
            with turns.importing("ada"):
                for known in (2, 3):
                    (end,) = await talk(runtime, 1, 1)
                    assert (await turns.of("ada", end)).known == known
            (end,) = await talk(runtime, 1, 1)
            assert (await turns.of("ada", end)).known == 4
            (end,) = await talk(runtime, 1, 1)
        assert (await turns.of("ada", end)).known == 5


async def test_after_an_import_only_what_it_wrote_is_read(tmp_path: Path) -> None:
    """Regression: all turns of the subject were read and indexed again, so that each edit of a short chat cost seconds."""
    async with open_scripted(tmp_path) as runtime:
        (end,) = await talk(runtime, 1, 1)
        turns = SubjectTurns(runtime.ledgers(), len, Ruleset())
        before = await turns.of("ada", end)
        with turns.importing("ada"):
            (end,) = await talk(runtime, 1, 1)
        after = await turns.of("ada", end)
        assert after.words is before.words
        assert ids(after) == ids(await SubjectTurns(runtime.ledgers(), len, Ruleset()).of("ada", end))
        assert after.known == 2
