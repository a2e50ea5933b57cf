"""A session of Stripe Checkout, as a reply or an event describes it.

Risks: an object that a reply only names by id is read as if the reply contained its data.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.payments.claims import ProviderClaim
from flows.payments.gateway import ProviderSession
from flows.payments.session import REFERENCE_KEY, Id, Malformed, SessionStatus
from flows.payments.stripe.account import charged_units

# The values of the pinned API version. Stripe's own library says that there may be others.
STATUSES = frozenset({"open", "complete", "expired"})
PAYMENT_STATUSES = frozenset({"paid", "unpaid", "no_payment_required"})
# Statuses of a payment that brings no money: a delayed payment failed, or it was canceled.
_NO_MONEY_COMES = ("requires_payment_method", "canceled")


class CheckoutSession(Struct, frozen=True, kw_only=True):
    """A session.

    `amount_total` is in Stripe's units, `currency` in capitals.

    Sessions of other programs may lack a status or an amount, ours have both. The payment's status
    and the charge are only known if the reply contains these objects, not just their ids.
    """

    id: Id
    status: str | None
    payment_status: str
    amount_total: Annotated[int, Meta(ge=0)] | None
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}\Z")] | None
    livemode: bool
    client_reference_id: str | None = None
    payment_intent: Id | None = None
    payment_intent_status: str | None = None
    amount_refunded: Annotated[int, Meta(ge=0)] = 0
    is_disputed: bool = False  # True also if the dispute has ended
    url: str | None = None

    def __repr__(self) -> str:
        return f"CheckoutSession({self.id!r}, {self.status!r}, {self.payment_status!r})"


def read_session(data: Json) -> CheckoutSession:
    """Read a session. Raises Malformed."""
    if not isinstance(data, Mapping):
        raise Malformed("payment session")
    currency, intent = data.get("currency"), data.get("payment_intent")
    charge = intent.get("latest_charge") if isinstance(intent, Mapping) else None
    about_charge: Mapping[str, Json] = charge if isinstance(charge, Mapping) else {}
    fields = {
        **data,
        "currency": currency.upper() if isinstance(currency, str) else currency,
        "payment_intent": id_of(intent),
        "payment_intent_status": intent.get("status") if isinstance(intent, Mapping) else None,
        "amount_refunded": about_charge.get("amount_refunded", 0),
        "is_disputed": about_charge.get("disputed", False),
    }
    try:
        return msgspec.convert(fields, CheckoutSession)
    except msgspec.ValidationError:
        raise Malformed("payment session") from None


def listed_session(data: Mapping[str, Json]) -> ProviderSession | None:
    """Return a listed session that names one of our questions, or None.

    Anybody who pays at a payment link can set the session's reference. Only a holder of our API key
    can write its metadata.
    """
    named, metadata = data.get("client_reference_id"), data.get("metadata")
    ours = metadata.get(REFERENCE_KEY) if isinstance(metadata, Mapping) else None
    if not isinstance(named, str):
        return None
    try:
        session = neutral(read_session(data))
    except Malformed:
        return None
    until = data.get("expires_at")
    return replace(
        session,
        closes_at=datetime.fromtimestamp(until, UTC) if isinstance(until, int) else None,
        is_made_by_us=ours == named and data.get("payment_link") is None,
    )


def id_of(value: Json) -> Json:
    """Return the id of an object that the reply names by id or contains."""
    return value.get("id") if isinstance(value, Mapping) else value


def neutral(
    session: CheckoutSession,
    *,
    has_failed: bool = False,
    is_now: bool = True,
    claims: tuple[ProviderClaim, ...] = (),
) -> ProviderSession:
    """Convert to a ProviderSession. `has_failed`: the event says that the payment failed."""
    state = _state(session)
    return ProviderSession(
        id=session.id,
        state=SessionStatus.FAILED if has_failed and state is SessionStatus.PENDING else state,
        amount=_units(session.amount_total, session.currency),
        currency=session.currency,
        reference=session.client_reference_id,
        is_live=session.livemode,
        payment=session.payment_intent,
        refunded=_units(session.amount_refunded, session.currency) or 0,
        claims=claims,
        url=session.url,
        is_now=is_now,
        unknown_word=unknown_word(session),
    )


def _state(session: CheckoutSession) -> SessionStatus:
    """Return the status. An unknown value never ends a session: it is fetched again."""
    match session.status, session.payment_status:
        case _, "paid":
            return SessionStatus.PAID
        case "open" | None, _:
            return SessionStatus.OPEN
        case "expired", _:
            return SessionStatus.CLOSED
        case "complete", "no_payment_required":
            return SessionStatus.PAID
        case "complete", "unpaid" if session.payment_intent_status in _NO_MONEY_COMES:
            return SessionStatus.FAILED
        case _:
            return SessionStatus.PENDING


def unknown_word(session: CheckoutSession) -> str | None:
    """Return a status of Stripe's that this version does not know, or None."""
    words = {session.status: STATUSES, session.payment_status: PAYMENT_STATUSES}
    return next((word for word, known in words.items() if word and word not in known), None)


def _units(amount: int | None, currency: str | None) -> int | None:
    return None if amount is None or currency is None else _minor_units(amount, currency)


@lru_cache(1024)
def _minor_units(amount: int, currency: str) -> int | None:
    try:
        return charged_units(amount, currency)
    except InvalidQuestion:
        return None
