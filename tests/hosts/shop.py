"""A tool author's module, which the tests serve alone and mounted in each web framework."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from fastapi import FastAPI
from litestar import Litestar, asgi
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from flows import Link, elicit
from flows.origin import origin_of
from tests.typescript.everything import by_the_protocol
from webapp import create_app, read_settings
from webapp.mcp.tools import low_level_of

URL = os.environ["ELICIT_URL"]


def with_tools(server: Any) -> Any:
    """Add the tools and the author's routes to an MCPServer or FastMCP server."""
    for tool in TOOLS:
        server.tool()(tool)
    for path, route in ROUTES.items():
        server.custom_route(path, methods=["GET"])(route)
    return server


def low_level() -> Any:
    """Return a low-level server with the tools. Its routes are mounted next to it."""

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        empty = {"type": "object"}
        tools = [types.Tool(name=tool.__name__, input_schema=empty) for tool in TOOLS]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = next(tool for tool in TOOLS if tool.__name__ == params.name)
        text = await tool(**(params.arguments or {}))
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    return Server("shop", on_list_tools=list_tools, on_call_tool=call_tool)


async def read_terms() -> str:
    """Let the person read the terms on one of our pages."""

    def page(link: Link) -> str:
        return f"{URL}/terms?back={link.return_token}"

    await elicit.url("Read the terms", page, origins=[origin_of(URL)])
    return "read"


async def order(what: str) -> str:
    """Order once, with a number that the person types."""
    number = await elicit.secret("Your number")
    orders = await elicit.once("order", _order)
    return f"{what}: order {orders} for {len(number)} letters"


async def _terms(request: Request) -> Response:
    back = request.query_params["back"]
    return RedirectResponse(f"{URL}/return?elicitation={back}", status_code=303)


async def _where(request: Request) -> Response:
    return PlainTextResponse(str(request.url))


TOOLS: tuple[Callable[..., Awaitable[str]], ...] = (read_terms, order)
ROUTES = {"/terms": _terms, "/where": _where}
_orders = list[str]()


async def _order(key: str) -> int:
    _orders.append(key)
    return len(_orders)


def served(server: Any = None) -> Any:
    """Return the server with its tools, or the conformance suite's server."""
    if os.environ.get("SERVED") == "conformance":
        return by_the_protocol
    return with_tools(server or MCPServer("shop", log_level="WARNING"))


def _app() -> Any:
    return create_app(read_settings(), served())


def _in_starlette() -> Any:
    app = _app()
    return Starlette(routes=[Mount("/", app)], lifespan=app.lifespan)


def _in_fastapi() -> Any:
    """Mount the application in FastAPI with its own lifespan and common middleware."""
    app = _app()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with app.lifespan():
            yield

    host = FastAPI(
        lifespan=lifespan,
        middleware=[
            Middleware(GZipMiddleware, minimum_size=10),
            Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"]),
        ],
    )

    @host.middleware("http")
    async def timed(request: Request, call_next: Callable[[Request], Any]) -> Any:
        return await call_next(request)

    host.mount("/tools", app)
    return host


def _in_litestar() -> Any:
    app = _app()
    mounted = asgi("/tools", is_mount=True, copy_scope=True)(app)
    return Litestar([mounted], lifespan=[app.lifespan], openapi_config=None, logging_config=None)


def _low_level() -> Any:
    is_conformance = os.environ.get("SERVED") == "conformance"
    server = low_level_of(by_the_protocol) if is_conformance else low_level()
    app = create_app(read_settings(), server)
    own = [Route(path, route) for path, route in ROUTES.items()]
    return Starlette(routes=[*own, Mount("/", app)], lifespan=app.lifespan)


_MADE: dict[str, Callable[[], Any]] = {
    "app": _app,
    "in_starlette": _in_starlette,
    "in_fastapi": _in_fastapi,
    "in_litestar": _in_litestar,
    "beside_low_level": _low_level,
}


def __getattr__(name: str) -> Any:
    if name not in _MADE:
        raise AttributeError(name)
    globals()[name] = _MADE[name]()
    return globals()[name]
