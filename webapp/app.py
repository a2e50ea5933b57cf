"""The ASGI application: this module creates all of its parts, once."""

import asyncio
import inspect
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from flows.errors import StoreUnavailable
from webapp.api.access import TokenUses
from webapp.api.router import api_routes
from webapp.collector import Collector
from webapp.connecting import (
    issuer_tokens,
    log_wrong_registrations,
    names_in,
    outbound_of,
    telemetry_of,
    utc_now,
)
from webapp.coroutines import asked_in
from webapp.deadline import Clock
from webapp.elicitations.watcher import listen
from webapp.http.browser import page_headers
from webapp.http.client import Outbound
from webapp.http.edge import Edge, Guard
from webapp.http.ending import on_end_signal
from webapp.http.exchange import ASGIApp, ClientConnections, Receive, Scope, Send, send_answer
from webapp.http.rate_limit import Rates
from webapp.identity.access_tokens import IssuerTokens, Verifier
from webapp.identity.bearer_auth import protected
from webapp.identity.issuer import Issuer
from webapp.identity.users import Users, Who, must_be_sign_in_url
from webapp.kinds.registry import OwnKind
from webapp.limits import CallLimits
from webapp.logs.events import mask_access_logs
from webapp.mcp.attach import attach, is_served
from webapp.mcp.before import must_name_tools, warn_of_approvers
from webapp.mcp.callers import issuer_of, must_be_named, sender_of
from webapp.mcp.opened import OpenedSessions
from webapp.mcp.tool_mistakes import must_have_no_mistakes
from webapp.mcp.tools import low_level_of
from webapp.pages.renderer import Renderer, template_folder
from webapp.records.owners import must_be_servable
from webapp.routes.answers import Answers
from webapp.routes.metrics import PATH as METRICS_PATH
from webapp.routes.metrics import metrics_page
from webapp.routes.page_request import credential_of
from webapp.routes.router import own_routes
from webapp.sandbox.settings import Sandbox
from webapp.server import HostedApplication, HostedServer
from webapp.service import Service, ServiceOptions, open_service
from webapp.settings.key_usage import open_noted
from webapp.settings.sandboxed import with_sandbox
from webapp.settings.settings import Settings
from webapp.stores import Replicated, Store
from webapp.stores.observed import observed
from webapp.sweeper import sweep
from webapp.workers.sessions import must_share, routed

# The limit for each address. A person who clicks around never reaches it.
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
    connections: ClientConnections | None = None,
    sandbox: Sandbox | None = None,
    plugins: Sequence[object] = (),
    kinds: Collection[type[OwnKind]] = (),
    built: Callable[[Service], None] | None = None,
    options: Mapping[str, Any] | None = None,
    outbound: Outbound | None = None,
    has_endpoint: bool = True,
    users: Users | None = None,
    asked_as: object | None = None,
) -> AsyncGenerator[ASGIApp]:
    """Run all parts that serve `server`, and yield an ASGI application without a lifespan.

    `connections` has the calls that come over stdio. The sandbox, if there is one, replaces
    everything that is not configured. `built` is called with the service, for callers that have to
    stop it gracefully. `options` are for the application that the server's library creates. Without
    `outbound`, requests go to the network. Without `has_endpoint`, there is no MCP endpoint: calls
    reach the server in this process. Without a server, the application asks its `users` itself in
    `asking` blocks; `asked_as` is the value that these blocks can pass as their `app` argument.

    Raises GateWithoutTool, and InvalidQuestion for a model that no form can show.
    """
    settings = settings if sandbox is None else with_sandbox(settings, sandbox)
    if server is not None:
        if is_served(server):
            raise NotRunning(_TWICE_SERVED)
        await must_name_tools(settings.gate, server)
        names = {one.name for one in settings.identity.approvers}
        await warn_of_approvers(names, server)
        await must_have_no_mistakes(server)
    users = users or Users(application=_name_of(settings, server))
    async with AsyncExitStack() as stack:
        number = 1
        if store is None:
            store, number = await _own_store(
                stack, settings, clock=clock, has_sandbox=sandbox is not None
            )
        await _warn_of_replication(store)
        telemetry = telemetry_of(settings)
        store = observed(store, telemetry.observer)
        await must_be_servable(store, settings.ring)
        outbound = outbound or await outbound_of(stack, settings)
        outbound.be_observed(telemetry.observer, names=names_in(settings))
        issuers = list[Issuer]()
        for one in settings.identity.issuers:
            issuers.append(Issuer(one.client.provider, fetch=outbound.send, clock=clock))
            stack.push_async_callback(issuers[-1].aclose)
        service = await stack.enter_async_context(
            open_service(
                settings,
                ServiceOptions(
                    clock=clock,
                    outbound=outbound,
                    plugins=plugins,
                    kinds=kinds,
                    limits=limits or CallLimits(),
                    issuers=issuers,
                    users=users,
                    telemetry=telemetry,
                ),
                store=store,
            )
        )
        if service.operators.is_on:
            stack.enter_context(service.recent_lines.listening())
        if built is not None:
            built(service)
        served: HostedApplication = HostedApplication(users.application)
        if server is not None:
            middleware = attach(
                server, service, issuer=settings.identity.server_issuer, connections=connections
            )
            stack.callback(middleware.end)
            served = _hosted(server, service, settings=settings, clock=clock, options=options)
        service.endings.servers = {served.name, users.application}
        pages = Renderer(
            folders=[*settings.templates, template_folder()],
            root_path=settings.root_path,
            brand=settings.brand.of(served.name, low_level_of(server)),
        )
        answers = Answers(pages=pages, server=served.name, has_tools=server is not None)
        background = await stack.enter_async_context(asyncio.TaskGroup())
        collector = Collector(service)
        loops = (
            listen(service.elicitations),
            service.running_tools.renew_leases(),
            service.elicitations.tool_lists.notify_changes(),
            sweep(service),
            service.events.run(),
            service.notifier.run(),
            collector.collect(),
            log_wrong_registrations(settings, outbound=outbound, clock=clock),
        )
        for task in [background.create_task(loop) for loop in loops]:
            stack.callback(task.cancel)
        await stack.enter_async_context(asked_in(service, app=asked_as))
        own = own_routes(service=service, answers=answers, served=served, users=users)
        tokens = _verifier(served, issuers, settings=settings, clock=clock)
        routes = _routes(
            own,
            service,
            served,
            settings=settings,
            answers=answers,
            tokens=tokens,
            collector=collector,
        )
        if server is not None and has_endpoint:
            await stack.enter_async_context(served.running())
            workers = routed(
                routes["mcp"], settings=settings, service=service, store=store, processes=number
            )
            routes["mcp"] = await stack.enter_async_context(workers)
        yield _edge(own, routes, service, settings=settings)


class NotRunning(RuntimeError):
    """The application's lifespan does not run correctly. The message says what to write."""


class App:
    """The application with its lifespan, for an ASGI server or an application that mounts it."""

    def __init__(
        self,
        settings: Settings,
        server: Any,
        plugins: Sequence[object],
        *,
        users: Users,
        has_sandbox: bool = False,
    ) -> None:
        self._settings = settings
        self._users = users
        self._has_sandbox = has_sandbox
        self._plugins = plugins
        self._server = server
        self._app: ASGIApp | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_ended = False
        self._is_refusal_logged = False

    @asynccontextmanager
    async def lifespan(self, host: object = None) -> AsyncGenerator[None]:
        """Run the services of the application. `host` is the application that mounts this one.

        A framework does not run the lifespans of mounted applications, so pass this lifespan
        to the framework: Starlette(lifespan=app.lifespan), FastAPI(lifespan=app.lifespan),
        Litestar(lifespan=[app.lifespan]), or `async with app.lifespan(): yield` in your own
        lifespan. Raises NotRunning if the lifespan runs already.
        """
        if self._loop is not None:
            raise NotRunning(_TWICE)
        mask_access_logs()
        self._loop = asyncio.get_running_loop()
        services = list[Service]()
        raised: BaseException | None = None
        try:
            async with (
                self._played() as sandbox,
                open_app(
                    self._settings,
                    self._server,
                    sandbox=sandbox,
                    plugins=self._plugins,
                    built=services.append,
                    users=self._users,
                    asked_as=self,
                ) as self._app,
                asyncio.TaskGroup() as group,
            ):
                drain = partial(services[0].drain, within=self._settings.policies.grace)
                with on_end_signal(lambda: group.create_task(drain())):
                    try:
                        yield
                    except Exception as error:  # noqa: BLE001 - raise the host's error, no group
                        raised = error
            if raised is not None:
                raise raised
        finally:
            self._has_ended, self._app, self._loop = True, None, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is None:
            await self._refuse(scope, receive, send, _OVER if self._has_ended else _NOT_BEGUN)
        elif asyncio.get_running_loop() is not self._loop:
            await self._refuse(scope, receive, send, _OTHER_LOOP)
        else:
            await self._app(scope, receive, send)

    @asynccontextmanager
    async def _played(self) -> AsyncGenerator[Sandbox | None]:
        if not self._has_sandbox:
            yield None
            return
        from webapp.sandbox.app import embedded_sandbox  # noqa: PLC0415 - most have none

        async with embedded_sandbox(serves=self._settings.url, clock=utc_now) as sandbox:
            yield sandbox

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        state = "startup"
        try:
            async with self.lifespan():
                state = "shutdown"
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except Exception as error:  # noqa: BLE001 - end of the whole application
            _log.exception("app.failed")
            why = error.why if isinstance(error, StoreUnavailable) else str(error)
            await send({"type": f"lifespan.{state}.failed", "message": why})
        else:
            await send({"type": "lifespan.shutdown.complete"})

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, why: str) -> None:
        if not self._is_refusal_logged:
            self._is_refusal_logged = True
            _log.error("app.not_running: %s", why)
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1011})
            return
        headers = {"content-type": "text/plain; charset=utf-8", **page_headers()}
        is_head = scope["method"] == "HEAD"
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        await send_answer(send, status, f"{why}\n".encode(), headers, is_head=is_head)


_NOT_BEGUN = (
    "The lifespan of this application has not started. If an ASGI server serves this application "
    "directly, let the server run the lifespan: uvicorn my_app:app, without --lifespan off. If "
    "another application mounts it, pass the lifespan to that application: "
    "Starlette(lifespan=app.lifespan), FastAPI(lifespan=app.lifespan), "
    "Litestar(lifespan=[app.lifespan]), or, in your own lifespan, async with app.lifespan(): "
    "yield. In a test, use the client as a context manager: with TestClient(host) as client."
)
_OVER = "This application has shut down: its lifespan has ended, so it answers no more requests."
_OTHER_LOOP = (
    "This request runs in another event loop than the lifespan of this application. Run "
    "app.lifespan() in the event loop that serves the requests: pass it to the application that "
    "mounts this one, as in Starlette(lifespan=app.lifespan), and do not run it with your own "
    "asyncio.run."
)
_TWICE_SERVED = (
    "Another application in this process already serves this MCP server. Only one application can "
    "serve it, at one path. Create a second MCP server for the second path, or remove one of the "
    "applications."
)
_TWICE = (
    "The lifespan of this application is already running, and it cannot run twice at the same "
    "time. Either an ASGI server serves this application directly, or another application mounts "
    "it with lifespan=app.lifespan: remove one of the two. To serve at a second path, create a "
    "second application with create_app(settings, another_server)."
)


def create_app(
    settings: Settings,
    server: Any = None,
    *,
    name: str | None = None,
    who: Who | None = None,
    sign_in_url: str | None = None,
    sandbox: bool = False,
    plugins: Sequence[object] = (),
) -> App:
    """Return the application that serves our pages and, if there is one, an MCP server.

    Args:
        settings: The result of `read_settings`.
        server: An MCPServer or a FastMCP server.
        name: The name of your application on the pages, if you pass no server. The name also
            identifies the stored data of your users. The default is the host of ELICIT_URL.
        who: Receives a browser's request (Starlette's: headers, cookies, your session) and returns
            which of your users sent it: an id that `asking` blocks use as their owner, or None. It
            may be async, and has five seconds to return.
        sign_in_url: Where your users sign in.
        sandbox: On this machine, simulate accounts and payments that are not configured, as with
            ELICIT_SANDBOX.
        plugins: Objects with hooks: see flows.hooks.

    Returns:
        The application. Its lifespan raises InvalidQuestion if a tool asks for a model that a form
        cannot show.

    Raises:
        ValueError: The server has no name of its own, `name` is set in addition to a server, or
            `sign_in_url` is invalid.
    """
    if server is not None:
        must_be_named(server)
        if name is not None:
            raise ValueError(
                f"name={name!r} cannot be set, because the server has its own name, "
                f"{server.name!r}. Remove name=."
            )
    if sign_in_url is not None:
        must_be_sign_in_url(sign_in_url)
    application = name or _name_of(settings, server)
    users = Users(application=application, who=who, sign_in_url=sign_in_url)
    has_sandbox = sandbox or settings.has_sandbox
    return App(settings, server, plugins, users=users, has_sandbox=has_sandbox)


async def _warn_of_replication(store: Store) -> None:
    """Log which data could be lost if a store's server fails.

    `elicit doctor` shows the full list.
    """
    if isinstance(store, Replicated):
        with suppress(StoreUnavailable):
            for says, fix in await store.replication(asks_hosts=False):
                if fix is not None:
                    _log.warning("store.replication", extra={"why": says, "fix": fix})


def _name_of(settings: Settings, server: Any) -> str:
    return urlsplit(settings.url).netloc if server is None else str(server.name)


async def _own_store(
    stack: AsyncExitStack, settings: Settings, *, clock: Clock, has_sandbox: bool
) -> tuple[Store, int]:
    """Return the store and the number of processes that serve it. Raises StoreUnavailable."""
    number = must_share(
        sys.argv, store=settings.store, has_sandbox=has_sandbox, caller=inspect.currentframe()
    )
    store = await open_noted(settings, clock=clock)
    stack.push_async_callback(store.aclose)
    return store, number


def _hosted(
    server: Any,
    service: Service,
    *,
    settings: Settings,
    clock: Clock,
    options: Mapping[str, Any] | None,
) -> HostedServer:
    sender = partial(
        sender_of, identity=service.identity, issuer=_assumed_issuer(server, settings=settings)
    )
    return HostedServer(
        server,
        clock=clock,
        around=lambda app, streams: OpenedSessions(app, sender=sender, streams=streams),
        options=options,
    )


def _routes(
    own: ASGIApp,
    service: Service,
    served: HostedApplication,
    *,
    settings: Settings,
    answers: Answers,
    tokens: Verifier | None,
    collector: Collector,
) -> dict[str, ASGIApp]:
    """Return the applications by the first segment of their paths. Other paths belong to `own`."""
    uses = _uses(settings)
    routes = {"api": api_routes(own, service=service, answers=answers, tokens=tokens, uses=uses)}
    if isinstance(served, HostedServer):
        routes["mcp"] = served.endpoint(own, asker=service.completing)
        if isinstance(tokens, IssuerTokens):
            routes["mcp"] = routes[".well-known"] = protected(
                routes["mcp"], tokens=tokens, name=served.name, root_path=settings.root_path
            )
    if token := settings.telemetry.metrics:
        routes["metrics"] = metrics_page(own, collector=collector, token=token)
    return routes


def _edge(
    app: ASGIApp, routes: Mapping[str, ASGIApp], service: Service, *, settings: Settings
) -> Edge:
    guard = Guard(
        public_url=settings.url,
        allowed_origins=settings.origins,
        trusted_proxies=settings.proxies,
        stripped_path=settings.taken_path,
        # Metrics are read from each process at its own address, whatever the Host header.
        any_host_paths=frozenset({METRICS_PATH}) if settings.telemetry.metrics else frozenset(),
    )
    rates = None
    if not settings.is_local:  # on one machine, all clients have the same address
        rates = Rates(burst=PAGES_AT_ONCE, every=BETWEEN_PAGES, clock=service.clock)
    credential = partial(credential_of, service)
    return Edge(
        app, guard=guard, routes=routes, rates=rates, credential=credential, hsts=settings.hsts
    )


def _assumed_issuer(server: Any, *, settings: Settings) -> str:
    """Return the issuer to assume for access tokens that name no issuer."""
    return settings.identity.server_issuer or issuer_of(server)


def _uses(settings: Settings) -> TokenUses:
    who = settings.identity
    return TokenUses.at(settings.url, act_scope=who.act_scope, own_scope=who.own_scope)


def _verifier(
    served: HostedApplication, issuers: Sequence[Issuer], *, settings: Settings, clock: Clock
) -> Verifier | None:
    """Return the MCP server's own token verifier, else one for the configured issuers, or None."""
    if isinstance(served, HostedServer) and served.has_own_sign_in:
        return served.own_tokens(issuer=_assumed_issuer(served.server, settings=settings))
    uses = _uses(settings)
    other_resources = (uses.act.resource, uses.own.resource)
    return issuer_tokens(settings, issuers, other_resources=other_resources, clock=clock)
