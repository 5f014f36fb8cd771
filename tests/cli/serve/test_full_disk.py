"""`kitchener serve` on a full disk ends so that it is started again, and goes on when there is room (docs/operations.md).

One event loop: the command has its own. The limit is a real one of the system (RLIMIT_FSIZE), which cuts off a write.
"""

import json
import resource
import signal
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.cli.shared.commands import finish, start, start_program

pytestmark = pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits the files of another process")

_WITHOUT_ROOM = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
from kitchener.cli.main import main
main()
"""
LIMIT_S = 60.0
"""Longest wait for a process, seconds."""


class Served:
    """A server with a root in a folder; it is told to stop at the end of the block, if it still runs."""

    def __init__(self, folder: Path) -> None:
        self.process = start("serve", "--port", "0", cwd=folder)

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        self._url = self.process.stdout.readline().split()[2].rstrip(";/")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.communicate(timeout=LIMIT_S)

    def post(self, path: str, body: object, key: str = "") -> tuple[int, Any]:
        headers = {"content-type": "application/json", **({"idempotency-key": key} if key else {})}
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


def test_a_server_with_a_full_disk_ends_and_the_next_one_goes_on_when_there_is_room(tmp_path: Path) -> None:
    first, second = ({"message": each} for each in ("hello", "and then?"))
    with Served(tmp_path) as server:
        session = server.post("/v1/sessions", {})[1]["session_id"]
        path = f"/v1/sessions/{session}/messages"
        acknowledged = server.post(path, first, "key-1")[1]["turn_id"]
        room = (tmp_path / ".kitchener/HO2/ADMIN/ho2m.jsonl").stat().st_size + 100
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        assert server.post(path, second, "key-2")[0] == 500
        _, err = server.process.communicate(timeout=LIMIT_S)
        last = err.splitlines()[-1]
        assert server.process.returncode == 1, "neither done nor wrong settings: a service manager starts it again"
        assert (last.startswith("kitchener: "), "cannot write" in last, "File too large" in last) == (True, True, True)

    full = finish(start_program(_WITHOUT_ROOM, "serve", "--port", "0", cwd=tmp_path))
    assert (full.code, full.out, "index rebuilt" in full.err) == (1, "", False), "what the index knows is kept"
    assert "cannot hold the ledger's index" in full.err

    with Served(tmp_path) as server:
        status, found = server.post(path, first, "key-1")
        assert (status, found["turn_id"]) == (200, acknowledged)
        status, found = server.post(path, second, "key-2")
        assert (status, found["turn_id"] == acknowledged) == (200, False)
