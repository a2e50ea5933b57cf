"""The page of payments: what a person has paid, its state, and how to get a refund.

Risks: a request with the id of somebody else's payment. So every look-up uses the viewer and the
id, addresses contain no owner, and another person's payment counts as not found. A GET changes
nothing.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from babel import Locale
from litestar import Response, post, route
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from flows.errors import Failed, NotPossible
from flows.payments import receipt as receipts
from flows.payments.claims import claimed_of, claimed_price, stage_of, state_of
from flows.payments.money import Money
from flows.payments.receipt import Dispute, Payment, ReceiptStatus
from flows.payments.refunds import NoRefunds, UnderWay
from webapp.http.parts import READ
from webapp.identity.identity import Viewer
from webapp.pages.builder_forms import OVER
from webapp.pages.views_openers import SecondLook
from webapp.pages.views_own import (
    NotGivenBack,
    Paid,
    PaymentsPage,
    PaymentStanding,
    ReceiptPage,
    Stays,
)
from webapp.prices import price_in
from webapp.records.ids import OWNER_TAG_CHARACTERS
from webapp.routes.answers import see_other
from webapp.routes.own_pages import known_viewer, own_page, paged, place_in, updates, viewer_fields
from webapp.routes.page_request import CurrentPage, PageRequest

HERE = "/payments"
ASKED_BACK = "the person asked for it"
# The filters of the list, each with the statuses that it shows.
_SHOWN: Mapping[str, Collection[str]] = {
    "unused": {ReceiptStatus.OPEN, ReceiptStatus.TAKEN},
    "used": {ReceiptStatus.SPENT},
    "refunded": {ReceiptStatus.REFUNDING, ReceiptStatus.REFUNDED},
    "disputed": {ReceiptStatus.DISPUTED},
}
_log = logging.getLogger(__name__)


@route(HERE, http_method=READ)
async def payments(page: CurrentPage) -> Response[Any]:
    """Show the payments of the viewer, the latest first."""
    viewer = await known_viewer(page, of="payments")
    found = await _latest_first(page, viewer.owner)
    show = page.last("show")
    chosen = [one for one in found if show not in _SHOWN or one.status in _SHOWN[show]]
    part, paging = paged(page, chosen, back=HERE, shows=("all", *_SHOWN))
    view = PaymentsPage(
        **viewer_fields(page, viewer, back=HERE),
        payments=await _shown(page, part),
        paging=paging,
        updates=updates(page, "payments", found),
    )
    return await own_page(page, view)


@route(HERE + "/{id:str}", http_method=READ)
async def receipt(page: CurrentPage, id: FromPath[str]) -> Response[Any]:
    """Show the receipt of one payment, for printing."""
    viewer = await known_viewer(page, of="payments")
    (payment,) = await _shown(page, [await _found(page, viewer, id)])
    view = ReceiptPage(
        **viewer_fields(page, viewer, back=f"{HERE}/{id}"),
        payment=payment,
        host=urlsplit(page.service.public_url).netloc,
    )
    return await own_page(page, view)


@route(HERE + "/{id:str}/refund", http_method=READ)
async def look_before_refund(page: CurrentPage, id: FromPath[str]) -> Response[Any]:
    """Show what a refund changes, or redirect if the payment cannot be refunded here."""
    viewer = await known_viewer(page, of="payments")
    payment = await _found(page, viewer, id)
    (paid,) = await _shown(page, [payment])
    if paid.refund_action is None:
        return see_other(await _place(page, payment))
    view = SecondLook(
        server=page.answers.server,
        for_user=viewer.is_user,
        act="refund",
        what=paid.price,
        about=paid.what,
        action=paid.refund_action,
        csrf=page.csrf(payment.id),
        back=await _place(page, payment),
    )
    return page.answers.page(view, cookies=page.new_cookies)


@post(HERE + "/{id:str}/refund", status_code=HTTPStatus.SEE_OTHER)
async def request_refund(page: CurrentPage, id: FromPath[str]) -> Response[Any]:
    """Refund a payment. If the payment is already refunded, only redirect."""
    viewer = await known_viewer(page, of="payments")
    payment = await _found(page, viewer, id)
    page.must_be_form_about(payment.id)
    if payment.status is not ReceiptStatus.REFUNDED:
        refunds = page.service.kinds.payments.refunds
        try:
            await refunds.refund(payment.owner, payment.id, reason=ASKED_BACK)
        except (NotPossible, Failed) as error:
            view = NotGivenBack(
                server=page.answers.server,
                for_user=viewer.is_user,
                because=_reason_of(error),
                receipt=id,
            )
            if view.because != "trouble":
                return page.answers.page(view, status=HTTPStatus.CONFLICT)
            _log.warning("payment.not_refunded", extra={"id": payment.id, "why": str(error)})
            return page.answers.page(view, status=HTTPStatus.BAD_GATEWAY)
    return see_other(await _place(page, payment))


async def _latest_first(page: PageRequest, owner: str) -> list[Payment]:
    found = await page.service.kinds.payments.ledger.all(owner=owner)
    return sorted(found, key=lambda payment: (payment.paid_at, payment.id), reverse=True)


async def _place(page: PageRequest, payment: Payment) -> str:
    """Return the address of the payment in the list of all payments."""
    found = await _latest_first(page, payment.owner)
    return place_in([one.id for one in found], payment.id, back=HERE)


async def _found(page: PageRequest, viewer: Viewer, id: str) -> Payment:
    owner = viewer.owner
    payment = await page.service.kinds.payments.ledger.read(owner, owner + id)
    if payment is None:
        raise NotFoundException
    return payment


def _reason_of(error: NotPossible | Failed) -> Stays:
    match error:
        case NotPossible(status=ReceiptStatus.TAKEN):
            return "taken"
        case NotPossible(status=receipts.MADE):
            return "made"
        case NotPossible(status=ReceiptStatus.DISPUTED):
            return "disputed"
        case NotPossible():
            return "spent"
        case NoRefunds():
            return "by_hand"
        case UnderWay():
            return "under_way"
        case _:
            return "trouble"


async def _shown(page: PageRequest, payments: Sequence[Payment]) -> tuple[Paid, ...]:
    locale = page.answers.locale(page.request)
    return tuple([await _paid(page, one, locale=locale) for one in payments])


async def _paid(page: PageRequest, payment: Payment, *, locale: Locale | None) -> Paid:
    payments = page.service.kinds.payments
    seller = payments.seller(payment.seller)
    tail = payment.id[OWNER_TAG_CHARACTERS:]
    is_in_hand = await payments.ledger.is_in_hand(payment)
    standing = _standing(payment, is_in_hand=is_in_hand)
    can_be_asked = standing == "open" and payments.refunds.is_possible(payment)
    return Paid(
        id=tail,
        price=price_in(locale, payment.price),
        what=payment.what,
        tool=payment.tool,
        tool_title=payment.tool_title,
        seller=payment.seller if seller is None else seller.label,
        paid_at=payment.paid_at,
        standing=standing,
        is_test=not payment.is_live,
        **_parts(payment, locale),
        is_asked_about=stage_of(payment) is Dispute.INQUIRY,
        back_on=payment.refund_due_at if standing == "open" else None,
        refund_action=f"{HERE}/{tail}/refund" if can_be_asked else None,
        receipt_url=f"{HERE}/{tail}",
    )


def _parts(payment: Payment, locale: Locale | None) -> dict[str, str]:
    """Return the formatted amounts of the parts of a payment."""
    parts: dict[str, Money] = {}
    if payment.is_part_refunded:
        parts["returned"] = payment.refunded_price
    if payment.owed:
        parts["owed"] = payment.owed_price
    if claimed_of(payment) and payment.status is not ReceiptStatus.DISPUTED:
        is_open = stage_of(payment) in (Dispute.OPEN, Dispute.APPEALED)
        parts["disputed" if is_open else "charged_back"] = claimed_price(payment)
    return {name: price_in(locale, price) for name, price in parts.items()}


def _standing(payment: Payment, *, is_in_hand: bool) -> PaymentStanding:
    match payment.status:
        case ReceiptStatus.OPEN | ReceiptStatus.TAKEN if is_in_hand:
            return "in_hand"
        case ReceiptStatus.OPEN | ReceiptStatus.TAKEN:
            return "made" if payment.has_ready_result else "open"
        case ReceiptStatus.SPENT:
            return "spent"
        case ReceiptStatus.REFUNDING if payment.refund_at is None and not payment.owed:
            return "stuck"
        case _:
            return OVER[state_of(payment)]
