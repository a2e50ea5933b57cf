"""What a person meets of the sandbox's PayPal: its orders on the payment pages."""

from dataclasses import dataclass
from urllib.parse import urlencode

from flows.payments.money import Money
from webapp.sandbox.deliveries import Deliveries
from webapp.sandbox.paypal_backend import PayPalBackend
from webapp.sandbox.paypal_orders import Order
from webapp.sandbox.purchases import Purchase, PurchaseStanding, PurchaseWay

_PAYER = "SANDBOXPAYER1"
_WAYS = (
    PurchaseWay(button="balance", label="Pay from a test balance", look="primary"),
    PurchaseWay(button="declined", label="Card that is declined"),
    PurchaseWay(button="bank", label="Pay by bank, arrives later"),
)
_SELLER_WAYS = (
    PurchaseWay(button="part", label="Give a part back"),
    PurchaseWay(button="reverse", label="Lose a dispute about it"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayPalCounter:
    """Implements Counter."""

    backend: PayPalBackend
    deliveries: Deliveries

    def purchase(self, id: str) -> Purchase | None:
        order = self.backend.order(id)
        if order is None:
            return None
        return Purchase(
            id=order.id,
            provider="PayPal",
            price=order.price,
            what=(order.description,) if order.description else (),
            back_url=_with(order.return_url, token=order.id, PayerID=_PAYER),
            cancel_url=_with(order.cancel_url, token=order.id),
            until=order.expires_at,
            standing=_standing(order),
            ways=_ways(order),
            was_declined=order.was_declined,
            notes=_notes(order),
        )

    def press(self, id: str, button: str) -> str | None:
        order, purchase = self.backend.order(id), self.purchase(id)
        assert order is not None
        assert purchase is not None
        match button:
            case "balance" | "bank" | "declined" if self.backend.approve(order, funding=button):
                return purchase.back_url
            case "cancel" if purchase.standing is PurchaseStanding.OPEN:
                return purchase.cancel_url
            case "arrive" | "fail" if self.backend.settle(order, arrives=button == "arrive"):
                return purchase.back_url
            case "part":
                self.backend.refund_by_hand(order, max(order.left // 2, 1))
            case "reverse":
                self.backend.reverse(order)
            case _:  # too late: the page tells what became of it
                pass
        return None


def _standing(order: Order) -> PurchaseStanding:
    if order.status == "PAYER_ACTION_REQUIRED":
        return PurchaseStanding.OPEN
    if order.capture is None:
        return PurchaseStanding.AGREED
    if order.capture.status == "PENDING":
        return PurchaseStanding.AWAITED
    return PurchaseStanding.FAILED if order.capture.status == "DECLINED" else PurchaseStanding.PAID


def _ways(order: Order) -> tuple[PurchaseWay, ...]:
    if order.status == "PAYER_ACTION_REQUIRED":
        return _WAYS
    is_left = order.capture is not None and order.capture.status == "COMPLETED" and order.left > 0
    return _SELLER_WAYS if is_left else ()


def _notes(order: Order) -> tuple[str, ...]:
    notes: list[str] = []
    if order.refunds:
        given = Money.from_minor_units(order.refunded, order.price.currency)
        notes.append(f"{given.shown} of it was given back.")
    if order.capture is not None and order.capture.status == "REVERSED":
        notes.append("A dispute was lost, and the money is gone again.")
    return tuple(notes)


def _with(url: str, **parameters: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(parameters)}"
