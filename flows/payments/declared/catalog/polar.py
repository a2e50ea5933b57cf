"""Polar: a checkout with a custom price.

Experimental: never run against Polar.

Polar is the merchant of record and only sells products: the product in the settings is sold at the
price that was asked, taxes included. A checkout reports that it succeeded but not which order it
created, and a refund needs the order. So only the event `order.paid` settles a question. Polar
counts refunds without taxes, so the server fetches the order to see how much can be refunded.

Source: Polar's Python library (hosts, paths, fields, statuses, currencies, the order's copy of the
checkout's metadata). Unchecked: that `refunded_amount` excludes taxes like the refundable amount,
the origin of checkouts, and how Polar counts currencies without decimals (none is offered).
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
        "status=succeeded": SessionStatus.PENDING,  # only the webhook says which order
        "status=failed": SessionStatus.FAILED,
        "status=expired": SessionStatus.CLOSED,
    },
    amount="total_amount",
    reference="metadata.elicitation",
    live={},
    payment=None,
)

# Polar's secret only looks like base64: its text is the key.
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
