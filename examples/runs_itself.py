"""A server that starts itself: with one more line, its run() serves the pages too.

python runs_itself.py          on stdin and stdout, with the pages on a port of this machine
python runs_itself.py 8000     over HTTP, with the pages on the same port
"""

import sys

from mcp.server.mcpserver import MCPServer

from flows import elicit
from webapp import add_pages

mcp = MCPServer("runs itself")
add_pages(mcp)


@mcp.tool()
async def use_key() -> str:
    """Use a key that neither the model nor the client sees."""
    key = await elicit.secret("The key of your weather service")
    return f"The service answers to a key of {len(key)} characters."


if __name__ == "__main__":
    if sys.argv[1:]:
        mcp.run(transport="streamable-http", port=int(sys.argv[1]))
    else:
        mcp.run()
