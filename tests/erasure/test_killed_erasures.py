"""An erasure that is killed at any system call leaves nothing that can be read but says it is erased, and is finished later.

In a second process: it erases copies of a root, each in a child that dies at the n-th call that could change a file, for every
n there is; then it looks at what is left, and finishes it. Every call that the child makes is a real one.
"""

import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tests.erasure.kit import ADA, fill, found, verified

ERASER = """
import gc, importlib, json, os, shutil, sys, threading
from pathlib import Path

import anyio

from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.policy_identity import policy_code
from kitchener.runtime import erase_subject
from kitchener.ledger import LedgerReader, verify_file
from kitchener.records import events
from tests.erasure.kit import ADA, BO, config, found, key_files, running, sealer
from tests.shared.keyrings import key_at

source, work, backend, step = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
names = ("open", "write", "writev", "pwrite", "pwritev", "fsync", "fdatasync", "unlink", "remove", "rename", "replace", "link",
         "mkdir", "ftruncate", "truncate")
CALLS = {call for name in names if (call := getattr(os, name, None)) is not None}


def dying_at(n):
    left = [n]
    def profile(frame, event, called):
        if event == "c_call" and called in CALLS:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), 9)
    threading.setprofile(profile)
    sys.setprofile(profile)
    return left


def in_child(work):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work() or 0
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
        finally:
            sys.setprofile(None)
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def copy():
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work, symlinks=True)


async def erase():
    report = await erase_subject(ADA, config=config(work))
    assert report.subject_id == ADA


async def reopen():
    async with running(work):
        pass


async def look():
    seal, records, readable = sealer(work), {}, []
    for path in sorted((work / "plane").rglob("*.jsonl")):
        async with LedgerReader.open(path, sealer=seal) as reader:
            async for entry in reader.read():
                if entry.entry_type == events.SUBJECT_ERASED:
                    place = f"{entry.ledger_id} {entry.payload.get('namespace', '')}"
                    records[place] = records.get(place, 0) + 1
                elif entry.entry_type == events.TURN_STARTED and isinstance(entry.payload["user_message"], str):
                    readable.append(entry.payload["subject_id"])
    ends = sum(line.count(b'"entry_type":"SESSION_END"') for line in (work / "plane/HO2/ADMIN/ho2m.jsonl").open("rb"))
    return {
        "records": records,
        "readable": sorted(set(readable)),
        "ends": ends,
        "pending": [each.subject_id for each in seal.keyring.erasures()],
        "keys": len([path for path in key_files(work) if key_at(path).strip(b"\\0")]),
        "verified": all(verify_file(path).ok for path in (work / "plane").rglob("*.jsonl")),
    }


# before the forks, which would each do it
for each in {backend, "asyncio"}:
    importlib.import_module(f"anyio._backends._{each}")
importlib.import_module("structlog")
importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
PromptLibrary.load()
policy_code()
gc.freeze()
n, killed = 1 - step, -9
while killed == -9:
    n += step
    copy()
    def work_of_child():
        dying_at(n)
        anyio.run(erase, backend=backend)
    killed = in_child(work_of_child)
    if killed not in (0, -9):
        sys.exit(f"the child failed at call {n}")
    def tell(kind):
        def looking():
            print(json.dumps({"n": n, "kind": kind, "killed": killed == -9, **anyio.run(look)}), flush=True)
        if in_child(looking):
            sys.exit(f"{kind} cannot be looked at: call {n}")
    tell("left")
    if killed == -9:
        if in_child(lambda: anyio.run(reopen if n // step % 2 else erase, backend=backend)):
            sys.exit(f"not finished after call {n}")
        if n // step % 2:  # a start finishes what was begun; what was not begun is for the caller to ask for again
            tell("reopened")
            if in_child(lambda: anyio.run(erase, backend=backend)):
                sys.exit(f"not finished after call {n}")
        tell("finished")
"""


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.timeout(600)
def test_killed_at_every_call(tmp_path: Path, backend: str) -> None:
    kill_and_finish(tmp_path, backend, 1)


@pytest.mark.parametrize(("backend", "step"), [("asyncio", 43), ("trio", 61)])
@pytest.mark.timeout(300)
def test_killed_at_many_calls(tmp_path: Path, backend: str, step: int) -> None:
    kill_and_finish(tmp_path, backend, step)


def kill_and_finish(tmp_path: Path, backend: str, step: int) -> None:
    """Kills an erasure at every `step`-th call that could change a file, and looks at what is left and how it is finished."""
    source, work = tmp_path / "source", tmp_path / "work"
    anyio.run(fill, source)
    command = [sys.executable, "-c", ERASER, str(source), str(work), backend, str(step)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    left = [each for each in told if each["kind"] == "left"]
    assert len(left) * step > 45, "calls at which it could be killed"
    assert not left[-1]["killed"], "the last one was let through"
    whole = left[-1]
    for each in left:
        assert each["verified"] or each["killed"], each
        is_ada_readable = ADA in each["readable"]
        assert not (each["records"] and is_ada_readable), each
        assert is_ada_readable or each["pending"] or each["records"] == whole["records"], each
        assert "bo" in each["readable"], each
    for each in told:
        if each["kind"] == "reopened":
            # Either it had not begun, and Ada is still there, or it is all done.
            assert (ADA in each["readable"]) is (each["keys"] == 2 and not each["records"]), each
            assert not each["pending"], each
    finished = [each for each in told if each["kind"] == "finished"] + [whole]
    facts = [{key: each[key] for key in ("records", "readable", "ends", "pending", "keys", "verified")} for each in finished]
    expected = {"readable": ["bo"], "ends": 2, "pending": [], "keys": 1, "verified": True}
    assert all(each == facts[-1] for each in facts)
    assert facts[-1] == {"records": whole["records"], **expected}
    assert sorted(whole["records"]) == [
        "HO2M:ADMIN ",
        "HO2M:RESIDENT%3Abo ",
        "OVERLAYS ADMIN/ada",
        "OVERLAYS RESIDENT%3Abo/ada",
        "SIGNALS ADMIN/ada",
        "SIGNALS RESIDENT%3Abo/ada",
    ]
    assert set(whole["records"].values()) == {1}
    assert verified(work)
    assert found(work) == []
