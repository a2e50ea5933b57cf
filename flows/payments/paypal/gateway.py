"""The gateway for PayPal, Orders v2.

Experimental: never run against PayPal itself.

Risks: money is captured twice, or for a question that has ended. An approved order is not money
yet. `collect` captures it after comparing the order with the question, and never for an ended
elicitation. PayPal has no call to cancel an order, so an order is closed by not capturing it. An
order can be captured only once (ORDER_ALREADY_CAPTURED), even with another key. Each press of
Continue has its own key, because PayPal could answer a repeated key with the earlier decline. A
webhook, signed or not, is only a hint: the order is fetched. A webhook about a manual refund or a
lost dispute names only the capture, so the capture is fetched first. An unpaid order is not found
(404) after it has expired. A 404 only closes the order if PayPal's own clock says that the order
has expired.

Source: PayPal's published OpenAPI documents (paths, fields, statuses, keys valid for 6 hours, for
refunds 45 days, approval within 3 hours). Not checked against PayPal: that a repeated key returns
the first order, whether PayPal answers a repeated key of a declined capture with the same decline,
that a capture event names the order in `supplementary_data.related_ids`, and how long a completed
order can be fetched.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

import httpx
import msgspec

from flows.elicitation.flow import RedirectContext, Talk
from flows.elicitation.states import Attempt, Elicitation
from flows.errors import InvalidQuestion
from flows.origin import written_origin
from flows.payments.checkout_page import (
    PACE,
    HostedCheckout,
    asking,
    return_urls,
    stored_request,
)
from flows.payments.gateway import (
    ProviderSession,
    UnsignedNotice,
    payment_of,
    terms_for,
    verify_session,
)
from flows.payments.money import Money
from flows.payments.paypal.responses import (
    has_lapsed,
    is_key_used,
    issue_in,
    lapsed,
    order_in,
    read_refund,
    reference_in,
    refunds_in,
    same_order,
    session_of,
    token_in,
    unsigned_in,
)
from flows.payments.receipt import Payment, Refund, RefundChange
from flows.payments.responses import (
    KeyUsed,
    ProviderRefund,
    already_refunded,
    existing_or_rest,
    existing_refunds,
    json_request,
    part_refund_key,
    problem,
    refund_key,
    reported_changes,
    with_session,
    written,
)
from flows.payments.session import SessionStatus, StoredCheckout, terms_of
from flows.webhooks.certificates import WEBHOOK_ID, CertificateScheme

PAYPAL_API = "https://api-m.paypal.com"
PAYPAL_CHECKOUT = "https://www.paypal.com"
PAYPAL_TEST_API = "https://api-m.sandbox.paypal.com"
PAYPAL_TEST_CHECKOUT = "https://www.sandbox.paypal.com"
ORDER_LIFE = timedelta(hours=3)
DESCRIPTION_BYTES_AT_MOST = 127

# developer.paypal.com, "Currency codes": the supported codes, and those without decimals.
_CODES = (
    "AUD BRL CAD CHF CNY CZK DKK EUR GBP HKD HUF ILS JPY MXN MYR NOK NZD PHP PLN SEK SGD THB TWD"
    " USD"
)
CURRENCIES = frozenset(_CODES.split())
WITHOUT_DECIMALS = frozenset({"HUF", "JPY", "TWD"})
_ORDERS = "/v2/checkout/orders"
_CAPTURES = "/v2/payments/captures"


PAYPAL: Final = CertificateScheme(
    name="paypal",
    header_prefix="paypal-",
    certificate_addresses=(
        "https://api.paypal.com/v1/notifications/certs/",
        "https://api-m.paypal.com/v1/notifications/certs/",
    ),
    certificate_name="messageverificationcerts.paypal.com",
    authority="DigiCert Inc",  # PayPal's own library trusts no other authority
)
PAYPAL_SANDBOX: Final = replace(
    PAYPAL,
    name="paypal-sandbox",
    certificate_addresses=(
        "https://api.sandbox.paypal.com/v1/notifications/certs/",
        "https://api-m.sandbox.paypal.com/v1/notifications/certs/",
    ),
    certificate_name="messageverificationcerts.sandbox.paypal.com",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayPalAccount:
    """The operator's account at PayPal.

    `account` is the merchant id. If it is set, orders of another merchant are rejected.

    With `webhook_ids`, a webhook without a valid signature by PayPal's certificate is rejected.
    """

    api: str
    checkout_origins: tuple[str, ...]
    client_id: str
    client_secret: str = field(repr=False)
    is_live: bool
    certificates: CertificateScheme
    account: str | None = None
    webhook_ids: tuple[str, ...] = ()
    statement: str | None = None
    name: str = "paypal"
    label: str = "PayPal"


def paypal(
    client_id: str,
    client_secret: str,
    *,
    is_live: bool,
    account: str | None = None,
    webhook_ids: tuple[str, ...] = (),
) -> PayPalAccount:
    """Return a PayPal account, live or in PayPal's sandbox.

    `is_live` must say which, because the credentials of both look alike.

    Raises ValueError for invalid credentials or webhook ids.
    """
    _require_credentials(client_id, client_secret)
    _require_webhook_ids(webhook_ids)
    return PayPalAccount(
        api=PAYPAL_API if is_live else PAYPAL_TEST_API,
        checkout_origins=(PAYPAL_CHECKOUT if is_live else PAYPAL_TEST_CHECKOUT,),
        client_id=client_id,
        client_secret=client_secret,
        is_live=is_live,
        certificates=PAYPAL if is_live else PAYPAL_SANDBOX,
        account=account,
        webhook_ids=webhook_ids,
    )


def sandbox_paypal(
    url: str,
    client_id: str,
    client_secret: str,
    *,
    webhook_ids: tuple[str, ...] = (),
    certificates: CertificateScheme = PAYPAL_SANDBOX,
) -> PayPalAccount:
    """Return a test account (never live) for our own sandbox of PayPal under `url`.

    `certificates` is the scheme with which the sandbox signs its webhooks, if it signs them. Raises
    ValueError for invalid credentials or webhook ids.
    """
    _require_credentials(client_id, client_secret)
    _require_webhook_ids(webhook_ids)
    api = url.rstrip("/")
    return PayPalAccount(
        label="PayPal (sandbox)",
        api=api,
        checkout_origins=(written_origin(api),),
        client_id=client_id,
        client_secret=client_secret,
        is_live=False,
        certificates=certificates,
        webhook_ids=webhook_ids,
    )


class PayPalGateway(HostedCheckout[PayPalAccount]):
    """The gateway for PayPal.

    Implements Gateway, Certifies and Traces.

    The access token is only held in this object until PayPal rejects it, and is never stored.
    """

    pace = PACE

    def __init__(self, seller: PayPalAccount) -> None:
        super().__init__(seller)
        self.certificates: CertificateScheme = seller.certificates
        self.webhook_ids: tuple[str, ...] = seller.webhook_ids
        self._bearer: str | None = None

    def check(self, price: Money) -> None:
        _amount(price)

    def new_request(self, elicitation: Elicitation, context: RedirectContext) -> StoredCheckout:
        terms, (back, cancelled) = terms_of(elicitation), return_urls(context)
        order = {
            "intent": "CAPTURE",
            "purchase_units": [
                {
                    "reference_id": elicitation.id,
                    "custom_id": elicitation.id,
                    # PayPal accepts one payment for each invoice, so a second tab cannot pay again.
                    "invoice_id": elicitation.id,
                    "description": _cut(terms.what),
                    "amount": _amount(terms.price),
                }
            ],
            "payment_source": {
                "paypal": {
                    "experience_context": {
                        "user_action": "PAY_NOW",
                        "shipping_preference": "NO_SHIPPING",
                        "return_url": back,
                        "cancel_url": cancelled,
                    }
                }
            },
        }
        return asking(order, until=context.now + ORDER_LIFE)

    def repeat(self, elicitation: Elicitation, attempt: Attempt) -> Talk[StoredCheckout]:
        stored, key = stored_request(elicitation, attempt, self.seller)
        reply = yield from self._send("POST", _ORDERS, body=stored.request, key=key)
        if is_key_used(reply):
            raise KeyUsed(self.seller, why=problem(reply, code_of=issue_in))
        if has_lapsed(reply, until=stored.expires_at):  # the order was created and expired unpaid
            return stored
        order = order_in(reply, self.seller, doing="open its payment page")
        return with_session(stored, elicitation, session_of(order, self.seller), self.seller)

    def fetch(self, elicitation: Elicitation, session: str) -> Talk[ProviderSession]:
        _, found = yield from self._order(elicitation, session)
        return found

    def collect(self, elicitation: Elicitation, session: str) -> Talk[ProviderSession]:
        is_approved, found = yield from self._order(elicitation, session)
        if not is_approved or elicitation.status.is_final:
            return found
        verify_session(elicitation, found, seller=self.seller)
        assert elicitation.attempt is not None  # a session exists, so an attempt exists
        key = f"{elicitation.id}:{elicitation.attempt.number}:{session}"
        yield from self._send("POST", f"{_path(session)}/capture", body="{}", key=key)
        # Captured now, captured before or declined: fetch the order to find out.
        return (yield from self.fetch(elicitation, session))

    def close(self, elicitation: Elicitation, session: str) -> Talk[bool]:
        found = yield from self.fetch(elicitation, session)
        return found.state not in (SessionStatus.PAID, SessionStatus.PENDING)

    def refund(
        self, payment: Payment, *, reason: str | None, up_to: int | None = None
    ) -> Talk[Refund]:
        """Refund a capture. The reason is not sent, because PayPal would show it to the person."""
        capture = payment_of(payment, self.seller)
        path = f"{_CAPTURES}/{quote(capture, safe='')}/refund"
        # Without an amount, PayPal refunds the rest.
        wish: dict[str, Any] = {"custom_id": payment.elicitation_id}
        key, price = refund_key(payment), payment.price
        if up_to is not None:
            price = Money.from_minor_units(up_to, payment.currency)
            listed = yield from self._refunds(payment)
            found = existing_or_rest(listed, payment, self.seller, price=price)
            if isinstance(found, Refund):
                return found
            wish["amount"] = _amount(found)
            key = part_refund_key(listed, payment, price=price, rest=found)
        body = msgspec.json.encode(wish).decode()
        reply = yield from self._send("POST", path, body=body, key=key)
        if reply.status_code in (200, 201):
            return read_refund(reply, payment, self.seller)
        listed = yield from self._refunds(payment)
        return already_refunded(
            listed, payment, self.seller, price=price, refused=reply, code_of=issue_in
        )

    def refunds(self, payment: Payment) -> Talk[Sequence[RefundChange]]:
        payment_of(payment, self.seller)
        return reported_changes((yield from self._refunds(payment)), self.seller)

    def read_unsigned(self, body: bytes, *, query: str) -> UnsignedNotice | None:
        return unsigned_in(body)

    def trace(self, payment: str) -> Talk[str | None]:
        reply = yield from self._send("GET", f"{_CAPTURES}/{quote(payment, safe='')}")
        return reference_in(reply, payment, self.seller)

    def revisit(self, payment: Payment) -> Talk[ProviderSession]:
        payment_of(payment, self.seller)
        reply = yield from self._send("GET", _path(payment.session))
        return session_of(same_order(payment.session, reply, self.seller), self.seller)

    def _order(self, elicitation: Elicitation, session: str) -> Talk[tuple[bool, ProviderSession]]:
        """Return whether the order waits to be captured, and its session."""
        terms_for(elicitation, self.seller)
        reply = yield from self._send("GET", _path(session))
        gone = lapsed(elicitation, session, reply, self.seller)
        if gone is not None:
            return False, gone
        order = same_order(session, reply, self.seller)
        return order.is_approved, session_of(order, self.seller)

    def _refunds(self, payment: Payment) -> Talk[Sequence[ProviderRefund]]:
        def listing() -> Talk[Sequence[ProviderRefund]]:
            reply = yield from self._send("GET", _path(payment.session))
            return refunds_in(reply, payment, self.seller)

        return existing_refunds(listing())

    def _send(
        self, method: str, path: str, *, body: str | None = None, key: str | None = None
    ) -> Talk[httpx.Response]:
        """Send with the current access token, and again with a new token if PayPal rejects it."""
        if self._bearer is not None:
            reply = yield self._request(method, path, body=body, key=key)
            if reply.status_code != 401:
                return reply
        granted = yield _token_request(self.seller)
        self._bearer = token_in(granted, self.seller)
        return (yield self._request(method, path, body=body, key=key))

    def _request(
        self, method: str, path: str, *, body: str | None, key: str | None
    ) -> httpx.Request:
        headers = {"Authorization": f"Bearer {self._bearer}", "Prefer": "return=representation"}
        if key is not None:
            headers["PayPal-Request-Id"] = key
        return json_request(method, self.seller.api + path, headers=headers, body=body)


def _token_request(seller: PayPalAccount) -> httpx.Request:
    pair = base64.b64encode(f"{seller.client_id}:{seller.client_secret}".encode()).decode()
    return httpx.Request(
        "POST",
        f"{seller.api}/v1/oauth2/token",
        headers={
            "Authorization": f"Basic {pair}",
            "Content-Type": "application/x-www-form-urlencoded",
        },
        content=b"grant_type=client_credentials",
    )


def _path(order: str) -> str:
    return f"{_ORDERS}/{quote(order, safe='')}"


def _amount(price: Money) -> dict[str, str]:
    if price.currency not in CURRENCIES:
        raise InvalidQuestion(f"PayPal does not accept {price.currency}.")
    digits = 0 if price.currency in WITHOUT_DECIMALS else None
    return {"currency_code": price.currency, "value": written(price, digits=digits)}


def _cut(text: str) -> str:
    """Cut a text to the description limit, which PayPal counts in bytes."""
    return text.encode()[:DESCRIPTION_BYTES_AT_MOST].decode(errors="ignore")


def _require_credentials(*credentials: str) -> None:
    for one in credentials:
        if not one or ":" in one or " " in one or not (one.isascii() and one.isprintable()):
            raise ValueError(
                "PayPal's client id and secret must not be empty, and cannot have spaces or colons."
            )


def _require_webhook_ids(ids: tuple[str, ...]) -> None:
    if not all(map(WEBHOOK_ID.fullmatch, ids)):
        raise ValueError("The id of a PayPal webhook can have only letters and digits.")
