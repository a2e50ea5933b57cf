"""The routes of payments: the payments of a program's users, and refunds.

Risks: money is refunded twice. So a refund is identified by its payment, and a repeated request is
the same refund. A partial refund names the total to be refunded, so repeating it adds nothing.
"""

from http import HTTPStatus

from litestar import get, post
from litestar.params import FromPath, FromQuery, JSONBody

from flows.elicitation.tool_call import client_of
from flows.errors import ElicitError, Failed, InvalidQuestion, NotPossible
from flows.payments.money import Money
from flows.payments.receipt import Payment, ReceiptStatus
from flows.payments.refunds import NoRefunds, UnderWay
from webapp.api.access import CurrentRequester, Requester, requires
from webapp.api.asking import (
    application_of,
    caller_of,
    owner_for,
    run_call_of,
)
from webapp.api.paging import LISTED_AT_MOST, After, Limit, page_of
from webapp.api.representations import PaymentData, PaymentPage, WantedRefund, Whose
from webapp.api.states import to_payment_data
from webapp.identity.api_keys import KeyScope

_ASKERS = [requires(KeyScope.ASK)]


class NoSuchPayment(ElicitError):
    """This program asked for no payment with this id."""

    name = "NO_SUCH_PAYMENT"
    http_status = 404

    def __init__(self) -> None:
        super().__init__(
            "This program has no payment with this id: GET /api/payments lists its payments."
        )


class NotRefundable(ElicitError):
    """The payment cannot be refunded, at least not at the moment. The message says what to do."""

    name = "NOT_REFUNDABLE"
    http_status = 409


class RefundNotDone(ElicitError):
    """The provider could not be reached for a refund, or did not confirm the refund."""

    name = "REFUND_NOT_DONE"
    http_status = 502


@get("/api/payments", guards=_ASKERS)
async def list_payments(
    *,
    requester: CurrentRequester,
    user: Whose = None,
    status: FromQuery[ReceiptStatus | None] = None,
    after: After = None,
    limit: Limit = LISTED_AT_MOST,
) -> PaymentPage:
    """List a user's payments, oldest first. Pass the `after` of a page to get the next page.

    A short page can still have more pages after it. A key for a single user needs no `user`.
    """
    found, last = await page_of(
        requester.service,
        Payment,
        owner=owner_for(requester, user),
        sees=lambda payment: _is_seen_by(requester, payment),
        status=status,
        after=after,
        limit=limit,
    )
    return PaymentPage(payments=[to_payment_data(one) for one in found], after=last)


@get("/api/payments/{payment_id:str}", guards=_ASKERS)
async def read_payment(
    payment_id: FromPath[str], requester: CurrentRequester, user: Whose = None
) -> PaymentData:
    """Return a payment in its current state."""
    return to_payment_data(await _payment_of(requester, payment_id, user=user))


@post(
    "/api/payments/{payment_id:str}/refund",
    guards=[requires(KeyScope.REFUND)],
    status_code=HTTPStatus.OK,
)
async def refund_payment(
    *,
    payment_id: FromPath[str],
    data: JSONBody[WantedRefund],
    requester: CurrentRequester,
    user: Whose = None,
) -> PaymentData:
    """Refund a payment. A repeated request is the same refund. The key needs the scope `refund`.

    If the provider cannot be reached, the response is 502 and the server retries automatically.
    """
    found = await _payment_of(requester, payment_id, user=user)
    part = found.price if data.amount is None else _part(found, data.amount)
    if found.status is ReceiptStatus.REFUNDED or part.minor_units <= found.refunded:
        return to_payment_data(found)
    is_full = part == found.price
    try:
        await requester.service.kinds.payments.refunds.refund(
            found.owner,
            found.id,
            reason=data.reason,
            run=await _run_of(requester, found, data.run, user=user),
            also_with_result=True,
            also_spent=data.also_spent,
            by=requester.name,
            up_to=None if is_full else part.minor_units,
        )
    except NotPossible as error:
        raise NotRefundable(_why_not(error)) from error
    except (NoRefunds, UnderWay) as error:
        raise NotRefundable(str(error)) from error
    except Failed as error:
        has_ended = error.is_refusal and not is_full
        goes_on = "Nothing was refunded." if has_ended else "The refund is retried automatically."
        raise RefundNotDone(f"{error} {goes_on}") from error
    return to_payment_data(await _payment_of(requester, payment_id, user=user))


async def _payment_of(requester: Requester, id: str, *, user: str | None) -> Payment:
    owner = owner_for(requester, user)
    found = await requester.service.kinds.payments.ledger.read(owner, id)
    if found is None or not _is_seen_by(requester, found):
        raise NoSuchPayment
    return found


async def _run_of(
    requester: Requester, found: Payment, run: str | None, *, user: str | None
) -> str | None:
    """Return the id of the run with this name if the run asked for the payment, else None."""
    if run is None:
        return None
    caller = caller_of(requester, user)
    current = await run_call_of(requester.service, requester.program, caller, run=run).run.load()
    has_asked = any(asked.elicitation_id == found.elicitation_id for asked in current.asked)
    return current.id if has_asked else None


def _is_seen_by(requester: Requester, found: Payment) -> bool:
    """Return True if the requester's program asked for this payment."""
    asked_by = application_of(requester.service), client_of(requester.program.program)
    return (found.server, found.tool) == asked_by


def _part(found: Payment, amount: str) -> Money:
    """Parse `amount` as a part of the payment. Raises InvalidQuestion."""
    part = Money(amount, found.currency)
    if not 0 < part.minor_units <= found.amount:
        raise InvalidQuestion(
            f"amount: {found.price} was paid, and {part} is not a valid part of that amount."
        )
    return part


def _why_not(error: NotPossible) -> str:
    match error.status:
        case ReceiptStatus.SPENT:
            return "A run has already used this payment: to refund it anyway, send also_spent."
        case ReceiptStatus.TAKEN:
            return (
                "A run of this program is using the payment, or another request is claiming it at "
                "the moment. Send this request again in half a minute; the run itself can refund "
                "the payment with `run`."
            )
        case ReceiptStatus.DISPUTED:
            return "The payment is disputed (chargeback): answer the dispute at the provider."
        case _:
            return str(error)
