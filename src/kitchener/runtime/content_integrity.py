"""Compares the stored images and files of a root with the entries that name them, and removes files that no entry names.

A crash between storing a file and writing its entry leaves such a file. Explained in `docs/content.md`.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread

from kitchener.config import RuntimeConfig
from kitchener.errors import LedgerPathError, PartDamaged
from kitchener.ids import path_part
from kitchener.ledger import LedgerClient, LedgerReader, StoredEntry
from kitchener.media.content_store import ContentStore
from kitchener.records import events
from kitchener.records.entries import PartAttachedPayload, payload_as
from kitchener.records.index_keys import index_keys
from kitchener.records.parts import StoredPart
from kitchener.runtime.root_layout import index_dir, sealer_of, supervisors_ledgers

_WANTED = (events.PART_ATTACHED, events.SUBJECT_ERASED)


class ContentFault(NamedTuple):
    """An image or a file whose stored file differs from its entry."""

    part_id: str
    """The id: turn and number, such as `T-0a1b2c3d-000001.1`."""
    path: str
    problem: str


class ContentReport(NamedTuple):
    """The state of the images and files of a root."""

    parts: int
    """Number of entries that name an image or a file. Entries of erased subjects do not count."""
    faults: tuple[ContentFault, ...]
    orphans: tuple[Path, ...]
    """Files that no entry names."""


class RecordedPart(NamedTuple):
    """A recorded image or file, with its subject."""

    part_id: str
    subject_id: str
    part: StoredPart


async def check_content(config: RuntimeConfig) -> ContentReport:
    """Checks the hash of every stored image and file of a root. Takes no lock and needs no key.

    If a runtime is running, a file whose entry is about to be written counts as one that no entry names.

    Raises:
        LedgerDamaged: a ledger cannot be read
    """
    store = ContentStore(config.plane_root, None)
    there = set(await anyio.to_thread.run_sync(lambda: [*store.files()]))
    faults, known, count = list[ContentFault](), set[Path](), 0
    async for each in recorded_parts(config):
        count += 1
        part = each.part
        problem = await anyio.to_thread.run_sync(store.problem, each.subject_id, part.content_hash, part.stored_hash)
        try:
            path = store.path(each.subject_id, part.content_hash)
        except PartDamaged as error:
            faults.append(ContentFault(each.part_id, error.path, error.problem))
            continue
        known.add(path)
        if problem is not None:
            faults.append(ContentFault(each.part_id, str(path), problem))
    return ContentReport(count, tuple(faults), tuple(sorted(there - known)))


async def remove_orphans(config: RuntimeConfig) -> tuple[Path, ...]:
    """Removes the files that no entry names, and returns them. Locks the supervisors' ledgers while it runs.

    Raises:
        LedgerLocked: a process has the ledgers open, and may be about to name such a file
        LedgerPathError: the directory is a link, so its files may belong to another root
    """
    directory = ContentStore(config.plane_root, None).directory
    if directory.is_symlink():
        raise LedgerPathError(str(directory), "is a link, and files behind it may be another root's; nothing was removed")
    async with AsyncExitStack() as stack:
        for name, path in supervisors_ledgers(config).items():
            opened = LedgerClient.open(
                path,
                ledger_id=f"HO2M:{path_part(name)}",
                config=config.ledger,
                index_dir=index_dir(config),
                index_keys=index_keys,
                sealer=sealer_of(config),
            )
            await stack.enter_async_context(opened)
        return await remove_orphans_beside(config, ContentStore(config.plane_root, None))


async def remove_orphans_beside(config: RuntimeConfig, store: ContentStore) -> tuple[Path, ...]:
    """Removes the files that no entry names while turns continue, and returns them.

    Args:
        config: the whole configuration
        store: the store that turns use, which knows the files that an entry is about to name

    Raises:
        LedgerDamaged: a ledger cannot be read
    """
    orphans = (await check_content(config)).orphans
    return await anyio.to_thread.run_sync(store.remove_unnamed, orphans)


async def recorded_parts(config: RuntimeConfig) -> AsyncIterator[RecordedPart]:
    """Yields every recorded image and file whose subject was not erased later."""
    for path in supervisors_ledgers(config).values():
        found = dict[str, list[RecordedPart]]()
        async with LedgerReader.open(path, index_dir=index_dir(config), sealer=sealer_of(config)) as reader:
            async for entry in reader.read(entry_type=_WANTED):
                subject_id = str(events.read_common(entry).get("subject_id"))
                if entry.entry_type == events.SUBJECT_ERASED:
                    found.pop(subject_id, None)
                else:
                    found.setdefault(subject_id, []).append(_recorded(entry, subject_id))
        for each in found.values():
            for part in each:
                yield part


def _recorded(entry: StoredEntry, subject_id: str) -> RecordedPart:
    return RecordedPart(entry.entity_id, subject_id, StoredPart.from_payload(payload_as(PartAttachedPayload, entry.payload)))
