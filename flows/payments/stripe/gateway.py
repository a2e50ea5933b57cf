"""The gateway for Stripe Checkout: a hosted payment page.

Risks: a status is translated to a weaker one, or a repeated request differs from the first, so that
a person pays twice. The full request is therefore stored before it is sent, and one idempotency key
creates one session.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

import httpx

from flows.elicitation.flow import Redirect, RedirectContext, Talk
from flows.elicitation.states import Attempt, Elicitation, Json
from flows.errors import Failed
from flows.payments.checkout_page import asked, begun, prepared, ways_back
from flows.payments.claims import ProviderClaim
from flows.payments.gateway import (
    CLOCKS_DIFFER,
    Notice,
    ProviderSession,
    SetupReport,
    payment_of,
    terms_for,
)
from flows.payments.listing import SessionPage
from flows.payments.money import Money
from flows.payments.pace import PACE
from flows.payments.receipt import Payment, Refund, RefundChange
from flows.payments.responses import (
    KeyUsed,
    ProviderRefund,
    already_refunded,
    as_one,
    existing_refunds,
    learned,
    problem,
    refund_key,
    reported_changes,
    standing_refunds,
)
from flows.payments.session import REFERENCE_KEY, StoredCheckout, terms_of
from flows.payments.stripe.account import STRIPE, StripeAccount, charge_amount
from flows.payments.stripe.events import notice_in
from flows.payments.stripe.registration import examined
from flows.payments.stripe.responses import (
    claims_in,
    code_of,
    is_key_used,
    read_refund,
    reference_in,
    refunds_in,
    same_session,
    session_in,
    sessions_in,
)
from flows.payments.stripe.session import neutral
from flows.webhooks.signatures import Delivery

STRIPE_VERSION = "2026-10-28.endive"
LIFE_AT_LEAST = timedelta(minutes=30)
LIFE_AT_MOST = timedelta(hours=24)
REASON_AT_MOST = 500
_SESSIONS = "/v1/checkout/sessions"
_INTENTS = "/v1/payment_intents"
_REFUNDS = "/v1/refunds"
_DISPUTES = "/v1/disputes"
_WITH_CHARGE = urlencode({"expand[]": "payment_intent.latest_charge"})


class StripeGateway:
    """The gateway for Stripe. Implements Gateway, Signs, Lists and Examinable."""

    scheme = STRIPE
    pace = PACE

    def __init__(self, seller: StripeAccount) -> None:
        self.seller = seller
        self.webhook_secrets = seller.webhook_secrets

    def check(self, price: Money) -> None:
        charge_amount(price)

    def prepare(self, elicitation: Elicitation, context: RedirectContext) -> Json:
        """Return the request to store. Raises InvalidQuestion if the price cannot be charged."""
        return prepared(elicitation, context, _asked_session)

    def begin(self, elicitation: Elicitation, context: RedirectContext) -> Talk[Redirect]:
        return (yield from begun(elicitation, self))

    def repeat(self, elicitation: Elicitation, attempt: Attempt) -> Talk[StoredCheckout]:
        stored, key = asked(elicitation, attempt, self.seller)
        reply = yield self._post(_SESSIONS, stored.request, key=key)
        if is_key_used(reply):
            raise KeyUsed(self.seller, why=problem(reply, code_of=code_of))
        session = session_in(reply, self.seller, doing="open its payment page")
        return learned(stored, elicitation, neutral(session), self.seller)

    def fetch(self, elicitation: Elicitation, session: str) -> Talk[ProviderSession]:
        terms_for(elicitation, self.seller)
        reply = yield self._get(f"{_path(_SESSIONS, session)}?{_WITH_CHARGE}")
        found = same_session(session, reply, self.seller)
        if not found.is_disputed or found.payment_intent is None:
            return neutral(found)
        # A charge stays disputed after its dispute has ended, so fetch the disputes' stages.
        query = urlencode({"payment_intent": found.payment_intent, "limit": "100"})
        reply = yield self._get(f"{_DISPUTES}?{query}")
        return neutral(found, claims=claims_in(reply, found.payment_intent, self.seller))

    def list_sessions(self, since: datetime, *, after: str | None = None) -> Talk[SessionPage]:
        """List sessions. Stripe lists the latest first and cannot search for our reference."""
        query = {
            "created[gte]": str(math.floor(since.timestamp())),
            "limit": "100",
            "expand[]": "data.payment_intent.latest_charge",
        }
        if after is not None:
            query["starting_after"] = after
        reply = yield self._get(f"{_SESSIONS}?{urlencode(query)}")
        return sessions_in(reply, self.seller)

    def collect(self, elicitation: Elicitation, session: str) -> Talk[ProviderSession]:
        """Fetch the session; Stripe captures payments automatically."""
        return (yield from self.fetch(elicitation, session))

    def close(self, elicitation: Elicitation, session: str) -> Talk[bool]:
        terms_for(elicitation, self.seller)
        path = _path(_SESSIONS, session)
        reply = yield self._post(f"{path}/expire", "")
        if reply.status_code != 200:  # expired or complete already: fetch the session to find out
            reply = yield self._get(path)
        found = same_session(session, reply, self.seller)
        if found.status in ("expired", "complete"):
            return found.status == "expired"
        raise Failed(f"{self.seller.label} did not close its payment page.")

    def refund(
        self, payment: Payment, *, reason: str | None, up_to: int | None = None
    ) -> Talk[Refund]:
        intent = payment_of(payment, self.seller)
        key = refund_key(payment)
        price = payment.price
        form = {
            "payment_intent": intent,
            "metadata[receipt]": payment.id,
            f"metadata[{REFERENCE_KEY}]": payment.elicitation_id,
        }
        if reason:
            form["metadata[reason]"] = reason[:REASON_AT_MOST]
        if up_to is not None:
            price = Money.from_minor_units(up_to, payment.currency)
            listed = yield from self._refunds(intent)
            standing, given = standing_refunds(listed, payment, self.seller)
            if given >= up_to:
                return as_one(standing, price)
            remaining = Money.from_minor_units(up_to - given, payment.currency)
            form["amount"] = str(charge_amount(remaining))
            key = f"{key}:{up_to}:{len(listed)}"
        reply = yield self._post(_REFUNDS, urlencode(form), key=key)
        if reply.status_code == 200:
            return read_refund(reply, payment, self.seller)
        # Refunded already, or the key was used with another reason: list the refunds to find out.
        listed = yield from self._refunds(intent)
        return already_refunded(
            listed, payment, self.seller, price=price, refused=reply, code_of=code_of
        )

    def refunds(self, payment: Payment) -> Talk[Sequence[RefundChange]]:
        listed = yield from self._refunds(payment_of(payment, self.seller))
        return reported_changes(listed, self.seller)

    def _refunds(self, intent: str) -> Talk[Sequence[ProviderRefund]]:
        def listing() -> Talk[Sequence[ProviderRefund]]:
            query = urlencode({"payment_intent": intent, "limit": "100"})
            return refunds_in((yield self._get(f"{_REFUNDS}?{query}")), self.seller)

        return existing_refunds(listing())

    def claims(self, payment: Payment) -> Talk[Sequence[ProviderClaim]]:
        intent = payment_of(payment, self.seller)
        query = urlencode({"payment_intent": intent, "limit": "100"})
        reply = yield self._get(f"{_DISPUTES}?{query}")
        return claims_in(reply, intent, self.seller)

    def read_notice(self, delivery: Delivery) -> Notice:
        return self.kept_notice(delivery.body)

    def kept_notice(self, body: bytes) -> Notice:
        return notice_in(body)

    def trace(self, payment: str) -> Talk[str | None]:
        """Return the elicitation of a payment. A dispute names only the payment."""
        reply = yield self._get(_path(_INTENTS, payment))
        return reference_in(reply, payment, self.seller)

    def examine(self, url: str | None) -> Talk[SetupReport]:
        return examined(self.seller, url, request=self._request)

    def _request(self, method: str, path: str) -> httpx.Request:
        return self._post(path, "") if method == "POST" else self._get(path)

    def _get(self, path: str) -> httpx.Request:
        return httpx.Request("GET", self.seller.api + path, headers=self._headers())

    def _post(self, path: str, body: str, *, key: str | None = None) -> httpx.Request:
        headers = self._headers() | {"Content-Type": "application/x-www-form-urlencoded"}
        if key is not None:
            headers["Idempotency-Key"] = key
        return httpx.Request("POST", self.seller.api + path, headers=headers, content=body.encode())

    def _headers(self) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.seller.key}", "Stripe-Version": STRIPE_VERSION}
        if self.seller.account is not None:
            headers["Stripe-Account"] = self.seller.account
        return headers


def _path(collection: str, id: str) -> str:
    return f"{collection}/{quote(id, safe='')}"


def _asked_session(elicitation: Elicitation, context: RedirectContext) -> StoredCheckout:
    terms, (back, cancelled) = terms_of(elicitation), ways_back(context)
    expires_at = _expiry(elicitation.expires_at, now=context.now)
    form = {
        "mode": "payment",
        "client_reference_id": elicitation.id,
        f"metadata[{REFERENCE_KEY}]": elicitation.id,
        f"payment_intent_data[metadata][{REFERENCE_KEY}]": elicitation.id,
        "line_items[0][quantity]": "1",
        "line_items[0][price_data][currency]": terms.currency.lower(),
        "line_items[0][price_data][unit_amount]": str(charge_amount(terms.price)),
        "line_items[0][price_data][product_data][name]": terms.what,
        "success_url": back,
        "cancel_url": cancelled,
        "expires_at": str(expires_at),
    }
    return StoredCheckout(request=urlencode(form), expires_at=expires_at)


def _expiry(wanted: datetime, *, now: datetime) -> int:
    earliest, latest = now + LIFE_AT_LEAST + CLOCKS_DIFFER, now + LIFE_AT_MOST - CLOCKS_DIFFER
    return math.ceil(min(max(wanted, earliest), latest).timestamp())
