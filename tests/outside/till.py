"""What is served to be tried from outside: one shop on either library, and with access tokens.

What its tools did is told by the lines of the file that TILL names.
"""

import os
from pathlib import Path
from typing import Any

import mcp_types as types

from flows import elicit
from flows.elicitation import Json
from tests.mcp.guarded import guarded_by_tokens
from tests.mcp.stage import new_server

ISSUER = "https://login.example.com"


def with_tools(server: Any) -> Any:
    @server.tool(annotations=types.ToolAnnotations(destructive_hint=True))
    async def wipe() -> str:
        note("wiped")
        return "wiped"

    @server.tool()
    async def sure() -> str:
        return f"sure: {await elicit.confirm('Sure?')}"

    @server.tool()
    async def order(what: str) -> str:
        async def place(key: str) -> Json:
            note(f"{what} {key}")
            return key

        return str(await elicit.once("order", place))

    return server


def note(line: str) -> None:
    with Path(os.environ["TILL"]).open("a") as till:
        till.write(line + "\n")


def guarded(library: str) -> Any:
    claims = {name: {"iss": ISSUER, "sub": name} for name in ("ann", "bob")}
    return with_tools(guarded_by_tokens(library, claims))


mcp = with_tools(new_server("mcp"))
fastmcp = with_tools(new_server("fastmcp"))
guarded_mcp = guarded("mcp")
guarded_fastmcp = guarded("fastmcp")
