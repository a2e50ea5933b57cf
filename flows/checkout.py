"""The kind `payment`: a hosted payment page, and what is asked of its provider before and after.

What could go wrong: a person pays twice because a reply was lost, pays something else than was
asked, or is led to a page that is not the provider's. So the whole request is stored before it is
sent and is sent again byte for byte under one key, and the reply is held against what was asked.
"""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

import httpx
import msgspec
from msgspec.structs import replace

from flows.checkout_events import SETTLING_EVENTS, Event, judge_event, read_event
from flows.checkout_replies import (
    payment_page,
    read_refund,
    same_session,
    session_in,
    standing_refund,
)
from flows.checkout_seller import Seller, charge_amount, charged, sandbox_stripe, stripe
from flows.checkout_session import (
    REFERENCE_KEY,
    Kept,
    Malformed,
    Mismatch,
    Session,
    Terms,
    Verdict,
    judge,
    kept_of,
    read_session,
    sessions_of,
    terms_of,
)
from flows.elicitation import Attempt, Elicitation, Json
from flows.errors import Failed, NotConfigured
from flows.flow import Departure, Talk, Trip
from flows.receipt import Payment, Refund

__all__ = [
    "SETTLING_EVENTS",
    "CheckoutFlow",
    "Event",
    "Kept",
    "Malformed",
    "Mismatch",
    "Seller",
    "Session",
    "Terms",
    "Verdict",
    "charge_amount",
    "charged",
    "judge",
    "judge_event",
    "kept_of",
    "read_event",
    "read_session",
    "sandbox_stripe",
    "sessions_of",
    "stripe",
    "terms_of",
]

STRIPE_VERSION = "2026-10-28.endive"
LIFE_AT_LEAST = timedelta(minutes=30)
LIFE_AT_MOST = timedelta(hours=24)
CLOCKS_DIFFER = timedelta(minutes=2)  # between ours and the provider's, with the way there
REASON_AT_MOST = 500
_SESSIONS = "/v1/checkout/sessions"
_REFUNDS = "/v1/refunds"


class CheckoutFlow:
    """Stripe Checkout, for each seller by its name."""

    def __init__(self, sellers: Mapping[str, Seller]) -> None:
        self._sellers = dict(sellers)

    def seller(self, name: str) -> Seller:
        """Raises NotConfigured."""
        if name not in self._sellers:
            raise NotConfigured(f"the payment provider {name!r}")
        return self._sellers[name]

    def prepare(self, elicitation: Elicitation, trip: Trip) -> Json:
        """The request as it will be sent, or the page that is open already: nobody pays twice.

        Raises InvalidQuestion for a price it cannot charge.
        """
        before = kept_of(elicitation.attempt)
        if before is not None and before.url is not None:
            opened: Json = msgspec.to_builtins(before)
            if before.expires_at > (trip.now + CLOCKS_DIFFER).timestamp():
                return opened
        terms = terms_of(elicitation)
        back = f"{trip.return_url}?{urlencode({'state': trip.state})}"
        expires_at = _expiry(elicitation.expires_at, now=trip.now)
        form = (
            ("mode", "payment"),
            ("client_reference_id", elicitation.id),
            (f"metadata[{REFERENCE_KEY}]", elicitation.id),
            (f"payment_intent_data[metadata][{REFERENCE_KEY}]", elicitation.id),
            ("line_items[0][quantity]", "1"),
            ("line_items[0][price_data][currency]", terms.currency.lower()),
            ("line_items[0][price_data][unit_amount]", str(charge_amount(terms.price))),
            ("line_items[0][price_data][product_data][name]", terms.what),
            ("success_url", back),
            ("cancel_url", f"{back}&cancelled=1"),
            ("expires_at", str(expires_at)),
        )
        kept: Json = msgspec.to_builtins(Kept(request=urlencode(form), expires_at=expires_at))
        return kept

    def begin(self, elicitation: Elicitation, trip: Trip) -> Talk[Departure]:
        """Open the payment page. Raises Failed, with a sentence for the person."""
        assert elicitation.attempt is not None
        self._seller_of(elicitation)
        opened = kept_of(elicitation.attempt)
        if opened is not None and opened.url is not None:
            return Departure(url=opened.url)
        kept = yield from self.repeat(elicitation, elicitation.attempt)
        assert kept.url is not None
        return Departure(url=kept.url, kept=msgspec.to_builtins(kept))

    def repeat(self, elicitation: Elicitation, attempt: Attempt) -> Talk[Kept]:
        """Send an attempt's request as it was stored; the same one makes the same session.

        Raises Failed.
        """
        seller, kept = self._seller_of(elicitation), kept_of(attempt)
        if kept is None:
            raise Failed("No payment was begun here.", elicitation_id=elicitation.id)
        key = f"{elicitation.id}:{attempt.number}"
        reply = yield _post(seller, _SESSIONS, kept.request, key=key)
        session = session_in(reply, seller, doing="open its payment page")
        url = payment_page(elicitation, session, seller)
        return replace(kept, session=session.id, url=url)

    def fetch(self, elicitation: Elicitation, session: str) -> Talk[Session]:
        """What the provider says of the session now. Raises Failed."""
        seller = self._seller_of(elicitation)
        reply = yield _get(seller, f"{_SESSIONS}/{quote(session, safe='')}")
        return same_session(session, reply, seller)

    def expire(self, elicitation: Elicitation, session: str) -> Talk[bool]:
        """Close the payment page: True if nobody can pay there now, False if it is complete.

        Raises Failed when the provider says neither.
        """
        seller = self._seller_of(elicitation)
        reply = yield _post(seller, f"{_SESSIONS}/{quote(session, safe='')}/expire", "")
        if reply.status_code != 200:  # expired or complete already: the session tells
            reply = yield _get(seller, f"{_SESSIONS}/{quote(session, safe='')}")
        found = same_session(session, reply, seller)
        if found.status in ("expired", "complete"):
            return found.status == "expired"
        raise Failed(f"{seller.label} did not close its payment page.")

    def refund(self, payment: Payment, *, reason: str | None) -> Talk[Refund]:
        """Give all of it back; where that was done already, by whomever, the refund that is there.

        Raises Failed; the same call may then be made again, and gives nothing back twice.
        """
        seller = self.seller(payment.seller)
        if payment.payment_intent is None or payment.is_live != seller.is_live:
            raise Failed(f"{seller.label} holds no payment for this receipt.")
        form = {
            "payment_intent": payment.payment_intent,
            "metadata[receipt]": payment.id,
            f"metadata[{REFERENCE_KEY}]": payment.elicitation_id,
        }
        if reason:
            form["metadata[reason]"] = reason[:REASON_AT_MOST]
        reply = yield _post(seller, _REFUNDS, urlencode(form), key=f"refund:{payment.id}")
        if reply.status_code == 200:
            return read_refund(reply, payment, seller)
        # Refunded already, or the key was used with another reason: the list tells.
        query = urlencode({"payment_intent": payment.payment_intent, "limit": "100"})
        listed = yield _get(seller, f"{_REFUNDS}?{query}")
        return standing_refund(listed, payment, seller, refused=reply)

    def _seller_of(self, elicitation: Elicitation) -> Seller:
        terms = terms_of(elicitation)
        seller = self.seller(terms.seller)
        if terms.is_live != seller.is_live:
            raise Failed(
                f"{seller.label} is set up for another mode than when this was asked.",
                elicitation_id=elicitation.id,
            )
        return seller


def _expiry(wanted: datetime, *, now: datetime) -> int:
    earliest, latest = now + LIFE_AT_LEAST + CLOCKS_DIFFER, now + LIFE_AT_MOST - CLOCKS_DIFFER
    return math.ceil(min(max(wanted, earliest), latest).timestamp())


def _post(seller: Seller, path: str, body: str, *, key: str | None = None) -> httpx.Request:
    headers = _headers(seller) | {"Content-Type": "application/x-www-form-urlencoded"}
    if key is not None:
        headers["Idempotency-Key"] = key
    return httpx.Request("POST", seller.api + path, headers=headers, content=body.encode())


def _get(seller: Seller, path: str) -> httpx.Request:
    return httpx.Request("GET", seller.api + path, headers=_headers(seller))


def _headers(seller: Seller) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {seller.key}", "Stripe-Version": STRIPE_VERSION}
    if seller.account is not None:
        headers["Stripe-Account"] = seller.account
    return headers
