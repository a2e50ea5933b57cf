"""Coinbase Commerce: a charge.

Experimental: never run against Coinbase itself.

There is no test mode and no refund API. A charge that was paid in part, too much or too late stays
unresolved until the merchant resolves it at Coinbase. The resolution does not say how much was
paid, so it settles nothing.

Source: Coinbase's Python library (host, charge paths, headers, signature). Unchecked: the fields
and statuses of a charge, the event names, whether and where an open charge can be canceled, and the
origin of its pages. A request that is repeated after a lost reply creates a second charge. People
are only sent to the page of the second charge.
"""

from datetime import timedelta
from typing import Final

from flows.payments.declared.declaration import ProviderDeclaration
from flows.payments.declared.mapping import Reading
from flows.payments.session import SessionStatus
from flows.webhooks.signatures import Scheme

_STATES = {
    "NEW": SessionStatus.OPEN,
    "SIGNED": SessionStatus.OPEN,
    "PENDING": SessionStatus.PENDING,
    "COMPLETED": SessionStatus.PAID,
    "UNRESOLVED": SessionStatus.PENDING,
    "RESOLVED": SessionStatus.PENDING,
    "EXPIRED": SessionStatus.CLOSED,
    "CANCELED": SessionStatus.CLOSED,
}


def _charge(place: str, *, url: str | None = None) -> Reading:
    return Reading(
        session=f"{place}.id",
        states={f"{place}.timeline.-1.status={word}": state for word, state in _STATES.items()},
        amount=f"{place}.pricing.local.amount",
        unit="decimal",
        currency=f"{place}.pricing.local.currency",
        reference=f"{place}.metadata.elicitation",
        live={},
        payment=f"{place}.code",
        url=url,
        closes_at=f"{place}.expires_at",
    )


COINBASE: Final = Scheme(name="coinbase", signature_header="x-cc-webhook-signature")
coinbase: Final = ProviderDeclaration(
    name="coinbase",
    label="Coinbase Commerce",
    api="https://api.commerce.coinbase.com",
    checkout_origins=("https://commerce.coinbase.com",),
    headers=(("X-CC-Api-Key", "{secret}"), ("X-CC-Version", "2018-03-22")),
    what_at_most=100,
    life=timedelta(hours=1),
    create="POST /charges",
    create_body={
        "name": "{what}",
        "description": "{what}",
        "pricing_type": "fixed_price",
        "local_price": {"amount": "{decimal}", "currency": "{currency}"},
        "metadata": {"elicitation": "{reference}"},
        "redirect_url": "{return_url}",
        "cancel_url": "{cancel_url}",
    },
    idempotency=None,
    created=_charge("data", url="data.hosted_url"),
    fetch="GET /charges/{session}",
    fetched=_charge("data"),
    close="POST /charges/{session}/cancel",
    refund=None,
    manage="https://beta.commerce.coinbase.com/payments",
    trouble="error.type",
    scheme=COINBASE,
    event_id="event.id",
    event_type="event.type",
    events=("charge:pending", "charge:confirmed", "charge:failed", "charge:resolved"),
    told=_charge("event.data"),
)
