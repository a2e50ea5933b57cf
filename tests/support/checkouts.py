"""A checkout at Stripe: its elicitation, and the provider's replies."""

from datetime import timedelta
from typing import Any

from flows.elicitation.states import Elicitation
from flows.payments.money import Money
from flows.payments.receipt import Payment, ReceiptStatus
from flows.payments.stripe.gateway import StripeGateway, stripe
from tests.support import gateway_env
from tests.support.gateway_env import ID, NINE

KEY = "sk_test_notAKey"
SELLER = stripe(KEY, ["whsec_one"])
STRIPE = StripeGateway(SELLER)
PAGE = "https://checkout.stripe.com/c/pay/cs_test_1"
LIFE = timedelta(minutes=45)


def asked(price: Money = NINE, **terms: Any) -> Elicitation:
    return gateway_env.asked("stripe", price, **terms)


def prepared(elicitation: Elicitation | None = None, *, number: int = 1) -> Elicitation:
    """Return an elicitation whose attempt has a stored request that was not sent."""
    return gateway_env.prepared(STRIPE, elicitation or asked(), number=number)


def begun(elicitation: Elicitation | None = None, *, session: str = "cs_test_1") -> Elicitation:
    """Return an elicitation whose attempt created a session."""
    return gateway_env.begun(STRIPE, elicitation or asked(), session=session, url=PAGE)


def session(**changes: Any) -> dict[str, Any]:
    """Return a Checkout session as Stripe's API does."""
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


def payment(status: ReceiptStatus = ReceiptStatus.OPEN, **changes: Any) -> Payment:
    about = {"session": "cs_test_1", "payment_intent": "pi_1", "status": status}
    return gateway_env.payment("stripe", **about | changes)
