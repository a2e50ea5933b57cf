"""Refunds: begun, tried again, of all of a payment or of so much in all.

What could go wrong: two part refunds at once, of which the provider makes both, as each is asked
for under a key of its own. So one is reserved in the ledger before the provider is asked, one at a
time over all processes. What a process that died had reserved is finished before anything else is
refunded: with the same amount and the same key, for nobody knows whether the provider made it.
"""

from datetime import datetime, timedelta

from msgspec.structs import replace

from flows.errors import Failed, NotPossible
from flows.payments import receipt as receipts
from flows.payments.money import Money
from flows.payments.receipt import MADE, PartRefund, Payment, ReceiptStatus

REFUND_AGAIN_AFTER = timedelta(minutes=5)  # the first time; whoever began it may be at it still
REFUND_AGAIN_AT_MOST = timedelta(days=1)
REFUND_TRIES_AT_MOST = 20  # in two weeks; then somebody must look at it
# How long whoever asks the provider is left alone: a refund is three requests at most.
ASKING_AT_MOST = timedelta(minutes=1)


class UnderWay(Failed):
    """Another process makes a refund of this payment at the moment, or within a minute."""

    def __init__(self, payment: Payment) -> None:
        much = str(payment.price)
        if payment.part is not None:
            much = f"{Money.from_minor_units(payment.part.up_to, payment.currency)} of {much}"
        super().__init__(
            f"{much} is being refunded at the moment, or by itself within a minute. Ask again then."
        )


def begin(
    payment: Payment,
    now: datetime,
    *,
    reason: str | None,
    run: str | None = None,
    also_made: bool = False,
    also_spent: bool = False,
    by: str | None = None,
) -> Payment:
    """Before the provider is asked: from here on nobody uses it, whatever becomes of the asking.

    Begun again, it is what was begun first. `also_made` and `also_spent` are an operator's decision
    about what may have been delivered, or was; a tool (`run`) decides about the former, too.
    """
    if payment.status is ReceiptStatus.REFUNDING:
        return payment
    _must_be_refundable(payment, also_spent=also_spent)
    if payment.is_made and not (also_made or also_spent or run is not None):
        raise NotPossible(status=MADE, wanted=ReceiptStatus.REFUNDED)
    return replace(
        payment,
        status=ReceiptStatus.REFUNDING,
        part=None,
        reason=reason,
        refund_by=run,
        refund_asked_by=by,
        is_refund_begun=True,
        refund_at=now + REFUND_AGAIN_AFTER,
        refund_tries=0,
    )


def begin_part(
    payment: Payment,
    now: datetime,
    *,
    up_to: int,
    reason: str | None,
    also_spent: bool = False,
    by: str | None = None,
) -> Payment:
    """Reserve a part refund before the provider is asked: one at a time, over all processes.

    Raises:
        NotPossible: The payment was spent, refunded or disputed.
        UnderWay: Another part refund was begun, and its outcome is not known yet.
    """
    _must_be_refundable(payment, also_spent=also_spent)
    if payment.part is not None:
        raise UnderWay(payment)
    until = now + ASKING_AT_MOST
    part = PartRefund(up_to=up_to, asking_until=until, again_at=until, reason=reason, by=by)
    return replace(payment, part=part)


def resume_part(payment: Payment, now: datetime) -> Payment:
    """Claim the part refund that another process left. Raises UnderWay while that may go on."""
    if payment.part is None:
        return payment
    must_be_quiet(payment, now)
    if payment.status in (ReceiptStatus.REFUNDED, ReceiptStatus.DISPUTED):
        return replace(payment, part=None)
    until = now + ASKING_AT_MOST
    return replace(payment, part=replace(payment.part, asking_until=until, again_at=until))


def part_done(payment: Payment, now: datetime, *, part: PartRefund) -> Payment:
    """Store that the provider made this part refund."""
    payment = receipts.partly_refunded(payment, now, amount=part.up_to, by=part.by)
    is_this = payment.part is not None and payment.part.up_to == part.up_to
    return replace(payment, part=None) if is_this else payment


def part_failed(payment: Payment, now: datetime, *, part: PartRefund, is_refusal: bool) -> Payment:
    """Drop a part refund that the provider refused; one without an answer is tried again later."""
    if payment.part != part:
        return payment
    if is_refusal:
        return replace(payment, part=None)
    tries = part.tries + 1
    again_at = _next_try(now, tries=tries)
    return replace(payment, part=replace(part, tries=tries, asking_until=now, again_at=again_at))


def must_be_quiet(payment: Payment, now: datetime) -> None:
    """Raises UnderWay while a process may be asking the provider for a part refund."""
    if payment.part is not None and now < payment.part.asking_until:
        raise UnderWay(payment)


def try_again(payment: Payment, now: datetime) -> Payment:
    """It could not be given back now: the next try is later, each pause twice the one before."""
    tries = payment.refund_tries + 1
    return replace(payment, refund_tries=tries, refund_at=_next_try(now, tries=tries))


def postpone(payment: Payment, until: datetime) -> Payment:
    """A call uses it at the moment, or nobody can be asked here to give it back."""
    if payment.part is not None:
        return replace(payment, part=replace(payment.part, again_at=until))
    return replace(payment, refund_at=until)


def _must_be_refundable(payment: Payment, *, also_spent: bool) -> None:
    """Raises NotPossible for a payment that was spent, refunded or disputed."""
    if not (also_spent and payment.status is ReceiptStatus.SPENT):
        receipts.require(payment, ReceiptStatus.REFUNDING)


def _next_try(now: datetime, *, tries: int) -> datetime | None:
    """When a refund that failed so often is tried again; None: somebody has to look at it."""
    pause = min(REFUND_AGAIN_AFTER * 2**tries, REFUND_AGAIN_AT_MOST)
    return now + pause if tries < REFUND_TRIES_AT_MOST else None
