"""A server for `fastmcp run`: with one more line, that command serves the pages too.

fastmcp run fastmcp_runs_it.py                      on stdin and stdout
fastmcp run fastmcp_runs_it.py --transport http     over HTTP
"""

from fastmcp import FastMCP

from flows import elicit
from webapp import add_pages

mcp = FastMCP("fastmcp runs it")
add_pages(mcp)


@mcp.tool()
async def use_key() -> str:
    """Use a key that neither the model nor the client sees."""
    key = await elicit.secret("The key of your weather service")
    return f"The service answers to a key of {len(key)} characters."
