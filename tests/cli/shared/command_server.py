"""Forks a process for each command or program out of one that has loaded the package, which is most of what a short one costs.

    python -m tests.cli.shared.command_server FD

`commands.py` starts one for each process of the test suite, and asks it through the socket FD. A forked process runs the same
entry point as `python -m kitchener`, or a program as `python -c` does. What is claimed of loading itself, or of the settings of
the interpreter, is tested with an interpreter of its own.
"""

import gc
import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from types import TracebackType
from typing import IO, Any, Final, Self, TextIO

ROOT: Final = Path(__file__).parents[3]
_ASKED_BYTES: Final = 65_536


class Started:
    """A command that runs: as much of `subprocess.Popen` as tests use, whatever its streams are."""

    def __init__(self, status: int, stdin: IO[str] | None, stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.returncode: int | None = None
        self._status = os.fdopen(status)
        self.pid = int(self._status.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.kill()
        self.communicate()

    def poll(self) -> int | None:
        """The exit code; None: it still runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or the negative number of the signal that ended it."""
        if self.returncode is None:
            with DefaultSelector() as selector:
                selector.register(self._status, EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired("kitchener", timeout or 0)
            with self._status:
                self.returncode = int(self._status.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it is known to have ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once."""
        with suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)

    def communicate(self, text: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """What is left of its output and of its errors, after it was given `text` as the rest of its input."""
        said = {"out": "", "err": ""}
        streams = [(name, stream) for name, stream in (("out", self.stdout), ("err", self.stderr)) if stream is not None]

        def read(name: str, stream: IO[str]) -> None:
            with stream:
                said[name] = stream.read()

        readers = [threading.Thread(target=read, args=each, daemon=True) for each in streams if not each[1].closed]
        for reader in readers:
            reader.start()
        if self.stdin is not None and not self.stdin.closed:
            with suppress(BrokenPipeError):
                self.stdin.write(text or "")
            with suppress(BrokenPipeError):
                self.stdin.close()
        for reader in readers:
            reader.join(timeout)
        self.wait(timeout)
        return said["out"], said["err"]


class CommandServer:
    """The tests' end of the process that forks."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._asks, asked = socket.socketpair()
        command = [sys.executable, "-m", "tests.cli.shared.command_server", str(asked.fileno())]
        with asked:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, pass_fds=(asked.fileno(),)
            )
        self._lock = threading.Lock()

    def start(self, job: dict[str, Any], given: dict[str, int]) -> Started:
        """Starts a command.

        Args:
            job: `program`, the text of one, or None for the command; `arguments`, `cwd`, `env`, `umask` and `is_session`,
                whether it begins a session of processes
            given: file descriptors by name (`stdin`, `stdout`, `stderr`); those that are not given become pipes
        """
        ours: dict[str, int] = {}
        theirs: dict[str, int] = {}
        for name in ("stdin", "stdout", "stderr", "status"):
            if name in given:
                theirs[name] = given[name]
            else:
                here, there = os.pipe()
                ours[name], theirs[name] = (there, here) if name == "stdin" else (here, there)
        try:
            with self._lock:
                socket.send_fds(self._asks, [json.dumps(job).encode() + b"\n"], list(theirs.values()))
        finally:
            for name, number in theirs.items():
                if name not in given:
                    os.close(number)
        modes = {"stdin": "w", "stdout": "r", "stderr": "r"}
        streams = {name: os.fdopen(ours[name], mode, encoding="utf-8") for name, mode in modes.items() if name in ours}
        return Started(ours["status"], streams.get("stdin"), streams.get("stdout"), streams.get("stderr"))

    def stop(self) -> None:
        """Ends the process; the commands that it forked go on."""
        self._asks.close()
        self._process.wait()


def _load() -> None:
    """All that commands load and compute alike. Only the process that forks does."""
    import anyio

    import kitchener.cli
    from kitchener.actors.executor.prompts import PromptLibrary
    from kitchener.actors.policy_identity import policy_code

    for module in pkgutil.walk_packages(kitchener.cli.__path__, "kitchener.cli."):
        importlib.import_module(module.name)
    anyio.run(anyio.sleep, 0)
    importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
    PromptLibrary.load()
    policy_code()
    gc.collect()
    gc.freeze()


def _serve(asked: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """What to do, and its streams, in each process that is to run a command; None: nobody asks any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, given, _, _ = socket.recv_fds(asked, _ASKED_BYTES, 4)
        while data and not data.endswith(b"\n"):
            data += asked.recv(_ASKED_BYTES)
        if not data:
            return None
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            *streams, status = given
            if (command := os.fork()) == 0:
                os.close(status)
                asked.close()
                return json.loads(data), streams
            _keep(command, streams, status)
        for number in given:
            os.close(number)


def _keep(command: int, streams: list[int], status: int) -> None:
    """Says the id of a process, waits for its end and says how it ended. A parent of its own can wait for it."""
    for number in streams:
        os.close(number)
    os.write(status, f"{command}\n".encode())
    _, ended = os.waitpid(command, 0)
    with suppress(BrokenPipeError):
        os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def _become(job: dict[str, Any], streams: list[int]) -> None:
    """Makes this process what `python -u -m kitchener`, or `python -u -c` with the program, would be."""
    if job["is_session"]:
        os.setsid()
    for number, given in enumerate(streams):
        os.dup2(given, number)
        os.close(given)
    os.chdir(job["cwd"])
    os.umask(job["umask"])
    os.environ.clear()
    os.environ.update(job["env"])
    errors = sys.stdin.errors
    sys.stdin = os.fdopen(0, encoding="utf-8", errors=errors, closefd=False)
    sys.stdout = _unbuffered(1, errors or "strict")
    sys.stderr = _unbuffered(2, "backslashreplace")
    sys.argv = ["kitchener" if job["program"] is None else "-c", *job["arguments"]]


def _unbuffered(number: int, errors: str) -> TextIO:
    raw = os.fdopen(number, "wb", buffering=0, closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=os.isatty(number), write_through=True)


if __name__ == "__main__":
    _load()
    from kitchener.cli.main import main

    if (found := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        _become(*found)
        if (program := found[0]["program"]) is None:
            main()
        else:
            kept_to_the_end = {"__name__": "__main__"}  # its variables go when the interpreter does, as those of `python -c`
            exec(program, kept_to_the_end)
