"""Missing permissions, simulated because tests may run as a user whom nothing is denied."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def deny(monkeypatch: pytest.MonkeyPatch, place: Path | str, *calls: str) -> None:
    """Refuses system calls for a file, and for all below it.

    Args:
        monkeypatch: undoes it
        place: the file, or a directory
        *calls: the names of the calls in `os`
    """
    for name in calls:
        monkeypatch.setattr(os, name, _denied(getattr(os, name), str(place)))


def _denied(call: Callable[..., Any], place: str) -> Callable[..., Any]:
    def refused(path: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(path, int) and f"{os.path.abspath(os.fsdecode(path))}/".startswith(f"{place}/"):
            raise PermissionError(errno.EACCES, "Permission denied", os.fsdecode(path))
        return call(path, *args, **kwargs)

    return refused
