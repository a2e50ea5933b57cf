"""Lemon Squeezy: a checkout with a custom price.

Experimental: never run against Lemon Squeezy.

A checkout does not report that it was paid, and an order does not name its checkout. A session is
therefore identified by our own key, which the checkout passes on to the order's event, and only
that event settles a question. Lemon Squeezy charges in the store's currency, so the checkout's
preview is compared with the question before anyone is sent there. The product should have one
variant, because its page offers all variants. Lemon Squeezy counts all money in cents, so
currencies without two decimals are left out. A checkout cannot be closed: its page expires after an
hour.

Source: Lemon Squeezy's JavaScript library (host, paths, headers, fields, statuses, event names).
Unchecked: how it signs, that an event has the checkout's data at `meta.custom_data`, that a
preview's total includes taxes, and that a partial refund uses the same request.
"""

from datetime import timedelta
from typing import Final

from flows.payments.declared.declaration import ProviderDeclaration
from flows.payments.declared.mapping import Holding, Reading
from flows.payments.receipt import RefundStatus
from flows.payments.session import SessionStatus
from flows.webhooks.signatures import Scheme

_CURRENCIES = (
    "AED AUD BRL CAD CHF CNY CZK DKK EUR GBP HKD ILS INR MXN MYR NOK NZD PHP PLN RON SEK SGD THB"
    " TRY USD ZAR"
)
_LIVE = {"data.attributes.test_mode=false": True, "data.attributes.test_mode=true": False}

LEMON_SQUEEZY: Final = Scheme(name="lemon-squeezy", signature_header="x-signature")
lemon_squeezy: Final = ProviderDeclaration(
    name="lemon_squeezy",
    label="Lemon Squeezy",
    api="https://api.lemonsqueezy.com",
    checkout_origins=(),
    test_api="https://api.lemonsqueezy.com",
    headers=(
        ("Authorization", "Bearer {secret}"),
        ("Accept", "application/vnd.api+json"),
        ("Content-Type", "application/vnd.api+json"),
    ),
    needs=("store", "variant"),
    currencies=tuple(_CURRENCIES.split()),
    life=timedelta(hours=1),
    create="POST /v1/checkouts",
    create_body={
        "data": {
            "type": "checkouts",
            "attributes": {
                "custom_price": "{minor}",
                "product_options": {"name": "{what}", "redirect_url": "{return_url}"},
                "checkout_options": {"discount": False},
                "checkout_data": {"custom": {"elicitation": "{key}"}},
                "expires_at": "{expires_at}",
                "preview": True,
            },
            "relationships": {
                "store": {"data": {"type": "stores", "id": "{store}"}},
                "variant": {"data": {"type": "variants", "id": "{variant}"}},
            },
        }
    },
    idempotency=None,
    created=Reading(
        session="{key}",
        handle="data.id",
        states={"data.type=checkouts": SessionStatus.OPEN},
        amount="data.attributes.preview.total",
        currency="data.attributes.preview.currency",
        reference="data.attributes.checkout_data.custom.elicitation",
        live=_LIVE,
        payment=None,
        url="data.attributes.url",
        closes_at="data.attributes.expires_at",
    ),
    fetch=None,
    close=None,
    refund="POST /v1/orders/{payment}/refund",
    refund_body={
        "data": {"type": "orders", "id": "{payment}", "attributes": {"amount": "{minor}"}}
    },
    holding=Holding(
        call="GET /v1/orders/{payment}",
        id="data.id",
        currency="data.attributes.currency",
        given="data.attributes.refunded_amount",
    ),
    refund_id="data.id",
    refund_states={
        "data.attributes.status=refunded": RefundStatus.SUCCEEDED,
        "data.attributes.refunded=true": RefundStatus.SUCCEEDED,
    },
    trouble="errors.0.code",
    scheme=LEMON_SQUEEZY,
    event_type="meta.event_name",
    events=("order_created",),
    told=Reading(
        session="{key}",
        states={
            "data.attributes.status=paid": SessionStatus.PAID,
            "data.attributes.status=refunded": SessionStatus.PAID,
            "data.attributes.status=pending": SessionStatus.PENDING,
            "data.attributes.status=failed": SessionStatus.FAILED,
        },
        amount="data.attributes.total",
        currency="data.attributes.currency",
        reference="meta.custom_data.elicitation",
        live=_LIVE,
        payment="data.id",
        refunded="data.attributes.refunded_amount",
    ),
    news={"order_refunded": None},
)
