"""Turns an operating system error about a file into the text that a command prints."""

import os


def file_problem(error: OSError) -> str:
    """Names the file, what is wrong, and for a missing permission what to do."""
    if isinstance(error, PermissionError):
        problem = "permission denied; run this command as a user who has access"
    else:
        problem = error.strerror or str(error)
    return problem if error.filename is None else f"{os.fsdecode(error.filename)}: {problem}"
