"""Bundles, right and wrong in every way: Kitchener and the Node script say the same, but for what docs/proof.md lists."""

import hashlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from kitchener.canonical import canonical_bytes
from kitchener.cli.app import invoke
from kitchener.ledger import LedgerClient, LedgerEntry
from kitchener.ledger.bundles.bundle import BundleSelection, write_bundle
from kitchener.ledger.bundles.bundle_check import verify_bundle
from kitchener.ledger.format.lines import chain_hash
from kitchener.ledger.verify.checkpoint import sign_head, sign_ledger
from kitchener.records.events import REF_FIELDS
from kitchener.signing import Signer, make_key
from tests.replay.test_replay_diverges import HO2M, forge
from tests.replay.test_replay_signed import without_declaration
from tests.shared.property_examples import examples
from tests.verifier.bundle_changes import CHANGES, MOMENT, ZEROS, Bundle, part, row_of, unsign
from tests.verifier.kit import needs_node, node, python, refused
from tests.verifier.proofs import Proven, bundle, types_in, unsigned_heads

pytestmark = needs_node


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """A verdict is about files; that both event loops write the same ones is shown in `tests/replay`."""
    return "asyncio"


@pytest.fixture(scope="module")
def chained(proven: Proven) -> Path:
    """The bundle of the same turn, with a row for every entry up to the heads."""
    return bundle(proven, proven.turns[-1], proven.directory / "chained.json", "--chain")


@pytest.fixture
def change(chained: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes a changed copy of the bundle with the chain, or of another one."""

    def write(how: Callable[[Bundle], object], name: str = "changed.json", of: Path = chained) -> Path:
        content = orjson.loads(of.read_bytes())
        how(content)
        path = tmp_path / name
        path.write_bytes(canonical_bytes(content) + b"\n")
        return path

    return write


def test_a_good_bundle_holds_the_evidence_of_its_turn_and_is_right(proven: Proven, good: Path) -> None:
    assert refused([good]) == refused([good], proven.signer.public_key) == []
    _has_evidence(good)


def test_so_does_a_bundle_with_the_chain(proven: Proven, good: Path, chained: Path) -> None:
    assert refused([chained]) == refused([chained], proven.signer.public_key) == []
    _has_evidence(chained)
    assert types_in(chained) == types_in(good)
    parts = orjson.loads(chained.read_bytes())["ledgers"]
    assert all([row[0] for row in each["rows"]] == [*range(each["rows"][0][0], each["head"]["seq"] + 1)] for each in parts)


def _has_evidence(good: Path) -> None:
    found = types_in(good)
    assert list(found) == ["HO2M:ADMIN", "HO1M:ADMIN", "CONTEXT:ADMIN", "SIGNALS", "OVERLAYS"]
    assert found["HO2M:ADMIN"][0] == "SESSION_START"
    assert {"TURN_STARTED", "WO_PLANNED", "WO_QUALITY_GATE", "TURN_COMPLETED"} <= set(found["HO2M:ADMIN"])
    assert "LLM_CALL" in found["HO1M:ADMIN"]
    assert "PROJECTION_COMPUTED" in found["CONTEXT:ADMIN"]
    assert set(found["SIGNALS"]) == {"HO3_SIGNAL"}
    assert set(found["OVERLAYS"]) == {"HO3_OVERLAY"}


def test_a_bundle_tells_nothing_of_other_turns_and_other_subjects(proven: Proven, good: Path) -> None:
    turn, text = proven.turns[-1], good.read_text()
    assert turn.rpartition("-")[0] in text
    assert all(other not in text for other in proven.turns[:-2])
    assert '\\"subject_id\\":\\"bo\\"' not in text


def test_every_turn_can_be_proven(proven: Proven, tmp_path: Path) -> None:
    paths = [bundle(proven, turn, tmp_path / f"{turn}.json") for turn in proven.turns]
    assert refused(paths, proven.signer.public_key) == []


def test_another_key_is_refused(good: Path, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other.pem")
    assert refused([good], other.public_key) == [good]


@pytest.mark.hypothesis  # so that the long run draws more
def test_no_bit_of_a_bundle_can_be_flipped(good: Path, tmp_path: Path) -> None:
    """Bytes all over the file, drawn the same at every run, and of those around the parts' seams every third or all."""
    data, draw, paths = good.read_bytes(), random.Random(3), []
    seams = (*range(90), *range(len(data) - 90, len(data)))[:: examples(few=3, many=1)]
    places = {*seams, *draw.sample(range(len(data)), examples(few=60, many=300))}
    for place in sorted(places):
        changed = bytearray(data)
        changed[place] ^= 1 << draw.randrange(8)
        paths.append(tmp_path / f"{place}.json")
        paths[-1].write_bytes(changed)
    assert refused(paths) == paths


def test_a_changed_bundle_is_refused(proven: Proven, change: Callable[..., Path]) -> None:
    paths = [change(how, f"{what}.json") for what, how in CHANGES.items()]
    assert refused(paths) == refused(paths, proven.signer.public_key) == paths


def test_a_changed_bundle_with_paths_is_refused(proven: Proven, good: Path, change: Callable[..., Path]) -> None:
    """All changes but those of the entry before the first row, which it does not have."""
    others = {what: how for what, how in CHANGES.items() if " start" not in what and what != "a field less of a ledger"}
    assert len(others) > 90
    paths = [change(how, f"{what}.json", good) for what, how in others.items()]
    fields = ("path", "segments", "rows", "head")
    paths += [change(lambda content, name=name: content["ledgers"][0].pop(name), f"no {name}.json", good) for name in fields]
    assert refused(paths) == refused(paths, proven.signer.public_key) == paths


@pytest.mark.parametrize("data", [b'{"entries":', b'{"entries":1}\n', b'{"entries":[[[[[[[', b'{"entries":1,"format":1}'])
def test_what_is_no_bundle_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "none.json"
    path.write_bytes(data)
    assert refused([path]) == [path]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"format":', b'"format":"kitchener-proof/1","format":'),
        (b'"format":', b' "format":'),
        (b'"format":', b'"\\u0066ormat":'),
        (b'"seq":', b'"seq":-0,"seq":'),
        (b',"format"', b'.0,"format"'),
        (b',"format"', b'e0,"format"'),
        (b"}\n", b"}"),
        (b"}\n", b"}\n\n"),
        (b"}\n", b"}\r\n"),
        (b"}\n", b"}\0\n"),
    ],
)
def test_a_bundle_written_in_another_way_is_refused(good: Path, tmp_path: Path, old: bytes, new: bytes) -> None:
    path, data = tmp_path / "other.json", good.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    assert refused([path]) == [path]


def test_a_bundle_after_a_byte_order_mark_is_none(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "marked.json"
    path.write_bytes(b"\xef\xbb\xbf" + good.read_bytes())
    assert refused([path]) == [path]


def _rebuilt(content: Bundle, ledger: str, entry_type: str, how: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Edits an entry and gives its ledger's part fresh hashes up to its end; the head stays as it was signed."""
    found, row = part(content, ledger), row_of(content, ledger, entry_type)
    fields = orjson.loads(row[5])
    how(fields)
    row[5] = canonical_bytes(fields).decode()
    row[3] = f"sha256:{hashlib.sha256(row[5].encode()).hexdigest()}"
    chain = found["before"]["chain_hash"] if found["before"] else ZEROS
    for each in found["rows"]:
        chain = each[4] = f"sha256:{chain_hash(chain[7:], found['ledger_id'], each[0], each[1], each[3][7:])}"
    return found


def _forge(fields: dict[str, Any]) -> None:
    signals = fields["payload"]["signals"]
    fields["payload"]["signals"] = dict.fromkeys(signals, "tool:forged")


async def by_hand(
    directory: Path,
    signer: Signer,
    sig: str,
    *more: tuple[str, str, dict[str, Any]],
    heads: Signer | None = None,
    chain: bool = False,
) -> Path:
    """The bundle of a turn that was aborted, whose projection has a given signature; with further entries of HO2m.

    `heads` signs the heads; None: the signer of the projection does.
    """
    directory.mkdir(exist_ok=True)
    session, turn = "SES-0a1b2c3d", "T-0a1b2c3d-000001"
    base = {"v": 1, "session_id": session, "subject_id": "ada"}
    of_turn = {**base, "turn_id": turn}
    authority = {"tier": "HO2", "signer": signer.signer, "sig": sig}
    ledgers = {
        "HO2M:ADMIN": [
            ("SESSION_START", session, base),
            ("TURN_STARTED", turn, of_turn),
            *((entry_type, about, {**of_turn, **payload}) for entry_type, about, payload in more),
            ("TURN_ABORTED", turn, {**of_turn, "reason": "timeout"}),
        ],
        "CONTEXT:ADMIN": [("PROJECTION_COMPUTED", turn, {**of_turn, "authority": authority})],
    }
    wanted, pieces = list[BundleSelection](), list[bytes]()
    for ledger_id, entries in ledgers.items():
        path = directory / f"{ledger_id[:4]}.jsonl"
        async with LedgerClient.open(path, ledger_id=ledger_id) as ledger:
            for entry in entries:
                await ledger.write(LedgerEntry(*entry))
            await ledger.commit()
            wanted.append(BundleSelection(path, ledger_id, tuple(range(1, len(entries) + 1)), ledger.head()))
        sign_ledger(path, heads or signer, MOMENT)
    write_bundle(pieces.append, turn, session, wanted, max_bytes=100_000, chain=chain)
    (directory / "bundle.json").write_bytes(b"".join(pieces))
    return directory / "bundle.json"


async def test_a_projection_has_a_signature_of_its_own(tmp_path: Path) -> None:
    """Beside that of its ledger's head: the one says who decided, the other that it is still what was written."""
    signer, unsigned = make_key(tmp_path / "key.pem"), {"v": 1, "session_id": "SES-0a1b2c3d", "subject_id": "ada"}
    right = signer.sign(canonical_bytes({**unsigned, "turn_id": "T-0a1b2c3d-000001"}))
    wrong = signer.sign(canonical_bytes({**unsigned, "turn_id": "T-0a1b2c3d-000002"}))
    paths = []
    for name, sig in (("right", right), ("wrong", wrong), ("none", "")):
        (tmp_path / name).mkdir()
        paths.append(await by_hand(tmp_path / name, signer, sig))
    assert refused(paths) == refused(paths, signer.public_key) == paths[1:]
    for verdict in (python(paths[1]), *node(paths[1:2])):
        assert f"authority.sig: expected a signature by {signer.signer}" in verdict


async def test_a_projection_is_signed_by_a_key_that_a_head_or_an_entry_shows(tmp_path: Path) -> None:
    signer, heads = make_key(tmp_path / "key.pem"), make_key(tmp_path / "heads.pem")
    unsigned = {"v": 1, "session_id": "SES-0a1b2c3d", "subject_id": "ada", "turn_id": "T-0a1b2c3d-000001"}
    right, wrong = signer.sign(canonical_bytes(unsigned)), signer.sign(b"something else")
    declared, other = (
        ("SIGNER_DECLARED", each.signer, {"signer": each.signer, "public_key": each.public_key}) for each in (signer, heads)
    )
    no_key = ("SIGNER_DECLARED", signer.signer, {"signer": signer.signer, "public_key": [signer.public_key]})
    good = await by_hand(tmp_path / "good", signer, right, other, declared, heads=heads)
    bad = [
        await by_hand(tmp_path / "wrong", signer, wrong, declared, heads=heads),
        await by_hand(tmp_path / "nobody", signer, right, heads=heads),
        await by_hand(tmp_path / "other", signer, right, other, heads=heads),
        await by_hand(tmp_path / "no key", signer, right, no_key, heads=heads),
    ]
    assert refused([good, *bad]) == refused([good, *bad], heads.public_key) == bad
    for verdict in (*map(python, bad[1:]), *node(bad[1:])):
        assert "authority.signer" in verdict


async def test_a_bundle_in_the_earlier_format_need_not_show_who_signed_its_projections(tmp_path: Path) -> None:
    """It was written before bundles had that entry. A signature whose key is shown is checked there, too."""
    signer, heads = make_key(tmp_path / "key.pem"), make_key(tmp_path / "heads.pem")
    nobody = await by_hand(tmp_path / "nobody", signer, signer.sign(b"something else"), heads=heads, chain=True)
    wrong = await by_hand(tmp_path / "wrong", signer, signer.sign(b"something else"), chain=True)
    for path in (nobody, wrong):
        path.write_bytes(path.read_bytes().replace(b"kitchener-proof/2", b"kitchener-proof/1"))
    assert refused([nobody, wrong]) == [wrong]
    assert f"CONTEXT:ADMIN entry 1: signed by {signer.signer}, whose key is not known here" in verify_bundle(nobody).notes


def test_a_bundle_without_a_signed_head_shows_who_signed_its_projections(proven: Proven, tmp_path: Path) -> None:
    path = bundle(unsigned_heads(proven, tmp_path / "copy"), proven.turns[-1], tmp_path / "bundle.json")
    assert refused([path]) == []
    assert types_in(path)["HO2M:ADMIN"][:2] == ["SIGNER_DECLARED", "SESSION_START"]
    content = orjson.loads(path.read_bytes())
    row_of(content, "HO2M:", "SIGNER_DECLARED").pop()
    content["entries"] -= 1
    hidden = tmp_path / "hidden.json"
    hidden.write_bytes(canonical_bytes(content) + b"\n")
    assert refused([hidden]) == [hidden]
    assert "authority.signer" in python(hidden)


def test_a_signer_of_whom_no_key_is_on_record_needs_a_signed_head(
    proven: Proven, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in the roots of earlier versions, which declared no signer."""
    older = unsigned_heads(proven, tmp_path / "copy")
    forge(older.root, HO2M, without_declaration)
    output = ["-o", str(tmp_path / "bundle.json"), *older.options()]
    assert invoke(["ledger", "proof", proven.turns[-1], *output]) != 0
    assert "whose public key is not on record; `kitchener ledger checkpoint`" in capsys.readouterr().err
    assert invoke(["ledger", "checkpoint", *older.options()]) == 0
    assert refused([bundle(older, proven.turns[-1], tmp_path / "bundle.json")]) == []


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, str, Any], Awaitable[Path]]:
    """Writes a bundle with one more entry, which has one field, by a writer who signs whatever there is."""
    signer = make_key(tmp_path / "key.pem")
    unsigned = {"v": 1, "session_id": "SES-0a1b2c3d", "subject_id": "ada", "turn_id": "T-0a1b2c3d-000001"}
    right = signer.sign(canonical_bytes(unsigned))

    async def write(entry_type: str, name: str, value: Any) -> Path:
        directory = tmp_path / f"{len([*tmp_path.iterdir()])}"
        directory.mkdir()
        return await by_hand(directory, signer, right, (entry_type, "WO-1", {name: value}))

    return write


def ref(ledger_id: str, entry_id: str) -> dict[str, str]:
    return {"ledger_id": ledger_id, "entry_id": entry_id, "entry_hash": ZEROS}


Written = Callable[[str, str, Any], Awaitable[Path]]
HERE = "HO2M:ADMIN"


ONE = "E-2026-11-22-000000000001"
OUTSIDE = [ref("ELSE", ONE), ref(HERE, "E-2026-11-22-000000000009"), ref(HERE, "E-1"), ref(HERE, "")]
"""They lead to entries of which the bundle has no row."""
SHOWN_FIELDS = ("user_message_ref", "output_ref", "projection_ref")


@pytest.mark.parametrize("entry_type", REF_FIELDS)
@pytest.mark.parametrize("fields", ["first", pytest.param("all", marks=pytest.mark.soak)])
async def test_a_reference_is_followed_in_the_fields_that_hold_references(
    fields: str, entry_type: str, written: Written
) -> None:
    """`make test` tries the first such field of each type of entry, and those that show what they name; `make soak` all."""
    wrong, fine, names = list[Path](), list[Path](), REF_FIELDS[entry_type]
    for name in names if fields == "all" else [name for name in names if name == names[0] or name in SHOWN_FIELDS]:
        for value in (ref(HERE, ONE), ref(HERE, f"{ONE}.01"), [ref("ELSE", ONE), {"deep": [ref(HERE, ONE)]}]):
            wrong.append(await written(entry_type, name, value))
        lead_out = [await written(entry_type, name, value) for value in OUTSIDE]
        (wrong if name in SHOWN_FIELDS else fine).extend(lead_out)
        fine.append(await written(entry_type, name, {**ref(HERE, ONE), "more": 1}))
        fine.append(await written(entry_type, name, {"entry_id": [ONE]}))
    if entry_type == "TURN_COMPLETED":  # a second end, so nothing of it can be right
        assert refused([*fine, *wrong]) == [*fine, *wrong]
    else:
        assert refused(fine) == []
        assert refused(wrong) == wrong


def group(ledger_id: object, *entries: object, **more: str) -> dict[str, object]:
    return {"ledger_id": ledger_id, "entries": list(entries), **more}


async def test_each_reference_of_a_group_is_followed(written: Written) -> None:
    ours, elsewhere = [ONE, ZEROS], ["E-2026-11-22-000000000009", ZEROS]
    followed = [group(HERE, ours), group(HERE, elsewhere, ours), group(HERE, ours, reason="LOW_URGENCY")]
    wrong = [await written("PROJECTION_COMPUTED", "visible_refs", {"recalled": [each]}) for each in followed]
    others = [
        group("ELSE", ours),
        group(HERE, elsewhere),
        group(HERE),
        group(HERE, [ONE]),
        group(HERE, [ONE, 1]),
        group(1, ours),
    ]
    fine = [await written("PROJECTION_COMPUTED", "suppressed_refs", {"recalled": [each]}) for each in others]
    assert refused([*fine, *wrong]) == wrong


@pytest.mark.parametrize("entry_type", ["TOOL_CALL", "TURN_STARTED_TOO", "WO_COMPLETED"])
async def test_what_looks_like_a_reference_in_any_other_field_is_somebodys_words(entry_type: str, written: Written) -> None:
    """A tool may answer with whatever it likes, and no answer may make a turn unprovable."""
    answers = [ref(HERE, ONE), {"output_ref": ref("ELSE", ONE)}, [{"projection_ref": [ref(HERE, ONE)]}]]
    fine = [await written(entry_type, "result", value) for value in answers]
    assert refused(fine) == []


def test_a_chain_built_anew_is_refused_by_the_signed_head_alone(
    proven: Proven, change: Callable[..., Path], tmp_path: Path
) -> None:
    kept = change(lambda content: _rebuilt(content, "SIGNALS", "HO3_SIGNAL", _forge), "kept.json")
    assert "chain_hash" in node([kept])[0]
    assert refused([kept]) == [kept]

    def unsigned(content: Bundle) -> None:
        unsign(_rebuilt(content, "SIGNALS", "HO3_SIGNAL", _forge))

    def signed_by_another(content: Bundle) -> None:
        found = _rebuilt(content, "SIGNALS", "HO3_SIGNAL", _forge)
        other = make_key(tmp_path / "other.pem")
        found["head"] = sign_head("SIGNALS", found["rows"][-1][0], found["rows"][-1][4], MOMENT, other).as_json()

    plain, foreign = change(unsigned, "plain.json"), change(signed_by_another, "foreign.json")
    assert refused([plain, foreign]) == []  # whole in itself: whose signature it is has to be known
    assert refused([plain, foreign], proven.signer.public_key) == [plain, foreign]


def test_an_answer_that_does_not_fit_the_turns_trace_hash_is_refused(change: Callable[..., Path], tmp_path: Path) -> None:
    """Even where HO1m was built anew and signed: HO2m says what its bytes were."""

    def forged(content: Bundle) -> None:
        def how(fields: dict[str, Any]) -> None:
            fields["payload"]["finish_reason"] = "forged"

        found = _rebuilt(content, "HO1M:", "LLM_CALL", how)
        other = make_key(tmp_path / "other.pem")
        found["head"] = sign_head(found["ledger_id"], found["rows"][-1][0], found["rows"][-1][4], MOMENT, other).as_json()

    path = change(forged)
    assert "trace_hash: expected sha256:" in node([path])[0]
    assert refused([path]) == [path]


def test_a_reply_that_goes_back_to_another_message_is_refused(change: Callable[..., Path]) -> None:
    """Even where HO2m was built anew from the message on: what refers to the message says what its hash was."""

    def forged(content: Bundle) -> None:
        unsign(_rebuilt(content, "HO2M:", "TURN_STARTED", lambda fields: fields["payload"].update(forged=True)))

    path = change(forged)
    assert "user_message_ref: expected " in node([path])[0]
    assert refused([path]) == [path]
