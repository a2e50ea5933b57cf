"""An order at the sandbox's PayPal, its capture, and PayPal's format of both and of webhooks."""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import urlencode

import msgspec
from msgspec import Meta, Struct

from flows.elicitation.states import Json
from flows.payments.money import Money
from flows.payments.paypal.gateway import WITHOUT_DECIMALS
from flows.payments.receipt import Dispute
from flows.payments.responses import written
from flows.webhooks.certificates import sign_certified
from webapp.sandbox.checkout.deliveries import SandboxEvent
from webapp.sandbox.checkout.sales import (
    GO_BACK,
    TRANSFER,
    Act,
    Button,
    Sale,
    SaleRefund,
    Sales,
    SaleState,
    dispute_button,
    has_remaining_units,
    refund_half,
)
from webapp.sandbox.paypal.certificates import CERTIFICATE_ID, CertificateAuthority

Words = Annotated[str, Meta(min_length=1, max_length=127)]
_MERCHANT = "SANDBOXMERCHANT"
_ID_ALPHABET = "0123456789ABCDEFGHJKLMNPQRSTUVWXYZ"
_STATUS = {
    SaleState.OPEN: "PAYER_ACTION_REQUIRED",
    SaleState.AGREED: "APPROVED",
}
_CAPTURE_STATUS = {
    SaleState.AWAITED: "PENDING",
    SaleState.PAID: "COMPLETED",
    SaleState.FAILED: "DECLINED",
}
_CAPTURED = {
    SaleState.AWAITED: "PAYMENT.CAPTURE.PENDING",
    SaleState.PAID: "PAYMENT.CAPTURE.COMPLETED",
    SaleState.FAILED: "PAYMENT.CAPTURE.DENIED",
}


class PayPalAmount(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    currency_code: Annotated[str, Meta(pattern=r"^[A-Z]{3}\Z")]
    value: str


class PayPalUnit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    amount: PayPalAmount
    reference_id: Words = "default"
    custom_id: Words | None = None
    invoice_id: Words | None = None
    description: Words | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Sale):
    """An order with one unit. `funding` is how the person agreed to pay."""

    page: str
    api: str
    asked: PayPalUnit
    funding: str = ""
    capture: str

    @property
    def is_captured(self) -> bool:
        return self.taken_at is not None

    def as_json(self) -> dict[str, Json]:
        unit: dict[str, Json] = {
            **msgspec.to_builtins(self.asked),
            "amount": amount_of(self.price),
            "payee": {"merchant_id": _MERCHANT},
        }
        if self.is_captured:
            refunds = [refund_as_json(one) for one in self.refunds]
            unit["payments"] = {"captures": [self.capture_as_json()], "refunds": refunds}
        links = [_link(self.api, "self")]
        if self.is_open:
            links.append(_link(self.page, "payer-action"))
        if self.state is SaleState.AGREED:
            links.append(_link(f"{self.api}/capture", "capture", method="POST"))
        return {
            "id": self.id,
            "intent": "CAPTURE",
            "status": _STATUS.get(self.state, "COMPLETED"),
            "create_time": _time(self.made_at),
            "payment_source": {"paypal": {}},
            "purchase_units": [unit],
            "links": links,
        }

    def capture_as_json(self) -> dict[str, Json]:
        assert self.taken_at is not None
        status = _CAPTURE_STATUS[self.state]
        if self.refunds:
            status = "PARTIALLY_REFUNDED" if self.remaining_units else "REFUNDED"
        if self.dispute is not None:
            status = "REVERSED"
        return {
            "id": self.capture,
            "status": status,
            "final_capture": True,
            "supplementary_data": {"related_ids": {"order_id": self.id}},
            "create_time": _time(self.taken_at),
            "amount": amount_of(self.price),
            "custom_id": self.asked.custom_id,
            "invoice_id": self.asked.invoice_id,
        }


def _approves(funding: str) -> Act:
    """Return the effect of approving the order, without capturing the money."""

    def act(sales: Sales[Order], order: Order) -> None:
        sales.become(replace(order, funding=funding, was_declined=False), SaleState.AGREED)

    return act


def _can_be_refunded(order: Order) -> bool:
    return has_remaining_units(order) and order.dispute is None


_BUTTONS = (
    Button(
        name="balance", label="Pay from a test balance", look="primary", act=_approves("balance")
    ),
    Button(name="declined", label="Card that is declined", act=_approves("declined")),
    Button(name="bank", label="Pay by bank, arrives later", act=_approves("bank")),
    GO_BACK,
    *TRANSFER,
    refund_half(lambda order: order.remaining_units, when=_can_be_refunded),
    dispute_button(
        "reverse", label="Lose a dispute about it", dispute=Dispute.LOST, when=_can_be_refunded
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayPalVendor:
    """PayPal's behaviour. Implements Vendor."""

    url: str
    webhook_url: str
    webhook_id: str
    clock: Callable[[], datetime]
    authority: CertificateAuthority
    label: str = "PayPal"
    buttons: tuple[Button, ...] = _BUTTONS

    def refund_id(self) -> str:
        return new_id()

    def notes(self, sale: Order) -> Iterable[str]:
        if sale.dispute is not None:
            yield "The seller lost a dispute, and the bank took the money back."

    def event(self, before: Order, after: Order) -> SandboxEvent | None:
        if before.state is not after.state:
            if after.state is SaleState.AGREED:
                return self._event("CHECKOUT.ORDER.APPROVED", "checkout-order", after.as_json())
            if after.state in _CAPTURED:
                return self._event(_CAPTURED[after.state], "capture", after.capture_as_json())
        if before.refunds != after.refunds:
            return self._event_of_refund("REFUNDED", after.refunds[-1], after)
        if before.dispute is not after.dispute:
            # PayPal reports a lost dispute as a refund of all that was left.
            price = Money.from_minor_units(after.remaining_units, after.price.currency)
            refund = SaleRefund(id=new_id(), price=price, made_at=self.clock())
            return self._event_of_refund("REVERSED", refund, after)
        return None

    def headers(self, event: SandboxEvent) -> Sequence[tuple[str, str]]:
        signature = sign_certified(
            self.authority.scheme,
            body=event.body,
            id=event.id,
            webhook_id=self.webhook_id,
            certificate_id=CERTIFICATE_ID,
            key=self.authority.key,
            now=self.clock(),
        )
        return [("content-type", "application/json"), *signature]

    def _event_of_refund(self, word: str, refund: SaleRefund, order: Order) -> SandboxEvent:
        """Return the event of a refund.

        As in PayPal's own sample, the event has only a link to the capture, and no id of the order.
        """
        href = f"{self.url}/paypal/v2/payments/captures/{order.capture}"
        about = {**refund_as_json(refund), "links": [_link(href, "up")]}
        return self._event(f"PAYMENT.CAPTURE.{word}", "refund", about)

    def _event(self, event_type: str, resource_type: str, resource: Json) -> SandboxEvent:
        id = f"WH-{new_id()}-{new_id()}"
        body: dict[str, Json] = {
            "id": id,
            "event_version": "1.0",
            "create_time": _time(self.clock()),
            "resource_type": resource_type,
            "resource_version": "2.0",
            "event_type": event_type,
            "resource": resource,
            "links": [],
        }
        url = self.webhook_url
        return SandboxEvent(id=id, type=event_type, url=url, body=msgspec.json.encode(body))


def refund_as_json(refund: SaleRefund) -> dict[str, Json]:
    return {
        "id": refund.id,
        "status": "COMPLETED",
        "amount": amount_of(refund.price),
        "create_time": _time(refund.made_at),
        **refund.about,
    }


def amount_of(price: Money) -> dict[str, str]:
    """Return PayPal's amount of a price.

    Raises:
        InvalidQuestion: PayPal has no format for this price.
    """
    digits = 0 if price.currency in WITHOUT_DECIMALS else None
    return {"currency_code": price.currency, "value": written(price, digits=digits)}


def with_parameters(url: str, **parameters: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(parameters)}"


def new_id() -> str:
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(17))


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _link(href: str, rel: str, *, method: str = "GET") -> dict[str, Json]:
    return {"href": href, "rel": rel, "method": method}
