"""A receipt: what was paid, what may still become of it, and what a tool gets of it.

What could go wrong: one payment used twice, or used and given back. A payment goes one way through
the table below, and a change that the table does not have is refused; two racing changes are
decided by the store's compare-and-set.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flows.elicitation import Json
from flows.errors import NotPossible
from flows.money import Money
from flows.question import Reach

RECEIPT_KEPT = timedelta(days=3653)  # ten years, however many leap days are in them


class ReceiptStatus(StrEnum):
    OPEN = "open"  # paid, and no call uses it
    TAKEN = "taken"  # a call uses it
    SPENT = "spent"
    REFUNDED = "refunded"

    @property
    def is_final(self) -> bool:
        return not TRANSITIONS[self]


TRANSITIONS: Mapping[ReceiptStatus, frozenset[ReceiptStatus]] = {
    ReceiptStatus.OPEN: frozenset({ReceiptStatus.TAKEN, ReceiptStatus.REFUNDED}),
    ReceiptStatus.TAKEN: frozenset({ReceiptStatus.SPENT, ReceiptStatus.REFUNDED}),
    ReceiptStatus.SPENT: frozenset(),
    ReceiptStatus.REFUNDED: frozenset(),
}


class RefundStatus(StrEnum):
    PENDING = "pending"  # the provider has accepted it, the money is on its way
    SUCCEEDED = "succeeded"


class Payment(Struct, frozen=True, kw_only=True):
    """The ledger's row of one payment; `amount` in minor units of ISO 4217."""

    id: str
    owner: str
    elicitation_id: str
    join: str
    server: str
    tool: str
    seller: str
    session: str
    payment_intent: str | None
    amount: int
    currency: str
    what: str
    is_live: bool
    paid_at: datetime
    status: ReceiptStatus = ReceiptStatus.OPEN
    spent_at: datetime | None = None
    refunded_at: datetime | None = None
    refund_id: str | None = None
    reason: str | None = None
    once: bool = False  # bought for good: spent, it still answers the same question
    version: int = 0

    def __repr__(self) -> str:
        return f"Payment({self.id!r}, {self.status.value!r})"

    @property
    def price(self) -> Money:
        return Money.from_minor_units(self.amount, self.currency)

    @property
    def holds_key(self) -> bool:
        """Whether it answers the question that it was paid for."""
        return not self.status.is_final or (self.once and self.status is ReceiptStatus.SPENT)

    @property
    def due_at(self) -> None:
        """Time alone does nothing to it."""

    @property
    def erase_at(self) -> datetime:
        return self.paid_at + RECEIPT_KEPT


def take(payment: Payment) -> Payment:
    """A call uses it from here on."""
    return _become(payment, ReceiptStatus.TAKEN)


def spend(payment: Payment, now: datetime) -> Payment:
    """It is used up."""
    return replace(_become(payment, ReceiptStatus.SPENT), spent_at=now)


def refund(payment: Payment, now: datetime, reason: str | None, refund_id: str) -> Payment:
    """The provider has given the money back."""
    refunded = _become(payment, ReceiptStatus.REFUNDED)
    return replace(refunded, refunded_at=now, reason=reason, refund_id=refund_id)


def given_back(payment: Payment, now: datetime, reason: str | None, refund_id: str) -> Payment:
    """The provider has done it: that stands, also where a call spent it in the same moment."""
    status = ReceiptStatus.REFUNDED
    return replace(payment, status=status, refunded_at=now, reason=reason, refund_id=refund_id)


def require(payment: Payment, wanted: ReceiptStatus) -> None:
    """Raises NotPossible where TRANSITIONS has no such row; ask before money moves."""
    if wanted not in TRANSITIONS[payment.status]:
        raise NotPossible(status=payment.status, wanted=wanted)


def _become(payment: Payment, wanted: ReceiptStatus) -> Payment:
    require(payment, wanted)
    return replace(payment, status=wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refund:
    """Money given back."""

    id: str
    price: Money
    status: RefundStatus

    def as_json(self) -> Json:
        return {
            "id": self.id,
            "amount": self.price.minor_units,
            "currency": self.price.currency,
            "status": self.status.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What was paid, as the tool gets it; `status` is that of when it was given."""

    id: str
    price: Money
    what: str
    provider: str
    paid_at: datetime
    is_test: bool
    status: ReceiptStatus
    reach: Reach = field(repr=False, compare=False)

    async def spend(self) -> None:
        """Use it up, before something that cannot be taken back. Raises NotPossible."""
        await self.reach.spend(self.id)

    async def refund(self, *, reason: str | None = None) -> Refund:
        """Give the money back. Raises NotPossible once it is spent, Failed if it did not work."""
        return refund_of(await self.reach.refund(self.id, reason=reason))


class _Refund(Struct, frozen=True, kw_only=True):
    id: str
    amount: int
    currency: str
    status: RefundStatus


def receipt_of(payment: Payment, *, reach: Reach) -> Receipt:
    return Receipt(
        id=payment.id,
        price=payment.price,
        what=payment.what,
        provider=payment.seller,
        paid_at=payment.paid_at,
        is_test=not payment.is_live,
        status=payment.status,
        reach=reach,
    )


def refund_of(data: Json) -> Refund:
    """The refund that `Refund.as_json` wrote."""
    kept = msgspec.convert(data, _Refund)
    price = Money.from_minor_units(kept.amount, kept.currency)
    return Refund(id=kept.id, price=price, status=kept.status)
