"""What a person meets of the sandbox's Stripe: its sessions on the payment pages."""

from dataclasses import dataclass
from datetime import UTC, datetime

from flows.payments.stripe.account import charged
from webapp.sandbox.deliveries import Deliveries
from webapp.sandbox.purchases import Purchase, PurchaseStanding, PurchaseWay
from webapp.sandbox.stripe_backend import StripeBackend
from webapp.sandbox.stripe_sessions import StripePayment, StripeSession

_WAYS = (
    PurchaseWay(button="card", label="Pay with a test card", look="primary"),
    PurchaseWay(button="declined", label="Card that is declined"),
    PurchaseWay(button="bank", label="Pay by bank, arrives later"),
)
_PART = PurchaseWay(button="part", label="Give a part back")
_CLAIM = PurchaseWay(button="claim", label="Let the bank claim it back")
_WIN = PurchaseWay(button="won", label="Win against the bank")


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeCounter:
    """Implements Counter."""

    backend: StripeBackend
    deliveries: Deliveries

    def purchase(self, id: str) -> Purchase | None:
        session = self.backend.session(id)
        if session is None:
            return None
        standing = self._standing(session)
        payment = self.backend.payment(session) if standing is PurchaseStanding.PAID else None
        return Purchase(
            id=session.id,
            provider="Stripe Checkout",
            price=session.price,
            what=session.what,
            back_url=session.back_url,
            cancel_url=session.cancel_url,
            until=datetime.fromtimestamp(session.expires_at, UTC),
            standing=standing,
            ways=_WAYS if standing is PurchaseStanding.OPEN else _late_events(payment),
            was_declined=session.was_declined,
            notes=_notes(payment),
        )

    def press(self, id: str, button: str) -> str | None:
        session = self.backend.session(id)
        assert session is not None
        payment = self.backend.payment(session)
        match button:
            case "card" if self.backend.pay(session):
                return session.back_url
            case "arrive" if self.backend.arrive(session):
                return session.back_url
            case "fail" if self.backend.bounce(session):
                return session.back_url
            case "cancel" if session.status == "open":
                return session.cancel_url
            case "declined":
                self.backend.decline(session)
            case "bank":
                self.backend.pay_later(session)
            case "part" | "claim" | "won" if payment is not None:
                act = {
                    "part": self.backend.give_part_back,
                    "claim": self.backend.claim,
                    "won": self.backend.win,
                }[button]
                act(payment)
            case _:  # too late: the page tells what became of it
                pass
        return None

    def _standing(self, session: StripeSession) -> PurchaseStanding:
        if session.status == "open":
            return PurchaseStanding.OPEN
        if session.status == "expired":
            return PurchaseStanding.OVER
        if session.payment_status == "paid":
            return PurchaseStanding.PAID
        return (
            PurchaseStanding.AWAITED
            if self.backend.is_awaited(session)
            else PurchaseStanding.FAILED
        )


def _late_events(payment: StripePayment | None) -> tuple[PurchaseWay, ...]:
    if payment is None:
        return ()
    part = (_PART,) if payment.refunded < payment.amount else ()
    if payment.dispute is None:
        return (*part, _CLAIM)
    return part if payment.dispute.status == "won" else (*part, _WIN)


def _notes(payment: StripePayment | None) -> tuple[str, ...]:
    notes: list[str] = []
    if payment is not None and payment.refunded:
        given = charged(payment.refunded, payment.currency.upper())
        notes.append(f"{given.shown} of it was given back.")
    if payment is not None and payment.dispute is not None:
        is_won = payment.dispute.status == "won"
        notes.append("The bank claimed it back, in vain." if is_won else "The bank claims it back.")
    return tuple(notes)
