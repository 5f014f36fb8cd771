"""Where the administration socket is, who may put one there, and what a killed process leaves (docs/security.md)."""

import contextlib
import os
import signal
import socket
import stat
import tempfile
from pathlib import Path

import anyio
import pytest

from kitchener.errors import AdminUnavailable
from kitchener.runtime.admin import admin_client, socket_place
from kitchener.runtime.admin.admin_client import NobodyListens, ask
from kitchener.runtime.admin.operations import EndSession, ReadStatistics
from kitchener.runtime.administration import administer
from tests.cli.shared.commands import COMMAND, finish, start, start_program
from tests.runtime.admin.admin_kit import listening, listening_config, socket_of
from tests.shared.logs import captured_logs


async def test_the_owner_alone_can_use_the_socket_and_it_goes_with_the_runtime(tmp_path: Path) -> None:
    async with listening(tmp_path):
        place = socket_of(tmp_path)
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        assert stat.S_IMODE((place.parent / "lock").stat().st_mode) == 0o600
        await ask(listening_config(tmp_path), ReadStatistics())
    assert not place.exists()
    with pytest.raises(NobodyListens):
        await ask(listening_config(tmp_path), ReadStatistics())


async def test_a_runtime_that_fails_leaves_no_socket(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with listening(tmp_path):
            raise ZeroDivisionError
    assert not socket_of(tmp_path).exists()


async def test_a_long_path_has_its_socket_elsewhere_and_it_goes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, short = tmp_path / ("deep" * 25), tmp_path / "run"
    short.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    async with listening(root):
        assert not socket_of(root).exists()
        monkeypatch.delenv("XDG_RUNTIME_DIR")  # whoever asks may have another environment
        found = await ask(listening_config(root), ReadStatistics())
        assert found["running_turns"] == 0
        (directory,) = short.iterdir()
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert list(short.iterdir()) == []


async def test_no_room_for_a_socket_stops_no_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, long = tmp_path / ("deep" * 25), tmp_path / ("far" * 40)
    long.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with captured_logs() as logs:
        async with listening(root) as runtime:
            assert (await runtime.supervisor().handle_turn("hello")).error is None
    assert [each["problem"] for each in logs if each["event"] == "no administration socket"]
    assert list(long.iterdir()) == []


async def test_a_killed_process_leaves_a_socket_that_is_in_nobodys_way(tmp_path: Path) -> None:
    process = start("chat", "--root", tmp_path, cwd=tmp_path)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert socket_of(tmp_path).exists()
    with pytest.raises(NobodyListens):
        await ask(listening_config(tmp_path), ReadStatistics())
    async with listening(tmp_path) as runtime:
        session_id = await runtime.supervisor().start_session(subject_id="ada")
        await administer(listening_config(tmp_path), EndSession(agent_class="ADMIN", session_id=session_id))
        assert (await runtime.supervisor().session(session_id)).state.is_ended


async def test_a_second_process_of_the_root_takes_no_socket_away(tmp_path: Path) -> None:
    first = socket_place.claim(tmp_path)
    try:
        with pytest.raises(AdminUnavailable, match="another process listens"):
            socket_place.claim(tmp_path)
        assert socket_place.find(tmp_path) == first.path
    finally:
        first.sock.close()
        socket_place.release(tmp_path, first)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_keeps_neither_the_socket_nor_its_place(tmp_path: Path) -> None:
    claimed = socket_place.claim(tmp_path)
    (ours, theirs), (begun, begins) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        os.write(begins, b"+")
        os.read(ours, 1)  # until the parent has looked
        os._exit(0)
    os.read(begun, 1)
    try:
        claimed.sock.close()
        os.close(claimed.lock)  # as if the parent was killed: nothing is removed
        with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
            client.connect(str(socket_of(tmp_path)))
        again = socket_place.claim(tmp_path)
        again.sock.close()
        socket_place.release(tmp_path, again)
    finally:
        for each in (theirs, ours, begun, begins):
            os.close(each)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_keeps_the_files_that_were_opened_after_a_socket_was_given_up(tmp_path: Path) -> None:
    """They may have the numbers of the files that were closed with the socket."""
    claimed = socket_place.claim(tmp_path)
    claimed.sock.close()
    socket_place.release(tmp_path, claimed)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    if other != claimed.lock:
        os.dup2(other, claimed.lock)
        os.close(other)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            os.fstat(claimed.lock)
            os._exit(0)
        os._exit(1)
    os.close(claimed.lock)
    assert os.waitpid(child, 0)[1] == 0


async def test_what_stands_in_place_of_the_socket_is_not_used(tmp_path: Path) -> None:
    """A symlink, a file, a directory that others enter: told with its path, and nothing is sent there."""
    claimed = socket_place.claim(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(elsewhere))
        other.listen()
        other.settimeout(0)
        claimed.path.unlink()
        claimed.path.symlink_to(elsewhere)
        with pytest.raises(AdminUnavailable, match=r"socket is no socket; it is not used"):
            await ask(listening_config(tmp_path), ReadStatistics())
        claimed.path.unlink()
        claimed.path.write_text("")
        with pytest.raises(AdminUnavailable, match=r"socket is no socket"):
            await ask(listening_config(tmp_path), ReadStatistics())
        claimed.path.parent.chmod(0o755)
        with pytest.raises(AdminUnavailable, match="can be entered by others: chmod 700"):
            await ask(listening_config(tmp_path), ReadStatistics())
        with pytest.raises(BlockingIOError):
            other.accept()
    claimed.sock.close()
    socket_place.release(tmp_path, claimed)


async def test_a_symlink_in_place_of_the_directory_or_the_lock_is_not_followed(tmp_path: Path) -> None:
    for name in ("directory", "lock"):
        root, aim = tmp_path / name, tmp_path / f"aim of {name}"
        root.mkdir()
        if name == "directory":
            aim.mkdir()
            (root / "admin").symlink_to(aim)
        else:
            (root / "admin").mkdir(mode=0o700)
            (root / "admin" / "lock").symlink_to(aim)
        async with listening(root) as runtime:
            assert (await runtime.supervisor().handle_turn("hello")).error is None
            with pytest.raises(AdminUnavailable):
                await ask(listening_config(root), ReadStatistics())
        assert not aim.exists() or not list(aim.iterdir())


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"socket":""}', b'{"socket":7}', b'{"socket":"gone"}', b"x" * 9_000])
async def test_a_lock_file_of_any_content_means_that_nobody_listens(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "admin").mkdir(mode=0o700)
    (tmp_path / "admin" / "lock").write_bytes(content)
    with pytest.raises(NobodyListens):
        await ask(listening_config(tmp_path), ReadStatistics())
    async with listening(tmp_path):
        await ask(listening_config(tmp_path), ReadStatistics())


async def test_a_copied_root_changes_nothing_where_it_was_copied_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of `admin/lock` names the socket of the original: no command may go there, and no start may remove it."""
    root, copy, short = tmp_path / ("deep" * 25), tmp_path / "copy", tmp_path / "run"
    short.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    async with listening(root):
        (copy / "admin").mkdir(parents=True, mode=0o700)
        (copy / "admin" / "lock").write_bytes((root / "admin" / "lock").read_bytes())
        with pytest.raises(NobodyListens):
            await ask(listening_config(copy), ReadStatistics())
        async with listening(copy):
            await ask(listening_config(copy), ReadStatistics())
        await ask(listening_config(root), ReadStatistics())


async def test_a_process_whose_root_was_replaced_takes_no_socket_of_the_new_one(tmp_path: Path) -> None:
    """`mv root old`, a restored backup in its place, and only then does the older process end."""
    root = tmp_path / "root"
    first = socket_place.claim(root)
    root.rename(tmp_path / "old")
    async with listening(root):
        first.sock.close()
        socket_place.release(root, first)
        await ask(listening_config(root), ReadStatistics())


@pytest.mark.parametrize("way", ["directory", "pipe"])
async def test_a_lock_that_is_no_file_holds_up_no_command(tmp_path: Path, way: str) -> None:
    (tmp_path / "admin").mkdir(mode=0o700)
    lock = tmp_path / "admin" / "lock"
    os.mkfifo(lock) if way == "pipe" else lock.mkdir()
    with pytest.raises(AdminUnavailable, match="is no file"):
        await ask(listening_config(tmp_path), ReadStatistics())


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="elsewhere a full queue refuses the connection")
async def test_a_process_that_takes_no_connection_is_told_as_busy_and_nothing_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_client, "TRANSFER_S", 0.2)
    claimed = socket_place.claim(tmp_path)  # nobody accepts
    waiting = []
    with contextlib.suppress(BlockingIOError):
        while True:
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)
            waiting[-1].connect(str(claimed.path))
    with pytest.raises(AdminUnavailable, match=r"took no connection within 0.2 s; nothing was done"):
        await ask(listening_config(tmp_path), ReadStatistics())
    for each in (*waiting, claimed.sock):
        each.close()
    socket_place.release(tmp_path, claimed)


async def test_a_lock_file_that_names_a_foreign_file_removes_nothing(tmp_path: Path) -> None:
    """A wrong record must not make the next process delete what it names."""
    precious = tmp_path / "kitchener-mine" / "socket"
    precious.parent.mkdir(mode=0o700)
    precious.write_text("precious")
    (tmp_path / "admin").mkdir(mode=0o700)
    (tmp_path / "admin" / "lock").write_text(f'{{"socket":"{precious}"}}')
    async with listening(tmp_path):
        pass
    assert precious.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can make files of another user")
def test_another_users_directory_or_socket_is_not_used() -> None:
    program = "; ".join(
        [
            "import os, sys",
            "from pathlib import Path",
            "from kitchener.runtime.admin import socket_place",
            "os.setgid(65534); os.setuid(65534)",
            "socket_place.find(Path(sys.argv[1]))",
        ]
    )
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        claimed = socket_place.claim(root)
        outcome = finish(start_program(program, name))
        claimed.sock.close()
        socket_place.release(root, claimed)
    assert outcome.code != 0
    assert "AdminUnavailable" in outcome.err, outcome.err
    assert "belongs to user 0, not to 65534" in outcome.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can run a process of another user")
@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="only Linux says who the other end is")
async def test_a_client_of_another_user_is_refused_whatever_the_permissions_say() -> None:
    """The directory and the socket are opened to everyone, as a careless `chmod -R` would."""
    program = "; ".join(
        [
            "import os, socket, sys",
            "os.setgid(65534); os.setuid(65534)",
            "there = socket.socket(socket.AF_UNIX)",
            "there.connect(sys.argv[1])",
            "print(there.recv(10_000))",
        ]
    )
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        async with listening(root):
            socket_of(root).parent.chmod(0o755)
            socket_of(root).chmod(0o777)
            outcome = await anyio.run_process([COMMAND[0], "-c", program, str(socket_of(root))], check=False)
    assert b"belongs to user 65534, not to 0" in outcome.stdout, outcome


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="only Linux says who the other end is")
def test_the_other_end_is_known_by_its_user() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        socket_place.check_peer(here, may_be=-1)


async def test_a_platform_without_unix_sockets_has_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(tmp_path):
        with monkeypatch.context() as patch:
            patch.delattr(socket, "AF_UNIX")
            with pytest.raises(NobodyListens):
                await ask(listening_config(tmp_path), ReadStatistics())
