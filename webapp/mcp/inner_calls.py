"""Calls of a tool by a tool, on FastMCP: asked first, as a call of the client's is.

What could go wrong: a model that reaches a gated tool through one that is not (FastMCP's search
transforms serve a `call_tool`), or a person who is asked twice for one call. Every FastMCP server
that a call passes through gets this middleware, the innermost of its own; what the client called,
and what that stands for on mounted servers, has been asked already.

Not seen: what a body calls past the middleware (`run_middleware=False`, `Tool.run`), and
`MCPServer.call_tool`, which has none.
"""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from flows.errors import NoAsker
from flows.question import current_asker
from webapp.call import Call
from webapp.mcp.before import ask_first
from webapp.mcp.tools import ServedTool, tool_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A call that needs no more asking; `arguments` None: whatever they are."""

    server: Any
    name: str
    arguments: str | None
    marks: object = None  # None: whatever they are


_asked: WeakKeyDictionary[Call, list[_Asked]] = WeakKeyDictionary()


def watch(server: Any) -> None:
    """Have inner calls of this server asked first, if it is FastMCP's; once, however often."""
    if not hasattr(server, "_mcp_server"):
        return
    parts: list[object] = server.middleware
    parts[:] = [part for part in parts if not isinstance(part, _middleware())]
    parts.append(_middleware()())


def enter(call: Call, server: Any, tool: ServedTool | None) -> None:
    """The client's own call, which is asked where it comes in."""
    own = _Asked(
        server=server, name=call.tool.tool, arguments=call.tool.arguments, marks=_marks_of(tool)
    )
    _asked[call] = [own]
    _enter_inside(call, tool, arguments=call.tool.arguments)


async def _ask(server: Any, message: Any) -> None:
    try:
        call = current_asker()
    except NoAsker:
        return
    if not isinstance(call, Call):
        return
    arguments = json.dumps(message.arguments or {}, sort_keys=True, default=str)
    tool = await tool_of(server, message.name, meta=message.meta, is_inner=True)
    marks = _marks_of(tool)
    for asked in _asked.get(call, ()):
        if (
            asked.server is server
            and asked.name == message.name
            and asked.arguments in (None, arguments)
            and asked.marks in (None, marks)
        ):
            return
    _enter_inside(call, tool, arguments=arguments)
    await ask_first(call, tool, name=message.name, arguments=arguments, is_inner=True)


def _enter_inside(call: Call, tool: ServedTool | None, *, arguments: str) -> None:
    for inside in tool.inside if tool is not None else ():
        given = arguments if inside.is_given_the_same else None
        _asked.setdefault(call, []).append(
            _Asked(server=inside.server, name=inside.name, arguments=given)
        )
        if not any(isinstance(part, _middleware()) for part in inside.server.middleware):
            watch(inside.server)


def _marks_of(tool: ServedTool | None) -> object:
    """What would be asked: another version of a tool, or what a session sees, may have others."""
    if tool is None:
        return ()
    return tool.gate, tool.is_destructive is True, tuple(map(id, tool.needs))


@cache
def _middleware() -> Any:
    from fastmcp.server.middleware import Middleware  # noqa: PLC0415 - an optional library

    class InnerCalls(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            await _ask(context.fastmcp_context.fastmcp, context.message)
            return await call_next(context)

    return InnerCalls
