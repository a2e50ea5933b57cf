"""What the sandbox's Mollie keeps, a payment with its refunds, and how it writes them."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from flows.elicitation.states import Json
from flows.payments.money import Money

PROFILE = "pfl_sandbox"
REFUND_TAKES = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MollieRefund:
    id: str
    payment: str
    price: Money
    metadata: Json
    description: str
    made_at: datetime

    def as_json(self, *, now: datetime) -> dict[str, Json]:
        is_done = now >= self.made_at + REFUND_TAKES
        return {
            "resource": "refund",
            "id": self.id,
            "mode": "test",
            "amount": amount_of(self.price),
            "status": "refunded" if is_done else "pending",
            "description": self.description,
            "metadata": self.metadata,
            "paymentId": self.payment,
            "createdAt": time_of(self.made_at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MolliePaid:
    """`method` is what the person chose; before that the person can cancel it, the shop cannot."""

    id: str
    api: str
    page: str
    price: Money
    description: str
    redirect_url: str
    cancel_url: str | None
    webhook_url: str | None
    metadata: Json
    made_at: datetime
    expires_at: datetime
    status: Literal["open", "pending", "paid", "failed", "canceled", "expired"] = "open"
    method: Literal["banktransfer", "creditcard"] | None = None
    refunds: tuple[MollieRefund, ...] = ()
    is_charged_back: bool = False

    @property
    def is_cancelable(self) -> bool:
        return self.status == "open" and self.method == "banktransfer"

    @property
    def refunded(self) -> int:
        """In minor units; this can be more than was paid."""
        return sum(one.price.minor_units for one in self.refunds)

    def as_json(self) -> dict[str, Json]:
        links: dict[str, Json] = {"self": _link(self.api, "application/hal+json")}
        if self.status == "open":
            links["checkout"] = _link(self.page, "text/html")
        found: dict[str, Json] = {
            "resource": "payment",
            "id": self.id,
            "mode": "test",
            "createdAt": time_of(self.made_at),
            "amount": amount_of(self.price),
            "description": self.description,
            "method": self.method,
            "metadata": self.metadata,
            "status": self.status,
            "isCancelable": self.is_cancelable,
            "profileId": PROFILE,
            "sequenceType": "oneoff",
            "redirectUrl": self.redirect_url,
            "cancelUrl": self.cancel_url,
            "webhookUrl": self.webhook_url,
            "_links": links,
        }
        if self.status == "open":
            found["expiresAt"] = time_of(self.expires_at)
        if self.status == "paid":
            found["amountRefunded"] = self._part(self.refunded)
            found["amountRemaining"] = self._part(max(self.price.minor_units - self.refunded, 0))
        if self.is_charged_back:
            found["amountChargedBack"] = amount_of(self.price)
        return found

    def _part(self, units: int) -> Json:
        return amount_of(Money.from_minor_units(units, self.price.currency))


def amount_of(price: Money) -> dict[str, str]:
    """Nothing is an amount here, so flows.payments.responses.written will not do."""
    return {"currency": price.currency, "value": str(price.amount)}


def time_of(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S+00:00")


def _link(href: str, media_type: str) -> Json:
    return {"href": href, "type": media_type}
