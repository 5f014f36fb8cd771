"""A `kitchener serve` process over a root of its own, for benchmarks: started, measured, stopped, and its ledgers checked."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.shared.commands import run_command
from kitchener import open_runtime
from kitchener.records import events
from kitchener.records.entries import opened
from kitchener.runtime import load_config

_START_S = 60
_STOP_S = 120


@dataclass
class Served:
    """A server that runs.

    Args:
        folder: has `kitchener.toml`; the ledgers are in `ledgers` below it
        port: on loopback
        process: the server
    """

    folder: Path
    port: int
    process: "subprocess.Popen[str]"

    def cpu_s(self) -> float:
        """CPU seconds of the server, user and system."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def rss_mib(self) -> float:
        """Resident memory of the server, MiB."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / 1_048_576

    def open_files(self) -> int:
        """Open files and connections of the server."""
        return int(psutil.Process(self.process.pid).num_fds())


@contextmanager
def served(folder: Path, settings: str = "", environment: dict[str, str] | None = None) -> Iterator[Served]:
    """A server until the block ends.

    Args:
        folder: an empty folder
        settings: of `kitchener.toml`
        environment: variables besides those of this process

    Raises:
        SystemExit: it did not start
    """
    folder.mkdir(exist_ok=True)
    (folder / "kitchener.toml").write_text(settings)
    command = [sys.executable, "-m", "kitchener", "serve", "--config", f"{folder}/kitchener.toml", "--port", "0"]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [*command, "--root", f"{folder}/ledgers"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **(environment or {})},
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        port = re.search(r"127\.0\.0\.1:(\d+)", line)
        if port is None:
            raise SystemExit(f"kitchener serve did not start: {(folder / 'log.txt').read_text()[-2_000:]}")
        yield Served(folder, int(port[1]), process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_START_S)
        process.stdout.close()


async def checked_ledgers(folder: Path) -> dict[str, Any]:
    """Verifies the ledgers of a server that has ended, and counts the turns in them.

    Returns:
        `turns`: completed ones; `aborted`; `sessions`; `twice`: turns that are there more than once; `messages`: how often each
        message was said
    """
    told = await run_command(
        [
            sys.executable,
            "-m",
            "kitchener",
            "ledger",
            "verify",
            "--config",
            f"{folder}/kitchener.toml",
            "--root",
            f"{folder}/ledgers",
        ]
    )
    if told.returncode:
        raise SystemExit(f"the ledgers do not verify: {(told.stdout + told.stderr)[-2_000:].decode()}")
    overrides = {"plane_root": f"{folder}/ledgers"}
    completed, messages, aborted, sessions = Counter[str](), Counter[str](), 0, 0
    async with open_runtime(load_config(folder / "kitchener.toml", overrides=overrides).config) as runtime:
        kinds = (events.TURN_STARTED, events.TURN_COMPLETED, events.TURN_ABORTED, events.SESSION_START)
        supervisor = runtime.supervisor()
        await supervisor.find_external("none", subject_id="nobody")  # opens the ledgers
        async for entry in runtime.ledgers("ADMIN").ho2m.read(entry_type=kinds):
            if entry.entry_type == events.TURN_COMPLETED:
                completed[str(entry.payload["turn_id"])] += 1
            elif entry.entry_type == events.TURN_STARTED:
                messages[str(opened(entry.payload["user_message"]))] += 1
            else:
                aborted += entry.entry_type == events.TURN_ABORTED
                sessions += entry.entry_type == events.SESSION_START
    twice = [turn for turn, times in completed.items() if times > 1]
    return {"turns": len(completed), "aborted": aborted, "sessions": sessions, "twice": twice, "messages": messages}


def clients(port: int, *arguments: str) -> dict[str, Any]:
    """What light clients in another process saw; see `http_clients.py`."""
    command = [sys.executable, "-m", "benchmarks.shared.http_clients", str(port), *arguments]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1_800)
    if told.returncode:
        raise SystemExit(f"the clients failed: {told.stderr[-2_000:]}")
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return found
