"""What the pages about payments are told: one value for each, and its template.

A field that a template does not show is a field too many: what is not here cannot leak into a page.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from webapp.pages.views import View
from webapp.pages.views_openers import OwnPage

# "stuck": it could not be given back, and somebody who runs the server must look at it.
# "made": a result was made for it, and nobody knows whether that arrived.
Stays = Literal["taken", "made", "spent", "disputed", "by_hand", "under_way", "trouble"]
Standing = Literal["open", "in_hand", "made", "spent", "refunding", "stuck", "refunded", "disputed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """A payment; `price` and `returned`, a part that was given back, are formatted.

    `id` is its receipt, `seller` a label, `back_on` when it is given back if nobody uses it.
    `refund_action`, with its `csrf`, is there where the money can be asked back.
    """

    id: str
    price: str
    what: str
    tool: str
    seller: str
    paid_at: datetime
    standing: Standing
    csrf: str
    is_test: bool
    returned: str | None = None
    back_on: datetime | None = None
    refund_action: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentsPage(OwnPage):
    """All that the person who looks has paid, the latest first."""

    template: ClassVar[str] = "payments.html"
    payments: tuple[Paid, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotGivenBack(View):
    """The money was asked back, and stays: what it paid for is used, or a bank has it.

    `receipt` is our id of the receipt.
    """

    template: ClassVar[str] = "not_given_back.html"
    because: Stays
    receipt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentOver(View):
    """It was paid, and the money is back, or on its way, or a bank has claimed it."""

    template: ClassVar[str] = "payment_over.html"
    became: Literal["refunding", "refunded", "disputed"]
    price: str
    what: str
    is_test: bool
