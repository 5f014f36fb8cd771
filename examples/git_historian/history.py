"""Tools that ask git about one repository, and one that changes it.

They run the `git` command, so they need no package. What they return was written by whoever committed to the repository, so
they are declared as not trusted. The environment variable `HISTORIAN_REPOSITORY` names the repository.
"""

import os
import subprocess
from typing import Annotated

from pydantic import Field

from kitchener import tool

Commit = Annotated[str, Field(pattern=r"^[0-9A-Za-z][\w./~^-]*$", description="hash, branch or tag of a commit")]
"""No option of git begins so."""


def git(*arguments: str) -> str:
    """What a git command prints. Raises ValueError with the first line of what it says otherwise."""
    repository = os.environ.get("HISTORIAN_REPOSITORY", ".")
    command = ["git", "-C", repository, "--no-pager", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20, check=False)
    if run.returncode:
        raise ValueError(f"git: {run.stderr.strip().partition(chr(10))[0] or 'failed'}")
    return run.stdout


def commits(*arguments: str) -> list[str]:
    """At most twenty commits, newest first."""
    return git("log", "-20", "--date=short", "--format=%h %ad %an: %s", *arguments).splitlines()


@tool(read_only=True, trusted=False)
def find_commits(about: Annotated[str, Field(description="word in their message, such as parser")]) -> list[str]:
    """Find the commits whose message has a word."""
    return commits("--regexp-ignore-case", "--fixed-strings", f"--grep={about}")


@tool(read_only=True, trusted=False)
def list_changes(path: Annotated[str, Field(description="file or folder, such as src/parser.py")]) -> list[str]:
    """List the commits that changed a file."""
    return commits("--", path)


@tool(read_only=True, trusted=False)
def show_commit(commit: Commit) -> str:
    """Show the author, date, message and changes of one commit."""
    return git("show", "--stat", "--patch", "--date=short", "--end-of-options", commit)


@tool
def tag_commit(commit: Commit, name: Annotated[str, Field(pattern=r"^v[0-9][\w.-]*$")]) -> str:
    """Create a tag for a commit, whose name is that of a version, such as v1.2."""
    git("tag", name, commit)
    return f"{commit} is {name} now"
