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
    """A payment; its price and each part of it are formatted.

    `returned` is a part that was refunded, `owed` one whose refund failed, `disputed` one that a
    bank claims, `charged_back` one that it has taken. `is_asked_about`: by a bank, which takes
    nothing. `id` is its receipt, `seller` a label, `back_on` when it is refunded if nobody uses it.
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
    owed: str | None = None
    disputed: str | None = None
    charged_back: str | None = None
    is_asked_about: bool = False
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
    """It was paid, and the money is back, or on its way, or owed, or a bank claims or has it.

    `receipt` is our id of the receipt, `price` what is owed where a refund failed, else all of it.
    """

    template: ClassVar[str] = "payment_over.html"
    became: Over
    price: str
    what: str
    receipt: str
    is_test: bool
