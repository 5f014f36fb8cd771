"""Long ledgers: finished segments beside the file that is appended to, read as one ledger (docs/ledger.md, long ledgers)."""

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.config import LedgerConfig
from kitchener.errors import ConfigError, LedgerDamaged, LedgerLocked, LedgerTailMissing
from kitchener.ledger import LedgerEntry, LedgerReader, verify_file
from kitchener.ledger.bundles.bundle import BundleSelection, write_bundle
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.ledger.disk.manifests import folder_of, manifest_path, segment_path
from kitchener.ledger.format.lines import split_line
from kitchener.ledger.verify.checkpoint import sign_ledger
from kitchener.signing import make_key
from tests.ledger.support import (
    LEDGER,
    Died,
    FaultFS,
    change,
    fact,
    fill,
    forget_index,
    numbers,
    open_ledger,
    segments_of,
)
from tests.shared.logs import captured_logs
from tests.shared.property_examples import examples
from tests.verifier.kit import needs_node, node, refused

SMALL = segments_of(1_000, durability="os")
"""Three entries make a segment."""
COMMITS = (3, 3, 3, 3, 2)
"""Four segments and two entries more."""
GOLDEN = Path(__file__).resolve().parents[2] / "vectors" / "segmented" / "ledger.jsonl"
"""Written by a version whose manifests had no tree."""
WITH_TREES = GOLDEN.parents[1] / "segmented_with_trees" / "ledger.jsonl"
MOMENT = "2026-02-18T12:00:00.000000+00:00"


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A ledger of four segments."""
    await fill(tmp_path / "l.jsonl", COMMITS, config=SMALL)
    return tmp_path / "l.jsonl"


def envelope(line: bytes) -> bytes:
    """All of a line but its body."""
    return line.partition(b',"entry":')[0] + b"}"


def merkle_root(leaves: list[bytes]) -> bytes:
    """As RFC 6962 defines it, by halves; written down again, to compare with."""
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return hashlib.sha256(b"\1" + merkle_root(leaves[:half]) + merkle_root(leaves[half:])).digest()


def read_back(path: Path) -> list[bytes]:
    """All lines, the segments' first."""
    files = [*sorted(folder_of(path).glob("*.segment")), path]
    return b"".join(file.read_bytes() for file in files).splitlines(keepends=True)


async def test_a_file_that_grew_long_is_put_aside_with_a_manifest(path: Path) -> None:
    """Recomputed from the bytes, as a reader of the page would do it."""
    before, seq = "sha256:" + "0" * 64, 0
    for number in (1, 2, 3, 4):
        data, text = segment_path(path, number).read_bytes(), manifest_path(path, number).read_bytes()
        lines = [split_line(line) for line in data.splitlines()]
        assert lines[0] is not None
        assert lines[-1] is not None
        assert json.loads(text) == {
            "format": "kitchener-seal/2",
            "ledger_id": LEDGER,
            "number": number,
            "first_seq": seq + 1,
            "last_seq": seq + 3,
            "first_chain_hash": f"sha256:{lines[0].chain_hash}",
            "last_chain_hash": f"sha256:{lines[-1].chain_hash}",
            "length": len(data),
            "sha256": f"sha256:{hashlib.sha256(data).hexdigest()}",
            "previous": before,
            "tree": f"sha256:{merkle_root([envelope(line) for line in data.splitlines()]).hex()}",
        }
        assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")).encode() + b"\n"
        before, seq = f"sha256:{hashlib.sha256(text).hexdigest()}", seq + 3
        assert stat.S_IMODE(segment_path(path, number).stat().st_mode) == 0o400
    assert len(path.read_bytes().splitlines()) == 2
    assert [file.name for file in path.parent.rglob("*.jsonl")] == ["l.jsonl"]
    assert sorted(file.suffix for file in folder_of(path).iterdir()) == [".seal"] * 4 + [".segment"] * 4


async def test_the_lines_are_those_of_a_ledger_in_one_file(path: Path, tmp_path: Path) -> None:
    """Segments change where lines stand, and nothing in them."""
    whole = await fill(tmp_path / "whole" / "l.jsonl", COMMITS)
    assert b"".join(read_back(path)) == whole


async def test_a_manifest_vouches_for_what_was_written_also_where_the_file_was_changed_before(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path, config=segments_of(1_500, durability="os")) as ledger:
        await ledger.write(fact(1))
        await ledger.write(fact(2))
        await ledger.commit()
        written = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(bytes([written[-4] ^ 1]))
        for number in range(3, 6):
            await ledger.write(fact(number))
        await ledger.commit()
    segment, manifest = segment_path(path, 1).read_bytes(), json.loads(manifest_path(path, 1).read_bytes())
    assert segment[: len(written)] != written
    assert manifest["sha256"] == f"sha256:{hashlib.sha256(written + segment[len(written) :]).hexdigest()}"
    assert not verify_file(path).ok


async def test_what_stood_in_a_file_when_it_was_opened_is_finished_with_what_follows(tmp_path: Path) -> None:
    """More than one commit hashes of it."""
    path, config = tmp_path / "l.jsonl", segments_of(10 << 20, durability="os")
    big = LedgerEntry("NOTE", "x", {"text": "y" * 1_000_000})
    for commits in (9, 1, 4):
        async with open_ledger(path, config=config) as ledger:
            for _ in range(commits):
                await ledger.write(big)
                await ledger.commit()
    manifest, data = json.loads(manifest_path(path, 1).read_bytes()), segment_path(path, 1).read_bytes()
    assert (manifest["last_seq"], manifest["sha256"]) == (11, f"sha256:{hashlib.sha256(data).hexdigest()}")
    assert verify_file(path).ok


@pytest.mark.parametrize(("entries", "segment_bytes"), [(10, 500_000), (2_000, 1_500_000)])
async def test_finishing_a_file_reads_its_first_lines_only_so_that_no_commit_waits_for_a_long_file(
    tmp_path: Path, entries: int, segment_bytes: int
) -> None:
    """Counted, not timed: one piece, also of a file of eight pieces."""
    path, ops = tmp_path / "l.jsonl", FaultFS()
    config = segments_of(segment_bytes, durability="os")
    async with open_ledger(path, config=config, file_ops=ops) as ledger:
        for number in range(entries):
            await ledger.write(fact(number))
        await ledger.commit()
        assert not folder_of(path).exists()
        ops.log.clear()
        await ledger.write(LedgerEntry("NOTE", "x", {"text": "y" * 900_000}))
        await ledger.commit()
    assert json.loads(manifest_path(path, 1).read_bytes())["last_seq"] == entries + 1
    assert [name for kind, name in ops.log if kind == "read"].count(path.name) == 1
    assert verify_file(path).ok


async def test_opening_takes_the_index_for_what_it_is_and_reads_no_finished_segment(path: Path) -> None:
    """Counted, not timed: of each segment the manifest and the begin of its first line."""
    ops = FaultFS()
    async with open_ledger(path, config=SMALL, file_ops=ops) as ledger:
        assert ledger.opened_from == "checkpoint"
        assert ledger.position == 14
    reads = [name for kind, name in ops.log if kind == "read"]
    assert {name: reads.count(name) for name in reads if name.endswith(".segment")} == {
        f"00000{number}.segment": 1 for number in (1, 2, 3, 4)
    }
    forget_index(path)
    async with open_ledger(path, config=SMALL) as ledger:
        assert ledger.opened_from == "full"
        assert await numbers(ledger.read()) == [*range(1, 15)]


async def test_reading_goes_across(path: Path) -> None:
    async with open_ledger(path, config=SMALL) as ledger, LedgerReader.open(path) as reader:
        for store in (ledger, reader):
            assert await numbers(store.read(session_id="SES-0a1b2c3d", after_seq=4, up_to_seq=13)) == [*range(5, 14)]
            assert await numbers(store.read(entry_type="WO_PLANNED", limit=7)) == [*range(1, 8)]
            assert [entry.seq for entry in await store.last(limit=6)] == [*range(9, 15)]
            entry = await store.get(4)
            assert entry is not None
            assert entry.payload["n"] == 4
            report = await store.verify()
            assert (report.ok, report.entries, report.batches) == (True, 14, 5)
            assert (await store.verify(8)).ok


async def test_a_reader_goes_on_while_segments_are_finished_under_its_hands(path: Path) -> None:
    async with open_ledger(path, config=SMALL) as ledger, LedgerReader.open(path) as reader:
        late = reader.read(after_seq=1)
        assert (await anext(late)).seq == 2
        for _ in range(8):
            await ledger.write(fact(ledger.position + 1))
            await ledger.write(fact(ledger.position + 1))
            await ledger.commit()
            assert await numbers(reader.read(after_seq=12)) == [*range(13, ledger.position + 1)]
            entry = await reader.get(2)
            assert entry is not None
            assert entry.seq == 2
        assert await numbers(late) == [*range(3, 15)]
        assert reader.position == 30
        assert (await reader.verify()).entries == 30
        assert await numbers(ledger.read(up_to_seq=9)) == [*range(1, 10)]


async def test_a_head_is_signed_and_held_across_segments(path: Path, tmp_path: Path) -> None:
    signer = make_key(tmp_path / "signing.pem")
    first = sign_ledger(path, signer, MOMENT)
    assert first is not None
    assert first.seq == 14
    await fill(path, [3, 3], config=SMALL)
    assert verify_file(path).checkpoint == first
    second = sign_ledger(path, signer, MOMENT)
    assert second is not None
    assert second.seq == 20
    assert verify_file(path, public_key=signer.public_key).ok


@pytest.mark.parametrize("chain", [False, True])
async def test_evidence_is_taken_from_several_segments(path: Path, chain: bool) -> None:
    head = verify_file(path).head
    pieces: list[bytes] = []
    wanted = [BundleSelection(path, LEDGER, (2, 8, 14), (14, head))]
    write_bundle(pieces.append, "T-1", "SES-1", wanted, max_bytes=1 << 20, chain=chain)
    part = json.loads(b"".join(pieces))["ledgers"][0]
    bodies = [line.partition(b',"entry":')[2][:-2].decode() for line in read_back(path)]
    assert [row[5] for row in part["rows"] if len(row) == 6] == [bodies[1], bodies[7], bodies[13]]
    assert [row[0] for row in part["rows"]] == ([*range(2, 15)] if chain else [2, 8, 14])
    assert chain or part["segments"] == [[1, 1, 3], [3, 7, 9], [5, 13, 14]]


@pytest.mark.parametrize("golden", [GOLDEN, WITH_TREES])
async def test_the_golden_ledgers_are_written_read_and_verified_as_ever(golden: Path, tmp_path: Path) -> None:
    """Checked in: what one version wrote, all later ones read, and write again byte for byte, but for the manifests' format."""
    path = tmp_path / golden.name
    shutil.copytree(golden.parent, tmp_path, dirs_exist_ok=True)
    assert verify_file(golden).entries == 14
    async with open_ledger(path, config=SMALL) as ledger:
        assert [entry.payload["n"] async for entry in ledger.read()] == [*range(1, 15)]
    again = tmp_path / "again" / golden.name
    await fill(again, COMMITS, config=SMALL)
    for file in (golden, *sorted(folder_of(golden).iterdir())):
        if file.suffix != ".seal" or golden == WITH_TREES:
            assert (again.parent / file.relative_to(golden.parent)).read_bytes() == file.read_bytes()


async def test_a_ledger_with_manifests_of_an_earlier_version_gets_trees_from_then_on(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN.parent, tmp_path, dirs_exist_ok=True)
    path = tmp_path / GOLDEN.name
    await fill(path, [3, 3, 1], config=SMALL)
    manifests = [json.loads(manifest_path(path, number).read_bytes()) for number in range(1, 7)]
    assert [(manifest["format"], "tree" in manifest) for manifest in manifests] == [("kitchener-seal/1", False)] * 4 + [
        ("kitchener-seal/2", True)
    ] * 2
    signer = make_key(tmp_path / "signing.pem")
    assert sign_ledger(path, signer, MOMENT) is not None
    assert verify_file(path, public_key=signer.public_key).ok


@needs_node
def test_the_golden_ledgers_are_right_to_the_other_verifier_too() -> None:
    assert refused([GOLDEN, WITH_TREES]) == []


async def test_what_a_session_costs_does_not_depend_on_the_ledgers_length(tmp_path: Path) -> None:
    """Reads are counted, not times: opening, and reading one session, in ledgers of which one is ten times as long."""
    counted = []
    for length in (300, 3_000):
        path, ops = tmp_path / str(length) / "l.jsonl", FaultFS()
        config = segments_of(100_000, durability="os")
        async with open_ledger(path, config=config) as ledger:
            for number in range(length):
                wanted = number % 3 == 0 and number < 30
                await ledger.write(fact(number, "SES-aaaaaaaa" if wanted else f"SES-{number:08x}"))
                if number % 10 == 9:
                    await ledger.commit()
        async with open_ledger(path, config=config, file_ops=ops) as ledger:
            opening = [name for kind, name in ops.log if kind == "read" and not name.endswith(("seal", "segment"))]
            ops.log.clear()
            assert await numbers(ledger.read(session_id="SES-aaaaaaaa")) == [*range(1, 31, 3)]
            counted.append((len(opening), [kind for kind, _ in ops.log].count("read")))
        assert len(list(folder_of(path).glob("*.segment"))) == (12 if length == 3_000 else 1)
    assert counted[0] == counted[1] == (2, 10)


# --- what is wrong is refused -------------------------------------------------------------------------------------------------


def flip(file: Path, at: int) -> None:
    os.chmod(file, 0o600)
    change(file, lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def remove(*files: Path) -> None:
    for file in files:
        file.unlink()


def remake(path: Path, number: int, **changes: object) -> None:
    """A manifest made anew by somebody who can write the folder: right in itself."""
    fields = json.loads(manifest_path(path, number).read_bytes()) | changes
    manifest_path(path, number).write_bytes(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n")


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str, bool]] = {
    "a bit in a segment": (lambda path: flip(segment_path(path, 2), 500), "000002.segment", "", False),
    "a segment cut": (lambda path: os.truncate(segment_path(path, 2), 800), "000002.segment", "length", True),
    "a segment grown": (lambda path: os.truncate(segment_path(path, 3), 9_000), "000003.segment", "length", True),
    "a segment gone": (lambda path: segment_path(path, 3).unlink(), "000003.segment", "file", True),
    "a manifest gone": (lambda path: manifest_path(path, 3).unlink(), "000003.seal", "file", True),
    "the last manifest gone": (lambda path: manifest_path(path, 4).unlink(), "000004.seal", "file", True),
    "segments exchanged": (
        lambda path: exchange(segment_path(path, 2), segment_path(path, 3)),
        "000002.segment",
        "",
        True,
    ),
    "manifests exchanged": (
        lambda path: exchange(manifest_path(path, 2), manifest_path(path, 3)),
        "000002.seal",
        "number",
        True,
    ),
    "a manifest with a byte more": (
        lambda path: change(manifest_path(path, 1), lambda data: data + b"\n"),
        "000001.seal",
        "framing",
        True,
    ),
    "a manifest of another length": (lambda path: remake(path, 4, length=999), "000004.segment", "length", True),
    "a manifest made anew": (lambda path: remake(path, 2, sha256="sha256:" + "a" * 64), "000003.seal", "previous", True),
    "the last manifest made anew": (lambda path: remake(path, 4, sha256="sha256:" + "a" * 64), "000004.seal", "sha256", False),
    "another first chain hash": (
        lambda path: remake(path, 4, first_chain_hash="sha256:" + "a" * 64),
        "000004.seal",
        "first_chain_hash",
        False,
    ),
    "another last chain hash": (
        lambda path: remake(path, 4, last_chain_hash="sha256:" + "a" * 64),
        "000004.seal",
        "last_chain_hash",
        False,
    ),
    "another last number": (lambda path: remake(path, 4, last_seq=13), "l.jsonl", "seq", True),
    "another ledger's manifest": (lambda path: remake(path, 2, ledger_id="OTHER"), "000002.seal", "ledger_id", True),
    "manifest and segment gone from the end": (
        lambda path: remove(manifest_path(path, 4), segment_path(path, 4)),
        "l.jsonl",
        "seq",
        True,
    ),
    "all segments gone": (lambda path: shutil.rmtree(folder_of(path)), "l.jsonl", "seq", True),
    "the file gone": (lambda path: path.unlink(), "l.jsonl", "file", True),
    "an older file": (
        lambda path: change(path, lambda _: b"".join(read_back(path)[9:11])),
        "l.jsonl",
        "length",
        True,
    ),
}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
@pytest.mark.parametrize("damage", DAMAGES)
async def test_damage_is_told_with_the_file_it_is_in(path: Path, damage: str) -> None:
    do, name, field, is_seen_at_once = DAMAGES[damage]
    do(path)
    before = {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file() and "index" not in str(file)}
    report = verify_file(path)
    assert report.fault is not None
    assert Path(report.fault.path).name == name
    assert report.fault.field == field or not field
    if is_seen_at_once:
        with pytest.raises(LedgerDamaged):
            async with open_ledger(path, config=SMALL):
                pytest.fail("it was opened")
        with pytest.raises(LedgerDamaged):
            async with LedgerReader.open(path):
                pytest.fail("it was opened")
    assert {file: file.read_bytes() for file in before} == before


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A ledger for each kind of damage, not to be changed."""
    directory = tmp_path_factory.mktemp("damaged")
    whole = directory / "whole" / "l.jsonl"
    anyio.run(partial(fill, whole, COMMITS, config=SMALL))
    paths = {damage: directory / str(number) / "l.jsonl" for number, damage in enumerate(DAMAGES)}
    for damage, path in paths.items():
        shutil.copytree(whole.parent, path.parent)
        DAMAGES[damage][0](path)
    return paths


@needs_node
def test_the_other_verifier_refuses_the_same_damage(damaged: dict[str, Path]) -> None:
    assert [line.partition(" ")[0] for line in node([*damaged.values()])] == ["damaged"] * len(DAMAGES)
    there = [path for path in damaged.values() if path.exists()]
    assert refused(there) == there


@needs_node
async def test_an_unfinished_segment_is_no_fault_to_either_verifier(path: Path) -> None:
    last = segment_path(path, 4).read_bytes()
    change(path, lambda data: last + data)  # as if the file had never been swapped, and had grown
    assert refused([path]) == []
    assert verify_file(path).entries == 14
    change(path, lambda data: data[:-1])
    assert refused([path]) == [path]


async def test_a_fault_in_a_segment_has_that_files_line_and_offset(path: Path) -> None:
    lines = segment_path(path, 2).read_bytes().splitlines(keepends=True)
    flip(segment_path(path, 2), len(lines[0]) + len(lines[1]) - 20)
    report = verify_file(path)
    assert report.fault is not None
    found = (report.fault.path, report.fault.line, report.fault.offset, report.fault.field)
    assert found == (str(segment_path(path, 2)), 2, len(lines[0]), "entry_hash")
    assert report.entries == 4
    async with open_ledger(path, config=SMALL) as ledger:  # the index vouches for it; who reads it is told
        assert await numbers(ledger.read(up_to_seq=4)) == [1, 2, 3, 4]
        with pytest.raises(LedgerDamaged) as raised:
            await numbers(ledger.read())
        assert (raised.value.path, raised.value.line, raised.value.offset) == found[:3]
    forget_index(path)
    with pytest.raises(LedgerDamaged, match=r"000002\.segment: line 2"):
        async with open_ledger(path, config=SMALL):
            pytest.fail("it was opened")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
@pytest.mark.hypothesis
async def test_every_bit_of_a_segment_and_a_seal_is_guarded(path: Path) -> None:
    """One bit of each byte, and of one byte in seven in `make test`."""
    for file in (segment_path(path, 2), manifest_path(path, 2)):
        os.chmod(file, 0o600)
        data = file.read_bytes()
        for at in range(0, len(data), examples(few=7, many=1)):
            file.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
            assert not verify_file(path).ok
        file.write_bytes(data)
    assert verify_file(path).ok


async def test_what_is_missing_behind_the_segments_is_missed(path: Path) -> None:
    change(path, lambda _: b"")
    with pytest.raises(LedgerTailMissing, match="at least 14 entries") as raised:
        async with open_ledger(path, config=SMALL):
            pytest.fail("it was opened")
    assert (raised.value.path, raised.value.line, raised.value.offset) == (str(path), 1, 0)


async def test_a_torn_last_commit_is_cut_off_the_new_file_only(path: Path) -> None:
    change(path, lambda data: data[:-30])
    forget_index(path)
    async with open_ledger(path, config=SMALL) as ledger:
        assert ledger.recovered is not None
        assert (ledger.recovered.after_seq, ledger.recovered.offset) == (12, 0)
        assert ledger.position == 12
    assert path.read_bytes() == b""
    assert verify_file(path).entries == 12


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
@pytest.mark.hypothesis
async def test_the_first_commit_of_a_new_file_may_be_torn_anywhere(path: Path) -> None:
    """Also in the middle of its number, 13, which is then no wrong number."""
    data = path.read_bytes()
    for length in [*range(1, 20), *range(20, 60, examples(few=8, many=1)), *range(60, len(data), examples(few=120, many=40))]:
        path.write_bytes(data[:length])
        forget_index(path)
        async with LedgerReader.open(path) as reader:
            assert await numbers(reader.read()) == [*range(1, 13)]
        async with open_ledger(path, config=SMALL) as ledger:
            assert ledger.position == 12
            assert ledger.recovered is not None


# --- finishing a segment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
@pytest.mark.hypothesis
async def test_a_crash_while_a_segment_is_finished_is_undone_also_in_a_copy(tmp_path: Path) -> None:
    """The process dies at each call, or at every other one; then the hard link is a second file, as after `cp -r`."""
    drafts, step = 0, examples(few=2, many=1)
    for at in range(1, 200, step):
        path = tmp_path / str(at) / "l.jsonl"
        await fill(path, [3], config=SMALL)
        ops = FaultFS(at)

        async def die(path: Path = path, ops: FaultFS = ops) -> None:
            async with open_ledger(path, config=SMALL, file_ops=ops) as ledger:
                for number in (4, 5, 6):
                    await ledger.write(fact(number))
                await ledger.commit()

        try:
            await die()
        except* Died:
            pass
        if ops.calls < at:
            break
        copy = tmp_path / f"copy{at}"
        shutil.copytree(path.parent, copy)
        shutil.rmtree(path.parent)
        drafts += manifest_path(copy / "l.jsonl", 2).exists()
        async with LedgerReader.open(copy / "l.jsonl") as reader:
            seen = await numbers(reader.read())
        assert seen in ([1, 2, 3], [1, 2, 3, 4, 5, 6])
        async with open_ledger(copy / "l.jsonl", config=SMALL) as ledger:
            assert await numbers(ledger.read()) == seen
            for _ in range(3):
                await ledger.write(fact(ledger.position + 1))
            await ledger.commit()
        assert verify_file(copy / "l.jsonl").entries == len(seen) + 3
    assert at > 30
    assert drafts > 5 // step


async def test_an_unfinished_segment_that_holds_something_else_is_not_taken_away(path: Path) -> None:
    """It may be the only place where these bytes are."""
    last = segment_path(path, 4).read_bytes()
    change(path, lambda _: last)  # as if the file had never been swapped
    os.chmod(segment_path(path, 4), 0o600)
    change(segment_path(path, 4), lambda data: data[::-1])
    with pytest.raises(LedgerDamaged, match=r"000004\.segment.*sha256"):
        async with open_ledger(path, config=SMALL):
            pytest.fail("it was opened")
    change(path, lambda data: data[:-10] + b"?" + data[-9:])
    with pytest.raises(LedgerDamaged, match=r"l\.jsonl: line 1.*sha256.*as 000004\.seal says"):
        async with open_ledger(path, config=SMALL):
            pytest.fail("it was opened")
    assert manifest_path(path, 4).exists()


async def test_where_files_cannot_be_linked_the_ledger_goes_on_in_one(tmp_path: Path) -> None:
    class Unlinked(FaultFS):
        def link(self, path: Path, other: Path) -> None:
            self.log.append(("link", other.name))
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    path, ops = tmp_path / "l.jsonl", Unlinked()
    with captured_logs() as logs:
        await fill(path, [1] * 24, config=SMALL, file_ops=ops)
    # Not after each commit, but whenever it has grown by as much again.
    assert [kind for kind, _ in ops.log].count("link") == 8
    assert {log["event"] for log in logs} == {"segment not finished"}
    assert verify_file(path).entries == 24
    async with open_ledger(path, config=SMALL) as ledger:
        assert await numbers(ledger.read()) == [*range(1, 25)]
        await ledger.write(fact(25))
        await ledger.commit()
    assert json.loads(manifest_path(path, 1).read_bytes())["last_seq"] == 25
    assert verify_file(path).entries == 25


async def test_who_opened_the_file_before_it_was_finished_does_not_take_its_lock_for_the_ledgers(tmp_path: Path) -> None:
    """Between opening and locking, the other process finishes a segment and closes; or it goes on."""
    path, done = tmp_path / "l.jsonl", tmp_path / "done" / "l.jsonl"
    await fill(path, [2], config=SMALL)
    shutil.copytree(tmp_path, done.parent)
    await fill(done, [2, 1], config=SMALL)
    assert manifest_path(done, 1).exists()

    class Late(FileOps):
        swaps = 0

        def lock(self, fd: int) -> None:
            if not self.swaps and os.fstat(fd).st_ino == path.stat().st_ino:
                self.swaps += 1
                folder_of(done).rename(folder_of(path))
                os.link(path, path.with_name("old"))  # its inode must not come back as another file's
                done.rename(path)
            super().lock(fd)

    ops = Late()
    async with open_ledger(path, config=SMALL, file_ops=ops) as ledger:
        assert ops.swaps == 1
        assert ledger.position == 5
        with pytest.raises(LedgerLocked):
            async with open_ledger(path):
                pytest.fail("it was opened")
        await ledger.write(fact(6))
    assert verify_file(path).entries == 6


async def test_the_lock_passes_to_the_next_file(path: Path) -> None:
    async with open_ledger(path, config=SMALL) as ledger:
        for _ in range(3):
            await ledger.write(fact(ledger.position + 1))
            await ledger.commit()
        assert manifest_path(path, 5).exists()
        with pytest.raises(LedgerLocked):
            async with open_ledger(path, config=SMALL):
                pytest.fail("it was opened")


def test_segments_cannot_be_made_so_small_that_there_are_too_many() -> None:
    with pytest.raises((ConfigError, ValueError), match="segment_bytes"):
        LedgerConfig(segment_bytes=1_048_575)
    assert LedgerConfig(segment_bytes=1_048_576).segment_bytes == 1_048_576
    assert LedgerConfig().segment_bytes == 64 * 1_048_576


steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(1, 5)),
        st.tuples(st.just("reopen"), st.booleans()),
        st.tuples(st.just("die"), st.integers(1, 40)),
        st.tuples(st.just("copy"), st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(few=8, many=300))  # on each event loop
@given(steps=steps, segment_bytes=st.sampled_from([1, 900, 2_500]))
async def test_a_ledger_in_segments_is_a_list_that_survives(steps: list[tuple[str, int]], segment_bytes: int) -> None:
    """Against a plain list: what was committed is there after every crash, and nothing but what was written."""
    config = segments_of(segment_bytes, durability="os")
    with TemporaryDirectory() as name:
        path, model, copies = Path(name) / "0" / "l.jsonl", list[int](), 0
        for step, value in steps:
            if step == "reopen" and value:
                forget_index(path)
            if step == "copy":
                copies += 1
                if path.parent.exists():
                    shutil.copytree(path.parent, Path(name) / str(copies))
                path = Path(name) / str(copies) / "l.jsonl"
            more = value if step == "commit" else 2
            try:
                await write_more(path, model, more, config, FaultFS(value if step == "die" else None))
            except* Died:
                pass
            before = len(model)
            if not path.exists():
                assert not model
                continue
            async with LedgerReader.open(path) as reader:
                model = await numbers(reader.read())
            assert model == [*range(1, len(model) + 1)]
            assert len(model) in (before, before + more)
        if path.exists():
            report = verify_file(path)
            assert (report.fault, report.entries) == (None, len(model))


async def write_more(path: Path, expected: list[int], more: int, config: LedgerConfig, ops: FaultFS) -> None:
    """One commit, after a look at what is there."""
    async with open_ledger(path, config=config, file_ops=ops) as ledger:
        assert await numbers(ledger.read()) == expected
        for _ in range(more):
            await ledger.write(fact(ledger.position + 1))
        await ledger.commit()
