"""Small images and files, and a runtime with a scripted model that takes them."""

import struct
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from kitchener import HO2Config, Runtime, RuntimeConfig, open_runtime
from kitchener.config import LedgerConfig, LimitsConfig, RouterConfig
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.records.prompt import PromptRequest
from kitchener.runtime.root_layout import sealer_of
from kitchener.testing import ScriptedProvider

ADA, BO = "ada", "bo"
PDF: Final = b"%PDF-1.4\n1 0 obj << /Type /Pages >> endobj\n2 0 obj << /Type /Page >> endobj\n%%EOF"
NOTES: Final = b"# Notes\nThe door code is 4711.\n"


@cache
def png(width: int = 30, height: int = 20, seed: int = 1) -> bytes:
    """A PNG image of this size; another seed gives other pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    first = bytes((x * seed) % 256 for x in range(width * 3))
    rows = b"".join(b"\0" + first.translate(bytes((value + y) % 256 for value in range(256))) for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    image = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + image


def config(root: Path, *, limits: LimitsConfig | None = None, **agent: Any) -> RuntimeConfig:
    """One agent class; `seal` goes to the ledger, everything else to the class."""
    ledger = LedgerConfig(durability="os", linger_ms=0, seal=agent.pop("seal", True))
    return RuntimeConfig(
        plane_root=str(root / "plane"),
        ledger=ledger,
        limits=limits or LimitsConfig(),
        router=RouterConfig(default_provider="scripted"),
        agents={"ADMIN": HO2Config(**{"context_mode": "enforce", **agent})},
    )


def model(*, media_types: Sequence[str] = ("image/*", "application/pdf", "text/*")) -> ScriptedProvider:
    """Replies the same to everything, and keeps the requests."""
    fixed = ScriptedProvider.replies("I see.")

    async def answer(request: PromptRequest) -> Any:
        return await fixed.complete(request)

    return ScriptedProvider(answer, media_types=tuple(media_types))


@asynccontextmanager
async def running(config: RuntimeConfig, provider: ScriptedProvider | None = None) -> AsyncIterator[Runtime]:
    """A runtime with this model."""
    async with open_runtime(config, providers={"scripted": provider or model()}) as runtime:
        yield runtime


def replies(provider: ScriptedProvider) -> list[PromptRequest]:
    """The requests for a reply."""
    return [each for each in provider.requests if each.wo_type == "synthesize"]


def shown(request: PromptRequest) -> list[bytes]:
    """The bytes of the images and files in a request."""
    return [part.data for message in request.messages for part in message.parts]


def blobs(config: RuntimeConfig) -> list[Path]:
    """The stored files."""
    return sorted(path for path in (Path(config.plane_root) / "blobs").rglob("*") if path.is_file())


async def entries(config: RuntimeConfig, entry_type: str) -> list[StoredEntry]:
    """The entries of one type in HO2m and the context ledger."""
    found = []
    for path in sorted(Path(config.plane_root).glob("HO2/ADMIN/*.jsonl")):
        async with LedgerReader.open(path, sealer=sealer_of(config)) as reader:
            found += [entry async for entry in reader.read(entry_type=entry_type)]
    return found
