"""What a request to `kitchener serve` costs beside a bare Starlette app and LiteLLM's proxy, measured alternately in one run.

    make servers
    python -m benchmarks.servers --gateway-python .venv-gateways/bin/python --clients 50 --turns 6 --rounds 3

All of them answer chat completions, whole and streamed, to the same light clients in another process. `by itself` means that
the answer is made within the server: by Kitchener's built-in model in a turn, of constant bytes by the bare app. `endpoint`
means that the answer comes over HTTP from an endpoint on loopback that answers at once, a process of its own.

They do not do the same. The bare app keeps nothing and checks nothing: it shows what HTTP alone costs. LiteLLM's proxy, without
a database, routes the request to the provider, counts its tokens and cost in memory, and keeps nothing of what was said.
Kitchener runs a turn of an agent: it finds the session by the history that the client sends, classifies by rules, calls the
model, checks the reply, and has every entry sealed and synced to the disk before the reply ends.

CPU time is user plus system of the server's process and its children, divided by requests. Each round runs all servers one
after the other; figures are medians, and the ratios are those of the medians. LiteLLM is installed apart, from
`requirements/gateways.txt`. The last line of stdout is one JSON object with `--json`.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import psutil

from benchmarks.shared.instant_server import serving as endpoint
from benchmarks.shared.served_root import clients, served

_START_S: Final = 120
_SETTINGS: Final = """[serve]
max_requests = 8192
[agents.ADMIN]
classify = "rules"
"""
_WIRE: Final = """[router]
default_provider = "local"
[router.providers.local]
base_url = "{url}"
model = "m"
max_concurrency = 256
"""
_LITELLM: Final = """model_list:
  - model_name: ADMIN
    litellm_params:
      model: openai/m
      api_base: {url}
      api_key: none
litellm_settings:
  telemetry: false
"""
_ENVIRONMENT: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it fetches a list of prices
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # on loopback, as Kitchener without keys
    "LITELLM_LOG": "CRITICAL",
    "NO_PROXY": "*",
}
KEEPS: Final = {
    "kitchener serve": "the whole turn, sealed; synced",
    "bare Starlette": "nothing",
    "LiteLLM proxy": "counts, in memory",
}


@dataclass
class Row:
    """One server that answers in one way."""

    server: str
    source: str
    """`by itself` or `endpoint`."""
    kind: str
    """`whole` or `streamed`."""
    cpu_us: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)

    def figures(self, ours: "Row") -> dict[str, Any]:
        """The row as it is printed, compared with Kitchener's."""
        cpu = statistics.median(self.cpu_us)
        return {
            "server": self.server,
            "answer_from": self.source,
            "kind": self.kind,
            "cpu_us_per_request": round(cpu),
            "requests_per_s": round(statistics.median(self.per_s)),
            "memory_mib": round(statistics.median(self.memory_mib)),
            "times_kitchener": round(cpu / statistics.median(ours.cpu_us), 2),
            "keeps": KEEPS[self.server],
        }


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def other_server(command: list[str], port: int, folder: Path) -> Iterator[tuple[int, int]]:
    """The process id and the port of another server, once it answers."""
    environment = {**os.environ, **_ENVIRONMENT}
    with (folder / "other.txt").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5):
                break
            time.sleep(0.2)
        else:
            raise SystemExit(f"{command[0]} did not start: {(folder / 'other.txt').read_text()[-1_000:]}")
        yield process.pid, port
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        if process.poll() is None:
            process.kill()


@contextmanager
def started(row: Row, folder: Path, url: str, gateway_python: str) -> Iterator[tuple[int, int]]:
    """The process id and the port of the server of a row."""
    folder.mkdir()
    port = free_port()
    if row.server == "kitchener serve":
        with served(folder, _SETTINGS + (_WIRE.format(url=url) if row.source == "endpoint" else "")) as server:
            yield server.process.pid, server.port
        return
    command = [sys.executable, "-m", "benchmarks.shared.bare_server", str(port), *([url] if row.source == "endpoint" else [])]
    if row.server == "LiteLLM proxy":
        (folder / "litellm.yaml").write_text(_LITELLM.format(url=url))
        binary = str(Path(gateway_python).parent / "litellm")
        command = [binary, "--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    with other_server(command, port, folder) as found:
        yield found


def cpu_and_memory(pid: int) -> tuple[float, float]:
    """CPU seconds and resident MiB of a process and its children."""
    root = psutil.Process(pid)
    cpu = memory = 0.0
    for each in (root, *root.children(recursive=True)):
        times = each.cpu_times()
        cpu, memory = cpu + times.user + times.system, memory + each.memory_info().rss / 1_048_576
    return cpu, memory


def measure(row: Row, folder: Path, url: str, options: argparse.Namespace) -> None:
    """One round of a row."""
    kind = ["--whole"] if row.kind == "whole" else []
    with started(row, folder, url, options.gateway_python) as (pid, port):
        clients(port, "--clients", "10", "--turns", "3", "--name", "warm", *kind)
        before, _ = cpu_and_memory(pid)
        seen = clients(port, "--clients", str(options.clients), "--turns", str(options.turns), *kind)
        after, memory = cpu_and_memory(pid)
    if seen["wrong"]:
        raise SystemExit(f"{row.server}, {row.kind}: {seen['wrong'][0]}")
    requests = options.clients * options.turns
    row.cpu_us.append((after - before) / requests * 1e6)
    row.per_s.append(requests / seen["seconds"])
    row.memory_mib.append(memory)


def rows_of(options: argparse.Namespace) -> list[Row]:
    """All rows that can be measured."""
    ways = [("kitchener serve", "by itself"), ("bare Starlette", "by itself")]
    ways += [("kitchener serve", "endpoint"), ("bare Starlette", "endpoint")]
    if options.gateway_python:
        ways.append(("LiteLLM proxy", "endpoint"))
    return [Row(server, source, kind) for kind in ("whole", "streamed") for server, source in ways]


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rounds of all rows."""
    rows = rows_of(options)
    async with endpoint() as url:
        with tempfile.TemporaryDirectory(dir=options.dir) as base:
            for number in range(options.rounds):
                for at, row in enumerate(rows):
                    folder = Path(base) / f"{number}-{at}"
                    await anyio.to_thread.run_sync(measure, row, folder, url, options)
                    print(f"round {number + 1}: {row.server}, {row.source}, {row.kind}", file=sys.stderr, flush=True)
    ours = {(each.source, each.kind): each for each in rows if each.server == "kitchener serve"}
    return [each.figures(ours[each.source, each.kind]) for each in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--gateway-python", default="", help="interpreter that has litellm[proxy] (default: LiteLLM is left out)"
    )
    parser.add_argument("--clients", type=int, default=50, help="clients at the same time (default 50)")
    parser.add_argument("--turns", type=int, default=6, help="messages of each, with their history (default 6)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, which give medians (default 3)")
    parser.add_argument("--dir", help="where files are written (default: the system's temporary directory)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args()
    try:
        found = anyio.run(run, options)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    columns = (
        "server",
        "answer_from",
        "kind",
        "cpu_us_per_request",
        "requests_per_s",
        "memory_mib",
        "times_kitchener",
        "keeps",
    )
    widths = [max(len(column), *(len(str(each[column])) for each in found)) for column in columns]
    for line in (dict(zip(columns, columns, strict=True)), *found):
        print("  ".join(str(line[column]).ljust(width) for column, width in zip(columns, widths, strict=True)))
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
