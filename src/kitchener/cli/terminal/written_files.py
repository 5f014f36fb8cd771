"""Writes a command's result to a file that only its owner can read: the whole file, or none.

Replies, learned lines and evidence are about people, so other users cannot read the file, whatever the umask or an earlier
file's mode is. A link at the path is replaced and never followed, because in a shared directory it may be another user's.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from kitchener.errors import ConfigError
from kitchener.small_files import is_directory, is_file, is_there, replacing

_Result = TypeVar("_Result")


def check_output(path: Path, root: Path | None = None) -> None:
    """Refuses a path that `write_output` could not write, before the command does any work.

    Args:
        path: the value of `--out`
        root: directory of the ledgers, where no such file may be; None: no such restriction

    Raises:
        ConfigError: the path lies under the root, its directory does not exist, or it is not a file
    """
    if root is not None:
        check_outside(path, root)
    if not is_directory(path.absolute().parent) or (is_there(path) and not is_file(path)):
        raise ConfigError("--out", "", repr(str(path)), "must be a file in a directory that exists")


def check_outside(path: Path, root: Path) -> None:
    """Refuses a path under the root.

    Args:
        path: the value of `--out`
        root: directory of the ledgers

    Raises:
        ConfigError: the path lies there
    """
    # Not `Path.resolve`, which raises for a loop of links.
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise ConfigError(
            "--out", "", repr(str(path)), f"lies under the root {root}, which is for ledgers; choose another place"
        )


def write_output(path: Path, fill: Callable[[BinaryIO], _Result]) -> _Result:
    """Writes a file with `fill`, makes it durable, then moves it to its path. Returns what `fill` returned.

    Args:
        path: the path of the file
        fill: writes the content; may read the file again by its name after a flush

    Raises:
        ConfigError: the file cannot be written
    """
    try:
        with replacing(path) as file:
            result = fill(file)
    except OSError as error:
        raise ConfigError(str(path), "", "", f"cannot be written: {error.strerror or error}") from error
    return result
