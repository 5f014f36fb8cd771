"""Sealed content: only the subject's key opens it, and destroying the key leaves every hash standing (docs/ledger.md)."""

import base64
import hmac
import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.canonical import Opening
from kitchener.errors import EntryRefused, SealingError
from kitchener.ledger import LedgerEntry, LedgerReader, verify_file
from kitchener.records.events import SEALED_FIELDS
from kitchener.sealing import Keyring, Sealer
from kitchener.sealing.subject_key import Mac
from tests.cli.shared.commands import finish, start_program
from tests.ledger.support import forget_index, open_ledger
from tests.shared.keyrings import change_key, key_at

SECRET = "my pin is 4711"


def sealer(directory: Path) -> Sealer:
    return Sealer(Keyring(directory / "keys"), SEALED_FIELDS)


def said(text: Any = SECRET, subject_id: str = "ada") -> LedgerEntry:
    return LedgerEntry("TURN_STARTED", "T-1", {"session_id": "SES-00000001", "subject_id": subject_id, "user_message": text})


def sealed_payload(seal: Sealer) -> dict[str, Any]:
    sealed = orjson.loads(orjson.dumps(seal.seal("L", "TURN_STARTED", {"subject_id": "ada", "user_message": SECRET})))
    assert isinstance(sealed, dict)
    return sealed


async def stored(path: Path) -> list[dict[str, Any]]:
    async with LedgerReader.open(path) as reader:  # without keys
        return [entry.payload async for entry in reader.read()]


async def test_what_a_subject_said_is_sealed_in_the_file_and_open_to_readers_with_the_key(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path, sealer=sealer(tmp_path)) as ledger:
        await ledger.write(said())
        await ledger.write(LedgerEntry("NOTE", "x", {"subject_id": "ada", "user_message": SECRET}))
        assert [entry.payload["user_message"] async for entry in ledger.read()] == [SECRET, SECRET]
    assert path.read_bytes().count(SECRET.encode()) == 1, "other entry types keep their fields plain"
    sealed = (await stored(path))[0]["user_message"]["$sealed"]
    assert set(sealed) == {"v", "kid", "nonce", "ct"}
    assert sealed["v"] == 1
    assert "=" not in sealed["nonce"] + sealed["ct"]
    assert verify_file(path).ok
    async with LedgerReader.open(path, sealer=sealer(tmp_path)) as reader:
        [entry] = [entry async for entry in reader.read(session_id="SES-00000001")]
        assert entry.payload["user_message"] == SECRET
    async with open_ledger(path, sealer=sealer(tmp_path)) as ledger:
        assert [entry.payload["user_message"] async for entry in ledger.read()] == [SECRET, SECRET]


@pytest.mark.parametrize("value", ["", "é😀", 0, False, {}, [""], [[]], {"$sealed": {"v": 1}}, {"a": [1.5, None]}])
async def test_any_json_value_comes_back_as_it_was(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path, sealer=sealer(tmp_path)) as ledger:
        await ledger.write(said(value))
    assert set((await stored(path))[0]["user_message"]) == {"$sealed"}
    async with open_ledger(path, sealer=sealer(tmp_path)) as ledger:
        entry = await ledger.get(1)
        assert entry is not None
        assert entry.payload["user_message"] == value


async def test_nothing_is_sealed_where_there_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path, sealer=sealer(tmp_path)) as ledger:
        await ledger.write(said(None))
        await ledger.write(LedgerEntry("TURN_STARTED", "T-2", {"subject_id": "ada"}))
        await ledger.write(said([]))
    assert [payload.get("user_message") for payload in await stored(path)] == [None, None, []]


async def test_the_same_text_is_never_sealed_twice_the_same_way(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path, sealer=sealer(tmp_path)) as ledger:
        await ledger.write(said())
        await ledger.write(said())
    one, two = (payload["user_message"]["$sealed"] for payload in await stored(path))
    assert one["kid"] == two["kid"]
    assert one["nonce"] != two["nonce"]
    assert one["ct"] != two["ct"]


async def test_destroying_a_key_erases_its_subject_and_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path, sealer=sealer(tmp_path)) as ledger:
        await ledger.write(said())
        await ledger.write(said("hello", "bo"))
    keyring = Keyring(tmp_path / "keys")
    kid = keyring.destroy("ada")
    assert kid == (await stored(path))[0]["user_message"]["$sealed"]["kid"]
    assert keyring.destroy("ada") is None
    assert verify_file(path).ok
    async with open_ledger(path, sealer=sealer(tmp_path)) as ledger:
        assert [entry.payload["user_message"] async for entry in ledger.read()] == [
            (await stored(path))[0]["user_message"],
            "hello",
        ]
        await ledger.write(said("a new life"))  # under a new key, which does not open the old one's
        assert [type(entry.payload["user_message"]) async for entry in ledger.read()] == [dict, str, str]


@pytest.mark.parametrize("where", ["ct", "nonce", "entity"])
async def test_a_changed_or_moved_value_is_refused(tmp_path: Path, where: str) -> None:
    """The chain would show the change too; here the value is opened as if somebody had rebuilt the chain."""
    seal = sealer(tmp_path)
    payload = sealed_payload(seal)
    sealed = payload["user_message"]["$sealed"]
    assert seal.open("L", "TURN_STARTED", payload)["user_message"] == SECRET
    if where == "entity":
        for ledger_id, entry_type in (("M", "TURN_STARTED"), ("L", "TURN_REJECTED")):
            with pytest.raises(SealingError, match="changed or moved"):
                seal.open(ledger_id, entry_type, payload)
        return
    text = sealed[where]
    for changed in (text[:-2] + ("AA" if text[-2:] != "AA" else "BB"), text[:-4], "", "?", 5):
        with pytest.raises(SealingError, match="changed or moved"):
            seal.open("L", "TURN_STARTED", payload | {"user_message": {"$sealed": sealed | {where: changed}}})


async def test_a_version_from_the_future_is_told(tmp_path: Path) -> None:
    seal = sealer(tmp_path)
    payload = sealed_payload(seal)
    payload["user_message"]["$sealed"]["v"] = 2
    with pytest.raises(SealingError, match="newer"):
        seal.open("L", "TURN_STARTED", payload)


async def test_content_without_a_subject_is_not_written_plainly(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl", sealer=sealer(tmp_path)) as ledger:
        for payload in ({"user_message": SECRET}, {"user_message": SECRET, "subject_id": 7}):
            with pytest.raises(SealingError, match="no subject_id"):
                await ledger.write(LedgerEntry("TURN_STARTED", "T-1", payload))
        with pytest.raises(EntryRefused, match="inf"):
            await ledger.write(said(float("inf")))
        assert ledger.position == 0


async def test_plain_ledgers_are_read_with_a_sealer_and_sealed_ones_continued(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path) as ledger:
        await ledger.write(said("plain"))
    async with open_ledger(path, sealer=sealer(tmp_path)) as ledger:
        await ledger.write(said("sealed"))
        assert [entry.payload["user_message"] async for entry in ledger.read()] == ["plain", "sealed"]
    forget_index(path)
    async with open_ledger(path, sealer=sealer(tmp_path)) as ledger:
        assert [entry.payload["user_message"] async for entry in ledger.read(session_id="SES-00000001")] == ["plain", "sealed"]


async def test_digests_of_content_need_the_key(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl", sealer=sealer(tmp_path)) as ledger:
        ada, again, bo = (ledger.content_digest(subject, b"abc") for subject in ("ada", "ada", "bo"))
    assert ada == again != bo
    assert ada.startswith("hmac-sha256:")
    assert len(ada) == len("hmac-sha256:") + 64
    assert sealer(tmp_path).content_digest("ada", b"abc") == ada
    assert "ba7816bf" not in ada, "not the digest that anybody can compute"


async def test_keys_are_files_for_their_owner_alone(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keys")
    key = keyring.get("ada-lovelace")
    [file] = (tmp_path / "keys" / "batches").iterdir()
    [name] = (tmp_path / "keys").glob("*.key")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "keys", tmp_path / "keys" / "batches")} == {0o700}
    content = json.loads(key_at(name))
    assert content["v"] == 2
    assert content["subject"] == name.stem
    assert set(content) == {"v", "subject", "kid", "key"}
    assert "ada-lovelace" not in f"{name} {os.readlink(name)} {file} {file.read_text()}"
    assert key.kid == content["kid"]
    assert content["key"] not in repr(key)
    assert Keyring(tmp_path / "keys").get("ada-lovelace").kid == key.kid
    assert Keyring(tmp_path / "keys").find("bo") is None
    assert Keyring(tmp_path / "keys").get("bo").kid != key.kid


async def test_a_key_that_another_process_made_first_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "keys"
    first, second = Keyring(directory), Keyring(directory)
    symlink = os.symlink

    def raced(source: Any, target: Any) -> None:
        monkeypatch.setattr(os, "symlink", symlink)
        first.get("ada")
        symlink(source, target)

    monkeypatch.setattr(os, "symlink", raced)
    assert second.get("ada").kid == first.get("ada").kid
    assert len(list(directory.glob("*.key"))) == 1
    assert len(list((directory / "batches").iterdir())) == 1, "the other key is gone, with its file"


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"kid":"x","key":"AAAA"}', '{"kid":"x","key":"?"}'])
async def test_a_damaged_key_file_is_told_without_its_content(tmp_path: Path, content: str) -> None:
    Keyring(tmp_path / "keys").get("ada")
    [name] = (tmp_path / "keys").glob("*.key")
    change_key(name, lambda _: content.encode())
    with pytest.raises(SealingError, match="backup") as refused:
        Keyring(tmp_path / "keys").get("ada")
    assert "AAAA" not in str(refused.value)


async def test_a_place_that_cannot_hold_keys_is_told(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a file")
    with pytest.raises(SealingError, match=r"Not a directory|File exists"):
        Keyring(tmp_path / "keys").get("ada")


@pytest.mark.soak
def test_more_subjects_than_are_remembered(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keys")
    kids = {f"s{n}": keyring.get(f"s{n}").kid for n in range(4_100)}
    assert {subject: keyring.get(subject).kid for subject in kids} == kids


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(SealingError, match=r"pip install .*cryptography"):
        Keyring(tmp_path).get("ada")


def test_the_library_is_not_loaded_where_nothing_is_sealed() -> None:
    code = "import sys, kitchener.ledger; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


BEGUN = "2026-11-22T00:00:00.000000+00:00"


async def test_an_erasure_counts_from_its_note_on(tmp_path: Path) -> None:
    """The key is there still, and opens and seals nothing, also for a keyring that had it in memory (docs/erasure.md)."""
    keyring, other = Keyring(tmp_path / "keys"), Keyring(tmp_path / "keys")
    kid = keyring.get("ada").kid
    keyring.get("bo")
    begun = keyring.begin_erasure("ada", BEGUN)
    assert begun is not None
    assert (begun.subject_id, begun.kid, begun.begun_at) == ("ada", kid, BEGUN)
    assert keyring.begin_erasure("ada", "later") == begun, "begun once"
    for each in (keyring, other, Keyring(tmp_path / "keys")):
        assert each.find("ada") is None
        assert each.kid_of("ada") == kid
        assert each.erasures() == [begun]
        with pytest.raises(SealingError, match="is being erased"):
            each.get("ada")
        assert each.find("bo") is not None
    assert len(list((tmp_path / "keys").glob("*.key"))) == 2
    [note] = (tmp_path / "keys" / "erasing").iterdir()
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    assert "key" not in json.loads(note.read_text())


async def test_an_erasure_is_done_step_by_step_and_each_again(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keys")
    kid = keyring.get("ada").kid
    keyring.begin_erasure("ada", BEGUN)
    for _ in range(2):
        assert keyring.destroy("ada") == kid
        assert list((tmp_path / "keys").glob("*.key")) == []
    for _ in range(2):
        keyring.end_erasure("ada")
        assert keyring.erasures() == []
    assert keyring.kid_of("ada") is None
    assert keyring.begin_erasure("ada", BEGUN) is None, "there is nothing to erase"
    assert keyring.get("ada").kid != kid


async def test_a_key_that_a_crash_left_overwritten_is_destroyed_all_the_same(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keys")
    kid = keyring.get("ada").kid
    keyring.begin_erasure("ada", BEGUN)
    [file] = (tmp_path / "keys").glob("*.key")
    change_key(file, lambda _: bytes(256))
    again = Keyring(tmp_path / "keys")
    assert again.find("ada") is None
    assert again.destroy("ada") == kid
    assert not file.exists()


async def test_a_key_that_is_gone_can_still_be_noted(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keys")
    keyring.get("bo")
    begun = keyring.begin_erasure("ada", BEGUN, lost_kid="0a")
    assert begun is not None
    assert begun.kid == "0a"
    assert keyring.destroy("ada") == "0a"


async def test_erasures_are_told_in_one_order(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keys")
    for subject, at in (("c", "2026-01-02"), ("b", "2026-01-01"), ("a", "2026-01-02")):
        keyring.get(subject)
        keyring.begin_erasure(subject, at)
    assert [each.subject_id for each in keyring.erasures()] == ["b", "a", "c"]
    assert Keyring(tmp_path / "nowhere").erasures() == []


async def test_a_damaged_note_is_told(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keys")
    keyring.get("ada")
    keyring.begin_erasure("ada", BEGUN)
    [note] = (tmp_path / "keys" / "erasing").iterdir()
    note.write_text("{}")
    with pytest.raises(SealingError, match="is not the note of an erasure"):
        Keyring(tmp_path / "keys").get("ada")


def test_a_thread_that_reads_a_key_does_not_keep_it_beyond_its_end(tmp_path: Path) -> None:
    """Many look the key up while it is destroyed; whoever got it, nobody has put it back into memory."""
    for number in range(20):
        keyring = Keyring(tmp_path / f"keys{number}")
        Keyring(tmp_path / f"keys{number}").get("ada")
        with ThreadPoolExecutor(8) as pool:
            looked = [pool.submit(keyring.find, "ada") for _ in range(16)]
            keyring.begin_erasure("ada", BEGUN)
            keyring.destroy("ada")
            for each in looked:
                each.result()
        assert not keyring.has("ada")
        assert keyring.find("ada") is None


async def test_what_has_nothing_to_seal_needs_no_key_and_makes_none(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl", sealer=sealer(tmp_path)) as ledger:
        await ledger.write(LedgerEntry("SESSION_START", "SES-00000001", {"subject_id": "ada"}))
        await ledger.write(LedgerEntry("TURN_STARTED", "T-1", {"subject_id": "ada"}))
    assert not (tmp_path / "keys").exists()


async def test_keys_of_many_new_subjects_are_created_together_and_one_damaged_key_stops_only_its_subject(
    tmp_path: Path,
) -> None:
    seal = sealer(tmp_path)
    Keyring(tmp_path / "keys").get("bad")
    [name] = (tmp_path / "keys").glob("*.key")
    change_key(name, lambda _: b"{}")
    subjects, refused = [f"s{number}" for number in range(300)], []

    async def load(subject_id: str) -> None:
        try:
            await seal.load_key(subject_id)
        except SealingError:
            refused.append(subject_id)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for subject_id in [*subjects, "bad", *subjects[:5]]:
                tasks.start_soon(load, subject_id)
    assert refused == ["bad"]
    kids = {seal.keyring.get(subject_id).kid for subject_id in subjects}
    assert len(kids) == 300
    assert {Keyring(tmp_path / "keys").get(subject_id).kid for subject_id in subjects} == kids


def test_two_keyrings_that_create_the_same_keys_at_once_end_with_the_same_ones(tmp_path: Path) -> None:
    subjects = [f"s{number}" for number in range(60)]
    rings = [Keyring(tmp_path / "keys") for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        for loading in [threads.submit(ring.load, subjects) for ring in rings]:
            loading.result()
    assert all(ring.has(subject_id) for ring in rings for subject_id in subjects)
    assert len({rings[0].get(subject_id).kid for subject_id in subjects}) == 60
    for subject_id in subjects:
        kid = Keyring(tmp_path / "keys").get(subject_id).kid
        assert [ring.get(subject_id).kid for ring in rings] == [kid, kid]
    assert {file.suffix for file in (tmp_path / "keys").iterdir()} == {".key", ""}
    used = [key_at(name) for name in (tmp_path / "keys").glob("*.key")]
    kept = [slot for batch in (tmp_path / "keys" / "batches").iterdir() for slot in batch.read_bytes().split(b"\n")]
    assert len(used) == 60
    assert sorted(each.strip(b" \0") for each in kept if each.strip(b"\0")) == sorted(used), "no key is left without a name"


def test_keys_that_cannot_be_written_leave_nothing_and_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring, sync, fails = Keyring(tmp_path / "keys"), os.fsync, iter([OSError(28, "No space left on device")])
    keyring.get("bo")
    before = sorted((tmp_path / "keys").rglob("*"))

    def fails_once(fd: int) -> None:
        problem = next(fails, None) if stat.S_ISREG(os.fstat(fd).st_mode) else None
        if problem is not None:
            raise problem
        sync(fd)

    monkeypatch.setattr(os, "fsync", fails_once)
    subjects = [f"s{number}" for number in range(20)]
    keyring.load(subjects)
    assert not any(keyring.has(subject_id) for subject_id in subjects)
    assert sorted((tmp_path / "keys").rglob("*")) == before
    keyring.load(subjects)
    assert [keyring.get(each).kid for each in subjects] == [Keyring(tmp_path / "keys").get(each).kid for each in subjects]


def test_a_disk_that_is_full_half_way_keeps_the_keys_that_have_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring, symlink, left = Keyring(tmp_path / "keys"), os.symlink, iter(range(7))

    def fails_after_seven(source: Any, target: Any) -> None:
        if next(left, None) is None:
            raise OSError(28, "No space left on device")
        symlink(source, target)

    monkeypatch.setattr(os, "symlink", fails_after_seven)
    subjects = [f"s{number}" for number in range(20)]
    keyring.load(subjects)
    assert [keyring.has(each) for each in subjects] == [True] * 7 + [False] * 13
    [batch] = (tmp_path / "keys" / "batches").iterdir()
    assert batch.read_bytes()[7 * 256 :] == bytes(13 * 256), "nobody uses these keys"
    with pytest.raises(SealingError, match="No space left"):
        keyring.get("s7")
    assert list((tmp_path / "keys" / "batches").iterdir()) == [batch]
    monkeypatch.undo()
    assert keyring.get("s7").kid == Keyring(tmp_path / "keys").get("s7").kid


async def test_who_stops_waiting_for_a_key_leaves_the_others_theirs(tmp_path: Path) -> None:
    seal = sealer(tmp_path)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as given_up:
                    for subject_id in ("ada", "bo"):
                        given_up.start_soon(seal.load_key, subject_id)
                    tasks.start_soon(seal.load_key, "cy")
                    scope.cancel()
        await seal.load_key("bo")
    assert seal.keyring.has("bo")
    assert seal.keyring.has("cy")


@pytest.mark.parametrize("at_once", [False, True])
def test_a_key_whose_name_may_not_be_on_disk_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """What is sealed under a key that a power failure can take is lost, so a key is on disk before its first use."""
    keyring, sync = Keyring(tmp_path / "keys"), os.fsync
    keyring.get("bo")
    names = list[str]()

    def fails_for_directories(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            names.append("directory")
            raise OSError(5, "Input/output error")
        sync(fd)

    monkeypatch.setattr(os, "fsync", fails_for_directories)
    if at_once:
        keyring.load(["ada", "cy"])
    for _ in range(2):
        with pytest.raises(SealingError, match="Input/output error"):
            keyring.get("ada")
    assert not keyring.has("ada")
    assert len(names) >= 2, "each attempt asks the disk again"
    monkeypatch.undo()
    assert keyring.get("ada").kid == Keyring(tmp_path / "keys").get("ada").kid


def test_no_nonce_is_used_twice_also_not_by_a_forked_child(tmp_path: Path) -> None:
    code = """if True:
        import os, sys
        import orjson
        from kitchener.records.events import SEALED_FIELDS
        from kitchener.sealing import Keyring, Sealer

        sealer = Sealer(Keyring(sys.argv[1]), SEALED_FIELDS)

        def nonces(count):
            said = {"subject_id": "ada", "user_message": "x"}
            sealed = [orjson.loads(orjson.dumps(sealer.seal("L", "TURN_STARTED", said))) for _ in range(count)]
            return [each["user_message"]["$sealed"]["nonce"] for each in sealed]

        used = nonces(1_300)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, orjson.dumps(nonces(100)))
            os._exit(0)
        os.waitpid(child, 0)
        used += nonces(100) + orjson.loads(os.read(read, 1 << 16))
        assert len(used) == 1_500
        assert len(set(used)) == 1_500
    """
    done = finish(start_program(code, tmp_path / "keys"))
    assert done.code == 0, done.err


def test_a_digest_of_content_is_an_hmac_over_opening_and_data(tmp_path: Path) -> None:
    """Digests on record stay the same: HMAC-SHA-256 under a key derived from the subject's key."""
    seal = sealer(tmp_path)
    seal.keyring.get("ada")
    [file] = (tmp_path / "keys").glob("*.key")
    secret = base64.urlsafe_b64decode(json.loads(key_at(file))["key"] + "=")
    derived = hmac.digest(secret, b"kitchener/1 content digest", "sha256")
    expected = f"hmac-sha256:{hmac.digest(derived, b'opening data', 'sha256').hex()}"
    assert seal.content_digest("ada", b"data", Opening(b"opening ")) == expected
    assert seal.content_digest("ada", b"opening data") == expected


@given(key=st.binary(max_size=64), parts=st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300)), max_size=9))
def test_prepared_hash_states_give_what_hmac_gives(key: bytes, parts: list[tuple[bytes, bytes]]) -> None:
    """Also where an opening is used again, and after more of them than are kept."""
    mac = Mac(key)
    openings = [Opening(opening) for opening, _ in parts]
    for _ in range(2):  # the states are copied, not used up
        for opening, (_, data) in zip(openings, parts, strict=True):
            assert mac.digest(data, opening) == hmac.digest(key, opening.data + data, "sha256")
            assert mac.digest(data) == hmac.digest(key, data, "sha256")
