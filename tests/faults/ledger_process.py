"""The test's end of `ledger_worker.py`: another process that writes a ledger, and what it says of it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kitchener.ledger import verify_file
from tests.ledger.support import fact, open_ledger

Event = dict[str, Any]


class Worker:
    """A process that does jobs with ledgers; started once, as each job has a child of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.ledger_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def begin(self, do: str, **job: Any) -> None:
        """Sends a job; whoever sends it reads what it says."""
        assert self._process.stdin is not None
        text = json.dumps({"do": do, **job}, default=str)
        self._process.stdin.write(text.encode() + b"\n")
        self._process.stdin.flush()

    def go_on(self) -> None:
        """Lets a job that pauses do the next thing."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def hears(self) -> Event:
        """The next thing it says."""
        assert self._process.stdout is not None
        event: Event = json.loads(self._process.stdout.readline())
        if event["event"] in ("broken", "wrong"):
            list(self.rest())
            raise AssertionError(event["text"])
        return event

    def rest(self) -> Iterator[Event]:
        """Everything up to the end of the job."""
        while True:
            event = self.hears()
            yield event
            if event["event"] == "ended":
                return

    def run(self, do: str, **job: Any) -> list[Event]:
        """A whole job."""
        self.begin(do, **job)
        return list(self.rest())

    @contextmanager
    def holding(self, path: Path, **job: Any) -> Iterator[int]:
        """A child that has the ledger open, by its process id; killed afterwards."""
        self.begin("hold", path=path, **job)
        event = self.hears()
        assert event["event"] == "opened", event
        try:
            yield event["pid"]
        finally:
            os.kill(event["pid"], signal.SIGKILL)
            assert [each["code"] for each in self.rest()] == [-signal.SIGKILL]


def acknowledged(events: list[Event]) -> int:
    """The last entry that was acknowledged; 0: none was."""
    return max((event["position"] for event in events if event["event"] == "acknowledged"), default=0)


def only(events: list[Event], name: str) -> Event:
    """The one thing of its kind that was said."""
    (event,) = [each for each in events if each["event"] == name]
    return event


async def holds(path: Path, at_least: int, at_most: int) -> int:
    """Opens what another process left, asserts that it is a prefix with all that was acknowledged, and writes on."""
    async with open_ledger(path) as ledger:
        found = [entry.payload["n"] async for entry in ledger.read()]
        assert found == list(range(1, len(found) + 1))
        assert at_least <= len(found) <= at_most
        await ledger.write(fact(ledger.position + 1))
        await ledger.commit()
    assert verify_file(path).entries == len(found) + 1
    return len(found)
