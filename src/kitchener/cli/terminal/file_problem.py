"""Turns an operating system error about a file into the text that a command prints."""

import os


def file_problem(error: OSError) -> str:
    """Names the file, the problem and, for a missing permission, the remedy."""
    if isinstance(error, PermissionError):
        problem = "permission denied; run this command as a user who has access"
    else:
        problem = error.strerror or str(error)
    return problem if error.filename is None else f"{os.fsdecode(error.filename)}: {problem}"
