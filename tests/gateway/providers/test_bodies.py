"""What comes out of a bounded body: events and whole texts as they were, and nothing of what breaks a limit."""

import zlib
from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.gateway.providers.bodies import BodyReader, UnusableAnswer, check_json, event_data, is_deeper
from kitchener.gateway.providers.impossible_counts import CountCheck
from kitchener.gateway.providers.library.http_client import BoundedBody

LIMIT = 10_000


class Pieces(httpx2.AsyncByteStream):
    """A body that arrives in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces, self.given, self.is_closed = pieces, 0, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            self.given += 1
            yield piece

    async def aclose(self) -> None:
        self.is_closed = True


async def read(body: Pieces, *, encoding: str = "", status: int = 200, limit: int = LIMIT) -> list[bytes]:
    bounded = BoundedBody(body, encoding=encoding, status=status, max_bytes=limit, counts=CountCheck("it"))
    found = [piece async for piece in bounded]
    await bounded.aclose()
    return found


async def refusal_of(body: Pieces, **options: str) -> str:
    with pytest.raises(UnusableAnswer) as caught:
        await read(body, **options)  # type: ignore[arg-type] # encoding is the one option that is used here
    assert body.is_closed
    return caught.value.detail


def gzipped(text: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return packer.compress(text) + packer.flush()


def taken(pieces: list[bytes], *, is_checked: bool) -> list[bytes]:
    """What a stream of these pieces gives, event by event."""
    reader = BodyReader(encoding="", status=200, max_bytes=LIMIT, counts=CountCheck("it") if is_checked else None)
    for piece in pieces:
        reader.take(piece)
    reader.end()
    return reader.ready


@given(
    st.lists(st.sampled_from([b"data: 1", b"data:2", b"event: a", b": ping", b"id", b"data: {}"]), max_size=8),
    st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n", b"\r\r", b"\r\n\n"]), min_size=8, max_size=8),
    st.lists(st.integers(1, 12), min_size=1),
)
def test_who_parses_an_event_gets_its_data_however_the_stream_is_cut(
    lines: list[bytes], ends: list[bytes], sizes: list[int]
) -> None:
    text = b"data: first\n\n" + b"".join(line + end for line, end in zip(lines, ends, strict=False))
    pieces: list[bytes] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    data = [event_data(each) for each in taken([text], is_checked=True)]
    assert data[0] == b" first"
    assert taken(pieces, is_checked=False) == taken([text], is_checked=False) == data


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 1_000])
async def test_events_come_one_by_one_however_they_are_cut(newline: bytes, size: int) -> None:
    text = newline.join([b"event: a", b"data: 1", b"", b": ping", b"", b"", b"data: 2", b":x", b"data: 3", b"", b"data: end"])
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert await read(Pieces(*pieces)) == [b"event: a\ndata: 1\n\n", b"data: 2\ndata: 3\n\n", b"data: end"]


@pytest.mark.parametrize("encoding", ["gzip", "X-GZIP"])
async def test_a_compressed_body_comes_out_whole(encoding: str) -> None:
    text = b'  {"a": [1, 2]}'
    packed = gzipped(text)
    assert await read(Pieces(packed[:7], packed[7:]), encoding=encoding) == [text.lstrip()]
    assert await read(Pieces(text[:5], text[5:])) == [text.lstrip()]
    assert await read(Pieces()) == []


async def test_reading_ends_with_the_piece_that_breaks_the_limit() -> None:
    body = Pieces(*[b"x" * 1_000] * 100)
    assert "longer than max_response_bytes = 10,000" in await refusal_of(body)
    assert body.given == 11


async def test_a_compressed_body_is_held_to_the_limit_as_it_arrives_and_as_it_expands() -> None:
    assert "longer than" in await refusal_of(Pieces(gzipped(b"0" * 1_000_000)), encoding="gzip")
    empty_blocks = b"\x00\x00\x00\xff\xff" * 1_000  # what arrives and expands to nothing
    body = Pieces(gzipped(b"")[:10], *[empty_blocks] * 10)
    assert "longer than" in await refusal_of(body, encoding="gzip")
    assert body.given == 3


async def test_others_run_between_the_pieces_of_a_body_that_comes_byte_by_byte() -> None:
    """A read of the socket holds thousands of them, and the library gives them one after the other without waiting."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        await read(Pieces(*[b"x"] * 8_192))
        tasks.cancel_scope.cancel()
    assert turns >= 16


@pytest.mark.parametrize(
    ("body", "encoding", "expected"),
    [
        (Pieces(gzipped(b"hello")[:-3]), "gzip", "ends in the middle"),
        (Pieces(gzipped(b"hello"), b"more"), "gzip", "bytes follow"),
        (Pieces(gzipped(b"hello") + b"more"), "gzip", "bytes follow"),
        (Pieces(b"hello"), "gzip", "cannot be decompressed"),
        (Pieces(b"data: x\n" * 200), "", "more than 100 lines"),
    ],
)
async def test_a_body_that_makes_no_sense_is_refused(body: Pieces, encoding: str, expected: str) -> None:
    assert expected in await refusal_of(body, encoding=encoding)


@pytest.mark.parametrize("encoding", ["br", "zstd", "deflate", "gzip, gzip"])
async def test_an_encoding_that_was_not_asked_for_is_refused(encoding: str) -> None:
    with pytest.raises(UnusableAnswer, match="was not requested"):
        BoundedBody(Pieces(b"x"), encoding=encoding, status=200, max_bytes=LIMIT, counts=CountCheck("it"))
    assert await read(Pieces(b"x"), encoding=encoding, status=503) == []


async def test_of_an_error_only_the_beginning_is_read() -> None:
    endless = Pieces(*[b"x" * 1_000] * 100)
    assert await read(endless, status=500) == [b"x" * LIMIT]
    assert endless.is_closed
    assert await read(Pieces(b'{"error": "no"}'), status=400) == [b'{"error": "no"}']
    assert await read(Pieces(b"data: no\n\n"), status=400) == [b"data: no\n\n"]
    assert await read(Pieces(b"[" * 5_000 + b"]" * 5_000), status=400, limit=100_000) == []


async def test_a_stream_has_only_so_many_comments() -> None:
    """Regression: five million of them took nine seconds of the processor until the limit of an answer's size."""
    ordinary = Pieces(*[b": thinking\n\n" * 1_000] * 99, b"data: {}\n\n")
    assert await read(ordinary, limit=16_777_216) == [b"data: {}\n\n"]
    endless = Pieces(*[b":\n\n" * 1_000] * 200)
    with pytest.raises(UnusableAnswer, match="more than 100,000 comments"):
        await read(endless, limit=16_777_216)
    assert endless.is_closed


async def test_a_stream_has_only_so_many_events() -> None:
    body = Pieces(*[b"data: \n\n" * 1_000] * 200)
    with pytest.raises(UnusableAnswer, match="more than 100,000 events"):
        await read(body, limit=10_000_000)
    assert body.given == 101


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[" * 101 + b"1" + b"]" * 101, "deeper than 100 levels"),
        (b"[" * 5_000, "not valid JSON, or nests far deeper"),
        (b"[" + b"1," * 20_000 + b"1]", "more than 10,000 values"),
        (b"," * 600_000, "more than 500,000 commas"),
    ],
)
def test_costly_texts_are_refused(text: bytes, expected: str) -> None:
    with pytest.raises(UnusableAnswer) as caught:
        check_json(text)
    assert expected in caught.value.detail


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no JSON at all",
        b'{"usage": NaN}',
        b'{"usage": null, "text": "\\"usage\\": -1"}',
        b'{"usage":{"service_tier":"tokens","output_tokens":3,"details":[{"tokenCount":0}]}}',
        b'{"text": "' + b"[,{" * 50_000 + b'"}',  # marks inside of a string
        b"[" * 100 + b"]" * 100,
    ],
)
def test_what_costs_little_is_left_to_its_reader(text: bytes) -> None:
    assert check_json(text, CountCheck("it")) is text


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        (b'{"usage": {"a": {"b_tokens": -1}}}', b'{"usage":{"a":{"b_tokens":0}}}'),
        (b'{"message": {"usage": {"input_tokens": -0.5}}}', b'{"message":{"usage":{"input_tokens":0}}}'),
        (b'{"response": {"usage": {"output_tokens": 9.0}}}', b'{"response":{"usage":{"output_tokens":9}}}'),
        (b'{"usageMetadata": {"a": [{"tokenCount": "x"}, 1]}}', b'{"usageMetadata":{"a":[{"tokenCount":0},1]}}'),
        (b'{"usageMetadata": 7}', b'{"usageMetadata":{}}'),
        (b'{"usage": {"prompt_tokens": 3}}', b'{"usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":0}}'),
    ],
)
def test_counts_that_cannot_be_are_set_to_0(text: bytes, mended: bytes) -> None:
    assert check_json(text, CountCheck("it")) == mended
    event = b"event: x\ndata: " + text + b"\nid: 1"
    reader = BodyReader(encoding="", status=200, max_bytes=1_000, counts=CountCheck("it"))
    reader.take(event + b"\n\n")
    assert reader.ready == [b"event: x\nid: 1\ndata: " + mended + b"\n\n"]


@given(st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=1), inner)))
def test_depth_is_what_recursion_would_find(value: object) -> None:
    def depth(each: object) -> int:
        inside = each.values() if isinstance(each, dict) else each if isinstance(each, list) else None
        return 0 if inside is None else 1 + max(map(depth, inside), default=0)

    assert [is_deeper(value, levels) for levels in range(6)] == [depth(value) > levels for levels in range(6)]
