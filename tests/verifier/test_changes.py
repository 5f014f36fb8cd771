"""Anything that a verifier did not look at would show here: one byte, or one field, is changed (docs/proof.md).

This is what allows the Node script to leave out a check that follows from another.
"""

import copy
import json
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kitchener.canonical import canonical_bytes
from kitchener.ledger.checkpoint import checkpoint_path, sign_ledger
from kitchener.ledger.seals import folder_of, seal_path, segment_path
from kitchener.signing import Signer, make_key
from tests.verifier.kit import needs_node, refused
from tests.verifier.proofs import bundle, fill

pytestmark = needs_node

SEGMENTED = Path(__file__).resolve().parents[1] / "vectors" / "segmented" / "ledger.jsonl"
MOMENT = "2026-02-18T12:00:00.000000+00:00"


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return make_key(tmp_path / "signing.pem")


def files_of(ledger: Path) -> list[Path]:
    """All that a ledger is, by what stands beside it."""
    return [ledger, checkpoint_path(ledger), *sorted(folder_of(ledger).iterdir())]


def with_another(ledger: Path, target: Path, data: bytes, name: str) -> Path:
    """A copy of a ledger in which one file has other bytes."""
    other = ledger.parent / "changed" / f"{target.name}-{name}" / ledger.name
    folder_of(other).mkdir(parents=True)
    for file in files_of(ledger):
        if file != target:
            os.link(file, other.parent / file.relative_to(ledger.parent))
    (other.parent / target.relative_to(ledger.parent)).write_bytes(data)
    return other


def with_one_byte_changed(ledger: Path, targets: Iterable[Path], each: int, draw: random.Random) -> Iterator[Path]:
    """Copies of a ledger in each of which one byte of one file is another one: some places of every file, drawn at random."""
    for target in targets:
        for place in draw.sample(range(target.stat().st_size), each):
            changed = bytearray(target.read_bytes())
            changed[place] ^= draw.randrange(1, 256)
            yield with_another(ledger, target, bytes(changed), str(place))


def places_in(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value within a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        yield from places_in(item, (*at, key))


def with_one_field_changed(content: Any, draw: random.Random) -> Any:
    """A copy in which one value, anywhere, is another one, of another type, gone, or has company."""
    changed = copy.deepcopy(content)
    *way, last = draw.choice([*places_in(content)])
    holder = changed
    for key in way:
        holder = holder[key]
    old = holder[last]
    others: list[Any] = [None, "", "x", 0, 1, -1, 1.5, True, [], {}, [old], {"a": old}, str(old), 2**53 - 1]
    others += [old + 1, old - 1] if isinstance(old, int) else []
    others += [f"{old} ", old[:-1], old.upper(), [*old]] if isinstance(old, str) else []
    others += [[*old, 1], old[:-1], old[1:]] if isinstance(old, list) else []
    others += [{**old, "more": 1}, [*old.values()]] if isinstance(old, dict) else []
    holder[last] = draw.choice([other for other in others if (type(other), other) != (type(old), old)])
    if draw.random() < 0.1:
        del holder[last]
    return changed


def copied(directory: Path, signer: Signer) -> Path:
    """The golden ledger of four segments, with a signed head."""
    ledger = directory / SEGMENTED.name
    folder_of(ledger).mkdir(parents=True)
    for file in (SEGMENTED, *folder_of(SEGMENTED).iterdir()):
        (directory / file.relative_to(SEGMENTED.parent)).write_bytes(file.read_bytes())
    sign_ledger(ledger, signer, MOMENT)
    return ledger


def test_every_byte_of_a_ledger_in_segments_is_guarded(tmp_path: Path, signer: Signer) -> None:
    ledger = copied(tmp_path / "ledger", signer)
    assert refused([ledger], signer.public_key) == []
    paths = [*with_one_byte_changed(ledger, files_of(ledger), 40, random.Random(4))]
    assert len(paths) == 400
    assert refused(paths) == paths


def test_of_an_unfinished_segment_every_byte_of_the_file_is_guarded(tmp_path: Path, signer: Signer) -> None:
    """Its seal is a draft that readers ignore but for its form and place: verdicts are the same, right or wrong."""
    ledger = copied(tmp_path / "ledger", signer)
    ledger.write_bytes(segment_path(ledger, 4).read_bytes() + ledger.read_bytes())
    assert refused([ledger], signer.public_key) == []
    draw = random.Random(5)
    drafts = [*with_one_byte_changed(ledger, [seal_path(ledger, 4)], 120, draw)]
    assert 60 < len(refused(drafts)) < 120
    backwards = canonical_bytes({**json.loads(seal_path(ledger, 4).read_bytes()), "last_seq": 1}) + b"\n"
    assert len(refused([with_another(ledger, seal_path(ledger, 4), backwards, "backwards")])) == 1
    paths = [*with_one_byte_changed(ledger, [ledger, seal_path(ledger, 3)], 60, draw)]
    assert refused(paths) == paths


def test_no_field_of_a_seal_or_of_a_signed_head_can_be_another(tmp_path: Path, signer: Signer) -> None:
    ledger, draw, paths = copied(tmp_path / "ledger", signer), random.Random(6), list[Path]()
    for target in (checkpoint_path(ledger), seal_path(ledger, 1), seal_path(ledger, 4)):
        content = json.loads(target.read_bytes())
        changed = {canonical_bytes(with_one_field_changed(content, draw)) + b"\n" for _ in range(60)}
        paths += [with_another(ledger, target, data, str(number)) for number, data in enumerate(sorted(changed))]
    assert len(paths) > 100
    assert refused(paths) == paths


def test_no_field_of_a_bundle_can_be_another(tmp_path: Path) -> None:
    """All of it is written anew as canonical JSON, so that nothing but the field is wrong."""
    proven, draw, paths = fill(tmp_path / "proven"), random.Random(7), list[Path]()
    good = bundle(proven, proven.turns[-1], tmp_path / "good.json").read_bytes()
    plain = json.loads(good)
    for part in plain["ledgers"]:
        part["head"] = {key: part["head"][key] for key in ("chain_hash", "ledger_id", "seq")}
    for content in (json.loads(good), plain):
        for _ in range(120):
            paths.append(tmp_path / f"{len(paths)}.json")
            paths[-1].write_bytes(canonical_bytes(with_one_field_changed(content, draw)) + b"\n")
    assert refused(paths) == paths
