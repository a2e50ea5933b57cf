"""Payment events: what a verified webhook says.

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

from flows.checkout_seller import Seller
from flows.checkout_session import (
    REFERENCE_KEY,
    Id,
    Malformed,
    Mismatch,
    Session,
    Verdict,
    id_of,
    judge,
    read_session,
)
from flows.elicitation import Elicitation, Json
from flows.signatures import Delivery

PAYMENT_FAILED = "checkout.session.async_payment_failed"
SETTLING_EVENTS = frozenset(
    {
        "checkout.session.completed",
        "checkout.session.async_payment_succeeded",
        PAYMENT_FAILED,
        "checkout.session.expired",
    }
)
_ID = re.compile(r"[A-Za-z0-9_]{1,255}")
_REFERENCE = re.compile(r"[A-Za-z0-9_-]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`session` is there for SETTLING_EVENTS only; any other is acknowledged and ignored.

    `reference` is the elicitation that it claims to be about: anybody who makes a payment at our
    account can claim one. Two events with the same `subject` and `type` say the same thing.
    """

    id: str
    type: str
    created: int = 0  # seconds of the epoch
    livemode: bool = False
    account: str | None = None
    subject: str | None = None
    session: Session | None = None
    reference: str | None = None
    payment_intent: str | None = None


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


def read_event(delivery: Delivery) -> Event:
    """Raises Malformed; of an event that is ignored, only id and type must be readable."""
    try:
        envelope = msgspec.json.decode(delivery.body, type=_Envelope)
    except (ValueError, RecursionError):
        raise Malformed("event") from None
    try:
        return _whole(msgspec.json.decode(delivery.body, type=_Whole))
    except (ValueError, RecursionError):
        if envelope.type in SETTLING_EVENTS:
            raise Malformed("event") from None
    return Event(id=envelope.id, type=envelope.type)


def judge_event(elicitation: Elicitation, event: Event, *, seller: Seller) -> Verdict:
    """What the event says about the elicitation, as of when it was made; see `judge`.

    Raises Mismatch, for an event of another account or mode or without a session too.
    """
    if event.session is None:
        raise Mismatch("session", session=event.subject or event.id)
    if event.account != seller.account:
        raise Mismatch("account", session=event.session.id)
    if event.livemode != seller.is_live:
        raise Mismatch("mode", session=event.session.id)
    verdict = judge(elicitation, event.session, seller=seller)
    if verdict is Verdict.PENDING and event.type == PAYMENT_FAILED:
        return Verdict.FAILED
    return verdict


def _whole(event: _Whole) -> Event:
    about = event.data.object
    metadata = about.get("metadata")
    named = metadata.get(REFERENCE_KEY) if isinstance(metadata, Mapping) else None
    is_payment = about.get("object") == "payment_intent"
    return Event(
        id=event.id,
        type=event.type,
        created=event.created,
        livemode=event.livemode,
        account=event.account,
        subject=_text(about.get("id"), _ID),
        session=read_session(about) if event.type in SETTLING_EVENTS else None,
        reference=_text(about.get("client_reference_id"), _REFERENCE) or _text(named, _REFERENCE),
        payment_intent=_text(id_of(about.get("id" if is_payment else "payment_intent")), _ID),
    )


def _text(value: Json, pattern: re.Pattern[str]) -> str | None:
    return value if isinstance(value, str) and pattern.fullmatch(value) else None
