"""Kills an agent at many places of its life, and looks whether everything that was promised is there.

`docs/survival.md` lists the promises. The lives are forked from a fresh process without threads, so a test may call it from
anywhere but an event loop.
"""

import gc
import hashlib
import importlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, Literal, NamedTuple

import anyio
import anyio.to_thread

from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.policy_identity import policy_code
from kitchener.config import DEFAULT_AGENT
from kitchener.errors import CallerError, OutcomeUnknown
from kitchener.ids import SessionId
from kitchener.ledger import LedgerReader, StoredEntry, compute_trace_hash, verify_file
from kitchener.records import events
from kitchener.records.entries import TurnCompletedPayload, TurnStartedPayload, payload_as
from kitchener.runtime import Runtime
from kitchener.testing.crash_process import CrashProcess, Life, Tell
from kitchener.testing.kill_places import KillPlaces

AgentBuilder = Callable[[Path], AbstractAsyncContextManager[Runtime]]
"""Opens the agent with all its ledgers under a directory, such as `open_runtime("kitchener.toml", root=root, tools=[…])`."""
MessageKey = tuple[str, int]
"""A subject, and the number of one of its messages, from 0."""

_EVERY_RECOVERY_TO_KILL: Final = 4
_IN_RECOVERY: Final = 40
"""Places at the beginning of a recovery among which one is chosen to kill it."""
_GRACE_S: Final = 30.0


class CrashRoot(NamedTuple):
    """What one root came to, for a check of your own."""

    root: Path
    """The directory of the ledgers, and of whatever your tools wrote there."""
    acknowledged: Mapping[MessageKey, str]
    """The turn id of each message whose result was returned, by subject and number."""
    unknown: frozenset[MessageKey]
    """Messages whose tool may have had its effect before the crash: `OutcomeUnknown`, nothing is run again."""


CrashCheck = Callable[[CrashRoot], Iterable[str]]
"""Says in sentences what is wrong."""


@dataclass(slots=True)
class CrashReport:
    """What a crash test came to."""

    places: int = 0
    """Places in one life at which the agent can be killed."""
    kills: int = 0
    """Processes that were killed, those in recovery among them."""
    in_recovery: int = 0
    outlived: int = 0
    """Lives that ended before they came to the place where they were to be killed."""
    acknowledged: int = 0
    """Turns whose result was returned before a kill; all of them are there."""
    aborted: int = 0
    """Turns that a kill cut off; their messages were answered later."""
    outcome_unknown: int = 0
    """Messages that were not run again because their tool may have had its effect."""
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)
    """What was promised and is not so, in sentences."""


@dataclass(frozen=True, slots=True)
class _CrashPlan:
    build: AgentBuilder
    conversations: Mapping[str, Sequence[str]]
    agent_class: str
    check: CrashCheck | None
    backend: str
    where: Path
    life_s: float


def crash_test(
    build: AgentBuilder,
    messages: Sequence[str] | Mapping[str, Sequence[str]],
    *,
    kills: int = 20,
    check: CrashCheck | None = None,
    agent_class: str = DEFAULT_AGENT,
    backend: Literal["asyncio", "trio"] = "asyncio",
    root: str | Path | None = None,
    life_s: float = 60.0,
) -> CrashReport:
    """Kills an agent in the middle of a conversation, again and again, and returns if it kept all promises.

    The same conversation is led on a new root each time, and killed with `SIGKILL` at a place of its own. The places are spread
    evenly over everything that the ledgers take and write. Then another process opens the root, sends every message again
    with the idempotency key it had, and compares. Every fourth of these processes is killed too.

    Args:
        build: opens the agent with all ledgers under the directory that it is given; a function at the top of a module, because
            another process imports it. Give it answers of `ScriptedProvider`, or a model that costs nothing.
        messages: messages of one conversation, or of several at once, by subject id
        kills: on how many roots
        check: looks for what only you know, such as the effects of your tools; at the top of a module too
        agent_class: the agent class
        backend: the event loop library
        root: where to work, kept where a promise is broken; None: a temporary directory
        life_s: how long one process may take, seconds

    Raises:
        AssertionError: a promise was broken; names it, and the directory with its ledgers
        CallerError: an argument is wrong, or this machine has no `fork`
    """
    conversations = {"crash-test": tuple(messages)} if not isinstance(messages, Mapping) else messages
    _check_arguments(build, check, conversations, kills)
    shared = "/dev/shm" if root is None and os.access("/dev/shm", os.W_OK) else None
    where = Path(root) if root is not None else Path(tempfile.mkdtemp(prefix="kitchener-crash-", dir=shared))
    where.mkdir(parents=True, exist_ok=True)
    plan = _CrashPlan(build, conversations, agent_class, check, backend, where, life_s)
    began = time.monotonic()
    is_kept = root is not None
    try:
        report = _in_fresh_process(plan, kills)
        report.seconds = round(time.monotonic() - began, 1)
        if report.violations:
            is_kept = True
            broken = [f"{len(report.violations)} broken promises, kept in {where}:", *report.violations]
            raise AssertionError("\n  ".join(broken))
        return report
    finally:
        if not is_kept:  # also if the test was interrupted
            shutil.rmtree(where, ignore_errors=True)


def _check_arguments(
    build: AgentBuilder, check: CrashCheck | None, conversations: Mapping[str, Sequence[str]], kills: int
) -> None:
    if not hasattr(os, "fork"):
        raise CallerError("crash_test needs os.fork, which this machine lacks")
    for name, given in (("build", build), ("check", check)):
        try:
            pickle.dumps(given)
        except (pickle.PicklingError, AttributeError, TypeError):
            raise CallerError(
                f"{name} = {given!r}: expected a function at the top of a module; another process imports it"
            ) from None
    if kills < 1:
        raise CallerError(f"kills = {kills}: expected at least 1")
    if not any(conversations.values()):
        raise CallerError("messages are empty: expected at least one")


def _in_fresh_process(plan: _CrashPlan, kills: int) -> CrashReport:
    """Runs the test in a process without threads, because only such a one may fork."""
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_main, args=(plan, kills, writer))
    process.start()
    writer.close()
    try:
        report: CrashReport = reader.recv()
    except EOFError:
        process.join()
        raise CallerError(
            f"the process of the crash test ended with {process.exitcode}; a program that calls it needs"
            ' `if __name__ == "__main__":` around what it does'
        ) from None
    finally:
        reader.close()
        if process.is_alive():
            process.join(_GRACE_S)
        process.close()
    return report


def _main(plan: _CrashPlan, kills: int, writer: Connection) -> None:
    # Before the forks, which would each do it: most of what a short life takes.
    importlib.import_module(f"anyio._backends._{plan.backend}")
    importlib.import_module("structlog")
    with suppress(ImportError):  # a life says so that needs it
        importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
    PromptLibrary.load()
    policy_code()
    gc.freeze()
    test = _CrashTest(plan)
    test.run(kills)
    writer.send(test.report)
    writer.close()


class _CrashTest:
    """Many kills, each on a root of its own."""

    def __init__(self, plan: _CrashPlan) -> None:
        self.report = CrashReport()
        self._plan = plan

    def run(self, kills: int) -> None:
        """A life that is not killed counts the places; then one life for each kill."""
        self.report.places = self._count_places()
        for n in range(min(kills, self.report.places)):
            if self.report.violations:
                return
            self._kill(n, 1 + n * self.report.places // kills)

    def _count_places(self) -> int:
        trial = _CrashTrial(self._plan, "whole", self.report)
        if trial.live(None) != 0 or not trial.is_answered():
            return 0
        trial.look()
        trial.drop()
        return trial.places

    def _kill(self, n: int, at: int) -> None:
        trial = _CrashTrial(self._plan, f"kill-{n + 1}-at-{at}", self.report)
        if trial.live(at) == -signal.SIGKILL:
            self.report.kills += 1
        else:
            self.report.outlived += 1
        self.report.acknowledged += len(trial.acknowledged)
        if n % _EVERY_RECOVERY_TO_KILL == 0 and trial.live(1 + n * 7 % _IN_RECOVERY) == -signal.SIGKILL:
            self.report.kills += 1
            self.report.in_recovery += 1
        if not self.report.violations and trial.live(None) == 0 and trial.is_answered():
            self.report.outcome_unknown += len(trial.unknown)
            trial.look()
        trial.drop()


class _CrashTrial:
    """One root, and what the processes that lived there promised."""

    def __init__(self, plan: _CrashPlan, name: str, report: CrashReport) -> None:
        self._plan, self._report, self._name = plan, report, name
        self._root = plan.where / name
        self._root.mkdir()
        self._replies: dict[MessageKey, str] = {}
        self.acknowledged: dict[MessageKey, str] = {}
        self.unknown: set[MessageKey] = set()
        self.places = 0

    def live(self, at: int | None) -> int:
        """One process that sends all messages; how it ended."""
        return self._run(partial(_live, self._plan, self._root), at)

    def _run(self, life: Life, at: int | None) -> int:
        process = CrashProcess(life, self._plan.backend, at, self._plan.life_s)
        code = process.wait()
        for line in process.lines:
            word, _, rest = line.partition(" ")
            self._note(word, json.loads(rest) if rest else None)
        if code not in (0, -signal.SIGKILL) and not self._report.violations:
            self._wrong([f"a process ended with {code}"])
        return code

    def _note(self, word: str, told: object) -> None:
        if word == "ack" and isinstance(told, list):
            subject, number, turn_id, digest = told
            turn = (subject, number)
            earlier = self.acknowledged.setdefault(turn, turn_id), self._replies.setdefault(turn, digest)
            if earlier != (turn_id, digest):
                self._wrong([f"message {number} of {subject} was acknowledged as {earlier[0]}, and later got another result"])
            if turn in self.unknown:
                self._wrong([f"message {number} of {subject} was run although its outcome was unknown"])
        elif word == "unknown" and isinstance(told, list):
            subject, number = told
            self.unknown.add((subject, number))
            if (subject, number) in self.acknowledged:
                self._wrong([f"message {number} of {subject} was acknowledged, and its outcome is unknown now"])
        elif word == "places" and isinstance(told, int):
            self.places = told
        elif word == "aborted" and isinstance(told, int):
            self._report.aborted += told
        elif word == "wrong":
            self._wrong([str(told)])
        elif word == "failed":
            self._wrong([f"a process failed: {told}"])
        elif word == "hangs":
            self._wrong([f"a process took more than {self._plan.life_s:g} s"])

    def is_answered(self) -> bool:
        """Whether every message has its result, or is known to be unknown."""
        missing = [
            f"message {number} of {subject} has no answer"
            for subject, messages in self._plan.conversations.items()
            for number in range(len(messages))
            if (subject, number) not in self.acknowledged and (subject, number) not in self.unknown
        ]
        self._wrong(missing)
        return not missing

    def look(self) -> None:
        """Looks for broken promises in the ledgers, and asks the caller's check."""
        found = CrashRoot(self._root, dict(self.acknowledged), frozenset(self.unknown))
        self._run(partial(_look, found, self._plan.check), None)

    def _wrong(self, sentences: Iterable[str]) -> None:
        self._report.violations += [f"{self._name}: {each}" for each in sentences]

    def drop(self) -> None:
        """Removes the ledgers, unless a promise is broken."""
        if not self._report.violations:
            shutil.rmtree(self._root)


async def _live(plan: _CrashPlan, root: Path, tell: Tell, places: KillPlaces) -> None:
    """All conversations at once, each one message after the other; what was said before gets the recorded result."""

    async def converse(runtime: Runtime, session: int, subject: str, messages: Sequence[str]) -> None:
        supervisor, session_id = runtime.supervisor(plan.agent_class), SessionId(f"SES-{session:08x}")
        await supervisor.start_session(session_id, subject_id=subject)
        for number, message in enumerate(messages):
            try:
                result = await supervisor.handle_turn(message, session_id=session_id, idempotency_key=f"message {number}")
            except OutcomeUnknown:
                tell(f"unknown {json.dumps([subject, number])}")
            else:
                digest = hashlib.sha256(result.response.encode()).hexdigest()
                tell(f"ack {json.dumps([subject, number, result.turn_id, digest])}")

    async with plan.build(root) as runtime:
        async with anyio.create_task_group() as tasks:
            for session, (subject, messages) in enumerate(plan.conversations.items(), 1):
                tasks.start_soon(converse, runtime, session, subject, messages)
        await runtime.drain()
    tell(f"places {places.passed}")


async def _look(found: CrashRoot, check: CrashCheck | None, tell: Tell, _: KillPlaces) -> None:
    wrong, aborted = await _look_into(found.root)
    if check is not None:
        wrong += await anyio.to_thread.run_sync(lambda: list(check(found)))  # a check may run an event loop of its own
    for each in wrong:
        tell(f"wrong {json.dumps(each)}")
    tell(f"aborted {aborted}")


async def _look_into(root: Path) -> tuple[list[str], int]:
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
            key = payload_as(TurnStartedPayload, entry.payload).get("idempotency_key")
            keys[entry.session_id, key] += entry.entity_id in completed
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
            traces.setdefault((agent_class, events.read_common(entry).get("turn_id")), []).append(entry)
    for entry in entries:
        if entry.entry_type == events.TURN_COMPLETED:
            trace = traces.get((entry.ledger_id.partition(":")[2], entry.entity_id), [])
            if payload_as(TurnCompletedPayload, entry.payload)["trace_hash"] != compute_trace_hash(trace):
                yield f"turn {entry.entity_id}: the executor's entries are not those that its trace hash was taken of"
