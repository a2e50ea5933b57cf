"""A payment at the provider by its own id: which question it was for.

What could go wrong: a bank's claim names the payment only, and acting on it blindly would take a
receipt from somebody else. So the provider is asked what it was told when the payment was begun.
"""

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote

import httpx
import msgspec
from msgspec import Meta, Struct

from flows.checkout import STRIPE_VERSION
from flows.checkout_seller import Seller
from flows.checkout_session import REFERENCE_KEY, Id
from flows.errors import Failed
from flows.flow import Talk

_Metadata = Mapping[str, Annotated[str, Meta(max_length=500)]]


class _Intent(Struct, frozen=True, kw_only=True):
    id: Id
    metadata: _Metadata = {}


def reference_of(payment_intent: str, *, seller: Seller) -> Talk[str | None]:
    """The elicitation that the payment was begun for; None: for something else. Raises Failed."""
    headers = {"Authorization": f"Bearer {seller.key}", "Stripe-Version": STRIPE_VERSION}
    if seller.account is not None:
        headers["Stripe-Account"] = seller.account
    address = f"{seller.api}/v1/payment_intents/{quote(payment_intent, safe='')}"
    reply = yield httpx.Request("GET", address, headers=headers)
    if reply.status_code == 404:
        return None
    if reply.status_code != 200:
        raise Failed(f"{seller.label} could not tell of a payment (HTTP {reply.status_code}).")
    try:
        found = msgspec.json.decode(reply.content, type=_Intent)
    except (ValueError, RecursionError):
        raise _unreadable(seller) from None
    if found.id != payment_intent:
        raise _unreadable(seller)
    return found.metadata.get(REFERENCE_KEY)


def _unreadable(seller: Seller) -> Failed:
    return Failed(f"{seller.label} could not tell of a payment: its answer is another one.")
