"""A claimed history is compared with the turns in memory or with the ledger, with the same result (docs/server.md)."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.actors.sessions.active_session import SessionManager
from kitchener.ledger import LedgerClient
from kitchener.runtime.portable.conversation_file import SpokenConversation, SpokenMessage
from kitchener.serve.chat_completions.chat_request import CONTINUE, SaidPair
from kitchener.serve.chat_completions.client_history import ClaimedHistory, Histories, KnownHistory, digest_of
from tests.serve.shared.requests import Asked, Client, serving

CLIENTS = 20


class Reads:
    """The reads of ledgers since the last look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seen, read, last = list[str](), LedgerClient.read, LedgerClient.last

        def counted_read(ledger: LedgerClient, **query: object) -> object:
            self._seen.append(f"read {query}")
            return read(ledger, **query)  # type: ignore[arg-type]  # as they came

        async def counted_last(ledger: LedgerClient, **query: object) -> object:
            self._seen.append(f"last {query}")
            return await last(ledger, **query)  # type: ignore[arg-type]  # as they came

        monkeypatch.setattr(LedgerClient, "read", counted_read)
        monkeypatch.setattr(LedgerClient, "last", counted_last)

    def taken(self) -> list[str]:
        """What was read."""
        found = list(self._seen)
        self._seen.clear()
        return found


async def wave(client: Client, *messages: str) -> list[Asked]:
    """The answers to one message of every client, all at once."""
    found = dict[int, Asked]()

    async def ask(number: int) -> None:
        found[number] = await client.with_headers(x_chat_id=f"chat {number}").chat(*messages, stream=True)

    async with anyio.create_task_group() as tasks:
        for number in range(CLIENTS):
            tasks.start_soon(ask, number)
    return [each for _, each in sorted(found.items())]


async def test_many_conversations_at_once_read_no_ledger_after_their_first_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read waits for a worker thread, one after the other, while the event loop is busy with the turns of all the others."""
    async with serving(tmp_path / "root") as client:
        await client.chat("warm")
        reads = Reads(monkeypatch)
        first = await wave(client, "one")
        looked_up = reads.taken()
        assert len(looked_up) == CLIENTS, looked_up
        assert all(each.startswith("last ") for each in looked_up)
        second = await wave(client, "one", "echo: one", "two")
        third = await wave(client, "one", "echo: one", "two", "echo: two", "three")
        assert reads.taken() == []
        for number in range(CLIENTS):
            (session_id,) = {each[number].headers["x-kitchener-session"] for each in (first, second, third)}
            session = await client.runtime.supervisor().session(session_id)
            assert [said for said, _ in session.history] == ["one", "two", "three"]


def imported(*texts: str) -> Sequence[SpokenMessage]:
    """Messages of the user, and replies where a text begins with `>`."""
    return [SpokenMessage("assistant" if each.startswith(">") else "user", each.lstrip(">"), None, "") for each in texts]


BEFORE = [(), ("a", ">b"), (">b", "a"), ("a", "b", ">c"), ("a", ">b", ">c", "d", ">e"), ("a",), ("a", ">b", CONTINUE, ">c")]
SAID = [(), ("one",), ("one", "two", CONTINUE), (CONTINUE, "one")]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a reply to the same history
@pytest.mark.parametrize("window", [1, *(pytest.param(each, marks=pytest.mark.soak) for each in (2, 3)), 32])
async def test_a_history_is_the_same_from_memory_and_from_the_ledger(tmp_path: Path, window: int) -> None:
    """With a small window the ledger is read; with a large one, only the turns in memory are."""
    async with serving(tmp_path / "root", attention_window_turns=window) as client:
        for before, said in product(BEFORE, SAID):
            try:
                await compare_histories(client, before, said)
            except Exception as error:
                error.add_note(f"before: {before}, said: {said}")
                raise


async def compare_histories(client: Client, before: tuple[str, ...], said: tuple[str, ...]) -> None:
    """Fails unless a session knows its own history, and no edited one."""
    runtime, supervisor = client.runtime, client.runtime.supervisor()
    if before:
        session_id = await runtime.begin_from(SpokenConversation("chat", None, tuple(imported(*before))), subject_id="local")
    else:
        session_id = await supervisor.start_session(subject_id="local")
    for each in said:
        await supervisor.handle_turn(each, session_id=session_id)
    session = await supervisor.session(session_id)
    recorded = [SaidPair(each.user_message, each.response) async for each in session.read_history()]
    assert await Histories().continues(session, ClaimedHistory.of(recorded))
    for number, pair in enumerate(recorded):
        if pair.is_unanswered:  # it may be one that reached no agent
            continue
        edited = [*recorded[:number], pair._replace(message=pair.message + "!"), *recorded[number + 1 :]]
        assert not await Histories().continues(session, ClaimedHistory.of(edited)), number
    if recorded:
        assert not await Histories().continues(session, ClaimedHistory.of([*recorded, SaidPair("more", "said")]))


@pytest.mark.parametrize(("most", "is_kept"), [(6, True), (5, False), (0, False)])
async def test_the_hashes_of_so_many_messages_are_kept_whatever_the_number_of_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, is_kept: bool
) -> None:
    """Beyond them, a session that has more turns than memory holds is read again, and only then."""
    async with serving(tmp_path / "root", attention_window_turns=1) as client:
        supervisor, histories, sessions = (
            client.runtime.supervisor(),
            Histories(most),
            list[tuple[SessionManager, ClaimedHistory]](),
        )
        for _ in range(2):
            session_id = await supervisor.start_session(subject_id="local")
            said = [SaidPair(each, (await supervisor.handle_turn(each, session_id=session_id)).response) for each in "abc"]
            sessions.append((await supervisor.session(session_id), ClaimedHistory.of(said)))
        reads = Reads(monkeypatch)
        for _ in range(2):
            for session, claimed in sessions:
                assert await histories.continues(session, claimed)
        assert len(reads.taken()) == (2 if is_kept else 4)
        session, claimed = sessions[-1]
        assert await histories.continues(session, claimed)
        assert reads.taken() == []  # what was used last is always kept
        histories.forget()
        assert await histories.continues(session, claimed)
        assert len(reads.taken()) == 1


def recorded(count: int) -> tuple[list[SaidPair], KnownHistory]:
    """So many messages with their replies, and a session that has them on record."""
    pairs = [SaidPair(f"message {number}", f"reply {number}") for number in range(count)]
    messages, digests = (
        tuple(digest_of(each.message, text(each)) for each in pairs) for text in (lambda _: "", lambda p: p.reply)
    )
    return pairs, KnownHistory(count, messages, digests, pairs[-1])


@given(st.data(), st.integers(1, 8))
def test_a_history_fits_whatever_a_client_leaves_out_or_says_in_vain(data: st.DataObject, count: int) -> None:
    """It leaves out a beginning, has seen nothing of some replies, and some of its messages have reached no agent."""
    pairs, known = recorded(count)
    first = data.draw(st.integers(0, count - 1))
    unseen = data.draw(st.sets(st.integers(first, count - 1)))
    claimed = list[SaidPair]()
    for number in range(first, count):
        strangers = data.draw(st.integers(0, 2))
        claimed += [SaidPair(f"stranger {number}.{each}", "") for each in range(strangers)]
        claimed.append(pairs[number]._replace(reply="") if number in unseen else pairs[number])
    differing = known.differing(ClaimedHistory.of(claimed))
    assert differing is not None
    assert differing.keys() == unseen

    answered = [at for at, each in enumerate(claimed) if each in pairs]
    if answered:
        changed = data.draw(st.sampled_from(answered))
        claimed[changed] = claimed[changed]._replace(message="edited")
        assert known.differing(ClaimedHistory.of(claimed)) is None


@given(st.integers(1, 8), st.integers(0, 3))
def test_a_history_of_strangers_fits_no_session_that_has_messages(count: int, strangers: int) -> None:
    claimed = ClaimedHistory.of([SaidPair(f"stranger {each}", "") for each in range(strangers)])
    assert recorded(count)[1].differing(claimed) is None
    assert KnownHistory(0, (), (), None).differing(claimed) == {}
