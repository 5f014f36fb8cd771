"""What somebody says takes memory in proportion, and messages of hostile shapes are answered."""

import gc
import tracemalloc
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.actors.sessions.active_session import SessionManager
from kitchener.context.lexical import postings
from kitchener.context.lexical.postings import MAX_TERMS, MAX_TERMS_PER_TURN
from kitchener.context.lexical.turn_index import LexicalIndex, LexicalTurn
from kitchener.gateway.providers.offline import OfflineProvider
from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.testing import ScriptedProvider
from tests.acceptance.context.context_kit import ENFORCE
from tests.acceptance.stack import open_scripted
from tests.hostile.kit import bystander, unless_bystander


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop is enough: what is held does not depend on it."""
    return "asyncio"


MAX_TERM_BYTES = 400
"""What a term of an index may take, bytes: its text, its places, and its part of the tables."""
HAN = 20_000
"""Characters from U+4E00 on; of them come texts in which no two neighbours are ever the same."""
HOSTILE = (
    "mind" + "\n" * 50_000 + "x",
    "read the file " + "-" * 50_000,
    "read the file " + "“" * 50_000,
    "never " + "\u0301\u0316" * 25_000,
    "<a" * 25_000,
    "```" + " " * 50_000,
)
"""Shapes that scans of quadratic cost take long to read."""


def han_text(number: int, chars: int) -> str:
    """Text of which no pair of neighbours stands in any other."""
    step = number + 1
    return "".join(chr(0x4E00 + place * step % HAN) for place in range(chars))


def held_by_indexes() -> int:
    """Bytes that the modules of the lexical index hold."""
    modules = [tracemalloc.Filter(inclusive=True, filename_pattern="*/kitchener/context/lexical/*.py")]
    found = tracemalloc.take_snapshot().filter_traces(modules).statistics("filename")
    return sum(each.size for each in found)


def sessions_in_memory() -> list[SessionManager]:
    """All active sessions of this process, also those that a failed test before this one has left."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, SessionManager)]


def test_an_index_takes_so_many_bytes_a_term_and_so_many_terms_a_text() -> None:
    """Han text without spaces is indexed by pairs: 439 MB resident for 6 MB of ledger, before it was bounded."""
    texts = 5
    tracemalloc.start()
    try:
        index = LexicalIndex(LexicalTurn(han_text(number, 4_500), "s", "user") for number in range(texts))
        assert held_by_indexes() < texts * MAX_TERMS_PER_TURN * MAX_TERM_BYTES
    finally:
        tracemalloc.stop()
    assert index.rank(han_text(3, 40)).order[0] == 3, "its beginning finds it"


def test_an_index_knows_so_many_terms_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filled up to a smaller bound, because it takes the same path to any."""
    texts, per_text = 4, MAX_TERMS_PER_TURN
    assert MAX_TERMS <= 2**18, "the bound itself"
    monkeypatch.setattr(postings, "MAX_TERMS", texts * per_text)
    words = (f"word{number}" for number in count())
    index = LexicalIndex(LexicalTurn(" ".join(next(words) for _ in range(per_text))) for _ in range(texts))
    index.append(LexicalTurn("a quetzal in the garden of word7"))
    assert index.rank("the quetzal?").order == [], "there was no room for another word"
    assert texts in index.rank("word7?").order, "what was said before is found"


async def test_a_flood_of_long_messages_takes_memory_in_proportion(tmp_path: Path) -> None:
    """With a budget so small that each turn ranks all that was said."""
    messages = 3
    context = {**ENFORCE, "context_budget": 400, "turn_budget": 1_000_000}
    async with open_scripted(tmp_path, **context) as runtime, bystander(runtime):
        tracemalloc.start()
        try:
            session_id = await runtime.supervisor().start_session(subject_id="mallory")
            for number in range(messages):
                said = han_text(number, 4_500)
                result = await runtime.supervisor().handle_turn(said, session_id=session_id, subject_id="mallory")
                assert result.response == f"echo: {said}"
            held = held_by_indexes()
        finally:
            tracemalloc.stop()
    assert 0 < held < (messages + 2) * MAX_TERMS_PER_TURN * MAX_TERM_BYTES


@pytest.mark.parametrize("context", [{}, ENFORCE], ids=["window", "authority"])
async def test_a_flood_of_sessions_with_long_messages_holds_no_more_text_than_the_bound(
    tmp_path: Path, context: dict[str, Any]
) -> None:
    """By their number alone, 20,000 active sessions could hold messages of 100,000 characters each."""
    sessions, bound, said = 12, 60_000, "x" * 10_000
    limits, agent = {"max_active_chars": bound}, {**context, "turn_budget": 1_000_000}
    left = sessions_in_memory()  # kept, so that no new session has the id of one of them
    earlier = set(map(id, left))
    async with open_scripted(tmp_path, limits=limits, **agent) as runtime, bystander(runtime):
        supervisor = runtime.supervisor()
        first = await supervisor.start_session(subject_id="mallory")
        for number in range(sessions):
            session_id = first if number == 0 else None
            await supervisor.handle_turn(said, session_id=session_id, subject_id="mallory")
        held = [each.held_chars() for each in sessions_in_memory() if id(each) not in earlier]
        assert sum(held) <= bound + 2 * max(held), "the one used last and the one that runs may come on top"
        assert max(held) >= 2 * len(said), "some are still active"
        result = await supervisor.handle_turn("and now?", session_id=first, subject_id="mallory")
        assert result.response == "echo: and now?"
        assert (await supervisor.session(first)).history[0] == (said, f"echo: {said}")


@pytest.mark.parametrize("ranked", [False, True])
async def test_messages_of_hostile_shapes_are_answered(tmp_path: Path, ranked: bool) -> None:
    """Every part of a turn reads them, the built-in model too. The work it takes is measured in test_linear_scans.py."""
    offline = OfflineProvider()

    async def answer(request: PromptRequest) -> PromptResponse:
        return await offline.complete(request)

    agent = {**ENFORCE, "context_budget": 400} if ranked else {}
    agent["turn_budget"] = 1_000_000
    provider = ScriptedProvider(unless_bystander(answer))
    async with open_scripted(tmp_path, provider, **agent) as runtime, bystander(runtime):
        with anyio.fail_after(60):
            for said in HOSTILE:
                result = await runtime.supervisor().handle_turn(said, subject_id="mallory")
                assert result.error is None
                assert not result.degraded
