"""Whoever has the ledgers can compute any path, so what a bundle with paths shows must not rest on the paths alone.

Each attack here has right paths, made anew for what it shows, and cannot sign. Both verifiers say the same of every bundle.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest

from kitchener.canonical import canonical_bytes
from kitchener.ledger import LedgerClient, LedgerEntry
from kitchener.ledger.bundles.bundle import BundleSelection, read_paths, write_bundle
from kitchener.ledger.bundles.bundle_check import verify_bundle
from kitchener.ledger.format.tree import hash_text, leaf_of
from kitchener.ledger.verify.checkpoint import read_checkpoint, sign_head, sign_ledger
from kitchener.signing import Signer, make_key
from tests.ledger.support import segments_of
from tests.verifier.bundle_changes import MOMENT, Bundle, part, row_of, shown
from tests.verifier.kit import needs_node, node, python, refused
from tests.verifier.proofs import Proven, shown_rows, unsigned_heads

pytestmark = needs_node
FILES = {
    "HO2M:ADMIN": "HO2/ADMIN/ho2m",
    "HO1M:ADMIN": "HO1/ADMIN/ho1m",
    "SIGNALS": "HOT/memory/signals",
    "OVERLAYS": "HOT/memory/overlays",
}
Change = Callable[[Bundle], object]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def attack(good: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes a changed copy of the good bundle."""

    def write(name: str, how: Change, of: Path = good) -> Path:
        content = orjson.loads(of.read_bytes())
        how(content)
        path = tmp_path / f"{name}.json"
        path.write_bytes(canonical_bytes(content) + b"\n")
        return path

    return write


def with_rows(proven: Proven, content: Bundle, ledger: str, seqs: Iterable[int], head: tuple[int, str] | None = None) -> None:
    """Gives a part the rows of these entries, as the ledger has them, and right paths; with bodies, unless a row had none."""
    found = part(content, ledger)
    path = proven.root / f"{FILES[found['ledger_id']]}.jsonl"
    withheld = {row[0] for row in found["rows"] if len(row) == 5}
    before = len(shown_rows(found))
    paths = read_paths(path, found["ledger_id"], sorted(seqs), head or (found["head"]["seq"], found["head"]["chain_hash"]))
    found["rows"] = [
        [
            line.seq,
            line.entry_id,
            [*line.batch],
            f"sha256:{line.entry_hash}",
            f"sha256:{line.chain_hash}",
            *([] if line.seq in withheld else [line.body.decode()]),
        ]
        for line in paths.lines
    ]
    found["path"], found["segments"] = paths.path, [[*each] for each in paths.bounds]
    content["entries"] += len(shown_rows(found)) - before


def without(proven: Proven, ledger: str, *types: str) -> Change:
    """Leaves the entries of these types out, rows and all."""

    def how(content: Bundle) -> None:
        gone = {row[0] for row in shown(content, ledger) if orjson.loads(row[5])["entry_type"] in types}
        assert gone
        with_rows(proven, content, ledger, {row[0] for row in part(content, ledger)["rows"]} - gone)

    return how


def test_paths_made_anew_are_right(proven: Proven, attack: Callable[..., Path]) -> None:
    """Else the attacks below would be refused for their paths."""

    def how(content: Bundle) -> None:
        for ledger in ("HO2M:", "HO1M:", "SIGNALS"):
            with_rows(proven, content, ledger, [row[0] for row in part(content, ledger)["rows"]])

    assert refused([attack("same", how)], proven.signer.public_key) == []


def test_no_entry_on_which_the_reply_rests_can_be_left_out(proven: Proven, attack: Callable[..., Path]) -> None:
    paths = [
        attack("end", without(proven, "HO2M:", "TURN_COMPLETED")),
        attack("begin", without(proven, "HO2M:", "TURN_STARTED")),
        attack("session", without(proven, "HO2M:", "SESSION_START")),
        attack("model call", without(proven, "HO1M:", "LLM_CALL")),
    ]
    assert refused(paths, proven.signer.public_key) == paths


def test_what_is_left_out_without_a_trace_is_told_by_its_number(
    proven: Proven, attack: Callable[..., Path], good: Path
) -> None:
    content = orjson.loads(good.read_bytes())
    gone = [row[0] for row in shown(content, "OVERLAYS")][-1]
    kept = {row[0] for row in part(content, "OVERLAYS")["rows"]} - {gone}
    path = attack("line", lambda content: with_rows(proven, content, "OVERLAYS", kept))
    assert refused([path], proven.signer.public_key) == []
    before, after = verify_bundle(good), verify_bundle(path)
    assert after.withheld_entries == before.withheld_entries + 1
    assert (str(gone), str(gone)) in after.withheld["OVERLAYS"]


def test_a_row_to_which_an_entry_refers_cannot_be_left_out(proven: Proven, attack: Callable[..., Path], good: Path) -> None:
    content = orjson.loads(good.read_bytes())
    withheld = [row[0] for row in part(content, "HO2M:")["rows"] if len(row) == 5]
    assert withheld
    kept = {row[0] for row in part(content, "HO2M:")["rows"]} - {withheld[0]}
    path = attack("link", lambda content: with_rows(proven, content, "HO2M:", kept))
    assert refused([path]) == [path]
    assert "in the bundle, found not there" in python(path)


def test_an_entry_of_another_turn_or_session_is_none_of_this_one(proven: Proven, attack: Callable[..., Path]) -> None:
    """The one is added, the other put in the place of the turn's own."""
    lines = (proven.root / f"{FILES['HO2M:ADMIN']}.jsonl").read_bytes().splitlines()
    bodies = [orjson.loads(line)["entry"] for line in lines]
    ends = [seq for seq, body in enumerate(bodies, 1) if body["entry_type"] == "TURN_COMPLETED"]
    starts = [seq for seq, body in enumerate(bodies, 1) if body["entry_type"] == "SESSION_START"]

    def rows(content: Bundle) -> set[int]:
        return {row[0] for row in part(content, "HO2M:")["rows"]}

    def own(content: Bundle, entry_type: str) -> int:
        seq: int = row_of(content, "HO2M:", entry_type)[0]
        return seq

    def put(content: Bundle, seq: int, *instead: str) -> None:
        with_rows(proven, content, "HO2M:", (rows(content) | {seq}) - {own(content, each) for each in instead})

    paths = [
        attack("another end", lambda content: put(content, ends[0])),
        attack("another session", lambda content: put(content, starts[0])),
        attack("another end instead", lambda content: put(content, ends[0], "TURN_COMPLETED")),
        attack("another session instead", lambda content: put(content, starts[0], "SESSION_START")),
    ]
    assert refused(paths, proven.signer.public_key) == paths


def test_rows_and_hashes_stand_in_their_order(good: Path, attack: Callable[..., Path]) -> None:
    def swap(key: str, one: int, other: int) -> Change:
        def how(content: Bundle) -> None:
            held = part(content, "HO2M:")[key]
            held[one], held[other] = held[other], held[one]

        return how

    paths = [attack(f"{key} {one}", swap(key, one, one + 1)) for key in ("rows", "path") for one in range(3)]
    paths.append(attack("doubled", lambda content: part(content, "HO2M:")["path"].append(part(content, "HO2M:")["path"][0])))
    paths.append(attack("short", lambda content: part(content, "HO2M:")["path"].pop()))
    paths.append(attack("number", lambda content: part(content, "HO2M:")["path"].__setitem__(0, 1)))
    assert refused(paths) == paths


def test_an_old_head_does_not_cover_what_came_later(
    proven: Proven, good: Path, tmp_path: Path, attack: Callable[..., Path]
) -> None:
    """Also where it is a right head of the same ledger by the same key."""
    older = unsigned_heads(proven, tmp_path / "older")
    path = older.root / f"{FILES['HO2M:ADMIN']}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(row[0] for row in part(orjson.loads(good.read_bytes()), "HO2M:")["rows"])
    commits = [orjson.loads(line)["batch"] for line in lines[: last - 1]]
    cut = max(n for n, (_, place, size) in enumerate(commits, 1) if place == size)  # the last commit that ends before
    path.write_bytes(b"".join(lines[:cut]))
    head = sign_ledger(path, proven.signer, MOMENT)
    assert head is not None

    def replayed(content: Bundle) -> None:
        part(content, "HO2M:")["head"] = head.as_json()

    def truncated(content: Bundle) -> None:
        kept = [row[0] for row in part(content, "HO2M:")["rows"] if row[0] <= head.seq]
        with_rows(proven, content, "HO2M:", kept or [head.seq], (head.seq, head.chain_hash))
        part(content, "HO2M:")["head"] = head.as_json()

    paths = [attack("replayed", replayed), attack("truncated", truncated)]
    assert refused(paths, proven.signer.public_key) == paths


def test_a_head_in_a_bundle_has_a_tree_and_no_frontier(proven: Proven, attack: Callable[..., Path]) -> None:
    stored = read_checkpoint(proven.root / f"{FILES['HO2M:ADMIN']}.jsonl")
    assert stored is not None
    plain = sign_head(stored.ledger_id, stored.seq, stored.chain_hash, MOMENT, proven.signer, stored.commits)

    def put(head: dict[str, Any]) -> Change:
        return lambda content: part(content, "HO2M:").__setitem__("head", head)

    frontier = {**stored.as_json(), "frontier": stored.frontier}
    paths = [attack("no tree", put(plain.as_json())), attack("frontier", put(frontier))]
    assert refused(paths) == paths


def test_a_bundle_of_the_earlier_format_has_no_paths(attack: Callable[..., Path]) -> None:
    path = attack("earlier", lambda content: content.__setitem__("format", "kitchener-proof/1"))
    assert refused([path]) == [path]


# --- several segments ---------------------------------------------------------------------------------------------------------

SESSION, TURN = "SES-0a1b2c3d", "T-0a1b2c3d-000001"
OF_TURN = {"v": 1, "session_id": SESSION, "subject_id": "ada", "turn_id": TURN}


async def one_turn(path: Path, length: int, *, segment_bytes: int) -> BundleSelection:
    """A ledger with a turn of three entries at its begin, and others after it."""
    entries = [("SESSION_START", SESSION), ("TURN_STARTED", TURN), ("TURN_ABORTED", TURN)]
    async with LedgerClient.open(path, ledger_id="HO2M:ADMIN", config=segments_of(segment_bytes, durability="os")) as ledger:
        for number in range(length):
            kind, about = entries[number] if number < 3 else ("NOTE", f"N-{number}")
            await ledger.write(LedgerEntry(kind, about, OF_TURN if number < 3 else {"v": 1, "n": number}))
            if number % 3 == 2:
                await ledger.commit()
        await ledger.commit()
        return BundleSelection(path, "HO2M:ADMIN", (1, 2, 3), ledger.head())


def written(selection: BundleSelection, to: Path, *, chain: bool = False) -> Path:
    with to.open("wb") as file:
        write_bundle(file.write, TURN, SESSION, [selection], max_bytes=1 << 28, chain=chain)
    return to


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return make_key(tmp_path / "signing.pem")


async def test_a_bundle_grows_with_the_logarithm_of_the_ledger(tmp_path: Path, signer: Signer) -> None:
    """Ten times as many entries: a few hashes more, where the chain is ten times as long."""
    sizes = dict[bool, list[int]]()
    for length in (300, 3_000):
        selection = await one_turn(tmp_path / str(length) / "l.jsonl", length, segment_bytes=200_000)
        sign_ledger(selection.path, signer, MOMENT)
        for chain in (False, True):
            path = written(selection, tmp_path / f"{length}-{chain}.json", chain=chain)
            assert refused([path], signer.public_key) == []
            sizes.setdefault(chain, []).append(path.stat().st_size)
    assert sizes[False][1] - sizes[False][0] < 4 * 80  # one hash is about 75 bytes
    assert sizes[True][1] > 9 * sizes[True][0] > 9 * 10 * sizes[False][0]


async def test_no_bounds_of_segments_can_be_others(tmp_path: Path, attack: Callable[..., Path], signer: Signer) -> None:
    """Not where the hash of an inner node would then stand as that of a leaf or of a segment, either."""
    selection = await one_turn(tmp_path / "l.jsonl", 14, segment_bytes=1_000)
    sign_ledger(selection.path, signer, MOMENT)
    good = written(selection._replace(seqs=(1, 2, 3, 8)), tmp_path / "good.json")
    content = orjson.loads(good.read_bytes())
    assert len(content["ledgers"][0]["segments"]) == 2
    paths = [good]

    def put(name: str, value: Any) -> Path:
        return attack(f"{name} {len(paths)}", lambda content: content["ledgers"][0].__setitem__(name, value), good)

    first, second = content["ledgers"][0]["segments"]
    for place in range(3):
        for step in (-1, 1):
            paths.append(put("segments", [[n + step * (at == place) for at, n in enumerate(first)], second]))
            paths.append(put("segments", [first, [n + step * (at == place) for at, n in enumerate(second)]]))
    values: tuple[list[list[int]], ...] = (
        [first],
        [second],
        [second, first],
        [first, first, second],
        [],
        [first, second, [9, 15, 16]],
        [[1, 1, 14]],
    )
    paths += [put("segments", value) for value in values]
    for field in ("segments", "seq"):
        for step in (-1, 1):
            head = {**content["ledgers"][0]["head"], field: content["ledgers"][0]["head"][field] + step}
            paths.append(put("head", head))
    assert refused(paths) == paths[1:]


async def test_an_inner_node_is_no_line(tmp_path: Path, signer: Signer) -> None:
    """Leaves begin with another byte than nodes, so no text is both."""
    selection = await one_turn(tmp_path / "l.jsonl", 6, segment_bytes=1 << 20)
    found = read_paths(selection.path, "HO2M:ADMIN", [1], selection.head)
    left, right = (bytes.fromhex(each[7:]) for each in found.path[:2])
    assert hash_text(leaf_of(left + right)) not in found.path
    assert leaf_of(b"\1" + left + right) != leaf_of(left + right)


async def test_a_head_of_an_earlier_version_gives_a_bundle_with_the_chain(tmp_path: Path, signer: Signer) -> None:
    selection = await one_turn(tmp_path / "l.jsonl", 14, segment_bytes=1_000)
    seq, chain_hash = selection.head
    old = sign_head("HO2M:ADMIN", seq, chain_hash, MOMENT, signer)
    (tmp_path / "l.jsonl.checkpoint").write_bytes(canonical_bytes(old.as_json()) + b"\n")
    before = written(selection, tmp_path / "before.json")
    assert [row[0] for row in orjson.loads(before.read_bytes())["ledgers"][0]["rows"]] == [*range(1, 15)]
    assert sign_ledger(selection.path, signer, MOMENT) is not None
    after = written(selection, tmp_path / "after.json")
    assert [row[0] for row in orjson.loads(after.read_bytes())["ledgers"][0]["rows"]] == [1, 2, 3]
    assert refused([before, after], signer.public_key) == []


async def test_a_ledger_whose_signed_tree_is_another_is_refused(tmp_path: Path, signer: Signer) -> None:
    """Else who has the key could prove entries that the ledger does not have."""
    one = await one_turn(tmp_path / "one" / "l.jsonl", 14, segment_bytes=1_000)
    other = await one_turn(tmp_path / "other" / "l.jsonl", 14, segment_bytes=1_000)
    right, foreign = (sign_ledger(each.path, signer, MOMENT) for each in (one, other))
    assert right is not None
    assert foreign is not None
    mixed = right._replace(tree=foreign.tree, frontier=foreign.frontier)
    mixed = mixed._replace(sig=signer.sign(mixed.signed_bytes))
    stored = one.path.with_name("l.jsonl.checkpoint")
    stored.write_bytes(canonical_bytes({**mixed.as_json(), "frontier": mixed.frontier}) + b"\n")
    assert refused([one.path, other.path], signer.public_key) == [one.path]
    for verdict in (python(one.path), *node([one.path])):
        assert "tree: expected sha256:" in verdict
