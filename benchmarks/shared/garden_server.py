"""An MCP server with one tool, over standard input and output, which `tool_turns.py` starts."""

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("garden")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look(place: str) -> dict[str, str]:
    """Looks somewhere."""
    return {"place": place, "found": "three roses and a spade"}


if __name__ == "__main__":
    server.run()
