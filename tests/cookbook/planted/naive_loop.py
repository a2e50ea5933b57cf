"""A loop that pays without `once`."""

from mcp.server.mcpserver import MCPServer

from flows import elicit

mcp = MCPServer("naive loop")
paid: list[int] = []


def pay_out(item: int) -> None:
    paid.append(item)


@mcp.tool()
async def pay_all() -> str:
    for item in range(3):
        if await elicit.confirm(f"Pay {item}?"):
            pay_out(item)
    return f"{len(paid)} payments"
