"""`make load`: its server starts, its clients are answered, and every turn is counted in the ledgers."""

from pathlib import Path

import anyio

from benchmarks.shared.served_root import checked_ledgers, clients, served


def test_served_turns_are_counted_once_in_ledgers_that_verify(tmp_path: Path) -> None:
    with served(tmp_path / "served") as server:
        seen = clients(server.port, "--clients", "2", "--turns", "2")
    assert (seen["wrong"], len(seen["latencies"])) == ([], 4)
    found = anyio.run(checked_ledgers, tmp_path / "served")
    assert (found["turns"], found["sessions"], found["aborted"], found["twice"]) == (4, 2, 0, [])
