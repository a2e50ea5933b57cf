"""The server of these trials: a shop on either library, with or without access tokens.

Each tool appends its actions to the file that the variable TILL names.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import mcp_types as types

from flows import elicit
from flows.elicitation.states import Json
from tests.support.guarded_server import guarded_by_tokens
from tests.support.mcp_server import new_server

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

    @server.tool()
    async def deploy(what: str) -> str:
        """Ask for approval, then build and release, each once and with pauses."""

        async def pause(step: str) -> None:
            note(f"{what} {step}")
            await asyncio.sleep(float(os.environ["DEPLOY_SECONDS"]) / 5)

        async def build(_key: str) -> Json:
            await pause("building")
            note(f"{what} built")
            return "built"

        async def release(_key: str) -> Json:
            await pause("releasing")
            note(f"{what} released")
            return "released"

        await elicit.url("Deploy?", "https://ci.example.com/yes", elicitation_id=what)
        await pause("answered")
        done = [await elicit.once("build", build)]
        await pause("between")
        done.append(await elicit.once("release", release))
        await pause("after")
        return f"{what} {done}"

    return server


def note(line: str) -> None:
    with Path(os.environ["TILL"]).open("a") as payment_env:
        payment_env.write(line + "\n")


def guarded(library: str) -> Any:
    claims = {name: {"iss": ISSUER, "sub": name} for name in ("ann", "bob")}
    return with_tools(guarded_by_tokens(library, claims))


mcp = with_tools(new_server("mcp"))
fastmcp = with_tools(new_server("fastmcp"))
guarded_mcp = guarded("mcp")
guarded_fastmcp = guarded("fastmcp")
