"""Checkout sessions: the terms of a payment, its checkout, and payments whose result is unknown.

Risks: another party's paid session, or a payment link with our reference, is treated as ours. The
sessions of an elicitation are therefore only those stored in its attempts.

Risks: nobody notices that money arrived after the question ended, or that the person paid another
amount than requested. The provider is therefore polled with growing pauses until the result is
final. A payment that has no final result, or that differs from the question, is stored until an
operator has reviewed the payment.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from flows.elicitation.states import Attempt, Elicitation
from flows.elicitation.traits import traits_of
from flows.errors import ElicitError, InvalidQuestion
from flows.payments.money import Money
from flows.payments.receipt import RECEIPT_RETENTION

Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]{1,255}\Z")]  # part of URL paths
REFERENCE_KEY = "elicitation"  # metadata key in the session and the payment


class Malformed(ElicitError, ValueError):
    """The data is not a valid session or event."""

    name = "PAYMENT_MALFORMED"
    jsonrpc_code = -32602
    http_status = 400

    def __init__(self, what: str) -> None:
        super().__init__(f"The {what} is invalid.")


class Mismatch(ElicitError):
    """An authentic session that must not settle this elicitation.

    `what` names the part that differs: session, reference, amount, currency, mode or account.
    """

    name = "PAYMENT_MISMATCH"
    http_status = 409

    def __init__(self, what: str, *, session: str) -> None:
        self.what = what
        self.session = session
        super().__init__(
            f"The payment's {what} differs from the request, so the payment is not accepted."
        )


class CheckoutTerms(Struct, frozen=True, kw_only=True):
    """The terms of a payment as it was asked. `amount` is in ISO 4217 minor units."""

    seller: str
    amount: int
    currency: str
    what: str
    once: bool = False
    is_live: bool

    @property
    def price(self) -> Money:
        return Money.from_minor_units(self.amount, self.currency)


class StoredCheckout(Struct, frozen=True, kw_only=True):
    """The checkout that an attempt stores: the request, then the session that it created.

    `handle` is the provider's id of the session in paths, if it differs from the session id.
    """

    request: str
    expires_at: int  # in seconds since the epoch, by the provider's clock
    session: str | None = None
    url: str | None = None
    handle: str | None = None

    def __repr__(self) -> str:
        return f"StoredCheckout(session={self.session!r})"


class SessionStatus(StrEnum):
    """The status of a session at its provider."""

    OPEN = "open"  # can be paid, or is approved but not captured
    PENDING = "pending"  # the money is on its way and may still not arrive
    PAID = "paid"
    FAILED = "failed"  # the payment failed, and the session cannot be paid any more
    CLOSED = "closed"  # not paid, and cannot be paid any more


def terms_of(elicitation: Elicitation) -> CheckoutTerms:
    return msgspec.convert(elicitation.request.terms, CheckoutTerms)


def is_for_good(elicitation: Elicitation) -> bool:
    """Return True if the question is for a permanent purchase (`once=True`)."""
    return traits_of(elicitation.kind).gives == "receipt" and terms_of(elicitation).once


def checkout_of(attempt: Attempt | None) -> StoredCheckout | None:
    """Return the checkout that an attempt stores, or None."""
    try:
        return msgspec.convert(attempt.kept, StoredCheckout) if attempt is not None else None
    except msgspec.ValidationError:  # an attempt of another kind
        return None


def sessions_of(elicitation: Elicitation) -> tuple[str, ...]:
    """Return the sessions of this elicitation's attempts, the latest first."""
    attempts = (elicitation.attempt, *reversed(elicitation.earlier_attempts))
    return tuple(
        stored.session
        for attempt in attempts
        if (stored := checkout_of(attempt)) is not None and stored.session is not None
    )


def began_before(elicitation: Elicitation, session: str, moment: datetime) -> bool:
    """Return True if an attempt began this session before `moment`.

    Also return True if the store had lost the session's request. If no attempt has the session,
    compare the elicitation's creation time.
    """
    for attempt in (elicitation.attempt, *elicitation.earlier_attempts):
        stored = checkout_of(attempt)
        if attempt is None or stored is None or stored.session != session:
            continue
        return attempt.started_at <= moment or not stored.request
    return elicitation.created_at <= moment


# The `progress` of a question whose payment differs from what was asked for. The tool receives this
# text too.
PAID_OTHERWISE = (
    "paid differently than requested (amount, currency or mode): the operator of this server has "
    "to check the payment"
)
# The same text, as an earlier version wrote it into stored questions.
_FORMER_PAID_OTHERWISE = "paid otherwise than asked: whoever runs this server has to look at it"
ASK_AGAIN_AFTER = timedelta(minutes=10)  # first pause; each further pause is twice as long
ASK_AGAIN_AT_MOST = timedelta(days=1)
TRIES_THAT_COUNT = 8
UNRESOLVED_RETENTION = timedelta(days=30)  # counted from the end of the unresolved payment


def is_paid_otherwise(progress: str | None) -> bool:
    """Return True if this `progress` says that the payment differs from what was asked for."""
    return progress in (PAID_OTHERWISE, _FORMER_PAID_OTHERWISE)


class UnresolvedStatus(StrEnum):
    WAITING = "waiting"  # the provider is polled again
    UNANSWERED = "unanswered"  # no longer polled, and the provider never reported a result
    OTHERWISE = "otherwise"  # paid, but not the requested amount, currency or mode
    OVER = "over"  # settled, or ended without a payment
    DONE = "done"  # reviewed by an operator


class UnresolvedPayment(Struct, frozen=True, kw_only=True):
    """A payment whose result is unknown, or that differs from the question.

    `amount` is what was asked for, in minor units. `paid` and `paid_currency` are what the person
    paid, if that differs.
    """

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
    until: datetime  # when polling ends
    status: UnresolvedStatus = UnresolvedStatus.WAITING
    next_check_at: datetime | None = field(default=None, name="look_at")
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
        """The paid amount as the provider reported it, which may not be a valid amount."""
        try:
            return str(Money.from_minor_units(self.paid or 0, self.paid_currency or ""))
        except InvalidQuestion:
            return f"{self.paid} {self.paid_currency}"

    @property
    def due_at(self) -> datetime | None:
        return self.next_check_at  # set only while WAITING

    @property
    def erase_at(self) -> datetime:
        ended = self.ended_at
        return self.found_at + RECEIPT_RETENTION if ended is None else ended + UNRESOLVED_RETENTION


def ask_again(unresolved: UnresolvedPayment, now: datetime) -> UnresolvedPayment:
    """Schedule the next poll, or stop polling at `until` without a final result."""
    if unresolved.status is not UnresolvedStatus.WAITING:
        return unresolved
    if unresolved.next_check_at is not None and now < unresolved.next_check_at:
        return unresolved  # another process has polled and scheduled the next poll
    if now >= unresolved.until:
        return give_up(unresolved)
    pause = min(ASK_AGAIN_AFTER * 2 ** min(unresolved.tries, TRIES_THAT_COUNT), ASK_AGAIN_AT_MOST)
    return replace(
        unresolved, next_check_at=min(now + pause, unresolved.until), tries=unresolved.tries + 1
    )


def give_up(unresolved: UnresolvedPayment) -> UnresolvedPayment:
    """Stop polling: the provider never reported a result."""
    if unresolved.status is not UnresolvedStatus.WAITING:
        return unresolved
    return replace(unresolved, status=UnresolvedStatus.UNANSWERED, next_check_at=None)


def paid_otherwise(
    unresolved: UnresolvedPayment, *, amount: int | None, currency: str | None, is_live: bool
) -> UnresolvedPayment:
    """Record a payment that differs from the question, unless an operator has reviewed it."""
    changed = replace(unresolved, paid=amount, paid_currency=currency, paid_live=is_live)
    if unresolved.status is UnresolvedStatus.DONE and changed == unresolved:
        return unresolved
    return replace(changed, status=UnresolvedStatus.OTHERWISE, next_check_at=None, ended_at=None)


def end(
    unresolved: UnresolvedPayment,
    now: datetime,
    *,
    status: UnresolvedStatus = UnresolvedStatus.OVER,
) -> UnresolvedPayment:
    """Close the payment: the provider reported a final result, or an operator reviewed it."""
    if unresolved.ended_at is not None:
        return unresolved
    return replace(unresolved, status=status, next_check_at=None, ended_at=now)
