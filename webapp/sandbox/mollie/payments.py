"""A payment at the sandbox's Mollie, its refunds, and Mollie's format of both and of webhooks."""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

from msgspec import Meta, Struct

from flows.elicitation.states import Json
from flows.payments.money import Money
from flows.payments.receipt import Dispute
from webapp.sandbox.checkout.deliveries import SandboxEvent
from webapp.sandbox.checkout.sales import (
    CANCEL,
    TRANSFER,
    Act,
    Button,
    Sale,
    SaleRefund,
    Sales,
    SaleState,
    becomes,
    dispute_button,
    give_half_back,
)

ID_BYTES = 10
_PROFILE = "pfl_sandbox"
_REFUND_TAKES = timedelta(days=1)
_TRANSFER_LIFE = timedelta(days=12)
_BY_HAND: dict[str, Json] = {"description": "By hand", "metadata": None}
_STATUS = {
    SaleState.OPEN: "open",
    SaleState.AWAITED: "pending",
    SaleState.PAID: "paid",
    SaleState.FAILED: "failed",
}
Words = Annotated[str, Meta(min_length=1, max_length=255)]
_Address = Annotated[str, Meta(pattern=r"^https?://[!-~]{1,2000}\Z")]


class MollieAmount(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}\Z")]
    value: str


class PaymentWish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    amount: MollieAmount
    description: Words
    redirect_url: _Address
    cancel_url: _Address | None = None
    webhook_url: _Address | None = None
    metadata: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MolliePaid(Sale):
    """A payment. `method` is the person's choice. Until then the shop cannot cancel the payment."""

    api: str
    page: str
    asked: PaymentWish
    method: str | None = None
    is_cancelled: bool = False

    @property
    def is_cancelable(self) -> bool:
        return self.is_open and self.method is not None

    @property
    def is_charged_back(self) -> bool:
        return self.dispute is Dispute.LOST

    def as_json(self) -> dict[str, Json]:
        links: dict[str, Json] = {"self": _link(self.api, "application/hal+json")}
        if self.is_open:
            links["checkout"] = _link(self.page, "text/html")
        ended = "canceled" if self.is_cancelled else "expired"
        found: dict[str, Json] = {
            "resource": "payment",
            "id": self.id,
            "mode": "test",
            "createdAt": _time(self.made_at),
            "amount": _amount(self.price),
            "description": self.asked.description,
            "method": self.method,
            "metadata": self.asked.metadata,
            "status": _STATUS.get(self.state, ended),
            "isCancelable": self.is_cancelable,
            "profileId": _PROFILE,
            "sequenceType": "oneoff",
            "redirectUrl": self.asked.redirect_url,
            "cancelUrl": self.asked.cancel_url,
            "webhookUrl": self.asked.webhook_url,
            "_links": links,
        }
        if self.is_open:
            found["expiresAt"] = _time(self.until)
        if self.is_paid:
            found["amountRefunded"] = self._part(self.refunded)
            found["amountRemaining"] = self._part(max(self.remaining_units, 0))
        if self.is_charged_back:
            found["amountChargedBack"] = _amount(self.price)
        return found

    def refund_as_json(self, refund: SaleRefund, *, now: datetime) -> dict[str, Json]:
        return {
            "resource": "refund",
            "id": refund.id,
            "mode": "test",
            "amount": _amount(refund.price),
            "status": "refunded" if now >= refund.made_at + _REFUND_TAKES else "pending",
            "paymentId": self.id,
            "createdAt": _time(refund.made_at),
            **_BY_HAND,
            **refund.about,
        }

    def _part(self, units: int) -> Json:
        return _amount(Money.from_minor_units(units, self.price.currency))


def _ends(state: SaleState) -> Act:
    def act(sales: Sales[MolliePaid], payment: MolliePaid) -> None:
        sales.become(replace(payment, method=payment.method or "creditcard"), state)

    return act


def cancel(sales: Sales[MolliePaid], payment: MolliePaid) -> MolliePaid:
    return sales.end(replace(payment, is_cancelled=True))


def _promise(sales: Sales[MolliePaid], payment: MolliePaid) -> None:
    """Choose a bank transfer: the payment stays open for days, and no webhook is sent."""
    until = sales.clock() + _TRANSFER_LIFE
    sales.keep(replace(payment, method="banktransfer", until=until))


def _is_new(payment: MolliePaid) -> bool:
    return payment.is_open and payment.method is None


def _can_be_charged_back(payment: MolliePaid) -> bool:
    return payment.is_paid and not payment.is_charged_back


def _is_charged_back(payment: MolliePaid) -> bool:
    return payment.is_charged_back


_BUTTONS = (
    Button(name="paid", label="Paid", look="primary", act=_ends(SaleState.PAID)),
    Button(name="failed", label="Failed", act=_ends(SaleState.FAILED), when=_is_new),
    Button(
        name="open",
        label="Open: a bank transfer, paid later on this page",
        act=_promise,
        when=_is_new,
    ),
    Button(
        name="pending",
        label="Pending: a direct debit, arrives later",
        act=becomes(SaleState.AWAITED),
        when=_is_new,
    ),
    Button(name="expired", label="Expired", act=becomes(SaleState.OVER)),
    Button(name=CANCEL, act=cancel),
    *TRANSFER,
    give_half_back(lambda payment: payment.price.minor_units),
    dispute_button(
        "chargeback",
        label="Let the bank take it back",
        dispute=Dispute.LOST,
        when=_can_be_charged_back,
    ),
    dispute_button(
        "won", label="Get it again from the bank", dispute=Dispute.WON, when=_is_charged_back
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MollieVendor:
    """Mollie's behaviour. Implements Vendor."""

    label: str = "Mollie"
    buttons: tuple[Button, ...] = _BUTTONS

    def refund_id(self) -> str:
        return f"re_{secrets.token_hex(ID_BYTES)}"

    def notes(self, sale: MolliePaid) -> Iterable[str]:
        if sale.is_cancelable:
            yield "It was left open, as a bank transfer is: the shop was told nothing."
        if sale.is_charged_back:
            yield "The bank has taken it back."

    def event(self, before: MolliePaid, after: MolliePaid) -> SandboxEvent | None:
        """Return Mollie's unsigned webhook, which names the payment and not its state."""
        url = after.asked.webhook_url
        if url is None or (before.state, before.refunds, before.dispute) == (
            after.state,
            after.refunds,
            after.dispute,
        ):
            return None
        return SandboxEvent(id=after.id, type="payment", url=url, body=f"id={after.id}".encode())

    def headers(self, _: SandboxEvent) -> Sequence[tuple[str, str]]:
        return [("content-type", "application/x-www-form-urlencoded")]


def _amount(price: Money) -> dict[str, str]:
    """Return Mollie's amount.

    It can be zero, which flows.payments.responses.written does not accept.
    """
    return {"currency": price.currency, "value": str(price.amount)}


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S+00:00")


def _link(href: str, media_type: str) -> Json:
    return {"href": href, "type": media_type}
