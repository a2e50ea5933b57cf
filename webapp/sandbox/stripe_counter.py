"""What a person meets of the sandbox's Stripe: its sessions on the payment pages."""

from dataclasses import dataclass
from datetime import UTC, datetime

from webapp.sandbox.deliveries import Deliveries
from webapp.sandbox.purchases import Purchase, Standing, Way
from webapp.sandbox.stripe_sessions import Session
from webapp.sandbox.stripe_till import Till

_WAYS = (
    Way(button="card", label="Pay with a test card", look="primary"),
    Way(button="declined", label="Card that is declined"),
    Way(button="bank", label="Pay by bank, arrives later"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeCounter:
    """Implements Counter."""

    till: Till
    deliveries: Deliveries

    def purchase(self, id: str) -> Purchase | None:
        session = self.till.session(id)
        if session is None:
            return None
        standing = self._standing(session)
        return Purchase(
            id=session.id,
            provider="Stripe Checkout",
            price=session.price,
            what=session.what,
            back_url=session.back_url,
            cancel_url=session.cancel_url,
            until=datetime.fromtimestamp(session.expires_at, UTC),
            standing=standing,
            ways=_WAYS if standing is Standing.OPEN else (),
            was_declined=session.was_declined,
        )

    def press(self, id: str, button: str) -> str | None:
        session = self.till.session(id)
        assert session is not None
        match button:
            case "card" if self.till.pay(session):
                return session.back_url
            case "arrive" if self.till.arrive(session):
                return session.back_url
            case "fail" if self.till.bounce(session):
                return session.back_url
            case "cancel" if session.status == "open":
                return session.cancel_url
            case "declined":
                self.till.decline(session)
            case "bank":
                self.till.pay_later(session)
            case _:  # too late: the page tells what became of it
                pass
        return None

    def _standing(self, session: Session) -> Standing:
        if session.status == "open":
            return Standing.OPEN
        if session.status == "expired":
            return Standing.OVER
        if session.payment_status == "paid":
            return Standing.PAID
        return Standing.AWAITED if self.till.is_awaited(session) else Standing.FAILED
