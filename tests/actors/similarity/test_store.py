"""Where vectors are kept: sealed like content, erased with their subject, bounded, and never trusted."""

import sqlite3
from pathlib import Path

from kitchener.actors.similarity.vector_store import FILE, VectorStore
from kitchener.actors.similarity.vectors import unit_vector
from kitchener.runtime.erasure import erase_subject
from kitchener.sealing import Keyring, Sealer
from tests.actors.similarity.kit import CHATTER, DOG, Meanings, config, opened, say, similarities, vector
from tests.shared.event_loops import ON_ASYNCIO, ON_TRIO
from tests.shared.logs import captured_logs

HELD = unit_vector(vector(DOG))


def count(root: Path) -> int:
    """How many vectors are kept under a root."""
    with sqlite3.connect(root / "index" / FILE) as connection:
        ((found,),) = connection.execute("SELECT count(*) FROM vectors")
    connection.close()
    return int(found)


def files(root: Path) -> bytes:
    """All bytes of the file of vectors."""
    return b"".join(path.read_bytes() for path in sorted((root / "index").glob(f"{FILE}*")))


@ON_TRIO
async def test_kept_vectors_are_sealed_where_content_is(tmp_path: Path) -> None:
    """In plain form a vector would tell what was said, and a plain hash would let anybody test guesses."""
    for seal in (True, False):
        async with opened(config(tmp_path / str(seal), seal=seal), Meanings()) as runtime:
            await say(runtime, DOG, *CHATTER[:2], subject_id="ursula")  # no name that could stand in a hash by chance
    assert HELD.tobytes() in files(tmp_path / "False")
    assert HELD.tobytes() not in files(tmp_path / "True")
    assert b'"sha256:' not in files(tmp_path / "True")
    assert b"hmac-sha256:" in files(tmp_path / "True")
    assert b"ursula" not in files(tmp_path / "True")


@ON_TRIO
async def test_an_erasure_removes_the_subjects_vectors_and_nobody_elses(tmp_path: Path) -> None:
    """In a running program, and by the command's way without one; also where embeddings were turned off since."""
    for name in ("running", "closed"):
        root, again = tmp_path / name, Meanings()
        async with opened(config(root), Meanings()) as runtime:
            await say(runtime, DOG, *CHATTER[:2])
            bo = await say(runtime, DOG, *CHATTER[:2], subject_id="bo")
            before = count(root)
            if name == "running":
                await runtime.erase_subject("ada")
        if name == "closed":
            await erase_subject("ada", config=config(root))
        assert count(root) == before // 2
        async with opened(config(root), again) as runtime:
            await say(runtime, CHATTER[3], subject_id="ada")
            await say(runtime, CHATTER[4], subject_id="bo", session_id=bo)
            assert (await similarities(runtime, bo))[-1]["without"] == 0
        assert DOG not in again.texts  # bo's are still there, and ada's are not asked for: what she said is gone


@ON_ASYNCIO
async def test_a_subject_who_comes_back_finds_nothing_of_before(tmp_path: Path) -> None:
    async with opened(config(tmp_path), Meanings()) as runtime:
        await say(runtime, DOG, *CHATTER[:2])
        await runtime.erase_subject("ada")
        session_id = await say(runtime, CHATTER[0], CHATTER[1])
        assert (await similarities(runtime, session_id))[-1]["without"] == 0
        assert count(tmp_path) == 3  # of two messages and one reply; none of before


def test_a_changed_vector_counts_as_missing(tmp_path: Path) -> None:
    """One bit of a plain one, and one of a sealed one; and a sealed one that was moved to another text."""
    for name, sealer in (("plain", None), ("sealed", Sealer(Keyring(tmp_path / "keys"), {}))):
        store = VectorStore(tmp_path / name, sealer, 100)
        store.put("ada", "m", {DOG: HELD, "other": unit_vector([1.0, 0.0])})
        assert store.find("ada", "m", [DOG, "none"])[0] == HELD
        assert store.find("ada", "m", [DOG, "none"])[1] is None
        assert store.find("bo", "m", [DOG]) == [None]
        assert store.find("ada", "other model", [DOG]) == [None]
        with sqlite3.connect(tmp_path / name / FILE) as connection:
            rows = connection.execute("SELECT id, vector FROM vectors ORDER BY id").fetchall()
            changed = bytes([*rows[0][1][:-1], rows[0][1][-1] ^ 1])
            connection.execute("UPDATE vectors SET vector = ? WHERE id = ?", (changed, rows[0][0]))
        connection.close()
        assert store.find("ada", "m", [DOG]) == [None]
        if sealer is not None:
            with sqlite3.connect(tmp_path / name / FILE) as connection:
                connection.execute("UPDATE vectors SET vector = ? WHERE id = ?", (rows[1][1], rows[0][0]))
            connection.close()
            assert store.find("ada", "m", [DOG]) == [None]


def test_beyond_its_bound_the_oldest_vectors_go(tmp_path: Path) -> None:
    store = VectorStore(tmp_path, None, 3)
    for number in range(10):
        store.put("ada", "m", {f"text {number}": unit_vector([1.0, float(number)])})
    found = store.find("ada", "m", [f"text {number}" for number in range(10)])
    assert [each is not None for each in found] == [False] * 7 + [True] * 3


def test_a_place_that_cannot_be_written_is_told_once_and_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = VectorStore(tmp_path / "file", None, 3)
    with captured_logs() as logs:
        for _ in range(3):
            store.put("ada", "m", {DOG: HELD})
            assert store.find("ada", "m", [DOG]) == [None]
    assert [each["event"] for each in logs] == ["vectors not kept"]


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_bytes(b"precious")
    (tmp_path / FILE).symlink_to(target)
    store = VectorStore(tmp_path, None, 3)
    store.put("ada", "m", {DOG: HELD})
    assert store.find("ada", "m", [DOG]) == [HELD]
    assert target.read_bytes() == b"precious"
