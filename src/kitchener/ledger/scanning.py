"""Reads a ledger's file in pieces: as lines, or as lines that were verified. Blocks, so it runs in a worker thread."""

from collections.abc import Callable, Iterator

from kitchener.ledger.chain import OPENING, START, BadLine, Mark, shown
from kitchener.ledger.verifier import Verifier

ReadBytes = Callable[[int, int], bytes]
"""`(size, offset)` to the bytes there, fewer at the end of the file."""

_FIRST_BYTES = 2_048
_NO_END = 1 << 62
_PIECE_BYTES = 1 << 18
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


def ledger_id_of(read: ReadBytes) -> str:
    """The ledger id that a file's first line gives; "" where it gives none."""
    name, end, _ = read(_FIRST_BYTES, 0).removeprefix(OPENING).partition(b'"')
    return name.decode("ascii", "replace") if end and read(len(OPENING), 0) == OPENING else ""


def find_line(read: ReadBytes, number: int, start: Mark = START) -> tuple[int, bytes] | None:
    """Byte offset and bytes (without LF) of the line with a number, which in a ledger is its entry's; None: there is none.

    Args:
        read: a file that verifies
        number: from 1
        start: a place before that line
    """
    offset, ahead = start.offset, number - start.seq
    for lines in read_lines(read, offset, _NO_END):
        if ahead > len(lines):
            ahead -= len(lines)
            offset += sum(map(len, lines)) + len(lines)
            continue
        before = lines[: ahead - 1]
        return offset + sum(map(len, before)) + len(before), lines[ahead - 1]
    return None
