"""The views of the pages about payments, each with its template.

Leave out every field that the template does not show: a value that is not here cannot leak.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from webapp.pages.views import View
from webapp.pages.views_openers import OwnPage

# "stuck": the refund failed, and the operator must check it. "made": a result was made for the
# payment, and it is unknown whether the result arrived.
Stays = Literal["taken", "made", "spent", "disputed", "by_hand", "under_way", "trouble"]
Over = Literal[
    "refunding",
    "refund_pending",
    "refund_failed",
    "refunded",
    "disputed",
    "dispute_lost",
    "dispute_appealed",
]
Standing = Literal["open", "in_hand", "made", "spent", "stuck", Over]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """A payment. Its price and all its parts are formatted.

    `returned` is a part that was refunded, `owed` one whose refund failed, `disputed` one that a
    bank disputes, `charged_back` one that a bank took back. `is_asked_about`: a bank inquires, but
    takes no money. `id` is the receipt's, `seller` a label, `back_on` the time of the automatic
    refund of an unused payment. `refund_action` is set if the person can ask for a refund: a GET
    shows a confirmation page, a POST refunds.
    """

    id: str
    price: str
    what: str
    tool: str
    tool_title: str | None
    seller: str
    paid_at: datetime
    standing: Standing
    is_test: bool
    returned: str | None = None
    owed: str | None = None
    disputed: str | None = None
    charged_back: str | None = None
    is_asked_about: bool = False
    back_on: datetime | None = None
    refund_action: str | None = None
    receipt_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentsPage(OwnPage):
    """The page of all payments of the viewer, the latest first."""

    template: ClassVar[str] = "payments.html"
    payments: tuple[Paid, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptPage(OwnPage):
    """The receipt of one payment, for printing. `host` is this server's."""

    template: ClassVar[str] = "receipt.html"
    payment: Paid
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotGivenBack(View):
    """The page of a refund that was not possible: the payment is used, or a bank disputes it.

    `receipt` is the id of the receipt.
    """

    template: ClassVar[str] = "not_given_back.html"
    because: Stays
    receipt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentOver(View):
    """The page of a payment that is refunded, being refunded, owed, or disputed by a bank.

    `receipt` is the id of the receipt. `price` is the owed part if a refund failed,
    otherwise the whole price.
    """

    template: ClassVar[str] = "payment_over.html"
    became: Over
    price: str
    what: str
    receipt: str
    is_test: bool
