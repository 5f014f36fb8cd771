"""Keys on disk: whole or not there, each in one place, found without reading the others (docs/erasure.md, "Files")."""

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kitchener.errors import SealingError
from kitchener.sealing import Keyring
from tests.cli.shared.commands import start_program
from tests.sealing.crashes import killed_before_call
from tests.shared.keyrings import SLOT_BYTES, as_file, change_key, key_at, name_of, slot_of
from tests.shared.property_examples import examples
from tests.shared.system_limits import descriptors

BEGUN = "2026-11-22T00:00:00.000000+00:00"
SUBJECTS = tuple("abcdef")
subjects = st.sampled_from(SUBJECTS)
calls = st.none() | st.integers(min_value=1, max_value=30)


def secret(keyring: Keyring, subject_id: str) -> bytes:
    content = keyring.key_file(subject_id)
    assert content is not None
    key = json.loads(content)["key"]
    assert isinstance(key, str)
    return key.encode()


def holding(directory: Path, key: bytes) -> list[Path]:
    """The files that hold a key."""
    return [path for path in directory.rglob("*") if path.is_file() and key in path.read_bytes()]


class Keys(RuleBasedStateMachine):
    """A keyring whose process is killed at any file operation, and started again."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.directory = self.home / "keys"
        self.keyring = Keyring(self.directory)
        self.used: dict[str, tuple[str, bytes]] = {}
        self.erasing: set[str] = set()
        self.destroyed: list[bytes] = []

    def teardown(self) -> None:
        shutil.rmtree(self.home)

    @rule(wanted=st.sets(subjects, min_size=1), dies_at=calls)
    def keys_are_loaded(self, wanted: set[str], dies_at: int | None) -> None:
        with killed_before_call(dies_at):
            self.keyring.load(sorted(wanted))
        for subject_id in wanted:
            if self.keyring.has(subject_id):
                self._use(subject_id)
            assert dies_at is not None or self.keyring.has(subject_id) != (subject_id in self.erasing)
        if dies_at is not None:
            self.keyring = Keyring(self.directory)

    @rule(subject_id=subjects, dies_at=calls)
    def a_key_is_wanted(self, subject_id: str, dies_at: int | None) -> None:
        with killed_before_call(dies_at):
            try:
                self.keyring.get(subject_id)
            except SealingError:
                assert subject_id in self.erasing
            else:
                assert subject_id not in self.erasing
        if self.keyring.has(subject_id):
            self._use(subject_id)
        if dies_at is not None:
            self.keyring = Keyring(self.directory)

    @rule(subject_id=subjects, steps=st.integers(min_value=1, max_value=3), dies_at=calls)
    def a_subject_is_erased(self, subject_id: str, steps: int, dies_at: int | None) -> None:
        known = self.used.get(subject_id)
        done = begun = None
        with killed_before_call(dies_at):
            begun = self.keyring.begin_erasure(subject_id, BEGUN)
            if begun is not None:
                self.erasing.add(subject_id)
                if steps > 1:
                    done = self.keyring.destroy(subject_id)
                if steps > 2:
                    self.keyring.end_erasure(subject_id)
                    self.erasing.discard(subject_id)
        if done is not None and known is not None:
            assert done == known[0]
        if dies_at is not None:
            self.keyring = Keyring(self.directory)
            noted = {each.subject_id for each in self.keyring.erasures()}
            assert noted - {subject_id} == self.erasing - {subject_id}
            self.erasing = noted
        if done is not None or (known is not None and self.keyring.kid_of(subject_id) is None):
            self._is_gone(subject_id)

    @rule(subject_id=subjects)
    def an_older_version_made_the_key(self, subject_id: str) -> None:
        if subject_id in self.used and subject_id not in self.erasing:
            name = name_of(self.directory, subject_id)
            if name.is_symlink():
                batch, start = slot_of(name)
                as_file(self.directory, subject_id)
                with batch.open("r+b") as file:
                    file.seek(start)
                    file.write(bytes(SLOT_BYTES))

    @rule(how=st.sampled_from(["cp -R", "cp -a", "tar", "rename"]))
    def the_directory_is_restored_from_a_copy(self, how: str) -> None:
        if self.directory.is_dir():
            copied(self.directory, self.home / "copy", how)
            shutil.rmtree(self.directory, ignore_errors=True)
            (self.home / "copy").rename(self.directory)
            self.keyring = Keyring(self.directory)

    @invariant()
    def keys_in_use_are_there_and_destroyed_ones_nowhere(self) -> None:
        fresh = Keyring(self.directory)
        for subject_id, (kid, key) in self.used.items():
            if subject_id in self.erasing:
                assert fresh.find(subject_id) is None
            else:
                found = fresh.find(subject_id)
                assert found is not None
                assert found.kid == kid
                assert len(holding(self.directory, key)) == 1
        for key in self.destroyed:
            assert holding(self.directory, key) == []

    def _use(self, subject_id: str) -> None:
        kid = self.keyring.get(subject_id).kid
        known = self.used.get(subject_id)
        assert known is None or known[0] == kid
        self.used[subject_id] = kid, secret(self.keyring, subject_id)

    def _is_gone(self, subject_id: str) -> None:
        if subject_id in self.used:
            self.destroyed.append(self.used.pop(subject_id)[1])


Keys.TestCase.settings = settings(max_examples=examples(few=10, many=500), stateful_step_count=25, deadline=None)
TestKeys = Keys.TestCase


def erase(keyring: Keyring, subject_id: str) -> None:
    keyring.begin_erasure(subject_id, BEGUN)
    keyring.destroy(subject_id)
    keyring.end_erasure(subject_id)


@pytest.mark.parametrize("form", ["batch", "last of its batch", "file"])
def test_an_erasure_that_is_killed_before_any_file_operation_completes_when_it_is_repeated(tmp_path: Path, form: str) -> None:
    for number in range(1, 40):
        directory = tmp_path / str(number)
        Keyring(directory).load(["ada"] if form == "last of its batch" else ["ada", "bo"])
        if form == "file":
            as_file(directory, "ada")
            shutil.rmtree(directory / "batches")
        key, done = secret(Keyring(directory), "ada"), list[bool]()
        with killed_before_call(number):
            erase(Keyring(directory), "ada")
            done.append(True)
        again = Keyring(directory)
        assert not again.erasures() or again.find("ada") is None
        if again.kid_of("ada") is not None:  # else only the end of the erasure was not on disk
            erase(again, "ada")
        assert holding(directory, key) == []
        assert not name_of(directory, "ada").is_symlink()
        assert Keyring(directory).get("ada").kid
        if done:
            break
    assert number > 10


def test_keys_whose_creation_is_killed_before_any_file_operation_are_whole_or_not_there(tmp_path: Path) -> None:
    wanted = ["ada", "bo", "cy"]
    for number in range(1, 40):
        keyring, done = Keyring(tmp_path / str(number)), list[bool]()
        with killed_before_call(number):
            keyring.load(wanted)
            done.append(True)
        assert [keyring.has(each) for each in wanted] == [bool(done)] * 3, "none is used before all are on disk"
        again = Keyring(tmp_path / str(number))
        kids = {each: found.kid for each in wanted if (found := again.find(each)) is not None}
        again.load(wanted)
        assert all(again.has(each) for each in wanted)
        assert kids.items() <= {each: again.get(each).kid for each in wanted}.items()
        if done:
            break
    assert number > 10


def nameless(directory: Path) -> list[str]:
    """The slots that hold a key to which no name leads."""
    found, folder = list[str](), directory / "batches"
    for path in folder.glob("*.keys") if folder.is_dir() else ():
        for slot in range(-(-path.stat().st_size // SLOT_BYTES)):
            text, link = path.read_bytes()[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES], f"batches/{path.name}:{slot}"
            if text.strip(b"\0") and link not in [os.readlink(each) for each in directory.glob("*.key")]:
                found.append(link)
    return found


@pytest.mark.parametrize("then", ["given again", "left"])
def test_a_key_that_a_crash_has_left_without_a_name_does_not_survive_its_destruction(tmp_path: Path, then: str) -> None:
    """It was given: what was sealed with it elsewhere could still be read."""
    Keyring(tmp_path / "elsewhere").get("ada")
    content = Keyring(tmp_path / "elsewhere").key_file("ada")
    assert content is not None
    key, was_left = secret(Keyring(tmp_path / "elsewhere"), "ada"), 0
    for number in range(1, 40):
        directory, done = tmp_path / str(number), list[bool]()
        with killed_before_call(number):
            Keyring(directory).get("ada", content)
            done.append(True)
        was_left += bool(nameless(directory))
        if then == "given again":
            assert Keyring(directory).get("ada", content).kid == Keyring(tmp_path / "elsewhere").get("ada").kid
        Keyring(directory).destroy("ada")
        assert holding(directory, key) == []
        assert not list(directory.rglob("*.naming"))
        if done:
            break
    assert was_left >= 3, "before the directory is synced, before the name is made"


def test_keys_that_a_crash_has_left_without_a_name_are_overwritten_when_the_next_ones_are_made(tmp_path: Path) -> None:
    was_left = 0
    for number in range(1, 40):
        directory, done = tmp_path / str(number), list[bool]()
        Keyring(directory).load(["before"])
        with killed_before_call(number):
            Keyring(directory).load(["ada", "bo", "cy"])
            done.append(True)
        was_left += bool(nameless(directory))
        kids = {each: found.kid for each in ("before", "ada", "bo", "cy") if (found := Keyring(directory).find(each))}
        Keyring(directory).load(["next"])
        assert nameless(directory) == []
        assert not list(directory.rglob("*.naming"))
        assert kids == {each: Keyring(directory).get(each).kid for each in kids}
        if done:
            break
    assert was_left >= 3


def test_keys_whose_names_another_process_is_making_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, real = tmp_path / "keys", os.symlink
    Keyring(directory).load(["before"])
    kept = list[bytes]()

    def made_meanwhile(*args: Any) -> None:
        monkeypatch.setattr(os, "symlink", real)
        (batch,) = [each for each in (directory / "batches").glob("*.keys") if each.with_suffix(".naming").exists()]
        before = batch.read_bytes()
        Keyring(directory).load(["next"])
        Keyring(directory).destroy("before")
        assert batch.read_bytes() == before
        kept.append(before)
        real(*args)

    monkeypatch.setattr(os, "symlink", made_meanwhile)
    keyring = Keyring(directory)
    keyring.load(["ada", "bo"])
    assert kept
    assert all(keyring.has(each) for each in ("ada", "bo"))
    assert Keyring(directory).get("ada").kid == keyring.get("ada").kid
    assert (nameless(directory), list(directory.rglob("*.naming"))) == ([], [])


def test_a_name_that_cannot_be_read_keeps_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails for a moment, while what a crash has left is looked through, destroys no key that is in use."""
    directory, readlink = tmp_path / "keys", os.readlink
    kid = Keyring(directory).get("ada").kid
    Keyring(directory).load(["bo"])
    for each in list((directory / "batches").glob("*.keys")):
        each.with_suffix(".naming").touch()  # as a crash leaves it
    names = set(map(str, directory.glob("*.key")))

    def fails(path: Any, **options: Any) -> str:
        if str(path) in names:
            raise OSError(5, "Input/output error")
        return str(readlink(path, **options))

    monkeypatch.setattr(os, "readlink", fails)
    with pytest.raises(SealingError, match="Input/output error"):
        Keyring(directory).destroy("cy")
    monkeypatch.undo()
    Keyring(directory).load(["cy"])
    assert Keyring(directory).get("ada").kid == kid
    assert (nameless(directory), list(directory.rglob("*.naming"))) == ([], [])


def copied(directory: Path, to: Path, how: str) -> None:
    if how == "rename":
        directory.rename(to)
    elif how == "tar":
        to.mkdir()
        packed = subprocess.run(["tar", "-C", str(directory), "-c", "."], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-C", str(to), "-x"], check=True, input=packed)
    else:
        subprocess.run([*how.split(), str(directory), str(to)], check=True)


def batches(directory: Path) -> list[Path]:
    return sorted((directory / "batches").iterdir())


def test_keys_that_are_made_together_share_a_file_and_one_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring, sync, synced = Keyring(tmp_path / "keys"), os.fsync, list[bool]()
    keyring.get("first")

    def counted(fd: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(fd).st_mode))
        sync(fd)

    monkeypatch.setattr(os, "fsync", counted)
    keyring.load([f"s{number}" for number in range(500)])
    assert sorted(synced) == [False, True, True], "the batch, its directory, the names"
    assert len(batches(tmp_path / "keys")) == 2


def test_finding_a_key_reads_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a keyring of many subjects opens as fast as one of few, in as little memory."""
    Keyring(tmp_path / "keys").load([f"s{number}" for number in range(2_000)])
    opened, listed, real = list[str](), list[str](), os.open

    def watched(path: Any, flags: int, *args: Any, **options: Any) -> int:
        opened.append(Path(path).name)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", watched)
    monkeypatch.setattr(os, "scandir", listed.append)
    keyring = Keyring(tmp_path / "keys")
    assert keyring.find("s1234") is not None
    assert opened == [slot_of(name_of(tmp_path / "keys", "s1234"))[0].name]
    assert listed == []


def test_a_file_goes_with_its_last_key(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keys")
    keyring.load(["ada", "bo", "cy"])
    [batch] = batches(tmp_path / "keys")
    for subject_id in ("bo", "ada"):
        keyring.destroy(subject_id)
        assert batches(tmp_path / "keys") == [batch]
    assert Keyring(tmp_path / "keys").find("cy") is not None
    keyring.destroy("cy")
    assert batches(tmp_path / "keys") == []
    assert list((tmp_path / "keys").glob("*.key")) == []


LINKS = (
    "/etc/passwd",
    "batches/../x.keys:0",
    "batches/{batch}",
    "batches/{batch}:-1",
    "batches/{batch}:00",
    "{batch}:0",
    "batches/{batch}:0\n",
)


@pytest.mark.parametrize("text", LINKS)
def test_a_link_to_something_else_is_refused(tmp_path: Path, text: str) -> None:
    keyring = Keyring(tmp_path / "keys")
    keyring.load(["ada", "bo"])
    name, [batch] = name_of(tmp_path / "keys", "ada"), batches(tmp_path / "keys")
    content = batch.read_bytes()
    name.unlink()
    name.symlink_to(text.format(batch=batch.name))
    forged = Keyring(tmp_path / "keys")
    for call in (forged.find, forged.get, forged.kid_of, forged.key_file, forged.destroy):
        with pytest.raises(SealingError, match=re.escape(name.name)):
            call("ada")
    assert batch.read_bytes() == content
    assert forged.find("bo") is not None


def test_a_link_to_the_key_of_another_subject_neither_gives_nor_destroys_it(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keys")
    keyring.load(["ada", "bo"])
    ada, bo = (name_of(tmp_path / "keys", each) for each in ("ada", "bo"))
    kid = keyring.get("bo").kid
    ada.unlink()
    ada.symlink_to(os.readlink(bo))
    forged = Keyring(tmp_path / "keys")
    with pytest.raises(SealingError, match="another subject"):
        forged.find("ada")
    forged.begin_erasure("cy", BEGUN, lost_kid="0a")
    with pytest.raises(SealingError, match="another subject"):
        forged.destroy("ada")
    found = forged.find("bo")
    assert found is not None
    assert found.kid == kid


@pytest.mark.parametrize("what", ["link", "directory", "pipe"])
def test_a_batch_that_is_no_file_is_refused_and_nothing_waits_for_it(tmp_path: Path, what: str) -> None:
    Keyring(tmp_path / "keys").get("ada")
    [batch] = batches(tmp_path / "keys")
    batch.rename(tmp_path / "moved")
    if what == "link":
        batch.symlink_to(tmp_path / "moved")
    elif what == "directory":
        batch.mkdir()
    else:
        os.mkfifo(batch)
    with pytest.raises(SealingError, match=batch.name):
        Keyring(tmp_path / "keys").find("ada")


@given(content=st.binary(max_size=300))
@settings(deadline=None, max_examples=examples(few=30, many=1_000))
def test_any_slot_is_the_key_of_its_subject_or_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as home:
        directory = Path(home) / "keys"
        Keyring(directory).get("ada")
        change_key(name_of(directory, "ada"), lambda _: content)
        keyring = Keyring(directory)
        try:
            assert keyring.find("ada") is None
        except SealingError as error:
            assert "restore" in str(error)  # noqa: PT017  both are right, by content
        keyring.begin_erasure("bo", BEGUN, lost_kid="0a")
        assert keyring.destroy("bo") == "0a"


def test_a_batch_that_is_missing_is_no_reason_for_a_new_key(tmp_path: Path) -> None:
    """A copy that lacks it would otherwise have its words sealed under two keys, without a word."""
    Keyring(tmp_path / "keys").load(["ada", "bo"])
    [batch] = batches(tmp_path / "keys")
    batch.rename(tmp_path / "elsewhere")
    keyring = Keyring(tmp_path / "keys")
    assert keyring.find("ada") is None
    assert keyring.kid_of("ada") is None
    with pytest.raises(SealingError, match="restore the keyring from a backup"):
        keyring.get("ada")
    keyring.load(["ada", "cy"])
    assert not keyring.has("ada")
    assert keyring.has("cy")
    (tmp_path / "elsewhere").rename(batch)
    assert keyring.get("ada").kid == Keyring(tmp_path / "keys").get("ada").kid


def test_a_copy_that_follows_links_fails_instead_of_spreading_keys(tmp_path: Path) -> None:
    Keyring(tmp_path / "keys").load(["ada", "bo"])
    assert subprocess.run(
        ["cp", "-RL", str(tmp_path / "keys"), str(tmp_path / "copy")], check=False, capture_output=True
    ).returncode
    assert list((tmp_path / "copy").glob("*.key")) == []


def test_files_of_one_key_are_read_exported_and_destroyed(tmp_path: Path) -> None:
    """As every version before batches wrote them."""
    kid = Keyring(tmp_path / "keys").get("ada").kid
    name = as_file(tmp_path / "keys", "ada")
    shutil.rmtree(tmp_path / "keys" / "batches")
    keyring = Keyring(tmp_path / "keys")
    assert keyring.get("ada").kid == kid
    assert set(json.loads(name.read_bytes())) == {"v", "kid", "key"}
    assert keyring.key_file("ada") == name.read_bytes()
    key = secret(keyring, "ada")
    assert keyring.destroy("ada") == kid
    assert not name.exists()
    assert holding(tmp_path / "keys", key) == []


@pytest.mark.parametrize("form", ["file", "slot"])
def test_an_exported_key_becomes_the_missing_one(tmp_path: Path, form: str) -> None:
    kid = Keyring(tmp_path / "a").get("ada").kid
    content = Keyring(tmp_path / "a").key_file("ada") if form == "file" else key_at(name_of(tmp_path / "a", "ada"))
    there = Keyring(tmp_path / "b")
    assert there.get("ada", content).kid == kid
    assert Keyring(tmp_path / "b").key_file("ada") == Keyring(tmp_path / "a").key_file("ada")


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 256, b'{"kid":"%b","key":"%b"}' % (b"k" * 200, b"A" * 43)])
def test_what_is_no_key_is_not_imported(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SealingError, match="key"):
        Keyring(tmp_path / "keys").get("ada", content)
    assert list((tmp_path / "keys").rglob("*.key*")) == []


def test_a_directory_that_is_read_only_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kid = Keyring(tmp_path / "keys").get("ada").kid

    def refuse(*_args: Any, **_options: Any) -> None:
        raise OSError(30, "Read-only file system")

    for call in ("symlink", "mkdir", "write", "pwrite", "fsync", "unlink"):
        monkeypatch.setattr(os, call, refuse)
    keyring = Keyring(tmp_path / "keys")
    found = keyring.find("ada")
    assert found is not None
    assert found.kid == kid
    for change in (keyring.get, keyring.destroy):
        with pytest.raises(SealingError, match="Read-only file system"):
            change("bo")
    assert not keyring.has("ada"), "nobody knows whether its name is on disk, so nothing is sealed with it"


def test_keys_that_no_descriptor_is_left_for_are_not_missing(tmp_path: Path) -> None:
    """Nor are the notes of erasures, which a search for files would have passed over on Python 3.13."""
    first = Keyring(tmp_path / "keys")
    first.load(["ada", "bo"])
    first.begin_erasure("bo", BEGUN)
    keyring = Keyring(tmp_path / "keys")
    with descriptors(0):
        keyring.load(["ada"])
        assert not keyring.has("ada")
        for refused in (lambda: keyring.get("ada"), lambda: keyring.find("ada"), keyring.erasures):
            with pytest.raises(SealingError, match=r"Too many open files; raise this process's limit, with `ulimit -n`"):
                refused()
    keyring.load(["ada"])
    assert keyring.has("ada")
    assert [each.subject_id for each in keyring.erasures()] == ["bo"]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "give this user the right to read and write it"),
        (errno.EROFS, "make the file system writable"),
        (errno.ENOSPC, "make room on the disk"),
        (errno.EIO, "check the disk"),
    ],
)
def test_an_error_about_a_batch_names_the_file_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    """Regression: it named the link to a key, and only the system's words."""
    Keyring(tmp_path / "keys").get("ada")
    [batch] = (tmp_path / "keys/batches").glob("*.keys")
    opened = os.open

    def refuse(path: Any, *given: Any, **options: Any) -> int:
        if str(path) == str(batch):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *given, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SealingError) as caught:
        Keyring(tmp_path / "keys").get("ada")
    assert str(caught.value) == f"{batch}: {os.strerror(number)}; {remedy}"


def test_a_key_that_another_process_made_is_on_disk_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Keyring(tmp_path / "keys").get("ada")
    sync, synced = os.fsync, list[Path]()

    def watched(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        sync(fd)

    monkeypatch.setattr(os, "fsync", watched)
    keyring = Keyring(tmp_path / "keys")
    keyring.find("ada")
    assert synced == []
    assert not keyring.has("ada")
    keyring.get("ada")
    keyring.get("ada")
    assert synced == [tmp_path / "keys"]
    assert keyring.has("ada")


CREATOR = """if True:
    import sys
    from kitchener.sealing import Keyring

    sys.stdin.readline()
    keyring = Keyring(sys.argv[1])
    subjects = [f"s{number}" for number in range(200)]
    keyring.load(subjects[int(sys.argv[2]):] + subjects[:int(sys.argv[2])])
    print(*(keyring.get(each).kid for each in subjects))
"""


def test_processes_that_make_the_same_keys_at_once_agree(tmp_path: Path) -> None:
    creators = [start_program(CREATOR, tmp_path / "keys", str(first)) for first in (0, 50, 150)]
    for creator in creators:
        assert creator.stdin is not None
        creator.stdin.write("go\n")
        creator.stdin.flush()
    told = {creator.communicate(timeout=60)[0] for creator in creators}
    assert len(told) == 1
    assert len(set(told.pop().split())) == 200
    names = list((tmp_path / "keys").glob("*.key"))
    slots = [slot for batch in batches(tmp_path / "keys") for slot in batch.read_bytes().split(b"\n")]
    assert sorted(key_at(name) for name in names) == sorted(slot.strip(b" \0") for slot in slots if slot.strip(b" \0"))
