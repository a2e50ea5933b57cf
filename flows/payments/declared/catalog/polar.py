"""Polar: a checkout with a price of its own. Experimental: nothing of it was run against Polar.

Polar is the merchant of record and sells products only: the one that is named in the settings, at
the price that was asked, with its taxes in it. A checkout says that it succeeded, but not by which
order, and without that no money can go back: so only the event `order.paid` settles.

Polar counts what goes back without the taxes in it, so an order is asked how much is left.

From Polar's own Python library: hosts, paths, fields, statuses, currencies, that an order repeats
the checkout's metadata. Unchecked: that `refunded_amount` is without taxes, as the refundable
amount is; where checkouts stand; how Polar counts currencies without decimals (none is offered).
"""

from dataclasses import replace
from datetime import timedelta
from typing import Final

from flows.payments.declared.declaration import ProviderDeclaration
from flows.payments.declared.mapping import Holding, Reading
from flows.payments.receipt import RefundStatus
from flows.payments.session import SessionStatus
from flows.webhooks.signatures import STANDARD_WEBHOOKS

_CHECKOUT = Reading(
    states={
        "status=open": SessionStatus.OPEN,
        "status=confirmed": SessionStatus.PENDING,
        "status=succeeded": SessionStatus.PENDING,  # which order it was, the webhook says
        "status=failed": SessionStatus.FAILED,
        "status=expired": SessionStatus.CLOSED,
    },
    amount="total_amount",
    reference="metadata.elicitation",
    live={},
    payment=None,
)

# Polar's secret is text that only looks like base64: it is the key as it is written.
POLAR: Final = replace(
    STANDARD_WEBHOOKS, name="polar", key="utf-8", key_prefix="", ed25519_label=None
)
polar: Final = ProviderDeclaration(
    name="polar",
    label="Polar",
    api="https://api.polar.sh",
    checkout_origins=("https://buy.polar.sh", "https://polar.sh"),
    test_api="https://sandbox-api.polar.sh",
    test_checkout_origins=("https://sandbox.polar.sh",),
    needs=("product",),
    currencies=("AUD", "BRL", "CAD", "CHF", "EUR", "GBP", "INR", "SEK", "USD"),
    life=timedelta(hours=1),
    create="POST /v1/checkouts/",
    create_body={
        "products": ["{product}"],
        "prices": {
            "{product}": [
                {
                    "amount_type": "fixed",
                    "price_amount": "{minor}",
                    "price_currency": "{currency_lower}",
                    "tax_behavior": "inclusive",
                }
            ]
        },
        "allow_discount_codes": False,
        "metadata": {"elicitation": "{reference}"},
        "success_url": "{return_url}",
        "return_url": "{cancel_url}",
    },
    idempotency=None,
    created=replace(_CHECKOUT, url="url", closes_at="expires_at"),
    fetch="GET /v1/checkouts/{session}",
    fetched=_CHECKOUT,
    close=None,
    refund="POST /v1/refunds/",
    refund_body={
        "order_id": "{payment}",
        "reason": "customer_request",
        "amount": "{minor}",
        "comment": "{reason}",
    },
    holding=Holding(
        call="GET /v1/orders/{payment}",
        id="id",
        currency="currency",
        given="refunded_amount+refunded_tax_amount",
        left="refundable_amount",
    ),
    refund_states={
        "status=pending": RefundStatus.PENDING,
        "status=succeeded": RefundStatus.SUCCEEDED,
    },
    trouble="error",
    scheme=POLAR,
    events=("order.paid",),
    told=Reading(
        session="data.checkout_id",
        states={
            "data.status=paid": SessionStatus.PAID,
            "data.status=partially_refunded": SessionStatus.PAID,
            "data.status=refunded": SessionStatus.PAID,
        },
        amount="data.total_amount",
        currency="data.currency",
        reference="data.metadata.elicitation",
        live={},
        payment="data.id",
        refunded="data.refunded_amount+data.refunded_tax_amount",
    ),
    news={"order.refunded": None},
)
