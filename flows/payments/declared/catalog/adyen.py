"""Adyen: Pay by Link. Experimental: nothing of it was run against Adyen itself.

Of a webhook's item eight fields are signed, and the link is none of them; so a session goes by our
own key, which is Adyen's merchant reference. A link says when it is paid, but not by which payment,
and without that no money can go back: so only a webhook settles, and the link is asked whether it
is still open. Currencies that Adyen counts otherwise than ISO 4217 are left out. A refund is only
received; one that Adyen refuses later is not heard of.

An authorisation settles: the merchant account has to capture by itself, at once. Where it is set to
capture by hand or with a delay, a result may go out before there is money; a capture that fails and
what is cancelled are heard, and count as money that is gone, but a capture that nobody makes is
not. A refund by hand is not heard either, since its event does not say how much went back in all:
give back with `elicit payments refund`.

From Adyen's own Python library: hosts, versions, paths, headers, what is signed. Unchecked: the
fields and statuses of a link and of a refund, the names of the events, where links stand
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
            "status=completed": SessionStatus.PENDING,  # which payment it was, the webhook says
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
