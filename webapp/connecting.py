"""Connecting: the service without a server, for commands and trusted code in any process."""

import logging
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from flows.elicitation.flow import SetupFinding
from flows.oauth.access_token import Resource
from flows.oauth.declaration import SHARED_TENANT, issuer_of_tenant
from flows.oauth.id_token import ALGORITHMS
from flows.oauth.provider import Client
from flows.oauth.registered_client import RegisteredClient
from flows.oauth.registration import examined
from flows.providers.catalogue import CATALOGUE
from flows.question import asking
from webapp.deadline import Clock
from webapp.http.client import Outbound, no_proxy
from webapp.identity.access_tokens import IssuerTokens
from webapp.identity.introspection import Introspection
from webapp.identity.issuer import Issuer
from webapp.identity.sign_in import CALLBACK_PATH, LOGOUT_PATH, SIGNED_OUT_PATH, named_path
from webapp.identity.users import Users
from webapp.oauth.clients import is_at_sandbox
from webapp.service import Service, ServiceOptions, open_service
from webapp.settings.key_usage import open_noted
from webapp.settings.settings import Settings
from webapp.telemetry.work import Telemetry, tracer_here

TIMEOUT_SECONDS = 10.0
CLOCKS_APART_AT_MOST = timedelta(seconds=30)
_log = logging.getLogger(__name__)


utc_now: Clock = partial(datetime.now, UTC)


@asynccontextmanager
async def connect(
    settings: Settings, *, server: str | None = None, clock: Clock = utc_now
) -> AsyncGenerator[Service]:
    """Yield the service without a server. Code that uses the service can complete any elicitation.

    Args:
        settings: The result of `read_settings`.
        server: The server whose tools and blocks an `elicitation_id` belongs to, if several servers
            share the store.
        clock: A function that returns the current time.

    Yields:
        The service. `complete_elicitation` works within the block.

    Raises:
        StoreUnavailable: The store cannot be opened.
        Unreadable: The store was created under other secrets.
    """
    async with AsyncExitStack() as stack:
        store = await open_noted(settings, clock=clock)
        stack.push_async_callback(store.aclose)
        outbound = await outbound_of(stack, settings)
        users = None if server is None else Users(application=server)
        service = await stack.enter_async_context(
            open_service(
                settings, ServiceOptions(clock=clock, outbound=outbound, users=users), store=store
            )
        )
        with asking(service.completing, is_tool=None):
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
    """Return the short names of the payment providers and issuers, keyed by address prefix."""
    names = {seller.api: seller.name for seller in settings.sellers.values()}
    for one in settings.identity.issuers:
        shared = issuer_of_tenant(one.client.provider.issuer or "", SHARED_TENANT)
        names[shared] = "issuer"
    return names


def registrations_of(settings: Settings) -> list[RegisteredClient]:
    """Return this server's registrations at the issuers and at the providers of accounts.

    The list includes the providers of API keys, although these providers need no registration.
    """
    found = list[RegisteredClient]()
    found += [
        RegisteredClient(
            client=one.client,
            redirect_uri=f"{settings.url}{named_path(CALLBACK_PATH, one.name)}",
            claim=one.claim,
            audiences=(f"{settings.url}/mcp", *one.audiences),
            introspects=one.introspects,
            table=one.name,
            signed_out_uri=f"{settings.url}{SIGNED_OUT_PATH}",
            logout_uri=f"{settings.url}{named_path(LOGOUT_PATH, one.name)}",
        )
        for one in settings.identity.issuers
    ]
    issuers = {one.client.provider.issuer: one for one in found}
    played = settings.sandbox_url or "no sandbox"
    keys = {name for name, one in settings.providers.items() if one.key is not None}
    for name in sorted({*settings.credentials, *keys}):
        provider = settings.providers.get(name) or CATALOGUE.get(name)
        if provider is None or provider.api.startswith(played):
            continue
        id, secret = settings.credentials.get(name, ("", ""))  # empty for API keys
        how = provider.exchange
        found.append(
            RegisteredClient(
                client=Client(provider=provider, client_id=id, client_secret=secret),
                redirect_uri=f"{settings.url}/callback/{name}",
                issuer=None if how is None else issuers.get(how.issuer),
            )
        )
    return found


def issuer_tokens(
    settings: Settings, issuers: Sequence[Issuer], *, other_resources: tuple[str, ...], clock: Clock
) -> IssuerTokens | None:
    """Return the verifier of all issuers' access tokens, or None if people do not sign in.

    `other_resources` are the server's addresses that need their own tokens. These tokens are not
    valid for calls.
    """
    first: IssuerTokens | None = None
    for one, issuer in reversed([*zip(settings.identity.issuers, issuers, strict=True)]):
        resource = Resource(
            url=f"{settings.url}/mcp",
            issuer=issuer.url,
            audiences=one.audiences,
            other_resources=other_resources,
            claim=one.claim,
            scopes=one.scopes or (),
            asked=one.advertised_scopes,
            wanted=settings.identity.token_claims,
            algorithms=one.client.provider.algorithms or ALGORITHMS,
        )
        introspection = None
        if one.introspects:
            introspection = Introspection(
                issuer=issuer, client=one.client, resource=resource, clock=clock
            )
        first = IssuerTokens(
            issuer,
            resource=resource,
            clock=clock,
            introspection=introspection,
            others=() if first is None else (first, *first.others),
        )
    return first


async def log_wrong_registrations(settings: Settings, *, outbound: Outbound, clock: Clock) -> None:
    """Check each registration once, as `elicit doctor` does, and log what is wrong."""
    clients, number = registrations_of(settings), 0
    for one in clients:
        if is_at_sandbox(one.client.client_id):
            continue
        asked_at, about = clock(), {"provider": one.client.provider.name}
        try:
            report = await outbound.run(examined(one, now=asked_at))
        except Exception as error:  # noqa: BLE001 - the edge of a task
            _log.warning("registration.not_checked", extra=about, exc_info=error)
            continue
        findings = [each for each in report.findings if each.fix is not None]
        found = [each for each in findings if each.is_wrong]
        for each in findings:
            if not each.is_wrong:
                unclear = {**about, "why": each.says, "fix": each.fix}
                _log.info("registration.unclear", extra=unclear)
        label, between = one.client.provider.label, (asked_at, clock())
        differs = clock_finding(report.reported_at, label, between=between)
        found += [] if differs is None or differs.fix is None else [differs]
        for each in found:
            _log.warning("registration.wrong", extra={**about, "why": each.says, "fix": each.fix})
        number += len(found)
    if clients:
        total = {"registrations": len(clients), "wrong": number}
        _log.info("registrations.checked", extra=total)


def clock_finding(
    reported_at: str | None, label: str, *, between: tuple[datetime, datetime]
) -> SetupFinding | None:
    """Compare this machine's clock with a Date header. Return None if the header is not valid.

    `between` is when the request was sent and when the answer was read: the header was written at
    some time between them, so a slow server is not mistaken for a wrong clock.
    """
    asked_at, answered_at = between
    try:
        reported = parsedate_to_datetime(reported_at or "")
        ahead, behind = asked_at - reported, reported - answered_at
    except (ValueError, TypeError):  # TypeError: the date has no time zone
        return None
    apart = max(ahead, behind)
    if apart <= CLOCKS_APART_AT_MOST:
        return SetupFinding(says=f"it matches {label}'s")
    side = "ahead of" if ahead > behind else "behind"
    return SetupFinding(
        says=f"it is {apart.total_seconds():.0f} s {side} {label}'s",
        fix="set this machine's clock by NTP (timedatectl set-ntp true)",
    )


def _no_cookies() -> CookieJar:
    """Return a cookie jar that stores nothing: a cookie would stay for the life of the process."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


@cache
def _trust() -> ssl.SSLContext:
    """Return the trusted certificate authorities, read once, because that takes 0.1 s."""
    return httpx.create_ssl_context()
