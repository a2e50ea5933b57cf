"""The sandbox's Mollie: what becomes of its payments, and whom it tells.

Everything here happens between two awaits, so a change is never seen by halves. What could go
wrong: money given back twice. As at Mollie more can be given back than was paid, so that whoever
asks twice has it happen.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Literal

from msgspec import Meta, Struct

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.payments.mollie.gateway import LIFE_WITHOUT_A_METHOD
from flows.payments.money import Money
from flows.payments.responses import minor_units, written
from flows.payments.session import Malformed
from webapp.sandbox.answers import SandboxRefused
from webapp.sandbox.deliveries import SandboxEvent
from webapp.sandbox.mollie_payments import MolliePaid, MollieRefund

_TRANSFER_LIFE = timedelta(days=12)
_ID_BYTES = 10
_MORE_AT_MOST = 2500  # minor units that can be given back beyond what was paid
_Words = Annotated[str, Meta(min_length=1, max_length=255)]
_Address = Annotated[str, Meta(pattern=r"^https?://[!-~]{1,2000}\Z")]


class MollieError(SandboxRefused):
    """The facts are those of Mollie's error object."""

    def __init__(self, detail: str, *, status: int = 422, field: str | None = None) -> None:
        super().__init__(detail, status=status)
        self.field = field

    def as_json(self) -> Json:
        facts: dict[str, Json] = {
            "status": self.status,
            "title": HTTPStatus(self.status).phrase,
            "detail": self.message,
        }
        return facts if self.field is None else {**facts, "field": self.field}


class MollieAmount(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}\Z")]
    value: str

    @property
    def price(self) -> Money:
        """Raises MollieError for one that is none, or is not written with all its decimals."""
        try:
            price = Money.from_minor_units(minor_units(self.value, self.currency), self.currency)
            if written(price) == self.value:
                return price
        except (Malformed, InvalidQuestion):
            pass
        raise MollieError("The amount is no amount in this currency", field="amount")


class PaymentWish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    amount: MollieAmount
    description: _Words
    redirect_url: _Address
    cancel_url: _Address | None = None
    webhook_url: _Address | None = None
    metadata: Json = None


class MollieRefundWish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    amount: MollieAmount
    description: _Words = "Refund"
    metadata: Json = None


@dataclass(slots=True, kw_only=True)
class MollieBackend:
    """All that it knows; it forgets when its process ends. It tells those at `origins` only."""

    url: str
    origins: tuple[str, ...]
    clock: Callable[[], datetime]
    tell: Callable[[SandboxEvent], None]
    _payments: dict[str, MolliePaid] = field(default_factory=dict[str, MolliePaid])

    def payment(self, id: str) -> MolliePaid | None:
        """The payment as it is now: time alone ends one, which is noticed here."""
        payment = self._payments.get(id)
        if payment is None or payment.status != "open" or self.clock() < payment.expires_at:
            return payment
        return self._become(payment, "expired")

    # What Mollie's API does.

    def create(self, wish: PaymentWish) -> MolliePaid:
        """Raises MollieError."""
        webhook_url = wish.webhook_url
        if webhook_url is not None and not webhook_url.startswith(
            tuple(f"{origin}/" for origin in self.origins)
        ):
            raise MollieError("The webhook URL is unreachable", field="webhookUrl")
        now, id = self.clock(), f"tr_{secrets.token_hex(_ID_BYTES)}"
        return self._keep(
            MolliePaid(
                id=id,
                api=f"{self.url}/mollie/v2/payments/{id}",
                page=f"{self.url}/pay/{id}",
                price=wish.amount.price,
                description=wish.description,
                redirect_url=wish.redirect_url,
                cancel_url=wish.cancel_url,
                webhook_url=webhook_url,
                metadata=wish.metadata,
                made_at=now,
                expires_at=now + LIFE_WITHOUT_A_METHOD,
            )
        )

    def known(self, id: str) -> MolliePaid:
        """Raises MollieError."""
        payment = self.payment(id)
        if payment is None:
            raise MollieError("No payment exists with this id", status=404)
        return payment

    def cancel(self, id: str) -> MolliePaid:
        """Raises MollieError."""
        payment = self.known(id)
        if not payment.is_cancelable:
            raise MollieError("The payment cannot be canceled")
        return self._become(payment, "canceled")

    def refund(self, id: str, wish: MollieRefundWish) -> MollieRefund:
        """Give back some of a payment. Raises MollieError."""
        payment, price = self.known(id), wish.amount.price
        if payment.status != "paid":
            raise MollieError("The payment cannot be refunded")
        if price.currency != payment.price.currency:
            raise MollieError("The currency is not that of the payment", field="amount")
        if payment.refunded + price.minor_units > payment.price.minor_units + _MORE_AT_MOST:
            raise MollieError("The amount is higher than the maximum", field="amount")
        return self._refund(payment, price, metadata=wish.metadata, words=wish.description)

    # What a person or the seller does on pages. What leads away says whether it was possible.

    def end(
        self, payment: MolliePaid, how: Literal["paid", "failed", "canceled", "expired"]
    ) -> bool:
        """Pay it, or not."""
        if payment.status != "open":
            return False
        method = payment.method or ("creditcard" if how in ("paid", "failed") else None)
        self._become(replace(payment, method=method), how)
        return True

    def promise(self, payment: MolliePaid) -> bool:
        """Choose a bank transfer: it stays open, for days, and nobody is told."""
        if payment.status != "open" or payment.method is not None:
            return False
        until = self.clock() + _TRANSFER_LIFE
        self._keep(replace(payment, method="banktransfer", expires_at=until))
        return True

    def debit(self, payment: MolliePaid) -> bool:
        """Let it be debited: the money is on its way and may still not arrive."""
        if payment.status != "open":
            return False
        self._become(payment, "pending")
        return True

    def settle(self, payment: MolliePaid, *, arrives: bool) -> bool:
        """What is on its way arrives, or does not."""
        if payment.status != "pending":
            return False
        self._become(payment, "paid" if arrives else "failed")
        return True

    def refund_by_hand(self, payment: MolliePaid, units: int) -> None:
        """The seller gives back so much on its own pages, not by the API; if it still can."""
        left = payment.price.minor_units - payment.refunded
        if payment.status == "paid" and 0 < units <= left:
            price = Money.from_minor_units(units, payment.price.currency)
            self._refund(payment, price, metadata=None, words="By hand")

    def charge_back(self, payment: MolliePaid, *, is_taken: bool) -> None:
        """The person's bank takes the money, or gives it to the seller again."""
        if payment.status == "paid" and payment.is_charged_back != is_taken:
            self._tell(self._keep(replace(payment, is_charged_back=is_taken)))

    def _refund(
        self, payment: MolliePaid, price: Money, *, metadata: Json, words: str
    ) -> MollieRefund:
        refund = MollieRefund(
            id=f"re_{secrets.token_hex(_ID_BYTES)}",
            payment=payment.id,
            price=price,
            metadata=metadata,
            description=words,
            made_at=self.clock(),
        )
        self._tell(self._keep(replace(payment, refunds=(*payment.refunds, refund))))
        return refund

    def _become(
        self,
        payment: MolliePaid,
        status: Literal["pending", "paid", "failed", "canceled", "expired"],
    ) -> MolliePaid:
        changed = self._keep(replace(payment, status=status))
        self._tell(changed)
        return changed

    def _keep(self, payment: MolliePaid) -> MolliePaid:
        self._payments[payment.id] = payment
        return payment

    def _tell(self, payment: MolliePaid) -> None:
        """As Mollie does: which payment it is, not what became of it, and by nobody signed."""
        if payment.webhook_url is not None:
            body = f"id={payment.id}".encode()
            self.tell(
                SandboxEvent(id=payment.id, type="payment", url=payment.webhook_url, body=body)
            )
