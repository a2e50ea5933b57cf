"""Certificates: a webhook that is signed with one is verified before anything is asked about it.

What could go wrong: whoever sends one names the address of the certificate, and so makes us fetch.
It stands at its sender's own host or nothing is fetched, what was fetched is kept, and there is a
rate for all of it, whoever sends. A sandbox of ours is its own authority: its root is believed of
nobody else, and is no root of anybody else's.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from http import HTTPStatus
from pathlib import Path

import certifi
import httpx
from cryptography.x509.verification import Store

from flows.errors import Failed, Unverified
from flows.gateway import Certifies
from flows.signature_certificates import (
    CertificateScheme,
    certificate_url,
    roots_of,
    verify_certified,
)
from flows.signatures import Delivery
from webapp.elicitations import Clock
from webapp.rates import Rates, TooOften

FETCHES_AT_ONCE = 10
BETWEEN_FETCHES = timedelta(minutes=1)
KEPT_AT_MOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedScheme(CertificateScheme):
    """How a sandbox of ours signs; it tells itself, at `root_url`, whom to trust for it."""

    root_url: str


@cache
def trusted_roots(scheme: CertificateScheme) -> Store:
    """The roots of the scheme's authority that this installation trusts."""
    return roots_of(scheme, bundle=Path(certifi.where()).read_bytes())


class Certificates:
    """Kept in this process's memory. `fetch` follows no redirect and raises Failed."""

    def __init__(
        self,
        *,
        fetch: Callable[[httpx.Request], Awaitable[httpx.Response]],
        clock: Clock,
        roots: Callable[[CertificateScheme], Store] = trusted_roots,
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._roots = roots
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._played: dict[str, Store] = {}
        self._rates = Rates(
            burst=FETCHES_AT_ONCE, every=BETWEEN_FETCHES, clock=lambda: clock().timestamp()
        )

    async def verify(
        self, gateway: Certifies, *, body: bytes, headers: Sequence[tuple[str, str]]
    ) -> Delivery:
        """The delivery, if it was signed for one of our webhooks.

        Raises Unverified; Failed or TooOften if the certificate cannot be had now.
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

        if url in self._kept:
            try:
                return verified(self._kept[url])
            except Unverified as error:
                if error.reason != "bad_certificate":
                    raise
                self._kept.pop(url, None)  # it has run out: perhaps there is another one by now
        certificate = await self._fetched(url, scheme)
        try:
            delivery = verified(certificate)
        except Unverified as error:
            if error.reason == "bad_signature":  # the certificate itself is good
                self._keep(url, certificate)
            raise
        self._keep(url, certificate)
        return delivery

    async def _trusted(self, scheme: CertificateScheme) -> Store:
        if not isinstance(scheme, PlayedScheme):
            return self._roots(scheme)
        if scheme.root_url not in self._played:
            root = await self._fetched(scheme.root_url, scheme)
            try:
                self._played[scheme.root_url] = roots_of(scheme, bundle=root)
            except ValueError as error:
                raise Failed("What stands there is no sandbox of ours.") from error
        return self._played[scheme.root_url]

    async def _fetched(self, url: str, scheme: CertificateScheme) -> bytes:
        wait = self._rates.allow(scheme.name)
        if wait:
            raise TooOften(wait)
        try:
            reply = await self._fetch(httpx.Request("GET", url))
        except httpx.HTTPError as error:
            raise Failed(f"{type(error).__name__} while fetching a certificate.") from error
        if reply.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise Failed(f"There is no certificate now (HTTP {reply.status_code}).")
        if reply.status_code != HTTPStatus.OK:
            raise Unverified("no_certificate")
        return reply.content

    def _keep(self, url: str, certificate: bytes) -> None:
        self._kept[url] = certificate
        if len(self._kept) > KEPT_AT_MOST:
            self._kept.popitem(last=False)
