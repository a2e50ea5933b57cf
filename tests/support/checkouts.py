"""A checkout at a provider: what is asked, and what it answers."""

from datetime import timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from flows.elicitation.flow import RedirectContext
from flows.elicitation.states import Asked, Attempt, Elicitation, Status
from flows.payments.money import Money
from flows.payments.receipt import Payment
from flows.payments.session import (
    CheckoutTerms,
    StoredCheckout,
)
from flows.payments.stripe.account import (
    stripe,
)
from flows.payments.stripe.gateway import StripeGateway
from tests.support.clock import NOON

KEY = "sk_test_notAKey"
SELLER = stripe(KEY, ["whsec_one"])
STRIPE = StripeGateway(SELLER)
ID = "ownertag-e_1"
PAGE = "https://checkout.stripe.com/c/pay/cs_test_1"
TRIP = RedirectContext(
    number=1, return_url="https://elicit.example/callback/stripe", state="s-1", now=NOON
)
LIFE = timedelta(minutes=45)


def asked(price: Money | None = None, **terms: Any) -> Elicitation:
    price = price or Money("9.00", "EUR")
    said = CheckoutTerms(
        **{
            "seller": "stripe",
            "amount": price.minor_units,
            "currency": price.currency,
            "what": "Premium report & more",
            "is_live": False,
            **terms,
        }
    )
    return Elicitation(
        id=ID,
        owner="ownertag",
        kind="payment",
        asked=Asked(
            server="shop",
            tool="buy",
            client=None,
            message="Pay",
            digest="d",
            terms=msgspec.to_builtins(said),
        ),
        join="j",
        created_at=NOON,
        expires_at=NOON + LIFE,
        status=Status.OPENED,
    )


def prepared(elicitation: Elicitation | None = None, *, number: int = 1) -> Elicitation:
    """With an attempt whose request is stored and was not sent."""
    elicitation = elicitation or asked()
    kept = STRIPE.prepare(elicitation, TRIP)
    attempt = Attempt(number=number, browser="b", started_at=NOON, kept=kept)
    return replace(elicitation, attempt=attempt)


def begun(elicitation: Elicitation | None = None, *, session: str = "cs_test_1") -> Elicitation:
    """With an attempt that made a session."""
    before = prepared(elicitation)
    assert before.attempt is not None
    kept = replace(msgspec.convert(before.attempt.kept, StoredCheckout), session=session, url=PAGE)
    return replace(before, attempt=replace(before.attempt, kept=msgspec.to_builtins(kept)))


def session(**changes: Any) -> dict[str, Any]:
    """A session as the provider tells it."""
    return {
        "id": "cs_test_1",
        "object": "checkout.session",
        "status": "open",
        "payment_status": "unpaid",
        "amount_total": 900,
        "currency": "eur",
        "livemode": False,
        "client_reference_id": ID,
        "metadata": {"elicitation": ID},
        "payment_intent": None,
        "url": PAGE,
        "expires_at": 1,
        **changes,
    }


def payment(**changes: Any) -> Payment:
    fields: dict[str, Any] = {
        "id": "ownertag-r_1",
        "owner": "ownertag",
        "elicitation_id": ID,
        "join": "j",
        "server": "shop",
        "tool": "buy",
        "seller": "stripe",
        "session": "cs_test_1",
        "payment_intent": "pi_1",
        "amount": 900,
        "currency": "EUR",
        "what": "Premium report",
        "is_live": False,
        "paid_at": NOON,
    }
    return Payment(**{**fields, **changes})
