"""The shapes of payloads are what ledgers hold: each recorded entry is compared with the `TypedDict` of its type."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kitchener.canonical import canonical_bytes
from kitchener.records import events
from kitchener.records.entries import ERASED, TurnStartedPayload, opened, payload_as, text_of
from kitchener.sealed_values import is_sealed
from tests.erasure.kit import ADA, fill, running
from tests.records.entries.shapes import misfits, shape_of, shaped_types
from tests.replay import golden_roots

ARCHIVES = sorted(golden_roots.FOLDER.glob("*.tar.xz"))
SEALED: dict[str, Any] = {"$sealed": {"key_id": "k"}}
STARTED: dict[str, Any] = {
    "v": 1,
    "session_id": "SES-00000001",
    "subject_id": "ada",
    "turn_id": "T-00000001-000001",
    "turn_ts": "2026-01-01T00:00:00.000000+00:00",
    "user_message": "hello",
    "memory": True,
    "read_positions": {"HO2M:ADMIN": 1},
    "ruleset_hash": "sha256:00",
    "config_hash": "sha256:00",
    "overlap": "queue",
}


def entries_under(root: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Ledger id, entry type and payload of every line of every ledger."""
    for path in sorted(root.rglob("*.jsonl")):
        for line in path.read_text().splitlines():
            stored = json.loads(line)
            yield stored["ledger_id"], stored["entry"]["entry_type"], stored["entry"]["payload"]


def misfits_under(root: Path, *, one_in: int = 1, skip: int = 0) -> tuple[list[str], set[str]]:
    """What in a root is not as its shape says, and the types of its entries.

    Args:
        root: the root
        one_in: how many of the entries are compared: all, or one of so many; the first of each type is
        skip: what the first of them counts as, so that other ones are compared
    """
    found, seen = list[str](), set[str]()
    for at, (ledger_id, entry_type, payload) in enumerate(entries_under(root), skip):
        if at % one_in and entry_type in seen:
            continue
        seen.add(entry_type)
        found += [
            f"{ledger_id} {entry_type}: {each}"
            for each in misfits(events.read_payload(entry_type, payload), shape_of(ledger_id, entry_type))
        ]
    return found, seen


def test_every_type_of_entry_has_a_shape() -> None:
    named = {value for name, value in vars(events).items() if name.isupper() and value == name}
    assert named == shaped_types()


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
@pytest.mark.parametrize("one_in", [pytest.param(6, id="sixth"), pytest.param(1, id="all", marks=pytest.mark.soak)])
def test_recorded_roots_have_the_shapes(archive: Path, tmp_path: Path, one_in: int) -> None:
    """`make test` compares every sixth entry, others in each root, which all tell the same stories; `make soak` all entries."""
    found, seen = misfits_under(golden_roots.unpacked(archive, tmp_path), one_in=one_in, skip=ARCHIVES.index(archive))
    assert found == []
    assert len(seen) > 20


async def test_a_sealed_and_an_erased_root_have_the_shapes(tmp_path: Path) -> None:
    await fill(tmp_path)
    assert misfits_under(tmp_path)[0] == []
    async with running(tmp_path) as runtime:
        await runtime.erase_subject(ADA)
    found, seen = misfits_under(tmp_path)
    assert found == []
    assert events.SUBJECT_ERASED in seen


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"overlap": "quue"}, "payload.overlap = 'quue'"),
        ({"memory": 1}, "payload.memory = 1"),
        ({"read_positions": {"HO2M:ADMIN": "1"}}, "payload.read_positions.HO2M:ADMIN = '1'"),
        ({"surplus": 1}, "payload has surplus"),
        ({"turn_ts": None}, "payload.turn_ts = None"),
    ],
)
def test_a_payload_of_another_shape_is_told(changes: dict[str, Any], told: str) -> None:
    assert misfits(STARTED, TurnStartedPayload) == []
    assert misfits({**STARTED, "user_message": SEALED}, TurnStartedPayload) == []
    assert [each[: len(told)] for each in misfits({**STARTED, **changes}, TurnStartedPayload)] == [told]


def test_a_lacking_field_is_told() -> None:
    assert misfits({key: STARTED[key] for key in STARTED if key != "turn_ts"}, TurnStartedPayload) == ["payload lacks turn_ts"]


def test_reading_as_a_shape_changes_nothing() -> None:
    started = payload_as(TurnStartedPayload, STARTED)
    assert started is STARTED
    assert canonical_bytes(started) == canonical_bytes(STARTED)


def test_a_sealed_value_reads_as_erased() -> None:
    assert (text_of("hello"), text_of(SEALED), text_of(None)) == ("hello", ERASED, "")
    assert (opened(["a"]), opened(None)) == (["a"], None)
    assert opened(payload_as(TurnStartedPayload, {**STARTED, "user_message": SEALED})["user_message"]) is None


def test_an_object_that_has_the_mark_beside_other_keys_is_not_sealed() -> None:
    """A tool may return such an object, which is then its result and no erased one."""
    assert is_sealed(SEALED)
    assert not is_sealed({**SEALED, "rows": 3})
    assert opened({**SEALED, "rows": 3}) is not None
