"""What a person is shown of a payment that has arrived, whatever became of it."""

from collections.abc import Mapping
from typing import Literal

from babel import Locale

from flows.payments.receipt import Payment, ReceiptStatus
from webapp.pages.locale import price_in
from webapp.pages.views import DonePayment, Late, View
from webapp.pages.views_payments import PaymentOver
from webapp.records.ids import OWNER_TAG_CHARACTERS

OVER: Mapping[ReceiptStatus, Literal["refunding", "refunded", "disputed"]] = {
    ReceiptStatus.REFUNDING: "refunding",
    ReceiptStatus.REFUNDED: "refunded",
    ReceiptStatus.DISPUTED: "disputed",
}


def view_of(payment: Payment, *, server: str, is_late: bool, locale: Locale | None) -> View:
    """At the link that it was paid by; `is_late`: nobody waited any more when it arrived."""
    price, is_test = price_in(locale, payment.price), not payment.is_live
    if payment.status in OVER:
        return PaymentOver(
            server=server,
            became=OVER[payment.status],
            price=price,
            what=payment.what,
            is_test=is_test,
        )
    returned = price_in(locale, payment.refunded_price) if payment.is_part_refunded else None
    if is_late:
        return Late(server=server, kind="payment", price=price, is_test=is_test, returned=returned)
    return DonePayment(
        server=server,
        price=price,
        what=payment.what,
        receipt=payment.id[OWNER_TAG_CHARACTERS:],
        is_test=is_test,
        returned=returned,
    )
