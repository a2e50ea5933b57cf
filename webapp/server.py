"""The MCP server that is served, with its own application and tools."""

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

from flows.elicitation.tool_call import DescribedTool
from flows.oauth.access_token import BadBearer, TokenUse
from flows.question import Asker, asking
from webapp.http.address import rooted
from webapp.http.exchange import ASGIApp, Receive, Scope, Send, exchange_of
from webapp.mcp.resuming import Streams
from webapp.mcp.tools import title_of

MCP_PATH = "/mcp"
_log = logging.getLogger(__name__)
_MCP_SERVER: type[Any] = MCPServer  # without the class's type parameter, which is not needed here


class HostedApplication:
    """An application next to our own routes. This base class has no routes and no tools."""

    server: Any = None

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def has_own_sign_in(self) -> bool:
        """True if the server's author already authenticates callers."""
        return False

    async def tools(self) -> tuple[DescribedTool, ...]:
        """Return each tool that anybody may list, with its title and description."""
        return ()

    def has_route(self, scope: Scope) -> bool:
        """Return True if this application answers the request."""
        return False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError  # never called, because `has_route` is False

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run the application's own lifespan."""
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTokens:
    """A Verifier that uses the authentication of the server's author."""

    backend: BearerAuthBackend
    scopes: Sequence[str]
    issuer: str

    async def verify(self, text: str, *, sender: str, use: TokenUse | None = None) -> AccessToken:
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
                received=list(token.scopes),
            )
        made_for = [str(token.resource).removesuffix("/")]
        if use is not None and use.resource not in made_for and use.scope not in token.scopes:
            raise use.refused(received=made_for)
        return token


class HostedServer(HostedApplication):
    """An MCPServer or a FastMCP server, and the application that the library creates for it."""

    def __init__(
        self,
        server: Any,
        *,
        clock: Callable[[], datetime],
        around: Callable[[ASGIApp, Streams], ASGIApp] = lambda app, _: app,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`around` adds middleware to the MCP endpoint, inside the author's own authentication.

        `around` receives the endpoint, and the store for the events of the endpoint's streams.

        `options` are the author's arguments for the library's application.
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
                holder.app = around(holder.app, streams)

    @property
    def has_own_sign_in(self) -> bool:
        """True if the server's author already authenticates callers."""
        keeper = self.server.settings if isinstance(self.server, _MCP_SERVER) else self.server
        return getattr(keeper, "auth", None) is not None

    def own_tokens(self, *, issuer: str) -> OwnTokens | None:
        """Return the server's verifier of access tokens.

        `issuer` is the issuer of tokens that name no issuer. Return None if the library does not
        authenticate callers. An author's own middleware is not considered.
        """
        for layer in self._application.user_middleware:
            backend = layer.kwargs.get("backend")
            if isinstance(backend, BearerAuthBackend):
                return OwnTokens(backend=backend, scopes=self._scopes, issuer=issuer)
        return None

    async def tools(self) -> tuple[DescribedTool, ...]:
        """Return each tool that anybody may list, with its title and description.

        The result is empty if the author's own middleware, or the handler of a low-level server,
        lists tools only within an MCP request.
        """
        if isinstance(self.server, Server):
            return ()
        try:
            tools = await self.server.list_tools()
        except Exception:  # noqa: BLE001 - the author's code may raise anything
            _log.warning("tools.not_listed", exc_info=True)
            return ()
        return tuple(
            DescribedTool(name=tool.name, title=title_of(tool.title), description=tool.description)
            for tool in tools
        )

    def has_route(self, scope: Scope) -> bool:
        """Return True if the library's application, or an author's route in it, has this path."""
        whole = rooted(scope)
        return any(route.matches(whole)[0] is not Match.NONE for route in self._application.routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._application(rooted(scope), receive, send)

    def endpoint(self, others: ASGIApp, *, asker: Asker) -> ASGIApp:
        """Return the application of the MCP endpoint. `others` serves the paths below it.

        `asker` is the current Asker for code of the endpoint that runs outside tools.
        """

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] != MCP_PATH or scope["type"] != "http":
                await others(scope, receive, send)
                return
            with asking(asker, is_tool=None):
                scope = rooted(scope)
                await exchange_of(scope, receive, send).run(self._application, scope)

        return serve

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run the library's own lifespan."""
        async with self._application.router.lifespan_context(self._application):
            yield


def _application(server: Any, streams: Streams, options: Mapping[str, Any]) -> Starlette:
    # Our own layer checks Host and Origin for all requests, in one place.
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
