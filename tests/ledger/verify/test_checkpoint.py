"""Signed heads: what they see that the chain alone cannot (docs/proof.md)."""

import hashlib
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kitchener.config import LedgerConfig
from kitchener.errors import LedgerDamaged, LedgerTailMissing, SigningError
from kitchener.ledger import LedgerClient, StoredEntry, verify_file
from kitchener.ledger.format.lines import NO_HASH, render_batch, split_line
from kitchener.ledger.verify.checkpoint import checkpoint_path, read_checkpoint, sign_ledger
from kitchener.signing import Signer, is_signed, load_signer, make_key
from tests.ledger.support import LEDGER, fact, fill, forget_index, open_ledger
from tests.shared.property_examples import examples

MOMENT = "2026-02-18T12:00:00.000000+00:00"


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return make_key(tmp_path / "keys" / "signing.pem")


@pytest.fixture
def config(signer: Signer, tmp_path: Path) -> LedgerConfig:
    return LedgerConfig(signing_key=str(tmp_path / "keys" / "signing.pem"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ho2m.jsonl"


def rebuild(data: bytes, first: int, how: Callable[[bytes], bytes]) -> bytes:
    """A ledger that verifies, in which the bodies from one entry on are others and all hashes after them are fresh."""
    out, chain, batch = b"", NO_HASH, list[StoredEntry]()
    for raw in data.splitlines():
        line = split_line(raw)
        assert line is not None
        body = how(line.body) if line.seq >= first else line.body
        entry_hash = f"sha256:{hashlib.sha256(body).hexdigest()}"
        batch.append(StoredEntry(LEDGER, line.seq, line.entry_id, entry_hash, "", "", "", body, None, (), None))
        if line.batch[1] == line.batch[2]:
            lines, *_, chain = render_batch(batch, chain, line.batch[0])
            out, batch = out + lines, []
    return out


def forged(body: bytes) -> bytes:
    return body.replace(b'"n":', b'"m":')


async def test_checkpoint_signs_the_durable_head_of_all_that_was_written(
    path: Path, config: LedgerConfig, signer: Signer
) -> None:
    async with open_ledger(path, config=config) as ledger:
        for number in range(3):
            await ledger.write(fact(number))
        head = await ledger.checkpoint()
        assert head is not None
        assert (head.ledger_id, (head.seq, head.chain_hash)) == (LEDGER, ledger.head())
        assert head.seq == 3
        assert (head.signer, head.public_key) == (signer.signer, signer.public_key)
        assert head.timestamp == "2026-02-18T11:00:00.000000+00:00"
        text = f"kitchener/3/head|{LEDGER}|3|{head.chain_hash}|{head.timestamp}|{head.commits}|1|{head.tree}"
        assert is_signed(head.public_key, text.encode(), head.sig)
    stored = checkpoint_path(path)
    assert json.loads(stored.read_bytes()) == {**head._asdict(), "frontier": list(head.frontier or ())}
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert not list(path.parent.glob(".*"))


async def test_a_later_checkpoint_takes_the_place_of_an_earlier_one(path: Path, config: LedgerConfig) -> None:
    async with open_ledger(path, config=config) as ledger:
        await ledger.write(fact(1))
        first = await ledger.checkpoint()
        assert await ledger.checkpoint() == first  # nothing new to sign
        await ledger.write(fact(2))
        second = await ledger.checkpoint()
    assert first is not None
    assert second is not None
    assert (first.seq, second.seq) == (1, 2)
    assert read_checkpoint(path) == second


async def test_an_empty_ledger_has_no_head_to_sign(path: Path, config: LedgerConfig) -> None:
    async with open_ledger(path, config=config) as ledger:
        assert await ledger.checkpoint() is None
    assert not checkpoint_path(path).exists()


async def test_without_a_key_the_error_names_the_setting(path: Path) -> None:
    async with open_ledger(path) as ledger:
        await ledger.write(fact(1))
        with pytest.raises(SigningError, match="signing_key"):
            await ledger.checkpoint()


async def test_a_signed_head_survives_the_deletion_of_the_index(path: Path, config: LedgerConfig, signer: Signer) -> None:
    """`index` may be deleted at any time; a signature cannot be made again without the key."""
    async with open_ledger(path, config=config) as ledger:
        await ledger.write(fact(1))
        head = await ledger.checkpoint()
    forget_index(path)
    async with open_ledger(path, config=config):
        pass
    assert read_checkpoint(path) == head
    report = verify_file(path, public_key=signer.public_key)
    assert report.ok
    assert report.checkpoint == head


# --- what only a signed head sees ---------------------------------------------------------------------------------------


async def signed(path: Path, signer: Signer) -> bytes:
    """A ledger of three commits whose head is signed; gives its bytes."""
    data = await fill(path, [2, 3, 2])
    assert sign_ledger(path, signer, MOMENT) is not None
    forget_index(path)
    return data


async def test_entries_cut_from_the_end_are_missed(path: Path, signer: Signer, config: LedgerConfig) -> None:
    data = await signed(path, signer)
    path.write_bytes(b"".join(data.splitlines(keepends=True)[:5]))
    report = verify_file(path)
    assert isinstance(report.fault, LedgerTailMissing)
    assert (report.fault.line, report.fault.field) == (6, "end")
    assert "at least 7 entries" in report.fault.expected
    assert report.fault.found.startswith("5 entries")
    with pytest.raises(LedgerTailMissing, match="at least 7 entries"):
        async with open_ledger(path):
            pass
    with pytest.raises(LedgerTailMissing):
        sign_ledger(path, signer, MOMENT)


async def test_an_emptied_ledger_is_missed(path: Path, signer: Signer) -> None:
    await signed(path, signer)
    path.write_bytes(b"")
    fault = verify_file(path).fault
    assert isinstance(fault, LedgerTailMissing)
    with pytest.raises(LedgerTailMissing):
        async with open_ledger(path):
            pass


@pytest.mark.parametrize("first", [1, 3, 4, 7])
async def test_a_chain_that_was_built_anew_is_caught_by_the_signed_head_alone(path: Path, signer: Signer, first: int) -> None:
    data = rebuild(await signed(path, signer), first, forged)
    path.write_bytes(data)
    head = checkpoint_path(path).read_bytes()
    checkpoint_path(path).unlink()
    assert verify_file(path).ok  # internally it is consistent
    checkpoint_path(path).write_bytes(head)
    fault = verify_file(path).fault
    assert fault is not None
    last = split_line(data.splitlines()[6])
    assert last is not None
    offset = len(data) - len(data.splitlines(keepends=True)[6])
    assert (fault.path, fault.line, fault.offset, fault.field) == (str(path), 7, offset, "chain_hash")
    assert fault.found == f"sha256:{last.chain_hash}"
    assert json.loads(head)["chain_hash"] in fault.expected
    with pytest.raises(LedgerDamaged, match="chain_hash"):
        async with open_ledger(path):
            pass
    with pytest.raises(LedgerDamaged, match="chain_hash"):
        sign_ledger(path, signer, MOMENT)
    assert checkpoint_path(path).read_bytes() == head


async def test_a_ledger_that_was_built_anew_is_not_signed_by_its_writer(
    path: Path, signer: Signer, config: LedgerConfig
) -> None:
    """The new part alone would verify: what was signed before has to be in the chain."""
    data = await signed(path, signer)
    path.write_bytes(rebuild(data, 2, forged))
    head = checkpoint_path(path).read_bytes()
    checkpoint_path(path).unlink()
    async with open_ledger(path, config=config) as ledger:
        checkpoint_path(path).write_bytes(head)
        await ledger.write(fact(9))
        with pytest.raises(LedgerDamaged, match=r"line 7 .*chain_hash"):
            await ledger.checkpoint()
    assert checkpoint_path(path).read_bytes() == head


async def test_entries_after_the_signed_head_are_no_fault(path: Path, signer: Signer) -> None:
    await signed(path, signer)
    async with open_ledger(path) as ledger:
        await ledger.write(fact(8))
    report = verify_file(path, public_key=signer.public_key)
    assert report.ok
    assert report.entries == 8


async def test_what_does_not_verify_is_not_signed(path: Path, signer: Signer) -> None:
    data = bytearray(await fill(path, [2, 2]))
    data[data.index(b'"n":1')] ^= 1
    path.write_bytes(data)
    with pytest.raises(LedgerDamaged, match="line 1 "):
        sign_ledger(path, signer, MOMENT)
    assert not checkpoint_path(path).exists()


async def test_a_commit_that_is_only_half_there_is_left_to_the_next_head(path: Path, signer: Signer) -> None:
    """A writer may be at work in another process."""
    data = await fill(path, [2, 2])
    path.write_bytes(data[:-9])
    head = sign_ledger(path, signer, MOMENT)
    assert head is not None
    assert head.seq == 2


# --- whose signature ----------------------------------------------------------------------------------------------------


async def test_another_key_is_no_witness(path: Path, signer: Signer, tmp_path: Path) -> None:
    await signed(path, signer)
    other = make_key(tmp_path / "other.pem")
    fault = verify_file(path, public_key=other.public_key).fault
    assert fault is not None
    assert (fault.path, fault.field) == (str(checkpoint_path(path)), "public_key")
    assert other.public_key in fault.expected
    assert signer.public_key in fault.found


async def test_with_a_key_given_a_missing_head_is_a_fault(path: Path, signer: Signer) -> None:
    await signed(path, signer)
    checkpoint_path(path).unlink()
    assert verify_file(path).ok
    fault = verify_file(path, public_key=signer.public_key).fault
    assert fault is not None
    assert fault.field == "checkpoint"


async def test_a_new_key_takes_over_from_the_old_one(path: Path, signer: Signer, tmp_path: Path) -> None:
    await signed(path, signer)
    other = make_key(tmp_path / "other.pem")
    head = sign_ledger(path, other, MOMENT)
    assert head is not None
    assert head.signer == other.signer
    assert verify_file(path, public_key=other.public_key).ok


@pytest.mark.parametrize("field", ["seq", "chain_hash", "timestamp", "sig", "signer", "public_key", "ledger_id"])
async def test_a_changed_head_is_refused(path: Path, signer: Signer, field: str) -> None:
    await signed(path, signer)
    file = checkpoint_path(path)
    fields = json.loads(file.read_bytes())
    changed = {
        "seq": 5,
        "chain_hash": f"sha256:{'0' * 64}",
        "timestamp": "2026-02-19T12:00:00.000000+00:00",
        "sig": "0" * 128,
        "signer": "ed25519:0123456789abcdef",
        "public_key": "0" * 64,
        "ledger_id": "HO1M:ADMIN",
    }
    fields[field] = changed[field]
    file.write_bytes(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    fault = verify_file(path).fault
    assert fault is not None
    assert fault.path == str(file)
    with pytest.raises(LedgerDamaged):
        sign_ledger(path, signer, MOMENT)


@pytest.mark.hypothesis
async def test_every_flipped_bit_of_a_head_is_seen(path: Path, signer: Signer) -> None:
    await signed(path, signer)
    file = checkpoint_path(path)
    data = file.read_bytes()
    for place in range(0, len(data), examples(few=5, many=1)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        assert not verify_file(path, public_key=signer.public_key).ok, place


@pytest.mark.parametrize("data", [b"", b"{}", b"[]\n", b"null\n", b"\xff", b"x" * 70_000])
async def test_what_is_no_head_is_refused_by_name(path: Path, signer: Signer, data: bytes) -> None:
    await signed(path, signer)
    checkpoint_path(path).write_bytes(data)
    fault = verify_file(path).fault
    assert fault is not None
    assert (fault.path, fault.field) == (str(checkpoint_path(path)), "framing")
    with pytest.raises(LedgerDamaged, match="bring it back from a backup"):
        async with open_ledger(path):
            pass


async def test_a_head_of_another_ledger_is_refused(path: Path, signer: Signer, tmp_path: Path) -> None:
    await signed(path, signer)
    other = tmp_path / "other.jsonl"
    async with LedgerClient.open(other, ledger_id="OTHER") as ledger:
        for number in range(9):
            await ledger.write(fact(number))
    checkpoint_path(other).write_bytes(checkpoint_path(path).read_bytes())
    fault = verify_file(other).fault
    assert fault is not None
    assert (fault.field, fault.expected, fault.found) == ("ledger_id", "OTHER", LEDGER)
    with pytest.raises(LedgerDamaged, match="ledger_id"):
        async with LedgerClient.open(other, ledger_id="OTHER"):
            pass


async def test_a_long_ledger_is_verified_from_the_signed_head_on(path: Path, config: LedgerConfig) -> None:
    """The writer's places save it the part that was verified for the head before; the head is found there too."""
    async with open_ledger(path, config=config) as ledger:
        for number in range(2_000):
            await ledger.write(fact(number))
            if number % 500 == 0:
                await ledger.commit()
        first = await ledger.checkpoint()
        await ledger.write(fact(1))
        second = await ledger.checkpoint()
    assert first is not None
    assert second is not None
    assert (first.seq, second.seq) == (2_000, 2_001)
    assert load_signer(str(config.signing_key)).public_key == second.public_key
    assert verify_file(path).ok
