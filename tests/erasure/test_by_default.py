"""Nobody has to set anything for a person to be erasable: content is sealed from the first turn on (docs/erasure.md)."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from kitchener import RuntimeConfig, open_runtime, replay_session
from kitchener.errors import ConfigError, SealingError
from kitchener.ids import OPERATOR
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.records import events
from kitchener.runtime import erase_subject
from kitchener.sealing import Keyring
from tests.cli.shared.commands import finish, start_program
from tests.shared.keyrings import key_at


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop is enough: what is on disk does not depend on it."""
    return "trio"


SECRET = {"ada": "marzipan", "bo": "nougat"}


def config(root: Path, **ledger: Any) -> RuntimeConfig:
    """The shipped defaults, in a place of the test's own."""
    return RuntimeConfig.model_validate({"plane_root": str(root / "plane"), "ledger": ledger})


async def talk(settings: RuntimeConfig, *subjects: str, sessions: dict[str, str] | None = None) -> dict[str, str]:
    """One turn of each subject, whose words the offline model repeats; their sessions."""
    async with open_runtime(settings) as runtime:
        done = {
            each: await runtime.supervisor().handle_turn(
                f"I like {SECRET[each]}", subject_id=each, session_id=(sessions or {}).get(each)
            )
            for each in subjects
        }
    assert all(SECRET[each] in result.response for each, result in done.items())
    return {each: result.session_id for each, result in done.items()}


def holding(directory: Path, word: str) -> list[str]:
    """The files below a directory in which a word can be read."""
    return [path.name for path in directory.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


async def changes(settings: RuntimeConfig) -> list[StoredEntry]:
    """The entries from which on content is sealed, or is not."""
    async with LedgerReader.open(Path(settings.plane_root) / "HO2" / "ADMIN" / "ho2m.jsonl") as ho2m:
        return [each async for each in ho2m.read(entry_type=events.SEALING_CHANGED)]


async def test_a_person_is_erased_with_the_default_settings_and_others_are_not(tmp_path: Path) -> None:
    settings = config(tmp_path)
    sessions = await talk(settings, "ada", "bo")
    assert holding(tmp_path, "marzipan") == holding(tmp_path, "nougat") == []
    report = await erase_subject("ada", config=settings)
    assert (report.turns, report.plain_turns) == (1, 0)
    gone = await replay_session(sessions["ada"], config=settings)
    assert (gone.is_identical, gone.turns, gone.erased) == (True, (), 1)
    there = await replay_session(sessions["bo"], config=settings)
    assert (there.is_identical, len(there.turns)) == (True, 1), there.text()
    assert await talk(settings, "ada", "bo", sessions={"bo": sessions["bo"]}), "both go on, one of them anew"


async def test_keys_are_beside_the_root_and_only_their_owner_can_use_them(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        await talk(config(tmp_path), "ada")
    finally:
        os.umask(before)
    keys = tmp_path / "plane.keys"
    assert keys.stat().st_mode & 0o777 == 0o700
    found = list(keys.glob("*.key"))
    assert len(found) == 2, "Ada's, and that of what is configured"
    assert {path.lstat().st_mode & 0o777 for path in [*keys.glob("batches/*"), *keys.glob("erasing/*")]} == {0o600}
    assert (keys / "batches").stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "plane").rglob("*.key")) == []


async def test_an_older_root_goes_on_sealed_and_says_since_when(tmp_path: Path) -> None:
    """What was plain stays so: it replays, it is counted, and the erasure says that it stays."""
    plain, settings = config(tmp_path, seal=False), config(tmp_path)
    sessions = await talk(plain, "ada", "bo")
    assert await changes(plain) == [], "as in a root of a version that did not know of it"
    await talk(settings, "ada", "bo", sessions=sessions)
    (change,) = await changes(settings)
    assert change.payload["is_sealed"] is True
    assert change.payload["key_id"] == Keyring(tmp_path / "plane.keys").kid_of(OPERATOR)
    assert holding(tmp_path / "plane", "marzipan"), "nothing is ever taken out of a ledger"
    report = await replay_session(sessions["ada"], config=settings)
    assert (report.is_identical, len(report.turns)) == (True, 2), report.text()
    await talk(settings, "bo")
    assert len(await changes(settings)) == 1, "nothing has changed since"
    erased = await erase_subject("ada", config=settings)
    assert (erased.turns, erased.plain_turns) == (2, 1)
    report = await replay_session(sessions["bo"], config=settings)
    assert (report.is_identical, len(report.turns)) == (True, 2), report.text()


async def test_a_replay_of_a_plain_root_makes_no_key(tmp_path: Path) -> None:
    sessions = await talk(config(tmp_path, seal=False), "ada")
    report = await replay_session(sessions["ada"], config=config(tmp_path))
    assert report.is_identical, report.text()
    assert not (tmp_path / "plane.keys").exists()


async def test_sealing_can_be_turned_off_and_what_was_sealed_stays_readable(tmp_path: Path) -> None:
    settings, plain = config(tmp_path), config(tmp_path, seal=False)
    sessions = await talk(settings, "ada")
    await talk(plain, "bo", "ada", sessions=sessions)
    assert [each.payload["is_sealed"] for each in await changes(plain)] == [True, False]
    assert holding(tmp_path / "plane", "nougat")
    for each in (settings, plain):
        report = await replay_session(sessions["ada"], config=each)
        assert (report.is_identical, len(report.turns)) == (True, 2), report.text()


async def test_without_sealing_nobody_can_be_erased_and_the_remedy_is_named(tmp_path: Path) -> None:
    plain = config(tmp_path, seal=False)
    await talk(plain, "ada")
    with pytest.raises(ConfigError, match=r"seal = true"):
        await erase_subject("ada", config=plain)


async def test_lost_keys_stop_a_runtime_before_it_writes_anything(tmp_path: Path) -> None:
    """New keys beside words of old ones would hide the loss. The error says what works, and how to go on without the words."""
    settings = config(tmp_path)
    sessions = await talk(settings, "ada")
    (tmp_path / "plane.keys").rename(tmp_path / "backup")
    before = (tmp_path / "plane" / "HO2" / "ADMIN" / "ho2m.jsonl").read_bytes()
    with pytest.raises(SealingError, match="not the keys of this root") as refused:
        await talk(settings, "ada")
    assert str(tmp_path / "plane.keys") in str(refused.value)
    with pytest.raises(SealingError, match="Restore the directory from its backup"):
        await erase_subject("ada", config=settings)
    assert (tmp_path / "plane" / "HO2" / "ADMIN" / "ho2m.jsonl").read_bytes() == before
    assert not (tmp_path / "plane.keys").exists()
    (tmp_path / "backup").rename(tmp_path / "plane.keys")
    await talk(settings, "ada", sessions=sessions)


async def test_a_keyring_of_another_root_is_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        await talk(config(tmp_path / name), "ada")
    shutil.rmtree(tmp_path / "one" / "plane.keys")
    shutil.copytree(tmp_path / "other" / "plane.keys", tmp_path / "one" / "plane.keys", symlinks=True)
    with pytest.raises(SealingError, match="not the keys of this root"):
        await talk(config(tmp_path / "one"), "ada")


async def test_one_start_without_sealing_goes_on_without_the_lost_words(tmp_path: Path) -> None:
    settings = config(tmp_path)
    lost = await talk(settings, "ada")
    shutil.rmtree(tmp_path / "plane.keys")
    async with open_runtime(config(tmp_path, seal=False)):
        pass
    sessions = await talk(settings, "bo")
    assert [each.payload["is_sealed"] for each in await changes(settings)] == [True, False, True]
    assert (await replay_session(lost["ada"], config=settings)).turns == ()
    assert len((await replay_session(sessions["bo"], config=settings)).turns) == 1


_CUT_OFF = """
import os, signal, sys
from pathlib import Path
import anyio
from kitchener import RuntimeConfig, open_runtime
from kitchener.ids import OPERATOR
from kitchener.sealing import Keyring

Keyring(Path(sys.argv[1] + ".keys")).get(OPERATOR)
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_a_crash_between_the_keys_and_the_first_turn_loses_nothing(tmp_path: Path) -> None:
    """The keys are on disk before the entry that names them, so the next start takes them."""
    cut_off = finish(start_program(_CUT_OFF, tmp_path / "plane"))
    assert cut_off.code == -signal.SIGKILL, cut_off.err
    kid = Keyring(tmp_path / "plane.keys").kid_of(OPERATOR)
    assert kid
    assert not (tmp_path / "plane").exists()
    sessions = await talk(config(tmp_path), "ada")
    assert [each.payload["key_id"] for each in await changes(config(tmp_path))] == [kid]
    assert (await replay_session(sessions["ada"], config=config(tmp_path))).is_identical


def test_a_draft_of_a_key_that_a_crash_left_is_no_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o700)
    (keys / ".0a.new").write_bytes(b"half a k")
    assert Keyring(keys).get("ada").kid == json.loads(key_at(next(keys.glob("*.key"))))["kid"]
