"""The application: every part is built here, once, in sight."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import cache, partial
from typing import Any

from litestar import Litestar, Response, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException

from flows.errors import StoreUnavailable
from flows.oauth.access_token import Resource
from flows.question import asking
from webapp.connecting import outbound_of, service_of, utc_now
from webapp.deadline import Clock
from webapp.elicitations.watcher import listen
from webapp.http.client import Outbound
from webapp.http.connection import ASGIApp, ClientConnections, Receive, Scope, Send
from webapp.http.guard import MACHINE_PATHS, Guard
from webapp.http.hsts import StrictTransport
from webapp.http.parts import AnyRequest, bring, nothing_to_begin, part, provided
from webapp.http.rate_limit import Paced, Rates
from webapp.http.requests import Bounded
from webapp.http.workers import must_share
from webapp.identity.bearer_auth import ProtectedResource
from webapp.identity.introspection import Introspection
from webapp.identity.issuer import Issuer
from webapp.kinds.registry import OwnKind
from webapp.limits import CallLimits
from webapp.mcp.attach import attach
from webapp.mcp.callers import issuer_of, sender_of
from webapp.mcp.gated_names import must_name_tools
from webapp.mcp.messages import BoundedMessages
from webapp.mcp.naming import must_be_named
from webapp.mcp.opened import OpenedSessions
from webapp.pages.renderer import Renderer, template_folder
from webapp.records.owners import must_open_all
from webapp.routes.answers import Answers
from webapp.routes.callbacks import provider_answers, provider_returns
from webapp.routes.connections import connections, disconnect, keep, reconnect, switch, unshare
from webapp.routes.home import alive, home, ready, static
from webapp.routes.links import allow, decline, go_on, show, show_user_code
from webapp.routes.live import live
from webapp.routes.page_request import page_request
from webapp.routes.payments import payments, request_refund
from webapp.routes.pictures import picture
from webapp.routes.returns import called_back, come_back
from webapp.routes.signin import offer_pairing, pair, sign_in, sign_out, signed_in
from webapp.routes.webhooks import hooked
from webapp.sandbox.settings import Sandbox
from webapp.server import HostedServer
from webapp.service import Service
from webapp.settings.key_usage import open_noted
from webapp.settings.settings import Settings, with_sandbox
from webapp.stores import Store
from webapp.sweeper import sweep

BODY_BYTES_AT_MOST = 64 * 1024
# By address: a person who clicks about never meets it.
PAGES_AT_ONCE = 100
BETWEEN_PAGES = timedelta(seconds=0.2)
_log = logging.getLogger(__name__)


@asynccontextmanager
async def open_app(
    settings: Settings,
    server: Any,
    *,
    store: Store | None = None,
    clock: Clock = utc_now,
    limits: CallLimits | None = None,
    wires: ClientConnections | None = None,
    sandbox: Sandbox | None = None,
    plugins: Sequence[object] = (),
    kinds: Collection[type[OwnKind]] = (),
    built: Callable[[Service], None] | None = None,
    outbound: Outbound | None = None,
) -> AsyncGenerator[ASGIApp]:
    """Everything that serves `server`, running, as one ASGI application without a lifespan.

    `wires` has the calls that come over stdio beside. What is not configured is the sandbox's, if
    there is one. `built` is told of the service, for who has to end it gently. `outbound` is the
    network's unless given. Raises GateWithoutTool.
    """
    settings = settings if sandbox is None else with_sandbox(settings, sandbox)
    await must_name_tools(settings.gate, server)
    async with AsyncExitStack() as stack:
        if store is None:
            must_share(settings.store, os.environ, sys.argv)
            store = await open_noted(settings)
            stack.push_async_callback(store.aclose)
        await must_open_all(store, settings.ring)
        outbound = outbound or await outbound_of(stack, settings)
        issuer = None
        if settings.identity.client is not None:
            issuer = Issuer(settings.identity.client.provider, fetch=outbound.send, clock=clock)
            stack.push_async_callback(issuer.aclose)
        service = await stack.enter_async_context(
            service_of(
                settings,
                store=store,
                clock=clock,
                outbound=outbound,
                plugins=plugins,
                kinds=kinds,
                limits=limits,
                issuer=issuer,
            )
        )
        if built is not None:
            built(service)
        attach(server, service, issuer=settings.identity.server_issuer, wires=wires)
        vouching = settings.identity.server_issuer or issuer_of(server)
        sender = partial(sender_of, identity=service.identity, issuer=vouching)
        served = HostedServer(
            server,
            clock=clock,
            around=lambda app: OpenedSessions(BoundedMessages(app), sender=sender),
        )
        answers = Answers(
            pages=Renderer(folders=[*settings.templates, template_folder()]), server=served.name
        )
        background = await stack.enter_async_context(asyncio.TaskGroup())
        loops = (
            listen(service.elicitations),
            service.bodies.renew_leases(),
            service.tool_lists.tell_changes(),
            sweep(service),
        )
        for task in [background.create_task(loop) for loop in loops]:
            stack.callback(task.cancel)
        await stack.enter_async_context(served.running())
        app: ASGIApp = Switch(answers=answers, served=served, service=service)
        if issuer is not None and not served.has_own_sign_in:
            app = _protected(app, issuer=issuer, settings=settings, name=served.name, clock=clock)
        if not settings.is_local:  # there everybody has the same address
            rates = Rates(burst=PAGES_AT_ONCE, every=BETWEEN_PAGES, clock=clock)
            app = Paced(app, rates=rates, free=MACHINE_PATHS)
        app = Guard(
            app,
            public_url=settings.url,
            allowed_origins=settings.origins,
            trusted_proxies=settings.proxies,
        )
        yield app if settings.hsts is None else StrictTransport(app, life=settings.hsts)


class Switch:
    """Sends a request to our routes, or to the served library's application for paths we lack."""

    def __init__(self, *, answers: Answers, served: HostedServer, service: Service) -> None:
        self._ours = Bounded(_routes())
        self._served = served
        self._service = service
        self._parts = {"service": service, "answers": answers, "served": served}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # it all runs by now
            await nothing_to_begin(receive, send)
            return
        is_ours = _is_ours(scope["path"])
        self._service.identity.settle(scope)
        if not is_ours and self._served.has_route(scope):
            # A route of the author's may complete, in trusted code or with a return token.
            with asking(self._service.completing):
                await self._served(scope, receive, send)
        else:
            bring(scope, self._parts)
            await self._ours(scope, receive, send)


class App:
    """The application with its lifespan, for an ASGI server."""

    def __init__(self, settings: Settings, server: Any, plugins: Sequence[object]) -> None:
        self._settings = settings
        self._plugins = plugins
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
            opened = open_app(self._settings, self._server, plugins=self._plugins)
            async with opened as self._app:
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except Exception as error:  # noqa: BLE001 - the edge of the whole application
            _log.exception("app.failed")
            why = error.why if isinstance(error, StoreUnavailable) else str(error)
            state = "startup" if self._app is None else "shutdown"
            await send({"type": f"lifespan.{state}.failed", "message": why})
        else:
            await send({"type": "lifespan.shutdown.complete"})


def create_app(settings: Settings, server: Any, *, plugins: Sequence[object] = ()) -> App:
    """The application that serves `server` (an MCPServer or FastMCP server) with our pages.

    `plugins` are told what happens to questions: see webapp.elicitations.plugins. Raises ValueError
    for a server without a name of its own.
    """
    must_be_named(server)
    return App(settings, server, plugins)


def _protected(
    app: ASGIApp, *, issuer: Issuer, settings: Settings, name: str, clock: Clock
) -> ProtectedResource:
    resource = Resource(
        url=f"{settings.url}/mcp",
        issuer=issuer.url,
        audiences=settings.identity.audiences,
        claim=settings.identity.claim,
        scopes=settings.identity.scopes,
        asked=settings.identity.advertised_scopes,
    )
    introspection = None
    if settings.identity.introspects and settings.identity.client is not None:
        introspection = Introspection(
            issuer=issuer, client=settings.identity.client, resource=resource, clock=clock
        )
    return ProtectedResource(
        app,
        issuer=issuer,
        resource=resource,
        name=name,
        clock=clock,
        introspection=introspection,
    )


@cache
def _routes() -> Litestar:
    """Our routes, compiled once; each request brings the parts of the server that it came to."""
    answers_of: Callable[[AnyRequest], Answers] = part("answers")

    def page(request: AnyRequest, error: Exception) -> Response[Any]:
        return answers_of(request).page_for_error(request, error)

    def problem(request: AnyRequest, error: Exception) -> Response[Any]:
        return answers_of(request).problem_for_error(request, error)

    def either(request: AnyRequest, error: Exception) -> Response[Any]:
        return answers_of(request).for_error(request, error)

    # Handlers by type; those for HTTPException cover what the framework itself refuses.
    for_people = Router(
        "/",
        route_handlers=[
            show,
            go_on,
            allow,
            decline,
            show_user_code,
            sign_in,
            signed_in,
            sign_out,
            offer_pairing,
            pair,
            come_back,
            provider_answers,
            provider_returns,
            connections,
            disconnect,
            unshare,
            keep,
            switch,
            reconnect,
            payments,
            request_refund,
            home,
        ],
        exception_handlers={Exception: page, HTTPException: page},
    )
    for_programs = Router(
        "/",
        route_handlers=[live, called_back, hooked, alive, ready, static, picture],
        exception_handlers={Exception: problem, HTTPException: problem},
    )
    return Litestar(
        [for_people, for_programs],
        dependencies={
            **provided(service="service", served="served"),
            "page": Provide(page_request),
        },
        exception_handlers={Exception: either, HTTPException: either},
        openapi_config=None,
        logging_config=None,
        request_max_body_size=BODY_BYTES_AT_MOST,
    )


def _is_ours(path: str) -> bool:
    whole, beginnings = _paths()
    return path in whole or path.startswith(beginnings)


@cache
def _paths() -> tuple[frozenset[str], tuple[str, ...]]:
    """Of our routes: those without a parameter, and what stands before it in the others."""
    split = [route.path.partition("{") for route in _routes().routes]
    whole = frozenset(path for path, parameter, _ in split if not parameter)
    return whole, tuple({beginning for beginning, parameter, _ in split if parameter})
