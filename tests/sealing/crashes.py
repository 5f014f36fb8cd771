"""Ends what this process does with files after a number of calls, as if it had been killed."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_CALLS = ("open", "write", "pwrite", "fsync", "symlink", "link", "unlink", "rename", "replace", "mkdir")


class Killed(BaseException):
    """The process is gone: no `except` or `finally` can change a file any more."""


@contextmanager
def killed_before_call(number: int | None) -> Iterator[None]:
    """Whatever is called in the block fails from the call of this number on, from 1; None: nothing fails."""
    left, originals = number, {name: getattr(os, name) for name in _CALLS}

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **options: Any) -> Any:
            nonlocal left
            if left is not None:
                left = max(0, left - 1)
                if left == 0:
                    raise Killed
            return call(*args, **options)

        return counting

    for name, call in originals.items():
        setattr(os, name, counted(call))
    try:
        with suppress(Killed):
            yield
    finally:
        for name, call in originals.items():
            setattr(os, name, call)
