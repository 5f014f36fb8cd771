"""The system's own limits of this process, for a while."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def descriptors(left: int) -> Iterator[None]:
    """This process may open so many more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = list[int]()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 512), hard))
    try:
        while True:
            try:
                taken.append(os.dup(2))
            except OSError:
                break
        for _ in range(left):
            os.close(taken.pop())
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def file_size(largest: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
