"""What holds for every test: both event loops, reproducible examples, files in memory, and no network beyond this machine.

Tests under virtual time ask for trio themselves, with `trio.testing.MockClock`, and override `anyio_backend`.
"""

import gc
import ipaddress
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from itertools import cycle
from typing import Any, Final

import pytest
from hypothesis import settings

from tests.shared.property_examples import FEW, MANY
from tests.shared.top_level import pytest_sessionfinish, pytest_sessionstart, pytest_terminal_summary

__all__ = ["pytest_sessionfinish", "pytest_sessionstart", "pytest_terminal_summary"]

settings.register_profile(FEW, max_examples=30, derandomize=True, deadline=None, database=None)
settings.register_profile(MANY, max_examples=1_000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", FEW))

IN_MEMORY, NEEDED = "/dev/shm", 2**30
"""A folder in memory on Linux, and the free bytes without which the tests use the disk."""
if "TMPDIR" not in os.environ and os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free >= NEEDED:
    # The tests open some ten thousand ledgers. Which syncs are asked for is checked by recording them, not by waiting.
    os.environ["TMPDIR"] = tempfile.tempdir = IN_MEMORY

# Hundreds of tests start a Python of their own, which would otherwise compile the whole package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Under `nohup`, programs that tests start would ignore it, too. They do not inherit a handler, and this process lives on.
    signal.signal(signal.SIGHUP, lambda number, frame: None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector away from the million objects that collecting tests makes, which all stay.

    Collections while the tests run were a tenth of the time of the suite. A test that looks at all live objects of a process
    is to do so in a process of its own, because the frozen ones are not seen here.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # what is garbage by now stays as well: finding it took half a second in each worker
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


TAKE_TURNS: Final = frozenset(
    ("cli", "clients", "examples", "hostile", "mcp", "memory", "operations", "serve", "telemetry", "testing", "tuning")
)
"""Rooms of what stands around the core. The single tests of one of their modules, and its tables of two, count as one table."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The cases of a table of three or more take turns at the event loops; `make soak` runs them on the other one too.

    So each loop has a case or more of every table. Cases that only `make soak` runs do not count. Who names a test gets all of
    its cases.
    """
    if any("::" in each for each in config.args):
        return
    tables = defaultdict[str, dict[str, dict[str, pytest.Item]]](dict)
    for item in items:
        spec = getattr(item, "callspec", None)
        loop = spec.params.get("anyio_backend") if spec is not None else None
        if spec is not None and isinstance(loop, str) and item.get_closest_marker("soak") is None:
            case = "-".join(sorted({*spec.id.split("-")} - {loop}))  # the loop stands before or after the rest
            tables[item.nodeid.partition("[")[0]].setdefault(case, {})[loop] = item
    modules = defaultdict[str, list[dict[str, pytest.Item]]](list)
    for name, cases in tables.items():
        module = name.partition("::")[0]
        if len(cases) >= 3:
            take_turns(cases.values())
        elif module.split("/")[1] in TAKE_TURNS:
            modules[module] += cases.values()
    for of_module in modules.values():
        take_turns(of_module)


def take_turns(cases: Iterable[dict[str, pytest.Item]]) -> None:
    """Leaves one case of each pair to `make soak`: of the first pair that on asyncio, of the second that on trio, and so on."""
    for loop, found in zip(cycle(("asyncio", "trio")), cases, strict=False):
        if len(found) == 2:
            found[loop].add_marker("soak")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Half as many workers again as processors for `-n auto`, because tests wait: for deadlines, processes and disks."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return processors + (processors + 1) // 2


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts what runs in the background so
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Not function-scoped: Hypothesis refuses such fixtures, as one call of the fixture would serve many examples.
@pytest.fixture(params=["asyncio", "trio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Each async test runs twice, once on each backend; of tables see `pytest_collection_modifyitems`."""
    backend: str = request.param
    return backend


def is_loopback(host: object) -> bool:
    """Tell whether `host`, a name or an address, means this machine without asking a name server."""
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if not isinstance(host, str):
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse(target: object) -> None:
    """Fail the test in a way that `except Exception` in the code under test cannot hide."""
    pytest.fail(f"a test tried to reach {target!r}; tests may use the loopback interface only")


@pytest.fixture(scope="session", autouse=True)
def no_real_network() -> Iterator[None]:
    """Sockets connect to loopback or to a Unix path, and names other than `localhost` are not resolved.

    This covers anything that goes through Python's `socket` module in this process; uvloop does not. The HTTP client of
    models does not either; it is told to go through a proxy where none listens, to all but loopback.
    """
    connect, connect_ex, getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def check(sock: socket.socket, address: Any) -> None:
        if sock.family in (socket.AF_INET, socket.AF_INET6) and not is_loopback(address[0]):
            refuse(address)

    def guarded_connect(sock: socket.socket, address: Any) -> None:
        check(sock, address)
        connect(sock, address)

    def guarded_connect_ex(sock: socket.socket, address: Any) -> int:
        check(sock, address)
        return connect_ex(sock, address)

    def guarded_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        # No host, or the unspecified address, is how a server asks for something to listen on.
        if host not in (None, "", b"", "0.0.0.0", "::") and not is_loopback(host):
            refuse(host)
        return getaddrinfo(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        patch.setattr(socket, "getaddrinfo", guarded_getaddrinfo)
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            patch.setenv(name, "http://127.0.0.1:9")
        patch.setenv("NO_PROXY", "127.0.0.1,::1,localhost")
        yield
