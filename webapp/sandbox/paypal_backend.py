"""The sandbox's PayPal: what becomes of its orders, and the events that their changes cause.

Everything here happens between two awaits, so a change is never seen by halves. What could go
wrong: an order captured twice, or two orders for one invoice. As at PayPal the second of either is
refused. An order that nobody paid in three hours is not found any more, as if it had never been.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.payments.money import Money
from flows.payments.paypal.gateway import CURRENCIES, ORDER_LIFE
from flows.payments.responses import minor_units
from flows.payments.session import Malformed
from webapp.sandbox.answers import SandboxRefused, trace
from webapp.sandbox.deliveries import SandboxEvent
from webapp.sandbox.paypal_orders import Capture, Order, PayPalRefund, amount_of, time_of

_ID_ALPHABET = "0123456789ABCDEFGHJKLMNPQRSTUVWXYZ"
_COMPLETED_KEPT = timedelta(days=365)
_Words = Annotated[str, Meta(min_length=1, max_length=127)]
_Address = Annotated[str, Meta(pattern=r"^https?://[!-~]{1,2000}\Z")]


class PayPalError(SandboxRefused):
    """The facts are those of PayPal's error object."""

    def __init__(self, issue: str, *, status: int = 422, name: str | None = None) -> None:
        super().__init__(issue, status=status)
        self.name = name or HTTPStatus(status).phrase.upper().replace(" ", "_")

    def as_json(self) -> Json:
        return {
            "name": self.name,
            "message": "The sandbox's PayPal did not do this.",
            "debug_id": trace(),
            "details": [{"issue": self.message, "description": self.message}],
        }


class PayPalTokenError(PayPalError):
    """Who is not let in hears it in the words of OAuth."""

    def as_json(self) -> Json:
        return {"error": self.message, "error_description": "The sandbox's PayPal says so."}


class PayPalAmount(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    currency_code: Annotated[str, Meta(pattern=r"^[A-Z]{3}\Z")]
    value: str

    @property
    def price(self) -> Money:
        """Raises PayPalError."""
        if self.currency_code not in CURRENCIES:
            raise PayPalError("CURRENCY_NOT_SUPPORTED")
        try:
            price = Money.from_minor_units(
                minor_units(self.value, self.currency_code), self.currency_code
            )
            amount_of(price)
        except (Malformed, InvalidQuestion):
            raise PayPalError("INVALID_PARAMETER_VALUE", status=400) from None
        return price


class _Unit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    amount: PayPalAmount
    reference_id: _Words = "default"
    custom_id: _Words | None = None
    invoice_id: _Words | None = None
    description: _Words | None = None


class _Context(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    return_url: _Address
    cancel_url: _Address
    user_action: Literal["CONTINUE", "PAY_NOW"] = "CONTINUE"
    shipping_preference: Literal["NO_SHIPPING"]


class _Wallet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    experience_context: _Context


class _Source(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    paypal: _Wallet


class OrderWish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    intent: Literal["CAPTURE"]
    purchase_units: Annotated[tuple[_Unit, ...], Meta(min_length=1, max_length=1)]
    payment_source: _Source


class PayPalRefundWish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    amount: PayPalAmount | None = None
    custom_id: _Words | None = None


@dataclass(slots=True, kw_only=True)
class PayPalBackend:
    """All that it knows; it forgets when its process ends."""

    url: str
    webhook_url: str
    clock: Callable[[], datetime]
    tell: Callable[[SandboxEvent], None]
    _orders: dict[str, Order] = field(default_factory=dict[str, Order])

    def order(self, id: str) -> Order | None:
        order = self._orders.get(id)
        return order if order is not None and self.clock() < order.expires_at else None

    # What PayPal's API does.

    def create(self, wish: OrderWish) -> Order:
        now, id = self.clock(), _new_id()
        [unit] = wish.purchase_units
        context = wish.payment_source.paypal.experience_context
        if len((unit.description or "").encode()) > 127:
            raise PayPalError("INVALID_STRING_LENGTH", status=400)
        self._require_unpaid(unit.invoice_id)
        return self._keep(
            Order(
                id=id,
                page=f"{self.url}/pay/{id}",
                api=f"{self.url}/paypal/v2/checkout/orders/{id}",
                price=unit.amount.price,
                description=unit.description,
                reference_id=unit.reference_id,
                custom_id=unit.custom_id,
                invoice_id=unit.invoice_id,
                return_url=context.return_url,
                cancel_url=context.cancel_url,
                made_at=now,
                expires_at=now + ORDER_LIFE,
            )
        )

    def known(self, id: str) -> Order:
        """Raises PayPalError."""
        order = self.order(id)
        if order is None:
            raise PayPalError("INVALID_RESOURCE_ID", status=404, name="RESOURCE_NOT_FOUND")
        return order

    def captured(self, capture: str) -> Order:
        """The order that a capture is of. Raises PayPalError."""
        for order in self._orders.values():
            if order.capture is not None and order.capture.id == capture:
                return order
        raise PayPalError("INVALID_RESOURCE_ID", status=404, name="RESOURCE_NOT_FOUND")

    def capture(self, id: str) -> Order:
        """Take the money of an approved order. Raises PayPalError."""
        order = self.known(id)
        if order.capture is not None:
            raise PayPalError("ORDER_ALREADY_CAPTURED")
        if order.status != "APPROVED":
            raise PayPalError("ORDER_NOT_APPROVED")
        self._require_unpaid(order.invoice_id)
        if order.funding == "declined":
            self._keep(replace(order, status="PAYER_ACTION_REQUIRED", was_declined=True))
            raise PayPalError("INSTRUMENT_DECLINED")
        now = self.clock()
        status: Literal["PENDING", "COMPLETED"]
        status = "PENDING" if order.funding == "bank" else "COMPLETED"
        order = self._keep(
            replace(
                order,
                status="COMPLETED",
                expires_at=now + _COMPLETED_KEPT,
                capture=Capture(id=_new_id(), made_at=now, status=status),
            )
        )
        self._tell(f"PAYMENT.CAPTURE.{status}", "capture", order.capture_as_json())
        return order

    def refund(self, capture: str, wish: PayPalRefundWish) -> PayPalRefund:
        """Give back all that is left, or a part of it. Raises PayPalError."""
        order = self.captured(capture)
        assert order.capture is not None
        if order.capture.status == "PENDING":
            raise PayPalError("PENDING_CAPTURE")
        if order.capture.status != "COMPLETED":
            raise PayPalError("REFUND_NOT_ALLOWED")
        if order.left == 0:
            raise PayPalError("CAPTURE_FULLY_REFUNDED")
        price = wish.amount.price if wish.amount else order.price
        if price.currency != order.price.currency:
            raise PayPalError("REFUND_CAPTURE_CURRENCY_MISMATCH")
        units = price.minor_units if wish.amount else order.left
        if units > order.left:
            raise PayPalError("REFUND_AMOUNT_EXCEEDED")
        return self._refund_and_tell(order, units, custom_id=wish.custom_id)

    # What a person or the seller does on pages. What leads away says whether it was possible.

    def approve(self, order: Order, *, funding: Literal["balance", "bank", "declined"]) -> bool:
        """Agree to pay: the money is not taken yet."""
        if order.status != "PAYER_ACTION_REQUIRED":
            return False
        order = self._keep(replace(order, status="APPROVED", funding=funding, was_declined=False))
        self._tell("CHECKOUT.ORDER.APPROVED", "checkout-order", order.as_json())
        return True

    def settle(self, order: Order, *, arrives: bool) -> bool:
        """What was promised arrives, or does not."""
        if order.capture is None or order.capture.status != "PENDING":
            return False
        status: Literal["COMPLETED", "DECLINED"] = "COMPLETED" if arrives else "DECLINED"
        order = self._keep(replace(order, capture=replace(order.capture, status=status)))
        word = "COMPLETED" if arrives else "DENIED"
        self._tell(f"PAYMENT.CAPTURE.{word}", "capture", order.capture_as_json())
        return True

    def refund_by_hand(self, order: Order, units: int) -> None:
        """The seller gives back so much on its own pages, not by the API; if it still can."""
        is_paid = order.capture is not None and order.capture.status == "COMPLETED"
        if is_paid and 0 < units <= order.left:
            self._refund_and_tell(order, units, custom_id=None)

    def reverse(self, order: Order) -> None:
        """A dispute is lost: PayPal takes the money back."""
        if order.capture is None or order.capture.status != "COMPLETED":
            return
        order = self._keep(replace(order, capture=replace(order.capture, status="REVERSED")))
        self._tell_of_refund("REVERSED", self._refund(order, order.left, custom_id=None), order)

    def _refund_and_tell(self, order: Order, units: int, *, custom_id: str | None) -> PayPalRefund:
        refund = self._refund(order, units, custom_id=custom_id)
        order = self._keep(replace(order, refunds=(*order.refunds, refund)))
        self._tell_of_refund("REFUNDED", refund, order)
        return refund

    def _refund(self, order: Order, units: int, *, custom_id: str | None) -> PayPalRefund:
        price = Money.from_minor_units(units, order.price.currency)
        return PayPalRefund(id=_new_id(), price=price, custom_id=custom_id, made_at=self.clock())

    def _tell_of_refund(self, word: str, refund: PayPalRefund, order: Order) -> None:
        """In PayPal's own sample it names its capture by a link only, and its order not at all."""
        assert order.capture is not None
        href = f"{self.url}/paypal/v2/payments/captures/{order.capture.id}"
        about = {**refund.as_json(), "links": [{"href": href, "rel": "up", "method": "GET"}]}
        self._tell(f"PAYMENT.CAPTURE.{word}", "refund", about)

    def _require_unpaid(self, invoice: str | None) -> None:
        paid = [one.invoice_id for one in self._orders.values() if one.capture is not None]
        if invoice is not None and invoice in paid:
            raise PayPalError("DUPLICATE_INVOICE_ID")

    def _keep(self, order: Order) -> Order:
        self._orders[order.id] = order
        return order

    def _tell(self, event_type: str, resource_type: str, resource: Json) -> None:
        id = f"WH-{_new_id()}-{_new_id()}"
        body: dict[str, Json] = {
            "id": id,
            "event_version": "1.0",
            "create_time": time_of(self.clock()),
            "resource_type": resource_type,
            "resource_version": "2.0",
            "event_type": event_type,
            "resource": resource,
            "links": [],
        }
        url = self.webhook_url
        self.tell(SandboxEvent(id=id, type=event_type, url=url, body=msgspec.json.encode(body)))


def _new_id() -> str:
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(17))
