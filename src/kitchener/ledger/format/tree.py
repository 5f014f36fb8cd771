"""Computes Merkle trees over a ledger, in the form of RFC 6962, so that a proof of a few entries stays short.

A leaf covers all of a line but its body, which the line's entry hash covers. The lines of a segment form a tree. The roots of
the segments, each with its segment's bounds, are the leaves of the ledger's tree; its last leaf is the current segment. Leaves
and inner nodes are hashed with different first bytes, so that neither can pass for the other. A node without a sibling moves up
unchanged. Pure. Explained in `docs/proof.md`.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Final

from kitchener.ledger.format.lines import AFTER_BATCH, TO_BODY, BadLine, shown

_LEAF: Final = b"\0"
_NODE: Final = b"\1"
_BEFORE_ENTRY: Final = -len(',"entry":')


def leaf_of_line(line: bytes) -> bytes:
    """The leaf of a line (without its LF): a hash over the line as if it had no field `entry`.

    Raises:
        BadLine: the bytes have no envelope
    """
    mark = line.find(AFTER_BATCH)
    if mark < 0:
        raise BadLine("framing", "a line of a ledger", shown(line))
    return leaf_of_head(line[: mark + TO_BODY])


def leaf_of_head(head: bytes) -> bytes:
    """The leaf of a line, from all before its body."""
    return sha256(b"%b%b}" % (_LEAF, head[:_BEFORE_ENTRY])).digest()


def leaf_of(data: bytes) -> bytes:
    """The hash of a leaf."""
    return sha256(_LEAF + data).digest()


def leaf_of_segment(ledger_id: str, first: int, last: int, root: bytes) -> bytes:
    """The leaf of a segment in the ledger's tree: a hash over the numbers of its first and last entry and its root."""
    return leaf_of(f"kitchener/1/segment|{ledger_id}|{first}|{last}|{hash_text(root)}".encode())


def tree_hash(ledger_id: str, seq: int, chain_hash: str, segments: int, root: bytes) -> str:
    """The hash of a ledger's tree, `sha256:…`: over the fields of a head and the root over its segments.

    Args:
        ledger_id: name of the ledger
        seq: number of the last entry
        chain_hash: its chain hash, `sha256:…`
        segments: number of segments
        root: the root of the tree of which these are the leaves
    """
    return hash_text(leaf_of(f"kitchener/1/tree|{ledger_id}|{seq}|{chain_hash}|{segments}|{hash_text(root)}".encode()))


def hash_text(value: bytes) -> str:
    """`sha256:` and the hex digits of a hash."""
    return f"sha256:{value.hex()}"


def hash_bytes(text: str) -> bytes:
    """The bytes of a hash, given as `hash_text` writes it."""
    return bytes.fromhex(text.removeprefix("sha256:"))


class Peaks:
    """A tree that grows at its right end. It keeps only the roots of its full subtrees: at most 53 hashes.

    Args:
        size: number of leaves
        hashes: the roots of its full subtrees, the largest first; as many as `size` has binary ones
    """

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        self.size, self.hashes = size, [*hashes]

    def push(self, leaf: bytes) -> None:
        """Adds a leaf."""
        self.extend((leaf,))

    def extend(self, leaves: Iterable[bytes]) -> None:
        """Adds leaves, in order."""
        hashes, size = self.hashes, self.size
        for leaf in leaves:
            node, subtrees = leaf, size
            while subtrees & 1:
                node = sha256(_NODE + hashes.pop() + node).digest()
                subtrees >>= 1
            hashes.append(node)
            size += 1
        self.size = size

    @property
    def root(self) -> bytes:
        """The root of the tree; a tree has at least one leaf."""
        root = self.hashes[-1]
        for left in reversed(self.hashes[:-1]):
            root = sha256(_NODE + left + root).digest()
        return root


class LedgerTree:
    """The tree of a whole ledger, which grows line by line.

    Args:
        ledger_id: the ledger's name
        first: number of the first entry of the segment that grows
        segments: the tree over the segments before it; None: there are none
        lines: the tree over the lines of the segment that grows; None: it has none yet
    """

    def __init__(self, ledger_id: str, first: int = 1, segments: Peaks | None = None, lines: Peaks | None = None) -> None:
        self._ledger_id, self._first = ledger_id, first
        self._segments, self._lines = segments or Peaks(), lines or Peaks()

    def add_lines(self, leaves: Iterable[bytes]) -> None:
        """Adds lines to the segment that grows, given by their leaves."""
        self._lines.extend(leaves)

    def add_segment(self, last: int, root: bytes) -> None:
        """Adds a whole segment, given by the number of its last entry; the one that grows has no lines yet."""
        self._segments.push(leaf_of_segment(self._ledger_id, self._first, last, root))
        self._first, self._lines = last + 1, Peaks()

    def finish_segment(self) -> None:
        """Ends the current segment; the next line begins another one."""
        self.add_segment(self._first + self._lines.size - 1, self._lines.root)

    @property
    def segments(self) -> int:
        """Number of segments, the growing one included."""
        return self._segments.size + 1

    def hash_at(self, chain_hash: str) -> str:
        """The tree's hash (`tree_hash`), for the chain hash of its last entry."""
        last = self._first + self._lines.size - 1
        peaks = Peaks(self._segments.size, self._segments.hashes)
        peaks.push(leaf_of_segment(self._ledger_id, self._first, last, self._lines.root))
        return tree_hash(self._ledger_id, last, chain_hash, self.segments, peaks.root)

    @property
    def frontier(self) -> tuple[str, ...]:
        """The hashes that are needed to extend the tree: of the finished segments, then of the lines of the current one."""
        return tuple(hash_text(each) for each in (*self._segments.hashes, *self._lines.hashes))


def root_between(
    low: int, high: int, known: Sequence[int], given: Callable[[int, int], bytes], leaf: Callable[[int], bytes]
) -> bytes:
    """The root of the subtree over the leaves `low` to `high` - 1, from some of its leaves and the hashes beside their paths.

    Args:
        low: number of the first leaf
        high: number after the last leaf
        known: numbers of the known leaves between them, ascending
        given: the root of a largest subtree without a known leaf; called from left to right
        leaf: the hash of a known leaf; called from left to right
    """
    if not known:
        return given(low, high)
    if high - low == 1:
        return leaf(low)
    middle = low + (1 << (high - low - 1).bit_length() - 1)
    before, after = [each for each in known if each < middle], [each for each in known if each >= middle]
    left = root_between(low, middle, before, given, leaf)
    return sha256(_NODE + left + root_between(middle, high, after, given, leaf)).digest()
