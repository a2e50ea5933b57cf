"""The sales of one provider: what may become of each, and who is told of it.

Everything here happens between two awaits, so a change is never seen by halves. What could go
wrong: a sale paid twice, or paid after its end. So a button does something only while the sale
stands as that button needs it, whichever tab it is pressed in.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from flows.elicitation.states import Json
from flows.payments.money import Money
from flows.payments.receipt import Dispute
from webapp.sandbox.checkout.deliveries import Deliveries, Outside, SandboxEvent


class SaleState(StrEnum):
    """Each has a page of its own, under this name."""

    OPEN = "pay"
    AGREED = "pay_agreed"  # the person did their part, and the shop has yet to take the money
    AWAITED = "pay_awaited"
    PAID = "paid"
    FAILED = "pay_failed"
    OVER = "pay_expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaleRefund:
    """`about` is what its provider writes besides, as it was asked for."""

    id: str
    price: Money
    made_at: datetime
    about: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sale:
    """What there is to pay, or was; `taken_at` is when it was paid, or its payment promised."""

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
        """In minor units."""
        return sum(refund.price.minor_units for refund in self.refunds)

    @property
    def left(self) -> int:
        """What was not given back, in minor units; where a provider gives back more, below zero."""
        return self.price.minor_units - self.refunded


P = TypeVar("P", bound=Sale)
Own_contra = TypeVar("Own_contra", bound=Sale, contravariant=True)
CANCEL = "cancel"
_TAKEN = (SaleState.AWAITED, SaleState.PAID)
# What a button does; the sales and the one of them are of one provider.
Act: TypeAlias = Callable[["Sales[Any]", Any], object]


def is_open(sale: Sale) -> bool:
    return sale.is_open


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """Something to press `when` that is possible; the browser goes back then, unless it `stays`.

    One without a label stands on the page in words of the page's own, or is not shown.
    """

    name: str
    act: Act
    label: str = ""
    look: str = ""
    when: Callable[[Any], bool] = is_open
    stays: bool = False


class Vendor(Protocol[Own_contra]):
    """What is a provider's own."""

    @property
    def label(self) -> str: ...

    @property
    def buttons(self) -> tuple[Button, ...]: ...

    def refund_id(self) -> str: ...

    def notes(self, sale: Own_contra, /) -> Iterable[str]:
        """What else became of it, besides refunds, for its page."""
        ...

    def event(self, before: Own_contra, after: Own_contra, /) -> SandboxEvent | None:
        """What is told of the change; None: nothing."""
        ...

    def headers(self, event: SandboxEvent, /) -> Sequence[tuple[str, str]]:
        """With which it is told, anew for each try."""
        ...


class Sales(Generic[P]):
    """All that one provider knows; it forgets when its process ends.

    Where it `forgets`, a sale whose time is up is not found any more.
    """

    def __init__(self, vendor: Vendor[P], outside: Outside, *, forgets: bool = False) -> None:
        self.vendor = vendor
        self.clock = outside.clock
        self.deliveries = Deliveries(outside, headers_of=vendor.headers)
        self._forgets = forgets
        self._sales: dict[str, P] = {}

    def find(self, id: str) -> P | None:
        """The sale as it is now: time alone ends one, which is noticed here."""
        sale = self._sales.get(id)
        if sale is None or self.clock() < sale.until:
            return sale
        if self._forgets:
            return None
        return self.end(sale) if sale.is_open else sale

    def all(self) -> list[P]:
        """The oldest first."""
        return list(self._sales.values())

    def keep(self, sale: P) -> P:
        """It is so from now on; what has changed is told."""
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
        """Give so many minor units back."""
        price = Money.from_minor_units(units, sale.price.currency)
        id = self.vendor.refund_id()
        refund = SaleRefund(id=id, price=price, made_at=self.clock(), about=about)
        self.keep(replace(sale, refunds=(*sale.refunds, refund)))
        return refund

    # What a person, or the seller on pages of its own, does.

    def buttons(self, sale: P) -> list[Button]:
        """Those that its page shows by their labels."""
        return [one for one in self.vendor.buttons if one.label and one.when(sale)]

    def notes(self, sale: P) -> list[str]:
        notes = list(self.vendor.notes(sale))
        if sale.refunds:
            given = Money.from_minor_units(sale.refunded, sale.price.currency)
            notes.insert(0, f"{given.shown} of it was given back.")
        return notes

    def press(self, sale: P, name: str) -> str | None:
        """Do what the button says. Where the browser goes; None: to the page, which tells why."""
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
    """What a bank does about a payment, or what comes of that."""

    def act(sales: Sales[Any], sale: Any) -> None:
        at = sale.disputed_at or sales.clock()
        sales.keep(replace(sale, dispute=dispute, disputed_at=at))

    return Button(name=name, label=label, act=act, when=when, stays=True)


def _nothing(sales: Sales[Any], sale: Any) -> None:
    """Leave it as it is."""


def is_left(sale: Sale) -> bool:
    return sale.is_paid and sale.left > 0


def give_half_back(of: Callable[[Any], int], *, when: Callable[[Any], bool] = is_left) -> Button:
    def act(sales: Sales[Any], sale: Any) -> None:
        sales.refund(sale, min(max(of(sale) // 2, 1), sale.left), {})

    label = "Give a part back"
    return Button(name="part", label=label, act=act, when=when, stays=True)


def _is_awaited(sale: Sale) -> bool:
    return sale.state is SaleState.AWAITED


TRANSFER = tuple(
    Button(name=name, act=becomes(state), when=_is_awaited)
    for name, state in (("arrive", SaleState.PAID), ("fail", SaleState.FAILED))
)
GO_BACK = Button(name=CANCEL, act=_nothing)
