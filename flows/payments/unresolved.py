"""An unresolved payment: a page that was left, and nobody knows what became of it.

What could go wrong: money that arrives when nobody asks any more, or that is not what was asked
for, and that nobody hears of. So its provider is asked again, later each time, until it has said
its last word; what it never said, and what was paid otherwise than asked, stays until somebody
has looked.
"""

from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from flows.errors import InvalidQuestion
from flows.payments.money import Money
from flows.payments.receipt import RECEIPT_KEPT

# The progress of a question that was paid so, and the words that its tool hears.
PAID_OTHERWISE = "paid otherwise than asked: whoever runs this server has to look at it"
ASK_AGAIN_AFTER = timedelta(minutes=10)  # the first time; then twice as long each time
ASK_AGAIN_AT_MOST = timedelta(days=1)
TRIES_THAT_COUNT = 8
KEPT = timedelta(days=30)  # once it is over


class UnresolvedStatus(StrEnum):
    WAITING = "waiting"  # the provider is asked again
    UNANSWERED = "unanswered"  # it is asked no more, and has not said what became of it
    OTHERWISE = "otherwise"  # paid, and not what was asked for
    OVER = "over"  # settled, or nobody paid
    DONE = "done"  # somebody has looked


class UnresolvedPayment(Struct, frozen=True, kw_only=True):
    """`amount` is what was asked for, in minor units; `paid` and its currency what came instead."""

    id: str
    owner: str
    elicitation_id: str
    tool: str
    seller: str
    what: str
    amount: int
    currency: str
    is_live: bool
    session: str
    found_at: datetime
    until: datetime  # when it is given up
    status: UnresolvedStatus = UnresolvedStatus.WAITING
    look_at: datetime | None = None
    tries: int = 0
    paid: int | None = None
    paid_currency: str | None = None
    paid_live: bool = False
    ended_at: datetime | None = None
    version: int = 0

    def __repr__(self) -> str:
        return f"UnresolvedPayment({self.id!r}, {self.status.value!r})"

    @property
    def price(self) -> Money:
        return Money.from_minor_units(self.amount, self.currency)

    @property
    def paid_price(self) -> str:
        """As its provider told it, which may be no price at all."""
        try:
            return str(Money.from_minor_units(self.paid or 0, self.paid_currency or ""))
        except InvalidQuestion:
            return f"{self.paid} {self.paid_currency}"

    @property
    def is_open(self) -> bool:
        """Whether somebody has to look."""
        return self.status in (UnresolvedStatus.UNANSWERED, UnresolvedStatus.OTHERWISE)

    @property
    def due_at(self) -> datetime | None:
        return self.look_at  # only what is waited for has one

    @property
    def erase_at(self) -> datetime:
        ended = self.ended_at
        return self.found_at + RECEIPT_KEPT if ended is None else ended + KEPT


def ask_again(unresolved: UnresolvedPayment, now: datetime) -> UnresolvedPayment:
    """It has not said its last word: it is asked later, or never again."""
    if unresolved.status is not UnresolvedStatus.WAITING:
        return unresolved
    if unresolved.look_at is not None and now < unresolved.look_at:
        return unresolved  # somebody else asked meanwhile: its own turns stay as they are
    if now >= unresolved.until:
        return give_up(unresolved)
    pause = min(ASK_AGAIN_AFTER * 2 ** min(unresolved.tries, TRIES_THAT_COUNT), ASK_AGAIN_AT_MOST)
    return replace(
        unresolved, look_at=min(now + pause, unresolved.until), tries=unresolved.tries + 1
    )


def give_up(unresolved: UnresolvedPayment) -> UnresolvedPayment:
    """Nobody can be asked any more."""
    if unresolved.status is not UnresolvedStatus.WAITING:
        return unresolved
    return replace(unresolved, status=UnresolvedStatus.UNANSWERED, look_at=None)


def paid_otherwise(
    unresolved: UnresolvedPayment, *, amount: int | None, currency: str | None, is_live: bool
) -> UnresolvedPayment:
    """What came is not what was asked for; who has looked already need not look again."""
    told = replace(unresolved, paid=amount, paid_currency=currency, paid_live=is_live)
    if unresolved.status is UnresolvedStatus.DONE and told == unresolved:
        return unresolved
    return replace(told, status=UnresolvedStatus.OTHERWISE, look_at=None, ended_at=None)


def end(
    unresolved: UnresolvedPayment,
    now: datetime,
    *,
    status: UnresolvedStatus = UnresolvedStatus.OVER,
) -> UnresolvedPayment:
    """The provider has said its last word, or somebody has looked."""
    if unresolved.ended_at is not None:
        return unresolved
    return replace(unresolved, status=status, look_at=None, ended_at=now)
