"""Whole ledgers, right and wrong in every way: Kitchener and the Node script say the same, but for what docs/proof.md lists."""

import hashlib
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kitchener.canonical import canonical_bytes
from kitchener.ledger.bundles.bundle import BundleSelection, write_bundle
from kitchener.ledger.format.lines import NO_HASH
from kitchener.ledger.verify.checkpoint import checkpoint_path, sign_ledger
from kitchener.signing import Signer, make_key
from tests.shared.property_examples import examples
from tests.verifier.kit import needs_node, node, python, refused, refused_by_the_script_alone, relinked, rewritten, run

pytestmark = needs_node

SAMPLE = Path(__file__).resolve().parents[1] / "vectors" / "ledger_sample.jsonl"
LINES = SAMPLE.read_bytes().splitlines(keepends=True)
MOMENT = "2026-02-18T12:00:00.000000+00:00"


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return make_key(tmp_path / "signing.pem")


def write(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"".join(lines))
    return path


def test_the_sample_is_right() -> None:
    assert node([SAMPLE])[0].startswith(f"ok       {SAMPLE}: 8 entries, head sha256:75d2b526b5f687cd")
    assert refused([SAMPLE]) == []


def test_an_empty_ledger_is_right(tmp_path: Path) -> None:
    assert refused([write(tmp_path / "empty.jsonl", [])]) == []


@pytest.mark.hypothesis  # so that the long run changes every byte
def test_every_byte_of_a_line_is_guarded(tmp_path: Path) -> None:
    """One bit of each byte of two whole lines, LF included, or of every third; which bit is drawn, the same at every run."""
    draw, paths, one_in = random.Random(1), [], examples(few=3, many=1)
    for number in (1, 2):
        for place in range(len(LINES[number]) - 1, -1, -one_in):
            changed = bytearray(LINES[number])
            changed[place] ^= 1 << draw.randrange(8)
            paths.append(write(tmp_path / f"{number}-{place}.jsonl", [*LINES[:number], bytes(changed), *LINES[number + 1 :]]))
    assert len(paths) > 900 // one_in
    assert refused(paths) == paths


def edited(number: int, old: bytes, new: bytes) -> list[bytes]:
    assert old in LINES[number]
    return [*LINES[:number], LINES[number].replace(old, new), *LINES[number + 1 :]]


def consistent(number: int, field: str, value: object) -> list[bytes]:
    """A ledger in which one field was edited and every hash after it is fresh."""
    lines = [line.rstrip(b"\n") for line in LINES]
    lines[number] = rewritten(lines[number], lambda fields: fields.__setitem__(field, value))
    return [line + b"\n" for line in relinked(lines, NO_HASH)]


def renamed(ledger_id: str) -> list[bytes]:
    """A ledger of another name, in which every hash is fresh."""
    chain, lines = f"sha256:{NO_HASH}", []
    for raw in LINES:
        fields = json.loads(raw)
        text = f"kitchener/1|{chain}|{ledger_id}|{fields['seq']}|{fields['entry_id']}|{fields['entry_hash']}"
        old, chain = fields["chain_hash"], f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        raw = raw.replace(fields["ledger_id"].encode(), ledger_id.encode(), 1)
        lines.append(raw.replace(old.encode(), chain.encode(), 1))
    return lines


def test_a_ledger_of_another_name_is_right(tmp_path: Path) -> None:
    """So that a wrong name is what is refused below."""
    assert refused([write(tmp_path / "ledger.jsonl", renamed("A~ {name}:!"))]) == []


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(LINES[1:], id="the first line is gone"),
        pytest.param([*LINES[:3], *LINES[4:]], id="a line is gone"),
        pytest.param([*LINES[:4], *LINES[3:]], id="a line stands there twice"),
        pytest.param([*LINES[:2], LINES[3], LINES[2], *LINES[4:]], id="two lines are swapped"),
        pytest.param(LINES[:-1], id="the last commit is not whole"),
        pytest.param([*LINES[:-1], LINES[-1][:-1]], id="the last LF is gone"),
        pytest.param([*LINES, b"\n"], id="a blank line"),
        pytest.param([b"\xef\xbb\xbf", *LINES], id="a byte order mark"),
        pytest.param([line.replace(b"\n", b"\r\n") for line in LINES], id="CR"),
        pytest.param([*LINES, b"\0" * 9], id="NUL bytes at the end"),
        pytest.param(edited(1, b'"seq":2', b'"seq":02'), id="a number with a zero before it"),
        pytest.param(edited(1, b'"batch":[2,1,3]', b'"batch":[2,1,4]'), id="another size of a commit"),
        pytest.param(edited(0, b'"batch":[1,1,1]', b'"batch":[2,1,1]'), id="commits count from 2"),
        pytest.param(edited(0, b'"seq":1', b'"seq": 1'), id="a blank"),
        pytest.param(consistent(3, "timestamp", "2026-02-30T12:00:00.000000+00:00"), id="a day that there is not"),
        pytest.param(consistent(3, "timestamp", "2026-02-18 12:00:00.000000+00:00"), id="another form of time"),
        pytest.param(consistent(3, "timestamp", "2026-02-19T12:00:00.000000+00:00"), id="another day than the entry id's"),
        pytest.param(consistent(7, "timestamp", "2026-02-19T12:00:00.000000+00:00"), id="another day, at the end"),
        pytest.param(consistent(3, "more", 1), id="a fifth field"),
        pytest.param(
            consistent(3, "fields", "entity_id entry_type payload timestamp"), id="a fifth field that names the others"
        ),
        pytest.param(consistent(3, "where", "here"), id="a fifth field that says where it is"),
        pytest.param(consistent(3, "timestamp", ["2026-02-18T12:00:00.000000+00:00"]), id="a time in a list"),
        pytest.param(consistent(3, "timestamp", None), id="no time"),
        pytest.param(consistent(3, "payload", [1]), id="a payload that is a list"),
        pytest.param(consistent(3, "payload", []), id="a payload that is an empty list"),
        pytest.param(consistent(3, "payload", None), id="a payload that is null"),
        pytest.param(consistent(3, "payload", "payload"), id="a payload that is text"),
        pytest.param(renamed("A|B"), id="a ledger's name with a bar"),
        pytest.param(renamed("A\x1b[2J"), id="a ledger's name with a control character"),
        pytest.param(renamed("Ä"), id="a ledger's name beyond ASCII"),
        pytest.param(renamed('A\\"B'), id="a ledger's name with a quote"),
        pytest.param(renamed(""), id="no name"),
        pytest.param(
            [*LINES, *[line.replace(b'"ledger_id":"', b'"ledger_id":"X') for line in LINES]], id="another ledger's lines"
        ),
        pytest.param([line.replace(b"sha256:", b"SHA256:") for line in LINES], id="names of hashes in capitals"),
        pytest.param(edited(1, b'"seq":2', b'"seq":"2"'), id="a number as text"),
        pytest.param(edited(1, b'"batch":[2,1,3]', b'"batch":[2,1,3,1]'), id="a fourth number of a commit"),
        pytest.param(edited(1, b'"batch":[2,1,3]', b'"batch":[2.0,1,3]'), id="a number with a fraction"),
        pytest.param(edited(1, b',"entry":{', b',"more":1,"entry":{'), id="a field more around an entry"),
        pytest.param(edited(1, b',"entry":{', b',"entry":[{'), id="an entry in a list"),
        pytest.param([*LINES[:7], LINES[7].partition(b',"entry"')[0] + b"}\n"], id="no entry"),
        pytest.param([*LINES[:7], LINES[7].partition(b',"entry"')[0] + b',"entry":null}\n'], id="an entry that is null"),
    ],
)
def test_what_is_not_as_it_was_written_is_refused(tmp_path: Path, lines: list[bytes]) -> None:
    path = write(tmp_path / "ledger.jsonl", lines)
    assert refused([path]) == [path]


def test_a_time_in_another_form_and_one_that_goes_back_are_refused(tmp_path: Path) -> None:
    paths = list[Path]()
    for number, time in [
        (3, "2026-02-18T10:00:00.000000+00:00"),  # before the entry before
        (7, "2026-02-18T25:00:00.000000+00:00"),
        (7, "2026-02-18T23:00:00.000000+01:00"),
        (7, "2026-02-18T23:00:00+00:00"),
        (7, "2026-02-18T23:60:00.000000+00:00"),
        (7, "2026-02-18T23:00:60.000000+00:00"),
        (7, "2026-02-18T24:00:00.000000+00:00"),
        (7, "2026-02-18T"),
    ]:
        paths.append(write(tmp_path / f"{len(paths)}.jsonl", consistent(number, "timestamp", time)))
    assert refused(paths) == paths
    assert refused([write(tmp_path / "short.jsonl", consistent(7, "timestamp", "2026-02-18T23:59:59.999999Z"))]) == []


@pytest.mark.parametrize("day", ["2026-02-30", "2026-13-01", "2026-00-10", "2025-02-29", "0000-01-01"])
def test_a_day_that_there_is_not_is_refused_although_the_entry_id_has_it(tmp_path: Path, day: str) -> None:
    there_is = day_at_the_end(tmp_path / "there is.jsonl", "2028-02-29")
    assert refused([there_is, path := day_at_the_end(tmp_path / "ledger.jsonl", day)]) == [path]


def day_at_the_end(path: Path, day: str) -> Path:
    """A ledger whose last entry is of this day, by its time and by its id."""
    lines = consistent(7, "timestamp", f"{day}T12:00:00.000000+00:00")
    lines[7] = lines[7].replace(b'"entry_id":"E-2026-02-18-', b'"entry_id":"E-%s-' % day.encode())
    return write(path, [line + b"\n" for line in relinked([line.rstrip(b"\n") for line in lines], NO_HASH)])


def test_numbers_and_depths_that_other_readers_may_not_take_are_refused(tmp_path: Path) -> None:
    def with_values(*values: bytes) -> list[Path]:
        paths = list[Path]()
        for number, value in enumerate(values):
            lines = [line.rstrip(b"\n") for line in LINES]
            lines[1] = fresh(lines[1].replace(b'"scope":"SESSION"', b'"scope":' + value))
            path = tmp_path / f"{values[0][:9].decode()}-{number}.jsonl"
            paths.append(write(path, [line + b"\n" for line in relinked(lines, NO_HASH)]))
        return paths

    paths = with_values(
        *(b"9007199254740992", b"-9007199254740992", b"9223372036854776000", b"9007199254740993"),
        *(b"[" * 300 + b"]" * 300, b"[" * 253 + b"]" * 253, b'{"a":' * 253 + b"1" + b"}" * 253),
    )
    assert refused(paths) == paths
    deep = [b"[" * 252 + b"]" * 252, b'{"a":' * 252 + b"1.5" + b"}" * 252, b'"%s"' % (b"[" * 300)]
    assert refused(with_values(b"9007199254740991", b"-9007199254740991", *deep)) == []


def test_only_the_script_refuses_what_the_fast_encoder_spells_in_another_way(tmp_path: Path) -> None:
    paths = list[Path]()
    for value in ("1.0", "-0.0", "1e+16", "1e-6", '{"\uffff":1,"\U00010000":2}'):
        lines = [line.rstrip(b"\n") for line in LINES]
        lines[1] = fresh(lines[1].replace(b'"scope":"SESSION"', b'"scope":' + value.encode()))
        paths.append(write(tmp_path / f"{len(paths)}.jsonl", [line + b"\n" for line in relinked(lines, NO_HASH)]))
    assert refused_by_the_script_alone(paths) == paths


def test_a_body_that_is_not_canonical_is_refused_although_its_hashes_fit(tmp_path: Path) -> None:
    paths = list[Path]()
    for number, (old, new) in enumerate(
        [
            (b'"scope":"SESSION"', b'"scope": "SESSION"'),
            (b'"scope":"SESSION"', b'"scope":"\\u0053ESSION"'),
            (b'"scope":"SESSION"', b'"scope":"SESSION","scope":"SESSION"'),
            (b'"scope":"SESSION"', b'"scope":9007199254740993'),
            (b'"scope":"SESSION"', b'"scope":"\xff"'),
            (b'"scope":"SESSION"', b'"scope":NaN'),
            (b'"scope":"SESSION"', b'"scope":"\\ud800"'),
            (b'"scope":"SESSION"', b'"scope":"\\\\\\udfff"'),
            (b'"scope":"SESSION"', b'"\\ud800":"SESSION"'),
            (b'"scope":"SESSION"', b'"scope":-0'),
            (b'"scope":"SESSION"', b'"scope":1e400'),
            (b'"scope":"SESSION"', b'"scope":{"9":1,"10":2}'),
            (b'"scope":"SESSION"', b'"scope":"\\u001F"'),
            (b'"scope":"SESSION"', b'"scope":"\\/"'),
        ]
    ):
        lines = [line.rstrip(b"\n") for line in LINES]
        raw = lines[1].replace(old, new)
        assert raw != lines[1]
        lines[1] = fresh(raw)
        paths.append(write(tmp_path / f"{number}.jsonl", [line + b"\n" for line in relinked(lines, NO_HASH)]))
    assert refused(paths) == paths


def test_a_body_that_is_canonical_is_right_whatever_it_holds(tmp_path: Path) -> None:
    paths = list[Path]()
    for value in [
        '{"10":1,"9":2}',
        '{"__proto__":{"a":1},"toJSON":1}',
        '{"\U00010000":1,"\uffff":2}',
        '"\\\\ud800\u2028\x7f\\u001f\\b"',
        "[1e-7,5e-324,1e+21,0.000001,-1.5,9007199254740991]",
        "[" * 200 + "]" * 200,
    ]:
        lines = [line.rstrip(b"\n") for line in LINES]
        lines[1] = fresh(lines[1].replace(b'"scope":"SESSION"', b'"scope":' + value.encode()))
        paths.append(write(tmp_path / f"{len(paths)}.jsonl", [line + b"\n" for line in relinked(lines, NO_HASH)]))
    assert refused(paths) == []


def fresh(raw: bytes) -> bytes:
    """A line with the hash that its body has now."""
    body = raw[raw.index(b'"entry":{') + 8 : -1]
    return re.sub(
        rb'"entry_hash":"sha256:[0-9a-f]{64}"',
        b'"entry_hash":"sha256:%s"' % hashlib.sha256(body).hexdigest().encode(),
        raw,
        count=1,
    )


def test_the_bundle_of_a_body_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Somebody made the ledger anew; its bundle can be written, and is verified before anybody gets it."""
    lines = [line.rstrip(b"\n") for line in LINES]
    lines[1] = fresh(lines[1].replace(b'"scope":"SESSION"', b'"scope":"\xff"'))
    lines = relinked(lines, NO_HASH)
    path, pieces = write(tmp_path / "ledger.jsonl", [line + b"\n" for line in lines]), list[bytes]()
    wanted = BundleSelection(path, "HO2M:ADMIN", (2,), (8, json.loads(lines[7])["chain_hash"]))
    write_bundle(pieces.append, "T-1", "SES-1", [wanted], max_bytes=100_000)
    other = write(tmp_path / "bundle.json", pieces)
    assert refused([other]) == [other]
    assert ": entry_hash: expected sha256:" in node([other])[0]


@pytest.mark.parametrize("shown", [(1, 2, 3, 4, 5, 6, 7, 8), (3, 4), (4, 8)])
@pytest.mark.parametrize("chain", [True, False], ids=["chain", "paths"])
def test_the_bundle_of_a_time_that_goes_back_is_refused(tmp_path: Path, shown: tuple[int, ...], *, chain: bool) -> None:
    """The writer of a ledger made it so; the row is named with the time before, or the day where only that is known."""
    lines = consistent(3, "timestamp", "2026-02-18T10:00:00.000000+00:00")
    if 3 not in shown:
        lines = day_at_the_end(tmp_path / "days.jsonl", "2026-02-17").read_bytes().splitlines(keepends=True)
    path, pieces = write(tmp_path / "ledger.jsonl", lines), list[bytes]()
    wanted = BundleSelection(path, "HO2M:ADMIN", shown, (8, json.loads(lines[7])["chain_hash"]))
    write_bundle(pieces.append, "T-1", "SES-1", [wanted], max_bytes=100_000, chain=chain)
    other = write(tmp_path / "bundle.json", pieces)
    for verdict in (python(other), *node([other])):
        assert f"HO2M:ADMIN entry {4 if 3 in shown else 8}: timestamp: expected not before 2026-02-18T" in verdict


def test_a_line_is_named_with_field_expected_and_found(tmp_path: Path) -> None:
    path = write(tmp_path / "ledger.jsonl", edited(2, b'"a":true', b'"a":null'))
    (line,) = node([path])
    offset = len(LINES[0]) + len(LINES[1])
    assert line.startswith(f"damaged  {path}: line 3 (byte {offset}): entry_hash: expected sha256:6b351f1aac52")
    assert ", found sha256:" in line


# --- signed heads -------------------------------------------------------------------------------------------------------


def resigned(path: Path, signer: Signer, then: Callable[[], object]) -> Path:
    """A ledger that was signed and then changed."""
    write(path, LINES)
    sign_ledger(path, signer, MOMENT)
    then()
    return path


def test_a_signed_ledger_is_right_and_its_key_is_told(tmp_path: Path, signer: Signer) -> None:
    path = resigned(tmp_path / "ledger.jsonl", signer, lambda: None)
    assert refused([path]) == refused([path], signer.public_key) == []
    assert f"entry 8 signed by {signer.signer} (the given key)" in node([path], signer.public_key)[0]
    assert f"entry 8 signed by {signer.signer} (a key it names itself)" in node([path])[0]


def test_another_key_and_a_missing_head_are_refused_where_a_key_is_given(tmp_path: Path, signer: Signer) -> None:
    signed, plain = resigned(tmp_path / "signed.jsonl", signer, lambda: None), write(tmp_path / "plain.jsonl", LINES)
    other = make_key(tmp_path / "other.pem").public_key
    assert refused([signed, plain], other) == [signed, plain]
    assert refused([plain], signer.public_key) == [plain]
    assert refused([plain]) == []


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_a_cut_tail_is_refused_where_the_head_is_signed(tmp_path: Path, signer: Signer, kept: int) -> None:
    path = tmp_path / "ledger.jsonl"
    resigned(path, signer, lambda: path.write_bytes(b"".join(LINES[:kept])))
    assert refused([path]) == [path]
    assert "at least 8 entries" in node([path])[0]
    checkpoint_path(path).unlink()
    assert refused([path]) == []  # the chain alone cannot see it


@pytest.mark.parametrize("first", [0, 3, 7])
def test_a_chain_built_anew_is_refused_by_the_signed_head_alone(tmp_path: Path, signer: Signer, first: int) -> None:
    path = tmp_path / "ledger.jsonl"
    lines = consistent(first, "entity_id", "somebody else")
    resigned(path, signer, lambda: path.write_bytes(b"".join(lines)))
    assert refused([path]) == [path]
    assert ": line 8 (byte " in node([path])[0]
    assert ": chain_hash: expected sha256:75d2b526b5f687cd" in node([path])[0]
    checkpoint_path(path).unlink()
    assert refused([path]) == []


def test_entries_after_the_signed_head_are_no_fault(tmp_path: Path, signer: Signer) -> None:
    path = write(tmp_path / "ledger.jsonl", LINES[:4])
    sign_ledger(path, signer, MOMENT)
    write(path, LINES)
    assert refused([path], signer.public_key) == []


@pytest.mark.hypothesis  # so that the long run changes every byte
def test_every_byte_of_a_signed_head_is_guarded(tmp_path: Path, signer: Signer) -> None:
    """One bit of each, or of every third."""
    draw, paths = random.Random(2), []
    path = resigned(tmp_path / "ledger.jsonl", signer, lambda: None)
    head = checkpoint_path(path).read_bytes()
    for place in range(len(head) - 1, -1, -examples(few=3, many=1)):
        changed = bytearray(head)
        changed[place] ^= 1 << draw.randrange(8)
        copy = write(tmp_path / f"{place}.jsonl", LINES)
        checkpoint_path(copy).write_bytes(changed)
        paths.append(copy)
    assert refused(paths[::4], signer.public_key) == paths[::4]
    assert refused(paths) == paths


def test_what_is_no_signed_head_is_refused(tmp_path: Path, signer: Signer) -> None:
    """Nor does it pass for a ledger without a signed head."""
    path = resigned(tmp_path / "ledger.jsonl", signer, lambda: None)
    head = json.loads(checkpoint_path(path).read_bytes())
    unsigned = {key: head[key] for key in ("chain_hash", "ledger_id", "seq")}
    contents = [b"", b"\n", b"null\n", b"false\n", b"0\n", b'""\n', b"[]\n", b"{}\n", b"undefined\n", b'"no JSON"\n', b"{\n"]
    contents += [canonical_bytes(each) + b"\n" for each in (unsigned, [head], {**head, "more": 1}, {**head, "sig": None})]
    contents += [canonical_bytes({**head, "seq": seq}) + b"\n" for seq in ("8", [8], 8.5, True, 0, -8, None, 7)]
    contents += [canonical_bytes({**head, key: [value]}) + b"\n" for key, value in head.items()]
    contents += [
        canonical_bytes({**head, key: value.upper()}) + b"\n" for key, value in head.items() if key in ("sig", "public_key")
    ]
    contents += [canonical_bytes(head), b" " + canonical_bytes(head) + b"\n", canonical_bytes(head) + b"\n\n"]
    paths = list[Path]()
    for content in contents:
        paths.append(write(tmp_path / f"{len(paths)}.jsonl", LINES))
        checkpoint_path(paths[-1]).write_bytes(content)
    assert refused(paths) == refused(paths, signer.public_key) == paths


def test_nothing_that_a_terminal_would_act_upon_is_printed(tmp_path: Path) -> None:
    for number, lines in enumerate((renamed("A\x1b[2J\u202e"), [b"\x1b]0;title\x07\x9b\r"], [b"{\x1b[2J}\n"])):
        path = write(tmp_path / f"{number}.jsonl", lines)
        checkpoint_path(path).write_bytes(b'{"\x1b[2J')
        assert node([path])[0].isprintable()
        checkpoint_path(path).unlink()
        assert node([path])[0].isprintable()


def test_wrong_usage_is_told_apart_from_a_verdict(tmp_path: Path) -> None:
    key = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    wrong = ("xyz", "", key.upper(), key[:-1], f"{key}00", f"{key}\n")
    keys = [["--public-key", each, str(SAMPLE)] for each in wrong]
    for arguments in ([], ["--help"], ["--key", key, str(SAMPLE)], ["--public-key"], ["--public-key", key], *keys):
        done = run(*arguments)
        assert (done.status, done.stdout) == (2, "")
        assert done.stderr.startswith("usage: ")
    assert node([tmp_path / "missing.jsonl"])[0].startswith("damaged  ")
