"""What opening makes of a damaged file: a crash's last commit is cut off, anything else is refused (docs/ledger.md)."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from kitchener.config import LedgerConfig
from kitchener.errors import LedgerDamaged, LedgerError, LedgerPathError, LedgerTailMissing
from kitchener.ledger import verify_file
from tests.ledger.support import (
    LEDGER,
    Died,
    FaultFS,
    change,
    damaged_copies,
    fact,
    fill,
    forget_index,
    numbers,
    open_ledger,
)
from tests.shared.logs import captured_logs
from tests.shared.property_examples import examples


async def contents(path: Path) -> list[int]:
    async with open_ledger(path) as ledger:
        return await numbers(ledger.read())


async def write_more(path: Path) -> None:
    async with open_ledger(path) as ledger:
        await ledger.write(fact(99))
        await ledger.commit()
    assert verify_file(path).ok


def starts(data: bytes | bytearray) -> list[int]:
    """The offset of each line."""
    offsets, at = [], 0
    for line in data.splitlines(keepends=True):
        offsets.append(at)
        at += len(line)
    return offsets


@pytest.mark.hypothesis
async def test_a_file_cut_anywhere_in_its_last_commit_loses_that_commit_and_nothing_else(tmp_path: Path) -> None:
    """Every length that a crash can leave of the last of three commits; the index is lost too."""
    path = tmp_path / "l.jsonl"
    data = await fill(path, [2, 1, 2])
    last = starts(data)[3]
    for length in [*range(last, len(data), examples(few=21, many=7)), len(data)]:
        forget_index(path)
        path.write_bytes(data[:length])
        assert await contents(path) == ([1, 2, 3, 4, 5] if length == len(data) else [1, 2, 3])
        copies = damaged_copies(path)
        if last < length < len(data):
            assert [copy.read_bytes() for copy in copies] == [data[last:length]]
            copies[0].unlink()
        assert damaged_copies(path) == []
    await write_more(path)


async def test_recovery_says_what_it_did(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    data = await fill(path, [1, 3])
    path.write_bytes(data[:-10])
    forget_index(path)
    with captured_logs() as logs:
        async with open_ledger(path) as ledger:
            recovered = ledger.recovered
            assert ledger.position == 1
    assert recovered is not None
    [copy] = damaged_copies(path)
    offset = starts(data)[1]
    assert (recovered.after_seq, recovered.offset, recovered.cut_bytes) == (1, offset, len(data) - 10 - offset)
    assert (recovered.path, recovered.kept_as) == (str(path), str(copy))
    [log] = [log for log in logs if log["event"] == "ledger recovered"]
    assert log["field"] == "framing"
    assert recovered.reason not in str(log)  # it quotes what was found, which may be what somebody said
    async with open_ledger(path) as ledger:
        assert ledger.recovered is None


async def test_verify_refuses_what_opening_would_recover(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    data = await fill(path, [2, 2])
    for length in (len(data) - 1, starts(data)[3]):
        path.write_bytes(data[:length])
        report = verify_file(path)
        assert not report.ok
        assert report.fault is not None
        assert report.entries in (2, 3)
        assert report.batches == 1
    assert path.read_bytes() == data[:length], "nothing was changed"


@pytest.mark.parametrize(
    "tail", [b"\0" * 4096, b"\0", b"garbage", b"\n", b'{"ledger_id":"HO2M:ADMIN","seq":6,', b"\xff\xfe\n\n"]
)
async def test_junk_after_the_last_commit_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    """What delayed allocation and torn sectors leave behind."""
    path = tmp_path / "l.jsonl"
    data = await fill(path, [2, 3])
    path.write_bytes(data + tail)
    assert await contents(path) == [1, 2, 3, 4, 5]
    assert [copy.read_bytes() for copy in damaged_copies(path)] == [tail]
    await write_more(path)


@pytest.mark.hypothesis
async def test_verify_refuses_a_flip_of_any_bit_of_any_byte(tmp_path: Path) -> None:
    """One bit of each byte, and of one byte in five in `make test`."""
    path = tmp_path / "l.jsonl"
    data = bytearray(await fill(path, [1, 2]))
    for position in range(0, len(data), examples(few=5, many=1)):
        bit = 1 << position % 8
        data[position] ^= bit
        path.write_bytes(data)
        report = verify_file(path)
        assert not report.ok, f"bit {bit} of byte {position}"
        data[position] ^= bit
    path.write_bytes(data)
    assert verify_file(path).ok


@pytest.mark.hypothesis
@pytest.mark.parametrize("mode", ["full", "checkpoint"])
async def test_opening_refuses_a_flip_of_what_it_verifies(tmp_path: Path, mode: str) -> None:
    """The index has seen all of it on disk, so the last commit is guarded too. A checkpoint guards the last entry only."""
    path, config = tmp_path / "l.jsonl", LedgerConfig.model_validate({"verify_on_open": mode})
    data = bytearray(await fill(path, [1, 2]))
    kept = [(file, file.read_bytes()) for file in (tmp_path / "index").iterdir()]
    for position in range(0 if mode == "full" else starts(data)[2], len(data), examples(few=17, many=5)):
        data[position] ^= 0x10
        path.write_bytes(data)
        with pytest.raises(LedgerDamaged) as refused:
            async with open_ledger(path, config=config):
                pytest.fail(f"it was opened with a flip in byte {position}")
        assert refused.value.path == str(path)
        assert path.read_bytes() == data, "nothing was changed"
        data[position] ^= 0x10
        for file, content in kept:
            file.write_bytes(content)
    path.write_bytes(data)
    assert await contents(path) == [1, 2, 3]


@pytest.mark.hypothesis
async def test_without_a_witness_every_flip_before_the_last_commit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    data = bytearray(await fill(path, [1, 2, 1]))
    for position in range(0, starts(data)[3], examples(few=13, many=3)):
        forget_index(path)
        data[position] ^= 0x01
        path.write_bytes(data)
        with pytest.raises(LedgerDamaged):
            await contents(path)
        assert path.read_bytes() == data, "nothing was changed"
        data[position] ^= 0x01


Edit = Callable[[list[bytes]], list[bytes]]
EDITS: dict[str, Edit] = {
    "first line removed": lambda lines: lines[1:],
    "line removed": lambda lines: lines[:2] + lines[3:],
    "line duplicated": lambda lines: [*lines[:3], lines[2], *lines[3:]],
    "lines swapped": lambda lines: [*lines[:1], lines[2], lines[1], *lines[3:]],
    "commit removed": lambda lines: lines[:1] + lines[3:],
    "commits swapped": lambda lines: lines[:1] + lines[3:6] + lines[1:3] + lines[6:],
    "text edited": lambda lines: [line.replace(b'"n":3', b'"n":8') for line in lines],
    "blank line inside": lambda lines: [*lines[:2], b"\n", *lines[2:]],
    "carriage return": lambda lines: [line.replace(b"\n", b"\r\n") if n == 2 else line for n, line in enumerate(lines)],
    "carriage returns everywhere": lambda lines: [line.replace(b"\n", b"\r\n") for line in lines],
    "byte order mark": lambda lines: [b"\xef\xbb\xbf" + lines[0], *lines[1:]],
    "NUL inside": lambda lines: [line.replace(b"WO-003", b"WO\x00003") for line in lines],
    "invalid UTF-8": lambda lines: [line.replace(b"WO-003", b"WO\xff003") for line in lines],
    "space before a line": lambda lines: [lines[0], b" " + lines[1], *lines[2:]],
    "LF lost between two lines": lambda lines: [lines[0], lines[1][:-1], *lines[2:]],
    "LF lost between two commits": lambda lines: [*lines[:2], lines[2][:-1], *lines[3:]],
    "whole file in upper case": lambda lines: [line.upper() for line in lines],
}


@pytest.mark.parametrize("index", ["kept", "lost"])
@pytest.mark.parametrize("edit", EDITS)
async def test_edited_files_are_refused_with_the_place_and_are_not_repaired(tmp_path: Path, edit: str, index: str) -> None:
    path = tmp_path / "l.jsonl"
    lines = (await fill(path, [1, 2, 3, 1])).splitlines(keepends=True)
    damaged = b"".join(EDITS[edit](lines))
    path.write_bytes(damaged)
    report = verify_file(path)
    assert report.fault is not None
    if index == "lost":
        forget_index(path)
        with pytest.raises(LedgerDamaged) as refused:
            await contents(path)
        fault = refused.value
        assert (fault.line, fault.offset, fault.field) == (report.fault.line, report.fault.offset, report.fault.field)
        assert fault.found == report.fault.found
    assert path.read_bytes() == damaged


async def test_a_fault_names_line_offset_field_and_both_hashes(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    data = await fill(path, [1, 1, 1])
    lines = data.splitlines(keepends=True)
    path.write_bytes(data.replace(b'"n":2', b'"n":7'))
    fault = verify_file(path).fault
    assert fault is not None
    stored = lines[1].partition(b'"entry_hash":"')[2][:71].decode()
    assert (fault.line, fault.offset, fault.field, fault.expected) == (2, len(lines[0]), "entry_hash", stored)
    assert fault.found.startswith("sha256:")
    assert fault.found != stored
    assert f"{path}: line 2 (byte {len(lines[0])}): entry_hash: expected {stored}" in str(fault)


async def test_whole_entries_cut_from_the_end_are_missed(tmp_path: Path) -> None:
    """The chain alone cannot see it; the index has seen more on disk."""
    path = tmp_path / "l.jsonl"
    data = await fill(path, [2, 1, 1])
    for length in (starts(data)[3], starts(data)[2], 0):
        path.write_bytes(data[:length])
        assert verify_file(path).ok
        with pytest.raises(LedgerTailMissing, match="at least 4 entries") as missing:
            await contents(path)
        assert missing.value.offset == length
        assert path.read_bytes() == data[:length]
    path.write_bytes(data)
    assert await contents(path) == [1, 2, 3, 4]


async def test_a_restored_old_copy_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    old = await fill(path, [2])
    await write_more(path)
    path.write_bytes(old)
    with pytest.raises(LedgerTailMissing):
        await contents(path)
    path.unlink()
    with pytest.raises(LedgerTailMissing):
        await contents(path)


async def test_a_file_that_is_no_ledger_is_left_alone(tmp_path: Path) -> None:
    """A wrong path must not cost anybody their file."""
    path = tmp_path / "notes.txt"
    for text in (b"Dear diary,\n", b'{"a":1}\n', b"x", b'{"ledger_id":"OTHER","seq":1,'):
        path.write_bytes(text)
        with pytest.raises(LedgerDamaged):
            await contents(path)
        assert path.read_bytes() == text
    assert damaged_copies(path) == []


async def test_a_ledger_of_another_id_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    data = await fill(path, [1], ledger_id="SIGNALS")
    with pytest.raises(LedgerDamaged, match="ledger_id: expected HO2M:ADMIN, found SIGNALS"):
        await contents(path)
    assert path.read_bytes() == data


@pytest.mark.parametrize("whole", [0, 2])
async def test_a_damaged_last_commit_of_a_ledger_of_another_id_is_not_cut(tmp_path: Path, whole: int) -> None:
    path = tmp_path / "l.jsonl"
    data = await fill(path, [*[1, 1][:whole], 2], ledger_id="SIGNALS")
    path.write_bytes(data[:-5])
    with pytest.raises(LedgerDamaged):
        await contents(path)
    assert path.read_bytes() == data[:-5]


async def test_a_first_commit_that_was_never_whole_leaves_an_empty_ledger(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    data = await fill(path, [2])
    for left in (b"{", data[:20], data[:-1], b"\0" * 600, b"\0" * 512 + data[512:-3]):
        forget_index(path)
        path.write_bytes(left)
        assert await contents(path) == []
    await write_more(path)


async def test_a_full_disk_does_not_stop_recovery(tmp_path: Path) -> None:
    """The cut bytes cannot be kept then; the cut itself needs no room."""
    path = tmp_path / "l.jsonl"
    data = await fill(path, [1, 2])
    path.write_bytes(data[:-4])
    forget_index(path)
    full = FaultFS(1, errno.ENOSPC, forever=True, only=["write"])
    async with open_ledger(path, file_ops=full) as ledger:
        assert ledger.recovered is not None
        assert ledger.recovered.kept_as is None
        assert ledger.position == 1
    assert damaged_copies(path) == []
    assert verify_file(path).entries == 1


@pytest.mark.hypothesis
@pytest.mark.parametrize("kind", ["write", "sync", "read"])
async def test_cut_bytes_are_kept_whole_or_not_at_all(tmp_path: Path, kind: str) -> None:
    """A disk that gets full, or fails, in the middle of the copy: a part of the bytes would pass for all of them."""
    path = tmp_path / "l.jsonl"
    await fill(path, [1])
    whole = path.read_bytes()
    async with open_ledger(path) as ledger:
        await ledger.write_all([fact(number, text="x" * 900_000) for number in range(3)])
    torn = path.read_bytes()[:-4]
    outcomes = set()
    for at in range(1, 20, examples(few=2, many=1)):
        for copy in damaged_copies(path):
            copy.unlink()
        path.write_bytes(torn)
        forget_index(path)
        try:
            async with open_ledger(path, file_ops=FaultFS(at, errno.EIO, only=[kind])) as ledger:
                kept = ledger.recovered.kept_as if ledger.recovered is not None else None
        except LedgerError:
            kept = None  # it was not the copy that failed
        assert [copy.read_bytes() for copy in damaged_copies(path)] in ([], [torn[len(whole) :]])
        outcomes.add((kept is not None, len(damaged_copies(path))))
    assert {(True, 1), (False, 0)} <= outcomes


async def test_recovery_that_cannot_cut_says_so_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    data = await fill(path, [1, 2])
    path.write_bytes(data[:-4])
    forget_index(path)
    with pytest.raises(LedgerPathError, match="Input/output"):
        async with open_ledger(path, file_ops=FaultFS(1, errno.EIO, only=["truncate"])):
            pytest.fail("it was opened")
    assert path.read_bytes() == data[:-4]
    assert await contents(path) == [1]


async def test_recovery_may_itself_be_interrupted_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    data = await fill(path, [1, 2])
    at = 0
    while True:
        at += 1
        forget_index(path)
        path.write_bytes(data[:-4])
        ops = FaultFS(at)
        try:
            async with open_ledger(path, file_ops=ops) as ledger:
                assert ledger.position == 1
        except Died:
            assert await contents(path) == [1]
            continue
        break
    assert at > 10
    assert ops.calls < at


async def test_nothing_is_left_locked_or_open_when_opening_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    data = await fill(path, [1, 1])
    forget_index(path)
    change(path, lambda data: data.replace(b'"n":1', b'"n":3'))
    ops = FaultFS()
    with pytest.raises(LedgerDamaged):
        async with open_ledger(path, file_ops=ops):
            pytest.fail("it was opened")
    opened, closed = ([name for kind, name in ops.log if kind == what] for what in ("open", "close"))
    assert opened == closed == ["l.jsonl"]
    path.write_bytes(data)
    assert await contents(path) == [1, 2]


async def test_what_may_not_be_on_disk_is_written_again_before_it_is_served(tmp_path: Path) -> None:
    """After a failed fsync the kernel may take lost pages for clean: another fsync alone would prove nothing."""
    path = tmp_path / "l.jsonl"
    data = await fill(path, [1, 2])
    forget_index(path)
    ops = FaultFS()
    async with open_ledger(path, file_ops=ops):
        done = [kind for kind, name in ops.log if name == "l.jsonl"]
        assert done.index("overwrite") < done.index("sync")
    assert path.read_bytes() == data
    ops = FaultFS()
    async with open_ledger(path, file_ops=ops):
        assert "overwrite" not in [kind for kind, _ in ops.log], "the index knows that all of it was durable"


async def test_the_ledger_id_of_the_sample_is_what_the_tests_use(tmp_path: Path) -> None:
    data = await fill(tmp_path / "l.jsonl", [1])
    assert data.startswith(f'{{"ledger_id":"{LEDGER}","seq":1,'.encode())
