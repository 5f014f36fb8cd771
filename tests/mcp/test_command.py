"""Lines of a command's output, in whatever parts they come."""

from hypothesis import given
from hypothesis import strategies as st

from kitchener.mcp.command import LineReader, LongLine

LIMIT = 100


@given(st.lists(st.binary(max_size=150).map(lambda each: each.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_come_whole_in_whatever_parts_they_were_sent(lines: list[bytes], data: st.DataObject) -> None:
    """Of a line beyond the limit, its two ends."""
    sent = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    reader, found = LineReader(LIMIT), list[bytes | LongLine]()
    for start, end in zip((0, *cuts), (*cuts, len(sent)), strict=True):
        found += reader.add(sent[start:end])
    assert len(found) == len(lines)
    for line, seen in zip(lines, found, strict=True):
        if len(line) <= LIMIT:
            assert seen == line
        else:
            assert isinstance(seen, LongLine)
            assert seen.beginning == line[:64]
            assert line.endswith(seen.end)


def test_what_is_kept_of_an_endless_line_does_not_grow() -> None:
    reader = LineReader(LIMIT)
    for _ in range(1_000):
        assert not list(reader.add(b"x" * 65_536))
    (seen,) = reader.add(b"the end\n")
    assert isinstance(seen, LongLine)
    assert len(seen.beginning) == len(seen.end) == 64
    assert list(reader.add(b"next\n")) == [b"next"]
