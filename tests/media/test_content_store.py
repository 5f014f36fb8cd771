"""The store of images and files by itself (docs/content.md)."""

import threading
from pathlib import Path

import pytest

from kitchener.errors import InvalidPart, PartDamaged, SealingError
from kitchener.media.content_store import ContentStore
from kitchener.records.events import SEALED_FIELDS
from kitchener.sealing import Keyring, Sealer

DATA = b"\x89PNG some bytes that are no image" * 10


def sealed(root: Path, *, seals: bool = True) -> ContentStore:
    """A store as a new process opens it: no key in memory."""
    return ContentStore(root / "plane", Sealer(Keyring(root / "keys"), SEALED_FIELDS, seals=seals))


def files(store: ContentStore) -> list[Path]:
    return sorted(store.files())


def test_what_is_put_is_got_by_another_process(tmp_path: Path) -> None:
    content_hash, _ = sealed(tmp_path).put("ada", DATA)
    assert sealed(tmp_path).get("ada", content_hash) == DATA


def test_putting_the_same_again_writes_nothing_and_heals_what_was_damaged(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    first = store.put("ada", DATA)
    (path,) = files(store)
    inode = path.stat().st_ino
    assert store.put("ada", DATA) == first
    assert path.stat().st_ino == inode
    path.write_bytes(b"other")
    assert sealed(tmp_path).put("ada", DATA) == first
    assert store.get("ada", first[0]) == DATA


def test_many_threads_that_put_the_same_leave_one_whole_file(tmp_path: Path) -> None:
    store, found = sealed(tmp_path), list[tuple[str, str]]()
    threads = [threading.Thread(target=lambda: found.append(store.put("ada", DATA))) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(found)) == 1
    assert len(found) == 8
    assert [store.problem("ada", *found[0]), len(files(store))] == [None, 1]


def test_content_moved_to_another_name_or_subject_is_refused(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    mine, theirs = store.put("ada", DATA)[0], store.put("ada", DATA[::-1])[0]
    other = store.put("bo", DATA)[0]
    store.path("ada", mine).write_bytes(store.path("ada", theirs).read_bytes())
    with pytest.raises(PartDamaged, match="was changed"):
        store.get("ada", mine)
    store.path("ada", mine).write_bytes(store.path("bo", other).read_bytes())
    with pytest.raises(PartDamaged, match="its key is not here"):
        store.get("ada", mine)
    with pytest.raises(PartDamaged, match="is missing"):
        store.get("bo", theirs)


def test_content_stored_plain_is_read_after_sealing_began_and_the_other_way_round(tmp_path: Path) -> None:
    plain, kept = sealed(tmp_path, seals=False).put("ada", DATA)[0], sealed(tmp_path).put("ada", DATA)[0]
    for store in (sealed(tmp_path), sealed(tmp_path, seals=False)):
        assert store.get("ada", plain) == store.get("ada", kept) == DATA


def test_without_its_key_content_is_verified_but_not_read(tmp_path: Path) -> None:
    content_hash, stored_hash = sealed(tmp_path).put("ada", DATA)
    keyless = ContentStore(tmp_path / "plane", None)
    assert keyless.problem("ada", content_hash, stored_hash) is None
    with pytest.raises(PartDamaged, match="its key is not here"):
        keyless.get("ada", content_hash)


def test_a_subject_that_is_being_erased_gets_nothing_stored(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    store.put("ada", DATA)
    keyring = Keyring(tmp_path / "keys")
    keyring.begin_erasure("ada", "2026-01-01T00:00:00+00:00")
    with pytest.raises(SealingError, match="is being erased"):
        sealed(tmp_path).put("ada", DATA)
    assert store.erase("ada") == 1
    assert store.erase("ada") == 0
    assert files(store) == []


def test_erasing_removes_a_link_and_not_what_it_leads_to(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    content_hash, _ = store.put("bo", DATA)
    folder, own = store.path("ada", content_hash).parent.parent, store.path("bo", content_hash).parent.parent
    folder.symlink_to(own)
    assert store.erase("ada") == 0
    assert not folder.is_symlink()
    assert store.get("bo", content_hash) == DATA


@pytest.mark.parametrize("name", ["", "sha256:", "sha256:../../../../etc/passwd", "sha256:" + "g" * 64, "md5:" + "0" * 64])
def test_a_hash_of_another_form_leads_to_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(PartDamaged, match="has no valid form"):
        sealed(tmp_path).get("ada", name)
    assert sealed(tmp_path).problem("ada", name, "sha256:") == "its hash has no valid form"


def test_what_this_process_put_stays_where_no_entry_names_it_yet(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    store.put("ada", DATA)
    (path,) = files(store)
    left = path.with_name(".0a1b.new")
    left.write_bytes(b"half")
    assert store.remove_unnamed(files(store)) == (left,)
    assert files(store) == [path]
    assert sealed(tmp_path).remove_unnamed([path]) == (path,), "another process has no entry of it to come"
    assert files(store) == []


@pytest.mark.parametrize("seals", [True, False])
def test_a_file_of_another_root_replaces_no_good_content(tmp_path: Path, *, seals: bool) -> None:
    """Not even with the right hash, subject and form; a true copy of a file heals a damaged one."""
    store = sealed(tmp_path, seals=seals)
    content_hash, _ = store.put("bo", DATA)
    kept = store.path("bo", content_hash).read_bytes()
    other = sealed(tmp_path / "other", seals=seals).put("bo", b"obey Eve")[0]
    for forged in (b"", b"kitchener-part/1 plain\nobey Eve", kept[:-1], sealed(tmp_path / "other").stored("bo", other)):
        with pytest.raises(PartDamaged):
            store.copy_in("bo", content_hash, forged or b"")
        assert store.get("bo", content_hash) == DATA
    keyless = ContentStore(tmp_path / "plane", None)
    with pytest.raises(PartDamaged):
        keyless.copy_in("bo", content_hash, b"kitchener-part/1 plain\nobey Eve")
    store.path("bo", content_hash).write_bytes(b"damaged")
    store.copy_in("bo", content_hash, kept)
    assert store.get("bo", content_hash) == DATA


def test_what_cannot_be_written_takes_no_room(tmp_path: Path) -> None:
    store = sealed(tmp_path, seals=False)
    small = ContentStore(tmp_path / "plane", None, max_bytes=2 * len(DATA) + 100)
    content_hash = small.hash_of("ada", DATA)
    small.path("ada", content_hash).mkdir(parents=True)
    for _ in range(5):
        with pytest.raises(OSError, match="directory"):
            small.put("ada", DATA)
    small.path("ada", content_hash).rmdir()
    small.put("ada", DATA)
    assert store.get("ada", content_hash) == DATA


def test_an_import_takes_no_more_room_than_there_is(tmp_path: Path) -> None:
    content_hash, _ = sealed(tmp_path / "a", seals=False).put("ada", DATA)
    stored = sealed(tmp_path / "a", seals=False).stored("ada", content_hash)
    assert stored is not None
    full = ContentStore(tmp_path / "b", None, max_bytes=len(stored) - 1)
    with pytest.raises(InvalidPart, match="max_content_bytes"):
        full.copy_in("ada", content_hash, stored)
    assert files(full) == []
