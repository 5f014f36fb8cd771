"""Images and files of a message: as a caller gives them, as they were read, and as the ledger names them.

The bytes themselves are in no entry; `media/content_store.py` stores them once, by their hash. Explained in `docs/content.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from kitchener.media.media_types import IMAGES
from kitchener.records.entries.common import payload_as, text_of
from kitchener.records.entries.turns import PartAttachedPayload


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file of a message: an image, a PDF or a text."""

    source: str | Path | bytes
    """The path of a regular file, or the content itself."""
    media_type: str | None = None
    """Such as `application/pdf`; must fit the content. None: recognised from the content."""
    name: str | None = None
    """The name that the model reads. None: the file's own name, or `image` or `file`."""

    def __repr__(self) -> str:
        source = f"{len(self.source):,} bytes" if isinstance(self.source, bytes) else repr(str(self.source))
        return f"{type(self).__name__}({source}, media_type={self.media_type!r}, name={self.name!r})"  # never the content


@dataclass(frozen=True, slots=True, repr=False)
class ImagePart(FilePart):
    """An image of a message: PNG, JPEG, GIF or WebP. Any other content is refused."""


class ReadPart(NamedTuple):
    """An image or a file with its content, checked."""

    name: str
    media_type: str
    data: bytes
    tokens: int
    """Estimated tokens that a model reads for it."""

    def __repr__(self) -> str:
        return f"ReadPart({self.name!r}, {self.media_type!r}, {len(self.data):,} bytes)"


class StoredPart(NamedTuple):
    """An image or a file as its `PART_ATTACHED` entry names it."""

    name: str
    """The name that the model reads; `[erased]` if its key is gone."""
    media_type: str
    size: int
    """Bytes of the content."""
    tokens: int
    """Estimated tokens that a model reads for it."""
    content_hash: str
    """Hash of the content; keyed with the subject's key where content is sealed."""
    stored_hash: str
    """`sha256:` of the stored file, which is sealed where content is. It can be checked without a key."""

    @classmethod
    def from_payload(cls, payload: Mapping[str, object]) -> Self:
        """Reads the payload of a `PART_ATTACHED` entry. Another program may have written it, so fields may be missing."""
        told = payload_as(PartAttachedPayload, payload)
        size, tokens = told.get("size"), told.get("tokens")
        return cls(
            text_of(told.get("name")),
            text_of(told.get("media_type")),
            max(0, size) if isinstance(size, int) else 0,
            max(0, tokens) if isinstance(tokens, int) else 0,  # fewer than none would make room for more than the budget
            text_of(told.get("content_hash")),
            text_of(told.get("stored_hash")),
        )

    @property
    def described(self) -> str:
        """What it is, in a few words: `image report.png, image/png, 84 kB`."""
        kind = "image" if self.media_type in IMAGES else "file"
        return f"{kind} {self.name}, {self.media_type}, {_rounded(self.size)}"

    @property
    def stub(self) -> str:
        """Stands for it where its content is not shown."""
        return f"[{self.described}: not shown]"


class MessagePart(NamedTuple):
    """An image or a file in a request to a model."""

    stored: StoredPart
    data: bytes = b""
    """The content; empty where no model is called, as in a replay."""

    def as_mapping(self) -> dict[str, object]:
        """Returns what a request's hash covers: the hash of the content, and what the model is told of it."""
        return {"content_hash": self.stored.content_hash, "media_type": self.stored.media_type, "name": self.stored.name}

    def __repr__(self) -> str:
        return f"MessagePart({self.stored!r})"


def _rounded(size: int) -> str:
    if size < 1_000:
        return f"{size} bytes"
    return f"{size / 1_000:.0f} kB" if size < 999_500 else f"{size / 1_000_000:.1f} MB"
