"""The sessions of a client's name are those on record, whether they are remembered or looked up (docs/sessions.md)."""

from pathlib import Path
from typing import cast

import anyio
import pytest

from kitchener.actors.sessions.external_names import ExternalNames
from kitchener.ids import SessionId
from kitchener.ledger import LedgerGroup
from kitchener.records.index_keys import external_index_key
from kitchener.runtime import Runtime
from kitchener.runtime.portable.conversation_file import SpokenConversation, SpokenMessage
from tests.acceptance.stack import open_scripted
from tests.shared.event_loops import ON_ASYNCIO

NAMES = ("one", "two")
OWNERS = ("ada", "bob", None)


class Started:
    """A start of a session, as a ledger gives it."""

    def __init__(self, session_id: str) -> None:
        self.payload = {"session_id": session_id}


class Starts:
    """The starts of sessions by key, as three ledgers give them. Counts the reads, and lets each wait until it is let on."""

    is_sole_writer = True

    def __init__(self) -> None:
        self.by_key: dict[str, list[Started]] = {}
        self.reads = 0
        self.goes_on = anyio.Event()
        self.goes_on.set()
        self.ho2m = self

    def begin(self, session_id: str, name: str = "chat", owner: str | None = "ada") -> None:
        self.by_key.setdefault(external_index_key(owner, name), []).append(Started(session_id))

    async def last(self, *, key: str, limit: int = 1) -> list[Started]:
        self.reads += 1
        found = self.by_key.get(key, [])[-limit:]  # as of the call
        await anyio.lowlevel.checkpoint()
        await self.goes_on.wait()
        return found


def names_of(starts: Starts, max_names: int = 100) -> ExternalNames:
    return ExternalNames(cast(LedgerGroup, starts), max_names)


async def on_record(runtime: Runtime, name: str, owner: str | None, limit: int) -> tuple[str, ...]:
    key = external_index_key(owner, name)
    found = await runtime.ledgers("ADMIN").ho2m.last(key=key, limit=limit)
    return tuple(str(each.payload["session_id"]) for each in found)


@ON_ASYNCIO
async def test_what_a_name_stands_for_is_always_what_is_on_record(tmp_path: Path) -> None:
    """Sessions begin with a name, without one, with a caller's id, and by an import, while others ask."""

    async def asks() -> None:
        for limit in (1, 3, 2):
            for name in NAMES:
                for owner in OWNERS:
                    found = await supervisor.find_all_external(name, subject_id=owner, limit=limit)
                    assert found == await on_record(runtime, name, owner, limit), (name, owner, limit)
                    newest = await supervisor.find_external(name, subject_id=owner)
                    assert newest == (found[-1] if found else None)

    async with open_scripted(tmp_path / "root") as runtime:
        supervisor = runtime.supervisor()
        await asks()
        for number in range(4):
            for owner in OWNERS:
                await supervisor.start_session(subject_id=owner, external_id="one")
                await supervisor.start_session(f"SES-{number:08x}", subject_id="ada", external_id="two")
                await supervisor.start_session(subject_id=owner)
            await asks()
            said = (SpokenMessage("user", f"hello {number}", None, ""), SpokenMessage("assistant", "hi", None, ""))
            await runtime.begin_from(SpokenConversation("two", None, said), subject_id="bob")
            await asks()
    async with open_scripted(tmp_path / "root") as runtime:
        supervisor = runtime.supervisor()
        await asks()


async def test_a_name_that_was_looked_up_is_not_looked_up_again() -> None:
    starts = Starts()
    starts.begin("SES-1")
    names = names_of(starts)
    assert [await names.sessions("chat", "ada", 2) for _ in range(3)] == [("SES-1",)] * 3
    starts.begin("SES-2")
    names.started(SessionId("SES-2"), "chat", "ada")
    starts.begin("SES-3")
    names.started(SessionId("SES-3"), "chat", "ada")
    assert await names.sessions("chat", "ada", 2) == ("SES-2", "SES-3")
    assert await names.sessions("chat", "ada", 1) == ("SES-3",)
    assert starts.reads == 1
    assert await names.sessions("chat", "ada", 3) == ("SES-1", "SES-2", "SES-3")
    assert starts.reads == 2


async def test_a_session_that_begins_during_a_look_up_is_found_by_the_next() -> None:
    starts = Starts()
    names, found = names_of(starts), list[tuple[str, ...]]()
    starts.goes_on = anyio.Event()

    async def look_up() -> None:
        found.append(await names.sessions("chat", "ada", 2))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look_up)
        await anyio.wait_all_tasks_blocked()
        starts.begin("SES-1")
        names.started(SessionId("SES-1"), "chat", "ada")
        starts.goes_on.set()
    assert found == [()]
    assert await names.sessions("chat", "ada", 2) == ("SES-1",)


async def test_conversations_that_begin_together_are_each_looked_up_once() -> None:
    """A start of another name says nothing of this one. Each of a hundred clients was looked up again at its second message."""
    starts = Starts()
    names, found = names_of(starts), dict[int, tuple[str, ...]]()
    starts.goes_on = anyio.Event()

    async def look_up(number: int) -> None:
        assert await names.sessions(f"chat {number}", "ada", 2) == ()
        starts.begin(f"SES-{number}", f"chat {number}")
        names.started(SessionId(f"SES-{number}"), f"chat {number}", "ada")
        await anyio.lowlevel.checkpoint()
        found[number] = await names.sessions(f"chat {number}", "ada", 2)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(look_up, number)
        await anyio.wait_all_tasks_blocked()
        starts.goes_on.set()
    assert found == {number: (f"SES-{number}",) for number in range(20)}
    assert starts.reads == 20


async def test_what_others_write_during_a_look_up_is_found_by_the_next() -> None:
    starts = Starts()
    names = names_of(starts)
    starts.goes_on = anyio.Event()

    async def look_up() -> None:
        assert await names.sessions("chat", "ada", 2) == ()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look_up)
        await anyio.wait_all_tasks_blocked()
        starts.begin("SES-1")
        names.forget("ada")
        starts.goes_on.set()
    assert await names.sessions("chat", "ada", 2) == ("SES-1",)


@pytest.mark.parametrize("owner", ["ada", None])
async def test_what_others_write_is_found_once_they_say_so(owner: str | None) -> None:
    starts = Starts()
    names = names_of(starts)
    assert await names.sessions("chat", owner, 2) == ()
    starts.begin("SES-1", owner=owner)
    names.forget("ada")
    assert await names.sessions("chat", owner, 2) == ("SES-1",)


async def test_where_others_may_write_nothing_is_remembered() -> None:
    starts = Starts()
    starts.is_sole_writer = False
    names = names_of(starts)
    for number in range(3):
        starts.begin(f"SES-{number}")
        assert await names.sessions("chat", "ada", 1) == (f"SES-{number}",)


async def test_the_names_that_were_used_last_are_remembered_and_no_more() -> None:
    starts = Starts()
    names = names_of(starts, max_names=16)
    for number in range(17):
        await names.sessions(f"chat {number}", "ada", 1)
        await names.sessions("chat 0", "ada", 1)
    assert starts.reads == 17
    await names.sessions("chat 1", "ada", 1)
    assert starts.reads == 18
