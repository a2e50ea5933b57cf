"""The tools of a served server, on either library: their function, and what is said of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_INSIDE_AT_MOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool:
    """`function` is what the author wrote, with the marks on it; None where there is none here."""

    name: str
    function: Callable[..., Any] | None
    is_destructive: bool | None  # by its annotation `destructiveHint`; None: it has none
    has_output_schema: bool  # clients refuse a text as its result unless it is an error


async def tool_of(server: Any, name: str) -> ServedTool | None:
    """The tool of this name of an MCPServer or a FastMCP server."""
    for tool in await server.list_tools():
        if tool.name == name:
            return await _served(server, tool)
    return None


async def tools_of(server: Any) -> list[ServedTool]:
    """All of them."""
    return [await _served(server, tool) for tool in await server.list_tools()]


async def _served(server: Any, tool: Any) -> ServedTool:
    annotations = getattr(tool, "annotations", None)
    return ServedTool(
        name=tool.name,
        function=await _own_function_of(tool) or _function_of(server, tool.name),
        is_destructive=getattr(annotations, "destructive_hint", None),
        has_output_schema=getattr(tool, "output_schema", None) is not None,
    )


async def _own_function_of(tool: Any) -> Callable[..., Any] | None:
    """The author's function of a FastMCP tool, which may be another one's, or a mounted server's.

    What stands for it has no marks, so a gate would stand open.
    """
    for _ in range(_INSIDE_AT_MOST):
        if (parent := getattr(tool, "parent_tool", None)) is not None:
            tool = parent
        elif (mounted := getattr(tool, "_server", None)) is not None:
            name = getattr(tool, "_original_name", None)
            inside = await mounted.list_tools(run_middleware=False)
            tool = next((one for one in inside if one.name == name), None)
        else:
            break
    return getattr(tool, "fn", None)


def _function_of(server: Any, name: str) -> Callable[..., Any] | None:
    # MCPServer lists its tools as they stand on the wire, and keeps their functions here.
    manager = getattr(server, "_tool_manager", None)
    tool = manager.get_tool(name) if manager is not None else None
    return getattr(tool, "fn", None)
