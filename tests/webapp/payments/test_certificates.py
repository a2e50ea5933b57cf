"""Verified certificates stay usable after a restart, and while others name invented ones."""

from datetime import timedelta

import httpx
import pytest
from cryptography.x509.verification import Store
from msgspec.structs import replace

from flows.errors import Unverified
from flows.payments.paypal.gateway import PAYPAL_SANDBOX, PayPalGateway, paypal
from flows.webhooks.certificates import CertificateScheme, sign_certified
from flows.webhooks.signatures import Delivery
from tests.support.certificates import issued, root, rsa_key
from tests.support.clock import Clock
from tests.support.service_env import RING
from webapp.elicitations.service import Elicitations
from webapp.elicitations.waiters import Waiters
from webapp.http.rate_limit import TooOften
from webapp.payments.certificates import (
    BETWEEN_FETCHES_OF_SENDER,
    CERTIFICATE_RETENTION,
    FETCHES_OF_ALL,
    FETCHES_OF_SENDER,
    CertificateCache,
    Certificates,
)
from webapp.records.owners import SERVICE, open_owners
from webapp.records.values import KINDS, StoredCertificate
from webapp.stores.sqlite import MemoryStore

KIND = KINDS[StoredCertificate]
WEBHOOK_ID = "1JE4291016473214C"
BODY = b'{"id":"WH-1"}'
PAYPALS_ADDRESS, OTHER_ADDRESS = "192.0.2.1", "198.51.100.7"
GATEWAY = PayPalGateway(paypal("an-id", "a-secret", is_live=False, webhook_ids=(WEBHOOK_ID,)))


class Host:
    """The sender's host, with the genuine certificate at one address and nothing at any other."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore()
        self.fetched: list[str] = []
        self.is_gone = False
        self.signer = issued(PAYPAL_SANDBOX.certificate_name, by=root(), key=rsa_key())

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rsplit("/", 1)[1]
        self.fetched.append(name)
        if name != "GENUINE" or self.is_gone:
            return httpx.Response(404)
        return httpx.Response(200, content=self.signer.pem)

    async def process(self) -> Certificates:
        """Open the certificates of a new process on the same store."""
        elicitations = Elicitations(
            store=self.store,
            owners=await open_owners(store=self.store, ring=RING),
            waiters=Waiters(),
            clock=self.clock,
        )
        cache = CertificateCache(elicitations)
        return Certificates(fetch=self, clock=self.clock, roots=_own_root, cache=cache)

    async def genuine(
        self,
        certificates: Certificates,
        *,
        sender: str = PAYPALS_ADDRESS,
        webhook_id: str = WEBHOOK_ID,
    ) -> Delivery:
        return await certificates.verify(
            GATEWAY, body=BODY, headers=self._headers("GENUINE", webhook_id), sender=sender
        )

    async def invented(
        self, certificates: Certificates, name: str, *, sender: str = OTHER_ADDRESS
    ) -> str:
        """Send a delivery that names a missing certificate, and return why it was rejected."""
        try:
            await certificates.verify(
                GATEWAY, body=BODY, headers=self._headers(name, WEBHOOK_ID), sender=sender
            )
        except (Unverified, TooOften) as error:
            return error.reason if isinstance(error, Unverified) else "too often"
        raise AssertionError("it was believed")

    def _headers(self, certificate: str, webhook_id: str) -> list[tuple[str, str]]:
        return sign_certified(
            PAYPAL_SANDBOX,
            body=BODY,
            id="aac5ed50-2fcb-11f0-a48d-0737b43c836c",
            webhook_id=webhook_id,
            certificate_id=certificate,
            key=rsa_key(),
            now=self.clock(),
        )


def _own_root(_: CertificateScheme) -> Store:
    return Store([root().certificate])


@pytest.fixture
def host() -> Host:
    return Host()


async def test_sender_of_invented_certificate_names_is_limited_and_others_are_not(
    host: Host,
) -> None:
    certificates = await host.process()
    for minute in range(10):
        names = [f"X{minute}-{number}" for number in range(FETCHES_OF_SENDER + 2)]
        became = [await host.invented(certificates, name) for name in names]
        assert became[-1] == "too often"
    assert (await host.genuine(certificates)).body == BODY
    host.clock.now += BETWEEN_FETCHES_OF_SENDER
    assert await host.invented(certificates, "Y1") == "no_certificate"
    assert await host.invented(certificates, "Y2") == "too often"


async def test_verified_certificate_is_still_stored_after_a_restart(host: Host) -> None:
    await host.genuine(await host.process())
    restarted = await host.process()
    for number in range(FETCHES_OF_ALL):  # each from another address, up to the common limit
        await host.invented(restarted, f"X{number}", sender=f"198.51.100.{number}")
    assert await host.invented(restarted, "X", sender="203.0.113.1") == "too often"
    host.is_gone = True
    assert (await host.genuine(restarted)).body == BODY
    assert host.fetched.count("GENUINE") == 1


async def test_certificate_signed_by_an_unknown_authority_is_not_stored(host: Host) -> None:
    host.signer = issued("Thief", by=issued("Thieves", is_authority=True), key=rsa_key())
    certificates = await host.process()
    with pytest.raises(Unverified):
        await host.genuine(certificates)
    assert list(await host.store.list(KIND)) == []


async def test_valid_certificate_is_stored_even_if_the_delivery_is_for_another_webhook(
    host: Host,
) -> None:
    with pytest.raises(Unverified):
        await host.genuine(await host.process(), webhook_id="another")
    host.is_gone = True
    assert (await host.genuine(await host.process())).body == BODY


async def test_expired_certificate_is_fetched_again_even_if_the_fetch_limit_is_used_up(
    host: Host,
) -> None:
    until = host.clock() + timedelta(days=1)
    host.signer = issued(PAYPAL_SANDBOX.certificate_name, by=root(), key=rsa_key(), until=until)
    await host.genuine(await host.process())
    host.clock.tick(days=2)
    host.signer = issued(PAYPAL_SANDBOX.certificate_name, by=root(), key=rsa_key())
    certificates = await host.process()
    for number in range(FETCHES_OF_ALL):
        await host.invented(certificates, f"X{number}", sender=f"198.51.100.{number}")
    assert (await host.genuine(certificates)).body == BODY
    host.is_gone = True
    assert (await host.genuine(await host.process())).body == BODY, (
        "the new certificate is stored, so another process can use it"
    )


async def test_certificate_changed_in_the_store_is_fetched_again(host: Host) -> None:
    await host.genuine(await host.process())
    (record,) = await host.store.list(KIND)
    changed = bytes([record.sealed[0] ^ 1]) + record.sealed[1:]
    await host.store.write(replace(record, sealed=changed))
    assert (await host.genuine(await host.process())).body == BODY
    assert host.fetched.count("GENUINE") == 2


async def test_stored_certificate_is_encrypted_and_has_an_erase_date(host: Host) -> None:
    await host.genuine(await host.process())
    (record,) = await host.store.list(KIND)
    assert record.owner == SERVICE
    assert b"CERTIFICATE" not in record.sealed
    assert record.erase_at == host.clock() + CERTIFICATE_RETENTION
