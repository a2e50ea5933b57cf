"""Connecting: the service without a server, for commands and trusted code in any process."""

import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import cache, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from flows.question import asking
from webapp.deadline import Clock
from webapp.http.client import Outbound, no_proxy
from webapp.identity.users import Users
from webapp.service import Service, open_service
from webapp.settings.key_usage import open_noted
from webapp.settings.settings import Settings
from webapp.telemetry.telemetry import Telemetry, tracer_here

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
            open_service(settings, store=store, clock=clock, outbound=outbound, users=users)
        )
        with asking(service.completing):
            yield service


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
