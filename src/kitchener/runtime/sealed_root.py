"""Records when a root starts or stops sealing content, and refuses a keyring that is not the recorded one.

Each agent class's HO2m names the key of the operator's sources in `SEALING_CHANGED`. The operator's key is the first key of a
keyring, so a keyring without it is lost, incomplete or another root's. Explained in `docs/erasure.md`.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import anyio.to_thread

from kitchener.config import RuntimeConfig
from kitchener.errors import ConfigError, SealingError
from kitchener.ids import OPERATOR
from kitchener.ledger import Ledger, LedgerEntry, StoredEntry
from kitchener.ledger.reads import LedgerReads
from kitchener.plain_names import quoted
from kitchener.records import events
from kitchener.records.entries import CommonPayload, SealingChangedPayload, SubjectErasedPayload, payload_as
from kitchener.records.index_keys import SEALING_KEY, erased_index_key
from kitchener.runtime.root_layout import keyring_dir
from kitchener.sealed_values import is_sealed, sealing_key_id
from kitchener.sealing import Keyring, Sealer
from kitchener.small_files import is_there


def check_place(config: RuntimeConfig) -> None:
    """Raises ConfigError if new keys would be on another file system than the root, because the root is a mount point."""
    root, keys = Path(config.plane_root), keyring_dir(config)
    if not config.ledger.seal or config.ledger.keyring or is_there(keys) or not is_there(root):
        return
    if root.stat().st_dev != root.parent.stat().st_dev:
        expected = (
            f"is not set, and {root} is a file system of its own: keys in {keys} would be on another one. Name a directory that"
            " lasts, for example beside plane_root in a common directory"
        )
        raise ConfigError("[ledger]", "keyring", "", expected)


async def record_sealing(ho2m: Ledger, sealer: Sealer | None) -> None:
    """Writes `SEALING_CHANGED` if the last one differs. The named key is on disk before the entry.

    Args:
        ho2m: the ledger of an agent class's supervisor
        sealer: seals new entries; None: they stay in plain text

    Raises:
        SealingError: the keyring is not the recorded one, or a key cannot be created
    """
    recorded, now = _key_id(await _last_change(ho2m)), None
    if sealer is not None and sealer.seals:
        await check_keyring(ho2m, sealer.keyring)
        try:
            now = (await anyio.to_thread.run_sync(sealer.keyring.get, OPERATOR)).kid
        except SealingError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            remedy = "or set keyring in [ledger] to a directory for the keys, or seal = false to store everything in plain text"
            raise SealingError(f"{error}; {remedy}") from error.__cause__
    if now != recorded:
        fields: SealingChangedPayload = {
            "v": events.VERSION,
            "subject_id": OPERATOR,
            "is_sealed": now is not None,
            "key_id": now,
        }
        await ho2m.write(LedgerEntry(events.SEALING_CHANGED, now or "nothing", dict(fields)))
        await ho2m.commit()


async def check_keyring(ho2m: Ledger | LedgerReads, keyring: Keyring) -> None:
    """Raises SealingError if the keyring lacks the key that the last `SEALING_CHANGED` names. Writes nothing."""
    change = await _last_change(ho2m)
    recorded = _key_id(change)
    if change is None or recorded is None or await anyio.to_thread.run_sync(keyring.kid_of, OPERATOR) == recorded:
        return
    raise SealingError(
        f"{keyring.directory}: these are not the keys of this root: key {recorded[:8]}… of entry {change.entry_id} is not here."
        " Restore the directory from its backup, or set keyring in [ledger] to where the keys are. Without them the ledgers can"
        " be verified, and everything but the words can be read. To continue without the words, start once with seal = false"
    )


async def _last_change(ho2m: Ledger | LedgerReads) -> StoredEntry | None:
    last = await ho2m.last(key=SEALING_KEY)
    return last[-1] if last else None


def _key_id(change: StoredEntry | None) -> str | None:
    return None if change is None else payload_as(SealingChangedPayload, change.payload)["key_id"]


async def why_unreadable(ho2m: LedgerReads, payloads: Iterable[Mapping[str, object]]) -> str:
    """Why texts cannot be read: their key's erasure is on record, or the key is missing. "": no text is sealed.

    Args:
        ho2m: the supervisor's ledger in this root, even for imported texts: an erasure counts in the root where it happened
        payloads: the payloads with the texts
    """
    missing, erased = await _missing_and_erased(ho2m, payloads)
    return missing or erased


async def missing_key(ho2m: LedgerReads, payloads: Iterable[Mapping[str, object]]) -> str:
    """Like `why_unreadable`, but only for keys that are missing without a recorded erasure. "": there is no such key."""
    return (await _missing_and_erased(ho2m, payloads))[0]


async def _missing_and_erased(ho2m: LedgerReads, payloads: Iterable[Mapping[str, object]]) -> tuple[str, str]:
    why = ""
    for subject_id, kid in dict.fromkeys(each for payload in payloads for each in _sealed_with(payload)):
        erased = ho2m.read(key=erased_index_key(subject_id)) if subject_id is not None else None
        records = [each async for each in erased if _kid_of(each) == kid] if erased is not None else []
        if not records:
            whose = quoted(subject_id, 80) if subject_id is not None else "its subject"
            return f"the key of {whose} is missing here and no erasure is on record: restore the keys from their backup", ""
        why = f"its subject was erased ({records[-1].entry_id}), so what was said and asked cannot be read any more"
    return "", why


def _kid_of(erased: StoredEntry) -> str | None:
    return payload_as(SubjectErasedPayload, erased.payload).get("key_id")


def _sealed_with(payload: Mapping[str, object]) -> Iterator[tuple[str | None, object]]:
    subject_id = payload_as(CommonPayload, payload).get("subject_id")
    for value in payload.values():
        if is_sealed(value):
            yield subject_id if isinstance(subject_id, str) else None, sealing_key_id(value)
