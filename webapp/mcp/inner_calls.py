"""Gates and needs for tools that other tools call, on FastMCP.

Risks: a model reaches a gated tool through a tool without a gate (FastMCP's search transforms serve
a `call_tool`), or a person is asked twice for one call. The served FastMCP server and every server
mounted below it therefore have this middleware, as the innermost of their middlewares, before any
tool of a call runs. For the client's own call, and for the tools on mounted servers to which that
call delegates, `webapp.mcp.before` has asked already. If an author's middleware changes the
arguments, the person is asked about both the sent and the changed arguments, and each acceptance is
stored. Not every call reaches this middleware, so the sent arguments are always asked about.

Not covered: calls of a body past the middleware (`run_middleware=False`, `Tool.run`), calls on a
server that is neither served nor mounted or that a body mounts while it runs, changes by an
extension's interceptor, and `MCPServer.call_tool`, which has no middleware. A server that only an
author's own provider knows is covered after the first call of one of its tools. Resources and
prompts cannot ask questions. If a tool calls itself, an acceptance is stored as for the client's
call.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from flows.errors import NoAsker, NotAsked
from flows.kinds.gate import arguments_text, digest_of_arguments
from flows.question import asking, current_asker, current_body
from webapp.calls.unasked import all_were_asked
from webapp.calls.verbs import Verbs
from webapp.mcp.before import ask_first
from webapp.mcp.tools import ServedTool, tool_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A call whose gate and needs were asked. `arguments` None: for any arguments."""

    server: Any
    name: str
    version: str | None
    arguments: str | None
    is_clients: bool  # the client's own call, or a tool that it delegates to
    marks: object = None  # None: any marks match

    def is_of(self, server: Any, name: str, tool: ServedTool | None) -> bool:
        """Return True if this is a call of the same tool, with any arguments."""
        return (
            self.server is server
            and self.name == name
            and self.version == _version_of(tool)
            and self.marks in (None, _marks_of(tool))
        )


_asked: WeakKeyDictionary[Verbs, list[_Asked]] = WeakKeyDictionary()


def watch(server: Any) -> None:
    """Add the middleware to a FastMCP server and the servers mounted below it.

    This is repeated at each call, because the author may have mounted another server or added a
    middleware in the meantime.
    """
    if not hasattr(server, "_mcp_server"):
        return
    for one in _with_mounted(server):
        parts: list[object] = one.middleware
        ours = [part for part in parts if isinstance(part, _middleware())]
        if len(ours) != 1 or parts[-1] is not ours[0]:
            parts[:] = [part for part in parts if part not in ours]
            parts.append(_middleware()())


def enter(verbs: Verbs, server: Any, tool: ServedTool | None) -> None:
    """Register the client's own call, so that its gate and needs are not asked twice."""
    watch(server)
    own = _Asked(
        server=server,
        name=verbs.call.tool.tool,
        version=_version_of(tool),
        arguments=verbs.call.tool.arguments,
        is_clients=True,
        marks=_marks_of(tool),
    )
    _asked[verbs] = [own]
    _enter_inside(verbs, tool, arguments=verbs.call.tool.arguments, is_clients=True)


async def _ask(server: Any, message: Any) -> None:
    try:
        verbs = current_asker()
    except NoAsker:
        return
    if not isinstance(verbs, Verbs):
        return
    arguments = arguments_text(message.arguments or {})
    tool = await tool_of(server, message.name, meta=message.meta, is_inner=True)
    alike = [one for one in _asked.get(verbs, ()) if one.is_of(server, message.name, tool)]
    if any(asked.arguments in (None, arguments) for asked in alike):
        return
    is_clients = any(asked.is_clients for asked in alike)
    await ask_first(
        verbs,
        tool,
        name=message.name,
        arguments=arguments,
        given=message.arguments or {},
        is_inner=not is_clients,
    )
    _enter_inside(verbs, tool, arguments=arguments, is_clients=is_clients)  # if accepted


async def _run(context: Any, call_next: Any) -> Any:
    """Run a nested call and return its result.

    Raises NotAsked, as the tool's own error, if the tool created a question and did not ask it.
    """
    from fastmcp.tools.base import InputRequiredToolResult, ToolResult  # noqa: PLC0415 - optional

    try:
        asker = current_asker()
    except NoAsker:
        return await call_next(context)
    message = context.message
    digest = digest_of_arguments(arguments_text(message.arguments or {}))
    body = current_body().inner(f"{message.name} {digest}")
    with asking(asker, body=body) as unasked:
        result = await call_next(context)
    is_final = isinstance(result, ToolResult) and not isinstance(result, InputRequiredToolResult)
    if is_final and not result.is_error:
        try:
            await all_were_asked(unasked, tool=str(context.message.name))
        except NotAsked as error:
            asker.failed(error)
            raise
    return result


def _enter_inside(
    verbs: Verbs, tool: ServedTool | None, *, arguments: str, is_clients: bool
) -> None:
    for inside in tool.inside if tool is not None else ():
        _asked.setdefault(verbs, []).append(
            _Asked(
                server=inside.server,
                name=inside.name,
                version=inside.version,
                arguments=arguments if inside.is_given_the_same else None,
                is_clients=is_clients,
            )
        )
        watch(inside.server)


def servers_below(server: Any) -> list[Any]:
    """Return the server and the servers mounted below it. Each lists tools by its own names."""
    return _with_mounted(server) if hasattr(server, "_mcp_server") else [server]


def _with_mounted(server: Any) -> list[Any]:
    """Return the server and the FastMCP servers below it: mounted, proxied or wrapped."""
    from fastmcp.server.providers import Provider  # noqa: PLC0415 - an optional library

    found: list[Any] = []
    ahead, seen = [server], set[int]()
    while ahead:
        one = ahead.pop()
        if not isinstance(one, Provider) or id(one) in seen:
            continue
        seen.add(id(one))
        if hasattr(one, "_mcp_server"):
            found.append(one)
        if isinstance(below := getattr(one, "providers", None), list):  # a server, an aggregate
            ahead += below
        # A provider that this one wraps (a namespace, renamed tools), or a server that it serves.
        ahead += [getattr(one, "_inner", None), getattr(one, "server", None)]
    return found


def _version_of(tool: ServedTool | None) -> str | None:
    return tool.version if tool is not None else None


def _marks_of(tool: ServedTool | None) -> object:
    """Return the tool's marks, which may differ between versions and between sessions."""
    if tool is None:
        return ()
    return tool.gate, tool.is_destructive is True, tuple(map(id, tool.needs))


@cache
def _middleware() -> Any:
    from fastmcp.server.middleware import Middleware  # noqa: PLC0415 - an optional library

    class InnerCalls(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            await _ask(context.fastmcp_context.fastmcp, context.message)
            return await _run(context, call_next)

    return InnerCalls
