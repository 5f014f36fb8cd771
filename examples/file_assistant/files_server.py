"""A small MCP server for the text files of one folder: it lists, reads and writes them, and never leaves the folder.

    python files_server.py FOLDER

Its tools have the names, arguments and annotations of the filesystem server that the makers of the protocol publish for
Node.js, so that one can take the place of the other.
"""

import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

MAX_FILE_BYTES = 100_000
READS = ToolAnnotations(read_only_hint=True)
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True)

home = Path(sys.argv[1] if len(sys.argv) > 1 else "documents").resolve()
server = MCPServer("text-files", version="1")


def inside(path: str) -> Path:
    """The path below the folder. What leads out of it, links included, is refused."""
    found = (home / path).resolve()
    if not found.is_relative_to(home):
        raise PermissionError(f"{path!r} is outside the folder")
    return found


@server.tool(annotations=READS, structured_output=False)
def list_directory(path: str = ".") -> str:
    """List the files of a directory."""
    kinds = (("[DIR]" if each.is_dir() else "[FILE]", each.name) for each in sorted(inside(path).iterdir()))
    return "\n".join(f"{kind} {name}" for kind, name in kinds) or "the directory is empty"


@server.tool(annotations=READS, structured_output=False)
def read_text_file(path: str) -> str:
    """Read a text file. Of a long one, only the beginning is returned."""
    with inside(path).open("rb") as file:
        return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")


@server.tool(annotations=WRITES, structured_output=False)
def write_file(path: str, content: str) -> str:
    """Write a text file. A file that is there already is overwritten."""
    target = inside(path)
    target.write_text(content, encoding="utf-8")
    return f"Wrote {len(content)} characters to {target.relative_to(home)}"


if __name__ == "__main__":
    if not home.is_dir():
        sys.exit(f"files_server.py: {home} is no folder")
    server.run("stdio")
