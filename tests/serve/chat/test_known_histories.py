"""What a client claims is compared with the turns in memory, or with the ledger; both say the same (docs/server.md)."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from kitchener.ledger import LedgerClient
from kitchener.runtime.portable.conversation_file import SpokenConversation, SpokenMessage
from kitchener.serve.chat.chat_request import CONTINUE, SaidPair
from kitchener.serve.chat.client_history import ClaimedHistory, Histories
from tests.serve.requests import Asked, Client, serving

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


@pytest.mark.parametrize("window", [1, 2, 3, 32])
@pytest.mark.parametrize(
    "before",
    [(), ("a", ">b"), (">b", "a"), ("a", "b", ">c"), ("a", ">b", ">c", "d", ">e"), ("a",), ("a", ">b", CONTINUE, ">c")],
    ids="".join,
)
@pytest.mark.parametrize("said", [(), ("one",), ("one", "two", CONTINUE), (CONTINUE, "one")], ids=" ".join)
async def test_a_history_is_the_same_from_memory_and_from_the_ledger(
    tmp_path: Path, window: int, before: tuple[str, ...], said: tuple[str, ...]
) -> None:
    """With a small window the ledger is read; with a large one, only the turns in memory are."""
    async with serving(tmp_path / "root", attention_window_turns=window) as client:
        runtime, supervisor = client.runtime, client.runtime.supervisor()
        if before:
            session_id = await runtime.begin_from(
                SpokenConversation("chat", None, tuple(imported(*before))), subject_id="local"
            )
        else:
            session_id = await supervisor.start_session(subject_id="local")
        for each in said:
            await supervisor.handle_turn(each, session_id=session_id)
        session = await supervisor.session(session_id)
        recorded = [SaidPair(each.user_message, each.response) async for each in session.read_history()]
        assert await Histories().continues(session, ClaimedHistory.of(recorded))
        for number, pair in enumerate(recorded):
            edited = [*recorded[:number], pair._replace(message=pair.message + "!"), *recorded[number + 1 :]]
            assert not await Histories().continues(session, ClaimedHistory.of(edited)), number
        if recorded:
            assert not await Histories().continues(session, ClaimedHistory.of([*recorded, SaidPair("more", "said")]))
