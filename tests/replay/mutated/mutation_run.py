"""Which changes of policy code does a replay catch? Mutates each pure policy module and replays a recorded root under it.

    python -m tests.replay.mutated.mutation_run                      every mutant that the recorded sessions reach: many minutes
    python -m tests.replay.mutated.mutation_run --sample 200         a fixed sample
    python -m tests.replay.mutated.mutation_run --module context.projection --survivors

A parent process imports everything once, learns which session reaches which line, and tries each mutant in a child of its own:
there the code of the changed function is exchanged in place, and the sessions that reach it are replayed until one diverges.
A mutant is caught if its replay diverges, fails or does not end. Used by `test_mutated_policy.py`; figures in `docs/replay.md`.
"""

import argparse
import ast
import functools
import gc
import importlib.util
import json
import os
import pickle
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

import anyio

from tests.replay import corpus
from tests.replay.mutated import rerun
from tests.replay.mutated.mutants import Mutant, mutants_of
from tests.replay.mutated.rerun import Session

POLICY: Final = (
    "context.fold.context_events",
    "context.fold.chat_messages",
    "context.fold.excerpts",
    "context.flags",
    "context.intents.active",
    "context.fold.items",
    "context.lexical.turn_index",
    "context.lexical.features",
    "context.lexical.postings",
    "context.lexical.questions",
    "context.lexical.relayed_speakers",
    "context.lexical.words",
    "context.fold.lifecycle",
    "context.fold.state",
    "context.fold.tool_results",
    "context.projection.chat_layout",
    "context.projection.days",
    "context.projection.candidates",
    "context.projection.packer",
    "context.projection.record",
    "context.projection.ref_lists",
    "context.projection.projection",
    "context.intents.reachability",
    "context.projection.rendering",
    "context.projection.window",
    "context.ruleset",
    "context.intents.transitions",
    "memory.bias",
    "memory.gate",
    "memory.learned_lines",
    "memory.timestamps",
    "memory.overlays",
    "memory.signals",
    "memory.subject_memory",
    "actors.executor.answers",
    "actors.attention.retriever",
    "actors.authority.authority",
    "actors.work.budget",
    "actors.work.plan",
    "actors.work.turn_signals",
    "actors.turn.authority_in_turn",
    "actors.consolidation.lesson",
    "actors.executor.packs",
    "actors.work.quality",
    "actors.authority.ranking",
    "actors.approval.wording",
    "actors.sessions.pending_approvals",
    "actors.sessions.session_state",
    "actors.tools.approval_policy",
    "criteria",
    "gateway.routing",
    "media.media_types",
    "records.entries.common",
    "records.spoken",
    "records.tokens",
    "times",
)
"""The modules that decide, below `kitchener`."""
NO_POLICY: Final[Mapping[str, str]] = {
    "choices": "names sets of words, and has nothing that a mutant could change",
    "context": "names what others may use",
    "context.projection.explanation": "answers questions about recorded decisions, and takes none",
    "gateway.rules": "classifies in place of a model, and its answers are on record",
    "mcp.definitions": "turns the list of a server into definitions of tools, which are on record",
    "mcp.call_results": "turns the answer of a server into a result, which is on record",
    "tuning.gates": "asks what other thresholds would have learned",
    "tuning.routes": "asks where another router would have sent recorded calls",
    "ledger.format.lines": "makes the hashes that verify recomputes; see test_mutated_ledgers.py",
}
"""Pure modules that are left out, and why."""
_MOST: Final = 6
"""Sessions that are tried for one mutant: of each agent class the quickest that reaches it."""
_CPU_S, _WALL_S, _BYTES = 15, 40, 4 << 30
"""What a child may use; one that takes more does not end."""
_CAUGHT: Final = ("diverged", "failed", "endless")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one mutant."""

    module: str
    mutant: Mutant
    verdict: str
    """`diverged`, `failed`, `endless`: caught; `survived`; `unreached`: no recorded session runs through its line."""
    by: str = ""
    """The field that diverged, or the error."""

    @property
    def is_caught(self) -> bool:
        """Whether a replay tells it."""
        return self.verdict in _CAUGHT

    def text(self) -> str:
        """One line for a reader."""
        return f"{self.module}:{self.mutant.line:<5} {self.verdict:<9} {self.mutant.kind:<10} {self.mutant.text}  {self.by}"


class Laboratory:
    """A recorded root, warm code, and children to try mutants in.

    Args:
        root: with `corpus.toml` and an index
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        sources = {name: _path(name).read_text(encoding="utf-8") for name in POLICY}
        self._trees = {name: ast.parse(text) for name, text in sources.items()}
        self._cost = rerun.sessions_of(root)
        self._functions = _ready_to_fork()
        self._reach: dict[Session, frozenset[tuple[str, int]]] = {}
        """The lines of policy files that a session's replay runs through."""
        for each in self._cost:
            verdict, found = _in_child(functools.partial(_traced, root, each))
            assert verdict == "done", found
            self._reach[each] = found

    def mutants(self, modules: Iterable[str] = POLICY) -> list[tuple[str, Mutant]]:
        """All mutants of some modules."""
        return [(name, mutant) for name in modules for mutant in mutants_of(self._trees[name])]

    def reaching(self, module: str, mutant: Mutant, most: int) -> list[Session]:
        """Some sessions whose replays run through a mutant, the quickest of each agent class first, then the longest one.

        What stands outside of functions runs in all.
        """
        at = (str(_path(module)), mutant.line)
        found = [each for each, lines in self._reach.items() if not mutant.function or at in lines]
        found.sort(key=lambda each: (self._cost[each], each))
        quickest = {agent_class: (agent_class, session_id) for agent_class, session_id in reversed(found)}
        first = sorted(quickest.values(), key=lambda each: (self._cost[each], each))
        return [*dict.fromkeys((*first, *found[-1:], *found))][:most]

    def attempt(self, module: str, mutant: Mutant, most: int = _MOST) -> Outcome:
        """Tries one mutant in at most so many sessions that reach it."""
        sessions = self.reaching(module, mutant, most)
        if not sessions:
            return Outcome(module, mutant, "unreached")
        verdict, by = _in_child(functools.partial(self._replayed, module, mutant, sessions))
        if verdict == "done":
            return Outcome(module, mutant, "diverged" if by else "survived", by)
        return Outcome(module, mutant, verdict, by)

    def _replayed(self, module: str, mutant: Mutant, sessions: Sequence[Session]) -> str:
        code = compile(mutant.applied(self._trees[module]), str(_path(module)), "exec", dont_inherit=True)
        if not mutant.function:
            return str(_imported_anew(module, code).first_divergence(self._root, sessions))
        new = next(each for each in _codes(code) if each.co_firstlineno == mutant.function)
        for function in self._functions[str(_path(module)), mutant.function]:
            function.__code__ = new  # in place, so that it changes wherever the function has been imported to
        return rerun.first_divergence(self._root, sessions)


def _path(module: str) -> Path:
    spec = importlib.util.find_spec(f"kitchener.{module}")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code objects inside one, outermost first."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def _ready_to_fork() -> dict[tuple[str, int], list[FunctionType]]:
    """Ends what must not be forked or would hide a change; returns the live functions by file and first line."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(10)
    gc.collect()
    found: dict[tuple[str, int], list[FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper):  # an answer that is remembered hides the change
            each.cache_clear()
        elif isinstance(each, FunctionType):
            found.setdefault((each.__code__.co_filename, each.__code__.co_firstlineno), []).append(each)
    gc.freeze()
    return found


def _imported_anew(module: str, code: CodeType) -> ModuleType:
    """`rerun` in a world in which one module has other code."""

    class Loader:
        def create_module(self, spec: ModuleSpec) -> None:
            return None

        def exec_module(self, made: ModuleType) -> None:
            exec(code, made.__dict__)

    class Finder:
        def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
            return importlib.util.spec_from_loader(name, Loader()) if name == f"kitchener.{module}" else None  # type: ignore[arg-type]

    for name in [each for each in sys.modules if each.partition(".")[0] == "kitchener" or each.startswith("tests.replay")]:
        del sys.modules[name]
    sys.meta_path.insert(0, Finder())
    return importlib.import_module("tests.replay.mutated.rerun")


def _traced(root: Path, session: Session) -> frozenset[tuple[str, int]]:
    files, lines = {str(_path(name)) for name in POLICY}, set[tuple[str, int]]()

    def in_function(frame: FrameType, event: str, _: object) -> Any:
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return in_function

    def trace(frame: FrameType, _: str, __: object) -> Any:
        return in_function(frame, "call", None) if frame.f_code.co_filename in files else None

    threading.settrace(trace)
    sys.settrace(trace)
    found = rerun.first_divergence(root, [session])
    sys.settrace(None)
    assert not found, found
    return frozenset(lines)


def _in_child(work: Callable[[], Any]) -> tuple[str, Any]:
    """What a piece of work gives in a child process: `done` and its result, `failed` and its error, or `endless`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _as_child(work, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "endless", signal.Signals(os.WTERMSIG(status)).name
    return pickle.loads(data) if data else ("failed", "no word")


def _as_child(work: Callable[[], Any], writing: int) -> None:
    """Runs the work and ends the process; nothing of the parent is cleaned up twice."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    signal.alarm(_WALL_S)
    found: tuple[str, Any] = ("failed", "")
    try:
        found = ("done", work())
    except BaseException as error:  # noqa: BLE001  whatever a mutant does, it is told to the parent
        found = ("failed", f"{type(error).__name__}: {error}"[:200])
    finally:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(found))
        os._exit(0)


def share_caught(root: str, size: int) -> float:
    """Of a fixed sample, the share of mutants that are caught among those that are reached."""
    laboratory = Laboratory(Path(root).absolute())
    outcomes = [laboratory.attempt(*each) for each in sampled(laboratory.mutants(), size, 1)]
    caught = sum(each.is_caught for each in outcomes)
    return caught / sum(each.verdict != "unreached" for each in outcomes)


def sampled(mutants: Sequence[tuple[str, Mutant]], size: int, seed: int) -> list[tuple[str, Mutant]]:
    """A fixed choice, from all modules alike: the same code and seed give the same."""
    chosen = random.Random(seed).sample(range(len(mutants)), min(size, len(mutants)))
    return [mutants[each] for each in sorted(chosen)]


def table(outcomes: Iterable[Outcome]) -> str:
    """What was caught, by module."""
    counts: dict[str, Counter[str]] = {}
    for each in outcomes:
        counts.setdefault(each.module, Counter())[each.verdict] += 1
    rows = [f"| {'module':<24} | mutants | caught | survived | unreached | caught of reached |", "|---|---|---|---|---|---|"]
    for name, found in [*counts.items(), ("all", sum(counts.values(), Counter[str]()))]:
        caught = sum(found[each] for each in _CAUGHT)
        reached = caught + found["survived"]
        share = f"{caught / reached:.1%}" if reached else "–"
        rows.append(f"| {name:<24} | {found.total()} | {caught} | {found['survived']} | {found['unreached']} | {share} |")
    return "\n".join(rows)


def main() -> None:
    """Tries mutants and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="recorded by `python -m tests.replay.corpus`; default: recorded now")
    parser.add_argument("--module", action="append", help="below `kitchener`, e.g. context.projection; default: all")
    parser.add_argument("--sample", type=int, help="so many mutants; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=_MOST, help="sessions that are tried for one mutant")
    parser.add_argument("--survivors", action="store_true", help="name those that were not caught")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = given.root or Path(folder)
        if given.root is None:
            anyio.run(corpus.record, root)
        laboratory = Laboratory(root.absolute())
        mutants = laboratory.mutants(given.module or POLICY)
        outcomes, started = list[Outcome](), time.monotonic()
        for module, mutant in sampled(mutants, given.sample, given.seed) if given.sample else mutants:
            outcomes.append(laboratory.attempt(module, mutant, given.most))
            if given.survivors and outcomes[-1].verdict == "survived":
                sys.stdout.write(f"{outcomes[-1].text()}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{table(outcomes)}\n\n{len(outcomes)} mutants in {time.monotonic() - started:.0f} s\n")
    if given.json:
        rows = [(each.module, each.mutant.line, each.mutant.text, each.verdict, each.by) for each in outcomes]
        given.json.write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
