"""Reads, checks and stores the images and files of a message, and refuses those that the model does not accept.

`supervisor.py` reads them before anything is started, `admission.py` refuses them on record, and `turn.py` stores and records
them as its turn begins. A replay passes the recorded parts and reads no bytes. Explained in `docs/content.md`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio.to_thread

from kitchener.actors.sessions.active_session import SessionManager
from kitchener.config import HO2Config, LimitsConfig
from kitchener.errors import InvalidPart, UnsupportedPart
from kitchener.ledger import Ledger
from kitchener.media.content_store import ContentStore
from kitchener.media.media_types import IMAGES, MEDIA_TYPES, accepts, estimate_content, is_same_kind, media_type_of
from kitchener.plain_names import quoted, shown_path
from kitchener.records import events
from kitchener.records.entries import PartAttachedPayload, TurnStartedPayload
from kitchener.records.parts import FilePart, ImagePart, ReadPart, StoredPart
from kitchener.records.ref import Ref
from kitchener.records.tokens import ESTIMATORS
from kitchener.records.turn import TurnCall
from kitchener.small_files import read_regular

MediaTypes = Callable[[], tuple[str, ...]]
"""Returns the types of content that the replying model takes, such as `image/*`."""


def _text_only() -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class ContentIntake:
    """Takes images and files for the sessions of one agent class."""

    config: HO2Config
    limits: LimitsConfig
    store: ContentStore | None = None
    """Stores them; None: nothing is stored, so only parts that are stored already are accepted."""
    media_types: MediaTypes = field(default=_text_only)

    async def read(self, call: TurnCall) -> TurnCall:
        """Returns the call with its images and files read and checked. Nothing is stored yet.

        Raises:
            InvalidPart: one cannot be read, is too large, has an unknown type, or is not what it is declared as
        """
        if not any(isinstance(each, FilePart) for each in call.parts):  # read or stored already
            return call
        return call._replace(parts=tuple(await anyio.to_thread.run_sync(partial(self._read, call.parts))))

    def refusal(self, parts: Sequence[FilePart | ReadPart | StoredPart]) -> UnsupportedPart | None:
        """Why the replying model does not take these; None: it takes them all."""
        accepted = self.media_types()
        for each in parts:
            if isinstance(each, ReadPart) and (self.store is None or not accepts(accepted, each.media_type)):
                return UnsupportedPart(each.name, each.media_type, accepted)
        return None

    async def begin(self, session: SessionManager, call: TurnCall, fields: TurnStartedPayload) -> tuple[StoredPart, ...]:
        """Stores a message's images and files durably, and adds the fields about them in `TURN_STARTED` to `fields`.

        Raises:
            InvalidPart: the root has no room for them
            PartDamaged, OSError: they cannot be stored
        """
        stored = [await self._store(session.subject_id, each) for each in call.parts]
        if stored:
            fields["parts"] = [each.content_hash for each in stored]
        accepted = self.media_types()
        fields["media_types"] = list(accepted)
        if session.thread is not None:
            session.thread.media_types = accepted
        return tuple(stored)

    async def _store(self, subject_id: str, part: FilePart | ReadPart | StoredPart) -> StoredPart:
        if isinstance(part, StoredPart):
            return part
        assert isinstance(part, ReadPart)  # `read` and `refusal` came before
        assert self.store is not None
        content_hash, stored_hash = await anyio.to_thread.run_sync(self.store.put, subject_id, part.data)
        return StoredPart(part.name, part.media_type, len(part.data), part.tokens, content_hash, stored_hash)

    def _read(self, parts: Sequence[FilePart | ReadPart | StoredPart]) -> list[ReadPart | StoredPart]:
        return [self._read_one(number, each) if isinstance(each, FilePart) else each for number, each in enumerate(parts, 1)]

    def _read_one(self, number: int, part: FilePart) -> ReadPart:
        what, most = f"part {number}", self.limits.max_part_bytes
        data = part.source if isinstance(part.source, bytes) else _bytes_of(what, Path(part.source), most)
        if not data or len(data) > most:
            size = f"has more than max_part_bytes = {most:,} bytes" if data else "is empty"
            raise InvalidPart(f"{what} {size}: expected an image or a file of 1 to {most:,} bytes")
        name = part.name if part.name is not None else _own_name(part)
        found = media_type_of(data, name)
        if found is None:
            raise InvalidPart(f"{what} ({quoted(name)}) has content of no known type: expected {', '.join(MEDIA_TYPES)}")
        media_type = part.media_type or found
        if not is_same_kind(media_type, found):
            raise InvalidPart(f"{what} ({quoted(name)}) is declared as {quoted(media_type)}, but its content is {found}")
        if isinstance(part, ImagePart) and media_type not in IMAGES:
            raise InvalidPart(f"{what} ({quoted(name)}) is {media_type}: expected an image; use FilePart for other files")
        name = name or ("image" if media_type in IMAGES else "file")
        return ReadPart(name, media_type, data, estimate_content(media_type, data, ESTIMATORS[self.config.token_estimator]))


async def record_parts(session: SessionManager, turn_id: str, parts: Sequence[StoredPart]) -> list[Ref]:
    """Writes `PART_ATTACHED` for each image and file of a turn's message, all or none of them."""
    made: list[tuple[str, str, PartAttachedPayload]] = []
    for number, part in enumerate(parts, 1):
        fields: PartAttachedPayload = {
            "number": number,
            "name": part.name,
            "media_type": part.media_type,
            "size": part.size,
            "tokens": part.tokens,
            "content_hash": part.content_hash,
            "stored_hash": part.stored_hash,
        }
        made.append((events.PART_ATTACHED, f"{turn_id}.{number}", fields))
    return await session.write_all(made, turn=turn_id)


def same_parts(ledger: Ledger, subject_id: str, parts: Sequence[object], recorded: Sequence[str]) -> Awaitable[bool]:
    """Whether a message brings the images and files that an entry names by their hashes. Reads no stored content."""

    def compare() -> bool:
        brought = [ledger.content_digest(subject_id, each.data) for each in parts if isinstance(each, ReadPart)]
        return brought == list(recorded)

    return anyio.to_thread.run_sync(compare)


def _bytes_of(what: str, path: Path, most: int) -> bytes:
    try:
        return read_regular(path, most + 1)
    except (OSError, ValueError) as error:  # a ValueError for a null character
        problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidPart(f"{what}: {shown_path(str(path))} cannot be read: {problem}; expected a regular file") from error


def _own_name(part: FilePart) -> str:
    """The name of its file, with `_` for what cannot be shown; "": it has none."""
    if isinstance(part.source, bytes):
        return ""
    name = Path(part.source).name[-_MOST_NAME:]
    return "".join(each if each.isprintable() and each not in "[]" else "_" for each in name)


_MOST_NAME = 128
