"""Hints: webhooks, unsigned or signed with a certificate, that only make the server poll."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest
from cryptography.x509.verification import Store

from flows.elicitation.states import Status
from flows.payments.gateway import UnsignedNotice
from flows.payments.mollie.gateway import mollie
from flows.payments.paypal.gateway import PAYPAL_SANDBOX, paypal
from flows.webhooks.certificates import CertificateScheme, sign_certified
from tests.support.certificates import Holder, issued, root, rsa_key
from tests.support.clock import Clock
from tests.support.payment_env import Mollie, PaymentEnv, PayPal, approved, selling
from webapp.cli.webhooks import list_hooks
from webapp.payments.certificates import FETCHES_OF_ALL, Certificates, trusted_roots
from webapp.payments.webhook_log import BETWEEN_HINTS, HINTS_AT_ONCE
from webapp.sandbox.paypal.certificates import sandbox_scheme

MOLLIE_SELLER = mollie("test_x", webhook_url="https://shop.example/webhooks/mollie")
WEBHOOK_ID = "1JE4291016473214C"
CERTIFIED = paypal("an-id", "a-secret", is_live=False, webhook_ids=(WEBHOOK_ID,))
REPLY = {"received": "hint"}


@pytest.fixture
async def payment_env(at_mollie: Mollie) -> AsyncIterator[PaymentEnv]:
    async with selling(MOLLIE_SELLER, at_mollie) as payment_env:
        yield payment_env


async def test_unsigned_webhook_about_an_unknown_payment_is_counted_without_polling(
    payment_env: PaymentEnv, at_mollie: Mollie
) -> None:
    asked = await payment_env.begun()
    before = [*at_mollie.calls]
    for body, query in (
        (b"id=tr_1", "elicitation=nobody"),
        (b"id=tr_1", f"elicitation={asked.id[:-1]}"),
        (b"id=tr_999", f"elicitation={asked.id}"),
    ):
        answer = await payment_env.post(body, query=query)
        assert (answer.status_code, answer.json()) == (200, REPLY)
    assert at_mollie.calls == before
    assert await payment_env.counts() == {"unknown": 3}
    assert await payment_env.webhooks() == []


async def test_unsigned_webhook_without_our_query_parameter_is_ignored(
    payment_env: PaymentEnv, at_mollie: Mollie
) -> None:
    answer = await payment_env.post(b"id=tr_1")
    assert (answer.status_code, answer.json()) == (200, REPLY)
    assert at_mollie.calls == []


@pytest.mark.parametrize("body", [b"", b"id=../x", b"id=tr_1&id=tr_2", b"\xff", b"x" * 2000])
async def test_malformed_unsigned_webhook_is_refused_and_counted(
    payment_env: PaymentEnv, at_mollie: Mollie, body: bytes
) -> None:
    assert (await payment_env.post(body)).status_code == 400
    assert sum((await payment_env.counts()).values()) == 1
    assert at_mollie.calls == []


async def test_unsigned_webhook_about_another_providers_payment_polls_no_provider() -> None:
    provider = PayPal()
    async with selling(paypal("an-id", "a-secret", is_live=False), provider) as payment_env:
        asked = await payment_env.asked()
        hint = UnsignedNotice(type="payment", reference=asked.id, session=None)
        assert await payment_env.service.webhooks.poll_for_notice("mollie", hint) == "unknown"
        assert provider.calls == []


async def test_repeated_unsigned_webhook_after_an_outage_records_the_payment_once(
    payment_env: PaymentEnv, at_mollie: Mollie
) -> None:
    asked = await payment_env.begun()
    query = at_mollie.query("tr_1")
    at_mollie.payments["tr_1"]["status"] = "paid"
    at_mollie.is_down = True
    assert (await payment_env.post(b"id=tr_1", query=query)).status_code == 503
    assert not (await payment_env.now(asked)).status.is_final
    at_mollie.is_down = False
    for _ in range(2):
        assert (await payment_env.post(b"id=tr_1", query=query)).status_code == 200
    assert (await payment_env.now(asked)).status is Status.ACCEPTED
    assert len(await payment_env.service.kinds.payments.ledger.all()) == 1


class Slow(PayPal):
    """PayPal that answers about its orders only after `answers` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            found = await super().__call__(request)
            await self.answers.wait()
            return httpx.Response(found.status_code, content=found.content)
        return await super().__call__(request)


async def test_two_concurrent_unsigned_webhooks_capture_the_payment_once() -> None:
    provider = Slow()
    async with selling(paypal("an-id", "a-secret", is_live=False), provider) as payment_env:
        asked = await payment_env.begun()
        provider.approve("O1")
        body = approved(asked, "O1")
        async with asyncio.TaskGroup() as group:
            hints = [group.create_task(payment_env.post(body)) for _ in range(2)]
            for _ in range(200):
                await asyncio.sleep(0)
            provider.answers.set()
        assert [hint.result().status_code for hint in hints] == [200, 200]
        # If both hints found the order approved, the server sent two captures. Both had the same
        # key, so PayPal captured the payment once.
        assert len(set(provider.capture_keys)) == provider.captured == 1
        assert len(await payment_env.service.kinds.payments.ledger.all()) == 1


class Taken(PayPal):
    """PayPal at which another process captures the payment just before each capture."""

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/capture"):
            assert (await super().__call__(request)).status_code == 201
        return await super().__call__(request)


async def test_order_already_captured_by_another_process_is_recorded_once() -> None:
    provider = Taken()
    async with selling(paypal("an-id", "a-secret", is_live=False), provider) as payment_env:
        asked = await payment_env.begun()
        provider.approve("O1")
        assert (await payment_env.post(approved(asked, "O1"))).status_code == 200
        # The server's capture fails with ORDER_ALREADY_CAPTURED, and the order shows the payment.
        assert (len(provider.capture_keys), provider.captured) == (2, 1)
        assert (await payment_env.now(asked)).status is Status.ACCEPTED
        [payment] = await payment_env.service.kinds.payments.ledger.all()
        assert (payment.payment_intent, payment.amount) == ("CO1", 900)


async def test_rejected_unsigned_webhooks_are_listed_for_the_operator_with_reasons(
    payment_env: PaymentEnv, at_mollie: Mollie
) -> None:
    await payment_env.begun()
    for number in range(3):
        await payment_env.post(b"id=tr_1", query=f"elicitation=nobody{number}")
    at_mollie.payments["tr_1"].update(status="paid", amount={"currency": "EUR", "value": "0.09"})
    await payment_env.post(b"id=tr_1", query=at_mollie.query("tr_1"))
    await payment_env.post(b"id=../x")
    await payment_env.service.webhooks.log.write_counts()
    rows = (await list_hooks(payment_env.service)).rows
    assert {(row.provider, row.status) for row in rows} == {("mollie", "turned away")}
    assert [(row.why, row.times) for row in rows] == [
        ("not verified: malformed_body", 1),
        ("its amount differs from the request", 1),
        ("not about a payment of this server", 3),
    ]


async def test_unsigned_webhooks_are_rate_limited_per_sender_address(
    payment_env: PaymentEnv, at_mollie: Mollie
) -> None:
    asked = await payment_env.begun()
    at_mollie.payments["tr_1"]["status"] = "paid"
    query = at_mollie.query("tr_1")
    for _ in range(HINTS_AT_ONCE):
        await payment_env.post(b"id=tr_1", query="elicitation=nobody")
    assert (await payment_env.post(b"id=tr_1", query=query)).status_code == 429
    assert not (await payment_env.now(asked)).status.is_final
    other = await payment_env.post(b"id=tr_1", query=query, sender="198.51.100.7")
    assert other.status_code == 200
    assert (await payment_env.now(asked)).status is Status.ACCEPTED
    payment_env.clock.now += BETWEEN_HINTS
    assert (await payment_env.post(b"id=tr_1", query=query)).status_code == 200


async def test_many_unknown_unsigned_webhooks_write_a_single_row(payment_env: PaymentEnv) -> None:
    for number in range(50):
        await payment_env.post(b"id=tr_1", query=f"elicitation=nobody{number}")
    assert await payment_env.counts() == {"unknown": 50}
    assert len(await payment_env.service.webhooks.log.unverified()) == 1


# PayPal's certificates.


class Signed:
    """PayPal, and the certificate that PayPal's own host serves."""

    def __init__(self) -> None:
        self.provider = PayPal()
        self.signer = issued(PAYPAL_SANDBOX.certificate_name, by=root(), key=rsa_key())
        self.fetched: list[str] = []
        self.status = 200

    async def certificate(self, request: httpx.Request) -> httpx.Response:
        self.fetched.append(str(request.url))
        return httpx.Response(self.status, content=self.signer.pem)

    def certificates(self, clock: Clock) -> Certificates:
        return Certificates(fetch=self.certificate, clock=clock, roots=_own_root)

    def headers(
        self,
        payment_env: PaymentEnv,
        body: bytes,
        *,
        webhook_id: str = WEBHOOK_ID,
        certificate: str = "CERT-1",
    ) -> list[tuple[str, str]]:
        return sign_certified(
            PAYPAL_SANDBOX,
            body=body,
            id="aac5ed50-2fcb-11f0-a48d-0737b43c836c",
            webhook_id=webhook_id,
            certificate_id=certificate,
            key=rsa_key(),
            now=payment_env.clock(),
        )


def _own_root(scheme: CertificateScheme) -> Store:
    return Store([root().certificate])


@pytest.fixture
def signed() -> Signed:
    return Signed()


@pytest.fixture
async def certified(signed: Signed) -> AsyncIterator[PaymentEnv]:
    selling_so = selling(CERTIFIED, signed.provider, certificates=signed.certificates)
    async with selling_so as payment_env:
        yield payment_env


async def test_paypal_webhook_with_a_valid_certificate_signature_settles_the_payment(
    certified: PaymentEnv, signed: Signed
) -> None:
    asked = await certified.begun()
    signed.provider.approve("O1")
    body = approved(asked, "O1")
    for _ in range(2):
        answer = await certified.post(body, headers=signed.headers(certified, body))
        assert answer.status_code == 200
    assert (await certified.now(asked)).status is Status.ACCEPTED
    assert signed.fetched == [PAYPAL_SANDBOX.certificate_addresses[0] + "CERT-1"]


async def test_paypal_webhook_with_a_bad_signature_is_refused_without_polling(
    certified: PaymentEnv, signed: Signed
) -> None:
    asked = await certified.begun()
    signed.provider.approve("O1")
    body = approved(asked, "O1")
    before = [*signed.provider.calls]
    other = json.dumps({**json.loads(body), "id": "WH-2"}).encode()
    foreign = [
        (name, "https://evil.example/cert" if name == "paypal-cert-url" else value)
        for name, value in signed.headers(certified, body)
    ]
    for headers, reason in (
        ([], "missing_header"),
        (foreign, "foreign_url"),
        (signed.headers(certified, body, webhook_id="another"), "bad_signature"),
        (signed.headers(certified, other), "bad_signature"),
    ):
        answer = await certified.post(body, headers=headers)
        assert answer.status_code == 400
        assert reason in await certified.counts()
        certified.clock.tick(minutes=1)
    assert signed.provider.calls == before
    assert not (await certified.now(asked)).status.is_final
    assert len(signed.fetched) == 1  # the certificate is valid, but the signature is not


async def test_certificate_that_does_not_chain_to_a_root_is_refused(
    certified: PaymentEnv, signed: Signed
) -> None:
    thief: Holder = issued("Thief", is_authority=True)
    signed.signer = issued(PAYPAL_SANDBOX.certificate_name, by=thief, key=rsa_key())
    asked = await certified.asked()
    body = approved(asked, "O1")
    answer = await certified.post(body, headers=signed.headers(certified, body))
    assert answer.status_code == 400
    assert await certified.counts() == {"bad_certificate": 1}


async def test_expired_certificate_is_fetched_again(certified: PaymentEnv, signed: Signed) -> None:
    asked = await certified.asked()
    body = approved(asked, "O1")
    until = certified.clock() + timedelta(days=1)
    signed.signer = issued(PAYPAL_SANDBOX.certificate_name, by=root(), key=rsa_key(), until=until)
    await certified.post(body, headers=signed.headers(certified, body))
    certified.clock.tick(days=2)
    signed.signer = issued(PAYPAL_SANDBOX.certificate_name, by=root(), key=rsa_key())
    answer = await certified.post(body, headers=signed.headers(certified, body))
    assert (answer.status_code, len(signed.fetched)) == (200, 2)


@pytest.mark.parametrize(("status", "answered"), [(404, 400), (302, 400), (503, 503)])
async def test_missing_certificate_answers_400_and_a_failed_fetch_answers_503(
    certified: PaymentEnv, signed: Signed, status: int, answered: int
) -> None:
    signed.status = status
    body = approved(await certified.asked(), "O1")
    answer = await certified.post(body, headers=signed.headers(certified, body))
    assert answer.status_code == answered


async def test_certificate_fetches_are_rate_limited_across_senders(
    certified: PaymentEnv, signed: Signed
) -> None:
    signed.status = 404
    body = approved(await certified.asked(), "O1")
    for number in range(FETCHES_OF_ALL):
        headers = signed.headers(certified, body, certificate=f"CERT-{number}")
        answer = await certified.post(body, headers=headers, sender=f"198.51.100.{number}")
        assert answer.status_code == 400
    headers = signed.headers(certified, body, certificate="CERT-x")
    assert (await certified.post(body, headers=headers, sender="192.0.2.1")).status_code == 429
    assert len(signed.fetched) == FETCHES_OF_ALL


@pytest.mark.parametrize(
    ("status", "root_pem", "answered"),
    [(200, b"", 503), (200, b"<html>", 503), (404, b"", 400), (503, b"", 503)],
)
async def test_invalid_sandbox_root_certificate_verifies_no_webhook(
    signed: Signed, status: int, root_pem: bytes, answered: int
) -> None:
    """Another program may listen on the sandbox's port."""
    fetched: list[str] = []

    async def fetch(request: httpx.Request) -> httpx.Response:
        fetched.append(str(request.url))
        return httpx.Response(status, content=root_pem)

    scheme = sandbox_scheme("http://127.0.0.1:8766")
    seller = replace(CERTIFIED, certificates=scheme)
    async with selling(
        seller, signed.provider, certificates=lambda clock: Certificates(fetch=fetch, clock=clock)
    ) as payment_env:
        body = approved(await payment_env.asked(), "O1")
        forged = signed.headers(payment_env, body)
        assert (
            await payment_env.post(body, headers=forged)
        ).status_code == 400  # the certificate is at PayPal's address, not at the sandbox's
        assert fetched == []
        there = [
            (name, f"{scheme.certificate_addresses[0]}C1" if name == "paypal-cert-url" else value)
            for name, value in forged
        ]
        assert (await payment_env.post(body, headers=there)).status_code == answered
        assert fetched == ["http://127.0.0.1:8766/paypal/root.pem"]
        assert signed.provider.calls == []


def test_trusted_roots_contain_the_paypal_certificate_authority() -> None:
    trusted_roots(PAYPAL_SANDBOX)  # raises if a root is missing
