"""The MCP server that is served: found by name, its own application, its tools."""

import importlib
import logging
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from mcp.server.auth.middleware.bearer_auth import RequireAuthMiddleware
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.routing import Match, Route

from webapp.http.connection import ASGIApp, Receive, Scope, Send, watched
from webapp.http.root_path import rooted
from webapp.mcp.resuming import Streams

MCP_PATH = "/mcp"
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_log = logging.getLogger(__name__)
_MCP_SERVER: type[Any] = MCPServer  # its own type has a parameter that is of no use here


class HostedApplication:
    """What answers beside our own routes; of itself nothing does, and no tool is there."""

    server: Any = None

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def has_own_sign_in(self) -> bool:
        """Whether the server's author has its callers checked already."""
        return False

    async def tools(self) -> tuple[tuple[str, str], ...]:
        """Name and description of each tool that anybody may see listed."""
        return ()

    def has_route(self, scope: Scope) -> bool:
        """Whether an answer comes from there."""
        return False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError  # it has no route

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Its own lifespan."""
        yield


class HostedServer(HostedApplication):
    """An MCPServer or a FastMCP server, and the application that the library makes of it."""

    def __init__(
        self,
        server: Any,
        *,
        clock: Callable[[], datetime],
        around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    ) -> None:
        """`around` makes a layer about the MCP endpoint, inside the author's own sign-in."""
        super().__init__(server.name)
        self.server = server
        streams = Streams(clock=clock)
        self._application = _application(server, streams)
        for route in self._application.routes:
            if isinstance(route, Route) and route.path == MCP_PATH:
                is_checked = isinstance(route.app, RequireAuthMiddleware)
                holder: Any = route.app if is_checked else route
                holder.app = around(holder.app)
        self._watched = watched(streams.around(self._application))  # calls, not the author's pages

    @property
    def has_own_sign_in(self) -> bool:
        """Whether the server's author has its callers checked already."""
        keeper = self.server.settings if isinstance(self.server, _MCP_SERVER) else self.server
        return getattr(keeper, "auth", None) is not None

    async def tools(self) -> tuple[tuple[str, str], ...]:
        """Name and description of each tool that anybody may see listed.

        None are where the author's own middleware lists them within an MCP request only.
        """
        try:
            tools = await self.server.list_tools()
        except Exception:  # noqa: BLE001 - it is the author's code
            _log.warning("tools.not_listed", exc_info=True)
            return ()
        return tuple((tool.name, tool.description or "") for tool in tools)

    def has_route(self, scope: Scope) -> bool:
        """Whether the library's application (or a route of the author's in it) answers there."""
        whole = rooted(scope)
        return any(route.matches(whole)[0] is not Match.NONE for route in self._application.routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_call = scope.get("path") == MCP_PATH
        await (self._watched if is_call else self._application)(rooted(scope), receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """The library's own lifespan."""
        async with self._application.router.lifespan_context(self._application):
            yield


def find_server(name: str) -> Any:
    """The server that `module:attribute` names; without an attribute it is `mcp`.

    The working directory comes behind the installed packages. Raises ImportError or TypeError, in
    words for the terminal; whatever else the module raises comes through as it is.
    """
    module_name, colon, attribute = name.partition(":")
    is_dotted = all(part.isidentifier() for part in module_name.split("."))
    if not is_dotted or module_name.endswith(".py") or (colon and not attribute):
        meant = module_name.removeprefix("./").removesuffix(".py").replace("/", ".")
        is_near = all(part.isidentifier() for part in meant.split("."))
        raise ImportError(
            f"{name!r} does not name a server: write module:attribute, as in "
            f"{meant if is_near else 'my_tools'}:{attribute or 'mcp'} (no path, no .py)."
        )
    here = Path.cwd()
    if str(here) not in sys.path:
        sys.path.append(str(here))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ImportError(_why_missing(error, module_name, here)) from error
    found = getattr(module, attribute or "mcp", None)
    if found is None:
        raise ImportError(
            f"{module_name} ({_place(module)}) has no attribute {attribute or 'mcp'!r}."
            + _shadowed(module, here)
        )
    if not hasattr(found, "list_tools") or not hasattr(found, "name"):
        raise TypeError(f"{name} is a {type(found).__name__}, not an MCPServer or FastMCP server.")
    return found


def place_of(name: str) -> str:
    """Where the server that `name` names comes from: its module's file, and the attribute in it.

    Of what is installed the module's name: another Python, or another environment made by its
    installer, holds the same module elsewhere. It must have been found before.
    """
    module_name, _, attribute = name.partition(":")
    file = getattr(sys.modules[module_name], "__file__", None)
    path = Path(file).absolute() if file else None
    is_installed = path is None or not _INSTALLED.isdisjoint(path.parts)
    return f"{module_name if is_installed else path}:{attribute or 'mcp'}"


def _why_missing(error: ModuleNotFoundError, wanted: str, here: Path) -> str:
    missing = error.name or wanted
    if missing == wanted or wanted.startswith(f"{missing}."):
        return f"There is no module {missing!r} in {here}, nor is one installed."
    above = sys.modules.get(missing.partition(".")[0])
    hint = _shadowed(above, here) if above is not None else ""
    return f"{wanted} imports {missing!r}, which is not there." + hint


def _shadowed(module: ModuleType, here: Path) -> str:
    """What to add if a file or folder of the author's stands behind a package of that name."""
    for mine in (here / f"{module.__name__}.py", here / module.__name__):
        if mine.exists() and here not in Path(_place(module)).parents:
            return (
                f" Your {mine.name} stands behind an installed package of the same name "
                f"({_place(module)}): rename yours."
            )
    return ""


def _place(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "a namespace package"


def _application(server: Any, streams: Streams) -> Starlette:
    # Host and Origin are checked for everything by our own layer, in one place.
    if isinstance(server, MCPServer):
        return server.streamable_http_app(
            streamable_http_path=MCP_PATH,
            event_store=streams,
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
    application: Starlette = server.http_app(
        path=MCP_PATH, event_store=streams, host_origin_protection=False
    )
    return application
