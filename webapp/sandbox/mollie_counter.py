"""What a person meets of the sandbox's Mollie: its payments on the payment pages."""

from dataclasses import dataclass

from flows.payments.money import Money
from webapp.sandbox.deliveries import Deliveries
from webapp.sandbox.mollie_backend import MollieBackend
from webapp.sandbox.mollie_payments import MolliePaid
from webapp.sandbox.purchases import Purchase, PurchaseStanding, PurchaseWay

_STANDINGS = {
    "open": PurchaseStanding.OPEN,
    "pending": PurchaseStanding.AWAITED,
    "paid": PurchaseStanding.PAID,
    "failed": PurchaseStanding.FAILED,
    "canceled": PurchaseStanding.OVER,
    "expired": PurchaseStanding.OVER,
}
_PAID = PurchaseWay(button="paid", label="Paid", look="primary")
_FAILED = PurchaseWay(button="failed", label="Failed")
_OPEN = PurchaseWay(button="open", label="Open: a bank transfer, paid later on this page")
_PENDING = PurchaseWay(button="pending", label="Pending: a direct debit, arrives later")
_EXPIRED = PurchaseWay(button="expired", label="Expired")
_PART = PurchaseWay(button="part", label="Give a part back")
_CHARGE_BACK = PurchaseWay(button="chargeback", label="Let the bank take it back")
_WIN_BACK = PurchaseWay(button="won", label="Get it again from the bank")


@dataclass(frozen=True, slots=True, kw_only=True)
class MollieCounter:
    """Implements Counter."""

    backend: MollieBackend
    deliveries: Deliveries

    def purchase(self, id: str) -> Purchase | None:
        payment = self.backend.payment(id)
        if payment is None:
            return None
        return Purchase(
            id=payment.id,
            provider="Mollie",
            price=payment.price,
            what=(payment.description,),
            back_url=payment.redirect_url,
            cancel_url=payment.cancel_url or payment.redirect_url,
            until=payment.expires_at,
            standing=_STANDINGS[payment.status],
            ways=_ways(payment),
            notes=_notes(payment),
        )

    def press(self, id: str, button: str) -> str | None:
        payment = self.backend.payment(id)
        assert payment is not None
        back = payment.redirect_url
        match button:
            case "paid" | "failed" | "expired" if self.backend.end(payment, button):
                return back
            case "cancel" if self.backend.end(payment, "canceled"):
                return payment.cancel_url or back
            case "open" if self.backend.promise(payment):
                return back
            case "pending" if self.backend.debit(payment):
                return back
            case "arrive" | "fail" if self.backend.settle(payment, arrives=button == "arrive"):
                return back
            case "part":
                self.backend.refund_by_hand(payment, max(payment.price.minor_units // 2, 1))
            case "chargeback" | "won":
                self.backend.charge_back(payment, is_taken=button == "chargeback")
            case _:  # too late: the page tells what became of it
                pass
        return None


def _notes(payment: MolliePaid) -> tuple[str, ...]:
    notes: list[str] = []
    if payment.status == "open" and payment.method is not None:
        notes.append("It was left open, as a bank transfer is: the shop was told nothing.")
    if payment.refunds:
        given = Money.from_minor_units(payment.refunded, payment.price.currency)
        notes.append(f"{given.shown} of it was given back.")
    if payment.is_charged_back:
        notes.append("The bank has taken it back.")
    return tuple(notes)


def _ways(payment: MolliePaid) -> tuple[PurchaseWay, ...]:
    if payment.status == "paid":
        bank = _WIN_BACK if payment.is_charged_back else _CHARGE_BACK
        return (_PART, bank) if payment.refunded < payment.price.minor_units else (bank,)
    if payment.status != "open":
        return ()
    if payment.method is not None:
        return (_PAID, _EXPIRED)
    return (_PAID, _FAILED, _OPEN, _PENDING, _EXPIRED)
