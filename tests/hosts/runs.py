"""An author's program whose server runs itself: `python -m tests.hosts.runs PORT`."""

import sys

from mcp.server.mcpserver import MCPServer

from tests.hosts.served import with_tools
from webapp import add_pages

mcp = MCPServer("shop", log_level="WARNING")
add_pages(mcp)
with_tools(mcp)

if __name__ == "__main__":
    mcp.run(transport="streamable-http", port=int(sys.argv[1]))
