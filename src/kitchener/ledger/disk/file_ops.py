"""The few operations on files that a ledger needs, in one small layer that tests replace to fail, stop or record them.

Everything here blocks and therefore runs in a worker thread. Operating system errors pass through; whoever knows what was
being done turns them into `LedgerPathError` or `LedgerWriteError`.
"""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from kitchener.errors import LedgerLocked, LedgerPathError

_NETWORK = ("nfs", "cifs", "smb", "ncp", "afs", "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "fuse.rclone")
"""File systems whose locks or syncs another host does not see; a type that begins so is refused."""


class FileOps:
    """The operations as they are. Each method is one call that can fail."""

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """Opens a file; never follows a symlink at the end of the path, never passes the descriptor to a program it starts.

        Never waits: a pipe that somebody put there instead is told from a file afterwards.
        """
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode)

    def lock(self, fd: int) -> None:
        """Takes the exclusive lock of the file, or raises BlockingIOError at once."""
        # flock, not lockf: a POSIX lock lets a second descriptor of the same process in, and is lost when any is closed.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock(self, fd: int) -> None:
        """Gives the lock back, also where a forked child has the file open still."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    def fstat(self, fd: int) -> os.stat_result:
        """What is open."""
        return os.fstat(fd)

    def stat(self, path: Path) -> os.stat_result:
        """What stands at a path now, symlinks not followed."""
        return os.stat(path, follow_symlinks=False)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset`."""
        return os.pread(fd, size, offset)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Writes some of the data; says how much."""
        return os.write(fd, data)

    def overwrite(self, fd: int, data: bytes, offset: int) -> int:
        """Writes some of the data at `offset`; says how much. Not for descriptors that append."""
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        """Cuts the file."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Returns when the file's data and length are on disk."""
        full_sync = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: there fsync leaves the data in the drive's cache
        if full_sync is not None:
            fcntl.fcntl(fd, full_sync)
        else:
            os.fdatasync(fd)

    def make_directory(self, path: Path) -> None:
        """Makes one directory, readable by its owner alone."""
        os.mkdir(path, 0o700)

    def sync_directory(self, path: Path) -> None:
        """Returns when the names in a directory are on disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def list_directory(self, path: Path) -> list[str]:
        """The names in a directory, in no order."""
        return os.listdir(path)

    def link(self, path: Path, other: Path) -> None:
        """Gives a file a second name, which must be free."""
        os.link(path, other, follow_symlinks=False)

    def rename(self, path: Path, other: Path) -> None:
        """Gives a file another name, in one step; what had that name has it no more."""
        os.rename(path, other)

    def unlink(self, path: Path) -> None:
        """Takes a name away, if it is there."""
        path.unlink(missing_ok=True)

    def protect(self, path: Path) -> None:
        """Takes the right to write a file from everybody."""
        fd = self.open(path, os.O_RDONLY)  # by its descriptor: a symlink put there would lead to somebody else's file
        try:
            os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & ~0o222)
        finally:
            os.close(fd)

    def close(self, fd: int) -> None:
        """Closes a descriptor."""
        os.close(fd)

    def file_system(self, fd: int) -> str:
        """The type of the file system that an open file lives on, or "" where the system does not say."""
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
    """Up to `size` bytes from `offset`; raises LedgerPathError where the system cannot read them."""
    try:
        return ops.read(fd, size, offset)
    except OSError as error:
        raise LedgerPathError(str(path), f"cannot be read at byte {offset}: {error.strerror or error}") from error


def write_all(ops: FileOps, fd: int, data: bytes) -> None:
    """Appends all of the data, in as many calls as it takes."""
    rest = memoryview(data)
    while rest:
        written = ops.write(fd, rest)
        if written <= 0:
            raise OSError(errno.EIO, "the file took no more bytes")
        rest = rest[written:]


def write_whole(ops: FileOps, path: Path, data: bytes) -> None:
    """Puts a file in place, whole or not at all, and on disk."""
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
    """Makes a directory and the missing ones above it, each on disk before it is used."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        try:
            ops.make_directory(directory)
        except FileExistsError:
            continue  # another process was faster
        ops.sync_directory(directory.parent)


def check_ledger_file(ops: FileOps, path: Path, fd: int) -> os.stat_result:
    """What an open file is, if it can hold a ledger; raises LedgerPathError otherwise."""
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
    """An operating system error at opening, in words a user can act on."""
    problem = {
        errno.EACCES: "permission denied; give this user the right to read and write it",
        errno.EPERM: "permission denied; give this user the right to read and write it",
        errno.EROFS: "the file system is read-only; choose another place for the ledger",
        errno.EISDIR: "is a directory; name a file inside it",
        errno.ENOTDIR: "a part of the path is not a directory",
        errno.ELOOP: "is a symbolic link, which could be turned elsewhere while the ledger is open; name the file itself",
        errno.ENOENT: "there is no such file",
        errno.ENOSPC: "the disk is full; make room, nothing was lost",
    }.get(error.errno or 0, f"{error.strerror or error}")
    return LedgerPathError(str(error.filename or path), problem)


def locked_by(path: Path, found: os.stat_result) -> LedgerLocked:
    """The error for a file whose lock somebody holds, with the holder as far as the system tells."""
    return LedgerLocked(str(path), _holder(found))


def _holder(found: os.stat_result) -> str:
    inode = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            for lock in locks:
                fields = lock.split()
                # Process 0 is one that another container hides.
                if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == inode and fields[4] != "0":
                    return "this process" if fields[4] == str(os.getpid()) else f"process {fields[4]}"
    except OSError:
        pass
    return "another writer"
