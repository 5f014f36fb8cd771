"""Recognises the media types of content by its first bytes, and estimates the tokens that a model reads for it. Pure.

No library decodes anything here. Only the types in `MEDIA_TYPES` are known; everything else is refused. Explained in
`docs/content.md`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

MediaType = Literal[
    "image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf", "text/plain", "text/markdown", "text/csv"
]
MediaPattern = Literal["image/*", "text/*"] | MediaType
"""A media type, or all types of one kind."""

IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
MEDIA_TYPES: Final = (*IMAGES, "application/pdf", "text/plain", "text/markdown", "text/csv")
"""The media types that a message may have."""

PIXELS_PER_TOKEN: Final = 750
MOST_IMAGE_TOKENS: Final = 1_600
"""Tokens of a large image, which providers shrink, and of one whose size cannot be read."""
_LEAST_IMAGE_TOKENS: Final = 85
PAGE_TOKENS: Final = 1_500
"""Tokens of one page of a PDF."""
_PAGE_BYTES: Final = 100_000
"""Bytes of a PDF for which at least one page is counted, because compressed pages cannot be counted by their marks."""

_BY_SUFFIX: Final[Mapping[str, str]] = {"md": "text/markdown", "markdown": "text/markdown", "csv": "text/csv"}
_STARTS: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)
_CONTROLS: Final = bytes(set(range(32)) - {9, 10, 12, 13})


def media_type_of(data: bytes, name: str = "") -> str | None:
    """Returns the media type that the bytes show; None: none of `MEDIA_TYPES`.

    Args:
        data: the content
        name: a file name, which tells the kinds of text apart by its suffix
    """
    for start, media_type in _STARTS:
        if data.startswith(start):
            return media_type
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if not data or len(data.translate(None, _CONTROLS)) < len(data):
        return None
    try:
        data.decode()
    except UnicodeDecodeError:
        return None
    return _BY_SUFFIX.get(name.rpartition(".")[2].lower(), "text/plain")


def is_same_kind(declared: str, found: str) -> bool:
    """Whether content with bytes of one type may be declared as another. Bytes cannot tell the kinds of text apart."""
    return declared == found or (declared.startswith("text/") and found.startswith("text/"))


def accepts(patterns: Iterable[str], media_type: str) -> bool:
    """Whether one of the patterns, such as `image/*` or `application/pdf`, covers a media type."""
    kind = f"{media_type.partition('/')[0]}/*"
    return any(each in (media_type, kind) for each in patterns)


def estimate_content(media_type: str, data: bytes, estimate: Callable[[str], int]) -> int:
    """Estimates the tokens of content: of an image by its pixels, of a PDF by its pages, of text as of any text."""
    if media_type.startswith("text/"):
        return estimate(data.decode())
    if media_type == "application/pdf":
        marked = data.count(b"/Type /Page") + data.count(b"/Type/Page")
        trees = data.count(b"/Type /Pages") + data.count(b"/Type/Pages")
        return PAGE_TOKENS * max(1, marked - trees, -(-len(data) // _PAGE_BYTES))
    size = _SIZES[media_type](data)
    if size is None:
        return MOST_IMAGE_TOKENS
    return min(MOST_IMAGE_TOKENS, max(_LEAST_IMAGE_TOKENS, -(-(size[0] * size[1]) // PIXELS_PER_TOKEN)))


_Size = tuple[int, int] | None
"""Width and height in pixels; None: they cannot be read."""


def _png_size(data: bytes) -> _Size:
    if data[12:16] != b"IHDR" or len(data) < 24:
        return None
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def _gif_size(data: bytes) -> _Size:
    if len(data) < 10:
        return None
    return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")


def _jpeg_size(data: bytes) -> _Size:
    """Follows the segments to the frame's header. Each step goes forward, so the scan is linear."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[at + 7 : at + 9]), int.from_bytes(data[at + 5 : at + 7])
        if length < 2:
            return None
        at += 2 + length
    return None


def _webp_size(data: bytes) -> _Size:
    if len(data) < 30:
        return None
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None


_SIZES: Final = {"image/png": _png_size, "image/jpeg": _jpeg_size, "image/gif": _gif_size, "image/webp": _webp_size}
