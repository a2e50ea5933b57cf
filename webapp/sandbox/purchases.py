"""What the sandbox's payment pages show of a purchase, whichever provider it is at."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from flows.payments.money import Money
from webapp.sandbox.deliveries import Deliveries


class PurchaseStanding(StrEnum):
    """Each has a page of its own, under this name."""

    OPEN = "pay"
    AGREED = "pay_agreed"  # the person did their part, and the shop has yet to take the money
    AWAITED = "pay_awaited"
    PAID = "paid"
    FAILED = "pay_failed"
    OVER = "pay_expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class PurchaseWay:
    """A button: what it does, and what it says."""

    button: str
    label: str
    look: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """What there is to pay, or was.

    `ways` are those to pay while it is open; once it is paid, what its seller could do. `notes`
    are what else became of it.
    """

    id: str
    provider: str
    price: Money
    what: tuple[str, ...]
    back_url: str
    cancel_url: str | None
    until: datetime
    standing: PurchaseStanding
    ways: tuple[PurchaseWay, ...] = ()
    was_declined: bool = False
    notes: tuple[str, ...] = ()


class Counter(Protocol):
    """A provider's side of the pages."""

    @property
    def deliveries(self) -> Deliveries: ...

    def purchase(self, id: str) -> Purchase | None:
        """As it is now; None: it is not one of ours."""
        ...

    def press(self, id: str, button: str) -> str | None:
        """Do what the button says. Where the browser goes then; None: it stays on the page."""
        ...
