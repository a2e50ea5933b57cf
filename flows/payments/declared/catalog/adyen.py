"""Adyen: Pay by Link.

Experimental: never run against Adyen itself.

A webhook item has eight signed fields, and the payment link is not one of them. A session is
therefore identified by our own key, which is Adyen's merchant reference. A link reports that it was
paid but not by which payment, and a refund needs the payment. So only a webhook settles a question,
and the link is only checked for being open. Currencies that Adyen counts differently from ISO 4217
are left out. Adyen only confirms that it received a refund request: this server does not notice if
Adyen refuses the refund later.

An authorisation settles the question, so the merchant account must capture automatically and
immediately. With manual or delayed capture, a result may be sent before there is money. Failed
captures and cancellations are reported and count as lost money, but a capture that is never made is
not reported. Manual refunds are not noticed either, because their event does not contain the total
refunded: refund with `elicit payments refund`.

Source: Adyen's Python library (hosts, versions, paths, headers, signed fields). Unchecked: the
fields and statuses of links and refunds, the event names, and the origins of links
(`checkout_origins` is a setting for others).
"""

from datetime import timedelta
from typing import Final

from flows.payments.declared.catalog.adyen_items import ADYEN
from flows.payments.declared.declaration import ProviderDeclaration
from flows.payments.declared.mapping import Reading
from flows.payments.receipt import Dispute, RefundStatus
from flows.payments.session import SessionStatus

_CURRENCIES = (
    "AED AUD BGN BRL CAD CHF CNY CZK DKK EUR GBP HKD HUF ILS INR JPY KRW MXN MYR NOK NZD PLN RON"
    " SEK SGD THB TRY TWD USD ZAR"
)

adyen: Final = ProviderDeclaration(
    name="adyen",
    label="Adyen",
    api="https://{prefix}-checkout-live.adyenpayments.com/checkout/v72",
    checkout_origins=("https://eu.adyen.link",),
    test_api="https://checkout-test.adyen.com/v72",
    test_checkout_origins=("https://test.adyen.link",),
    headers=(("X-API-Key", "{secret}"),),
    needs=("merchant", "prefix"),
    account="merchant",
    currencies=tuple(_CURRENCIES.split()),
    life=timedelta(hours=2),
    create="POST /paymentLinks",
    create_body={
        "merchantAccount": "{merchant}",
        "reference": "{key}",
        "amount": {"value": "{minor}", "currency": "{currency}"},
        "description": "{what}",
        "returnUrl": "{return_url}",
        "expiresAt": "{expires_at}",
    },
    idempotency="idempotency-key",
    created=Reading(
        session="{key}", reference="reference", handle="id", url="url", amount=None, live={}
    ),
    fetch="GET /paymentLinks/{handle}",
    fetched=Reading(
        session="{key}",
        reference="reference",
        states={
            "status=active": SessionStatus.OPEN,
            "status=paymentPending": SessionStatus.PENDING,
            "status=completed": SessionStatus.PENDING,  # only the webhook says which payment
            "status=paid": SessionStatus.PENDING,
            "status=expired": SessionStatus.CLOSED,
        },
        amount="amount.value",
        currency="amount.currency",
        live={},
        payment=None,
        account="merchantAccount",
    ),
    close="PATCH /paymentLinks/{handle}",
    close_body={"status": "expired"},
    refund="POST /payments/{payment}/refunds",
    refund_body={
        "merchantAccount": "{merchant}",
        "amount": {"value": "{minor}", "currency": "{currency}"},
        "reference": "{digest}",
    },
    refund_id="pspReference",
    refund_states={"status=received": RefundStatus.PENDING},
    trouble="errorCode",
    scheme=ADYEN,
    event_id="id",
    events=("AUTHORISATION:true",),
    told=Reading(
        session="{key}",
        reference="reference",
        states={"type=AUTHORISATION:true": SessionStatus.PAID},
        live={},
        account="account",
    ),
    news={
        "NOTIFICATION_OF_CHARGEBACK:true": Dispute.OPEN,
        "CHARGEBACK:true": Dispute.LOST,
        "CHARGEBACK_REVERSED:true": Dispute.WON,
        "SECOND_CHARGEBACK:true": Dispute.LOST_AGAIN,
        "CAPTURE_FAILED:true": Dispute.GONE,
        "CANCELLATION:true": Dispute.GONE,
        "CANCEL_OR_REFUND:true": Dispute.GONE,
    },
)
