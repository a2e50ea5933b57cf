"""The page of payments: what a person has paid, what became of it, and how it is given back.

What could go wrong: an id of somebody else's. So every look-up is by whoever is at the browser and
by id, an address carries no owner, and what is another's is not there at all. A GET changes
nothing.
"""

import logging
from http import HTTPStatus
from typing import Any, TypeAlias

from babel import Locale
from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, RawBody

from flows.errors import Failed, NotPossible
from flows.payments.receipt import Payment, ReceiptStatus
from webapp.http.requests import cookies_of, parsed
from webapp.pages.locale import price_in
from webapp.pages.views_payments import NotGivenBack, Paid, PaymentsPage, Standing, Stays
from webapp.payments.refunds import NoRefunds
from webapp.records.ids import OWNER_TAG_CHARACTERS
from webapp.routes.answers import Answers, see_other
from webapp.routes.closed import closed
from webapp.routes.fields import refuse_form
from webapp.routes.openers import (
    SIGN_IN,
    sign_in_button,
    sign_in_targets,
    with_cookie,
)
from webapp.service import Service

HERE = "/payments"
ASKED_BACK = "the person asked for it"
_Asked: TypeAlias = Request[Any, Any, Any]
_log = logging.getLogger(__name__)


@get(HERE)
async def payments(
    request: _Asked, service: NamedDependency[Service], answers: NamedDependency[Answers]
) -> Response[Any]:
    """All that whoever looks has paid."""
    viewer = await service.identity.viewer(request.scope, cookies_of(request))
    if viewer is None:
        return closed(request, service, answers, of="payments")
    cookie, cookies = with_cookie(request, service)
    cookies += await service.identity.kept_up(cookies_of(request))
    found = await service.kinds.payments.ledger.all(owner=viewer.owner)
    found.sort(key=lambda payment: (payment.paid_at, payment.id), reverse=True)
    has_session = viewer.session is not None
    locale = answers.locale(request)
    view = PaymentsPage(
        server=answers.server,
        viewer=viewer.label,
        sign_out_csrf=service.browser.csrf(cookie, subject=SIGN_IN) if has_session else None,
        sign_in=None if has_session else sign_in_button(service, back=HERE, cookie=cookie),
        now=service.clock(),
        payments=tuple([_paid(one, service, cookie=cookie, locale=locale) for one in found]),
    )
    return answers.page(view, form_targets=sign_in_targets(service), cookies=cookies)


@post(HERE + "/{id:str}/refund", status_code=HTTPStatus.SEE_OTHER)
async def request_refund(
    request: _Asked,
    *,
    id: FromPath[str],
    body: RawBody,
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """Give the money back; pressed again, it is back already."""
    viewer = await service.identity.viewer(request.scope, cookies_of(request))
    if viewer is None:
        return closed(request, service, answers, of="payments")
    payment = await service.kinds.payments.ledger.read(viewer.owner, viewer.owner + id)
    if payment is None:
        raise NotFoundException
    refused = refuse_form(parsed(body), request, service, answers, subject=payment.id)
    if refused is not None:
        return refused
    if payment.status is not ReceiptStatus.REFUNDED:
        try:
            await service.kinds.payments.refunds.refund(
                payment.owner, payment.id, reason=ASKED_BACK
            )
        except (NotPossible, Failed) as error:
            view = NotGivenBack(server=answers.server, because=_because(error), receipt=id)
            if view.because != "trouble":
                return answers.page(view, status=HTTPStatus.CONFLICT)
            _log.warning("payment.not_refunded", extra={"id": payment.id, "why": str(error)})
            return answers.page(view, status=HTTPStatus.BAD_GATEWAY)
    return see_other(f"{HERE}#{id}")


def _because(error: NotPossible | Failed) -> Stays:
    match error:
        case NotPossible(status=ReceiptStatus.TAKEN):
            return "taken"
        case NotPossible(status=ReceiptStatus.DISPUTED):
            return "disputed"
        case NotPossible():
            return "spent"
        case NoRefunds():
            return "by_hand"
        case _:
            return "trouble"


def _paid(payment: Payment, service: Service, *, cookie: str, locale: Locale | None) -> Paid:
    seller = service.kinds.payments.seller(payment.seller)
    tail = payment.id[OWNER_TAG_CHARACTERS:]
    is_open = payment.status is ReceiptStatus.OPEN
    can_be_asked = is_open and service.kinds.payments.refunds.is_possible(payment)
    return Paid(
        id=tail,
        price=price_in(locale, payment.price),
        what=payment.what,
        tool=payment.tool,
        seller=payment.seller if seller is None else seller.label,
        paid_at=payment.paid_at,
        standing=_standing(payment),
        csrf=service.browser.csrf(cookie, subject=payment.id),
        is_test=not payment.is_live,
        returned=price_in(locale, payment.refunded_price) if payment.is_part_refunded else None,
        back_on=payment.refund_at if is_open else None,
        refund_action=f"{HERE}/{tail}/refund" if can_be_asked else None,
    )


def _standing(payment: Payment) -> Standing:
    match payment.status:
        case ReceiptStatus.OPEN | ReceiptStatus.TAKEN:
            return "open"
        case ReceiptStatus.SPENT:
            return "spent"
        case ReceiptStatus.REFUNDING:
            return "refunding" if payment.refund_at is not None else "stuck"
        case ReceiptStatus.REFUNDED:
            return "refunded"
        case ReceiptStatus.DISPUTED:
            return "disputed"
