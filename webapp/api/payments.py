"""The routes of payments: what a program's users paid, and refunds.

What could go wrong: money that goes back twice. So a refund is asked for by the payment, of which
there is one; asked for again it is the same, and of a part it is said how much is refunded in all.
"""

from http import HTTPStatus

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from flows.errors import ElicitError, Failed, InvalidQuestion, NotPossible
from flows.payments.money import Money
from flows.payments.receipt import Payment, ReceiptStatus
from flows.payments.refunds import UnderWay
from webapp.api.access import Requester, holds
from webapp.api.asking import application_of, client_of, owner_for
from webapp.api.paging import LISTED_AT_MOST, After, Limit, page_of
from webapp.api.representations import PaymentPage, ToldPayment, WantedRefund, Whose
from webapp.api.states import told_payment
from webapp.identity.api_keys import KeyScope
from webapp.payments.refunds import NoRefunds
from webapp.service import Service

_ASKERS = [holds(KeyScope.ASK)]


class NoSuchPayment(ElicitError):
    """An id that is none of a payment which this program asked for."""

    name = "NO_SUCH_PAYMENT"
    http_status = 404

    def __init__(self) -> None:
        super().__init__(
            "There is no payment with this id that this program asked for: GET /api/payments lists "
            "those that there are."
        )


class NotRefundable(ElicitError):
    """A payment that cannot be refunded, or not now; the message says what can be done."""

    name = "NOT_REFUNDABLE"
    http_status = 409


class RefundNotDone(ElicitError):
    """The provider could not be asked for a refund, or did not say that it is done."""

    name = "REFUND_NOT_DONE"
    http_status = 502


@get("/api/payments", guards=_ASKERS)
async def list_payments(
    *,
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
    user: Whose = None,
    status: FromQuery[ReceiptStatus | None] = None,
    after: After = None,
    limit: Limit = LISTED_AT_MOST,
) -> PaymentPage:
    """What a user has paid, the oldest first; `after` of a page goes on behind it.

    A page may be short and have more behind it all the same. A key for one user needs no `user`.
    """
    found, last = await page_of(
        service,
        Payment,
        owner=owner_for(service, requester, user),
        sees=lambda payment: _is_seen_by(service, requester, payment),
        status=status,
        after=after,
        limit=limit,
    )
    return PaymentPage(payments=[told_payment(one) for one in found], after=last)


@get("/api/payments/{payment_id:str}", guards=_ASKERS)
async def read_payment(
    payment_id: FromPath[str],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
    user: Whose = None,
) -> ToldPayment:
    """One payment, as it stands."""
    return told_payment(await _payment_of(service, requester, payment_id, user=user))


@post(
    "/api/payments/{payment_id:str}/refund",
    guards=[holds(KeyScope.REFUND)],
    status_code=HTTPStatus.OK,
)
async def refund_payment(
    *,
    payment_id: FromPath[str],
    data: JSONBody[WantedRefund],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
    user: Whose = None,
) -> ToldPayment:
    """Refund it; sent again, it is the same refund. For a key with the scope `refund`.

    Where the provider cannot be asked now the answer is 502, and it is tried again by itself.
    """
    found = await _payment_of(service, requester, payment_id, user=user)
    part = found.price if data.amount is None else _part(found, data.amount)
    if found.status is ReceiptStatus.REFUNDED or part.minor_units <= found.refunded:
        return told_payment(found)
    is_whole = part == found.price
    try:
        await service.kinds.payments.refunds.refund(
            found.owner,
            found.id,
            reason=data.reason,
            also_made=True,
            also_spent=data.also_spent,
            by=requester.name,
            up_to=None if is_whole else part.minor_units,
        )
    except NotPossible as error:
        raise NotRefundable(_why_not(error)) from error
    except (NoRefunds, UnderWay) as error:
        raise NotRefundable(str(error)) from error
    except Failed as error:
        is_over = error.is_refusal and not is_whole
        goes_on = "Nothing was refunded." if is_over else "It is tried again by itself."
        raise RefundNotDone(f"{error} {goes_on}") from error
    return told_payment(await _payment_of(service, requester, payment_id, user=user))


async def _payment_of(
    service: Service, requester: Requester, id: str, *, user: str | None
) -> Payment:
    owner = owner_for(service, requester, user)
    found = await service.kinds.payments.ledger.read(owner, id)
    if found is None or not _is_seen_by(service, requester, found):
        raise NoSuchPayment
    return found


def _is_seen_by(service: Service, requester: Requester, found: Payment) -> bool:
    """Whether its program asked for it."""
    asked_by = application_of(service), client_of(requester.program.program)
    return (found.server, found.tool) == asked_by


def _part(found: Payment, amount: str) -> Money:
    """Raises InvalidQuestion for what is no amount of this payment's."""
    part = Money(amount, found.currency)
    if not 0 < part.minor_units <= found.amount:
        raise InvalidQuestion(f"amount: {found.price} was paid, and {part} is no part of it.")
    return part


def _why_not(error: NotPossible) -> str:
    match error.status:
        case ReceiptStatus.SPENT:
            return "Its answer was taken: send also_spent, and it is refunded all the same."
        case ReceiptStatus.TAKEN:
            return "Another request is taking its answer at the moment: send this again."
        case ReceiptStatus.DISPUTED:
            return "A bank has claimed it back: answer that at the provider."
        case _:
            return str(error)
