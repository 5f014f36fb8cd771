"""Bundles, right and wrong in every way: Kitchener and the Node script say the same, but for what docs/proof.md lists."""

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from kitchener.canonical import canonical_bytes
from kitchener.ledger import LedgerClient, LedgerEntry
from kitchener.ledger.chain import chain_hash
from kitchener.ledger.checkpoint import sign_head, sign_ledger
from kitchener.ledger.proof import Wanted, write_bundle
from kitchener.signing import Signer, make_key, signer_id
from tests.verifier.kit import needs_node, node, python, refused, refused_by_kitchener_alone
from tests.verifier.proofs import Proven, bundle, fill, shown_rows, types_in

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


def shown(content: Bundle, ledger: str) -> list[list[Any]]:
    """The rows of entries that are shown."""
    return shown_rows(part(content, ledger))


def row_of(content: Bundle, ledger: str, entry_type: str) -> list[Any]:
    """The first row whose body is of this type."""
    return next(row for row in shown(content, ledger) if orjson.loads(row[5])["entry_type"] == entry_type)


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


def _edit(ledger: str, entry_type: str, old: str, new: str) -> Callable[[Bundle], None]:
    def how(content: Bundle) -> None:
        row = row_of(content, ledger, entry_type)
        assert old in row[5]
        row[5] = row[5].replace(old, new)

    return how


def _on(ledger: str, key: str, how: Callable[[list[Any]], object]) -> Callable[[Bundle], None]:
    return lambda content: (how(part(content, ledger)[key]), None)[1]


def _set(ledger: str, key: str, field: str, value: Any) -> Callable[[Bundle], None]:
    return lambda content: part(content, ledger)[key].__setitem__(field, value)


def _put(ledger: str, key: str, value: Any) -> Callable[[Bundle], None]:
    return lambda content: part(content, ledger).__setitem__(key, value)


def _head(field: str, how: Callable[[Any], object]) -> Callable[[Bundle], None]:
    def change(content: Bundle) -> None:
        head = part(content, "HO2M:")["head"]
        head[field] = how(head[field])

    return change


def _shown(how: Callable[[list[list[Any]]], object]) -> Callable[[Bundle], None]:
    """Changes HO2m's rows that have a body."""
    return lambda content: (how(shown(content, "HO2M:")), None)[1]


def _cell(place: int, how: Callable[[Any], object]) -> Callable[[Bundle], None]:
    """Changes one value of a row without body, and of one with."""

    def change(content: Bundle) -> None:
        rows = part(content, "HO2M:")["rows"]
        for row in (rows[1], next(row for row in rows if len(row) == 5)):
            row[place] = how(row[place])

    return change


def _leave_out(content: Bundle, place: int) -> None:
    content["entries"] -= len(shown_rows(content["ledgers"].pop(place)))


def _hide(content: Bundle, ledger: str, entry_type: str) -> None:
    row_of(content, ledger, entry_type).pop()
    content["entries"] -= 1


def _begin_later(content: Bundle, ledger: str) -> None:
    """The rows begin one later than the head's chain says that they are."""
    found = part(content, ledger)
    seq, _, batch, _, chain_hash, _ = found["rows"].pop(0)
    found["before"] = {"batch": batch, "chain_hash": chain_hash, "seq": seq + 1}
    content["entries"] -= 1


def _swap(rows: list[list[Any]], one: int, other: int) -> None:
    rows[one][5], rows[other][5] = rows[other][5], rows[one][5]


def _unsign(found: dict[str, Any], **more: object) -> None:
    found["head"] = {"chain_hash": found["rows"][-1][4], "ledger_id": found["ledger_id"], "seq": found["rows"][-1][0], **more}


def _no_rows(found: dict[str, Any]) -> None:
    found["rows"] = []
    found["head"] = {"chain_hash": ZEROS, "ledger_id": found["ledger_id"], "seq": 0}


def _longer_key(head: dict[str, Any]) -> None:
    """Bytes after the key, which a lax reader might take no notice of."""
    head["public_key"] += "00"
    head["signer"] = signer_id(head["public_key"])


ZEROS = f"sha256:{'0' * 64}"

CHANGES: dict[str, Callable[[Bundle], object]] = {
    "an edited answer": _edit("HO1M:", "LLM_CALL", '"finish_reason":"', '"finish_reason":"x'),
    "an edited message": _edit("HO2M:", "TURN_STARTED", "disk", "dusk"),
    "an edited subject": _edit("HO2M:", "SESSION_START", '"ada"', '"eve"'),
    "a row without its body": _shown(lambda rows: rows[2].pop()),
    "a message that is not shown, and not counted": lambda content: _hide(content, "HO2M:", "TURN_STARTED"),
    "an answer that is not shown, and not counted": lambda content: _hide(content, "HO1M:", "LLM_CALL"),
    "an output that is not shown, and not counted": lambda content: _hide(content, "HO1M:", "WO_COMPLETED"),
    "a context that is not shown, and not counted": lambda content: _hide(content, "CONTEXT:", "PROJECTION_COMPUTED"),
    "a body moved to another row": _on(
        "HO2M:", "rows", lambda rows: next(r for r in rows if len(r) == 5).append(rows[0].pop())
    ),
    "a body of another row": _shown(lambda rows: rows[2].__setitem__(5, rows[3][5])),
    "swapped bodies": _shown(lambda rows: _swap(rows, 2, 3)),
    "a body of another ledger": lambda content: row_of(content, "HO2M:", "TURN_STARTED").__setitem__(
        5, row_of(content, "HO1M:", "LLM_CALL")[5]
    ),
    "a body as null": _shown(lambda rows: rows[2].__setitem__(5, None)),
    "a body as a number": _shown(lambda rows: rows[2].__setitem__(5, 0)),
    "a body as true": _shown(lambda rows: rows[2].__setitem__(5, True)),
    "a body in a list": _shown(lambda rows: rows[2].__setitem__(5, [rows[2][5]])),
    "a body as a list of its bytes": _shown(lambda rows: rows[2].__setitem__(5, [*rows[2][5].encode()])),
    "a body as an object": _shown(lambda rows: rows[2].__setitem__(5, orjson.loads(rows[2][5]))),
    "an empty body": _shown(lambda rows: rows[2].__setitem__(5, "")),
    "a body with a blank after it": _shown(lambda rows: rows[2].__setitem__(5, rows[2][5] + " ")),
    "a body with a line feed": _shown(lambda rows: rows[2].__setitem__(5, rows[2][5] + "\n")),
    "two bodies": _shown(lambda rows: rows[2].append(rows[2][5])),
    "an empty body where none is shown": _on("HO2M:", "rows", lambda rows: next(r for r in rows if len(r) == 5).append("")),
    "a null where no body is shown": _on("HO2M:", "rows", lambda rows: next(r for r in rows if len(r) == 5).append(None)),
    "a body where none is shown": _on("HO2M:", "rows", lambda rows: next(r for r in rows if len(r) == 5).append("{}")),
    "a row too short": _on("HO2M:", "rows", lambda rows: next(r for r in rows if len(r) == 5).pop()),
    "a removed row": _on("HO2M:", "rows", lambda rows: rows.pop(2)),
    "a repeated row": _on("HO2M:", "rows", lambda rows: rows.insert(2, rows[2])),
    "swapped rows": _on("HO2M:", "rows", lambda rows: rows.insert(2, rows.pop(3))),
    "a cut tail of rows": _on("HO2M:", "rows", lambda rows: rows.pop()),
    "no rows": _on("SIGNALS", "rows", lambda rows: rows.clear()),
    "no rows, and a head that says so": lambda content: _no_rows(part(content, "SIGNALS")),
    "rows of text": _put("SIGNALS", "rows", "rows"),
    "rows as an object": _put("SIGNALS", "rows", {"length": 1}),
    "rows as null": _put("SIGNALS", "rows", None),
    "another number": _on("HO2M:", "rows", lambda rows: rows[1].__setitem__(0, 1)),
    "numbers as text": _cell(0, str),
    "numbers in lists": _cell(0, lambda seq: [seq]),
    "another commit": _on("HO2M:", "rows", lambda rows: rows[1].__setitem__(2, [9, 1, 1])),
    "commits as text": _cell(2, lambda batch: ",".join(map(str, batch))),
    "commits of text": _cell(2, lambda batch: [str(number) for number in batch]),
    "commits with a fourth number": _cell(2, lambda batch: [*batch, 1]),
    "another entry id": _on("HO2M:", "rows", lambda rows: rows[1].__setitem__(1, rows[2][1])),
    "entry ids in lists": _cell(1, lambda entry_id: [entry_id]),
    "another day": _cell(1, lambda entry_id: entry_id.replace("-", "/", 2)),
    "another entry hash": _on("HO2M:", "rows", lambda rows: rows[1].__setitem__(3, ZEROS)),
    "entry hashes in lists": _cell(3, lambda hashed: [hashed]),
    "entry hashes in capitals": _cell(3, str.upper),
    "chain hashes in lists": _cell(4, lambda hashed: [hashed]),
    "chain hashes in capitals": _cell(4, str.upper),
    "a row of text": _on("HO2M:", "rows", lambda rows: rows.__setitem__(1, "row")),
    "a row as null": _on("HO2M:", "rows", lambda rows: rows.__setitem__(1, None)),
    "a row as an object": _on("HO2M:", "rows", lambda rows: rows.__setitem__(1, {"seq": 1})),
    "another head": _set("HO2M:", "head", "chain_hash", ZEROS),
    "a head further on": _set("HO2M:", "head", "seq", 100_000),
    "a head of text": _put("HO2M:", "head", "head"),
    "a head as null": _put("HO2M:", "head", None),
    "a head without anything": _put("HO2M:", "head", {}),
    "a head in a list": lambda content: _put("HO2M:", "head", [part(content, "HO2M:")["head"]])(content),
    "a head whose number is text": _head("seq", str),
    "a head whose hash is in a list": _head("chain_hash", lambda value: [value]),
    "a head whose time is in a list": _head("timestamp", lambda value: [value]),
    "a head with a key in capitals": _head("public_key", str.upper),
    "a head with a key in a list": _head("public_key", lambda value: [value]),
    "a head with a longer key": lambda content: _longer_key(part(content, "HO2M:")["head"]),
    "a head with a signature in capitals": _head("sig", str.upper),
    "a head with a signature in a list": _head("sig", lambda value: [value]),
    "a head with a longer signature": _head("sig", lambda value: value + "00"),
    "a head with half a byte after its signature": _head("sig", lambda value: value + "0"),
    "a head with an empty signature": _set("HO2M:", "head", "sig", ""),
    "a head with null for its signature": _set("HO2M:", "head", "sig", None),
    "a head without its signature": _on("HO2M:", "head", lambda head: head.pop("sig")),  # type: ignore[arg-type]
    "another time of signing": _set("HO2M:", "head", "timestamp", MOMENT),
    "another signature": _set("HO2M:", "head", "sig", "0" * 128),
    "another signer": _set("HO2M:", "head", "signer", "ed25519:0123456789abcdef"),
    "another start": _set("HO2M:", "before", "chain_hash", ZEROS),
    "a start with a number of text": lambda content: _set(
        "HO2M:", "before", "seq", str(part(content, "HO2M:")["before"]["seq"])
    )(content),
    "a start with a number in a list": lambda content: _set(
        "HO2M:", "before", "seq", [part(content, "HO2M:")["before"]["seq"]]
    )(content),
    "a start with one more field": _set("HO2M:", "before", "more", 1),
    "a start with its hash in a list": lambda content: _set(
        "HO2M:", "before", "chain_hash", [part(content, "HO2M:")["before"]["chain_hash"]]
    )(content),
    "no start": _put("HO2M:", "before", None),
    "an empty start": _put("HO2M:", "before", {}),
    "a start of text": _put("HO2M:", "before", "before"),
    "a start where there is none": _put("OVERLAYS", "before", {"batch": [0, 1, 1], "chain_hash": ZEROS, "seq": 0}),
    "a start with null, where there is none": _put(
        "OVERLAYS", "before", {"batch": [0, 1, 1], "chain_hash": ZEROS, "seq": None}
    ),
    "a start that is false": _put("OVERLAYS", "before", False),
    "a start that is 0": _put("OVERLAYS", "before", 0),
    "a start that is empty text": _put("OVERLAYS", "before", ""),
    "another turn": lambda content: content.__setitem__("turn_id", "T-00000000-000001"),
    "a turn in a list": lambda content: content.__setitem__("turn_id", [content["turn_id"]]),
    "another session": lambda content: content.__setitem__("session_id", "SES-00000000"),
    "a session in a list": lambda content: content.__setitem__("session_id", [content["session_id"]]),
    "another count": lambda content: content.__setitem__("entries", content["entries"] + 1),
    "a count as text": lambda content: content.__setitem__("entries", str(content["entries"])),
    "another format": lambda content: content.__setitem__("format", "kitchener-proof/2"),
    "a format in a list": lambda content: content.__setitem__("format", [content["format"]]),
    "one more field": lambda content: content.__setitem__("more", 1),
    "a field that says how many there are": lambda content: content.__setitem__("fields", 5),
    "one more field of a ledger": _put("HO2M:", "more", 1),
    "a field less of a ledger": lambda content: part(content, "HO2M:").pop("before"),
    "a ledger twice": lambda content: content["ledgers"].append(content["ledgers"][0]),
    "no ledgers": lambda content: content.update(ledgers=[], entries=0),
    "ledgers as null": lambda content: content.update(ledgers=None, entries=0),
    "ledgers as an object": lambda content: content.update(ledgers={each["ledger_id"]: each for each in content["ledgers"]}),
    "a ledger as null": lambda content: content["ledgers"].append(None),
    "HO1m left out": lambda content: content["ledgers"].pop(1),
    "HO1m left out and not counted": lambda content: _leave_out(content, 1),
    "the context left out": lambda content: content["ledgers"].pop(2),
    "the context left out and not counted": lambda content: _leave_out(content, 2),
    "a start after its entry": lambda content: _begin_later(content, "SIGNALS"),
    "a field more in a head without signature": lambda content: _unsign(content["ledgers"][0], more=1),
    "a number of text in a head without signature": lambda content: _unsign(
        content["ledgers"][0], seq=str(content["ledgers"][0]["head"]["seq"])
    ),
    "another ledger's name": lambda content: part(content, "SIGNALS").__setitem__("ledger_id", "SIGNALZ"),
    "a ledger's name in a list": lambda content: [
        each.__setitem__("ledger_id", [each["ledger_id"]]) for each in content["ledgers"]
    ],
}


def test_a_changed_bundle_is_refused(proven: Proven, change: Callable[..., Path]) -> None:
    paths = [change(how, f"{what}.json") for what, how in CHANGES.items()]
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
    fields["payload"]["metadata"] = {"turn_id": fields["payload"]["metadata"]["turn_id"], "forged": True}


async def by_hand(directory: Path, signer: Signer, sig: str, **more: Any) -> Path:
    """The bundle of a turn that was not completed, whose projection has a given signature, and whose start more fields."""
    session, turn = "SES-0a1b2c3d", "T-0a1b2c3d-000001"
    base = {"v": 1, "session_id": session, "subject_id": "ada"}
    authority = {"tier": "HO2", "signer": signer.signer, "sig": sig}
    ledgers = {
        "HO2M:ADMIN": [("SESSION_START", session, base), ("TURN_STARTED", turn, {**base, "turn_id": turn, **more})],
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
    """Beside that of its ledger's head: the one says who decided, the other that it is still what was written.

    The script looks at the head's alone.
    """
    signer, unsigned = make_key(tmp_path / "key.pem"), {"v": 1, "session_id": "SES-0a1b2c3d", "subject_id": "ada"}
    right = signer.sign(canonical_bytes({**unsigned, "turn_id": "T-0a1b2c3d-000001"}))
    wrong = signer.sign(canonical_bytes({**unsigned, "turn_id": "T-0a1b2c3d-000002"}))
    paths = []
    for name, sig in (("right", right), ("wrong", wrong), ("none", "")):
        (tmp_path / name).mkdir()
        paths.append(await by_hand(tmp_path / name, signer, sig))
    assert refused_by_kitchener_alone(paths) == refused_by_kitchener_alone(paths, signer.public_key) == paths[1:]
    assert f"authority.sig: expected a signature by {signer.signer}" in python(paths[1])


async def test_a_reference_is_followed_wherever_it_stands(tmp_path: Path) -> None:
    """Made by a writer who signs whatever there is, so that nothing but the reference is wrong."""
    signer, here, hashed = make_key(tmp_path / "key.pem"), "HO2M:ADMIN", f"sha256:{'0' * 64}"

    async def write(name: str, value: Any) -> Path:
        directory = tmp_path / f"{len([*tmp_path.iterdir()])}"
        directory.mkdir()
        right = signer.sign(
            canonical_bytes({"v": 1, "session_id": "SES-0a1b2c3d", "subject_id": "ada", "turn_id": "T-0a1b2c3d-000001"})
        )
        return await by_hand(directory, signer, right, **{name: value})

    def ref(ledger_id: str, entry_id: str) -> dict[str, str]:
        return {"ledger_id": ledger_id, "entry_id": entry_id, "entry_hash": hashed}

    one = "E-2026-11-22-000000000001"
    outside = [
        ref("ELSE", one),
        ref(here, "E-2026-11-22-000000000009"),
        ref(here, "E-1"),
        ref(here, ""),
        {**ref(here, one), "more": 1},
    ]
    wrong = [ref(here, one), ref(here, f"{one}.01"), [ref("ELSE", one), {"deep": [ref(here, one)]}]]
    fine = [await write("seen_ref", value) for value in outside] + [await write("seen_ref", {"entry_id": [one]})]
    assert refused(fine) == []
    paths = [await write("seen_ref", value) for value in wrong]
    paths += [
        await write(name, value) for name in ("user_message_ref", "output_ref", "projection_ref") for value in outside[:4]
    ]
    assert refused(paths) == refused(paths, signer.public_key) == paths


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
