"""The process that the tests share says what the verifier's command says, for a verdict of each kind."""

from pathlib import Path

import pytest

from kitchener.ledger.verify.checkpoint import sign_ledger
from kitchener.signing import make_key
from tests.verifier.kit import needs_node, run, run_command, shared_process
from tests.verifier.proofs import Proven, bundle

pytestmark = needs_node

SAMPLE = Path(__file__).resolve().parents[1] / "vectors" / "ledger_sample.jsonl"
SEGMENTED = SAMPLE.with_name("segmented_with_trees") / "ledger.jsonl"


def changed(path: Path, to: Path) -> Path:
    """A copy in which the last digit is another one."""
    data = bytearray(path.read_bytes())
    place = max(data.rfind(b"%d" % digit) for digit in range(10))
    data[place] ^= 1
    to.write_bytes(data)
    return to


def test_each_run_says_what_the_command_says(proven: Proven, good: Path, tmp_path: Path) -> None:
    signer, signed = make_key(tmp_path / "key.pem"), tmp_path / "signed.jsonl"
    signed.write_bytes(SAMPLE.read_bytes())
    sign_ledger(signed, signer, "2026-02-18T12:00:00.000000+00:00")
    chained = bundle(proven, proven.turns[-1], tmp_path / "chained.json", "--chain")
    right = [SAMPLE, SEGMENTED, signed, good, chained]
    damaged = [changed(each, tmp_path / f"changed{each.suffix}") for each in (SAMPLE, good)]
    damaged.append(tmp_path / "missing.jsonl")
    runs: list[tuple[int, list[str]]] = [
        (0, [*map(str, right)]),
        (1, [*map(str, (*right, *damaged))]),
        (1, ["--public-key", signer.public_key, *map(str, right)]),
        (2, []),
        (2, ["--public-key", "x", str(SAMPLE)]),
        (0, ["--public-key", proven.signer.public_key, str(good)]),
    ]
    for status, arguments in runs:
        by_command = run_command(*arguments)
        assert by_command.status == status
        assert run(*arguments) == by_command
    assert all(run(str(path)).status == 1 for path in damaged)


def test_a_process_that_ended_is_no_verdict_and_the_next_run_has_another() -> None:
    shared_process().kill()
    with pytest.raises(AssertionError, match="no answer"):
        run(str(SAMPLE))
    assert run(str(SAMPLE)).status == 0
