"""Turns that are ranked by vectors as well as by words: what a user sees, what is on record, and what a failure costs."""

import json
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.actors.similarity.vector_store import FILE
from kitchener.config import RuntimeConfig
from kitchener.records.embedding import Similarity
from kitchener.replaying import replay_session
from kitchener.runtime import erase_subject, import_conversations
from tests.actors.similarity.kit import (
    CHATTER,
    DOG,
    QUESTION,
    Meanings,
    config,
    opened,
    projections,
    read_projection,
    say,
    shown,
    similarities,
    vector,
)
from tests.actors.time_control import in_stopped_time, pass_time
from tests.shared.logs import captured_logs
from tests.shared.payloads import payload_of


async def test_a_message_finds_what_was_said_in_other_words(tmp_path: Path) -> None:
    """The same conversation with and without vectors, and a weight of nothing, which is as without."""
    seen = {}
    for name, embeddings, weight in (("with", Meanings(), 0.15), ("without", None, 0.15), ("weightless", Meanings(), 0.0)):
        async with opened(config(tmp_path / name, weight=weight), embeddings) as runtime:
            session_id = await say(runtime, DOG, *CHATTER, QUESTION)
            seen[name] = "terrier" in await shown(runtime, session_id)
    assert seen == {"with": True, "without": False, "weightless": False}


async def test_without_numpy_the_newest_texts_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that brings its own vectors needs no further package; the log says what is missing."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(sys.modules, "kitchener.actors.similarity.matrix", raising=False)
    with captured_logs() as logs:
        async with opened(config(tmp_path), Meanings()) as runtime:
            session_id = await say(runtime, DOG, *CHATTER, QUESTION)
            assert "terrier" in await shown(runtime, session_id)
    assert [each["remedy"] for each in logs if each.get("problem") == "numpy is missing"] == ["install kitchener[embeddings]"]


async def test_other_sessions_of_the_subject_are_found_and_those_of_others_are_not(tmp_path: Path) -> None:
    async with opened(config(tmp_path), Meanings()) as runtime:
        await say(runtime, "Our terrier is called Bello.", *CHATTER[:2], subject_id="bo")
        await say(runtime, DOG, *CHATTER[:2])
        session_id = await say(runtime, *CHATTER[2:4], QUESTION)
        text = await shown(runtime, session_id)
    assert "Rex" in text
    assert "Bello" not in text


async def test_the_scores_used_are_on_record_by_entry(tmp_path: Path) -> None:
    async with opened(config(tmp_path), Meanings()) as runtime:
        session_id = await say(runtime, DOG, *CHATTER[:3], QUESTION)
        on_record = await similarities(runtime, session_id)
        first = await anext(aiter(runtime.ledgers().ho2m.read(session_id=session_id, entry_type="TURN_STARTED")))
    assert on_record[0] is None  # nothing was there to compare
    last = on_record[-1]
    assert (last["model"], last["weight"], last["without"]) == ("meanings/1", 0.15, 0)
    assert last["scores"][first.entry_id] == 1_000
    assert "problem" not in last


async def test_nothing_is_on_record_where_no_embeddings_are_configured(tmp_path: Path) -> None:
    async with opened(config(tmp_path), None) as runtime:
        session_id = await say(runtime, DOG, *CHATTER[:2], QUESTION)
        assert await similarities(runtime, session_id) == [None] * 4
    assert not [*tmp_path.glob("index/vectors*")]


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
async def test_a_replay_needs_no_vectors(tmp_path: Path, mode: str) -> None:
    """Neither the provider nor the file of vectors is there, and every turn is decided as before."""
    settings = config(tmp_path, agent={"context_mode": mode})
    async with opened(settings, Meanings()) as runtime:
        await say(runtime, DOG, *CHATTER[:2])
        session_id = await say(runtime, *CHATTER, QUESTION)
        assert any(each and each["scores"] for each in await similarities(runtime, session_id))
    for each in tmp_path.glob("index/vectors*"):
        each.unlink()
    report = await replay_session(session_id, config=settings)
    assert report.divergence is None
    assert len(report.turns) == len(CHATTER) + 1


async def test_a_text_is_embedded_once_and_never_again(tmp_path: Path) -> None:
    """Also after a restart: kept vectors are used, and nobody is asked for them."""
    first, second = Meanings(), Meanings()
    async with opened(config(tmp_path), first) as runtime:
        session_id = await say(runtime, DOG, *CHATTER, QUESTION)
    assert sorted(first.texts) == sorted({*first.texts})
    async with opened(config(tmp_path), second) as runtime:
        await say(runtime, "And the rain?", session_id=session_id)
        assert (await similarities(runtime, session_id))[-1]["without"] == 0
    assert sorted(second.texts) == sorted(["And the rain?", f"echo: {QUESTION}"])


async def test_lost_vectors_are_made_again(tmp_path: Path) -> None:
    """The file is derived: without it, or with a damaged one, the same is found."""
    for content in (None, b"no database " * 1_000):
        again, root = Meanings(), tmp_path / str(content is None)
        async with opened(config(root), Meanings()) as runtime:
            session_id = await say(runtime, DOG, *CHATTER)
        for each in root.glob("index/vectors*"):
            each.unlink()
        if content is not None:
            (root / "index" / "vectors.sqlite").write_bytes(content)
        async with opened(config(root), again) as runtime:
            await say(runtime, QUESTION, session_id=session_id)
            assert "terrier" in await shown(runtime, session_id)
        assert DOG in again.texts


async def test_vectors_of_another_model_are_not_used(tmp_path: Path) -> None:
    other = Meanings()
    other.model_id = "meanings/2"
    async with opened(config(tmp_path), Meanings()) as runtime:
        session_id = await say(runtime, DOG, *CHATTER[:2])
    async with opened(config(tmp_path), other) as runtime:
        await say(runtime, QUESTION, session_id=session_id)
        assert (await similarities(runtime, session_id))[-1]["model"] == "meanings/2"
    assert DOG in other.texts


async def test_a_turn_does_not_wait_for_vectors_beyond_the_deadline(tmp_path: Path) -> None:
    """A provider that never answers: the reply comes, ranked by words, and the record says why. Then there is a pause."""

    async def never(texts: Sequence[str]) -> None:
        await anyio.sleep_forever()

    hanging = Meanings(never)
    with captured_logs() as logs:
        async with opened(config(tmp_path, deadline_s=0.5), hanging) as runtime:
            session_id = await say(runtime, DOG, *CHATTER[:3])
            on_record = await similarities(runtime, session_id)
    first, *later = [each["problem"] for each in on_record[1:]]
    assert first == "DEADLINE"
    assert len(later) == 2
    assert {*later} <= {"PAUSED", "DEADLINE"}, "on a busy machine, reading what is kept may reach the deadline too"
    assert [each["scores"] for each in on_record[1:]] == [{}, {}, {}]
    assert [each["without"] for each in on_record[1:]] == [2, 4, 6]
    assert len(hanging.calls) == 1
    assert [each["problem"] for each in logs if each["event"] == "no embeddings"] == ["DEADLINE"]


async def test_a_slow_provider_gets_through_a_long_history_bit_by_bit(tmp_path: Path) -> None:
    """The oldest texts come last. What was had before the deadline counts and is kept; later calls are smaller."""
    late, is_slow = Meanings(), True

    async def slow(texts: Sequence[str]) -> None:
        if is_slow and DOG in texts:
            await anyio.sleep_forever()

    late.before = slow
    async with opened(config(tmp_path), None) as runtime:
        session_id = await say(runtime, DOG, *CHATTER)
    async with opened(config(tmp_path, deadline_s=0.5, batch=4), late) as runtime:
        await say(runtime, QUESTION, session_id=session_id)
        (cut,) = [each for each in await similarities(runtime, session_id) if each]
        assert cut["problem"] == "DEADLINE"
        assert 0 < cut["without"] < 14
        is_slow = False
        await say(runtime, QUESTION, session_id=session_id)
        whole = (await similarities(runtime, session_id))[-1]
    assert whole["without"] == 0
    assert max(map(len, late.calls)) <= 4


def _raise(texts: Sequence[str]) -> Any:
    raise RuntimeError(f"refused: {texts}")


BAD = {
    "an error": _raise,
    "too few": lambda texts: [vector(texts[0])] * (len(texts) - 1),
    "not a number": lambda texts: [[float("nan"), 1.0]] * len(texts),
    "infinite": lambda texts: [[float("inf"), 1.0]] * len(texts),
    "too large for its type": lambda texts: [[1e300, 1.0]] * len(texts),
    "different sizes": lambda texts: [[1.0] * (1 + n) for n in range(len(texts))],
    "empty": lambda texts: [[]] * len(texts),
    "too long": lambda texts: [[1.0] * 10_000] * len(texts),
    "no numbers": lambda texts: [["one", "two"]] * len(texts),
    "nothing": lambda texts: None,
}


@in_stopped_time
@pytest.mark.parametrize("kind", [*BAD])
async def test_bad_vectors_cost_a_turn_nothing_but_the_vectors(tmp_path: Path, kind: str) -> None:
    """Told once in the log, without what was said; on record in each turn; and used again when they are right.

    After each failure nobody is asked for 60 times the deadline.
    """
    bad = Meanings()
    bad.answer = BAD[kind]
    with captured_logs() as logs:
        async with opened(config(tmp_path, deadline_s=1.0), bad) as runtime:
            session_id = await say(runtime, DOG, CHATTER[0])
            for message in CHATTER[1:5]:
                pass_time(59.9)
                await say(runtime, message, session_id=session_id)
                pass_time(0.2)
                await say(runtime, message, session_id=session_id)
            on_record = await similarities(runtime, session_id)
            assert [each["problem"] for each in on_record[1:]] == ["FAILED", *["PAUSED", "FAILED"] * 4]
            bad.answer = Meanings().answer
            pass_time(60.1)
            await say(runtime, QUESTION, session_id=session_id)
            assert "problem" not in (await similarities(runtime, session_id))[-1]
            assert "terrier" in await shown(runtime, session_id)
    told = [each for each in logs if each["event"] == "no embeddings"]
    assert len(told) == 1
    assert "terrier" not in str(told)


async def test_a_vector_of_another_size_than_the_others_does_not_count(tmp_path: Path) -> None:
    """A server whose model was exchanged under its name: old vectors cannot be compared with new ones."""
    changed = Meanings()
    async with opened(config(tmp_path), changed) as runtime:
        session_id = await say(runtime, DOG, *CHATTER[:2])
        changed.answer = lambda texts: [[*vector(text), 0.0] for text in texts]
        await say(runtime, QUESTION, session_id=session_id)
        last = (await similarities(runtime, session_id))[-1]
    assert last["scores"] == {}  # only the last reply has the new size, and it is no more similar than the average


async def test_only_the_newest_texts_are_compared_where_memory_is_small(tmp_path: Path) -> None:
    async with opened(config(tmp_path, max_cached=4), Meanings()) as runtime:
        session_id = await say(runtime, DOG, *CHATTER, QUESTION)
        assert (await similarities(runtime, session_id))[-1]["without"] == 2 * (len(CHATTER) + 1) - 4
        assert "terrier" not in await shown(runtime, session_id)


async def test_long_texts_are_cut_for_the_provider(tmp_path: Path) -> None:
    asked = Meanings()
    async with opened(config(tmp_path, max_text_chars=20), asked) as runtime:
        await say(runtime, DOG, *CHATTER[:2])
    assert max(map(len, asked.texts)) == 20


async def test_a_configured_provider_is_used_where_the_program_gives_none(tmp_path: Path) -> None:
    settings: RuntimeConfig = config(tmp_path, kind="hashing")
    async with opened(settings, None) as runtime:
        session_id = await say(runtime, DOG, *CHATTER[:2])
        assert (await similarities(runtime, session_id))[-1]["model"] == "hashing/256"


def test_what_is_on_record_reads_back() -> None:
    for problem in (None, "PAUSED"):
        similarity = Similarity("m", 0.25, {"E-1": 7}, 3, problem)
        assert Similarity.from_mapping(similarity.as_mapping()) == similarity


def imported_file(path: Path, *said: str) -> Path:
    """A conversation of another program, one message of the user after the other."""
    messages = [{"role": "user", "content": each, "time": "2024-05-08"} for each in said]
    path.write_text(json.dumps({"session": path.stem, "messages": messages}) + "\n", encoding="utf-8")
    return path


async def test_imported_messages_are_embedded_ranked_shown_and_erased_with_their_subject(tmp_path: Path) -> None:
    """What was imported counts by its meaning, a replay of the question needs no model, and vectors go with the subject."""
    settings, meanings, texts = config(tmp_path / "root"), Meanings(), {"ada": DOG, "bo": "Bello, the terrier, barks."}
    for subject, text in texts.items():
        file = imported_file(tmp_path / f"{subject}.jsonl", text, *CHATTER)
        await import_conversations(file, subject_id=subject, config=settings)
    sessions = {}
    async with opened(settings, meanings) as runtime:
        for subject, text in texts.items():
            session_id = sessions[subject] = await say(runtime, QUESTION, subject_id=subject)
            (projection,) = await projections(runtime, session_id)
            said = [e async for e in runtime.ledgers().ho2m.read(entry_type="MESSAGE_IMPORTED")]
            (mine,) = [e for e in said if e.payload["text"] == text]
            visible = {ref.entry_id for ref in read_projection([projection]).visible}
            assert payload_of(projection)["similarity"]["scores"][mine.entry_id] == 1_000
            assert {e.payload["text"] for e in said if e.entry_id in visible}.intersection(texts.values()) == {text}
    assert set(texts.values()) <= {*meanings.texts}
    before = kept_vectors(settings)
    for session_id in sessions.values():
        report = await replay_session(session_id, config=settings)
        assert (report.divergence, len(report.turns)) == (None, 1)
    await erase_subject("ada", config=settings)
    assert kept_vectors(settings) == before // 2
    again = Meanings()
    async with opened(settings, again) as runtime:
        for subject in texts:
            await say(runtime, QUESTION, subject_id=subject)
    assert not {*texts.values()}.intersection(again.texts)  # hers is gone, and his vector is still there
    assert (await replay_session(sessions["bo"], config=settings)).divergence is None


def kept_vectors(settings: RuntimeConfig) -> int:
    """How many vectors are kept."""
    with closing(sqlite3.connect(Path(settings.plane_root) / "index" / FILE)) as connection:
        ((found,),) = connection.execute("SELECT count(*) FROM vectors")
    return int(found)
