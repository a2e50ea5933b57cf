"""A checkout session: what is to be paid in it, and what an attempt keeps of it.

What could go wrong: somebody else's paid session, or a payment link that carries our reference,
taken for ours. So which sessions an elicitation began stands in its attempts and nowhere else.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from flows.elicitation.states import Attempt, Elicitation
from flows.elicitation.traits import traits_of
from flows.errors import ElicitError
from flows.payments.money import Money

Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]{1,255}\Z")]  # it goes into paths
REFERENCE_KEY = "elicitation"  # in the metadata of the session and of the payment


class Malformed(ElicitError, ValueError):
    """What should be a session or an event has not its shape."""

    name = "PAYMENT_MALFORMED"
    code = -32602
    http_status = 400

    def __init__(self, what: str) -> None:
        super().__init__(f"This is no {what} that can be read.")


class Mismatch(ElicitError):
    """An authentic session that must not settle this elicitation.

    `what` differs: session, reference, amount, currency, mode or account.
    """

    name = "PAYMENT_MISMATCH"
    http_status = 409

    def __init__(self, what: str, *, session: str) -> None:
        self.what = what
        self.session = session
        super().__init__(f"The payment's {what} is not what was asked for, so it settles nothing.")


class CheckoutTerms(Struct, frozen=True, kw_only=True):
    """What is to be paid, as it was asked; `amount` in minor units of ISO 4217."""

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
    """What an attempt keeps: the request as it is sent, then the session that it made.

    `handle` is what the provider calls the session in its paths, where that is another word.
    """

    request: str
    expires_at: int  # seconds of the epoch, as the provider counts
    session: str | None = None
    url: str | None = None
    handle: str | None = None

    def __repr__(self) -> str:
        return f"StoredCheckout(session={self.session!r})"


class SessionStatus(StrEnum):
    """How far a session is at its provider."""

    OPEN = "open"  # it can be paid, or was approved and is not taken yet
    PENDING = "pending"  # the money is on its way and may still not arrive
    PAID = "paid"
    FAILED = "failed"  # it was tried and no money came; nobody can pay there now
    CLOSED = "closed"  # nobody paid and nobody can


def terms_of(elicitation: Elicitation) -> CheckoutTerms:
    return msgspec.convert(elicitation.asked.terms, CheckoutTerms)


def is_for_good(elicitation: Elicitation) -> bool:
    """Return True if the question is for a purchase that answers it from then on (`once=True`)."""
    return traits_of(elicitation.kind).gives == "receipt" and terms_of(elicitation).once


def kept_of(attempt: Attempt | None) -> StoredCheckout | None:
    """What an attempt to pay keeps; None if there is none."""
    try:
        return msgspec.convert(attempt.kept, StoredCheckout) if attempt is not None else None
    except msgspec.ValidationError:  # an attempt of another kind
        return None


def sessions_of(elicitation: Elicitation) -> tuple[str, ...]:
    """The sessions that attempts of this elicitation began, the latest first."""
    attempts = (elicitation.attempt, *reversed(elicitation.former))
    return tuple(
        kept.session
        for attempt in attempts
        if (kept := kept_of(attempt)) is not None and kept.session is not None
    )


def began_before(elicitation: Elicitation, session: str, moment: datetime) -> bool:
    """Return True if an attempt began this session before `moment`, or the store had lost it."""
    for attempt in (elicitation.attempt, *elicitation.former):
        kept = kept_of(attempt)
        if attempt is None or kept is None or kept.session != session:
            continue
        return attempt.started_at <= moment or not kept.request
    return elicitation.created_at <= moment
