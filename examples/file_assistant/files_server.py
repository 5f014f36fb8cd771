"""A small MCP server for the text files of one folder: it lists, reads and writes them, and never leaves the folder.

    python files_server.py FOLDER

Its tools have the names, arguments and annotations of the filesystem server that the makers of the protocol publish for
Node.js, so that one can take the place of the other.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

MAX_FILE_BYTES = 100_000
READS = ToolAnnotations(read_only_hint=True)
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True)

home = Path(sys.argv[1] if len(sys.argv) > 1 else "documents").resolve()
server = MCPServer("text-files", version="1")


@contextmanager
def inside(path: str) -> Iterator[Path]:
    """The path below the folder. What leads out of it, links included, is refused; what fails is told to the model."""
    try:
        found = (home / path).resolve()
        if not found.is_relative_to(home):
            raise ToolError(f"{path!r} is outside the folder")
        yield found
    except (OSError, ValueError) as error:
        raise ToolError(f"{path!r}: {getattr(error, 'strerror', None) or error}") from error


@server.tool(annotations=READS, structured_output=False)
def list_directory(path: str = ".") -> str:
    """List the files of a directory."""
    with inside(path) as folder:
        kinds = (("[DIR]" if each.is_dir() else "[FILE]", each.name) for each in sorted(folder.iterdir()))
        return "\n".join(f"{kind} {name}" for kind, name in kinds) or "the directory is empty"


@server.tool(annotations=READS, structured_output=False)
def read_text_file(path: str) -> str:
    """Read a text file. Of a long one, only the beginning is returned."""
    with inside(path) as target, target.open("rb") as file:
        return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")


@server.tool(annotations=WRITES, structured_output=False)
def write_file(path: str, content: str) -> str:
    """Write a text file. A file that is there already is overwritten."""
    with inside(path) as target:
        target.write_text(content, encoding="utf-8")
        return f"Wrote {len(content)} characters to {target.relative_to(home)}"


if __name__ == "__main__":
    if not home.is_dir():
        sys.exit(f"files_server.py: {home} is no folder")
    server.run("stdio")
