"""How many bytecodes a turn executes, by function: a figure that no other load on the machine changes.

    python -m benchmarks.steps                                          # a turn of 20 concurrent sessions, by function
    python -m benchmarks.steps --memory --context enforce
    python -m benchmarks.steps --traces                                 # with OpenTelemetry's SDK, and no exporter
    python -m benchmarks.steps --after 0 400 4000 --context enforce     # turns of one session after so many others

CPU time on a shared machine differs by half from minute to minute; these counts differ by less than one in a hundred. They say
nothing of what C code takes, so they compare versions and histories, not machines. Counting makes a turn many times slower.
Other options are those of `sessions.py`. The last line of stdout is one JSON object with `--json`.
"""

import argparse
import json
import sys
import tempfile
import threading
from collections import Counter
from types import CodeType, FrameType
from typing import Any

import anyio
from opentelemetry.sdk.trace import TracerProvider

from benchmarks import sessions
from kitchener import open_runtime
from kitchener.telemetry import OpenTelemetry

_SESSIONS = 20
_TURNS = 10
"""Turns that are counted, of each session or after each length of the one session."""


class Steps:
    """Bytecodes and calls by function, in all threads, while `is_counting`."""

    def __init__(self) -> None:
        self.is_counting = False
        self._steps: Counter[CodeType] = Counter()
        self._calls: Counter[CodeType] = Counter()
        sys._getframe().f_trace_opcodes = True  # since 3.12 nothing counts before a frame wants it
        # From the start, as worker threads that are there already cannot be watched.
        threading.settrace(self._begin)
        sys.settrace(self._begin)

    def _begin(self, frame: FrameType, _: str, __: object) -> Any:
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        self._calls[frame.f_code] += self.is_counting
        return self._step

    def _step(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode" and self.is_counting:
            self._steps[frame.f_code] += 1
        return self._step

    def take(self, turns: int, most: int) -> dict[str, Any]:
        """What was counted since the last time, of one turn: in all, and of the functions that take most."""
        ordered = sorted(self._steps, key=lambda code: (-self._steps[code], code.co_filename, code.co_firstlineno))
        functions = [
            {
                "function": f"{'/'.join(code.co_filename.rsplit('/', 2)[-2:])}:{code.co_qualname}",
                "steps": round(self._steps[code] / turns, 1),
                "calls": round(self._calls[code] / turns, 1),
            }
            for code in ordered[:most]
        ]
        steps, calls = round(self._steps.total() / turns, 1), round(self._calls.total() / turns, 1)
        self._steps.clear()
        self._calls.clear()
        return {"steps": steps, "calls": calls, "functions": functions}


async def at_once(options: argparse.Namespace, settings: argparse.Namespace) -> list[dict[str, Any]]:
    """A turn of sessions that run at the same time."""
    steps = Steps()
    with tempfile.TemporaryDirectory() as root:
        telemetry = OpenTelemetry(tracer_provider=TracerProvider()) if options.traces else None
        providers = sessions.provider(settings)
        async with open_runtime(sessions.config(root, settings), providers=providers, telemetry=telemetry) as runtime:
            supervisor = runtime.supervisor("ADMIN")
            await sessions.warm_up(supervisor)
            if settings.memory:
                await sessions.teach(runtime.memory("ADMIN"), settings)
            for steps.is_counting in (False, True):
                async with anyio.create_task_group() as tasks:
                    for number in range(_SESSIONS):
                        tasks.start_soon(sessions.converse, supervisor, number, _TURNS, [])
            return [steps.take(_SESSIONS * _TURNS, options.most)]


async def after(options: argparse.Namespace, settings: argparse.Namespace) -> list[dict[str, Any]]:
    """Turns of one session after so many others."""
    found, steps, told = list[dict[str, Any]](), Steps(), 0
    with tempfile.TemporaryDirectory() as root:
        telemetry = OpenTelemetry(tracer_provider=TracerProvider()) if options.traces else None
        providers = sessions.provider(settings)
        async with open_runtime(sessions.config(root, settings), providers=providers, telemetry=telemetry) as runtime:
            supervisor = runtime.supervisor("ADMIN")
            await sessions.warm_up(supervisor)
            said, session_id = sessions.messages(settings.data), await supervisor.start_session(subject_id="long")
            for turns in sorted(options.after):
                while told < turns + _TURNS:
                    steps.is_counting = told >= turns
                    await supervisor.handle_turn(next(said), session_id=session_id)
                    told += 1
                found.append({"after": turns, **steps.take(_TURNS, options.most)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description="How many bytecodes a turn executes.",
        epilog="Further options, such as --memory and --context, are those of benchmarks.sessions.",
    )
    parser.add_argument("--after", type=int, nargs="+", help="count turns of one session after so many others")
    parser.add_argument("--most", type=int, default=40, help="functions that are listed (default 40)")
    parser.add_argument("--traces", action="store_true", help="tell OpenTelemetry of each turn")
    options, rest = parser.parse_known_args()
    settings = sessions.parse(["--sessions", str(_SESSIONS), *rest])
    try:
        found = anyio.run(after if options.after else at_once, options, settings)
    finally:
        sys.settrace(None)
    for each in found:
        where = f"after {each['after']:,} turns: " if "after" in each else ""
        print(f"{where}{each['steps']:,} bytecodes and {each['calls']:,} calls a turn")
        for row in each["functions"]:
            print(f"{row['steps']:10,.1f} {row['calls']:8,.1f}  {row['function']}")
    if settings.json:
        print(json.dumps({"counted": found}))


if __name__ == "__main__":
    main()
