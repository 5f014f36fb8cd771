"""The other process of the fault table's tests: does one job after the other with a ledger, each in a child of its own.

A job is one line of JSON on standard input; what happens is told on standard output, one JSON object a line, and the last line
of each job is `{"event": "ended", "code": …}`, negative for a signal. Jobs (see `ledger_process.py` for what a test sends):

    write   opens, commits as told, closes: opened, acknowledged …, closed, or refused with the error's name and text; with
            `pauses`, each commit waits for one more line of input
    hold    opens, and stays until it is killed
    twice   opens a second time what it holds
    cancel  is cancelled while it waits for the commit that the next one finds done
    watch   reads again and again: seen, with the last number, until it has seen as many as told
    cli     a command line of `kitchener`: said, with what it printed on standard error
"""

import base64
import errno
import importlib
import io
import json
import os
import resource
import signal
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import current_token

from kitchener.cli.app import invoke
from kitchener.config import LedgerConfig
from kitchener.errors import KitchenerError
from kitchener.ledger import LedgerClient, LedgerReader
from kitchener.ledger.disk.file_ops import FileOps
from tests.ledger.support import NOON, FaultFS, Killing, ShortWrites, fact, open_ledger

Job = Mapping[str, Any]
NOBODY = 65_534


def tell(event: str, **facts: Any) -> None:
    """One line on standard output, at once."""
    os.write(1, json.dumps({"event": event, **facts}).encode() + b"\n")


class Recording(FaultFS):
    """Tells every change of the ledger's file as it is made, and every sync, so that somebody can play a disk that forgets."""

    def write(self, fd: int, data: bytes | memoryview) -> int:
        written = super().write(fd, data)
        self._tell("write", fd, data=base64.b64encode(data[:written]).decode())
        return written

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self._tell("truncate", fd, size=size)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._tell("sync", fd)

    def _tell(self, kind: str, fd: int, **facts: Any) -> None:
        if self._names[fd].endswith(".jsonl"):
            tell("disk", kind=kind, **facts)


class Interrupted(FileOps):
    """Every write takes a few bytes at a time, and a signal arrives during each."""

    def __init__(self) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: None)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        os.kill(os.getpid(), signal.SIGUSR1)
        return super().write(fd, data[:7])

    def sync(self, fd: int) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        super().sync(fd)


class Elsewhere(FileOps):
    """A file system of another type than the real one."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def file_system(self, fd: int) -> str:
        return self._kind


class Lagging(FileOps):
    """A disk whose sync waits until it is told to go on."""

    def __init__(self) -> None:
        self.began, self.released = anyio.Event(), os.pipe()
        self.is_armed = False
        self._loop = current_token()

    def sync(self, fd: int) -> None:
        if self.is_armed:
            self.is_armed = False
            anyio.from_thread.run_sync(self.began.set, token=self._loop)
            os.read(self.released[0], 1)
        super().sync(fd)


class Times:
    """A clock that says one time after the other, and then the last one for ever."""

    def __init__(self, times: list[int]) -> None:
        self._times = times

    def time_us(self) -> int:
        return self._times.pop(0) if len(self._times) > 1 else self._times[0]


def ops_of(job: Job) -> FileOps:
    """The disk that the job wants."""
    disk = dict(job.get("disk", {}))
    kinds: dict[str, Callable[..., FileOps]] = {
        "real": FileOps,
        "fails": FaultFS,
        "kills": Killing,
        "records": Recording,
        "short": ShortWrites,
        "interrupts": Interrupted,
        "elsewhere": Elsewhere,
    }
    return kinds[disk.pop("is", "real")](**disk)


def opened(job: Job, ops: FileOps | None = None) -> Any:
    """The ledger of a job."""
    clock = {"clock": Times([NOON + each for each in job["times"]])} if "times" in job else {}
    return open_ledger(Path(job["path"]), config=LedgerConfig(**job.get("config", {})), file_ops=ops or ops_of(job), **clock)


async def write(job: Job) -> None:
    """Commits as told; with a limit, the system takes no more bytes than that beyond what is there."""
    async with opened(job) as ledger:
        recovered = ledger.recovered.cut_bytes if ledger.recovered is not None else 0
        tell("opened", position=ledger.position, opened_from=ledger.opened_from, recovered=recovered)
        if "limit" in job:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (Path(job["path"]).stat().st_size + job["limit"], hard))
        for size in job["commits"]:
            if job.get("pauses"):
                await anyio.to_thread.run_sync(_line)
            await _commit(ledger, size, job)
    tell("closed")


async def _commit(ledger: LedgerClient, size: int, job: Job) -> None:
    try:
        for _ in range(size):
            await ledger.write(fact(ledger.position + 1, filler="x" * job.get("filler", 0)))
        await ledger.commit()
    except KitchenerError as error:
        tell("refused", error=type(error).__name__, text=str(error))
        tell("reads", numbers=[entry.payload["n"] async for entry in ledger.read()])
        if not job.get("goes_on"):
            raise
    else:
        tell("acknowledged", position=ledger.position)


async def hold(job: Job) -> None:
    """Opens, and stays."""
    async with opened(job) as ledger:
        tell("opened", position=ledger.position, pid=os.getpid())
        await anyio.sleep_forever()


async def twice(job: Job) -> None:
    """Opens what it holds itself."""
    async with opened(job) as ledger:
        try:
            async with opened(job):
                tell("opened twice")
        except KitchenerError as error:
            tell("refused", error=type(error).__name__, text=str(error))
        await ledger.write(fact(ledger.position + 1))
        await ledger.commit()
        tell("acknowledged", position=ledger.position)


async def cancel(job: Job) -> None:
    """Cancelled while the disk is at it; then the disk goes on."""
    ops = Lagging()
    async with opened(job, ops) as ledger:
        ops.is_armed = True
        await ledger.write(fact(ledger.position + 1))
        async with anyio.create_task_group() as tasks:

            async def waits() -> None:
                try:
                    await ledger.commit()
                finally:
                    tell("left", durable=ledger.durable_position)

            tasks.start_soon(waits)
            await ops.began.wait()
            tasks.cancel_scope.cancel()
        os.write(ops.released[1], b"x")
        await ledger.commit()
        tell("acknowledged", position=ledger.durable_position)


async def watch(job: Job) -> None:
    """Reads beside a writer, from the first entry, again and again."""
    async with LedgerReader.open(Path(job["path"])) as reader:
        seen: list[str] = []
        while len(seen) < job["until"]:
            found = [entry.entry_hash async for entry in reader.read()]
            if found[: len(seen)] != seen:
                tell("wrong", text=f"what had {len(seen)} entries has {len(found)} others")
                return
            if len(found) > len(seen):
                tell("seen", position=len(found))
            seen = found
    tell("closed")


def cli(job: Job) -> None:
    """A command line, which runs event loops of its own."""
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        code = invoke(job["arguments"])
    tell("said", code=code, text=said.getvalue())


JOBS: Mapping[str, Callable[[Job], Awaitable[None]]] = {
    "write": write,
    "hold": hold,
    "twice": twice,
    "cancel": cancel,
    "watch": watch,
}


def run(job: Job) -> int:
    """One job in this process; its exit code: 0, or 1 after an error that was told."""
    if job.get("as_nobody"):
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        if job["do"] == "cli":
            cli(job)
        else:
            anyio.run(JOBS[job["do"]], job, backend=job.get("backend", "asyncio"))
    except KitchenerError as error:
        tell("failed", error=type(error).__name__, text=str(error))
        return 1
    except BaseException:  # noqa: BLE001  the test that sent the job is told
        tell("broken", text=traceback.format_exc())
        return 2
    return 0


def main() -> None:
    """Jobs until standard input ends."""
    # once, and before a child may no longer read where they are installed
    for needed in ("anyio._backends._asyncio", "anyio._backends._trio", "kitchener.cli.ledger.ledger", "structlog"):
        importlib.import_module(needed)
    while line := _line():
        if line == b"\n":  # for a job that is over
            continue
        child = os.fork()
        if child == 0:
            os._exit(run(json.loads(line)))
        _, status = os.waitpid(child, 0)
        tell("ended", code=os.waitstatus_to_exitcode(status))


def _line() -> bytes:
    # Byte by byte: a buffer that was read ahead would be inherited by the children.
    line = b""
    while not line.endswith(b"\n"):
        try:
            byte = os.read(0, 1)
        except OSError as error:
            if error.errno == errno.EINTR:
                continue
            raise
        if not byte:
            return b""
        line += byte
    return line


if __name__ == "__main__":
    main()
