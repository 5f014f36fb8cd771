"""Performs the file operations that a ledger needs, in one small layer that tests replace to inject faults.

Everything here blocks and therefore runs in a worker thread. Operating system errors pass through; the callers turn them into
`LedgerPathError` or `LedgerWriteError`.
"""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from kitchener.errors import LedgerDiskError, LedgerLocked, LedgerPathError
from kitchener.errors.ledger_errors import THIS_PROCESS
from kitchener.small_files import is_there, sync_directory
from kitchener.times import datetime_of

DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Errors of a full, failing or read-only disk. A later write of the same bytes may succeed."""
_STANDARD_ERROR: Final = 2
"""The last file descriptor of a standard stream."""
_NETWORK = ("nfs", "cifs", "smb", "ncp", "afs", "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "fuse.rclone")
"""Prefixes of the types of network file systems, where other hosts do not see locks or syncs. Such a type is refused."""


class FileOps:
    """The operations on the real file system. Each method is one call that can fail."""

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """Opens a file. Does not follow a symlink at the end of the path; child programs do not inherit the descriptor.

        Does not wait, even on a pipe; `check_ledger_file` refuses a pipe afterwards.
        """
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode)
        if fd > _STANDARD_ERROR:
            return fd
        # The host has closed a standard stream. What a library prints there must not go into a ledger.
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _STANDARD_ERROR + 1)
        finally:
            os.close(fd)

    def lock(self, fd: int) -> None:
        """Takes the exclusive lock of the file, or raises BlockingIOError at once."""
        # flock, not lockf: a POSIX lock does not exclude a second descriptor of the same process, and closing any
        # descriptor releases it.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock(self, fd: int) -> None:
        """Releases the lock, even if a forked child still has the file open."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    def fstat(self, fd: int) -> os.stat_result:
        """The status of an open file."""
        return os.fstat(fd)

    def stat(self, path: Path) -> os.stat_result:
        """The status of the file at a path; does not follow symlinks."""
        return os.stat(path, follow_symlinks=False)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset`."""
        return os.pread(fd, size, offset)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Writes some of the data; returns the number of bytes written."""
        return os.write(fd, data)

    def overwrite(self, fd: int, data: bytes, offset: int) -> int:
        """Writes some of the data at `offset`; returns the number of bytes written. Not for descriptors with O_APPEND."""
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        """Cuts the file to `size` bytes."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Returns when the file's data and length are on disk."""
        full_sync = getattr(fcntl, "F_FULLFSYNC", None)  # on macOS, fsync leaves the data in the drive's cache
        if full_sync is not None:
            fcntl.fcntl(fd, full_sync)
        else:
            os.fdatasync(fd)

    def make_directory(self, path: Path) -> None:
        """Makes one directory that only its owner can access."""
        os.mkdir(path, 0o700)

    def sync_directory(self, path: Path) -> None:
        """Returns when the names in a directory are on disk."""
        sync_directory(path)

    def list_directory(self, path: Path) -> list[str]:
        """The names in a directory, in arbitrary order."""
        return os.listdir(path)

    def link(self, path: Path, other: Path) -> None:
        """Gives a file a second name, which must be free."""
        os.link(path, other, follow_symlinks=False)

    def rename(self, path: Path, other: Path) -> None:
        """Renames a file atomically; replaces a file that has the new name."""
        os.rename(path, other)

    def unlink(self, path: Path) -> None:
        """Removes a name if it exists."""
        path.unlink(missing_ok=True)

    def protect(self, path: Path) -> None:
        """Makes a file read-only for everyone."""
        fd = self.open(path, os.O_RDONLY)  # fchmod on a descriptor, because chmod would follow a symlink to another file
        try:
            os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & ~0o222)
        finally:
            os.close(fd)

    def close(self, fd: int) -> None:
        """Closes a descriptor."""
        os.close(fd)

    def file_system(self, fd: int) -> str:
        """The type of the file system that holds an open file; "": unknown."""
        device = os.fstat(fd).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
                for mount in mounts:
                    left, _, right = mount.partition(" - ")
                    if left.split(" ", 3)[2] == wanted:
                        return right.split(" ", 1)[0]
        except OSError:
            pass
        return ""


def read_or_tell(ops: FileOps, path: Path, fd: int, size: int, offset: int) -> bytes:
    """Up to `size` bytes from `offset`; raises LedgerPathError if the system cannot read them."""
    try:
        return ops.read(fd, size, offset)
    except OSError as error:
        raise LedgerPathError(str(path), f"cannot be read at byte {offset}: {error.strerror or error}") from error


def write_all(ops: FileOps, fd: int, data: bytes) -> None:
    """Appends all of the data, in as many calls as needed."""
    rest = memoryview(data)
    while rest:
        written = ops.write(fd, rest)
        if written <= 0:
            raise OSError(errno.EIO, "the file took no more bytes")
        rest = rest[written:]


def kept_path(path: Path, what: str, time_us: int) -> Path:
    """The name under which a file, or a part of it, is kept: `<file>.<what>-<time>`."""
    return path.with_name(f"{path.name}.{what}-{datetime_of(time_us):%Y%m%dT%H%M%S.%fZ}")


def write_whole(ops: FileOps, path: Path, data: bytes) -> None:
    """Replaces a file atomically and returns when it is on disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    fd = ops.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        try:
            write_all(ops, fd, data)
            ops.sync(fd)
        finally:
            ops.close(fd)
        ops.rename(draft, path)
    except OSError:
        with suppress(OSError):
            ops.unlink(draft)
        raise
    ops.sync_directory(path.parent)


def ensure_directory(ops: FileOps, path: Path) -> None:
    """Makes a directory and its missing parents; each is on disk before the next is made."""
    missing = []
    while not is_there(path):
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        try:
            ops.make_directory(directory)
        except FileExistsError:
            continue  # another process made it first
        ops.sync_directory(directory.parent)


def ensure_directory_or_tell(ops: FileOps, path: Path) -> None:
    """As `ensure_directory`; raises LedgerPathError, which names the directory that cannot be made, and what to do."""
    try:
        ensure_directory(ops, path)
    except OSError as error:
        found = path_problem(path, error)
        if isinstance(found, LedgerDiskError) or isinstance(error, PermissionError):
            raise found from error
        problem = "a part of the path is not a directory" if error.errno == errno.ENOTDIR else error.strerror or str(error)
        remedy = "choose another place for the ledgers, with `plane_root` or --root"
        raise LedgerPathError(found.path, f"the directory cannot be made: {problem}; {remedy}") from error


def check_ledger_file(ops: FileOps, path: Path, fd: int) -> os.stat_result:
    """The status of an open file; raises LedgerPathError if it cannot hold a ledger."""
    found = ops.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise LedgerPathError(str(path), "is not a regular file; name a file of its own for the ledger")
    kind = ops.file_system(fd)
    if kind.startswith(_NETWORK):
        raise LedgerPathError(
            str(path), f"lies on a network file system ({kind}), where locks and syncs do not hold; use a local disk"
        )
    return found


def path_problem(path: Path, error: OSError) -> LedgerPathError:
    """Turns an operating system error into one that tells the user what to do."""
    problem = {
        errno.EACCES: "permission denied; give this user the right to read and write it",
        errno.EPERM: "permission denied; give this user the right to read and write it",
        errno.EROFS: "the file system is read-only; make it writable, or choose another place for the ledger",
        errno.EISDIR: "is a directory; name a file inside it",
        errno.ENOTDIR: "a part of the path is not a directory",
        errno.ELOOP: "is a symbolic link, whose target could change while the ledger is open; name the file itself",
        errno.ENOENT: "there is no such file",
        errno.ENOSPC: "the disk is full; make room, nothing was lost",
        errno.EMFILE: "Too many open files; raise this process's limit, with `ulimit -n` or systemd's LimitNOFILE",
    }.get(error.errno or 0, f"{error.strerror or error}")
    kind = LedgerDiskError if error.errno in DISK_ERRORS else LedgerPathError
    return kind(str(error.filename or path), problem)


def remove_database(path: Path) -> None:
    """Deletes a database of SQLite, with the files that SQLite keeps beside it. No process may have it open."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def is_locked(path: Path) -> bool:
    """Whether a writer has the ledger open. Changes nothing. A writer that opens it at the same moment may be refused."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def locked_by(path: Path, found: os.stat_result) -> LedgerLocked:
    """The error for a locked file; names the holder of the lock if the system tells it."""
    return LedgerLocked(str(path), _holder(found))


def _holder(found: os.stat_result) -> str:
    inode = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            for lock in locks:
                fields = lock.split()
                # The system shows process 0 for a process in another container.
                if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == inode and fields[4] != "0":
                    return THIS_PROCESS if fields[4] == str(os.getpid()) else f"process {fields[4]}"
    except OSError:
        pass
    return "another writer"
