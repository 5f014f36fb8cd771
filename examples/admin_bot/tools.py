"""Tools of an agent that looks after one directory, and never leaves it."""

from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from kitchener import tool
from kitchener.actors import Tool

MAX_FILE_BYTES = 20_000


def directory_tools(directory: str | Path) -> Sequence[Tool[..., Any]]:
    """Three read-only tools over one directory."""
    home = Path(directory).resolve()

    def inside(path: str) -> Path:
        """The path below the directory; whatever leads out of it, links included, is refused."""
        found = (home / path).resolve()
        if not found.is_relative_to(home):
            raise PermissionError(f"{path!r} leads out of the directory this agent looks after")
        return found

    @tool(read_only=True)
    def list_files(
        path: Annotated[str, Field(description="folder below the directory; empty for all of it")] = "",
    ) -> list[str]:
        """List the files of a folder, with their sizes."""
        folder = inside(path)
        if not folder.is_dir():
            raise NotADirectoryError(f"{path!r} is not a folder")
        return [
            f"{entry.relative_to(home)}{'/' if entry.is_dir() else f' ({entry.stat().st_size} bytes)'}"
            for entry in sorted(folder.iterdir())
        ]

    @tool(read_only=True)
    def read_file(path: Annotated[str, Field(description="file below the directory")]) -> str:
        """Read a text file; a long one is cut."""
        with inside(path).open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")

    @tool(read_only=True)
    def list_packages() -> list[str]:
        """List the installed Python packages with their versions."""
        return sorted({f"{found.metadata['Name']} {found.version}" for found in distributions()}, key=str.lower)

    return (list_files, read_file, list_packages)
