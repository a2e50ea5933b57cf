"""A receipt: what was paid, what may still become of it, and what a tool gets of it.

What could go wrong: one payment used twice, or used and given back. A payment goes one way through
the table below, and a change that the table does not have is refused; two racing changes are
decided by the store's compare-and-set.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
    spent_by: str | None = None  # the run, which may see it again
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


def spend(payment: Payment, now: datetime, *, run: str | None = None) -> Payment:
    """It is used up, by this run if one still goes on."""
    return replace(_become(payment, ReceiptStatus.SPENT), spent_at=now, spent_by=run)


def refund(payment: Payment, now: datetime, reason: str | None, refund_id: str) -> Payment:
    """The provider has given the money back."""
    refunded = _become(payment, ReceiptStatus.REFUNDED)
    return replace(refunded, refunded_at=now, reason=reason, refund_id=refund_id)


def given_back(payment: Payment, now: datetime, *, reason: str | None, refund_id: str) -> Payment:
    """The provider has done it: that stands, also where a call spent it in the same moment."""
    return replace(
        payment,
        status=ReceiptStatus.REFUNDED,
        refunded_at=now,
        reason=reason,
        refund_id=refund_id,
    )


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


class Receipt:
    """What was paid, as the tool gets it; `status` is that of when it was given.

    No dataclass: what serialises those finds no members, and not the way back to the ledger.
    """

    __slots__ = ("_reach", "id", "is_test", "paid_at", "price", "provider", "status", "what")

    def __init__(self, payment: Payment, *, reach: Reach) -> None:
        self.id = payment.id
        self.price = payment.price
        self.what = payment.what
        self.provider = payment.seller
        self.paid_at = payment.paid_at
        self.is_test = not payment.is_live
        self.status = payment.status
        self._reach = reach

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Receipt) and (self.id, self.status) == (other.id, other.status)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Receipt({self.id!r}, {str(self.price)!r}, {self.what!r}, {self.status.value!r})"

    async def spend(self) -> None:
        """Use it up, before something that cannot be taken back. Raises NotPossible."""
        await self._reach.spend(self.id)

    async def refund(self, *, reason: str | None = None) -> Refund:
        """Give the money back. Raises NotPossible once it is spent, Failed if it did not work."""
        return refund_of(await self._reach.refund(self.id, reason=reason))


class _Refund(Struct, frozen=True, kw_only=True):
    id: str
    amount: int
    currency: str
    status: RefundStatus


def refund_of(data: Json) -> Refund:
    """The refund that `Refund.as_json` wrote."""
    kept = msgspec.convert(data, _Refund)
    price = Money.from_minor_units(kept.amount, kept.currency)
    return Refund(id=kept.id, price=price, status=kept.status)
