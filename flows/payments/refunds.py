"""Refunds of payments, in full or in part: starting, retrying and following them.

Risks: two partial refunds are requested at once, and the provider makes both, because each has its
own key. A partial refund is therefore reserved in the ledger before the provider is asked, one at a
time over all processes. If a process dies, its reserved refund is finished before any other refund,
with the same amount and the same key, because the provider may have made it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from flows.errors import Failed, NotPossible
from flows.payments import receipt as receipts
from flows.payments.claims import claimed_of, claimed_price, restated
from flows.payments.money import Money
from flows.payments.receipt import (
    MADE,
    FailedRefund,
    PartRefund,
    Payment,
    PendingRefund,
    ReceiptStatus,
    RefundChange,
)

# the pause before the first retry: the process that started the refund may still be working
REFUND_AGAIN_AFTER = timedelta(minutes=5)
REFUND_AGAIN_AT_MOST = timedelta(days=1)
REFUND_TRIES_AT_MOST = 20  # about two weeks; then a person has to check the refund
# How long other processes wait for the process that asks the provider (three requests at most).
ASKING_AT_MOST = timedelta(minutes=1)
PENDING_ASKED_AFTER = timedelta(days=1)  # first check of a pending refund; repeated daily
PENDING_ASKED_AT_MOST = 40  # number of checks; no provider takes longer


class NoRefunds(Failed):
    """The provider cannot be asked to refund this payment. Nothing was started."""


class UnderWay(Failed):
    """Another process has begun a refund of this payment, and the outcome is not known yet."""

    def __init__(self, payment: Payment) -> None:
        much = str(payment.price)
        if payment.part is not None:
            much = f"{Money.from_minor_units(payment.part.up_to, payment.currency)} of {much}"
        super().__init__(
            f"Another process is refunding {much} now. Request the refund again in a minute."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundRequest:
    """A request to refund a payment. `run` is the run that has claimed the payment.

    An operator can set `also_with_result` to refund a payment whose result may have been delivered,
    and `also_spent` if it was delivered. `by` is the audit name of the requester.
    """

    reason: str | None = None
    run: str | None = None
    also_with_result: bool = False
    also_spent: bool = False
    by: str | None = None


def begin(payment: Payment, now: datetime, request: RefundRequest) -> Payment:
    """Start a full refund before the provider is asked.

    From now on the payment cannot be used.

    If a refund was already started, return the payment unchanged, or with the new requester if that
    refund failed at the provider. A tool's request (with `run`) does not need `also_with_result`.
    """
    if is_rest_refunded(payment):
        return payment
    if payment.status is ReceiptStatus.REFUNDING:
        by = request.by or payment.refund_asked_by
        return replace(payment, refund_asked_by=by) if payment.owed else payment
    _must_be_refundable(payment, also_spent=request.also_spent)
    if payment.has_ready_result and not (
        request.also_with_result or request.also_spent or request.run is not None
    ):
        raise NotPossible(status=MADE, wanted=ReceiptStatus.REFUNDED)
    return replace(
        payment,
        status=ReceiptStatus.REFUNDING,
        part=None,
        reason=request.reason,
        refund_by=request.run,
        refund_asked_by=request.by,
        is_refund_begun=True,
        refund_at=now + REFUND_AGAIN_AFTER,
        refund_tries=0,
    )


def begin_part(payment: Payment, now: datetime, request: RefundRequest, *, up_to: int) -> Payment:
    """Reserve a partial refund before the provider is asked: one at a time, over all processes.

    Raises:
        NotPossible: The payment was spent, refunded or disputed.
        UnderWay: Another partial refund was started, and its outcome is not known yet.
        NoRefunds: A bank claims so much of the payment that less than `up_to` is left.
    """
    _must_be_refundable(payment, also_spent=request.also_spent)
    if payment.part is not None:
        raise UnderWay(payment)
    if up_to > (total := refundable(payment)):
        raise NoRefunds(
            f"A bank disputes {claimed_price(payment)} of this payment, so at most "
            f"{Money.from_minor_units(total, payment.currency)} can be refunded."
        )
    until = now + ASKING_AT_MOST
    part = PartRefund(
        up_to=up_to, asking_until=until, again_at=until, reason=request.reason, by=request.by
    )
    return replace(payment, part=part)


def resume_part(payment: Payment, now: datetime) -> Payment:
    """Claim another process's partial refund. Raises UnderWay if that process may still run."""
    if payment.part is None:
        return payment
    require_no_partial_refund(payment, now)
    is_covered = payment.part.up_to <= refundable(payment)
    if payment.status in (ReceiptStatus.REFUNDED, ReceiptStatus.DISPUTED) or not is_covered:
        return replace(payment, part=None)
    until = now + ASKING_AT_MOST
    return replace(payment, part=replace(payment.part, asking_until=until, again_at=until))


def part_done(payment: Payment, now: datetime, *, begun: Payment, total: int = 0) -> Payment:
    """Record that the provider made the partial refund that `begun` has reserved.

    `total` is what the provider has refunded. It may be more than was requested, if the store has
    lost an earlier refund. If a refund failed since then, the reply may be older than that, so all
    refunds are checked.
    """
    part = begun.part
    assert part is not None
    total = max(total, part.up_to)
    if payment.failed_refunds == begun.failed_refunds:
        payment = restated(receipts.partly_refunded(payment, now, amount=total, by=part.by))
    else:
        owed_up_to = max(payment.owed_up_to, total)
        payment = check_soon(replace(payment, owed_up_to=owed_up_to), now)
    is_this = payment.part is not None and payment.part.up_to == part.up_to
    return replace(payment, part=None) if is_this else payment


def part_failed(payment: Payment, now: datetime, *, part: PartRefund, is_refusal: bool) -> Payment:
    """Drop a partial refund if the provider refused it; otherwise schedule a retry."""
    if payment.part != part:
        return payment
    if is_refusal:
        return replace(payment, part=None)
    tries = part.tries + 1
    again_at = _next_try(now, tries=tries)
    return replace(payment, part=replace(part, tries=tries, asking_until=now, again_at=again_at))


def refundable(payment: Payment) -> int:
    """Return the total that can be refunded: the paid amount without the amount that banks claim.

    The person gets the claimed amount from the bank, and a refund would pay that amount twice.
    """
    return payment.amount - claimed_of(payment)


def is_rest_refunded(payment: Payment) -> bool:
    """Return True if a full refund was made, except for a part that a bank claims."""
    is_disputed = payment.status is ReceiptStatus.DISPUTED
    return is_disputed and payment.is_refund_begun and 0 < refundable(payment) <= payment.refunded


def require_no_partial_refund(payment: Payment, now: datetime) -> None:
    """Raise UnderWay while a process may be asking the provider for a partial refund."""
    if payment.part is not None and now < payment.part.asking_until:
        raise UnderWay(payment)


def try_again(payment: Payment, now: datetime) -> Payment:
    """Schedule the next try of a failed refund. Each pause is twice as long as the previous one."""
    tries = payment.refund_tries + 1
    return replace(payment, refund_tries=tries, refund_at=_next_try(now, tries=tries))


def postpone(payment: Payment, until: datetime) -> Payment:
    """Postpone a refund: a call uses the payment, or no provider can be asked here."""
    if payment.part is not None:
        return replace(payment, part=replace(payment.part, again_at=until))
    return replace(payment, refund_at=until)


def _must_be_refundable(payment: Payment, *, also_spent: bool) -> None:
    """Raise NotPossible if the payment was spent, refunded or disputed."""
    if not (also_spent and payment.status is ReceiptStatus.SPENT):
        receipts.require(payment, ReceiptStatus.REFUNDING)


def _next_try(now: datetime, *, tries: int) -> datetime | None:
    """Return the time of the next try, or None if a person has to check the refund."""
    pause = min(REFUND_AGAIN_AFTER * 2**tries, REFUND_AGAIN_AT_MOST)
    return now + pause if tries < REFUND_TRIES_AT_MOST else None


def pending(payment: Payment, now: datetime) -> Payment:
    """Record that an accepted refund can still fail. Its status is checked in a day."""
    return replace(payment, pending=PendingRefund(ask_at=now + PENDING_ASKED_AFTER))


def check_soon(payment: Payment, at: datetime) -> Payment:
    """Schedule a check of all refunds, of which one may have failed."""
    is_check = payment.pending is None or payment.pending.is_check
    return replace(payment, pending=PendingRefund(ask_at=at, is_check=is_check))


def refund_changed(payment: Payment, change: RefundChange, *, at: datetime) -> Payment:
    """Apply an event about one refund: pending, done or failed.

    The money of a failed refund is owed to the person: the payment cannot be used, and an operator
    has to refund it again. If there are several refunds, the provider is asked about all of them.
    """
    if change.id in payment.failed_refunds:
        return payment
    is_of_all = payment.status is ReceiptStatus.REFUNDED and payment.refund_id == change.id
    if not change.stands and is_of_all:
        remaining = 0 if change.amount is None else max(0, payment.refunded - change.amount)
        # Another refund may have been made that the ledger does not know, so check all of them.
        return check_soon(_with_failed(payment, [change], at, remaining=remaining), at)
    if not change.stands:
        return check_soon(payment, at)
    if is_of_all and change.is_done and change.amount == payment.amount:
        return replace(payment, pending=None)
    if change.is_done:
        return payment if payment.pending is None else check_soon(payment, at)
    # The event may be older than the end of the refund, so the provider is asked.
    return check_soon(payment, at) if payment.pending is None and payment.refunded else payment


def with_reported_changes(
    payment: Payment, changes: Iterable[RefundChange], now: datetime, *, before: Payment
) -> Payment:
    """Apply the status of all refunds. `before` is the payment when the provider was asked."""
    if (payment.refunded, payment.failed_refunds) != (before.refunded, before.failed_refunds):
        return payment  # a refund was recorded during the poll, so the answer may lack it
    changes = tuple(changes)
    failed = [one for one in changes if not one.stands]
    listed = sum(one.amount or 0 for one in changes if one.stands)
    remaining = remaining_total(payment, changes, listed=listed)
    payment = receipts.partly_refunded(payment, now, amount=listed)
    if failed:
        payment = _with_failed(payment, failed, now, remaining=min(remaining, payment.refunded))
    # A pending refund that the list does not show yet stays pending.
    is_pending = listed < remaining and payment.is_refund_pending
    is_pending = is_pending or any(one.stands and not one.is_done for one in changes)
    if is_pending and (payment.pending is None or payment.pending.is_check):
        return pending(payment, now)
    return asked_about(payment, now, is_pending=is_pending)


def remaining_total(payment: Payment, changes: Iterable[RefundChange], *, listed: int) -> int:
    """Return the refunded total without the refunds that have failed, in minor units.

    `changes` is the provider's list of refunds, and `listed` the sum of those that did not fail.
    The list may not show the newest refunds yet, so a lower sum does not reduce the total.
    """
    new = [one for one in changes if not one.stands and one.id not in payment.failed_refunds]
    failed = sum(payment.amount if one.amount is None else one.amount for one in new)
    return max(listed, payment.refunded - failed)


def asked_about(payment: Payment, now: datetime, *, is_pending: bool) -> Payment:
    """Schedule the next check in a day if a refund is pending; otherwise end the checks."""
    if payment.pending is None:
        return payment
    if not is_pending:
        return replace(payment, pending=None)
    tries = payment.pending.tries + 1
    is_last = tries >= PENDING_ASKED_AT_MOST
    ask_at = None if is_last else now + PENDING_ASKED_AFTER
    return replace(payment, pending=replace(payment.pending, ask_at=ask_at, tries=tries))


def repaid_manually(payment: Payment, now: datetime) -> Payment:
    """Record that an operator paid back the money of a failed refund in another way."""
    payment = replace(payment, owed_up_to=0)
    if payment.status is not ReceiptStatus.REFUNDING:
        return payment
    return replace(
        payment,
        status=ReceiptStatus.REFUNDED,
        refunded_at=now,
        refund_at=None,
        refund_asked_by=None,
    )


def with_total(payment: Payment, total: int, *, at: datetime | None, now: datetime) -> Payment:
    """Apply the refunded total that the provider stated at `at`, or None if the time is unknown.

    Subtract the refunds that failed at or after `at`. One of them may have been repeated before, so
    check all refunds if the total is then lower.
    """
    failures = payment.failed_refunds.values() if at is not None else ()
    failed = sum(one.amount for one in failures if at is not None and one.at >= at)
    changed = receipts.partly_refunded(payment, now, amount=total - failed)
    if failed and changed.refunded < total:
        changed = check_soon(changed, now)
    return restated(changed)


def _with_failed(
    payment: Payment, failed: Iterable[RefundChange], at: datetime, *, remaining: int
) -> Payment:
    """Record failed refunds. `remaining` is the amount that is still refunded."""
    new = {one.id: FailedRefund(amount=one.amount or payment.amount, at=at) for one in failed}
    owed_up_to = max(payment.owed_up_to, payment.refunded)
    payment = replace(payment, failed_refunds={**new, **payment.failed_refunds})
    if remaining >= payment.refunded:
        return payment
    was_refunded = payment.status is ReceiptStatus.REFUNDED or is_rest_refunded(payment)
    # Keep the name of a requester whose full refund was begun and is not done yet.
    by = payment.refund_asked_by if payment.status is ReceiptStatus.REFUNDING else None
    payment = replace(
        payment, owed_up_to=owed_up_to, refunded=remaining, part=None, refund_asked_by=by
    )
    if not was_refunded:
        return payment
    return replace(
        payment,
        status=ReceiptStatus.REFUNDING,
        is_refund_begun=True,
        pending=None,
        refunded_at=None,
        refund_id=None,
        refund_at=None,
    )
