"""The gateway for Mollie, Payments v2.

Experimental: never run against Mollie itself.

Risks: anyone can send a webhook, because it is unsigned and contains only an id. A webhook is
therefore only a hint: the payment is fetched, and only counts if this server created it.
Mollie forgets idempotency keys after an hour and allows refunds above the paid amount, so existing
refunds are read before a new refund. If a payment is created twice because its key was forgotten,
the extra payment expires, since its page is never shown.

Source: Mollie's published OpenAPI document (paths, fields, statuses). Not checked against Mollie:
that keys are forgotten after an hour, that all payment pages are at www.mollie.com, that a
`webhookUrl` can have a query, how long a payment without a method stays open, and when an
`authorized` payment becomes `paid` automatically (until then, it does not count as paid).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import quote, urlencode

import httpx
import msgspec

from flows.elicitation.flow import RedirectContext, Talk
from flows.elicitation.states import Attempt, Elicitation
from flows.errors import Failed
from flows.origin import is_origin, written_origin
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
    fits_a_header,
    payment_of,
    terms_for,
)
from flows.payments.listing import SessionPage
from flows.payments.mollie.responses import (
    field_in,
    payment_in,
    payments_in,
    read_refund,
    refunds_in,
    same_payment,
    session_of,
    unsigned_in,
)
from flows.payments.money import Money
from flows.payments.receipt import Payment, Refund, RefundChange
from flows.payments.responses import (
    ProviderRefund,
    already_refunded,
    existing_or_rest,
    existing_refunds,
    json_request,
    refund_key,
    reported_changes,
    with_session,
    written,
)
from flows.payments.session import REFERENCE_KEY, SessionStatus, StoredCheckout, terms_of
from flows.webhooks.signatures import Scheme

MOLLIE_API = "https://api.mollie.com"
MOLLIE_CHECKOUT = "https://www.mollie.com"
LIFE_WITHOUT_A_METHOD = timedelta(minutes=15)
DESCRIPTION_AT_MOST = 255
REASON_AT_MOST = 255
_PAYMENTS = "/v2/payments"


MOLLIE: Final = Scheme(
    name="mollie",
    signature_header="x-mollie-signature",
    signature_label="sha256=",
    separator=",",
    is_repeatable=True,  # in case Mollie sends two signatures while a secret is rotated
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MollieAccount:
    """The operator's account at Mollie.

    `account` is the profile id. If it is set, a payment that names another profile is refused.

    Without `webhook_url` (Mollie cannot reach us), only the return page and the sweeper fetch
    payments.
    """

    api: str
    checkout_origins: tuple[str, ...]
    key: str = field(repr=False)
    is_live: bool
    account: str | None = None
    webhook_url: str | None = None
    statement: str | None = None
    name: str = "mollie"
    label: str = "Mollie"


def mollie(
    key: str,
    *,
    webhook_url: str | None = None,
    account: str | None = None,
    more_checkout_origins: tuple[str, ...] = (),
) -> MollieAccount:
    """Return a Mollie account in live or test mode, according to the key.

    Raises ValueError for an invalid key, InvalidQuestion for an invalid origin.
    """
    _require_key(key, "live_", "test_")
    if not all(map(is_origin, more_checkout_origins)):
        raise ValueError("A checkout origin is scheme, host and port, and nothing else.")
    return MollieAccount(
        api=MOLLIE_API,
        checkout_origins=(MOLLIE_CHECKOUT, *more_checkout_origins),
        key=key,
        is_live=key.startswith("live_"),
        account=account,
        webhook_url=webhook_url,
    )


def sandbox_mollie(url: str, key: str, *, webhook_url: str | None = None) -> MollieAccount:
    """Return a test account (never live) for our own sandbox of Mollie under `url`.

    Raises ValueError for an invalid key.
    """
    _require_key(key, "test_")
    api = url.rstrip("/")
    return MollieAccount(
        label="Mollie (sandbox)",
        api=api,
        checkout_origins=(written_origin(api),),
        key=key,
        is_live=False,
        webhook_url=webhook_url,
    )


class MollieGateway(HostedCheckout[MollieAccount]):
    """The gateway for Mollie: a session is a payment. Implements Gateway, Lists and Traces."""

    pace = PACE

    def check(self, price: Money) -> None:
        written(price)

    def repeat(self, elicitation: Elicitation, attempt: Attempt) -> Talk[StoredCheckout]:
        stored, key = stored_request(elicitation, attempt, self.seller)
        reply = yield self._request("POST", _PAYMENTS, body=stored.request, key=key)
        found = payment_in(reply, self.seller, doing="open its payment page")
        return with_session(stored, elicitation, session_of(found, self.seller), self.seller)

    def fetch(self, elicitation: Elicitation, session: str) -> Talk[ProviderSession]:
        terms_for(elicitation, self.seller)
        reply = yield self._request("GET", _path(session))
        return session_of(same_payment(session, reply, self.seller), self.seller)

    def list_sessions(self, since: datetime, *, after: str | None = None) -> Talk[SessionPage]:
        query = {"limit": "250"} if after is None else {"limit": "250", "from": after}
        reply = yield self._request("GET", f"{_PAYMENTS}?{urlencode(query)}")
        return payments_in(reply, self.seller, since=since)

    def close(self, elicitation: Elicitation, session: str) -> Talk[bool]:
        """Cancel the payment. Raises Failed if it stays open: some methods can only expire."""
        terms_for(elicitation, self.seller)
        reply = yield self._request("GET", _path(session))
        payment = same_payment(session, reply, self.seller)
        if payment.status == "open" and payment.is_cancelable:
            yield self._request("DELETE", _path(session))
            # The payment is now cancelled, or was paid just before: fetch it again to find out.
            reply = yield self._request("GET", _path(session))
            payment = same_payment(session, reply, self.seller)
        found = session_of(payment, self.seller)
        if found.state is SessionStatus.OPEN:
            raise Failed(f"{self.seller.label} did not close its payment page.", is_refusal=True)
        return found.state not in (SessionStatus.PAID, SessionStatus.PENDING)

    def refund(
        self, payment: Payment, *, reason: str | None, up_to: int | None = None
    ) -> Talk[Refund]:
        path = f"{_path(payment_of(payment, self.seller))}/refunds"
        price = payment.price if up_to is None else Money.from_minor_units(up_to, payment.currency)
        listed = yield from self._refunds(payment, path)
        rest = existing_or_rest(listed, payment, self.seller, price=price)
        if isinstance(rest, Refund):
            return rest
        wish = {
            "amount": _amount(rest),
            "metadata": {"receipt": payment.id, REFERENCE_KEY: payment.elicitation_id},
        }
        if reason:
            wish["metadata"]["reason"] = reason[:REASON_AT_MOST]
        # The key holds the remaining amount, which a manual or failed refund changes.
        key = f"{refund_key(payment)}:{rest.minor_units}"
        if up_to is not None:
            key = f"{key}:{up_to}"  # two partial refunds of the same size are different refunds
        body = msgspec.json.encode(wish).decode()
        reply = yield self._request("POST", path, body=body, key=key)
        if reply.status_code == 201:
            return read_refund(reply, payment, self.seller, at_most=rest.minor_units)
        listed = yield from self._refunds(payment, path)
        return already_refunded(
            listed, payment, self.seller, price=price, refused=reply, code_of=field_in
        )

    def refunds(self, payment: Payment) -> Talk[Sequence[RefundChange]]:
        path = f"{_path(payment_of(payment, self.seller))}/refunds"
        return reported_changes((yield from self._refunds(payment, path)), self.seller)

    def read_unsigned(self, body: bytes, *, query: str) -> UnsignedNotice | None:
        return unsigned_in(body, query=query)

    def trace(self, payment: str) -> Talk[str | None]:
        reply = yield self._request("GET", _path(payment))
        return session_of(same_payment(payment, reply, self.seller), self.seller).reference

    def revisit(self, payment: Payment) -> Talk[ProviderSession]:
        payment_of(payment, self.seller)
        reply = yield self._request("GET", _path(payment.session))
        return session_of(same_payment(payment.session, reply, self.seller), self.seller)

    def new_request(self, elicitation: Elicitation, context: RedirectContext) -> StoredCheckout:
        terms, (back, cancelled) = terms_of(elicitation), return_urls(context)
        payment = {
            "amount": _amount(terms.price),
            "description": terms.what[:DESCRIPTION_AT_MOST],
            "redirectUrl": back,
            "cancelUrl": cancelled,
            "metadata": {REFERENCE_KEY: elicitation.id},
        }
        if self.seller.webhook_url is not None:
            query = urlencode({REFERENCE_KEY: elicitation.id})
            payment["webhookUrl"] = f"{self.seller.webhook_url}?{query}"
        return asking(payment, until=context.now + LIFE_WITHOUT_A_METHOD)

    def _refunds(self, payment: Payment, path: str) -> Talk[Sequence[ProviderRefund]]:
        def listing() -> Talk[Sequence[ProviderRefund]]:
            reply = yield self._request("GET", f"{path}?limit=250")
            return refunds_in(reply, payment, self.seller)

        return existing_refunds(listing())

    def _request(
        self, method: str, path: str, *, body: str | None = None, key: str | None = None
    ) -> httpx.Request:
        headers = {"Authorization": f"Bearer {self.seller.key}"}
        if key is not None:
            headers["Idempotency-Key"] = key
        return json_request(method, self.seller.api + path, headers=headers, body=body)


def _path(payment: str) -> str:
    return f"{_PAYMENTS}/{quote(payment, safe='')}"


def _amount(price: Money) -> dict[str, str]:
    return {"currency": price.currency, "value": written(price)}


def _require_key(key: str, *kinds: str) -> None:
    if not key.startswith(kinds) or not fits_a_header(key):
        raise ValueError(
            f"The key is not a Mollie key: Mollie keys begin with {' or '.join(kinds)}."
        )
