"""Paddle Billing: a transaction with a custom price.

Experimental: never run against Paddle.

Paddle is the merchant of record. The price includes taxes, so that the person is charged what was
asked. The payment page is the operator's own page with Paddle's script: its origin is a setting,
and it sends the person back to `custom_data.return_url`.

Paddle refunds the full amount or nothing, after its approval. The server notices a refused refund
or a manual refund only when it fetches the transaction again.

Source: Paddle's Python library (hosts, paths, headers, fields, statuses, currencies, tax
categories). Unchecked: that a ready transaction can be canceled, that a full refund after a partial
refund covers the rest, that totals of adjustments have no sign, and the name of the adjustments
field, which the library spells in two ways.
"""

from datetime import timedelta
from typing import Final

from flows.payments.declared.declaration import ProviderDeclaration
from flows.payments.declared.mapping import Reading
from flows.payments.receipt import RefundStatus
from flows.payments.session import SessionStatus
from flows.webhooks.signatures import Scheme

_STATES = {
    "draft": SessionStatus.OPEN,
    "ready": SessionStatus.OPEN,
    "billed": SessionStatus.PENDING,
    "paid": SessionStatus.PAID,
    "completed": SessionStatus.PAID,
    "canceled": SessionStatus.CLOSED,
    "past_due": SessionStatus.FAILED,
}


_CURRENCIES = (
    "ARS AUD BRL CAD CHF CLP CNY COP CZK DKK EUR GBP HKD HUF ILS INR JPY KRW MXN NOK NZD PEN PLN"
    " RUB SEK SGD THB TRY TWD UAH USD VND ZAR"
)


def _adjusted(kind: str) -> str:
    names = ("adjustments_totals", "adjustment_totals")  # one of them exists
    return "+".join(f"data.{name}.breakdown.{kind}" for name in names)


def _transaction() -> Reading:
    return Reading(
        session="data.id",
        states={f"data.status={status}": state for status, state in _STATES.items()},
        amount="data.details.totals.grand_total",
        currency="data.currency_code",
        reference="data.custom_data.elicitation",
        live={},
        payment="data.id",
        refunded=_adjusted("refund"),
        charged_back=_adjusted("chargeback"),
        url="data.checkout.url",
    )


PADDLE: Final = Scheme(
    name="paddle",
    signature_header="paddle-signature",
    signature_label="h1=",
    separator=";",
    time_label="ts=",
    message="{ts}:{body}",
    tolerance=timedelta(seconds=5),  # the value in Paddle's own library
)
paddle: Final = ProviderDeclaration(
    name="paddle",
    label="Paddle",
    api="https://api.paddle.com",
    checkout_origins=(),
    test_api="https://sandbox-api.paddle.com",
    headers=(("Authorization", "Bearer {secret}"), ("Paddle-Version", "1")),
    needs=("tax_category",),
    currencies=tuple(_CURRENCIES.split()),
    what_at_most=150,
    life=timedelta(hours=1),
    create="POST /transactions",
    create_body={
        "items": [
            {
                "quantity": 1,
                "price": {
                    "description": "{what}",
                    "name": "{what}",
                    "tax_mode": "internal",
                    "unit_price": {"amount": "{minor}", "currency_code": "{currency}"},
                    "quantity": {"minimum": 1, "maximum": 1},
                    "product": {"name": "{what}", "tax_category": "{tax_category}"},
                },
            }
        ],
        "currency_code": "{currency}",
        "collection_mode": "automatic",
        "custom_data": {"elicitation": "{reference}", "return_url": "{return_url}"},
    },
    text_minor=True,
    idempotency=None,
    created=_transaction(),
    fetch="GET /transactions/{session}?include=adjustments_totals",
    fetched=_transaction(),
    close="PATCH /transactions/{session}",
    close_body={"status": "canceled"},
    refund="POST /adjustments",
    refund_body={
        "action": "refund",
        "type": "full",
        "transaction_id": "{payment}",
        "reason": "asked for by the seller",
    },
    refund_id="data.id",
    refund_states={
        "data.status=pending_approval": RefundStatus.PENDING,
        "data.status=approved": RefundStatus.SUCCEEDED,
    },
    trouble="error.code",
    scheme=PADDLE,
    event_id="event_id",
    event_type="event_type",
    events=(
        "transaction.paid",
        "transaction.completed",
        "transaction.canceled",
        "transaction.updated",
    ),
    told=_transaction(),
)
