"""Stripe's events: what a verified webhook says.

What could go wrong: bytes that nobody signed, an event of another account or mode, one that comes
twice, late or before an earlier one. An event is read from a verified delivery only, and the
session in it is judged as any other; it is a picture of when the event was made.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.payments.receipt import Dispute, PaymentChange
from flows.payments.session import REFERENCE_KEY, Id, Malformed
from flows.payments.stripe.account import charged_units
from flows.payments.stripe.session import CheckoutSession, id_of, read_session
from flows.webhooks.signatures import Delivery

PAYMENT_FAILED = "checkout.session.async_payment_failed"
SETTLING_EVENTS = frozenset(
    {
        "checkout.session.completed",
        "checkout.session.async_payment_succeeded",
        PAYMENT_FAILED,
        "checkout.session.expired",
    }
)
REFUNDED = "charge.refunded"
DISPUTE_EVENTS = frozenset(
    {"charge.dispute.created", "charge.dispute.updated", "charge.dispute.closed"}
)
# An inquiry that ended, and a claim that a refund has met, leave the money where it is.
_DISPUTES_WON = ("won", "warning_closed", "charge_refunded", "prevented")
_ID = re.compile(r"[A-Za-z0-9_]{1,255}")
_REFERENCE = re.compile(r"[A-Za-z0-9_-]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`session` is there for SETTLING_EVENTS only, `news` for what comes after a payment.

    Any other is acknowledged and ignored. `reference` is the elicitation that it claims to be
    about: anybody who makes a payment at our account can claim one. Two events with the same
    `subject` and `type` say the same thing.
    """

    id: str
    type: str
    livemode: bool = False
    account: str | None = None
    subject: str | None = None
    session: CheckoutSession | None = None
    news: PaymentChange | None = None
    reference: str | None = None
    payment_intent: str | None = None

    @property
    def transition(self) -> str | None:
        """What two events say alike, whichever their ids; None for what nothing follows from."""
        if self.session is not None:
            return f"{self.subject} {self.type} {self.session.payment_status}"
        if self.news is not None:
            return f"{self.subject} {self.type} {self.news.returned} {self.news.dispute}"
        return None


class _Envelope(Struct, frozen=True, kw_only=True):
    """What even an unknown kind of event has."""

    id: Id
    type: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.]{1,200}\Z")]


class _Subject(Struct, frozen=True, kw_only=True):
    object: dict[str, Json]


class _Whole(_Envelope, frozen=True, kw_only=True):
    created: Annotated[int, Meta(ge=0)]
    livemode: bool
    data: _Subject
    account: Id | None = None


_read_envelope = msgspec.json.Decoder(_Envelope).decode
_read_whole = msgspec.json.Decoder(_Whole).decode


def read_event(delivery: Delivery) -> Event:
    """Raises Malformed; of an event that is ignored, only id and type must be readable."""
    return kept_event(delivery.body)


def kept_event(body: bytes) -> Event:
    """The event in the body of a delivery that was verified when it came. Raises Malformed."""
    try:
        return _whole(_read_whole(body))
    except (ValueError, RecursionError):
        pass  # not all of it can be read, and need not be of a kind that is ignored
    try:
        envelope = _read_envelope(body)
    except (ValueError, RecursionError):
        raise Malformed("event") from None
    if envelope.type in SETTLING_EVENTS:
        raise Malformed("event")
    return Event(id=envelope.id, type=envelope.type)


def dispute_in(status: Json) -> Dispute:
    """How far a bank's claim is, by Stripe's word for it."""
    if status in _DISPUTES_WON:
        return Dispute.WON
    # An inquiry that was closed may go on as a claim: that one is lost for good.
    return Dispute.GONE if status == "lost" else Dispute.OPEN


def _whole(event: _Whole) -> Event:
    about = event.data.object
    metadata = about.get("metadata")
    named = metadata.get(REFERENCE_KEY) if isinstance(metadata, Mapping) else None
    is_payment = about.get("object") == "payment_intent"
    return Event(
        id=event.id,
        type=event.type,
        livemode=event.livemode,
        account=event.account,
        subject=_text(about.get("id"), _ID),
        session=read_session(about) if event.type in SETTLING_EVENTS else None,
        news=_changes(event.type, about),
        reference=_text(about.get("client_reference_id"), _REFERENCE) or _text(named, _REFERENCE),
        payment_intent=_text(id_of(about.get("id" if is_payment else "payment_intent")), _ID),
    )


def _changes(kind: str, about: Mapping[str, Json]) -> PaymentChange | None:
    if kind in DISPUTE_EVENTS:
        return PaymentChange(dispute=dispute_in(about.get("status")))
    amount, currency = about.get("amount_refunded"), about.get("currency")
    if kind != REFUNDED or type(amount) is not int or not isinstance(currency, str):
        return None
    try:
        returned = charged_units(amount, currency.upper())
    except InvalidQuestion:
        return None
    return PaymentChange(returned=returned, currency=currency.upper())


def _text(value: Json, pattern: re.Pattern[str]) -> str | None:
    return value if isinstance(value, str) and pattern.fullmatch(value) else None
