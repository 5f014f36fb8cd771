"""`benchmarks.long_ledger`: it measures a ledger at each size, and the proof of a turn does not grow with the ledger."""

import json
import sys

import pytest

from benchmarks import long_ledger


def test_the_proof_of_a_turn_keeps_its_size_while_the_ledger_grows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/proof.md: the size of a bundle grows with the logarithm of the ledger's length."""
    monkeypatch.setattr(sys, "argv", ["long_ledger", "--entries", "200", "6400", "--turns", "1", "--jobs", "0", "--json"])
    long_ledger.main()
    small, large = json.loads(capsys.readouterr().out)
    assert (small["entries"], large["entries"]) == (200, 6400)
    assert large["mib"] > small["mib"]
    assert 10_000 < large["proof_bytes"] < small["proof_bytes"] * 1.1
