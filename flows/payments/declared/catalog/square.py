"""Square: payment links.

Experimental: never run against Square itself.

A payment event does not reliably name a question: it only says which order to fetch. This server
does not notice if Square accepts a refund and the refund fails days later.

Source: Square's Python library (paths, version, fields, statuses, that deleting a link cancels its
order). Unchecked: that an order with `net_amount_due_money` of zero is finally paid, that
`payment_note` becomes the payment's full `note`, that `return_amounts` includes manual refunds, and
the origin of links (`checkout_origins`).
"""

from datetime import timedelta
from typing import Final

from flows.payments.declared.declaration import ProviderDeclaration
from flows.payments.declared.mapping import Holding, Reading
from flows.payments.receipt import RefundStatus
from flows.payments.session import SessionStatus
from flows.webhooks.signatures import Scheme

SQUARE: Final = Scheme(
    name="square",
    signature_header="x-square-hmacsha256-signature",
    message="{url}{body}",
    encoding="base64",
)
square: Final = ProviderDeclaration(
    name="square",
    label="Square",
    api="https://connect.squareup.com",
    checkout_origins=("https://square.link", "https://checkout.square.site"),
    test_api="https://connect.squareupsandbox.com",
    test_checkout_origins=("https://sandbox.square.link",),
    headers=(("Authorization", "Bearer {secret}"), ("Square-Version", "2026-09-16")),
    needs=("location",),
    account="location",
    life=timedelta(hours=2),
    create="POST /v2/online-checkout/payment-links",
    create_body={
        "idempotency_key": "{digest}",
        "order": {
            "location_id": "{location}",
            "metadata": {"elicitation": "{reference}"},
            "line_items": [
                {
                    "name": "{what}",
                    "quantity": "1",
                    "base_price_money": {"amount": "{minor}", "currency": "{currency}"},
                }
            ],
        },
        "checkout_options": {"redirect_url": "{return_url}", "allow_tipping": False},
        "payment_note": "{reference}",
    },
    key_used=("IDEMPOTENCY_KEY_REUSED",),
    idempotency=None,  # the key is in the body
    created=Reading(
        session="payment_link.order_id",
        handle="payment_link.id",
        url="payment_link.url",
        amount=None,
    ),
    fetch="GET /v2/orders/{session}",
    fetched=Reading(
        session="order.id",
        states={
            "order.state=CANCELED": SessionStatus.CLOSED,
            "order.net_amount_due_money.amount=0": SessionStatus.PAID,
            "order.state=OPEN": SessionStatus.OPEN,
            "order.state=DRAFT": SessionStatus.OPEN,
        },
        amount="order.total_money.amount",
        currency="order.total_money.currency",
        reference="order.metadata.elicitation",
        live={},
        payment="order.tenders.0.payment_id",
        account="order.location_id",
        refunded="order.return_amounts.total_money.amount",
    ),
    close="DELETE /v2/online-checkout/payment-links/{handle}",
    refund="POST /v2/refunds",
    refund_body={
        "idempotency_key": "{digest}",
        "payment_id": "{payment}",
        "amount_money": {"amount": "{minor}", "currency": "{currency}"},
        "reason": "{reason}",
    },
    holding=Holding(
        call="GET /v2/payments/{payment}",
        id="payment.id",
        currency="payment.amount_money.currency",
        given="payment.refunded_money.amount",
    ),
    refund_id="refund.id",
    refund_states={
        "refund.status=PENDING": RefundStatus.PENDING,
        "refund.status=COMPLETED": RefundStatus.SUCCEEDED,
    },
    trouble="errors.0.code",
    scheme=SQUARE,
    event_id="event_id",
    events=("payment.created", "payment.updated"),
    settles=False,  # a payment does not describe its order, so the order is fetched
    told=Reading(
        session="data.object.payment.order_id", reference="data.object.payment.note", amount=None
    ),
)
