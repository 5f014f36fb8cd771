"""Explanations of a turn's context, the memory of a subject, and erasure, over HTTP (docs/server.md)."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.clock import SystemClock
from kitchener.config import LedgerConfig
from kitchener.ids import memory_namespace
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.turn_views.recorded_turn import read_turn
from kitchener.inspection.turn_views.turn_reasons import diff_json, view_json
from kitchener.ledger import StoredEntry
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.ledger.reads import Entries
from kitchener.times import iso_of
from tests.memory.shared.kit import learned, recur
from tests.serve.shared.requests import Asked, Client, serving

KEYS = {"ada": "key-of-ada-0123456789", "bob": "key-of-bob-0123456789"}


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    for name, key in KEYS.items():
        monkeypatch.setenv(f"{name.upper()}_KEY", key)
    rights = ("chat", "read", "erase")
    return {"clients": {name: {"key": f"env:{name.upper()}_KEY", "subject": name, "rights": rights} for name in KEYS}}


def of(client: Client, name: str) -> Client:
    """The client with somebody's key."""
    return client.with_headers(authorization=f"Bearer {KEYS[name]}")


async def said(client: Client, *messages: str) -> tuple[str, list[str]]:
    """The path of a new session, and its turns."""
    path = f"/v1/sessions/{(await client.ask('POST', '/v1/sessions')).json['session_id']}"
    turns = [(await client.ask("POST", f"{path}/messages", {"message": each})).json["turn_id"] for each in messages]
    return path, turns


class TestWhy:
    async def test_it_says_what_the_command_says(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", context_mode="enforce") as client:
            path, turns = await said(client, "I like tea", "I like coffee", "what do I like?")
            whole = await client.ask("GET", f"{path}/turns/{turns[2]}/why")
            assert whole.status == 200
            shown = {each["entity_id"]: each["verdict"] for each in whole.json["explanations"]}
            assert {shown[turns[0]], shown[turns[1]]} == {"visible"}
            one = await client.ask("GET", f"{path}/turns/{turns[2]}/why?entry={turns[0]}")
            (found,) = one.json["explanations"]
            assert (found["entity_id"], found["verdict"], found["text"] != "") == (turns[0], "visible", True)
            changed = (await client.ask("GET", f"{path}/turns/{turns[2]}/diff?before={turns[1]}")).json
            assert turns[1] in [each["entity_id"] for each in changed["came_in"]]
            paths = LedgerPaths(client.runtime.config)
            views = [await read_turn(paths, "ADMIN", each) for each in turns]
            assert whole.json == view_json(views[2], views[2].explain_all())
            assert changed == diff_json(views[1], views[2])

    async def test_what_the_session_does_not_have_is_not_found(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", context_mode="enforce") as client:
            path, (turn,) = await said(client, "hello")
            _, (other,) = await said(client, "elsewhere")
            for wrong in (
                f"{path}/turns/{other}/why",
                f"{path}/turns/{turn[:-1]}9/why",
                f"{path}/turns/nonsense/why",
                f"{path}/turns/{turn}/why?entry=nonsense",
                f"{path}/turns/{turn}/diff?before={other}",
            ):
                found = await client.ask("GET", wrong)
                assert (found.status, found.code) == (404, "not_found"), wrong
            assert (await client.ask("GET", f"{path}/turns/{turn}/diff")).code == "invalid_request"


@dataclass
class Reads:
    """What was read of files and given out as entries, while a test counts."""

    bytes: int = 0
    entries: Counter[str] = field(default_factory=Counter)
    """By ledger."""


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found = Reads()
    read, following = FileOps.read, Entries.__anext__

    def counted_read(self: FileOps, fd: int, size: int, offset: int) -> bytes:
        data = read(self, fd, size, offset)
        found.bytes += len(data)
        return data

    async def counted_entry(self: Entries) -> StoredEntry:
        entry = await following(self)
        found.entries[entry.ledger_id] += 1
        return entry

    monkeypatch.setattr(FileOps, "read", counted_read)
    monkeypatch.setattr(Entries, "__anext__", counted_entry)
    return found


async def read_by(client: Client, path: str, reads: Reads) -> Reads:
    """What a request reads."""
    reads.bytes = 0
    reads.entries.clear()
    assert (await client.ask("GET", path)).status == 200
    return Reads(reads.bytes, Counter(reads.entries))


class TestWhatIsRead:
    """The work behind an answer grows with what the turn needs. Counted in entries and bytes, and no time is measured."""

    async def test_turns_of_other_sessions_are_not_read(self, tmp_path: Path, reads: Reads) -> None:
        """The server has the positions of new entries in memory only. An explanation must not scan the files for them."""
        async with serving(tmp_path / "root", context_mode="enforce") as client:
            path, turns = await said(client, "I like tea", "I like coffee")
            asked = f"{path}/turns/{turns[1]}/why", f"{path}/turns/{turns[1]}/diff?before={turns[0]}"
            await said(client, *["elsewhere"] * 5)
            first = [await read_by(client, each, reads) for each in asked]
            for _ in range(6):
                await said(client, *["elsewhere"] * 5)
            later = [await read_by(client, each, reads) for each in asked]
            assert [each.entries for each in later] == [each.entries for each in first]
            written = sum(each.stat().st_size for each in (tmp_path / "root").rglob("*.jsonl"))
            assert max(each.bytes for each in later) < written, "less than each ledger once"
            assert max(each.bytes for each in later) < 2 * max(each.bytes for each in first)

    async def test_calls_of_other_turns_of_the_session_are_not_read(self, tmp_path: Path, reads: Reads) -> None:
        """Each call in HO1m holds an answer, so these are the largest part of a record."""
        async with serving(tmp_path / "root", context_mode="enforce") as client:
            path, turns = await said(client, *[f"I like number {n}" for n in range(4)])
            early, old = await read_by(client, f"{path}/turns/{turns[3]}/why", reads), f"{path}/turns/{turns[1]}/why"
            again = await read_by(client, old, reads)
            turns += [
                (await client.ask("POST", f"{path}/messages", {"message": f"and {n}"})).json["turn_id"] for n in range(20)
            ]
            late, later = await read_by(client, f"{path}/turns/{turns[-1]}/why", reads), await read_by(client, old, reads)
            calls = {each.entries["HO1M:ADMIN"] for each in (early, again, late, later)}
            assert len(calls) == 1
            assert calls < set(range(1, 20)), "those of the turn and of the one before, with what tells of their attempts"


async def taught(client: Client, subject_id: str) -> str:
    """Teaches the agent a line about a subject; returns its id."""
    memory, namespace = client.runtime.memory(), memory_namespace("ADMIN", subject_id)
    sources = await recur(memory, namespace=namespace)
    line = learned(sources, consolidation_event_ts=iso_of(SystemClock().time_us()))
    await memory.log_overlay(line, namespace=namespace)
    await memory.commit()
    (found,) = await memory.read_overlays(namespace=namespace)
    assert found.artifact_id is not None
    return found.artifact_id


class TestMemory:
    async def test_a_learned_line_is_listed_and_forgotten_once(self, tmp_path: Path, keys: Mapping[str, Any]) -> None:
        async with serving(tmp_path / "root", serve=keys, ho3_enabled=True) as client:
            ada, bob = of(client, "ada"), of(client, "bob")
            artifact_id = await taught(client, "ada")
            shown = (await ada.ask("GET", "/v1/memory")).json
            (line,) = shown["learned"]
            assert (line["artifact_id"], line["state"], line["line"]) == (
                artifact_id,
                "speaks",
                "Often looks into files before asking.",
            )
            (signal,) = shown["signals"]
            assert (signal["signal_id"], signal["count"]) == ("tool:read_file", 5)
            assert (await bob.ask("GET", "/v1/memory")).json["learned"] == []
            forget = f"/v1/memory/{artifact_id}/deactivate"
            found = await bob.ask("POST", forget, {})
            assert (found.status, found.code) == (404, "not_found")
            done = (await ada.ask("POST", forget, {"reason": "that was once", "block": True})).json
            assert (done["written"], done["withdrawn"][0]["artifact_id"]) == (True, artifact_id)
            assert (await ada.ask("POST", forget, {"block": True})).json["written"] is False
            (line,) = (await ada.ask("GET", "/v1/memory")).json["learned"]
            assert (line["state"], "that was once" in line["why"]) == ("deactivated", True)

    async def test_a_signal_in_quarantine_counts_no_more(self, tmp_path: Path, keys: Mapping[str, Any]) -> None:
        async with serving(tmp_path / "root", serve=keys, ho3_enabled=True) as client:
            ada, bob = of(client, "ada"), of(client, "bob")
            artifact_id = await taught(client, "ada")
            body = {"target": "tool:read_file"}
            assert (await bob.ask("POST", "/v1/memory/quarantine", body)).status == 400
            done = (await ada.ask("POST", "/v1/memory/quarantine", body)).json
            assert [each["artifact_id"] for each in done["withdrawn"]] == [artifact_id]
            again = (await ada.ask("POST", "/v1/memory/quarantine", {"target": "tool:read file"})).json
            assert (again["target"], again["written"]) == ("tool:read_file", False)
            assert (await ada.ask("POST", "/v1/memory/quarantine", {"target": "nonsense"})).code == "invalid_request"
            (signal,) = (await ada.ask("GET", "/v1/memory")).json["signals"]
            assert signal["gate"]["state"] == "quarantined"

    async def test_without_memory_there_is_nothing(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            found = (await client.ask("GET", "/v1/memory")).json
            assert (found["enabled"], found["learned"], found["signals"]) == (False, [], [])
            codes = list[str]()

            async def forget(number: int) -> None:
                codes.append((await client.ask("POST", f"/v1/memory/ART-0a1b2c3d4e5{number}/deactivate")).code)

            async with anyio.create_task_group() as tasks:  # at once: each opens the ledgers of the memory
                for number in range(4):
                    tasks.start_soon(forget, number)
            assert codes == ["not_found"] * 4


class TestErasure:
    async def _erase(self, client: Client, subject_id: str) -> Asked:
        return await client.ask("POST", "/v1/subject/erase", {"subject_id": subject_id})

    async def test_the_subject_is_erased_and_nobody_else(self, tmp_path: Path, keys: Mapping[str, Any]) -> None:
        async with serving(tmp_path / "root", serve=keys, ho3_enabled=True) as client:
            ada, bob = of(client, "ada"), of(client, "bob")
            path, _ = await said(ada, "my secret", "and another")
            others, _ = await said(bob, "hello")
            await taught(client, "ada")
            report = (await self._erase(ada, "ada")).json
            counts = {name: report[name] for name in ("subject_id", "sessions", "turns", "plain_turns", "artifacts")}
            assert counts == {"subject_id": "ada", "sessions": 1, "turns": 2, "plain_turns": 0, "artifacts": 1}
            over = await ada.ask("POST", f"{path}/messages", {"message": "still there?"})
            assert (over.status, over.code) == (410, "subject_erased")
            kept = await bob.ask("POST", f"{others}/messages", {"message": "still there?"})
            assert kept.json["response"] == "echo: still there?"

    async def test_it_needs_the_right_the_confirmation_and_sealed_content(
        self, tmp_path: Path, keys: Mapping[str, Any]
    ) -> None:
        keys["clients"]["bob"]["rights"] = ("chat", "read")
        async with serving(tmp_path / "root", serve=keys) as client:
            ada = of(client, "ada")
            path, _ = await said(ada, "hello")
            assert (await self._erase(of(client, "bob"), "bob")).code == "right_missing"
            for wrong in ("bob", ""):
                assert (await self._erase(ada, wrong)).code == "invalid_request"
            assert (await ada.ask("GET", f"{path}/messages")).json["turns"][0]["user_message"] == "hello"
        async with serving(tmp_path / "plain", ledger=LedgerConfig(seal=False)) as client:
            await said(client, "hello")
            found = await self._erase(client, "local")
            assert (found.status, found.code) == (409, "not_sealed")
            assert (await self._erase(client.with_headers(), "nobody")).code == "invalid_request"

    async def test_nobody_is_erased_who_never_spoke(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            found = await self._erase(client, "local")
            assert (found.status, found.code) == (404, "not_found")
