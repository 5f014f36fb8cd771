"""Signs a ledger's last number and chain hash, and compares a ledger with its signed head, so that a rebuilt chain is detected.

The signed head is the file `<ledger>.checkpoint` beside the ledger. A signature cannot be recomputed from the ledger, so it is
not in `index`, which may be deleted at any time. Knows nothing of the meaning of entries; `kitchener.signing` has keys and
signatures. Blocks, so it runs in a worker thread. Explained in `docs/proof.md`.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from kitchener.canonical import canonical_bytes
from kitchener.errors import LedgerDamaged, LedgerTailMissing, LedgerWriteError
from kitchener.ledger.disk.file_ops import FileOps, path_problem, write_whole
from kitchener.ledger.disk.manifests import fault_at
from kitchener.ledger.disk.scan import find_line, ledger_id_of, verify_range
from kitchener.ledger.disk.trees import extend, resumed, tree_of
from kitchener.ledger.disk.volume import Volume, open_volume
from kitchener.ledger.format.checks import Verifier
from kitchener.ledger.format.lines import NO_HASH, START, BadLine, CommitDigest, Mark, is_ledger_id, other_bytes, split_line
from kitchener.ledger.format.tree import LedgerTree
from kitchener.ledger.verify.recovery import REMEDY, check_is_crash, damage
from kitchener.signing import Signer, is_public_key, is_signed, signer_id
from kitchener.small_files import read_regular

SUFFIX: Final = ".checkpoint"
"""Suffix that turns a ledger's file name into the name of its signed head."""
_MAX_BYTES: Final = 65_536
_NO_COMMITS: Final = f"sha256:{NO_HASH}"
_CHAIN = re.compile(r"sha256:[0-9a-f]{64}")

_SIGNED: Final = {"ledger_id", "seq", "chain_hash", "timestamp", "signer", "public_key", "sig"}
_TREE: Final = _SIGNED | {"commits", "segments", "tree"}
_FORMS: Final = (_SIGNED, _SIGNED | {"commits"}, _TREE, _TREE | {"frontier"})
"""The fields of a head: in earlier versions, in bundles and output, and in the file beside its ledger."""

FindStop = Callable[[int], Mark]
"""An entry's number to a position at or before the entry's end, from which verification can start."""


class Checkpoint(NamedTuple):
    """A signed head."""

    ledger_id: str
    seq: int
    """Number of the ledger's last entry at the time of signing."""
    chain_hash: str
    """Chain hash of that entry, which covers every entry up to it."""
    timestamp: str
    """Time of signing, ISO, UTC."""
    signer: str
    """Short name of the key."""
    public_key: str
    """The key that checks the signature; 64 hex digits. Readers must know from elsewhere who owns it."""
    sig: str
    """Ed25519 signature over `signed_bytes`; 128 hex digits."""
    commits: str | None = None
    """Digest over the ends of the commits up to `seq` (`CommitDigest`); None: an earlier version signed, without a digest."""
    segments: int | None = None
    """Number of the segments up to `seq`, which are the leaves of `tree`; None: an earlier version signed, without a tree."""
    tree: str | None = None
    """Hash of the ledger's Merkle tree up to `seq` (`format.tree`); None: as for `segments`."""
    frontier: tuple[str, ...] | None = None
    """The hashes that are needed to extend the tree for the next head; not signed, because `tree` covers them.
    None: an earlier version signed, or the head is not the one beside its ledger."""

    @property
    def signed_bytes(self) -> bytes:
        """The bytes that are signed: plain text, so that checking them needs no JSON library."""
        text = f"head|{self.ledger_id}|{self.seq}|{self.chain_hash}|{self.timestamp}"
        if self.commits is None:
            return f"kitchener/1/{text}".encode()
        if self.tree is None:
            return f"kitchener/2/{text}|{self.commits}".encode()
        return f"kitchener/3/{text}|{self.commits}|{self.segments}|{self.tree}".encode()

    def as_json(self) -> dict[str, object]:
        """The signed fields, for bundles and output, without those that are None."""
        return {name: value for name, value in self._asdict().items() if value is not None and name != "frontier"}

    def problem(self, public_key: str | None = None) -> BadLine | None:
        """The fault of its key or signature; None: there is none.

        Args:
            public_key: the key that must have signed; None: the head's own key
        """
        named = signer_id(self.public_key)
        if self.signer != named:
            return BadLine("signer", named, self.signer)
        if public_key is not None and public_key != self.public_key:
            return BadLine("public_key", f"{public_key} ({signer_id(public_key)})", f"{self.public_key} ({named})")
        if not is_signed(self.public_key, self.signed_bytes, self.sig):
            return BadLine("sig", f"a signature by {named} over this head", self.sig)
        return None


def sign_head(
    ledger_id: str,
    seq: int,
    chain_hash: str,
    timestamp: str,
    signer: Signer,
    commits: str | None = None,
    tree: LedgerTree | None = None,
) -> Checkpoint:
    """Signs a head; one with a tree has `commits`, too."""
    head = Checkpoint(ledger_id, seq, chain_hash, timestamp, signer.signer, signer.public_key, "", commits)
    if tree is not None:
        head = head._replace(segments=tree.segments, tree=tree.hash_at(chain_hash), frontier=tree.frontier)
    return head._replace(sig=signer.sign(head.signed_bytes))


def read_head(fields: object) -> Checkpoint | None:
    """Reads a signed head from its JSON object; None: the object does not have the form of one. Checks no signature."""
    if not isinstance(fields, dict) or {*fields} not in _FORMS:
        return None
    frontier = fields.get("frontier", [])
    hashes = [fields.get("commits", _NO_COMMITS), fields.get("tree", _NO_COMMITS), *_listed(frontier)]
    segments = fields.get("segments", 1)
    if not all(isinstance(each, str) and _CHAIN.fullmatch(each) for each in hashes) or not _is_number(segments):
        return None
    head = Checkpoint(**{**fields, "frontier": tuple(frontier) if "frontier" in fields else None})
    texts = (head.ledger_id, head.chain_hash, head.timestamp, head.signer, head.sig)
    # The signed text separates these fields by bars, so none of them may contain a bar.
    is_one = all(isinstance(each, str) and is_ledger_id(each) for each in texts)
    fits = is_one and _is_number(head.seq) and _CHAIN.fullmatch(head.chain_hash) is not None
    return head if fits and is_public_key(head.public_key) else None


def _listed(frontier: object) -> list[object]:
    """The hashes of a frontier; for any value but a list, an entry that is not a hash."""
    return frontier if isinstance(frontier, list) else [None]


def _is_number(value: object) -> bool:
    return type(value) is int and value > 0


def checkpoint_path(path: Path) -> Path:
    """The file of a ledger's signed head."""
    return path.with_name(path.name + SUFFIX)


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Reads the signed head beside a ledger, without checking its signature; None: there is none.

    Raises:
        LedgerDamaged: the file is not a signed head
        LedgerPathError: the file cannot be read
    """
    file = checkpoint_path(path)
    try:
        data = read_regular(file, _MAX_BYTES, follows_links=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise path_problem(file, error) from error
    try:
        head = read_head(orjson.loads(data))
    except orjson.JSONDecodeError:
        head = None
    if head is None or _written(head) != data:
        wanted = "a signed head as it was written; bring it back from a backup"
        raise fault_at(file, "framing", wanted, other_bytes(len(data)))
    return head


def check_held(
    held: Checkpoint | None,
    volume: Volume,
    ledger_id: str,
    entries: int,
    public_key: str | None = None,
    *,
    start: Mark = START,
    boundaries: CommitDigest | None = None,
) -> LedgerDamaged | None:
    """The fault of a verified ledger compared with a signed head; None: they agree.

    Args:
        held: the signed head; None: there is none
        volume: the ledger's files
        ledger_id: the ledger's name; "": it has no entry
        entries: number of entries in the ledger
        public_key: the key that must have signed; None: the head's own key, and no head is required
        start: a position before the head's entry
        boundaries: the ends of the commits up to that entry; None: not collected, and not compared
    """
    if held is None:
        if public_key is None or not entries:
            return None
        return fault_at(
            volume.path, "checkpoint", f"a head signed by {signer_id(public_key)}", "none; `kitchener ledger checkpoint` signs"
        )
    problem = held.problem(public_key)
    if problem is not None:
        return fault_at(checkpoint_path(volume.path), problem.field, problem.expected, problem.found)
    return _misfit(held, volume, ledger_id, entries, start) or check_boundaries(held, volume, boundaries)


def check_tree(held: Checkpoint, volume: Volume) -> LedgerDamaged | None:
    """The fault if the signed tree is not the one over a verified ledger; None: it is, or the head has no tree."""
    if held.tree is None:
        return None
    tree = tree_of(volume, held.ledger_id, held.seq)
    written: list[tuple[str, object, object]] = [
        ("segments", tree.segments, held.segments),
        ("tree", tree.hash_at(held.chain_hash), held.tree),
    ]
    if held.frontier is not None:
        written.append(("frontier", tree.frontier, held.frontier))
    for field, expected, found in written:
        if expected != found:
            return fault_at(checkpoint_path(volume.path), field, str(expected), str(found))
    return None


def check_boundaries(held: Checkpoint, volume: Volume, boundaries: CommitDigest | None) -> LedgerDamaged | None:
    """The fault if commits end elsewhere than the signed head says; None: they agree, or one side has no digest."""
    if held.commits is None or boundaries is None or boundaries.digest == held.commits:
        return None
    return fault_at(volume.path, "commits", f"{held.commits}, as {held.signer} signed it", boundaries.digest, line=held.seq)


def signed_seq(held: Checkpoint | None, path: Path, ledger_id: str) -> int:
    """Number of the entry in a ledger's signed head, which was on disk when it was signed; 0: there is no signed head.

    Raises:
        LedgerDamaged: the head belongs to another ledger
    """
    if held is None:
        return 0
    if held.ledger_id != ledger_id:
        raise fault_at(checkpoint_path(path), "ledger_id", ledger_id, held.ledger_id)
    return held.seq


def check_tip(
    held: Checkpoint | None, volume: Volume, ledger_id: str, tip: Mark, find_stop: FindStop, boundaries: CommitDigest | None
) -> None:
    """Refuses a ledger that ends before its signed head, or has another chain hash there. Checks no signature.

    Raises:
        LedgerTailMissing: entries that the head covers are missing
        LedgerDamaged: the head belongs to another chain
    """
    if held is None:
        return
    misfit = _misfit(held, volume, ledger_id, tip.seq, find_stop(held.seq - 1)) or check_boundaries(held, volume, boundaries)
    if misfit is not None:
        raise misfit


def sign_ledger(path: Path, signer: Signer, timestamp: str, find_stop: FindStop = lambda _: START) -> Checkpoint | None:
    """Verifies and syncs everything since the last signed head, then signs the present head and stores it beside the file.

    Takes no lock. Entries that a writer is still appending wait for the next head. If this key has signed the present head
    already, the stored head stays as it is.

    Args:
        path: the ledger's file
        signer: the key
        timestamp: the present time, ISO
        find_stop: gives a position up to which nothing needs verifying again; default: the start of the ledger

    Returns:
        the head; None: the ledger has no entry yet

    Raises:
        LedgerDamaged: the ledger does not verify, or contradicts the last signed head; nothing is signed
        LedgerPathError, LedgerWriteError: the ledger cannot be read, or the head cannot be written
    """
    ops, held = FileOps(), read_checkpoint(path)
    with open_volume(path, ops) as volume:
        ledger_id = ledger_id_of(volume.read)
        # After a head of an earlier version, which has no tree, the ledger is read from its start once.
        grown = _tree_at(held, volume)
        last = held if grown is not None else None
        start = find_stop(last.seq - 1) if last is not None else START
        boundaries = CommitDigest(last.seq, last.commits) if last is not None and last.commits is not None else CommitDigest()
        whole = _verified(volume, ledger_id, start, boundaries)
        misfit = check_held(held, volume, ledger_id, whole.seq, start=start)
        if misfit is not None:
            raise misfit
        if last is not None and (last.seq, last.public_key) == (whole.seq, signer.public_key):
            return last
        if not ledger_id or whole.seq == 0:
            return None
        tree = grown or LedgerTree(ledger_id)
        extend(tree, volume, last.seq if last is not None else 0, whole.seq, start)
        head = sign_head(ledger_id, whole.seq, f"sha256:{whole.chain}", timestamp, signer, boundaries.digest, tree)
        try:
            volume.sync()  # another process may have written these entries without syncing them yet
            write_whole(ops, checkpoint_path(path), _written(head))
        except OSError as error:
            raise LedgerWriteError(str(checkpoint_path(path)), error.strerror or str(error)) from error
        return head


def _tree_at(held: Checkpoint | None, volume: Volume) -> LedgerTree | None:
    """The tree that a head signed; None: there is no head, or it has no frontier.

    Raises:
        LedgerDamaged: the head's frontier is not that of its tree
    """
    if held is None or held.frontier is None:
        return None
    tree = resumed(volume, held.ledger_id, held.seq, held.frontier)
    if tree is None or (tree.segments, tree.hash_at(held.chain_hash)) != (held.segments, held.tree):
        raise fault_at(checkpoint_path(volume.path), "frontier", f"the hashes of the tree {held.tree}", "others")
    return tree


def _verified(volume: Volume, ledger_id: str, start: Mark, boundaries: CommitDigest) -> Mark:
    """The end of the last whole commit; raises LedgerDamaged if durable data before it is wrong."""
    verifier, size = Verifier(ledger_id, start, ended=boundaries.take), volume.size()
    try:
        verify_range(verifier, volume, size)
    except BadLine as fault:
        if not ledger_id:
            raise damage(volume, verifier, fault) from None
        check_is_crash(volume, verifier, fault, size, 0)
    return verifier.whole


def _misfit(held: Checkpoint, volume: Volume, ledger_id: str, entries: int, start: Mark) -> LedgerDamaged | None:
    path = volume.path
    if entries and held.ledger_id != ledger_id:
        return fault_at(checkpoint_path(path), "ledger_id", ledger_id, held.ledger_id)
    if held.seq > entries:
        return _too_short(held, path, entries, 0)
    found = find_line(volume.read, held.seq, start)
    line = split_line(found[1]) if found is not None else None
    if found is None or line is None:
        return _too_short(held, path, entries, 0)
    if line.batch[1] != line.batch[2]:  # heads are signed only at the end of a commit
        wanted = f"the end of a commit, where {held.signer} signed"
        return volume.damage(held.seq, found[0], BadLine("batch", wanted, str([*line.batch])))
    chain_hash = f"sha256:{line.chain_hash}"
    if chain_hash == held.chain_hash:
        return None
    return volume.damage(
        held.seq, found[0], BadLine("chain_hash", f"{held.chain_hash}, as {held.signer} signed it", chain_hash)
    )


def _too_short(held: Checkpoint, path: Path, entries: int, offset: int) -> LedgerTailMissing:
    return LedgerTailMissing(
        str(path),
        line=entries + 1,
        offset=offset,
        field="end",
        expected=f"at least {held.seq} entries, as the head says that {held.signer} signed",
        found=f"{entries} entries, so the end was cut off or an older copy was restored{REMEDY}",
    )


def _written(head: Checkpoint) -> bytes:
    frontier = {} if head.frontier is None else {"frontier": head.frontier}
    return canonical_bytes({**head.as_json(), **frontier}) + b"\n"
