"""A receipt: what was paid, what may still become of it, and what a tool gets of it.

What could go wrong: one payment used twice, or used and given back. What we do goes one way through
the table below, and a change that the table does not have is refused; two racing changes are
decided by the store's compare-and-set. What the provider has done stands, whatever we did: it gave
the money back, or a bank took it. Its news are added up, so that they may come in any order; a
claim that was found by asking is over when it is asked again and there is none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flows.elicitation.states import Json
from flows.errors import NotPossible
from flows.payments.money import Money
from flows.question import Resources, telling

RECEIPT_KEPT = timedelta(days=3653)  # ten years, however many leap days are in them
UNUSED_KEPT = timedelta(days=7)  # unless the operator says otherwise
MADE = "perhaps delivered"  # a result was made for it, and nobody noted whether that arrived
CLAIM, ASKED = "claim:", "asked:"  # before what a claim goes by that has no id of its own


class ReceiptStatus(StrEnum):
    OPEN = "open"  # paid, and no call uses it
    TAKEN = "taken"  # a call uses it
    SPENT = "spent"
    REFUNDING = "refunding"  # the provider is asked to give it back: nobody uses it any more
    REFUNDED = "refunded"
    DISPUTED = "disputed"  # the person's bank has taken it back, or is about to


TRANSITIONS: Mapping[ReceiptStatus, frozenset[ReceiptStatus]] = {
    ReceiptStatus.OPEN: frozenset({ReceiptStatus.TAKEN, ReceiptStatus.REFUNDING}),
    ReceiptStatus.TAKEN: frozenset({ReceiptStatus.SPENT, ReceiptStatus.REFUNDING}),
    ReceiptStatus.REFUNDING: frozenset({ReceiptStatus.REFUNDED}),
    ReceiptStatus.SPENT: frozenset(),
    ReceiptStatus.REFUNDED: frozenset(),
    ReceiptStatus.DISPUTED: frozenset(),
}


class Dispute(StrEnum):
    """What became of one of a bank's claims; of all that is told of it the last of these counts."""

    OPEN = "open"
    LOST = "lost"  # it may still be won
    WON = "won"  # the money stays, or is back
    GONE = "gone"  # for good, whatever is told besides


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentChange:
    """What became of a payment afterwards.

    `returned` is what was given back of it in all, in minor units of ISO 4217, or else `dispute`
    is how far a bank's claim is; the event's `subject` is its id.
    """

    returned: int = 0
    currency: str | None = None
    dispute: Dispute | None = None


_STEPS = tuple(Dispute)


class RefundStatus(StrEnum):
    PENDING = "pending"  # the provider has accepted it, the money is on its way
    SUCCEEDED = "succeeded"


class PartRefund(Struct, frozen=True, kw_only=True):
    """A part refund that was begun and whose outcome is not stored yet.

    `up_to` is what is refunded in all once it is done, in minor units of ISO 4217. One process asks
    the provider until `asking_until`. At `again_at` the sweeper asks; None: it failed too often.
    """

    up_to: int
    asking_until: datetime
    again_at: datetime | None
    reason: str | None = None
    by: str | None = None
    tries: int = 0


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
    at: str = ""  # the address of the API; of what was kept before this was written down none
    status: ReceiptStatus = ReceiptStatus.OPEN
    spent_at: datetime | None = None
    made_at: datetime | None = None  # when a result that uses it was about to go out
    worked_at: datetime | None = None  # when `once` had done work for it
    refunded_at: datetime | None = None
    refund_id: str | None = None
    reason: str | None = None
    spent_by: str | None = None  # the run, which may see it again
    surplus_to: str | None = None  # the payment that the same question was paid by before
    asked: str | None = None  # the join key of the question that it was paid for
    answers: str | None = None  # the question that it answers, if not `elicitation_id`
    once: bool = False  # bought for good: spent, it still answers the same question
    refund_at: datetime | None = None  # when it is given back by itself, or is tried again
    refund_tries: int = 0
    refund_by: str | None = None  # the run that began to give it back, which may go on with that
    is_refund_begun: bool = False
    refund_asked_by: str | None = None  # over the HTTP API: as the audit names a key
    refunded: int = 0  # what the provider has given back of it, in minor units
    part: PartRefund | None = None
    disputes: Mapping[str, Dispute] = {}  # by each claim's id; nothing changes it in place
    version: int = 0

    def __repr__(self) -> str:
        return f"Payment({self.id!r}, {self.status.value!r})"

    @property
    def price(self) -> Money:
        return Money.from_minor_units(self.amount, self.currency)

    @property
    def refunded_price(self) -> Money:
        return Money.from_minor_units(self.refunded, self.currency)

    @property
    def holds_key(self) -> bool:
        """Whether it answers the question that it was paid for."""
        is_usable = self.status in (ReceiptStatus.OPEN, ReceiptStatus.TAKEN)
        return is_usable or (self.once and self.status is ReceiptStatus.SPENT)

    @property
    def row_key(self) -> str | None:
        return self.join if self.holds_key else None

    @property
    def is_usable(self) -> bool:
        """Return True if a question can be answered with this payment."""
        return self.holds_key and self.surplus_to is None

    @property
    def is_over(self) -> bool:
        """Whether the money is back, or on its way, or claimed by a bank."""
        return self.status in (
            ReceiptStatus.REFUNDING,
            ReceiptStatus.REFUNDED,
            ReceiptStatus.DISPUTED,
        )

    @property
    def is_part_refunded(self) -> bool:
        return 0 < self.refunded < self.amount and self.status is not ReceiptStatus.REFUNDED

    @property
    def refund_due_at(self) -> datetime | None:
        """When it is refunded automatically, as nobody used it, or that is tried again."""
        is_open = self.status is ReceiptStatus.OPEN and not self.may_be_delivered
        return self.refund_at if is_open or self.status is ReceiptStatus.REFUNDING else None

    @property
    def due_at(self) -> datetime | None:
        """When the sweeper has to look at it."""
        part_at = None if self.part is None else self.part.again_at
        return part_at or self.refund_due_at

    @property
    def is_made(self) -> bool:
        """Whether a result that uses it may have arrived, and nobody noted that."""
        return self.status is ReceiptStatus.OPEN and self.made_at is not None

    @property
    def may_be_delivered(self) -> bool:
        """Whether its person may have what it paid for: the clock refunds it no more."""
        return self.is_made or (self.status is ReceiptStatus.OPEN and self.worked_at is not None)

    @property
    def erase_at(self) -> datetime:
        return self.paid_at + RECEIPT_KEPT


def take(payment: Payment) -> Payment:
    """A call uses it from here on."""
    return _become(payment, ReceiptStatus.TAKEN)


def spend(payment: Payment, now: datetime, *, run: str | None = None) -> Payment:
    """It is used up, by this run if one still goes on."""
    return replace(_become(payment, ReceiptStatus.SPENT), spent_at=now, spent_by=run)


def as_surplus(payment: Payment, now: datetime, *, to: str) -> Payment:
    """Mark a second payment for the same thing: it is refunded, and never handed out.

    The refund is due at once. A payment without `refund_at` is refunded by the operator.
    """
    refund_at = None if payment.refund_at is None else now
    return replace(payment, surplus_to=to, refund_at=refund_at, join=payment.id)


def no_surplus(payment: Payment, refund_at: datetime | None) -> Payment:
    """The other one is not there any more, so that this is a payment as any other."""
    is_open = payment.status is ReceiptStatus.OPEN
    return replace(payment, surplus_to=None, refund_at=refund_at) if is_open else payment


def refunded(payment: Payment, now: datetime, *, refund_id: str | None = None) -> Payment:
    """The provider has given all of it back: that stands, also where a call has just spent it."""
    return replace(
        payment,
        status=ReceiptStatus.REFUNDED,
        refunded_at=payment.refunded_at or now,
        refund_id=payment.refund_id or refund_id,
        refunded=payment.amount,
        refund_at=None,
        part=None,
    )


def partly_refunded(
    payment: Payment, now: datetime, *, amount: int, by: str | None = None
) -> Payment:
    """So much in all was given back at the provider; what is left can still be used."""
    amount = max(amount, payment.refunded)
    if amount >= payment.amount:
        return refunded(payment, now)
    if amount == payment.refunded:
        return payment
    return replace(payment, refunded=amount, refund_asked_by=by)


def disputed(payment: Payment, id: str, dispute: Dispute) -> Payment:
    """A bank claims it back, or its claim has ended; what has ended does not open again."""
    before = payment.disputes.get(id, dispute)
    furthest = max(before, dispute, key=_STEPS.index)
    return _with_disputes(payment, {**payment.disputes, id: furthest})


def charged_back(payment: Payment, session: str, *, is_taken: bool, is_now: bool) -> Payment:
    """Whether a bank has taken it, as a picture of the session says.

    That it has not is believed of how it is now, and says nothing of claims that have an id. That
    it has, where such a claim was won, is another claim only if it is so now.
    """
    names = (session, ASKED + session)
    disputes = dict(payment.disputes)
    if is_taken:
        for id in names if is_now and _is_won(disputes) else names[:1]:
            disputes[id] = Dispute.LOST
    elif is_now:
        disputes |= {id: Dispute.WON for id in names if id in disputes}
    return _with_disputes(payment, disputes)


def _with_disputes(payment: Payment, disputes: Mapping[str, Dispute]) -> Payment:
    if disputes == payment.disputes:
        return payment
    if payment.status is ReceiptStatus.REFUNDED:
        return replace(payment, disputes=disputes)
    if _is_claimed(disputes):
        status = ReceiptStatus.DISPUTED
    elif payment.status is not ReceiptStatus.DISPUTED:
        status = payment.status
    elif payment.is_refund_begun:
        status = ReceiptStatus.REFUNDING
    else:
        status = ReceiptStatus.OPEN if payment.spent_at is None else ReceiptStatus.SPENT
    return replace(payment, status=status, disputes=disputes)


def _is_claimed(disputes: Mapping[str, Dispute]) -> bool:
    """An old picture tells of no other claim than the news do, and never that it was won."""
    is_won = _is_won(disputes)
    return any(
        one is not Dispute.WON
        for id, one in disputes.items()
        if not is_won or id.startswith((CLAIM, ASKED))
    )


def _is_won(disputes: Mapping[str, Dispute]) -> bool:
    return any(id.startswith(CLAIM) and one is Dispute.WON for id, one in disputes.items())


def made(payment: Payment, now: datetime, *, by_once: bool = False) -> Payment:
    """A result that uses it is about to go out, or `once` has done work for it."""
    if payment.spent_at is not None:
        return payment
    if by_once:
        return replace(payment, worked_at=payment.worked_at or now)
    return replace(payment, made_at=payment.made_at or now)


def in_vain(payment: Payment) -> Payment:
    """The tool said that it failed: it has not given what was paid for, whatever it did."""
    return payment if payment.spent_at else replace(payment, worked_at=None)


def unmade(payment: Payment, *, made_at: datetime) -> Payment:
    """No byte of the result that was made then went out."""
    return replace(payment, made_at=None) if payment.made_at == made_at else payment


def used(payment: Payment, now: datetime) -> Payment:
    """The result that used it went out; what a bank has claimed meanwhile is used all the same."""
    if payment.status is ReceiptStatus.DISPUTED:
        return replace(payment, spent_at=payment.spent_at or now)
    taken = take(payment) if payment.status is ReceiptStatus.OPEN else payment
    # Else it was spent before, or went back, or goes back.
    return spend(taken, now) if ReceiptStatus.SPENT in TRANSITIONS[taken.status] else payment


def require(payment: Payment, wanted: ReceiptStatus) -> None:
    """Raises NotPossible where TRANSITIONS has no such row; ask before money moves."""
    if wanted not in TRANSITIONS[payment.status]:
        raise NotPossible(status=payment.status, wanted=wanted)


def _become(payment: Payment, wanted: ReceiptStatus) -> Payment:
    require(payment, wanted)
    return replace(payment, status=wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refund:
    """What was refunded."""

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

    __slots__ = ("_resources", "id", "is_test", "paid_at", "price", "provider", "status", "what")

    def __init__(self, payment: Payment, *, resources: Resources) -> None:
        self.id = payment.id
        self.price = payment.price
        self.what = payment.what
        self.provider = payment.seller
        self.paid_at = payment.paid_at
        self.is_test = not payment.is_live
        self.status = payment.status
        self._resources = resources

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Receipt) and (self.id, self.status) == (other.id, other.status)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Receipt({self.id!r}, {str(self.price)!r}, {self.what!r}, {self.status.value!r})"

    async def spend(self) -> None:
        """Use it up, before something that cannot be taken back. Raises NotPossible."""
        with telling():
            await self._resources.spend(self.id)

    async def refund(self, *, reason: str | None = None) -> Refund:
        """Refund it. Raises NotPossible once it is spent, Failed if it did not work."""
        with telling():
            return refund_of(await self._resources.refund(self.id, reason=reason))


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
