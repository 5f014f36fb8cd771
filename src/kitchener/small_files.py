"""Reads small regular files, so that no pipe, device or huge file in the place of one can hold up or fill the process."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

NOT_REGULAR: Final = "is not a regular file"
"""What is said of a pipe, a device or a directory in the place of a file."""


def open_regular(path: Path, *, follows_links: bool = True) -> BinaryIO:
    """Opens a regular file for reading. Never waits for somebody at the other end of a pipe.

    Args:
        path: the file
        follows_links: False refuses a symlink at the end of the path

    Raises:
        OSError: it cannot be opened, or is a pipe, a device or a directory; `strerror` says which
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follows_links else os.O_NOFOLLOW))
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_regular(path: Path, max_bytes: int, *, follows_links: bool = True) -> bytes:
    """The first bytes of a regular file; ask for one more than it may have, to tell one that is larger.

    Raises:
        OSError: as `open_regular`, or it cannot be read
    """
    with open_regular(path, follows_links=follows_links) as file:
        return file.read(max_bytes)
