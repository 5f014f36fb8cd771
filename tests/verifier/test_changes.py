"""Anything that a verifier did not look at would show here: one byte, or one field, is changed (docs/proof.md).

This is what allows the Node script to leave out a check that follows from another.
"""

import copy
import json
import os
import random
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kitchener.canonical import canonical_bytes
from kitchener.ledger.disk.manifests import FORMAT, NO_MANIFEST, SegmentManifest, folder_of, manifest_path, segment_path
from kitchener.ledger.format.tree import Peaks, hash_text, leaf_of_line
from kitchener.ledger.verify.checkpoint import checkpoint_path, sign_ledger
from kitchener.signing import Signer, make_key
from tests.shared.property_examples import examples
from tests.verifier.kit import needs_node, node, refused
from tests.verifier.proofs import Proven, bundle, shown_rows, unsigned_heads

pytestmark = needs_node

SEGMENTED = Path(__file__).resolve().parents[1] / "vectors" / "segmented_with_trees" / "ledger.jsonl"
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


@pytest.mark.hypothesis  # this one and others are so marked because the long run draws more
def test_every_byte_of_a_ledger_in_segments_is_guarded(tmp_path: Path, signer: Signer) -> None:
    ledger, draw = copied(tmp_path / "ledger", signer), random.Random(4)
    assert refused([ledger], signer.public_key) == []
    each = examples(few=12, many=25)
    paths = [*with_one_byte_changed(ledger, files_of(ledger), each, draw)]
    assert len(paths) == 10 * each
    assert refused(paths) == paths


def test_a_segment_that_is_missing_or_in_anothers_place_is_refused(tmp_path: Path, signer: Signer) -> None:
    ledger, paths = copied(tmp_path / "ledger", signer), list[Path]()
    for number in (1, 2, 4):
        other = segment_path(ledger, number % 4 + 1).read_bytes()
        paths.append(with_another(ledger, segment_path(ledger, number), other, "swapped"))
        paths.append(with_another(ledger, segment_path(ledger, number), b"", "empty"))
        paths.append(with_another(ledger, segment_path(ledger, number), b"", "missing"))
        segment_path(paths[-1], number).unlink()
    paths.append(with_another(ledger, ledger, b"", "empty"))
    paths.append(with_another(ledger, ledger, segment_path(ledger, 4).read_bytes(), "older"))
    assert refused(paths, signer.public_key) == paths


def test_a_manifest_that_is_missing_or_in_anothers_place_is_refused(tmp_path: Path, signer: Signer) -> None:
    ledger, paths = copied(tmp_path / "ledger", signer), list[Path]()
    for number in (1, 2, 4):
        other = manifest_path(ledger, number % 4 + 1).read_bytes()
        paths.append(with_another(ledger, manifest_path(ledger, number), other, "swapped"))
        paths.append(with_another(ledger, manifest_path(ledger, number), b"", "empty"))
        paths.append(with_another(ledger, manifest_path(ledger, number), b"", "missing"))
        manifest_path(paths[-1], number).unlink()
    assert refused(paths, signer.public_key) == paths
    assert "000004.seal: file: expected the manifest of segment 4, found nothing" in node(paths[-1:])[0]
    for file in paths:
        checkpoint_path(file).unlink()
    assert refused(paths) == paths


@pytest.mark.parametrize("field", ["first_chain_hash", "last_chain_hash", "sha256", "tree", "last_seq", "length", "ledger_id"])
def test_manifests_that_fit_each_other_but_not_the_lines_are_refused(tmp_path: Path, signer: Signer, field: str) -> None:
    ledger, paths = copied(tmp_path / "ledger", signer), list[Path]()
    for number in (1, 4) if field != "ledger_id" else (1,):
        paths.append(with_another(ledger, ledger, ledger.read_bytes(), f"{field}-{number}"))
        before = None
        for each in range(1, 5):
            file = manifest_path(paths[-1], each)
            fields = json.loads(file.read_bytes())
            if each == number or (field == "ledger_id" and each > number):
                fields[field] = _another(fields[field])
            if before is not None:
                fields["previous"] = f"sha256:{sha256(before).hexdigest()}"
            before = canonical_bytes(fields) + b"\n"
            file.unlink()
            file.write_bytes(before)
    assert refused(paths, signer.public_key) == paths
    kept = [with_another(ledger, ledger, ledger.read_bytes(), "kept")]
    assert refused(kept, signer.public_key) == []


def _another(value: Any) -> Any:
    return value + 1 if isinstance(value, int) else f"sha256:{'1' * 64}" if value.startswith("sha256:") else "ANOTHER"


@pytest.mark.parametrize("number", [2**53, 2**53 + 1, 2**64])
def test_a_manifest_with_a_number_that_no_reader_takes_is_refused(tmp_path: Path, signer: Signer, number: int) -> None:
    ledger = copied(tmp_path / "ledger", signer)
    data = manifest_path(ledger, 4).read_bytes()
    fields = {**json.loads(data), "length": number}
    raw = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    assert len(raw) > len(data)
    path = with_another(ledger, manifest_path(ledger, 4), raw, "long")
    assert refused([path]) == [path]


def test_a_segment_that_ends_within_a_commit_is_refused(tmp_path: Path, signer: Signer) -> None:
    """Somebody moved the first line of a commit into the segment before, and made both manifests anew."""
    ledger = copied(tmp_path / "ledger", signer)
    checkpoint_path(ledger).unlink()
    places = range(1, 5)
    lines = [segment_path(ledger, number).read_bytes().splitlines(keepends=True) for number in places]
    number = next(n for n in (1, 2, 3) if json.loads(lines[n][0])["batch"][2] > 1)
    lines[number - 1].append(lines[number].pop(0))
    assert refused([ledger]) == []
    _finish(ledger, lines)
    assert refused([ledger]) == [ledger]
    lines[number].insert(0, lines[number - 1].pop())
    _finish(ledger, lines)
    assert refused([ledger]) == []


def _finish(ledger: Path, segments: list[list[bytes]]) -> None:
    """Writes these segments with manifests that fit them."""
    previous = NO_MANIFEST
    for number, lines in enumerate(segments, 1):
        data, peaks = b"".join(lines), Peaks()
        peaks.extend(map(leaf_of_line, (line.rstrip(b"\n") for line in lines)))
        first, last = json.loads(lines[0]), json.loads(lines[-1])
        manifest = SegmentManifest(
            *(FORMAT, first["ledger_id"], number, first["seq"], last["seq"], first["chain_hash"], last["chain_hash"]),
            *(len(data), f"sha256:{sha256(data).hexdigest()}", previous, hash_text(peaks.root)),
        )
        for file, content in ((segment_path(ledger, number), data), (manifest_path(ledger, number), manifest.text)):
            file.unlink()
            file.write_bytes(content)
        previous = manifest.hash


def test_what_else_lies_beside_segments_is_ignored(tmp_path: Path, signer: Signer) -> None:
    ledger = copied(tmp_path / "ledger", signer)
    for name in ("next", "5.segment", "x.segment", "000002.segment.bak", "000009.other"):
        (folder_of(ledger) / name).write_bytes(b"something")
    assert refused([ledger], signer.public_key) == []


@pytest.mark.hypothesis
def test_of_an_unfinished_segment_every_byte_of_the_file_is_guarded(tmp_path: Path, signer: Signer) -> None:
    """Its manifest is a draft, of which Kitchener reads the form and the place; its copy nobody reads."""
    ledger = copied(tmp_path / "ledger", signer)
    ledger.write_bytes(segment_path(ledger, 4).read_bytes() + ledger.read_bytes())
    checkpoint_path(ledger).unlink()
    sign_ledger(ledger, signer, MOMENT)  # as it stands now: four segments, of which the last one still grows
    torn = with_another(ledger, segment_path(ledger, 4), segment_path(ledger, 4).read_bytes()[:-9], "torn")
    gone = with_another(ledger, segment_path(ledger, 4), b"", "gone")
    segment_path(gone, 4).unlink()
    assert refused([ledger, torn, gone], signer.public_key) == []
    draw = random.Random(5)
    drafts = [*with_one_byte_changed(ledger, [manifest_path(ledger, 4)], many := examples(few=24, many=50), draw)]
    assert many // 2 < len(refused(drafts)) < many
    backwards = canonical_bytes({**json.loads(manifest_path(ledger, 4).read_bytes()), "last_seq": 1}) + b"\n"
    paths = [with_another(ledger, manifest_path(ledger, 4), backwards, "backwards")]
    paths += with_one_byte_changed(ledger, [manifest_path(ledger, 3)], many // 2, draw)
    assert refused(paths) == paths
    paths = [*with_one_byte_changed(ledger, [ledger], many, draw)]
    assert refused(paths) == paths


def test_no_field_of_a_signed_head_or_of_a_seal_can_be_another(tmp_path: Path, signer: Signer) -> None:
    ledger, draw = copied(tmp_path / "ledger", signer), random.Random(6)

    def changed(target: Path, times: int) -> list[Path]:
        content = json.loads(target.read_bytes())
        found = {canonical_bytes(with_one_field_changed(content, draw)) + b"\n" for _ in range(times)}
        return [with_another(ledger, target, data, str(number)) for number, data in enumerate(sorted(found))]

    heads = changed(checkpoint_path(ledger), 60)
    assert len(heads) > 30
    assert refused(heads) == heads
    manifests = [*changed(manifest_path(ledger, 1), 30), *changed(manifest_path(ledger, 4), 30)]
    assert refused(manifests) == manifests


@pytest.mark.hypothesis
def test_no_field_of_a_bundle_can_be_another(proven: Proven, tmp_path: Path) -> None:
    """All of it is written anew as canonical JSON, so that nothing but the field is wrong."""
    draw, paths = random.Random(7), list[Path]()
    contents = []
    for number, root in enumerate((proven, unsigned_heads(proven, tmp_path / "copy"))):
        for form in ([], ["--chain"]):
            file = bundle(root, proven.turns[-1], tmp_path / f"good{number}{len(form)}.json", *form)
            assert refused([file]) == []
            contents.append(json.loads(file.read_bytes()))
    for content in contents:
        for _ in range(examples(few=12, many=100)):
            paths.append(tmp_path / f"{len(paths)}.json")
            paths[-1].write_bytes(canonical_bytes(with_one_field_changed(content, draw)) + b"\n")
    assert refused(paths) == paths


@pytest.mark.hypothesis
def test_no_word_of_what_is_shown_can_be_another(proven: Proven, tmp_path: Path) -> None:
    """A value within the body of an entry that a bundle shows, be it with the hash that the body has then."""
    draw, paths = random.Random(8), list[Path]()
    goods = [
        json.loads(bundle(proven, proven.turns[-1], tmp_path / "good.json", *more).read_bytes()) for more in ([], ["--chain"])
    ]
    for number in range(examples(few=32, many=160)):
        content = copy.deepcopy(goods[number % 4 > 1])
        row = draw.choice(shown_rows(draw.choice(content["ledgers"])))
        row[5] = canonical_bytes(with_one_field_changed(json.loads(row[5]), draw)).decode()
        if number % 2:
            row[3] = f"sha256:{sha256(row[5].encode()).hexdigest()}"
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_bytes(canonical_bytes(content) + b"\n")
    assert refused(paths) == paths
    told = node(paths)
    assert any(": chain_hash: expected sha256:" in line for line in told)
    assert any(": tree: expected sha256:" in line for line in told)
