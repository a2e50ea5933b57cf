"""A plain MCP server. Only the import is from elicit.

elicit serve my_tools:mcp
"""

import os
from urllib.parse import parse_qs

from mcp.server.mcpserver import MCPServer
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from flows import Link, complete_elicitation, elicit

mcp = MCPServer("lunch")
SERVICE = os.environ.get("ELICIT_URL", "http://127.0.0.1:8765")


def menu_page(link: Link) -> str:
    return f"{SERVICE}/menu?elicitation={link.return_token}"


@mcp.tool()
async def order_lunch() -> str:
    """Let the person choose what to eat."""
    choice = await elicit.url("What would you like for lunch?", menu_page, origins=[SERVICE])
    return f"The person would like {choice['dish']}."


# The rest simulates a service of yours: a page that a person fills in.
MENU = """<!doctype html><html lang="en"><title>Lunch</title><h1>What would you like?</h1>
<form method="post"><label>Dish <input name="dish" required></label><button>Order</button></form>"""


@mcp.custom_route("/menu", methods=["GET", "POST"])
async def menu(request: Request) -> Response:
    if request.method == "GET":
        return HTMLResponse(MENU)
    dish = parse_qs((await request.body()).decode()).get("dish", ["nothing"])[0]
    # This checks the token in the address, and that the same browser has pressed Continue.
    done = await complete_elicitation(request, {"dish": dish})
    return HTMLResponse(f"<!doctype html><title>Lunch</title><h1>Your order: {done}</h1>")
