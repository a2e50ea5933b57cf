"""An author's module, as each host serves it: one server, and what it is mounted in."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from litestar import Litestar, asgi
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount

from flows import Link, elicit
from flows.origin import origin_of
from tests.typescript.everything import by_the_protocol
from webapp import create_app, read_settings

URL = os.environ["ELICIT_URL"]


def shop() -> MCPServer:
    server = MCPServer("shop", log_level="WARNING")

    @server.tool()
    async def read_terms() -> str:
        """Let the person read the terms, on a page of ours."""

        def page(link: Link) -> str:
            return f"{URL}/terms?back={link.return_token}"

        await elicit.url("Read the terms", page, origins=[origin_of(URL)])
        return "read"

    @server.tool()
    async def order(what: str) -> str:
        """Order once, with a number that the person types."""
        number = await elicit.secret("Your number")
        orders = await elicit.once("order", _order)
        return f"{what}: order {orders} for {len(number)} letters"

    @server.custom_route("/terms", methods=["GET"])
    async def terms(request: Request) -> Response:
        back = request.query_params["back"]
        return RedirectResponse(f"{URL}/return?elicitation={back}", status_code=303)

    @server.custom_route("/where", methods=["GET"])
    async def where(request: Request) -> Response:
        return PlainTextResponse(str(request.url))

    return server


_orders = list[str]()


async def _order(key: str) -> int:
    _orders.append(key)
    return len(_orders)


def _app() -> Any:
    server = by_the_protocol if os.environ.get("SERVED") == "conformance" else shop()
    return create_app(read_settings(), server)


def _in_starlette() -> Any:
    app = _app()
    return Starlette(routes=[Mount("/", app)], lifespan=app.lifespan)


def _in_fastapi() -> Any:
    """With a lifespan of its own, and with what many have before everything."""
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


_MADE: dict[str, Callable[[], Any]] = {
    "app": _app,
    "in_starlette": _in_starlette,
    "in_fastapi": _in_fastapi,
    "in_litestar": _in_litestar,
}


def __getattr__(name: str) -> Any:
    if name not in _MADE:
        raise AttributeError(name)
    globals()[name] = _MADE[name]()
    return globals()[name]
