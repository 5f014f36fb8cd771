"""`kitchener ledger key`, `checkpoint`, `proof`, and `verify` of what they make (docs/proof.md)."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from kitchener.canonical import digest
from kitchener.context import read_chain
from kitchener.errors import CallerError
from kitchener.ledger.bundles.bundle import BundleSelection, write_bundle
from kitchener.ledger.format.lines import split_line
from kitchener.ledger.verify.checkpoint import checkpoint_path
from kitchener.records.events import SEALED_FIELDS
from kitchener.records.ref import Ref
from kitchener.sealing import Keyring, Sealer
from kitchener.signing import load_signer
from tests.cli.conftest import Cli
from tests.cli.context import contexts
from tests.cli.memory.memories import is_one_line
from tests.cli.shared.commands import read_lines, write_messages
from tests.verifier.kit import relinked, rewritten

HO2M = Path(".kitchener/HO2/ADMIN/ho2m.jsonl")
SETTINGS = '[ledger]\nsigning_key = "keys/signing.pem"\n'


@pytest.fixture
def filled(cli: Cli, tmp_path: Path) -> Cli:
    """The command line, beside ledgers with three turns and a key that signs."""
    (tmp_path / "kitchener.toml").write_text(SETTINGS, encoding="utf-8")
    assert cli("ledger", "key", "--new", "keys/signing.pem").code == 0
    assert cli("run", write_messages(tmp_path / "in", ("a", "hello"), ("b", "hello"), ("a", "more"))).code == 0
    return cli


def turn_ids(tmp_path: Path) -> list[str]:
    lines = read_lines(tmp_path / HO2M)
    return [line["entry"]["entity_id"] for line in lines if line["entry"]["entry_type"] == "TURN_STARTED"]


def test_a_key_is_made_once_and_shown_without_its_private_half(cli: Cli, tmp_path: Path) -> None:
    made = cli("ledger", "key", "--new", "keys/signing.pem")
    assert made.code == 0
    path = tmp_path / "keys/signing.pem"
    signer = load_signer(path)
    assert f"public key  {signer.public_key}" in made.out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (tmp_path / "kitchener.toml").write_text(SETTINGS, encoding="utf-8")
    shown = cli("ledger", "key", "--json")
    assert shown.json == {"path": str(path), "signer": signer.signer, "public_key": signer.public_key}
    secret = path.read_text().splitlines()[1]
    outcomes = [made, shown, cli("config", "show"), cli("doctor"), cli("ledger", "key")]
    assert all(secret not in each.out + each.err for each in outcomes)
    again = cli("ledger", "key", "--new", "keys/signing.pem")
    assert is_one_line(again, 2)
    assert "never replaced" in again.err


@pytest.mark.parametrize("command", [["key"], ["checkpoint"]])
def test_without_a_key_the_commands_say_how_to_get_one(cli: Cli, command: list[str]) -> None:
    outcome = cli("ledger", *command)
    assert is_one_line(outcome, 2)
    assert "kitchener ledger key --new PATH" in outcome.err


def test_checkpoint_signs_every_head_and_verify_checks_them(filled: Cli, tmp_path: Path) -> None:
    outcome = filled("ledger", "checkpoint", "--json")
    assert outcome.code == 0
    public_key = load_signer(tmp_path / "keys/signing.pem").public_key
    head = next(each for each in outcome.json["heads"] if each["ledger_id"] == "HO2M:ADMIN")
    last = read_lines(tmp_path / HO2M)[-1]
    assert (head["seq"], head["chain_hash"], head["public_key"]) == (last["seq"], last["chain_hash"], public_key)
    assert "signed   " in filled("ledger", "checkpoint").out
    verified = filled("ledger", "verify", "--public-key", public_key, "--json")
    assert verified.code == 0
    signed = {each["ledger_id"]: each["checkpoint"] for each in verified.json["ledgers"] if each["entries"]}
    assert signed["HO2M:ADMIN"] == {key: value for key, value in head.items() if key != "path"}
    assert None not in signed.values()
    assert f"; entry {last['seq']} signed by ed25519:" in filled("ledger", "verify").out


def test_a_cut_tail_is_refused_by_verify_checkpoint_and_the_next_run(filled: Cli, tmp_path: Path) -> None:
    filled("ledger", "checkpoint")
    path = tmp_path / HO2M
    lines = path.read_bytes().splitlines(keepends=True)
    commits = [n for n, line in enumerate(read_lines(path), 1) if line["batch"][1] == line["batch"][2]]
    path.write_bytes(b"".join(lines[: commits[-2]]))
    for index in (tmp_path / ".kitchener/index").iterdir():
        index.unlink()
    verified = filled("ledger", "verify", "--json")
    assert verified.code == 6
    (fault,) = [each["fault"] for each in verified.json["ledgers"] if each["fault"]]
    assert (fault["line"], fault["field"]) == (commits[-2] + 1, "end")
    assert f"at least {len(lines)} entries" in fault["expected"]
    signed = filled("ledger", "checkpoint")
    assert signed.code == 6
    assert "damaged  " in signed.out
    assert filled("run", "in").code == 6


def test_another_public_key_is_refused_and_a_wrong_one_is_a_mistake(filled: Cli) -> None:
    filled("ledger", "checkpoint")
    assert filled("ledger", "verify", "--public-key", "00" * 32).code == 6
    assert is_one_line(filled("ledger", "verify", "--public-key", "abc"), 2)


def test_a_bundle_can_hold_what_shaped_the_requests(filled: Cli, tmp_path: Path) -> None:
    """The hash that the turn names is that of the configuration in the bundle; without the option nothing of it is there."""
    (turn, *_) = turn_ids(tmp_path)
    for name, options in (("plain.json", ()), ("whole.json", ("--sources",))):
        assert filled("ledger", "proof", turn, "-o", name, *options).code == 0
        assert filled("ledger", "verify", name).code == 0
    plain, whole = (_shown(tmp_path / name) for name in ("plain.json", "whole.json"))
    assert "SOURCE_RECORDED" not in {each["entry_type"] for each in plain}
    sources = {each["payload"]["hash"]: each["payload"] for each in whole if each["entry_type"] == "SOURCE_RECORDED"}
    (started,) = [each["payload"] for each in whole if each["entry_type"] == "TURN_STARTED"]
    configuration = sources[started["config_hash"]]
    assert digest(configuration["text"].encode()) == configuration["hash"]
    named = json.loads(configuration["text"])
    assert {each["hash"] for each in (*named["prompts"], *named["attention_templates"], *named["tools"])} < sources.keys()


def test_a_bundle_of_a_late_turn_is_no_larger(cli: Cli, tmp_path: Path) -> None:
    """Its projection is recorded as a change of earlier ones; those are there where one asks for what shaped the request."""
    cli("init", ".")
    session = contexts.talk(cli, *(f"and hotel number {n} in Oslo?" for n in range(40)))
    sizes, projections = list[int](), list[int]()
    for number, options in ((20, ()), (40, ()), (40, ("--sources",))):
        assert cli("ledger", "proof", contexts.turn(session, number), "-o", "evidence.json", *options).code == 0
        assert cli("ledger", "verify", "evidence.json").code == 0
        sizes.append((tmp_path / "evidence.json").stat().st_size)
        shown = _shown(tmp_path / "evidence.json")
        projections.append(sum(each["entry_type"] == "PROJECTION_COMPUTED" for each in shown))
    assert sizes[1] < sizes[0] + 10 * 80  # a hash is about 75 bytes, and a path a little longer
    assert projections[:2] == [1, 1]
    assert projections[2] > 25, "each is a change of the one before"


def test_a_projection_that_is_a_change_of_itself_gives_no_bundle(cli: Cli, tmp_path: Path) -> None:
    """Nobody but a forger writes one. Regression: the proof followed it for ever."""
    cli("init", ".")
    session = contexts.talk(cli, "hello", "and again", "and once more", "and a last time")
    path = next((tmp_path / ".kitchener").glob("**/ADMIN/context.jsonl"))
    lines = path.read_bytes().splitlines()
    forged = max(n for n, line in enumerate(lines) if b'"PROJECTION_COMPUTED"' in line)
    own = split_line(lines[forged])
    assert own is not None

    def name_itself(fields: dict[str, Any]) -> None:
        base = fields["payload"]["eligible_refs"]["base"]
        base["entry_id"] = own.entry_id

    lines[forged] = rewritten(lines[forged], name_itself)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    path.write_bytes(b"".join(line + b"\n" for line in relinked(lines, "0" * 64)))
    for index in (tmp_path / ".kitchener/index").iterdir():
        index.unlink()
    outcome = cli("ledger", "proof", contexts.turn(session, 4), "-o", "evidence.json", "--sources")
    assert is_one_line(outcome, 6)
    assert "projection_ref: expected" in outcome.err


def _shown(path: Path) -> list[dict[str, Any]]:
    """The entries of a bundle that have a body, opened with the keys of the root."""
    sealer, found = Sealer(Keyring(".kitchener.keys"), SEALED_FIELDS), list[dict[str, Any]]()
    for part in json.loads(path.read_bytes())["ledgers"]:
        for entry in (json.loads(row[5]) for row in part["rows"] if len(row) == 6):
            entry["payload"] = sealer.open(part["ledger_id"], entry["entry_type"], entry["payload"])
            found.append(entry)
    return found


def test_proof_writes_a_bundle_that_verify_takes(filled: Cli, tmp_path: Path) -> None:
    filled("ledger", "checkpoint")
    (turn, *_) = turn_ids(tmp_path)
    outcome = filled("ledger", "proof", turn, "-o", "evidence.json", "--json")
    assert outcome.code == 0
    path = tmp_path / "evidence.json"
    assert outcome.json["bytes"] == path.stat().st_size
    assert outcome.json["signed"] is True
    assert [each["ledger_id"] for each in outcome.json["ledgers"]] == ["HO2M:ADMIN", "HO1M:ADMIN"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    public_key = load_signer(tmp_path / "keys/signing.pem").public_key
    verified = filled("ledger", "verify", path, "--public-key", public_key, "--json")
    assert (verified.code, verified.json["ok"], verified.json["turn_id"]) == (0, True, turn)
    assert verified.json["entries"] == outcome.json["entries"]
    assert all("(the given key)" in head for head in verified.json["heads"])
    path.write_bytes(path.read_bytes().replace(b"TURN_STARTED", b"TURN_STERTED", 1))
    damaged = filled("ledger", "verify", path)
    assert damaged.code == 6
    assert damaged.out.startswith(f"damaged  {path}: ")


def test_a_bundle_names_the_imported_messages_that_a_turn_showed(filled: Cli, tmp_path: Path) -> None:
    """Those of the turn's subject, as any earlier turn, and none of another subject; the bundle verifies."""
    (tmp_path / "kitchener.toml").write_text(f'{SETTINGS}[agents.ADMIN]\ncontext_mode = "enforce"\nrecall_scope = "subject"\n')
    for subject, text in (("ada", "The choir sings in the old mill"), ("bo", "The choir sings in the new barn")):
        said = {"session": subject, "messages": [{"role": "user", "content": text, "speaker": "Ann", "time": "2024-05-08"}]}
        (tmp_path / f"{subject}.jsonl").write_text(json.dumps(said) + "\n")
        assert filled("session", "import", f"{subject}.jsonl", "--subject", f"of {subject}").code == 0
    assert filled("run", write_messages(tmp_path / "asked", ("ada", "where does the choir sing?"))).code == 0
    filled("ledger", "checkpoint")
    assert filled("ledger", "proof", turn_ids(tmp_path)[-1], "-o", "evidence.json").code == 0
    shown = _shown(tmp_path / "evidence.json")
    (projection,) = [each["payload"] for each in shown if each["entry_type"] == "PROJECTION_COMPUTED"]
    visible = {ref.entry_id.rpartition("-")[2] for ref in read_chain(projection, {}, dict[Ref, Any]().__getitem__).visible}
    imported = [line["seq"] for line in read_lines(tmp_path / HO2M) if line["entry"]["entry_type"] == "MESSAGE_IMPORTED"]
    assert [seq in map(int, visible) for seq in imported] == [True, False]
    assert "MESSAGE_IMPORTED" not in [each["entry_type"] for each in shown], "what earlier turns said is not disclosed"
    assert b"old mill" not in (tmp_path / "evidence.json").read_bytes()
    public_key = load_signer(tmp_path / "keys/signing.pem").public_key
    assert filled("ledger", "verify", "evidence.json", "--public-key", public_key).code == 0


def test_without_a_signature_it_says_so_plainly(filled: Cli, tmp_path: Path) -> None:
    (turn, *_) = turn_ids(tmp_path)
    outcome = filled("ledger", "proof", turn)
    assert outcome.code == 0
    assert "NOT signed" in outcome.out
    verified = filled("ledger", "verify", f"{turn}.proof.json")
    assert verified.code == 0
    assert "nobody, its head is not signed" in verified.out
    key = load_signer(tmp_path / "keys/signing.pem").public_key
    assert filled("ledger", "verify", f"{turn}.proof.json", "--public-key", key).code == 6


def test_a_single_entry_is_not_told_as_several(cli: Cli, tmp_path: Path) -> None:
    """Regression: "1 entries from 1 on"."""
    (tmp_path / "kitchener.toml").write_text('[agents.ADMIN]\ncontext_mode = "enforce"\n', encoding="utf-8")
    cli("run", write_messages(tmp_path / "in", ("a", "hello")))
    told = cli("ledger", "proof", turn_ids(tmp_path)[0]).out.splitlines()
    (line,) = (each for each in told if each.startswith("  CONTEXT:ADMIN"))
    assert line.split()[1:] == ["1", "entry", "from", "1", "on,", "head", "1", "NOT", "signed"]


def test_a_head_that_was_signed_before_the_turn_does_not_vouch_for_it(filled: Cli, tmp_path: Path) -> None:
    filled("ledger", "checkpoint")
    filled("run", write_messages(tmp_path / "in2", ("late", "hello")))
    outcome = filled("ledger", "proof", turn_ids(tmp_path)[-1], "--json")
    assert outcome.json["signed"] is False


def test_what_is_sealed_stays_sealed(cli: Cli, tmp_path: Path) -> None:
    """The bundle verifies, whether its reader has a key or the subject's was destroyed."""
    (tmp_path / "kitchener.toml").write_text('[ledger]\nkeyring = "subjects"\n', encoding="utf-8")
    cli("run", write_messages(tmp_path / "in", ("a", "my pin is four seven")))
    (turn,) = turn_ids(tmp_path)
    assert cli("ledger", "proof", turn, "-o", "one.json").code == 0
    Keyring(tmp_path / "subjects").destroy("of a")
    assert cli("ledger", "proof", turn, "-o", "two.json").code == 0
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert "four seven" not in (tmp_path / "one.json").read_text()
    assert cli("ledger", "verify", "one.json").code == 0


def test_a_damaged_ledger_gives_no_bundle(filled: Cli, tmp_path: Path) -> None:
    (turn, *_) = turn_ids(tmp_path)
    filled("ledger", "checkpoint")
    path = tmp_path / ".kitchener/HO1/ADMIN/ho1m.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"finish_reason":"stop"', b'"finish_reason":"stOp"', 1))
    outcome = filled("ledger", "proof", turn, "-o", "evidence.json")
    assert is_one_line(outcome, 6)
    assert not (tmp_path / "evidence.json").exists()
    assert sorted(each.name for each in tmp_path.glob(".evidence*")) == []


def _with_another_digit(found: re.Match[bytes]) -> bytes:
    return found[1] + (b"1" if found[2] == b"0" else b"0")


def test_a_chain_that_does_not_hold_gives_no_bundle(filled: Cli, tmp_path: Path) -> None:
    """Each entry fits its own hash, so only the bundle's own verification finds it."""
    (turn, *_) = turn_ids(tmp_path)
    path = tmp_path / HO2M
    lines = path.read_bytes().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if b'"SESSION_START"' in line)
    lines[first] = re.sub(rb'("chain_hash":"sha256:)(.)', _with_another_digit, lines[first], count=1)
    path.write_bytes(b"".join(lines))
    outcome = filled("ledger", "proof", turn, "-o", "evidence.json")
    assert is_one_line(outcome, 6)
    assert "chain_hash" in outcome.err
    assert "no bundle was written" in outcome.err
    assert sorted(each.name for each in tmp_path.glob("*evidence*")) == []


@pytest.mark.parametrize(
    ("turn", "more", "code", "words"),
    [
        ("T-1", [], 2, "is not a turn id"),
        ("T-00000000-000001", [], 1, "SES-00000000"),
        ("LAST", [], 1, "has no turn"),
        ("FIRST", ["-o", "no/such/place"], 2, "--out"),
    ],
)
def test_what_cannot_be_proven_is_told(filled: Cli, tmp_path: Path, turn: str, more: list[str], code: int, words: str) -> None:
    first = turn_ids(tmp_path)[0]
    given = {"FIRST": first, "LAST": f"{first[:-6]}000099"}.get(turn, turn)
    outcome = filled("ledger", "proof", given, *more)
    assert is_one_line(outcome, code)
    assert words in outcome.err


def test_a_bundle_that_grows_too_large_is_not_written(filled: Cli, tmp_path: Path) -> None:
    path, pieces = tmp_path / HO2M, list[bytes]()
    last = read_lines(path)[-1]
    wanted = BundleSelection(path, "HO2M:ADMIN", (1, 2), (last["seq"], last["chain_hash"]))
    write_bundle(pieces.append, "T-1", "SES-1", [wanted], max_bytes=100_000)
    size = sum(map(len, pieces))
    write_bundle(pieces.append, "T-1", "SES-1", [wanted], max_bytes=size)
    with pytest.raises(CallerError, match=r"larger than .* bytes: give a higher --max-mib"):
        write_bundle(pieces.append, "T-1", "SES-1", [wanted], max_bytes=size - 1)
    assert is_one_line(filled("ledger", "proof", turn_ids(tmp_path)[0], "--max-mib", "0"), 2)


def test_a_checkpoint_is_no_ledger(filled: Cli, tmp_path: Path) -> None:
    before = len(filled("ledger", "verify", "--json").json["ledgers"])
    filled("ledger", "checkpoint")
    assert checkpoint_path(tmp_path / HO2M).exists()
    assert len(filled("ledger", "verify", "--json").json["ledgers"]) == before


def test_a_new_key_is_named_so_that_the_settings_find_it(cli: Cli, tmp_path: Path) -> None:
    """Wherever they are: a relative path in them starts at their folder."""
    settings = tmp_path / "etc/agent.toml"
    settings.parent.mkdir()
    made = cli("ledger", "key", "--new", "signing.pem", "--config", settings).out
    assert f"Use it in {settings}:" in made
    settings.write_text(made.partition(":\n\n")[2], encoding="utf-8")
    assert cli("config", "check", "--config", settings).code == 0
