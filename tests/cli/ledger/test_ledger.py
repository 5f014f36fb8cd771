"""`kitchener ledger` and `kitchener doctor` (docs/commands.md)."""

import shutil
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from kitchener.ledger.disk.manifests import folder_of
from tests.acceptance.sessions.test_full_queues import SHORT_S, crowd
from tests.cli.conftest import Cli
from tests.cli.memory.gates import ASK, Gate
from tests.cli.shared.commands import finish, read_lines, start, write_messages
from tests.cli.shared.permissions import deny

SEGMENTED = Path(__file__).resolve().parents[2] / "vectors" / "segmented_with_trees"
HO2M = Path(".kitchener/HO2/ADMIN/ho2m.jsonl")


@pytest.fixture
def filled(cli: Cli, tmp_path: Path) -> Cli:
    """The command line, beside ledgers with two turns."""
    cli("run", write_messages(tmp_path / "in", ("a", "hello"), ("b", "hello")))
    return cli


def test_verify_checks_every_ledger_under_the_root(filled: Cli, tmp_path: Path) -> None:
    outcome = filled("ledger", "verify", "--json")
    assert outcome.code == 0
    assert outcome.json["ok"] is True
    by_id = {each["ledger_id"]: each for each in outcome.json["ledgers"]}
    lines = read_lines(tmp_path / HO2M)
    ho2m = by_id["HO2M:ADMIN"]
    assert ho2m["entries"] == len(lines) > 10
    assert ho2m["head"] == lines[-1]["chain_hash"]
    assert ho2m["batches"] == lines[-1]["batch"][0]
    assert ho2m["fault"] is None
    assert by_id["HO1M:ADMIN"]["ok"] is True
    text = filled("ledger", "verify").out
    assert f"ok       {tmp_path / HO2M}: {len(lines)} entries, head {lines[-1]['chain_hash']}, " in text


def test_a_ledger_that_may_not_be_read_is_not_called_damaged(
    filled: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it was, and the exit code was 6."""
    deny(monkeypatch, tmp_path / HO2M, "open")
    outcome, text = filled("ledger", "verify", "--json"), filled("ledger", "verify")
    assert (outcome.code, outcome.json["ok"], text.code) == (2, False, 2)
    problem = "permission denied; give this user the right to read and write it"
    assert outcome.json["unread"] == [{"path": str(tmp_path / HO2M), "problem": problem}]
    assert all(each["ok"] for each in outcome.json["ledgers"])
    assert text.out.splitlines()[-1] == f"unread   {tmp_path / HO2M}: {problem}"
    assert filled("ledger", "verify", ".kitchener/HO2").code == 2
    with HO2M.with_name("context.jsonl").open("ab") as other:
        other.write(b"damage\n")
    assert filled("ledger", "verify").code == 6


def test_a_head_of_a_ledger_that_may_not_be_read_is_not_signed(
    filled: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the ledger was called damaged, with exit code 6."""
    filled("ledger", "key", "--new", "signing.pem")
    monkeypatch.setenv("KITCHENER_LEDGER__SIGNING_KEY", str(tmp_path / "signing.pem"))
    deny(monkeypatch, tmp_path / HO2M, "open")
    outcome = filled("ledger", "checkpoint")
    assert outcome.code == 2
    assert outcome.out.splitlines()[-1].startswith(f"unread   {tmp_path / HO2M}: permission denied; ")


@pytest.mark.parametrize("command", ["ledger verify", "ledger verify .kitchener", "audit leaks", "mcp list"])
def test_a_folder_that_may_not_be_read_is_not_passed_over(
    filled: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Regression: its ledgers were left out without a word."""
    others = tmp_path / ".kitchener/HO2/OTHER"
    shutil.copytree(tmp_path / HO2M.parent, others)
    deny(monkeypatch, others, "scandir", "stat")
    outcome = filled(*command.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.endswith(": permission denied; run this command as a user who has access\n")
    assert ".kitchener/HO2/OTHER" in outcome.err


def test_verify_names_files_that_are_no_ledgers_and_finds_no_damage_in_them(filled: Cli, tmp_path: Path) -> None:
    """An export beside the ledgers, in the root or deep in it."""
    strays = [tmp_path / ".kitchener/export.jsonl", tmp_path / ".kitchener/HO2/ADMIN/chats.jsonl"]
    for each in strays:
        each.write_text('{"conversation": "a", "message": "hello"}\n')
    outcome, text = filled("ledger", "verify", "--json"), filled("ledger", "verify")
    assert (outcome.code, outcome.json["ok"], text.code) == (0, True, 0)
    assert outcome.json["skipped"] == sorted(map(str, strays))
    assert not {str(each) for each in strays} & {each["path"] for each in outcome.json["ledgers"]}
    assert [line for line in text.out.splitlines() if line.startswith("skipped")] == [
        f"skipped  {each}: not a ledger, because it does not begin like one" for each in sorted(strays)
    ]
    assert filled("audit", "leaks").code == 0
    alone = tmp_path / "exports"
    alone.mkdir()
    (alone / "chats.jsonl").write_text("{}\n")
    only = filled("ledger", "verify", alone)
    assert (only.code, only.out.splitlines()[0].split()[0]) == (1, "skipped")


@pytest.mark.parametrize("name", ["ho2m.jsonl", "renamed.jsonl"])
def test_a_ledger_with_another_first_byte_is_damaged_and_not_skipped(filled: Cli, tmp_path: Path, name: str) -> None:
    """By its name, or by the signed head beside it."""
    path = (tmp_path / HO2M).with_name(name)
    path.write_bytes(b"x" + (tmp_path / HO2M).read_bytes()[1:])
    if name != HO2M.name:
        path.with_name(f"{name}.checkpoint").write_text("{}")
    outcome = filled("ledger", "verify", "--json")
    assert (outcome.code, outcome.json["skipped"]) == (6, [])
    assert [each["path"] for each in outcome.json["ledgers"] if not each["ok"]] == [str(path)]


def test_a_copied_ledger_is_verified_whatever_its_name(filled: Cli, tmp_path: Path) -> None:
    copy, lines = tmp_path / ".kitchener/copy.jsonl", (tmp_path / HO2M).read_bytes()
    copy.write_bytes(lines)
    assert str(copy) in [each["path"] for each in filled("ledger", "verify", "--json").json["ledgers"]]
    copy.write_bytes(lines.replace(b"TURN_STARTED", b"TURN_STERTED", 1))
    assert filled("ledger", "verify").code == 6


def test_verify_can_be_shared_between_processes(filled: Cli, tmp_path: Path) -> None:
    """What is found is the same; short ledgers are one chunk, and no process is started for them."""
    alone, shared = filled("ledger", "verify", "--json"), filled("ledger", "verify", "--jobs", "2", "--json")
    assert shared.code == 0
    for one, other in zip(alone.json["ledgers"], shared.json["ledgers"], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert filled("ledger", "verify", "--jobs", "0").code == 2


def test_verify_names_where_a_ledger_was_changed_and_by_what(filled: Cli, tmp_path: Path) -> None:
    """Exit code 6: file, line, byte offset, field, and what was expected and found."""
    path = tmp_path / HO2M
    lines = path.read_bytes().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if b'"entry_type":"TURN_STARTED"' in line)
    lines[number] = lines[number].replace(b'"entry_type":"TURN_STARTED"', b'"entry_type":"TURN_STERTED"')
    path.write_bytes(b"".join(lines))
    outcome = filled("ledger", "verify", path, "--json")
    assert outcome.code == 6
    (report,) = outcome.json["ledgers"]
    fault = report["fault"]
    assert (report["path"], report["ok"], report["entries"]) == (str(path), False, number)
    assert (fault["line"], fault["offset"]) == (number + 1, sum(map(len, lines[:number])))
    assert fault["field"] == "entry_hash"
    assert fault["expected"] != fault["found"]
    text = filled("ledger", "verify")
    assert text.code == 6
    assert f"damaged  {path}: line {number + 1} (byte {fault['offset']}): entry_hash: expected " in text.out
    assert f"ok       {tmp_path / '.kitchener/HO1/ADMIN/ho1m.jsonl'}: " in text.out


@pytest.mark.parametrize(
    "command", [["session", "list"], ["ledger", "tail"], ["run", "in"], ["session", "end", "SES-00000000"]]
)
def test_a_damaged_ledger_is_refused_by_every_command(filled: Cli, tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / HO2M
    filled("run", write_messages(tmp_path / "more", ("c", "hello")))  # the last commit of a file may be what a crash left
    data = bytearray(path.read_bytes())
    data[data.index(b"SESSION_START")] ^= 1
    path.write_bytes(data)
    for index in (tmp_path / ".kitchener/index").iterdir():
        index.unlink()
    outcome = filled(*command)
    assert (outcome.code, outcome.out) == (6, "")
    assert outcome.err.startswith(f"kitchener: {path}: line ")


@pytest.mark.parametrize("trace", ["segments", "signed head", "index"])
def test_a_ledger_whose_file_was_removed_is_damaged_and_not_passed_over(filled: Cli, tmp_path: Path, trace: str) -> None:
    """Without its file, a ledger was in no list, so its removal was no finding."""
    ho1m, indexes = tmp_path / HO2M.parents[2] / "HO1/ADMIN/ho1m.jsonl", list((tmp_path / ".kitchener/index").iterdir())
    ho1m.unlink()
    if trace != "index":
        for each in indexes:
            each.unlink()
    if trace == "segments":
        ho1m.with_name("ho1m.jsonl.segments").mkdir()
    elif trace == "signed head":
        ho1m.with_name("ho1m.jsonl.checkpoint").write_text("{}", encoding="utf-8")
    outcome = filled("ledger", "verify", "--json")
    damaged = [each["path"] for each in outcome.json["ledgers"] if not each["ok"]]
    assert (outcome.code, damaged) == (6, [str(ho1m)])
    if trace != "index":
        assert filled("ledger", "verify", ".kitchener/HO1").code == 6
    told = next(line for line in filled("ledger", "verify").out.splitlines() if "ho1m" in line)
    assert told.startswith("damaged  ")
    doctor = filled("doctor")
    assert doctor.code == 1
    assert any(line.split()[:3] == ["fail", "ho1m", "ADMIN"] and "its file is gone" in line for line in doctor.out.splitlines())


def test_verify_takes_one_file_a_directory_or_nothing(filled: Cli, tmp_path: Path) -> None:
    assert len(filled("ledger", "verify", HO2M, "--json").json["ledgers"]) == 1
    assert len(filled("ledger", "verify", tmp_path / ".kitchener/HO2", "--json").json["ledgers"]) == 2
    (tmp_path / "empty").mkdir()
    assert filled("ledger", "verify", "--root", "empty").out == "no ledgers yet\n"


@pytest.mark.parametrize(("arguments", "words"), [(["no.jsonl"], "no.jsonl"), (["--root", "no"], "--root = 'no'")])
def test_verify_of_what_is_not_there_is_a_mistake(cli: Cli, arguments: list[str], words: str) -> None:
    outcome = cli("ledger", "verify", *arguments)
    assert outcome.code == 2
    assert words in outcome.err


def test_tail_gives_the_newest_entries_in_order(filled: Cli, tmp_path: Path) -> None:
    stored = read_lines(tmp_path / HO2M)
    entries = filled("ledger", "tail", "-n", "4", "--json").json
    assert [each["seq"] for each in entries] == [line["seq"] for line in stored[-4:]]
    assert [each["entry_hash"] for each in entries] == [line["entry_hash"] for line in stored[-4:]]
    assert entries[-1]["payload"] == stored[-1]["entry"]["payload"]
    text = filled("ledger", "tail", "-n", "1").out
    assert f"{stored[-1]['seq']}  {entries[-1]['timestamp'][:23]}  TURN_COMPLETED     {entries[-1]['entity_id']}\n" in text


def test_tail_filters_by_type_and_reads_other_ledgers(filled: Cli) -> None:
    calls = filled("ledger", "tail", "--ledger", "ho1m", "--type", "LLM_CALL", "--json").json
    assert [each["entry_type"] for each in calls] == ["LLM_CALL"] * 4


def test_tail_of_no_ledger_says_so(cli: Cli) -> None:
    outcome = cli("ledger", "tail")
    assert outcome.code == 1
    assert "this ledger does not exist yet" in outcome.err


def test_a_held_ledger_stops_writers_with_its_holder_and_no_reader(cli: Cli, tmp_path: Path) -> None:
    """Exit code 7 names the process; reading commands work beside it."""
    gate = Gate(tmp_path)
    write_messages(tmp_path / "in", ("a", "hello"), ("a", ASK))
    process = start("run", "in", cwd=tmp_path)
    gate.wait_until_reached(process)
    try:
        locked = finish(start("chat", cwd=tmp_path), "hello\n")
        assert (locked.code, locked.out) == (7, "")
        assert f"process {process.pid}" in locked.err
        assert locked.err.count("\n") == 1
        (session,) = cli("session", "list", "--json").json
        first, second = cli("session", "show", session["session_id"], "--json").json["turns"]
        assert (first["state"], second["state"]) == ("completed", "open")
        assert cli("ledger", "verify").code == 0
        assert f"in use by process {process.pid}" in cli("doctor").out
    finally:
        gate.let_pass()
    assert finish(process).code == 0


class TestDoctor:
    def test_a_fresh_machine_is_in_order_and_stays_as_it_is(self, cli: Cli, tmp_path: Path) -> None:
        outcome = cli("doctor", "--json")
        assert outcome.code == 0
        found = {each["what"]: each for each in outcome.json["findings"]}
        assert {each["state"] for each in found.values()} <= {"ok", "warn"}
        assert found["settings"]["detail"].startswith("embedded defaults")
        assert found["provider offline"]["detail"] == "offline, 64 calls at once, 64 may wait, default"
        assert " ms for 4096 bytes" in found["sync"]["detail"]
        assert list(tmp_path.iterdir()) == []

    def test_it_names_each_ledgers_head(self, filled: Cli, tmp_path: Path) -> None:
        head = read_lines(tmp_path / HO2M)[-1]["chain_hash"]
        found = {each["what"]: each["detail"] for each in filled("doctor", "--json").json["findings"]}
        assert f"head {head[:19]}…, not in use" in found["ho2m ADMIN"]
        assert found["load ADMIN"].startswith("0 of the newest ")

    def test_the_size_of_a_ledger_has_its_finished_segments(self, cli: Cli) -> None:
        shutil.copytree(SEGMENTED, HO2M.parent)
        (HO2M.parent / "ledger.jsonl").rename(HO2M)
        folder = folder_of(HO2M)
        folder.with_name(f"ledger.jsonl{folder.suffix}").rename(folder)
        size = HO2M.stat().st_size + sum(each.stat().st_size for each in folder.iterdir())
        found = {each["what"]: each["detail"] for each in cli("doctor", "--json").json["findings"]}
        assert f"14 entries, {size:,} bytes, " in found["ho2m ADMIN"]

    def test_it_counts_the_turns_that_met_a_full_queue(self, cli: Cli, tmp_path: Path) -> None:
        async def overload() -> None:
            async with crowd(
                tmp_path / ".kitchener", places=1, gateway_queue=1, max_running_turns=3, max_waiting_turns=1
            ) as found:
                found.send(2)
                await found.until((1, 1, 0))
                found.tasks.start_soon(found.send_one, "late", SHORT_S)
                await found.until((1, 1, 1))
                found.send(2)
                with anyio.fail_after(30):
                    while found.ends["Overloaded"] + found.ends["TurnOverloaded"] < 2:  # noqa: ASYNC110  the turns' own tasks keep the ends, without an event
                        await anyio.sleep(0.01)

        anyio.run(overload)
        outcome = cli("doctor")
        assert outcome.code == 0
        words = "2 of the newest 5 turns found a full queue: 1 refused, 1 cut off at their deadline"
        assert "warn  load ADMIN" in outcome.out
        assert words in outcome.out
        found = {each["what"]: each for each in cli("doctor", "--json").json["findings"]}
        assert found["load ADMIN"] == {"what": "load ADMIN", "state": "warn", "detail": words}

    def test_it_fails_where_settings_are_wrong(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "kitchener.toml").write_text("[ledger]\nx = 1\n", encoding="utf-8")
        outcome = cli("doctor", "--json")
        assert outcome.code == 1
        assert outcome.json["ok"] is False
        assert {"what": "settings", "state": "fail"}.items() <= outcome.json["findings"][-1].items()

    def test_it_fails_where_a_key_is_missing(self, cli: Cli, tmp_path: Path) -> None:
        text = '[router.providers.p]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\napi_key = "env:NO_SUCH_KEY"\n'
        (tmp_path / "kitchener.toml").write_text(text, encoding="utf-8")
        outcome = cli("doctor")
        assert outcome.code == 1
        assert "fail  references" in outcome.out
        assert "environment variable NO_SUCH_KEY is not set" in outcome.out

    def test_it_fails_where_the_root_is_a_file(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "root").write_text("")
        outcome = cli("doctor", "--root", "root")
        assert outcome.code == 1
        assert "--root = 'root': is a file; name a directory" in outcome.out


def test_a_file_that_is_no_ledger_is_told_without_the_id_of_one(cli: Cli) -> None:
    """Regression: it named an entry of a ledger without a name."""
    Path("letter").write_text("Dear Ada,\n", encoding="utf-8")
    outcome = cli("ledger", "verify", "letter")
    assert outcome.code == 6
    assert "framing: expected entry 1 on a line of its own, found " in outcome.out
