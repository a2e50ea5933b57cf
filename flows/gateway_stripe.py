"""Stripe Checkout as a gateway: CheckoutFlow as it is, with its sessions in neutral words.

What could go wrong: a word that means less than it did. `judge` of this session must say what
`flows.checkout.judge` says of Stripe's own.
"""

from functools import lru_cache
from typing import assert_never

from flows import checkout
from flows.checkout import CheckoutFlow, Kept, Seller, charge_amount, charged
from flows.checkout_events import PAYMENT_FAILED, Event, kept_event, read_event
from flows.checkout_intent import reference_of
from flows.elicitation import Attempt, Elicitation, Json
from flows.errors import InvalidQuestion
from flows.flow import Departure, Talk, Trip
from flows.gateway import Notice, Session, State
from flows.money import Money
from flows.receipt import Payment, Refund
from flows.signatures import STRIPE, Delivery


class StripeGateway:
    """Implements Gateway and Signs."""

    scheme = STRIPE

    def __init__(self, seller: Seller) -> None:
        self.seller = seller
        self._flow = CheckoutFlow({seller.name: seller})

    @property
    def webhook_secrets(self) -> tuple[str, ...]:
        return self.seller.webhook_secrets

    def check(self, price: Money) -> None:
        charge_amount(price)

    def prepare(self, elicitation: Elicitation, trip: Trip) -> Json:
        return self._flow.prepare(elicitation, trip)

    def begin(self, elicitation: Elicitation, trip: Trip) -> Talk[Departure]:
        return (yield from self._flow.begin(elicitation, trip))

    def repeat(self, elicitation: Elicitation, attempt: Attempt) -> Talk[Kept]:
        return (yield from self._flow.repeat(elicitation, attempt))

    def fetch(self, elicitation: Elicitation, session: str) -> Talk[Session]:
        return neutral((yield from self._flow.fetch(elicitation, session)))

    def collect(self, elicitation: Elicitation, session: str) -> Talk[Session]:
        """Stripe takes it by itself."""
        return (yield from self.fetch(elicitation, session))

    def close(self, elicitation: Elicitation, session: str) -> Talk[bool]:
        return (yield from self._flow.expire(elicitation, session))

    def refund(self, payment: Payment, *, reason: str | None) -> Talk[Refund]:
        return (yield from self._flow.refund(payment, reason=reason))

    def read_notice(self, delivery: Delivery) -> Notice:
        return _notice(read_event(delivery))

    def kept_notice(self, body: bytes) -> Notice:
        return _notice(kept_event(body))

    def trace(self, payment: str) -> Talk[str | None]:
        return (yield from reference_of(payment, seller=self.seller))


def neutral(session: checkout.Session, *, has_failed: bool = False, is_now: bool = True) -> Session:
    """Stripe's session; whether a delayed payment has failed, only an event tells."""
    state = _state(session)
    return Session(
        id=session.id,
        state=State.FAILED if has_failed and state is State.PENDING else state,
        amount=_amount(session),
        currency=session.currency,
        reference=session.client_reference_id,
        is_live=session.livemode,
        payment=session.payment_intent,
        url=session.url,
        is_now=is_now,
    )


def _notice(event: Event) -> Notice:
    session = None
    if event.session is not None:
        has_failed = event.type == PAYMENT_FAILED
        session = neutral(event.session, has_failed=has_failed, is_now=False)
    return Notice(
        id=event.id,
        type=event.type,
        is_live=event.livemode,
        account=event.account,
        session=session,
        news=event.news,
        subject=event.subject,
        reference=event.reference,
        payment=event.payment_intent,
        transition=event.transition,
    )


def _state(session: checkout.Session) -> State:
    if session.payment_status == "paid":
        return State.PAID
    match session.status:
        case "open" | None:
            return State.OPEN
        case "expired":
            return State.CLOSED
        case "complete":
            is_settled = session.payment_status == "no_payment_required"
            return State.PAID if is_settled else State.PENDING
        case _:
            assert_never(session.status)


def _amount(session: checkout.Session) -> int | None:
    if session.amount_total is None or session.currency is None:
        return None
    return _minor_units(session.amount_total, session.currency)


@lru_cache(1024)
def _minor_units(amount: int, currency: str) -> int | None:
    try:
        return charged(amount, currency).minor_units
    except InvalidQuestion:
        return None
