"""Any byte of a ledger is told by verify; any decision that it tells otherwise, with all hashes right, by replay."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kitchener.ledger.format.lines import StoredEntry, compute_trace_hash
from kitchener.ledger.verify.verification import verify_file
from kitchener.replaying import Replays, open_replays
from kitchener.replaying.consolidations import ConsolidationTape
from kitchener.replaying.tape import Tape
from kitchener.runtime.root_layout import settings_of
from kitchener.signing import Signer, load_signer
from tests.replay import corpus
from tests.replay.shared.recorded_sessions import KEY, record
from tests.replay.test_replay_diverges import CONTEXT, ENFORCE, HO1M, HO2M, LEARNING, SIGNALS
from tests.replay.test_replay_signed import signed_by
from tests.shared.payloads import payload_of

OVERLAYS = SIGNALS.with_name("overlays.jsonl")
EVERY = {HO1M: 7, HO2M: 53, CONTEXT: 1, SIGNALS: 1, OVERLAYS: 1}
"""`make soak` changes every n-th byte of the long ledgers, and each of the others; `make test` changes one in five of these."""


ONE_IN = [pytest.param(4, id="fourth"), pytest.param(1, id="all", marks=pytest.mark.soak)]
"""How many of the fields are forged: one in so many."""
pytestmark = pytest.mark.timeout(300)  # recording the root takes some seconds of CPU, on a busy machine many


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Recorded on asyncio; see `test_mutated_settings.py`."""
    return "trio"


@pytest.mark.parametrize("ledger", EVERY, ids=lambda path: path.stem)
@pytest.mark.parametrize("one_in", [5, pytest.param(1, marks=pytest.mark.soak)])
async def test_changed_byte_is_told_by_verify(tmp_path: Path, ledger: Path, one_in: int) -> None:
    """Wherever it stands: in ids, numbers, hashes, text, or between lines."""
    gate = {**LEARNING, "ho3_gate_count_threshold": 1}
    await record(tmp_path, ("hello",), **ENFORCE, **gate)
    path = tmp_path / ledger
    data = path.read_bytes()
    assert verify_file(path).ok
    assert data.count(b"\n") >= 1
    missed = []
    for at in range(0, len(data), one_in * EVERY[ledger]):
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
_PROVIDER = "what a provider did, and no decision depends on"
_UNKNOWN_FIELD = "one that readers do not know; what the lists come to is compared, and their own fields are forged too"
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
    ("PROJECTION_COMPUTED", "eligible_refs"): _UNKNOWN_FIELD,
    ("PROJECTION_COMPUTED", "visible_refs"): _UNKNOWN_FIELD,
    ("PROJECTION_COMPUTED", "suppressed_refs"): _UNKNOWN_FIELD,
    ("PROJECTION_COMPUTED", "suppressed_refs.rest"): "of items that no other field names, of which a first turn has none",
    ("HO3_SIGNAL", "timestamp"): "when it was logged; the gate counts as of the entry's own time, which is verified",
    ("DEGRADATION", "error"): "what a part failed with",
    ("LLM_CALL", "attempt"): _PROVIDER,
    ("LLM_CALL", "finish_reason"): _PROVIDER,
    ("LLM_CALL", "latency_ms"): _TIME,
    ("ATTEMPT_FAILED", "attempt"): _PROVIDER,
    ("ATTEMPT_FAILED", "reason"): _PROVIDER,
    ("ATTEMPT_FAILED", "detail"): _PROVIDER,
    ("ATTEMPT_FAILED", "output_begun"): _PROVIDER,
    ("WO_PLANNED", "constraints.timeout_ms"): _TIME,
    ("WO_COMPLETED", "cost.elapsed_ms"): _TIME,
    ("WO_FAILED", "cost.elapsed_ms"): _TIME,
    ("TURN_COMPLETED", "direct_cost.elapsed_ms"): _TIME,
}
"""Fields that may say something else without a replay telling, and why."""
GIVEN_IN_LEARNING: Mapping[tuple[str, str], str] = {
    ("WO_PLANNED", "config_hash"): GIVEN["TURN_STARTED", "config_hash"],
    ("WO_PLANNED", "consolidates.signals_position"): "where the ledger stood; what was counted up to it is compared",
    ("HO3_OVERLAY", "created_at"): "when it was logged; what it is shown as of is the gate's moment, which is compared",
    ("LLM_CALL", "attempt"): _PROVIDER,
    ("LLM_CALL", "finish_reason"): _PROVIDER,
    ("LLM_CALL", "latency_ms"): _TIME,
    ("WO_PLANNED", "constraints.timeout_ms"): _TIME,
    ("WO_COMPLETED", "cost.elapsed_ms"): _TIME,
    ("WO_FAILED", "cost.elapsed_ms"): _TIME,
}
"""The same of the entries of consolidations."""


def fields_of(payload: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of a payload's fields, the fields of objects among them."""
    for key, value in payload.items():
        yield (*at, key)
        if isinstance(value, dict) and not at and key not in ("read_positions", "eligibility_reasons", "signals"):
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


def rewritten(entry: StoredEntry, payload: Mapping[str, Any]) -> StoredEntry:
    """The entry with another payload, in plain text, since the copy has no key; its place, id and hash are as they were."""
    body = json.dumps({**json.loads(entry.body), "payload": payload}).encode()
    what = (entry.entry_type, entry.entity_id, entry.timestamp, body, entry.session_id, entry.keys, None)
    return StoredEntry(entry.ledger_id, entry.seq, entry.entry_id, entry.entry_hash, *what)


def forged(entry: StoredEntry, path: Sequence[str], signer: Signer) -> StoredEntry:
    """The entry with another value in one field; with an empty path, in none.

    A projection is signed again with its own key, so that something else than the signature must tell.
    """
    payload = json.loads(json.dumps(entry.payload))
    if path:
        holder = payload
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = another(holder[path[-1]])
        if entry.entry_type == "PROJECTION_COMPUTED" and path[0] != "authority":
            signed_by(payload, signer)
    return rewritten(entry, payload)


def with_one_forged(tape: Tape, forgery: tuple[StoredEntry, Sequence[str]], signer: Signer) -> dict[str, list[StoredEntry]]:
    """The entries of a tape after a forgery. Trace hashes of its turn are taken again, so that something else must tell."""
    entry, path = forgery
    new = forged(entry, path, signer)
    entries = {name: [new if each is entry else each for each in known] for name, known in tape.entries.items()}
    trace = [each for each in tape.entries[entry.ledger_id] if each.payload.get("turn_id") == entry.payload.get("turn_id")]
    again = [new if each is entry else each for each in trace]
    hashes = {compute_trace_hash(trace[:n]): compute_trace_hash(again[:n]) for n in range(len(trace) + 1)}
    entries[tape.ho2m] = [
        rewritten(each, {**payload_of(each), "trace_hash": hashes[payload_of(each)["trace_hash"]]})
        if each is not new and each.payload.get("trace_hash") in hashes
        else each
        for each in entries[tape.ho2m]
    ]
    return entries


async def told(
    replays: Replays,
    tape: Tape,
    forgery: tuple[StoredEntry, tuple[str, ...]],
    patch: pytest.MonkeyPatch,
    signer: Signer,
    turn_id: str | None = None,
) -> bool:
    """Whether the replay of a session, or of one turn of it, tells that one field of one entry is not what was decided."""
    entries = with_one_forged(tape, forgery, signer)

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


@pytest.mark.parametrize("one_in", ONE_IN)
async def test_forged_field_is_told_by_replay(recorded_root: Path, monkeypatch: pytest.MonkeyPatch, one_in: int) -> None:
    """Each field of each type of entry that a session writes, once; in `make test` every fourth, and some of each type."""
    settings = settings_of(recorded_root / corpus.SETTINGS.name, None)
    signer = load_signer(recorded_root / KEY)
    seen, tried, missed = set[tuple[str, str]](), set[tuple[str, str]](), dict[tuple[str, str], str]()
    for agent_class in ("RESIDENT:off", "RESIDENT:ask", "RESIDENT:shadow", "RESIDENT:declare", "RESIDENT:bridge", "ADMIN"):
        async with open_replays(settings, agent_class, verify=False) as replays:
            tapes = [await replays.tape_of(each) for each in await replays.sessions()]
            for tape in sorted(tapes, key=lambda each: len(each.turns)):
                for entry, turn_id in entries_of(tape):
                    for path in new_fields(entry, seen, one_in):
                        tried.add((entry.entry_type, ".".join(path)))
                        if await told(replays, tape, (entry, path), monkeypatch, signer, turn_id):
                            continue
                        if not await told(replays, tape, (entry, path), monkeypatch, signer):
                            missed[entry.entry_type, ".".join(path)] = f"{tape.session_id} {entry.entry_id}"
    assert sorted(missed.keys() ^ (GIVEN.keys() & tried)) == []
    assert GIVEN.keys() <= seen
    assert len(seen) > 200
    assert len(tried) > 200 // one_in
    assert {entry_type for entry_type, _ in tried} == {entry_type for entry_type, _ in seen}


def new_fields(entry: StoredEntry, seen: set[tuple[str, str]], one_in: int) -> list[tuple[str, ...]]:
    """The fields of an entry that no entry of its type had before, or one in so many of them, the first among them."""
    new = [path for path in fields_of(entry.payload) if (entry.entry_type, ".".join(path)) not in seen]
    is_first = all(entry_type != entry.entry_type for entry_type, _ in seen)
    chosen = [path for at, path in enumerate(new, len(seen)) if at % one_in == 0]
    seen.update((entry.entry_type, ".".join(path)) for path in new)
    return chosen or (new[:1] if is_first else [])


async def test_entry_that_is_only_rewritten_is_not_told(recorded_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is the forged field that the test above finds, in an entry of any type."""
    settings = settings_of(recorded_root / corpus.SETTINGS.name, None)
    signer, tried = load_signer(recorded_root / KEY), set[str]()
    async with open_replays(settings, "RESIDENT:off", verify=False) as replays:
        for session_id in await replays.sessions():
            tape = await replays.tape_of(session_id)
            for entry, _ in entries_of(tape):
                if entry.entry_type not in tried:
                    tried.add(entry.entry_type)
                    assert not await told(replays, tape, (entry, ()), monkeypatch, signer), entry.entry_type
    assert tried >= {"TURN_STARTED", "LLM_CALL", "WO_COMPLETED", "WO_FAILED", "HO3_SIGNAL", "TURN_COMPLETED"}


async def told_of_learning(
    replays: Replays,
    tape: ConsolidationTape,
    forgery: tuple[StoredEntry, tuple[str, ...]],
    patch: pytest.MonkeyPatch,
    signer: Signer,
) -> bool:
    """Whether the replay of consolidations tells that one field of one entry is not what was decided."""
    entries, recorded = with_one_forged(tape, forgery, signer), replays.recorded

    async def tape_of(_: str) -> ConsolidationTape:
        return ConsolidationTape(tape.session_id, entries, ho1m=recorded.ho1m, ho2m=recorded.ho2m)

    with patch.context() as changed:
        changed.setattr(replays, "consolidation_tape", tape_of)
        try:
            report = await replays.replay(tape.session_id)
            return not report.is_identical or len(report.consolidations) < len(tape.consolidations)
        except Exception:  # noqa: BLE001  what cannot be read as a record at all is told too
            return True


@pytest.mark.parametrize("one_in", ONE_IN)
async def test_forged_field_of_a_consolidation_is_told_by_replay(
    recorded_root: Path, monkeypatch: pytest.MonkeyPatch, one_in: int
) -> None:
    """Each field of each type of entry that a consolidation writes: plans, calls, lessons, what they superseded."""
    settings = settings_of(recorded_root / corpus.SETTINGS.name, None)
    signer = load_signer(recorded_root / KEY)
    seen, tried, missed = set[tuple[str, str]](), set[tuple[str, str]](), dict[tuple[str, str], str]()
    for agent_class in settings.agents:
        async with open_replays(settings, agent_class, verify=False) as replays:
            for session_id in await replays.consolidations():
                tape = await replays.consolidation_tape(session_id)
                turns = [each for each in tape.consolidations if each.is_replayable]
                for entry in (each for turn in turns for known in turn.entries.values() for each in known):
                    new = new_fields(entry, seen, one_in)
                    if new:
                        assert not await told_of_learning(replays, tape, (entry, ()), monkeypatch, signer)
                    for path in new:
                        tried.add((entry.entry_type, ".".join(path)))
                        if not await told_of_learning(replays, tape, (entry, path), monkeypatch, signer):
                            missed[entry.entry_type, ".".join(path)] = f"{session_id} {entry.entry_id}"
    assert sorted(missed.keys() ^ (GIVEN_IN_LEARNING.keys() & tried)) == []
    assert GIVEN_IN_LEARNING.keys() <= seen
    assert {entry_type for entry_type, _ in tried} == {entry_type for entry_type, _ in seen}
    assert {entry_type for entry_type, _ in tried} >= {
        *("WO_PLANNED", "WO_DISPATCHED", "WO_EXECUTING", "LLM_CALL", "WO_COMPLETED", "WO_FAILED"),
        *("HO3_OVERLAY", "HO3_OVERLAY_DEACTIVATED"),
    }
