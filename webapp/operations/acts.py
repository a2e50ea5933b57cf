"""The changes that operators make: cancel a question, refund a payment, replay a webhook or event.

Risks: a payment is refunded twice, or a refund that failed is reported as made. A refund therefore
checks the state of an earlier refund before it reports that refund.
"""

from flows.elicitation.states import Status
from flows.errors import (
    ElicitError,
    Failed,
    InvalidQuestion,
    NotConfigured,
    NotPossible,
    StoreUnavailable,
)
from flows.payments.money import Money
from flows.payments.receipt import Payment, ReceiptStatus, Refund
from flows.payments.refunds import NoRefunds, UnderWay
from webapp.command import CommandRefused
from webapp.records.values import StoredWebhook
from webapp.service import Service

REASON_CHARACTERS = 500
_AGAIN_WHOLE = "No call can use the payment any more, and the refund is retried automatically."
_AGAIN_PART = (
    "The refund is retried automatically. Running the command again does not refund twice."
)
IN_HAND = "A call is using the payment at the moment: try again in a minute."
_NOTHING = "Nothing was refunded."


async def cancel(service: Service, id: str, *, by: str) -> None:
    """Cancel a question and close its checkout at the provider.

    A repeated cancellation changes nothing.

    Raises:
        CommandRefused: The question has already ended in another way.
    """
    try:
        await service.elicitations.settle(id, Status.CANCELLED, by=by)
    except NotPossible as error:
        if error.status != Status.CANCELLED:
            raise CommandRefused(f"{error} Nothing was cancelled.") from error


async def replay(service: Service, webhook: StoredWebhook) -> StoredWebhook:
    """Process a webhook as if it arrived now. Changes that it already made are not repeated.

    Raises:
        CommandRefused: The provider is not set up here, or did not answer.
    """
    try:
        return await service.webhooks.replay(webhook)
    except NotConfigured as error:
        raise CommandRefused(
            f"{webhook.seller} is not set up here, so this webhook cannot be applied again. Use "
            "the settings of the server that received it; only a sandbox's own server can apply "
            "its webhooks."
        ) from error
    except StoreUnavailable:
        raise
    except ElicitError as error:
        raise CommandRefused(str(error)) from error


async def refund(
    service: Service,
    payment: Payment,
    *,
    reason: str | None,
    also_spent: bool,
    amount: str | None = None,
    by: str | None = None,
) -> str:
    """Refund a payment, and return a sentence about it or an earlier refund.

    With `amount`, refund only up to that total, in the payment's currency, for example "3.00".
    `by` is the audit name of the requester.

    Raises:
        CommandRefused: The payment cannot be refunded, or not now.
    """
    part = payment.price if amount is None else _part(payment, amount)
    if payment.refunded:  # the earlier refund may have failed in the meantime
        await service.kinds.payments.refunds.ask_about(payment)
        payment = await service.kinds.payments.ledger.read(payment.owner, payment.id) or payment
    if (refunded := _refunded_already(payment, part)) is not None:
        return refunded
    is_full = part == payment.price
    refunds, up_to = service.kinds.payments.refunds, None if is_full else part.minor_units
    try:
        made = await refunds.refund(
            payment.owner,
            payment.id,
            reason=None if reason is None else reason[:REASON_CHARACTERS],
            also_with_result=True,
            also_spent=also_spent,
            up_to=up_to,
            by=by,
        )
    except NotPossible as error:
        raise CommandRefused(_why_not(error)) from error
    except (NoRefunds, UnderWay) as error:
        raise CommandRefused(str(error)) from error
    except StoreUnavailable:
        raise
    except ElicitError as error:
        is_refusal = isinstance(error, Failed) and error.is_refusal
        goes_on = _AGAIN_WHOLE if is_full else _NOTHING if is_refusal else _AGAIN_PART
        raise CommandRefused(f"{error} {goes_on}") from error
    after = await service.kinds.payments.ledger.read(payment.owner, payment.id) or payment
    if is_full and not after.is_part_refunded:
        return _given(part, made)
    if is_full:  # only a part was refunded: a bank claims the rest
        part = after.refunded_price
    if after.refunded > part.minor_units:  # another refund was faster
        return f"{after.refunded_price} of {payment.price} was refunded already."
    return f"{_given(part, made)} Nothing else of {payment.price} was refunded."


def _refunded_already(payment: Payment, part: Money) -> str | None:
    if payment.status is ReceiptStatus.REFUNDED and payment.is_refund_pending:
        return f"{payment.price} is being refunded: {payment.seller} has not confirmed it yet."
    if payment.status is ReceiptStatus.REFUNDED:
        return f"{payment.price} was refunded on {payment.refunded_at:%Y-%m-%d}."
    if 0 < part.minor_units <= payment.refunded:
        return f"{payment.refunded_price} of {payment.price} was refunded already."
    return None


def _given(price: Money, refund: Refund) -> str:
    is_pending = refund.status != "succeeded"
    return f"{price} {'is being refunded' if is_pending else 'is refunded'} ({refund.id})."


def _part(payment: Payment, amount: str) -> Money:
    try:
        part = Money(amount, payment.currency)
    except InvalidQuestion as error:
        raise CommandRefused(f"--amount: {error}") from error
    if part.minor_units > payment.amount:
        raise CommandRefused(f"--amount: {payment.price} was paid, and {part} is more.")
    return part


def _why_not(error: NotPossible) -> str:
    match error.status:
        case ReceiptStatus.SPENT:
            return "A call has used the payment: to refund it anyway, add --spent."
        case ReceiptStatus.TAKEN:
            return IN_HAND
        case ReceiptStatus.DISPUTED:
            return "The payment is disputed (chargeback): answer the dispute at the provider."
        case _:
            return str(error)
