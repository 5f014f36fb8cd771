"""What was recorded once is replayed identically anywhere: on both event loops, with any hash seed, on every Python.

Programs are run and replayed in processes of their own. Two of these tests need more than a clone and are left out without it:

    REPLAY_PYTHONS=/path/to/python3.12:/path/to/python3.13   other interpreters, each with kitchener's requirements and trio
    REPLAY_DIALOGUES=/path/to/dialogues.jsonl                a file for `kitchener run`, of any size
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from kitchener.actors.tools.named_tools import load_tools
from kitchener.ledger.verify.verification import verify_file
from kitchener.replaying import ReplayReport, open_replays
from kitchener.runtime.loading import load_config
from kitchener.runtime.root_layout import agent_classes, ledger_paths, settings_of
from kitchener.signing import make_key
from tests.cli.shared.commands import finish, start, start_program
from tests.replay import corpus, golden_roots
from tests.replay.shared import programs
from tests.shared.shared_folders import made_once


@pytest.fixture(params=["asyncio", "trio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both, unlike in the other tests of this folder."""
    backend: str = request.param
    return backend


ROOT: Final = Path(__file__).parents[2]
BACKENDS: Final = ("asyncio", "trio")
GOLDEN: Final = sorted(golden_roots.FOLDER.glob("*.tar.xz"))
OTHERS: Final = [each for each in os.environ.get("REPLAY_PYTHONS", "").split(os.pathsep) if each]
DIALOGUES: Final = os.environ.get("REPLAY_DIALOGUES", "")


def process(*arguments: str | Path, python: str = sys.executable, seed: int = 0, timeout: float = 100) -> tuple[int, str, str]:
    """Runs `python -m …` from the clone; returns its exit code and what it printed. Its warnings are errors."""
    found = {
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "PYTHONHASHSEED": str(seed),
        "PYTHONWARNINGS": "error",
    }
    run = subprocess.run(
        [python, "-m", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **found},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return run.returncode, run.stdout, run.stderr


def replayed(settings: Path, *tools: str, **how: Any) -> str:
    """The last line of `kitchener replay --all`, which finds everything identical."""
    given = [each for tool in tools for each in ("--tool", tool)]
    code, out, err = process("kitchener", "replay", "--all", "--config", settings, *given, **how)
    assert code == 0, f"{out}\n{err}"
    return out.splitlines()[-1]


async def replayed_here(
    settings_file: Path, tools: Sequence[str] = (), *, one_in: int = 1, skip: int = 0
) -> list[ReplayReport]:
    """The replays of a root, in this process, on the event loop of the test.

    Args:
        settings_file: of the root
        tools: the tools that are not named in the settings
        one_in: how many of the sessions and consolidations: all, or one of so many
        skip: what the first of them counts as, so that other ones are replayed
    """
    settings, reports, number = (
        settings_of(load_config(settings_file).config, None),
        list[ReplayReport](),
        itertools.count(skip),
    )
    for agent_class in agent_classes(settings):
        if not ledger_paths(settings, agent_class)["ho2m"].exists():
            continue
        async with open_replays(settings, agent_class, tools=load_tools(tools)) as replays:
            for each in [*await replays.sessions(), *await replays.consolidations()]:
                if next(number) % one_in == 0:
                    reports.append(await replays.replay(each))
    return reports


def count(reports: Sequence[ReplayReport]) -> tuple[int, int]:
    """Turns and consolidations, all of which are identical."""
    assert [report.text() for report in reports if not report.is_identical] == []
    return sum(len(report.turns) for report in reports), sum(len(report.consolidations) for report in reports)


RAN_ON: Final = {name: BACKENDS[at % 2] for at, name in enumerate(programs.TOOLS)}
"""The event loops of the programs, which take turns; `make soak` runs each on the other one too."""
PROGRAM: Final = """
import warnings

warnings.simplefilter("error")
from tests.replay.shared.programs import main
main()
"""


def recorded(factory: pytest.TempPathFactory, name: str, ran_on: str) -> Path:
    """The settings of a program that ran on an event loop, beside its ledgers."""
    names = [each for each in programs.TOOLS if (RAN_ON[each] == ran_on) is (RAN_ON[name] == ran_on)]

    def record(folder: Path) -> None:
        done = finish(start_program(PROGRAM, folder, *names, "--backend", ran_on))
        assert done.code == 0, done.err
        if (demo := folder / "demo").exists():
            refused = finish(start("replay", "--all", "--config", demo / programs.SETTINGS, cwd=ROOT))
            assert (refused.code, "ho2m.jsonl: line " in refused.err) == (6, True)
            untamper(demo)

    return made_once(factory, "-".join(("programs", ran_on, *names)), record) / name / programs.SETTINGS


def untamper(demo: Path) -> None:
    """The demonstration ends with one word of the past changed, which a replay refuses; the word is put back."""
    ledger = demo / "HO2" / "ADMIN" / "ho2m.jsonl"
    assert not verify_file(ledger).ok
    ledger.write_bytes(ledger.read_bytes().replace(b'"eva"', b'"ada"', 1))


TURNS: Final = {
    "admin_bot": (4, 0),
    "companion_bot": (10, 2),
    "custom_provider": (1, 0),
    "demo": (9, 2),
    "hello_bot": (2, 0),
    "web_app": (3, 0),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "ran_on", "anyio_backend"),
    [
        pytest.param(name, ran_on, other, marks=[] if RAN_ON[name] == ran_on else pytest.mark.soak)
        for name in programs.TOOLS
        for ran_on, other in (BACKENDS, BACKENDS[::-1])
    ],
)
async def test_programs_replay_on_the_other_loop(tmp_path_factory: pytest.TempPathFactory, name: str, ran_on: str) -> None:
    """Each example and the demonstration, whose providers and tools are not run. Other tests of this folder use one loop."""
    assert count(await replayed_here(recorded(tmp_path_factory, name, ran_on), programs.TOOLS[name])) == TURNS[name]


@pytest.mark.timeout(300)
def test_a_program_replays_in_another_process(tmp_path_factory: pytest.TempPathFactory) -> None:
    """By the command line, with another hash seed than the one it was recorded with: the longest."""
    name = "companion_bot"
    last = replayed(recorded(tmp_path_factory, name, RAN_ON[name]), *programs.TOOLS[name], seed=99)
    turns, learned = TURNS[name]
    assert f"{turns} turn" in last
    assert f" and {learned} consolidations identical" in last


@pytest.mark.timeout(300)
@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("one_in", [pytest.param(3, id="third"), pytest.param(1, id="all", marks=pytest.mark.soak)])
async def test_everything_recorded_on_asyncio_replays_on_trio(recorded_root: Path, one_in: int) -> None:
    """All that may happen in sessions under several policies: see `corpus.py`. `make test` replays every third session."""
    await check_corpus(recorded_root, turns=200 // one_in, learned=15 // one_in, one_in=one_in)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_entries_of_every_kind_recorded_on_trio_replay_on_asyncio(recorded_root: Path, recorded_on_trio: Path) -> None:
    """Half of the chapters, in which there are entries of all types that the corpus has."""
    assert kinds_of(recorded_on_trio) == kinds_of(recorded_root)
    await check_corpus(recorded_on_trio, turns=90, learned=10)


@pytest.mark.soak
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_everything_recorded_on_trio_replays_on_asyncio(tmp_path: Path) -> None:
    """What was recorded in a process of its own, whose hash seed is another one, unlike the half that `make test` replays."""
    code, _, err = process("tests.replay.corpus", tmp_path, "--backend", "trio", seed=3)
    assert code == 0, err
    await check_corpus(tmp_path, turns=200, learned=15)


EVERY_KIND: Final = (
    corpus.garden_in_short,
    corpus.garden_again,
    corpus.evenings,
    corpus.plain,
    corpus.shadow,
    corpus.asking,
    corpus.asking_on,
    corpus.clerk,
    corpus.long_replies,
    corpus.guarded,
)


@pytest.fixture(scope="session")
def recorded_on_trio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root of some chapters of the corpus, recorded in this process."""
    return made_once(
        tmp_path_factory, "corpus-on-trio", lambda root: anyio.run(corpus.record, root, EVERY_KIND, backend="trio")
    )


async def check_corpus(root: Path, *, turns: int, learned: int, one_in: int = 1) -> None:
    """Replays a root of the corpus, in which everything is identical but two turns that were cut off.

    Args:
        root: the root
        turns: there are more
        learned: there are more consolidations
        one_in: how many of the sessions and consolidations: each, or one of so many, the first among them
    """
    reports = await replayed_here(root / corpus.SETTINGS.name, one_in=one_in)
    found_turns, found_learned = count(reports)
    assert found_turns > turns
    assert found_learned > learned
    skipped = sorted(reason for report in reports for reason in report.skipped.values())
    assert skipped == ["aborted: cancelled", "aborted: timeout"]


def kinds_of(root: Path) -> set[str]:
    """The types of the entries in all ledgers under a root."""
    return {json.loads(line)["entry"]["entry_type"] for line in lines_of(root)}


@pytest.mark.parametrize(
    ("at", "anyio_backend"),
    [pytest.param(at, BACKENDS[at % 2], id=each.name.removesuffix(".tar.xz")) for at, each in enumerate(GOLDEN)],
)
@pytest.mark.parametrize("one_in", [pytest.param(3, id="third"), pytest.param(1, id="all", marks=pytest.mark.soak)])
async def test_golden_ledgers_read_verify_and_replay(tmp_path: Path, at: int, one_in: int) -> None:
    """A root of each release, on this Python and on either loop in turn; nothing in it changes by that.

    `make test` replays a third of each root's sessions, others in each root: their stories are told in most of the roots.
    """
    root = golden_roots.unpacked(GOLDEN[at], tmp_path)
    ledgers = {path: path.read_bytes() for path in sorted(root.rglob("*.jsonl"))}
    assert len(ledgers) >= 5
    assert all(verify_file(path).ok for path in ledgers)
    reports = await replayed_here(root / corpus.SETTINGS.name, one_in=one_in, skip=at)
    turns, learned = count(reports)
    assert turns >= (30 if one_in == 1 else 1)
    assert learned >= (2 if one_in == 1 else 0)
    assert {path: path.read_bytes() for path in ledgers} == ledgers


def test_golden_ledgers_are_of_every_kind(tmp_path: Path) -> None:
    """Tools, retries, escalations, learned lines, conflicts, forks, questions: a golden root is worth its bytes."""
    assert kinds_of(golden_roots.unpacked(GOLDEN[-1], tmp_path)) >= {
        "TURN_ABORTED",
        "TOOL_CALL",
        "ATTEMPT_FAILED",
        "WO_SUPERSEDED",
        "ESCALATION",
        "INTENT_FORKED",
        "INTENT_CLOSED",
        "CONFLICT_FLAG",
        "PROJECTION_COMPUTED",
        "LIFECYCLE_VOIDED",
        "HO3_SIGNAL",
        "HO3_OVERLAY",
    }


def lines_of(root: Path) -> list[str]:
    """The lines of all ledgers under a root."""
    return [line for path in sorted(root.rglob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.timeout(600)
@pytest.mark.skipif(not OTHERS, reason="REPLAY_PYTHONS names no other interpreters")
@pytest.mark.parametrize("python", OTHERS)
def test_other_pythons_agree(recorded_root: Path, tmp_path: Path, python: str) -> None:
    """What this Python recorded, the other replays identically, and the other way round; golden ledgers too."""
    here = shutil.copytree(recorded_root, tmp_path / "here", symlinks=True, ignore=shutil.ignore_patterns("index"))
    there = tmp_path / "there"
    code, _, err = process("tests.replay.corpus", there, "--backend", "trio", python=python, seed=5)
    assert code == 0, err
    golden = golden_roots.unpacked(GOLDEN[-1], tmp_path / "golden")
    name = corpus.SETTINGS.name
    assert replayed(here / name, python=python, seed=6) == replayed(there / name, seed=7)
    assert replayed(golden / name, python=python) == replayed(golden / name)


@pytest.mark.timeout(3_600)
@pytest.mark.skipif(not DIALOGUES, reason="REPLAY_DIALOGUES names no file for `kitchener run`")
async def test_dialogues_replay_identical(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> None:
    """A whole run of public dialogues under the settings that `kitchener init` writes, replayed on this loop and elsewhere."""
    root = tmp_path_factory.getbasetemp() / "dialogues"
    if not root.exists():
        root.mkdir()
        assert process("kitchener", "init", root)[0] == 0
        make_key(root / "signing.pem")
        settings = root / "kitchener.toml"
        settings.write_text(settings.read_text().replace("[ledger]\n", '[ledger]\nsigning_key = "signing.pem"\n', 1))
        code, _, err = process(
            "kitchener", "run", DIALOGUES, "-o", root / "out.json", "--config", root / "kitchener.toml", timeout=1_500
        )
        assert code == 0, err
    messages = len(Path(DIALOGUES).read_text(encoding="utf-8").splitlines())
    reports = await replayed_here(root / "kitchener.toml")
    assert count(reports)[0] == messages
    for python in OTHERS if anyio_backend == "asyncio" else ():
        assert f" {messages:,} turns" in replayed(root / "kitchener.toml", python=python, timeout=1_500)
