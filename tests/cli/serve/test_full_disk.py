"""`kitchener serve` on a full disk ends so that it is started again, and goes on when there is room (docs/operations.md).

One event loop: the command has its own. The limit is a real one of the system (RLIMIT_FSIZE), which cuts off a write.
"""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.commands import environment

_LAUNCH = """
import resource, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
from kitchener.cli.main import main
main()
"""
UNLIMITED = 1 << 40
SMALL = 200_000
"""Room for the index and some turns, bytes of each file."""
LONG = "word " * 4_000


def serve(cwd: Path, limit: int) -> "subprocess.Popen[str]":
    """`kitchener serve` with this limit of the size of files, bytes."""
    command = [sys.executable, "-c", _LAUNCH, str(limit), "serve", "--port", "0"]
    return subprocess.Popen(command, cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Served:
    """A server that runs."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        self._url = process.stdout.readline().split()[2].rstrip(";/")

    def post(self, path: str, body: object, key: str = "") -> tuple[int, dict[str, object]]:
        headers = {"content-type": "application/json", **({"idempotency-key": key} if key else {})}
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


@contextmanager
def serving(cwd: Path, limit: int) -> Iterator[Served]:
    process = serve(cwd, limit)
    try:
        yield Served(process)
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=30)


def test_a_server_with_a_full_disk_ends_and_the_next_one_goes_on_when_there_is_room(tmp_path: Path) -> None:
    acknowledged: dict[str, object] = {}
    with serving(tmp_path, SMALL) as server:
        session = server.post("/v1/sessions", {})[1]["session_id"]
        path, status = f"/v1/sessions/{session}/messages", 200
        for number in range(100):
            status, found = server.post(path, {"message": f"{number} {LONG}"}, f"key-{number}")
            if status != 200:
                break
            acknowledged[f"{number}"] = found["turn_id"]
        _, err = server.process.communicate(timeout=30)
        assert (status, len(acknowledged) > 0) == (500, True)
        assert server.process.returncode == 1, "neither done nor wrong settings: a service manager starts it again"
        last = err.splitlines()[-1]
        assert (last.startswith("kitchener: "), "cannot write" in last, "File too large" in last) == (True, True, True)

    refused = serve(tmp_path, 0)
    out, err = refused.communicate(timeout=30)
    assert (refused.returncode, out, "index rebuilt" in err) == (1, "", False), "what the index knows is not thrown away"
    assert "cannot hold the ledger's index" in err

    with serving(tmp_path, UNLIMITED) as server:
        again = {
            number: server.post(path, {"message": f"{number} {LONG}"}, f"key-{number}")[1]["turn_id"] for number in acknowledged
        }
        assert again == acknowledged
        assert server.post(path, {"message": "go on"}, "key-more")[0] == 200
