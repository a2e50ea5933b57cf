"""Stripe's events: what a verified webhook says.

What could go wrong: bytes that nobody signed, an event of another account or mode, one that comes
twice, late or before an earlier one. An event is read from a verified delivery only, and the
session in it is judged as any other; it is a picture of when the event was made.
"""

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.payments.gateway import Notice
from flows.payments.receipt import Dispute, PaymentChange
from flows.payments.session import REFERENCE_KEY, Id, Malformed
from flows.payments.stripe.account import charged_units
from flows.payments.stripe.session import id_of, neutral, read_session

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


def notice_in(body: bytes) -> Notice:
    """The event in the body of a delivery that was verified when it came.

    Its session is there for SETTLING_EVENTS only, `news` for what comes after a payment; any other
    is acknowledged and ignored. Raises Malformed; of such a one only id and type must be readable.
    """
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
    return Notice(id=envelope.id, type=envelope.type, is_live=False)


def dispute_in(status: Json) -> Dispute:
    """How far a bank's claim is, by Stripe's word for it."""
    if status in _DISPUTES_WON:
        return Dispute.WON
    # An inquiry that was closed may go on as a claim: that one is lost for good.
    return Dispute.GONE if status == "lost" else Dispute.OPEN


def _whole(event: _Whole) -> Notice:
    about = event.data.object
    metadata = about.get("metadata")
    named = metadata.get(REFERENCE_KEY) if isinstance(metadata, Mapping) else None
    is_payment = about.get("object") == "payment_intent"
    subject = _text(about.get("id"), _ID)
    news, session, transition = _changes(event.type, about), None, None
    if event.type in SETTLING_EVENTS:
        found = read_session(about)
        session = neutral(found, has_failed=event.type == PAYMENT_FAILED, is_now=False)
        transition = f"{subject} {event.type} {found.payment_status}"
    elif news is not None:
        transition = f"{subject} {event.type} {news.returned} {news.dispute}"
    return Notice(
        id=event.id,
        type=event.type,
        is_live=event.livemode,
        account=event.account,
        session=session,
        news=news,
        subject=subject,
        reference=_text(about.get("client_reference_id"), _REFERENCE) or _text(named, _REFERENCE),
        payment=_text(id_of(about.get("id" if is_payment else "payment_intent")), _ID),
        transition=transition,
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
