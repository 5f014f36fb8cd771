"""A restored backup is taken for the ledger only when somebody says so, and that is on record (docs/ledger.md)."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from kitchener.config import LedgerConfig
from kitchener.errors import LedgerDamaged, LedgerLocked, LedgerPathError, LedgerTailMissing, LedgerWriteError
from kitchener.ledger import verify_file
from kitchener.ledger.accept_head import LEDGER_HEAD_ACCEPTED, AcceptedHead, AcceptedPayload, accept_head
from kitchener.ledger.disk.manifests import folder_of
from kitchener.ledger.index.index_dirs import index_dirs_near
from kitchener.ledger.verify.checkpoint import Checkpoint, read_checkpoint, sign_ledger
from kitchener.signing import Signer, make_key
from tests.ledger.support import LEDGER, Died, FaultFS, SetClock, change, fact, fill, forget_index, open_ledger, segments_of
from tests.shared.property_examples import examples

SMALL = segments_of(1_000)
MOMENT = "2026-02-18T12:00:00.000000+00:00"
REASON = "restored the backup of Monday"


def accept(path: Path, ops: FaultFS | None = None, reason: str = REASON) -> AcceptedHead | None:
    return accept_head(path, reason, index_dirs=index_dirs_near(path), config=LedgerConfig(), clock=SetClock(), ops=ops)


async def restored(path: Path, *, before: list[int], after: list[int], signer: Signer | None = None) -> str:
    """A ledger with an older copy of its files put back, and the index and signed head as they were; gives the lost head."""
    await fill(path, before, config=SMALL)
    backup = path.parent.parent / "backup"
    shutil.copytree(path.parent, backup)
    await fill(path, after, config=SMALL)
    head = verify_file(path).head
    if signer is not None:
        assert sign_ledger(path, signer, MOMENT)
    shutil.rmtree(folder_of(path), ignore_errors=True)
    path.unlink()
    (backup / path.name).rename(path)
    if folder_of(backup / path.name).exists():
        folder_of(backup / path.name).rename(folder_of(path))
    shutil.rmtree(backup)
    return head


async def check_accepted(path: Path, missing_to: int, at: int) -> None:
    """It can be opened, and says what is missing."""
    async with open_ledger(path, config=SMALL) as ledger:
        entry = await ledger.get(at)
        assert entry is not None
        assert (entry.entry_type, entry.entity_id) == (LEDGER_HEAD_ACCEPTED, LEDGER)
        assert entry.payload["reason"] == REASON
        assert (entry.payload["missing_from"], entry.payload["missing_to"]) == (at, missing_to)
        await ledger.write(fact(at + 1))
    assert verify_file(path).ok


@pytest.mark.parametrize(("before", "after"), [([2], [1, 1]), ([3, 2], [3, 3, 1]), ([3], [1])], ids=str)
async def test_what_is_there_is_accepted_and_what_is_missing_is_on_record(
    tmp_path: Path, before: list[int], after: list[int]
) -> None:
    path = tmp_path / "plane" / "l.jsonl"
    head = await restored(path, before=before, after=after)
    whole = verify_file(path)
    with pytest.raises(LedgerTailMissing, match="kitchener ledger accept-head"):
        async with open_ledger(path, config=SMALL):
            pytest.fail("it was opened")
    accepted = accept(path)
    total = sum(before) + sum(after)
    record: AcceptedPayload = {
        "v": 1,
        "seq": sum(before),
        "chain_hash": whole.head,
        "missing_from": sum(before) + 1,
        "missing_to": total,
        "known_head": {"seq": total, "chain_hash": head},
        "reason": REASON,
    }
    assert accepted == AcceptedHead(str(path), LEDGER, record, None)
    await check_accepted(path, total, sum(before) + 1)
    assert accept(path) is None


async def test_a_signed_head_of_a_missing_entry_is_put_aside(tmp_path: Path) -> None:
    """With the index gone as well, it is all that tells."""
    path, signer = tmp_path / "plane" / "l.jsonl", make_key(tmp_path / "signing.pem")
    head = await restored(path, before=[3, 1], after=[2], signer=signer)
    held = read_checkpoint(path)
    forget_index(path)
    accepted = accept(path)
    assert accepted is not None
    assert accepted.set_aside is not None
    assert held is not None
    assert (held.seq, held.chain_hash) == (6, head)
    assert accepted.record["known_head"] == {"seq": 6, "chain_hash": head}
    assert read_checkpoint(path) is None
    assert Path(accepted.set_aside).read_bytes().startswith(b'{"chain_hash":"' + head.encode())
    await check_accepted(path, 6, 5)
    signed = sign_ledger(path, signer, MOMENT)
    assert isinstance(signed, Checkpoint)
    assert verify_file(path, public_key=signer.public_key).ok


async def test_nothing_is_changed_where_nothing_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    data = await fill(path, [3, 1], config=SMALL)
    assert accept(path) is None
    forget_index(path)
    assert accept(path) is None
    assert path.read_bytes() == data
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert accept(empty) is None


async def test_an_emptied_file_is_accepted_too(tmp_path: Path) -> None:
    """Only the index knows by then which ledger it was."""
    path = tmp_path / "l.jsonl"
    await fill(path, [2])
    change(path, lambda _: b"")
    accepted = accept(path)
    assert accepted is not None
    record = accepted.record
    assert (accepted.ledger_id, record["seq"], record["missing_from"], record["missing_to"]) == (LEDGER, 0, 1, 2)
    await check_accepted(path, 2, 1)


async def test_damage_and_other_writers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plane" / "l.jsonl"
    await restored(path, before=[3, 2], after=[3])
    async with open_ledger(tmp_path / "other" / "l.jsonl"):
        with pytest.raises(LedgerLocked):
            await fill(tmp_path / "other" / "l.jsonl", [1])
        (tmp_path / "other" / "l.jsonl").write_bytes(path.read_bytes())
        with pytest.raises(LedgerLocked):
            accept(tmp_path / "other" / "l.jsonl")
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    for wrong in (lines[0].replace(b'"n":4', b'"n":5') + lines[1], lines[1] + lines[0], lines[1]):
        path.write_bytes(wrong)
        with pytest.raises(LedgerDamaged):
            accept(path)
        assert path.read_bytes() == wrong
    path.write_bytes(data)
    assert accept(path) is not None


async def test_a_signed_head_of_another_chain_is_damage(tmp_path: Path) -> None:
    path, other = tmp_path / "a" / "l.jsonl", tmp_path / "b" / "l.jsonl"
    signer = make_key(tmp_path / "signing.pem")
    await fill(path, [2])
    async with open_ledger(other) as ledger:
        for number in (1, 2):
            await ledger.write(fact(number, text="another"))
    assert sign_ledger(path, signer, MOMENT)
    shutil.copy(f"{path}.checkpoint", f"{other}.checkpoint")
    with pytest.raises(LedgerDamaged, match="chain_hash"):
        accept(other)


@pytest.mark.parametrize(
    ("error", "lost"), [(None, 3), (errno.EIO, 1)], ids=["dies with three missing", "fails with one missing"]
)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # files are changed without waiting
@pytest.mark.hypothesis
async def test_it_can_be_cut_short_at_every_call_and_done_again(tmp_path: Path, error: int | None, lost: int) -> None:
    """Afterwards the ledger is refused as before, or accepted with one record of it; `make test` takes every third call."""
    signer = make_key(tmp_path / "signing.pem")
    for at in range(1, 200, examples(few=3, many=1)):
        path = tmp_path / str(at) / "l.jsonl"
        path.parent.mkdir()
        (tmp_path / str(at) / "x").mkdir()
        path = tmp_path / str(at) / "x" / "l.jsonl"
        await restored(path, before=[3, 1], after=[lost], signer=signer)
        ops = FaultFS(at, error)
        try:
            accept(path, ops)
        except (Died, LedgerDamaged, LedgerPathError, LedgerWriteError, OSError):
            assert ops.calls >= at
        is_last = ops.calls < at
        accept(path)
        async with open_ledger(path, config=SMALL) as ledger:
            records = [entry.seq async for entry in ledger.read(entry_type=LEDGER_HEAD_ACCEPTED)]
            assert records == [5]
        assert verify_file(path).ok
        if is_last:
            break
    assert at > 20
    assert os.path.exists(path)
