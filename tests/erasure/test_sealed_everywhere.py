"""With a keyring, nothing that a subject said, was answered or is known for stands anywhere in plain text (docs/erasure.md)."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kitchener.records import events
from kitchener.records.index_keys import SEALING_KEY
from tests.erasure.kit import (
    ADA,
    ARGUMENT,
    LABEL,
    LINE,
    MARKS,
    OBJECTIVE,
    REPLY,
    RESULT,
    entries,
    fill,
    found,
    verified,
)
from tests.shared.payloads import payload_of


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop is enough: what is on disk does not depend on it."""
    return "asyncio"


@pytest.mark.usefixtures("filled")
async def test_a_whole_conversation_leaves_no_plain_word(tmp_path: Path) -> None:
    """Messages, replies, tool calls, failures, labels, goals and learned lines: each was written, and each only sealed."""
    assert found(tmp_path) == []
    assert verified(tmp_path)
    text = "".join(str(entry.payload) for entry in await entries(tmp_path, *events.SEALED_FIELDS))
    assert [word for word in MARKS if word not in text] == [], "with the key all of it is there, so the test means something"


async def test_the_same_conversation_without_sealing_is_plain(tmp_path: Path) -> None:
    """What the look for words finds where nothing is sealed: every one of them."""
    await fill(tmp_path, seal=False)
    assert {each.partition(" ")[0] for each in found(tmp_path)} == set(MARKS)


@pytest.mark.usefixtures("filled")
async def test_no_plain_hash_of_what_was_said_is_on_record(tmp_path: Path) -> None:
    """A hash of a short text that anybody can compute would tell it: goals, arguments, contexts, requests."""
    guessed = {f"Goal: get the {OBJECTIVE}", f"{REPLY}: yes", ARGUMENT, RESULT, LINE, LABEL, f'{{"what":"{ARGUMENT}"}}'}
    hashes = {hashlib.sha256(each.encode()).hexdigest() for each in guessed}
    raw = b"".join(path.read_bytes() for path in sorted((tmp_path / "plane").rglob("*.jsonl")))
    assert [each for each in hashes if each.encode() in raw] == []
    projections = await entries(tmp_path, events.PROJECTION_COMPUTED)
    assert {str(each.payload["stable_prefix_hash"]).partition(":")[0] for each in projections} == {"hmac-sha256"}


@pytest.mark.usefixtures("filled")
async def test_a_tools_idempotency_key_needs_the_subjects_key(tmp_path: Path) -> None:
    """It derives from the arguments, and is handed to tools: stable, and of no use for guessing."""
    started = [
        entry for entry in await entries(tmp_path, events.TOOL_STARTED) if payload_of(entry)["arguments"]["what"] == ARGUMENT
    ]
    assert started
    for entry in started:
        payload = entry.payload
        text = f"{payload['turn_id']}|{entry.entity_id}|{payload['call']}|fetch|".encode() + f'{{"what":"{ARGUMENT}"}}'.encode()
        assert payload["idempotency_key"] != f"TK-{hashlib.sha256(text).hexdigest()[:32]}"


async def test_index_keys_are_ids_and_nothing_else(tmp_path: Path, filled: dict[str, list[str]]) -> None:
    """An index is derived, and not sealed."""
    keys: set[str] = set()
    for path in (tmp_path / "plane" / "index").glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as connection:
            keys.update(key for (key,) in connection.execute("SELECT key FROM places"))
    kinds = {key.partition(":")[0] for key in keys if key.startswith("=")}
    ids = {"=sessions", "=turn", "=turns of", "=consolidations", "=in", "=artifact", "=source"}
    assert kinds - {"=bias"} == {*ids, f"={SEALING_KEY}"}
    assert f"={SEALING_KEY}" in keys, "this one has nothing after it"
    assert f"@{filled[ADA][0]}" in keys
