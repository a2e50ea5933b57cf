"""Tools that ask, for both libraries. They are served as `tests.outside.waiting_shop:mcp`."""

from typing import Any

from flows import elicit
from tests.support.mcp_server import new_server


def _shop(library: str) -> Any:
    server = new_server(library)

    @server.tool()
    async def form(what: str) -> list[str]:
        return [await elicit.form(f"Who wants {what}?")]

    @server.tool()
    async def confirm(what: str) -> str:
        return f"booked: {await elicit.confirm(f'Book {what}?')}"

    return server


mcp, fastmcp = _shop("mcp"), _shop("fastmcp")
