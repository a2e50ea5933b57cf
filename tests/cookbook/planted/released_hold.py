"""A seat that is released while the person pays for it."""

from mcp.server.mcpserver import MCPServer

from flows import Money, elicit

mcp = MCPServer("released hold")
held: set[int] = set()


@mcp.tool()
async def book() -> str:
    held.add(14)
    try:
        await elicit.payment(Money("9.00", "EUR"), "Seat 14")
        return "booked"
    finally:
        held.discard(14)
