"""Turns entries into lines of a ledger, with their hashes, and lines into entries.

Knows nothing of files, clocks, sessions or the meaning of a payload; modules above do (`journal`, `client`). The format is
explained in `docs/ledger.md`.
"""

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypedDict

import orjson

from kitchener.canonical import canonical_bytes
from kitchener.errors import EntryRefused
from kitchener.records.entries import Payload
from kitchener.records.ref import Ref

NO_HASH: Final = "0" * 64
"""Hex digits of the chain hash before the first entry."""
NO_END: Final = 2**62
"""Larger than any entry's number and any byte offset."""
OPENING: Final = b'{"ledger_id":"'
"""The first bytes of every line."""
ENVELOPE_BYTES: Final = 350
"""Upper bound on the bytes that a line has besides its body and its ledger id."""
AFTER_BATCH: Final = b'],"entry_hash":"sha256:'
"""The bytes after the numbers of a line. They first occur there, because nothing earlier in a line can contain them."""
TO_BODY: Final = len(AFTER_BATCH) + 64 + len('","chain_hash":"sha256:') + 64 + len('","entry":')
"""Bytes from the start of `AFTER_BATCH` to the body."""
_TO_CHAIN: Final = 64 + len('","chain_hash":"sha256:')
"""Bytes from the digits of the entry hash to the digits of the chain hash."""
_CHAIN_TEXT: Final = "kitchener/1|sha256:"
_CHAIN_OPENING: Final = hashlib.sha256(_CHAIN_TEXT.encode())
_SEQ: Final = '","seq":'
_ENTRY_ID: Final = ',"entry_id":"'
_LEDGER_ID = re.compile(r"[ !#-\[\]-{}~]{1,1024}")
_LINE = re.compile(
    rb'\{"ledger_id":"([ !#-\[\]-{}~]+)","seq":([1-9][0-9]{0,15}),"entry_id":"(E-[0-9]{4}-[0-9]{2}-[0-9]{2}-[0-9]{12,16})",'
    rb'"batch":\[([1-9][0-9]{0,15}),([1-9][0-9]{0,15}),([1-9][0-9]{0,15})\],"entry_hash":"sha256:([0-9a-f]{64})",'
    rb'"chain_hash":"sha256:([0-9a-f]{64})","entry":(\{.*\})\}',
    re.DOTALL,
)
_ENVELOPE = re.compile(
    rb'\{"ledger_id":"(?:[ !#-\[\]-{}~]+"(?:,"(?:seq|entry_id|batch|entry_hash|chain_hash)":'
    rb'(?:[0-9]+|\[[0-9,]+\]|"(?:E-[0-9-]+|sha256:[0-9a-f]+)"))*)?'
)
"""Matches the longest beginning of a line that has the form of an envelope."""
_QUOTED_BYTES: Final = 120
"""Bytes of the envelope that an error message quotes: ledger, number, id and commit, unless the ledger's id is long."""

Opener = Callable[[str, str, Payload], Payload]
"""Decrypts sealed values: `(ledger id, entry type, stored payload)` to the payload as it was written."""
IndexKeys = Callable[[str, Mapping[str, object]], tuple[str, ...]]
"""`(entry type, payload)` to the keys, besides the session, under which an entry can be found. Pure."""


class LedgerEntry(NamedTuple):
    """An entry as a writer passes it. The ledger adds number, time and hashes."""

    entry_type: str
    """What happened, e.g. `WO_PLANNED`."""
    entity_id: str
    """The id of the thing that the entry is about."""
    payload: Mapping[str, object]
    """The facts, as a JSON object: a dict, such as a `TypedDict` of `kitchener.records.entries`."""


class EntryBody(TypedDict, total=False):
    """The decoded body of a line. All keys are present, except where a bundle withholds a body: then none is."""

    entity_id: str
    entry_type: str
    payload: Payload
    timestamp: str


class StoredEntry:
    """An entry as the ledger stores it. Do not change it."""

    __slots__ = (
        "_opener",
        "_payload",
        "body",
        "entity_id",
        "entry_hash",
        "entry_id",
        "entry_type",
        "is_joined",
        "keys",
        "ledger_id",
        "seq",
        "session_id",
        "timestamp",
    )

    def __init__(  # noqa: PLR0913 - a record with one argument per field
        self,
        ledger_id: str,
        seq: int,
        entry_id: str,
        entry_hash: str,
        entry_type: str,
        entity_id: str,
        timestamp: str,
        body: bytes,
        session_id: str | None,
        keys: tuple[str, ...],
        opener: Opener | None,
        payload: Payload | None = None,
    ) -> None:
        self.ledger_id: str = ledger_id
        """Name of the ledger that holds the entry."""
        self.seq: int = seq
        """Number of the entry in its ledger, from 1 without gaps."""
        self.entry_id: str = entry_id
        """`E-YYYY-MM-DD-{seq:012d}`"""
        self.entry_hash: str = entry_hash
        """`sha256:` and 64 hex digits over `body`."""
        self.entry_type: str = entry_type
        """What happened, e.g. `WO_PLANNED`."""
        self.entity_id: str = entity_id
        """The id of the thing that the entry is about."""
        self.timestamp: str = timestamp
        """ISO time, UTC, microseconds."""
        self.body: bytes = body
        """The stored bytes of the entry: canonical JSON of entity, type, payload and time."""
        self.session_id: str | None = session_id
        """The payload's session; None: it has none."""
        self.keys: tuple[str, ...] = keys
        """The index keys of the entry besides its session."""
        self.is_joined: bool = False
        """While the entry is pending: whether the entry after it must be in the same commit."""
        self._opener = opener
        self._payload = payload

    @property
    def payload(self) -> Payload:
        """The facts, decoded and unsealed at the first access. Values whose key is gone stay sealed."""
        if self._payload is None:
            payload: Payload = orjson.loads(self.body)["payload"]
            self._payload = payload if self._opener is None else self._opener(self.ledger_id, self.entry_type, payload)
        return self._payload

    @property
    def ref(self) -> Ref:
        """The reference by which other entries name this one."""
        return Ref(self.ledger_id, self.entry_id, self.entry_hash)

    def __repr__(self) -> str:
        return f"<StoredEntry {self.ledger_id} {self.entry_id} {self.entry_type} {self.entity_id}>"


class Mark(NamedTuple):
    """A position between two commits, with what is needed to verify the next one."""

    seq: int
    """Number of the last entry before the position; 0 at the start."""
    offset: int
    """Byte offset of the next line."""
    chain: str
    """Hex digits of the last entry's chain hash."""
    batch: int
    """Number of the last commit; 0 at the start."""
    timestamp: str
    """Time of the last entry; "" at the start."""


START: Final = Mark(0, 0, NO_HASH, 0, "")


class CommitDigest:
    """A running digest over the positions where commits end, which no hash of a line covers.

    Args:
        after: the last entry that `digest` covers already
        digest: the digest up to that entry
        up_to: the last entry to cover; None: no limit
    """

    def __init__(self, after: int = 0, digest: str = f"sha256:{NO_HASH}", up_to: int | None = None) -> None:
        self.seq, self.digest = after, digest
        self._up_to = up_to

    def take(self, last_seq: int) -> None:
        """Adds a commit, given by the number of its last entry; called in order."""
        if self.seq < last_seq and (self._up_to is None or last_seq <= self._up_to):
            text = f"kitchener/1/commits|{self.digest}|{last_seq}"
            self.seq, self.digest = last_seq, f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


FaultField = Literal[
    "framing",
    "entry",
    "ledger_id",
    "seq",
    "entry_id",
    "batch",
    "timestamp",
    "entry_hash",
    "chain_hash",
    "key",
    "signer",
    "public_key",
    "sig",
]
"""What is wrong: a part of a line, or of the index or the signed head that is compared with it; `framing`: these bytes are no
line."""


class BadLine(Exception):
    """A line that is not what the writer would have written. Callers that know the file turn it into `LedgerDamaged`."""

    def __init__(self, field: FaultField, expected: str, found: str) -> None:
        self.field, self.expected, self.found = field, expected, found
        super().__init__(f"{field}: expected {expected}, found {found}")


class Line(NamedTuple):
    """The parts of a line. Only the form of the line was checked."""

    ledger_id: str
    seq: int
    entry_id: str
    batch: tuple[int, int, int]
    entry_hash: str
    """Hex digits, as the line says."""
    chain_hash: str
    """Hex digits, as the line says."""
    body: bytes

    @property
    def fits_itself(self) -> bool:
        """Whether the body has the hash that the line gives for it."""
        return hashlib.sha256(self.body).hexdigest() == self.entry_hash


def is_ledger_id(text: str) -> bool:
    """Whether `text` may name a ledger: printable ASCII without bar, quote and backslash."""
    return _LEDGER_ID.fullmatch(text) is not None


def compute_trace_hash(entries: Iterable[StoredEntry]) -> str:
    """`sha256:` and the hex SHA-256 over the stored bytes of the entries; pass them in ascending order."""
    sha = hashlib.sha256()
    for entry in entries:
        sha.update(entry.body)
    return f"sha256:{sha.hexdigest()}"


def body_of(entry_type: str, entity_id: str, payload: Mapping[str, object], timestamp: str) -> bytes:
    """The stored bytes of an entry. `timestamp` is its ISO time.

    Raises:
        EntryRefused: the entry has no canonical form; the error names the place, such as `payload.v`
    """
    data = canonical_bytes(payload, at="payload")
    if not isinstance(entity_id, str):
        raise EntryRefused("entity_id", f"{type(entity_id).__name__} is not text")
    if not isinstance(entry_type, str):
        raise EntryRefused("entry_type", f"{type(entry_type).__name__} is not text")
    try:
        head = orjson.dumps({"entity_id": entity_id, "entry_type": entry_type})
    except TypeError:  # one of the texts holds a lone surrogate
        canonical_bytes(entity_id, at="entity_id")
        canonical_bytes(entry_type, at="entry_type")
        raise
    # Joined, because bytes that the encoder returns keep its buffer of 4 KiB or more as long as they live.
    return b"".join((head[:-1], b',"payload":', data, b',"timestamp":"', timestamp.encode(), b'"}'))


def entry_id_of(day: str, seq: int) -> str:
    """Returns the id of an entry: `E-2026-02-18-000000000001`.

    Args:
        day: the date in its timestamp
        seq: its number in the ledger
    """
    return f"E-{day}-{seq:012d}"


def chain_hash(previous: str, ledger_id: str, seq: int, entry_id: str, entry_hash: str) -> str:
    """Hex digits of an entry's chain hash; `previous` and `entry_hash` are hex digits too."""
    text = f"{_CHAIN_TEXT}{previous}|{ledger_id}|{seq}|{entry_id}|sha256:{entry_hash}"
    return hashlib.sha256(text.encode()).hexdigest()


class RenderedCommit(NamedTuple):
    """One commit as bytes to write, with the chain hash that the next commit continues."""

    data: bytes
    """All of them, each with its LF."""
    heads: list[bytes]
    """Of each line, all before its body."""
    lengths: list[int]
    """Bytes of each line, with its LF."""
    chain: str
    """Hex digits of the chain hash after the last."""


def render_batch(entries: Sequence[StoredEntry], chain: str, batch: int) -> RenderedCommit:
    """Renders the lines of one commit.

    Args:
        entries: the entries of the commit, in order
        chain: hex digits of the chain hash before the commit
        batch: number of the commit
    """
    hashed, size = _CHAIN_OPENING.copy, len(entries)
    # The parts that all lines of the commit share are built once, and `join` copies each body once.
    ledger_id = entries[0].ledger_id if entries else ""
    middle, opening = f"|{ledger_id}|", f'{{"ledger_id":"{ledger_id}","seq":'
    commit, after_place = f'","batch":[{batch},', f',{size}],"entry_hash":"'
    heads: list[bytes] = []
    for place, entry in enumerate(entries, 1):
        seq, entry_id, entry_hash = str(entry.seq), entry.entry_id, entry.entry_hash
        sha = hashed()
        sha.update(f"{chain}{middle}{seq}|{entry_id}|{entry_hash}".encode())
        chain = sha.hexdigest()
        head = (
            f'{opening}{seq},"entry_id":"{entry_id}{commit}{place}{after_place}{entry_hash}",'
            f'"chain_hash":"sha256:{chain}","entry":'
        )
        heads.append(head.encode())
    bodies = [entry.body for entry in entries]
    parts = [b"}\n"] * (3 * size)
    parts[::3], parts[1::3] = heads, bodies
    lengths = [len(head) + len(body) + 2 for head, body in zip(heads, bodies, strict=True)]
    return RenderedCommit(b"".join(parts), heads, lengths, chain)


def split_line(line: bytes | bytearray, at: int = 0, stop: int = sys.maxsize) -> Line | None:
    """The parts of a line (without its LF), from `at` to `stop`; None: the bytes do not have the form of a line."""
    found = _LINE.fullmatch(line, at, stop)
    if found is None:
        return None
    ledger_id, seq, entry_id, number, place, size, entry_hash, chain, body = found.groups()
    return Line(
        ledger_id.decode(),
        int(seq),
        entry_id.decode(),
        (int(number), int(place), int(size)),
        entry_hash.decode(),
        chain.decode(),
        body,
    )


def read_line(line: bytes, ledger_id: str, index_keys: IndexKeys | None, opener: Opener | None) -> StoredEntry:
    """The entry of a line (without its LF). Does not check the line's place in the chain.

    Raises:
        BadLine: the bytes are not a line, belong to another ledger, or do not match the line's own hash
    """
    mark, seq_at = line.find(AFTER_BATCH), len(OPENING) + len(ledger_id) + len(_SEQ)
    id_at = line.find(b",", seq_at) + len(_ENTRY_ID)
    body = line[mark + TO_BODY : -1]
    entry_hash = hashlib.sha256(body).hexdigest()
    stored_hash = line[mark + len(AFTER_BATCH) : mark + len(AFTER_BATCH) + 64]
    if entry_hash.encode() != stored_hash or line[:seq_at] != f'{{"ledger_id":"{ledger_id}","seq":'.encode():
        raise misfit(line, ledger_id)
    try:
        seq, entry_id = int(line[seq_at : id_at - len(_ENTRY_ID)]), line[id_at : line.find(b'"', id_at)].decode()
    except ValueError as error:
        raise BadLine("framing", "a line of a ledger", f"{shown(line)} ({error})") from error
    return make_entry(ledger_id, seq, entry_id, entry_hash, body, index_keys, opener)


def make_entry(
    ledger_id: str,
    seq: int,
    entry_id: str,
    entry_hash: str,
    body: bytes,
    index_keys: IndexKeys | None,
    opener: Opener | None,
) -> StoredEntry:
    """The entry with a given body; `entry_hash` is the body's hash in hex digits and is not checked.

    Raises:
        BadLine: the body is not the body of an entry
    """
    try:
        fields = orjson.loads(body)
        payload, entry_type = fields["payload"], fields["entry_type"]
        session_id = payload.get("session_id")
        return StoredEntry(
            ledger_id,
            seq,
            entry_id,
            "sha256:" + entry_hash,
            entry_type,
            fields["entity_id"],
            fields["timestamp"],
            body,
            session_id if isinstance(session_id, str) else None,
            index_keys(entry_type, payload) if index_keys is not None else (),
            opener,
            payload if opener is None else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadLine("entry", "entity_id, entry_type, payload and timestamp", other_bytes(len(body))) from error


def follow(line: bytes, ledger_id: str, seq: int, before: str) -> str:
    """Checks that a line continues the chain, and returns its chain hash (hex digits). Ignores the body.

    Args:
        line: the line, without its LF
        ledger_id: the ledger that the line must belong to
        seq: the number that the line must have
        before: hex digits of the chain hash before the line

    Raises:
        BadLine: the line has another number or ledger, or a chain hash that does not follow from `before`
    """
    opening = f"{OPENING.decode()}{ledger_id}{_SEQ}{seq}{_ENTRY_ID}".encode()
    id_end = line.find(b'"', len(opening))
    hash_at = line.find(AFTER_BATCH, id_end) + len(AFTER_BATCH)
    if id_end < 0 or hash_at < id_end or not line.startswith(opening):
        parts = split_line(line)
        raise misfit(line, ledger_id) if parts is None or parts.seq == seq else BadLine("seq", str(seq), str(parts.seq))
    entry_id = line[len(opening) : id_end].decode("ascii", "replace")
    due = chain_hash(before, ledger_id, seq, entry_id, line[hash_at : hash_at + 64].decode("ascii", "replace"))
    found = line[hash_at + _TO_CHAIN : hash_at + _TO_CHAIN + 64]
    if found != due.encode():
        raise BadLine("chain_hash", f"sha256:{due}", f"sha256:{found.decode('ascii', 'replace')}")
    return due


def misfit(line: bytes, ledger_id: str) -> BadLine:
    """The fault of a line that is malformed, belongs to another ledger, or does not match its own hash."""
    parts = split_line(line)
    if parts is None:
        return BadLine("framing", "a line of a ledger", shown(line))
    if parts.ledger_id != ledger_id:
        return BadLine("ledger_id", ledger_id, parts.ledger_id)
    found = hashlib.sha256(parts.body).hexdigest()
    return BadLine("entry_hash", f"sha256:{parts.entry_hash}", f"sha256:{found}")


def session_of(payload: Mapping[str, object]) -> str | None:
    """The session id in a payload; None: it has none."""
    session_id = payload.get("session_id")
    return session_id if isinstance(session_id, str) else None


def shown(line: bytes) -> str:
    """A line as text for an error message: the beginning of its envelope, or only its length if it has none.

    Quotes nothing else. A mistaken path may name a key file, and a body holds what people said.
    """
    if not line:
        return "nothing"
    found = _ENVELOPE.match(line)
    if found is None:
        return f"{len(line):,} bytes that are no line of a ledger"
    quoted = found[0][:_QUOTED_BYTES]
    rest = len(line) - len(quoted)
    return repr(quoted.decode()) + (f" and {rest:,} bytes after it" if rest else "")


def other_bytes(size: int) -> str:
    """Text for an error message about unexpected bytes: only their number, never their content."""
    return f"{size:,} bytes of something else" if size else "nothing"
