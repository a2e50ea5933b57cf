"""Calls of a tool by a tool, on FastMCP: asked first, as a call of the client's is.

What could go wrong: a model that reaches a gated tool through one that is not (FastMCP's search
transforms serve a `call_tool`), or a person who is asked twice for one call. The served FastMCP
server and every one that is mounted below it has this middleware, the innermost of its own, before
any of a call's tools runs; what the client called, and what that stands for on mounted servers, has
been asked already. Where a middleware of the author's changes the arguments, what the client sent
and what runs are asked about both, and each yes is kept: not every middleware gets here, so what
the client sent is never left unasked.

Not seen: what a body calls past the middleware (`run_middleware=False`, `Tool.run`) or on a server
that is neither served nor mounted, or is mounted by a body while it runs, what an extension's
interceptor changes, and `MCPServer.call_tool`, which has no middleware. A server that only a
provider of the author's own knows is seen from the first call of a tool of it on. Resources and
prompts have no Asker. A tool that calls itself is the tool that the client called: such a yes is
kept as one to the client's call is.
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
    """A call that needs no more asking; `arguments` None: whatever they are."""

    server: Any
    name: str
    version: str | None
    arguments: str | None
    is_clients: bool  # it is what the client called, or what that stands for
    marks: object = None  # None: whatever they are

    def is_of(self, server: Any, name: str, tool: ServedTool | None) -> bool:
        """Whether it is a call of this tool, with whatever arguments."""
        return (
            self.server is server
            and self.name == name
            and self.version == _version_of(tool)
            and self.marks in (None, _marks_of(tool))
        )


_asked: WeakKeyDictionary[Verbs, list[_Asked]] = WeakKeyDictionary()


def watch(server: Any) -> None:
    """Have inner calls asked first on this server and those mounted below, if it is FastMCP's.

    However often: the author may have mounted one since, or added a middleware.
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
    """The client's own call, which is asked where it comes in."""
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
    _enter_inside(verbs, tool, arguments=arguments, is_clients=is_clients)  # after a yes only


async def _run(context: Any, call_next: Any) -> Any:
    """Run it; what its body made, it asks. Raises NotAsked, as the tool's own error."""
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
    is_whole = isinstance(result, ToolResult) and not isinstance(result, InputRequiredToolResult)
    if is_whole and not result.is_error:
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
    """It, and those that are mounted below it, whose tools may be called by their own names."""
    return _with_mounted(server) if hasattr(server, "_mcp_server") else [server]


def _with_mounted(server: Any) -> list[Any]:
    """It, and the FastMCP servers below it, through the library's ways of holding one."""
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
        # What a provider is wrapped around (a namespace, renamed tools), or serves.
        ahead += [getattr(one, "_inner", None), getattr(one, "server", None)]
    return found


def _version_of(tool: ServedTool | None) -> str | None:
    return tool.version if tool is not None else None


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
            return await _run(context, call_next)

    return InnerCalls
