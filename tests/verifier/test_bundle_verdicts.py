"""Bundles, right and wrong in every way: Kitchener and the Node script say the same (docs/proof.md)."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from kitchener.canonical import canonical_bytes
from kitchener.ledger import LedgerClient, LedgerEntry
from kitchener.ledger.chain import split_line
from kitchener.ledger.checkpoint import sign_head, sign_ledger
from kitchener.ledger.proof import Wanted, write_bundle
from kitchener.signing import Signer, make_key
from tests.verifier.kit import needs_node, node, refused, relinked, rewritten
from tests.verifier.proofs import Proven, bundle, fill, types_in

pytestmark = needs_node

Bundle = dict[str, Any]
MOMENT = "2026-11-22T12:00:00.000000+00:00"


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Proven:
    return fill(tmp_path_factory.mktemp("proven"))


@pytest.fixture(scope="module")
def good(proven: Proven) -> Path:
    """The bundle of a turn that was shown learned lines."""
    return bundle(proven, proven.turns[-1], proven.directory / "good.json")


@pytest.fixture
def change(good: Path, tmp_path: Path) -> Callable[[Callable[[Bundle], object]], Path]:
    """Writes a changed copy of the good bundle."""

    def write(how: Callable[[Bundle], object], name: str = "changed.json") -> Path:
        content = orjson.loads(good.read_bytes())
        how(content)
        path = tmp_path / name
        path.write_bytes(canonical_bytes(content) + b"\n")
        return path

    return write


def part(content: Bundle, ledger: str) -> dict[str, Any]:
    return next(each for each in content["ledgers"] if each["ledger_id"].startswith(ledger))


def at(content: Bundle, ledger: str, entry_type: str) -> int:
    """Where a line of this type stands."""
    lines = part(content, ledger)["lines"]
    return next(n for n, line in enumerate(lines) if orjson.loads(line)["entry"]["entry_type"] == entry_type)


def test_a_good_bundle_holds_the_evidence_of_its_turn_and_is_right(proven: Proven, good: Path) -> None:
    assert refused([good]) == refused([good], proven.signer.public_key) == []
    found = types_in(good)
    assert list(found) == ["HO2M:ADMIN", "HO1M:ADMIN", "CONTEXT:ADMIN", "SIGNALS", "OVERLAYS"]
    assert found["HO2M:ADMIN"][0] == "SESSION_START"
    assert {"TURN_STARTED", "WO_PLANNED", "WO_QUALITY_GATE", "TURN_COMPLETED"} <= set(found["HO2M:ADMIN"])
    assert {"ATTEMPT_STARTED", "LLM_CALL", "WO_COMPLETED"} <= set(found["HO1M:ADMIN"])
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


def test_no_bit_of_a_bundle_can_be_flipped(good: Path, tmp_path: Path) -> None:
    """Bytes all over the file, drawn the same at every run, and all of those around the parts' seams."""
    data, draw, paths = good.read_bytes(), random.Random(3), []
    places = {*range(90), *range(len(data) - 90, len(data)), *draw.sample(range(len(data)), 300)}
    for place in sorted(places):
        changed = bytearray(data)
        changed[place] ^= 1 << draw.randrange(8)
        paths.append(tmp_path / f"{place}.json")
        paths[-1].write_bytes(changed)
    assert refused(paths) == paths


def _edit_line(ledger: str, entry_type: str, old: str, new: str) -> Callable[[Bundle], None]:
    def how(content: Bundle) -> None:
        lines, n = part(content, ledger)["lines"], at(content, ledger, entry_type)
        assert old in lines[n]
        lines[n] = lines[n].replace(old, new)

    return how


def _on(ledger: str, key: str, how: Callable[[list[Any]], object]) -> Callable[[Bundle], None]:
    return lambda content: (how(part(content, ledger)[key]), None)[1]


def _set(ledger: str, key: str, field: str, value: Any) -> Callable[[Bundle], None]:
    return lambda content: part(content, ledger)[key].__setitem__(field, value)


def _leave_out(content: Bundle, place: int) -> None:
    content["entries"] -= len(content["ledgers"].pop(place)["lines"])


def _begin_later(content: Bundle, ledger: str) -> None:
    """The first line is left without its row, and none of its ledger are counted: in order, they end there."""
    found = part(content, ledger)
    seq, _, batch, _, chain_hash = found["rows"].pop(0)
    found["before"] = {"batch": batch, "chain_hash": chain_hash, "seq": seq}
    content["entries"] -= len(found["lines"])


def _unsign(found: dict[str, Any], **more: object) -> None:
    found["head"] = {"chain_hash": found["rows"][-1][4], "ledger_id": found["ledger_id"], "seq": found["rows"][-1][0], **more}


CHANGES: dict[str, Callable[[Bundle], object]] = {
    "an edited answer": _edit_line("HO1M:", "LLM_CALL", '"finish_reason":"', '"finish_reason":"x'),
    "an edited message": _edit_line("HO2M:", "TURN_STARTED", "disk", "dusk"),
    "an edited subject": _edit_line("HO2M:", "SESSION_START", '"ada"', '"eve"'),
    "a removed line": _on("HO1M:", "lines", lambda lines: lines.pop(2)),
    "a repeated line": _on("HO2M:", "lines", lambda lines: lines.insert(2, lines[2])),
    "swapped lines": _on("HO2M:", "lines", lambda lines: lines.insert(2, lines.pop(3))),
    "a removed row": _on("HO2M:", "rows", lambda rows: rows.pop(2)),
    "a repeated row": _on("HO2M:", "rows", lambda rows: rows.insert(2, rows[2])),
    "swapped rows": _on("HO2M:", "rows", lambda rows: rows.insert(2, rows.pop(3))),
    "a cut tail of rows": _on("HO2M:", "rows", lambda rows: rows.pop()),
    "no rows": _on("SIGNALS", "rows", lambda rows: rows.clear()),
    "another number": _on("HO2M:", "rows", lambda rows: rows[1].__setitem__(0, 1)),
    "another commit": _on("HO2M:", "rows", lambda rows: rows[1].__setitem__(2, [9, 1, 1])),
    "another entry hash": _on("HO2M:", "rows", lambda rows: rows[1].__setitem__(3, f"sha256:{'0' * 64}")),
    "a row of text": _on("HO2M:", "rows", lambda rows: rows.__setitem__(1, "row")),
    "another head": _set("HO2M:", "head", "chain_hash", f"sha256:{'0' * 64}"),
    "a head further on": _set("HO2M:", "head", "seq", 100_000),
    "a head of text": lambda content: part(content, "HO2M:").__setitem__("head", "head"),
    "another time of signing": _set("HO2M:", "head", "timestamp", MOMENT),
    "another signature": _set("HO2M:", "head", "sig", "0" * 128),
    "another signer": _set("HO2M:", "head", "signer", "ed25519:0123456789abcdef"),
    "another start": _set("HO2M:", "before", "chain_hash", f"sha256:{'0' * 64}"),
    "another turn": lambda content: content.__setitem__("turn_id", "T-00000000-000001"),
    "another session": lambda content: content.__setitem__("session_id", "SES-00000000"),
    "another count": lambda content: content.__setitem__("entries", content["entries"] + 1),
    "another format": lambda content: content.__setitem__("format", "kitchener-proof/2"),
    "one more field": lambda content: content.__setitem__("more", 1),
    "a ledger twice": lambda content: content["ledgers"].append(content["ledgers"][0]),
    "HO1m left out": lambda content: content["ledgers"].pop(1),
    "the context left out": lambda content: content["ledgers"].pop(2),
    "the context left out and not counted": lambda content: _leave_out(content, 2),
    "a line from before the first row": lambda content: _begin_later(content, "SIGNALS"),
    "a field more in a head without signature": lambda content: _unsign(content["ledgers"][0], more=1),
    "another ledger's name": lambda content: part(content, "SIGNALS").__setitem__("ledger_id", "SIGNALZ"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_bundle_is_refused(proven: Proven, change: Callable[..., Path], what: str) -> None:
    path = change(CHANGES[what])
    assert refused([path]) == [path]
    assert refused([path], proven.signer.public_key) == [path]


@pytest.mark.parametrize("data", [b'{"entries":', b'{"entries":1}\n', b'{"entries":[[[[[[[', b'{"entries":1,"format":1}'])
def test_what_is_no_bundle_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "none.json"
    path.write_bytes(data)
    assert refused([path]) == [path]


def _rebuilt(content: Bundle, ledger: str, entry_type: str, how: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Edits an entry and gives its ledger's part fresh hashes up to its end; the head stays as it was signed."""
    found = part(content, ledger)
    n = at(content, ledger, entry_type)
    raw = rewritten(found["lines"][n].encode(), how)
    line = split_line(raw)
    assert line is not None
    found["lines"][n] = raw.decode()
    rows = found["rows"]
    rows[line.seq - rows[0][0]][3] = f"sha256:{line.entry_hash}"
    before = found["before"]["chain_hash"][7:] if found["before"] else "0" * 64
    stand_ins = [_as_line(found["ledger_id"], row) for row in rows]
    for row, fresh in zip(rows, relinked(stand_ins, before), strict=True):
        row[4] = _chain(fresh)
    by_seq = {row[0]: row for row in rows}
    for number, text in enumerate(found["lines"]):
        old = split_line(text.encode())
        assert old is not None
        found["lines"][number] = text.replace(f"sha256:{old.chain_hash}", by_seq[old.seq][4])
    return found


def _as_line(ledger_id: str, row: list[Any]) -> bytes:
    batch = ",".join(map(str, row[2]))
    envelope = f'{{"ledger_id":"{ledger_id}","seq":{row[0]},"entry_id":"{row[1]}","batch":[{batch}],'
    return f'{envelope}"entry_hash":"{row[3]}","chain_hash":"{row[4]}","entry":{{}}}}'.encode()


def _chain(raw: bytes) -> str:
    line = split_line(raw)
    assert line is not None
    return f"sha256:{line.chain_hash}"


def _forge(fields: dict[str, Any]) -> None:
    fields["payload"]["metadata"] = {"turn_id": fields["payload"]["metadata"]["turn_id"], "forged": True}


async def by_hand(directory: Path, signer: Signer, sig: str) -> Path:
    """The bundle of a turn that was not completed, whose projection has a given signature."""
    session, turn = "SES-0a1b2c3d", "T-0a1b2c3d-000001"
    base = {"v": 1, "session_id": session, "subject_id": "ada"}
    authority = {"tier": "HO2", "signer": signer.signer, "sig": sig}
    ledgers = {
        "HO2M:ADMIN": [("SESSION_START", session, base), ("TURN_STARTED", turn, {**base, "turn_id": turn})],
        "CONTEXT:ADMIN": [("PROJECTION_COMPUTED", turn, {**base, "turn_id": turn, "authority": authority})],
    }
    wanted, pieces = list[Wanted](), list[bytes]()
    for ledger_id, entries in ledgers.items():
        path = directory / f"{ledger_id[:4]}.jsonl"
        async with LedgerClient.open(path, ledger_id=ledger_id) as ledger:
            for entry in entries:
                await ledger.write(LedgerEntry(*entry))
            await ledger.commit()
            wanted.append(Wanted(path, ledger_id, tuple(range(1, len(entries) + 1)), ledger.head()))
        sign_ledger(path, signer, MOMENT)
    write_bundle(pieces.append, turn, session, wanted, max_bytes=100_000)
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
    assert f"authority.sig: expected a signature by {signer.signer}" in node(paths[1:2])[0]


def test_a_chain_built_anew_is_refused_by_the_signed_head_alone(
    proven: Proven, change: Callable[..., Path], tmp_path: Path
) -> None:
    kept = change(lambda content: _rebuilt(content, "SIGNALS", "HO3_SIGNAL", _forge), "kept.json")
    assert "chain_hash" in node([kept])[0]
    assert refused([kept]) == [kept]

    def unsigned(content: Bundle) -> None:
        _unsign(_rebuilt(content, "SIGNALS", "HO3_SIGNAL", _forge))

    def signed_by_another(content: Bundle) -> None:
        found = _rebuilt(content, "SIGNALS", "HO3_SIGNAL", _forge)
        other = make_key(tmp_path / "other.pem")
        found["head"] = sign_head("SIGNALS", found["rows"][-1][0], found["rows"][-1][4], MOMENT, other)._asdict()

    plain, foreign = change(unsigned, "plain.json"), change(signed_by_another, "foreign.json")
    assert refused([plain, foreign]) == []  # whole in itself: whose signature it is has to be known
    assert refused([plain, foreign], proven.signer.public_key) == [plain, foreign]


def test_an_answer_that_does_not_fit_the_turns_trace_hash_is_refused(change: Callable[..., Path], tmp_path: Path) -> None:
    """Even where HO1m was built anew and signed: HO2m says what its bytes were."""

    def forged(content: Bundle) -> None:
        def how(fields: dict[str, Any]) -> None:
            fields["payload"]["wo_type"] = "forged"

        found = _rebuilt(content, "HO1M:", "WO_EXECUTING", how)
        other = make_key(tmp_path / "other.pem")
        found["head"] = sign_head(found["ledger_id"], found["rows"][-1][0], found["rows"][-1][4], MOMENT, other)._asdict()

    path = change(forged)
    assert "trace_hash: expected sha256:" in node([path])[0]
    assert refused([path]) == [path]


def test_a_reply_that_goes_back_to_another_message_is_refused(change: Callable[..., Path]) -> None:
    """Even where HO2m was built anew from the message on: what refers to the message says what its hash was."""

    def forged(content: Bundle) -> None:
        _unsign(_rebuilt(content, "HO2M:", "TURN_STARTED", lambda fields: fields["payload"].update(forged=True)))

    path = change(forged)
    assert "input_refs: expected " in node([path])[0]
    assert refused([path]) == [path]
