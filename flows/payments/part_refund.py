"""Part refunds: so much of a payment in all, and one at a time over all processes.

What could go wrong: two part refunds at once, of which the provider makes both, as each is asked
for under a key of its own. So one is reserved in the ledger before the provider is asked. What a
process that died had reserved is finished before anything else is refunded: with the same amount
and the same key, for nobody knows whether the provider made it.
"""

from datetime import datetime

from msgspec.structs import replace

from flows.errors import Failed
from flows.payments import receipt as receipts
from flows.payments.money import Money
from flows.payments.receipt import ASKING_AT_MOST, PartRefund, Payment, ReceiptStatus


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
    receipts.must_be_refundable(payment, also_spent=also_spent)
    if payment.part is not None:
        raise UnderWay(payment)
    until = now + ASKING_AT_MOST
    part = PartRefund(up_to=up_to, asking_until=until, again_at=until, reason=reason, by=by)
    return replace(payment, part=part)


def resume(payment: Payment, now: datetime) -> Payment:
    """Claim the part refund that another process left. Raises UnderWay while that may go on."""
    if payment.part is None:
        return payment
    must_be_quiet(payment, now)
    if payment.status in (ReceiptStatus.REFUNDED, ReceiptStatus.DISPUTED):
        return replace(payment, part=None)
    until = now + ASKING_AT_MOST
    return replace(payment, part=replace(payment.part, asking_until=until, again_at=until))


def done(payment: Payment, now: datetime, *, part: PartRefund) -> Payment:
    """Store that the provider made this part refund."""
    payment = receipts.partly_refunded(payment, now, amount=part.up_to, by=part.by)
    is_this = payment.part is not None and payment.part.up_to == part.up_to
    return replace(payment, part=None) if is_this else payment


def failed(payment: Payment, now: datetime, *, part: PartRefund, is_refusal: bool) -> Payment:
    """Drop a part refund that the provider refused; one without an answer is tried again later."""
    if payment.part != part:
        return payment
    if is_refusal:
        return replace(payment, part=None)
    tries = part.tries + 1
    again_at = receipts.next_try(now, tries=tries)
    return replace(payment, part=replace(part, tries=tries, asking_until=now, again_at=again_at))


def must_be_quiet(payment: Payment, now: datetime) -> None:
    """Raises UnderWay while a process may be asking the provider for a part refund."""
    if payment.part is not None and now < payment.part.asking_until:
        raise UnderWay(payment)
