"""The views of a payment that has arrived."""

from collections.abc import Mapping

from babel import Locale

from flows.payments.claims import state_of
from flows.payments.receipt import Payment
from webapp.pages.views import DonePayment, Late, View
from webapp.pages.views_payments import Over, PaymentOver
from webapp.prices import price_in
from webapp.records.ids import OWNER_TAG_CHARACTERS

OVER: Mapping[str, Over] = {
    "refunding": "refunding",
    "refund pending": "refund_pending",
    "refund failed": "refund_failed",
    "refunded": "refunded",
    "disputed": "disputed",
    "dispute lost": "dispute_lost",
    "dispute appealed": "dispute_appealed",
}


def view_of(payment: Payment, *, server: str, is_late: bool, locale: Locale | None) -> View:
    """Return the view of a payment at its link.

    `is_late`: the question had ended before the payment arrived.
    """
    price, is_test = price_in(locale, payment.price), not payment.is_live
    receipt = payment.id[OWNER_TAG_CHARACTERS:]
    if payment.has_ended:
        return PaymentOver(
            server=server,
            became=OVER[state_of(payment)],
            price=price_in(locale, payment.owed_price) if payment.owed else price,
            what=payment.what,
            receipt=receipt,
            is_test=is_test,
        )
    returned = price_in(locale, payment.refunded_price) if payment.is_part_refunded else None
    if is_late:
        return Late(server=server, kind="payment", price=price, is_test=is_test, returned=returned)
    return DonePayment(
        server=server,
        price=price,
        what=payment.what,
        receipt=receipt,
        is_test=is_test,
        returned=returned,
    )
