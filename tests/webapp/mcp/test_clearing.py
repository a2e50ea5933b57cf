"""What a person typed for a tool alone, in the errors of that tool: cleared in each shape."""

import base64
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError
from pydantic import TypeAdapter

from flows import elicit
from flows.elicitation.states import Json
from tests.support.mcp_sandbox import caller_at_sandbox
from tests.support.mcp_server import MODERN, soon

LONG = "Kx7-Qp2_Zt9!Vb4?Wn6+Ls1=Rd3~Hf5.Jg8/Mc0,Ty8;Ua6:Ei4%Ob2&Sw7*Dv9#Fk1-Gm3"
PIN = 482913
SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {"key": {"type": "string"}, "pin": {"type": "integer"}},
    "required": ["key", "pin"],
}


def blocks(key: str) -> list[Any]:
    uri = f"file:///{key}"
    resource = types.TextResourceContents(uri=uri, text=key, mime_type="text/plain")
    return [
        types.TextContent(text=f"{key} is wrong, and {PIN}"),
        types.ResourceLink(uri=uri, name=key, title=key, description=f"about {key}"),
        types.EmbeddedResource(resource=resource),
        types.ImageContent(data=base64.b64encode(b"x").decode(), mime_type="image/png"),
    ]


@pytest.mark.every_way
async def test_no_shape_of_an_error_carries_what_was_typed(server, library, revision):
    # finding: S3
    if library == "fastmcp":
        from fastmcp.exceptions import ToolError
        from fastmcp.tools.base import ToolResult
    else:
        from mcp.server.mcpserver.exceptions import ToolError  # type: ignore[assignment]

    @server.tool()
    async def knock(shape: str) -> Any:
        typed = await elicit.secret("The key of the tea room", SCHEMA)
        key = str(typed["key"])
        match shape:
            case "protocol":
                raise MCPError(-32001, f"{key} is wrong", {"at": [key, PIN], key: "tried"})
            case "result":
                told: dict[str, Any] = {"tried": {"key": key, "pin": PIN}}
                if library == "fastmcp":
                    return ToolResult(blocks(key), told, is_error=True)
                return types.CallToolResult(
                    content=blocks(key), structured_content=told, is_error=True
                )
            case "pydantic":
                try:
                    TypeAdapter(int).validate_python(key)
                except ValueError as error:
                    raise ToolError(str(error)) from error
            case _:
                raise ToolError(f"{typed!r} {key[:20]}...")

    async with caller_at_sandbox(server, revision) as (at, caller):
        for shape in ("protocol", "result", "pydantic", "tool"):
            call = caller.call("knock", shape=shape)
            await at.guest.type(await caller.link(), key=LONG, pin=str(PIN))
            try:
                said = (await soon(call)).model_dump_json()
                assert '"isError":true' in said or '"is_error":true' in said
            except MCPError as error:
                said = (
                    f"{shape == 'protocol' and error.code == -32001} {error.message} {error.data}"
                )
                assert said.startswith("True")
            assert "***" in said
            assert str(PIN) not in said
            assert not [at for at in range(len(LONG) - 4) if LONG[at : at + 5] in said], said


async def test_what_a_library_lets_through_is_cleared(server):
    """Of an error that nobody turns into a result, 2025-11-25 tells the client every word."""
    from tests.support.mcp_server import LEGACY

    parts = getattr(server, "_mcp_server", server).middleware

    async def fails(context: Any, call_next: Any) -> Any:
        result = await call_next(context)
        if context.method == "tools/call":
            raise RuntimeError(f"could not write {result}")
        return result

    @server.tool()
    async def knock() -> str:
        return await elicit.secret("The key of the tea room")

    for revision in (LEGACY, MODERN):
        async with caller_at_sandbox(server, revision) as (at, caller):
            if fails not in parts:
                parts.append(fails)
            call = caller.call("knock")
            await at.guest.type(await caller.link(), value=LONG)
            with pytest.raises(MCPError) as raised:
                await soon(call)
            assert LONG not in f"{raised.value.message} {raised.value.data}"
            parts.remove(fails)
