"""Your server with its pages, as one application for uvicorn.

ELICIT_URL=http://127.0.0.1:8000 uvicorn served_by_uvicorn:app
"""

from mcp.server.mcpserver import MCPServer

from flows import elicit
from webapp import create_app, read_settings

mcp = MCPServer("greetings")


@mcp.tool()
async def greet() -> str:
    """Greet the person by the name that they type."""
    name = await elicit.form("How shall I call you?", str)
    return f"Hello, {name}."


app = create_app(read_settings(), mcp)
