"""A signer for each webhook scheme. It shares no code with the verifier, and so no faults."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from flows.payments.declared.catalog.adyen_items import Item
from flows.payments.declared.catalog.coinbase import COINBASE
from flows.payments.declared.catalog.lemon_squeezy import LEMON_SQUEEZY
from flows.payments.declared.catalog.paddle import PADDLE
from flows.payments.declared.catalog.polar import POLAR
from flows.payments.declared.catalog.square import SQUARE
from flows.payments.mollie.gateway import MOLLIE
from flows.payments.stripe.account import STRIPE
from flows.providers.github import GITHUB
from flows.webhooks.signatures import STANDARD_WEBHOOKS, Scheme
from tests.support import signing
from tests.support.signing import Headers

URL = "https://elicit.example/webhooks/square"
SIGNERS: dict[Scheme, Callable[[bytes, str, datetime], Headers]] = {
    STRIPE: lambda body, secret, now: signing.stripe(body, secret=secret, now=now),
    STANDARD_WEBHOOKS: lambda body, secret, now: signing.standard_webhooks(
        body, secret=secret, now=now, id="msg_1"
    ),
    GITHUB: lambda body, secret, _: signing.github(body, secret=secret),
    PADDLE: lambda body, secret, now: signing.paddle(body, secret=secret, now=now),
    POLAR: lambda body, secret, now: signing.polar(body, secret=secret, now=now, id="msg_1"),
    SQUARE: lambda body, secret, _: signing.square(body, secret=secret, url=URL),
    COINBASE: lambda body, secret, _: signing.coinbase(body, secret=secret),
    MOLLIE: lambda body, secret, _: signing.mollie(body, secrets=[secret]),
    LEMON_SQUEEZY: lambda body, secret, _: signing.lemon_squeezy(body, secret=secret),
}


def adyens(item: Item) -> dict[str, Any]:
    """Return the item in the format of Adyen's library, without a signature."""
    return {
        "pspReference": item.psp_reference,
        "originalReference": item.original_reference,
        "merchantAccountCode": item.merchant_account,
        "merchantReference": item.merchant_reference,
        "amount": {"value": item.amount, "currency": item.currency},
        "eventCode": item.event,
        "success": "true" if item.is_success else "false",
    }
