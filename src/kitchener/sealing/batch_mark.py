"""Marks a batch of keys while its names are being made, so that a batch left by a crash is found.

A mark is an empty file beside the batch. The process that makes the names keeps the mark locked, and the system releases the
lock when the process ends. So if another process can lock a mark, a crash has left it. This module knows nothing of keys.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

BATCH_SUFFIX: Final = ".keys"
_SUFFIX: Final = ".naming"
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_TRIES: Final = 16
"""Most tries to make and lock a mark. One fails only if another process looks for marks between the two steps."""


@contextmanager
def marked(batch: Path) -> Iterator[None]:
    """Keeps a mark beside a batch while the block runs. If the block fails and leaves a batch, the mark stays.

    Raises:
        OSError: the mark cannot be made or removed
    """
    mark = batch.with_suffix(_SUFFIX)
    fd = _new_mark(mark)
    try:
        yield
        os.unlink(mark)
    except BaseException:
        if not os.path.lexists(batch):
            with suppress(OSError):  # the mark then stays, and the next process finds nothing to overwrite
                os.unlink(mark)
        raise
    finally:
        os.close(fd)


def finish_left(directory: Path, finish: Callable[[Path], None]) -> None:
    """Calls `finish` with the path of each batch whose mark a crash left, and removes the mark. The batch may be missing.

    Raises:
        OSError: a mark cannot be opened or removed, or `finish` raises it
    """
    with suppress(FileNotFoundError):  # there are no batches
        for mark in [directory / name for name in os.listdir(directory) if name.endswith(_SUFFIX)]:
            with suppress(FileNotFoundError):  # its process has made all names in the meantime
                fd = os.open(mark, _FLAGS)
                try:
                    if _is_locked(fd):
                        finish(mark.with_suffix(BATCH_SUFFIX))
                        os.unlink(mark)
                finally:
                    os.close(fd)


def _is_locked(fd: int) -> bool:
    """Locks a mark, unless its process has it, or the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _new_mark(mark: Path) -> int:
    for _ in range(_TRIES):
        fd = os.open(mark, _FLAGS | os.O_CREAT, 0o600)
        try:
            with suppress(OSError):  # a file system without locks: no process can lock the mark, so it counts as in use
                fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise OSError(errno.EBUSY, "other processes remove it again and again", str(mark))
