"""Checkout sessions: the terms of a payment, and the checkout that an attempt stores.

Risks: another party's paid session, or a payment link with our reference, is treated as ours. The
sessions of an elicitation are therefore only those stored in its attempts.
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

Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]{1,255}\Z")]  # it becomes part of paths
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

    `what` differs: session, reference, amount, currency, mode or account.
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
    return msgspec.convert(elicitation.asked.terms, CheckoutTerms)


def is_for_good(elicitation: Elicitation) -> bool:
    """Return True if the question is for a permanent purchase (`once=True`)."""
    return traits_of(elicitation.kind).gives == "receipt" and terms_of(elicitation).once


def kept_of(attempt: Attempt | None) -> StoredCheckout | None:
    """Return the checkout that an attempt stores, or None."""
    try:
        return msgspec.convert(attempt.kept, StoredCheckout) if attempt is not None else None
    except msgspec.ValidationError:  # an attempt of another kind
        return None


def sessions_of(elicitation: Elicitation) -> tuple[str, ...]:
    """Return the sessions of this elicitation's attempts, the latest first."""
    attempts = (elicitation.attempt, *reversed(elicitation.former))
    return tuple(
        stored.session
        for attempt in attempts
        if (stored := kept_of(attempt)) is not None and stored.session is not None
    )


def began_before(elicitation: Elicitation, session: str, moment: datetime) -> bool:
    """Return True if an attempt began this session before `moment`.

    Also return True if the store had lost the session's request. If no attempt has the session,
    compare the elicitation's creation time.
    """
    for attempt in (elicitation.attempt, *elicitation.former):
        stored = kept_of(attempt)
        if attempt is None or stored is None or stored.session != session:
            continue
        return attempt.started_at <= moment or not stored.request
    return elicitation.created_at <= moment
