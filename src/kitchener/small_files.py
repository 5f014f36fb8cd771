"""Reads and writes small files, such as keys that only their owner may use.

Reading refuses everything but regular files, and stops at a limit, so a pipe, a device or a huge file at the same path cannot
block or fill the process. Everything here blocks.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

NOT_REGULAR: Final = "is not a regular file"
"""The text of an error about a pipe, a device or a directory where a file belongs."""


_ROOM: Final = "make room on the disk"
_ACCESS: Final = "give this user the right to read and write it"
_REMEDIES: Final = {
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EROFS: "make the file system writable",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EIO: "check the disk",
    errno.ENOTDIR: "there is a file where a directory belongs; move it away",
    errno.EEXIST: "there is a file where a directory belongs; move it away",
}


_NOWHERE: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP))
"""What the system says of a path that leads to nothing."""


def is_there(path: Path) -> bool:
    """Whether a path leads to anything.

    `Path.exists`, `is_file` and `is_dir` say no from Python 3.14 on where the right to look is missing. What cannot be seen
    must not pass for what is not there, such as a key or a ledger.

    Raises:
        OSError: the system does not say, for example because a permission is missing
    """
    return _mode(path) is not None


def is_file(path: Path) -> bool:
    """Whether a path leads to a regular file. Raises as `is_there`."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def is_directory(path: Path) -> bool:
    """Whether a path leads to a directory. Raises as `is_there`."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def _mode(path: Path) -> int | None:
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in _NOWHERE:
            return None
        raise
    except ValueError:  # a path with a null character
        return None


def problem_and_remedy(error: OSError) -> str:
    """What is wrong with a private file, and what its owner can do."""
    what, remedy = error.strerror or str(error), _REMEDIES.get(error.errno or 0)
    return f"{what}; {remedy}" if remedy is not None else what


def open_regular(path: Path | str, *, follows_links: bool = True) -> BinaryIO:
    """Opens a regular file for reading. Does not wait, even on a pipe.

    Args:
        path: the file
        follows_links: False: refuse a symlink at the end of the path

    Raises:
        OSError: it cannot be opened, or is not a regular file; `strerror` says which
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follows_links else os.O_NOFOLLOW))
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_regular(path: Path | str, max_bytes: int, *, start: int = 0, follows_links: bool = True) -> bytes:
    """At most `max_bytes` bytes of a regular file, from `start` on. To detect a larger file, ask for one more than it may have.

    Raises:
        OSError: as `open_regular`, or it cannot be read
    """
    with open_regular(path, follows_links=follows_links) as file:
        file.seek(start)
        return file.read(max_bytes)


def write_private(path: Path | str, data: bytes) -> None:
    """Writes a file that only its owner can use (mode 0600), and returns when its content is on disk.

    The name may not be on disk yet; see `sync_directory`. If writing fails, no file is left.

    Raises:
        FileExistsError: there is a file or a symlink at the path
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(data)
        while left:  # a full disk may take a part
            left = left[os.write(fd, left) :]
        os.fsync(fd)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


@contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Replaces a file atomically by what the block writes. Its content is on disk when the block has ended.

    If the block or writing fails, the file is as before. After a crash it is as before or has the new content, and a draft may
    be left beside it: `.<hex digits>.new`. The block may read the draft again by its `name`, after a flush. A symlink at the
    path is replaced. The name may not be on disk yet; see `sync_directory`.

    Args:
        path: the file
        mode: the permissions of the new file, without those that the umask takes away

    Raises:
        OSError: the file cannot be written
    """
    draft = path.with_name(f".{os.urandom(8).hex()}.new")
    with open(draft, "x+b", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode)) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def replace_private(path: Path, data: bytes) -> None:
    """Replaces a file atomically by one that only its owner can use, and returns when it is on disk, with its name."""
    with replacing(path) as file:
        file.write(data)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Returns when the names in a directory are on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
