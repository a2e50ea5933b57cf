"""A counter that counts a call again after each question."""

from mcp.server.mcpserver import MCPServer

from flows import elicit

mcp = MCPServer("counter")


class Statistics:
    def __init__(self) -> None:
        self.calls = 0


statistics = Statistics()


@mcp.tool()
async def count() -> str:
    statistics.calls += 1
    confirmed = await elicit.confirm("Go on?")
    return f"{confirmed}, call {statistics.calls}"
