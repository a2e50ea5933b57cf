"""The sales of one provider: their states, their buttons, and the events about them.

No function here awaits, so no other code sees half of a change.

Risks: a sale is paid twice, or paid after its end. So a button works only while the sale is in the
state that the button needs, in every tab.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from babel import Locale

from flows.elicitation.states import Json
from flows.payments.money import Money
from flows.payments.receipt import Dispute
from webapp.prices import price_in
from webapp.sandbox.checkout.deliveries import Deliveries, Outside, SandboxEvent


def shown(price: Money) -> str:
    """Return a price as our own English pages write it."""
    return price_in(Locale("en"), price)


class SaleState(StrEnum):
    """A sale's state. Its value is the name of its page."""

    OPEN = "pay"
    AGREED = "pay_agreed"  # the person has approved, and the shop has not captured the money yet
    AWAITED = "pay_awaited"
    PAID = "paid"
    FAILED = "pay_failed"
    OVER = "pay_expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaleRefund:
    """A refund. `about` has the provider's own fields, as the request sent them."""

    id: str
    price: Money
    made_at: datetime
    about: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sale:
    """A sale. `taken_at` is when the sale was paid, or when a pending payment was started."""

    id: str
    price: Money
    what: tuple[str, ...]
    back_url: str
    cancel_url: str | None
    made_at: datetime
    until: datetime
    state: SaleState = SaleState.OPEN
    was_declined: bool = False
    taken_at: datetime | None = None
    refunds: tuple[SaleRefund, ...] = ()
    dispute: Dispute | None = None
    disputed_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        return self.state is SaleState.OPEN

    @property
    def is_paid(self) -> bool:
        return self.state is SaleState.PAID

    @property
    def refunded(self) -> int:
        """The refunded amount in minor units."""
        return sum(refund.price.minor_units for refund in self.refunds)

    @property
    def remaining_units(self) -> int:
        """The amount in minor units that can be refunded, below zero after an excessive refund."""
        return self.price.minor_units - self.refunded


P = TypeVar("P", bound=Sale)
Own_contra = TypeVar("Own_contra", bound=Sale, contravariant=True)
CANCEL = "cancel"
_TAKEN = (SaleState.AWAITED, SaleState.PAID)
# The effect of a button on a sale and the sales of its provider.
Act: TypeAlias = Callable[["Sales[Any]", Any], object]


def is_open(sale: Sale) -> bool:
    return sale.is_open


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A button on the page of a sale, which works while `when` is true.

    A press sends the browser back to the shop, unless `stays`. A button without a label is part of
    the page's own text, or not shown. `dispute` is the stage that the button sets, if any.
    """

    name: str
    act: Act
    label: str = ""
    look: str = ""
    when: Callable[[Any], bool] = is_open
    stays: bool = False
    dispute: Dispute | None = None


class Vendor(Protocol[Own_contra]):
    """The behaviour of one provider."""

    @property
    def label(self) -> str: ...

    @property
    def buttons(self) -> tuple[Button, ...]: ...

    def refund_id(self) -> str: ...

    def notes(self, sale: Own_contra, /) -> Iterable[str]:
        """Return notes for the page about events of the sale other than refunds."""
        ...

    def event(self, before: Own_contra, after: Own_contra, /) -> SandboxEvent | None:
        """Return the event that reports a change, or None for an unreported change."""
        ...

    def headers(self, event: SandboxEvent, /) -> Sequence[tuple[str, str]]:
        """Return the headers of an event. Called for each attempt."""
        ...


class Sales(Generic[P]):
    """The sales of one provider, in the memory of this process.

    With `forgets`, an expired sale is not found any more.
    """

    def __init__(self, vendor: Vendor[P], outside: Outside, *, forgets: bool = False) -> None:
        self.vendor = vendor
        self.clock = outside.clock
        self.deliveries = Deliveries(outside, headers_of=vendor.headers)
        self._forgets = forgets
        self._sales: dict[str, P] = {}

    def find(self, id: str) -> P | None:
        """Return the sale in its current state. First end an open sale that has expired."""
        sale = self._sales.get(id)
        if sale is None or self.clock() < sale.until:
            return sale
        if self._forgets:
            return None
        return self.end(sale) if sale.is_open else sale

    def all(self) -> list[P]:
        """Return all sales, the oldest first."""
        return list(self._sales.values())

    def keep(self, sale: P) -> P:
        """Store the sale, and add an event if the change is reported."""
        before = self._sales.get(sale.id)
        self._sales[sale.id] = sale
        event = self.vendor.event(before, sale) if before is not None else None
        if event is not None:
            self.deliveries.add(event)
        return sale

    def become(self, sale: P, state: SaleState) -> P:
        taken_at = sale.taken_at
        if taken_at is None and state in _TAKEN:
            taken_at = self.clock()
        return self.keep(replace(sale, state=state, taken_at=taken_at))

    def end(self, sale: P) -> P:
        return self.become(sale, SaleState.OVER)

    def refund(self, sale: P, units: int, about: Mapping[str, Json]) -> SaleRefund:
        """Refund this many minor units."""
        price = Money.from_minor_units(units, sale.price.currency)
        id = self.vendor.refund_id()
        refund = SaleRefund(id=id, price=price, made_at=self.clock(), about=about)
        self.keep(replace(sale, refunds=(*sale.refunds, refund)))
        return refund

    # Actions of a person on the page, or of the seller on the provider's own pages.

    def buttons(self, sale: P) -> list[Button]:
        """Return the buttons that the page shows with their labels."""
        return [one for one in self.vendor.buttons if one.label and one.when(sale)]

    def notes(self, sale: P) -> list[str]:
        notes = list(self.vendor.notes(sale))
        if sale.refunds:
            given = Money.from_minor_units(sale.refunded, sale.price.currency)
            notes.insert(0, f"{shown(given)} of it was refunded.")
        return notes

    def press(self, sale: P, name: str) -> str | None:
        """Press a button, and return the URL to which the browser is redirected.

        None means that the browser returns to the page of the sale.
        """
        for button in self.vendor.buttons:
            if button.name == name and button.when(sale):
                button.act(self, sale)
                url = sale.cancel_url if name == CANCEL else sale.back_url
                return None if button.stays else url
        return None


def becomes(state: SaleState) -> Act:
    def act(sales: Sales[Any], sale: Any) -> None:
        sales.become(sale, state)

    return act


def dispute_button(
    name: str, *, label: str, dispute: Dispute, when: Callable[[Any], bool]
) -> Button:
    """Return a button that sets the stage of a dispute."""

    def act(sales: Sales[Any], sale: Any) -> None:
        at = sale.disputed_at or sales.clock()
        sales.keep(replace(sale, dispute=dispute, disputed_at=at))

    return Button(name=name, label=label, act=act, when=when, stays=True, dispute=dispute)


def _nothing(sales: Sales[Any], sale: Any) -> None:
    """Do nothing."""


def has_remaining_units(sale: Sale) -> bool:
    return sale.is_paid and sale.remaining_units > 0


def refund_half(
    of: Callable[[Any], int], *, when: Callable[[Any], bool] = has_remaining_units
) -> Button:
    def act(sales: Sales[Any], sale: Any) -> None:
        sales.refund(sale, min(max(of(sale) // 2, 1), sale.remaining_units), {})

    label = "Give a part back"
    return Button(name="part", label=label, act=act, when=when, stays=True)


TRANSFER = tuple(
    Button(name=name, act=becomes(state), when=lambda sale: sale.state is SaleState.AWAITED)
    for name, state in (("arrive", SaleState.PAID), ("fail", SaleState.FAILED))
)
GO_BACK = Button(name=CANCEL, act=_nothing)
