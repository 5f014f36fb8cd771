"""Chooses the path of a root's administration socket, creates the socket for one process, and checks it for clients.

Only its owner can enter the directory `admin` of a root. The process that listens locks the file `lock` in it. The file names
the socket's path: beside it, or in the user's directory for temporary files if that path would be too long for a socket. All
functions block, so they run in worker threads.
"""

import fcntl
import os
import shutil
import socket
import stat
import struct
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from kitchener.errors import AdminUnavailable
from kitchener.ledger.disk.fork_guard import unwatch, watch
from kitchener.plain_names import shown_path

DIRECTORY: Final = "admin"
_LOCK: Final = "lock"
_SOCKET: Final = "socket"
_SHORT_PREFIX: Final = "kitchener-"
_MAX_PATH: Final = 107 if sys.platform == "linux" else 103
"""Longest path of a Unix socket, bytes."""
_MAX_LOCK_BYTES: Final = 4_096
_BACKLOG: Final = 16
_PEER: Final = struct.Struct("3i")
"""Process, user and group of a socket's peer, in the form that Linux returns."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Claim:
    """A socket on which only this process listens."""

    sock: socket.socket
    path: Path
    lock: int
    """Descriptor of the locked file. Closing it lets another process listen."""

    def poison(self, problem: str) -> None:
        """Closes the socket in a forked child, which would not answer and must not keep the lock."""
        self.sock.close()
        os.close(self.lock)


def has_unix_sockets() -> bool:
    """Whether this platform has Unix sockets."""
    return hasattr(socket, "AF_UNIX")


def claim(root: Path) -> Claim:
    """Creates the socket of a root and listens on it. Removes a socket that a killed process left.

    Args:
        root: the directory of the ledgers, an absolute path

    Raises:
        AdminUnavailable: another process listens, or another user can write to the directory
        OSError: the file system does not support sockets
    """
    directory = root / DIRECTORY
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_directory(directory, closing=True)
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AdminUnavailable(f"another process listens in {shown_path(str(directory))}") from error
        _remove(directory, _recorded(directory, lock))
        path = _free_path(directory)
        sock = _listening(path)
        where = _SOCKET if path.parent == directory else str(path)
        _record(lock, {"pid": os.getpid(), "socket": where, "file": _identity(lock)})
        claimed = Claim(sock, path, lock)
        watch(claimed)
    except BaseException:
        os.close(lock)
        raise
    return claimed


def release(root: Path, claimed: Claim) -> None:
    """Removes the socket's file and lets another process listen. Close the socket first."""
    unwatch(claimed)
    directory = root / DIRECTORY
    with suppress(OSError):
        # Another root with its own process may have this path by now.
        if os.path.samestat(os.lstat(directory / _LOCK), os.fstat(claimed.lock)):
            _remove(directory, claimed.path)
        os.ftruncate(claimed.lock, 0)
    os.close(claimed.lock)


def find(root: Path) -> Path | None:
    """The socket of the process that has a root open; None: no process listens, or it has not written its address yet.

    Raises:
        AdminUnavailable: the file is no socket, or another user could have created it
    """
    directory = root / DIRECTORY
    if not has_unix_sockets() or not os.path.lexists(directory):
        return None
    try:
        _check_directory(directory)
        lock = os.open(directory / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unsafe(directory / _LOCK, f"cannot be read: {error.strerror}") from error
    try:
        path = _recorded(directory, lock)
    finally:
        os.close(lock)
    if path is None:
        return None
    try:
        _check_socket(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unsafe(path, f"cannot be used: {error.strerror}") from error
    if len(os.fsencode(path)) > _MAX_PATH:
        raise AdminUnavailable(f"{shown_path(str(path))} is too long for a socket: name the root by a shorter path")
    return path


def check_peer(sock: socket.socket, *, may_be: int) -> None:
    """Raises AdminUnavailable if the other end is neither this user, nor the superuser, nor the user `may_be`.

    Only Linux tells which user it is; elsewhere only the directory's permissions protect the socket.
    """
    if sys.platform != "linux":
        return
    _, user, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if user not in (os.geteuid(), 0, may_be):
        raise AdminUnavailable(f"the other end of the administration socket belongs to user {user}, not to {os.geteuid()}")


def owner_of(path: Path) -> int:
    """The user id of a socket's owner."""
    return os.lstat(path).st_uid


def _check_directory(directory: Path, *, closing: bool = False) -> None:
    """Raises AdminUnavailable unless only its owner can enter a directory. With `closing`, corrects the permissions first."""
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode):
        raise _unsafe(directory, "is no directory")
    _check_owner(directory, found)
    if found.st_mode & 0o077 and closing:
        directory.chmod(0o700)
    elif found.st_mode & 0o077:
        raise _unsafe(directory, f"can be entered by others: chmod 700 {shown_path(str(directory))}")


def _check_socket(path: Path) -> None:
    found = os.lstat(path)
    if not stat.S_ISSOCK(found.st_mode):
        raise _unsafe(path, "is no socket")
    _check_owner(path, found)
    _check_directory(path.parent)


def _check_owner(path: Path, found: os.stat_result) -> None:
    """Raises AdminUnavailable if another user owns the file. The superuser may use any user's socket."""
    if os.geteuid() not in (found.st_uid, 0):
        raise _unsafe(path, f"belongs to user {found.st_uid}, not to {os.geteuid()}")


def _unsafe(path: Path, problem: str) -> AdminUnavailable:
    return AdminUnavailable(f"{shown_path(str(path))} {problem}; it is not used for administration")


def _recorded(directory: Path, lock: int) -> Path | None:
    """The socket's path in the lock file; None: it has none, or the file is a copy of another root's.

    Raises:
        AdminUnavailable: other users can write the file
    """
    found = os.fstat(lock)
    if not stat.S_ISREG(found.st_mode):
        raise _unsafe(directory / _LOCK, "is no file")
    _check_owner(directory / _LOCK, found)
    try:
        content = orjson.loads(os.pread(lock, _MAX_LOCK_BYTES, 0))
    except orjson.JSONDecodeError:
        return None
    if not isinstance(content, dict) or content.get("file") != _identity(lock):
        return None
    where = content.get("socket")
    return directory / where if isinstance(where, str) and where and "\0" not in where else None


def _identity(lock: int) -> list[int]:
    """Identifies a file, to tell it from its copies, which name the socket of the original root."""
    found = os.fstat(lock)
    return [found.st_dev, found.st_ino]


def _record(lock: int, content: dict[str, object]) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, orjson.dumps(content), 0)


def _remove(directory: Path, recorded: Path | None) -> None:
    """Removes the socket in a directory, and a recorded socket elsewhere with the directory that was created for it."""
    path = directory / _SOCKET
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            raise _unsafe(path, "is a directory")
        path.unlink()
    if recorded is None or recorded.parent == directory:
        return
    # The file may be wrong, so only our own socket and its otherwise empty directory are removed.
    with suppress(OSError, AdminUnavailable):
        if recorded.name == _SOCKET and recorded.parent.name.startswith(_SHORT_PREFIX):
            _check_socket(recorded)
            recorded.unlink()
            recorded.parent.rmdir()


def _free_path(directory: Path) -> Path:
    path = directory / _SOCKET
    if len(os.fsencode(path)) <= _MAX_PATH:
        return path
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    place = given if given and os.path.isdir(given) and os.access(given, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix=_SHORT_PREFIX, dir=place)) / _SOCKET


def _listening(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(os.fsencode(path))
        path.chmod(0o600)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        if path.parent.name.startswith(_SHORT_PREFIX):
            shutil.rmtree(path.parent, ignore_errors=True)
        raise
    return sock
