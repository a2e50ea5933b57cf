"""Verification of webhooks that are signed with a certificate, and the certificates' cache.

Risks: the sender of a webhook names the certificate's address and so makes this server fetch it.
Certificates are fetched only from the provider's own host, with a rate limit for each sender and
one for all senders. A certificate that was valid before is stored, and the address of a stored
certificate has a rate limit of its own, which made-up addresses cannot use up. A sandbox of this
project signs with its own root certificate. For the sandbox's webhooks, that root is the only
trusted one; for other webhooks, it is not trusted.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from http import HTTPStatus
from pathlib import Path

import certifi
import httpx
from cryptography.x509.verification import Store

from flows.errors import Failed, Unreadable, Unverified
from flows.payments.gateway import Certifies
from flows.webhooks.certificates import (
    CertificateScheme,
    certificate_url,
    roots_of,
    verify_certified,
)
from flows.webhooks.signatures import Delivery
from webapp.deadline import Clock
from webapp.elicitations.service import Elicitations
from webapp.http.rate_limit import Rates
from webapp.records.owners import SERVICE
from webapp.records.values import KINDS, StoredCertificate
from webapp.stores import Conflict

FETCHES_OF_SENDER = 5  # the provider needs only one fetch per new certificate
BETWEEN_FETCHES_OF_SENDER = timedelta(minutes=1)
# The limit for the new certificates of one scheme, from all senders together. The address of each
# stored certificate has the same limit, counted separately.
FETCHES_OF_ALL = 60
BETWEEN_FETCHES = timedelta(seconds=10)
CACHED_AT_MOST = 8  # in memory
CERTIFICATE_RETENTION = timedelta(days=400)  # in the store: longer than certificates are valid
CACHED_BYTES_AT_MOST = 32 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxScheme(CertificateScheme):
    """The signature scheme of this project's sandbox, whose own root is at `root_url`."""

    root_url: str


@cache
def trusted_roots(scheme: CertificateScheme) -> Store:
    """Return the roots of the scheme's authority that this installation trusts."""
    return roots_of(scheme, bundle=Path(certifi.where()).read_bytes())


class CertificateCache:
    """The stored certificates by address. The caller verifies them like fetched certificates."""

    def __init__(self, elicitations: Elicitations) -> None:
        self._elicitations = elicitations

    async def find(self, url: str) -> bytes | None:
        try:
            found = await self._elicitations.read(StoredCertificate, owner=SERVICE, id=_id(url))
        except Unreadable:
            return None  # the caller fetches the certificate again and replaces the row
        return None if found is None else found.pem

    async def put(self, url: str, certificate: bytes) -> None:
        kind = KINDS[StoredCertificate]
        stored = await self._elicitations.store.read(SERVICE, kind, _id(url))
        row = StoredCertificate(
            id=_id(url),
            owner=SERVICE,
            pem=certificate,
            erase_at=self._elicitations.clock() + CERTIFICATE_RETENTION,
            version=0 if stored is None else stored.version,
        )
        with suppress(Conflict):  # another process has just stored this certificate
            await self._elicitations.write(row)


class Certificates:
    """The certificates for verifying webhooks, cached in memory and in the store (`cache`).

    `fetch` must not follow redirects, and raises Failed. With a cache, `verify` can also raise
    StoreUnavailable.
    """

    def __init__(
        self,
        *,
        fetch: Callable[[httpx.Request], Awaitable[httpx.Response]],
        clock: Clock,
        roots: Callable[[CertificateScheme], Store] = trusted_roots,
        cache: CertificateCache | None = None,
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._roots = roots
        self._cache = cache
        self._certificates: OrderedDict[str, bytes] = OrderedDict()
        self._sandbox_roots: dict[str, Store] = {}
        self._limit_of_sender = Rates(
            burst=FETCHES_OF_SENDER, every=BETWEEN_FETCHES_OF_SENDER, clock=clock
        )
        self._limit_of_all = Rates(burst=FETCHES_OF_ALL, every=BETWEEN_FETCHES, clock=clock)

    async def verify(
        self, gateway: Certifies, *, body: bytes, headers: Sequence[tuple[str, str]], sender: str
    ) -> Delivery:
        """Return the delivery if it was signed for one of this server's webhooks.

        `sender` is the key for the rate limit.

        Raises:
            Unverified: The signature or the certificate is wrong.
            Failed: The certificate cannot be fetched now.
            TooOften: Too many certificates were fetched.
        """
        scheme, now = gateway.certificates, self._clock()
        url = certificate_url(scheme, body=body, headers=headers, now=now)
        roots = await self._trusted(scheme)

        def verified(certificate: bytes) -> Delivery:
            return verify_certified(
                scheme,
                body=body,
                headers=headers,
                webhook_ids=gateway.webhook_ids,
                certificate=certificate,
                roots=roots,
                now=now,
            )

        known = await self._known(url)
        if known is not None:
            try:
                return verified(known)
            except Unverified as error:
                if error.reason != "bad_certificate":
                    raise
                # The stored certificate may have expired and been replaced: fetch the new one.
        self._limit_of_sender.require(sender)
        self._limit_of_all.require(scheme.name if known is None else url)
        certificate = await self._fetched(url)
        try:
            delivery = verified(certificate)
        except Unverified as error:
            if error.reason == "bad_signature":  # the certificate itself is valid
                await self._store(url, certificate)
            raise
        await self._store(url, certificate)
        return delivery

    async def _known(self, url: str) -> bytes | None:
        """Return the certificate at `url` that was valid at the last fetch, or None."""
        if url not in self._certificates and self._cache is not None:
            found = await self._cache.find(url)
            if found is not None:
                self._remember(url, found)
        return self._certificates.get(url)

    async def _trusted(self, scheme: CertificateScheme) -> Store:
        if not isinstance(scheme, SandboxScheme):
            return self._roots(scheme)
        if scheme.root_url not in self._sandbox_roots:
            self._limit_of_all.require(scheme.root_url)
            root = await self._fetched(scheme.root_url)
            try:
                self._sandbox_roots[scheme.root_url] = roots_of(scheme, bundle=root)
            except ValueError as error:
                raise Failed("The address is not a sandbox of elicit-url.") from error
        return self._sandbox_roots[scheme.root_url]

    async def _fetched(self, url: str) -> bytes:
        try:
            reply = await self._fetch(httpx.Request("GET", url))
        except httpx.HTTPError as error:
            raise Failed(f"{type(error).__name__} while fetching a certificate.") from error
        if reply.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise Failed(f"The certificate could not be fetched (HTTP {reply.status_code}).")
        if reply.status_code != HTTPStatus.OK:
            raise Unverified("no_certificate")
        return reply.content

    async def _store(self, url: str, certificate: bytes) -> None:
        self._remember(url, certificate)
        if self._cache is not None and len(certificate) <= CACHED_BYTES_AT_MOST:
            await self._cache.put(url, certificate)

    def _remember(self, url: str, certificate: bytes) -> None:
        self._certificates[url] = certificate
        if len(self._certificates) > CACHED_AT_MOST:
            self._certificates.popitem(last=False)


def _id(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()
