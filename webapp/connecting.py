"""Connecting: the service without a server, for commands and trusted code in any process."""

import ssl
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import cache, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path

import httpx

from flows.question import asking
from webapp.deadline import Clock
from webapp.elicitations.plugins import plugin_named
from webapp.http.client import Outbound, no_proxy
from webapp.identity.issuer import Issuer
from webapp.identity.users import Users
from webapp.kinds.registry import OwnKind
from webapp.limits import CallLimits
from webapp.service import Service, open_service
from webapp.settings.key_usage import open_noted
from webapp.settings.settings import Settings
from webapp.stores import Store
from webapp.telemetry.telemetry import NONE, Telemetry, tracer_here

TIMEOUT_SECONDS = 10.0


utc_now: Clock = partial(datetime.now, UTC)


@asynccontextmanager
async def connect(
    settings: Settings, *, server: str | None = None, clock: Clock = utc_now
) -> AsyncGenerator[Service]:
    """Yield the service without a server. Trusted code in it can complete any elicitation.

    `server` names the server whose tools and blocks an `elicitation_id` belongs to, if several
    servers share the store.

    Raises StoreUnavailable, or Unreadable if the store was created under other secrets.
    """
    async with AsyncExitStack() as stack:
        store = await open_noted(settings, clock=clock)
        stack.push_async_callback(store.aclose)
        outbound = await outbound_of(stack, settings)
        users = None if server is None else Users(application=server)
        service = await stack.enter_async_context(
            service_of(settings, store=store, clock=clock, outbound=outbound, users=users)
        )
        with asking(service.completing):
            yield service


def service_of(
    settings: Settings,
    *,
    store: Store,
    clock: Clock,
    outbound: Outbound,
    plugins: Sequence[object] = (),
    kinds: Collection[type[OwnKind]] = (),
    limits: CallLimits | None = None,
    issuer: Issuer | None = None,
    users: Users | None = None,
    telemetry: Telemetry = NONE,
) -> AbstractAsyncContextManager[Service]:
    """Return the service of these settings on an open store: see `open_service`.

    Plugins of the settings come before the others. Raises BadPlugin.
    """
    return open_service(
        store=store,
        ring=settings.ring,
        public_url=settings.url,
        uid=settings.uid,
        clock=clock,
        outbound=outbound,
        providers=settings.providers,
        credentials=settings.credentials,
        sellers=settings.sellers,
        refund_unused=settings.refund_unused,
        unreached=settings.unreached,
        gate=settings.gate,
        policies=settings.policies,
        events=settings.events,
        plugins=[*map(plugin_named, settings.policies.plugins), *plugins],
        kinds=kinds,
        sandbox_url=settings.sandbox_url,
        limits=limits,
        who=settings.identity,
        issuer=issuer,
        users=users,
        telemetry=telemetry,
        marks=_marks_of(settings, store),
        config=str(settings.config) if settings.is_local and settings.config else "elicit.toml",
    )


def _marks_of(settings: Settings, store: Store) -> Path | None:
    if store.address is None or settings.policies.store_marks is not None:
        return settings.policies.store_marks
    return None if settings.key_file is None else settings.key_file.path.parent / "marks"


def telemetry_of(settings: Settings) -> Telemetry:
    """Return the metrics and the tracer that the settings enable."""
    tracer = tracer_here(exports=settings.telemetry.exports_traces)
    if not settings.telemetry.metrics:
        return Telemetry(tracer=tracer)
    from webapp.telemetry.metrics import metrics_here  # noqa: PLC0415 - an optional dependency

    return Telemetry(metrics=metrics_here(), tracer=tracer)


async def outbound_of(stack: AsyncExitStack, settings: Settings) -> Outbound:
    client = await stack.enter_async_context(
        httpx.AsyncClient(
            timeout=TIMEOUT_SECONDS, verify=_trust(), mounts=no_proxy(), cookies=_no_cookies()
        )
    )
    return Outbound(
        client,
        allow_loopback=settings.is_local,
        trusted=settings.trusted_hosts,
        trust=_trust(),
    )


def names_in(settings: Settings) -> dict[str, str]:
    """Return short names for payment providers and the issuer, by the start of their addresses."""
    names = {seller.api: seller.name for seller in settings.sellers.values()}
    client = settings.identity.client
    if client is not None and client.provider.issuer is not None:
        names[client.provider.issuer] = "issuer"
    return names


def _no_cookies() -> CookieJar:
    """Return a cookie jar that stores nothing: a cookie would stay for the life of the process."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


@cache
def _trust() -> ssl.SSLContext:
    """Return the trusted certificate authorities, read once, because that takes 0.1 s."""
    return httpx.create_ssl_context()
