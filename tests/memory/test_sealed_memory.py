"""What was learned of a subject is readable with the subject's key alone; without it only numbers are left (docs/memory.md)."""

from pathlib import Path
from typing import Any

import pytest

from kitchener.memory import MemoryReader, select_biases
from kitchener.records.events import SEALED_FIELDS
from kitchener.sealing import Keyring, Sealer
from tests.memory.shared.kit import ADA, BO, HOUR, NOON, SetClock, at, entries, learned, open_memory


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop is enough: what the memory knows does not depend on it."""
    return "asyncio"


SECRETS = ("marzipan", "pistachio", "nougat", "praline", "truffle", "fondant")


def sealer(root: Path) -> Sealer:
    """As a new process makes it: no key in memory."""
    return Sealer(Keyring(root / "keys"), SEALED_FIELDS)


async def confide(root: Path, namespace: str = ADA) -> str:
    """Learns something secret, changes its mind about it twice, and gives the artifact id."""
    async with open_memory(root, sealer=sealer(root)) as memory:
        sources = [
            await memory.log_signal(
                "tool:read_file", f"SES-{n % 3}", metadata={"turn_id": f"T-{n}", "said": SECRETS[0]}, namespace=namespace
            )
            for n in range(5)
        ]
        secret: dict[str, Any] = {
            "labels": {"domain": [SECRETS[1]], "task": []},
            "context_line": f"Loves {SECRETS[2]}.",
            "content": {"bias": f"Loves {SECRETS[3]}.", "category": "topic_affinity"},
        }
        await memory.log_overlay(learned(sources, **secret), namespace=namespace)
        artifact_id = (await memory.read_overlays(namespace=namespace))[0].artifact_id or ""
        await memory.deactivate_overlay(artifact_id, f"no {SECRETS[4]}", at(), namespace=namespace)
        await memory.update_overlay_weight(artifact_id, 0.6, f"yes {SECRETS[5]}", at(), namespace=namespace)
        return artifact_id


async def test_nothing_said_or_learned_can_be_read_in_the_files(tmp_path: Path) -> None:
    artifact_id = await confide(tmp_path)
    everything = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert [secret for secret in SECRETS if secret.encode() in everything] == []
    overlay = entries(tmp_path, "overlays")[0]["payload"]
    assert {name for name, value in overlay.items() if isinstance(value, dict) and "$sealed" in value} == {
        "labels",
        "context_line",
        "content",
    }
    assert (overlay["artifact_id"], overlay["weight"]) == (artifact_id, 0.8), "numbers and ids stay plain"


async def test_the_key_opens_it_all(tmp_path: Path) -> None:
    await confide(tmp_path)
    async with (
        open_memory(tmp_path, sealer=sealer(tmp_path)) as memory,
        MemoryReader.open(tmp_path, clock=SetClock(), sealer=sealer(tmp_path)) as reader,
    ):
        for readable in (memory, reader):
            [found] = await readable.read_active_biases(namespace=ADA)
            assert (found.context_line, found.labels) == ("Loves nougat.", {"domain": ("pistachio",), "task": ()})
            assert (found.content["bias"], found.weight) == ("Loves praline.", 0.6)
            subject = await readable.subject(ADA)
            record = subject.history(found.key)[1]
            assert record.reason == "no truffle"
            event = subject.event(found.source_event_ids[0])
            assert event is not None
            assert event[1].turn_id == "T-0"


async def test_without_the_key_it_never_speaks_again_and_counts_stay(tmp_path: Path) -> None:
    artifact_id = await confide(tmp_path)
    await confide(tmp_path, BO)
    keyring = Keyring(tmp_path / "keys")
    async with open_memory(tmp_path, sealer=Sealer(keyring, SEALED_FIELDS)) as memory:
        before = await memory.read_signals(namespace=ADA), await memory.check_gate("tool:read_file", namespace=ADA)
    keyring.destroy("ada")
    async with (
        open_memory(tmp_path, sealer=sealer(tmp_path)) as memory,
        MemoryReader.open(tmp_path, clock=SetClock(), sealer=sealer(tmp_path)) as reader,
    ):
        for readable in (memory, reader):
            after = await readable.read_signals(namespace=ADA), await readable.check_gate("tool:read_file", namespace=ADA)
            assert after == before
            assert await readable.read_active_biases(namespace=ADA) == []
            assert await readable.read_overlays(namespace=ADA) == []
            [silent] = await readable.read_overlays(active_only=False, namespace=ADA)
            assert (silent.artifact_id, silent.line, silent.labels, silent.enabled) == (artifact_id, "", None, False)
            assert select_biases([silent.as_mapping()], {}, 100, at()) == []
            assert len(await readable.read_active_biases(namespace=BO)) == 1, "others' keys are others"
        await memory.update_overlay_weight(artifact_id, 1.0, "back", at(), namespace=ADA)
        assert await memory.read_active_biases(namespace=ADA) == [], "there is nothing that could come back"


async def test_a_subject_can_begin_anew_after_its_key_was_destroyed(tmp_path: Path) -> None:
    await confide(tmp_path)
    Keyring(tmp_path / "keys").destroy("ada")
    clock = SetClock(NOON + 400 * HOUR)
    async with open_memory(tmp_path, clock, sealer=sealer(tmp_path)) as memory:
        fresh = [await memory.log_signal("tool:read_file", f"SES-{n}", namespace=ADA) for n in range(5)]
        [found] = await memory.read_signals(namespace=ADA)
        assert found.count == 10
        await memory.log_overlay(learned(fresh, hours=400, context_line="Now likes tea."), namespace=ADA)
    async with open_memory(tmp_path, clock, sealer=sealer(tmp_path)) as memory:
        assert [each.line for each in await memory.read_active_biases(namespace=ADA)] == ["Now likes tea."]


async def test_a_reader_without_keys_sees_numbers_only(tmp_path: Path) -> None:
    await confide(tmp_path)
    async with MemoryReader.open(tmp_path, clock=SetClock()) as reader:
        assert [each.count for each in await reader.read_signals(namespace=ADA)] == [5]
        assert await reader.read_active_biases(namespace=ADA) == []
