"""The operator's neighbour edits a ledger, its index or both: what they changed is noticed, at the latest when it is read.

Explained in docs/ledger.md, "What is checked when". Who rebuilds a whole chain, or edits ledger and index alike, is stopped by
a signed head and by nothing else.
"""

import os
import sqlite3
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import anyio
import pytest

from kitchener.canonical import canonical_bytes
from kitchener.config import LedgerConfig
from kitchener.errors import LedgerDamaged, LedgerLocked, LedgerPathError, LedgerWriteError
from kitchener.ledger import LedgerClient, LedgerReader, verify_file, verify_ledger
from kitchener.ledger.disk.manifests import segment_path
from kitchener.ledger.format.lines import Mark, split_line
from kitchener.ledger.index.row_sums import RowSums
from kitchener.ledger.index.tail import hash_of, other_key, session_key
from kitchener.ledger.verify.checkpoint import checkpoint_path, sign_head, sign_ledger
from kitchener.records.index_keys import idempotency_index_key
from kitchener.signing import make_key
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo, open_scripted
from tests.hostile.kit import bystander
from tests.ledger.support import damaged_copies, fact, forget_index, index_of, numbers, open_ledger, segments_of
from tests.shared.logs import captured_logs
from tests.verifier.kit import NODE, needs_node, node, refused, relinked, rewritten

QUICK = LedgerConfig(durability="os")
ZEROS = "0" * 64
MOMENT = "2026-11-22T12:00:00.000000+00:00"
Edit = Callable[[list[bytes], int], list[bytes]]
"""The lines of a ledger and the place of the one that is forged, to the lines that the neighbour puts there."""


async def two_sessions(path: Path, entries: int = 40, **options: Any) -> None:
    """A ledger in which every other entry is one of ada's (even places) or of bo's, in commits of several."""
    async with open_ledger(path, **{"config": QUICK, **options}) as ledger:
        for number in range(entries):
            await ledger.write(fact(number, f"SES-0000000{number % 2}"))
            if number % 3 == 2:
                await ledger.commit()


def forge(fields: dict[str, Any]) -> None:
    n = fields["payload"]["n"]
    fields["payload"]["n"] = 9 - n if n < 10 else 109 - n  # the line stays as long as it was


def own_hash(lines: list[bytes], place: int) -> list[bytes]:
    """The edited line gets a fresh entry hash."""
    return [*lines[:place], rewritten(lines[place], forge), *lines[place + 1 :]]


def own_link(lines: list[bytes], place: int) -> list[bytes]:
    """The edited line gets a fresh chain hash, too."""
    lines = own_hash(lines, place)
    before = split_line(lines[place - 1])
    assert before is not None
    return [*lines[:place], *relinked([lines[place]], before.chain_hash), *lines[place + 1 :]]


def all_links(lines: list[bytes], place: int) -> list[bytes]:
    """Everything from the edited line on is chained anew."""
    return relinked(own_hash(lines, place), ZEROS)


def rewrite(path: Path, how: Edit, place: int) -> None:
    lines = [line.rstrip(b"\n") for line in path.read_bytes().splitlines(keepends=True)]
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    path.write_bytes(b"".join(line + b"\n" for line in how(lines, place)))


def add_row(index: Path, key: str, like: str) -> None:
    """Gives a key the places of another, with checksums that fit."""
    with sqlite3.connect(index) as connection:
        rows = connection.execute("SELECT after_seq, base, packed FROM places WHERE key = ?", (like,)).fetchall()
        assert rows
        forged = [
            (hash_of(key), key, after_seq, base, crc32(packed, hash_of(key) ^ crc32(f"{after_seq}|{base}".encode())), packed)
            for after_seq, base, packed in rows
        ]
        connection.executemany(
            "INSERT INTO places (hash, key, after_seq, base, checksum, packed) VALUES (?, ?, ?, ?, ?, ?)", forged
        )
        forge_sums(connection)
    connection.close()


def forge_sums(connection: sqlite3.Connection) -> None:
    """Numbers the rows anew, and sums them up."""
    rows = connection.execute("SELECT hash, key, after_seq, base, checksum, packed FROM places ORDER BY id").fetchall()
    connection.execute("DELETE FROM places")
    connection.executemany(
        "INSERT INTO places VALUES (?, ?, ?, ?, ?, ?, ?)", [(number, *row) for number, row in enumerate(rows, 1)]
    )
    sums = RowSums().plus([row[0] for row in rows])
    (seq,) = connection.execute("SELECT seq FROM sums").fetchone()
    packed = sums.pack()
    check = crc32(packed, crc32(f"{seq}|{sums.rows}".encode()))
    connection.execute("UPDATE sums SET rows = ?, checksum = ?, packed = ?", (sums.rows, check, packed))


async def reads_of(ledger: LedgerClient | LedgerReader) -> list[str]:
    """How each way of reading entry 8 ends."""
    ends = []
    for read in (
        lambda: numbers(ledger.read(session_id="SES-00000001")),
        lambda: numbers(ledger.read(session_id="SES-00000001", after_seq=6, limit=1)),
        lambda: numbers(ledger.read()),
        lambda: numbers(ledger.read(after_seq=7, limit=1)),
        lambda: ledger.get(8),
        lambda: ledger.last(session_id="SES-00000001", limit=100),
    ):
        try:
            await read()
        except LedgerDamaged as damage:
            ends.append(damage.field)
        else:
            ends.append("ok")
    return ends


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
@pytest.mark.parametrize("how", [own_hash, own_link])
async def test_an_edited_line_whose_own_hashes_fit_is_refused_when_it_is_read(tmp_path: Path, how: Edit) -> None:
    """Opening does not read what its index vouches for; the reads do, each way."""
    path = tmp_path / "l.jsonl"
    await two_sessions(path)
    rewrite(path, how, 7)
    async with open_ledger(path, config=QUICK) as ledger:
        assert ledger.opened_from == "checkpoint"
        assert await numbers(ledger.read(session_id="SES-00000000")) == list(range(1, 40, 2)), "ada is served"
        assert await reads_of(ledger) == ["chain_hash"] * 6
        assert await numbers(ledger.read(session_id="SES-00000000")) == list(range(1, 40, 2)), "still"
    async with LedgerReader.open(path) as reader:
        assert await reads_of(reader) == ["chain_hash"] * 6
    assert verify_file(path).fault is not None


@pytest.mark.parametrize("how", [own_hash, own_link, all_links])
async def test_a_line_that_is_edited_while_the_ledger_is_open_is_refused_when_it_is_read(tmp_path: Path, how: Edit) -> None:
    """Also where the whole chain is made anew: the process has seen another one. Entries that wait for the index count, too."""
    path = tmp_path / "l.jsonl"
    await two_sessions(path, 20)
    async with open_ledger(path, config=QUICK) as ledger:
        for number in range(20, 40):
            await ledger.write(fact(number, f"SES-0000000{number % 2}"))
        await ledger.commit()
        async with LedgerReader.open(path) as reader:
            for place in (7, 27):
                untouched = path.read_bytes()
                rewrite(path, how, place)
                for each in (ledger, reader):
                    with pytest.raises(LedgerDamaged):
                        await numbers(each.read(session_id="SES-00000001"))
                    with pytest.raises(LedgerDamaged):
                        await each.get(place + 1)
                    with pytest.raises(LedgerDamaged):
                        await numbers(each.read())
                path.write_bytes(untouched)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
@pytest.mark.parametrize("how", [own_hash, own_link])
@pytest.mark.parametrize("place", [38, 39])
async def test_an_edited_line_of_the_last_commit_is_refused_at_opening_or_when_it_is_read(
    tmp_path: Path, how: Edit, place: int
) -> None:
    path = tmp_path / "l.jsonl"
    await two_sessions(path)
    rewrite(path, how, place)
    before = path.read_bytes()
    with pytest.raises(LedgerDamaged):
        async with open_ledger(path) as ledger:
            await numbers(ledger.read())
    assert path.read_bytes() == before, "nothing was cut"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
@pytest.mark.parametrize("how", [own_hash, own_link])
async def test_an_edited_line_of_a_finished_segment_is_refused_when_it_is_read(tmp_path: Path, how: Edit) -> None:
    path = tmp_path / "l.jsonl"
    config = segments_of(4_000, durability="os")
    async with open_ledger(path, config=config) as ledger:
        for number in range(40):
            await ledger.write(fact(number, f"SES-0000000{number % 2}"))
            await ledger.commit()
    rewrite(segment_path(path, 1), how, 7)
    async with open_ledger(path, config=config) as ledger:
        assert await reads_of(ledger) == ["chain_hash"] * 6
        with pytest.raises(LedgerDamaged) as damaged:
            await ledger.get(8)
        assert damaged.value.line in (8, 9)
        assert damaged.value.path.endswith("000001.segment")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
@pytest.mark.parametrize("place", [7, 39])
async def test_a_chain_that_was_rebuilt_to_its_end_is_refused_at_opening(tmp_path: Path, place: int) -> None:
    """The chain is right in itself, but the index has seen another. Without the index only a signed head tells."""
    path = tmp_path / "l.jsonl"
    await two_sessions(path)
    rewrite(path, all_links, place)
    for opening in (open_ledger(path), LedgerReader.open(path)):
        with pytest.raises(LedgerDamaged, match="as its index recorded"):
            async with opening:
                pytest.fail("it was opened")
    forget_index(path)
    async with open_ledger(path) as ledger:
        assert await reads_of(ledger) == ["ok"] * 6


@pytest.mark.parametrize("how", ["added", "moved", "elsewhere", "stops"])
async def test_what_the_index_says_of_an_entry_is_compared_with_the_entry(tmp_path: Path, how: str) -> None:
    """A row that gives a session another's entries, or leads to another line, costs speed and shows nobody anything."""
    path, mine, other = tmp_path / "l.jsonl", session_key("SES-00000001"), session_key("SES-00000000")
    await two_sessions(path)
    with sqlite3.connect(index_of(path)) as connection:
        if how == "moved":
            connection.execute("DELETE FROM places WHERE key = ?", (mine,))
        if how == "elsewhere":
            for number, key, after_seq, base, packed in connection.execute(
                "SELECT id, key, after_seq, base, packed FROM places"
            ).fetchall():
                check = crc32(packed, hash_of(key) ^ crc32(f"{after_seq}|{base + 3}".encode()))
                connection.execute("UPDATE places SET base = ?, checksum = ? WHERE id = ?", (base + 3, check, number))
            forge_sums(connection)
        if how == "stops":
            stop = Mark(5, 700, "ab" * 32, 2, "")
            connection.execute("INSERT INTO stops VALUES (?, ?, ?, ?, ?, ?)", (*stop, crc32(str(stop).encode())))
    connection.close()
    if how in ("added", "moved"):
        add_row(index_of(path), mine, other)
    async with LedgerReader.open(path) as reader:
        await check_both(reader)
    async with open_ledger(path) as ledger:
        with captured_logs() as logs:
            await check_both(ledger)
        assert "index is damaged" in [log["event"] for log in logs]
    async with open_ledger(path) as ledger:
        assert ledger.opened_from == "full", "it was made anew"
        with captured_logs() as logs:
            await check_both(ledger)
        assert not logs


async def check_both(ledger: LedgerClient | LedgerReader) -> None:
    assert await numbers(ledger.read(session_id="SES-00000001")) == list(range(2, 41, 2))
    assert [entry.seq for entry in await ledger.last(session_id="SES-00000001", limit=3)] == [36, 38, 40]
    assert await numbers(ledger.read(after_seq=6)) == list(range(7, 41))


async def test_a_row_that_is_added_to_the_index_gives_nobody_anothers_idempotent_result(tmp_path: Path) -> None:
    """Bo's key leads to ada's turn, and the message is the same; bo gets a turn of his own."""
    message, key = "What did the doctor say?", "k-1"
    async with open_scripted(tmp_path, ScriptedProvider(echo)) as runtime:
        adas = await runtime.supervisor().handle_turn(message, subject_id="ada", idempotency_key=key)
        ho2m = runtime.ledgers().ho2m.path
    files = [*tmp_path.rglob("*.sqlite")]
    [index] = [file for file in files if file.name.startswith("HO2M")]
    wanted = other_key(idempotency_index_key("subject", "eve", key))
    add_row(index, wanted, other_key(idempotency_index_key("subject", "ada", key)))
    async with open_scripted(tmp_path, ScriptedProvider(echo)) as runtime, bystander(runtime):
        eves = await runtime.supervisor().handle_turn(message, subject_id="eve", idempotency_key=key)
        again = await runtime.supervisor().handle_turn(message, subject_id="ada", idempotency_key=key)
    assert eves.session_id != adas.session_id
    assert again.turn_id == adas.turn_id
    assert verify_file(ho2m).ok


def in_one_commit(lines: list[bytes], first: int) -> list[bytes]:
    """The commits from a place on are written as one; no hash covers where a commit ends."""
    parts = [split_line(line) for line in lines[first:]]
    size, out = len(parts), lines[:first]
    for place, (raw, part) in enumerate(zip(lines[first:], parts, strict=True), 1):
        assert part is not None
        number = parts[0].batch[0] if parts[0] is not None else 0
        old = f'"batch":[{part.batch[0]},{part.batch[1]},{part.batch[2]}]'.encode()
        out.append(raw.replace(old, f'"batch":[{number},{place},{size}]'.encode()))
    return out


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
@pytest.mark.parametrize("segment_bytes", [64 << 20, 1_500])
async def test_commits_that_were_joined_are_not_cut_as_one_that_a_crash_tore(tmp_path: Path, segment_bytes: int) -> None:
    """The index is deleted, so nothing but the signed head, or a manifest, says that these entries were durable."""
    path, config = tmp_path / "l.jsonl", segments_of(segment_bytes, durability="os")
    signer = make_key(tmp_path / "key.pem")
    async with open_ledger(path, config=config) as ledger:
        for number in range(15):
            await ledger.write(fact(number))
            await ledger.commit()
    sign_ledger(path, signer, MOMENT)
    lines = [line.rstrip(b"\n") for line in path.read_bytes().splitlines(keepends=True)]
    joined = in_one_commit(lines, 1)
    path.write_bytes(b"".join(line + b"\n" for line in joined[:-1]) + joined[-1][:-20])
    forget_index(path)
    before = path.read_bytes()
    for opening in (open_ledger(path, config=config), LedgerReader.open(path)):
        with pytest.raises(LedgerDamaged):
            async with opening:
                pytest.fail("it was opened")
    assert path.read_bytes() == before
    assert not damaged_copies(path)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
async def test_a_signed_head_inside_a_commit_is_refused(tmp_path: Path) -> None:
    """The commits around it were joined; every line's hashes are as they were, and so is what the head covers before it."""
    path, signer = tmp_path / "l.jsonl", make_key(tmp_path / "key.pem")
    await two_sessions(path, 12)
    sign_ledger(path, signer, MOMENT)
    await two_sessions(path, 6)
    rewrite(path, lambda lines, place: in_one_commit(lines, place), 9)
    report = verify_file(path)
    assert report.fault is not None
    assert report.fault.field == "batch"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
@pytest.mark.parametrize("first", [0, 3, 9])
async def test_commits_that_were_joined_before_a_signed_head_are_refused(tmp_path: Path, first: int) -> None:
    """Wherever they stand: the head covers where commits end. Both verifiers see it, in one process and in several."""
    path, signer = tmp_path / "l.jsonl", make_key(tmp_path / "key.pem")
    await two_sessions(path, 15)
    sign_ledger(path, signer, MOMENT)
    await two_sessions(path, 3)
    sign_ledger(path, signer, MOMENT)
    assert verify_file(path, public_key=signer.public_key).ok
    lines = [line.rstrip(b"\n") for line in path.read_bytes().splitlines(keepends=True)]
    path.write_bytes(b"".join(line + b"\n" for line in in_one_commit(lines, first)))
    several = await verify_ledger(path, jobs=2, chunk_bytes=1_000)
    for report in (verify_file(path), several):
        assert report.fault is not None
        assert report.fault.field == "commits"
    if NODE is not None:
        assert ": commits: expected sha256:" in node([path])[0]
    forget_index(path)
    with pytest.raises(LedgerDamaged, match="commits"):
        async with open_ledger(path):
            pytest.fail("it was opened")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
@needs_node
async def test_a_head_of_an_earlier_version_is_right_and_the_next_one_covers_the_commits(tmp_path: Path) -> None:
    path, signer = tmp_path / "l.jsonl", make_key(tmp_path / "key.pem")
    await two_sessions(path, 15)
    lines = path.read_bytes().splitlines()
    last = split_line(lines[-1])
    assert last is not None
    old = sign_head("HO2M:ADMIN", last.seq, f"sha256:{last.chain_hash}", MOMENT, signer)
    checkpoint_path(path).write_bytes(canonical_bytes(old.as_json()) + b"\n")
    assert b"commits" not in checkpoint_path(path).read_bytes()
    assert refused([path], signer.public_key) == []
    async with open_ledger(path) as ledger:
        assert ledger.position == 15
    new = sign_ledger(path, signer, MOMENT)
    assert new is not None
    assert new.commits is not None
    assert refused([path], signer.public_key) == []


async def test_a_forked_child_writes_nothing_and_keeps_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    ends, begins = os.pipe(), os.pipe()
    async with open_ledger(path) as ledger:
        await ledger.write(fact(0))
        await ledger.commit()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # threads are running, which a child that does so little does not need
            child = os.fork()
        if child == 0:
            told = b"no error"
            try:
                ledger.write(fact(1)).send(None)
            except LedgerWriteError as error:
                told = b"forked" if "forked" in str(error) else str(error).encode()
            finally:
                os.write(ends[1], told)
                os.read(begins[0], 1)  # lives on until the parent has closed the ledger and opened it again
                os._exit(0)
        assert os.read(ends[0], 1_000) == b"forked"
        await ledger.write(fact(2))
        await ledger.commit()
    try:
        async with open_ledger(path) as ledger:
            assert await numbers(ledger.read()) == [1, 2]
            with pytest.raises(LedgerLocked):
                async with open_ledger(path):
                    pytest.fail("it was opened twice")
    finally:
        end_child(child, begins[1])
        for descriptor in (*ends, *begins):
            os.close(descriptor)


def end_child(child: int, pipe: int) -> None:
    os.write(pipe, b".")
    os.waitpid(child, 0)


async def test_an_index_that_was_turned_elsewhere_is_not_followed(tmp_path: Path) -> None:
    """SQLite would open what a symbolic link leads to, and write there."""
    path, other = tmp_path / "l.jsonl", tmp_path / "somebody-elses.sqlite"
    await two_sessions(path)
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before, index = other.read_bytes(), index_of(path)
    index.unlink()
    index.symlink_to(other)
    async with open_ledger(path) as ledger:
        assert await numbers(ledger.read(session_id="SES-00000001")) == list(range(2, 41, 2))
    assert other.read_bytes() == before
    assert not index.is_symlink()


@pytest.mark.parametrize("name", ["l.jsonl.checkpoint", "l.jsonl"])
async def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(tmp_path: Path, name: str) -> None:
    path = tmp_path / "l.jsonl"
    await two_sessions(path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with anyio.fail_after(20), pytest.raises((LedgerDamaged, LedgerPathError)):
        async with open_ledger(path):
            pytest.fail("it was opened")


async def test_numbers_of_thousands_of_digits_are_damage_and_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    await two_sessions(path)
    lines = path.read_bytes().splitlines(keepends=True)
    forget_index(path)
    for old, new in ((b'"seq":8', b'"seq":8' + b"0" * 6_000), (b'"batch":[3,', b'"batch":[3' + b"0" * 6_000 + b",")):
        path.write_bytes(b"".join(lines).replace(old, new, 1))
        report = verify_file(path)
        assert report.fault is not None
        assert report.fault.line in (7, 8)
        with pytest.raises(LedgerDamaged):
            async with LedgerReader.open(path) as reader:
                await numbers(reader.read())
