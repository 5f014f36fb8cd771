"""Media types by the first bytes, and estimates of tokens (docs/content.md)."""

import pytest

from kitchener.media.media_types import MEDIA_TYPES, accepts, estimate_content, is_same_kind, media_type_of
from tests.acceptance.replies.content_kit import NOTES, PDF, png

GIF = b"GIF89a" + (640).to_bytes(2, "little") + (480).to_bytes(2, "little") + b"\0\0\0"
JPEG = b"\xff\xd8\xff\xe0\x00\x04AB\xff\xc4\x00\x03x\xff\xc0\x00\x11\x08" + (480).to_bytes(2) + (640).to_bytes(2) + b"\x03"
LOSSY = b"RIFF\0\0\0\0WEBPVP8 " + b"\0" * 10 + (640).to_bytes(2, "little") + (480).to_bytes(2, "little")
LOSSLESS = b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0/" + (639 | 479 << 14).to_bytes(4, "little") + b"\0" * 8
EXTENDED = b"RIFF\0\0\0\0WEBPVP8X" + b"\0" * 8 + (639).to_bytes(3, "little") + (479).to_bytes(3, "little")


def estimate(text: str) -> int:
    return len(text)


@pytest.mark.parametrize(
    ("data", "name", "expected"),
    [
        (png(), "", "image/png"),
        (JPEG, "", "image/jpeg"),
        (GIF, "", "image/gif"),
        (LOSSY, "", "image/webp"),
        (PDF, "notes.md", "application/pdf"),
        (NOTES, "", "text/plain"),
        (NOTES, "NOTES.MD", "text/markdown"),
        (b"a;b\r\n1;2\r\n", "t.csv", "text/csv"),
        ("Grüße\t🙂".encode(), "photo.png", "text/plain"),
        (b"", "", None),
        (b"RIFF\0\0\0\0WAVE", "", None),
        (b"text with a \0 in it", "", None),
        (b"\x1b[2Jtext", "", None),
        (b"latin \xe9", "", None),
        (b"PK\x03\x04", "report.docx", None),
    ],
)
def test_the_bytes_say_what_content_is(data: bytes, name: str, expected: str | None) -> None:
    assert media_type_of(data, name) == expected
    assert expected is None or expected in MEDIA_TYPES


@pytest.mark.parametrize(
    ("image", "kind"), [(JPEG, "jpeg"), (GIF, "gif"), (LOSSY, "webp"), (LOSSLESS, "webp"), (EXTENDED, "webp")]
)
def test_the_tokens_of_an_image_come_from_its_pixels(image: bytes, kind: str) -> None:
    assert estimate_content(f"image/{kind}", image, estimate) == 640 * 480 // 750 + 1


@pytest.mark.parametrize(
    ("media_type", "data", "expected"),
    [
        ("image/png", png(10, 10), 85),
        ("image/png", png(3_000, 1), 85),
        ("image/png", png(1_500, 1_500), 1_600),
        ("image/png", b"\x89PNG\r\n\x1a\n", 1_600),
        ("image/gif", b"GIF89a", 1_600),
        ("image/jpeg", b"\xff\xd8\xff", 1_600),
        ("image/jpeg", b"\xff\xd8\xff\xe0\x00\x00" * 100, 1_600),
        ("image/webp", b"RIFF\0\0\0\0WEBP", 1_600),
        ("application/pdf", PDF, 1_500),
        ("application/pdf", PDF + b"/Type/Page /Type/Page", 4_500),
        ("application/pdf", PDF + b"\0" * 250_000, 4_500),
        ("text/plain", NOTES, len(NOTES)),
    ],
)
def test_estimates_are_bounded_where_content_says_too_little_or_too_much(media_type: str, data: bytes, expected: int) -> None:
    assert estimate_content(media_type, data, estimate) == expected


def test_a_pattern_covers_its_kind_only() -> None:
    assert accepts(["image/*"], "image/webp")
    assert accepts(["application/pdf"], "application/pdf")
    assert not accepts(["image/*", "image/png"], "application/pdf")
    assert not accepts([], "text/plain")
    assert is_same_kind("text/markdown", "text/plain")
    assert not is_same_kind("image/png", "image/jpeg")
