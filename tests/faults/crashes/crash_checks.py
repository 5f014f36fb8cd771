"""What must hold after every crash, looked up in the ledgers through their readers; what does not is told in sentences.

In the words of `docs/survival.md`: all acknowledged turns are there, none twice, chains verify, what is derived equals what is
computed anew, and the next turn is valid.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kitchener.context import ContextState, estimator, fold, make_event
from kitchener.ids import consolidation_session
from kitchener.ledger import LedgerReader, StoredEntry, compute_trace_hash, verify_file
from kitchener.memory.overlays import gate_window_key
from kitchener.memory.recorded_signals import seen_in, stored_signals
from kitchener.memory.subject_cache import overlay_keys, signal_keys
from kitchener.records import events
from kitchener.records.index_keys import index_keys
from kitchener.runtime import Runtime
from kitchener.runtime.root_layout import sealer_of
from tests.acceptance.stack import places, scripted_config
from tests.faults.crashes.crash_load import EFFECTS, SESSIONS, digest_of, message_of, namespaces, reply_of, session_of
from tests.shared.payloads import payload_of

_WINDOW_HOURS: Final = 168
_CLOSED: Final = (
    ("WO_PLANNED", "WO_ABANDONED"),
    ("WO_PLANNED", "WO_DISPATCHED", "WO_ABANDONED"),
    ("WO_PLANNED", "WO_DISPATCHED", "WO_COMPLETED"),
)
_KEYS_LOOKED_UP: Final = 40


@dataclass(slots=True)
class Promises:
    """What the processes said before they died, over the whole life of a root."""

    acknowledged: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    """Turn id and digest of the reply, by session and number."""
    unknown: set[tuple[int, int]] = field(default_factory=set)
    """Messages whose tool may have had its effect: they are not run again."""


@dataclass(slots=True)
class Recorded:
    """All entries of the five ledgers."""

    ho2m: list[StoredEntry]
    ho1m: list[StoredEntry]
    context: list[StoredEntry]
    signals: list[StoredEntry]
    overlays: list[StoredEntry]

    def turns(self, entry_type: str) -> list[StoredEntry]:
        """Entries of one type in HO2m."""
        return [entry for entry in self.ho2m if entry.entry_type == entry_type]


def ledger_paths(root: Path) -> dict[str, tuple[Path, Any]]:
    """Where the five ledgers are, and by which keys they are indexed."""
    at = places(root)
    memory = root / "HOT" / "memory"
    return {
        "ho2m": (at["ho2m"], index_keys),
        "ho1m": (at["ho1m"], None),
        "context": (at["context"], None),
        "signals": (memory / "signals.jsonl", signal_keys),
        "overlays": (memory / "overlays.jsonl", overlay_keys),
    }


async def check_files(root: Path, *, is_thorough: bool) -> tuple[Recorded, list[str]]:
    """Chains verify, and what the indexes find is what a scan finds."""
    found: dict[str, list[StoredEntry]] = {}
    wrong: list[str] = []
    sealer = sealer_of(scripted_config(root))
    for name, (path, keys) in ledger_paths(root).items():
        report = verify_file(path)
        if report.fault is not None:
            wrong.append(f"{name} does not verify: {report.fault}")
        async with LedgerReader.open(path, index_keys=keys, sealer=sealer) as reader:
            found[name] = [entry async for entry in reader.read()]
            wrong += [each async for each in _check_index(name, reader, found[name], keys, is_thorough=is_thorough)]
    return Recorded(**found), wrong


async def _check_index(name: str, reader: LedgerReader, entries: Sequence[StoredEntry], keys: Any, *, is_thorough: bool) -> Any:
    by_session, by_key = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for entry in entries:
        if entry.session_id is not None:
            by_session[entry.session_id].append(entry.seq)
        for key in keys(entry.entry_type, entry.payload) if keys is not None else ():
            by_key[key].append(entry.seq)
    for session_id, expected in by_session.items():
        if [entry.seq async for entry in reader.read(session_id=session_id)] != expected:
            yield f"the index of {name} does not find the entries of {session_id}"
    for key in list(by_key) if is_thorough else list(by_key)[-_KEYS_LOOKED_UP:]:
        if [entry.seq async for entry in reader.read(key=key)] != by_key[key]:
            yield f"the index of {name} does not find the entries of {key}"


def check_record(root: Path, recorded: Recorded, promises: Promises) -> list[str]:
    """Everything that can be seen in the entries."""
    return [
        *_acknowledged(recorded, promises),
        *_each_once(recorded),
        *_turns(recorded),
        *_work_orders(recorded),
        *_intents(recorded),
        *_consolidations(recorded),
        *_effects(root, recorded, promises),
    ]


def _acknowledged(recorded: Recorded, promises: Promises) -> Iterator[str]:
    completed = {entry.entity_id: entry for entry in recorded.turns(events.TURN_COMPLETED)}
    keys = Counter[tuple[str, str]]()
    started: dict[str, tuple[str, str]] = {}
    for entry in recorded.turns(events.TURN_STARTED):
        started[entry.entity_id] = (str(entry.session_id), str(entry.payload.get("idempotency_key")))
    keys.update(started[turn] for turn in completed if turn in started)
    yield from (f"key {key} has {count} completed turns" for key, count in keys.items() if count > 1)
    for (session, number), (turn_id, digest) in promises.acknowledged.items():
        end = completed.get(turn_id)
        if end is None:
            yield f"turn {turn_id} was acknowledged and is not there"
        elif digest != digest_of(payload_of(end)["response"]) or payload_of(end)["response"] != reply_of(session, number):
            yield f"turn {turn_id} was acknowledged with another reply than the one on record"
    for session, number in promises.unknown:
        if keys[session_of(session), f"k{number}"]:
            yield f"message {session}.{number} has a turn although its outcome was unknown"


def _each_once(recorded: Recorded) -> Iterator[str]:
    named: dict[str, Sequence[object]] = {
        "turn": [entry.entity_id for entry in recorded.turns(events.TURN_STARTED)],
        "end of a turn": [e.entity_id for e in recorded.ho2m if e.entry_type in (events.TURN_COMPLETED, events.TURN_ABORTED)],
        "work order": [entry.entity_id for entry in recorded.turns(events.WO_PLANNED)],
        "model call": [(e.entity_id, e.payload["call"]) for e in recorded.ho1m if e.entry_type == events.LLM_CALL],
        "intent": [entry.entity_id for entry in recorded.turns(events.INTENT_DECLARED)],
        "event": list(logged_events(recorded)),
        "session": [entry.entity_id for entry in recorded.turns(events.SESSION_START)],
        "projection": [e.entity_id for e in recorded.context if e.entry_type == events.PROJECTION_COMPUTED],
    }
    for what, ids in named.items():
        yield from (f"{what} {each} is there {count} times" for each, count in Counter(ids).items() if count > 1)


def _turns(recorded: Recorded) -> Iterator[str]:
    ended = {e.entity_id for e in recorded.ho2m if e.entry_type in (events.TURN_COMPLETED, events.TURN_ABORTED)}
    for entry in recorded.turns(events.TURN_STARTED):
        if entry.entity_id not in ended:
            yield f"turn {entry.entity_id} is open"
    traces = defaultdict[str, list[StoredEntry]](list)
    for entry in recorded.ho1m:
        traces[str(entry.payload.get("turn_id"))].append(entry)
    refs = {(each.ledger_id, each.entry_id): each.entry_hash for each in (*recorded.ho1m, *recorded.context, *recorded.ho2m)}
    for entry in recorded.turns(events.TURN_COMPLETED):
        payload = payload_of(entry)
        if payload["trace_hash"] != compute_trace_hash(traces[entry.entity_id]):
            yield f"turn {entry.entity_id}: the executor's entries are not those that its trace hash was taken of"
        for name in ("projection_ref", "user_message_ref"):
            ref = payload[name]
            if ref is None or refs.get((ref["ledger_id"], ref["entry_id"])) != ref["entry_hash"]:
                yield f"turn {entry.entity_id}: its {name} leads nowhere"
        if payload.get("error") is not None:
            yield f"turn {entry.entity_id} has an error: {payload['error']}"


def _work_orders(recorded: Recorded) -> Iterator[str]:
    lives = defaultdict[str, tuple[str, ...]](tuple)
    for entry in recorded.ho2m:
        if entry.entry_type.startswith("WO_") and entry.entry_type not in ("WO_QUALITY_GATE", "WO_CHAIN_COMPLETE"):
            lives[entry.entity_id] += (entry.entry_type,)
    yield from (f"work order {wo_id} has the life {life}" for wo_id, life in lives.items() if life not in _CLOSED)
    held = {(each.ledger_id, each.entry_id, each.entry_hash): each.entity_id for each in recorded.ho1m}
    for entry in recorded.turns(events.WO_COMPLETED):
        ref = payload_of(entry)["output_ref"]
        if ref is None or held.get((ref["ledger_id"], ref["entry_id"], ref["entry_hash"])) != entry.entity_id:
            yield f"work order {entry.entity_id} is completed, and its output is not on record"


def _intents(recorded: Recorded) -> Iterator[str]:
    for entry in recorded.context:
        if entry.entry_type == events.CONFLICT_FLAG:
            yield f"the user was told of a conflict: {entry.payload.get('kind')} in {entry.payload['session_id']}"
    for session in range(SESSIONS):
        state = state_of(recorded, session_of(session))
        yield from (f"impossible: {each.problem}" for each in state.invalid.values())
        if len(state.live_intents) > 1:
            yield f"{session_of(session)} has several live intents: {', '.join(state.live_intents)}"


def state_of(recorded: Recorded, session_id: str) -> ContextState:
    """A session's state, folded from its entries."""
    made = [
        make_event(e.entry_type, e.entity_id, e.timestamp, e.payload, e.ref)
        for e in recorded.ho2m
        if e.session_id == session_id
    ]
    return fold([each for each in made if each is not None], estimator("utf8/3"), session_id, is_split=True)


def logged_events(recorded: Recorded) -> Iterator[tuple[str, str]]:
    """The namespace and the id of each event that the memory has logged."""
    for entry in recorded.signals:
        yield from ((payload_of(entry)["namespace"], each) for each in stored_signals(entry))


def _consolidations(recorded: Recorded) -> Iterator[str]:
    learned = Counter[str]()
    known = set(logged_events(recorded))
    for entry in recorded.overlays:
        payload = payload_of(entry)
        if entry.entry_type != events.HO3_OVERLAY:
            continue
        window = gate_window_key(payload["window_end"], _WINDOW_HOURS)
        learned[consolidation_session(payload["namespace"], payload["signal_id"], window)] += 1
        if any((payload["namespace"], each) not in known for each in payload["source_event_ids"]):
            yield f"overlay {payload['overlay_id']} rests on events that are not there"
    done = Counter(e.session_id for e in recorded.turns(events.WO_COMPLETED) if str(e.session_id).startswith("CONS-"))
    for session_id in {*learned, *(str(each) for each in done)}:
        if (learned[session_id], done[session_id]) != (1, 1):
            yield f"{session_id} was learned {learned[session_id]} times and completed {done[session_id]} times"


def _effects(root: Path, recorded: Recorded, promises: Promises) -> Iterator[str]:
    """No effect without a record before it, none twice unless the first one's end is on record too.

    A tool of a turn that HO2m does not know never ran: it waits until all ledgers are durable, HO2m the last of them.
    """
    started = {entry.entity_id for entry in recorded.turns(events.TURN_STARTED)}
    path = root / EFFECTS
    took_place = Counter(path.read_text().split()) if path.exists() else Counter[str]()
    begun, is_open = Counter[str](), dict[str, str]()
    for entry in recorded.ho1m:
        if entry.payload.get("tool_id") != "note" or entry.payload["turn_id"] not in started:
            continue
        if entry.entry_type == events.TOOL_STARTED:
            message = payload_of(entry)["arguments"]["text"]
            begun[message] += 1
            if message in is_open.values():
                yield f"the effect of message {message} was repeated although its outcome was unknown"
            is_open[entry.entity_id] = message
        elif entry.entry_type == events.TOOL_CALL:
            is_open.pop(entry.entity_id, None)
    for message, count in took_place.items():
        if count > begun[message]:
            yield f"the effect of message {message} took place {count} times, {begun[message]} are on record"
    for session, number in promises.acknowledged:
        message = f"{session}.{number}"
        if message_of(session, number).startswith("tool ") and (not took_place[message] or message in is_open.values()):
            yield f"message {message} was acknowledged, and its effect is missing or its outcome unknown"


async def check_running(runtime: Runtime, sessions: Iterable[int]) -> list[str]:
    """What a running process keeps in memory is what its ledgers fold to. Call it when nothing runs."""
    wrong, ledgers, memory = [], runtime.ledgers(), runtime.memory()
    opened = (ledgers.ho2m, ledgers.ho1m, ledgers.context, memory.signals, memory.overlays)
    recorded = Recorded(*[[entry async for entry in ledger.read()] for ledger in opened])
    counted: Mapping[str, Counter[str]] = {each: Counter() for each in namespaces()}
    for entry in recorded.signals:
        counted[payload_of(entry)["namespace"]].update(seen_in(entry)["signals"].values())
    for namespace, expected in counted.items():
        kept = {each.signal_id: each.count for each in await memory.read_signals(namespace=namespace)}
        if kept != expected:
            wrong.append(f"the memory of {namespace} counts otherwise than its ledger")
    for number in sessions:
        thread = (await runtime.supervisor().session(session_of(number))).thread
        if thread is None or thread.state.snapshot() != state_of(recorded, session_of(number)).snapshot():
            wrong.append(f"the context of {session_of(number)} is not what its entries fold to")
    return wrong
