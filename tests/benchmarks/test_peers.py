"""`make peers`: what it compares, and what it says where it cannot. The other runtimes are stood in for by a small script."""

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from benchmarks import peers

ROOT = Path(__file__).parents[2]
INTERPRETER = """
import json, sys
if sys.argv[1] == "-c":
    print(json.dumps({{name: None if name in {missing!r} else "1.2.3" for name in sys.argv[3:]}}))
else:
    {runs}
"""
MEASURES = 'print(json.dumps({"cpu_us_per_turn": 1e6 + ("--url" in sys.argv) + 2 * ("--streamed" in sys.argv)}))'


def peer_python(folder: Path, *, runs: str = MEASURES, missing: tuple[str, ...] = ()) -> Path:
    """What stands in for the interpreter that has the other runtimes."""
    script, path = folder / "peer.py", folder / "peer-python"
    script.write_text(INTERPRETER.format(runs=runs, missing=missing), encoding="utf-8")
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(script))} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def command(python: Path, *arguments: str) -> list[str]:
    """Few and short runs."""
    few = ("--sessions", "2", "--turns", "1", "--rounds", "1")
    return [sys.executable, "-m", "benchmarks.peers", "--peer-python", str(python), *few, *arguments]


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(python, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


OURS = ("Kitchener", "Kitchener as init sets it up", "Kitchener, scripted model")
"""Its rows over HTTP."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ours", [OURS[1:], pytest.param(OURS, marks=pytest.mark.soak)], ids=["two", "all"])
def test_turns_over_http_stand_beside_the_engine_alone_and_the_settings_of_init(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ours: tuple[str, ...]
) -> None:
    """Kitchener's rows are real turns; a peer is asked to call the endpoint, and to stream. `make test` leaves out one row."""
    name, planned = "AutoGen core 1.2.3", peers.planned
    monkeypatch.setattr(peers, "planned", lambda *given: [each for each in planned(*given) if each.runtime in (*ours, name)])
    options = command(peer_python(tmp_path), "--json", "--wire", "streamed", "--only", "autogen")[3:]
    monkeypatch.setattr(sys, "argv", ["peers", *options])
    peers.main()
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    assert [(each["runtime"], each["wire"]) for each in found] == [(each, "streamed") for each in (*ours, name)]
    costs = [each["cpu_us_per_turn"] for each in found]
    assert costs[-1] == 1e6 + 1 + 2
    assert all(cost > 0 for cost in costs)
    assert [each["times_kitchener"] for each in found] == [pytest.approx(cost / costs[0]) for cost in costs]


def test_without_http_every_model_answers_within_the_process() -> None:
    options = peers.parse(["--peer-python", "python", "--only", "pydantic-ai"])
    planned = peers.planned(options, {"pydantic-ai": "1.2.3"}, None, "folder")
    assert [(each.runtime, each.wire, each.keeps) for each in planned] == [
        ("Kitchener", None, "all records; synced"),
        ("Kitchener as init sets it up", None, "all records; synced"),
        ("Pydantic AI 1.2.3", None, "messages; synced"),
    ]
    assert not {"--url", "--wire", "--streamed"} & {word for each in planned for word in each.command}


def test_a_peer_that_is_not_installed_is_named_before_anything_runs(tmp_path: Path) -> None:
    python = peer_python(tmp_path, missing=("aiosqlite",))
    done = run(python)
    assert done.returncode == 1
    assert "pydantic-ai needs aiosqlite" in done.stderr
    assert "--only langgraph agent-framework autogen" in done.stderr
    assert ("round" in done.stderr, "Traceback" in done.stderr) == (False, False)
    nowhere = run(tmp_path / "nowhere")
    assert (nowhere.returncode, "cannot run the interpreter" in nowhere.stderr) == (1, True)


def test_a_run_that_fails_is_shown_with_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = peer_python(tmp_path, runs='sys.exit("the store is broken")')
    options = peers.parse(["--peer-python", str(python), "--only", "agent-framework", "--dir", str(tmp_path)])
    planned = peers.planned
    monkeypatch.setattr(peers, "planned", lambda *given: planned(*given)[-1:])  # the runs before it take seconds
    with pytest.raises(SystemExit, match=r"Agent Framework 1\.2\.3 failed: (?s:.*)the store is broken"):
        anyio.run(peers.measure, options)


@pytest.mark.timeout(300)
def test_an_interrupt_stops_what_runs_and_leaves_no_files(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    python = peer_python(tmp_path)
    many = ("--sessions", "100000", "--only", "autogen", "--wire", "whole", "--dir", str(files))
    with subprocess.Popen(command(python, *many), cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        give_up = time.monotonic() + 120
        while not list(files.glob("*/*")):  # the first run writes there
            assert (process.poll(), time.monotonic() < give_up) == (None, True)
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert (process.returncode, said.splitlines()[-1], list(files.iterdir())) == (1, "stopped", [])
    assert "Traceback" not in said


def test_runtimes_whose_nodes_can_answer_run_also_without_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = 'print(json.dumps({"cpu_us_per_turn": 7.0 if "--no-model" in sys.argv else 9.0}))'
    given = ["--peer-python", str(peer_python(tmp_path, runs=told)), "--no-model", "--only", "autogen", "pydantic-ai"]
    options = peers.parse([*given, "--rounds", "1", "--dir", str(tmp_path)])
    planned = peers.planned
    monkeypatch.setattr(peers, "planned", lambda *given: planned(*given)[2:])  # Kitchener's rows take seconds
    found = peers.figures(anyio.run(peers.measure, options))
    assert [(each["runtime"], each["cpu_us_per_turn"]) for each in found] == [
        ("AutoGen core 1.2.3", 9.0),
        ("AutoGen core, no model", 7.0),
        ("Pydantic AI 1.2.3", 9.0),
    ]
