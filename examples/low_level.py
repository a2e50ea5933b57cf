"""A low-level server: one handler runs every tool, and any of them can ask.

elicit serve low_level:server
"""

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

from flows import elicit

USE_KEY = types.Tool(name="use_key", input_schema={"type": "object"})


async def list_tools(
    context: ServerRequestContext, params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[USE_KEY])


async def call_tool(
    context: ServerRequestContext, params: types.CallToolRequestParams
) -> types.CallToolResult:
    key = await elicit.secret("The key of your weather service")
    says = f"The service answers to a key of {len(key)} characters."
    text = types.TextContent(type="text", text=says)
    return types.CallToolResult(content=[text])


server = Server("low level", on_list_tools=list_tools, on_call_tool=call_tool)
