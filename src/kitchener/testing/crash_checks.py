"""Looks into the ledgers of an agent that was killed and has recovered, and tells in sentences what is not as promised."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio.to_thread

from kitchener.ledger import LedgerReader, StoredEntry, compute_trace_hash, verify_file
from kitchener.records import events


async def look_into(root: Path) -> tuple[list[str], int]:
    """What is wrong in the ledgers under a root, and how many turns were aborted."""
    wrong, entries = list[str](), list[StoredEntry]()
    paths = await anyio.to_thread.run_sync(lambda: sorted(root.rglob("*.jsonl")))
    if not paths:
        return [f"there is no ledger under {root}: expected that build opens the agent there"], 0
    for path in paths:
        fault = verify_file(path).fault
        if fault is not None:
            wrong.append(f"a ledger does not verify: {fault}")
            continue
        async with LedgerReader.open(path) as reader:
            entries += [entry async for entry in reader.read()]
    supervisors = [entry for entry in entries if entry.ledger_id.startswith("HO2M:")]
    wrong += [*_turns(supervisors), *_each_once(entries), *_traces(entries)]
    return wrong, sum(entry.entry_type == events.TURN_ABORTED for entry in supervisors)


def _turns(entries: Sequence[StoredEntry]) -> Iterator[str]:
    """Each started turn has ended, and each message has one completed turn at most."""
    completed = {entry.entity_id for entry in entries if entry.entry_type == events.TURN_COMPLETED}
    ended = completed | {entry.entity_id for entry in entries if entry.entry_type == events.TURN_ABORTED}
    keys = Counter[tuple[object, object]]()
    for entry in entries:
        if entry.entry_type == events.TURN_STARTED:
            if entry.entity_id not in ended:
                yield f"turn {entry.entity_id} is open"
            keys[entry.session_id, entry.payload.get("idempotency_key")] += entry.entity_id in completed
    yield from (
        f"{key} of {session} has {count} completed turns" for (session, key), count in keys.items() if key and count > 1
    )


def _each_once(entries: Sequence[StoredEntry]) -> Iterator[str]:
    """Ids that may stand once."""
    once = {
        events.TURN_STARTED: "turn",
        events.TURN_COMPLETED: "end of turn",
        events.WO_PLANNED: "work order",
        events.SESSION_START: "session",
        events.INTENT_DECLARED: "intent",
    }
    found = Counter((each.ledger_id, each.entry_type, each.entity_id) for each in entries if each.entry_type in once)
    yield from (f"{once[kind]} {name} is there {count} times" for (_, kind, name), count in found.items() if count > 1)


def _traces(entries: Sequence[StoredEntry]) -> Iterator[str]:
    """The executor's entries of each completed turn are those that its supervisor saw."""
    traces: dict[tuple[str, object], list[StoredEntry]] = {}
    for entry in entries:
        ledger, _, agent_class = entry.ledger_id.partition(":")
        if ledger == "HO1M":
            traces.setdefault((agent_class, entry.payload.get("turn_id")), []).append(entry)
    for entry in entries:
        if entry.entry_type == events.TURN_COMPLETED:
            trace = traces.get((entry.ledger_id.partition(":")[2], entry.entity_id), [])
            if entry.payload["trace_hash"] != compute_trace_hash(trace):
                yield f"turn {entry.entity_id}: the executor's entries are not those that its trace hash was taken of"
