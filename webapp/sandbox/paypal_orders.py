"""What the sandbox's PayPal keeps: orders, captures, refunds; and how it writes them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from flows.elicitation.states import Json
from flows.payments.money import Money
from flows.payments.paypal.gateway import WITHOUT_DECIMALS
from flows.payments.responses import written

MERCHANT = "SANDBOXMERCHANT"


@dataclass(frozen=True, slots=True, kw_only=True)
class PayPalRefund:
    id: str
    price: Money
    custom_id: str | None
    made_at: datetime

    def as_json(self) -> dict[str, Json]:
        named = {} if self.custom_id is None else {"custom_id": self.custom_id}
        return {
            "id": self.id,
            "status": "COMPLETED",
            "amount": amount_of(self.price),
            "create_time": time_of(self.made_at),
            **named,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    id: str
    made_at: datetime
    status: Literal["COMPLETED", "PENDING", "DECLINED", "REVERSED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One order of one unit; `funding` is how the person agreed to pay."""

    id: str
    page: str
    api: str
    price: Money
    description: str | None
    reference_id: str
    custom_id: str | None
    invoice_id: str | None
    return_url: str
    cancel_url: str
    made_at: datetime
    expires_at: datetime
    status: Literal["PAYER_ACTION_REQUIRED", "APPROVED", "COMPLETED"] = "PAYER_ACTION_REQUIRED"
    funding: Literal["balance", "bank", "declined"] = "balance"
    was_declined: bool = False
    capture: Capture | None = None
    refunds: tuple[PayPalRefund, ...] = ()

    @property
    def refunded(self) -> int:
        return sum(one.price.minor_units for one in self.refunds)

    @property
    def left(self) -> int:
        """What was not given back, in minor units."""
        return self.price.minor_units - self.refunded

    def as_json(self) -> dict[str, Json]:
        unit: dict[str, Json] = {
            "reference_id": self.reference_id,
            "custom_id": self.custom_id,
            "invoice_id": self.invoice_id,
            "description": self.description,
            "amount": amount_of(self.price),
            "payee": {"merchant_id": MERCHANT},
        }
        if self.capture is not None:
            refunds = [one.as_json() for one in self.refunds]
            unit["payments"] = {"captures": [self.capture_as_json()], "refunds": refunds}
        links = [{"href": self.api, "rel": "self", "method": "GET"}]
        if self.status == "PAYER_ACTION_REQUIRED":
            links.append({"href": self.page, "rel": "payer-action", "method": "GET"})
        if self.status == "APPROVED":
            links.append({"href": f"{self.api}/capture", "rel": "capture", "method": "POST"})
        return {
            "id": self.id,
            "intent": "CAPTURE",
            "status": self.status,
            "create_time": time_of(self.made_at),
            "payment_source": {"paypal": {}},
            "purchase_units": [unit],
            "links": links,
        }

    def capture_as_json(self) -> dict[str, Json]:
        assert self.capture is not None
        status: str = self.capture.status
        if status == "COMPLETED" and self.refunds:
            status = "PARTIALLY_REFUNDED" if self.left else "REFUNDED"
        return {
            "id": self.capture.id,
            "status": status,
            "amount": amount_of(self.price),
            "custom_id": self.custom_id,
            "invoice_id": self.invoice_id,
            "final_capture": True,
            "supplementary_data": {"related_ids": {"order_id": self.id}},
            "create_time": time_of(self.capture.made_at),
        }


def amount_of(price: Money) -> dict[str, str]:
    digits = 0 if price.currency in WITHOUT_DECIMALS else None
    return {"currency_code": price.currency, "value": written(price, digits=digits)}


def time_of(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
