"""Servers that replace each other lose no turn that they acknowledged, and answer every client (docs/operations.md).

One event loop: the command has its own. The clients are threads, because the servers are processes.
"""

import os
import signal
import socket
from collections import Counter
from pathlib import Path

import anyio
import pytest

from kitchener.ledger import LedgerReader, verify_file
from kitchener.records import events
from tests.cli.serve.rollout import LIMIT_S, Clients, proxy, serve_on
from tests.cli.shared.command_server import Started
from tests.shared.payloads import payload_of

KEYS = ("a-key-of-ada-0123456789", "a-key-of-bo-0123456789")
SETTINGS = """
plane_root = "root"

[ledger]
seal = false

[serve]
lock_wait_s = 60

[serve.clients.ada]
key = "env:ADA_KEY"
subject = "ada"
requests_per_minute = 1000000

[serve.clients.bo]
key = "env:BO_KEY"
subject = "bo"
requests_per_minute = 1000000
"""


def started(listener: socket.socket, cwd: Path) -> Started:
    return serve_on(listener, cwd, ADA_KEY=KEYS[0], BO_KEY=KEYS[1])


def restart(first: Started, listener: socket.socket, cwd: Path) -> Started:
    """The next server, which waits for the root while the first one drains and ends."""
    second = started(listener, cwd)
    assert second.stderr is not None
    assert "waiting for another process" in second.stderr.readline()
    first.send_signal(signal.SIGTERM)
    _, err = first.communicate(timeout=LIMIT_S)
    assert (first.returncode, err) == (0, "")
    return second


@pytest.mark.parametrize("restarts", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_a_restart_loses_no_acknowledged_turn_and_answers_every_client(tmp_path: Path, restarts: int) -> None:
    (tmp_path / "kitchener.toml").write_text(SETTINGS)
    with socket.create_server(("127.0.0.1", 0)) as listener, proxy(listener.getsockname()[:2]) as address:
        server = started(listener, tmp_path)
        try:
            with Clients(address, 24, list(KEYS)) as clients:
                for _ in range(restarts):
                    clients.wait_for_more(24)
                    server = restart(server, listener, tmp_path)
                clients.wait_for_more(48)
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=LIMIT_S)
    assert (server.returncode, clients.wrong) == (0, [])
    anyio.run(check, tmp_path / "root", clients.acknowledged)


async def check(root: Path, acknowledged: dict[str, tuple[str, str]]) -> None:
    """Every acknowledged message has one turn of its own on record, completed, and of each client all come in order."""
    assert all(verify_file(path).ok for path in root.rglob("*.jsonl"))
    found, completed, aborted = dict[str, tuple[str, str]](), Counter[str](), list[str]()
    async with LedgerReader.open(root / "HO2/ADMIN/ho2m.jsonl") as ledger:
        async for entry in ledger.read(entry_type=(events.TURN_STARTED, events.TURN_COMPLETED, events.TURN_ABORTED)):
            turn_id = payload_of(entry)["turn_id"]
            if entry.entry_type == events.TURN_STARTED:
                key = payload_of(entry)["idempotency_key"]
                assert entry.payload["user_message"] == f"message {key}"
                assert key not in found
                found[key] = (entry.session_id or "", turn_id)
            elif entry.entry_type == events.TURN_COMPLETED:
                completed[turn_id] += 1
            else:
                aborted.append(turn_id)
    assert aborted == []
    assert acknowledged.items() <= found.items()
    assert completed == Counter({turn_id: 1 for _, turn_id in found.values()})
    numbers = dict[str, list[int]]()
    for key in found:
        client, _, number = key.partition("-")
        numbers.setdefault(client, []).append(int(number))
    assert all(each == list(range(1, len(each) + 1)) for each in numbers.values())


def test_the_service_manager_hears_when_it_is_ready_and_when_it_stops(tmp_path: Path) -> None:
    place = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard, socket.create_server(("127.0.0.1", 0)) as listener:
        heard.bind(os.fspath(place))
        heard.settimeout(LIMIT_S)
        process = serve_on(listener, tmp_path, NOTIFY_SOCKET=os.fspath(place))
        assert heard.recv(100) == b"READY=1"
        process.send_signal(signal.SIGTERM)
        assert heard.recv(100) == b"STOPPING=1"
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0
