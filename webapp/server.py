"""The MCP server that is served: its own application, its tools."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.authentication import AuthenticationError
from starlette.requests import HTTPConnection
from starlette.routing import Match, Route

from flows.oauth.access_token import BadBearer, TokenUse
from webapp.http.connection import ASGIApp, Receive, Scope, Send, watched
from webapp.http.root_path import rooted
from webapp.mcp.resuming import Streams

MCP_PATH = "/mcp"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTokens:
    """What the server's author has callers checked by, at the endpoint itself. Is a Verifier."""

    backend: BearerAuthBackend
    scopes: Sequence[str]
    issuer: str

    async def whose(self, text: str, *, sender: str, use: TokenUse | None = None) -> AccessToken:
        header = (b"authorization", f"Bearer {text}".encode("latin-1"))
        request = HTTPConnection({"type": "http", "path": MCP_PATH, "headers": [header]})
        try:
            found = await self.backend.authenticate(request)
        except AuthenticationError:
            found = None
        if found is None:
            raise BadBearer("refused by the server's own sign-in")
        token: AccessToken = found[1].access_token
        if not set(self.scopes) <= set(token.scopes):
            raise BadBearer(
                "scope",
                error="insufficient_scope",
                expected=list(self.scopes),
                came=list(token.scopes),
            )
        made_for = [str(token.resource).removesuffix("/")]
        if use is not None and use.resource not in made_for and use.scope not in token.scopes:
            raise use.refused(came=made_for)
        return token


class HostedServer(HostedApplication):
    """An MCPServer or a FastMCP server, and the application that the library makes of it."""

    def __init__(
        self,
        server: Any,
        *,
        clock: Callable[[], datetime],
        around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`around` makes a layer about the MCP endpoint, inside the author's own sign-in.

        `options` are the author's own, for what the library calls its application's.
        """
        super().__init__(server.name)
        self.server = server
        streams = Streams(clock=clock)
        self._application = _application(server, streams, options or {})
        self._scopes: Sequence[str] = ()
        for route in self._application.routes:
            if isinstance(route, Route) and route.path == MCP_PATH:
                is_checked = isinstance(route.app, RequireAuthMiddleware)
                holder: Any = route.app if is_checked else route
                self._scopes = holder.required_scopes if is_checked else ()
                holder.app = around(holder.app)
        self._watched = watched(streams.around(self._application))  # calls, not the author's pages

    @property
    def has_own_sign_in(self) -> bool:
        """Whether the server's author has its callers checked already."""
        keeper = self.server.settings if isinstance(self.server, _MCP_SERVER) else self.server
        return getattr(keeper, "auth", None) is not None

    def own_tokens(self, *, issuer: str) -> OwnTokens | None:
        """How it checks access tokens, of which that issuer vouches for those that name none.

        None where nothing of the library's does: what an author's own middleware looks at is not
        for others to know.
        """
        for layer in self._application.user_middleware:
            backend = layer.kwargs.get("backend")
            if isinstance(backend, BearerAuthBackend):
                return OwnTokens(backend=backend, scopes=self._scopes, issuer=issuer)
        return None

    async def tools(self) -> tuple[tuple[str, str], ...]:
        """Name and description of each tool that anybody may see listed.

        None are where the author's own middleware, or a low-level server's handler, lists them
        within an MCP request only.
        """
        if isinstance(self.server, Server):
            return ()
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


def _application(server: Any, streams: Streams, options: Mapping[str, Any]) -> Starlette:
    # Host and Origin are checked for everything by our own layer, in one place.
    application: Starlette
    if isinstance(server, _MCP_SERVER | Server):
        unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        application = server.streamable_http_app(
            streamable_http_path=MCP_PATH,
            event_store=streams,
            transport_security=unchecked,
            **options,
        )
    else:
        application = server.http_app(
            path=MCP_PATH, event_store=streams, host_origin_protection=False, **options
        )
    return application
