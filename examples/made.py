"""A server that a function creates when it is served.

elicit serve made:create_server
"""

from mcp.server.mcpserver import MCPServer

from flows import elicit


async def create_server() -> MCPServer:
    mcp = MCPServer("made")

    @mcp.tool()
    async def use_key() -> str:
        """Use a key that neither the model nor the client sees."""
        key = await elicit.secret("The key of your weather service")
        return f"The service answers to a key of {len(key)} characters."

    return mcp
