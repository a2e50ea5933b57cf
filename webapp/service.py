"""The parts that serve elicitations, built once, in sight, from settings."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from flows.checkout import Seller
from flows.provider import Provider
from flows.providers import PROVIDERS
from flows.tokens import Tokens
from flows.vault import Ring
from webapp.bodies import Bodies
from webapp.browser import Browser
from webapp.completion import Completing
from webapp.elicitations import Clock, Elicitations
from webapp.hooks import Hooks
from webapp.identity import Identity
from webapp.kinds import Kinds, open_kinds
from webapp.limits import Limits
from webapp.links import Links
from webapp.locality import Locality
from webapp.outbound import Outbound
from webapp.owners import open_owners
from webapp.stores import Store
from webapp.waiters import Waiters


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    elicitations: Elicitations
    kinds: Kinds
    hooks: Hooks
    outbound: Outbound
    links: Links
    browser: Browser
    completing: Completing
    identity: Identity
    bodies: Bodies
    clock: Clock
    limits: Limits
    public_url: str
    sandbox_url: str | None
    request_state_keys: tuple[bytes, ...] = field(repr=False)


@asynccontextmanager
async def open_service(
    *,
    store: Store,
    ring: Ring,
    public_url: str,
    uid: int,
    clock: Clock,
    outbound: Outbound | None = None,
    providers: Mapping[str, Provider] = PROVIDERS,
    credentials: Mapping[str, tuple[str, str]] | None = None,
    sellers: Mapping[str, Seller] | None = None,
    sandbox_url: str | None = None,
    limits: Limits | None = None,
) -> AsyncGenerator[Service]:
    """Build the service on an open store.

    Without `outbound` nothing can be asked of a provider. `credentials` are our client id and
    secret at a provider, by its name. Raises Unreadable if the store was made under secrets that
    the ring lacks.
    """
    owners = await open_owners(store=store, ring=ring)
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(public_url))
    elicitations = Elicitations(store=store, owners=owners, waiters=Waiters(), clock=clock)
    links = Links(tokens=Tokens(ring, origin=origin), public_url=public_url)
    browser = Browser(public_url=public_url, csrf_key=ring.derive(ring.newest, "csrf"))
    identity = Identity(owners=owners, locality=Locality(uid=uid, public_url=public_url), uid=uid)
    completing = Completing(
        elicitations=elicitations, links=links, browser=browser, identity=identity
    )
    outbound = outbound or Outbound.none()
    kinds = open_kinds(
        elicitations=elicitations,
        outbound=outbound,
        providers=providers,
        credentials=credentials or {},
        sellers=sellers or {},
    )
    service = Service(
        elicitations=elicitations,
        kinds=kinds,
        hooks=Hooks(elicitations=elicitations, payments=kinds.payments),
        outbound=outbound,
        links=links,
        browser=browser,
        completing=completing,
        identity=identity,
        bodies=Bodies(),
        clock=clock,
        limits=limits or Limits(),
        public_url=public_url.rstrip("/"),
        sandbox_url=sandbox_url,
        request_state_keys=tuple(
            ring.derive(fingerprint, "request state") for fingerprint in ring.fingerprints
        ),
    )
    try:
        yield service
    finally:
        await service.bodies.aclose()
        await service.elicitations.aclose()
