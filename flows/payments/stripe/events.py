"""The reader of Stripe's events from verified webhooks.

Risks: unsigned data, an event of another account or mode, or a repeated, late or reordered event.
Events are only read from verified deliveries. The session in an event is checked like any other
session, and describes the time at which the event was created.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.payments.gateway import Notice, ProviderSession
from flows.payments.receipt import Dispute, PaymentChange, RefundChange
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
# An accepted refund can fail days later. The last name is from older API versions.
REFUND_EVENTS = frozenset({"refund.updated", "refund.failed"})
_REFUND_EVENTS = REFUND_EVENTS | {"refund.created", "charge.refund.updated"}
REFUND_ENDED = frozenset({"failed", "canceled"})
DISPUTE_EVENTS = frozenset(
    {"charge.dispute.created", "charge.dispute.updated", "charge.dispute.closed"}
)
# The values of Dispute.status in the pinned API version, and one of older versions.
STAGES: Mapping[str, Dispute] = {
    "warning_needs_response": Dispute.INQUIRY,
    "warning_under_review": Dispute.INQUIRY,
    "warning_closed": Dispute.CLOSED,
    "prevented": Dispute.CLOSED,
    "charge_refunded": Dispute.CLOSED,
    "needs_response": Dispute.OPEN,
    "under_review": Dispute.OPEN,
    "lost": Dispute.LOST,
    "appeal_needs_response": Dispute.APPEALED,
    "appeal_under_review": Dispute.APPEALED,
    "won": Dispute.WON,
}
_ID = re.compile(r"[A-Za-z0-9_]{1,255}")
_REFERENCE = re.compile(r"[A-Za-z0-9_-]{1,200}")


class _Envelope(Struct, frozen=True, kw_only=True):
    """The fields of every event, even of an unknown type."""

    id: Id
    type: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.]{1,200}\Z")]


class _Subject(Struct, frozen=True, kw_only=True):
    object: dict[str, Json]


class _Event(_Envelope, frozen=True, kw_only=True):
    created: Annotated[int, Meta(ge=0)]
    livemode: bool
    data: _Subject
    account: Id | None = None


_read_envelope = msgspec.json.Decoder(_Envelope).decode
_read_event = msgspec.json.Decoder(_Event).decode


def notice_in(body: bytes) -> Notice:
    """Read the event in the body of a delivery that was verified when it arrived.

    The notice has a session for SETTLING_EVENTS and `news` for later changes of a payment. Other
    events are acknowledged and ignored, and only need a readable id and type. Raises Malformed.
    """
    try:
        return _notice_of(_read_event(body))
    except (ValueError, RecursionError):
        pass  # not fully readable, which is fine for an ignored type
    try:
        envelope = _read_envelope(body)
    except (ValueError, RecursionError):
        raise Malformed("event") from None
    if envelope.type in SETTLING_EVENTS:
        raise Malformed("event")
    return Notice(id=envelope.id, type=envelope.type, is_live=False)


def stage_in(status: Json) -> Dispute:
    """Return the stage of a dispute. An unknown status counts as an open dispute."""
    return STAGES.get(status, Dispute.OPEN) if isinstance(status, str) else Dispute.OPEN


def claimed_in(about: Mapping[str, Json]) -> tuple[int | None, str | None]:
    """Return a dispute's amount in minor units and its currency, or None if unreadable."""
    return _units(about.get("amount"), about.get("currency"))


def _notice_of(event: _Event) -> Notice:
    about = event.data.object
    metadata = about.get("metadata")
    named = metadata.get(REFERENCE_KEY) if isinstance(metadata, Mapping) else None
    reference = _text(about.get("client_reference_id"), _REFERENCE) or _text(named, _REFERENCE)
    subject, at = _text(about.get("id"), _ID), datetime.fromtimestamp(event.created, UTC)
    is_payment = about.get("object") == "payment_intent"
    change, session, transition = _changes(event.type, about, at=at), None, None
    if event.type in SETTLING_EVENTS:
        session = _session_in(about, event.type, is_ours=reference is not None)
        transition = f"{subject} {event.type} {about.get('payment_status')}"
    elif change is not None:
        refund = "" if change.refund is None else f" {about.get('status')}"
        transition = f"{subject} {event.type} {change.returned} {change.dispute}{refund}"
    # Stripe copies our metadata to other objects. An event with neither a session nor a payment
    # change is ignored, so its notice must not name a question.
    is_relevant = session is not None or change is not None
    return Notice(
        id=event.id,
        type=event.type,
        is_live=event.livemode,
        account=event.account,
        session=session,
        news=change,
        subject=subject if is_relevant else None,
        reference=reference if is_relevant else None,
        payment=_text(id_of(about.get("id" if is_payment else "payment_intent")), _ID),
        transition=transition if is_relevant else None,
    )


def _session_in(about: Mapping[str, Json], kind: str, *, is_ours: bool) -> ProviderSession | None:
    """Read the session of an event; None if it names no question. Raises Malformed."""
    try:
        found = read_session(about)
    except Malformed:
        if is_ours or about.get("object") != "checkout.session":
            raise
        return None
    return neutral(found, has_failed=kind == PAYMENT_FAILED, is_now=False)


def _changes(kind: str, about: Mapping[str, Json], *, at: datetime) -> PaymentChange | None:
    if kind in DISPUTE_EVENTS:
        claimed, currency = claimed_in(about)
        stage = stage_in(about.get("status"))
        return PaymentChange(dispute=stage, claimed=claimed, claimed_currency=currency, at=at)
    if kind in _REFUND_EVENTS:
        return _of_refund(about, at=at)
    returned, currency = _units(about.get("amount_refunded"), about.get("currency"))
    if kind != REFUNDED or returned is None:
        return None
    return PaymentChange(returned=returned, currency=currency, at=at)


def _of_refund(about: Mapping[str, Json], *, at: datetime) -> PaymentChange | None:
    """Read the status of a refund. Return None if the refund does not count.

    A refund that this server did not request counts only if it failed or was canceled.
    """
    id, status = _text(about.get("id"), _ID), about.get("status")
    amount, currency = _units(about.get("amount"), about.get("currency"))
    has_ended = status in REFUND_ENDED
    metadata = about.get("metadata")
    is_ours = isinstance(metadata, Mapping) and REFERENCE_KEY in metadata
    if id is None or not (has_ended or is_ours):
        return None
    refund = RefundChange(id=id, stands=not has_ended, is_done=status == "succeeded", amount=amount)
    return PaymentChange(refund=refund, currency=currency, at=at)


def _units(amount: Json, currency: Json) -> tuple[int | None, str | None]:
    if type(amount) is not int or not isinstance(currency, str):
        return None, None
    try:
        return charged_units(amount, currency.upper()), currency.upper()
    except InvalidQuestion:
        return None, None


def _text(value: Json, pattern: re.Pattern[str]) -> str | None:
    return value if isinstance(value, str) and pattern.fullmatch(value) else None
