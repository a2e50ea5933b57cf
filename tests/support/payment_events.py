"""Signed payment events of Stripe."""

import json
from typing import Any

from flows.payments.gateway import Notice
from flows.payments.stripe.gateway import STRIPE, StripeGateway, stripe
from flows.webhooks.signatures import Delivery, verify
from tests.support import signing
from tests.support.checkouts import KEY
from tests.support.clock import NOON

SECRET = "whsec_of_this_test"
SELLER = stripe(KEY, [SECRET])
COMPLETED = "checkout.session.completed"
SUCCEEDED = "checkout.session.async_payment_succeeded"
FAILED = "checkout.session.async_payment_failed"
EXPIRED = "checkout.session.expired"


def delivery(body: bytes) -> Delivery:
    headers = signing.stripe(body, secret=SECRET, now=NOON)
    return verify(STRIPE, body=body, headers=headers, secrets=[SECRET], now=NOON)


def sent_event(kind: str, about: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return an event as the provider sends it."""
    return {
        "id": "evt_1",
        "object": "event",
        "type": kind,
        "created": 1772366400,
        "livemode": False,
        "data": {"object": about},
        **changes,
    }


def event(kind: str, about: dict[str, Any], **changes: Any) -> Notice:
    body = json.dumps(sent_event(kind, about, **changes)).encode()
    return StripeGateway(SELLER).read_notice(delivery(body).body)
