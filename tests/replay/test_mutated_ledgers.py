"""Any byte of a ledger is told by verify; any decision that it tells otherwise, with all hashes right, by replay."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kitchener.ledger.format.lines import StoredEntry
from kitchener.ledger.verify.verification import verify_file
from kitchener.replaying import Replays, open_replays
from kitchener.replaying.tape import Tape
from kitchener.runtime.ledger_paths import settings_of
from kitchener.signing import Signer, load_signer
from tests.replay import corpus
from tests.replay.recording import KEY, record
from tests.replay.test_replay_diverges import CONTEXT, ENFORCE, HO1M, HO2M, LEARNING, SIGNALS
from tests.replay.test_replay_signed import signed_by

OVERLAYS = SIGNALS.with_name("overlays.jsonl")
EVERY = {HO1M: 7, HO2M: 7, CONTEXT: 1, SIGNALS: 1, OVERLAYS: 1}
"""Of the long ledgers every seventh byte is changed, of the others each."""


pytestmark = pytest.mark.timeout(300)  # recording the root takes some seconds of CPU, on a busy machine many


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Recorded on asyncio; see `test_mutated_settings.py`."""
    return "trio"


@pytest.mark.parametrize("ledger", EVERY, ids=lambda path: path.stem)
async def test_changed_byte_is_told_by_verify(tmp_path: Path, ledger: Path) -> None:
    """Wherever it stands: in ids, numbers, hashes, text, or between lines."""
    gate = {**LEARNING, "ho3_gate_count_threshold": 1}
    await record(tmp_path, ("hello",), **ENFORCE, **gate)
    path = tmp_path / ledger
    data = path.read_bytes()
    assert verify_file(path).ok
    assert data.count(b"\n") >= 1
    missed = []
    for at in range(0, len(data), EVERY[ledger]):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        if verify_file(path).ok:
            missed.append(at)
    assert missed == []


@pytest.mark.parametrize("ledger", EVERY, ids=lambda path: path.stem)
async def test_moved_line_is_told_by_verify(tmp_path: Path, ledger: Path) -> None:
    """Lines left out, said twice, or in another order."""
    await record(tmp_path, ("hello", "and again"), **ENFORCE, **{**LEARNING, "ho3_gate_count_threshold": 1})
    path = tmp_path / ledger
    lines = path.read_bytes().splitlines(keepends=True)
    for at in range(len(lines) - 1):
        changed = [
            [*lines[:at], *lines[at + 1 :]],
            [*lines[: at + 1], lines[at], *lines[at + 1 :]],
            [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]],
        ]
        for each in changed:
            path.write_bytes(b"".join(each))
            assert not verify_file(path).ok


_TIME = "how long something took, or might have taken"
_CALLER = "what a caller chose"
GIVEN: Mapping[tuple[str, str], str] = {
    ("TURN_STARTED", "read_positions"): "where the ledgers stood is what a replay begins with",
    ("TURN_COMPLETED", "read_positions"): "where the ledgers stood, a moment later",
    ("TURN_STARTED", "config_hash"): "covers settings that decide nothing, such as the length of a queue",
    ("SESSION_START", "external_id"): _CALLER,
    ("TURN_STARTED", "overlap"): _CALLER,
    ("TURN_STARTED", "idempotency_key"): _CALLER,
    ("TURN_STARTED", "idempotency_scope"): _CALLER,
    (
        "PROJECTION_COMPUTED",
        "eligible_refs.base",
    ): "the same lists can be written along another one; what they come to is compared",
    ("HO3_SIGNAL", "timestamp"): "when it was logged; the gate counts as of the entry's own time, which is verified",
    ("HO3_SIGNAL", "v"): "the version of the payload",
    ("DEGRADATION", "error"): "what a part failed with",
    ("WO_PLANNED", "constraints.timeout_ms"): _TIME,
    ("WO_COMPLETED", "cost.elapsed_ms"): _TIME,
    ("WO_FAILED", "cost.elapsed_ms"): _TIME,
    ("TURN_COMPLETED", "direct_cost.elapsed_ms"): _TIME,
}
"""Fields that may say something else without a replay telling, and why."""


def fields_of(payload: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of a payload's fields, the fields of objects among them."""
    for key, value in payload.items():
        yield (*at, key)
        if isinstance(value, dict) and not at and key not in ("read_positions", "eligibility_reasons"):
            yield from fields_of(value, (key,))


def another(value: Any) -> Any:
    """A value of the same kind that is another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1:] != "0" else "1")
    if isinstance(value, list):
        return value[:-1] if value else [1]
    return {**value, "more": 1} if isinstance(value, dict) else "something"


def forged(entry: StoredEntry, path: Sequence[str], signer: Signer) -> StoredEntry:
    """The entry with another value in one field; its place, id and hash are as they were.

    A projection is signed again with its own key, so that something else than the signature must tell.
    """
    text = {**json.loads(entry.body), "payload": json.loads(json.dumps(entry.payload))}  # opened, as the copy has no key
    holder = text["payload"]
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = another(holder[path[-1]])
    if entry.entry_type == "PROJECTION_COMPUTED" and path[0] != "authority":
        signed_by(text["payload"], signer)
    body = json.dumps(text).encode()
    what = (entry.entry_type, entry.entity_id, entry.timestamp, body, entry.session_id, entry.keys, None)
    return StoredEntry(entry.ledger_id, entry.seq, entry.entry_id, entry.entry_hash, *what)


async def told(
    replays: Replays,
    tape: Tape,
    forgery: tuple[StoredEntry, tuple[str, ...]],
    patch: pytest.MonkeyPatch,
    signer: Signer,
    turn_id: str | None = None,
) -> bool:
    """Whether the replay of a session, or of one turn of it, tells that one field of one entry is not what was decided."""
    entry, path = forgery
    entries = {
        ledger_id: [forged(each, path, signer) if each is entry else each for each in known]
        for ledger_id, known in tape.entries.items()
    }

    async def tape_of(_: str) -> Tape:
        made = Tape(tape.session_id, entries, ho2m=tape.ho2m, names=tape.names, signers=tape.signers)
        made.turns = [turn for turn in made.turns if turn_id in (None, turn.turn_id)]
        return made

    with patch.context() as changed:
        changed.setattr(replays, "tape_of", tape_of)
        try:
            report = await replays.replay(tape.session_id)
            return not report.is_identical or report.policy is not None
        except Exception:  # noqa: BLE001  what cannot be read as a record at all is told too
            return True


def entries_of(tape: Tape) -> Iterator[tuple[StoredEntry, str]]:
    """The entries of a session that a replay works out, each with its turn."""
    for entry in tape.opening if tape.turns and tape.turns[0].is_replayable else ():
        yield entry, tape.turns[0].turn_id
    for turn in tape.turns:
        for entry in (each for known in turn.entries.values() for each in known) if turn.is_replayable else ():
            yield entry, turn.turn_id


async def test_forged_field_is_told_by_replay(recorded_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each field of each type of entry that a session writes, once."""
    settings = settings_of(recorded_root / corpus.SETTINGS.name, None)
    signer = load_signer(recorded_root / KEY)
    tried, missed = set[tuple[str, str]](), dict[tuple[str, str], str]()
    for agent_class in ("RESIDENT:off", "RESIDENT:ask", "RESIDENT:shadow", "RESIDENT:declare", "RESIDENT:bridge", "ADMIN"):
        async with open_replays(settings, agent_class, verify=False) as replays:
            tapes = [await replays.tape_of(each) for each in await replays.sessions()]
            for tape in sorted(tapes, key=lambda each: len(each.turns)):
                for entry, turn_id in entries_of(tape):
                    new = [path for path in fields_of(entry.payload) if (entry.entry_type, ".".join(path)) not in tried]
                    for path in new:
                        tried.add((entry.entry_type, ".".join(path)))
                        if await told(replays, tape, (entry, path), monkeypatch, signer, turn_id):
                            continue
                        if not await told(replays, tape, (entry, path), monkeypatch, signer):
                            missed[entry.entry_type, ".".join(path)] = f"{tape.session_id} {entry.entry_id}"
    assert missed.keys() == GIVEN.keys(), {key: missed.get(key) for key in missed.keys() ^ GIVEN.keys()}
    assert len(tried) > 200
