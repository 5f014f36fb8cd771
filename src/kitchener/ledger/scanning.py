"""Reads a ledger's file in pieces: as lines, or as lines that were verified. Blocks, so it runs in a worker thread."""

from collections.abc import Callable, Iterator

from kitchener.ledger.chain import BadLine, shown
from kitchener.ledger.verifier import Verifier

ReadBytes = Callable[[int, int], bytes]
"""`(size, offset)` to the bytes there, fewer at the end of the file."""

_PIECE_BYTES = 1 << 20
_MAX_LINE_BYTES = 65 << 20
"""More than the largest entry that can be configured; a longer line is damage, and need not be held in memory to know it."""


def read_lines(read: ReadBytes, offset: int, end: int) -> Iterator[list[bytes]]:
    """The lines between two offsets, without their LF, some at a time.

    Raises:
        BadLine: after all whole lines were given, where bytes remain that no LF ends
    """
    rest = b""
    while offset < end and len(rest) < _MAX_LINE_BYTES:
        piece = read(min(_PIECE_BYTES, end - offset), offset)
        if not piece:
            break
        offset += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        if lines:
            yield lines
    if rest:
        raise BadLine("framing", "a line that ends with LF", shown(rest))


def verify_range(verifier: Verifier, read: ReadBytes, end: int, progress: Callable[[int], None] | None = None) -> None:
    """Checks everything from the verifier's place up to an offset, where a commit must end.

    Args:
        verifier: what was found right so far; afterwards, how far it is right
        read: the file
        end: how far to read
        progress: told the offset reached, now and then

    Raises:
        BadLine: the line after `verifier.seq`, at `verifier.offset`, is wrong or missing
    """
    for lines in read_lines(read, verifier.offset, end):
        verifier.feed(lines)
        if progress is not None:
            progress(verifier.offset)
    verifier.end()
