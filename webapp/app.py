"""The application: every part is built here, once, in sight."""

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any

import httpx
from litestar import Litestar, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException

from flows.question import asking
from webapp.elicitations import Clock
from webapp.guard import Guard
from webapp.limits import Limits
from webapp.mcp.attach import attach
from webapp.outbound import Outbound
from webapp.pages import Pages, template_folder
from webapp.routes.answers import Answers
from webapp.routes.home import health, home, static
from webapp.routes.links import decline, go_on, show
from webapp.routes.live import live
from webapp.routes.returns import called_back, come_back
from webapp.served import Served
from webapp.service import Service, open_service
from webapp.settings import Settings
from webapp.stores import Store, open_store
from webapp.sweeper import sweep
from webapp.wire import ASGIApp, Receive, Scope, Send

BODY_BYTES_AT_MOST = 64 * 1024
_log = logging.getLogger(__name__)


def utc_now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def connect(settings: Settings) -> AsyncGenerator[Service]:
    """The service without a server: within it, trusted code completes elicitations of any process.

    Raises StoreUnavailable, or Unreadable if the store was made under other secrets.
    """
    store = await open_store(settings.store)
    try:
        async with open_service(
            store=store,
            ring=settings.ring,
            public_url=settings.url,
            uid=settings.uid,
            clock=utc_now,
        ) as service:
            with asking(service.completing):
                yield service
    finally:
        await store.aclose()


@asynccontextmanager
async def open_app(
    settings: Settings,
    server: Any,
    *,
    store: Store | None = None,
    clock: Clock = utc_now,
    limits: Limits | None = None,
) -> AsyncGenerator[ASGIApp]:
    """Everything that serves `server`, running, as one ASGI application without a lifespan."""
    async with AsyncExitStack() as stack:
        if store is None:
            store = await open_store(settings.store)
            stack.push_async_callback(store.aclose)
        service = await stack.enter_async_context(
            open_service(
                store=store,
                ring=settings.ring,
                public_url=settings.url,
                uid=settings.uid,
                clock=clock,
                limits=limits,
            )
        )
        attach(server, service)
        served = Served(server)
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=10, verify=_trust()))
        pages = _pages(service, served, settings=settings, client=client)
        background = await stack.enter_async_context(asyncio.TaskGroup())
        loops = (
            service.elicitations.listen(),
            service.bodies.renew_leases(),
            sweep(service.elicitations),
        )
        for task in [background.create_task(loop) for loop in loops]:
            stack.callback(task.cancel)
        await stack.enter_async_context(served.running())
        yield Guard(
            Switch(ours=pages, served=served, service=service),
            public_url=settings.url,
            allowed_origins=settings.origins,
            trusted_proxies=settings.proxies,
        )


class Switch:
    """Sends a request to our routes, or to the served library's application for paths we lack."""

    def __init__(self, *, ours: Litestar, served: Served, service: Service) -> None:
        self._ours = ours
        self._served = served
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] in ("http", "websocket")
            and not _is_ours(scope["path"])
            and self._served.has_route(scope)
        ):
            # A route of the author's may complete, in trusted code or with a return token.
            with asking(self._service.completing):
                await self._served(scope, receive, send)
        else:
            await self._ours(scope, receive, send)  # type: ignore[arg-type]  # the same ASGI


class App:
    """The application with its lifespan, for an ASGI server."""

    def __init__(self, settings: Settings, server: Any) -> None:
        self._settings = settings
        self._server = server
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            assert self._app is not None
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with open_app(self._settings, self._server) as self._app:
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except Exception as error:  # noqa: BLE001 - the edge of the whole application
            _log.exception("app.failed")
            state = "startup" if self._app is None else "shutdown"
            await send({"type": f"lifespan.{state}.failed", "message": str(error)})
        else:
            await send({"type": "lifespan.shutdown.complete"})


def create_app(settings: Settings, server: Any) -> App:
    """The application that serves `server` (an MCPServer or FastMCP server) with our pages."""
    return App(settings, server)


@cache
def _trust() -> ssl.SSLContext:
    """The certificate authorities, read once in a process: it takes a tenth of a second."""
    return httpx.create_ssl_context()


def _pages(
    service: Service, served: Served, *, settings: Settings, client: httpx.AsyncClient
) -> Litestar:
    answers = Answers(
        pages=Pages(folders=[*settings.templates, template_folder()]), server=served.name
    )
    outbound = Outbound(client, allow_loopback=settings.is_local)
    # Handlers by type; those for HTTPException cover what the framework itself refuses.
    for_people = Router(
        "/",
        route_handlers=[show, go_on, decline, come_back, home],
        exception_handlers={
            Exception: answers.page_for_error,
            HTTPException: answers.page_for_error,
        },
    )
    for_programs = Router(
        "/",
        route_handlers=[live, called_back, health, static],
        exception_handlers={
            Exception: answers.problem_for_error,
            HTTPException: answers.problem_for_error,
        },
    )
    return Litestar(
        [for_people, for_programs],
        dependencies={
            "service": Provide(lambda: service, sync_to_thread=False),
            "answers": Provide(lambda: answers, sync_to_thread=False),
            "served": Provide(lambda: served, sync_to_thread=False),
            "outbound": Provide(lambda: outbound, sync_to_thread=False),
        },
        exception_handlers={Exception: answers.for_error, HTTPException: answers.for_error},
        openapi_config=None,
        logging_config=None,
        request_max_body_size=BODY_BYTES_AT_MOST,
    )


def _is_ours(path: str) -> bool:
    return path in ("/", "/return", "/health") or path.startswith(("/e/", "/callback/", "/static/"))
