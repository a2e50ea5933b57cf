"""A form with a choice, and a confirmation before something is removed.

elicit serve stock:mcp
"""

from typing import Literal, TypedDict

from mcp.server.mcpserver import MCPServer

from flows import elicit

mcp = MCPServer("stock")
STOCK = {"north": 12, "south": 0}
ERRANDS = {"buy tea": True, "count boxes": False, "call Ada": True}


class Warehouse(TypedDict):
    warehouse: Literal["north", "south"]


@mcp.tool()
async def check_stock() -> str:
    """Look up what a warehouse has."""
    answer = await elicit.form("Which warehouse should I check?", Warehouse).or_none()
    if answer is None:
        return "Nothing was looked up."
    place = answer["warehouse"]
    return f"{place}: {STOCK[place]} boxes"


@mcp.tool()
async def clear_completed() -> str:
    """Remove every to-do that is done, if the person confirms."""
    done = [todo for todo, is_done in ERRANDS.items() if is_done]
    if not await elicit.confirm(f"Delete {len(done)} to-dos?", arguments={"to-dos": done}):
        return "Nothing was removed."
    for todo in done:
        del ERRANDS[todo]
    return f"Removed {len(done)}."
