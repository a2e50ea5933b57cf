"""The payment record, its status transitions, and the receipt that a tool gets.

Risks: one payment is used twice, or used and refunded. This server's own changes follow the table
below, and other changes are refused; the store's compare-and-set decides between two racing
changes. Changes at the provider, a refund or a chargeback, are always recorded. They are merged so
that they may arrive in any order. A claim that a poll reported ends when a later
poll reports no claim. A poll is as old as its question, because its reply may be delayed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from flows.elicitation.misuse import Explained
from flows.elicitation.states import Json
from flows.errors import NotPossible
from flows.payments.money import Money
from flows.question import Resources, verb

RECEIPT_RETENTION = timedelta(days=3653)  # ten years with the maximum number of leap days
MADE = "perhaps delivered"  # a result uses the payment; it is unknown if it arrived
# Prefixes of claim keys without a provider's id: for claims from events, and from polls.
CLAIM, ASKED = "claim:", "asked:"


class ReceiptStatus(StrEnum):
    OPEN = "open"  # paid, and no call uses it
    TAKEN = "taken"  # a call uses it
    SPENT = "spent"
    REFUNDING = "refunding"  # a refund was requested: no call can use the payment
    REFUNDED = "refunded"
    DISPUTED = "disputed"  # the person's bank has taken the money back, or is about to


TRANSITIONS: Mapping[ReceiptStatus, frozenset[ReceiptStatus]] = {
    ReceiptStatus.OPEN: frozenset({ReceiptStatus.TAKEN, ReceiptStatus.REFUNDING}),
    ReceiptStatus.TAKEN: frozenset({ReceiptStatus.SPENT, ReceiptStatus.REFUNDING}),
    ReceiptStatus.REFUNDING: frozenset({ReceiptStatus.REFUNDED}),
    ReceiptStatus.SPENT: frozenset(),
    ReceiptStatus.REFUNDED: frozenset(),
    ReceiptStatus.DISPUTED: frozenset(),
}


class Dispute(StrEnum):
    """The stage of a bank's claim (dispute)."""

    INQUIRY = "inquiry"  # the bank asks about the payment: no money moves
    CLOSED = "closed"  # an inquiry that ended, or a claim that was withdrawn: no money moved
    OPEN = "open"  # the money is claimed
    LOST = "lost"  # the money is taken; the claim can still be won
    APPEALED = "appealed"  # the money is taken, and the seller objects
    LOST_AGAIN = "lost again"  # taken for the second time, after it was won
    WON = "won"  # the money stays, or is back
    GONE = "gone"  # taken permanently: no later event changes that

    @property
    def takes_money(self) -> bool:
        return self not in (Dispute.INQUIRY, Dispute.CLOSED, Dispute.WON)


class BankClaim(Struct, frozen=True, kw_only=True):
    """A bank's claim; `amount` in minor units of the payment's currency; None: the full amount.

    `at` is the provider's time of this stage. For the result of a poll it is the time when the
    server asked. For a provider that signs no time, it is the time when the event arrived, and
    `heard` has the ids of the events that reported the claim as won or as lost again. It is None in
    rows of older versions.
    """

    stage: Dispute
    at: datetime | None = None
    amount: int | None = None
    heard: tuple[str, ...] = ()


class FailedRefund(Struct, frozen=True, kw_only=True):
    """A refund that its provider had accepted, and that failed or was cancelled later."""

    amount: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundChange:
    """The state of one refund: `amount` in minor units, None if the provider does not say."""

    id: str
    stands: bool  # if False: it failed or was cancelled
    is_done: bool  # if False: it is on its way
    amount: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentChange:
    """A change of a payment after it was paid; `at` is its time if the provider says it.

    There are three kinds. `refund` is the state of one refund. `dispute` is the stage of a bank's
    claim: the notice's `subject` is the claim's id, and `claimed` the claimed amount. Otherwise
    `returned` is the total that was refunded. Amounts are in minor units (ISO 4217) of `currency`.
    """

    returned: int = 0
    currency: str | None = None
    dispute: Dispute | None = None
    claimed: int | None = None
    claimed_currency: str | None = None  # a bank may claim in a currency of its own
    refund: RefundChange | None = None
    at: datetime | None = None


class RefundStatus(StrEnum):
    PENDING = "pending"  # the provider has accepted it, the money is on its way
    SUCCEEDED = "succeeded"


class PendingRefund(Struct, frozen=True, kw_only=True):
    """A refund that the provider has accepted, and that can still fail.

    The provider is polled at `ask_at`. None means that the limit of polls is reached. With
    `is_check`, no refund is known to be pending, and the poll checks if one has failed.
    """

    ask_at: datetime | None
    tries: int = 0
    is_check: bool = False


class PartRefund(Struct, frozen=True, kw_only=True):
    """A partial refund that was started, and whose outcome is not stored yet.

    `up_to` is the total refunded once this refund is done, in minor units of ISO 4217. Until
    `asking_until`, only one process requests the refund. The sweeper tries again at `again_at`,
    which is None if the refund failed too often.
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
    dedupe_key: str = field(name="join")
    server: str
    tool: str
    tool_title: str | None = None
    seller: str
    session: str
    payment_intent: str | None
    amount: int
    currency: str
    what: str
    is_live: bool
    paid_at: datetime
    at: str = ""  # the address of the provider's API; empty in rows of older versions
    status: ReceiptStatus = ReceiptStatus.OPEN
    spent_at: datetime | None = None
    made_at: datetime | None = None  # when a result that uses the payment was ready
    worked_at: datetime | None = None  # when `once` did work for this payment
    # The time when the server noticed that the store had lost writes. One of the lost writes may
    # have recorded a use of this payment.
    perhaps_used_at: datetime | None = None
    refunded_at: datetime | None = None
    refund_id: str | None = None
    reason: str | None = None
    spent_by: str | None = None  # the run that spent the payment and may receive it again
    surplus_to: str | None = None  # the earlier payment for the same question
    # the key of the question that it was paid for
    question_key: str | None = field(default=None, name="asked")
    answers: str | None = None  # the question that it answers now, if not `elicitation_id`
    once: bool = False  # a permanent purchase: it answers its question even after it is spent
    refund_at: datetime | None = None  # the time of the automatic refund, or of its next try
    refund_tries: int = 0
    refund_by: str | None = None  # the run that began the refund and may continue it
    is_refund_begun: bool = False
    refund_asked_by: str | None = None  # API key's audit name, if it requested the refund
    refunded: int = 0  # the total that the provider has refunded, in minor units
    part: PartRefund | None = None
    # Stages by claim key. Older code reads this field, so it has only the stages of the first
    # version.
    disputes: Mapping[str, Dispute] = {}
    claims: Mapping[str, BankClaim] = {}
    pending: PendingRefund | None = None
    failed_refunds: Mapping[str, FailedRefund] = {}  # by their ids at the provider
    owed_up_to: int = 0  # the total refunded before the last refund failed, in minor units
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
        """True if the payment answers the question that it was paid for."""
        is_usable = self.status in (ReceiptStatus.OPEN, ReceiptStatus.TAKEN)
        return is_usable or (self.once and self.status is ReceiptStatus.SPENT)

    @property
    def row_key(self) -> str | None:
        return self.dedupe_key if self.holds_key else None

    @property
    def is_usable(self) -> bool:
        """True if a question can be answered with this payment."""
        return self.holds_key and self.surplus_to is None

    @property
    def owed(self) -> int:
        """The amount owed to the person because a refund failed and none followed."""
        return max(0, self.owed_up_to - self.refunded)

    @property
    def owed_price(self) -> Money:
        return Money.from_minor_units(self.owed, self.currency)

    @property
    def has_ended(self) -> bool:
        """True if the money was refunded, is being refunded, or is claimed by a bank."""
        return self.status in (
            ReceiptStatus.REFUNDING,
            ReceiptStatus.REFUNDED,
            ReceiptStatus.DISPUTED,
        )

    @property
    def is_part_refunded(self) -> bool:
        return 0 < self.refunded < self.amount and self.status is not ReceiptStatus.REFUNDED

    @property
    def is_refund_pending(self) -> bool:
        """True if the provider has accepted a refund that can still fail."""
        return self.pending is not None and not self.pending.is_check

    @property
    def due_at(self) -> datetime | None:
        """The time of the sweeper's next work: a refund, or a check of a refund's state."""
        asked_at = None if self.pending is None else self.pending.ask_at
        part_at = None if self.part is None else self.part.again_at
        due = (asked_at, part_at or self.refund_due_at)
        return min((at for at in due if at is not None), default=None)

    @property
    def refund_due_at(self) -> datetime | None:
        """The time of the automatic refund of an unused payment, or of its next try."""
        is_open = self.status is ReceiptStatus.OPEN and not self.may_be_delivered
        is_due = is_open or self.status is ReceiptStatus.REFUNDING
        return self.refund_at if is_due else None

    @property
    def has_ready_result(self) -> bool:
        """True if a result that uses the payment may have arrived without being recorded."""
        is_made = self.made_at is not None or self.is_perhaps_used
        return self.status is ReceiptStatus.OPEN and is_made

    @property
    def is_perhaps_used(self) -> bool:
        """True if the store may have lost the record of a use. False for a surplus payment."""
        return self.perhaps_used_at is not None and self.surplus_to is None

    @property
    def may_be_delivered(self) -> bool:
        """True if the person may have what they paid for. No automatic refund is made then."""
        return self.has_ready_result or (
            self.status is ReceiptStatus.OPEN and self.worked_at is not None
        )

    @property
    def erase_at(self) -> datetime:
        return self.paid_at + RECEIPT_RETENTION


def claim(payment: Payment) -> Payment:
    """Mark an open payment as claimed by a call."""
    return _become(payment, ReceiptStatus.TAKEN)


def spend(payment: Payment, now: datetime, *, run: str | None = None) -> Payment:
    """Mark the payment as spent. `run` is the run that spends it, if a run is still active."""
    return replace(_become(payment, ReceiptStatus.SPENT), spent_at=now, spent_by=run)


def as_surplus(payment: Payment, now: datetime, *, to: str) -> Payment:
    """Mark a second payment for the same thing: it is refunded, and no call uses it.

    The refund is due at once. A payment without `refund_at` has no automatic refund: the operator
    refunds it.
    """
    refund_at = None if payment.refund_at is None else now
    return replace(payment, surplus_to=to, refund_at=refund_at, dedupe_key=payment.id)


def no_surplus(payment: Payment, refund_at: datetime | None) -> Payment:
    """Turn a surplus payment into an ordinary one, because the other payment no longer exists."""
    is_open = payment.status is ReceiptStatus.OPEN
    return replace(payment, surplus_to=None, refund_at=refund_at) if is_open else payment


def refunded(payment: Payment, now: datetime, *, refund_id: str | None = None) -> Payment:
    """Record that the provider has refunded the whole payment, even if a call just spent it."""
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
    """Record the total that the provider has refunded. The remaining amount can still be used.

    `by` is the requester of a refund at this server. A webhook has no `by`: if it reports the total
    of the reserved partial refund (`part`), that refund's requester is used. Any other total comes
    from a refund at the provider's dashboard.
    """
    amount, part = max(amount, payment.refunded), payment.part
    is_full = amount >= payment.amount
    is_recorded = min(amount, payment.amount) == payment.refunded
    if is_recorded and (payment.status is ReceiptStatus.REFUNDED or not is_full):
        return payment
    if not payment.is_refund_begun:  # a full refund keeps the name of its requester
        by = part.by if part is not None and part.up_to == amount else by
        payment = replace(payment, refund_asked_by=by)
    return refunded(payment, now) if is_full else replace(payment, refunded=amount)


def record_result(payment: Payment, now: datetime, *, by_once: bool = False) -> Payment:
    """Record that a result is about to be sent, or that `once` has done work for the payment."""
    if payment.spent_at is not None:
        return payment
    if by_once:
        return replace(payment, worked_at=payment.worked_at or now)
    return replace(payment, made_at=payment.made_at or now)


def perhaps_used(payment: Payment, at: datetime) -> Payment:
    """Mark a payment that a call may have used in lost writes, which were noticed at `at`."""
    if payment.spent_at is not None or payment.status is ReceiptStatus.REFUNDED:
        return payment
    return replace(payment, perhaps_used_at=payment.perhaps_used_at or at)


def record_failure(payment: Payment) -> Payment:
    """Record that the tool failed, so the person did not get what they paid for."""
    return payment if payment.spent_at else replace(payment, worked_at=None)


def record_unsent_result(payment: Payment, *, made_at: datetime) -> Payment:
    """Record that no byte of the result that was ready at `made_at` was sent."""
    return replace(payment, made_at=None) if payment.made_at == made_at else payment


def used(payment: Payment, now: datetime) -> Payment:
    """Record that the result was sent, even if a bank claimed the payment in the meantime."""
    if payment.status is ReceiptStatus.DISPUTED:
        return replace(payment, spent_at=payment.spent_at or now)
    claimed_payment = claim(payment) if payment.status is ReceiptStatus.OPEN else payment
    if ReceiptStatus.SPENT not in TRANSITIONS[claimed_payment.status]:
        return payment  # it was already spent, or it was or will be refunded
    return spend(claimed_payment, now)


def require(payment: Payment, wanted: ReceiptStatus) -> None:
    """Check that TRANSITIONS allows the change; call it before money moves. Raises NotPossible."""
    if wanted not in TRANSITIONS[payment.status]:
        raise NotPossible(status=payment.status, wanted=wanted)


def _become(payment: Payment, wanted: ReceiptStatus) -> Payment:
    require(payment, wanted)
    return replace(payment, status=wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refund:
    """A refund as the tool gets it."""

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


class Receipt(Explained):
    """A payment as the tool gets it; `status` is the status at that time.

    Receipt is not a dataclass, so serializers find no members and cannot reach the ledger.
    """

    __slots__ = ("_resources", "id", "is_test", "paid_at", "price", "provider", "status", "what")

    def __init__(self, payment: Payment, *, resources: Resources) -> None:
        self.id: str = payment.id
        self.price: Money = payment.price
        self.what: str = payment.what
        self.provider: str = payment.seller
        self.paid_at: datetime = payment.paid_at
        self.is_test: bool = not payment.is_live
        self.status: ReceiptStatus = payment.status
        self._resources = resources

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Receipt) and (self.id, self.status) == (other.id, other.status)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Receipt({self.id!r}, {str(self.price)!r}, {self.what!r}, {self.status.value!r})"

    @verb
    async def spend(self) -> None:
        """Spend the payment, before something that cannot be undone.

        Raises:
            NotPossible: The payment was refunded, disputed or spent already.
        """
        await self._resources.spend(self.id)

    @verb
    async def refund(self, *, reason: str | None = None) -> Refund:
        """Refund the whole payment.

        Args:
            reason: A text that the provider and the page show.

        Returns:
            The refund, which may still be on its way.

        Raises:
            NotPossible: The payment is spent.
            Failed: The provider refused the refund, or could not be reached.
        """
        return refund_of(await self._resources.refund(self.id, reason=reason))


class _Refund(Struct, frozen=True, kw_only=True):
    id: str
    amount: int
    currency: str
    status: RefundStatus


def refund_of(data: Json) -> Refund:
    """Return the refund that `Refund.as_json` wrote."""
    stored = msgspec.convert(data, _Refund)
    price = Money.from_minor_units(stored.amount, stored.currency)
    return Refund(id=stored.id, price=price, status=stored.status)
